//! The idempotency keys of single items: a request has one effect, alone or in any array.

use std::collections::{HashMap, HashSet};

use http::StatusCode;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    super::{ACCEPTED, accepted},
    ArrayItems, ItemState,
};
use crate::pipeline::{
    error::ApiError,
    idempotency::{KEPT_HOURS, in_progress},
};

/// What is stored under a key that was used before.
struct StoredKey {
    idempotency_key: String,
    fingerprint: Vec<u8>,
    status: Option<i16>,
    body: Option<Vec<u8>>,
}

/// What a caller needs of the stored answer to an accepted request.
#[derive(serde::Deserialize)]
struct StoredAcceptance {
    send_id: Uuid,
}

/// What a key is claimed for: the fingerprint of the request, and its tenant.
type Claim = (Vec<u8>, Option<Uuid>);

/// Claims the keys of all items that have one, and answers those whose key was used before.
///
/// # Errors
/// 409 for the whole array if a request with one of the keys is being handled: the array is delivered again.
pub(super) async fn claim_keys(db: &mut PgConnection, key_id: Uuid, items: &mut ArrayItems) -> Result<(), ApiError> {
    let valid = distinct_keys(items);
    if valid.is_empty() {
        return Ok(());
    }
    let (keys, claims): (Vec<String>, Vec<Claim>) = valid.into_iter().unzip();
    let (fingerprints, tenants): (Vec<Vec<u8>>, Vec<Option<Uuid>>) = claims.into_iter().unzip();
    let rows = sqlx::query_file!(
        "queries/claim_idempotency_keys.sql",
        key_id,
        &keys,
        &fingerprints,
        &tenants as &[Option<Uuid>],
        KEPT_HOURS,
        // So many locks at once are more than Postgres has space for: the array waits for a request with one of the keys.
        false,
    )
    .fetch_all(&mut *db)
    .await?;
    let claimed: HashSet<String> = rows.into_iter().filter(|row| row.claimed).map(|row| row.idempotency_key).collect();
    let (claimed, taken): (HashMap<String, Vec<u8>>, HashMap<String, Vec<u8>>) =
        keys.into_iter().zip(fingerprints).partition(|(key, _)| claimed.contains(key));
    let taken: Vec<String> = taken.into_keys().collect();
    let found = if taken.is_empty() { HashMap::new() } else { find_keys(db, key_id, &taken).await? };
    for item in items.open_mut() {
        let Some(key) = &item.key else { continue };
        if let Some(fingerprint) = claimed.get(&key.value) {
            match *fingerprint == key.fingerprint {
                true => item.holds_key = true,
                false => item.refuse_key(),
            }
            continue;
        }
        let Some(found) = found.get(&key.value) else { return Err(in_progress()) };
        if found.fingerprint != key.fingerprint {
            item.refuse_key();
            continue;
        }
        item.state = stored_state(found)?;
    }
    Ok(())
}

/// Each key once, for the first item that has it. Another one is the same request, or is refused unless the key was that one's before.
fn distinct_keys(items: &mut ArrayItems) -> HashMap<String, Claim> {
    let mut first: HashMap<String, Claim> = HashMap::new();
    for item in items.open_mut() {
        let Some(key) = &item.key else { continue };
        match first.get(&key.value) {
            None => {
                first.insert(key.value.clone(), (key.fingerprint.to_vec(), item.tenant));
            }
            Some((fingerprint, _)) if *fingerprint == key.fingerprint => item.state = ItemState::Repeated(None),
            Some(_) => {}
        }
    }
    first
}

async fn find_keys(db: &mut PgConnection, key_id: Uuid, keys: &[String]) -> sqlx::Result<HashMap<String, StoredKey>> {
    let rows = sqlx::query_as!(
        StoredKey,
        "select idempotency_key, fingerprint, status, body from idempotency_keys
         where key_id = $1 and idempotency_key = any ($2)",
        key_id,
        keys,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.idempotency_key.clone(), row)).collect())
}

/// The state that follows from a stored answer.
fn stored_state(found: &StoredKey) -> Result<ItemState, ApiError> {
    let status = found.status.and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
    let status = status.ok_or_else(in_progress)?;
    let body = found.body.as_deref().unwrap_or_default();
    if status.is_success() {
        let answer: Option<StoredAcceptance> = serde_json::from_slice(body).ok();
        return Ok(ItemState::Repeated(answer.map(|answer| answer.send_id)));
    }
    Ok(ItemState::Refused(ApiError::read(status, body).refusal()))
}

/// Stores the answer of each accepted item that claimed its key. A refused item gives its key back: once the reason is mended, the request
/// is accepted under it, also as the replay of a dead letter. So does one that is left.
pub(super) async fn store_answers(db: &mut PgConnection, key_id: Uuid, items: &ArrayItems) -> Result<(), ApiError> {
    let (mut keys, mut bodies, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for item in items.iter().filter(|item| item.holds_key) {
        let Some(key) = &item.key else { continue };
        match &item.state {
            ItemState::Accepted(send) => {
                keys.push(key.value.clone());
                bodies.push(accepted(*send)?.body);
            }
            ItemState::Refused(_) | ItemState::Left => refused.push(key.value.clone()),
            _ => {}
        }
    }
    if !keys.is_empty() {
        sqlx::query!(
            "update idempotency_keys k set status = $4, body = w.body
             from unnest($2::text[], $3::bytea[]) as w (idempotency_key, body)
             where k.key_id = $1 and k.idempotency_key = w.idempotency_key",
            key_id,
            &keys,
            &bodies,
            i16::try_from(ACCEPTED.as_u16()).unwrap_or(i16::MAX),
        )
        .execute(&mut *db)
        .await?;
    }
    if !refused.is_empty() {
        sqlx::query!(
            "delete from idempotency_keys where key_id = $1 and idempotency_key = any ($2)",
            key_id,
            &refused,
        )
        .execute(db)
        .await?;
    }
    Ok(())
}
