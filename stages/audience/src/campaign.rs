//! A campaign's launch: selects its audience once, and writes it to the ledger, a range for each announcement of its request. After a range
//! the request is announced again, behind what waits by then: a campaign of millions keeps no other launch waiting until its end.

use std::time::Duration;

use runner::{PauseGate, StageError};
use runtime::{Publication, trace};
use schemas::{CampaignStatus, Environment, RequestAnnounced, messages::CampaignLaunchPayload, subjects};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use ledger::audience::{self, AudienceSelector, Split};
use ledger::launch::{Launch, Plan, materialize_range};
use ledger::local_time::DueTimes;
use segments::SegmentError;

/// When a launch that is held is looked at again.
const HELD_AGAIN: Duration = Duration::from_secs(1);
/// When a launch of a held ledger is looked at again.
const LEDGER_HELD_AGAIN: Duration = Duration::from_secs(10);
/// When a launch is announced again whose next range was not written. After the bus has delivered again what a dead process had: two
/// announcements would be two chains of ranges, until the launch is written.
const RANGES_MAX: Duration = Duration::from_secs(40);

schemas::named_enum! {
    /// The outcome of a launch request. Written to `requests.outcome`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum LaunchOutcome {
        /// The audience was written to the ledger.
        Materialized = "materialized",
        /// A range of the audience was written to the ledger: the request waits.
        RangeWritten = "range_written",
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
        /// The ledger is a restored one, and may have been mailed before: the request waits.
        LedgerHeld = "ledger_held",
    }
}

/// Handles a launch request: each range once, however often it is announced and by however many processes. Answers the announcement of the
/// next range.
pub(crate) async fn launch(
    pool: &PgPool,
    pause_gate: &PauseGate,
    input: &RequestAnnounced,
) -> Result<Option<Publication>, StageError> {
    let mut tx = pool.begin().await?;
    let Some(request) = lock_request(&mut tx, input).await? else { return Ok(None) };
    let campaign_id = request.payload.campaign_id;
    let is_pinned = request.payload.digest.is_some();
    let outcome = prepare(&mut tx, pause_gate, input.tenant_id, campaign_id, is_pinned).await?;
    finish_request(&mut tx, input, campaign_id, outcome).await?;
    // The traces of its batches link to this one.
    trace::keep(&mut tx, input.tenant_id, campaign_id).await?;
    tx.commit().await?;
    if outcome == LaunchOutcome::RangeWritten {
        // The announcement of the next range. Should it be lost, the sweep announces the request.
        let subject = subjects::accepted(&request.product, request.environment, input.kind);
        let id = format!("range-{}", schemas::new_id().simple());
        return Ok(Some(Publication::json(subject, id, input)?));
    }
    tracing::info!(
        stage = "audience", tenant_id = %input.tenant_id, campaign_id = %campaign_id, outcome = outcome.as_str(), "launch handled"
    );
    Ok(None)
}

/// A launch request, locked.
struct LaunchRequest {
    payload: CampaignLaunchPayload,
    product: String,
    environment: Environment,
}

/// `None`: handled before. One that another process or a caller holds comes again: it is not waited for, because a process looks up few
/// audiences at a time.
async fn lock_request(db: &mut PgConnection, input: &RequestAnnounced) -> Result<Option<LaunchRequest>, StageError> {
    let row = sqlx::query!(
        r#"select state, payload, product, environment as "environment: Environment"
           from requests where tenant_id = $1 and id = $2 and kind = 'campaign-launch'
           for update skip locked"#,
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
            // The announcement may be the only one there is.
            true => Err(StageError::Busy { reason: "launch_held", wait: HELD_AGAIN }),
            false => Err(StageError::rejected("unknown_request", "no such launch request in the ledger")),
        };
    };
    if row.state != "accepted" {
        return Ok(None);
    }
    let payload = serde_json::from_value(row.payload)
        .map_err(|_| StageError::rejected("malformed", "the payload does not name a campaign"))?;
    Ok(Some(LaunchRequest { payload, product: row.product, environment: row.environment }))
}

