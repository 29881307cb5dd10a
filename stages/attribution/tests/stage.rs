//! The stage on its own database and streams.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use chrono::{TimeDelta, Utc};
use ledger::{attribution::Policy, outcomes::Premium};
use runtime::plans::PreparedPool;
use schemas::{AttributionModel, new_id};
use serde_json::json;
use sqlx::PgConnection;
use stage_rig::until;
use uuid::Uuid;

use support::Shop;

#[tokio::test]
async fn the_last_click_is_credited_with_the_whole_amount() {
    let shop = Shop::open().await;
    let (first, second) = (shop.mail(&shop.people[0], 20).await, shop.mail(&shop.people[0], 10).await);
    shop.click(first, 5, 1).await;
    let click = shop.click(second, 3, 2).await;
    let outcome = shop.report_outcome(json!({"premium_amount": 1250.5, "source_event_id": "p-1"})).await;
    shop.credit(outcome).await;
    let credits = shop.credits(outcome).await;
    assert_eq!(credits.len(), 1);
    assert_eq!((credits[0].send_id, credits[0].share, credits[0].premium), (second, 1_000_000, Some(12_505_000)));
    assert_eq!(credits[0].evidence["event_id"], json!(click));
    assert_eq!(credits[0].evidence["url"], json!("https://example.com/2"));
    shop.assert_totals().await;
}

#[tokio::test]
async fn without_a_click_the_last_delivery_is_credited() {
    let shop = Shop::open().await;
    let (early, late) = (shop.mail(&shop.people[0], 6).await, shop.mail(&shop.people[0], 2).await);
    shop.machine_click(late, 1).await;
    let outcome = shop.report_outcome(json!({})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(late, 1_000_000)]);
    shop.bounce(late).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(early, 1_000_000)], "the mail that bounced was not delivered");
    assert_eq!(shop.reasons(outcome).await, ["first", "late_fact"]);
    shop.assert_totals().await;
}

#[tokio::test]
async fn mail_that_its_provider_has_not_confirmed_is_not_credited() {
    let shop = Shop::open().await;
    for mail in [shop.mail(&shop.people[0], 2).await, shop.single_mail(&shop.people[0], 1).await] {
        sqlx::query("update sends set provider = 'ses' where id = $1")
            .bind(mail)
            .execute(&shop.rig.pool)
            .await
            .unwrap();
    }
    let confirmed = shop.mail(&shop.people[0], 3).await;
    sqlx::query("update sends set provider = 'ses', delivered_at = decided_at where id = $1")
        .bind(confirmed)
        .execute(&shop.rig.pool)
        .await
        .unwrap();
    let outcome = shop.report_outcome(json!({})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(confirmed, 1_000_000)]);
}

#[tokio::test]
async fn failed_mail_that_its_provider_delivered_is_credited() {
    let shop = Shop::open().await;
    for key in ["campaign", "single"] {
        let mail = match key {
            "campaign" => shop.mail(&shop.people[0], 2).await,
            _ => shop.single_mail(&shop.people[0], 1).await,
        };
        // Its first attempt was in doubt, and the second one failed.
        sqlx::query("update sends set provider = 'ses', state = 'failed', delivered_at = decided_at where id = $1")
            .bind(mail)
            .execute(&shop.rig.pool)
            .await
            .unwrap();
        let outcome = shop.report_outcome(json!({"source_event_id": key})).await;
        shop.credit(outcome).await;
        assert_eq!(shop.credited(outcome).await, [(mail, 1_000_000)], "{key}");
    }
}

#[tokio::test]
async fn mail_outside_campaigns_is_credited_and_old_mail_is_not() {
    let shop = Shop::open().await;
    shop.mail(&shop.people[0], 8).await;
    let outcome = shop.report_outcome(json!({"source_event_id": "a"})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [], "delivered eight days ago");
    let single = shop.single_mail(&shop.people[0], 1).await;
    let other = shop.report_outcome(json!({"source_event_id": "b"})).await;
    shop.credit(other).await;
    assert_eq!(shop.credited(other).await, [(single, 1_000_000)]);
    shop.assert_totals().await;
}

