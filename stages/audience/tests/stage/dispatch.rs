//! Handing on: fair between tenants, within the backlog, never for a paused or cancelled campaign.

use std::collections::BTreeMap;

use rstest::rstest;
use schemas::{LaunchId, Resolved, month_of, subjects::stream};
use stage_rig::{Rig, Tenant, until};
use uuid::Uuid;

use crate::{run, set_aside, start};

/// A running campaign with this many full batches that wait; their sends are of no concern here, nor is the tripwire, which lets the
/// first thousand out alone.
async fn waiting(rig: &Rig, tenant: &Tenant, batches: u32) -> Uuid {
    let list = rig.audience(tenant, "list", &[]).await;
    let campaign = rig.campaign(tenant, list).await;
    let launch = LaunchId::fresh();
    // Together: a campaign whose audience is written and that has no batch is completed by a sweep.
    let mut tx = rig.pool.begin().await.unwrap();
    sqlx::query("update campaigns set launch_prefix = $2, month = $3, materialized_at = now(), tripwire = 'disarmed' where id = $1")
        .bind(campaign)
        .bind(launch.prefix())
        .bind(launch.month())
        .execute(&mut *tx)
        .await
        .unwrap();
    let ids: Vec<Uuid> = (0..batches).map(|number| launch.batch(number)).collect();
    sqlx::query(
        "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, size, queued)
         select $1, unnest($2::uuid[]), $3, 'campaign', 'bulk', 'marketing', $4, $5, $6, 500, 500",
    )
    .bind(tenant.id)
    .bind(&ids)
    .bind(month_of(launch.batch(0)))
    .bind(campaign)
    .bind(tenant.content)
    .bind(tenant.sender)
    .execute(&mut *tx)
    .await
    .unwrap();
    tx.commit().await.unwrap();
    campaign
}

/// A waiting campaign with its tripwire armed.
async fn waiting_and_armed(rig: &Rig, tenant: &Tenant, batches: u32) {
    let campaign = waiting(rig, tenant, batches).await;
    stage_rig::run!(&rig.pool, "update campaigns set tripwire = 'armed' where id = $1", [campaign]);
}

/// Changes these of the batches, in the order of their ids.
async fn change_batches(rig: &Rig, which: &str, change: &str) {
    let change = format!(
        "update batches set {change} where (tenant_id, id) in (select tenant_id, id from batches order by id {which})"
    );
    run(rig, &change).await;
}

async fn announced_by_tenant(rig: &Rig) -> BTreeMap<Uuid, i64> {
    let rows: Vec<(Uuid, i64)> =
        sqlx::query_as("select tenant_id, count(*) from batches where state = 'announced' group by tenant_id")
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    rows.into_iter().collect()
}

async fn announced(rig: &Rig) -> i64 {
    announced_by_tenant(rig).await.values().sum()
}

