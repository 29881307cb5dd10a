//! The stream table, applied idempotently.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use schemas::subjects::stream;

const MB: i64 = 1024 * 1024;
/// Within this time JetStream drops a repeated `Nats-Msg-Id`. It only saves work; the ledger's unique keys ensure correctness.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// Of events, of which each mail has two: JetStream keeps an entry in memory for each message of the window. A publication that failed is
/// repeated within seconds; a receiver knows a later repetition by its `ce-id`.
const EVENTS_DUPLICATE_WINDOW: Duration = Duration::from_secs(10);
/// The shortest there is, for the stream that strangers publish to: the window knows ids and no publishers, so one product's request
/// would be dropped for another's id. There the ledger knows a repetition, by product and environment.
const NO_DUPLICATE_WINDOW: Duration = Duration::from_millis(100);

/// Requests of one kind that one product and environment may have waiting. JetStream refuses the next one in its PubAck.
///
/// The limits keep one product from filling the stream for the others. Its rights let a product publish under its own name only, so with
/// 8 kinds and 2 environments it holds at most 8 × 2 × 256 × 256 KiB = 1 GiB of the stream's 4 GiB.
pub const REQUESTS_WAITING_MAX: i64 = 256;
/// The longest request, with its headers, in bytes. JetStream refuses longer ones in its PubAck; they go by request and reply, or over HTTP.
pub const REQUEST_MAX_BYTES: i32 = 256 * 1024;
/// Dead letters of one stage that are kept. Of more the oldest go: a flood of one stage's leaves the others' alone.
const DEAD_LETTERS_MAX: i64 = 100_000;

/// Where a stream keeps its messages, and when JetStream answers that it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// On disk before the answer: a message may be the only copy.
    Synced,
    /// On disk, soon after the answer. Only on one server: with copies, the answer waits for the disk.
    Async,
    /// In memory: each message announces what stands in the ledger, which announces it again after a loss. A stream on disk makes a file
    /// for each message that comes while it is empty, and removes it again.
    InMemory,
}

/// The configuration of one stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamSpec {
    /// The stream's name, without prefix.
    pub name: &'static str,
    /// The stream's subjects, without prefix.
    pub subjects: &'static str,
    /// The maximum size in bytes. A full work queue refuses new messages: back-pressure, never silent loss. The others drop their oldest,
    /// before their age if need be: of the events, the newest 4 GiB are kept.
    pub max_bytes: i64,
    /// True: messages are removed on acknowledgement. False: by age.
    pub work_queue: bool,
    /// The maximum age of messages that are removed by age. Zero: no limit.
    pub max_age: Duration,
    /// Where the messages are.
    pub keeps: Keeps,
    /// The stream's description, shown by NATS tools.
    pub description: &'static str,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A work queue of what stands in the ledger.
const fn announcements(
    name: &'static str,
    subjects: &'static str,
    max_bytes: i64,
    description: &'static str,
) -> StreamSpec {
    let (work_queue, max_age, keeps) = (true, Duration::ZERO, Keeps::InMemory);
    StreamSpec { name, subjects, max_bytes, work_queue, max_age, keeps, description }
}

/// All streams.
pub const STREAMS: &[StreamSpec] = &[
    StreamSpec {
        name: stream::REQUESTS,
        subjects: "mail.v1.request.*.*.*",
        max_bytes: 4 * 1024 * MB,
        work_queue: true,
        max_age: Duration::ZERO,
        keeps: Keeps::Synced,
        description: "What internal systems ask for, for the ingress",
    },
    announcements(
        stream::ACCEPTED,
        "mail.v1.accepted.*.*.*",
        32 * MB,
        "Accepted requests that stand in the ledger: launches, transactional sends, messages, outcomes",
    ),
    announcements(
        stream::RESOLVED,
        "mail.v1.resolved.*",
        32 * MB,
        "Batches whose recipients are known, for compliance",
    ),
    announcements(stream::CLEARED, "mail.v1.cleared.*", 64 * MB, "Batches past the compliance gate, for rendering"),
    announcements(stream::RENDERED, "mail.v1.rendered.*", 256 * MB, "Batches ready for the wire, for delivery"),
    StreamSpec {
        name: stream::SIGNALS,
        subjects: "mail.v1.signal.*",
        max_bytes: 1024 * MB,
        work_queue: true,
        max_age: Duration::ZERO,
        keeps: Keeps::Synced,
        description: "Opens, clicks, unsubscribes, for engagement",
    },
    announcements(stream::FACTS, "mail.v1.fact.*", MB, "That facts were committed, for webhooks"),
    StreamSpec {
        name: stream::EVENTS,
        subjects: "mail.v1.event.*.*.*.*",
        max_bytes: 4096 * MB,
        work_queue: false,
        max_age: DAY.saturating_mul(7),
        keeps: Keeps::Async,
        description: "What products are told, for internal subscribers",
    },
    StreamSpec {
        name: stream::DEAD,
        subjects: "mail.v1.dead.*",
        max_bytes: 1024 * MB,
        work_queue: false,
        max_age: DAY.saturating_mul(30),
        keeps: Keeps::Synced,
        description: "Messages set aside with their reasons, for people",
    },
    StreamSpec {
        name: stream::MARKS,
        subjects: "mail.v1.mark",
        max_bytes: MB,
        work_queue: false,
        max_age: Duration::ZERO,
        keeps: Keeps::Synced,
        description: "How far the ledger has come, by which a restored one is known",
    },
];

