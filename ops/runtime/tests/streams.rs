//! The stream table on a real server.
#![allow(clippy::unwrap_used, missing_docs)]

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, PersistenceMode, RetentionPolicy, StorageType};
use runtime::{Bus, Publication};
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
