//! `/v1/suppressions`: addresses that must not be mailed (API.md §3). They outlive their contact.

mod doc;

use chrono::{DateTime, Utc};
use schemas::{Address, new_id};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    act::{
        Act, Faults, Id, Page, Reply, Routes,
        page::{as_optional_time, as_time},
        read, write,
    },
    error::ApiError,
};

const NOTE_MAX_CHARS: usize = 1_000;
const MANY_MAX: usize = 1_000;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/v1/suppressions", read("suppressions:read", list), doc::list)
        .post("/v1/suppressions", write("suppressions:write", add), doc::add)
        .delete("/v1/suppressions", write("suppressions:write", lift), doc::lift)
}

/// Why an address is suppressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The address does not exist.
    HardBounce,
    /// The recipient reported a message as spam.
    Complaint,
    /// The recipient left.
    Unsubscribe,
    /// The tenant wants it so.
    Manual,
    /// Not an address that works.
    Invalid,
    /// Came with an imported list.
    Import,
}

impl Reason {
    /// The word, everywhere.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HardBounce => "hard_bounce",
            Self::Complaint => "complaint",
            Self::Unsubscribe => "unsubscribe",
            Self::Manual => "manual",
            Self::Invalid => "invalid",
            Self::Import => "import",
        }
    }

    /// The reason with this word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::HardBounce, Self::Complaint, Self::Unsubscribe, Self::Manual, Self::Invalid, Self::Import]
            .into_iter()
            .find(|reason| reason.as_str() == text)
    }

    /// What it withholds, where the caller does not choose: leaving is about marketing, facts about an address are about all mail.
    #[must_use]
    pub fn scope(self) -> Scope {
        match self {
            Self::Unsubscribe => Scope::Marketing,
            Self::HardBounce | Self::Complaint | Self::Manual | Self::Invalid | Self::Import => Scope::All,
        }
    }

    fn has_a_choice(self) -> bool {
        matches!(self, Self::Manual | Self::Import)
    }

    fn needs_confirmation(self) -> bool {
        matches!(self, Self::HardBounce | Self::Complaint)
    }
}

/// Which mail is withheld.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// All of it.
    All,
    /// Marketing only.
    Marketing,
}

impl Scope {
    /// The word, everywhere.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Marketing => "marketing",
        }
    }
}

#[derive(Debug, Serialize)]
struct Suppression {
    suppression_id: Uuid,
    email: String,
    reason: String,
    scope: String,
    source: String,
    send_id: Option<Uuid>,
    note: Option<String>,
    #[serde(serialize_with = "as_time")]
    created_at: DateTime<Utc>,
    #[serde(serialize_with = "as_optional_time")]
    expires_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    email: Option<String>,
    reason: Option<Reason>,
    scope: Option<Scope>,
    limit: Option<i64>,
    cursor: Option<String>,
}

async fn list(act: &mut Act, query: ListQuery) -> Result<Reply, ApiError> {
    let page = Page::new(query.limit, query.cursor.as_deref())?;
    let mut faults = Faults::default();
    let address = query.email.as_deref().and_then(|text| faults.address("email", text));
    faults.finish()?;
    let tenant = act.tenant;
    let mut suppressions = sqlx::query_as!(
        Suppression,
        "select id as suppression_id, address as email, reason, scope, source, send_id, note, created_at, expires_at
         from suppressions
         where tenant_id = $1 and ($2::text is null or address = $2) and ($3::text is null or reason = $3)
           and ($4::text is null or scope = $4) and ($5::timestamptz is null or (created_at, id) < ($5, $6))
         order by created_at desc, id desc limit $7",
        tenant,
        address.map(Address::into_string),
        query.reason.map(Reason::as_str),
        query.scope.map(Scope::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(act.db())
    .await?;
    let next_cursor = page.cut(&mut suppressions, |suppression| (suppression.created_at, suppression.suppression_id));
    Reply::ok(&json!({"ok": true, "suppressions": suppressions, "next_cursor": next_cursor}))
}

/// One suppression as asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    email: String,
    #[serde(default)]
    reason: Option<Reason>,
    #[serde(default)]
    scope: Option<Scope>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    expires_at: Option<DateTime<Utc>>,
}

/// One, or many under `suppressions`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    #[serde(default)]
    suppressions: Option<Vec<Item>>,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    reason: Option<Reason>,
    #[serde(default)]
    scope: Option<Scope>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    expires_at: Option<DateTime<Utc>>,
}

/// A suppression to write.
#[derive(Debug)]
struct New {
    address: String,
    reason: Reason,
    scope: Scope,
    note: Option<String>,
    expires_at: Option<DateTime<Utc>>,
}

