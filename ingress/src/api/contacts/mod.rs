//! `/v1/contacts`: the people of a tenant.

mod erase;
mod filter;
mod input;
mod record;
mod store;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::Address;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::{
    filter::ContactFilter,
    input::{ChangeContact, ContactMarketingStatus, CreateContact},
    record::ContactView,
};
use crate::{
    api::{audiences::AudienceKind, fields},
    pipeline::{
        ApiReply, Doc, Faults, Id, NoParameters, RequestContext, Routes, error::ApiError, read, read_page,
        types::Email, write,
    },
};

pub(crate) use input::{AHEAD_MAX, is_locale, is_timezone};
pub(crate) use store::ensure_audiences;

const SEARCH_MAX_CHARS: usize = 200;
/// In the audit log: a contact's consent was changed by a product.
const MARKETING_STATUS_CHANGED: &str = "contact.marketing_status";

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/contacts",
            read_page("contacts:read", list),
            Doc::new("listContacts", "List contacts", "Newest first.")
                .page::<ContactView>("A page of contacts")
                .refuses(404, &["list_not_found", "tag_not_found", "segment_not_found"]),
        )
        .post(
            "/v1/contacts",
            write("contacts:write", create),
            Doc::new(
                "createContact",
                "Find or create a contact",
                "By address, in its canonical form. A contact that exists keeps its values; an archived one is \
                 active again. One whose consent is pending becomes subscribed when `marketing_status` says \
                 `subscribed`; one that unsubscribed stays unsubscribed.",
            )
            .example(json!({"email": "ann@example.com", "first_name": "Ann", "tags": ["vip"]}))
            .answer::<ContactCreated>(201, "Created")
            .leads_to("contact_id", &["getContact", "updateContact", "deleteContact"])
            .answer::<ContactCreated>(200, "It existed")
            .refuses(404, &["list_not_found", "tag_not_found"]),
        )
        .get(
            "/v1/contacts/{id}",
            read("contacts:read", show),
            Doc::new("getContact", "Read a contact", "").single::<ContactView>("The contact"),
        )
        .patch(
            "/v1/contacts/{id}",
            write("contacts:write", change),
            Doc::new(
                "updateContact",
                "Change a contact",
                "What is left out stays; null clears; `fields` are merged. The address does not change.",
            )
            .single::<ContactView>("The contact")
            .example(json!({"company": "Acme", "fields": {"plan": "pro"}}))
            .refuses(409, &["unsubscribed_by_recipient"]),
        )
        .delete(
            "/v1/contacts/{id}",
            write("contacts:write", remove),
            Doc::new(
                "deleteContact",
                "Archive or erase a contact",
                "Archives. With `erase: true` the contact's own data is erased at once and what else names the \
                 person within minutes; suppressions of the address stay. Asked again, the answer says whether the \
                 erasure is complete.",
            )
            .answer::<ContactRemoved>(200, "Done")
            .refuses(404, &["contact_not_found"]),
        )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListContacts {
    /// The contact with this address.
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    /// Part of the address, the name or the company.
    #[schemars(length(max = SEARCH_MAX_CHARS))]
    q: Option<String>,
    list_id: Option<Id>,
    tag_id: Option<Id>,
    /// Contacts that are in this segment now.
    segment_id: Option<Id>,
    status: Option<ContactStatus>,
    updated_since: Option<DateTime<Utc>>,
}

/// The states a caller can see: an erased contact is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ContactStatus {
    Active,
    Archived,
}

impl ContactStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Archived => "archived",
        }
    }
}

async fn list(ctx: &mut RequestContext, query: ListContacts) -> Result<ApiReply, ApiError> {
    let page = ctx.page;
    let mut faults = Faults::default();
    let address = query.email.as_deref().and_then(|text| faults.address("email", text));
    faults.optional("q", query.q.as_deref(), SEARCH_MAX_CHARS);
    faults.finish()?;
    let tenant = ctx.tenant;
    for (id, kind) in [(query.list_id, AudienceKind::List), (query.tag_id, AudienceKind::Tag)] {
        if let Some(Id(id)) = id {
            store::require_audience(ctx.db(), tenant, id, kind).await?;
        }
    }
    let segment = match query.segment_id {
        Some(Id(id)) => Some(segments::load(ctx.db(), tenant, id).await?),
        None => None,
    };
    let filter = ContactFilter {
        address: address.map(Address::into_string),
        search: query.q,
        audiences: [query.list_id, query.tag_id].into_iter().flatten().map(|id| id.0).collect(),
        segment,
        status: query.status.map(ContactStatus::as_str),
        updated_since: query.updated_since,
    };
    let found = filter.page(ctx.db(), tenant, &page).await?;
    let contacts = record::records(ctx.db(), tenant, &found).await?;
    ApiReply::page(page, contacts)
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("contact")?);
    ApiReply::single(record::one(ctx.db(), tenant, id).await?)
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContactCreated {
    contact_id: Uuid,
    already_existed: bool,
}