#[tokio::test]
async fn mail_that_waited_for_room_under_the_cap_is_credited() {
    let shop = Shop::open().await;
    let single = shop.single_mail(&shop.people[0], 1).await;
    let waited = shop.requested(single, 20).await;
    let outcome = shop.report_outcome(json!({})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(waited, 1_000_000)]);
}

#[tokio::test]
async fn mail_that_waited_in_a_pause_is_credited() {
    let shop = Shop::open().await;
    let single = shop.single_mail(&shop.people[0], 1).await;
    let waited = shop.requested(single, 130).await;
    for (ended, credited) in [("110 days", vec![]), ("1 day", vec![(waited, 1_000_000)])] {
        sqlx::query(
            "update tenants set pauses = tstzmultirange(tstzrange(now() - interval '130 days', now() - $1::interval))",
        )
        .bind(ended)
        .execute(&shop.rig.pool)
        .await
        .unwrap();
        let outcome = shop.report_outcome(json!({"source_event_id": ended})).await;
        shop.credit(outcome).await;
        assert_eq!(shop.credited(outcome).await, credited, "a pause that ended {ended} ago");
    }
}

#[tokio::test]
async fn late_facts_use_up_no_rechecks() {
    let shop = Shop::open().await;
    let mail = shop.mail(&shop.people[0], 5).await;
    let outcome = shop.report_outcome(json!({})).await;
    shop.credit(outcome).await;
    for link in 0..8 {
        shop.click(mail, 2, link).await;
        shop.run_sweeps().await;
    }
    let soon = "select count(*) from outcomes where credit_due between now() and now() + interval '1 minute'";
    assert_eq!(shop.rig.number(soon).await, 1);
    // A recheck each at its time after the report, and then none.
    for (minutes, next) in [(1, 1), (15, 1), (120, 1), (1_440, 1), (5_760, 0)] {
        sqlx::query("update outcomes set credit_due = now(), updated_at = now() - make_interval(mins => $1)")
            .bind(minutes)
            .execute(&shop.rig.pool)
            .await
            .unwrap();
        shop.run_sweeps().await;
        assert_eq!(shop.rig.number("select count(*) from outcomes where credit_due > now()").await, next, "{minutes}");
    }
}

#[tokio::test]
async fn a_late_click_restates_the_credit_and_raises_an_event() {
    let shop = Shop::open().await;
    let (delivered, clicked) = (shop.mail(&shop.people[0], 1).await, shop.mail(&shop.people[0], 20).await);
    let outcome = shop.report_outcome(json!({"value_cents": 900})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(delivered, 1_000_000)]);
    // Told now, and made before the outcome.
    shop.click(clicked, 4, 1).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(clicked, 1_000_000)]);
    // The same mail, again: no restatement, though another click shows it.
    let latest = shop.click(clicked, 2, 2).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credits(outcome).await[0].evidence["event_id"], json!(latest));
    assert_eq!(shop.reasons(outcome).await, ["first", "late_fact"]);
    let told = shop.notices(outcome).await;
    assert_eq!(told.len(), 2);
    assert_eq!(told[1]["before"][0]["send_id"], json!(delivered));
    assert_eq!(
        told[1]["after"],
        json!([{
            "send_id": clicked, "campaign_id": shop.campaign_of(clicked).await, "share": 1.0, "premium_amount": null, "value_cents": 900,
        }])
    );
    assert!(!told[1].to_string().contains('@'), "no personal data");
    shop.assert_totals().await;
}

