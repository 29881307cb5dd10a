//! Amazon SNS, which delivers the events of SES: messages signed with RSA, by a certificate that the message names and that counts only
//! where Amazon itself serves it.
//!
//! <https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html>

use std::{sync::Arc, time::Duration};

use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256};
use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::{DateTime, TimeDelta, Utc};
use http::HeaderMap;
use moka::future::Cache;
use runtime::{Outbound, outbound::OutboundLimits};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::Deserialize;
use url::Url;
use webpki::EndEntityCert;

use super::{
    super::connection::HookConnection,
    proof::{EventCheck, EventRefusal, Proof, is_fresh},
};
use crate::pipeline::shares::{Share, Shares};

/// SNS repeats for an hour at most.
const WINDOW: TimeDelta = TimeDelta::minutes(75);
/// How long a certificate is kept. Amazon names a new one when it changes.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// How long it is kept in mind that there is none to be had.
const FAULT_LIFE: Duration = Duration::from_secs(30);
const CERTIFICATES: u64 = 100;
/// Requests to Amazon at a time, one of them for a connection. A certificate is fetched before the signature is checked, so anyone who knows
/// a connection can have many asked for: they keep its own events waiting, and no other's.
const REQUESTS_AT_ONCE: usize = 4;
/// How long an event waits for its turn before the provider is asked to come again.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
const ID_MAX_BYTES: usize = 256;
const LIMITS: OutboundLimits = OutboundLimits { timeout: Duration::from_secs(5), body_max_bytes: 64 * 1024 };

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SnsMessage {
    #[serde(rename = "Type")]
    kind: String,
    message_id: String,
    topic_arn: String,
    message: String,
    timestamp: String,
    signature: String,
    signature_version: String,
    #[serde(rename = "SigningCertURL", alias = "SigningCertUrl")]
    certificate: String,
    subject: Option<String>,
    token: Option<String>,
    #[serde(rename = "SubscribeURL", alias = "SubscribeUrl")]
    subscribe: Option<String>,
}

/// Checks SNS messages.
#[derive(Debug)]
pub(in super::super) struct Sns {
    client: Outbound,
    /// Hosts beside Amazon's, as `host:port`.
    stand_ins: Vec<String>,
    certificates: Cache<Url, Arc<Vec<u8>>>,
    requests: Shares,
    faults: Cache<Url, EventRefusal>,
}

impl Sns {
    pub fn new(client: Outbound, stand_ins: &[String]) -> Self {
        Self {
            client,
            stand_ins: stand_ins.iter().map(|host| host.trim().to_ascii_lowercase()).collect(),
            certificates: Cache::builder().max_capacity(CERTIFICATES).time_to_live(CERTIFICATE_LIFE).build(),
            requests: Shares::new(REQUESTS_AT_ONCE, 1),
            faults: Cache::builder().max_capacity(CERTIFICATES).time_to_live(FAULT_LIFE).build(),
        }
    }

    /// Checks a message of one of the connection's topics. A request to confirm a subscription is confirmed.
    pub async fn check(
        &self,
        connection: &HookConnection,
        raw: &[u8],
        now: DateTime<Utc>,
    ) -> Result<EventCheck, EventRefusal> {
        let envelope: SnsMessage = serde_json::from_slice(raw).map_err(|_| EventRefusal::Forged)?;
        let topic = connection.topics.iter().find(|topic| **topic == envelope.topic_arn).ok_or(EventRefusal::Forged)?;
        let url = self.own_url(&envelope.certificate, topic).filter(|url| self.is_certificate(url));
        let url = url.ok_or(EventRefusal::Forged)?;
        let signed = envelope.signed().ok_or(EventRefusal::Forged)?;
        let signature = STANDARD.decode(&envelope.signature).map_err(|_| EventRefusal::Forged)?;
        let algorithm = match envelope.signature_version.as_str() {
            "1" => &RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(EventRefusal::Forged),
        };
        let key = self.certificate(connection, url).await?;
        let key = ParsedPublicKey::new(algorithm, key.as_slice()).map_err(|_| EventRefusal::Forged)?;
        key.verify_sig(signed.as_bytes(), &signature).map_err(|_| EventRefusal::Forged)?;
        let at = DateTime::parse_from_rfc3339(&envelope.timestamp).map_err(|_| EventRefusal::Forged)?;
        is_fresh(at.to_utc(), now, WINDOW)?;
        if !(1..=ID_MAX_BYTES).contains(&envelope.message_id.len()) {
            return Err(EventRefusal::Forged);
        }
        match envelope.kind.as_str() {
            "SubscriptionConfirmation" => self.confirm(connection, envelope.subscribe.as_deref(), topic).await,
            // The account's owner ended the subscription, so it is not confirmed again.
            "UnsubscribeConfirmation" => Ok(EventCheck::Nothing),
            // A repetition is the same to the byte.
            _ => Ok(EventCheck::Event(Proof { event: envelope.message_id.clone(), request: envelope.message_id })),
        }
    }

