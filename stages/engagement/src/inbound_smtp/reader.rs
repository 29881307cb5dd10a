//! Reads stored inbound mail: each becomes a fact or a recorded outcome, and is deleted.
//!
//! A start is counted and committed before a mail is read. A mail that was started before and not finished is read alone: if the
//! process dies over it again, that costs no other mail. After some starts it is set aside with its head, for a person.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{Counter, Reader, ReaderError, column, plans::PreparedPool};
use schemas::{Signal, SignalKind, token::TokenKeys};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::admitted;
use crate::{reading, recorder::GroupRecorder};
use feedback::report::{Arrival, NoFactReason, ReportFinding};
use ledger::facts::{self, ProviderEvidence};

/// Mails one transaction records at most.
const AT_ONCE: i64 = 50;
/// Starts of a mail before it is set aside: one beside others, the rest alone.
const STARTS_MAX: i16 = 4;

/// Reads stored inbound mail. Any number of processes may run it: each takes other mails.
pub(crate) struct ReadInboundMail {
    pub(crate) pool: PgPool,
    pub(crate) by_key: PreparedPool,
    pub(crate) reader: Reader,
    pub(crate) tokens: Arc<TokenKeys>,
    pub(crate) shard: i16,
}

/// A mail that waits to be read.
struct InboundMail {
    tenant_id: Uuid,
    id: Uuid,
    send_id: Uuid,
    address_kind: String,
    null_sender: bool,
    head: Option<Vec<u8>>,
    received_at: DateTime<Utc>,
    attempts: i16,
}

/// A mail after reading.
pub(crate) struct ReadMail {
    mail: InboundMail,
    reading: ReportFinding,
}

#[async_trait]
impl Sweep for ReadInboundMail {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("read_inbound_mail", Duration::from_millis(500))
            .when("exists (select from inbound_mails where due_at <= now())")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let first = self.group(AT_ONCE, false).await?;
        let again = self.group(1, true).await?;
        Ok(first + again)
    }
}

impl ReadInboundMail {
    /// Takes, reads and records mails; answers how many. `again`: only those that were started before.
    async fn group(&self, at_most: i64, again: bool) -> Result<u64, StageError> {
        let taken =
            sqlx::query_file_as!(InboundMail, "queries/take_mails.sql", at_most, again).fetch_all(&self.pool).await?;
        let found = taken.len() as u64;
        let (mut read, mut unread) = (Vec::with_capacity(taken.len()), Vec::new());
        for mail in taken {
            match self.read(mail).await {
                Ok(one) => read.push(one),
                Err(key) => unread.extend(key),
            }
        }
        self.give_back_keys(unread).await;
        self.record_group(&mut read).await?;
        Ok(found)
    }

    /// Reads a mail. An error means that another start may succeed. It holds the mail's key if this start does not count.
    async fn read(&self, mut mail: InboundMail) -> Result<ReadMail, Option<(Uuid, Uuid)>> {
        if mail.attempts > STARTS_MAX {
            tracing::error!(stage = "engagement", mail = %mail.id, "a mail that came back is set aside: reading it never ended");
            return Ok(ReadMail { mail, reading: ReportFinding::NoFact(NoFactReason::Abandoned) });
        }
        let Some(head) = mail.head.take() else {
            return Ok(ReadMail { mail, reading: ReportFinding::NoFact(NoFactReason::Unreadable) });
        };
        let arrival = Arrival::parse(&mail.address_kind).unwrap_or(Arrival::ReturnPath);
        match reading::mail(&self.reader, &head, arrival, mail.null_sender).await {
            Ok(report) => {
                let reading = admitted(report, arrival, mail.send_id, &self.tokens);
                Ok(ReadMail { mail, reading })
            }
            Err(ReaderError::Unavailable) => Err(Some((mail.tenant_id, mail.id))),
            Err(ReaderError::Spent(spent)) if !spent.is_transient() => {
                Ok(ReadMail { mail, reading: ReportFinding::NoFact(NoFactReason::Unreadable) })
            }
            Err(error) => {
                tracing::warn!(stage = "engagement", mail = %mail.id, start = mail.attempts, %error, "a mail that came back is not read yet");
                Err(None)
            }
        }
    }