impl StreamSpec {
    /// The server's configuration of the stream.
    #[must_use]
    pub fn config(&self, prefix: &str, replicas: usize) -> Config {
        let storage = if self.keeps == Keeps::InMemory { StorageType::Memory } else { StorageType::File };
        self.config_in(prefix, replicas, storage)
    }

    /// The server's configuration of an existing stream: its storage type cannot be changed, so it is kept.
    #[must_use]
    pub fn config_in(&self, prefix: &str, replicas: usize, storage: StorageType) -> Config {
        // The server refuses it for streams with copies: those wait for the disk, as `sync_interval` says.
        let is_async = self.keeps != Keeps::Synced && storage == StorageType::File && replicas == 1;
        // A notification that facts were committed has no content: the newest of each stage is enough. Of the marks only the last is read.
        let keeps_newest = [stream::FACTS, stream::MARKS].contains(&self.name);
        Config {
            name: format!("{prefix}{}", self.name),
            subjects: vec![format!("{prefix}{}", self.subjects)],
            description: Some(self.description.to_owned()),
            retention: if self.work_queue { RetentionPolicy::WorkQueue } else { RetentionPolicy::Limits },
            max_bytes: self.max_bytes,
            max_messages_per_subject: match self.name {
                _ if keeps_newest => 1,
                stream::REQUESTS => REQUESTS_WAITING_MAX,
                stream::DEAD => DEAD_LETTERS_MAX,
                _ => -1,
            },
            max_message_size: if self.name == stream::REQUESTS { REQUEST_MAX_BYTES } else { -1 },
            discard_new_per_subject: self.name == stream::REQUESTS,
            max_age: self.max_age,
            discard: if self.work_queue && !keeps_newest { DiscardPolicy::New } else { DiscardPolicy::Old },
            storage,
            num_replicas: replicas,
            duplicate_window: match self.name {
                stream::REQUESTS => NO_DUPLICATE_WINDOW,
                stream::EVENTS => EVENTS_DUPLICATE_WINDOW,
                _ => DUPLICATE_WINDOW,
            },
            allow_direct: true,
            persist_mode: is_async.then_some(PersistenceMode::Async),
            ..Config::default()
        }
    }
}

/// True if a stream has this version's configuration, in the fields that it sets.
#[must_use]
pub fn is_as_wanted(found: &Config, wanted: &Config) -> bool {
    let set = |config: &Config| {
        (
            (config.subjects.clone(), config.description.clone(), config.retention, config.discard),
            (config.max_bytes, config.max_message_size, config.max_age),
            (config.max_messages_per_subject, config.discard_new_per_subject),
            (config.storage, config.num_replicas, config.duplicate_window, config.allow_direct),
        )
    };
    set(found) == set(wanted)
}

/// True if a message limit is stricter than another. A number below 1 means no limit.
pub(crate) fn is_lower(limit: i64, than: i64) -> bool {
    limit > 0 && (than < 1 || limit < than)
}

#[cfg(test)]
mod tests {
    use schemas::{DirectKind, Environment};

    use super::*;

    #[test]
    fn a_replicated_stream_is_not_asynchronous() {
        for spec in STREAMS {
            assert!(spec.config("", 3).persist_mode.is_none(), "{}", spec.name);
            assert_eq!(spec.config("", 1).persist_mode.is_some(), spec.keeps == Keeps::Async, "{}", spec.name);
        }
    }

    #[test]
    fn one_product_cannot_hold_a_third_of_the_requests() {
        let spec = STREAMS.iter().find(|spec| spec.name == stream::REQUESTS).unwrap();
        let subjects = i64::try_from(DirectKind::ALL.len() * Environment::ALL.len()).unwrap();
        let config = spec.config("", 1);
        let held = subjects * config.max_messages_per_subject * i64::from(config.max_message_size);
        assert!(3 * held < config.max_bytes, "{held}");
    }

    #[test]
    fn of_the_marks_the_last_is_kept() {
        let spec = STREAMS.iter().find(|spec| spec.name == stream::MARKS).unwrap();
        assert_eq!(spec.config("", 1).max_messages_per_subject, 1);
    }

    #[test]
    fn no_limit_is_the_highest_limit() {
        assert!(is_lower(256, 10_000) && is_lower(256, -1) && is_lower(256, 0));
        assert!(!is_lower(256, 256) && !is_lower(256, 10) && !is_lower(-1, 256));
    }
}
