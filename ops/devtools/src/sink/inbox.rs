//! What arrived: counts of everything, and the newest mails whole.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::Notify;

use crate::sink::answer::{Behaviour, FailureOutcome, TransactionStage};
use crate::sink::message::StoredMessage;
use crate::sink::rules::SinkRule;
use crate::sink::script;

/// How many mails are kept whole: the newest, within both limits.
#[derive(Debug, Clone, Copy)]
pub struct KeptMails {
    /// At most so many.
    pub messages: usize,
    /// At most so many bytes of them.
    pub bytes: usize,
}

impl Default for KeptMails {
    fn default() -> Self {
        Self { messages: 2_000, bytes: 128 * 1024 * 1024 }
    }
}

/// What was counted since the start or the last [`Inbox::clear`].
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Mails accepted (one per transaction, however many recipients).
    pub accepted: u64,
    /// Recipients of accepted mails.
    pub recipients: u64,
    /// Addresses among them; ASCII case does not matter.
    pub distinct: u64,
    /// `recipients - distinct`: how often an address was mailed again.
    pub duplicates: u64,
    /// Most mails to one address.
    pub max_per_address: u64,
    /// Mails whose Message-ID was seen before.
    pub duplicate_message_ids: u64,
    /// Scripted 5xx replies given.
    pub rejected: u64,
    /// Scripted 4xx replies given.
    pub deferred: u64,
    /// Scripted ends of connections.
    pub dropped: u64,
    /// Bytes of accepted mails.
    pub bytes: u64,
    /// Connections taken.
    pub connections: u64,
    /// First acceptance, microseconds since 1970; `None` before it.
    pub first_at_us: Option<u64>,
    /// Last acceptance.
    pub last_at_us: Option<u64>,
    /// Mails per second from the first acceptance to the last.
    pub mails_per_second: f64,
    /// Mails accepted in the last full second of the clock.
    pub last_second: u64,
}

/// What one address got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// As asked for.
    pub address: String,
    /// Mails accepted for it.
    pub count: u32,
    /// First acceptance, microseconds since 1970; `None` when there was none.
    pub first_at_us: Option<u64>,
    /// Last acceptance.
    pub last_at_us: Option<u64>,
}

/// The inbox of a sink. All methods may be called at any time from any thread.
#[derive(Debug)]
pub struct Inbox {
    keep: KeptMails,
    hasher: RandomState,
    state: Mutex<InboxState>,
    accepted: Notify,
}

/// Counters by the 64-bit hash of a text: two of a million texts share one with a chance of 1 in 37 million.
type KeyedCounts = HashMap<u64, KeyedCount>;

/// How often a text was seen, and when. Times are microseconds since 1970.
#[derive(Debug, Clone, Copy, Default)]
struct KeyedCount {
    count: u32,
    first_at_us: u64,
    last_at_us: u64,
}

impl KeyedCount {
    /// Counts once more and answers the new count.
    fn add(&mut self, at_us: u64) -> u32 {
        if self.count == 0 {
            self.first_at_us = at_us;
        }
        self.count = self.count.saturating_add(1);
        self.last_at_us = at_us;
        self.count
    }
}

#[derive(Debug, Default)]
struct InboxState {
    rules: Arc<[SinkRule]>,
    /// Without what [`Inbox::stats`] derives.
    stats: Stats,
    addresses: KeyedCounts,
    message_ids: KeyedCounts,
    /// Attempts that count against `times`, by rule and address.
    attempts: KeyedCounts,
    last_id: u64,
    messages: VecDeque<Arc<StoredMessage>>,
    /// Bytes of the kept mails.
    bytes: usize,
    /// Mails in the running second of the clock, and in the one before it.
    second: u64,
    in_second: u64,
    in_second_before: u64,
}

impl InboxState {
    fn count_second(&mut self, at_us: u64) {
        let second = at_us / 1_000_000;
        if second > self.second {
            let follows = second == self.second + 1;
            self.in_second_before = if follows { self.in_second } else { 0 };
            self.in_second = 0;
            self.second = second;
        }
        self.in_second += 1;
    }

    fn last_full_second(&self, now_us: u64) -> u64 {
        match (now_us / 1_000_000).saturating_sub(self.second) {
            0 => self.in_second_before,
            1 => self.in_second,
            _ => 0,
        }
    }
}

impl Inbox {
    pub(crate) fn new(keep: KeptMails) -> Self {
        Self { keep, hasher: RandomState::new(), state: Mutex::default(), accepted: Notify::new() }
    }

    /// A panic while a count is changed leaves a count; going on is right.
    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of an address or a Message-ID; ASCII case does not matter.
    fn key(&self, text: &[u8]) -> u64 {
        self.hasher.hash_one(text.to_ascii_lowercase())
    }

