//! Rows of `campaigns`, and the sums over their batches.

use std::sync::Arc;

use chrono::{DateTime, NaiveDateTime, Utc};
use chrono_tz::Tz;
use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification, Environment, OnMiss, PauseReason};
use serde::Serialize;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{
    content::CampaignContent,
    rows::{AbTest, CampaignRow, TripwireView, VariantRow},
    rules::Rules,
    schedule::Schedule,
};
use crate::{
    api::templates::content::ContentWarning,
    pipeline::{
        RequestContext,
        page::{ListPage, Time},
        types,
    },
};

/// Everything a caller decides about a campaign, checked; `content_id` is what was made of its content.
#[derive(Debug, Clone)]
pub(crate) struct CampaignDraft {
    pub(crate) name: String,
    pub(crate) sender_profile_id: Uuid,
    pub(crate) content: CampaignContent,
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
    pub(crate) rules: Rules,
    /// About bodies of its own that were given now. They are answered and not stored.
    pub(crate) warnings: Vec<ContentWarning>,
}

/// One number per send state, then the facts that came later. Equal to a recount of the campaign's sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = types::counts)]
pub(crate) struct SendCounts {
    pub(crate) total: i64,
    pub(crate) queued: i64,
    pub(crate) fenced: i64,
    pub(crate) deferred: i64,
    pub(crate) sent: i64,
    pub(crate) failed: i64,
    pub(crate) unknown: i64,
    pub(crate) skipped: i64,
    pub(crate) cancelled: i64,
    pub(crate) expired: i64,
    /// Confirmed where the route can confirm, otherwise accepted by the receiving server, and not bounced since: as in reports.
    pub(crate) delivered: i64,
    /// Of these, those that a provider has confirmed.
    pub(crate) delivered_confirmed: i64,
    pub(crate) bounced: i64,
    pub(crate) complained: i64,
    pub(crate) opened: i64,
    pub(crate) clicked: i64,
    pub(crate) unsubscribed: i64,
}

/// Writes a draft, new or changed. Product and environment stay those of the caller that made it.
pub(super) async fn write(ctx: &mut RequestContext, id: Uuid, draft: &CampaignDraft) -> sqlx::Result<()> {
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    let (rules, content) = (&draft.rules, &draft.content);
    sqlx::query_file!(
        "queries/write_campaign.sql",
        tenant,
        id,
        caller.product,
        caller.environment.as_str(),
        draft.name,
        draft.sender_profile_id,
        content.template_id,
        content.subject,
        content.preheader,
        content.body.body_html,
        content.body.mjml,
        content.body.body_text,
        content.body.layout,
        draft.content_id,
        draft.campaign_goal,
        draft.audience_mode,
        draft.list_id,
        draft.segment_id,
        &draft.tag_ids,
        draft.message_purpose,
        draft.classification.as_str(),
        draft.urgency,
        draft.audience_reason,
        rules.test.map(|test| test.percent),
        rules.test.map(|test| test.metric.as_str()),
        rules.test.map(|test| test.decide_after_minutes),
        rules.not_after,
        rules.on_miss.as_str(),
        rules.max_per_minute,
        rules.bounce_percent,
        rules.complaint_percent,
    )
    .execute(ctx.db())
    .await?;
    write_variants(ctx.db(), tenant, id, rules).await
}

