//! `/v1/contacts`: the people of a tenant.

mod batch;
mod confirmation;
mod data;
mod decide;
mod erase;
mod filter;
mod input;
mod merge;
pub(crate) mod named;
mod record;
mod store;
mod upsert;

use schemars::JsonSchema;
use schemas::{Address, MarketingStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use self::{
    batch::ContactsUpserted,
    confirmation::ConfirmationRequested,
    data::ContactData,
    filter::ContactFilter,
    input::{ChangeContact, CreateContact, OnExisting},
    record::ContactView,
    store::{ContactStatus, MARKETING_STATUS_CHANGED, NewValues},
    upsert::Upserted,
};
use crate::{
    api::{audiences::held::AudienceKind, exports, fields::definitions},
    pipeline::{
        ApiReply, Doc, Faults, GivenTime, Id, NoParameters, RequestContext, Routes,
        doc::{AT, ID},
        error::ApiError,
        read, read_page,
        types::Email,
        write,
    },
};

pub(crate) use input::{
    EXTERNAL_ID_MAX_CHARS, check_consent_time, check_details, check_source, is_locale, is_timezone,
};
pub(crate) use named::{ContactNames, NamedContact};
pub(crate) use store::{LOOKUPS_MAX, external_id_race, hold_or_create_audiences};

const SEARCH_MAX_CHARS: usize = 200;
/// Why a contact cannot have both the address and the `external_id` that are given.
const KEY_CONFLICTS: &[&str] = &["external_id_taken", "external_id_differs", "address_differs"];

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
                "Find, create or update a contact",
                "By address, in its canonical form, or by the product's own id in `external_id`. A contact that \
                 exists keeps its values, or gets the new ones with `on_existing: update`; an archived one is active \
                 again. One whose consent is pending becomes subscribed when `marketing_status` says `subscribed`; \
                 one that unsubscribed stays unsubscribed. With `require_verification` a contact that is not subscribed \
                 yet gets a confirmation mail, and is subscribed by the link in it. A contact that is made anew for an \
                 address whose recipient unsubscribed is unsubscribed.",
            )
            .example(json!({"email": "ann@example.com", "first_name": "Ann", "tags": ["vip"]}))
            .answer::<ContactCreated>(201, "Created")
            .leads_to("contact_id", &["getContact", "updateContact", "deleteContact"])
            .answer::<ContactCreated>(200, "It existed")
            .refuses(404, &["list_not_found", "tag_not_found"])
            .refuses(409, KEY_CONFLICTS)
            .refuses(409, &["unsubscribed_by_recipient", "contact_unsubscribed"])
            .refuses(409, &["list_limit_reached", "tag_limit_reached"]),
        )
        .post(
            "/v1/contacts/batch",
            write("contacts:write", batch::upsert_contacts),
            Doc::new(
                "upsertContacts",
                "Create or update up to 1,000 contacts",
                "Each by `external_id`, else by address, with a result for each: a refused one names its fields and \
                 costs only itself. Of several that mean one contact the first counts. No suppression and no \
                 opt-out is ever lifted, and consent that is older than what is known changes nothing.",
            )
            .example(json!({"contacts": [
                {"email": "ann@example.com", "external_id": "user-1", "first_name": "Ann", "lists": ["News"]},
                {"email": "bob@example.com", "company": "Acme", "consent": {"basis": "opt_in", "at": AT, "source": "form"}},
            ]}))
            .answer::<ContactsUpserted>(200, "A result for each")
            .refuses(409, &["external_id_taken", "list_limit_reached", "tag_limit_reached"]),
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
            .refuses(409, &["unsubscribed_by_recipient", "external_id_taken"]),
        )
        .post(
            "/v1/contacts/{id}/merge",
            write("contacts:write", merge::merge),
            Doc::new(
                "mergeContacts",
                "Merge another contact into this one",
                "Memberships, facts, enrollments, and values that this contact lacks come here; the stricter consent \
                 and what suppresses the other one hold here. The other id leads to this contact from then on. Mail \
                 of campaigns and sequences that waits for the other one is sent to this contact, unless it has its \
                 own: it is in the campaign's audience, or is or was in the sequence itself.",
            )
            .example(json!({"contact_id": ID}))
            .single::<ContactView>("The contact that is left"),
        )
        .post(
            "/v1/contacts/{id}/data",
            write("contacts:data", data::read_data),
            Doc::new(
                "readContactData",
                "Everything that is held about a person",
                "For an access request: the contact, its suppressions and left topics, and page by page its \
                 enrollments, outcomes, product events, transactional requests without their data, one-off messages, mails with their \
                 events, and how consent was confirmed. Each page is written into the audit log. `GET /v1/sends/{id}/source` has the text of a mail.",
            )
            .example(json!({}))
            .answer::<ContactData>(200, "A page")
            .refuses(404, &["contact_not_found"]),
        )
        .get(
            "/v1/contacts/{id}/data",
            read("contacts:data", data::export_data),
            Doc::new(
                "exportContactData",
                "Everything that is held about a person, at once",
                "What `POST` answers page by page, as one stream of lines: the first has the contact, its suppressions and left \
                 topics, each other one a record, in the order of kind and id. Written into the audit log.",
            )
            .files(200, "An object on each line", &[exports::NDJSON])
            .refuses(404, &["contact_not_found"]),
        )
        .post(
            "/v1/contacts/{id}/confirmation",
            write("contacts:write", confirmation::ask_again),
            Doc::new(
                "requestConfirmation",
                "Ask a contact to confirm the consent",
                "Mails the link to a contact whose consent is pending, again or for the first time. One address gets \
                 a mail at most every `confirmation-gap-hours`, and `confirmation-mails-max` in all.",
            )
            .example(json!({}))
            .answer::<ConfirmationRequested>(202, "The mail is due")
            .refuses(404, &["contact_not_found"])
            .refuses(409, &["consent_not_pending", "contact_suppressed", "confirmation_limit_reached"])
            .refuses(429, &["confirmation_rate_exceeded"]),
        )
        .delete(
            "/v1/contacts/{id}",
            write("contacts:write", remove),
            Doc::new(
                "deleteContact",
                "Archive or erase a contact",
                "Archives. With `erase: true` the contact's own data is erased at once and what else names the \
                 person within minutes. Suppressions of the address stay; a contact that is unsubscribed or has left a \
                 topic leaves one that withholds marketing. Asked again, the answer says whether the erasure is complete.",
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
    /// The contact with this id in the product.
    #[schemars(length(max = EXTERNAL_ID_MAX_CHARS))]
    external_id: Option<String>,
    /// Part of the address, the name or the company.
    #[schemars(length(max = SEARCH_MAX_CHARS))]
    q: Option<String>,
    list_id: Option<Id>,
    tag_id: Option<Id>,
    /// Contacts that are in this segment now.
    segment_id: Option<Id>,
    status: Option<ContactStatus>,
    /// Contacts changed not before this time, and those of the ten minutes before: a change may be seen that much later. What counts
    /// is a change of its own values, and none of its lists, tags and suppressions.
    updated_since: Option<GivenTime>,
}

async fn list(ctx: &mut RequestContext, query: ListContacts) -> Result<ApiReply, ApiError> {
    let page = ctx.page;
    let mut faults = Faults::default();
    let address = query.email.as_deref().and_then(|text| faults.address("email", text));
    faults.optional("external_id", query.external_id.as_deref(), EXTERNAL_ID_MAX_CHARS);
    faults.optional("q", query.q.as_deref(), SEARCH_MAX_CHARS);
    faults.finish()?;
    let tenant = ctx.tenant;
    for (id, kind) in [(query.list_id, AudienceKind::List), (query.tag_id, AudienceKind::Tag)] {
        let Some(Id(id)) = id else { continue };
        let known = sqlx::query_scalar!(
            "select id from audiences where tenant_id = $1 and id = $2 and kind = $3 and deleted_at is null",
            tenant,
            id,
            kind.as_str()
        );
        known.fetch_optional(ctx.db()).await?.ok_or_else(|| ApiError::not_found(kind.as_str()))?;
    }
    let segment = match query.segment_id {
        Some(Id(id)) => Some(segments::load(ctx.db(), tenant, id).await?),
        None => None,
    };
    let filter = ContactFilter {
        address: address.map(Address::into_string),
        external_id: query.external_id,
        search: query.q,
        audiences: [query.list_id, query.tag_id].into_iter().flatten().map(|id| id.0).collect(),
        segment,
        status: query.status.map(ContactStatus::as_str),
        updated_since: query.updated_since.map(|at| at.0),
    };
    let found = filter.page(ctx.db(), tenant, &page).await?;
    let contacts = record::records(ctx.db(), tenant, &found).await?;
    ApiReply::page(page, contacts)
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("contact")?);
    let contact = record::one(ctx.db(), tenant, id).await?;
    if !contact.is_merged() {
        return ApiReply::single(contact);
    }
    let survivor = store::survivor(ctx.db(), tenant, id).await?;
    ApiReply::single(record::one(ctx.db(), tenant, survivor).await?)
}

