//! Suppressions: addresses that must not be mailed. One statement writes them, for all callers.

use chrono::{DateTime, Utc};
use runtime::column;
use schemars::JsonSchema;
use schemas::{action::SuppressionScope, new_id};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use uuid::Uuid;

schemas::named_enum! {
    /// Why an address is suppressed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub wire enum SuppressionReason {
        /// The address does not exist.
        HardBounce = "hard_bounce",
        /// The recipient reported a message as spam.
        Complaint = "complaint",
        /// The recipient left.
        Unsubscribe = "unsubscribe",
        /// The tenant wants it so.
        Manual = "manual",
        /// Not an address that works.
        Invalid = "invalid",
        /// Came with an imported list.
        Import = "import",
    }
}

impl SuppressionReason {
    /// The default scope: an opt-out is about marketing, facts about an address are about all mail.
    #[must_use]
    pub fn scope(self) -> SuppressionScope {
        match self {
            Self::Unsubscribe => SuppressionScope::Marketing,
            Self::HardBounce | Self::Complaint | Self::Manual | Self::Invalid | Self::Import => SuppressionScope::All,
        }
    }

    /// True if the tenant chooses the scope.
    #[must_use]
    pub fn has_a_choice(self) -> bool {
        matches!(self, Self::Manual | Self::Import)
    }

    /// True if a suppression of this reason can have this scope: soft bounces withhold marketing from an address that is invalid for a while.
    #[must_use]
    pub fn may_have(self, scope: SuppressionScope) -> bool {
        scope == self.scope() || self.has_a_choice() || self == Self::Invalid
    }

    /// True if it is about the person, and not about one address: it holds for the contact that the person's contact was merged into, too.
    fn is_about_the_person(self) -> bool {
        match self {
            Self::Complaint | Self::Unsubscribe | Self::Manual | Self::Import => true,
            Self::HardBounce | Self::Invalid => false,
        }
    }

    /// True if lifting it needs a confirmation of the tenant.
    #[must_use]
    pub fn needs_confirmation(self) -> bool {
        matches!(self, Self::HardBounce | Self::Complaint)
    }
}

/// A suppression to write.
#[derive(Debug, Clone)]
pub struct NewSuppression {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The canonical address.
    pub address: String,
    /// The reason.
    pub reason: SuppressionReason,
    /// Which mail is withheld.
    pub scope: SuppressionScope,
    /// The source: `recipient`, `provider`, `delivery`, `engagement`, `api`, `sequence` or `import`.
    pub source: &'static str,
    /// The tenant's note.
    pub note: Option<String>,
    /// The mail that led to it.
    pub send_id: Option<Uuid>,
    /// The end; `None`: for good.
    pub expires_at: Option<DateTime<Utc>>,
}

impl NewSuppression {
    /// A suppression without end, with the default scope of its reason.
    #[must_use]
    pub fn new(tenant_id: Uuid, address: String, reason: SuppressionReason, source: &'static str) -> Self {
        let scope = reason.scope();
        Self { tenant_id, address, reason, scope, source, note: None, send_id: None, expires_at: None }
    }

    /// Sets the mail that led to it.
    #[must_use]
    pub fn because_of(self, send_id: Uuid) -> Self {
        Self { send_id: Some(send_id), ..self }
    }

    /// Takes over what is stricter in another one with the same key.
    fn strengthen(&mut self, other: &mut Self) {
        if other.scope == SuppressionScope::All {
            self.scope = other.scope;
        }
        if other.source == "recipient" && self.source != "recipient" {
            (self.source, self.send_id) = (other.source, other.send_id);
        }
        self.note = self.note.take().or_else(|| other.note.take());
        self.expires_at = self.expires_at.zip(other.expires_at).map(|(own, others)| own.max(others));
    }
}

/// A stored suppression.
#[derive(Debug, Clone)]
pub struct Suppressed {
    /// The tenant.
    pub tenant_id: Uuid,
    /// Its id.
    pub id: Uuid,
    /// The canonical address.
    pub address: String,
    /// The name of a [`SuppressionReason`].
    pub reason: String,
    /// True if it was in force before.
    pub already_existed: bool,
}

