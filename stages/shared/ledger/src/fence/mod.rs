//! The ledger writers, one for each lane: they collect fences and results of all connections and commit them together.
//!
//! They have a thread, a small runtime and connections of their own: a commit is a dozen round trips, and each would otherwise queue behind
//! other work of the process's reactor (measured at the start of a campaign: locks held 100 ms for a group).
//!
//! Under load, which is when a group has several entries, the next is what arrived while it was committed, plus a short window; where
//! mails come one by one each is committed at once: its result, too, which comes a moment after its fence. Results are never given up:
//! the mail has left, so they are written again until Postgres takes them, and a repetition finds its rows moved already. Fences are never
//! repeated: a worker that waited for one drops its connection.

mod change;
mod commit;
mod meter;
pub mod session;
mod sql;
mod warming;

use std::{
    io, thread,
    time::{Duration, Instant},
};

use ::runtime::{
    Backoff, Commit, Gathering, GroupCommitter, commit_each, db,
    panics::{caught, supervise},
    plans::PreparedPool,
};
use chrono::NaiveDate;
use runner::StageError;
use schemas::Lane;
use sqlx::PgPool;
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
};

pub use crate::gate::GateDecision;
pub use change::{Answer, CAP_WAIT, Change, NextAnnouncement, SendAttempt};
pub(crate) use change::{BatchContext, IN_DOUBT, is_tried_again};
pub(crate) use warming::until_tomorrow;

use commit::{Commits, Committed, Undecided};
use session::DeliverySession;

use crate::{hours::random_shard, quota::QuotaDefaults};

/// The metric label of the writer's panics.
const TASK: &str = "ledger_writer";
/// The most entries of one commit. Above every sensible number of connections.
const GROUP_MAX: usize = 512;
/// A group of this size means load.
const BUSY: usize = 3;
/// How long, under load, fences and results are collected into one commit. A lone send never waits.
pub const WINDOW: Duration = Duration::from_millis(3);
/// Capacity of the writer's queue; further callers wait.
const QUEUE: usize = 4_096;
/// Pauses before results are written again while Postgres is away.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// How long a fence is tried again whose contact another transaction has locked. Then its send is released, and its connection is free.
const UNDECIDED_MAX: Duration = Duration::from_secs(1);
/// How long a result is postponed that suppresses a contact which another transaction has locked. Then the writer waits for the lock.
const UNWRITTEN_MAX: Duration = Duration::from_secs(30);

/// A reply code no server gives: debug builds panic on it, which is how tests see what a panic costs.
pub const POISON: i16 = 599;

/// The answer to a fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Committed. The body may leave.
    Passed {
        /// The latest time of the commit.
        at: Instant,
        /// The day it counts on against the quota, if it did not count before.
        metered_on: NaiveDate,
    },
    /// Not passed; the reason is in the ledger. The body must not leave.
    Refused,
    /// Unknown whether it was committed, or not decided in time. The body must not leave; the send is to be released.
    Failed,
}

enum Entry {
    /// With the time of the request.
    Fence(SendAttempt, Instant, oneshot::Sender<Fence>),
    Change(Box<Change>, Instant, oneshot::Sender<()>),
}

/// Sends entries to the writer of their lane. Cheap to clone; the writers end when the last clone is dropped and everything is written.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// A single mail does not wait for the group of a campaign.
    priority: mpsc::Sender<Entry>,
    bulk: mpsc::Sender<Entry>,
    session: DeliverySession,
}

/// Settings of the writer.
#[derive(Debug, Clone, Copy)]
pub struct LedgerSettings {
    /// How long the writer collects a group while it is busy; see [`WINDOW`].
    pub window: Duration,
    /// How long a fence waits for its result before its send becomes unknown.
    pub fence_lease: Duration,
    /// Limits of tenants that have none of their own.
    pub quota: QuotaDefaults,
}

/// A queued change: await it to know that it is committed.
#[derive(Debug)]
pub struct Recorded(oneshot::Receiver<()>);

impl Recorded {
    /// A change that was not taken.
    pub fn lost() -> Self {
        Self(oneshot::channel().1)
    }
}

impl std::future::IntoFuture for Recorded {
    type Output = Result<(), StageError>;
    type IntoFuture = futures::future::BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.0.await.map_err(|_| StageError::Unavailable { reason: "not_recorded" }) })
    }
}

