//! `/v1/suppressions`: addresses that must not be mailed. They outlive their contact.

use chrono::Utc;
use ledger::suppressions::{self, NewSuppression, Suppressed, SuppressionReason};
use schemars::JsonSchema;
use schemas::{Address, action::SuppressionScope};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    api::contacts::{ContactNames, EXTERNAL_ID_MAX_CHARS, NamedContact, named},
    pipeline::{
        ApiReply, Doc, Faults, GivenTime, Id, OneOrMany, RequestContext, Routes,
        error::ApiError,
        one_or_many,
        page::{OptionalTime, Time},
        read_page, resource,
        types::{Email, Name, OTHERS, either},
        write,
    },
};

pub(super) const NOTE_MAX_CHARS: usize = 1_000;
const MANY_MAX: usize = 1_000;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/suppressions",
            read_page("suppressions:read", list),
            Doc::new("listSuppressions", "List suppressions", "Those in force, newest first.")
                .page::<Suppression>("A page of suppressions"),
        )
        .post(
            "/v1/suppressions",
            write("suppressions:write", add),
            Doc::new(
                "createSuppressions",
                "Suppress one address or many",
                "Not mailed from the moment this is answered. One that exists is never weakened: the wider scope and \
                 the later end hold.",
            )
            .example(json!({"email": "ann@example.com", "reason": "manual"}))
            .answer::<SuppressionsAdded>(201, "Suppressed")
            .answer::<SuppressionsAdded>(200, "All were there")
            .refuses(404, &["contact_not_found"]),
        )
        .delete(
            "/v1/suppressions",
            write("suppressions:write", lift),
            Doc::new(
                "deleteSuppressions",
                "Lift suppressions",
                "One by id, or those of an address; all or none. Those of a merged contact's address are lifted for the \
                 contact that is left, too. A hard bounce or complaint needs `confirm: true`. \
                 What recipients did themselves only they can undo.",
            )
            .example(json!({"email": "ann@example.com"}))
            .answer::<SuppressionsLifted>(200, "Lifted")
            .refuses(404, &["suppression_not_found"])
            .refuses(409, &["confirmation_required", "unsubscribed_by_recipient"]),
        )
}

/// An address that is not mailed.
#[derive(Debug, Serialize, JsonSchema)]
struct Suppression {
    suppression_id: Uuid,
    email: String,
    #[schemars(with = "SuppressionReason")]
    reason: String,
    #[schemars(with = "SuppressionScope")]
    scope: String,
    source: String,
    send_id: Option<Uuid>,
    note: Option<String>,
    created_at: Time,
    expires_at: OptionalTime,
}

resource!(Suppression, "suppression", "suppressions", suppression_id);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListSuppressions {
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    reason: Option<SuppressionReason>,
    scope: Option<SuppressionScope>,
}

async fn list(ctx: &mut RequestContext, query: ListSuppressions) -> Result<ApiReply, ApiError> {
    let page = ctx.page;
    let mut faults = Faults::default();
    let address = query.email.as_deref().and_then(|text| faults.address("email", text));
    faults.finish()?;
    let tenant = ctx.tenant;
    let suppressions = sqlx::query_file_as!(
        Suppression,
        "queries/suppressions.sql",
        tenant,
        address.map(Address::into_string),
        query.reason.map(SuppressionReason::as_str),
        query.scope.map(SuppressionScope::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, suppressions)
}

one_or_many! {
    /// One, or many under `suppressions`.
    #[schemars(transform = either(&[
        (&["email"], &["reason", "scope", "note", "expires_at"]),
        (&["external_id"], &["reason", "scope", "note", "expires_at"]),
        (&["contact_id"], &["reason", "scope", "note", "expires_at"]),
        (&["suppressions"], &[]),
    ]))]
    struct AddSuppressions { suppressions: ["suppression"; MANY_MAX] }

    /// One suppression as asked for.
    #[schemars(transform = either(&[
        (&["email"], OTHERS), (&["external_id"], OTHERS), (&["contact_id"], OTHERS),
    ]))]
    struct NewSuppressionItem {
        #[schemars(with = "Option<Email>")]
        email: Option<String>,
        /// Instead of email: the contact's id in the product. The contact must be known.
        #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
        external_id: Option<String>,
        /// Instead of email. The contact must be known.
        contact_id: Option<Id>,
        /// Default: manual.
        reason: Option<SuppressionReason>,
        /// A choice for manual and import; else it follows from the reason.
        scope: Option<SuppressionScope>,
        #[schemars(length(max = NOTE_MAX_CHARS))]
        note: Option<String>,
        /// In the future. Left out: never.
        expires_at: Option<GivenTime>,
    }
}