    async fn confirm(
        &self,
        connection: &HookConnection,
        subscribe: Option<&str>,
        topic: &str,
    ) -> Result<EventCheck, EventRefusal> {
        let url = subscribe.and_then(|url| self.own_url(url, topic)).ok_or(EventRefusal::Forged)?;
        let names = |key: &str, value: &str| url.query_pairs().any(|pair| pair.0 == key && pair.1 == value);
        if !names("Action", "ConfirmSubscription") || !names("TopicArn", topic) {
            return Err(EventRefusal::Forged);
        }
        let _turn = self.turn(connection).await?;
        let answer = self.client.get(&url, HeaderMap::new(), LIMITS).await.map_err(|_| EventRefusal::Unavailable)?;
        if !answer.status.is_success() {
            tracing::warn!(status = answer.status.as_u16(), "SNS did not confirm a subscription");
            return Err(EventRefusal::Unavailable);
        }
        Ok(EventCheck::Confirmed { topic: topic.to_owned() })
    }

    /// A connection's turn to ask Amazon.
    async fn turn(&self, connection: &HookConnection) -> Result<Share, EventRefusal> {
        let owner = connection.id.to_string();
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.requests.take(&owner, 1));
        turn.await.map_err(|_| EventRefusal::Unavailable)
    }

    /// The public key of a certificate, fetched once.
    async fn certificate(&self, connection: &HookConnection, url: Url) -> Result<Arc<Vec<u8>>, EventRefusal> {
        if let Some(key) = self.certificates.get(&url).await {
            return Ok(key);
        }
        let _turn = self.turn(connection).await?;
        // An event before it may have asked in vain.
        if let Some(fault) = self.faults.get(&url).await {
            return Err(fault);
        }
        let fetched = self.certificates.try_get_with(url.clone(), self.fetch(&url)).await;
        if let Err(fault) = &fetched {
            self.faults.insert(url, **fault).await;
        }
        fetched.map_err(|fault| *fault)
    }

    /// That Amazon serves it under its own name is what it is trusted for: the certificate is not checked further.
    async fn fetch(&self, url: &Url) -> Result<Arc<Vec<u8>>, EventRefusal> {
        let answer = self.client.get(url, HeaderMap::new(), LIMITS).await.map_err(|error| {
            tracing::warn!(code = error.code(), "an SNS certificate cannot be fetched");
            EventRefusal::Unavailable
        })?;
        if answer.status.is_server_error() {
            return Err(EventRefusal::Unavailable);
        }
        if !answer.status.is_success() {
            return Err(EventRefusal::Forged);
        }
        let certificate = CertificateDer::from_pem_slice(&answer.body).map_err(|_| EventRefusal::Forged)?;
        let certificate = EndEntityCert::try_from(&certificate).map_err(|_| EventRefusal::Forged)?;
        Ok(Arc::new(certificate.subject_public_key_info().to_vec()))
    }

    /// Where SNS keeps its certificates. A stand-in may name them as it likes.
    fn is_certificate(&self, url: &Url) -> bool {
        let name = url.path().strip_prefix("/SimpleNotificationService-").and_then(|rest| rest.strip_suffix(".pem"));
        let is_plain = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        url.query().is_none()
            && name.is_some_and(|name| is_certificate_name(name) || (self.is_stand_in(url) && is_plain(name)))
    }

    fn is_stand_in(&self, url: &Url) -> bool {
        let address = url.host_str().zip(url.port_or_known_default()).map(|(host, port)| format!("{host}:{port}"));
        address.is_some_and(|address| self.stand_ins.contains(&address))
    }

    /// A URL that leads to SNS itself, in the topic's region; or to a stand-in.
    fn own_url(&self, text: &str, topic: &str) -> Option<Url> {
        let url = Url::parse(text).ok()?;
        let host = url.host_str()?;
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return None;
        }
        if self.is_stand_in(&url) {
            return Some(url);
        }
        let region = region(topic)?;
        let suffix = if region.starts_with("cn-") { ".amazonaws.com.cn" } else { ".amazonaws.com" };
        let is_own = host == format!("sns.{region}{suffix}");
        (url.scheme() == "https" && url.port().is_none() && is_own).then_some(url)
    }
}

/// Whether a name is one under which Amazon keeps a certificate: 32 hexadecimal digits.
fn is_certificate_name(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

/// The region of `arn:aws:sns:<region>:<account>:<name>`.
pub(super) fn region(topic: &str) -> Option<&str> {
    let mut parts = topic.split(':');
    let (arn, partition, service, region) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_region = (5..=32).contains(&region.len())
        && region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    (arn == "arn" && partition.starts_with("aws") && service == "sns" && is_region).then_some(region)
}

impl SnsMessage {
    /// The text that is signed. `None`: a kind there is not, or what its text needs is missing.
    fn signed(&self) -> Option<String> {
        let mut pairs: Vec<(&str, &str)> = vec![("Message", &self.message), ("MessageId", &self.message_id)];
        match self.kind.as_str() {
            "Notification" => pairs.extend(self.subject.as_deref().map(|subject| ("Subject", subject))),
            "SubscriptionConfirmation" | "UnsubscribeConfirmation" => {
                pairs.push(("SubscribeURL", self.subscribe.as_deref()?));
            }
            _ => return None,
        }
        pairs.push(("Timestamp", &self.timestamp));
        if self.kind != "Notification" {
            pairs.push(("Token", self.token.as_deref()?));
        }
        pairs.extend([("TopicArn", self.topic_arn.as_str()), ("Type", self.kind.as_str())]);
        Some(pairs.iter().map(|(name, value)| format!("{name}\n{value}\n")).collect())
    }
}