/// Replaces the stored variants.
async fn write_variants(db: &mut PgConnection, tenant: Uuid, campaign: Uuid, rules: &Rules) -> sqlx::Result<()> {
    sqlx::query!("delete from campaign_variants where tenant_id = $1 and campaign_id = $2", tenant, campaign)
        .execute(&mut *db)
        .await?;
    for (variant, letter) in rules.variants.iter().zip(ledger::audience::VARIANT_NAMES) {
        let content = &variant.content;
        sqlx::query!(
            "insert into campaign_variants (tenant_id, campaign_id, variant, name, weight, subject, preheader, template_id,
                                            body_html, mjml, body_text, layout, content_id)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
            tenant,
            campaign,
            letter,
            variant.name,
            variant.weight,
            content.subject,
            content.preheader,
            content.template_id,
            content.body.body_html,
            content.body.mjml,
            content.body.body_text,
            content.body.layout,
            variant.content_id,
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

pub(crate) fn contents_of(row: &CampaignRow) -> Vec<Uuid> {
    row.variants.iter().map(|variant| variant.content_id).chain([row.content_id]).collect()
}

/// Empties those of the contents a draft had before that it has no more: what was written over is not kept. The versions of templates
/// are, and so is all of a campaign that was mailed. No other campaign has them: a copy has contents of its own.
pub(crate) async fn empty_replaced_contents(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    before: &[Uuid],
) -> sqlx::Result<()> {
    sqlx::query!(
        "select empty_contents($1, array(
             select n.id from contents n
             where n.tenant_id = $1 and n.id = any ($3)
               and not exists (select from campaigns c where c.tenant_id = $1 and c.id = $2 and c.content_id = n.id)
               and not exists (select from campaign_variants v
                               where v.tenant_id = $1 and v.campaign_id = $2 and v.content_id = n.id)
               and not exists (select from template_versions t where t.tenant_id = $1 and t.content_id = n.id)
               and not exists (select from batches b where b.tenant_id = $1 and b.campaign_id = $2)))",
        tenant,
        campaign,
        before,
    )
    .fetch_all(db)
    .await
    .map(drop)
}

/// Sets what a variant says: its template may have a new version.
pub(crate) async fn set_variant_content(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    variant: &str,
    content_id: Uuid,
) -> sqlx::Result<()> {
    sqlx::query!(
        "update campaign_variants set content_id = $4 where tenant_id = $1 and campaign_id = $2 and variant = $3",
        tenant,
        campaign,
        variant,
        content_id,
    )
    .execute(db)
    .await
    .map(drop)
}

pub(crate) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<CampaignRow>> {
    Ok(list(db, tenant, Some(id), None, &ListPage::ONE).await?.pop())
}

/// A page of campaigns, newest first, without their bodies, which may be half a megabyte each; or the one with an id.
pub(crate) async fn list(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Option<Uuid>,
    status: Option<CampaignStatus>,
    page: &ListPage,
) -> sqlx::Result<Vec<CampaignRow>> {
    sqlx::query_file_as!(
        CampaignRow,
        "queries/campaigns.sql",
        tenant,
        id,
        status.map(CampaignStatus::as_str),
        page.before,
        page.before_id,
        page.fetch()
    )
    .fetch_all(db)
    .await
}