#[tokio::test]
async fn rescored_clicks_restate_the_credit() {
    let shop = Shop::open().await;
    let (first, second) = (shop.mail(&shop.people[0], 20).await, shop.mail(&shop.people[0], 10).await);
    shop.click(first, 9, 1).await;
    let earlier = shop.click(second, 6, 1).await;
    let later = shop.click(second, 5, 2).await;
    let outcome = shop.report_outcome(json!({"premium_cents": 500})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(second, 1_000_000)]);
    // The last click was a machine's: the mail was clicked before all the same, and another click shows it.
    shop.reclassify(second, &[later], true).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credits(outcome).await[0].evidence["event_id"], json!(earlier));
    // So was the other: the mail earns nothing any more.
    shop.reclassify(second, &[earlier], true).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(first, 1_000_000)]);
    // Both were a person's after all.
    shop.reclassify(second, &[earlier, later], false).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(second, 1_000_000)]);
    assert_eq!(shop.reasons(outcome).await, ["first", "rescored", "rescored"]);
    let told = shop.notices(outcome).await;
    assert_eq!(told.len(), 3);
    assert_eq!((&told[1]["reason"], &told[1]["after"][0]["send_id"]), (&json!("rescored"), &json!(first)));
    assert_eq!(shop.totals().await, [("bind".to_owned(), 1, 50_000)]);
    shop.assert_totals().await;
}

#[tokio::test]
async fn a_mail_clicked_again_after_another_takes_the_credit_back() {
    let shop = Shop::open().await;
    let (first, second) = (shop.mail(&shop.people[0], 20).await, shop.mail(&shop.people[0], 10).await);
    shop.click(first, 9, 1).await;
    shop.click(second, 6, 1).await;
    let outcome = shop.report_outcome(json!({})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(second, 1_000_000)]);
    shop.click(first, 2, 2).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(first, 1_000_000)]);
}

#[tokio::test]
async fn the_models_divide_exactly_and_a_switch_restates() {
    let shop = Shop::open().await;
    let mails = [
        shop.mail(&shop.people[0], 12).await,
        shop.mail(&shop.people[0], 11).await,
        shop.mail(&shop.people[0], 10).await,
    ];
    for (mail, days) in mails.iter().zip([9, 8, 7]) {
        shop.click(*mail, days, 1).await;
    }
    let outcome = shop.report_outcome(json!({"premium_cents": 100, "value_cents": 100})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(mails[2], 1_000_000)]);
    shop.switch(AttributionModel::FirstTouch).await;
    assert_eq!(shop.credited(outcome).await, [(mails[0], 1_000_000)]);
    shop.switch(AttributionModel::Linear).await;
    let credits = shop.credits(outcome).await;
    assert_eq!(credits.iter().map(|credit| credit.share).sum::<i32>(), 1_000_000);
    assert_eq!(credits.iter().filter_map(|credit| credit.premium).sum::<i64>(), Premium::of_cents(100).unwrap().0);
    assert_eq!(credits.iter().filter_map(|credit| credit.value_cents).collect::<Vec<_>>(), [33, 33, 34]);
    assert_eq!(shop.reasons(outcome).await, ["first", "model", "model"]);
    shop.assert_totals().await;
}

#[tokio::test]
async fn a_repeated_event_updates_the_same_outcome() {
    let shop = Shop::open().await;
    let mail = shop.mail(&shop.people[0], 1).await;
    let at = (Utc::now() - TimeDelta::minutes(5)).to_rfc3339();
    let outcome = shop.report_outcome(json!({"source_event_id": "p-9", "premium_cents": 500, "occurred_at": at})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.report_outcome(json!({"source_event_id": "p-9", "premium_cents": 500})).await, outcome);
    assert!(!shop.is_due_now(outcome).await, "nothing changed");
    let changed =
        shop.report_outcome(json!({"source_event_id": "p-9", "premium_cents": 700, "outcome_type": "premium"})).await;
    assert_eq!(changed, outcome);
    shop.credit(outcome).await;
    assert_eq!(shop.credits(outcome).await[0].premium, Some(70_000));
    assert_eq!(shop.credited(outcome).await, [(mail, 1_000_000)]);
    assert_eq!(shop.reasons(outcome).await, ["first", "changed"]);
    // The totals moved to the other type, and nothing was left behind.
    let totals = shop.totals().await;
    assert_eq!(totals, [("bind".to_owned(), 0, 0), ("premium".to_owned(), 1, 70_000)]);
    shop.assert_totals().await;
}

