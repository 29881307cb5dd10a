//! Publishing: bounded, and nobody waits for ever.

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use runtime::{Bus, Publication};
use schemas::{FactsAnnounced, subjects};

const STREAM_BYTES: i64 = 8 * 1024 * 1024;

fn messages(caller: usize, count: usize) -> Vec<Publication> {
    (0..count)
        .map(|number| {
            Publication::json(subjects::fact("test"), format!("{caller}-{number}"), &FactsAnnounced {}).unwrap()
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_beyond_the_publish_limit_are_all_served() {
    let database = devtools::servers::TestDatabase::create().await.unwrap();
    let prefix = format!("{}_", database.name());
    let bus = Bus::connect(&database.nats_url().to_owned().into(), None, &prefix, 1, "test").await.unwrap();
    let config = Config {
        name: bus.prefixed(subjects::stream::FACTS),
        subjects: vec![bus.prefixed("mail.v1.fact.*")],
        max_bytes: STREAM_BYTES,
        ..Config::default()
    };
    let mut stream = bus.jetstream().create_stream(config).await.unwrap();
    // One alone wants more than the bus lets out at once, and so do the others together.
    let callers = (0..8).map(|caller| {
        let bus = bus.clone();
        tokio::spawn(async move { bus.publish_all(messages(caller, if caller == 0 { 5_000 } else { 1_000 })).await })
    });
    for caller in futures::future::join_all(callers).await {
        caller.unwrap().unwrap();
    }
    let stored = tokio::time::timeout(Duration::from_secs(60), stream.info()).await.unwrap().unwrap().state.messages;
    assert_eq!(stored, 12_000);
}
