//! The stream table on a real server.
#![allow(clippy::unwrap_used, missing_docs)]

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType};
use runtime::{
    Bus, Publication,
    streams::{STREAMS, is_as_wanted},
};
use schemas::{FactsAnnounced, subjects};

async fn bus(database: &servers::TestDatabase) -> Bus {
    let prefix = format!("{}_", database.name());
    Bus::connect(&database.nats_url().to_owned().into(), None, &prefix, 1, "test").await.unwrap()
}

async fn bells(bus: &Bus) -> Info {
    let mut stream = bus.stream(subjects::stream::FACTS).await.unwrap().unwrap();
    tokio::time::timeout(Duration::from_secs(60), stream.info()).await.unwrap().unwrap().clone()
}

#[tokio::test]
async fn a_bell_that_is_rung_often_and_not_heard_is_there_once_for_each_who_rang() {
    let database = servers::TestDatabase::create().await.unwrap();
    let bus = bus(&database).await;
    bus.apply_streams().await.unwrap();
    let rings = (0..100).map(|number| {
        let subject = subjects::fact(if number % 2 == 0 { "delivery" } else { "ingress" });
        Publication::json(subject, format!("ring-{number}"), &FactsAnnounced {}).unwrap()
    });
    bus.publish_all(rings.collect()).await.unwrap();
    let info = bells(&bus).await;
    assert_eq!((info.state.messages, info.config.storage), (2, StorageType::Memory));
}

#[tokio::test]
async fn a_stream_of_the_version_before_is_brought_up_to_date_where_it_is() {
    let database = servers::TestDatabase::create().await.unwrap();
    let bus = bus(&database).await;
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
    let config = bells(&bus).await.config;
    assert_eq!((config.storage, config.max_messages_per_subject), (StorageType::File, 1));
    // And again, by the next process that starts.
    bus.apply_streams().await.unwrap();
}

#[tokio::test]
async fn a_process_finds_applied_streams_as_they_are_to_be_and_makes_one_that_is_lost() {
    let database = servers::TestDatabase::create().await.unwrap();
    let bus = bus(&database).await;
    bus.ensure_streams().await.unwrap();
    for spec in STREAMS {
        let found = bus.stream(spec.name).await.unwrap().unwrap().cached_info().config.clone();
        assert!(is_as_wanted(&found, &spec.config(bus.prefix(), 1)), "{}: {found:?}", spec.name);
    }
    bus.jetstream().delete_stream(bus.prefixed(subjects::stream::FACTS)).await.unwrap();
    bus.ensure_streams().await.unwrap();
    assert!(bus.stream(subjects::stream::FACTS).await.unwrap().is_some());
}

#[tokio::test]
async fn a_product_with_too_many_waiting_requests_is_refused_and_another_is_not() {
    let database = servers::TestDatabase::create().await.unwrap();
    let bus = bus(&database).await;
    bus.apply_streams().await.unwrap();
    let spec = STREAMS.iter().find(|spec| spec.name == subjects::stream::REQUESTS).unwrap();
    let most = spec.config(bus.prefix(), 1).max_messages_per_subject;
    // The rule is that of the table; fewer make the test short.
    let few = Config { max_messages_per_subject: 3, ..spec.config(bus.prefix(), 1) };
    assert!(most > 3 && few.discard_new_per_subject && few.discard == DiscardPolicy::New);
    bus.jetstream().update_stream(few).await.unwrap();
    let publish = async |product: &str| {
        let subject = bus.prefixed(&format!("mail.v1.request.{product}.production.contact"));
        bus.jetstream().publish(subject, "{}".into()).await.unwrap().await.is_ok()
    };
    for _ in 0..3 {
        assert!(publish("shop").await);
    }
    assert!(!publish("shop").await, "its fourth");
    assert!(publish("rival").await);
}
