//! Provider events to facts in the ledger: raw events that the ingress has stored, and facts that waited for their send.
//!
//! Raw events are taken in a group: their start is counted and committed, then they are read, with no transaction open. One more
//! transaction finds their sends, records the facts, keeps as pending those whose send is unknown, and marks the events handled. A crash
//! between the two repeats the reading; an event that was started before and not finished is taken alone, so that it costs no other
//! event, and is set aside after some starts. The message on the bus only notifies; a sweep finds the same events.

mod absorb;
mod past_mail;
mod pending;
mod sweeps;

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use runner::{Stage, StageError};
use runtime::{Counter, Publication, column, plans::PreparedPool};
use schemas::{Address, InboundAnnounced, ProviderKind, Signal, SignalKind, token::TokenKeys};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use self::{absorb::FactOutcome, pending::PendingFact};
pub(crate) use self::{
    pending::add_pending_signals,
    sweeps::{ProcessInbound, RetryPendingFacts},
};
use crate::{reading, recorder::GroupRecorder};
use feedback::provider::{EventMeaning, ProviderEvent};

/// Raw events of one transaction, and the bytes they may have in all: one alone may have more.
const EVENTS: i64 = 500;
const BYTES: i64 = 4 * 1024 * 1024;
/// Starts of a raw event before it is set aside: one beside others, the rest alone.
const STARTS_MAX: i16 = 4;
/// The reason of an event that was set aside.
const FAILED: &str = "failed";
/// Providers whose events carry the send's id back from the start: every mail through them has it as metadata.
const NAMES_SENDS: [&str; 2] = ["sendgrid", "mailgun"];
/// Transactions for one message; the sweep takes the rest.
const GROUPS_MAX: usize = 200;

/// Records provider events.
#[derive(Clone)]
pub(crate) struct Inbound {
    pool: PgPool,
    by_key: PreparedPool,
    tokens: Arc<TokenKeys>,
    shard: i16,
}

/// A fact whose send is to be found.
#[derive(Debug, Clone)]
pub(crate) struct IncomingFact {
    /// The fact's own id.
    pub id: Uuid,
    pub tenant_id: Uuid,
    /// The send, if it was named.
    pub send_id: Option<Uuid>,
    /// The provider that reported it; `None`: a tracking link.
    pub provider: Option<&'static str>,
    /// The mail's id with the provider.
    pub message_id: Option<String>,
    pub at: DateTime<Utc>,
    /// The fact, with the send still open where it is not named; `None`: says only that the mail has left.
    pub signal: Option<Signal>,
    /// The recipients, if the provider named them: for mail that the ledger does not keep any more.
    pub recipients: Vec<Address>,
}

impl IncomingFact {
    /// True for an answer. It is reported by the provider that receives the tenant's mail, not by the one that sent it.
    fn is_reply(&self) -> bool {
        self.signal.as_ref().is_some_and(|signal| matches!(signal.kind, SignalKind::Replied { .. }))
    }

    /// True if its send may come yet. An answer comes after the mail was sent. And where events carry the send's id back, an event without
    /// it is about mail of another system that goes through the same account. Such an event still finds its send by the mail's id: reports
    /// that come late may have lost the metadata.
    fn may_wait(&self) -> bool {
        let is_foreign =
            self.send_id.is_none() && self.provider.is_some_and(|provider| NAMES_SENDS.contains(&provider));
        !self.is_reply() && !is_foreign
    }

    /// The provider that sent the mail, if it is the one that reported the fact.
    fn carrier(&self) -> Option<&'static str> {
        self.provider.filter(|_| !self.is_reply())
    }
}

/// A raw event.
struct RawEvent {
    tenant_id: Uuid,
    id: Uuid,
    connection_id: Uuid,
    provider: String,
    raw: Vec<u8>,
    received_at: DateTime<Utc>,
    attempts: i16,
}

impl RawEvent {
    fn provider(&self) -> &'static str {
        provider_name(&self.provider)
    }
}

/// A raw event after reading.
pub(crate) struct ReadEvent {
    event: RawEvent,
    items: Vec<IncomingFact>,
    /// Number of facts in it that are not kept.
    ignored: u64,
    /// Why it cannot be read.
    rejected: Option<&'static str>,
}

