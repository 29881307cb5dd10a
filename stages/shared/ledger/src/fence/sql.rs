//! The statements of one commit: set-based, with arrays as parameters.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::counters::index_of;
use crate::frequency::Urgency;
use crate::gate::{BatchEligibility, RecipientEligibility, batch_eligibility, is_capped};
use crate::recipient_eligibility;
use crate::suppressions::{self, NewSuppression, SuppressionReason};
use chrono::{DateTime, NaiveDate, Utc};
use runtime::column;
use schemas::{CampaignStatus, Classification, DomainStatus, MessageKind, OnMiss, SendState};
use sqlx::PgConnection;
use uuid::Uuid;

use super::change::{Change, SendAttempt};
use crate::hours::BatchKey;

/// Locks batches, in the order of their keys, and the contacts that no other transaction has locked; answers these contacts.
pub(super) async fn lock_for_fence(
    db: &mut PgConnection,
    batches: &[BatchKey],
    (tenants, contacts): (&[Uuid], &[Uuid]),
) -> sqlx::Result<HashSet<Uuid>> {
    let (batch_tenants, ids): (Vec<Uuid>, Vec<Uuid>) = batches.iter().copied().unzip();
    let locked = sqlx::query_file_scalar!("queries/fence/lock_for_fence.sql", tenants, contacts, &batch_tenants, &ids)
        .fetch_all(db)
        .await?;
    Ok(locked.into_iter().collect())
}

/// The facts about a batch that decide about its fences.
#[derive(Debug, Clone, Copy)]
pub(super) struct FenceBatch {
    pub tenant_id: Uuid,
    pub eligibility: BatchEligibility,
    /// The topic whose members the campaign is for.
    pub topic: Option<Uuid>,
    /// True for a mail that asks its recipient to confirm the consent.
    pub asks_to_confirm: bool,
    /// How urgent it is, if its mail counts against a frequency cap of the tenant.
    pub capped: Option<Urgency>,
    /// The tenant's own send limits, as set.
    pub monthly: Option<i64>,
    pub daily: Option<i64>,
    /// When this transaction began, by the database's clock: by it what waits becomes due, and what is fenced counts on a day.
    pub read_at: DateTime<Utc>,
}

/// The facts about the batches of these fences and the send limits of their tenants, by batch; and the eligibility of the contacts, by
/// tenant and contact.
pub(super) async fn read_fences(
    db: &mut PgConnection,
    fences: &[SendAttempt],
) -> sqlx::Result<(HashMap<Uuid, FenceBatch>, HashMap<(Uuid, Uuid), RecipientEligibility>)> {
    let rows = sqlx::query_file!(
        "queries/fence/read_fences.sql",
        &column(fences, |send| send.batch.tenant_id),
        &column(fences, |send| send.batch.batch_id),
        &column(fences, |send| send.contact_id)
    )
    .fetch_all(db)
    .await?;
    let (mut batches, mut recipients) = (HashMap::new(), HashMap::with_capacity(rows.len()));
    for row in rows {
        if let Some(contact) = row.contact_id {
            recipients.insert((row.tenant_id, contact), recipient_eligibility!(row, contact_timezone));
        }
        batches.entry(row.id).or_insert_with(|| FenceBatch {
            tenant_id: row.tenant_id,
            eligibility: batch_eligibility!(row),
            topic: row.topic_id,
            asks_to_confirm: row.asks_to_confirm,
            capped: (row.has_cap && is_capped(row.kind, row.classification))
                .then(|| Urgency::from_column(row.urgency.as_deref())),
            monthly: row.monthly,
            daily: row.daily,
            read_at: row.read_at,
        });
    }
    Ok((batches, recipients))
}

/// Which of these sends were in doubt before and are known to have left. Their batches are locked, as they are while evidence is recorded:
/// none comes meanwhile.
pub(super) async fn with_evidence(db: &mut PgConnection, fences: &[SendAttempt]) -> sqlx::Result<HashSet<Uuid>> {
    let doubted: Vec<&SendAttempt> = fences.iter().filter(|send| send.doubtful > 0).collect();
    if doubted.is_empty() {
        return Ok(HashSet::new());
    }
    let left = sqlx::query_scalar!(
        r#"select w.id as "id!" from unnest($1::uuid[], $2::uuid[], $3::date[]) as w (tenant_id, id, month)
           where has_evidence(w.tenant_id, w.id, w.month)"#,
        &column(&doubted, |send| send.batch.tenant_id),
        &column(&doubted, |send| send.id),
        &column(&doubted, |send| send.batch.month)
    )
    .fetch_all(db)
    .await?;
    Ok(left.into_iter().collect())
}

/// How a change took place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moved {
    /// The state the send came from.
    pub from: SendState,
    /// The send counts as delivered by it.
    pub is_delivered: bool,
    /// It has bounced by it, and not before.
    pub is_bounced: bool,
    /// Since when its outcome was unknown, if it was.
    pub doubted_at: Option<DateTime<Utc>>,
}

