//! `POST /v1/templates/{id}/render`: the mail a recipient would see, without sending it.

use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sqlx::PgConnection;
use templates::{
    Contact, LinkBases, MergeData, MessageOptions, MessagePreview, Named, OwnHeaders, PreviewFault, Sender,
    TemplateSource, TemplateWarning, WarningCode,
};
use uuid::Uuid;

use super::{
    content::{self, ContentWarning},
    merge::{self, PreviewLinks},
    store,
    testdata::{self, SET_NAME_MAX},
};
use crate::pipeline::{ApiReply, Faults, Id, RequestContext, error::ApiError};

/// Refusals of data that a template cannot be rendered with.
pub(crate) const FAULTS: [&str; 6] = [
    "render_deadline_exceeded",
    "render_output_too_large",
    "render_filter_failed",
    "render_html_unclosed",
    "render_subject_too_long",
    "render_engine_failed",
];
/// Longest value of a sample, in characters.
const SAMPLE_TEXT_MAX: usize = 2_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenderTemplate {
    contact_id: Option<Id>,
    /// Not together with `contact_id`.
    sample: Option<SampleContact>,
    /// Read by the template as `data.…`. At most 256 KB, 10,000 values and 16 levels.
    data: Option<Map<String, Value>>,
    /// The name of test data of the template, in the place of `contact_id`, `sample` and `data`.
    #[schemars(length(max = SET_NAME_MAX))]
    test_data: Option<String>,
    /// Default: the tenant's default sender.
    sender_profile_id: Option<Id>,
    /// Default: the current one.
    #[schemars(range(min = 1, max = i32::MAX))]
    version: Option<i32>,
}

/// A contact that need not exist.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SampleContact {
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    email: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    first_name: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    last_name: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    title: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    phone: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    company: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    timezone: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    locale: Option<String>,
    #[schemars(length(max = SAMPLE_TEXT_MAX))]
    lifecycle_stage: Option<String>,
    dot_number: Option<i64>,
    fields: Option<Map<String, Value>>,
}

impl SampleContact {
    /// Adds the faults of its texts and fields; `path` is where it stands.
    pub(super) fn check(&self, path: &str, faults: &mut Faults) {
        for (name, text) in [
            ("email", &self.email),
            ("first_name", &self.first_name),
            ("last_name", &self.last_name),
            ("title", &self.title),
            ("phone", &self.phone),
            ("company", &self.company),
            ("timezone", &self.timezone),
            ("locale", &self.locale),
            ("lifecycle_stage", &self.lifecycle_stage),
        ] {
            faults.optional(&format!("{path}.{name}"), text.as_deref(), SAMPLE_TEXT_MAX);
        }
        merge::check_data(&format!("{path}.fields"), self.fields.as_ref(), faults);
    }

    /// The names of the tenant's fields that it has.
    pub(super) fn field_names(&self) -> impl Iterator<Item = &String> {
        self.fields.iter().flat_map(Map::keys)
    }

    fn into_contact(self) -> Contact {
        Contact {
            email: self.email.unwrap_or_else(|| "someone@example.com".to_owned()),
            first_name: self.first_name,
            last_name: self.last_name,
            title: self.title,
            phone: self.phone,
            company: self.company,
            timezone: self.timezone,
            locale: self.locale,
            lifecycle_stage: self.lifecycle_stage,
            dot_number: self.dot_number.map(|number| number.to_string()),
            fields: Value::Object(self.fields.unwrap_or_default()),
        }
    }
}

/// Adds the faults of a contact that is named, or of the sample or the test data in its place.
pub(crate) fn check_recipient(
    contact: Option<&Id>,
    sample: Option<&SampleContact>,
    test_data: Option<&String>,
    faults: &mut Faults,
) {
    let both = contact.is_some() && sample.is_some();
    faults.require(!both, "sample", "ambiguous", "give either contact_id or sample");
    let instead = test_data.is_none() || (contact.is_none() && sample.is_none());
    faults.require(instead, "test_data", "ambiguous", "stands in the place of contact_id, sample and data");
    if let Some(sample) = sample {
        sample.check("sample", faults);
    }
}