/// What came of one, or of many.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum SuppressionsAdded {
    One { suppression_id: Uuid, already_existed: bool },
    Many { suppressions: Vec<SuppressionAdded>, created: usize, already_existed: usize },
}

/// A suppression of a contact whose address may have to be looked up.
struct NamedSuppression {
    contact: NamedContact,
    /// Without its address.
    new: NewSuppression,
}

impl NewSuppressionItem {
    fn check(self, tenant: Uuid, prefix: &str, faults: &mut Faults) -> Option<NamedSuppression> {
        let at = |name: &str| format!("{prefix}{name}");
        let names = ContactNames { contact_id: self.contact_id, email: self.email, external_id: self.external_id };
        let contact = names.check(prefix, faults);
        faults.optional(&at("note"), self.note.as_deref(), NOTE_MAX_CHARS);
        let expires_at = self.expires_at.map(|at| at.0);
        let reason = self.reason.unwrap_or(SuppressionReason::Manual);
        let scope = self.scope.unwrap_or(reason.scope());
        if scope != reason.scope() && !reason.has_a_choice() {
            faults.add(at("scope"), "not_allowed", format!("is always {} for this reason", reason.scope().as_str()));
        }
        let is_over = expires_at.is_some_and(|at| at <= Utc::now());
        faults.require(!is_over, &at("expires_at"), "out_of_range", "must be in the future");
        let new = NewSuppression::new(tenant, String::new(), reason, "api");
        let new = NewSuppression { scope, note: self.note, expires_at, ..new };
        Some(NamedSuppression { contact: contact?, new })
    }
}

async fn add(ctx: &mut RequestContext, body: AddSuppressions) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let mut faults = Faults::default();
    let (named, alone): (Vec<NamedSuppression>, bool) = match body.split()? {
        OneOrMany::One(item) => (item.check(tenant, "", &mut faults).into_iter().collect(), true),
        OneOrMany::Many(items) => {
            faults.require(!items.is_empty(), "suppressions", "empty", "must not be empty");
            let detail = format!("may have at most {MANY_MAX} items");
            faults.require(items.len() <= MANY_MAX, "suppressions", "too_many", &detail);
            let numbered = items.into_iter().take(MANY_MAX).enumerate();
            let named = numbered
                .filter_map(|(position, item)| item.check(tenant, &format!("suppressions[{position}]."), &mut faults));
            (named.collect(), false)
        }
    };
    faults.finish()?;
    let new = with_addresses(ctx.db(), tenant, named, alone).await?;
    // Behind the locks of their contacts.
    let addresses: Vec<&str> = new.iter().map(|new| new.address.as_str()).collect();
    suppressions::lock_addresses(ctx.db(), tenant, &addresses).await?;
    let written = suppressions::suppress(ctx.db(), new).await?;
    let created = written.iter().filter(|written| !written.already_existed).count();
    let already_existed = written.len() - created;
    ctx.audit("suppression.added", "api", json!({"created": created, "already_existed": already_existed})).await?;
    let answer = match written.first() {
        Some(one) if alone => SuppressionsAdded::One { suppression_id: one.id, already_existed: one.already_existed },
        _ => {
            let shown = |row: Suppressed| SuppressionAdded {
                suppression_id: row.id,
                email: row.address,
                reason: row.reason,
                already_existed: row.already_existed,
            };
            let suppressions = written.into_iter().map(shown).collect();
            SuppressionsAdded::Many { suppressions, created, already_existed }
        }
    };
    if created > 0 { ApiReply::created(&answer) } else { ApiReply::ok(&answer) }
}

#[derive(Debug, Serialize, JsonSchema)]
struct SuppressionAdded {
    suppression_id: Uuid,
    email: String,
    #[schemars(with = "SuppressionReason")]
    reason: String,
    already_existed: bool,
}

/// The suppressions with the addresses of their contacts.
///
/// # Errors
/// 404 `contact_not_found`, which names the place in the list.
async fn with_addresses(
    db: &mut PgConnection,
    tenant: Uuid,
    named: Vec<NamedSuppression>,
    alone: bool,
) -> Result<Vec<NewSuppression>, ApiError> {
    let names: Vec<&NamedContact> = named.iter().map(|one| &one.contact).collect();
    let contacts = named::find_addresses(db, tenant, &names).await?;
    let with_address = |(place, NamedSuppression { contact, new }): (usize, NamedSuppression)| {
        let address = contacts.address(&contact).map_err(|error| match alone {
            true => error,
            false => error.at(format!("suppressions[{place}]"), "no contact has this id"),
        })?;
        Ok(NewSuppression { address: address.into_string(), ..new })
    };
    named.into_iter().enumerate().map(with_address).collect()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(transform = either(&[(&["suppression_id"], &["reason", "confirm"]), (&["email"], &["reason", "confirm"])]))]
