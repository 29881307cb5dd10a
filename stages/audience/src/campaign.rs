//! A campaign's launch: its audience is looked up once and stands in the ledger from then on.

use runner::StageError;
use schemas::{CampaignStatus, LaunchId, RequestAnnounced, ids::BATCH_MAX, messages::CampaignLaunchPayload};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::{AudienceSelector, planner};

/// What a launch request came to. Written to `requests.outcome`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The audience stands in the ledger.
    Materialized,
    /// It stood there before.
    Repeated,
    /// The audience was empty; the campaign is sent.
    Empty,
    /// The campaign was cancelled first, or was never launched.
    NotLaunched,
    /// The campaign names an audience that cannot be looked up; it is cancelled.
    UnknownAudience,
    /// It is not due yet: the request waits.
    NotDue,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Materialized => "materialized",
            Self::Repeated => "materialized_before",
            Self::Empty => "audience_empty",
            Self::NotLaunched => "not_launched",
            Self::UnknownAudience => "audience_unknown",
            Self::NotDue => "not_due",
        }
    }
}

/// What of a campaign decides about its launch.
struct Campaign {
    id: Uuid,
    status: CampaignStatus,
    is_materialized: bool,
    is_due: bool,
    selector: Option<AudienceSelector>,
}

/// Handles a launch request: once, however often it is announced and by however many processes.
pub(crate) async fn launch(pool: &PgPool, input: &RequestAnnounced) -> Result<(), StageError> {
    let mut tx = pool.begin().await?;
    let Some(payload) = lock_request(&mut tx, input).await? else { return Ok(()) };
    let Some(campaign) = lock_campaign(&mut tx, input.tenant_id, payload.campaign_id).await? else {
        return Err(StageError::rejected("unknown_campaign", "the request's campaign is not in the ledger"));
    };
    let outcome = act(&mut tx, input.tenant_id, &campaign).await?;
    settle(&mut tx, input, campaign.id, outcome).await?;
    tx.commit().await?;
    tracing::info!(
        stage = "audience", tenant_id = %input.tenant_id, campaign_id = %campaign.id, outcome = outcome.as_str(), "launch handled"
    );
    Ok(())
}

/// `None`: handled before.
async fn lock_request(
    db: &mut PgConnection,
    input: &RequestAnnounced,
) -> Result<Option<CampaignLaunchPayload>, StageError> {
    let row = sqlx::query!(
        "select state, payload from requests where tenant_id = $1 and id = $2 and kind = 'campaign-launch' for update",
        input.tenant_id,
        input.request_id,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| StageError::rejected("unknown_request", "no such launch request in the ledger"))?;
    if row.state != "accepted" {
        return Ok(None);
    }
    serde_json::from_value(row.payload)
        .map(Some)
        .map_err(|_| StageError::rejected("malformed_request", "the payload does not name a campaign"))
}

/// Takes the campaign for this transaction: a cancel comes before or after, never in between.
async fn lock_campaign(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<Option<Campaign>, StageError> {
    let row = sqlx::query!(
        r#"select status as "status: CampaignStatus", materialized_at is not null as "is_materialized!",
                  coalesce(scheduled_for <= now(), true) as "is_due!", audience_mode, list_id, tag_ids
           from campaigns where tenant_id = $1 and id = $2 for update"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(|row| Campaign {
        id,
        status: row.status,
        is_materialized: row.is_materialized,
        is_due: row.is_due,
        selector: AudienceSelector::from_columns(&row.audience_mode, row.list_id, &row.tag_ids),
    }))
}

async fn act(db: &mut PgConnection, tenant: Uuid, campaign: &Campaign) -> Result<Outcome, StageError> {
    if campaign.is_materialized {
        return Ok(Outcome::Repeated);
    }
    match campaign.status {
        CampaignStatus::Preflight | CampaignStatus::Scheduled | CampaignStatus::Sending => {}
        CampaignStatus::Draft | CampaignStatus::Sent | CampaignStatus::Cancelled => return Ok(Outcome::NotLaunched),
    }
    if !campaign.is_due {
        return Ok(Outcome::NotDue);
    }
    let Some(selector) = &campaign.selector else {
        sqlx::query!(
            "update campaigns set status = 'cancelled', updated_at = now() where tenant_id = $1 and id = $2",
            tenant,
            campaign.id,
        )
        .execute(db)
        .await?;
        tracing::error!(stage = "audience", tenant_id = %tenant, campaign_id = %campaign.id, "a launched campaign names no audience");
        return Ok(Outcome::UnknownAudience);
    };
    let sends = materialize(db, tenant, campaign.id, selector).await?;
    Ok(if sends == 0 { Outcome::Empty } else { Outcome::Materialized })
}

/// Writes the sends, the batches and the campaign's new state. Nothing of the audience passes through this process.
async fn materialize(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    selector: &AudienceSelector,
) -> Result<i64, StageError> {
    let launch = LaunchId::fresh();
    let (prefix, month) = (launch.prefix(), launch.month());
    planner::many_rows(&mut *db).await?;
    let inserted = sqlx::query_file!(
        "queries/materialize_sends.sql",
        tenant,
        selector.audiences(),
        prefix,
        month,
        campaign,
        BATCH_MAX as i64,
    )
    .execute(&mut *db)
    .await?;
    planner::few_rows(&mut *db).await?;
    let sends = i64::try_from(inserted.rows_affected()).unwrap_or(i64::MAX);
    sqlx::query_file!("queries/materialize_batches.sql", tenant, campaign, prefix, month, sends, BATCH_MAX as i64)
        .execute(&mut *db)
        .await?;
    // Nobody to mail: the completing sweep finds no open batch and sets it to sent, with zero counts.
    sqlx::query!(
        "update campaigns
         set status = 'sending', launch_prefix = $3, month = $4, materialized_at = now(),
             launched_at = coalesce(launched_at, now()), updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        campaign,
        prefix,
        month,
    )
    .execute(db)
    .await?;
    Ok(sends)
}

async fn settle(
    db: &mut PgConnection,
    input: &RequestAnnounced,
    campaign: Uuid,
    outcome: Outcome,
) -> Result<(), StageError> {
    if outcome == Outcome::NotDue {
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
    let state = if outcome == Outcome::UnknownAudience { "rejected" } else { "handled" };
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
