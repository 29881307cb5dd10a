//! Resend signs with Svix: an HMAC over id, timestamp and body, keyed with the secret's bytes. Each attempt is signed anew.

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::{DateTime, TimeDelta, Utc};
use http::HeaderMap;
use secrecy::SecretString;

use super::proof::{EventRefusal, Proof, any, is_fresh, single, unix};

const WINDOW: TimeDelta = TimeDelta::minutes(5);
const ID_MAX_BYTES: usize = 256;

pub(super) fn check(
    secrets: &[SecretString],
    headers: &HeaderMap,
    raw: &[u8],
    now: DateTime<Utc>,
) -> Result<Proof, EventRefusal> {
    let id = named(headers, "id")?;
    let timestamp = named(headers, "timestamp")?;
    let signatures = named(headers, "signature")?;
    if !(1..=ID_MAX_BYTES).contains(&id.len()) {
        return Err(EventRefusal::Forged);
    }
    let signed = [id.as_bytes(), b".", timestamp.as_bytes(), b".", raw].concat();
    let signatures = signatures.split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
    let given: Vec<Vec<u8>> = signatures.filter_map(|signature| STANDARD.decode(signature).ok()).collect();
    any(secrets, |secret| {
        key(secret).is_some_and(|key| given.iter().any(|given| hmac::verify(&key, &signed, given).is_ok()))
    })?;
    is_fresh(unix(timestamp)?, now, WINDOW)?;
    Ok(Proof { event: id.to_owned(), request: timestamp.to_owned() })
}

/// Svix' own name of a header, or that of Standard Webhooks.
fn named<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, EventRefusal> {
    single(headers, &format!("svix-{name}")).or_else(|_| single(headers, &format!("webhook-{name}")))
}

/// Whether it is such a secret.
pub(super) fn is_key(secret: &str) -> bool {
    const KEY_MIN_BYTES: usize = 16;
    let bytes = secret.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
    bytes.is_some_and(|bytes| bytes.len() >= KEY_MIN_BYTES)
}

fn key(secret: &str) -> Option<hmac::Key> {
    let bytes = STANDARD.decode(secret.strip_prefix("whsec_").unwrap_or(secret)).ok()?;
    Some(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}