pub(crate) async fn tenant_zone(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<Tz> {
    let name = sqlx::query_scalar!("select timezone from tenants where id = $1", tenant).fetch_one(db).await?;
    Ok(schemas::delay::zone(None, &name))
}

/// Sends that wait for their time, or for their next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(transform = types::counts)]
pub(crate) struct TimedSends {
    /// At the earliest: where it is quiet in several time zones, or some are put off for other reasons, some of them wait longer.
    pub(crate) until: Time,
    pub(crate) count: i64,
}

/// How many sends of a campaign wait for which time. A batch counts under the earliest time of its sends, of which a batch that is put off as
/// a whole keeps no other; next attempts by the minute, rounded up: none is in the past. Served by `batches_by_campaign`: sends are not read.
pub(crate) async fn timed(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<TimedSends>> {
    sqlx::query_as!(
        TimedSends,
        r#"select case state when 'timed' then announce_after
                       else date_trunc('minute', announce_after + interval '59.999999 seconds') end as "until!",
                  sum(queued + deferred) as "count!"
           from batches
           where tenant_id = $1 and campaign_id = $2 and (state = 'timed' or state = 'resting' and announce_after > now())
           group by 1 order by 1"#,
        tenant,
        id
    )
    .fetch_all(db)
    .await
}

/// The sums over a campaign's batches: some 2,000 rows for a million recipients. Served by `batches_by_campaign`.
pub(crate) async fn counts(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<SendCounts> {
    sqlx::query_as!(
        SendCounts,
        r#"select coalesce(sum(size), 0) as "total!", coalesce(sum(queued), 0) as "queued!",
                  coalesce(sum(fenced), 0) as "fenced!",
                  coalesce(sum(deferred), 0) as "deferred!", coalesce(sum(sent), 0) as "sent!",
                  coalesce(sum(failed), 0) as "failed!", coalesce(sum(unknown), 0) as "unknown!",
                  coalesce(sum(skipped), 0) as "skipped!", coalesce(sum(cancelled), 0) as "cancelled!",
                  coalesce(sum(expired), 0) as "expired!", coalesce(sum(delivered), 0) as "delivered!",
                  coalesce(sum(confirmed), 0) as "delivered_confirmed!", coalesce(sum(bounced), 0) as "bounced!", coalesce(sum(complained), 0) as "complained!",
                  coalesce(sum(opened), 0) as "opened!", coalesce(sum(clicked), 0) as "clicked!",
                  coalesce(sum(unsubscribed), 0) as "unsubscribed!"
           from batches where tenant_id = $1 and campaign_id = $2"#,
        tenant,
        id,
    )
    .fetch_one(db)
    .await
}

/// Locks the campaign until the transaction ends, after its launch request and before its batches, and reads it.
pub(crate) async fn lock(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<CampaignRow>> {
    sqlx::query_scalar!("select id from campaigns where tenant_id = $1 and id = $2 for no key update", tenant, id)
        .fetch_optional(&mut *db)
        .await?;
    get(db, tenant, id).await
}

/// Puts the campaign into preflight until the transaction ends. `false`: another transaction works on a launch of it. A launch counts
/// its audience for seconds: those that lose the race to it do not wait.
pub(crate) async fn begin_preflight(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"select begin_preflight($1, $2) as "taken!""#, tenant, id).fetch_one(db).await
}

/// A launch that was accepted and has not begun.
#[derive(Debug, Clone)]
pub(crate) struct WaitingLaunch {
    pub(crate) request_id: Uuid,
    pub(crate) product: String,
    pub(crate) environment: Environment,
}

/// Holds the launch requests of a campaign that are not handled, and answers the one that waits for its time. To be called before the campaign
/// is locked: the audience stage locks them in this order. Served by `requests_by_kind`.
pub(crate) async fn lock_waiting_launch(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
) -> sqlx::Result<Option<WaitingLaunch>> {
    let launches = sqlx::query!(
        r#"select id, product, environment as "environment: Environment", state = 'accepted' as "is_waiting!"
           from requests
           where tenant_id = $1 and kind = 'campaign-launch' and state in ('accepted', 'rejected') and payload ->> 'campaign_id' = $2
           order by id
           for update"#,
        tenant,
        id.to_string(),
    )
    .fetch_all(db)
    .await?;
    let waiting = launches.into_iter().find(|launch| launch.is_waiting);
    Ok(waiting.map(|launch| WaitingLaunch {
        request_id: launch.id,
        product: launch.product,
        environment: launch.environment,
    }))
}

/// Gives a scheduled campaign another time. Campaign and request are held.
pub(crate) async fn reschedule(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    request: Uuid,
    (scheduled_for, local): (DateTime<Utc>, Option<NaiveDateTime>),
) -> sqlx::Result<()> {
    sqlx::query!(
        "update campaigns set scheduled_for = $3, scheduled_for_local = $4, updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id,
        scheduled_for,
        local,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "update requests set announce_after = $3, due_at = $3 where tenant_id = $1 and id = $2",
        tenant,
        request,
        scheduled_for
    )
    .execute(db)
    .await
    .map(drop)
}

/// Puts a campaign whose launch has not begun back to draft: its launch is withdrawn, also one that was rejected, which a requeue would take up
/// beside the next one; and the audience that was written down for it is removed. Campaign and requests are held ([`lock_waiting_launch`]).
pub(crate) async fn back_to_draft(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update requests set state = 'handled', outcome = 'withdrawn', announce_after = null, handled_at = now()
         where tenant_id = $1 and kind = 'campaign-launch' and state in ('accepted', 'rejected') and payload ->> 'campaign_id' = $2",
        tenant,
        id.to_string(),
    )
    .execute(&mut *db)
    .await?;
    ledger::audience::unpin(&mut *db, tenant, id).await?;
    sqlx::query!(
        "update campaigns
         set status = 'draft', scheduled_for = null, scheduled_for_local = null, closes_at = null, paused = false,
             pause_reason = null, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Removes a draft, which is held. Nothing but its variants refers to one.
pub(crate) async fn delete_draft(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from campaign_variants where tenant_id = $1 and campaign_id = $2", tenant, id)
        .execute(&mut *db)
        .await?;
    sqlx::query!("delete from campaigns where tenant_id = $1 and id = $2", tenant, id).execute(db).await.map(drop)
}

/// Moves a draft to scheduled or sending. `false`: it is no draft any more.
pub(crate) async fn launch(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    content_id: Uuid,
    schedule: &Schedule,
) -> sqlx::Result<bool> {
    sqlx::query!(
        "update campaigns
         set status = case when $4::timestamptz is null then 'sending' else 'scheduled' end,
             scheduled_for = $4, scheduled_for_local = $5, content_id = $3, closes_at = case when on_miss <> 'send' then not_after end,
             updated_at = now()
         where tenant_id = $1 and id = $2 and status = 'draft'",
        tenant,
        id,
        content_id,
        schedule.due,
        schedule.local,
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected() == 1)
}

/// True if a launch waits for an older one of its tenant. The audience stage's sweep then announces it, as soon as it may.
pub(crate) async fn leave_to_sweep(db: &mut PgConnection, tenant: Uuid, request: Uuid) -> sqlx::Result<bool> {
    sqlx::query!(
        "update requests set announce_after = now() where tenant_id = $1 and id = $2 and waits_for_launch(tenant_id, due_at, id)",
        tenant,
        request
    )
    .execute(db)
    .await
    .map(|done| done.rows_affected() == 1)
}

/// Stops a campaign. Its sends follow in the audience stage's sweep, and no fence passes from now on.
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

/// Pauses or resumes a campaign. A caller that resumes what the engine has paused answers for it: the tripwire is disarmed, and what missed
/// the window is sent late.
pub(crate) async fn pause(db: &mut PgConnection, tenant: Uuid, id: Uuid, paused: bool) -> sqlx::Result<()> {
    sqlx::query!(
        "update campaigns
         set paused = $3, pause_reason = case when $3 then 'requested' end,
             tripwire = case when tripwire = 'tripped' and not $3 then 'disarmed' else tripwire end,
             closes_at = case when pause_reason = 'window_missed' and not $3 then null else closes_at end,
             updated_at = now()
         where tenant_id = $1 and id = $2 and paused <> $3",
        tenant,
        id,
        paused
    )
    .execute(db)
    .await
    .map(drop)
}

/// A campaign of which something is owed again is not sent any more.
pub(crate) async fn reopen(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
    sqlx::query!(
        "update campaigns set status = 'sending', completed_at = null, counts = null, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "insert into campaign_paces (tenant_id, campaign_id)
         select tenant_id, id from campaigns where tenant_id = $1 and id = $2 and max_per_minute is not null
         on conflict do nothing",
        tenant,
        id
    )
    .execute(db)
    .await
    .map(drop)
}

/// Whether the campaign's window is closed, by the database's clock, and what is left is not to be sent late.
pub(crate) async fn is_closed(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select coalesce(closes_at <= now(), false) as "closed!" from campaigns where tenant_id = $1 and id = $2"#,
        tenant,
        id
    )
    .fetch_one(db)
    .await
}
