//! `Idempotency-Key`: its row is inserted first and committed with the effect, so that a request has one effect or none.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use runtime::Vault;
use sha2::{Digest, Sha256};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::error::ApiError;

const HEADER: &str = "idempotency-key";
const KEY_MAX_CHARS: usize = 255;
/// How long an answer is kept, in hours.
pub(crate) const KEPT_HOURS: i32 = 24;
/// The first byte of an encrypted body; no JSON begins with it.
const SEALED: u8 = 0x01;
/// The vault's purpose of encrypted bodies.
const SEALED_PURPOSE: &str = "idempotency";

/// The key of a request, by which a repeat is recognised.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    /// The header's value; its scope is the lineage of the API key (`key_id` below).
    pub value: String,
    /// SHA-256 over method, path and raw body.
    pub fingerprint: [u8; 32],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAnswer {
    pub status: StatusCode,
    pub body: Vec<u8>,
}

/// Encrypts a body with a secret in it, for storage.
///
/// # Errors
/// 500 when there is no cryptography.
pub fn seal_body(vault: &Vault, tenant: Uuid, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let sealed = vault.seal(tenant, SEALED_PURPOSE, body).map_err(|error| ApiError::unexpected(&error))?;
    Ok([&[SEALED], sealed.as_slice()].concat())
}

impl StoredAnswer {
    /// Decrypts the body, if it is encrypted.
    ///
    /// # Errors
    /// 500 when it was sealed under a key that is gone.
    pub fn open(self, vault: &Vault, tenant: Uuid) -> Result<Self, ApiError> {
        match self.body.split_first() {
            Some((&SEALED, sealed)) => {
                let body = vault.open(tenant, SEALED_PURPOSE, sealed).map_err(|error| ApiError::unexpected(&error))?;
                Ok(Self { body, ..self })
            }
            _ => Ok(self),
        }
    }
}

/// The result of claiming a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyClaim {
    /// The key is new: this transaction handles the request.
    Taken,
    /// The request was handled before, with this answer.
    Answered(StoredAnswer),
    /// The request was handled before and its outcome is not known yet. No other request waits for it, so this one does.
    Waiting(Uuid),
}

