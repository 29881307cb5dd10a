//! Tenants' own connections, and the ping of the platform's.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all};
use rstest::rstest;
use runner::{StageError, Sweep};
use runtime::Vault;
use schemas::{Lane, MessageKind};
use stage_rig::until;
use tokio::sync::Notify;

use super::{
    super::health::{CheckConnections, RelayPing, ReportHealth},
    world::{Handle, World, row, run},
};
use crate::provider::{
    PROVIDER_PURPOSE,
    tests::stand_in::{Act, StandIn},
};

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
async fn an_accounts_rate_limit_is_kept() {
    let world = World::new().await;
    let stand_in = StandIn::playing(vec![taken()]).await;
    world.connection("resend", &stand_in.host()).await;
    let limit =
        r#"update provider_connections set settings = settings || '{"max_per_second": 4}' where tenant_id = $1"#;
    world.run(limit).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com", "bob@example.com", "eve@example.com"]).await;
    let started = Instant::now();
    world.stage_with(&["--provider-allow-hosts", &stand_in.host()]).deliver(&[&batch]).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
    assert_eq!(world.states(&batch).await, ["sent", "sent", "sent"]);
}

#[tokio::test]
async fn a_connection_that_many_open_at_once_has_one_rate_limit() {
    let world = World::new().await;
    world.connection("resend", "127.0.0.1:1").await;
    let limit =
        r#"update provider_connections set settings = settings || '{"max_per_second": 4}' where tenant_id = $1"#;
    world.run(limit).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    // Eight of them may use the connection.
    let stage = world.stage_with(&["--provider-allow-hosts", "127.0.0.1:1", "--delivery-workers", "16"]);
    let inputs = [batch.rendered];
    let admitted = join_all((0..8).map(|_| stage.routes.admit(&inputs))).await;
    let limiters: Vec<_> =
        admitted.iter().map(|admitted| admitted.as_ref().unwrap().routes[0].limiter.as_ref().unwrap()).collect();
    assert!(limiters.iter().all(|limiter| Arc::ptr_eq(limiter, limiters[0])));
}

