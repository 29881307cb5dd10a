//! `POST /v1/campaigns/{id}/preview`: the mail of one recipient, without sending it. `POST /v1/campaigns/{id}/test`: this mail to a few
//! addresses.
//!
//! A test travels like a one-off message: what was rendered for one contact is sent as written. Its kind `test` keeps it out of every
//! report, and its bounces and complaints suppress no address. Its links are the author's own, so no recipient is tracked.

use schemars::JsonSchema;
use schemas::{CampaignStatus, MessageKind, SendId, SkipReason};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use templates::{MergeData, MessagePreview, OwnHeaders, TemplateKind};
use uuid::Uuid;

use super::{content, find, rows::CampaignRow, sample};
use crate::{
    api::{
        mail_options::recipients,
        messages::{
            self,
            draft::{MessageDraft, ParsedRecipient},
        },
        senders::store as senders,
        templates::{
            content::ContentWarning,
            render::{self, SampleContact},
            testdata::{self, SET_NAME_MAX},
        },
    },
    pipeline::{ApiReply, Faults, Id, RequestContext, error::ApiError, types::Email},
};

/// Most addresses of one test.
const TEST_RECIPIENTS_MAX: usize = 10;
/// What the subject of a test begins with.
const TEST_PREFIX: &str = "[Test] ";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PreviewCampaign {
    contact_id: Option<Id>,
    /// Not together with `contact_id`. Without both: a contact of whom nothing is known.
    sample: Option<SampleContact>,
    /// The name of test data of the template, in the place of both.
    #[schemars(length(max = SET_NAME_MAX))]
    test_data: Option<String>,
    /// A variant of an A/B test. Default: what the campaign itself says.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    variant: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CampaignPreview {
    campaign_id: Uuid,
    subject: String,
    html: String,
    text: String,
    /// About the campaign's body, and the length of the HTML as it was rendered.
    warnings: Vec<ContentWarning>,
}

/// The mail of one recipient, with its footer. Any campaign can be looked at, whatever its status.
pub(super) async fn preview(ctx: &mut RequestContext, body: PreviewCampaign) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    render::check_recipient(body.contact_id.as_ref(), body.sample.as_ref(), body.test_data.as_ref(), &mut faults);
    faults.finish()?;
    let (row, MessagePreview { subject, html, text }, warnings) = rendered(ctx, body).await?;
    ApiReply::ok(&CampaignPreview { campaign_id: row.id, subject, html, text, warnings })
}

/// The campaign, and its mail to the recipient that the body names, with warnings about it.
async fn rendered(
    ctx: &mut RequestContext,
    body: PreviewCampaign,
) -> Result<(CampaignRow, MessagePreview, Vec<ContentWarning>), ApiError> {
    let row = find(ctx).await?;
    let (tenant, campaign) = (ctx.tenant, row.content.0.clone());
    let (own, content_id) = match &body.variant {
        None => (campaign, row.content_id),
        Some(name) => {
            let variant = row.variants.iter().find(|variant| variant.variant == *name);
            let variant =
                variant.ok_or_else(|| ApiError::invalid("variant", "unknown", "is no variant of this campaign"))?;
            (variant.content.or_campaign(&campaign), variant.content_id)
        }
    };
    let is_draft = row.status == CampaignStatus::Draft;
    let (parts, known) = content::current_parts(ctx, &own, is_draft, content_id).await?;
    let sample = match &body.test_data {
        Some(name) => testdata::named(ctx.db(), tenant, own.template_id, name).await?.sample,
        None => body.sample,
    };
    let contact = render::recipient(ctx, body.contact_id, sample).await?;
    let options = sample::options(ctx.db(), tenant, &row).await?;
    let source = parts.source(TemplateKind::Marketing);
    let data = MergeData { contact, data: Value::Null, headers: OwnHeaders::default(), event: Value::Null };
    let work = move || render::preview(&source, &options, &data, known);
    let (preview, warnings) = ctx.run_blocking("preview".to_owned(), work)??;
    Ok((row, preview, warnings))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TestCampaign {
    /// An address that is given twice gets one mail.
    #[schemars(with = "Vec<Email>", length(min = 1, max = TEST_RECIPIENTS_MAX))]
    to: Option<Vec<String>>,
    /// The contact that the mail is rendered for.
    contact_id: Option<Id>,
    /// Not together with `contact_id`. Without both: a contact of whom nothing is known.
    sample: Option<SampleContact>,
    /// The name of test data of the template, in the place of both.
    #[schemars(length(max = SET_NAME_MAX))]
    test_data: Option<String>,
    /// A variant of an A/B test. Default: what the campaign itself says.
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    variant: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CampaignTestAccepted {
    campaign_id: Uuid,
    message_id: Uuid,
    recipients: Vec<TestRecipient>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TestRecipient {
    #[schemars(with = "Email")]
    email: String,
    send_id: Uuid,
    /// Why it is not mailed; null: it is.
    skipped: Option<SkipReason>,
}

/// Sends the mail of one recipient to a few addresses. 202: it is stored.
pub(super) async fn send_test(ctx: &mut RequestContext, body: TestCampaign) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let words = ("address", "addresses");
    let recipients = recipients(&mut faults, body.to, TEST_RECIPIENTS_MAX, words, |faults, path, text: String| {
        Some(ParsedRecipient { address: faults.address(path, &text)?, name: None })
    });
    render::check_recipient(body.contact_id.as_ref(), body.sample.as_ref(), body.test_data.as_ref(), &mut faults);
    faults.finish()?;
    let rendered_for = body.contact_id.as_ref().map(|contact| contact.0);
    let TestCampaign { contact_id, sample, test_data, variant, .. } = body;
    let (row, mail, _) = rendered(ctx, PreviewCampaign { contact_id, sample, test_data, variant }).await?;
    let tenant = ctx.tenant;
    senders::require_ready(ctx.db(), tenant, row.sender_profile_id).await?;
    let draft = MessageDraft {
        sender_id: row.sender_profile_id,
        recipients,
        subject: format!("{TEST_PREFIX}{}", mail.subject),
        html: mail.html,
        text: Some(mail.text),
        reply_to: None,
        dot_number: None,
        options: None,
        kind: MessageKind::Test,
        rendered_for,
        classification: row.classification,
    };
    let accepted = messages::accept(ctx, &draft, Vec::new(), false).await?;
    let detail = json!({"message_id": accepted.id, "recipients": draft.recipients.len()});
    ctx.audit("campaign.test", &row.id.to_string(), detail).await?;
    let recipients = draft.recipients.into_iter().zip(accepted.withheld).zip(0..).map(|((recipient, skipped), at)| {
        let send_id = SendId::of(accepted.id, at).0;
        TestRecipient { email: recipient.address.into_string(), send_id, skipped }
    });
    let recipients = recipients.collect();
    ApiReply::accepted(&CampaignTestAccepted { campaign_id: row.id, message_id: accepted.id, recipients })
}