#[tokio::test]
async fn an_outcome_finds_its_contact_when_there_is_one() {
    let shop = Shop::open().await;
    let outcome = shop.report_outcome(json!({"contact_email": "new@example.net", "source_event_id": "early"})).await;
    let by_number =
        shop.report_outcome(json!({"contact_email": null, "dot_number": 4711, "source_event_id": "number"})).await;
    shop.credit(outcome).await;
    shop.credit(by_number).await;
    assert_eq!((shop.contact_of(outcome).await, shop.credited(outcome).await), (None, vec![]));
    let person = shop.person("new@example.net").await;
    shop.run_sweeps().await;
    assert_eq!(shop.contact_of(outcome).await, Some(person.id));
    sqlx::query("update contacts set dot_number = 4711 where id = $1")
        .bind(person.id)
        .execute(&shop.rig.pool)
        .await
        .unwrap();
    shop.run_sweeps().await;
    assert_eq!(shop.contact_of(by_number).await, Some(person.id));
    shop.assert_totals().await;
}

/// Takes at most so many notes of late facts, and about so many ids; answers how many notes there were.
async fn take_late_facts(db: &mut PgConnection, notes: i64, ids: i64) -> i64 {
    let taken = sqlx::query_scalar(include_str!("../queries/late_facts.sql")).bind(notes).bind(ids);
    taken.fetch_one(db).await.unwrap()
}

/// Outcomes that this connection has read.
async fn outcomes_read(db: &mut PgConnection) -> i64 {
    sqlx::query("select pg_stat_force_next_flush()").execute(&mut *db).await.unwrap();
    sqlx::query_scalar("select pg_stat_get_tuples_fetched('outcomes'::regclass)").fetch_one(db).await.unwrap()
}

#[tokio::test]
async fn a_numbers_many_contacts_read_its_outcomes_once() {
    let shop = Shop::open().await;
    let other = shop.rig.tenant().await;
    let new_contacts = "insert into contacts (tenant_id, id, address, dot_number)
                        select $1, gen_random_uuid(), 'new' || n || '@example.net', 77 from generate_series(1, $2) n";
    let many_outcomes =
        "insert into outcomes (tenant_id, id, source_system, outcome_type, occurred_at, credit_due, dot_number)
                         select $1, gen_random_uuid(), 'crm', 'quote', now(), null, 77 from generate_series(1, $2)";
    let many_notes = "insert into late_facts (tenant_id, source, ids)
                      select $1, 'events', array[gen_random_uuid()] from generate_series(1, $2)";
    for (sql, tenant, count) in [
        (many_outcomes, shop.tenant.id, 500),
        (many_outcomes, other.id, 1),
        (new_contacts, shop.tenant.id, 2_000),
        (many_notes, shop.tenant.id, 300),
        (new_contacts, other.id, 1),
    ] {
        sqlx::query(sql).bind(tenant).bind(count).execute(&shop.rig.pool).await.unwrap();
    }
    let by_key = PreparedPool::new(&shop.rig.pool, 1);
    let mut db = by_key.take().await.unwrap();
    let before = outcomes_read(&mut db).await;
    assert_eq!(take_late_facts(&mut db, 200, 50_000).await, 101, "a share of the first tenant's, and the other's");
    let read = outcomes_read(&mut db).await - before;
    assert!(read < 5_000, "{read} outcomes were read");
    assert_eq!(shop.rig.number("select count(*) from outcomes where credit_due is not null").await, 501);
    assert_eq!(take_late_facts(&mut db, 200, 10).await, 10, "each names one");
}

#[tokio::test]
async fn the_mailed_contact_of_a_company_is_credited() {
    let shop = Shop::open().await;
    sqlx::query("update contacts set dot_number = 77").execute(&shop.rig.pool).await.unwrap();
    let mail = shop.mail(&shop.people[2], 3).await;
    let outcome = shop.report_outcome(json!({"contact_email": null, "dot_number": 77})).await;
    assert_eq!(shop.contact_of(outcome).await, Some(shop.people[0].id), "the oldest, until it is credited");
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, [(mail, 1_000_000)]);
    assert_eq!(shop.contact_of(outcome).await, Some(shop.people[2].id));
    // A click by another of them, known late.
    let clicked = shop.mail(&shop.people[1], 9).await;
    shop.click(clicked, 5, 1).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(clicked, 1_000_000)]);
    assert_eq!(shop.contact_of(outcome).await, Some(shop.people[1].id));
}