struct LiftSuppressions {
    suppression_id: Option<Id>,
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    /// Only those of this reason.
    reason: Option<SuppressionReason>,
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<bool>")]
    confirm: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SuppressionsLifted {
    lifted: usize,
    suppression_ids: Vec<Uuid>,
}

/// Lifts one suppression by id, or those of an address (of one reason, if named). All or none. What is about the person was written for
/// the address of the contact, too, that the contact was merged into (`ledger::suppressions::suppress`), and is lifted there with it.
async fn lift(ctx: &mut RequestContext, body: LiftSuppressions) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let is_one = body.suppression_id.is_some() != body.email.is_some();
    faults.require(is_one, "suppression_id", "required", "give either suppression_id or email");
    let address = body.email.as_deref().and_then(|text| faults.address("email", text)).map(Address::into_string);
    faults.finish()?;
    let tenant = ctx.tenant;
    if let Some(address) = &address {
        // As every writer of suppressions does, which then writes those of both addresses.
        suppressions::lock_addresses(ctx.db(), tenant, &[address]).await?;
    }
    let found = sqlx::query!(
        "select s.id, s.reason, s.source from suppressions s
         where s.tenant_id = $1 and ($2::uuid is null or s.id = $2) and ($4::text is null or s.reason = $4)
           and ($3::text is null or s.address = $3
                or s.reason in ('unsubscribe', 'complaint', 'manual', 'import')
                   and s.address = (select k.address from contacts m join contacts k on k.tenant_id = $1 and k.id = m.merged_into
                                    where m.tenant_id = $1 and m.address = $3)
                   and exists (select from suppressions o where o.tenant_id = $1 and o.address = $3 and o.reason = s.reason))
         order by s.id for update",
        tenant,
        body.suppression_id.map(|id| id.0),
        address,
        body.reason.map(SuppressionReason::as_str),
    )
    .fetch_all(ctx.db())
    .await?;
    if found.is_empty() {
        return Err(ApiError::not_found("suppression"));
    }
    if found.iter().any(|row| row.reason == SuppressionReason::Unsubscribe.as_str() && row.source == "recipient") {
        return Err(ApiError::conflict("unsubscribed_by_recipient")
            .detail("the recipient unsubscribed; only the recipient can opt in again"));
    }
    let grave = found
        .iter()
        .any(|row| SuppressionReason::parse(&row.reason).is_some_and(SuppressionReason::needs_confirmation));
    if grave && !body.confirm {
        return Err(ApiError::conflict("confirmation_required")
            .detail("lifting a hard bounce or a complaint needs confirm: true"));
    }
    let ids: Vec<Uuid> = found.iter().map(|row| row.id).collect();
    suppressions::lift(ctx.db(), tenant, &ids).await?;
    for row in &found {
        ctx.audit("suppression.lifted", &row.id.to_string(), json!({"reason": row.reason, "confirmed": body.confirm}))
            .await?;
    }
    ApiReply::ok(&SuppressionsLifted { lifted: found.len(), suppression_ids: ids })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(None, None, Ok(("manual", "all")))]
    #[case(None, Some(SuppressionScope::Marketing), Ok(("manual", "marketing")))]
    #[case(Some(SuppressionReason::Unsubscribe), None, Ok(("unsubscribe", "marketing")))]
    #[case(Some(SuppressionReason::Unsubscribe), Some(SuppressionScope::All), Err("scope"))]
    #[case(Some(SuppressionReason::HardBounce), Some(SuppressionScope::Marketing), Err("scope"))]
    #[case(Some(SuppressionReason::Complaint), None, Ok(("complaint", "all")))]
    fn a_reason_decides_its_scope_where_the_tenant_has_no_choice(
        #[case] reason: Option<SuppressionReason>,
        #[case] scope: Option<SuppressionScope>,
        #[case] expected: Result<(&str, &str), &str>,
    ) {
        let mut faults = Faults::default();
        let item = NewSuppressionItem {
            email: Some("a@example.com".into()),
            external_id: None,
            contact_id: None,
            reason,
            scope,
            note: None,
            expires_at: None,
        };
        let new = item.check(Uuid::nil(), "", &mut faults).unwrap().new;
        let outcome = match faults.finish() {
            Ok(()) => Ok((new.reason.as_str(), new.scope.as_str())),
            Err(error) => Err(error.fields[0].path.clone()),
        };
        assert_eq!(outcome, expected.map_err(str::to_owned));
    }

    #[test]
    fn every_reason_reads_back() {
        for word in ["hard_bounce", "complaint", "unsubscribe", "manual", "invalid", "import"] {
            assert_eq!(SuppressionReason::parse(word).unwrap().as_str(), word);
        }
        assert_eq!(SuppressionReason::parse("other"), None);
    }
}
