//! Rendered messages that wait on the bus because their route uses all the workers it may use.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use schemas::Rendered;
use uuid::Uuid;

/// Messages of this process that wait so. Of `runner::MAX_ACK_PENDING`, which would keep other mail from being delivered to any worker, 16
/// processes take half.
const MESSAGES_MAX: usize = 128;
/// How often the next announcement of such a message's batch is put off, by twice as long.
pub(super) const ANNOUNCED_AGAIN: Duration = Duration::from_secs(30);
/// A message that was not seen for so long waits in another process, if it does.
const SEEN_WITHIN: Duration = Duration::from_secs(2 * super::routes::WORKER_WAIT.as_secs());

/// The messages that wait on the bus.
#[derive(Debug, Default)]
pub(super) struct WaitingOnBus(Mutex<HashMap<(Uuid, u16), Waiting>>);

#[derive(Debug, Clone, Copy)]
struct Waiting {
    seen: Instant,
    put_off: Instant,
}

impl WaitingOnBus {
    /// Counts messages that are to wait. Answers those whose batch's announcement is to be put off now; `None` if not all of them may wait.
    pub fn enter<'a>(&self, messages: &[&'a Rendered], now: Instant) -> Option<Vec<&'a Rendered>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, one| now < one.put_off + ANNOUNCED_AGAIN);
        let keys: HashSet<_> = messages.iter().map(|message| key(message)).collect();
        let others = waiting.iter().filter(|(key, one)| now < one.seen + SEEN_WITHIN && !keys.contains(key)).count();
        if others + keys.len() > MESSAGES_MAX {
            return None;
        }
        let mut due = Vec::new();
        for message in messages {
            let one = waiting.entry(key(message)).or_insert_with(|| {
                due.push(*message);
                Waiting { seen: now, put_off: now }
            });
            one.seen = now;
        }
        Some(due)
    }

    /// Messages that go now wait no longer.
    pub fn leave<'a>(&self, messages: impl IntoIterator<Item = &'a Rendered>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            return;
        }
        for message in messages {
            waiting.remove(&key(message));
        }
    }
}

fn key(message: &Rendered) -> (Uuid, u16) {
    (message.batch_id, message.part)
}

#[cfg(test)]
mod tests {
    use schemas::{Lane, MessageKind, SkeletonId, token::TokenKeys};

    use super::*;

    fn message(part: u16) -> Rendered {
        Rendered {
            tenant_id: Uuid::from_u128(1),
            batch_id: Uuid::from_u128(2),
            campaign_id: None,
            kind: MessageKind::Campaign,
            lane: Lane::Bulk,
            part,
            skeleton: SkeletonId("s".to_owned()),
            token_key: TokenKeys::derive(&[[7; 32]]).newest(),
            sending_domain: "acme.example".to_owned(),
            return_path_domain: "send.acme.example".to_owned(),
            recipients: Vec::new(),
            notify: None,
        }
    }

    #[test]
    fn only_so_many_messages_wait_and_each_is_put_off_once_in_a_while() {
        let messages: Vec<Rendered> = (0..).take(MESSAGES_MAX + 1).map(message).collect();
        let all: Vec<&Rendered> = messages.iter().collect();
        let (waiting, now) = (WaitingOnBus::default(), Instant::now());
        let put_off = |messages: &[&Rendered], now| Some(waiting.enter(messages, now)?.len());
        assert_eq!(put_off(&all[..MESSAGES_MAX], now), Some(MESSAGES_MAX));
        assert_eq!(put_off(&all[..1], now), Some(0), "it waits already");
        assert_eq!(put_off(&all[MESSAGES_MAX..], now), None, "too many wait");
        waiting.leave([all[0]]);
        assert_eq!(put_off(&all[MESSAGES_MAX..], now), Some(1));
        assert_eq!(put_off(&all[..1], now), None);
        let later = now + SEEN_WITHIN;
        assert_eq!(put_off(&all[1..2], later), Some(0), "the others wait elsewhere, and this one was put off");
        assert_eq!(put_off(&all[..1], later), Some(1));
        assert_eq!(put_off(&all[1..2], now + ANNOUNCED_AGAIN), Some(1));
    }
}
