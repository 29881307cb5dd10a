//! A/B tests: who gets which variant, and what becomes of the rest.

use std::collections::{BTreeMap, BTreeSet};

use ledger::audience::Split;
use rstest::rstest;
use schemas::new_id;
use sqlx::Row;
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

use crate::{materialized, run, set_aside, start};

/// A campaign with a test, launched: variants A, B … with these weights, each with a content of its own.
async fn tested(rig: &Rig, tenant: &Tenant, people: &[Person], percent: i16, weights: &[i32]) -> Uuid {
    let campaign = drafted(rig, tenant, people, percent, weights).await;
    let request = rig.launch_request(tenant, campaign).await;
    rig.ring(&[request], "1").await;
    campaign
}

/// As [`tested`], not launched yet.
async fn drafted(rig: &Rig, tenant: &Tenant, people: &[Person], percent: i16, weights: &[i32]) -> Uuid {
    let list = rig.audience(tenant, "list", people).await;
    let campaign = rig.campaign(tenant, list).await;
    sqlx::query(
        "update campaigns set test_percent = $2, winner_metric = 'click_rate', decide_after_minutes = 60 where id = $1",
    )
    .bind(campaign)
    .bind(percent)
    .execute(&rig.pool)
    .await
    .unwrap();
    for (letter, weight) in ledger::audience::VARIANT_NAMES.iter().zip(weights) {
        let content = new_id();
        sqlx::query(
            "insert into contents (tenant_id, id, kind, subject, body_html) values ($1, $2, 'marketing', $3, '<p>Hi</p>')",
        )
        .bind(tenant.id)
        .bind(content)
        .bind(letter)
        .execute(&rig.pool)
        .await
        .unwrap();
        sqlx::query(
            "insert into campaign_variants (tenant_id, campaign_id, variant, name, weight, content_id)
             values ($1, $2, $3, $3, $4, $5)",
        )
        .bind(tenant.id)
        .bind(campaign)
        .bind(letter)
        .bind(weight)
        .bind(content)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    campaign
}

/// Sends by the variant of their batch, and the contacts in each.
async fn by_variant(rig: &Rig) -> BTreeMap<Option<String>, BTreeSet<Uuid>> {
    let rows = sqlx::query(
        "select b.variant, s.contact_id from sends s join batches b on b.tenant_id = s.tenant_id and b.id = batch_of(s.id)",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    let mut found: BTreeMap<Option<String>, BTreeSet<Uuid>> = BTreeMap::new();
    for row in rows {
        assert!(found.entry(row.get(0)).or_default().insert(row.get(1)), "one send for each contact");
    }
    found
}

#[rstest]
#[case::in_one_range(3_000)]
#[case::in_three(1_001)]
#[tokio::test(flavor = "multi_thread")]
async fn each_contact_gets_the_variant_it_is_drawn_for_and_the_rest_is_held_back(#[case] range: usize) {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3_000).await;
    let campaign = drafted(&rig, &tenant, &people, 40, &[3, 1]).await;
    let request = rig.launch_request_of(&tenant, campaign, &people, range).await;
    rig.ring(&[request], "1").await;
    start(&rig, &["--audience-backlog", "1"]).await;
    materialized(&rig).await;

    let found = by_variant(&rig).await;
    let split = Split::new(40, &[3, 1]);
    let mut expected: BTreeMap<Option<String>, BTreeSet<Uuid>> = BTreeMap::new();
    for person in &people {
        let part: i32 = sqlx::query_scalar("select width_bucket(ab_draw($1, $2), $3::bigint[])")
            .bind(campaign)
            .bind(person.id)
            .bind(split.thresholds())
            .fetch_one(&rig.pool)
            .await
            .unwrap();
        expected.entry(split.variant_name(part).map(str::to_owned)).or_default().insert(person.id);
    }
    assert_eq!(found, expected);
    // 900, 300 and 1,800 are expected; four standard deviations are left for chance.
    let size = |variant: Option<&str>| found[&variant.map(str::to_owned)].len();
    assert!(
        size(Some("A")).abs_diff(900) < 101 && size(Some("B")).abs_diff(300) < 66,
        "{} {}",
        size(Some("A")),
        size(Some("B"))
    );
    assert_eq!(rig.number("select count(*) from batches where (state = 'held') <> (variant is null)").await, 0);
    assert_eq!(
        rig.number(
            "select count(*) from batches b join campaign_variants v on v.variant = b.variant where b.content_id <> v.content_id"
        )
        .await,
        0,
        "each batch pins its variant's content"
    );
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draws_are_even_whatever_the_campaign() {
    let rig = Rig::new().await;
    // 8 parts of 20,000 contacts: 2,500 each, with a standard deviation of 47.
    let rows = sqlx::query(
        "select width_bucket(ab_draw($1, gen_random_uuid()), array[536870912, 1073741824, 1610612736, 2147483648, 2684354560, 3221225472, 3758096384]::bigint[]),
                count(*)
         from generate_series(1, 20000) group by 1",
    )
    .bind(new_id())
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    assert_eq!(rows.len(), 8);
    for row in rows {
        let count: i64 = row.get(1);
        assert!((2_260..2_740).contains(&count), "{count}");
    }
}

/// The test's mail is out: so many of each variant were sent, and so many clicked.
async fn results(rig: &Rig, clicked: &[(&str, i32)]) {
    sqlx::query("update sends s set state = 'sent' from batches b where b.variant is not null and s.id between b.id and (left(b.id::text, 33) || 'fff')::uuid and s.state = 'queued'")
        .execute(&rig.pool)
        .await
        .unwrap();
    for (variant, clicked) in clicked {
        sqlx::query(
            "update batches set state = 'done', announce_after = null, done_at = now(), sent = size, queued = 0,
                    clicked_human = case when id = (select min(id::text)::uuid from batches where variant = $1) then $2 else 0 end
             where variant = $1",
        )
        .bind(variant)
        .bind(clicked)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
}

async fn decision(rig: &Rig) -> (Option<String>, Option<String>) {
    sqlx::query_as("select winner, winner_reason from campaigns").fetch_one(&rig.pool).await.unwrap()
}

/// A test of half of two hundred people, by two variants, whose batches are dispatched.
async fn dispatched(rig: &Rig) -> Tenant {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 200).await;
    tested(rig, &tenant, &people, 50, &[1, 1]).await;
    start(rig, &["--audience-backlog", "100000"]).await;
    until("dispatched", async || rig.number("select count(*) from batches where state = 'announced'").await == 2).await;
    tenant
}

async fn decided(rig: &Rig) {
    until("the test's mail is out", async || {
        rig.number("select count(*) from campaigns where tested_at is not null").await == 1
    })
    .await;
    assert_eq!(decision(rig).await, (None, None), "not before its time");
    run(rig, "update campaigns set tested_at = now() - interval '1 hour'").await;
    until("decided", async || rig.number("select count(*) from campaigns where decided_at is not null").await == 1)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_remainder_gets_the_winner_when_the_time_has_come() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1_000).await;
    tested(&rig, &tenant, &people, 50, &[1, 1]).await;
    start(&rig, &["--audience-backlog", "100000"]).await;
    until("the test is dispatched, the rest is not", async || {
        rig.number("select count(*) from batches where state = 'announced' and variant is not null").await == 2
            && rig.number("select count(*) from batches where state = 'held'").await >= 1
    })
    .await;
    assert_eq!(rig.number("select count(*) from campaigns where tested_at is not null").await, 0);
    results(&rig, &[("A", 5), ("B", 25)]).await;
    decided(&rig).await;
    assert_eq!(decision(&rig).await, (Some("B".into()), Some("highest_rate".into())));
    until("the rest is dispatched as B", async || {
        rig.number(
            "select count(*) from batches b join campaign_variants v on v.variant = 'B' and v.content_id = b.content_id
             where b.state = 'announced' and b.variant = 'B'",
        )
        .await
            >= 1
            && rig.number("select count(*) from batches where state in ('held', 'waiting')").await == 0
    })
    .await;
    let audited: String =
        sqlx::query_scalar("select detail ->> 'winner' from audit_log where action = 'campaign.winner'")
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!(audited, "B");
}

#[rstest]
#[case::in_quiet_hours(
    "update batches set state = 'timed', announce_after = now() + interval '1 hour' where campaign_id = $1 and variant = 'A'"
)]
#[case::in_part("with b as (update batches set state = 'resting', queued = 0, sent = size - 1, deferred = 1, announce_after = now() + interval '1 hour'
                           where campaign_id = $1 and variant = 'A' returning id)
                update sends s set state = case when s.id = b.id then 'deferred' else 'sent' end, reason = 'quiet_hours',
                                   next_attempt_at = case when s.id = b.id then now() + interval '1 hour' end
                from b where batch_of(s.id) = b.id")]