#[tokio::test]
async fn another_tenants_mail_is_never_credited() {
    let shop = Shop::open().await;
    let other = shop.rig.tenant().await;
    let contact = new_id();
    sqlx::query("insert into contacts (tenant_id, id, address) values ($1, $2, $3)")
        .bind(other.id)
        .bind(contact)
        .bind(&shop.people[0].address)
        .execute(&shop.rig.pool)
        .await
        .unwrap();
    let mail = shop.mail(&shop.people[0], 1).await;
    shop.click(mail, 1, 1).await;
    let outcome = shop.report_outcome_as(&other, json!({"contact_email": shop.people[0].address})).await;
    shop.credit_for(&other, outcome).await;
    assert_eq!(shop.credited(outcome).await, []);
    assert_eq!(shop.contact_of(outcome).await, Some(contact));
}

#[tokio::test]
async fn the_sweep_credits_unannounced_outcomes_once() {
    let shop = Shop::open().await;
    let mail = shop.mail(&shop.people[0], 1).await;
    let mut outcomes = Vec::new();
    for n in 0..30 {
        outcomes.push(shop.report_outcome(json!({"source_event_id": format!("e-{n}")})).await);
    }
    for _ in 0..2 {
        attribution::start(&shop.rig.process());
    }
    until("all are credited", async || shop.rig.number("select count(*) from outcome_credits").await == 30).await;
    assert_eq!(shop.credited(outcomes[29]).await, [(mail, 1_000_000)]);
    assert_eq!(shop.rig.number("select count(*) from outcomes where revision <> 1").await, 0);
    assert_eq!(shop.rig.number("select count(*) from notices where type = 'outcome.credited'").await, 30);
    assert_eq!(shop.rig.number("select count(*) from outcomes where credit_due <= now()").await, 0);
    // A click of before them, known late: the sweep takes its note, and all are restated.
    shop.click(mail, 1, 1).await;
    until("all are restated", async || {
        shop.rig.number("select count(*) from outcomes where rule = 'human_click' and revision = 1").await == 30
    })
    .await;
    assert_eq!(shop.rig.number("select count(*) from late_facts").await, 0);
    shop.assert_totals().await;
}

#[tokio::test]
async fn a_tenants_own_window_is_applied() {
    let shop = Shop::open().await;
    let mail = shop.mail(&shop.people[0], 20).await;
    shop.click(mail, 10, 1).await;
    let policy = Policy { click_days: 9, delivery_days: 0, ..Policy::default() };
    let mut db = shop.rig.pool.acquire().await.unwrap();
    policy.set(&mut db, shop.tenant.id).await.unwrap();
    let outcome = shop.report_outcome(json!({})).await;
    shop.credit(outcome).await;
    assert_eq!(shop.credited(outcome).await, []);
    Policy { click_days: 11, ..policy }.set(&mut db, shop.tenant.id).await.unwrap();
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(mail, 1_000_000)]);
}

#[tokio::test]
async fn a_switch_restates_slice_by_slice_and_once() {
    let shop = Shop::open().await;
    let (first, second) = (shop.mail(&shop.people[0], 12).await, shop.mail(&shop.people[0], 11).await);
    shop.click(first, 9, 1).await;
    shop.click(second, 8, 1).await;
    let mut outcomes = Vec::new();
    for number in 0..450 {
        outcomes.push(shop.report_outcome(json!({"source_event_id": number.to_string()})).await);
    }
    shop.run_sweeps().await;
    shop.switch(AttributionModel::FirstTouch).await;
    let credited =
        "select count(*) from outcome_credits where send_id = (select min(send_id::text)::uuid from outcome_credits)";
    assert_eq!(shop.rig.number(credited).await, 450);
    assert_eq!(shop.credited(outcomes[449]).await, [(first, 1_000_000)]);
    assert_eq!(shop.rig.number("select count(*) from outcome_restatements where reason = 'model'").await, 450);
    assert_eq!(shop.rig.number("select count(*) from attribution_settings where restate_after is not null").await, 0);
    shop.assert_totals().await;
}

