//! What arrived: counts of everything, and the newest mails whole.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::sink::answer::{Behaviour, FailureOutcome, TransactionStage};
use crate::sink::message::StoredMessage;
use crate::sink::rules::SinkRule;
use crate::sink::script;
use crate::sink::tally::{KeyedCounts, lock};
use crate::sink::waiters::{Until, Waiters};

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
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    totals: Totals,
    kept: Mutex<Kept>,
    addresses: KeyedCounts,
    message_ids: KeyedCounts,
    /// Attempts that count against `times`, by rule and address.
    attempts: KeyedCounts,
    rules: RwLock<Arc<[SinkRule]>>,
    waiters: Waiters,
}

#[derive(Debug, Default)]
struct Totals {
    accepted: AtomicU64,
    recipients: AtomicU64,
    distinct: AtomicU64,
    max_per_address: AtomicU64,
    duplicate_message_ids: AtomicU64,
    rejected: AtomicU64,
    deferred: AtomicU64,
    dropped: AtomicU64,
    bytes: AtomicU64,
    connections: AtomicU64,
}

impl Totals {
    fn each(&self) -> [&AtomicU64; 10] {
        [
            &self.accepted,
            &self.recipients,
            &self.distinct,
            &self.max_per_address,
            &self.duplicate_message_ids,
            &self.rejected,
            &self.deferred,
            &self.dropped,
            &self.bytes,
            &self.connections,
        ]
    }
}

#[derive(Debug, Default)]
struct Kept {
    last_id: u64,
    messages: VecDeque<Arc<StoredMessage>>,
    bytes: usize,
    first_at_us: Option<u64>,
    last_at_us: Option<u64>,
    /// Mails in the running second of the clock, and in the one before it.
    second: u64,
    in_second: u64,
    in_second_before: u64,
}