impl Item {
    fn check(self, prefix: &str, faults: &mut Faults) -> Option<New> {
        let at = |name: &str| format!("{prefix}{name}");
        let address = faults.address(&at("email"), &self.email);
        faults.optional(&at("note"), self.note.as_deref(), NOTE_MAX_CHARS);
        let reason = self.reason.unwrap_or(Reason::Manual);
        let scope = self.scope.unwrap_or(reason.scope());
        if scope != reason.scope() && !reason.has_a_choice() {
            faults.add(at("scope"), "not_allowed", format!("is always {} for this reason", reason.scope().as_str()));
        }
        if self.expires_at.is_some_and(|at| at <= Utc::now()) {
            faults.add(at("expires_at"), "out_of_range", "must be in the future");
        }
        Some(New { address: address?.into_string(), reason, scope, note: self.note, expires_at: self.expires_at })
    }
}

async fn add(act: &mut Act, body: Add) -> Result<Reply, ApiError> {
    let mut faults = Faults::default();
    let alone = body.suppressions.is_none();
    let single_given = body.email.is_some()
        || body.reason.is_some()
        || body.scope.is_some()
        || body.note.is_some()
        || body.expires_at.is_some();
    let new: Vec<New> = match (body.suppressions, body.email) {
        (Some(_), _) if single_given => {
            return Err(ApiError::invalid(
                "suppressions",
                "ambiguous",
                "send either one suppression or a list of them",
            ));
        }
        (Some(items), _) => {
            faults.require(!items.is_empty(), "suppressions", "empty", "must not be empty");
            faults.require(items.len() <= MANY_MAX, "suppressions", "too_many", "may have at most 1000 items");
            let numbered = items.into_iter().take(MANY_MAX).enumerate();
            numbered
                .filter_map(|(position, item)| item.check(&format!("suppressions[{position}]."), &mut faults))
                .collect()
        }
        (None, Some(email)) => {
            let item =
                Item { email, reason: body.reason, scope: body.scope, note: body.note, expires_at: body.expires_at };
            item.check("", &mut faults).into_iter().collect()
        }
        (None, None) => return Err(ApiError::invalid("email", "required", "is required")),
    };
    faults.finish()?;
    let tenant = act.tenant;
    let written = suppress(act.db(), tenant, new).await?;
    let created = written.iter().filter(|written| !written.already_existed).count();
    act.audit("suppression.added", "api", json!({"created": created, "already_existed": written.len() - created}))
        .await?;
    let body = match written.first() {
        Some(one) if alone => json!({
            "ok": true, "suppression_id": one.suppression_id, "already_existed": one.already_existed,
        }),
        _ => {
            json!({"ok": true, "suppressions": written, "created": created, "already_existed": written.len() - created})
        }
    };
    if created > 0 { Reply::created(&body) } else { Reply::ok(&body) }
}

#[derive(Debug, Serialize)]
struct Written {
    suppression_id: Uuid,
    email: String,
    reason: String,
    already_existed: bool,
}

/// Writes suppressions. One that exists is never weakened: the wider scope and the later end hold. One that has run out
/// starts anew.
async fn suppress(db: &mut PgConnection, tenant: Uuid, mut new: Vec<New>) -> sqlx::Result<Vec<Written>> {
    // The order of the keys, so that two writers cannot wait for each other; and each key once, or the upsert meets itself.
    new.sort_by(|a, b| (&a.address, a.reason.as_str()).cmp(&(&b.address, b.reason.as_str())));
    new.dedup_by(|later, kept| later.address == kept.address && later.reason == kept.reason);
    let ids: Vec<Uuid> = new.iter().map(|_| new_id()).collect();
    let addresses: Vec<&str> = new.iter().map(|new| new.address.as_str()).collect();
    lock_contacts(&mut *db, tenant, &addresses).await?;
    let reasons: Vec<&str> = new.iter().map(|new| new.reason.as_str()).collect();
    let scopes: Vec<&str> = new.iter().map(|new| new.scope.as_str()).collect();
    let notes: Vec<Option<&str>> = new.iter().map(|new| new.note.as_deref()).collect();
    let ends: Vec<Option<DateTime<Utc>>> = new.iter().map(|new| new.expires_at).collect();
    let rows = sqlx::query_file!(
        "queries/suppress.sql",
        tenant,
        &ids,
        &addresses as &[&str],
        &reasons as &[&str],
        &scopes as &[&str],
        &notes as &[Option<&str>],
        &ends as &[Option<DateTime<Utc>>],
    )
    .fetch_all(db)
    .await?;
    let written = |row: Row| Written {
        already_existed: !ids.contains(&row.id),
        suppression_id: row.id,
        email: row.address,
        reason: row.reason,
    };
    Ok(rows.into_iter().map(|row| Row { id: row.id, address: row.address, reason: row.reason }).map(written).collect())
}