/// Writes suppressions; of several with one key the strictest terms count. One in force is never weakened. Takes effect when the caller
/// commits. Answers one for each key.
///
/// What is about the person and not about the address (an opt-out, not a bounce) is written for the address of the contact, too, that the
/// contact was merged into.
///
/// The caller has locked the contacts of the addresses ([`lock_addresses`], or by id). The fence locks the same rows, so no message is sent
/// after a suppression was answered. An address that is nobody's yet has no row to lock: mail to a contact that is made in that moment may
/// pass the fence until the caller has committed.
pub async fn suppress(db: &mut PgConnection, new: Vec<NewSuppression>) -> sqlx::Result<Vec<Suppressed>> {
    let of_survivors = suppressions_of_survivors(&mut *db, &new).await?;
    let written = write(&mut *db, new).await?;
    write(db, of_survivors).await?;
    Ok(written)
}

/// The suppressions that survivors of merges get from those of merged contacts. The survivors are locked.
async fn suppressions_of_survivors(db: &mut PgConnection, new: &[NewSuppression]) -> sqlx::Result<Vec<NewSuppression>> {
    let personal: Vec<&NewSuppression> = new.iter().filter(|new| new.reason.is_about_the_person()).collect();
    if personal.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query_file!(
        "queries/suppressions/lock_survivors.sql",
        &column(&personal, |new| new.tenant_id),
        &column(&personal, |new| new.address.as_str()) as &[&str]
    )
    .fetch_all(db)
    .await?;
    let of_survivor = |(place, address): (i64, String)| {
        let new = personal.get(usize::try_from(place).ok()?.checked_sub(1)?)?;
        Some(NewSuppression { address, ..(*new).clone() })
    };
    Ok(rows.into_iter().filter_map(|row| of_survivor((row.place, row.address))).collect())
}

async fn write(db: &mut PgConnection, mut new: Vec<NewSuppression>) -> sqlx::Result<Vec<Suppressed>> {
    if new.is_empty() {
        return Ok(Vec::new());
    }
    let key = |new: &NewSuppression| (new.tenant_id, new.address.clone(), new.reason.as_str());
    new.sort_by_cached_key(key);
    new.dedup_by(|later, kept| {
        let is_same = (later.tenant_id, later.reason) == (kept.tenant_id, kept.reason) && later.address == kept.address;
        if is_same {
            kept.strengthen(later);
        }
        is_same
    });
    sqlx::query_file_as!(
        Suppressed,
        "queries/suppressions/suppress.sql",
        &column(&new, |new| new.tenant_id),
        &column(&new, |_| new_id()),
        &column(&new, |new| new.address.as_str()) as &[&str],
        &column(&new, |new| new.reason.as_str()) as &[&str],
        &column(&new, |new| new.scope.as_str()) as &[&str],
        &column(&new, |new| new.source) as &[&str],
        &column(&new, |new| new.note.as_deref()) as &[Option<&str>],
        &column(&new, |new| new.send_id) as &[Option<Uuid>],
        &column(&new, |new| new.expires_at) as &[Option<DateTime<Utc>>],
    )
    .fetch_all(db)
    .await
}

/// Locks the contacts of a tenant's addresses, and those that they were merged into, in id order, before their suppressions change.
pub async fn lock_addresses(db: &mut PgConnection, tenant: Uuid, addresses: &[&str]) -> sqlx::Result<()> {
    sqlx::query!(
        "select from contacts
         where tenant_id = $1 and id = any (array(
             select unnest(array[id, merged_into]) from contacts where tenant_id = $1 and address = any ($2)))
         order by id for no key update",
        tenant,
        addresses as &[&str],
    )
    .execute(db)
    .await
    .map(drop)
}

/// How many suppressions of a tenant are in force, by reason.
pub async fn count_by_reason(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<Vec<(String, i64)>> {
    let rows = sqlx::query_file!("queries/suppressions/count_by_reason.sql", tenant).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| (row.reason, row.count)).collect())
}

/// Lifts suppressions by id. The caller has locked the rows and decided that they may be lifted.
pub async fn lift(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query!("delete from suppressions where tenant_id = $1 and id = any ($2)", tenant, ids)
        .execute(db)
        .await
        .map(drop)
}

/// Deletes the suppressions of an address that is erased which are not in force any more.
pub async fn delete_expired(db: &mut PgConnection, tenant: Uuid, address: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "delete from suppressions where tenant_id = $1 and address = $2 and not is_in_force(expires_at)",
        tenant,
        address
    )
    .execute(db)
    .await
    .map(drop)
}
