//! A campaign's launch: selects its audience once, and writes it to the ledger.

use chrono::NaiveDateTime;
use chrono_tz::Tz;
use runner::StageError;
use runtime::trace;
use schemas::{CampaignStatus, RequestAnnounced, messages::CampaignLaunchPayload};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use ledger::audience::AudienceSelector;
use ledger::audience::Split;
use ledger::launch::{Plan, materialize};
use ledger::local_time::DueTimes;
use segments::SegmentError;

schemas::named_enum! {
    /// The outcome of a launch request. Written to `requests.outcome`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum LaunchOutcome {
        /// The audience was written to the ledger.
        Materialized = "materialized",
        /// The audience was already in the ledger.
        Repeated = "materialized_before",
        /// The audience was empty; the campaign is sent.
        Empty = "audience_empty",
        /// The campaign was cancelled first, or was never launched.
        NotLaunched = "not_launched",
        /// The campaign names an audience that cannot be looked up; it is cancelled.
        UnknownAudience = "audience_unknown",
        /// It is not due yet: the request waits.
        NotDue = "not_due",
    }
}

/// The fields of a campaign that decide about its launch.
struct LaunchedCampaign {
    id: Uuid,
    status: CampaignStatus,
    is_materialized: bool,
    is_due: bool,
    selector: Option<AudienceSelector>,
    test_percent: Option<i16>,
    weights: Vec<i32>,
    max_per_minute: Option<i32>,
    local_time: Option<NaiveDateTime>,
    tenant_zone: Tz,
}

impl LaunchedCampaign {
    /// Variants without a test divide the whole audience.
    fn split(&self) -> Split {
        let percent = self.test_percent.and_then(|percent| u8::try_from(percent).ok()).unwrap_or(100);
        let weights: Vec<u32> = self.weights.iter().filter_map(|weight| u32::try_from(*weight).ok()).collect();
        Split::new(percent, &weights)
    }
}

/// Handles a launch request: once, however often it is announced and by however many processes.
pub(crate) async fn launch(pool: &PgPool, input: &RequestAnnounced) -> Result<(), StageError> {
    let mut tx = pool.begin().await?;
    let Some(payload) = lock_request(&mut tx, input).await? else { return Ok(()) };
    let Some(campaign) = lock_campaign(&mut tx, input.tenant_id, payload.campaign_id).await? else {
        return Err(StageError::rejected("unknown_campaign", "the request's campaign is not in the ledger"));
    };
    let outcome = prepare(&mut tx, input.tenant_id, &campaign, payload.digest.is_some()).await?;
    finish_request(&mut tx, input, campaign.id, outcome).await?;
    // The traces of its batches link to this one.
    trace::keep(&mut tx, input.tenant_id, campaign.id).await?;
    tx.commit().await?;
    tracing::info!(
        stage = "audience", tenant_id = %input.tenant_id, campaign_id = %campaign.id, outcome = outcome.as_str(), "launch handled"
    );
    Ok(())
}

/// `None`: handled before, or another process handles it. Should that one die, the request is announced again: it is not waited for,
/// because a process looks up few audiences at a time.
async fn lock_request(
    db: &mut PgConnection,
    input: &RequestAnnounced,
) -> Result<Option<CampaignLaunchPayload>, StageError> {
    let row = sqlx::query!(
        "select state, payload from requests where tenant_id = $1 and id = $2 and kind = 'campaign-launch'
         for update skip locked",
        input.tenant_id,
        input.request_id,
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(row) = row else {
        let is_locked = sqlx::query_scalar!(
            r#"select exists (select from requests where tenant_id = $1 and id = $2 and kind = 'campaign-launch') as "locked!""#,
            input.tenant_id,
            input.request_id,
        )
        .fetch_one(db)
        .await?;
        return match is_locked {
            true => Ok(None),
            false => Err(StageError::rejected("unknown_request", "no such launch request in the ledger")),
        };
    };
    if row.state != "accepted" {
        return Ok(None);
    }
    serde_json::from_value(row.payload)
        .map(Some)
        .map_err(|_| StageError::rejected("malformed", "the payload does not name a campaign"))
}

/// Locks the campaign for this transaction: a cancel comes before or after, never in between.
async fn lock_campaign(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<Option<LaunchedCampaign>, StageError> {
    let row = sqlx::query!(
        r#"select status as "status: CampaignStatus", materialized_at is not null as "is_materialized!",
                  coalesce(scheduled_for <= now(), true) as "is_due!", scheduled_for_local,
                  (select t.timezone from tenants t where t.id = $1) as "timezone!", audience_mode, list_id, segment_id, tag_ids, test_percent, max_per_minute,
                  array(select v.weight from campaign_variants v where v.tenant_id = $1 and v.campaign_id = $2 order by v.variant)
                      as "weights!"
           from campaigns where tenant_id = $1 and id = $2 for update"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| LaunchedCampaign {
        id,
        status: row.status,
        is_materialized: row.is_materialized,
        is_due: row.is_due,
        selector: AudienceSelector::from_columns(&row.audience_mode, row.list_id, row.segment_id, &row.tag_ids),
        test_percent: row.test_percent,
        weights: row.weights,
        max_per_minute: row.max_per_minute,
        local_time: row.scheduled_for_local,
        tenant_zone: schemas::delay::zone(None, &row.timezone),
    }))
}

