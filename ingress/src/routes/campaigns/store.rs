//! Rows of `campaigns`, and the sums over their batches.

use chrono::{DateTime, Utc};
use schemas::{CampaignStatus, Classification, Environment, RequestKind, messages::CampaignLaunchPayload};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::act::page::Page;

/// A campaign.
#[derive(Debug, Clone)]
pub(crate) struct CampaignRow {
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) sender_profile_id: Uuid,
    pub(crate) template_id: Option<Uuid>,
    pub(crate) subject: Option<String>,
    pub(crate) preheader: Option<String>,
    pub(crate) body_html: Option<String>,
    pub(crate) content_id: Uuid,
    pub(crate) campaign_goal: Option<String>,
    pub(crate) audience_mode: String,
    pub(crate) list_id: Option<Uuid>,
    pub(crate) segment_id: Option<Uuid>,
    pub(crate) tag_ids: Vec<Uuid>,
    pub(crate) message_purpose: String,
    pub(crate) classification: Classification,
    pub(crate) urgency: String,
    pub(crate) audience_reason: Option<String>,
    pub(crate) status: CampaignStatus,
    pub(crate) paused: bool,
    pub(crate) pause_reason: Option<String>,
    pub(crate) scheduled_for: Option<DateTime<Utc>>,
    pub(crate) launched_at: Option<DateTime<Utc>>,
    pub(crate) completed_at: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    pub(crate) updated_at: DateTime<Utc>,
}

/// Everything a caller decides about a campaign, checked; `content_id` is what it would say now.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) sender_profile_id: Uuid,
    pub(crate) template_id: Option<Uuid>,
    pub(crate) subject: Option<String>,
    pub(crate) preheader: Option<String>,
    pub(crate) body_html: Option<String>,
    pub(crate) content_id: Uuid,
    pub(crate) campaign_goal: Option<String>,
    pub(crate) audience_mode: String,
    pub(crate) list_id: Option<Uuid>,
    pub(crate) tag_ids: Vec<Uuid>,
    pub(crate) message_purpose: String,
    pub(crate) classification: Classification,
    pub(crate) urgency: String,
    pub(crate) audience_reason: Option<String>,
}

/// One number per send state, then the facts that came later. Equal to a recount of the campaign's sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SendCounts {
    pub(crate) total: i64,
    pub(crate) queued: i64,
    pub(crate) claimed: i64,
    pub(crate) fenced: i64,
    pub(crate) deferred: i64,
    pub(crate) sent: i64,
    pub(crate) failed: i64,
    pub(crate) unknown: i64,
    pub(crate) skipped: i64,
    pub(crate) cancelled: i64,
    pub(crate) expired: i64,
    pub(crate) delivered: i64,
    pub(crate) bounced: i64,
    pub(crate) complained: i64,
    pub(crate) opened: i64,
    pub(crate) clicked: i64,
    pub(crate) unsubscribed: i64,
}

/// The status of a campaign held until the transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    /// Ours to change.
    Ours,
    /// Another transaction holds it.
    Elsewhere(CampaignStatus),
}

/// Stores a campaign as a draft.
pub(crate) async fn insert(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    environment: Environment,
    draft: &Draft,
) -> sqlx::Result<Uuid> {
    let id = schemas::new_id();
    sqlx::query!(
        "insert into campaigns (tenant_id, id, product, environment, name, sender_profile_id, template_id, subject, preheader,
                                body_html, content_id, campaign_goal, audience_mode, list_id, tag_ids, message_purpose,
                                classification, urgency, audience_reason)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)",
        tenant,
        id,
        product,
        environment.as_str(),
        draft.name,
        draft.sender_profile_id,
        draft.template_id,
        draft.subject,
        draft.preheader,
        draft.body_html,
        draft.content_id,
        draft.campaign_goal,
        draft.audience_mode,
        draft.list_id,
        &draft.tag_ids,
        draft.message_purpose,
        draft.classification.as_str(),
        draft.urgency,
        draft.audience_reason,
    )
    .execute(db)
    .await?;
    Ok(id)
}

/// Writes everything a caller decides.
pub(crate) async fn update(db: &mut PgConnection, tenant: Uuid, id: Uuid, draft: &Draft) -> sqlx::Result<()> {
    sqlx::query!(
        "update campaigns
         set name = $3, sender_profile_id = $4, template_id = $5, subject = $6, preheader = $7, body_html = $8, content_id = $9,
             campaign_goal = $10, audience_mode = $11, list_id = $12, tag_ids = $13, message_purpose = $14,
             classification = $15, urgency = $16, audience_reason = $17, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        draft.name,
        draft.sender_profile_id,
        draft.template_id,
        draft.subject,
        draft.preheader,
        draft.body_html,
        draft.content_id,
        draft.campaign_goal,
        draft.audience_mode,
        draft.list_id,
        &draft.tag_ids,
        draft.message_purpose,
        draft.classification.as_str(),
        draft.urgency,
        draft.audience_reason,
    )
    .execute(db)
    .await
    .map(drop)
}

