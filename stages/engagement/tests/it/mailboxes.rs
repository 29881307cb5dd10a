//! Mailboxes that fail again and again.

use std::time::Duration;

use schemas::{SendId, new_id};
use serde_json::json;
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

use super::{batch_to, run, start, start_with};

/// A campaign of so many days ago that went out to these people by SMTP.
async fn mailed(rig: &Rig, tenant: &Tenant, people: &[Person], days: i32) -> Uuid {
    let batch = batch_to(rig, tenant, people).await;
    run!(
        &rig.pool,
        "with late as (update campaigns c set launched_at = now() - make_interval(days => $2), month = b.month
             from batches b where b.id = $1 and c.id = b.campaign_id),
         books as (update batches set state = 'done', announce_after = null, done_at = now(), sent = size, queued = 0 where id = $1)
         update sends s set state = 'sent', provider = 'smtp', decided_at = now() - make_interval(days => $2)
         from batches b where b.id = $1 and s.campaign_id = b.campaign_id",
        [batch, days]
    );
    batch
}

/// The mail to the first of them came back, by a fact of this type.
async fn failed(rig: &Rig, tenant: &Tenant, batch: Uuid, days: i32, kind: &str, detail: serde_json::Value) {
    let send = SendId::of(batch, 0);
    run!(
        &rig.pool,
        "with bounced as (update sends set bounced_at = now() - make_interval(days => $5) where id = $2),
         books as (update batches set bounced = 1 where id = $8)
         insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         values ($1, $2, $3, $4, $6, now() - make_interval(days => $5), $7)",
        [tenant.id, send.0, new_id(), send.month(), days, kind, detail, batch]
    );
}

/// Campaigns of so many days ago, whose mails to the first of these people bounced.
async fn bounced(rig: &Rig, tenant: &Tenant, people: &[Person], days: &[i32], class: &str) {
    for days in days {
        let batch = mailed(rig, tenant, people, *days).await;
        failed(rig, tenant, batch, *days, "bounced", json!({"class": class})).await;
    }
}

async fn checked(rig: &Rig) {
    until("every soft bounce is checked", async || {
        rig.number("select count(*) from soft_bounces where not checked").await == 0
    })
    .await;
}

const HELD: &str =
    "select count(*) from suppressions where reason = 'invalid' and scope = 'marketing' and source = 'engagement'
    and expires_at between now() + interval '29 days' and now() + interval '31 days'";

#[tokio::test(flavor = "multi_thread")]
async fn a_mailbox_that_fails_three_times_in_two_weeks_gets_no_marketing_mail_for_a_month() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 2).await;
    let detail = [json!({"class": "soft"}), json!({"reason": "mailbox_full"}), json!({"reason": "inactive"})];
    for (days, (kind, detail)) in [9, 5, 1].into_iter().zip(["bounced", "expired", "failed"].into_iter().zip(detail)) {
        let batch = mailed(&rig, &tenant, &people, days).await;
        failed(&rig, &tenant, batch, days, kind, detail).await;
    }
    start(&rig).await;
    checked(&rig).await;
    assert_eq!(rig.number(HELD).await, 1);
    let standing = "select count(*) from recipient_eligibility((select id from tenants), (select array_agg(id) from contacts)) where suppressed_marketing and not invalid";
    assert_eq!(rig.number(standing).await, 1, "a password reset still reaches him");
    sqlx::query("update suppressions set expires_at = now() - interval '1 second'").execute(&rig.pool).await.unwrap();
    assert_eq!(rig.number(standing).await, 0, "and then he is tried again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_contact_delays_no_other_mailbox() {
    let rig = Rig::new().await;
    let mut failing = Vec::new();
    for _ in 0..2 {
        let tenant = rig.tenant().await;
        let people = rig.people(&tenant, 1).await;
        bounced(&rig, &tenant, &people, &[9, 5, 1], "soft").await;
        failing.push(people[0].id);
    }
    // As an import holds it.
    let mut importing = rig.pool.begin().await.unwrap();
    let lock = "select 1 from contacts where id = $1 for update";
    sqlx::query(lock).bind(failing[0]).execute(&mut *importing).await.unwrap();
    start(&rig).await;
    let other = until("the other is suppressed", async || rig.number(HELD).await == 1);
    tokio::time::timeout(Duration::from_secs(20), other).await.unwrap();
    let mut free = rig.pool.begin().await.unwrap();
    let lock = "select 1 from contacts where id = $1 for update nowait";
    sqlx::query(lock).bind(failing[1]).execute(&mut *free).await.unwrap();
    free.rollback().await.unwrap();
    importing.rollback().await.unwrap();
    // The next run finds it: of a new process, at once.
    start(&rig).await;
    until("both are suppressed", async || rig.number(HELD).await == 2).await;
    checked(&rig).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_that_arrived_in_between_forgives_what_was_before() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    bounced(&rig, &tenant, &people, &[9, 7, 1], "soft").await;
    mailed(&rig, &tenant, &people, 3).await;
    start(&rig).await;
    checked(&rig).await;
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
}

/// It accepts every mail, and says later what became of it.
#[tokio::test(flavor = "multi_thread")]
async fn mail_that_an_http_provider_only_accepted_forgives_nothing() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    bounced(&rig, &tenant, &people, &[9, 7, 5], "soft").await;
    mailed(&rig, &tenant, &people, 1).await;
    sqlx::query("update sends set provider = 'ses'").execute(&rig.pool).await.unwrap();
    start(&rig).await;
    checked(&rig).await;
    assert_eq!(rig.number(HELD).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_of_a_campaign_launched_long_ago_that_arrived_in_between_forgives_as_well() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    bounced(&rig, &tenant, &people, &[9, 7, 1], "soft").await;
    // Paced over weeks, or held: it still sends.
    let arrived = mailed(&rig, &tenant, &people, 25).await;
    run!(
        &rig.pool,
        "update sends set decided_at = now() - interval '3 days' where id = $1",
        [SendId::of(arrived, 0).0]
    );
    start(&rig).await;
    checked(&rig).await;
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_of_no_campaign_that_arrived_in_between_forgives_as_well() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    bounced(&rig, &tenant, &people, &[9, 7, 1], "soft").await;
    let arrived = mailed(&rig, &tenant, &people, 3).await;
    for sql in [
        "update batches set kind = 'sequence', campaign_id = null where id = $1",
        "update sends set campaign_id = null where id = $1",
    ] {
        sqlx::query(sql).bind(arrived).execute(&rig.pool).await.unwrap();
    }
    start(&rig).await;
    checked(&rig).await;
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_long_ago_and_refusals_of_the_sender_do_not_count_and_the_rule_can_be_switched_off() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    bounced(&rig, &tenant, &people, &[20, 18, 16, 2], "soft").await;
    bounced(&rig, &tenant, &people, &[3, 4, 5], "block").await;
    start(&rig).await;
    checked(&rig).await;
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
    sqlx::query("update soft_bounces set checked = false, occurred_at = now()").execute(&rig.pool).await.unwrap();
    let off = Rig::new().await;
    let tenant = off.tenant().await;
    let people = off.people(&tenant, 1).await;
    bounced(&off, &tenant, &people, &[3, 2, 1], "soft").await;
    start_with(&off, &["--soft-bounce-limit", "0"]).await;
    checked(&off).await;
    assert_eq!(off.number("select count(*) from suppressions").await, 0);
}
