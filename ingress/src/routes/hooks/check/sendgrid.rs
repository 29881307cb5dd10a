//! SendGrid's signed event webhook: ECDSA over P-256 and SHA-256, of the timestamp's text and the body.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey};
use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::{DateTime, TimeDelta, Utc};
use http::HeaderMap;
use secrecy::SecretString;

use super::{Proof, Refusal, any, digest, is_fresh, single, unix};

/// SendGrid repeats for 24 hours.
const WINDOW: TimeDelta = TimeDelta::hours(25);

pub(super) fn check(
    secrets: &[SecretString],
    headers: &HeaderMap,
    raw: &[u8],
    now: DateTime<Utc>,
) -> Result<Proof, Refusal> {
    let timestamp = single(headers, "x-twilio-email-event-webhook-timestamp")?;
    let signature = single(headers, "x-twilio-email-event-webhook-signature")?;
    let signature = STANDARD.decode(signature.trim()).map_err(|_| Refusal::Forged)?;
    let signed = [timestamp.as_bytes(), raw].concat();
    any(secrets, |key| verifies(key, &signed, &signature))?;
    is_fresh(unix(timestamp)?, now, WINDOW)?;
    // A signature can be made anew over the same bytes, so it says nothing about the request.
    Ok(Proof { event: digest(&[raw]), request: timestamp.to_owned() })
}

/// With the key as SendGrid shows it: a `SubjectPublicKeyInfo` in base64, with or without PEM's lines.
fn verifies(key: &str, signed: &[u8], signature: &[u8]) -> bool {
    let Some(key) = public_key(key) else { return false };
    let parsed = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key);
    parsed.is_ok_and(|key| key.verify_sig(signed, signature).is_ok())
}

/// Whether it is such a key.
pub(super) fn is_key(text: &str) -> bool {
    public_key(text).is_some_and(|key| ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).is_ok())
}

/// The key's bytes; `None`: not base64.
fn public_key(text: &str) -> Option<Vec<u8>> {
    let text = text.replace("-----BEGIN PUBLIC KEY-----", "").replace("-----END PUBLIC KEY-----", "");
    STANDARD.decode(text.split_whitespace().collect::<String>()).ok()
}