impl Moved {
    /// A fence or a plain acceptance.
    pub fn plainly(from: SendState, is_delivered: bool) -> Self {
        Self { from, is_delivered, is_bounced: false, doubted_at: None }
    }
}

/// Fences the sends; answers the index of each that passed. They must be of one month, in order of send id.
pub(super) async fn fence(
    db: &mut PgConnection,
    month: NaiveDate,
    changes: &[&Change],
    lease_seconds: f64,
) -> sqlx::Result<Vec<usize>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let tried: Vec<i16> = changes.iter().filter_map(|change| change.send.tried()).collect();
    let passed = sqlx::query_file_scalar!(
        "queries/fence/fence.sql",
        &column(changes, |change| change.send.batch.tenant_id),
        &column(changes, |change| change.send.id),
        &column(changes, |change| change.send.token),
        &tried,
        &column(changes, |change| change.from == SendState::Deferred),
        month,
        lease_seconds,
        &column(changes, |change| change.send.route) as &[Option<Uuid>],
        &column(changes, |change| change.send.fenced_for()) as &[Option<&str>]
    )
    .fetch_all(db)
    .await?;
    Ok(passed.into_iter().filter_map(index_of).collect())
}

/// Records plain acceptances; answers as [`apply`]. The changes must be of one month, in order of send id.
pub(super) async fn accept(
    db: &mut PgConnection,
    month: NaiveDate,
    changes: &[&Change],
) -> sqlx::Result<Vec<(usize, bool)>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let moved = sqlx::query_file!(
        "queries/fence/accept.sql",
        &column(changes, |change| change.send.batch.tenant_id),
        &column(changes, |change| change.send.id),
        &column(changes, |change| change.send.token),
        &column(changes, |change| change.answer.code) as &[Option<i16>],
        &column(changes, |change| change.answer.enhanced.as_deref()) as &[Option<&str>],
        &column(changes, |change| change.answer.text.as_deref()) as &[Option<&str>],
        &column(changes, |change| change.provider_message_id.as_deref()) as &[Option<&str>],
        month
    )
    .fetch_all(db)
    .await?;
    Ok(moved.into_iter().filter_map(|row| Some((index_of(row.position)?, row.delivered))).collect())
}

/// Records plain acceptances of the last open mails of their batches and ends the batches, all in this statement; answers the index of each
/// that took place. The changes must be of one month and each of another batch, in order of the batches' keys.
pub(super) async fn accept_last(
    db: &mut PgConnection,
    month: NaiveDate,
    changes: &[&Change],
    shard: i16,
) -> sqlx::Result<Vec<usize>> {
    let moved = sqlx::query_file_scalar!(
        "queries/fence/accept_last.sql",
        &column(changes, |change| change.send.batch.tenant_id),
        &column(changes, |change| change.send.batch.batch_id),
        &column(changes, |change| change.send.id),
        &column(changes, |change| change.send.token),
        &column(changes, |change| change.answer.code) as &[Option<i16>],
        &column(changes, |change| change.answer.enhanced.as_deref()) as &[Option<&str>],
        &column(changes, |change| change.answer.text.as_deref()) as &[Option<&str>],
        &column(changes, |change| change.provider_message_id.as_deref()) as &[Option<&str>],
        month,
        shard
    )
    .fetch_all(db)
    .await?;
    Ok(moved.into_iter().filter_map(index_of).collect())
}

/// Moves the sends otherwise, and writes their facts; answers the index of each that moved, and how it did. The
/// changes must be of one month, in order of send id.
pub(super) async fn apply(
    db: &mut PgConnection,
    month: NaiveDate,
    changes: &[&Change],
) -> sqlx::Result<Vec<(usize, Moved)>> {
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let moved = sqlx::query_file!(
        "queries/fence/apply.sql",
        &column(changes, |change| change.send.batch.tenant_id),
        &column(changes, |change| change.send.id),
        &column(changes, |change| change.send.token),
        &column(changes, |change| change.from) as &[SendState],
        &column(changes, |change| change.to) as &[SendState],
        &column(changes, |change| change.reason) as &[Option<&str>],
        &column(changes, |change| change.answer.code) as &[Option<i16>],
        &column(changes, |change| change.answer.enhanced.as_deref()) as &[Option<&str>],
        &column(changes, |change| change.answer.text.as_deref()) as &[Option<&str>],
        &column(changes, |change| change.wait.map(|wait| wait.as_secs_f64())) as &[Option<f64>],
        &column(changes, |change| change.attempts_added()),
        &column(changes, |change| change.doubtful_added()),
        &column(changes, |change| change.suppress.is_some()),
        &column(changes, |change| change.event) as &[Option<&str>],
        &column(changes, |change| change.event_id()),
        month,
        &column(changes, |change| change.provider_after()) as &[Option<&str>],
        &column(changes, |change| change.provider_message_id.as_deref()) as &[Option<&str>],
        &column(changes, |change| change.send.tried()) as &[Option<i16>],
        &column(changes, |change| change.metered() < 0),
        &column(changes, |change| change.is_taken_back())
    )
    .fetch_all(db)
    .await?;
    let moved = moved.into_iter().filter_map(|row| {
        let index = index_of(row.position)?;
        let change = changes.get(index)?;
        let moved = Moved {
            from: change.from,
            is_delivered: row.delivered,
            is_bounced: row.bounced,
            doubted_at: row.doubted_at,
        };
        Some((index, moved))
    });
    Ok(moved.collect())
}

