//! Group commit: the work of many callers in one transaction.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    Backoff,
    db::{ANSWER_TIMEOUT, describe, is_transient, within},
    panics::caught,
};

/// Pause before entries that could not be decided are tried again, unless others come sooner.
const UNDECIDED_PAUSE: Duration = Duration::from_millis(10);

/// How entries are gathered.
#[derive(Debug, Clone, Copy)]
pub struct Gathering {
    /// The most of one group.
    pub most: usize,
    /// A group of this size is a sign of load: then the next one gathers for `window`. Without load, no work waits.
    pub busy: usize,
    /// How long a group gathers under load: those who were just answered come back within it.
    pub window: Duration,
}

/// Takes entries out of a queue in groups: what came while the one before was committed, and under load a little more.
#[derive(Debug)]
pub struct GroupCommitter<T> {
    queue: mpsc::Receiver<T>,
    gathering: Gathering,
    undecided: Vec<T>,
    was_busy: bool,
}

impl<T> GroupCommitter<T> {
    /// Of this queue.
    #[must_use]
    pub fn new(queue: mpsc::Receiver<T>, gathering: Gathering) -> Self {
        Self { queue, gathering, undecided: Vec::new(), was_busy: false }
    }

    /// The next group, asked for when the one before is committed. `None`: nothing will come any more.
    pub async fn next(&mut self) -> Option<Vec<T>> {
        let Gathering { most, busy, window } = self.gathering;
        let asked = Instant::now();
        let mut group = std::mem::take(&mut self.undecided);
        if group.is_empty() {
            if self.queue.recv_many(&mut group, most).await == 0 {
                return None;
            }
        } else {
            let (end, room) = (asked + UNDECIDED_PAUSE, most.saturating_sub(group.len()).max(1));
            if let Ok(0) = timeout_at(end, self.queue.recv_many(&mut group, room)).await {
                sleep_until(end).await;
            }
        }
        if busy == 0 || (self.was_busy && asked.elapsed() < window) {
            let end = Instant::now() + window;
            while group.len() < most {
                let room = most - group.len();
                let Ok(1..) = timeout_at(end, self.queue.recv_many(&mut group, room)).await else { break };
            }
        }
        self.was_busy = group.len() >= busy;
        Some(group)
    }

    /// Has these begin the next group.
    pub fn put_back(&mut self, undecided: Vec<T>) {
        self.undecided.extend(undecided);
    }

    /// All that wait, without waiting for any.
    pub fn drain(&mut self) -> Vec<T> {
        std::iter::from_fn(|| self.queue.try_recv().ok()).collect()
    }
}

/// What commits groups.
pub trait Commit {
    /// What a caller asks for.
    type Entry;
    /// What it is answered.
    type Answer;
    /// The stage and the kind of task, under which panics are counted.
    const TASK: (&'static str, &'static str);
    /// Pauses while Postgres is away; without them the entries fail then.
    const RETRY: Option<Backoff>;

    /// Commits entries in one transaction, and answers each. Must be harmless to repeat.
    fn commit(&mut self, entries: &[Self::Entry]) -> impl Future<Output = sqlx::Result<Vec<Self::Answer>>>;
}

/// Why an entry was not committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotCommitted {
    /// Postgres is away.
    #[error("Postgres is away")]
    Away,
    /// This entry is refused, or makes the program panic.
    #[error("refused")]
    Refused,
}

/// Commits a group. If Postgres refuses it, or it panics, each entry is committed alone: one at fault costs itself only.
pub async fn commit_each<C: Commit>(committer: &mut C, entries: &[C::Entry]) -> Vec<Result<C::Answer, NotCommitted>> {
    let (stage, task) = C::TASK;
    let mut failures = 0;
    loop {
        let commit = Box::pin(within(ANSWER_TIMEOUT, committer.commit(entries)));
        let error = match caught(stage, task, commit).await {
            Ok(Ok(answers)) => return answers.into_iter().map(Ok).collect(),
            Ok(Err(error)) if is_transient(&error) => {
                failures += 1;
                let Some(retry) = C::RETRY else { return entries.iter().map(|_| Err(NotCommitted::Away)).collect() };
                let (entries, error) = (entries.len(), describe(&error));
                tracing::warn!(stage, task, entries, error, "a group is not committed yet");
                sleep(retry.pause(failures)).await;
                continue;
            }
            Ok(Err(error)) => describe(&error),
            Err(panicked) => panicked.to_string(),
        };
        if entries.len() == 1 {
            tracing::error!(stage, task, error, "an entry cannot be committed");
            return vec![Err(NotCommitted::Refused)];
        }
        let mut each = Vec::with_capacity(entries.len());
        for entry in entries {
            each.extend(Box::pin(commit_each(committer, std::slice::from_ref(entry))).await);
        }
        return each;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATHERING: Gathering = Gathering { most: 4, busy: 2, window: Duration::from_millis(5) };

    /// Answers each entry with itself; refuses a group with a 0 in it, fails on a 9 and then does not answer.
    struct Echo(u32);

    impl Commit for Echo {
        type Entry = u32;
        type Answer = u32;
        const TASK: (&'static str, &'static str) = ("test", "task");
        const RETRY: Option<Backoff> = Some(Backoff::new(Duration::from_millis(1), Duration::from_millis(1)));

        async fn commit(&mut self, entries: &[u32]) -> sqlx::Result<Vec<u32>> {
            if entries.contains(&9) && self.0 < 2 {
                self.0 += 1;
                return if self.0 == 1 { Err(sqlx::Error::PoolTimedOut) } else { std::future::pending().await };
            }
            assert!(!entries.contains(&13), "a panic");
            if entries.contains(&0) { Err(sqlx::Error::RowNotFound) } else { Ok(entries.to_vec()) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_entry_at_fault_costs_itself_only() {
        let (mut echo, refused) = (Echo(0), Err(NotCommitted::Refused));
        assert_eq!(commit_each(&mut echo, &[1, 9, 2]).await, [Ok(1), Ok(9), Ok(2)]);
        assert_eq!(commit_each(&mut echo, &[1, 0, 13, 2]).await, [Ok(1), refused, refused, Ok(2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn entries_gather_under_load_and_a_lone_one_does_not_wait() {
        let (entries, queue) = mpsc::channel(16);
        let mut groups = GroupCommitter::new(queue, GATHERING);
        entries.send(1).await.unwrap();
        let begun = Instant::now();
        assert_eq!(groups.next().await, Some(vec![1]));
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for entry in 2..9 {
            entries.send(entry).await.unwrap();
        }
        assert_eq!(groups.next().await, Some(vec![2, 3, 4, 5]));
        // After a busy group the next one gathers; what is undecided is part of it.
        groups.put_back(vec![5]);
        assert_eq!(groups.next().await, Some(vec![5, 6, 7, 8]));
        entries.send(9).await.unwrap();
        assert_eq!(groups.next().await, Some(vec![9]));
        assert_eq!(begun.elapsed(), GATHERING.window);
        drop(entries);
        assert_eq!(groups.next().await, None);
    }
}