async fn prepare(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: &LaunchedCampaign,
    is_pinned: bool,
) -> Result<LaunchOutcome, StageError> {
    if campaign.is_materialized {
        return Ok(LaunchOutcome::Repeated);
    }
    match campaign.status {
        CampaignStatus::Preflight | CampaignStatus::Scheduled | CampaignStatus::Sending => {}
        CampaignStatus::Draft | CampaignStatus::Sent | CampaignStatus::Cancelled => {
            return Ok(LaunchOutcome::NotLaunched);
        }
    }
    if !campaign.is_due {
        return Ok(LaunchOutcome::NotDue);
    }
    let Some(selector) = &campaign.selector else { return cancel(db, tenant, campaign.id).await };
    // A segment is evaluated once, as its rule stands now, and then is an audience like a pinned one.
    let is_evaluated = matches!(selector, AudienceSelector::Segment(_)) && !is_pinned;
    if is_evaluated {
        match ledger::audience::pin(&mut *db, tenant, selector, campaign.id).await {
            Ok(_) => {}
            Err(SegmentError::NotFound(_)) => return cancel(db, tenant, campaign.id).await,
            // Written by a newer version, which can read it.
            Err(SegmentError::Invalid(_)) => return Err(StageError::Deferred { reason: "segment_unreadable" }),
            Err(SegmentError::Store(error)) => return Err(error.into()),
        }
    }
    let plan = Plan {
        campaign: campaign.id,
        selector: selector.clone(),
        is_pinned: is_pinned || is_evaluated,
        split: campaign.split(),
        max_per_minute: campaign.max_per_minute,
        times: due_times(&mut *db, campaign).await?,
    };
    let sends = materialize(db, tenant, &plan).await?;
    Ok(if sends == 0 { LaunchOutcome::Empty } else { LaunchOutcome::Materialized })
}

/// Ends a campaign whose audience is not there.
async fn cancel(db: &mut PgConnection, tenant: Uuid, campaign: Uuid) -> Result<LaunchOutcome, StageError> {
    sqlx::query!(
        "update campaigns set status = 'cancelled', updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        campaign,
    )
    .execute(db)
    .await?;
    tracing::error!(stage = "audience", tenant_id = %tenant, campaign_id = %campaign, "a launched campaign names no audience");
    Ok(LaunchOutcome::UnknownAudience)
}

/// When the campaign is due in which time zone. By the clock of the transaction, which says what is due already.
async fn due_times(db: &mut PgConnection, campaign: &LaunchedCampaign) -> sqlx::Result<Option<DueTimes>> {
    let Some(local) = campaign.local_time else { return Ok(None) };
    let now = sqlx::query_scalar!(r#"select now() as "now!""#).fetch_one(db).await?;
    Ok(Some(DueTimes::of(local, campaign.tenant_zone, now)))
}

async fn finish_request(
    db: &mut PgConnection,
    input: &RequestAnnounced,
    campaign: Uuid,
    outcome: LaunchOutcome,
) -> Result<(), StageError> {
    if outcome == LaunchOutcome::NotDue {
        sqlx::query!(
            "update requests r set announce_after = c.scheduled_for
             from campaigns c where r.tenant_id = $1 and r.id = $2 and c.tenant_id = $1 and c.id = $3",
            input.tenant_id,
            input.request_id,
            campaign,
        )
        .execute(db)
        .await?;
        return Ok(());
    }
    let state = if outcome == LaunchOutcome::UnknownAudience { "rejected" } else { "handled" };
    sqlx::query!(
        "update requests set state = $3, outcome = $4, announce_after = null, handled_at = now()
         where tenant_id = $1 and id = $2",
        input.tenant_id,
        input.request_id,
        state,
        outcome.as_str(),
    )
    .execute(db)
    .await?;
    Ok(())
}
