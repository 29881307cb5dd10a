//! From what providers told to facts in the ledger: raw events the ingress has stored, and facts that waited for their send.
//!
//! One transaction takes raw events, reads them, finds their sends, records the facts, parks those whose send is not known, and
//! marks the events handled: a crash anywhere repeats all of it or nothing. The message on the bus says "look now" and no more; a
//! sweep looks by itself.

mod absorb;
pub mod form;
mod park;
mod sweeps;

use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use runner::{Stage, StageError};
use runtime::{Counter, Publication, plans};
use schemas::{InboundAnnounced, SendId, Signal, SignalKind};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use self::{absorb::Fate, park::Waiting};
pub(crate) use self::{
    park::park_unknown,
    sweeps::{Forget, Overdue, Parked},
};
use crate::provider::{self, PROVIDERS, Told, What};

/// Raw events of one transaction, and the bytes they may have in all: one alone may have more.
const EVENTS: i64 = 500;
const BYTES: i64 = 4 * 1024 * 1024;
/// Failures of a raw event, alone, after which it is set aside.
const ATTEMPTS_MAX: i32 = 10;
/// Transactions of one message; what is left then is the sweep's.
const TURNS: usize = 200;

/// Takes in what providers told.
#[derive(Clone)]
pub(crate) struct Inbound {
    pool: PgPool,
    shard: i16,
}

/// A fact, on its way to its send.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// The fact's own id.
    pub id: Uuid,
    pub tenant_id: Uuid,
    /// The send, if it was named.
    pub send_id: Option<Uuid>,
    /// Who told; `None`: a link of ours.
    pub provider: Option<&'static str>,
    /// The mail's id with the provider.
    pub message_id: Option<String>,
    pub at: DateTime<Utc>,
    /// The fact, with the send still open where it is not named; `None`: says only that the mail has left.
    pub signal: Option<Signal>,
}

impl Item {
    /// An answer, which came by whoever takes in the tenant's mail: not by whom the mail had gone, and no word of his.
    fn is_reply(&self) -> bool {
        self.signal.as_ref().is_some_and(|signal| matches!(signal.kind, SignalKind::Replied { .. }))
    }

    /// Who told of it as the one who carried it.
    fn carrier(&self) -> Option<&'static str> {
        self.provider.filter(|_| !self.is_reply())
    }
}

/// A raw event.
struct Raw {
    tenant_id: Uuid,
    id: Uuid,
    connection_id: Uuid,
    provider: &'static str,
    raw: Vec<u8>,
    received_at: DateTime<Utc>,
}

/// What became of a raw event.
struct Handled {
    tenant_id: Uuid,
    id: Uuid,
    rejected: Option<&'static str>,
    facts: i32,
}

impl Inbound {
    pub(crate) fn new(pool: PgPool, shard: i16) -> Self {
        Self { pool, shard }
    }

    /// Takes what is due, and answers how much it was. One event that cannot be taken costs itself only.
    async fn turn(&self) -> Result<u64, StageError> {
        match self.take(None).await {
            Err(error) if !runtime::db::is_transient(&error) => self.one_by_one().await,
            taken => Ok(taken?),
        }
    }

    async fn one_by_one(&self) -> Result<u64, StageError> {
        let ids = sqlx::query!(
            "select tenant_id, id from inbound_events where due_at <= now() order by due_at, id limit $1",
            EVENTS
        )
        .fetch_all(&self.pool)
        .await?;
        for event in &ids {
            let (tenant, id) = (event.tenant_id, event.id);
            if let Err(error) = self.take(Some(id)).await {
                if runtime::db::is_transient(&error) {
                    return Err(error.into());
                }
                tracing::error!(stage = "engagement", inbound_event = %id, error = %StageError::from(error).chain(), "cannot be taken");
                self.put_off(tenant, id).await?;
            }
        }
        Ok(ids.len() as u64)
    }

    /// Puts off an event that cannot be taken, and gives it up after some failures.
    async fn put_off(&self, tenant: Uuid, id: Uuid) -> sqlx::Result<()> {
        sqlx::query!(
            "update inbound_events
             set attempts = attempts + 1,
                 due_at = case when attempts + 1 < $2 then now() + make_interval(secs => 2 ^ attempts) end,
                 state = case when attempts + 1 < $2 then state else 'rejected' end,
                 reason = case when attempts + 1 < $2 then reason else 'failed' end,
                 handled_at = case when attempts + 1 < $2 then handled_at else now() end
             where tenant_id = $3 and id = $1 and due_at is not null",
            id,
            ATTEMPTS_MAX,
            tenant
        )
        .execute(&self.pool)
        .await
        .map(drop)
    }

    /// Takes what is due, or one event, in one transaction.
    async fn take(&self, only: Option<Uuid>) -> sqlx::Result<u64> {
        let mut tx = self.pool.begin_with(plans::BEGIN_BY_KEY).await?;
        let events = due(&mut tx, only).await?;
        if events.is_empty() {
            return Ok(0);
        }
        let (mut items, mut handled, mut ignored) = (Vec::new(), Vec::new(), Vec::new());
        for event in &events {
            let mut done = Handled { tenant_id: event.tenant_id, id: event.id, rejected: None, facts: 0 };
            match provider::read(event.provider, &event.raw) {
                Ok(told) => {
                    let before = items.len();
                    ignored.push((event.provider, told.iter().filter(|told| told.what == What::Nothing).count()));
                    items.extend(told.into_iter().filter_map(|told| item(event, told)));
                    done.facts = i32::try_from(items.len() - before).unwrap_or(i32::MAX);
                }
                Err(malformed) => done.rejected = Some(malformed.0),
            }
            handled.push(done);
        }
        let fates = absorb::absorb(&mut tx, &items, self.shard).await?;
        let waiting: Vec<Waiting<'_>> = items.iter().zip(&fates.each).filter_map(Waiting::of).collect();
        park::park(&mut tx, &waiting).await?;
        mark(&mut tx, &handled).await?;
        tx.commit().await?;
        fates.count("recorded", &items);
        for (provider, count) in ignored {
            count_facts(provider, "ignored", count as u64);
        }
        for (event, done) in events.iter().zip(&handled) {
            if let Some(reason) = done.rejected {
                tracing::warn!(stage = "engagement", inbound_event = %event.id, provider = event.provider, reason, "cannot be read");
                count_facts(event.provider, "malformed", 1);
            }
        }
        Ok(events.len() as u64)
    }
}