/// One campaign.
pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<CampaignRow>> {
    sqlx::query_as!(
        CampaignRow,
        r#"select id, name, sender_profile_id, template_id, subject, preheader, body_html, content_id, campaign_goal,
                  audience_mode, list_id, segment_id, tag_ids, message_purpose,
                  classification as "classification: Classification", urgency, audience_reason,
                  status as "status: CampaignStatus", paused, pause_reason, scheduled_for, launched_at, completed_at,
                  created_at, updated_at
           from campaigns where tenant_id = $1 and id = $2"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await
}

/// Campaigns, newest first, one page; without their bodies, which may be half a megabyte each.
/// Served by `campaigns_newest` or `campaigns_by_status`.
pub(crate) async fn list(
    db: &mut PgConnection,
    tenant: Uuid,
    status: Option<CampaignStatus>,
    page: &Page,
) -> sqlx::Result<Vec<CampaignRow>> {
    sqlx::query_as!(
        CampaignRow,
        r#"select id, name, sender_profile_id, template_id, subject, preheader, null::text as body_html, content_id,
                  campaign_goal, audience_mode, list_id, segment_id, tag_ids, message_purpose,
                  classification as "classification: Classification", urgency, audience_reason,
                  status as "status: CampaignStatus", paused, pause_reason, scheduled_for, launched_at, completed_at,
                  created_at, updated_at
           from campaigns
           where tenant_id = $1
             and ($2::text is null or status = $2)
             and ($3::timestamptz is null or (created_at, id) < ($3, $4::uuid))
           order by created_at desc, id desc
           limit $5"#,
        tenant,
        status.map(CampaignStatus::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await
}

/// The sums over a campaign's batches: some 2,000 rows for a million recipients. Served by `batches_by_campaign`.
pub(crate) async fn counts(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<SendCounts> {
    sqlx::query_as!(
        SendCounts,
        r#"select coalesce(sum(size), 0) as "total!", coalesce(sum(queued), 0) as "queued!",
                  coalesce(sum(claimed), 0) as "claimed!", coalesce(sum(fenced), 0) as "fenced!",
                  coalesce(sum(deferred), 0) as "deferred!", coalesce(sum(sent), 0) as "sent!",
                  coalesce(sum(failed), 0) as "failed!", coalesce(sum(unknown), 0) as "unknown!",
                  coalesce(sum(skipped), 0) as "skipped!", coalesce(sum(cancelled), 0) as "cancelled!",
                  coalesce(sum(expired), 0) as "expired!", coalesce(sum(delivered), 0) as "delivered!",
                  coalesce(sum(bounced), 0) as "bounced!", coalesce(sum(complained), 0) as "complained!",
                  coalesce(sum(opened), 0) as "opened!", coalesce(sum(clicked), 0) as "clicked!",
                  coalesce(sum(unsubscribed), 0) as "unsubscribed!"
           from batches where tenant_id = $1 and campaign_id = $2"#,
        tenant,
        id,
    )
    .fetch_one(db)
    .await
}

/// Holds the campaign until the transaction ends, waiting for whoever holds it. `false`: there is none.
pub(crate) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!("select id from campaigns where tenant_id = $1 and id = $2 for no key update", tenant, id)
        .fetch_optional(db)
        .await
        .map(|row| row.is_some())
}

/// Holds the campaign if nobody else does: a launch counts its audience for seconds, and those that lost the race to it must
/// not each keep a connection waiting. `None`: there is no such campaign.
pub(crate) async fn try_lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<Held>> {
    let ours = sqlx::query_scalar!(
        "select id from campaigns where tenant_id = $1 and id = $2 for no key update skip locked",
        tenant,
        id
    )
    .fetch_optional(&mut *db)
    .await?;
    if ours.is_some() {
        return Ok(Some(Held::Ours));
    }
    sqlx::query_scalar!(
        r#"select status as "status: CampaignStatus" from campaigns where tenant_id = $1 and id = $2"#,
        tenant,
        id
    )
    .fetch_optional(db)
    .await
    .map(|status| status.map(Held::Elsewhere))
}

/// Moves a draft to scheduled or sending. `false`: it is no draft any more.
pub(crate) async fn launch(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    content_id: Uuid,
    scheduled_for: Option<DateTime<Utc>>,
) -> sqlx::Result<bool> {
    sqlx::query!(
        "update campaigns
         set status = case when $4::timestamptz is null then 'sending' else 'scheduled' end,
             scheduled_for = $4, content_id = $3, updated_at = now()
         where tenant_id = $1 and id = $2 and status = 'draft'",
        tenant,
        id,
        content_id,
        scheduled_for,
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected() == 1)
}

/// Stores the accepted launch: the row the audience stage works from, rung again when it is due.
pub(crate) async fn request_launch(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    environment: Environment,
    campaign: Uuid,
    scheduled_for: Option<DateTime<Utc>>,
) -> sqlx::Result<Uuid> {
    let id = schemas::new_id();
    sqlx::query!(
        "insert into requests (tenant_id, id, product, environment, kind, payload, announce_after)
         values ($1, $2, $3, $4, $5, $6, coalesce($7, now() + interval '5 seconds'))",
        tenant,
        id,
        product,
        environment.as_str(),
        RequestKind::CampaignLaunch.as_str(),
        Json(CampaignLaunchPayload { campaign_id: campaign }) as _,
        scheduled_for,
    )
    .execute(db)
    .await?;
    Ok(id)
}

/// Stops a campaign. Its sends follow in the audience stage's sweep, and no claim or fence passes from now on.
pub(crate) async fn cancel(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update campaigns set status = 'cancelled', updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id
    )
    .execute(db)
    .await
    .map(drop)
}

/// Holds a campaign back or lets it go on.
pub(crate) async fn pause(db: &mut PgConnection, tenant: Uuid, id: Uuid, paused: bool) -> sqlx::Result<()> {
    sqlx::query!(
        "update campaigns
         set paused = $3, pause_reason = case when $3 then 'requested' end, updated_at = now()
         where tenant_id = $1 and id = $2 and paused <> $3",
        tenant,
        id,
        paused
    )
    .execute(db)
    .await
    .map(drop)
}
