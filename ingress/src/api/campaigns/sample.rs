//! Rendering for a few recipients before a launch: faults that only real data shows.

use schemars::JsonSchema;
use schemas::Classification;
use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use templates::{Contact, MergeData, MessageOptions, Named, OwnHeaders, TemplateKind, TemplateSource};
use uuid::Uuid;

use super::rows::CampaignRow;
use crate::{
    api::templates::{
        merge::{self, PreviewLinks},
        render, store as stored,
    },
    pipeline::{RequestContext, error::ApiError},
};

/// Recipients rendered for a dry run.
const SAMPLE_MAX: i64 = 20;

/// What a sample showed.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// How many recipients were rendered for.
    pub(super) size: usize,
    /// What failed.
    pub(super) faults: Vec<RecipientRenderFault>,
}

/// A recipient whose message cannot be rendered; without a contact: no message can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "RenderFault")]
pub(super) struct RecipientRenderFault {
    contact_id: Option<Uuid>,
    code: &'static str,
    detail: String,
}

/// Renders the content for some of the campaign's audience.
pub(super) async fn render(ctx: &mut RequestContext, row: &CampaignRow, content_id: Uuid) -> Result<Sample, ApiError> {
    let tenant = ctx.tenant;
    let parts = stored::parts_of(ctx.db(), tenant, content_id).await?.ok_or_else(ApiError::internal)?;
    let options = MessageOptions { track_links: true, track_opens: true, ..options(ctx.db(), tenant, row).await? };
    let contacts = contacts(ctx.db(), tenant, row).await?;
    let source = parts.source(TemplateKind::Marketing);
    ctx.run_blocking("sample".to_owned(), move || render_all(&source, &options, contacts))
}

fn render_all(source: &TemplateSource, options: &MessageOptions, contacts: Vec<(Uuid, Contact)>) -> Sample {
    let compiled = match templates::compile(source, options) {
        Ok(compiled) => compiled,
        Err(faults) => {
            let fault = |fault: &templates::TemplateFault| RecipientRenderFault {
                contact_id: None,
                code: fault.code.as_str(),
                detail: fault.to_string(),
            };
            return Sample { size: 0, faults: faults.iter().map(fault).collect() };
        }
    };
    let size = contacts.len();
    let render = |(contact_id, contact)| {
        let data = MergeData { contact, data: Value::Null, event: Value::Null, headers: OwnHeaders::default() };
        let fault = compiled.render(&data, &PreviewLinks).err()?;
        Some(RecipientRenderFault { contact_id: Some(contact_id), code: fault.code(), detail: fault.to_string() })
    };
    Sample { size, faults: contacts.into_iter().filter_map(render).collect() }
}

/// The options of a preview of the campaign's mail.
pub(super) async fn options(
    db: &mut PgConnection,
    tenant: Uuid,
    row: &CampaignRow,
) -> Result<MessageOptions, ApiError> {
    let opt_out = row.classification == Classification::Marketing;
    let options = render::options(db, tenant, Some(row.sender_profile_id), opt_out).await?;
    Ok(MessageOptions { campaign: Some(Named { id: row.id.to_string(), name: row.name.clone() }), ..options })
}

/// Some active contacts of the audience.
async fn contacts(db: &mut PgConnection, tenant: Uuid, row: &CampaignRow) -> Result<Vec<(Uuid, Contact)>, ApiError> {
    let some = match &row.selector() {
        Some(selector) => ledger::audience::some(&mut *db, tenant, selector, SAMPLE_MAX).await?,
        None => Vec::new(),
    };
    let found = merge::contacts(db, tenant, &some).await?;
    Ok(found.into_iter().filter(|found| found.is_active).map(|found| (found.id, found.contact)).collect())
}
