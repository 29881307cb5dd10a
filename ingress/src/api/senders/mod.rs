//! `/v1/senders`: the identities a tenant sends from. Each belongs to a domain the tenant has proven; there is no other way to send.

pub(crate) mod store;

use schemars::JsonSchema;
use schemas::Address;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::store::SenderIdentity;
use crate::{
    api::{domains::store as domains, references},
    pipeline::{
        ApiReply, Doc, Faults, NoFields, NoParameters, Patch, RequestContext, Routes,
        error::ApiError,
        read, read_page, status_answer,
        types::{Email, Name, PostalAddress},
        validate::NAME_MAX,
        write,
    },
};

/// The states a caller can choose. `pending_domain` follows from the domain.
const STATUSES: [&str; 2] = ["active", "disabled"];

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/senders",
            read_page("senders:manage", list),
            Doc::new("listSenders", "List sender identities", "Newest first.")
                .page::<SenderIdentity>("A page of senders"),
        )
        .post(
            "/v1/senders",
            write("senders:manage", create),
            Doc::new(
                "createSender",
                "Create a sender identity",
                "On a verified domain of the tenant. Idempotent on the address: one that is there is brought up to \
                 date with what is given; what is left out stays. The first is the tenant's default.",
            )
            .example(json!({"email": "news@acme.example", "name": "Acme", "physical_address": "1 Main Street"}))
            .answer::<SenderCreated>(200, "It is there")
            .leads_to("sender_id", &["getSender", "updateSender", "deleteSender"])
            .refuses(422, &["domain_not_found_for_tenant", "domain_not_verified", "physical_address_required"]),
        )
        .get(
            "/v1/senders/{id}",
            read("senders:manage", one),
            Doc::new("getSender", "Read a sender identity", "").single::<SenderIdentity>("The sender"),
        )
        .patch(
            "/v1/senders/{id}",
            write("senders:manage", change),
            Doc::new(
                "updateSender",
                "Change a sender identity",
                "What is left out stays; null clears. A disabled sender sends nothing from the next mail on. \
                 `is_default: true` makes it the tenant's default in place of the one before; the default cannot be \
                 put away while another sender could take its place.",
            )
            .single::<SenderIdentity>("The sender")
            .example(json!({"name": "Acme News"}))
            .refuses(409, &["sender_is_default", "sender_disabled"])
            .refuses(422, &["physical_address_required"]),
        )
        .delete(
            "/v1/senders/{id}",
            write("senders:manage", remove),
            Doc::new(
                "deleteSender",
                "Remove a sender identity",
                "One that no campaign, sequence or mail refers to. Any other can only be disabled.",
            )
            .answer::<SenderRemoved>(200, "Removed")
            .refuses(404, &["sender_not_found"])
            .refuses(409, &["sender_in_use", "sender_is_default"]),
        )
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

/// Idempotent on (tenant, domain, local part). An identity that is there gets the name, and the addresses that are given.
async fn create(ctx: &mut RequestContext, body: CreateSender) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let email = faults.required("email", body.email).and_then(|text| faults.sender_address("email", &text));
    let name = faults.name("name", body.name);
    let reply_to = body.reply_to.and_then(|text| faults.sender_address("reply_to", &text)).map(Address::into_string);
    let physical_address = faults.postal_address("physical_address", body.physical_address);
    faults.finish()?;
    let email = email.ok_or_else(ApiError::internal)?;
    let tenant = ctx.tenant;
    let profile_address = store::lock_profile_address(ctx.db(), tenant).await?;
    if let Some(before) = store::by_email(ctx.db(), tenant, email.as_str()).await? {
        let wanted = SenderIdentity {
            name,
            reply_to: reply_to.or_else(|| before.reply_to.clone()),
            physical_address: physical_address.or_else(|| before.physical_address.clone()),
            ..before.clone()
        };
        save(ctx, &before, &wanted).await?;
        return ApiReply::ok(&SenderCreated { sender_id: before.id, already_existed: true });
    }
    let domain = domains::hold_by_name(ctx.db(), tenant, email.domain()).await?;
    let domain = domain.ok_or_else(|| ApiError::unprocessable("domain_not_found_for_tenant"))?;
    if !domain.status.may_send() {
        return Err(ApiError::unprocessable("domain_not_verified"));
    }
    if physical_address.is_none() && is_blank(profile_address.as_deref()) {
        return Err(address_required());
    }
    let id = schemas::new_id();
    // The tenant's first one becomes its default.
    sqlx::query!(
        "insert into senders (tenant_id, id, domain_id, email, name, reply_to, physical_address, is_default)
         values ($1, $2, $3, $4, $5, $6, $7,
                 not exists (select from senders where tenant_id = $1 and is_default))",
        tenant,
        id,
        domain.id,
        email.as_str(),
        name,
        reply_to,
        physical_address,
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("sender.created", &id.to_string(), json!({"domain_id": domain.id})).await?;
    ApiReply::ok(&SenderCreated { sender_id: id, already_existed: false })
}

