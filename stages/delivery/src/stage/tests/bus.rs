//! The stage as a process runs it: from the bus to the relay.

use std::{sync::Arc, time::Duration};

use runner::{Deps, Runner};
use runtime::{CommitNotifier, Outbound, OutboundSettings, Publication, Reader, Vault};
use schemas::{Lane, subjects};

use super::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_stage_has_recorded_both_lanes() {
    let world = World::new().await;
    let bus = world.bus().await;
    bus.apply_streams().await.unwrap();
    let runner = Runner::new(bus.clone(), CommitNotifier::default(), world.shutdown.clone());
    let deps = Deps {
        runner: runner.clone(),
        bus: bus.clone(),
        pool: world.pool.clone(),
        by_key: runtime::plans::PreparedPool::new(&world.pool, 8),
        facts: CommitNotifier::default(),
        tokens: Arc::new(world.keys.tokens()),
        vault: Arc::new(Vault::new(&world.keys).unwrap()),
        outbound: Outbound::new(&OutboundSettings::default()).unwrap(),
        reader: Reader::in_process(),
        shutdown: world.shutdown.clone(),
    };
    crate::start(&deps, &world.settings(&[])).await.unwrap();
    let (_, campaign) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    let prompt = world.transactional_batch("eve@example.org").await;
    for (lane, batch) in [(Lane::Bulk, &campaign), (Lane::Priority, &prompt)] {
        let message = Publication::json(subjects::rendered(lane), batch.id.to_string(), &batch.rendered).unwrap();
        bus.publish_all(vec![message]).await.unwrap();
    }
    assert!(world.sink.inbox().wait_for_accepted(3, Duration::from_secs(120)).await);
    world.shutdown.cancel();
    assert!(runner.drained(Duration::from_secs(120)).await);
    assert_eq!(world.states(&campaign).await, ["sent", "sent"]);
    assert_eq!(world.states(&prompt).await, ["sent"]);
    world.assert_counters_are_right().await;
}
