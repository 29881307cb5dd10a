//! Retries failed sends of a campaign.

use crate::gate::{decide_recipient, find_opted_out, load_batches, load_eligibility};
use runtime::column;
use schemas::{Lane, Resolved, SendId, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

/// Batches whose recipients are asked about together, of 500 sends at most: a campaign may have millions.
const BATCHES_AT_ONCE: usize = 40;

/// The result of a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retried {
    /// Sends that are queued again.
    pub queued: i64,
    /// Those of them that the quota has not counted yet: they failed before a fence.
    pub unmetered: i64,
    /// Sends that stay failed: another attempt would fail as well, or their recipients may not be mailed now.
    pub skipped: i64,
}

/// Queues failed sends with these reasons again whose recipients may be mailed. The campaign is locked.
pub async fn retry_failed(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    reasons: &[&str],
) -> sqlx::Result<Retried> {
    // Lock order of the ledger: batches before sends, by id. The next statement reads the locked rows.
    let batches = sqlx::query_scalar!(
        "select id from batches where tenant_id = $1 and campaign_id = $2 and failed + expired > 0 order by id for update",
        tenant,
        campaign
    )
    .fetch_all(&mut *db)
    .await?;
    let withheld = find_withheld(&mut *db, tenant, &batches, reasons).await?;
    sqlx::query_file_as!(
        Retried,
        "queries/retry/retry_failed.sql",
        tenant,
        &batches,
        &column(&batches, |batch| SendId::last_of(*batch)),
        &column(&batches, |batch| month_of(*batch)),
        reasons as &[&str],
        &withheld,
    )
    .fetch_one(db)
    .await
}

/// Those of the failed sends that the gate would skip now for their recipients.
async fn find_withheld(
    db: &mut PgConnection,
    tenant: Uuid,
    batches: &[Uuid],
    reasons: &[&str],
) -> sqlx::Result<Vec<Uuid>> {
    let first = batches.first().map(|batch| Resolved {
        tenant_id: tenant,
        batch_id: *batch,
        lane: Lane::Bulk,
        announcement: 1,
        notify: None,
    });
    // What decides about the others is the same: they are of one campaign.
    let Some(facts) = load_batches(&mut *db, first.as_slice()).await?.pop() else { return Ok(Vec::new()) };
    let mut withheld = Vec::new();
    for part in batches.chunks(BATCHES_AT_ONCE) {
        let failed = sqlx::query!(
            "select s.id, s.contact_id
             from unnest($2::uuid[], $3::uuid[], $4::date[]) as w (first, last, month)
             cross join lateral (
                 select s.id, s.contact_id from sends s
                 where s.tenant_id = $1 and s.id between w.first and w.last and s.month = w.month
                   and s.state in ('failed', 'expired') and s.reason = any ($5)
                 offset 0
             ) s",
            tenant,
            part,
            &column(part, |batch| SendId::last_of(*batch)),
            &column(part, |batch| month_of(*batch)),
            reasons as &[&str],
        )
        .fetch_all(&mut *db)
        .await?;
        let contacts = column(&failed, |send| send.contact_id);
        let on_topic = |topic: Uuid| column(&contacts, |contact| (tenant, topic, *contact));
        let members = facts.topic_id.map(on_topic).unwrap_or_default();
        let left = find_opted_out(&mut *db, &members).await?;
        let known = load_eligibility(&mut *db, &vec![tenant; contacts.len()], &contacts).await?;
        let is_withheld = |contact: Uuid| {
            let has_left = facts.topic_id.is_some_and(|topic| left.contains(&(tenant, topic, contact)));
            known.get(&(tenant, contact)).is_none_or(|known| {
                decide_recipient(&known.about_topic(has_left), facts.kind, facts.classification).is_some()
            })
        };
        withheld.extend(failed.iter().filter(|send| is_withheld(send.contact_id)).map(|send| send.id));
    }
    Ok(withheld)
}