impl Ledger {
    /// Starts the writers, on a thread of their own.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(pool: &PgPool, settings: LedgerSettings) -> io::Result<Self> {
        let session = DeliverySession::new();
        let (priority, priority_queue) = mpsc::channel(QUEUE);
        let (bulk, bulk_queue) = mpsc::channel(QUEUE);
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        // For the fence alone: it waits for no other work. The session waits for one commit at most.
        let connections = PreparedPool::new(pool, 2);
        thread::Builder::new().name("ledger".to_owned()).spawn(move || {
            runtime.block_on(async {
                let alive = connections.priority("session");
                tokio::spawn(supervise("delivery", "task", move || session.keep_alive(alive.clone())));
                let writer = |lane: Lane, queue| {
                    let connections = connections.priority(lane.as_str());
                    write(queue, Commits::new(connections, settings, random_shard()), settings.window)
                };
                tokio::join!(writer(Lane::Priority, priority_queue), writer(Lane::Bulk, bulk_queue));
            });
        })?;
        Ok(Self { priority, bulk, session })
    }

    fn writer_of(&self, send: &SendAttempt) -> &mpsc::Sender<Entry> {
        match send.batch.lane {
            Lane::Priority => &self.priority,
            Lane::Bulk => &self.bulk,
        }
    }

    /// The session of its fences. It lives as long as the writers.
    pub fn session(&self) -> DeliverySession {
        self.session
    }

    /// Asks for the fence; answers after the commit.
    pub async fn fence(&self, send: SendAttempt) -> Fence {
        let (answer, receiver) = oneshot::channel();
        // An entry that is not taken drops its end of the channel.
        let _ = self.writer_of(&send).send(Entry::Fence(send, Instant::now(), answer)).await;
        receiver.await.unwrap_or(Fence::Failed)
    }

    /// Queues a change; it is written even if the answer is not awaited.
    pub async fn record(&self, change: Change) -> Recorded {
        let (done, receiver) = oneshot::channel();
        let _ = self.writer_of(&change.send).send(Entry::Change(Box::new(change), Instant::now(), done)).await;
        Recorded(receiver)
    }
}

async fn write(queue: mpsc::Receiver<Entry>, mut commits: Commits, window: Duration) {
    let mut groups = GroupCommitter::new(queue, Gathering { most: GROUP_MAX, busy: BUSY, window });
    while let Some(group) = groups.next().await {
        let commit = Box::pin(commit_group(&mut commits, group));
        // Undecided entries start the next group.
        groups.put_back(caught("delivery", TASK, commit).await.unwrap_or_default());
    }
}

/// Commits a group; answers undecided entries, to be committed with the next.
async fn commit_group(commits: &mut Commits, group: Vec<Entry>) -> Vec<Entry> {
    let (mut fences, mut asked, mut changes, mut done) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut undecided = Vec::new();
    for entry in group {
        match entry {
            Entry::Fence(send, at, answer) => {
                fences.push(send);
                asked.push((at, answer));
            }
            Entry::Change(change, at, receiver) => {
                changes.push(*change);
                done.push((at, receiver));
            }
        }
    }
    let wait = done.iter().any(|(at, _)| at.elapsed() >= UNWRITTEN_MAX);
    let commit = Box::pin(db::within(db::ANSWER_TIMEOUT, Commits::commit(commits, &fences, &changes, wait)));
    let (committed, written) = match caught("delivery", TASK, commit).await {
        Ok(Ok(committed)) => (committed, vec![true; changes.len()]),
        failed => {
            let error = match failed {
                Ok(failed) => failed.as_ref().err().map(db::describe).unwrap_or_default(),
                Err(panicked) => panicked.to_string(),
            };
            let (fences, results) = (fences.len(), changes.len());
            tracing::warn!(stage = "delivery", fences, results, error, "ledger commit failed");
            // At once: writing the results may take as long as Postgres is away, and they hold connections meanwhile.
            for (_, receiver) in asked.drain(..) {
                let _ = receiver.send(Fence::Failed);
            }
            let written = commit_each(commits, &changes).await;
            for (change, _) in changes.iter().zip(&written).filter(|(_, written)| written.is_err()) {
                tracing::error!(stage = "delivery", send_id = %change.send.id, "the ledger refuses this result; its lease will end it");
            }
            (Committed::default(), written.iter().map(Result::is_ok).collect())
        }
    };
    for ((answer, (at, receiver)), send) in committed.fences.iter().zip(asked).zip(fences) {
        let again = match answer {
            Err(Undecided::ContactLocked) => at.elapsed() < UNDECIDED_MAX,
            Err(Undecided::LimitReached) => true,
            Ok(_) => false,
        };
        if again {
            undecided.push(Entry::Fence(send, at, receiver));
        } else {
            // Without a receiver the worker is gone: the lease ends the send.
            let _ = receiver.send(answer.unwrap_or(Fence::Failed));
        }
    }
    for ((change, (at, receiver)), is_written) in changes.into_iter().zip(done).zip(written) {
        if committed.leaves_out(&change) {
            undecided.push(Entry::Change(Box::new(change), at, receiver));
        } else if is_written {
            let _ = receiver.send(());
        }
        // A receiver that is dropped without an answer is an error to the caller that awaits the result.
    }
    undecided
}

/// The results of a group whose fences have failed. One that is refused alone is left to its lease, which turns it into `unknown`.
impl Commit for Commits {
    type Entry = Change;
    type Answer = ();
    const TASK: (&'static str, &'static str) = ("delivery", TASK);
    const RETRY: Option<Backoff> = Some(BACKOFF);

    async fn commit(&mut self, changes: &[Change]) -> sqlx::Result<Vec<()>> {
        Commits::commit(self, &[], changes, true).await.map(|_| vec![(); changes.len()])
    }
}

#[cfg(test)]
mod tests;