/// Delivery does its work on what a tenant has in flight.
async fn deliver(rig: &Rig, tenant: &Tenant) {
    sqlx::query(
        "update batches set state = 'done', queued = 0, sent = 500, done_at = now(), announce_after = null
         where tenant_id = $1 and state = 'announced'",
    )
    .bind(tenant.id)
    .execute(&rig.pool)
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn within_a_tenant_the_urgent_go_first_and_never_before_another_tenant() {
    let rig = Rig::new().await;
    let (tenant, other) = (rig.tenant().await, rig.tenant().await);
    // The least urgent was launched first.
    let mut campaigns = BTreeMap::new();
    for urgency in ["low", "normal", "important", "urgent", "emergency"] {
        let campaign = waiting(&rig, &tenant, 1).await;
        campaigns.insert(campaign, urgency);
    }
    campaigns.insert(waiting(&rig, &other, 5).await, "low");
    for (campaign, urgency) in &campaigns {
        sqlx::query("update campaigns set urgency = $2 where id = $1")
            .bind(campaign)
            .bind(urgency)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    // Room for one batch of each tenant.
    start(&rig, &["--audience-backlog", "1000"]).await;
    let mut order = Vec::new();
    for _ in 0..5 {
        let one_each = BTreeMap::from([(tenant.id, 1), (other.id, 1)]);
        until("each tenant has one in flight", async || announced_by_tenant(&rig).await == one_each).await;
        let campaign: Uuid =
            sqlx::query_scalar("select campaign_id from batches where state = 'announced' and tenant_id = $1")
                .bind(tenant.id)
                .fetch_one(&rig.pool)
                .await
                .unwrap();
        order.push(campaigns[&campaign]);
        deliver(&rig, &tenant).await;
        deliver(&rig, &other).await;
    }
    assert_eq!(order, ["emergency", "urgent", "important", "normal", "low"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_tenant_does_not_delay_nine_small_ones() {
    let rig = Rig::new().await;
    let big = rig.tenant().await;
    waiting(&rig, &big, 100).await;
    let mut small = Vec::new();
    for _ in 0..9 {
        let tenant = rig.tenant().await;
        waiting(&rig, &tenant, 1).await;
        small.push(tenant);
    }
    // Room for one batch of each.
    for _ in 0..2 {
        start(&rig, &["--audience-backlog", "5000"]).await;
    }
    until("the lane is full", async || announced(&rig).await >= 10).await;
    let first = announced_by_tenant(&rig).await;
    assert_eq!(first.values().copied().collect::<Vec<_>>(), [1; 10], "each tenant has one in flight");

    // What the small ones leave is the big one's.
    for tenant in &small {
        deliver(&rig, tenant).await;
    }
    until("the lane is full again", async || announced(&rig).await >= 10).await;
    assert_eq!(announced_by_tenant(&rig).await, BTreeMap::from([(big.id, 10)]));

    // One that comes later has its turn as soon as there is room, before the big one's ninety others.
    let late = rig.tenant().await;
    waiting(&rig, &late, 2).await;
    sqlx::query(
        "update batches set state = 'done', queued = 0, sent = 500, done_at = now(), announce_after = null
         where (tenant_id, id) in (select tenant_id, id from batches where state = 'announced' order by id limit 2)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    until("the late one is served", async || announced_by_tenant(&rig).await.get(&late.id) == Some(&2)).await;
    assert_eq!(announced(&rig).await, 10, "and the lane is not overfilled");
    // It is announced after the commit that was just seen.
    let announced = async || rig.messages::<Resolved>(stream::RESOLVED).await.len();
    until("all hand-ons are announced", async || announced().await >= 21).await;
    assert_eq!(announced().await, 21, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_own_connection_stands_still_takes_room_from_nobody() {
    let rig = Rig::new().await;
    let (apart, other) = (rig.tenant().await, rig.tenant().await);
    waiting(&rig, &apart, 20).await;
    waiting(&rig, &other, 5).await;
    sqlx::query(
        "insert into provider_connections (tenant_id, id, provider, name, settings, secret, is_default)
         values ($1, gen_random_uuid(), 'ses', 'Own', '{}', '', true)",
    )
    .bind(apart.id)
    .execute(&rig.pool)
    .await
    .unwrap();
    start(&rig, &["--audience-backlog", "1000", "--audience-connection-backlog", "1500"]).await;
    let full = BTreeMap::from([(apart.id, 3), (other.id, 2)]);
    until("each has its own room", async || announced_by_tenant(&rig).await == full).await;
    deliver(&rig, &other).await;
    until("the other goes on", async || announced_by_tenant(&rig).await == full).await;
    deliver(&rig, &other).await;
    until("and ends", async || announced_by_tenant(&rig).await == BTreeMap::from([(apart.id, 3), (other.id, 1)])).await;
    deliver(&rig, &apart).await;
    until("what moves goes on", async || announced_by_tenant(&rig).await.get(&apart.id) == Some(&3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_larger_than_the_backlog_is_dispatched() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting(&rig, &tenant, 3).await;
    start(&rig, &["--audience-backlog", "1"]).await;
    until("one is in flight", async || announced(&rig).await == 1).await;
    deliver(&rig, &tenant).await;
    until("the next is in flight", async || {
        rig.number("select count(*) from batches where state = 'done'").await == 1 && announced(&rig).await == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_campaign_is_dispatched_after_it_is_resumed() {
    let rig = Rig::new().await;
    let (paused, running) = (rig.tenant().await, rig.tenant().await);
    let campaign = waiting(&rig, &paused, 2).await;
    sqlx::query("update campaigns set paused = true where id = $1").bind(campaign).execute(&rig.pool).await.unwrap();
    waiting(&rig, &running, 2).await;
    start(&rig, &[]).await;
    until("the running one is dispatched", async || announced_by_tenant(&rig).await.get(&running.id) == Some(&2)).await;
    assert_eq!(announced_by_tenant(&rig).await.get(&paused.id), None);
    run(&rig, "update campaigns set paused = false").await;
    until("the resumed one is dispatched", async || announced_by_tenant(&rig).await.get(&paused.id) == Some(&2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_a_paused_campaign_do_not_keep_the_lane_from_others() {
    let rig = Rig::new().await;
    let paused = rig.tenant().await;
    waiting(&rig, &paused, 2).await;
    // Nobody hears the announcements, and the campaign is paused with the lane full of them.
    start(&rig, &["--audience-backlog", "1000", "--audience-reannounce", "1s"]).await;
    until("the lane is full", async || announced(&rig).await == 2).await;
    run(&rig, "update campaigns set paused = true").await;
    let other = rig.tenant().await;
    waiting(&rig, &other, 2).await;
    until("the other tenant is served", async || announced_by_tenant(&rig).await == BTreeMap::from([(other.id, 2)]))
        .await;
}

/// The mail of a tenant was put off, and its time has come.
async fn due_again(rig: &Rig, tenant: &Tenant, batches: u32) {
    waiting(rig, tenant, batches).await;
    sqlx::query(
        "update batches set state = 'resting', queued = 0, deferred = 500, announcement = 1, quiet_at = now(), announce_after = now()
         where tenant_id = $1",
    )
    .bind(tenant.id)
    .execute(&rig.pool)
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_that_was_put_off_waits_for_its_turn_and_fills_the_lane() {
    let rig = Rig::new().await;
    let (tenant, isolated) = (rig.tenant().await, rig.tenant().await);
    due_again(&rig, &tenant, 6).await;
    sqlx::query(
        "insert into provider_connections (tenant_id, id, provider, name, settings, secret, is_default)
         values ($1, gen_random_uuid(), 'ses', 'Own', '{}', '', true)",
    )
    .bind(isolated.id)
    .execute(&rig.pool)
    .await
    .unwrap();
    start(&rig, &["--audience-backlog", "1000"]).await;
    until("the lane is full", async || announced(&rig).await >= 2).await;
    // Dispatch of a tenant with a lane of its own shows that waiting batches were looked at, with the lane full.
    for look in 1..=3 {
        waiting(&rig, &isolated, 1).await;
        until("it was looked", async || announced_by_tenant(&rig).await.get(&isolated.id) == Some(&look)).await;
        assert_eq!(announced_by_tenant(&rig).await[&tenant.id], 2);
    }
    assert_eq!(rig.number("select count(*) from batches where state = 'waiting'").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn put_off_mail_of_a_paused_campaign_does_not_keep_the_lane_from_others() {
    let rig = Rig::new().await;
    let (tenant, other) = (rig.tenant().await, rig.tenant().await);
    due_again(&rig, &tenant, 2).await;
    start(&rig, &["--audience-backlog", "1000", "--audience-reannounce", "1s"]).await;
    until("the lane is full", async || announced(&rig).await == 2).await;
    run(&rig, "update campaigns set paused = true").await;
    waiting(&rig, &other, 2).await;
    until("the other tenant is served", async || announced_by_tenant(&rig).await == BTreeMap::from([(other.id, 2)]))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_announcements_do_not_help_wait_for_their_tenants_turn_again() {
    let rig = Rig::new().await;
    let (stuck, other) = (rig.tenant().await, rig.tenant().await);
    waiting(&rig, &stuck, 2).await;
    // They fill the lane, and no stage can handle them.
    run(&rig, "update batches set state = 'announced', announcement = 3, announce_after = now()").await;
    waiting(&rig, &other, 1).await;
    start(&rig, &["--audience-backlog", "1000"]).await;
    let one_each = BTreeMap::from([(stuck.id, 1), (other.id, 1)]);
    until("the other tenant is served", async || announced_by_tenant(&rig).await == one_each).await;
    assert_eq!(
        rig.number(
            "select count(*) from batches where announcement = 4 and announce_after > now() + interval '7 minutes'"
        )
        .await,
        1,
        "the pause goes on doubling"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_paced_campaign_has_in_the_lane_stays_counted_for_its_pace() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting(&rig, &tenant, 2).await;
    let stuck =
        "update batches set state = 'announced', announcement = 3, announce_after = now(), dispatched_sends = 500";
    run(&rig, stuck).await;
    start(&rig, &[]).await;
    until("both are announced again", async || {
        rig.number("select count(*) from batches where announcement = 4 and state = 'announced'").await == 2
    })
    .await;
    assert_eq!(rig.number("select count(*) from batches where quiet_at is not null").await, 0, "they never waited");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_tried_and_comes_again_does_not_keep_the_rest_waiting_a_second_time() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 4).await;
    // The first thousand are through but for some at a receiver that defers, and these are due: both batches are announced again.
    let again = "state = 'announced', queued = 0, sent = 400, deferred = 100, announcement = 2, quiet_at = now(),
                 announce_after = now() + interval '1 hour'";
    change_batches(&rig, "limit 2", again).await;
    start(&rig, &[]).await;
    until("the others are dispatched", async || announced(&rig).await == 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_the_winner_of_a_test_is_not_among_the_first_thousand() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 6).await;
    // Two small variants of the first range are through; its remainder is held, and the variants of the next range wait behind it.
    for (batches, state) in [
        ("limit 2", "state = 'done', size = 100, queued = 0, sent = 100"),
        ("offset 2 limit 3", "state = 'held'"),
        ("offset 5", "size = 100, queued = 100"),
    ] {
        change_batches(&rig, batches, state).await;
    }
    start(&rig, &[]).await;
    until("the next range's variant is dispatched", async || announced(&rig).await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_first_range_of_a_test_that_is_within_its_limits_does_not_keep_the_remainder() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 7).await;
    // The variants of two ranges are through: 22 bounces are 5.5 % of the first range's, and 4.4 % of all. The remainders are released.
    for (batches, state) in [
        ("limit 2", "state = 'done', size = 200, queued = 0, sent = 189, failed = 11, bounced = 11"),
        ("offset 5 limit 1", "state = 'done', size = 100, queued = 0, sent = 100"),
    ] {
        change_batches(&rig, batches, state).await;
    }
    start(&rig, &[]).await;
    until("the remainder is dispatched", async || announced(&rig).await == 2).await;
    assert_eq!(rig.number("select count(*) from campaigns where paused").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_its_first_thousand_a_campaign_gets_as_many_as_are_through_until_these_are() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 10).await;
    let deliver_of_first = async |sent: i32| {
        sqlx::query(
            "update batches set queued = 500 - $1, sent = $1 where id in (select id from batches order by id limit 2)",
        )
        .bind(sent)
        .execute(&rig.pool)
        .await
        .unwrap();
    };
    start(&rig, &[]).await;
    until("the first thousand are dispatched", async || announced(&rig).await == 2).await;
    // What a look finds each time; a campaign of another tenant shows that one was made.
    let others = rig.tenant().await;
    for (looks, (sent, handed_on)) in (1_i64..).zip([(249, 2), (250, 3), (449, 3), (450, 10)]) {
        deliver_of_first(sent).await;
        waiting(&rig, &others, 1).await;
        until("it was looked", async || announced_by_tenant(&rig).await.get(&others.id) == Some(&looks)).await;
        until("as many more", async || announced_by_tenant(&rig).await[&tenant.id] >= handed_on).await;
        assert_eq!(announced_by_tenant(&rig).await[&tenant.id], handed_on, "{sent} of each batch are through");
    }
}

/// Sets the first batches aside.
async fn set_first_aside(rig: &Rig, tenant: &Tenant, batches: i64) {
    let first: Vec<Uuid> = sqlx::query_scalar("select id from batches where tenant_id = $1 order by id limit $2")
        .bind(tenant.id)
        .bind(batches)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    for batch in first {
        set_aside(rig, tenant.id, batch).await;
    }
}

#[rstest]
#[case::set_aside_for_a_day(true)]
#[case::announced_in_vain(false)]
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_cannot_be_handled_stops_no_large_campaign(#[case] is_aside: bool) {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 70).await;
    if is_aside {
        set_first_aside(&rig, &tenant, 1).await;
    } else {
        let in_vain = "state = 'announced', announcement = 3, announce_after = now() + interval '10 minutes'";
        change_batches(&rig, "limit 1", in_vain).await;
    }
    let through = "state = 'done', queued = 0, sent = 500, quiet_at = now(), done_at = now()";
    change_batches(&rig, "offset 1 limit 63", through).await;
    start(&rig, &[]).await;
    until("the six after the 64th are dispatched", async || announced(&rig).await == 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_are_set_aside_are_not_the_first_thousand() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 6).await;
    set_first_aside(&rig, &tenant, 2).await;
    start(&rig, &[]).await;
    until("the first thousand of the others are dispatched", async || announced(&rig).await == 4).await;
    assert_eq!(rig.number("select count(*) from batches where state = 'waiting'").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_wait_for_a_time_are_not_the_first_thousand() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 6).await;
    // It is quiet, or not yet the time, where the recipients of the first three are.
    sqlx::query(
        "update batches set state = 'timed', announce_after = now() + interval '1 hour'
         where (tenant_id, id) in (select tenant_id, id from batches order by id limit 3)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    start(&rig, &[]).await;
    until("the first thousand of the others are dispatched", async || announced(&rig).await == 2).await;
    deliver(&rig, &tenant).await;
    until("they are through, and the rest follows", async || announced(&rig).await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bounces_beyond_the_first_thousand_stop_dispatch_too() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 4).await;
    // The third batch went out because half of the first were through; now these are, and the third has met dead addresses.
    sqlx::query(
        "update batches b set state = 'announced', queued = 0, sent = 500 - bad.addresses, failed = bad.addresses, bounced = bad.addresses,
                              announce_after = now() + interval '1 hour'
         from (select tenant_id, id, case when row_number() over (order by id) = 3 then 100 else 0 end as addresses
               from batches order by id limit 3) bad
         where (b.tenant_id, b.id) = (bad.tenant_id, bad.id)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let others = rig.tenant().await;
    waiting(&rig, &others, 1).await;
    start(&rig, &[]).await;
    until("it was looked", async || announced_by_tenant(&rig).await.contains_key(&others.id)).await;
    assert_eq!(announced_by_tenant(&rig).await[&tenant.id], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_beginning_of_a_campaign_that_is_within_its_limits_does_not_stop_it() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    waiting_and_armed(&rig, &tenant, 100).await;
    // All but the last are through; the bounces of the first 64 came late. They are 6 % of these, and less than 4 % of all.
    sqlx::query(
        "update batches b
         set state = 'done', queued = 0, sent = 500 - n.bad, failed = n.bad, bounced = n.bad, quiet_at = now(), done_at = now()
         from (select tenant_id, id, row_number() over (order by id) as number,
                      case when row_number() over (order by id) <= 64 then 30 else 0 end as bad
               from batches) n
         where (b.tenant_id, b.id) = (n.tenant_id, n.id) and n.number < 100",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    start(&rig, &[]).await;
    until("the last is dispatched", async || announced(&rig).await == 1).await;
    assert_eq!(rig.number("select count(*) from campaigns where paused").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn campaigns_that_wait_for_results_hide_no_other() {
    let rig = Rig::new().await;
    for _ in 0..5 {
        let tenant = rig.tenant().await;
        waiting_and_armed(&rig, &tenant, 3).await;
    }
    // Their first thousand are not through, and nothing of them is in flight: each is before the others in turn.
    sqlx::query(
        "update batches b set state = 'resting', announce_after = now() + interval '1 hour'
         from (select tenant_id, id, row_number() over (partition by tenant_id order by id) as number from batches) n
         where (b.tenant_id, b.id) = (n.tenant_id, n.id) and n.number <= 2",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let other = rig.tenant().await;
    waiting(&rig, &other, 1).await;
    // Three campaigns are considered at a time.
    start(&rig, &["--audience-backlog", "1000", "--audience-connection-backlog", "500"]).await;
    until("the other is dispatched", async || announced_by_tenant(&rig).await.contains_key(&other.id)).await;
    assert_eq!(announced(&rig).await, 1);
}