impl Kept {
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
        Self {
            keep,
            totals: Totals::default(),
            kept: Mutex::default(),
            addresses: KeyedCounts::new(),
            message_ids: KeyedCounts::new(),
            attempts: KeyedCounts::new(),
            rules: RwLock::new(Arc::new([])),
            waiters: Waiters::default(),
        }
    }

    /// Everything counted.
    pub fn stats(&self) -> Stats {
        let read = |total: &AtomicU64| total.load(Ordering::SeqCst);
        let totals = &self.totals;
        let (first_at_us, last_at_us, last_second) = {
            let kept = lock(&self.kept);
            (kept.first_at_us, kept.last_at_us, kept.last_full_second(now_us()))
        };
        let accepted = read(&totals.accepted);
        // In this order: an address is counted as a recipient before it is counted as a new one.
        let distinct = read(&totals.distinct);
        let recipients = read(&totals.recipients);
        let span_us = match (first_at_us, last_at_us) {
            (Some(first), Some(last)) => last.saturating_sub(first),
            _ => 0,
        };
        Stats {
            accepted,
            recipients,
            distinct,
            duplicates: recipients.saturating_sub(distinct),
            max_per_address: read(&totals.max_per_address),
            duplicate_message_ids: read(&totals.duplicate_message_ids),
            rejected: read(&totals.rejected),
            deferred: read(&totals.deferred),
            dropped: read(&totals.dropped),
            bytes: read(&totals.bytes),
            connections: read(&totals.connections),
            first_at_us,
            last_at_us,
            mails_per_second: if span_us == 0 {
                0.0
            } else {
                #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
                let rate = accepted as f64 * 1e6 / span_us as f64;
                rate
            },
            last_second,
        }
    }

    /// What `address` got; ASCII case does not matter.
    pub fn count(&self, address: &str) -> Count {
        let entry = self.addresses.get(self.addresses.key(address.as_bytes()));
        let seen = entry.count > 0;
        Count {
            address: address.to_owned(),
            count: entry.count,
            first_at_us: seen.then_some(entry.first_at_us),
            last_at_us: seen.then_some(entry.last_at_us),
        }
    }

    /// The newest kept mails, newest first; with `to`, only those for this address.
    pub fn messages(&self, limit: usize, to: Option<&str>) -> Vec<Arc<StoredMessage>> {
        let is_for =
            |message: &StoredMessage| to.is_none_or(|to| message.to.iter().any(|own| own.eq_ignore_ascii_case(to)));
        lock(&self.kept).messages.iter().rev().filter(|message| is_for(message)).take(limit).cloned().collect()
    }

    /// A kept mail.
    pub fn message(&self, id: u64) -> Option<Arc<StoredMessage>> {
        let kept = lock(&self.kept);
        let place = kept.messages.binary_search_by_key(&id, |message| message.id).ok()?;
        kept.messages.get(place).cloned()
    }

    /// Forgets everything counted and kept, and which scripted answers were given. The rules stay, ids go on.
    pub fn clear(&self) {
        for total in self.totals.each() {
            total.store(0, Ordering::SeqCst);
        }
        self.addresses.clear();
        self.message_ids.clear();
        self.attempts.clear();
        let mut kept = lock(&self.kept);
        *kept = Kept { last_id: kept.last_id, ..Kept::default() };
    }

    /// Puts these rules in force, in place of all others; their `times` begin anew.
    pub fn set_rules(&self, rules: Vec<SinkRule>) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules.into();
        self.attempts.clear();
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<[SinkRule]> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until `count` mails were accepted in all; `false` when `timeout` came first.
    pub async fn wait_for_accepted(&self, count: u64, timeout: Duration) -> bool {
        self.wait(Until::Accepted(count), timeout).await
    }

    /// Waits until `address` got `count` mails; `false` when `timeout` came first.
    pub async fn wait_for_address(&self, address: &str, count: u32, timeout: Duration) -> bool {
        let key = self.addresses.key(address.as_bytes());
        self.wait(Until::Address { key, count }, timeout).await
    }

    async fn wait(&self, until: Until, timeout: Duration) -> bool {
        let wait = self.waiters.register(until);
        // Looked at after registering: what is accepted from now on wakes us.
        self.is_reached(until) || tokio::time::timeout(timeout, wait).await.is_ok()
    }

    fn is_reached(&self, until: Until) -> bool {
        match until {
            Until::Accepted(count) => self.totals.accepted.load(Ordering::SeqCst) >= count,
            Until::Address { key, count } => self.addresses.get(key).count >= count,
        }
    }

    /// Stores a mail and answers its id.
    pub(crate) fn accept(&self, mut message: StoredMessage) -> u64 {
        let at_us = now_us();
        let totals = &self.totals;
        let size = message.source.len();
        for address in &message.to {
            totals.recipients.fetch_add(1, Ordering::SeqCst);
            let count = self.addresses.add(self.addresses.key(address.as_bytes()), at_us);
            if count == 1 {
                totals.distinct.fetch_add(1, Ordering::SeqCst);
            }
            totals.max_per_address.fetch_max(u64::from(count), Ordering::Relaxed);
        }
        let seen_before =
            message.message_id().is_some_and(|id| self.message_ids.add(self.message_ids.key(id), at_us) > 1);
        if seen_before {
            totals.duplicate_message_ids.fetch_add(1, Ordering::Relaxed);
        }
        totals.bytes.fetch_add(size as u64, Ordering::Relaxed);
        message.accepted_at_us = at_us;
        let id = self.keep_newest(message, at_us);
        totals.accepted.fetch_add(1, Ordering::SeqCst);
        self.waiters.check(|until| self.is_reached(until));
        id
    }

    fn keep_newest(&self, mut message: StoredMessage, at_us: u64) -> u64 {
        // Mails that fall out are dropped behind the lock.
        let mut evicted = Vec::new();
        let mut kept = lock(&self.kept);
        kept.last_id += 1;
        kept.first_at_us.get_or_insert(at_us);
        kept.last_at_us = kept.last_at_us.max(Some(at_us));
        kept.count_second(at_us);
        message.id = kept.last_id;
        kept.bytes += message.source.len();
        kept.messages.push_back(Arc::new(message));
        // The newest stays even when it is larger than all that may be kept.
        while kept.messages.len() > self.keep.messages.max(1)
            || (kept.bytes > self.keep.bytes && kept.messages.len() > 1)
        {
            let Some(oldest) = kept.messages.pop_front() else { break };
            kept.bytes -= oldest.source.len();
            evicted.push(oldest);
        }
        kept.last_id
    }

    pub(crate) fn count_connection(&self) {
        self.totals.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// What is to happen at `stage` to a transaction with these addresses, in place of a plain "yes".
    pub(crate) fn behaviour_at<'a>(
        &self,
        stage: TransactionStage,
        addresses: impl Iterator<Item = &'a str>,
    ) -> Option<Behaviour> {
        let rules = self.rules();
        let mut found = None;
        for address in addresses {
            if let Some(behaviour) = self.behaviour_for(stage, address, &rules) {
                found = Some(behaviour);
                break;
            }
        }
        if let Some(behaviour) = &found {
            self.count_outcome(behaviour.outcome.as_ref());
        }
        found
    }

    fn behaviour_for(&self, stage: TransactionStage, address: &str, rules: &[SinkRule]) -> Option<Behaviour> {
        for (number, rule) in rules.iter().enumerate() {
            if let Some(behaviour) = rule.behaviour_for(stage, address)
                && self.is_within_times(behaviour, number, address)
            {
                return Some(behaviour.clone());
            }
        }
        let (local_part, _) = address.rsplit_once('@')?;
        let behaviour = script::parse(local_part)?;
        (behaviour.acts_at(stage) && self.is_within_times(&behaviour, rules.len(), address)).then_some(behaviour)
    }

    fn is_within_times(&self, behaviour: &Behaviour, number: usize, address: &str) -> bool {
        behaviour.times.is_none_or(|times| {
            let key = self.attempts.key(address.as_bytes()) ^ (number as u64).rotate_left(32);
            self.attempts.add(key, 0) <= times
        })
    }

    fn count_outcome(&self, outcome: Option<&FailureOutcome>) {
        let total = match outcome {
            Some(FailureOutcome::Reply(reply)) if reply.is_temporary() => &self.totals.deferred,
            Some(FailureOutcome::Reply(_)) => &self.totals.rejected,
            Some(FailureOutcome::Drop | FailureOutcome::DropAfterAccept) => &self.totals.dropped,
            None => return,
        };
        total.fetch_add(1, Ordering::Relaxed);
    }
}

/// Microseconds since 1970.
fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_micros()).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
        let mut kept = Kept::default();
        for at_us in [10_000_000, 10_500_000, 11_000_000] {
            kept.count_second(at_us);
        }
        assert_eq!(kept.last_full_second(11_900_000), 2);
        assert_eq!(kept.last_full_second(12_100_000), 1);
        assert_eq!(kept.last_full_second(13_100_000), 0);
    }
}