#[rstest]
#[case::disabled(&["update provider_connections set status = 'disabled' where tenant_id = $1 and name = 'first'"])]
#[case::put_behind_another(&[
    "update provider_connections set is_default = false, fallback_rank = 2 where tenant_id = $1 and name = 'first'",
    "update provider_connections set is_default = true, fallback_rank = null where tenant_id = $1 and name = 'main'"
])]
#[tokio::test]
async fn a_message_under_way_follows_a_change_of_connections(#[case] changes: &[&'static str]) {
    let world = World::new().await;
    let go = Arc::new(Notify::new());
    let first = StandIn::playing(vec![Act::AnswerLater(go.clone(), r#"{"id":"id-1"}"#.to_owned()), taken()]).await;
    let next = StandIn::playing(vec![taken()]).await;
    world.connection("resend", &first.host()).await;
    world.fallback("resend", &next.host()).await;
    let addresses: Vec<String> = (0..20).map(|number| format!("user{number}@example.com")).collect();
    let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let hosts = format!("{},{}", first.host(), next.host());
    let stage = world.stage_with(&["--provider-allow-hosts", &hosts, "--provider-connections", "1"]);
    let changing = async {
        until("the first to be asked", async || !first.seen().is_empty()).await;
        for &change in changes {
            world.run(change).await;
        }
        stage.routes.drop_choices();
        go.notify_one();
    };
    let batches = [&batch];
    let (delivered, ()) = tokio::join!(stage.deliver(&batches), changing);
    delivered.unwrap();
    let owed = "select count(*) from sends where tenant_id = $1 and state = 'queued' and attempts = 0";
    assert_eq!((first.seen().len(), world.number(owed).await), (1, 19));
    stage.deliver(&batches).await.unwrap();
    assert_eq!((first.seen().len(), next.seen().len()), (1, 19));
    assert_eq!(world.states(&batch).await, vec!["sent"; 20]);
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::another_name(
    "update provider_connections set name = 'new', updated_at = clock_timestamp() where tenant_id = $1",
    true
)]
#[case::another_rate(
    r#"update provider_connections set settings = settings || '{"max_per_second": 4}' where tenant_id = $1"#,
    false
)]
#[case::another_secret("update provider_connections set secret = secret || '\\x00' where tenant_id = $1", false)]
#[tokio::test]
async fn another_name_does_not_open_a_connection_again(#[case] change: &'static str, #[case] stays: bool) {
    let world = World::new().await;
    world.connection("resend", "127.0.0.1:1").await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    let stage = world.stage_with(&["--provider-allow-hosts", "127.0.0.1:1"]);
    let inputs = [batch.rendered];
    let before = stage.routes.admit(&inputs).await.unwrap().routes.remove(0);
    world.run(change).await;
    stage.routes.drop_choices();
    assert_eq!(stage.routes.is_current(&before).await, stays);
    let after = stage.routes.admit(&inputs).await.unwrap().routes.remove(0);
    assert_eq!(Arc::ptr_eq(&before.breaker, &after.breaker), stays);
    assert_eq!(before.id == after.id, stays);
}

#[tokio::test]
async fn mail_that_waited_for_its_slot_dials_no_disabled_connection() {
    let world = World::new().await;
    world.connection("smtp", "127.0.0.1:1").await;
    let relay = format!("{}?tls=none", world.sink.smtp_url());
    let secret = Vault::new(&world.keys).unwrap().seal(world.tenant, PROVIDER_PURPOSE, relay.as_bytes()).unwrap();
    run!(
        &world.pool,
        r#"update provider_connections set settings = '{"max_per_second": 1}', secret = $2 where tenant_id = $1"#,
        [world.tenant, secret]
    );
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    let stage = world.stage();
    let inputs = [batch.rendered.clone()];
    let limiter = stage.routes.admit(&inputs).await.unwrap().routes.remove(0).limiter.unwrap();
    // The next slots are taken: the mail waits for seconds.
    limiter.wait_for_slot(Lane::Bulk).await.unwrap();
    assert!((0..2).all(|_| limiter.wait_for_slot(Lane::Bulk).now_or_never().is_none()));
    let slots = format!("{limiter:?}");
    let disabling = async {
        until("the mail to wait for its slot", async || format!("{limiter:?}") != slots).await;
        world.run("update provider_connections set status = 'disabled' where tenant_id = $1").await;
        stage.routes.drop_choices();
    };
    let batches = [&batch];
    let (delivered, ()) = tokio::join!(stage.deliver(&batches), disabling);
    delivered.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0));
    assert_eq!(world.sink.inbox().stats().connections, 0);
}

