//! `/v1/senders`: the identities a tenant sends from. Each belongs to a domain the tenant has proven; there is no other way to send.

mod change;
mod doc;
pub(crate) mod store;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::{Address, DomainStatus};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::store::{NewSender, SenderChange, SenderRow};
use crate::{
    api::domains::store as domains,
    pipeline::{
        ApiReply, Faults, NoParameters, RequestContext, Routes,
        error::ApiError,
        page::{PageQuery, as_time},
        read,
        types::{Email, Name, PostalAddress},
        validate::NAME_MAX,
        write,
    },
};

/// The states a caller can choose. `pending_domain` follows from the domain.
const STATUSES: [&str; 2] = ["active", "disabled"];
/// In the audit log: a sender's name, addresses or state were changed.
const CHANGED: &str = "sender.changed";

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/v1/senders", read("senders:manage", list), doc::list)
        .post("/v1/senders", write("senders:manage", create), doc::create)
        .get("/v1/senders/{id}", read("senders:manage", one), doc::show)
        .patch("/v1/senders/{id}", write("senders:manage", change::change), doc::change)
        .delete("/v1/senders/{id}", write("senders:manage", change::remove), doc::remove)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateSender {
    #[schemars(with = "Email")]
    email: Option<String>,
    #[schemars(with = "Name<NAME_MAX>")]
    name: Option<String>,
    #[schemars(with = "Option<Email>")]
    reply_to: Option<String>,
    /// Stamped on marketing mail. Without one: the tenant's own.
    #[schemars(with = "Option<PostalAddress>")]
    physical_address: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SenderCreated {
    sender_id: Uuid,
    already_existed: bool,
}

/// A requested sender, before validation against the database.
struct SenderRequest {
    email: Address,
    name: String,
    reply_to: Option<Address>,
    physical_address: Option<String>,
}

fn validate(body: CreateSender) -> Result<SenderRequest, ApiError> {
    let mut faults = Faults::default();
    let email = faults.required("email", body.email).and_then(|text| faults.address("email", &text));
    let name = faults.name("name", body.name);
    let reply_to = body.reply_to.and_then(|text| faults.address("reply_to", &text));
    let physical_address = faults.postal_address("physical_address", body.physical_address);
    faults.finish()?;
    let email = email.ok_or_else(ApiError::internal)?;
    Ok(SenderRequest { email, name, reply_to, physical_address })
}

/// Idempotent on (tenant, domain, local part). An identity that is there gets the name, and the addresses that are given.
async fn create(ctx: &mut RequestContext, body: CreateSender) -> Result<ApiReply, ApiError> {
    let request = validate(body)?;
    let tenant = ctx.tenant;
    let profile_address = store::lock_profile_address(ctx.db(), tenant).await?;
    if let Some(row) = store::by_email(ctx.db(), tenant, request.email.as_str()).await? {
        let wanted = SenderChange {
            name: Some(request.name),
            reply_to: request.reply_to.map(|address| Some(address.into_string())),
            physical_address: request.physical_address.map(Some),
            ..SenderChange::default()
        };
        if wanted.alters(&row) {
            store::change(ctx.db(), tenant, row.id, &wanted).await?;
            ctx.audit(CHANGED, &row.id.to_string(), json!({"fields": wanted.fields()})).await?;
        }
        return ApiReply::ok(&SenderCreated { sender_id: row.id, already_existed: true });
    }
    let domain = domains::by_name(ctx.db(), tenant, request.email.domain()).await?;
    let domain = domain.ok_or_else(|| ApiError::unprocessable("domain_not_found_for_tenant"))?;
    if !domain.status.may_send() {
        return Err(ApiError::unprocessable("domain_not_verified"));
    }
    if request.physical_address.is_none() && is_blank(profile_address.as_deref()) {
        return Err(ApiError::unprocessable("physical_address_required"));
    }
    let new = NewSender {
        domain_id: domain.id,
        email: request.email.as_str(),
        name: &request.name,
        reply_to: request.reply_to.as_ref().map(Address::as_str),
        physical_address: request.physical_address.as_deref(),
    };
    let id = store::insert(ctx.db(), tenant, &new).await?;
    ApiReply::ok(&SenderCreated { sender_id: id, already_existed: false })
}

fn is_blank(address: Option<&str>) -> bool {
    address.is_none_or(|text| text.trim().is_empty())
}

#[derive(Debug, Serialize, JsonSchema)]
struct SenderPage {
    senders: Vec<SenderView>,
    /// Give it as `cursor` for the next page; null at the end.
    next_cursor: Option<String>,
}

async fn list(ctx: &mut RequestContext, query: PageQuery) -> Result<ApiReply, ApiError> {
    let page = query.page()?;
    let tenant = ctx.tenant;
    let mut rows = store::list(ctx.db(), tenant, &page).await?;
    let next_cursor = page.cut(&mut rows, |row| (row.created_at, row.id));
    ApiReply::ok(&SenderPage { senders: rows.into_iter().map(SenderView::of).collect(), next_cursor })
}

#[derive(Debug, Serialize, JsonSchema)]
struct SenderAnswer {
    sender: SenderView,
}

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sender")?);
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sender"))?;
    ApiReply::ok(&SenderAnswer { sender: SenderView::of(row) })
}

/// An identity that the tenant sends from.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sender")]
struct SenderView {
    sender_id: Uuid,
    email: String,
    name: String,
    reply_to: Option<String>,
    physical_address: Option<String>,
    /// `pending_domain`: its domain may not send now. `disabled`: switched off.
    #[schemars(extend("enum" = ["active", "pending_domain", "disabled"]))]
    status: &'static str,
    is_default: bool,
    domain_status: DomainStatus,
    #[serde(serialize_with = "as_time")]
    created_at: DateTime<Utc>,
}

impl SenderView {
    fn of(row: SenderRow) -> Self {
        Self {
            sender_id: row.id,
            status: row.shown_status(),
            email: row.email,
            name: row.name,
            reply_to: row.reply_to,
            physical_address: row.physical_address,
            is_default: row.is_default,
            domain_status: row.domain_status,
            created_at: row.created_at,
        }
    }
}