/// Stores what was changed of a sender, under [`store::lock_profile_address`], and notes the names of the fields in the audit log.
async fn save(ctx: &mut RequestContext, before: &SenderIdentity, wanted: &SenderIdentity) -> Result<(), ApiError> {
    let fields = [
        ("name", before.name != wanted.name),
        ("reply_to", before.reply_to != wanted.reply_to),
        ("physical_address", before.physical_address != wanted.physical_address),
        ("status", before.status != wanted.status),
    ];
    if fields.iter().any(|(_, differs)| *differs) {
        let tenant = ctx.tenant;
        sqlx::query!(
            "update senders set name = $3, reply_to = $4, physical_address = $5, status = $6, updated_at = now()
             where tenant_id = $1 and id = $2",
            tenant,
            wanted.id,
            wanted.name,
            wanted.reply_to,
            wanted.physical_address,
            wanted.status,
        )
        .execute(ctx.db())
        .await?;
    }
    Ok(ctx.audit_changed("sender.changed", &wanted.id.to_string(), fields).await?)
}

fn address_required() -> ApiError {
    ApiError::unprocessable("physical_address_required")
        .detail("give the sender a physical_address, or set that of the tenant by PATCH /v1/tenant")
}

fn is_blank(address: Option<&str>) -> bool {
    address.is_none_or(|text| text.trim().is_empty())
}

async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let rows = store::list(ctx.db(), tenant, &page).await?;
    ApiReply::page(page, rows.into_iter().map(SenderIdentity::shown).collect())
}

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sender")?);
    ApiReply::single(store::get(ctx.db(), tenant, id).await?.shown())
}

/// The body of a change. The address is not among it: what was sent under it would change its name.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeSender {
    #[schemars(with = "Option<Name<NAME_MAX>>")]
    name: Option<String>,
    #[schemars(with = "Option<Email>")]
    reply_to: Patch<String>,
    /// Stamped on marketing mail. Without one: the tenant's own.
    #[schemars(with = "Option<PostalAddress>")]
    physical_address: Patch<String>,
    #[schemars(extend("enum" = STATUSES))]
    status: Option<String>,
    is_default: Option<bool>,
}

async fn change(ctx: &mut RequestContext, body: ChangeSender) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let name = body.name.map(|name| faults.name("name", Some(name)));
    let reply_to =
        body.reply_to.into_option().map(|text| text.and_then(|text| faults.sender_address("reply_to", &text)));
    let physical_address =
        body.physical_address.into_option().map(|text| faults.postal_address("physical_address", text));
    if let Some(status) = &body.status {
        faults.one_of("status", status, &STATUSES);
    }
    faults.finish()?;

    let (tenant, id) = (ctx.tenant, ctx.id("sender")?);
    let disables = body.status.as_deref() == Some("disabled");
    if disables {
        // Before the tenant's row, for which a fence may wait: fences that have looked are waited for, and none looks before the commit.
        ledger::gate::block_fences(ctx.db(), tenant).await?;
    }
    let profile_address = store::lock_profile_address(ctx.db(), tenant).await?;
    let before = store::get(ctx.db(), tenant, id).await?;
    if physical_address == Some(None) && is_blank(profile_address.as_deref()) {
        return Err(address_required());
    }
    if body.is_default == Some(false) && before.is_default {
        return Err(is_the_default());
    }
    if disables && !before.is_disabled() {
        leave_default(ctx, &before).await?;
    }
    let mut row = before.clone();
    row.name = name.unwrap_or(row.name);
    row.reply_to = reply_to.map_or(row.reply_to, |address| address.map(Address::into_string));
    row.physical_address = physical_address.unwrap_or(row.physical_address);
    row.status = body.status.unwrap_or(row.status);
    save(ctx, &before, &row).await?;
    if body.is_default == Some(true) && !row.is_default {
        store::make_default(ctx.db(), tenant, &row).await?;
        ctx.audit("sender.default", &id.to_string(), json!({})).await?;
        row.is_default = true;
    }
    ApiReply::single(row.shown())
}

status_answer!(SenderRemoved, sender_id, "deleted");

/// A sender that nothing refers to is removed; any other can only be disabled.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sender")?);
    store::lock_profile_address(ctx.db(), tenant).await?;
    let row = store::get(ctx.db(), tenant, id).await?;
    leave_default(ctx, &row).await?;
    let references = references::to_sender(ctx.db(), tenant, id).await?;
    let way_out = match row.is_disabled() {
        true => "it stays, disabled as it is",
        false => "PATCH status to disabled instead",
    };
    references::refuse("sender", references, way_out)?;
    if !store::delete(ctx.db(), tenant, id).await? {
        return Err(ApiError::conflict("sender_in_use").detail(format!("mail refers to it: {way_out}")));
    }
    ctx.audit("sender.removed", &id.to_string(), json!({})).await?;
    SenderRemoved::reply(id)
}

/// The default gives way only to another: mail that names no sender must not fail because one was put away.
async fn leave_default(ctx: &mut RequestContext, row: &SenderIdentity) -> Result<(), ApiError> {
    if !row.is_default {
        return Ok(());
    }
    let tenant = ctx.tenant;
    let another_is_active = sqlx::query_scalar!(
        r#"select exists (select from senders where tenant_id = $1 and id <> $2 and status <> 'disabled') as "found!""#,
        tenant,
        row.id
    );
    if another_is_active.fetch_one(ctx.db()).await? { Err(is_the_default()) } else { Ok(()) }
}

fn is_the_default() -> ApiError {
    ApiError::conflict("sender_is_default").detail("make another sender the default first")
}
