//! A tenant's first provider dies in the middle of a campaign: its fallback carries the rest, and nobody is mailed twice.

use std::time::Duration;

use devtools::sink::{Sink, SinkOptions};
use pipeline::{Rig, eventually, ledger, process};
use serde_json::{Value, json};

/// Adds a relay of the tenant's own, as its operator does. Answers its id.
fn add_relay(rig: &Rig, name: &str, url: &str) -> String {
    let mut env = rig.operator_env();
    env.insert("POSTRIDER_MASTER_KEY".to_owned(), rig.env["POSTRIDER_MASTER_KEY"].clone());
    env.insert("THE_SECRET".to_owned(), url.to_owned());
    let tenant = rig.engine_tenant_id.to_string();
    let add = ["provider", "--json", "add", "--tenant", &tenant, "--provider", "smtp", "--name", name, "--spare"];
    let output = process::run(&[&add[..], &["--secret-env", "THE_SECRET"]].concat(), &env);
    let added: Value = serde_json::from_str(output.lines().next().unwrap()).unwrap();
    added["connection_id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_whose_first_provider_dies_goes_on_through_the_next() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let first = Sink::start(SinkOptions::default()).await.unwrap();
    let inbox = first.inbox().clone();
    let ids =
        [add_relay(&rig, "first", &first.smtp_url()), add_relay(&rig, "next", &rig.env["POSTRIDER_SMTP_URL"].clone())];
    rig.client.post("/v1/connections/order", json!({"connection_ids": ids})).await.expect(200);
    let (list, addresses) = rig.list_of(3_000, "failover", "example.com").await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    assert!(inbox.wait_for_accepted(200, Duration::from_secs(60)).await, "the first connection carries the mail");
    first.stop().await;
    eventually("the dead connection's circuit to be open", Duration::from_secs(60), || async {
        let answer = rig.client.get(&format!("/v1/connections/{}", ids[0]), &[]).await.expect(200);
        (answer["connection"]["health"]["circuit"] == "open").then_some(())
    })
    .await;
    rig.status(campaign, "sent", Duration::from_secs(120)).await;

    let by_next = rig.sink.counts(&addresses).await;
    assert!(by_next.iter().sum::<u64>() > 0, "the next connection has carried the rest");
    let states = ledger::by_address(&rig.pool, campaign).await;
    for (address, by_next) in addresses.iter().zip(by_next) {
        let mails = by_next + u64::from(inbox.count(address).count);
        let state = states[address].0.as_str();
        assert!(mails == 1 && state == "sent" || mails <= 1 && state == "unknown", "{address}: {mails} mails, {state}");
    }
    rig.books_balance().await;
}