#[tokio::test]
async fn a_tenants_many_outcomes_delay_no_other_tenants_switch() {
    let shop = Shop::open().await;
    let other = shop.rig.tenant().await;
    sqlx::query(
        "insert into outcomes (tenant_id, id, source_system, outcome_type, occurred_at, credit_due)
         select $1, gen_random_uuid(), 'crm', 'quote', now(), null from generate_series(1, 40)",
    )
    .bind(shop.tenant.id)
    .execute(&shop.rig.pool)
    .await
    .unwrap();
    let nil = Uuid::nil();
    sqlx::query(
        "insert into attribution_settings (tenant_id, restate_after, updated_at)
         values ($1, $3, now() - interval '1 hour'), ($2, $3, now())",
    )
    .bind(shop.tenant.id)
    .bind(other.id)
    .bind(nil)
    .execute(&shop.rig.pool)
    .await
    .unwrap();
    for _ in 0..30 {
        sqlx::query(include_str!("../queries/restate.sql")).bind(1_i64).execute(&shop.rig.pool).await.unwrap();
    }
    let under_way: Vec<Uuid> =
        sqlx::query_scalar("select tenant_id from attribution_settings where restate_after is not null")
            .fetch_all(&shop.rig.pool)
            .await
            .unwrap();
    assert_eq!(under_way, [shop.tenant.id], "the one without outcomes had its turn");
}

#[tokio::test]
async fn an_outcome_that_cannot_be_counted_delays_no_other() {
    let shop = Shop::open().await;
    let other = shop.rig.tenant().await;
    let (too_much, after) =
        (shop.report_outcome(json!({"value_cents": 1})).await, shop.report_outcome_as(&other, json!({})).await);
    sqlx::query(
        "insert into outcome_hours (tenant_id, hour, kind, outcome_type, outcomes, share, premium, value_cents)
         select tenant_id, date_trunc('hour', occurred_at, 'UTC'), 'recorded', outcome_type, 1, 1, 0, 9223372036854775807
         from outcomes where id = $1",
    )
    .bind(too_much)
    .execute(&shop.rig.pool)
    .await
    .unwrap();
    assert!(attribution::testing::run_sweeps(&shop.rig.pool).await.is_err(), "an operator sees it");
    attribution::testing::run_sweeps(&shop.rig.pool).await.unwrap();
    let counted: Vec<Uuid> = sqlx::query_scalar("select id from outcomes where booked_type is not null")
        .fetch_all(&shop.rig.pool)
        .await
        .unwrap();
    assert_eq!(counted, [after]);
    assert!(!shop.is_due_now(too_much).await);
}

#[tokio::test]
async fn a_late_fact_before_the_credit_of_a_report_is_not_its_reason() {
    let shop = Shop::open().await;
    let mail = shop.mail(&shop.people[0], 2).await;
    let report = |cents: i64| shop.report_outcome(json!({"source_event_id": "p-9", "premium_cents": cents}));
    let outcome = report(500).await;
    for expected in [&["first"][..], &["first", "changed"][..]] {
        shop.click(mail, 1, 1).await;
        shop.run_sweeps().await;
        assert_eq!(shop.reasons(outcome).await, expected);
        report(700).await;
    }
}