/// The contact that is rendered for: one of the tenant's, or the sample in its place.
///
/// # Errors
/// 404 `contact_not_found`.
pub(crate) async fn recipient(
    ctx: &mut RequestContext,
    contact: Option<Id>,
    sample: Option<SampleContact>,
) -> Result<Contact, ApiError> {
    let Some(Id(contact)) = contact else { return Ok(sample.unwrap_or_default().into_contact()) };
    let tenant = ctx.tenant;
    let found = merge::contacts(ctx.db(), tenant, &[contact]).await?.pop();
    Ok(found.ok_or_else(|| ApiError::not_found("contact"))?.contact)
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TemplateRendered {
    template_id: Uuid,
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    subject: String,
    html: String,
    text: String,
    /// About the template, and the length of the HTML as it was rendered.
    warnings: Vec<ContentWarning>,
}

/// A draft and an archived template render, too: looking at one is how its author decides.
pub(super) async fn render(ctx: &mut RequestContext, body: RenderTemplate) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    check_recipient(body.contact_id.as_ref(), body.sample.as_ref(), body.test_data.as_ref(), &mut faults);
    let both = body.data.is_some() && body.test_data.is_some();
    faults.require(!both, "data", "ambiguous", "give either data or test_data");
    merge::check_data("data", body.data.as_ref(), &mut faults);
    faults.finish()?;
    let (tenant, id) = (ctx.tenant, ctx.id("template")?);
    let row = store::as_of(ctx.db(), tenant, id, body.version).await?;
    let (mut sample, mut data, mut event) = (body.sample, body.data, Value::Null);
    if let Some(name) = &body.test_data {
        let set = testdata::named(ctx.db(), tenant, Some(id), name).await?;
        event = set.event();
        (sample, data) = (set.sample, set.data);
    }
    let contact = recipient(ctx, body.contact_id, sample).await?;
    let options =
        options(ctx.db(), tenant, body.sender_profile_id.map(|id| id.0), row.template_type != "transactional").await?;
    let data = data.map_or(Value::Null, Value::Object);
    let data = MergeData { contact, data, event, headers: OwnHeaders::default() };
    let source = row.parts.source(content::kind(&row.template_type));
    let work = move || preview(&source, &options, &data, None);
    let (MessagePreview { subject, html, text }, warnings) = ctx.run_blocking("render".to_owned(), work)??;
    ApiReply::ok(&TemplateRendered { template_id: id, version: row.version, subject, html, text, warnings })
}

/// Renders a mail whose links lead nowhere. With warnings about its template, and the length of the HTML as it was rendered. `known` are
/// those about the template where its author wrote it; else they have their places in the source.
///
/// # Errors
/// 400 for faults of the template, 422 for data that it cannot be rendered with.
pub(crate) fn preview(
    source: &TemplateSource,
    options: &MessageOptions,
    data: &MergeData,
    known: Option<Vec<TemplateWarning>>,
) -> Result<(MessagePreview, Vec<ContentWarning>), ApiError> {
    let shown = templates::preview(source, options, data, &PreviewLinks).map_err(|fault| match fault {
        PreviewFault::Template(faults) => content::refusal(&faults, None),
        PreviewFault::Render(fault) => {
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, fault.code()).detail(fault.to_string())
        }
    })?;
    // What is printed makes the HTML longer or shorter than its source.
    let mut warnings = known.unwrap_or_else(|| templates::warnings(source));
    warnings.retain(|warning| warning.code != WarningCode::HtmlClipped);
    warnings.extend(templates::clipped(shown.html.len()));
    Ok((shown, ContentWarning::all(warnings)))
}

/// The options of a preview: with the named sender, else the tenant's default, else a made-up one, since a template can be looked at
/// before there is a sender. The message is as its author wrote it: no tracked links, no pixel.
///
/// # Errors
/// 404 `sender_profile_not_found`.
pub(crate) async fn options(
    db: &mut PgConnection,
    tenant: Uuid,
    sender: Option<Uuid>,
    opt_out: bool,
) -> Result<MessageOptions, ApiError> {
    let from = sqlx::query!(
        r#"select s.name as "name?", s.email as "email?", s.reply_to, d.domain as "domain?",
                  postal_address(s.physical_address, t.physical_address) as physical_address, coalesce(t.org_name, '') as "org_name!"
           from tenants t
           left join senders s on s.tenant_id = t.id and (s.id = $2 or ($2::uuid is null and s.is_default))
           left join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
           where t.id = $1"#,
        tenant,
        sender,
    )
    .fetch_one(&mut *db)
    .await?;
    if sender.is_some() && from.email.is_none() {
        return Err(ApiError::not_found("sender_profile"));
    }
    let domain = from.domain.unwrap_or_else(|| "example.com".to_owned());
    Ok(MessageOptions {
        tenant: Named { id: tenant.to_string(), name: from.org_name },
        campaign: None,
        sender: Sender {
            name: from.name.unwrap_or_default(),
            email: from.email.unwrap_or_else(|| format!("sender@{domain}")),
            reply_to: from.reply_to,
        },
        sending_domain: domain,
        physical_address: from.physical_address,
        fallbacks: merge::fallbacks(db, tenant).await?,
        bases: LinkBases::default(),
        opt_out,
        own_headers: false,
        track_links: false,
        track_opens: false,
        attachments: Vec::new(),
    })
}