/// Locks tenants with a limit or a frequency cap.
pub(super) async fn lock_tenants(db: &mut PgConnection, tenants: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query_file!("queries/fence/lock_tenants.sql", tenants).fetch_all(db).await.map(drop)
}

/// Usage of domains in warm-up, by tenant, domain and day: sorted, the order rows are locked in.
pub(super) type WarmupTotals = BTreeMap<(Uuid, Uuid, NaiveDate), i64>;

pub(super) async fn add_warmup_usage(db: &mut PgConnection, usage: &WarmupTotals) -> sqlx::Result<()> {
    if usage.is_empty() {
        return Ok(());
    }
    let counts: Vec<i64> = usage.values().copied().collect();
    let tenants = column(usage.keys(), |key| key.0);
    let domains = column(usage.keys(), |key| key.1);
    let days = column(usage.keys(), |key| key.2);
    sqlx::query_file!("queries/fence/add_warmup_usage.sql", &tenants, &domains, &days, &counts)
        .execute(db)
        .await
        .map(drop)
}

/// Counts the mails against the frequency cap that were fenced, and no longer those of which nothing left. Their tenants are locked, or
/// it is a subtraction.
pub(super) async fn count_capped(
    db: &mut PgConnection,
    changes: &[&Change],
    moved: &[Option<Moved>],
) -> sqlx::Result<()> {
    let moved = || changes.iter().zip(moved).filter_map(|(change, moved)| Some((&change.send, change, (*moved)?)));
    let counted: Vec<&SendAttempt> = moved().filter(|(_, change, _)| change.is_capped).map(|(send, ..)| send).collect();
    if !counted.is_empty() {
        sqlx::query!(
            "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
             select u.tenant_id, u.send_id, u.contact_id, now()
             from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u (tenant_id, send_id, contact_id)
             on conflict (tenant_id, send_id) do update set contact_id = excluded.contact_id, fenced_at = excluded.fenced_at",
            &column(&counted, |send| send.batch.tenant_id),
            &column(&counted, |send| send.id),
            &column(&counted, |send| send.contact_id)
        )
        .execute(&mut *db)
        .await?;
    }
    let given_back = moved().filter(|(_, change, moved)| change.gives_back(moved.from));
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = given_back.map(|(send, ..)| (send.batch.tenant_id, send.id)).unzip();
    if !sends.is_empty() {
        sqlx::query!(
            "delete from capped_sends c using unnest($1::uuid[], $2::uuid[]) as u (tenant_id, send_id)
             where c.tenant_id = u.tenant_id and c.send_id = u.send_id",
            &tenants,
            &sends
        )
        .execute(db)
        .await?;
    }
    Ok(())
}

/// Suppresses addresses that certainly do not exist. The contacts are locked.
pub(super) async fn suppress(db: &mut PgConnection, changes: &[&Change]) -> sqlx::Result<()> {
    let new = changes.iter().filter_map(|change| {
        let (tenant, address) = (change.send.batch.tenant_id, change.suppress.clone()?);
        let new = NewSuppression::new(tenant, address, SuppressionReason::HardBounce, "delivery");
        Some(new.because_of(change.send.id))
    });
    suppressions::suppress(db, new.collect()).await.map(drop)
}

/// Stores captured mails, and keeps the newest of each tenant.
pub(super) async fn capture<'a>(db: &mut PgConnection, changes: impl Iterator<Item = &'a Change>) -> sqlx::Result<()> {
    let kept: Vec<_> = changes.filter_map(|change| Some((&change.send, change.captured.as_ref()?))).collect();
    if kept.is_empty() {
        return Ok(());
    }
    let tenants: Vec<Uuid> = kept.iter().map(|(send, _)| send.batch.tenant_id).collect();
    let ids = column(&kept, |(send, _)| send.id);
    let sources = column(&kept, |(_, captured)| captured.source.clone());
    let cut = column(&kept, |(_, captured)| captured.is_cut);
    sqlx::query_file!("queries/fence/capture.sql", &tenants, &ids, &sources, &cut).execute(&mut *db).await?;
    let tenants: Vec<Uuid> = tenants.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    sqlx::query_file!("queries/fence/trim_captures.sql", &tenants, CAPTURES_MAX).execute(db).await.map(drop)
}

/// Captured mails kept of one tenant.
const CAPTURES_MAX: i64 = 500;