    /// Does not count an attempt that failed for another reason: the mails are due again in two seconds. If this write fails as well, the
    /// attempt stays counted; while Postgres is away, no mails are taken either.
    async fn give_back_keys(&self, mails: Vec<(Uuid, Uuid)>) {
        let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = mails.into_iter().unzip();
        if ids.is_empty() {
            return;
        }
        let prefix = sqlx::query!(
            "update inbound_mails m set attempts = m.attempts - 1, due_at = now() + interval '2 seconds'
             from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
             where m.tenant_id = w.tenant_id and m.id = w.id and m.attempts > 0 and m.due_at is not null",
            &tenants,
            &ids,
        )
        .execute(&self.pool)
        .await;
        if let Err(error) = prefix {
            tracing::debug!(
                stage = "engagement",
                error = runtime::db::describe(&error),
                "an attempt at mails stays counted"
            );
        }
    }
}

#[async_trait]
impl GroupRecorder for ReadInboundMail {
    type Item = ReadMail;

    fn tenant(read: &ReadMail) -> Uuid {
        read.mail.tenant_id
    }

    async fn record(&self, read: &[ReadMail]) -> sqlx::Result<()> {
        let signals: Vec<Signal> = read.iter().filter_map(ReadMail::signal).collect();
        let evidence: Vec<ProviderEvidence> = read.iter().filter_map(ReadMail::evidence).collect();
        let mut tx = self.by_key.begin().await?;
        let recorded = facts::record(&mut tx, &signals, &evidence, self.shard).await?;
        let (read_again, read): (Vec<&ReadMail>, Vec<&ReadMail>) = read.iter().partition(|read| {
            read.evidence().is_some_and(|evidence| recorded.undecided.contains(&(evidence.tenant_id, evidence.send_id)))
        });
        if !read_again.is_empty() {
            put_off(&mut tx, &read_again).await?;
        }
        sqlx::query!(
            "update inbound_mails m
             set outcome = w.outcome, due_at = null, head = case when w.outcome = 'given_up' then m.head end
             from unnest($1::uuid[], $2::uuid[], $3::text[]) as w (tenant_id, id, outcome)
             where m.tenant_id = w.tenant_id and m.id = w.id",
            &column(&read, |read| read.mail.tenant_id),
            &column(&read, |read| read.mail.id),
            &column(&read, |read| read.reading.label().to_owned()),
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        for read in read {
            Counter::InboundMailsTotal.add(1, [("outcome", read.reading.label())]);
        }
        for (kind, count) in recorded.fresh {
            Counter::SignalsTotal.add(count, [("kind", kind), ("outcome", "recorded")]);
        }
        Ok(())
    }

    async fn give_back(&self, read: &[ReadMail]) {
        self.give_back_keys(column(read, |read| (read.mail.tenant_id, read.mail.id))).await;
    }

    /// It is given up after some starts.
    async fn refuse(&self, read: &ReadMail, error: StageError) {
        tracing::warn!(stage = "engagement", mail = %read.mail.id, error = %error.chain(), "a mail that came back cannot be recorded");
    }
}

impl ReadMail {
    /// The fact of the mail. Its time is the time of receipt: times in the mail itself may be wrong.
    fn signal(&self) -> Option<Signal> {
        let ReportFinding::Fact(kind) = &self.reading else { return None };
        Some(Signal {
            signal_id: self.mail.id,
            tenant_id: self.mail.tenant_id,
            send_id: self.mail.send_id,
            occurred_at: self.mail.received_at,
            kind: kind.clone(),
            ip: None,
            user_agent: None,
        })
    }

    /// A server that reports about a mail has received it: evidence for a send whose outcome is unknown.
    fn evidence(&self) -> Option<ProviderEvidence> {
        let has_left = matches!(&self.reading, ReportFinding::Fact(SignalKind::Bounced { .. } | SignalKind::Delivered));
        has_left.then(|| ProviderEvidence {
            tenant_id: self.mail.tenant_id,
            send_id: self.mail.send_id,
            at: self.mail.received_at,
            provider: "smtp".to_owned(),
            message_id: None,
        })
    }
}

/// Has mails read again that prove that a mail left whose outcome is still open: its process may have died, and the proof is needed once it
/// is in doubt. The pause grows with the mail's age, from two seconds. The start does not count.
async fn put_off(db: &mut PgConnection, mails: &[&ReadMail]) -> sqlx::Result<()> {
    sqlx::query!(
        "update inbound_mails m
         set attempts = m.attempts - 1, due_at = now() + greatest((now() - m.received_at) / 8, interval '2 seconds')
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
         where m.tenant_id = w.tenant_id and m.id = w.id and m.attempts > 0 and m.due_at is not null",
        &column(mails, |read| read.mail.tenant_id),
        &column(mails, |read| read.mail.id),
    )
    .execute(db)
    .await
    .map(drop)
}
