//! SendGrid's signed event webhook, and its Inbound Parse under a security policy that signs: ECDSA over P-256 and SHA-256, of the
//! timestamp's text and the body.

use aws_lc_rs::{
    digest::Digest,
    signature::{ECDSA_P256_SHA256_ASN1, ParsedPublicKey},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::{DateTime, TimeDelta, Utc};
use http::HeaderMap;
use secrecy::SecretString;

use super::proof::{EventRefusal, Proof, any, is_fresh, single, unix};
use crate::public::hooks::raw::{RawBody, STAMP_HEADER};

/// SendGrid repeats for 24 hours.
const WINDOW: TimeDelta = TimeDelta::hours(25);

pub(super) fn check(
    secrets: &[SecretString],
    headers: &HeaderMap,
    raw: &RawBody,
    now: DateTime<Utc>,
) -> Result<Proof, EventRefusal> {
    let timestamp = single(headers, STAMP_HEADER)?;
    let signature = single(headers, "x-twilio-email-event-webhook-signature")?;
    let signature = STANDARD.decode(signature.trim()).map_err(|_| EventRefusal::Forged)?;
    any(secrets, |key| verifies(key, &raw.stamped, &signature))?;
    is_fresh(unix(timestamp)?, now, WINDOW)?;
    // A signature can be made anew over the same bytes, so it says nothing about the request.
    Ok(Proof { event: raw.digest(), request: timestamp.to_owned() })
}

/// With the key as SendGrid shows it: a `SubjectPublicKeyInfo` in base64, with or without PEM's lines.
fn verifies(key: &str, signed: &Digest, signature: &[u8]) -> bool {
    let Some(key) = public_key(key) else { return false };
    let parsed = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key);
    parsed.is_ok_and(|key| key.verify_digest_sig(signed, signature).is_ok())
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