    /// Everything counted.
    pub fn stats(&self) -> Stats {
        let state = self.state();
        let mut stats = state.stats.clone();
        stats.last_second = state.last_full_second(now_us());
        drop(state);
        stats.duplicates = stats.recipients - stats.distinct;
        let span_us = stats.first_at_us.zip(stats.last_at_us).map_or(0, |(first, last)| last.saturating_sub(first));
        if span_us > 0 {
            #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
            let rate = stats.accepted as f64 * 1e6 / span_us as f64;
            stats.mails_per_second = rate;
        }
        stats
    }

    /// What `address` got; ASCII case does not matter.
    pub fn count(&self, address: &str) -> Count {
        let found = self.state().addresses.get(&self.key(address.as_bytes())).copied();
        Count {
            address: address.to_owned(),
            count: found.map_or(0, |found| found.count),
            first_at_us: found.map(|found| found.first_at_us),
            last_at_us: found.map(|found| found.last_at_us),
        }
    }

    /// The newest kept mails, newest first; with `to`, only those for this address.
    pub fn messages(&self, limit: usize, to: Option<&str>) -> Vec<Arc<StoredMessage>> {
        let is_for =
            |message: &StoredMessage| to.is_none_or(|to| message.to.iter().any(|own| own.eq_ignore_ascii_case(to)));
        self.state().messages.iter().rev().filter(|message| is_for(message)).take(limit).cloned().collect()
    }

    /// A kept mail.
    pub fn message(&self, id: u64) -> Option<Arc<StoredMessage>> {
        let state = self.state();
        let place = state.messages.binary_search_by_key(&id, |message| message.id).ok()?;
        state.messages.get(place).cloned()
    }

    /// Forgets everything counted and kept, and which scripted answers were given. The rules stay, ids go on.
    pub fn clear(&self) {
        let mut state = self.state();
        *state = InboxState { last_id: state.last_id, rules: Arc::clone(&state.rules), ..InboxState::default() };
    }

    /// Puts these rules in force, in place of all others; their `times` begin anew.
    pub fn set_rules(&self, rules: Vec<SinkRule>) {
        let mut state = self.state();
        state.rules = rules.into();
        state.attempts.clear();
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<[SinkRule]> {
        Arc::clone(&self.state().rules)
    }

    /// Waits until `count` mails were accepted in all; `false` when `timeout` came first.
    pub async fn wait_for_accepted(&self, count: u64, timeout: Duration) -> bool {
        self.wait(|state| state.stats.accepted >= count, timeout).await
    }

    /// Waits until `address` got `count` mails; `false` when `timeout` came first.
    pub async fn wait_for_address(&self, address: &str, count: u32, timeout: Duration) -> bool {
        let key = self.key(address.as_bytes());
        self.wait(|state| state.addresses.get(&key).is_some_and(|found| found.count >= count), timeout).await
    }

    async fn wait(&self, is_reached: impl Fn(&InboxState) -> bool, timeout: Duration) -> bool {
        let reached = async {
            loop {
                // Made before the look: what is accepted from now on wakes it.
                let accepted = self.accepted.notified();
                if is_reached(&self.state()) {
                    return;
                }
                accepted.await;
            }
        };
        tokio::time::timeout(timeout, reached).await.is_ok()
    }

    pub(crate) fn accept(&self, mut message: StoredMessage) -> u64 {
        let at_us = now_us();
        message.accepted_at_us = at_us;
        let addresses: Vec<u64> = message.to.iter().map(|address| self.key(address.as_bytes())).collect();
        let message_id = message.message_id().map(|id| self.key(id));
        // Mails that fall out are dropped behind the lock.
        let mut evicted = Vec::new();
        let mut state = self.state();
        for key in addresses {
            let count = state.addresses.entry(key).or_default().add(at_us);
            state.stats.recipients += 1;
            state.stats.distinct += u64::from(count == 1);
            state.stats.max_per_address = state.stats.max_per_address.max(count.into());
        }
        if message_id.is_some_and(|id| state.message_ids.entry(id).or_default().add(at_us) > 1) {
            state.stats.duplicate_message_ids += 1;
        }
        state.stats.accepted += 1;
        state.stats.bytes += message.source.len() as u64;
        state.stats.first_at_us.get_or_insert(at_us);
        state.stats.last_at_us = state.stats.last_at_us.max(Some(at_us));
        state.count_second(at_us);
        state.last_id += 1;
        let id = state.last_id;
        message.id = id;
        state.bytes += message.source.len();
        state.messages.push_back(Arc::new(message));
        // The newest stays even when it is larger than all that may be kept.
        while state.messages.len() > self.keep.messages.max(1)
            || (state.bytes > self.keep.bytes && state.messages.len() > 1)
        {
            let Some(oldest) = state.messages.pop_front() else { break };
            state.bytes -= oldest.source.len();
            evicted.push(oldest);
        }
        drop(state);
        self.accepted.notify_waiters();
        id
    }

    pub(crate) fn count_connection(&self) {
        self.state().stats.connections += 1;
    }

    /// What is to happen at `stage` to a transaction with these addresses, in place of a plain "yes".
    pub(crate) fn behaviour_at<'a>(
        &self,
        stage: TransactionStage,
        mut addresses: impl Iterator<Item = &'a str>,
    ) -> Option<Behaviour> {
        let rules = self.rules();
        let found = addresses.find_map(|address| self.behaviour_for(stage, address, &rules))?;
        self.count_outcome(found.outcome.as_ref());
        Some(found)
    }

