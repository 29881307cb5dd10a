//! `GET /v1/campaigns/{id}/sends`: the ledger of a campaign, recipient by recipient.

use schemars::JsonSchema;
use schemas::SendState;
use serde::Deserialize;

use crate::{
    api::sends::{SendRow, store},
    pipeline::{ApiReply, Faults, RequestContext, error::ApiError, types::Email},
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListCampaignSends {
    state: Option<SendState>,
    /// The one to this address.
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    /// The variant of an A/B test.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    variant: Option<String>,
}

pub(super) async fn list(ctx: &mut RequestContext, query: ListCampaignSends) -> Result<ApiReply, ApiError> {
    let (tenant, campaign, page) = (ctx.tenant, ctx.id("campaign")?, ctx.page);
    let (state, variant) = (query.state, query.variant.as_deref());
    let mut faults = Faults::default();
    let address = query.email.as_deref().and_then(|text| faults.address("email", text));
    if let Some(variant) = variant {
        faults.one_of("variant", variant, &ledger::audience::VARIANT_NAMES);
    }
    faults.finish()?;
    let month =
        store::campaign_month(ctx.db(), tenant, campaign).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    let rows = match (month, address) {
        (None, _) => Vec::new(),
        (Some(month), Some(address)) => {
            let contact = store::contact_by_address(ctx.db(), tenant, address.as_str()).await?;
            let send = match contact {
                Some(contact) => store::to_contact(ctx.db(), tenant, month, campaign, contact).await?,
                None => None,
            };
            let is_asked = |send: &SendRow| {
                state.is_none_or(|state| state == send.state)
                    && variant.is_none_or(|variant| send.variant.as_deref() == Some(variant))
            };
            send.into_iter().filter(is_asked).collect()
        }
        (Some(month), None) => store::of_campaign(ctx.db(), tenant, (campaign, month), state, variant, &page).await?,
    };
    ApiReply::page(page, rows)
}
