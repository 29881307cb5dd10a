//! Materialises a campaign's audience: sends and batches, range by range, each in a few set-based statements. The contacts never pass through
//! this process. The first range can be dispatched while the next ones are written, so the first mail does not wait for millions of rows.

use chrono::{DateTime, NaiveDate, Utc};
use runner::StageError;
use schemas::{LaunchId, ids::BATCH_MAX};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::audience::Split;
use crate::local_time::DueTimes;

/// The fields of a campaign that decide how its audience is cut into batches.
#[derive(Debug)]
pub struct Plan {
    /// The campaign. Its audience is pinned ([`crate::audience::pin`]).
    pub campaign: Uuid,
    /// How far it is.
    pub launch: Launch,
    /// Pinned contacts that were archived before this time are left out.
    pub without_archived_before: Option<DateTime<Utc>>,
    /// The split of the A/B test; without variants the audience is one part.
    pub split: Split,
    /// Its pace, if it has one.
    pub max_per_minute: Option<i32>,
    /// When it is due in which time zone, if it goes by these.
    pub times: Option<DueTimes>,
}

/// A launch, and how far its audience is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What the ids of its sends have in common.
    pub prefix: String,
    /// The month partition of its sends.
    pub month: NaiveDate,
    /// The number of its next batch.
    pub next_batch: i64,
}

impl Launch {
    /// A launch that begins now.
    #[must_use]
    pub fn begin() -> Self {
        let id = LaunchId::fresh();
        Self { prefix: id.prefix(), month: id.month(), next_batch: 0 }
    }

    /// A launch of which ranges are written, up to this batch.
    #[must_use]
    pub fn after(prefix: String, month: NaiveDate, last_batch: Option<Uuid>) -> Self {
        Self { prefix, month, next_batch: last_batch.map_or(0, |batch| LaunchId::number_of(batch) + 1) }
    }
}

/// What became of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenRange {
    /// Its sends.
    pub sends: i64,
    /// True if nothing of the audience is left.
    pub is_last: bool,
}

/// The parts of a split, as columns for the statement.
#[derive(Debug, Default)]
struct Parts {
    first_batches: Vec<i64>,
    sends: Vec<i64>,
    variants: Vec<Option<&'static str>>,
    held: Vec<bool>,
    dues: Vec<Option<DateTime<Utc>>>,
}

/// Sends in one batch: the maximum, or what a paced campaign may send in a second, so that its mail flows evenly. Of a slow one up to ten,
/// what it may send in ten seconds at most: a batch of each mail would make everything that goes over batches slow. Only whole batches go in
/// a minute, so it is the size up to there that leaves least of the pace unused.
fn batch_size(max_per_minute: Option<i32>) -> i64 {
    let most = BATCH_MAX as i64;
    max_per_minute.map_or(most, |pace| {
        let pace = i64::from(pace);
        let slow = (pace / 6).clamp(1, 10);
        let least_unused = (slow.midpoint(1)..=slow).rev().min_by_key(|size| pace % size).unwrap_or(slow);
        (pace / 60).max(least_unused).min(most)
    })
}

/// Writes the sends and batches of the audience's next range, which is a row of the pinned audience, and the campaign's new state. The
/// campaign is locked.
///
/// # Errors
/// Postgres away.
pub async fn materialize_range(db: &mut PgConnection, tenant: Uuid, plan: &Plan) -> Result<WrittenRange, StageError> {
    let size = batch_size(plan.max_per_minute);
    let parts = write_sends(&mut *db, tenant, plan, size).await?;
    sqlx::query_file!(
        "queries/launch/materialize_batches.sql",
        tenant,
        plan.campaign,
        plan.launch.prefix,
        plan.launch.month,
        size,
        &parts.first_batches,
        &parts.sends,
        &parts.variants as &[Option<&str>],
        &parts.held,
        &parts.dues as &[Option<DateTime<Utc>>],
    )
    .execute(&mut *db)
    .await?;
    if plan.max_per_minute.is_some() {
        sqlx::query!(
            "insert into campaign_paces (tenant_id, campaign_id) values ($1, $2) on conflict do nothing",
            tenant,
            plan.campaign
        )
        .execute(&mut *db)
        .await?;
    }
    // An empty audience: the sweep `complete_campaigns` finds no open batch and sets the campaign to sent, with zero counts.
    let is_last = sqlx::query_scalar!(
        r#"update campaigns c
           set status = 'sending', launch_prefix = $3, month = $4, launched_at = coalesce(launched_at, now()), updated_at = now(),
               materialized_at = case when not exists (
                   select from launch_audiences l where l.tenant_id = $1 and l.campaign_id = $2) then now() end
           where tenant_id = $1 and id = $2
           returning materialized_at is not null as "is_last!""#,
        tenant,
        plan.campaign,
        plan.launch.prefix,
        plan.launch.month,
    )
    .fetch_one(db)
    .await?;
    Ok(WrittenRange { sends: parts.sends.iter().sum(), is_last })
}

async fn write_sends(db: &mut PgConnection, tenant: Uuid, plan: &Plan, size: i64) -> sqlx::Result<Parts> {
    let times = plan.times.as_ref();
    let moments = times.map(|times| &times.moments);
    let rows = sqlx::query_file!(
        "queries/launch/materialize_range.sql",
        tenant,
        plan.launch.prefix,
        plan.launch.month,
        plan.campaign,
        size,
        plan.launch.next_batch,
        plan.without_archived_before,
        plan.split.thresholds(),
        Json(moments) as _,
        times.map_or(0, |times| times.without_zone),
    )
    .fetch_all(db)
    .await?;
    let mut parts = Parts::default();
    for row in rows {
        let variants = i32::try_from(plan.split.variants()).unwrap_or(0) + 1;
        let variant = plan.split.variant_name(row.part % variants);
        let moment = usize::try_from(row.part / variants).ok();
        parts.first_batches.push(row.first_batch);
        parts.sends.push(row.sends);
        parts.variants.push(variant);
        // The remainder of a test; without variants all are one part.
        parts.held.push(variant.is_none() && plan.split.variants() > 0);
        parts.dues.push(times.zip(moment).and_then(|(times, moment)| times.dues.get(moment).copied()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(None, 500)]
    #[case(Some(1), 1)]
    #[case(Some(30), 5)]
    #[case(Some(60), 10)]
    #[case::of_whole_batches_66_go_in_a_minute_not_60(Some(69), 6)]
    #[case(Some(600), 10)]
    #[case(Some(30_000), 500)]
    #[case(Some(1_000_000), 500)]
    fn a_paced_campaigns_batch_is_a_second_of_its_mail_or_ten_mails_of_ten_seconds(
        #[case] pace: Option<i32>,
        #[case] size: i64,
    ) {
        assert_eq!(batch_size(pace), size);
    }
}