impl Inbound {
    /// Records the due events; answers how many. An event that cannot be recorded costs itself only.
    async fn take_due(&self) -> Result<u64, StageError> {
        let first = self.group(EVENTS, false).await?;
        let again = self.group(1, true).await?;
        Ok(first + again)
    }

    /// Takes, reads and records events; answers how many. `again`: only those that were started before.
    async fn group(&self, at_most: i64, again: bool) -> Result<u64, StageError> {
        let events = sqlx::query_file_as!(RawEvent, "queries/take_inbound.sql", at_most, BYTES, again)
            .fetch_all(&self.pool)
            .await?;
        let found = events.len() as u64;
        let mut read = Vec::with_capacity(events.len());
        for event in events {
            read.extend(read_one(event, self.tokens.clone()).await);
        }
        self.record_group(&mut read).await?;
        Ok(found)
    }
}

#[async_trait]
impl GroupRecorder for Inbound {
    type Item = ReadEvent;

    fn tenant(read: &ReadEvent) -> Uuid {
        read.event.tenant_id
    }

    async fn record(&self, read: &[ReadEvent]) -> sqlx::Result<()> {
        let items: Vec<IncomingFact> = read.iter().flat_map(|read| read.items.iter().cloned()).collect();
        let items = past_mail::apply(&self.by_key, items).await?;
        let mut tx = self.by_key.begin().await?;
        let outcomes = absorb::absorb(&mut tx, &items, self.shard).await?;
        let waiting: Vec<PendingFact<'_>> = items.iter().zip(&outcomes).filter_map(PendingFact::of).collect();
        pending::add_pending(&mut tx, &waiting).await?;
        mark_handled(&mut tx, read).await?;
        tx.commit().await?;
        let mut counts: BTreeMap<_, u64> = BTreeMap::new();
        for (item, outcome) in items.iter().zip(&outcomes) {
            let outcome = match outcome {
                FactOutcome::Unknown if item.may_wait() => "pending",
                FactOutcome::Unknown => "ignored",
                FactOutcome::Recorded | FactOutcome::Undecided => "recorded",
            };
            *counts.entry((item.provider.unwrap_or("link"), outcome)).or_default() += 1;
        }
        counts.into_iter().for_each(|((provider, outcome), count)| count_facts(provider, outcome, count));
        for ReadEvent { event, ignored, rejected, .. } in read {
            count_facts(event.provider(), "ignored", *ignored);
            if let Some(reason) = rejected {
                let outcome = if *reason == FAILED { FAILED } else { "malformed" };
                tracing::warn!(stage = "engagement", inbound_event = %event.id, provider = event.provider(), reason, "cannot be read");
                count_facts(event.provider(), outcome, 1);
            }
        }
        Ok(())
    }

    /// Does not count the start. If this write fails as well, the start stays counted; while Postgres is away, no events are taken either.
    async fn give_back(&self, read: &[ReadEvent]) {
        let given = sqlx::query!(
            "update inbound_events e set attempts = e.attempts - 1, due_at = now() + interval '2 seconds'
             from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
             where e.tenant_id = w.tenant_id and e.id = w.id and e.attempts > 0 and e.due_at is not null",
            &column(read, |read| read.event.tenant_id),
            &column(read, |read| read.event.id),
        )
        .execute(&self.pool)
        .await;
        if let Err(error) = given {
            tracing::debug!(
                stage = "engagement",
                error = runtime::db::describe(&error),
                "a start of events stays counted"
            );
        }
    }

    async fn refuse(&self, read: &ReadEvent, error: StageError) {
        let event = &read.event;
        tracing::error!(stage = "engagement", inbound_event = %event.id, start = event.attempts, error = %error.chain(), "cannot be taken");
    }
}

