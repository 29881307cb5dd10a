//! The content of a campaign: its template's, or one of its own if it has a subject, a preheader or a body of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use templates::TemplateWarning;
use uuid::Uuid;

use crate::{
    api::{
        fields::definitions,
        templates::{
            composition::{ComposedTemplate, WrittenTemplate, check_one_body, compose_template},
            content::{self as template_content, ContentWarning, TemplateParts},
            store::{self as stored, TemplateRow},
        },
    },
    pipeline::{Faults, RequestContext, error::ApiError},
};

/// The kind of a campaign's content.
const KIND: &str = "marketing";

/// A body of a campaign's own, as its author wrote it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OwnBody {
    /// Of MJML, what it was compiled to.
    pub(crate) body_html: Option<String>,
    pub(crate) mjml: Option<String>,
    pub(crate) body_text: Option<String>,
    /// The name of the layout around the bodies.
    pub(crate) layout: Option<String>,
}

impl OwnBody {
    /// The field with the body; `None`: there is none.
    fn field(&self) -> Option<&'static str> {
        self.mjml.as_ref().map(|_| "mjml").or_else(|| self.body_html.as_ref().map(|_| "body_html"))
    }

    /// A variant's body. The campaign's text part goes with the campaign's body, from which another one differs.
    fn or_campaign(&self, campaign: &Self) -> Self {
        let body = if self.field().is_some() { self } else { campaign };
        Self {
            body_html: body.body_html.clone(),
            mjml: body.mjml.clone(),
            body_text: self.body_text.clone().or_else(|| body.body_text.clone()),
            layout: self.layout.clone().or_else(|| campaign.layout.clone()),
        }
    }

    /// The body as answers show it: with the HTML that its MJML was compiled to.
    pub(super) fn with_compiled(self, html: Option<String>) -> Self {
        Self { body_html: self.body_html.or(html), ..self }
    }
}

/// A campaign's template, and the parts of the template that it replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CampaignContent {
    pub(crate) template_id: Option<Uuid>,
    pub(crate) subject: Option<String>,
    pub(crate) preheader: Option<String>,
    #[serde(skip_serializing)]
    pub(crate) body: OwnBody,
}

impl CampaignContent {
    /// A variant's content: it inherits from the campaign what it leaves out. A variant with a template of its own inherits nothing:
    /// the campaign's parts would hide what is to be tested.
    pub(super) fn or_campaign(&self, campaign: &Self) -> Self {
        if self.template_id.is_some() {
            return self.clone();
        }
        Self {
            template_id: campaign.template_id,
            subject: self.subject.clone().or_else(|| campaign.subject.clone()),
            preheader: self.preheader.clone().or_else(|| campaign.preheader.clone()),
            body: self.body.or_campaign(&campaign.body),
        }
    }

    /// Rules that need no template: the body comes from a template or from the caller, a subject may replace the template's. `inherits`:
    /// a variant may leave out all of it. `prefix` stands before the names of fields.
    pub(super) fn check(&self, faults: &mut Faults, prefix: &str, inherits: bool) {
        let is_needed = !inherits && self.template_id.is_none();
        if is_needed || self.subject.is_some() {
            faults.not_blank(&format!("{prefix}subject"), self.subject.clone());
        }
        check_one_body(faults, prefix, self.body.body_html.as_deref(), self.body.mjml.as_deref(), is_needed);
    }

    /// A body comes from one source. Asked after the template was found: that there is none is to be known first.
    pub(super) fn check_one_source(&self) -> Result<(), ApiError> {
        let Some(field) = self.body.field().filter(|_| self.template_id.is_some()) else { return Ok(()) };
        let detail = "must not be given together with template_id; one of them is null";
        Err(ApiError::invalid(field, "conflict", detail))
    }

    /// What goes with a body of its own needs one: a template has its own.
    fn check_body(&self) -> Result<(), ApiError> {
        let mut faults = Faults::default();
        for (path, text) in [("body_text", &self.body.body_text), ("layout", &self.body.layout)] {
            let is_whole = text.is_none() || self.body.field().is_some();
            faults.require(is_whole, path, "body_required", "goes with body_html or mjml: a template has its own");
        }
        faults.finish()
    }

    /// The template's parts with the campaign's own lines in their place.
    fn with_own_lines(&self, template: &TemplateParts) -> TemplateParts {
        TemplateParts {
            subject: self.subject.clone().unwrap_or_else(|| template.subject.clone()),
            preheader: self.preheader.clone().or_else(|| template.preheader.clone()),
            ..template.clone()
        }
    }