struct Row {
    id: Uuid,
    address: String,
    reason: String,
}

/// Locks the contacts of addresses, in id order, before their suppressions change: the fence of delivery locks the same rows, so
/// a suppression that was answered and a message that is sent afterwards cannot pass each other.
///
/// # Errors
/// When Postgres is away.
pub(crate) async fn lock_contacts(db: &mut PgConnection, tenant: Uuid, addresses: &[&str]) -> sqlx::Result<()> {
    sqlx::query!(
        "select from contacts where tenant_id = $1 and address = any ($2) order by id for no key update",
        tenant,
        addresses as &[&str],
    )
    .execute(db)
    .await
    .map(drop)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lift {
    #[serde(default)]
    suppression_id: Option<Id>,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    reason: Option<Reason>,
    #[serde(default)]
    confirm: bool,
}

/// Lifts one suppression by id, or those of an address (of one reason, if named). All or none.
async fn lift(act: &mut Act, body: Lift) -> Result<Reply, ApiError> {
    let mut faults = Faults::default();
    faults.require(
        body.suppression_id.is_some() != body.email.is_some(),
        "suppression_id",
        "required",
        "give either suppression_id or email",
    );
    let address = body.email.as_deref().and_then(|text| faults.address("email", text)).map(Address::into_string);
    faults.finish()?;
    let tenant = act.tenant;
    let found = sqlx::query!(
        "select id, address, reason, source from suppressions
         where tenant_id = $1 and ($2::uuid is null or id = $2) and ($3::text is null or address = $3)
           and ($4::text is null or reason = $4)
         order by id for update",
        tenant,
        body.suppression_id.map(|id| id.0),
        address,
        body.reason.map(Reason::as_str),
    )
    .fetch_all(act.db())
    .await?;
    if found.is_empty() {
        return Err(ApiError::not_found("suppression"));
    }
    if found.iter().any(|row| row.reason == Reason::Unsubscribe.as_str() && row.source == "recipient") {
        return Err(ApiError::conflict("unsubscribed_by_recipient")
            .detail("the recipient unsubscribed; only the recipient can opt in again"));
    }
    let grave = found.iter().any(|row| Reason::parse(&row.reason).is_some_and(Reason::needs_confirmation));
    if grave && !body.confirm {
        return Err(ApiError::conflict("confirmation_required")
            .detail("lifting a hard bounce or a complaint needs confirm: true"));
    }
    let ids: Vec<Uuid> = found.iter().map(|row| row.id).collect();
    sqlx::query!("delete from suppressions where tenant_id = $1 and id = any ($2)", tenant, &ids)
        .execute(act.db())
        .await?;
    for row in &found {
        act.audit("suppression.lifted", &row.id.to_string(), json!({"reason": row.reason, "confirmed": body.confirm}))
            .await?;
    }
    Reply::ok(&json!({"ok": true, "lifted": found.len(), "suppression_ids": ids}))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(None, None, Ok(("manual", "all")))]
    #[case(None, Some(Scope::Marketing), Ok(("manual", "marketing")))]
    #[case(Some(Reason::Unsubscribe), None, Ok(("unsubscribe", "marketing")))]
    #[case(Some(Reason::Unsubscribe), Some(Scope::All), Err("scope"))]
    #[case(Some(Reason::HardBounce), Some(Scope::Marketing), Err("scope"))]
    #[case(Some(Reason::Complaint), None, Ok(("complaint", "all")))]
    fn a_reason_decides_its_scope_where_the_tenant_has_no_choice(
        #[case] reason: Option<Reason>,
        #[case] scope: Option<Scope>,
        #[case] expected: Result<(&str, &str), &str>,
    ) {
        let mut faults = Faults::default();
        let item = Item { email: "a@example.com".into(), reason, scope, note: None, expires_at: None };
        let new = item.check("", &mut faults).unwrap();
        let outcome = match faults.finish() {
            Ok(()) => Ok((new.reason.as_str(), new.scope.as_str())),
            Err(error) => Err(error.fields[0].path.clone()),
        };
        assert_eq!(outcome, expected.map_err(str::to_owned));
    }

    #[test]
    fn every_reason_reads_back() {
        for word in ["hard_bounce", "complaint", "unsubscribe", "manual", "invalid", "import"] {
            assert_eq!(Reason::parse(word).unwrap().as_str(), word);
        }
        assert_eq!(Reason::parse("other"), None);
    }
}