/// Reads an event. `None`: there was no answer, and another start may give one.
async fn read_one(mut event: RawEvent, tokens: Arc<TokenKeys>) -> Option<ReadEvent> {
    let nothing = |event, rejected| Some(ReadEvent { event, items: Vec::new(), ignored: 0, rejected: Some(rejected) });
    if event.attempts > STARTS_MAX {
        return nothing(event, FAILED);
    }
    match reading::event(event.provider(), std::mem::take(&mut event.raw), tokens).await {
        Ok(Ok(told)) => {
            let ignored = told.iter().filter(|told| told.meaning == EventMeaning::Ignored).count() as u64;
            let items = told.into_iter().filter_map(|told| item(&event, told)).collect();
            Some(ReadEvent { event, items, ignored, rejected: None })
        }
        Ok(Err(malformed)) => nothing(event, malformed.0),
        Err(fault) => {
            tracing::warn!(stage = "engagement", inbound_event = %event.id, start = event.attempts, %fault, "not read yet");
            None
        }
    }
}

#[async_trait]
impl Stage for Inbound {
    const NAME: &'static str = "engagement";
    const SPAN: &'static str = "engagement take in";
    type Input = InboundAnnounced;

    /// Takes due events, whatever the number of notifications.
    async fn handle(&self, _: &[InboundAnnounced]) -> Result<Vec<Publication>, StageError> {
        for _ in 0..GROUPS_MAX {
            if self.take_due().await? == 0 {
                break;
            }
        }
        Ok(Vec::new())
    }
}

/// A provider's name, from the closed set.
fn provider_name(provider: &str) -> &'static str {
    ProviderKind::HTTP.into_iter().find(|known| *known == provider).unwrap_or("other")
}

/// A fact of a raw event; `None` for what is not kept.
fn item(event: &RawEvent, told: ProviderEvent) -> Option<IncomingFact> {
    // Derived from the connection, so that one tenant cannot make up the id of another's fact.
    let id = Uuid::new_v5(&event.connection_id, format!("{} {}", event.provider(), told.event).as_bytes());
    // A provider's clock may be ahead: no fact is later than its report, within five minutes.
    let at = told.at.map_or(event.received_at, |at| at.min(event.received_at + TimeDelta::minutes(5)));
    let signal = match told.meaning {
        EventMeaning::Fact(kind) => Some(Signal {
            signal_id: id,
            tenant_id: event.tenant_id,
            send_id: told.send_id.unwrap_or_default(),
            occurred_at: at,
            kind,
            ip: told.ip,
            user_agent: told.user_agent,
        }),
        EventMeaning::Accepted => None,
        EventMeaning::Ignored => return None,
    };
    Some(IncomingFact {
        id,
        tenant_id: event.tenant_id,
        send_id: told.send_id,
        provider: Some(event.provider()),
        message_id: told.message_id,
        at,
        signal,
        recipients: told.recipients,
    })
}

async fn mark_handled(db: &mut PgConnection, read: &[ReadEvent]) -> sqlx::Result<()> {
    sqlx::query!(
        "update inbound_events e
         set state = case when w.reason is null then 'handled' else 'rejected' end, reason = w.reason, facts = w.facts,
             due_at = null, handled_at = now()
         from unnest($1::uuid[], $2::uuid[], $3::text[], $4::int[]) as w (tenant_id, id, reason, facts)
         where e.tenant_id = w.tenant_id and e.id = w.id",
        &column(read, |read| read.event.tenant_id),
        &column(read, |read| read.event.id),
        &column(read, |read| read.rejected.map(str::to_owned)) as &[Option<String>],
        &column(read, |read| i32::try_from(read.items.len()).unwrap_or(i32::MAX))
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

/// Starts the consumer and the sweeps of provider events.
pub(crate) fn start(deps: &runner::Deps, shard: i16) {
    let by_key = deps.by_key.bulk(Inbound::NAME);
    let inbound = Inbound { pool: deps.pool.clone(), by_key: by_key.clone(), tokens: deps.tokens.clone(), shard };
    let intake = runner::Intake {
        lane: schemas::Lane::Bulk,
        stream: schemas::subjects::stream::SIGNALS,
        durable: "engagement-bulk".to_owned(),
        subjects: vec![schemas::subjects::signal(feedback::SOURCE)],
        workers: 1,
        coalesce: 100,
    };
    deps.runner.start(Arc::new(inbound.clone()), vec![intake]);
    deps.runner.start_sweep(Inbound::NAME, Arc::new(ProcessInbound(inbound)));
    deps.runner.start_sweep(Inbound::NAME, Arc::new(RetryPendingFacts { by_key, shard }));
}