impl IdempotencyKey {
    /// Reads the header.
    ///
    /// # Errors
    /// 400 for a value that is not 1 to 255 visible ASCII characters, or a header that is there twice.
    pub fn from_headers(headers: &HeaderMap, method: &str, path: &str, body: &[u8]) -> Result<Option<Self>, ApiError> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let value = value.to_str().ok().filter(|text| Self::is_valid_text(text) && values.next().is_none());
        Ok(Some(Self::of(value.ok_or_else(invalid_key)?, method, path, body)))
    }

    /// Makes a key from a validated value.
    #[must_use]
    pub fn of(value: &str, method: &str, path: &str, body: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        for part in [method.as_bytes(), path.as_bytes()] {
            hasher.update(part);
            hasher.update(b"\n");
        }
        hasher.update(body);
        Self { value: value.to_owned(), fingerprint: hasher.finalize().into() }
    }

    /// True if a text can be a key.
    #[must_use]
    pub fn is_valid_text(text: &str) -> bool {
        (1..=KEY_MAX_CHARS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    }

    /// Claims the key for this transaction, or returns what is stored of the first request with it.
    ///
    /// The advisory lock is held until the transaction ends: a second request with the key is refused at once instead of waiting
    /// for the first, and a process that dies releases the lock. `tenant` is whose contacts the answer may name.
    ///
    /// # Errors
    /// 409 `idempotency_in_progress`, 422 `idempotency_key_reused`.
    pub async fn claim(
        &self,
        tx: &mut PgConnection,
        key_id: Uuid,
        tenant: Option<Uuid>,
        lease: Duration,
    ) -> Result<KeyClaim, ApiError> {
        let row = sqlx::query_file!(
            "queries/claim_idempotency_keys.sql",
            key_id,
            std::slice::from_ref(&self.value),
            &[self.fingerprint.to_vec()],
            &[tenant] as &[Option<Uuid>],
            KEPT_HOURS,
            true,
        )
        .fetch_one(&mut *tx)
        .await?;
        match (row.taken, row.claimed) {
            (false, _) => Err(in_progress()),
            (true, true) => Ok(KeyClaim::Taken),
            // A statement of its own: its snapshot is taken under the lock, so it sees what the first request committed.
            (true, false) => self.read_stored(tx, key_id, lease).await,
        }
    }

    async fn read_stored(&self, tx: &mut PgConnection, key_id: Uuid, lease: Duration) -> Result<KeyClaim, ApiError> {
        let row = sqlx::query!(
            r#"select fingerprint, status, body, waits_for, locked_until > now() as "held!"
               from idempotency_keys where key_id = $1 and idempotency_key = $2"#,
            key_id,
            self.value,
        )
        .fetch_optional(&mut *tx)
        .await?;
        // Purged between the two statements, or without an answer: a repeat a moment later succeeds.
        let row = row.ok_or_else(in_progress)?;
        if row.fingerprint != self.fingerprint {
            return Err(ApiError::unprocessable("idempotency_key_reused")
                .detail("the Idempotency-Key was used before with another method, path or body"));
        }
        if let (None, Some(reference), false) = (row.status, row.waits_for, row.held) {
            self.set_lease(tx, key_id, lease, false).await?;
            return Ok(KeyClaim::Waiting(reference));
        }
        let status = row.status.and_then(|status| StatusCode::from_u16(u16::try_from(status).ok()?).ok());
        let status = status.ok_or_else(in_progress)?;
        Ok(KeyClaim::Answered(StoredAnswer { status, body: row.body.unwrap_or_default() }))
    }

    /// Stores the reference that the answer waits for, in the transaction of the effect, and takes the lease.
    pub async fn store_pending(
        &self,
        tx: &mut PgConnection,
        key_id: Uuid,
        reference: Uuid,
        lease: Duration,
    ) -> sqlx::Result<()> {
        sqlx::query!(
            "update idempotency_keys set waits_for = $3, locked_until = clock_timestamp() + make_interval(secs => $4)
             where key_id = $1 and idempotency_key = $2",
            key_id,
            self.value,
            reference,
            lease.as_secs_f64(),
        )
        .execute(tx)
        .await
        .map(drop)
    }

    /// Sets the lease of a pending answer, from now: takes a free one, renews one that lasts (`only_while_held`), or with zero releases
    /// it. A released lease is not renewed: a delayed renewal may arrive after its sender has released the lease.
    pub async fn set_lease(
        &self,
        db: impl sqlx::PgExecutor<'_>,
        key_id: Uuid,
        lease: Duration,
        only_while_held: bool,
    ) -> sqlx::Result<()> {
        sqlx::query!(
            "update idempotency_keys set locked_until = clock_timestamp() + make_interval(secs => $3)
             where key_id = $1 and idempotency_key = $2 and status is null
               and (not $4 or locked_until > clock_timestamp())",
            key_id,
            self.value,
            lease.as_secs_f64(),
            only_while_held,
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// Stores the answer, in the transaction of the effect.
    pub async fn store_answer(
        &self,
        tx: &mut PgConnection,
        key_id: Uuid,
        status: StatusCode,
        body: &[u8],
    ) -> sqlx::Result<()> {
        sqlx::query!(
            "update idempotency_keys set status = $3, body = $4 where key_id = $1 and idempotency_key = $2",
            key_id,
            self.value,
            status_number(status),
            body,
        )
        .execute(tx)
        .await
        .map(drop)
    }

    /// Stores a later answer in a transaction of its own, with asynchronous commit: after a crash a repeat finds the outcome again.
    pub async fn store_late_answer(
        &self,
        db: &mut PgConnection,
        key_id: Uuid,
        status: StatusCode,
        body: &[u8],
    ) -> sqlx::Result<()> {
        // The last condition is always true and saves the round trips of begin and commit.
        sqlx::query!(
            "update idempotency_keys set status = $3, body = $4
             where key_id = $1 and idempotency_key = $2 and set_config('synchronous_commit', 'off', true) = 'off'",
            key_id,
            self.value,
            status_number(status),
            body,
        )
        .execute(db)
        .await
        .map(drop)
    }
}

/// 400 for a header that holds no key.
pub(crate) fn invalid_key() -> ApiError {
    ApiError::invalid("Idempotency-Key", "invalid", "send the header once, with 1 to 255 visible ASCII characters")
}

/// 409: the first request with the key is under way.
pub(crate) fn in_progress() -> ApiError {
    ApiError::busy("idempotency_in_progress")
}

fn status_number(status: StatusCode) -> i16 {
    i16::try_from(status.as_u16()).unwrap_or(i16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for value in values {
            map.append(HEADER, value.parse().unwrap());
        }
        map
    }

    #[rstest]
    #[case(&[""], false)]
    #[case(&["a b"], false)]
    #[case(&["a", "a"], false)]
    #[case(&["order-1/create"], true)]
    fn a_key_is_1_to_255_visible_ascii_characters_given_once(#[case] values: &[&str], #[case] good: bool) {
        assert_eq!(IdempotencyKey::from_headers(&headers(values), "POST", "/", b"").is_ok(), good);
    }

    #[test]
    fn a_fingerprint_covers_method_path_and_body() {
        let print = |method, path, body| {
            IdempotencyKey::from_headers(&headers(&["k"]), method, path, body).unwrap().unwrap().fingerprint
        };
        let one = print("POST", "/v1/a", b"{}");
        assert_eq!(one, print("POST", "/v1/a", b"{}"));
        for other in [print("PATCH", "/v1/a", b"{}"), print("POST", "/v1/b", b"{}"), print("POST", "/v1/a", b"{ }")] {
            assert_ne!(one, other);
        }
        assert!(IdempotencyKey::from_headers(&HeaderMap::new(), "POST", "/", b"").unwrap().is_none());
        assert!(IdempotencyKey::from_headers(&headers(&[&"k".repeat(256)]), "POST", "/", b"").is_err());
    }
}