#[tokio::test(flavor = "multi_thread")]
async fn a_test_is_not_out_while_mail_of_it_is_put_off(#[case] put_off: &'static str) {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 200).await;
    let waits = tested(&rig, &tenant, &people, 50, &[1, 1]).await;
    let other = tested(&rig, &tenant, &people, 50, &[1, 1]).await;
    start(&rig, &["--audience-backlog", "100000"]).await;
    until("dispatched", async || rig.number("select count(*) from batches where state = 'announced'").await == 4).await;
    sqlx::query(put_off).bind(waits).execute(&rig.pool).await.unwrap();
    let rest = "update batches set state = 'done', announce_after = null, done_at = now(), sent = size, queued = 0
                where state = 'announced'";
    run(&rig, rest).await;
    // Both are looked at in one statement.
    until("the other test is out", async || {
        rig.number("select count(*) from campaigns where tested_at is not null").await > 0
    })
    .await;
    let out: Vec<Uuid> =
        sqlx::query_scalar("select id from campaigns where tested_at is not null").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(out, [other]);
    sqlx::query("update batches set state = 'done', announce_after = null, done_at = now(), sent = size, queued = 0, deferred = 0 where variant = 'A'")
        .execute(&rig.pool)
        .await
        .unwrap();
    until("it is out as well", async || {
        rig.number("select count(*) from campaigns where tested_at is not null").await == 2
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_aside_batch_of_a_test_does_not_hold_the_remainder() {
    let rig = Rig::new().await;
    let tenant = dispatched(&rig).await;
    let aside: Uuid =
        sqlx::query_scalar("select id from batches where variant = 'B'").fetch_one(&rig.pool).await.unwrap();
    set_aside(&rig, tenant.id, aside).await;
    results(&rig, &[("A", 25)]).await;
    decided(&rig).await;
    assert_eq!(decision(&rig).await.0.as_deref(), Some("A"));
    until("the rest is dispatched", async || {
        rig.number("select count(*) from batches where state in ('held', 'waiting')").await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_is_set_aside_is_decided_at_its_time() {
    let rig = Rig::new().await;
    let tenant = dispatched(&rig).await;
    let batches: Vec<Uuid> =
        sqlx::query_scalar("select id from batches where state = 'announced'").fetch_all(&rig.pool).await.unwrap();
    for batch in batches {
        set_aside(&rig, tenant.id, batch).await;
    }
    decided(&rig).await;
    assert_eq!(decision(&rig).await, (Some("A".into()), Some("too_little_data".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn with_too_little_data_the_first_variant_wins() {
    let rig = Rig::new().await;
    dispatched(&rig).await;
    results(&rig, &[("A", 0), ("B", 4)]).await;
    decided(&rig).await;
    assert_eq!(decision(&rig).await, (Some("A".into()), Some("too_little_data".into())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_that_nobody_is_in_is_decided_at_once() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3).await;
    tested(&rig, &tenant, &people, 1, &[1, 1]).await;
    start(&rig, &["--audience-backlog", "100000"]).await;
    materialized(&rig).await;
    // Whoever is drawn for the test is skipped.
    let skipped =
        "update batches set state = 'done', announce_after = null, done_at = now(), skipped = size, queued = 0
                   where variant is not null and state <> 'held'";
    run(&rig, skipped).await;
    until("decided", async || rig.number("select count(*) from campaigns where decided_at is not null").await == 1)
        .await;
    assert_eq!(decision(&rig).await, (Some("A".into()), Some("too_little_data".into())));
    assert_eq!(rig.number("select count(*) from batches where state = 'held'").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_test_cancels_the_remainder_too() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 700).await;
    tested(&rig, &tenant, &people, 10, &[1, 1]).await;
    start(&rig, &[]).await;
    materialized(&rig).await;
    run(&rig, "update campaigns set status = 'cancelled'").await;
    until("completed", async || rig.number("select count(*) from campaigns where completed_at is not null").await == 1)
        .await;
    assert_eq!(rig.number("select sum(cancelled) from batches").await, 700);
    assert_eq!(rig.number("select count(*) from campaigns where winner is not null").await, 0);
    rig.assert_books().await;
}
