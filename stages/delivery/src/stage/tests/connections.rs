//! Tenants' own connections, and the ping of the platform's.

use std::time::Duration;

use runner::Sweep;
use stage_rig::until;

use super::{
    super::ping::RelayPing,
    world::{Handle, World, row},
};
use crate::provider::tests::stand_in::{Act, StandIn};

fn taken() -> Act {
    Act::Answer(200, "", r#"{"id":"id-1"}"#.to_owned())
}

#[tokio::test]
async fn a_tenants_mail_goes_through_its_own_connection() {
    let world = World::new().await;
    let stand_in = StandIn::playing(vec![taken()]).await;
    world.connection("resend", &stand_in.host()).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    world.stage_with(&["--provider-allow-hosts", &stand_in.host()]).deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    let told = "select provider || ' ' || provider_message_id from sends where tenant_id = $1";
    assert_eq!(world.text(told).await.unwrap(), "resend id-1");
    assert_eq!(world.sink.inbox().stats().accepted, 0);
    assert_eq!(world.number("select delivered::bigint from batches").await, 0, "the provider confirms it later");
    let seen = stand_in.only();
    assert_eq!(seen.header("idempotency-key"), format!("{}-1", batch.send(0)));
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn the_relay_carries_everybody_elses_mail_under_our_message_id() {
    let world = World::new().await;
    let connection = world.connection("resend", "127.0.0.1:1").await;
    sqlx::query("update provider_connections set status = 'disabled' where id = $1")
        .bind(connection)
        .execute(&world.pool)
        .await
        .unwrap();
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.text("select provider from sends where tenant_id = $1").await.unwrap(), "smtp");
    // The test's skeleton has no Message-ID.
    assert_eq!(world.text("select provider_message_id from sends where tenant_id = $1").await, None);
    assert_eq!(world.sink.inbox().stats().accepted, 1);
    assert_eq!(world.number("select delivered::bigint from batches").await, 1, "acceptance is all there is to know");
    assert_eq!(world.number("select sum(count)::bigint from rollups where event = 'delivered'").await, 1);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_bounce_before_the_answer_prevents_delivered() {
    let world = World::new().await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    world.run("update sends set bounced_at = now()").await;
    world.run("update batches set bounced = 1").await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("sent", None, 1));
    assert_eq!(world.number("select delivered::bigint from batches").await, 0);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn ledger_and_events_agree_which_routes_deliver_at_once() {
    let world = World::new().await;
    for provider in crate::provider::ProviderKind::ALL.iter().map(|kind| kind.as_str()).chain(["capture"]) {
        let ledger: bool =
            sqlx::query_scalar("select delivers_at_once($1)").bind(provider).fetch_one(&world.pool).await.unwrap();
        assert_eq!(ledger, schemas::events::delivers_at_once(provider), "{provider}");
    }
}

#[tokio::test]
async fn one_tenants_broken_connection_stops_no_other_tenant() {
    let mut world = World::new().await;
    let stand_in = StandIn::answering(401, "", r#"{"name":"invalid_api_key"}"#).await;
    let stage = world.stage_with(&["--provider-allow-hosts", &stand_in.host()]);
    world.connection("resend", &stand_in.host()).await;
    let (_, broken) = world.campaign_batch(&["ann@example.com", "bob@example.net"]).await;
    stage.deliver(&[&broken]).await.unwrap();
    assert_eq!(world.row(broken.send(0)).await, row("queued", None, 0));
    assert_eq!(world.states(&broken).await, ["queued", "queued"]);
    world.assert_counters_are_right().await;
    let used = "select coalesce(sum(used), 0)::int8 from send_usage where tenant_id = $1";
    assert_eq!(world.number(used).await, 0);
    let tried = stand_in.seen().len();
    world.become_another().await;
    let (_, fine) = world.campaign_batch(&["eve@example.org"]).await;
    stage.deliver(&[&broken, &fine]).await.unwrap();
    assert_eq!(world.states(&fine).await, ["sent"]);
    // While its outage lasts, nothing of the broken one is tried.
    assert_eq!(stand_in.seen().len(), tried);
}

#[tokio::test]
async fn mail_of_a_forbidden_connection_waits() {
    let world = World::new().await;
    let stand_in = StandIn::playing(vec![taken()]).await;
    world.connection("resend", &stand_in.host()).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    world.stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert!(stand_in.seen().is_empty());
    assert_eq!(world.sink.inbox().stats().accepted, 0);
}

#[tokio::test]
async fn an_unclear_answer_of_a_provider_leaves_campaign_mail_unknown() {
    let world = World::new().await;
    let stand_in = StandIn::playing(vec![Act::Drop]).await;
    world.connection("postmark", &stand_in.host()).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    let stage = world.stage_with(&["--provider-allow-hosts", &stand_in.host()]);
    stage.deliver(&[&batch]).await.unwrap();
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("unknown", Some("no_answer"), 1));
    assert_eq!(stand_in.seen().len(), 1);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_slow_connection_uses_only_its_share_of_workers() {
    let world = World::new().await;
    let stand_in = StandIn::playing(vec![Act::Hang]).await;
    world.connection("postmark", &stand_in.host()).await;
    let (_, first) = world.campaign_batch(&["ann@example.com"]).await;
    let (_, second) = world.campaign_batch(&["bob@example.net"]).await;
    // One of two workers.
    let patient = ["--delivery-workers", "2", "--provider-timeout", "60s"];
    let stage = world.stage_with(&[&["--provider-allow-hosts", &stand_in.host()], &patient[..]].concat());
    let second_comes = async {
        until("the first to be asked", async || !stand_in.seen().is_empty()).await;
        stage.deliver(&[&second]).await.unwrap();
    };
    let one = [&first];
    tokio::select! {
        _ = stage.deliver(&one) => panic!("the second waited for the first"),
        () = second_comes => {}
    }
    assert_eq!(world.states(&second).await, ["queued"]);
    assert_eq!(stand_in.seen().len(), 1);
}

#[tokio::test]
async fn the_platforms_relay_is_pinged() {
    let world = World::new().await;
    let ping = async |more: &[&str]| {
        let provider = world.stage_with(more).relay[1].clone();
        RelayPing::new(world.pool.clone(), provider, Duration::from_secs(30)).sweep().await.unwrap();
        sqlx::query_as::<_, (bool, Option<String>, bool)>(
            "select ok, error_code, ok_at is not null from provider_pings where provider = 'smtp'",
        )
        .fetch_one(&world.pool)
        .await
        .unwrap()
    };
    assert_eq!(ping(&[]).await, (true, None, true));
    let away = ping(&["--smtp-url", "smtp://127.0.0.1:1?tls=none"]).await;
    assert_eq!(away, (false, Some("unreachable".to_owned()), true));
}
