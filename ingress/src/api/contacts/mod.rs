//! `/v1/contacts`: the people of a tenant.

mod doc;
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
        ApiReply, Faults, Id, ListPage, NoParameters, RequestContext, Routes,
        error::ApiError,
        page::{PageCursor, PageLimit},
        read,
        types::Email,
        write,
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
        .get("/v1/contacts", read("contacts:read", list), doc::list)
        .post("/v1/contacts", write("contacts:write", create), doc::create)
        .get("/v1/contacts/{id}", read("contacts:read", show), doc::show)
        .patch("/v1/contacts/{id}", write("contacts:write", change), doc::change)
        .delete("/v1/contacts/{id}", write("contacts:write", remove), doc::remove)
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
    #[schemars(with = "Option<PageLimit>")]
    limit: Option<i64>,
    #[schemars(with = "Option<PageCursor>")]
    cursor: Option<String>,
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

#[derive(Debug, Serialize, JsonSchema)]
struct ContactPage {
    contacts: Vec<ContactView>,
    /// Give it as `cursor` for the next page; null at the end.
    next_cursor: Option<String>,
}

async fn list(ctx: &mut RequestContext, query: ListContacts) -> Result<ApiReply, ApiError> {
    let page = ListPage::new(query.limit, query.cursor.as_deref())?;
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
    let mut contacts = record::records(ctx.db(), tenant, &found).await?;
    let next_cursor = page.cut(&mut contacts, |contact| (contact.created_at, contact.contact_id));
    ApiReply::ok(&ContactPage { contacts, next_cursor })
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContactAnswer {
    contact: ContactView,
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("contact")?);
    ApiReply::ok(&ContactAnswer { contact: record::one(ctx.db(), tenant, id).await? })
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
    ApiReply::ok(&ContactAnswer { contact: record::one(ctx.db(), tenant, id).await? })
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
