//! Rendered messages that wait on the bus because their route uses all the workers it may use.

use std::{
    collections::HashMap,
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

/// The messages that wait on the bus, each until its batch's announcement is put off again.
#[derive(Debug, Default)]
pub(super) struct WaitingOnBus(Mutex<HashMap<(Uuid, u16), Instant>>);

impl WaitingOnBus {
    /// Counts messages that are to wait. Answers those whose batch's announcement is to be put off now; `None` if not all of them may wait.
    pub fn enter<'a>(&self, messages: &[&'a Rendered], now: Instant) -> Option<Vec<&'a Rendered>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, until| *until > now);
        let new: Vec<&Rendered> = messages.iter().copied().filter(|new| !waiting.contains_key(&key(new))).collect();
        if waiting.len() + new.len() > MESSAGES_MAX {
            return None;
        }
        waiting.extend(new.iter().map(|new| (key(new), now + ANNOUNCED_AGAIN)));
        Some(new)
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
        assert_eq!(put_off(&all[..1], now + ANNOUNCED_AGAIN), Some(1), "of all others nothing was seen");
    }
}
