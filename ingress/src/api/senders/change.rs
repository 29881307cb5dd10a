//! Changing and removing senders.

use schemars::JsonSchema;
use schemas::Address;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{CHANGED, STATUSES, SenderAnswer, SenderView, is_blank, store};
use crate::{
    api::senders::store::{SenderChange, SenderRow},
    pipeline::{
        ApiReply, Faults, NoFields, Patch, RequestContext,
        error::ApiError,
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

fn validate(body: ChangeSender) -> Result<(SenderChange, Option<bool>), ApiError> {
    let mut faults = Faults::default();
    let name = body.name.map(|name| faults.name("name", Some(name)));
    let reply_to = body.reply_to.into_option().map(|text| {
        let address = text.and_then(|text| faults.address("reply_to", &text));
        address.map(Address::into_string)
    });
    let physical_address =
        body.physical_address.into_option().map(|text| faults.postal_address("physical_address", text));
    if let Some(status) = &body.status {
        faults.one_of("status", status, &STATUSES);
    }
    faults.finish()?;
    Ok((SenderChange { name, reply_to, physical_address, status: body.status }, body.is_default))
}

pub(super) async fn change(ctx: &mut RequestContext, body: ChangeSender) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sender")?);
    let (wanted, is_default) = validate(body)?;
    if wanted.status.as_deref() == Some("disabled") {
        store::close_gate(ctx.db(), tenant).await?;
    }
    let profile_address = store::lock_profile_address(ctx.db(), tenant).await?;
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sender"))?;
    if wanted.physical_address == Some(None) && is_blank(profile_address.as_deref()) {
        return Err(ApiError::unprocessable("physical_address_required"));
    }
    if is_default == Some(false) && row.is_default {
        return Err(is_the_default());
    }
    if wanted.status.as_deref() == Some("disabled") && !row.is_disabled() {
        leave_default(ctx, &row).await?;
    }
    if wanted.alters(&row) {
        store::change(ctx.db(), tenant, id, &wanted).await?;
        ctx.audit(CHANGED, &id.to_string(), json!({"fields": wanted.fields()})).await?;
    }
    let changed = async |ctx: &mut RequestContext| {
        store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sender"))
    };
    let mut row = changed(ctx).await?;
    if is_default == Some(true) && !row.is_default {
        store::make_default(ctx.db(), tenant, &row).await?;
        ctx.audit("sender.default", &id.to_string(), json!({})).await?;
        row = changed(ctx).await?;
    }
    ApiReply::ok(&SenderAnswer { sender: SenderView::of(row) })
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SenderRemoved {
    sender_id: Uuid,
    #[schemars(extend("const" = "deleted"))]
    status: &'static str,
}

/// A sender that nothing refers to is removed; any other can only be disabled.
pub(super) async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sender")?);
    store::lock_profile_address(ctx.db(), tenant).await?;
    let row = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sender"))?;
    leave_default(ctx, &row).await?;
    if !store::delete(ctx.db(), tenant, id).await? {
        return Err(ApiError::conflict("sender_in_use")
            .detail("campaigns, sequences or mail refer to it; PATCH status to disabled instead"));
    }
    ctx.audit("sender.removed", &id.to_string(), json!({})).await?;
    ApiReply::ok(&SenderRemoved { sender_id: id, status: "deleted" })
}

/// The default gives way only to another: mail that names no sender must not fail because one was put away.
async fn leave_default(ctx: &mut RequestContext, row: &SenderRow) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    if row.is_default && store::another_is_active(ctx.db(), tenant, row.id).await? {
        return Err(is_the_default());
    }
    Ok(())
}

fn is_the_default() -> ApiError {
    ApiError::conflict("sender_is_default").detail("make another sender the default first")
}
