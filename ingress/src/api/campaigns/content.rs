//! The content of a campaign: its template's, or one of its own if it has a subject, a preheader or a body of its own.

use sqlx::PgConnection;
use uuid::Uuid;

use super::rows::{CampaignRow, VariantRow};
use crate::{
    api::templates::{
        content::{self as template_content, ContentWarning, TemplateParts},
        store::{self as templates, TemplateRow},
    },
    pipeline::{Faults, RequestContext, error::ApiError},
};

/// A campaign's template, and the parts of the template that it replaces.
#[derive(Debug, Clone, Copy)]
pub(super) struct CampaignContent<'a> {
    pub(super) template_id: Option<Uuid>,
    pub(super) subject: Option<&'a str>,
    pub(super) preheader: Option<&'a str>,
    pub(super) body_html: Option<&'a str>,
}

impl<'a> CampaignContent<'a> {
    /// A variant's content: it inherits from the campaign what it leaves out. A variant with a template of its own inherits nothing:
    /// the campaign's parts would hide what is to be tested.
    pub(super) fn or_campaign(self, campaign: &CampaignContent<'a>) -> Self {
        if self.template_id.is_some() {
            return self;
        }
        Self {
            template_id: campaign.template_id,
            subject: self.subject.or(campaign.subject),
            preheader: self.preheader.or(campaign.preheader),
            body_html: self.body_html.or(campaign.body_html),
        }
    }

    /// True if both name the same template and the same parts.
    pub(super) fn is_same_as(&self, other: &CampaignContent<'_>) -> bool {
        (self.template_id, self.subject, self.preheader, self.body_html)
            == (other.template_id, other.subject, other.preheader, other.body_html)
    }

    fn has_own_parts(&self) -> bool {
        self.subject.is_some() || self.preheader.is_some() || self.body_html.is_some()
    }

    /// A template's parts with the campaign's own in their place. A body of its own drops the template's text part, which would
    /// differ from it; rendering makes one from the HTML.
    fn apply_to(&self, template: Option<&TemplateParts>) -> TemplateParts {
        let pick = |own: Option<&str>, part: Option<&String>| own.map(str::to_owned).or_else(|| part.cloned());
        TemplateParts {
            subject: pick(self.subject, template.map(|parts| &parts.subject)).unwrap_or_default(),
            preheader: pick(self.preheader, template.and_then(|parts| parts.preheader.as_ref())),
            body_html: pick(self.body_html, template.map(|parts| &parts.body_html)).unwrap_or_default(),
            body_text: template.filter(|_| self.body_html.is_none()).and_then(|parts| parts.body_text.clone()),
        }
    }
}

impl CampaignRow {
    /// The campaign's template and its own parts.
    pub(super) fn own_content(&self) -> CampaignContent<'_> {
        CampaignContent {
            template_id: self.template_id,
            subject: self.subject.as_deref(),
            preheader: self.preheader.as_deref(),
            body_html: self.body_html.as_deref(),
        }
    }
}

impl VariantRow {
    /// The variant's template and its own parts.
    pub(super) fn own_content(&self) -> CampaignContent<'_> {
        CampaignContent {
            template_id: self.template_id,
            subject: self.subject.as_deref(),
            preheader: self.preheader.as_deref(),
            body_html: self.body_html.as_deref(),
        }
    }
}

/// The content of a draft, with warnings about a body of its own.
///
/// # Errors
/// 404 `template_not_found`, also for an archived one; 400 for faults in the campaign's own parts, or in a template that needs
/// data that only a transactional message has.
pub(super) async fn compose_content(
    ctx: &mut RequestContext,
    campaign: &CampaignContent<'_>,
) -> Result<(Uuid, Vec<ContentWarning>), ApiError> {
    let tenant = ctx.tenant;
    let template = find_template(ctx.db(), tenant, campaign.template_id).await?;
    if template.as_ref().is_some_and(|template| template.status == "archived") {
        return Err(ApiError::not_found("template"));
    }
    match template {
        Some(template) if !campaign.has_own_parts() => Ok((use_template(ctx, &template).await?, Vec::new())),
        template => {
            let parts = campaign.apply_to(template.as_ref().map(|template| &template.parts));
            let (id, warnings) = insert_own_content(ctx, &parts, None).await?;
            // A template's body was warned of when it was stored.
            Ok((id, if campaign.body_html.is_some() { warnings } else { Vec::new() }))
        }
    }
}