    fn behaviour_for(&self, stage: TransactionStage, address: &str, rules: &[SinkRule]) -> Option<Behaviour> {
        for (number, rule) in rules.iter().enumerate() {
            if let Some(behaviour) = rule.behaviour_for(stage, address)
                && self.is_within_times(&behaviour, number, address)
            {
                return Some(behaviour);
            }
        }
        let (local_part, _) = address.rsplit_once('@')?;
        let behaviour = script::parse(local_part)?;
        (behaviour.acts_at(stage) && self.is_within_times(&behaviour, rules.len(), address)).then_some(behaviour)
    }

    fn is_within_times(&self, behaviour: &Behaviour, number: usize, address: &str) -> bool {
        behaviour.times.is_none_or(|times| {
            let key = self.key(address.as_bytes()) ^ (number as u64).rotate_left(32);
            self.state().attempts.entry(key).or_default().add(0) <= times
        })
    }

    fn count_outcome(&self, outcome: Option<&FailureOutcome>) {
        let stats = &mut self.state().stats;
        match outcome {
            Some(FailureOutcome::Reply(reply)) if reply.starts_with('4') => stats.deferred += 1,
            Some(FailureOutcome::Reply(_)) => stats.rejected += 1,
            Some(FailureOutcome::Drop | FailureOutcome::DropAfterAccept) => stats.dropped += 1,
            None => {}
        }
    }
}

/// Microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(inbox: &Inbox, to: &[&str], source: &str) -> u64 {
        inbox.accept(StoredMessage {
            to: to.iter().map(|&address| address.to_owned()).collect(),
            source: source.as_bytes().to_vec(),
            ..Default::default()
        })
    }

    #[test]
    fn only_the_newest_are_kept_and_all_are_counted() {
        let keep = KeptMails { messages: 2, bytes: 100 };
        let inbox = Inbox::new(keep);
        let ids: Vec<u64> =
            ["a@x.com", "b@x.com", "A@x.com"].map(|to| accept(&inbox, &[to], "Subject: x\r\n\r\n")).to_vec();

        assert!(inbox.message(ids[0]).is_none());
        assert_eq!(inbox.message(ids[2]).unwrap().to, ["A@x.com"]);
        assert_eq!(inbox.messages(10, Some("B@x.com")).len(), 1);
        let stats = inbox.stats();
        assert_eq!((stats.accepted, stats.distinct, stats.duplicates), (3, 2, 1));
        assert_eq!((stats.max_per_address, stats.bytes), (2, 42));
        assert_eq!(inbox.count("a@X.COM").count, 2);

        accept(&inbox, &["c@x.com"], &"x".repeat(1_000));
        assert_eq!(inbox.messages(10, None).len(), 1, "the bytes are a limit too");
    }

    #[test]
    fn a_repeated_message_id_is_noticed() {
        let inbox = Inbox::new(KeptMails::default());
        for (to, id) in [("a@x.com", "1"), ("b@x.com", "2"), ("c@x.com", "1")] {
            accept(&inbox, &[to], &format!("Message-ID: <{id}@x>\r\n\r\n"));
        }
        let stats = inbox.stats();
        assert_eq!((stats.duplicate_message_ids, stats.duplicates), (1, 0));
    }

    #[test]
    fn after_a_clear_nothing_is_counted_and_ids_go_on() {
        let inbox = Inbox::new(KeptMails::default());
        let before = accept(&inbox, &["a@x.com"], "x");
        inbox.clear();
        assert_eq!(inbox.stats().accepted, 0);
        assert_eq!(inbox.stats().first_at_us, None);
        assert_eq!(inbox.count("a@x.com").count, 0);
        assert!(inbox.messages(10, None).is_empty());
        assert!(accept(&inbox, &["a@x.com"], "x") > before);
    }

    #[test]
    fn seconds_are_counted_by_the_clock() {
        let mut kept = InboxState::default();
        for at_us in [10_000_000, 10_500_000, 11_000_000] {
            kept.count_second(at_us);
        }
        assert_eq!(kept.last_full_second(11_900_000), 2);
        assert_eq!(kept.last_full_second(12_100_000), 1);
        assert_eq!(kept.last_full_second(13_100_000), 0);
    }

    #[test]
    fn a_key_is_the_same_whatever_its_case() {
        let inbox = Inbox::new(KeptMails::default());
        let long = format!("{}@Example.com", "A".repeat(200));
        for text in ["Ann@x.com", &long] {
            assert_eq!(inbox.key(text.as_bytes()), inbox.key(text.to_lowercase().as_bytes()));
        }
        assert_ne!(inbox.key(b"ab@x.com"), inbox.key(b"ba@x.com"));
    }
}
