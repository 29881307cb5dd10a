//! One endpoint never delays another, and none is overrun.

use std::collections::BTreeSet;

use ledger::outbox;
use schemas::new_id;
use stage_rig::{
    Rig,
    receiver::{Manner, Receiver},
    until,
};
use uuid::Uuid;

use crate::world::World;

#[tokio::test]
async fn an_endpoint_has_four_requests_at_a_time_over_all_processes() {
    let (world, receiver, _) = World::receiving(Manner::Gated(200), &["email.opened"]).await;
    world.start(&[]).await;
    world.start(&[]).await;
    world.opened(60).await;
    // The first answer shows that somebody is there.
    receiver.has(1).await;
    receiver.let_through(1);
    until("four are under way", async || receiver.under_way() == 4).await;
    for _ in 0..59 {
        receiver.let_through(1);
    }
    until("all are delivered", async || world.deliveries("delivered").await == 60).await;
    assert_eq!((receiver.most(), receiver.count()), (4, 60));
}

#[tokio::test]
async fn silent_receivers_delay_no_other_receiver() {
    let world = World::new().await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        let receiver = Receiver::start(Manner::Silent).await;
        world.subscribe(&receiver.url, &["email.opened"]).await;
        silent.push(receiver);
    }
    let healthy = Receiver::start(Manner::Status(200)).await;
    world.subscribe(&healthy.url, &["email.opened"]).await;
    // Fewer sockets than a shared queue would need for the silent alone.
    world.start(&["--webhook-in-flight", "24", "--webhook-timeout", "10m"]).await;
    for _ in 0..10 {
        world.opened(100).await;
    }
    healthy.has(1_000).await;
    until("all of the healthy is delivered", async || world.deliveries("delivered").await == 1_000).await;
    for receiver in silent {
        assert_eq!(receiver.count(), 1, "one request finds out that nobody is there");
    }
    assert_eq!(world.deliveries("pending").await, 20_000);
}

#[tokio::test]
async fn a_transaction_is_bounded_by_the_deliveries_it_writes() {
    let world = World::new().await;
    for _ in 0..20 {
        world.subscribe("https://x.example/", &["email.opened"]).await;
    }
    let note = async |count: usize| {
        let ids: Vec<Uuid> = (0..count).map(|_| new_id()).collect();
        sqlx::query("insert into outbox (tenant_id, source, ids) values ($1, 'notices', $2)")
            .bind(world.tenant.id)
            .bind(ids)
            .execute(&world.rig.pool)
            .await
            .unwrap();
    };
    note(3_000).await;
    let mut tx = world.rig.pool.begin().await.unwrap();
    let large = outbox::read(&mut tx).await.unwrap();
    assert!(large.taken.is_full);
    assert!((1_000..=2_500).contains(&large.notices.len()), "{} facts", large.notices.len());
    outbox::delete(&mut tx, &large).await.unwrap();
    tx.commit().await.unwrap();
    let rest = world.rig.number("select sum(cardinality(ids))::bigint from outbox").await;
    assert_eq!(rest + large.notices.len() as i64, 3_000, "what is too much is noted anew");
    sqlx::query("delete from outbox").execute(&world.rig.pool).await.unwrap();
    for _ in 0..10 {
        note(100).await;
    }
    let other = world.rig.tenant().await;
    let others = "insert into outbox (tenant_id, source, ids) values ($1, 'notices', array[gen_random_uuid()])";
    world.execute(others, other.id).await;
    let mut tx = world.rig.pool.begin().await.unwrap();
    let some = outbox::read(&mut tx).await.unwrap();
    assert!(some.taken.is_full && some.taken.notes < 5, "{} notes of a hundred facts", some.taken.notes);
    assert!(
        some.notices.iter().any(|(tenant, _)| *tenant == other.id),
        "another tenant's fact does not wait for all of these"
    );
}

#[tokio::test]
async fn a_tenants_many_notes_delay_no_other_tenant_and_no_other_fan_out() {
    let rig = Rig::new().await;
    let (busy, other) = (rig.tenant().await, rig.tenant().await);
    for (tenant, notes) in [(&busy, 2_000), (&other, 1)] {
        sqlx::query(
            "insert into outbox (tenant_id, source, ids)
             select $1, 'notices', array[gen_random_uuid()] from generate_series(1, $2)",
        )
        .bind(tenant.id)
        .bind(notes)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    let mut open = Vec::new();
    let mut taken = BTreeSet::new();
    for at in 0..6 {
        let mut tx = rig.pool.begin().await.unwrap();
        let noted = outbox::read(&mut tx).await.unwrap();
        let has_other = noted.notices.iter().any(|(tenant, _)| *tenant == other.id);
        assert_eq!(has_other, at == 0, "the other's is the second note of the first");
        assert_eq!(noted.taken.notes, 256, "fan-out {at} of those under way at once");
        taken.extend(noted.notices);
        open.push(tx);
    }
    assert_eq!(taken.len(), 6 * 256, "none is taken twice");
}

#[tokio::test]
async fn a_backlog_longer_than_memory_is_delivered_from_the_ledger() {
    let (world, receiver, _) = World::receiving(Manner::Gated(200), &["email.opened"]).await;
    world.start(&[]).await;
    for _ in 0..3 {
        world.opened(500).await;
    }
    until("all wait", async || world.deliveries("pending").await == 1_500).await;
    receiver.let_through(1_500);
    until("all are delivered", async || world.deliveries("delivered").await == 1_500).await;
    assert_eq!(receiver.count(), 1_500, "none twice");
}
