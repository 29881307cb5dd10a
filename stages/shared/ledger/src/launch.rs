//! Materialises a campaign's audience: sends and batches, in a few set-based statements. The contacts never pass through this process.

use chrono::{DateTime, Utc};
use runner::StageError;
use runtime::plans;
use schemas::{LaunchId, ids::BATCH_MAX};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::audience::AudienceSelector;
use crate::audience::Split;
use crate::audience::unpin;
use crate::local_time::DueTimes;

/// The fields of a campaign that decide how its audience is cut into batches.
#[derive(Debug)]
pub struct Plan {
    /// The campaign.
    pub campaign: Uuid,
    /// Its audience.
    pub selector: AudienceSelector,
    /// True if the audience was pinned at the launch.
    pub is_pinned: bool,
    /// The split of the A/B test; without variants the audience is one part.
    pub split: Split,
    /// Its pace, if it has one.
    pub max_per_minute: Option<i32>,
    /// When it is due in which time zone, if it goes by these.
    pub times: Option<DueTimes>,
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

impl Parts {
    fn add(
        &mut self,
        first_batch: i64,
        sends: i64,
        variant: Option<&'static str>,
        held: bool,
        due: Option<DateTime<Utc>>,
    ) {
        self.first_batches.push(first_batch);
        self.sends.push(sends);
        self.variants.push(variant);
        self.held.push(held);
        self.dues.push(due);
    }
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

/// Writes the sends, the batches and the campaign's new state; answers how many sends there are.
pub async fn materialize(db: &mut PgConnection, tenant: Uuid, plan: &Plan) -> Result<i64, StageError> {
    let launch = LaunchId::fresh();
    let (prefix, month, size) = (launch.prefix(), launch.month(), batch_size(plan.max_per_minute));
    plans::many_rows(&mut *db).await?;
    let parts = write_sends(&mut *db, tenant, plan, &launch, size).await?;
    plans::few_rows(&mut *db).await?;
    sqlx::query_file!(
        "queries/launch/materialize_batches.sql",
        tenant,
        plan.campaign,
        prefix,
        month,
        size,
        &parts.first_batches,
        &parts.sends,
        &parts.variants as &[Option<&str>],
        &parts.held,
        &parts.dues as &[Option<DateTime<Utc>>],
    )
    .execute(&mut *db)
    .await?;
    if plan.is_pinned {
        unpin(&mut *db, tenant, plan.campaign).await?;
    }
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
    sqlx::query!(
        "update campaigns
         set status = 'sending', launch_prefix = $3, month = $4, materialized_at = now(),
             launched_at = coalesce(launched_at, now()), updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        plan.campaign,
        prefix,
        month,
    )
    .execute(db)
    .await?;
    Ok(parts.sends.iter().sum())
}

async fn write_sends(
    db: &mut PgConnection,
    tenant: Uuid,
    plan: &Plan,
    launch: &LaunchId,
    size: i64,
) -> sqlx::Result<Parts> {
    let mut parts = Parts::default();
    if plan.split.variants() == 0 && plan.times.is_none() {
        let inserted = sqlx::query_file!(
            "queries/launch/materialize_sends.sql",
            tenant,
            plan.selector.audiences(),
            launch.prefix(),
            launch.month(),
            plan.campaign,
            size,
            plan.is_pinned,
        )
        .execute(db)
        .await?;
        parts.add(0, i64::try_from(inserted.rows_affected()).unwrap_or(i64::MAX), None, false, None);
        return Ok(parts);
    }
    let times = plan.times.as_ref();
    let zones: Vec<String> = times.into_iter().flat_map(|times| &times.zones).map(|name| (*name).to_owned()).collect();
    let rows = sqlx::query_file!(
        "queries/launch/materialize_parts.sql",
        tenant,
        plan.selector.audiences(),
        launch.prefix(),
        launch.month(),
        plan.campaign,
        size,
        plan.is_pinned,
        plan.split.thresholds(),
        &zones,
        times.map(|times| times.parts.as_slice()).unwrap_or_default(),
        times.map_or(0, |times| times.without_zone),
    )
    .fetch_all(db)
    .await?;
    for row in rows {
        let variants = i32::try_from(plan.split.variants()).unwrap_or(0) + 1;
        let variant = plan.split.variant_name(row.part % variants);
        let moment = usize::try_from(row.part / variants).ok();
        let due = times.zip(moment).and_then(|(times, moment)| times.dues.get(moment).copied());
        // The remainder of a test; without variants all are one part.
        let held = variant.is_none() && plan.split.variants() > 0;
        parts.add(row.first_batch, row.sends, variant, held, due);
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