/// Locks the campaign for this transaction: a cancel comes before or after, never in between. Then writes its next range, if it is to be.
async fn prepare(
    db: &mut PgConnection,
    pause_gate: &PauseGate,
    tenant: Uuid,
    id: Uuid,
    is_pinned: bool,
) -> Result<LaunchOutcome, StageError> {
    let row = sqlx::query!(
        r#"select status as "status: CampaignStatus", materialized_at is not null as "is_materialized!",
                  coalesce(scheduled_for <= now(), true) as "is_due!", scheduled_for_local, launch_prefix, month,
                  coalesce(launched_at, now()) as "began_at!",
                  (select t.timezone from tenants t where t.id = $1) as "timezone!", audience_mode, list_id, segment_id, tag_ids, test_percent, max_per_minute,
                  array(select v.weight from campaign_variants v where v.tenant_id = $1 and v.campaign_id = $2 order by v.variant)
                      as "weights!"
           from campaigns where tenant_id = $1 and id = $2 for update"#,
        tenant,
        id,
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(campaign) = row else {
        return Err(StageError::rejected("unknown_campaign", "the request's campaign is not in the ledger"));
    };
    if campaign.is_materialized {
        return Ok(LaunchOutcome::Repeated);
    }
    match campaign.status {
        CampaignStatus::Preflight | CampaignStatus::Scheduled | CampaignStatus::Sending => {}
        CampaignStatus::Draft | CampaignStatus::Sent | CampaignStatus::Cancelled => {
            return Ok(LaunchOutcome::NotLaunched);
        }
    }
    // The launch of which ranges are written.
    let begun = match campaign.launch_prefix.zip(campaign.month) {
        Some((prefix, month)) => Some(Launch::after(prefix, month, last_batch(&mut *db, tenant, id).await?)),
        None => None,
    };
    if begun.is_none() && !campaign.is_due {
        return Ok(LaunchOutcome::NotDue);
    }
    // Its sends get new ids: a log of what was sent before the restore could not show that they were.
    if begun.is_none() && pause_gate.is_ledger_held() {
        return Ok(LaunchOutcome::LedgerHeld);
    }
    let selector = AudienceSelector::from_columns(
        &campaign.audience_mode,
        campaign.list_id,
        campaign.segment_id,
        &campaign.tag_ids,
    );
    let Some(selector) = selector else { return cancel(db, tenant, id).await };
    if begun.is_none() && !is_pinned && !pin(&mut *db, tenant, id, &selector).await? {
        return cancel(db, tenant, id).await;
    }
    let launch = begun.unwrap_or_else(Launch::begin);
    let is_first = launch.next_batch == 0;
    // A pinned audience is that of its launch, whoever was archived since; a list is pinned with those that were archived before.
    let is_list = !is_pinned && matches!(selector, AudienceSelector::List(_));
    // Variants without a test divide the whole audience.
    let percent = campaign.test_percent.and_then(|percent| u8::try_from(percent).ok()).unwrap_or(100);
    let weights: Vec<u32> = campaign.weights.iter().filter_map(|weight| u32::try_from(*weight).ok()).collect();
    // `began_at`: when it began, or begins now, by the clock of the transaction, which says what is due already. For all ranges alike.
    let zone = schemas::delay::zone(None, &campaign.timezone);
    let plan = Plan {
        campaign: id,
        launch,
        without_archived_before: is_list.then_some(campaign.began_at),
        split: Split::new(percent, &weights),
        max_per_minute: campaign.max_per_minute,
        times: campaign.scheduled_for_local.map(|local| DueTimes::of(local, zone, campaign.began_at)),
    };
    let range = materialize_range(db, tenant, &plan).await?;
    Ok(match (range.is_last, is_first && range.sends == 0) {
        (false, _) => LaunchOutcome::RangeWritten,
        (true, true) => LaunchOutcome::Empty,
        (true, false) => LaunchOutcome::Materialized,
    })
}

/// The launch's last batch. In a statement after that which locks the campaign: a merge that the lock waited for may have written one.
async fn last_batch(db: &mut PgConnection, tenant: Uuid, campaign: Uuid) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select id from batches where tenant_id = $1 and campaign_id = $2 order by id desc limit 1",
        tenant,
        campaign,
    )
    .fetch_optional(db)
    .await
}

/// Pins the audience as it is now; a segment's rule, too. `false`: there is no such segment.
async fn pin(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    selector: &AudienceSelector,
) -> Result<bool, StageError> {
    if let AudienceSelector::List(list) = selector {
        audience::pin_list(db, tenant, *list, campaign).await?;
        return Ok(true);
    }
    match audience::pin_locked(db, tenant, selector, campaign).await {
        Ok(_) => Ok(true),
        Err(SegmentError::NotFound(_)) => Ok(false),
        // Written by a newer version, which can read it.
        Err(SegmentError::Invalid(_)) => Err(StageError::Deferred { reason: "segment_unreadable" }),
        Err(SegmentError::Store(error)) => Err(error.into()),
    }
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

/// Ends the request, also one whose campaign is gone, or says when a waiting one is announced again.
async fn finish_request(
    db: &mut PgConnection,
    input: &RequestAnnounced,
    campaign: Uuid,
    outcome: LaunchOutcome,
) -> sqlx::Result<()> {
    // No sweep announces it before it is due, nor for a while as ranges are written: each announcement would be one more chain of them.
    let (state, wait) = match outcome {
        LaunchOutcome::NotDue => ("accepted", Duration::ZERO),
        LaunchOutcome::LedgerHeld => ("accepted", LEDGER_HELD_AGAIN),
        LaunchOutcome::RangeWritten => ("accepted", RANGES_MAX),
        LaunchOutcome::UnknownAudience => ("rejected", Duration::ZERO),
        _ => ("handled", Duration::ZERO),
    };
    sqlx::query!(
        "update requests r
         set state = $4,
             -- One that a held ledger keeps waiting is not late.
             announcements = case when $7 then 0 else r.announcements end,
             announce_after = case when $4 = 'accepted' then greatest(
                 c.scheduled_for, now() + make_interval(secs => $6),
                 -- Longer each time: under a backlog the next range is late and not lost, and each announcement is one more chain.
                 case when c.launch_prefix is not null then now() + request_pause(r.announcements) end) end,
             outcome = case when $4 <> 'accepted' then $5::text end,
             handled_at = case when $4 <> 'accepted' then now() end
         from (select) one left join campaigns c on c.tenant_id = $1 and c.id = $3
         where r.tenant_id = $1 and r.id = $2",
        input.tenant_id,
        input.request_id,
        campaign,
        state,
        outcome.as_str(),
        wait.as_secs_f64(),
        outcome == LaunchOutcome::LedgerHeld,
    )
    .execute(db)
    .await
    .map(drop)
}