/// Finds or creates by address. One that is found keeps what it has; an archived one is active again, and one whose consent is
/// pending is subscribed when the caller says so.
async fn create(ctx: &mut RequestContext, body: CreateContact) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let defined = fields::defined(ctx.db(), tenant).await?;
    let new = body.validate(&defined)?;
    let (id, created) = store::find_or_create(ctx.db(), tenant, &new).await?;
    if created {
        store::join(ctx.db(), tenant, id, AudienceKind::Tag, &new.tags).await?;
        store::join(ctx.db(), tenant, id, AudienceKind::List, &new.lists).await?;
    } else if new.marketing_status == Some(ContactMarketingStatus::Subscribed)
        && store::subscribe_pending(ctx.db(), tenant, id, &new.consent.unwrap_or_default()).await?
    {
        let detail = json!({"from": ContactMarketingStatus::Pending.as_str(), "to": ContactMarketingStatus::Subscribed.as_str()});
        ctx.audit(MARKETING_STATUS_CHANGED, &id.to_string(), detail).await?;
    }
    let answer = ContactCreated { contact_id: id, already_existed: !created };
    if created { ApiReply::created(&answer) } else { ApiReply::ok(&answer) }
}

async fn change(ctx: &mut RequestContext, body: ChangeContact) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("contact")?);
    let defined = fields::defined(ctx.db(), tenant).await?;
    let change = body.validate(&defined)?;
    let before = store::lock(ctx.db(), tenant, id).await?;
    if change.subscribes() && before.left_by_own_hand {
        return Err(ApiError::conflict("unsubscribed_by_recipient")
            .detail("the recipient unsubscribed; only the recipient can opt in again"));
    }
    store::update(ctx.db(), tenant, id, &change).await?;
    if let Some(status) = change.marketing_status
        && status.as_str() != before.marketing_status
    {
        let detail = json!({"from": before.marketing_status, "to": status.as_str()});
        ctx.audit(MARKETING_STATUS_CHANGED, &id.to_string(), detail).await?;
    }
    ApiReply::single(record::one(ctx.db(), tenant, id).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RemoveContact {
    #[serde(default)]
    erase: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContactRemoved {
    contact_id: Uuid,
    #[schemars(extend("enum" = ["archived", "erased"]))]
    status: &'static str,
    /// Of an erased contact: whether everything else that names the person is erased, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", extend("enum" = ["running", "completed"]))]
    erasure: Option<&'static str>,
}

async fn remove(ctx: &mut RequestContext, body: RemoveContact) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("contact")?);
    // Asked again, it says how far the erasure is.
    if body.erase
        && let Some(complete) = ledger::erasure::is_erased(ctx.db(), tenant, id).await?
    {
        return erased(id, complete);
    }
    let before = store::lock(ctx.db(), tenant, id).await?;
    if body.erase {
        let pseudonym = hex::encode(ctx.ingress.master_keys.pseudonym(tenant, &before.address));
        erase::erase(ctx.db(), tenant, id, &before.address, &pseudonym).await?;
        ctx.audit("contact.erased", &id.to_string(), json!({})).await?;
        return erased(id, false);
    }
    store::archive(ctx.db(), tenant, id).await?;
    ApiReply::ok(&ContactRemoved { contact_id: id, status: "archived", erasure: None })
}

/// The contact's own data is gone; `erasure` says whether the rest is, too.
fn erased(id: Uuid, complete: bool) -> Result<ApiReply, ApiError> {
    let erasure = if complete { "completed" } else { "running" };
    ApiReply::ok(&ContactRemoved { contact_id: id, status: "erased", erasure: Some(erasure) })
}
