//! Amazon SES, API v2: the message as it is.
//!
//! SES has no idempotency key. The send's id travels as a tag, which its events carry back. SES writes its own Message-ID and
//! Date, so our signature leaves these two out.

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::Method;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::{
    Api, ApiCall, HttpRequest, UnsupportedMessage,
    exchange::HttpReply,
    reply_meaning::{self, ACCOUNT, CONTENT, RATE, SENDER, UNKNOWN, refusal},
    sigv4::{Canonical, Signer, timestamp},
    without_nulls,
};
use crate::provider::{ConnectionFault, ConnectionSettings, OutgoingMessage, PingFault, Refused};

const SEND: &str = "/v2/email/outbound-emails";
const ACCOUNT_PATH: &str = "/v2/email/account";

/// An AWS account in one region.
pub(crate) struct Ses {
    signer: Signer,
    configuration_set: Option<String>,
}

impl Ses {
    /// The secret is `access key id:secret access key[:session token]`.
    pub fn new(settings: &ConnectionSettings, secret: &SecretString) -> Result<Self, ConnectionFault> {
        let mut parts = secret.expose_secret().splitn(3, ':');
        let (Some(id), Some(key)) = (parts.next(), parts.next()) else {
            return Err(ConnectionFault::Invalid("secret"));
        };
        let region = settings.region.clone().ok_or(ConnectionFault::Missing("region"))?;
        let signer = Signer {
            access_key_id: id.to_owned(),
            secret_access_key: SecretString::from(key),
            session_token: parts.next().map(SecretString::from),
            region,
            service: "ses",
        };
        Ok(Self { signer, configuration_set: settings.configuration_set.clone() })
    }

    fn signed(&self, call: &ApiCall<'_>, method: Method, path: &str, body: Vec<u8>) -> HttpRequest {
        let url = call.url(path);
        let host = url.host_str().unwrap_or_default();
        let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let json = "application/json".to_owned();
        // Sorted by name.
        let mut headers = vec![("content-type", json), ("host", host), ("x-amz-date", timestamp(call.now))];
        let token = self.signer.session_token.as_ref().map(|token| token.expose_secret().to_owned());
        headers.extend(token.map(|token| ("x-amz-security-token", token)));
        let signed: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let canonical = Canonical { method: method.as_str(), path, query: "", headers: &signed, body: &body };
        let authorization = self.signer.authorization(&canonical, call.now);
        // The client writes the host itself.
        headers.retain(|(name, _)| *name != "host");
        headers.push(("authorization", authorization));
        HttpRequest { method, url, headers, body }
    }
}

impl Api for Ses {
    fn request(&self, call: &ApiCall<'_>, outgoing: &OutgoingMessage<'_>) -> Result<HttpRequest, UnsupportedMessage> {
        let raw = [outgoing.signature.as_bytes(), outgoing.message.as_bytes()].concat();
        let body = without_nulls(json!({
            "Destination": {"ToAddresses": [outgoing.envelope.to.as_str()]},
            "Content": {"Raw": {"Data": STANDARD.encode(raw)}},
            "EmailTags": [{"Name": "postrider-send", "Value": outgoing.send_id}],
            "ConfigurationSetName": self.configuration_set,
        }));
        Ok(self.signed(call, Method::POST, SEND, body.to_string().into_bytes()))
    }

    fn interpret_reply(&self, reply: &HttpReply) -> Result<Option<String>, Refused> {
        if reply.status == 200 {
            return reply_meaning::accepted(reply, "/MessageId");
        }
        let (code, message) = fault(reply);
        let decision = match code {
            // The day's quota is not over in seconds.
            _ if message.contains("Daily message quota") => ACCOUNT,
            "TooManyRequestsException" | "ThrottlingException" | "Throttling" => RATE,
            // The account's daily quota: not before some time has passed.
            "LimitExceededException" => RATE,
            "AccountSuspendedException" | "SendingPausedException" => ACCOUNT,
            "MailFromDomainNotVerifiedException" => SENDER,
            "MessageRejected" if message.contains("not verified") => SENDER,
            "MessageRejected" => CONTENT,
            "BadRequestException" | "ValidationException" => CONTENT,
            "NotFoundException" | "UnrecognizedClientException" | "InvalidSignatureException" => ACCOUNT,
            "AccessDeniedException" | "ExpiredTokenException" | "MissingAuthenticationTokenException" => ACCOUNT,
            "IncompleteSignatureException" | "InvalidClientTokenId" | "OptInRequired" => ACCOUNT,
            "InternalServiceErrorException" | "InternalFailure" => UNKNOWN,
            _ => return Err(reply_meaning::by_status(reply, &format!("{code} {message}"), false)),
        };
        Err(refusal(reply, decision, &format!("{code} {message}")))
    }

    fn ping(&self, call: &ApiCall<'_>) -> HttpRequest {
        self.signed(call, Method::GET, ACCOUNT_PATH, Vec::new())
    }

    /// Keys that may send and read nothing are known all the same.
    fn interpret_ping(&self, reply: &HttpReply) -> Result<(), PingFault> {
        match fault(reply).0 {
            "AccessDeniedException" => Ok(()),
            _ => reply_meaning::ping(reply),
        }
    }
}

/// The error's name and message. The name comes as `x-amzn-errortype: Name:http://…`, or in the body as `__type: prefix#Name`.
fn fault(reply: &HttpReply) -> (&str, &str) {
    let header = reply.header("x-amzn-errortype").and_then(|text| text.split(':').next());
    let body = reply.text("/__type").and_then(|text| text.rsplit('#').next());
    let code = header.or(body).or_else(|| reply.text("/code")).unwrap_or_default().trim();
    (code, reply.text("/message").or_else(|| reply.text("/Message")).unwrap_or_default())
}