/// What a campaign or a variant says: a draft with the current version of its template, any other as it was launched.
pub(super) async fn current_parts(
    ctx: &mut RequestContext,
    campaign: &CampaignContent<'_>,
    is_draft: bool,
    content_id: Uuid,
) -> Result<TemplateParts, ApiError> {
    let tenant = ctx.tenant;
    let template = if is_draft { find_template(ctx.db(), tenant, campaign.template_id).await? } else { None };
    if let Some(template) = template {
        return Ok(campaign.apply_to(Some(&template.parts)));
    }
    templates::parts_of(ctx.db(), tenant, content_id).await?.ok_or_else(ApiError::internal)
}

/// The content of a campaign at its launch: its template may have a new version since the draft.
///
/// # Errors
/// 400 for faults that the new version brings, 422 `template_archived`.
pub(super) async fn refresh_content(
    ctx: &mut RequestContext,
    campaign: &CampaignContent<'_>,
    current: Uuid,
) -> Result<Uuid, ApiError> {
    let tenant = ctx.tenant;
    let Some(template) = find_template(ctx.db(), tenant, campaign.template_id).await? else { return Ok(current) };
    if template.status == "archived" {
        return Err(ApiError::unprocessable("template_archived")
            .detail("a template of the campaign is archived: make it active again, or give the draft another"));
    }
    if !campaign.has_own_parts() {
        return if template.content_id == current { Ok(current) } else { use_template(ctx, &template).await };
    }
    let parts = campaign.apply_to(Some(&template.parts));
    if templates::parts_of(ctx.db(), tenant, current).await?.as_ref() == Some(&parts) {
        return Ok(current);
    }
    insert_own_content(ctx, &parts, Some("template_id")).await.map(|(id, _)| id)
}

async fn find_template(db: &mut PgConnection, tenant: Uuid, id: Option<Uuid>) -> Result<Option<TemplateRow>, ApiError> {
    let Some(id) = id else { return Ok(None) };
    templates::get(db, tenant, id).await?.map(Some).ok_or_else(|| ApiError::not_found("template"))
}

/// A template's content. A transactional template may use `data.*`, which a campaign does not have.
async fn use_template(ctx: &mut RequestContext, template: &TemplateRow) -> Result<Uuid, ApiError> {
    if template.template_type == "transactional" {
        template_content::check(ctx, &template.parts, template_content::kind("marketing"), Some("template_id")).await?;
    }
    Ok(template.content_id)
}

async fn insert_own_content(
    ctx: &mut RequestContext,
    parts: &TemplateParts,
    path: Option<&'static str>,
) -> Result<(Uuid, Vec<ContentWarning>), ApiError> {
    let mut faults = Faults::default();
    parts.check_lines(&mut faults);
    faults.finish()?;
    let tenant = ctx.tenant;
    let checked = template_content::check(ctx, parts, template_content::kind("marketing"), path).await?;
    let id = templates::insert_content(ctx.db(), tenant, "marketing", parts, &checked.variables).await?;
    Ok((id, ContentWarning::all(checked.warnings)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: CampaignContent<'static> =
        CampaignContent { template_id: None, subject: None, preheader: None, body_html: None };

    fn template() -> TemplateParts {
        TemplateParts {
            subject: "T".into(),
            preheader: Some("P".into()),
            body_html: "<p>T</p>".into(),
            body_text: Some("T".into()),
        }
    }

    #[test]
    fn own_parts_replace_the_templates() {
        let parts = CampaignContent { subject: Some("Own"), ..NONE }.apply_to(Some(&template()));
        assert_eq!(parts, TemplateParts { subject: "Own".into(), ..template() });
        assert_eq!(NONE.apply_to(Some(&template())), template());
    }

    #[test]
    fn a_variant_inherits_what_it_leaves_out() {
        let campaign = CampaignContent { template_id: Some(Uuid::max()), subject: Some("S"), ..NONE };
        let own = CampaignContent { body_html: Some("<p>B</p>"), ..NONE }.or_campaign(&campaign);
        assert!(own.is_same_as(&CampaignContent { body_html: Some("<p>B</p>"), ..campaign }));
        assert!(NONE.or_campaign(&campaign).is_same_as(&campaign));
    }

    #[test]
    fn a_variants_own_template_replaces_the_campaigns_parts() {
        let campaign = CampaignContent { template_id: Some(Uuid::max()), subject: Some("S"), ..NONE };
        let own = CampaignContent { template_id: Some(Uuid::nil()), ..NONE };
        assert!(own.or_campaign(&campaign).is_same_as(&own));
    }

    #[test]
    fn own_html_drops_the_templates_text_part() {
        let parts = CampaignContent { body_html: Some("<p>Own</p>"), ..NONE }.apply_to(Some(&template()));
        assert_eq!(parts, TemplateParts { body_html: "<p>Own</p>".into(), body_text: None, ..template() });
    }
}