    /// The campaign's own body, with the template's lines where it has none of its own.
    fn written(&self, template: Option<&TemplateParts>) -> WrittenTemplate {
        let OwnBody { body_html, mjml, body_text, layout } = self.body.clone();
        let subject = self.subject.clone().or_else(|| template.map(|parts| parts.subject.clone()));
        WrittenTemplate {
            subject: subject.unwrap_or_default(),
            preheader: self.preheader.clone().or_else(|| template.and_then(|parts| parts.preheader.clone())),
            body_html,
            mjml,
            body_text,
            layout,
        }
    }
}

/// The content of a draft, with warnings about a body of its own.
///
/// # Errors
/// 404 `template_not_found`, also for an archived one; 400 for faults in the campaign's own parts, or in a template that needs
/// data that only a transactional message or a sequence has.
pub(super) async fn compose_content(
    ctx: &mut RequestContext,
    content: &CampaignContent,
) -> Result<(Uuid, Vec<ContentWarning>), ApiError> {
    let tenant = ctx.tenant;
    definitions::hold_names(ctx.db(), tenant).await?;
    let template = find_template(ctx.db(), tenant, content.template_id).await?;
    if template.as_ref().is_some_and(|template| template.status == "archived") {
        return Err(ApiError::not_found("template"));
    }
    content.check_body()?;
    match template {
        // A template's body was warned of when it was stored.
        Some(template) if content.body.field().is_none() => {
            let id = use_template(ctx, content, &template, None).await?;
            Ok((id, Vec::new()))
        }
        template => {
            let composed = compose_body(ctx, content, template.as_ref()).await?;
            let id = stored::insert_composed(ctx.db(), tenant, KIND, &composed).await?;
            Ok((id, ContentWarning::all(composed.checked.warnings)))
        }
    }
}

/// What a campaign or a variant says: a draft with the current version of its template, and the newest snippets in a body of its own; any
/// other as it was launched. With warnings about a body that was composed anew.
pub(super) async fn current_parts(
    ctx: &mut RequestContext,
    content: &CampaignContent,
    is_draft: bool,
    content_id: Uuid,
) -> Result<(TemplateParts, Option<Vec<TemplateWarning>>), ApiError> {
    let tenant = ctx.tenant;
    if is_draft {
        let template = find_template(ctx.db(), tenant, content.template_id).await?;
        if let Some(composed) = compose_anew(ctx, content, template.as_ref()).await? {
            return Ok((composed.parts, Some(composed.checked.warnings)));
        }
        if let Some(template) = template {
            return Ok((content.with_own_lines(&template.parts), None));
        }
    }
    let parts = stored::parts_of(ctx.db(), tenant, content_id).await?.ok_or_else(ApiError::internal)?;
    Ok((parts, None))
}

/// The content of a campaign at its launch: its template, and the snippets in a body of its own, may have new versions since the draft.
///
/// # Errors
/// 400 for faults that a new version brings, 422 `template_archived`.
pub(super) async fn refresh_content(
    ctx: &mut RequestContext,
    content: &CampaignContent,
    current: Uuid,
) -> Result<Uuid, ApiError> {
    let tenant = ctx.tenant;
    // The template's version may name fields that the draft's did not.
    definitions::hold_names(ctx.db(), tenant).await?;
    let template = find_template(ctx.db(), tenant, content.template_id).await?;
    if template.as_ref().is_some_and(|template| template.status == "archived") {
        return Err(ApiError::unprocessable("template_archived")
            .detail("a template of the campaign is archived: make it active again, or give the draft another"));
    }
    if let Some(composed) = compose_anew(ctx, content, template.as_ref()).await? {
        if stored::parts_of(ctx.db(), tenant, current).await?.as_ref() == Some(&composed.parts) {
            return Ok(current);
        }
        return Ok(stored::insert_composed(ctx.db(), tenant, KIND, &composed).await?);
    }
    match template {
        Some(template) => use_template(ctx, content, &template, Some(current)).await,
        None => Ok(current),
    }
}

async fn find_template(db: &mut PgConnection, tenant: Uuid, id: Option<Uuid>) -> Result<Option<TemplateRow>, ApiError> {
    let Some(id) = id else { return Ok(None) };
    stored::get(db, tenant, id).await.map(Some)
}

