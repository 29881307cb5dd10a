//! What holds a snippet or a layout: the current versions of templates, and campaigns with bodies of their own.

use schemars::JsonSchema;
use schemas::CampaignStatus;
use serde::Serialize;
use uuid::Uuid;

use super::store;
use crate::pipeline::{ApiReply, NoParameters, RequestContext, error::ApiError, page::Time, resource};

/// A template that holds a snippet.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SnippetUser")]
pub(super) struct TemplateUser {
    template_id: Uuid,
    name: String,
    status: String,
    /// The template's current version.
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    /// The version of the snippet that it holds.
    #[schemars(range(min = 1, max = i32::MAX))]
    snippet_version: i32,
    created_at: Time,
}

resource!(TemplateUser, "template", "templates", template_id);

/// A campaign that holds a snippet.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SnippetCampaign")]
pub(super) struct CampaignUser {
    campaign_id: Uuid,
    name: String,
    #[schemars(with = "CampaignStatus")]
    status: String,
    /// The oldest version of the snippet that it, or a variant of it, holds. A draft takes the newest when it is launched.
    #[schemars(range(min = 1, max = i32::MAX))]
    snippet_version: i32,
    created_at: Time,
}

resource!(CampaignUser, "campaign", "campaigns", campaign_id);

/// Templates whose current version holds the snippet, archived ones too. Served by `templates_newest`.
pub(super) async fn templates(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id, page) = (ctx.tenant, ctx.id("snippet")?, ctx.page);
    store::get(ctx.db(), tenant, id).await?;
    let users = sqlx::query_as!(
        TemplateUser,
        "select t.id as template_id, t.name, t.status, t.version, u.snippet_version, t.created_at
         from content_snippets u
         join templates t on t.tenant_id = $1 and t.content_id = u.content_id
         where u.tenant_id = $1 and u.snippet_id = $2
           and ($3::timestamptz is null or (t.created_at, t.id) < ($3, $4))
         order by t.created_at desc, t.id desc limit $5",
        tenant,
        id,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, users)
}

/// Campaigns that are not over and whose own body, or that of a variant, holds the snippet. Served by `campaigns_by_status`.
pub(super) async fn campaigns(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id, page) = (ctx.tenant, ctx.id("snippet")?, ctx.page);
    store::get(ctx.db(), tenant, id).await?;
    let users = sqlx::query_as!(
        CampaignUser,
        r#"select k.id as campaign_id, k.name, k.status, held.version as "snippet_version!", k.created_at
           from campaigns k
           cross join lateral (
               select min(h.snippet_version) as version from campaign_snippets h
               where h.tenant_id = $1 and h.campaign_id = k.id and h.snippet_id = $2
           ) held
           where k.tenant_id = $1 and k.status in ('draft', 'scheduled', 'sending') and held.version is not null
             and ($3::timestamptz is null or (k.created_at, k.id) < ($3, $4))
           order by k.created_at desc, k.id desc limit $5"#,
        tenant,
        id,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, users)
}
