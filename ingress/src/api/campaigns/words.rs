//! What a campaign says: its template's current content, or a content of its own where it has words of its own.

use sqlx::PgConnection;
use uuid::Uuid;

use super::store::{CampaignRow, VariantRow};
use crate::{
    api::templates::{
        content::{self, Parts},
        store::{self as templates, TemplateRow},
    },
    pipeline::{Faults, RequestContext, error::ApiError},
};

/// A campaign's template, and the words it puts in the template's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words<'a> {
    pub(super) template_id: Option<Uuid>,
    pub(super) subject: Option<&'a str>,
    pub(super) preheader: Option<&'a str>,
    pub(super) body_html: Option<&'a str>,
}

impl<'a> Words<'a> {
    /// A variant's words: what it leaves out, the campaign says. A template of its own replaces the campaign's words altogether,
    /// or they would cover what is to be tested.
    pub(super) fn or(self, campaign: &Words<'a>) -> Self {
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

    /// Whether both say the same by the same means.
    pub(super) fn is_same_as(&self, other: &Words<'_>) -> bool {
        (self.template_id, self.subject, self.preheader, self.body_html)
            == (other.template_id, other.subject, other.preheader, other.body_html)
    }

    fn are_own(&self) -> bool {
        self.subject.is_some() || self.preheader.is_some() || self.body_html.is_some()
    }

    /// A template's parts with these words in their place. Own HTML drops the template's text part: it would say something
    /// else; rendering makes one from the HTML.
    fn over(&self, template: Option<&Parts>) -> Parts {
        let own = |words: Option<&str>, part: Option<&String>| words.map(str::to_owned).or_else(|| part.cloned());
        Parts {
            subject: own(self.subject, template.map(|parts| &parts.subject)).unwrap_or_default(),
            preheader: own(self.preheader, template.and_then(|parts| parts.preheader.as_ref())),
            body_html: own(self.body_html, template.map(|parts| &parts.body_html)).unwrap_or_default(),
            body_text: template.filter(|_| self.body_html.is_none()).and_then(|parts| parts.body_text.clone()),
        }
    }
}

impl CampaignRow {
    /// What the campaign says.
    pub(super) fn words(&self) -> Words<'_> {
        Words {
            template_id: self.template_id,
            subject: self.subject.as_deref(),
            preheader: self.preheader.as_deref(),
            body_html: self.body_html.as_deref(),
        }
    }
}

impl VariantRow {
    /// What the variant itself says.
    pub(super) fn words(&self) -> Words<'_> {
        Words {
            template_id: self.template_id,
            subject: self.subject.as_deref(),
            preheader: self.preheader.as_deref(),
            body_html: self.body_html.as_deref(),
        }
    }
}

/// The content of a draft.
///
/// # Errors
/// 404 `template_not_found`, also for an archived one; 400 for faults in the campaign's words, or in a template that needs what
/// only a transactional message has.
pub(super) async fn compose(ctx: &mut RequestContext, words: &Words<'_>) -> Result<Uuid, ApiError> {
    let tenant = ctx.tenant;
    let template = template_of(ctx.db(), tenant, words.template_id).await?;
    if template.as_ref().is_some_and(|template| template.status == "archived") {
        return Err(ApiError::not_found("template"));
    }
    match template {
        Some(template) if !words.are_own() => as_it_is(ctx, &template).await,
        template => as_own(ctx, &words.over(template.as_ref().map(|template| &template.parts)), None).await,
    }
}

/// The content of a campaign at its launch: its template may have a new version since the draft.
///
/// # Errors
/// 400 for faults that the new version brings, 422 `template_archived`.
pub(super) async fn refresh(ctx: &mut RequestContext, words: &Words<'_>, standing: Uuid) -> Result<Uuid, ApiError> {
    let tenant = ctx.tenant;
    let Some(template) = template_of(ctx.db(), tenant, words.template_id).await? else { return Ok(standing) };
    if template.status == "archived" {
        return Err(ApiError::unprocessable("template_archived")
            .detail("a template of the campaign is archived: make it active again, or give the draft another"));
    }
    if !words.are_own() {
        return if template.content_id == standing { Ok(standing) } else { as_it_is(ctx, &template).await };
    }
    let parts = words.over(Some(&template.parts));
    if templates::parts_of(ctx.db(), tenant, standing).await?.as_ref() == Some(&parts) {
        return Ok(standing);
    }
    as_own(ctx, &parts, Some("template_id")).await
}

async fn template_of(db: &mut PgConnection, tenant: Uuid, id: Option<Uuid>) -> Result<Option<TemplateRow>, ApiError> {
    let Some(id) = id else { return Ok(None) };
    templates::get(db, tenant, id).await?.map(Some).ok_or_else(|| ApiError::not_found("template"))
}

/// A template's content. A transactional one may use `data.*`, which a campaign has none of.
async fn as_it_is(ctx: &mut RequestContext, template: &TemplateRow) -> Result<Uuid, ApiError> {
    if template.template_type == "transactional" {
        content::check(ctx, &template.parts, content::kind("marketing"), Some("template_id")).await?;
    }
    Ok(template.content_id)
}

async fn as_own(ctx: &mut RequestContext, parts: &Parts, path: Option<&'static str>) -> Result<Uuid, ApiError> {
    let mut faults = Faults::default();
    parts.check_lines(&mut faults);
    faults.finish()?;
    let tenant = ctx.tenant;
    let variables = content::check(ctx, parts, content::kind("marketing"), path).await?;
    Ok(templates::insert_content(ctx.db(), tenant, "marketing", parts, &variables).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Words<'static> = Words { template_id: None, subject: None, preheader: None, body_html: None };

    fn template() -> Parts {
        Parts {
            subject: "T".into(),
            preheader: Some("P".into()),
            body_html: "<p>T</p>".into(),
            body_text: Some("T".into()),
        }
    }

    #[test]
    fn own_words_replace_the_templates() {
        let parts = Words { subject: Some("Own"), ..NONE }.over(Some(&template()));
        assert_eq!(parts, Parts { subject: "Own".into(), ..template() });
        assert_eq!(NONE.over(Some(&template())), template());
    }

    #[test]
    fn a_variant_says_what_the_campaign_says_where_it_is_silent() {
        let campaign = Words { template_id: Some(Uuid::max()), subject: Some("S"), ..NONE };
        let own = Words { body_html: Some("<p>B</p>"), ..NONE }.or(&campaign);
        assert!(own.is_same_as(&Words { body_html: Some("<p>B</p>"), ..campaign }));
        assert!(NONE.or(&campaign).is_same_as(&campaign));
    }

    #[test]
    fn a_variants_own_template_is_not_covered_by_the_campaigns_words() {
        let campaign = Words { template_id: Some(Uuid::max()), subject: Some("S"), ..NONE };
        let own = Words { template_id: Some(Uuid::nil()), ..NONE };
        assert!(own.or(&campaign).is_same_as(&own));
    }

    #[test]
    fn own_html_drops_the_templates_text_part() {
        let parts = Words { body_html: Some("<p>Own</p>"), ..NONE }.over(Some(&template()));
        assert_eq!(parts, Parts { body_html: "<p>Own</p>".into(), body_text: None, ..template() });
    }
}
