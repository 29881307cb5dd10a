//! The stream table on a real server.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType};
use devtools::servers::TestDatabase;
use runtime::{
    Bus, BusError, Publication,
    streams::{REQUEST_MAX_BYTES, REQUESTS_WAITING_MAX, STREAMS, is_as_wanted},
};
use schemas::{FactsAnnounced, subjects};

/// A bus with streams of its own, and what keeps their prefix apart.
async fn bus() -> (Bus, TestDatabase) {
    let database = TestDatabase::create().await.unwrap();
    let prefix = format!("{}_", database.name());
    let bus = Bus::connect(&database.nats_url().to_owned().into(), None, &prefix, 1, "test").await.unwrap();
    (bus, database)
}

async fn info_of(bus: &Bus, stream: &str) -> Info {
    let mut stream = bus.stream(stream).await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(60), stream.info()).await.unwrap().unwrap().clone()
}

#[tokio::test]
async fn unread_notifications_are_kept_once_per_subject() {
    let (bus, _database) = bus().await;
    bus.apply_streams().await.unwrap();
    let rings = (0..100).map(|number| {
        let subject = subjects::fact(if number % 2 == 0 { "delivery" } else { "ingress" });
        Publication::json(subject, format!("ring-{number}"), &FactsAnnounced {}).unwrap()
    });
    bus.publish_all(rings.collect()).await.unwrap();
    let info = info_of(&bus, subjects::stream::FACTS).await;
    assert_eq!((info.state.messages, info.config.storage), (2, StorageType::Memory));
}

#[tokio::test]
async fn an_older_stream_is_updated_in_place() {
    let (bus, _database) = bus().await;
    let before = Config {
        name: bus.prefixed(subjects::stream::FACTS),
        subjects: vec![bus.prefixed("mail.v1.fact.*")],
        retention: RetentionPolicy::WorkQueue,
        max_bytes: 16 << 20,
        discard: DiscardPolicy::New,
        persist_mode: Some(PersistenceMode::Async),
        ..Config::default()
    };
    bus.jetstream().create_stream(before).await.unwrap();
    bus.apply_streams().await.unwrap();
    let config = info_of(&bus, subjects::stream::FACTS).await.config;
    assert_eq!((config.storage, config.max_messages_per_subject), (StorageType::File, 1));
    // And again, by the next process that starts.
    bus.apply_streams().await.unwrap();
}

#[tokio::test]
async fn a_process_creates_only_missing_streams() {
    let (bus, _database) = bus().await;
    bus.ensure_streams().await.unwrap();
    for spec in STREAMS {
        let found = bus.stream(spec.name).await.unwrap().unwrap().cached_info().config.clone();
        assert!(is_as_wanted(&found, &spec.config(bus.prefix(), 1)), "{}: {found:?}", spec.name);
    }
    bus.jetstream().delete_stream(bus.prefixed(subjects::stream::FACTS)).await.unwrap();
    bus.ensure_streams().await.unwrap();
    assert!(bus.stream(subjects::stream::FACTS).await.unwrap().is_some());
}

/// Publishes a request of so many bytes; answers the code of JetStream's refusal.
async fn publish(bus: &Bus, product: &str, bytes: usize) -> Option<u64> {
    let subject = bus.prefixed(&format!("mail.v1.request.{product}.production.contact"));
    let answer = bus.client().request(subject, vec![b' '; bytes].into()).await.unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
    answer["error"]["err_code"].as_u64()
}

/// JetStream's code for a message that is longer than those of its stream may be.
const TOO_LONG: u64 = 10_054;
/// JetStream's code for a message its stream does not store, here because its subject is full.
const NOT_STORED: u64 = 10_077;

#[tokio::test]
async fn a_product_is_refused_at_its_limit_and_another_is_not() {
    let (bus, _database) = bus().await;
    bus.apply_streams().await.unwrap();
    let longest = usize::try_from(REQUEST_MAX_BYTES).unwrap();
    assert_eq!(publish(&bus, "shop", longest + 1).await, Some(TOO_LONG));
    for number in 0..REQUESTS_WAITING_MAX {
        assert_eq!(publish(&bus, "shop", longest).await, None, "{number}");
    }
    assert_eq!(publish(&bus, "shop", 2).await, Some(NOT_STORED));
    assert_eq!(publish(&bus, "rival", longest).await, None);
}

#[tokio::test]
async fn a_lower_limit_is_applied_when_it_costs_no_waiting_request() {
    let (bus, _database) = bus().await;
    let spec = STREAMS.iter().find(|spec| spec.name == subjects::stream::REQUESTS).unwrap();
    let wanted = spec.config(bus.prefix(), 1);
    let before =
        Config { max_bytes: 1 << 30, max_messages_per_subject: 10_000, max_message_size: -1, ..wanted.clone() };
    bus.jetstream().create_stream(before).await.unwrap();
    let waiting = u64::try_from(REQUESTS_WAITING_MAX).unwrap() + 10;
    for _ in 0..waiting {
        assert_eq!(publish(&bus, "shop", 2).await, None);
    }
    let refused = bus.apply_streams().await;
    assert!(matches!(refused, Err(BusError::MessagesWaiting { stream: subjects::stream::REQUESTS })), "{refused:?}");
    bus.ensure_streams().await.unwrap();
    let info = info_of(&bus, subjects::stream::REQUESTS).await;
    assert_eq!((info.state.messages, info.config.max_messages_per_subject), (waiting, 10_000));
    assert_eq!((info.config.max_message_size, info.config.max_bytes), (wanted.max_message_size, wanted.max_bytes));
    // Most of them are handled.
    let stream = bus.stream(subjects::stream::REQUESTS).await.unwrap().unwrap();
    stream.purge().keep(100).await.unwrap();
    bus.apply_streams().await.unwrap();
    let info = info_of(&bus, subjects::stream::REQUESTS).await;
    assert_eq!((info.state.messages, is_as_wanted(&info.config, &wanted)), (100, true));
}
