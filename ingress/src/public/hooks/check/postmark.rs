//! Postmark signs nothing: the URL it is given carries a user and a password (HTTP Basic), which come back with each request. A
//! request differs from its repetition in nothing but its content, so a repetition is never a replay.

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, header::AUTHORIZATION};
use secrecy::SecretString;
use subtle::ConstantTimeEq;

use super::proof::{EventRefusal, Proof, any, single};
use crate::public::hooks::raw::RawBody;

pub(super) fn check(secrets: &[SecretString], headers: &HeaderMap, raw: &RawBody) -> Result<Proof, EventRefusal> {
    let given = single(headers, AUTHORIZATION.as_str())?;
    let (scheme, encoded) = given.split_once(' ').ok_or(EventRefusal::Forged)?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return Err(EventRefusal::Forged);
    }
    let given = STANDARD.decode(encoded.trim()).map_err(|_| EventRefusal::Forged)?;
    any(secrets, |secret| secret.as_bytes().ct_eq(&given).into())?;
    Ok(Proof { event: raw.digest(), request: schemas::new_id().to_string() })
}
