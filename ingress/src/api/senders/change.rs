//! Changing and removing senders.

use schemars::JsonSchema;
use schemas::Address;
use serde::Deserialize;
use serde_json::json;

use super::{
    STATUSES, address_required, is_blank, save,
    store::{self, SenderIdentity},
};
use crate::{
    api::references,
    pipeline::{
        ApiReply, Faults, NoFields, Patch, RequestContext,
        error::ApiError,
        status_answer,
        types::{Email, Name, PostalAddress},
        validate::NAME_MAX,
    },
};

/// The body of a change. The address is not among it: what was sent under it would change its name.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ChangeSender {
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

pub(super) async fn change(ctx: &mut RequestContext, body: ChangeSender) -> Result<ApiReply, ApiError> {
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
        store::close_gate(ctx.db(), tenant).await?;
    }
    let profile_address = store::lock_profile_address(ctx.db(), tenant).await?;
    let before = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sender"))?;
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

status_answer!(pub(super) SenderRemoved, sender_id, "deleted");

/// A sender that nothing refers to is removed; any other can only be disabled.
pub(super) async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sender")?);
    store::lock_profile_address(ctx.db(), tenant).await?;
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sender"))?;
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
    let tenant = ctx.tenant;
    if row.is_default && store::another_is_active(ctx.db(), tenant, row.id).await? {
        return Err(is_the_default());
    }
    Ok(())
}

fn is_the_default() -> ApiError {
    ApiError::conflict("sender_is_default").detail("make another sender the default first")
}