#[derive(Debug, Serialize, JsonSchema)]
struct ContactCreated {
    contact_id: Uuid,
    already_existed: bool,
    #[schemars(extend("enum" = ["created", "updated", "unchanged"]))]
    result: &'static str,
}

/// A batch of one that keeps what exists, unless the caller says otherwise.
async fn create(ctx: &mut RequestContext, body: CreateContact) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let defined = definitions::read_for_write(ctx.db(), tenant).await?;
    let wanted = body.validate(&defined)?;
    let result = upsert::upsert(ctx, vec![Ok(wanted)], OnExisting::Keep).await?.pop().ok_or_else(ApiError::internal)?;
    let (contact_id, result) = match result? {
        Upserted::Created(id) => {
            return ApiReply::created(&ContactCreated { contact_id: id, already_existed: false, result: "created" });
        }
        Upserted::Updated(id) => (id, "updated"),
        Upserted::Unchanged(id) => (id, "unchanged"),
    };
    ApiReply::ok(&ContactCreated { contact_id, already_existed: true, result })
}

async fn change(ctx: &mut RequestContext, body: ChangeContact) -> Result<ApiReply, ApiError> {
    let (tenant, asked) = (ctx.tenant, ctx.id("contact")?);
    let defined = definitions::read_for_write(ctx.db(), tenant).await?;
    let change = body.validate(&defined)?;
    let before = store::lock(ctx.db(), tenant, asked).await?;
    let id = before.id;
    // Pending is less than unsubscribed, too: such a contact can be subscribed.
    let undoes_an_opt_out = change.marketing_status.is_some_and(|status| status != MarketingStatus::Unsubscribed);
    if undoes_an_opt_out && before.left_by_own_hand {
        return Err(ApiError::conflict("unsubscribed_by_recipient")
            .detail("the recipient unsubscribed; only the recipient can opt in again"));
    }
    if let Some(external_id) = change.columns.get("external_id").and_then(Value::as_str) {
        // A contact that was merged into this one gives it up.
        sqlx::query!(
            "update contacts set external_id = null, updated_at = now()
             where tenant_id = $1 and merged_into = $2 and external_id = $3",
            tenant,
            id,
            external_id,
        )
        .execute(ctx.db())
        .await?;
    }
    let values = NewValues { id, columns: &change.columns, fields: &change.fields };
    store::update(ctx.db(), tenant, &[values]).await.map_err(store::external_id_fault)?;
    if let Some(status) = change.marketing_status
        && status != before.marketing_status
    {
        let detail = json!({"from": before.marketing_status, "to": status});
        ctx.audit(MARKETING_STATUS_CHANGED, &id.to_string(), detail).await?;
    }
    ApiReply::single(record::one(ctx.db(), tenant, id).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RemoveContact {
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<bool>")]
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
    let (tenant, id) = (ctx.tenant, store::survivor_of_path(ctx).await?);
    if body.erase {
        // With those that were merged into it, in the order of their ids, as every writer locks that needs several. Against those, too, that
        // hold a contact by its key: the address changes.
        sqlx::query!(
            "select from contacts where tenant_id = $1 and (id = $2 or merged_into = $2) order by id for update",
            tenant,
            id,
        )
        .execute(ctx.db())
        .await?;
        // Asked again, it says how far the erasure is: also of one that this waited for.
        if let Some(complete) = ledger::erasure::is_erased(ctx.db(), tenant, id).await? {
            return erased(id, complete);
        }
    }
    let before = store::lock(ctx.db(), tenant, id).await?;
    let id = before.id;
    if body.erase {
        let people: Vec<(Uuid, String)> =
            store::merged(ctx.db(), tenant, id).await?.into_iter().chain([(id, before.address)]).collect();
        let has_left = before.marketing_status == MarketingStatus::Unsubscribed;
        erase::keep_opt_outs(ctx.db(), tenant, id, has_left, &people).await?;
        for (id, address) in people {
            let erased = ctx.ingress.master_keys.erased_address(tenant, &address);
            erase::erase(ctx.db(), tenant, id, &address, &erased).await?;
        }
        ctx.audit("contact.erased", &id.to_string(), json!({})).await?;
        return erased(id, false);
    }
    let archived = sqlx::query!(
        "update contacts set status = 'archived', updated_at = now() where tenant_id = $1 and id = $2 and status <> 'archived'",
        tenant,
        id,
    );
    if archived.execute(ctx.db()).await?.rows_affected() == 1 {
        ctx.audit("contact.archived", &id.to_string(), json!({})).await?;
    }
    ApiReply::ok(&ContactRemoved { contact_id: id, status: "archived", erasure: None })
}

/// The contact's own data is gone; `erasure` says whether the rest is, too.
fn erased(id: Uuid, complete: bool) -> Result<ApiReply, ApiError> {
    let erasure = if complete { "completed" } else { "running" };
    ApiReply::ok(&ContactRemoved { contact_id: id, status: "erased", erasure: Some(erasure) })
}
