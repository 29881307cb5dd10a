//! Mailgun: an HMAC over a timestamp and a token, both in the body, be it an event or a mail that a route forwards. It does not cover the rest of the body, so a token counts once:
//! whoever saw a request cannot tell anything else with its token. A repetition carries the token of the first.

use aws_lc_rs::hmac;
use chrono::{DateTime, TimeDelta, Utc};
use feedback::{form, provider::LIMITS};
use runtime::Budget;
use secrecy::SecretString;
use serde::Deserialize;

use super::proof::{EventRefusal, Proof, any, is_fresh, unix};

/// Mailgun repeats for eight hours.
const WINDOW: TimeDelta = TimeDelta::hours(9);
const TOKEN_MAX_BYTES: usize = 128;

#[derive(Deserialize)]
struct MailgunRequest {
    signature: Signature,
}

#[derive(Deserialize)]
struct Signature {
    timestamp: serde_json::Value,
    token: String,
    signature: String,
}

pub(super) fn check(secrets: &[SecretString], raw: &[u8], now: DateTime<Utc>) -> Result<Proof, EventRefusal> {
    let signature = of_event(raw).or_else(|| of_mail(raw)).ok_or(EventRefusal::Forged)?;
    let timestamp = match &signature.timestamp {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Number(number) => number.to_string(),
        _ => return Err(EventRefusal::Forged),
    };
    let given = hex::decode(&signature.signature).map_err(|_| EventRefusal::Forged)?;
    let is_token = (1..=TOKEN_MAX_BYTES).contains(&signature.token.len())
        && signature.token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token {
        return Err(EventRefusal::Forged);
    }
    let signed = format!("{timestamp}{}", signature.token);
    any(secrets, |secret| {
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes(), &given).is_ok()
    })?;
    is_fresh(unix(&timestamp)?, now, WINDOW)?;
    Ok(Proof { event: signature.token.clone(), request: signature.token })
}

fn of_event(raw: &[u8]) -> Option<Signature> {
    serde_json::from_slice::<MailgunRequest>(raw).ok().map(|request| request.signature)
}

/// Of a form, whose fields are texts.
fn of_mail(raw: &[u8]) -> Option<Signature> {
    let mut fields = form::fields(raw, &["timestamp", "token", "signature"], &Budget::new(LIMITS)).ok()?;
    let mut field = |name| fields.remove(name);
    Some(Signature { timestamp: field("timestamp")?.into(), token: field("token")?, signature: field("signature")? })
}