#[tokio::test]
async fn credits_for_mail_that_the_ledger_has_dropped_stay() {
    let shop = Shop::open().await;
    shop.switch(AttributionModel::Linear).await;
    let mails = [shop.mail(&shop.people[0], 12).await, shop.mail(&shop.people[0], 11).await];
    for (mail, days) in mails.iter().zip([9, 8]) {
        shop.click(*mail, days, 1).await;
    }
    let report = |premium: i64| shop.report_outcome(json!({"source_event_id": "a", "premium_cents": premium}));
    let outcome = report(101).await;
    shop.credit(outcome).await;
    let before = shop.credited(outcome).await;
    assert_eq!(before.len(), 2);
    shop.drop_ledger(&mails).await;
    shop.switch(AttributionModel::LastTouch).await;
    assert_eq!(shop.credited(outcome).await, before);
    assert_eq!(shop.reasons(outcome).await, ["first"]);
    report(301).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, before);
    let premiums: Vec<_> = shop.credits(outcome).await.iter().filter_map(|credit| credit.premium).collect();
    assert_eq!(premiums.iter().sum::<i64>(), Premium::of_cents(301).unwrap().0);
    assert_eq!(shop.reasons(outcome).await, ["first", "changed"]);
    let kept = "select count(*) from outcomes where credit_due is null and model = 'linear' and rule = 'human_click'";
    assert_eq!(shop.rig.number(kept).await, 1);
    shop.assert_totals().await;
}

#[tokio::test]
async fn a_merge_takes_no_credit_away_and_no_late_click() {
    let shop = Shop::open().await;
    let (first, second) = (shop.mail(&shop.people[0], 20).await, shop.mail(&shop.people[0], 10).await);
    shop.click(first, 5, 1).await;
    let outcome = shop.report_outcome(json!({})).await;
    shop.credit(outcome).await;
    shop.merge().await;
    assert_eq!(shop.contact_of(outcome).await, Some(shop.people[1].id));
    shop.switch(AttributionModel::LastTouch).await;
    assert_eq!(shop.credited(outcome).await, [(first, 1_000_000)]);
    assert_eq!(shop.reasons(outcome).await, ["first"]);
    shop.click(second, 3, 1).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(second, 1_000_000)]);
    assert_eq!(shop.reasons(outcome).await, ["first", "late_fact"]);
    shop.assert_totals().await;
}

#[tokio::test]
async fn a_merge_credits_the_outcomes_of_both_anew() {
    let shop = Shop::open().await;
    let mail = shop.mail(&shop.people[0], 5).await;
    shop.click(mail, 3, 1).await;
    let outcome = shop.report_outcome(json!({"contact_email": shop.people[1].address})).await;
    shop.credit(outcome).await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, []);
    shop.merge().await;
    shop.run_sweeps().await;
    assert_eq!(shop.credited(outcome).await, [(mail, 1_000_000)]);
    assert_eq!(shop.reasons(outcome).await.last().unwrap(), "contact");
    shop.assert_totals().await;
}

#[tokio::test]
async fn any_address_and_number_of_merged_contacts_lead_to_the_survivor_and_all_their_mail() {
    let shop = Shop::open().await;
    let mail = shop.mail(&shop.people[0], 2).await;
    for (person, number) in shop.people.iter().zip([76_i64, 77]) {
        sqlx::query("update contacts set dot_number = $2 where id = $1")
            .bind(person.id)
            .bind(number)
            .execute(&shop.rig.pool)
            .await
            .unwrap();
    }
    shop.merge().await;
    let (merged, survivor) = (&shop.people[0].address, &shop.people[1].address);
    for keys in [
        json!({"contact_email": merged}),
        json!({"contact_email": survivor}),
        json!({"contact_email": merged, "dot_number": 77}),
        json!({"contact_email": survivor, "dot_number": 76}),
        json!({"contact_email": null, "dot_number": 76}),
    ] {
        let outcome = shop.report_outcome(keys.clone()).await;
        shop.credit(outcome).await;
        assert_eq!(shop.contact_of(outcome).await, Some(shop.people[1].id), "{keys}");
        assert_eq!(shop.credited(outcome).await, [(mail, 1_000_000)], "{keys}");
    }
    // Recorded while the contact was being merged.
    sqlx::query("update outcomes set contact_id = $1, credit_due = now()")
        .bind(shop.people[0].id)
        .execute(&shop.rig.pool)
        .await
        .unwrap();
    shop.run_sweeps().await;
    let stale =
        "select count(*) from outcomes where contact_id in (select id from contacts where merged_into is not null)";
    assert_eq!(shop.rig.number(stale).await, 0);
    shop.assert_totals().await;
}
