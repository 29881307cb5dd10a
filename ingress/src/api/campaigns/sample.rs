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
        merge::{self, MergeContact, PreviewLinks},
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

/// A recipient whose message cannot be rendered; without a contact: no message of the variant, or of the campaign, can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "RenderFault")]
pub(super) struct RecipientRenderFault {
    contact_id: Option<Uuid>,
    /// The variant whose message it is. Null: the campaign has none.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    variant: Option<&'static str>,
    code: &'static str,
    detail: String,
}

/// A contact of the sample.
struct SampledContact {
    id: Uuid,
    contact: Contact,
    /// The part of the campaign's split that it falls into.
    part: usize,
}

/// Renders the mail of some of the campaign's audience. `contents` are those of its variants, in their order, or its own alone.
pub(super) async fn render(ctx: &mut RequestContext, row: &CampaignRow, contents: &[Uuid]) -> Result<Sample, ApiError> {
    let tenant = ctx.tenant;
    let split = row.split();
    let mut sources = Vec::with_capacity(contents.len());
    for (part, content_id) in (0..).zip(contents) {
        let parts = stored::parts_of(ctx.db(), tenant, *content_id).await?.ok_or_else(ApiError::internal)?;
        sources.push((split.variant_name(part), parts.source(TemplateKind::Marketing)));
    }
    let options = MessageOptions { track_links: true, track_opens: true, ..options(ctx.db(), tenant, row).await? };
    let contacts = contacts(ctx.db(), tenant, row).await?;
    ctx.run_blocking("sample".to_owned(), move || render_all(&sources, &options, contacts))
}

/// Renders for each contact what its variant says; for those that wait for the result of a test, what each variant says.
fn render_all(
    sources: &[(Option<&'static str>, TemplateSource)],
    options: &MessageOptions,
    contacts: Vec<SampledContact>,
) -> Sample {
    let mut sample = Sample { size: 0, faults: Vec::new() };
    let mut messages = Vec::with_capacity(sources.len());
    for (variant, source) in sources {
        let compiled = templates::compile(source, options);
        if let Err(faults) = &compiled {
            sample.faults.extend(faults.iter().map(|fault| RecipientRenderFault {
                contact_id: None,
                variant: *variant,
                code: fault.code.as_str(),
                detail: fault.to_string(),
            }));
        }
        messages.push(compiled.ok().map(|compiled| (*variant, compiled)));
    }
    for SampledContact { id, contact, part } in contacts {
        let data = MergeData { contact, data: Value::Null, event: Value::Null, headers: OwnHeaders::default() };
        let own = messages.get(part).map_or(messages.as_slice(), std::slice::from_ref);
        sample.size += usize::from(own.iter().any(Option::is_some));
        sample.faults.extend(own.iter().flatten().filter_map(|(variant, compiled)| {
            let fault = compiled.render(&data, &PreviewLinks).err()?;
            let (code, detail) = (fault.code(), fault.to_string());
            Some(RecipientRenderFault { contact_id: Some(id), variant: *variant, code, detail })
        }));
    }
    sample
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
async fn contacts(db: &mut PgConnection, tenant: Uuid, row: &CampaignRow) -> Result<Vec<SampledContact>, ApiError> {
    let some = match &row.selector() {
        Some(selector) => ledger::audience::some(&mut *db, tenant, selector, SAMPLE_MAX).await?,
        None => Vec::new(),
    };
    let parts = row.split().parts(&mut *db, row.id, &some).await?;
    let found = merge::contacts(db, tenant, &some).await?.into_iter().filter(|found| found.is_active);
    let sampled = found.map(|MergeContact { id, contact, .. }| {
        let part = parts.get(&id).and_then(|part| usize::try_from(*part).ok()).unwrap_or_default();
        SampledContact { id, contact, part }
    });
    Ok(sampled.collect())
}