/// The content of a campaign without a body of its own: the template's, or one with the campaign's own lines. `current` is what it was at
/// the draft. A template of another kind may use `data.*` or `event.*`, which a campaign does not have.
async fn use_template(
    ctx: &mut RequestContext,
    content: &CampaignContent,
    template: &TemplateRow,
    current: Option<Uuid>,
) -> Result<Uuid, ApiError> {
    let (tenant, kind) = (ctx.tenant, template_content::kind(KIND));
    if content.subject.is_none() && content.preheader.is_none() {
        if template.template_type != KIND && current != Some(template.content_id) {
            template_content::check(ctx, &template.parts, kind, Some("template_id")).await?;
        }
        return Ok(template.content_id);
    }
    let parts = content.with_own_lines(&template.parts);
    if let Some(current) = current
        && stored::parts_of(ctx.db(), tenant, current).await?.as_ref() == Some(&parts)
    {
        return Ok(current);
    }
    let mut faults = Faults::default();
    parts.check_lines(&mut faults);
    faults.finish()?;
    let checked = template_content::check(ctx, &parts, kind, current.map(|_| "template_id")).await?;
    Ok(stored::insert_content(ctx.db(), tenant, KIND, &parts, &checked.variables).await?)
}

async fn compose_body(
    ctx: &mut RequestContext,
    content: &CampaignContent,
    template: Option<&TemplateRow>,
) -> Result<ComposedTemplate, ApiError> {
    let written = content.written(template.map(|template| &template.parts));
    let mut faults = Faults::default();
    written.check_lines(&mut faults);
    faults.finish()?;
    compose_template(ctx, &written, template_content::kind(KIND)).await
}

/// A body of the campaign's own with the lines of its template and the snippets as they are now; `None`: none that could differ from what
/// was stored.
async fn compose_anew(
    ctx: &mut RequestContext,
    content: &CampaignContent,
    template: Option<&TemplateRow>,
) -> Result<Option<ComposedTemplate>, ApiError> {
    let may_differ = template.is_some() || content.written(None).may_hold_snippets();
    if content.body.field().is_none() || !may_differ {
        return Ok(None);
    }
    compose_body(ctx, content, template).await.map(Some)
}

/// Puts the variant's path before the paths of its faults.
pub(super) fn within_variant(mut error: ApiError, at: usize) -> ApiError {
    if error.fields.is_empty() {
        return error;
    }
    for fault in &mut error.fields {
        fault.path = format!("variants[{at}].{}", fault.path);
    }
    ApiError::validation(error.fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> TemplateParts {
        TemplateParts {
            subject: "T".into(),
            preheader: Some("P".into()),
            body_html: "<p>T</p>".into(),
            body_text: Some("T".into()),
        }
    }

    fn html(body: &str) -> OwnBody {
        OwnBody { body_html: Some(body.into()), ..OwnBody::default() }
    }

    fn says(subject: &str) -> CampaignContent {
        CampaignContent { template_id: Some(Uuid::max()), subject: Some(subject.into()), ..CampaignContent::default() }
    }

    #[test]
    fn own_lines_replace_the_templates() {
        let parts = says("Own").with_own_lines(&template());
        assert_eq!(parts, TemplateParts { subject: "Own".into(), ..template() });
        assert_eq!(CampaignContent::default().with_own_lines(&template()), template());
    }

    #[test]
    fn own_html_takes_the_templates_lines_and_not_its_text_part() {
        let written = CampaignContent { body: html("<p>Own</p>"), ..CampaignContent::default() };
        let written = written.written(Some(&template()));
        assert_eq!((written.subject.as_str(), written.preheader.as_deref()), ("T", Some("P")));
        assert_eq!((written.body_html.as_deref(), written.body_text), (Some("<p>Own</p>"), None));
    }

    #[test]
    fn a_variant_inherits_what_it_leaves_out() {
        let campaign = says("S");
        let own = CampaignContent { body: html("<p>B</p>"), ..CampaignContent::default() };
        assert_eq!(own.or_campaign(&campaign), CampaignContent { body: html("<p>B</p>"), ..campaign.clone() });
        assert_eq!(CampaignContent::default().or_campaign(&campaign), campaign);
    }

    #[test]
    fn a_variants_own_template_replaces_the_campaigns_parts() {
        let own = CampaignContent { template_id: Some(Uuid::nil()), ..CampaignContent::default() };
        assert_eq!(own.or_campaign(&says("S")), own);
    }

    #[test]
    fn a_variants_body_keeps_the_layout_and_drops_the_text_part() {
        let campaign = OwnBody { body_text: Some("T".into()), layout: Some("page".into()), ..html("<p>C</p>") };
        let mjml = OwnBody { mjml: Some("<mjml/>".into()), ..OwnBody::default() };
        assert_eq!(mjml.or_campaign(&campaign), OwnBody { layout: Some("page".into()), ..mjml });
        let layout = OwnBody { layout: Some("other".into()), ..OwnBody::default() };
        assert_eq!(layout.or_campaign(&campaign), OwnBody { layout: Some("other".into()), ..campaign });
    }
}
