//! The ledger is the truth, the bus only notifies: deleting the whole JetStream store loses nothing.

use std::time::Duration;

use pipeline::Rig;

#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_jetstream_store_in_mid_campaign_loses_nobody_and_mails_nobody_twice() {
    let mut rig = Rig::private()
        .await
        .with("AUDIENCE_REANNOUNCE", "5s")
        .with("SMTP_FINAL_TIMEOUT", "5s")
        .with("SMTP_COMMAND_TIMEOUT", "10s");
    rig.start_all().await;
    let (list, addresses) = rig.list_of(10_000, "bus", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    let reached = rig.sink.wait(2_000, 60_000).await;
    assert!(reached < 10_000, "the campaign was over before the store was deleted");
    rig.servers().nats().wipe_store().await.unwrap();
    rig.status(campaign, "sent", Duration::from_secs(120)).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 10_000]);
    rig.books_balance().await;
}
