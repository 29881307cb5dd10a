//! What providers told, from the raw event the ingress has stored to facts in the ledger.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use feedback::SOURCE;
use ledger::leases::ExpireLeases;
use runner::Sweep;
use runtime::{Publication, plans::PreparedPool};
use schemas::{
    InboundAnnounced, SendId, Signal, SignalKind, new_batch_id, new_id, subjects, subjects::stream, token::TokenKeys,
};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use stage_rig::{Person, Rig, Tenant, rows_in_vain, until};
use uuid::Uuid;

use super::{batch_to, rows, run, start};

/// A tenant with its own account, and a batch of sends that went out by it.
struct Mailed {
    rig: Rig,
    tenant: Tenant,
    people: Vec<Person>,
    batch: Uuid,
    connection: Uuid,
}

impl Mailed {
    async fn new(count: usize) -> Self {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let people = rig.people(&tenant, count).await;
        let batch = batch_to(&rig, &tenant, &people).await;
        Self { rig, tenant, people, batch, connection: new_id() }
    }

    async fn sent(count: usize) -> Self {
        let mailed = Self::new(count).await;
        mailed.in_state("sent").await;
        mailed
    }

    /// As delivery would have left all of them.
    async fn in_state(&self, state: &'static str) {
        run!(
            &self.rig.pool,
            "update sends set state = $1, fenced_at = now() - interval '1 minute', provider = 'postmark',
                              decided_at = case $1 when 'sent' then now() when 'unknown' then now() - interval '2 hours' end",
            [state]
        );
        let open = matches!(state, "queued" | "fenced");
        run!(
            &self.rig.pool,
            "update batches set queued = 0, state = case when $1 then 'announced' else 'done' end,
                    announce_after = case when $1 then now() + interval '1 hour' end, done_at = case when $1 then null else now() end,
                    sent = case $2 when 'sent' then size else 0 end, unknown = case $2 when 'unknown' then size else 0 end,
                    fenced = case $2 when 'fenced' then size else 0 end",
            [open, state]
        );
        self.counted_by_delivery().await;
    }

    async fn counted_by_delivery(&self) {
        sqlx::query(
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select tenant_id, date_trunc('hour', decided_at, 'UTC'), 'campaign', state, 0, count(*) from sends
             where state in ('sent', 'unknown') group by 1, 2, state on conflict do nothing",
        )
        .execute(&self.rig.pool)
        .await
        .unwrap();
    }

    /// These went by SMTP, as delivery books it: what is accepted counts as delivered.
    async fn went_by_smtp(&self, sends: &[Uuid]) {
        run!(
            &self.rig.pool,
            "with moved as (
                 update sends set provider = 'smtp' where id = any($1) returning tenant_id, decided_at
             ), booked as (
                 update batches set delivered = (select count(*) from moved)
             )
             insert into rollups (tenant_id, hour, kind, event, shard, count)
             select tenant_id, date_trunc('hour', decided_at, 'UTC'), 'campaign', 'delivered', 0, count(*) from moved group by 1, 2",
            [sends]
        );
    }

    fn send(&self, ordinal: u16) -> Uuid {
        SendId::of(self.batch, ordinal).0
    }

    /// A raw event, as the ingress stores it.
    async fn told(&self, raw: &Value) {
        self.told_by(self.tenant.id, "postmark", raw.to_string().as_bytes()).await;
    }

    async fn told_by(&self, tenant: Uuid, provider: &str, raw: &[u8]) {
        run!(
            &self.rig.pool,
            "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw)
             values ($1, $2, $3, $4, $2::text, '', $5)",
            [tenant, new_id(), self.connection, provider, raw]
        );
    }

    /// Starts the stage, which handles every raw event.
    async fn handle_all(&self) {
        start(&self.rig).await;
        self.all_handled().await;
    }

    async fn all_handled(&self) {
        until("every raw event is handled", async || {
            self.rig.number("select count(*) from inbound_events where due_at is not null").await == 0
        })
        .await;
    }

    async fn number(&self, query: &'static str) -> i64 {
        self.rig.number(query).await
    }

    /// Totals of hours and counters of batches equal what sends and events say.
    async fn assert_books(&self) {
        self.rig.assert_books().await;
        assert_eq!(self.number(HOURS_OFF).await, 0);
    }
}

const HOURS_OFF: &str = "
    with counted as (
        select event, date_trunc('hour', at, 'UTC') as hour, count(*) as n from (
            select state as event, decided_at as at from sends where state in ('sent', 'unknown')
            union all select 'bounced', bounced_at from sends
            union all select 'delivered', counted_delivered_at(provider, state, decided_at, delivered_at, bounced_at) from sends
            union all select 'confirmed', counted_confirmed_at(provider, delivered_at, bounced_at) from sends
            union all select 'complained', complained_at from sends
            union all select 'bounced_' || (detail->>'class'), occurred_at from events where type = 'bounced') t
        where at is not null group by 1, 2
    ), booked as (
        select event, hour, sum(count) as n from rollups
        where event in ('sent', 'unknown', 'delivered', 'confirmed', 'bounced', 'complained', 'bounced_hard', 'bounced_soft', 'bounced_block')
        group by 1, 2 having sum(count) <> 0
    )
    select count(*) from counted c full join booked b using (event, hour) where c.n is distinct from b.n";

fn delivery(send: Uuid, at: DateTime<Utc>) -> Value {
    json!({
        "RecordType": "Delivery", "MessageID": format!("pm-{send}"), "DeliveredAt": at.to_rfc3339(), "Details": "250 OK",
        "Recipient": "john@example.com", "Metadata": {"postrider-send": send},
    })
}