#[tokio::test]
async fn the_relay_carries_everybody_elses_mail_under_our_message_id() {
    let world = World::new().await;
    let connection = world.connection("resend", "127.0.0.1:1").await;
    run!(&world.pool, "update provider_connections set status = 'disabled' where id = $1", [connection]);
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
    let (world, batch) = World::with_campaign_batch(&["ann@example.com"]).await;
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

/// True if the runner gives the message back, to be delivered again soon.
fn is_busy(handled: Result<(), StageError>) -> bool {
    matches!(handled, Err(StageError::Busy { .. }))
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
        assert!(is_busy(stage.deliver(&[&second]).await));
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
async fn slow_connections_together_leave_a_worker_to_other_mail() {
    let mut world = World::new().await;
    let stand_in = StandIn::playing(vec![Act::Hang]).await;
    world.connection("postmark", &stand_in.host()).await;
    let (_, first) = world.campaign_batch(&["ann@example.com"]).await;
    world.become_another().await;
    world.connection("postmark", &stand_in.host()).await;
    let (_, second) = world.campaign_batch(&["bob@example.net"]).await;
    world.become_another().await;
    let (_, third) = world.campaign_batch(&["eve@example.org"]).await;
    // Each connection may use one of two workers.
    let patient = ["--delivery-workers", "2", "--provider-timeout", "60s"];
    let stage = world.stage_with(&[&["--provider-allow-hosts", &stand_in.host()], &patient[..]].concat());
    let others_come = async {
        until("the first to be asked", async || !stand_in.seen().is_empty()).await;
        assert!(is_busy(stage.deliver(&[&second]).await));
        stage.deliver(&[&third]).await.unwrap();
    };
    let one = [&first];
    tokio::select! {
        _ = stage.deliver(&one) => panic!("the others waited for the first"),
        () = others_come => {}
    }
    assert_eq!(world.states(&third).await, ["sent"]);
    assert_eq!(stand_in.seen().len(), 1, "the second waits for a worker");
}

#[tokio::test]
async fn a_batch_that_waits_for_a_worker_is_not_announced_again() {
    let mut world = World::new().await;
    let stand_in = StandIn::playing(vec![Act::Hang]).await;
    let mut batches = Vec::new();
    for _ in 0..4 {
        world.become_another().await;
        world.connection("postmark", &stand_in.host()).await;
        batches.push(world.campaign_batch(&["ann@example.com"]).await.1);
    }
    // All connections together may use three of four workers.
    let patient = ["--delivery-workers", "4", "--provider-timeout", "60s"];
    let stage = world.stage_with(&[&["--provider-allow-hosts", &stand_in.host()], &patient[..]].concat());
    let announced =
        "select count(*) from batches where tenant_id = $1 and announce_after > now() + interval '50 seconds'";
    world.run("update batches set announce_after = now() where tenant_id = $1").await;
    let last_comes = async {
        until("the others to be asked", async || stand_in.seen().len() == 3).await;
        assert!(is_busy(stage.deliver(&[&batches[3]]).await));
    };
    let [first, second, third] = [[&batches[0]], [&batches[1]], [&batches[2]]];
    tokio::select! {
        _ = stage.deliver(&first) => panic!("the last waited for the first"),
        _ = stage.deliver(&second) => panic!("the last waited for the second"),
        _ = stage.deliver(&third) => panic!("the last waited for the third"),
        () = last_comes => {}
    }
    assert_eq!(world.states(&batches[3]).await, ["queued"]);
    assert_eq!(world.number(announced).await, 1, "it waits as it is, and is not rendered again meanwhile");
}

#[tokio::test]
async fn a_slow_connection_keeps_no_permits_of_others_in_its_group() {
    let mut world = World::new().await;
    let (slow, fast) = (StandIn::playing(vec![Act::Hang]).await, StandIn::playing(vec![taken()]).await);
    world.connection("postmark", &slow.host()).await;
    let (first, second) =
        (world.transactional_batch("ann@example.com").await, world.transactional_batch("eve@example.com").await);
    world.become_another().await;
    world.connection("resend", &fast.host()).await;
    let mut others = Vec::new();
    for number in 0..3 {
        others.push(world.transactional_batch(&format!("bob{number}@example.com")).await);
    }
    // Each connection may use two of four workers.
    let hosts = format!("{},{}", slow.host(), fast.host());
    let stage = world.stage_with(&["--provider-allow-hosts", &hosts, "--provider-timeout", "60s"]);
    let further = async {
        until("the fast ones of both groups", async || fast.seen().len() == 2 && slow.seen().len() == 2).await;
        until("the further one", async || {
            stage.deliver(&[&others[2]]).await.is_ok() && world.states(&others[2]).await == ["sent"]
        })
        .await;
    };
    let groups = [[&first, &others[0]], [&second, &others[1]]];
    tokio::select! {
        _ = stage.deliver(&groups[0]) => panic!("the slow one was answered"),
        _ = stage.deliver(&groups[1]) => panic!("the slow one was answered"),
        () = further => {}
    }
    for batch in &others {
        assert_eq!(world.states(batch).await, ["sent"]);
    }
}

#[tokio::test]
async fn mail_over_a_slow_connection_delays_no_other_of_its_group() {
    let mut world = World::new().await;
    let slow = StandIn::playing(vec![Act::Hang]).await;
    world.connection("postmark", &slow.host()).await;
    // More than are prepared and sent at once.
    let addresses: Vec<String> = (0..40).map(|number| format!("user{number}@example.com")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let many = world.batch(None, MessageKind::Transactional, Lane::Priority, &addresses).await;
    world.become_another().await;
    let other = world.transactional_batch("eve@example.org").await;
    let stage = world.stage_with(&["--provider-allow-hosts", &slow.host(), "--provider-timeout", "10m"]);
    let group = [&many, &other];
    tokio::select! {
        _ = stage.deliver(&group) => panic!("the slow one was answered"),
        () = until("the other tenant's mail is sent", async || world.states(&other).await == ["sent"]) => {}
    }
}

#[tokio::test]
async fn mail_that_waits_for_its_connection_counts_for_no_others() {
    let mut world = World::new().await;
    let slow = StandIn::playing(vec![Act::Hang]).await;
    world.connection("postmark", &slow.host()).await;
    let (_, waiting) = world.campaign_batch(&["ann@gmail.com"]).await;
    world.become_another().await;
    let (_, other) = world.campaign_batch(&["bob@gmail.com"]).await;
    let limits = ["--domain-connections", "1", "--provider-timeout", "10m"];
    let stage = world.stage_with(&[&["--provider-allow-hosts", &slow.host()], &limits[..]].concat());
    let other_comes = async {
        until("the first to be asked", async || !slow.seen().is_empty()).await;
        stage.deliver(&[&other]).await.unwrap();
    };
    let one = [&waiting];
    tokio::select! {
        _ = stage.deliver(&one) => panic!("the other waited for the first"),
        () = other_comes => {}
    }
    assert_eq!(world.states(&other).await, ["sent"]);
}

#[tokio::test]
async fn mail_that_waits_for_its_connection_stays_when_the_circuit_opens() {
    let world = World::new().await;
    let stand_in = StandIn::playing(vec![Act::Drop]).await;
    world.connection("postmark", &stand_in.host()).await;
    let addresses: Vec<String> = (0..200).map(|number| format!("user{number}@example.com")).collect();
    let (_, batch) = world.campaign_batch(&addresses.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let many = ["--smtp-connections", "128", "--provider-connections", "4"];
    let stage = world.stage_with(&[&["--provider-allow-hosts", &stand_in.host()], &many[..]].concat());
    stage.deliver(&[&batch]).await.unwrap();
    let doubted = world.states(&batch).await.iter().filter(|state| *state == "unknown").count();
    // Twenty, and what was on the wire at the same time.
    assert!((20..=24).contains(&doubted), "{doubted}");
    let owed = "select count(*) from sends where tenant_id = $1 and state = 'queued' and attempts = 0";
    assert_eq!(world.number(owed).await, 200 - doubted as i64);
    world.assert_counters_are_right().await;
}

/// Two connections of a tenant, and a stage that may reach both.
async fn with_fallback(world: &World, first: &StandIn, next: &StandIn) -> super::super::Delivery {
    world.connection("postmark", &first.host()).await;
    world.fallback("resend", &next.host()).await;
    world.stage_with(&["--provider-allow-hosts", &format!("{},{}", first.host(), next.host())])
}

#[tokio::test]
async fn mail_of_a_dead_provider_takes_the_next_and_comes_back() {
    let world = World::new().await;
    let busy = Act::Answer(503, "retry-after: 1\r\n", "{}".to_owned());
    let accepted = Act::Answer(200, "", r#"{"ErrorCode":0,"MessageID":"pm-1"}"#.to_owned());
    let first = StandIn::playing(vec![busy, accepted]).await;
    let next = StandIn::playing(vec![taken()]).await;
    let stage = with_fallback(&world, &first, &next).await;
    let (_, batch) = world.campaign_batch(&["ann@example.com"]).await;
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", None, 0), "the first provider certainly has not got it");
    let soon = "select extract(epoch from announce_after - now())::int8 from batches where tenant_id = $1";
    assert!(world.number(soon).await <= 1, "the next route may take it at once");
    stage.deliver(&[&batch]).await.unwrap();
    assert_eq!(world.text("select provider from sends where tenant_id = $1").await.unwrap(), "resend");
    assert_eq!((first.seen().len(), next.seen().len()), (1, 1));
    let health = ReportHealth { pool: world.pool.clone(), routes: stage.routes.clone() };
    health.sweep().await.unwrap();
    let open = "select count(*) from connection_health where open_until > now() and error_class is not null and tenant_id = $1";
    assert_eq!(world.number(open).await, 1);
    // The pause that the first provider asked for passes.
    let (_, later) = world.campaign_batch(&["bob@example.net", "eve@example.org"]).await;
    until("the first route to serve again", async || {
        stage.deliver(&[&later]).await.unwrap();
        let (_, more) = world.campaign_batch(&[&format!("{}@example.net", uuid::Uuid::new_v4())]).await;
        stage.deliver(&[&more]).await.unwrap();
        first.seen().len() > 1
    })
    .await;
    // One of the two may have tried the first route, and the other waited for its answer.
    stage.deliver(&[&later]).await.unwrap();
    health.sweep().await.unwrap();
    assert_eq!(world.number(open).await, 0, "its circuit is closed");
    let sent = "select count(*) from sends where tenant_id = $1 and state = 'sent'";
    let all = world.number("select count(*) from sends where tenant_id = $1").await;
    assert_eq!(world.number(sent).await, all);
    assert_eq!((first.seen().len() + next.seen().len()) as i64, all + 1, "one request a mail, and the refused one");
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn mail_in_doubt_never_takes_another_route() {
    let world = World::new().await;
    let first = StandIn::playing(vec![Act::Drop]).await;
    let next = StandIn::playing(vec![taken()]).await;
    let stage = with_fallback(&world, &first, &next).await;
    let batch = world.transactional_batch("ann@example.com").await;
    for _ in 0..2 {
        stage.deliver(&[&batch]).await.unwrap();
        assert_eq!(world.row(batch.send(0)).await, row("unknown", Some("no_answer"), 1));
    }
    assert_eq!((first.seen().len(), next.seen().len()), (1, 0));
    world.assert_counters_are_right().await;
}

#[rstest]
#[case::another_is_first("set fallback_rank = 2 where p.name = 'first'", Some("main"))]
#[case::it_is_taken_out("set status = 'disabled' where p.name = 'first'", Some("main"))]
#[case::it_leads_elsewhere(
    "set settings = n.settings from provider_connections n where p.name = 'first' and n.name = 'main'",
    Some("first")
)]
#[case::it_has_another_account(
    "set secret = n.secret from provider_connections n where p.name = 'first' and n.name = 'main'",
    Some("first")
)]
#[case::all_are_gone("set status = 'disabled'", None)]
#[tokio::test]
async fn mail_in_doubt_stays_unknown_once_its_route_has_changed(
    #[case] change: &'static str,
    #[case] first_now: Option<&'static str>,
) {
    let world = World::new().await;
    let first = StandIn::playing(vec![Act::Drop]).await;
    let next = StandIn::playing(vec![taken()]).await;
    let hosts = format!("{},{}", first.host(), next.host());
    let stage = || world.stage_with(&["--provider-allow-hosts", &hosts]);
    world.connection("postmark", &first.host()).await;
    world.run("update provider_connections set name = 'first', is_default = false where tenant_id = $1").await;
    world.connection("postmark", &next.host()).await;
    world.run("update provider_connections set is_default = false where tenant_id = $1").await;
    world.run("update provider_connections set is_default = true where tenant_id = $1 and name = 'first'").await;
    let batch = world.transactional_batch("ann@example.com").await;
    stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("queued", Some("no_answer"), 1));
    world.run("update provider_connections set is_default = false where tenant_id = $1").await;
    let change = format!("update provider_connections p {change}");
    sqlx::query(sqlx::AssertSqlSafe(change)).execute(&world.pool).await.unwrap();
    run!(&world.pool, "update provider_connections set is_default = true where name = $1", [first_now]);
    // A process that has not asked for the route before.
    stage().deliver(&[&batch]).await.unwrap();
    assert_eq!(world.row(batch.send(0)).await, row("unknown", Some("no_answer"), 1));
    assert_eq!((first.seen().len(), next.seen().len(), world.sink.inbox().stats().accepted), (1, 0, 0));
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn mail_in_doubt_is_tried_again_through_the_same_connection() {
    let world = World::new().await;
    let accepted = Act::Answer(200, "", r#"{"ErrorCode":0,"MessageID":"pm-1"}"#.to_owned());
    let only = StandIn::playing(vec![Act::Drop, accepted]).await;
    world.connection("postmark", &only.host()).await;
    let batch = world.transactional_batch("ann@example.com").await;
    for expected in [row("queued", Some("no_answer"), 1), row("sent", None, 2)] {
        // Its name and its rank may change meanwhile: it is the same account.
        world.run("update provider_connections set updated_at = now() where tenant_id = $1").await;
        world.stage_with(&["--provider-allow-hosts", &only.host()]).deliver(&[&batch]).await.unwrap();
        assert_eq!(world.row(batch.send(0)).await, expected);
    }
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn mail_in_doubt_that_is_deferred_stays_the_same_request() {
    let world = World::new().await;
    let broken = Act::Answer(500, "", r#"{"name":"application_error","message":"later"}"#.to_owned());
    // The attempt that is in doubt asks three times.
    let acts = vec![Act::Drop, Act::Drop, Act::Drop, broken, taken()];
    let stand_in = StandIn::playing(acts).await;
    world.connection("resend", &stand_in.host()).await;
    let batch = world.transactional_batch("ann@example.com").await;
    let stage = world.stage_with(&["--provider-allow-hosts", &stand_in.host()]);
    for expected in [row("queued", Some("no_answer"), 1), row("deferred", Some("temporary"), 2), row("sent", None, 3)] {
        stage.deliver(&[&batch]).await.unwrap();
        assert_eq!(world.row(batch.send(0)).await, expected);
        world.run("update sends set next_attempt_at = now() where tenant_id = $1 and state = 'deferred'").await;
    }
    let keys: Vec<String> = stand_in.seen().iter().map(|seen| seen.header("idempotency-key").to_owned()).collect();
    assert_eq!(keys, vec![format!("{}-1", batch.send(0)); 5]);
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn a_circuit_stays_open_when_its_connection_makes_room() {
    let world = World::new().await;
    let first = StandIn::answering(503, "", "{}").await;
    let next = StandIn::answering(200, "", r#"{"id":"id-1"}"#).await;
    let stage = with_fallback(&world, &first, &next).await;
    let open = world.transactional_batch("ann@example.com").await;
    stage.deliver(&[&open]).await.unwrap();
    assert_eq!(stage.routes.drop_connections().await, 1, "the fallback was not needed and is not opened");
    let asked = first.seen().len();
    stage.deliver(&[&open]).await.unwrap();
    assert_eq!(world.states(&open).await, ["sent"]);
    assert_eq!((first.seen().len(), next.seen().len()), (asked, 1));
}

#[tokio::test]
async fn a_crash_after_the_fence_is_final_where_another_route_could_take_the_mail() {
    let world = World::new().await;
    world.connection("postmark", "127.0.0.1:1").await;
    world.fallback("resend", "127.0.0.1:2").await;
    let batch = world.transactional_batch("ann@example.com").await;
    world
        .run("update sends set state = 'fenced', fence_token = gen_random_uuid(), attempts = 1, lease_until = now() - interval '1 s' where tenant_id = $1")
        .await;
    world
        .run("update batches set queued = 0, fenced = 1, lease_until = now() - interval '1 s' where tenant_id = $1")
        .await;
    assert_eq!(world.sweep_leases().await, 1);
    assert_eq!(world.row(batch.send(0)).await.state, "unknown");
    world.assert_counters_are_right().await;
}

#[tokio::test]
async fn the_platforms_relay_is_pinged() {
    let world = World::new().await;
    let ping = async |more: &[&str]| {
        let provider = Arc::new(world.stage_with(more).relay[1].clone());
        let ping = RelayPing { pool: world.pool.clone(), provider, interval: Duration::from_secs(30) };
        ping.sweep().await.unwrap();
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

#[tokio::test]
async fn a_check_asks_the_provider_with_the_stored_secret() {
    let world = World::new().await;
    let well = Act::Answer(200, "", r#"{"data":[]}"#.to_owned());
    let refused = Act::Answer(401, "", r#"{"name":"invalid_api_key","message":"the-key of Acme"}"#.to_owned());
    let stand_in = StandIn::playing(vec![well, refused]).await;
    let connection = world.connection("resend", &stand_in.host()).await;
    let check = async |more: &[&str]| {
        run!(
            &world.pool,
            "insert into connection_checks (tenant_id, connection_id) values ($1, $2)
             on conflict (tenant_id, connection_id) do update set asked_at = now(), taken_at = null, answered_at = null",
            [world.tenant, connection]);
        let sweep = CheckConnections { pool: world.pool.clone(), routes: world.stage_with(more).routes.clone() };
        assert_eq!((sweep.sweep().await.unwrap(), sweep.sweep().await.unwrap()), (1, 0), "once");
        sqlx::query_as::<_, (bool, Option<String>)>(
            "select answered_at is not null and latency_ms is not null, error_code from connection_checks",
        )
        .fetch_one(&world.pool)
        .await
        .unwrap()
    };
    let allowed = ["--provider-allow-hosts", &stand_in.host()];
    assert_eq!(check(&allowed).await, (true, None));
    assert_eq!(stand_in.only().header("authorization"), "Bearer the-key");
    assert_eq!(check(&allowed).await, (true, Some("credentials".to_owned())));
    assert_eq!(check(&[]).await, (true, Some("settings".to_owned())), "a host that may not be reached is not");
    assert_eq!(stand_in.seen().len(), 2);
}