#[async_trait]
impl Stage for Inbound {
    const NAME: &'static str = "engagement";
    const SPAN: &'static str = "engagement take in";
    type Input = InboundAnnounced;

    /// However many rang: there is one thing to do.
    async fn handle(&self, _: &[InboundAnnounced]) -> Result<Vec<Publication>, StageError> {
        for _ in 0..TURNS {
            if self.turn().await? == 0 {
                break;
            }
        }
        Ok(Vec::new())
    }
}

/// The raw events that are due, locked; those that another holds are its business.
async fn due(db: &mut PgConnection, only: Option<Uuid>) -> sqlx::Result<Vec<Raw>> {
    let rows = sqlx::query_file!("queries/take_inbound.sql", EVENTS, BYTES, only).fetch_all(db).await?;
    Ok(rows
        .into_iter()
        .map(|row| Raw {
            tenant_id: row.tenant_id,
            id: row.id,
            connection_id: row.connection_id,
            provider: word(&row.provider),
            raw: row.raw,
            received_at: row.received_at,
        })
        .collect())
}

/// A provider's word, from the closed set.
fn word(provider: &str) -> &'static str {
    PROVIDERS.into_iter().find(|known| *known == provider).unwrap_or("other")
}

/// A fact of a raw event; `None` for what is not kept.
fn item(event: &Raw, told: Told) -> Option<Item> {
    // The connection's, so that nobody makes up the id of another's fact.
    let id = Uuid::new_v5(&event.connection_id, format!("{} {}", event.provider, told.event).as_bytes());
    // A provider's clock may be ahead of ours; nothing has happened after we were told.
    let at = told.at.map_or(event.received_at, |at| at.min(event.received_at + TimeDelta::minutes(5)));
    let signal = match told.what {
        What::Fact(kind) => Some(Signal {
            signal_id: id,
            tenant_id: event.tenant_id,
            send_id: told.send_id.unwrap_or_default(),
            occurred_at: at,
            kind,
            ip: told.ip,
            user_agent: told.user_agent,
        }),
        What::Taken => None,
        What::Nothing => return None,
    };
    Some(Item {
        id,
        tenant_id: event.tenant_id,
        send_id: told.send_id,
        provider: Some(event.provider),
        message_id: told.message_id,
        at,
        signal,
    })
}

async fn mark(db: &mut PgConnection, handled: &[Handled]) -> sqlx::Result<()> {
    let tenants: Vec<Uuid> = handled.iter().map(|done| done.tenant_id).collect();
    let ids: Vec<Uuid> = handled.iter().map(|done| done.id).collect();
    let reasons: Vec<Option<String>> = handled.iter().map(|done| done.rejected.map(str::to_owned)).collect();
    let facts: Vec<i32> = handled.iter().map(|done| done.facts).collect();
    sqlx::query!(
        "update inbound_events e
         set state = case when w.reason is null then 'handled' else 'rejected' end, reason = w.reason, facts = w.facts,
             due_at = null, handled_at = now()
         from unnest($1::uuid[], $2::uuid[], $3::text[], $4::int[]) as w (tenant_id, id, reason, facts)
         where e.tenant_id = w.tenant_id and e.id = w.id",
        &tenants,
        &ids,
        &reasons as &[Option<String>],
        &facts
    )
    .execute(db)
    .await
    .map(drop)
}

fn count_facts(provider: &'static str, outcome: &'static str, count: u64) {
    if count > 0 {
        Counter::InboundFactsTotal.add(count, [("provider", provider), ("outcome", outcome)]);
    }
}

/// The months of sends.
fn months(sends: &[Option<Uuid>]) -> Vec<Option<chrono::NaiveDate>> {
    sends.iter().map(|send| send.map(|send| SendId(send).month())).collect()
}

/// Starts what takes in what providers told.
pub(crate) fn start(deps: &runner::Deps, shard: i16, keep: std::time::Duration) {
    let inbound = Inbound::new(deps.pool.clone(), shard);
    let intake = runner::Intake {
        lane: schemas::Lane::Bulk,
        stream: schemas::subjects::stream::SIGNALS,
        durable: "engagement-bulk".to_owned(),
        subjects: vec![schemas::subjects::signal(SOURCE)],
        workers: 1,
        coalesce: 100,
    };
    deps.runner.start(Arc::new(inbound.clone()), vec![intake]);
    deps.runner.start_sweep(Inbound::NAME, Arc::new(Overdue(inbound)));
    deps.runner.start_sweep(Inbound::NAME, Arc::new(Parked { pool: deps.pool.clone(), shard }));
    deps.runner.start_sweep(Inbound::NAME, Arc::new(Forget { pool: deps.pool.clone(), keep }));
}

/// Whether a raw event is a mail that the provider took in. It may have broken off in the middle of what it carries.
#[must_use]
pub fn is_letter(provider: &str, raw: &[u8]) -> bool {
    provider::letter(provider, raw).is_some()
}

/// The source in the subject.
pub const SOURCE: &str = "inbound";