fn bounce(send: Uuid, id: i64, details: &str, at: DateTime<Utc>) -> Value {
    json!({
        "RecordType": "Bounce", "ID": id, "Type": "HardBounce", "MessageID": format!("pm-{send}"), "Details": details,
        "BouncedAt": at.to_rfc3339(), "Email": "john@example.com", "Metadata": {"postrider-send": send},
    })
}

const GONE: &str = "smtp;550 5.1.1 The email account that you tried to reach does not exist.";
const POLICY: &str = "smtp;550 5.7.1 Message refused by policy";
const FULL: &str = "smtp;452 4.2.2 The mailbox is over quota";

#[tokio::test(flavor = "multi_thread")]
async fn what_a_provider_tells_becomes_facts_once() {
    let mailed = Mailed::sent(5).await;
    let at = Utc::now() - TimeDelta::hours(1);
    mailed.told(&delivery(mailed.send(0), at)).await;
    mailed.told(&delivery(mailed.send(0), at)).await;
    mailed.told(&delivery(mailed.send(1), at)).await;
    mailed.told(&bounce(mailed.send(1), 1, GONE, at + TimeDelta::minutes(9))).await;
    mailed.told(&bounce(mailed.send(2), 2, POLICY, at)).await;
    mailed.told(&bounce(mailed.send(3), 3, FULL, at)).await;
    mailed.told(&bounce(mailed.send(3), 3, FULL, at)).await;
    mailed.handle_all().await;
    let facts: Vec<(bool, bool)> =
        rows(&mailed.rig, "select delivered_at is not null, bounced_at is not null from sends order by id").await;
    assert_eq!(facts, [(true, false), (true, true), (false, true), (false, true), (false, false)]);
    let classes: Vec<String> =
        sqlx::query_scalar("select detail->>'class' from events where type = 'bounced' order by send_id")
            .fetch_all(&mailed.rig.pool)
            .await
            .unwrap();
    assert_eq!(classes, ["hard", "block", "soft"]);
    assert_eq!(mailed.number("select count(*) from events where type = 'bounced'").await, 3);
    // Only who does not exist is suppressed.
    let suppressed: Vec<(String, String)> = rows(&mailed.rig, "select address, reason from suppressions").await;
    assert_eq!(suppressed, [(mailed.people[1].address.clone(), "hard_bounce".to_owned())]);
    mailed.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_bounce_takes_a_mail_off_what_is_delivered() {
    let mailed = Mailed::sent(4).await;
    mailed.went_by_smtp(&[mailed.send(2), mailed.send(3)]).await;
    mailed.assert_books().await;
    let at = Utc::now();
    let counts = async || -> (i32, i32) {
        sqlx::query_as("select delivered, confirmed from batches").fetch_one(&mailed.rig.pool).await.unwrap()
    };
    start(&mailed.rig).await;
    mailed.told(&delivery(mailed.send(0), at)).await;
    mailed.all_handled().await;
    assert_eq!(counts().await, (3, 1), "one is confirmed, two are accepted");
    mailed.told(&bounce(mailed.send(0), 1, GONE, at)).await;
    mailed.told(&bounce(mailed.send(1), 2, GONE, at)).await;
    mailed.all_handled().await;
    // The order does not matter.
    mailed.told(&delivery(mailed.send(1), at)).await;
    mailed.all_handled().await;
    assert_eq!(counts().await, (2, 0));
    let late = Signal {
        signal_id: new_id(),
        tenant_id: mailed.tenant.id,
        send_id: mailed.send(2),
        occurred_at: at,
        kind: SignalKind::Bounced {
            class: schemas::BounceClass::Hard,
            smtp_code: Some(550),
            enhanced_code: None,
            diagnostic: None,
            rule: "unknown_user".to_owned(),
        },
        ip: None,
        user_agent: None,
    };
    let id = late.signal_id.to_string();
    mailed.rig.publish(vec![Publication::json(subjects::signal("tracking"), id, &late).unwrap()]).await;
    until("the report is read", async || mailed.number("select count(bounced_at) from sends").await == 3).await;
    assert_eq!(counts().await, (1, 0));
    mailed.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_is_enough_and_none_is_needed() {
    let mailed = Mailed::sent(1).await;
    start(&mailed.rig).await;
    mailed.told(&delivery(mailed.send(0), Utc::now())).await;
    mailed.all_handled().await;
    let ring = Publication::json(subjects::signal(SOURCE), "ring".to_owned(), &InboundAnnounced {}).unwrap();
    mailed.rig.publish(vec![ring]).await;
    until("the ring is taken", async || mailed.rig.held(stream::SIGNALS).await == 0).await;
    assert!(mailed.rig.dead().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_read_costs_itself_only() {
    let mailed = Mailed::sent(1).await;
    mailed.told(&json!({"RecordType": "Delivery"})).await;
    mailed.told_by(mailed.tenant.id, "mailgun", b"\xff\x00 no json").await;
    mailed.told(&delivery(mailed.send(0), Utc::now())).await;
    mailed.handle_all().await;
    let states: Vec<(String, Option<String>)> =
        rows(&mailed.rig, "select state, reason from inbound_events order by id").await;
    let states: Vec<(&str, Option<&str>)> =
        states.iter().map(|(state, reason)| (state.as_str(), reason.as_deref())).collect();
    assert_eq!(states, [("rejected", Some("names_no_mail")), ("rejected", Some("not_json")), ("handled", None)]);
    assert_eq!(mailed.number("select count(delivered_at) from sends").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_started_too_often_is_set_aside_and_the_others_are_recorded() {
    let mailed = Mailed::sent(3).await;
    for ordinal in 0..3 {
        mailed.told(&delivery(mailed.send(ordinal), Utc::now())).await;
    }
    // As processes leave them that died over a group: one was started as often as allowed, one once.
    sqlx::query("update inbound_events e set attempts = w.n * w.n from (select id, row_number() over (order by id) - 1 as n from inbound_events) w where w.id = e.id")
        .execute(&mailed.rig.pool)
        .await
        .unwrap();
    mailed.handle_all().await;
    assert_eq!(mailed.number("select count(*) from inbound_events where state = 'handled'").await, 2);
    assert_eq!(
        mailed.number("select count(*) from inbound_events where state = 'rejected' and reason = 'failed'").await,
        1
    );
    assert_eq!(mailed.number("select count(*) from sends where delivered_at is not null").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_that_comes_before_its_send_waits_for_it_and_joins_once() {
    let mailed = Mailed::new(2).await;
    start(&mailed.rig).await;
    // The one names a send that is not there yet, the other a mail whose id we do not know yet.
    let (later, at) = (new_batch_id(), Utc::now());
    mailed.told(&delivery(later, at)).await;
    let mut unnamed = delivery(mailed.send(0), at);
    unnamed["Metadata"] = json!({});
    mailed.told(&unnamed).await;
    mailed.all_handled().await;
    assert_eq!(mailed.number("select count(*) from pending_facts where reason = 'unknown_send'").await, 2);
    assert_eq!(mailed.number("select count(*) from events").await, 0);
    // A link of ours, of a send that is not there either.
    let opened = Signal {
        signal_id: new_id(),
        tenant_id: mailed.tenant.id,
        send_id: later,
        occurred_at: at,
        kind: SignalKind::Opened,
        ip: None,
        user_agent: None,
    };
    let id = opened.signal_id.to_string();
    mailed.rig.publish(vec![Publication::json(subjects::signal("tracking"), id, &opened).unwrap()]).await;
    until("the open waits", async || mailed.number("select count(*) from pending_facts").await == 3).await;
    // Now both commit.
    run!(
        &mailed.rig.pool,
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, size, sent, state, done_at)
         select tenant_id, $2, month, 'transactional', 'priority', classification, content_id, sender_id, 1, 1, 'done', now()
         from batches where id = $1",
        [mailed.batch, later]
    );
    run!(
        &mailed.rig.pool,
        "insert into sends (tenant_id, id, month, contact_id, state, decided_at) values ($1, $2, $3, $4, 'sent', now())",
        [mailed.tenant.id, later, SendId(later).month(), mailed.people[0].id]
    );
    mailed.in_state("sent").await;
    run!(&mailed.rig.pool, "update sends set provider_message_id = 'pm-' || id where id = $1", [mailed.send(0)]);
    sqlx::query("update pending_facts set due_at = now()").execute(&mailed.rig.pool).await.unwrap();
    until("nothing waits", async || mailed.number("select count(*) from pending_facts").await == 0).await;
    assert_eq!(mailed.number("select count(delivered_at) from sends").await, 2);
    assert_eq!(mailed.number("select count(*) from events where type = 'delivered'").await, 2);
    assert_eq!(mailed.number("select count(opened_at) from sends").await, 1);
    mailed.rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_whose_send_never_comes_is_given_up_and_stays_to_be_seen() {
    let mailed = Mailed::new(1).await;
    mailed.told(&delivery(new_batch_id(), Utc::now())).await;
    let mut unnamed = delivery(new_batch_id(), Utc::now());
    unnamed["Metadata"] = json!({});
    mailed.told(&unnamed).await;
    mailed.handle_all().await;
    // Its id would be known soon after the mail left.
    sqlx::query(
        "update pending_facts set pending_since = now() - interval '58 minutes', due_at = now() where send_id is null",
    )
    .execute(&mailed.rig.pool)
    .await
    .unwrap();
    let waits = "select count(*) from pending_facts where send_id is null and due_at > now() + interval '20 minutes'";
    until("the one that names no send waits", async || mailed.number(waits).await == 1).await;
    sqlx::query(
        "update pending_facts set pending_since = now() - interval '61 minutes', due_at = now() where send_id is null",
    )
    .execute(&mailed.rig.pool)
    .await
    .unwrap();
    let dropped = "select count(dropped_at) from pending_facts where send_id is null and due_at is null";
    until("it is given up after an hour", async || mailed.number(dropped).await == 1).await;
    sqlx::query("delete from pending_facts where send_id is null").execute(&mailed.rig.pool).await.unwrap();
    sqlx::query("update pending_facts set attempts = 0, pending_since = now() - interval '71 hours', due_at = now()")
        .execute(&mailed.rig.pool)
        .await
        .unwrap();
    until("it is looked at again", async || {
        mailed.number("select count(*) from pending_facts where attempts >= 1").await == 1
    })
    .await;
    assert_eq!(
        mailed.number("select count(*) from pending_facts where due_at > now() + interval '50 minutes'").await,
        1
    );
    sqlx::query("update pending_facts set pending_since = now() - interval '73 hours', due_at = now()")
        .execute(&mailed.rig.pool)
        .await
        .unwrap();
    until("it is given up", async || mailed.number("select count(dropped_at) from pending_facts").await == 1).await;
    assert_eq!(mailed.number("select count(due_at) from pending_facts").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenants_send_and_another_providers_are_nobodys() {
    let mailed = Mailed::sent(2).await;
    let other = mailed.rig.tenant().await;
    let foreign = delivery(mailed.send(0), Utc::now()).to_string();
    mailed.told_by(other.id, "postmark", foreign.as_bytes()).await;
    // It went by Postmark: whoever signs for Resend knows nothing of it.
    let elsewhere = json!({
        "type": "email.delivered", "created_at": "2026-05-02T23:41:12.126Z",
        "data": {"email_id": "x", "tags": {"postrider-send": mailed.send(1)}},
    });
    mailed.told_by(mailed.tenant.id, "resend", elsewhere.to_string().as_bytes()).await;
    mailed.handle_all().await;
    assert_eq!(mailed.number("select count(delivered_at) from sends").await, 0);
    assert_eq!(mailed.number("select count(*) from pending_facts").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_provider_tells_of_a_send_in_doubt_proves_that_it_left() {
    let mailed = Mailed::new(4).await;
    mailed.in_state("unknown").await;
    let at = Utc::now();
    start(&mailed.rig).await;
    mailed.told(&delivery(mailed.send(0), at)).await;
    mailed.told(&bounce(mailed.send(1), 1, GONE, at)).await;
    mailed.told_by(mailed.tenant.id, "ses", &ses_send(mailed.send(2))).await;
    mailed.all_handled().await;
    let states: Vec<String> =
        sqlx::query_scalar("select state from sends order by id").fetch_all(&mailed.rig.pool).await.unwrap();
    // By SES it did not go.
    assert_eq!(states, ["sent", "sent", "unknown", "unknown"]);
    assert_eq!(mailed.number("select sent::bigint from batches").await, 2);
    assert_eq!(mailed.number("select count(*) from send_facts where type = 'sent'").await, 2);
    assert_eq!(mailed.number("select count(*) from provider_messages").await, 2);
    // Told again, nothing changes.
    mailed.told(&delivery(mailed.send(0), at)).await;
    mailed.all_handled().await;
    assert_eq!(mailed.number("select count(*) from send_facts where type = 'sent'").await, 2);
    mailed.assert_books().await;
}

fn ses_send(send: Uuid) -> Vec<u8> {
    let event = json!({
        "eventType": "Send", "send": {},
        "mail": {"timestamp": Utc::now().to_rfc3339(), "messageId": "ses-1", "tags": {"postrider-send": [send]}},
    });
    json!({"Type": "Notification", "MessageId": "m", "Message": event.to_string()}).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_that_came_while_a_send_was_in_hand_settles_it_when_it_ends_in_doubt() {
    let mailed = Mailed::new(2).await;
    mailed.in_state("fenced").await;
    start(&mailed.rig).await;
    mailed.told(&delivery(mailed.send(0), Utc::now())).await;
    mailed.told(&delivery(mailed.send(1), Utc::now())).await;
    mailed.all_handled().await;
    // The fact is in the ledger at once; that it left is kept in mind.
    assert_eq!(mailed.number("select count(delivered_at) from sends").await, 2);
    assert_eq!(mailed.number("select count(*) from pending_facts where reason = 'undecided_send'").await, 2);
    // The one ends in doubt, the other goes back to be tried once more.
    run!(
        &mailed.rig.pool,
        "update sends set doubtful = 1, state = case when id = $1 then 'unknown' else 'queued' end,
                          decided_at = case when id = $1 then now() end",
        [mailed.send(0)]
    );
    sqlx::query("update batches set fenced = 0, unknown = 1, queued = 1").execute(&mailed.rig.pool).await.unwrap();
    mailed.counted_by_delivery().await;
    sqlx::query("update pending_facts set due_at = now()").execute(&mailed.rig.pool).await.unwrap();
    until("both have left", async || mailed.number("select count(*) from sends where state = 'sent'").await == 2).await;
    until("nothing waits", async || mailed.number("select count(*) from pending_facts").await == 0).await;
    assert_eq!(mailed.number("select count(*) from batches where state = 'done' and sent = 2").await, 1);
    mailed.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_with_evidence_is_not_tried_again_when_its_lease_ends() {
    let mailed = Mailed::new(2).await;
    mailed.in_state("fenced").await;
    for sql in [
        "update batches set kind = 'transactional', classification = 'transactional', campaign_id = null,
             lease_until = now() - interval '1 second'",
        "update sends set campaign_id = null, request_id = id, provider = 'ses', attempts = 1, fence_token = gen_random_uuid(),
             lease_until = now() - interval '1 second'",
    ] {
        sqlx::query(sql).execute(&mailed.rig.pool).await.unwrap();
    }
    start(&mailed.rig).await;
    // No fact: it says only that the mail has left.
    mailed.told_by(mailed.tenant.id, "ses", &ses_send(mailed.send(0))).await;
    mailed.all_handled().await;
    run!(&mailed.rig.pool, "update pending_facts set due_at = now() + interval '1 hour'", []);
    let leases = ExpireLeases::new(&PreparedPool::new(&mailed.rig.pool, 1), Duration::ZERO);
    assert_eq!(leases.sweep().await.unwrap(), 2);
    until("its evidence is looked at at once", async || {
        mailed.number("select count(*) from sends where state = 'sent'").await == 1
    })
    .await;
    let again: Vec<Uuid> =
        sqlx::query_scalar("select id from sends where state = 'queued'").fetch_all(&mailed.rig.pool).await.unwrap();
    assert_eq!(again, [mailed.send(1)], "of the other it is known that it has left");
    mailed.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_knows_the_old_consumer_takes_the_new_one() {
    use async_nats::jetstream::consumer::{AckPolicy, pull};
    let mailed = Mailed::sent(1).await;
    let rig = &mailed.rig;
    let old = pull::Config {
        durable_name: Some("engagement-priority".to_owned()),
        filter_subjects: vec![rig.bus.prefixed("mail.v1.signal.*")],
        ack_policy: AckPolicy::Explicit,
        ack_wait: std::time::Duration::from_secs(30),
        max_deliver: -1,
        max_ack_pending: 4_096,
        ..pull::Config::default()
    };
    rig.bus.jetstream().create_consumer_on_stream(old, rig.bus.prefixed(stream::SIGNALS)).await.unwrap();
    start(rig).await;
    let opened = Signal {
        signal_id: new_id(),
        tenant_id: mailed.tenant.id,
        send_id: mailed.send(0),
        occurred_at: Utc::now(),
        kind: SignalKind::Opened,
        ip: None,
        user_agent: None,
    };
    let ring = Publication::json(subjects::signal(SOURCE), "ring".to_owned(), &InboundAnnounced {}).unwrap();
    rig.publish(vec![Publication::json(subjects::signal("tracking"), "open".to_owned(), &opened).unwrap(), ring]).await;
    until("both are taken", async || rig.held(stream::SIGNALS).await == 0).await;
    assert_eq!(mailed.number("select count(opened_at) from sends").await, 1);
    assert!(rig.dead().await.is_empty(), "no consumer got what is the other's");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_take_each_event_once() {
    let mailed = Mailed::sent(200).await;
    let at = Utc::now();
    for ordinal in 0..200 {
        mailed.told(&delivery(mailed.send(ordinal), at)).await;
        if ordinal % 5 == 0 {
            mailed.told(&bounce(mailed.send(ordinal), i64::from(ordinal), GONE, at)).await;
        }
    }
    for _ in 0..3 {
        start(&mailed.rig).await;
    }
    mailed.all_handled().await;
    assert_eq!(mailed.number("select delivered::bigint from batches").await, 160);
    assert_eq!(mailed.number("select confirmed::bigint from batches").await, 160);
    assert_eq!(mailed.number("select bounced::bigint from batches").await, 40);
    assert_eq!(mailed.number("select count(*) from suppressions").await, 40);
    mailed.assert_books().await;
}

fn tokens() -> TokenKeys {
    TokenKeys::derive(&[[7; 32]])
}

/// The Message-ID of a send.
fn message_id(send: Uuid) -> String {
    format!("<{}@acme.example>", tokens().message_id_local(tokens().newest(), send))
}

/// Mail that Postmark took in.
fn letter(id: &str, in_reply_to: &str, more: Option<(&str, &str)>) -> Value {
    let mut headers = vec![
        json!({"Name": "Message-ID", "Value": format!("<{id}@mail.example.net>")}),
        json!({"Name": "In-Reply-To", "Value": in_reply_to}),
    ];
    headers.extend(more.map(|(name, value)| json!({"Name": name, "Value": value})));
    json!({"MessageID": id, "From": "ann@example.net", "OriginalRecipient": "sales@acme.example", "Headers": headers})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_a_provider_took_in_is_a_fact_about_the_mail_it_answers() {
    let mailed = Mailed::sent(4).await;
    // The first went by the relay: whoever takes in the tenant's mail did not carry it.
    mailed.went_by_smtp(&[mailed.send(0)]).await;
    run!(
        &mailed.rig.pool,
        "update sends set provider = 'ses', provider_message_id = '0100-7b2c' where id = $1",
        [mailed.send(1)]
    );
    let ours = |at| message_id(mailed.send(at));
    for _ in 0..2 {
        mailed.told(&letter("a", &ours(0), None)).await;
    }
    let received = json!({
        "notificationType": "Received", "receipt": {"timestamp": Utc::now().to_rfc3339(), "recipients": ["sales@acme.example"]},
        "mail": {"messageId": "in-1", "headers": [{"name": "References", "value": "<x@y> <0100-7b2c@email.amazonses.com>"}]},
    });
    let received = json!({"Type": "Notification", "Message": received.to_string()}).to_string();
    mailed.told_by(mailed.tenant.id, "ses", received.as_bytes()).await;
    mailed.told(&letter("b", &ours(2), Some(("Auto-Submitted", "auto-replied")))).await;
    // A letter of its own, an answer to somebody else's mail, and one to a mail of ours that never was.
    mailed.told(&letter("c", "", None)).await;
    mailed.told(&letter("d", "<6ba7b810-9dad-11d1-80b4-00c04fd430c8@other.example>", None)).await;
    mailed.told(&letter("e", &message_id(SendId::of(new_batch_id(), 0).0), None)).await;
    // Another tenant's account names a mail of this one.
    let other = mailed.rig.tenant().await;
    mailed.told_by(other.id, "postmark", letter("f", &ours(3), None).to_string().as_bytes()).await;
    mailed.handle_all().await;
    let replied = "select count(*) from sends where replied_at is not null";
    assert_eq!(mailed.number(replied).await, 2);
    let events = "select count(*) from events where type = 'replied'";
    assert_eq!(mailed.number(events).await, 3, "a program's is kept, and is nobody's answer");
    assert_eq!(
        mailed.number("select count(*) from events where type = 'replied' and (detail ->> 'automatic')::bool").await,
        1
    );
    assert_eq!(mailed.number("select count(*) from pending_facts").await, 0, "nobody answers what is not there yet");
    assert_eq!(mailed.number("select count(*) from inbound_events where state = 'rejected'").await, 0);
    assert_eq!(
        mailed.number("select count(*) from sends where provider = 'postmark'").await,
        2,
        "and nobody else carried them"
    );
    mailed.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_names_only_a_mail_whose_proof_it_has() {
    let mailed = Mailed::sent(3).await;
    // The first recipient knows his own Message-ID and return path, and computes the ids of the other sends from it.
    let (own, other) = (mailed.send(0), mailed.send(1));
    let tokens = tokens();
    let own_path = tokens.return_path_local(own);
    let own_id = message_id(own);
    let mut forged = vec![
        letter("a", &format!("<{other}@acme.example>"), None),
        letter("b", &own_id.replace(&own.to_string(), &other.to_string()), None),
        letter("c", "", Some(("References", &format!("<{}@acme.example>", mailed.send(2))))),
    ];
    let mut to_the_path = letter("d", "", None);
    let path = own_path.replace(&own.simple().to_string(), &other.simple().to_string());
    to_the_path["OriginalRecipient"] = json!(format!("{path}@send.acme.example"));
    forged.push(to_the_path);
    for raw in &forged {
        mailed.told(raw).await;
    }
    mailed.told(&letter("e", &own_id, None)).await;
    mailed.handle_all().await;
    let replied: Vec<Uuid> = sqlx::query_scalar("select id from sends where replied_at is not null")
        .fetch_all(&mailed.rig.pool)
        .await
        .unwrap();
    assert_eq!(replied, [own]);
    // Enrollments end by these.
    assert_eq!(mailed.number("select count(*) from events where type = 'replied'").await, 1);
    assert_eq!(mailed.number("select count(*) from inbound_events where state = 'rejected'").await, 0);
}

/// Drops all months of the ledger up to now, as the retention sweep does when they are old.
pub(crate) async fn drop_months(rig: &Rig) {
    let drop = "select drop_ledger_month((date_trunc('month', now()) + interval '1 month')::date)";
    while sqlx::query_scalar::<_, Option<chrono::NaiveDate>>(drop).fetch_one(&rig.pool).await.unwrap().is_some() {}
}

/// A record of Postmark about a mail to this address.
fn record(kind: &str, send: Uuid, address: &str, detail: &Value) -> Value {
    let mut record = json!({
        "RecordType": kind, "ID": send.as_u128() % 1_000_000_007, "MessageID": format!("pm-{send}"), "Email": address,
        "Metadata": {"postrider-send": send}, "BouncedAt": Utc::now().to_rfc3339(), "ChangedAt": Utc::now().to_rfc3339(),
    });
    record.as_object_mut().unwrap().extend(detail.as_object().unwrap().clone());
    record
}

fn unsubscribed(send: Uuid, address: &str) -> Value {
    let detail = json!({"SuppressSending": true, "Origin": "Recipient", "SuppressionReason": "ManualSuppression"});
    record("SubscriptionChange", send, address, &detail)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opt_out_is_heeded_after_its_month_is_dropped() {
    let mailed = Mailed::sent(6).await;
    drop_months(&mailed.rig).await;
    let address = |n: usize| mailed.people[n].address.clone();
    // This recipient has opted in again since.
    run!(
        &mailed.rig.pool,
        "update contacts set opted_in_at = now() + interval '1 hour' where address = $1",
        [address(4)]
    );
    // A version 7 id of five years ago: that month was never in the ledger.
    let five_years_ago = (Utc::now() - TimeDelta::days(1_800)).timestamp_millis();
    let no_month = Uuid::from_u128(u128::try_from(five_years_ago).unwrap() << 80 | 7 << 76 | 2 << 62);
    let bounced = |n: u16, details: &str| {
        record("Bounce", mailed.send(n), &address(n.into()), &json!({"Type": "HardBounce", "Details": details}))
    };
    for raw in [
        unsubscribed(mailed.send(0), &address(0).to_ascii_uppercase()),
        record("SpamComplaint", mailed.send(1), &address(1), &json!({})),
        bounced(2, GONE),
        bounced(3, FULL),
        unsubscribed(mailed.send(4), &address(4)),
        // Not the engine's mail, or none that it has forgotten.
        unsubscribed(no_month, &address(5)),
        record("SpamComplaint", Uuid::new_v4(), &address(5), &json!({})),
        // The contact is gone.
        record("SpamComplaint", SendId::of(mailed.batch, 9).0, "gone@example.org", &json!({})),
    ] {
        mailed.told(&raw).await;
        mailed.told(&raw).await;
    }
    mailed.handle_all().await;
    let mut suppressed: Vec<(String, String)> =
        rows(&mailed.rig, "select address, reason || ' ' || scope || ' ' || source from suppressions").await;
    suppressed.sort();
    let mut expected = [
        (address(0), "unsubscribe marketing recipient".to_owned()),
        (address(1), "complaint all recipient".to_owned()),
        (address(2), "hard_bounce all provider".to_owned()),
        ("gone@example.org".to_owned(), "complaint all recipient".to_owned()),
    ];
    expected.sort();
    assert_eq!(suppressed, expected);
    let left: Vec<String> = sqlx::query_scalar("select address from contacts where marketing_status = 'unsubscribed'")
        .fetch_all(&mailed.rig.pool)
        .await
        .unwrap();
    assert_eq!(left, [address(0)]);
    let notices = "select count(*) from notices where type = 'email.unsubscribed' and contact_id is not null
        and data = '{\"unsubscribe\": {\"method\": \"provider\", \"scope\": \"marketing\"}}'";
    assert_eq!(mailed.number(notices).await, 1, "products are told once");
    assert_eq!(mailed.number("select count(*) from notices where type like 'email.%'").await, 1);
    let waiting = "select count(*) from pending_facts";
    assert_eq!(mailed.number(waiting).await, 2, "a soft bounce of a dropped month waits for no send");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hard_bounce_that_names_no_mail_suppresses_contacts_only() {
    let mailed = Mailed::sent(2).await;
    // As SendGrid reports what came back late: without an id, for all systems that send by the account.
    let late = |address: &str, status: &str, reason: &str| {
        json!({"email": address, "event": "bounce", "timestamp": Utc::now().timestamp(), "sg_event_id": address,
               "type": "bounce", "status": status, "reason": reason})
    };
    let (gone, full) = (&mailed.people[0].address, &mailed.people[1].address);
    let raw = json!([
        late(gone, "5.1.1", "550 5.1.1 user unknown"),
        late("stranger@example.org", "5.1.1", "550 5.1.1 user unknown"),
        late(full, "5.2.2", "552 5.2.2 mailbox full"),
    ]);
    mailed.told_by(mailed.tenant.id, "sendgrid", raw.to_string().as_bytes()).await;
    mailed.handle_all().await;
    let suppressed: Vec<(String, String)> = rows(&mailed.rig, "select address, reason from suppressions").await;
    assert_eq!(suppressed, [(gone.clone(), "hard_bounce".to_owned())]);
    assert_eq!(mailed.number("select count(*) from pending_facts").await, 0);
    assert_eq!(mailed.number("select count(*) from inbound_events where state = 'handled'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_waits_for_the_backlog_of_another() {
    let mailed = Mailed::new(1).await;
    let other = mailed.rig.tenant().await;
    run!(
        &mailed.rig.pool,
        "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw)
         select $1, gen_random_uuid(), $2, 'postmark', n::text, '', '{\"RecordType\":\"Open\"}' from generate_series(1, 1500) n",
        [mailed.tenant.id, mailed.connection]
    );
    mailed.told_by(other.id, "postmark", br#"{"RecordType":"Open"}"#).await;
    mailed.handle_all().await;
    let before = "select count(*) from inbound_events e, inbound_events o
                  where o.dedupe_key = o.id::text and e.handled_at < o.handled_at";
    assert_eq!(mailed.number(before).await, 0, "it is in the first group");
}

#[tokio::test]
async fn a_backlog_is_not_read_for_what_was_started_before() {
    let mailed = Mailed::new(1).await;
    for insert in [
        "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw)
         select $1, gen_random_uuid(), $1, 'postmark', n::text, '', '{}' from generate_series(1, 5000) n",
        "insert into inbound_mails (tenant_id, id, send_id, address_kind, null_sender, size, head)
         select $1, gen_random_uuid(), $1, 'return_path', true, 1, 'x' from generate_series(1, 5000)",
    ] {
        sqlx::query(insert).bind(mailed.tenant.id).execute(&mailed.rig.pool).await.unwrap();
    }
    let events = include_str!("../../queries/take_inbound.sql").replace("$2", "4096").replace("$3", "$2");
    for take in [events.as_str(), include_str!("../../queries/take_mails.sql")] {
        let plan: Value = sqlx::query_scalar(AssertSqlSafe(format!("explain (analyze, format json)\n{take}")))
            .bind(1_i64)
            .bind(true)
            .fetch_one(&mailed.rig.pool)
            .await
            .unwrap();
        let in_vain = rows_in_vain(&plan);
        assert!(in_vain < 100.0, "{in_vain} rows were looked at in vain: {plan:#}");
    }
}

#[tokio::test]
async fn what_is_due_later_takes_no_part_of_a_group() {
    let mailed = Mailed::new(1).await;
    let others = "insert into tenants (id, environment, owner_email)
                  select gen_random_uuid(), 'production', 'owner@example.com' from generate_series(1, 60)";
    sqlx::query(others).execute(&mailed.rig.pool).await.unwrap();
    for insert in [
        "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw, due_at)
         select t.id, gen_random_uuid(), $1, 'postmark', n::text, '', '{}', now() + case when t.id = $1 then '0' else '1 hour' end::interval
         from tenants t, generate_series(1, case when t.id = $1 then 30 else 1 end) n",
        "insert into inbound_mails (tenant_id, id, send_id, address_kind, null_sender, size, head, due_at)
         select t.id, gen_random_uuid(), $1, 'return_path', true, 1, 'x', now() + case when t.id = $1 then '0' else '1 hour' end::interval
         from tenants t, generate_series(1, case when t.id = $1 then 30 else 1 end)",
    ] {
        sqlx::query(insert).bind(mailed.tenant.id).execute(&mailed.rig.pool).await.unwrap();
    }
    let events = include_str!("../../queries/take_inbound.sql").replace("$2", "4096").replace("$3", "$2");
    for take in [events.as_str(), include_str!("../../queries/take_mails.sql")] {
        let taken =
            sqlx::query(AssertSqlSafe(take)).bind(60_i64).bind(false).fetch_all(&mailed.rig.pool).await.unwrap();
        assert_eq!(taken.len(), 30, "all that is due: {take}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_waits_for_the_pending_facts_of_another() {
    let mailed = Mailed::new(1).await;
    let other = mailed.rig.tenant().await;
    // Old ones are tried once an hour.
    run!(
        &mailed.rig.pool,
        "insert into pending_facts (tenant_id, id, reason, send_id, occurred_at, pending_since, due_at)
         select t, gen_random_uuid(), 'unknown_send', gen_random_uuid(), now(), now() - interval '71 hours', due_at
         from (select $1::uuid as t, now() - interval '1 hour' as due_at from generate_series(1, 1500)
               union all select $2, now()) f",
        [mailed.tenant.id, other.id]
    );
    start(&mailed.rig).await;
    let left = "select count(*) from pending_facts where attempts = 0";
    until("each is tried", async || mailed.number(left).await == 0).await;
    let before: i64 = sqlx::query_scalar(
        "select count(*) from pending_facts p, pending_facts o where o.tenant_id = $1 and p.due_at < o.due_at",
    )
    .bind(other.id)
    .fetch_one(&mailed.rig.pool)
    .await
    .unwrap();
    assert_eq!(before, 0, "it is in the first group");
}

#[tokio::test]
async fn a_pending_fact_of_a_newer_version_waits_for_that_version() {
    let mailed = Mailed::sent(1).await;
    // The second one only proves that the mail has left: it is done at once, with the first in its group.
    run!(
        &mailed.rig.pool,
        "insert into pending_facts (tenant_id, id, reason, send_id, provider, signal, occurred_at, due_at)
         select $1, gen_random_uuid(), 'unknown_send', $2, 'postmark', s.signal, now(), now()
         from (values ($3::jsonb), (null)) as s (signal)",
        [mailed.tenant.id, SendId::of(mailed.batch, 0).0, json!({"kind": "of_a_newer_version"})]
    );
    start(&mailed.rig).await;
    until("one is done", async || mailed.number("select count(*) from pending_facts").await == 1).await;
    assert_eq!(mailed.number("select count(*) from pending_facts where signal is not null").await, 1);
    sqlx::query("update pending_facts set pending_since = now() - interval '73 hours', due_at = now()")
        .execute(&mailed.rig.pool)
        .await
        .unwrap();
    let dropped = "select count(*) from pending_facts where dropped_at is not null and due_at is null";
    until("it is dropped, as others are", async || mailed.number(dropped).await == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_names_no_send_waits_only_where_events_may_come_without() {
    let mailed = Mailed::sent(1).await;
    sqlx::query("update sends set provider = 'sendgrid', provider_message_id = 'ours'")
        .execute(&mailed.rig.pool)
        .await
        .unwrap();
    let delivered = |id: &str| {
        json!([{"email": "john@example.com", "event": "delivered", "timestamp": Utc::now().timestamp(),
                "sg_message_id": format!("{id}.filter0"), "sg_event_id": id}])
    };
    for id in ["ours", "foreign"] {
        mailed.told_by(mailed.tenant.id, "sendgrid", delivered(id).to_string().as_bytes()).await;
    }
    let foreign = json!({"event-data": {
        "event": "delivered", "id": "e", "timestamp": Utc::now().timestamp(), "recipient": "john@example.com",
        "user-variables": {}, "message": {"headers": {"message-id": "foreign@example.com"}},
    }});
    mailed.told_by(mailed.tenant.id, "mailgun", foreign.to_string().as_bytes()).await;
    mailed.handle_all().await;
    assert_eq!(
        mailed.number("select count(delivered_at) from sends").await,
        1,
        "a late report may have lost its metadata"
    );
    assert_eq!(mailed.number("select count(*) from pending_facts").await, 0);
    assert_eq!(mailed.number("select count(*) from inbound_events where state = 'rejected'").await, 0);
}

/// Two tenants, each with a mail; the first tenant's contact is locked by the answered transaction, as an import locks it.
async fn with_a_locked_contact(mailed: &Mailed) -> (Uuid, Uuid, sqlx::Transaction<'static, sqlx::Postgres>) {
    let rig = &mailed.rig;
    let other = rig.tenant().await;
    let people = rig.people(&other, 1).await;
    let batch = batch_to(rig, &other, &people).await;
    mailed.in_state("sent").await;
    let mut importing = rig.pool.begin().await.unwrap();
    let lock = "select 1 from contacts where id = $1 for update";
    sqlx::query(lock).bind(mailed.people[0].id).execute(&mut *importing).await.unwrap();
    (other.id, SendId::of(batch, 0).0, importing)
}

const COMPLAINED: &str = "select count(complained_at) from sends";

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_contact_delays_the_events_of_its_tenant_only() {
    let mailed = Mailed::new(1).await;
    let (other, send, importing) = with_a_locked_contact(&mailed).await;
    let complaint = |send| record("SpamComplaint", send, "john@example.com", &json!({})).to_string();
    mailed.told_by(mailed.tenant.id, "postmark", complaint(mailed.send(0)).as_bytes()).await;
    mailed.told_by(other, "postmark", complaint(send).as_bytes()).await;
    start(&mailed.rig).await;
    let handled = until("the other's complaint is recorded", async || mailed.number(COMPLAINED).await == 1);
    tokio::time::timeout(Duration::from_secs(20), handled).await.unwrap();
    importing.rollback().await.unwrap();
    mailed.all_handled().await;
    assert_eq!(mailed.number(COMPLAINED).await, 2);
    assert_eq!(mailed.number("select max(attempts)::bigint from inbound_events").await, 1, "its start did not count");
    mailed.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_contact_delays_the_pending_facts_of_its_tenant_only() {
    let mailed = Mailed::new(1).await;
    let (other, send, importing) = with_a_locked_contact(&mailed).await;
    for (tenant, send) in [(mailed.tenant.id, mailed.send(0)), (other, send)] {
        let mut unnamed = record("SpamComplaint", send, "john@example.com", &json!({}));
        unnamed["Metadata"] = json!({});
        mailed.told_by(tenant, "postmark", unnamed.to_string().as_bytes()).await;
    }
    mailed.handle_all().await;
    assert_eq!(mailed.number("select count(*) from pending_facts").await, 2);
    sqlx::query("update sends set provider_message_id = 'pm-' || id").execute(&mailed.rig.pool).await.unwrap();
    let joined = until("the other's complaint is recorded", async || mailed.number(COMPLAINED).await == 1);
    tokio::time::timeout(Duration::from_secs(20), joined).await.unwrap();
    importing.rollback().await.unwrap();
    until("nothing waits", async || mailed.number("select count(*) from pending_facts").await == 0).await;
    assert_eq!(mailed.number(COMPLAINED).await, 2);
    mailed.assert_books().await;
}
