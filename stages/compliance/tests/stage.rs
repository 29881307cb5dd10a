//! The compliance stage on its own database and streams.
#![allow(clippy::unwrap_used, missing_docs)]

use rstest::rstest;
use runtime::Publication;
use schemas::{Classification, Cleared, Resolved, SendId, month_of, new_batch_id, subjects, subjects::stream};
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

async fn start(rig: &Rig) {
    compliance::start(&rig.process());
}

/// A tenant with a running campaign.
async fn campaign(rig: &Rig) -> (Tenant, Uuid) {
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    (tenant, campaign)
}

/// Rings for batches; a ring of another name is not dropped as a repeat.
async fn announce(rig: &Rig, batches: &[&Resolved], name: &str) {
    let publications = batches.iter().map(|batch| {
        let id = format!("{}-{name}", batch.batch_id);
        Publication::json(subjects::resolved(batch.lane), id, *batch).unwrap()
    });
    rig.publish(publications.collect()).await;
}

async fn all_taken(rig: &Rig) {
    until("every announcement is taken", async || rig.held(stream::RESOLVED).await == 0).await;
}

/// State and reason of each send of a batch, in order.
async fn sends(rig: &Rig, batch: Uuid) -> Vec<(String, Option<String>)> {
    sqlx::query_as("select state, reason from sends where id between $1 and $2 order by id")
        .bind(batch)
        .bind(SendId::last_of(batch))
        .fetch_all(&rig.pool)
        .await
        .unwrap()
}

fn skipped(reason: &str) -> (String, Option<String>) {
    ("skipped".to_owned(), Some(reason.to_owned()))
}

fn queued() -> (String, Option<String>) {
    ("queued".to_owned(), None)
}

async fn state_of(rig: &Rig, batch: Uuid) -> String {
    sqlx::query_scalar("select state from batches where id = $1").bind(batch).fetch_one(&rig.pool).await.unwrap()
}

async fn cleared(rig: &Rig) -> Vec<Cleared> {
    rig.messages(stream::CLEARED).await
}

/// Ten people: nine with something against them in their own way, and Ann.
async fn ten_people(rig: &Rig, tenant: &Tenant) -> Vec<Person> {
    let people = rig.people(tenant, 10).await;
    let held =
        [("hard_bounce", "all"), ("complaint", "all"), ("invalid", "all"), ("manual", "all"), ("manual", "marketing")];
    for (person, (reason, scope)) in people[1..].iter().zip(held) {
        rig.suppress(tenant, person, reason, scope).await;
    }
    rig.suppress(tenant, &people[6], "unsubscribe", "marketing").await;
    let changes = [
        (7, "update contacts set marketing_status = 'unsubscribed' where id = $1"),
        (8, "update contacts set marketing_status = 'pending' where id = $1"),
        (9, "update contacts set status = 'archived' where id = $1"),
    ];
    for (at, change) in changes {
        sqlx::query(change).bind(people[at].id).execute(&rig.pool).await.unwrap();
    }
    people
}

#[rstest]
#[case::marketing(Classification::Marketing, 1)]
#[case::operational(Classification::Operational, 5)]
#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_withheld_has_the_reason_in_the_ledger(#[case] class: Classification, #[case] mailed: usize) {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = ten_people(&rig, &tenant).await;
    let batch = rig.batch(&tenant, campaign, class, &people).await;
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let soft = |reason: &str| if class == Classification::Marketing { skipped(reason) } else { queued() };
    let expected = [
        queued(),
        skipped("hard_bounced"),
        skipped("complained"),
        skipped("invalid_address"),
        skipped("suppressed"),
        soft("suppressed"),
        soft("unsubscribed"),
        soft("unsubscribed"),
        soft("no_consent"),
        skipped("contact_archived"),
    ];
    assert_eq!(sends(&rig, batch.batch_id).await, expected);
    let cleared = cleared(&rig).await;
    assert_eq!(cleared.len(), 1);
    assert_eq!((cleared[0].batch_id, cleared[0].announcement, cleared[0].classification), (batch.batch_id, 1, class));
    assert_eq!(cleared[0].recipients.len(), mailed);
    assert_eq!((cleared[0].recipients[0].ordinal, cleared[0].recipients[0].contact_id), (0, people[0].id));
    rig.assert_books().await;
    let counted =
        rig.number("select sum(count)::bigint from rollups where kind = 'campaign' and event = 'skipped'").await;
    assert_eq!(counted, i64::try_from(10 - mailed).unwrap());
    // Each is a fact as well: whoever listens is told.
    let told = rig
        .number(
            "select count(*) from events e join sends s on s.tenant_id = e.tenant_id and s.id = e.send_id
             where e.type = 'skipped' and e.detail ->> 'reason' = s.reason",
        )
        .await;
    assert_eq!(told, counted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suppression_that_has_run_out_withholds_nobody() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 1).await;
    rig.suppress(&tenant, &people[0], "manual", "all").await;
    sqlx::query("update suppressions set expires_at = now() - interval '1 second'").execute(&rig.pool).await.unwrap();
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(sends(&rig, batch.batch_id).await, [queued()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_which_all_are_withheld_is_done_and_goes_no_further() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 3).await;
    for person in &people {
        rig.suppress(&tenant, person, "complaint", "all").await;
    }
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(state_of(&rig, batch.batch_id).await, "done");
    assert!(cleared(&rig).await.is_empty());
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_and_two_processes_change_nothing_more() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = ten_people(&rig, &tenant).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    for name in ["1", "2", "3", "4", "5"] {
        announce(&rig, &[&batch], name).await;
    }
    start(&rig).await;
    start(&rig).await;
    all_taken(&rig).await;
    rig.assert_books().await;
    assert_eq!(rig.number("select sum(count)::bigint from rollups where event = 'skipped'").await, 9);
    assert_eq!(cleared(&rig).await.len(), 1, "the repeats are one message");
}

#[rstest]
#[case::tenant_suspended("update tenants set status = 'suspended'", "tenant_suspended")]
#[case::sender_disabled("update senders set status = 'disabled'", "sender_disabled")]
#[case::domain_failed("update domains set status = 'failed'", "domain_unverified")]
#[case::domain_suspended("update domains set status = 'suspended'", "domain_unverified")]
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_send_has_all_recipients_withheld(#[case] change: &'static str, #[case] reason: &str) {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 2).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    sqlx::query(change).execute(&rig.pool).await.unwrap();
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(sends(&rig, batch.batch_id).await, [skipped(reason), skipped(reason)]);
    assert_eq!(state_of(&rig, batch.batch_id).await, "done");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_degraded_domain_still_sends() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 1).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    sqlx::query("update domains set status = 'degraded'").execute(&rig.pool).await.unwrap();
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(cleared(&rig).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_campaign_waits_and_a_cancelled_one_is_left_alone() {
    let rig = Rig::new().await;
    let (tenant, paused) = campaign(&rig).await;
    let (other, cancelled) = campaign(&rig).await;
    let people = rig.people(&tenant, 1).await;
    let others = rig.people(&other, 1).await;
    let waits = rig.batch(&tenant, paused, Classification::Marketing, &people).await;
    let is_over = rig.batch(&other, cancelled, Classification::Marketing, &others).await;
    sqlx::query("update campaigns set paused = true where id = $1").bind(paused).execute(&rig.pool).await.unwrap();
    sqlx::query("update campaigns set status = 'cancelled' where id = $1")
        .bind(cancelled)
        .execute(&rig.pool)
        .await
        .unwrap();
    announce(&rig, &[&waits, &is_over], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(state_of(&rig, waits.batch_id).await, "waiting");
    assert_eq!(state_of(&rig, is_over.batch_id).await, "announced");
    assert!(cleared(&rig).await.is_empty());
    rig.assert_books().await;
}

/// Defers a send of a batch, as delivery would.
async fn defer(rig: &Rig, send: SendId, until: &str) {
    sqlx::query("update sends set state = 'deferred', next_attempt_at = now() + $2::interval where id = $1")
        .bind(send.0)
        .bind(
            sqlx::postgres::types::PgInterval::try_from(std::time::Duration::from_secs(until.parse().unwrap()))
                .unwrap(),
        )
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query("update batches set queued = queued - 1, deferred = deferred + 1 where id = $1")
        .bind(send.batch())
        .execute(&rig.pool)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deferred_sends_are_decided_again_when_they_are_due() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 4).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    defer(&rig, SendId::of(batch.batch_id, 0), "0").await;
    defer(&rig, SendId::of(batch.batch_id, 1), "0").await;
    defer(&rig, SendId::of(batch.batch_id, 2), "3600").await;
    rig.suppress(&tenant, &people[1], "hard_bounce", "all").await;
    rig.suppress(&tenant, &people[3], "hard_bounce", "all").await;
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let states: Vec<String> = sends(&rig, batch.batch_id).await.into_iter().map(|(state, _)| state).collect();
    assert_eq!(states, ["deferred", "skipped", "deferred", "skipped"]);
    let cleared = cleared(&rig).await;
    assert_eq!(cleared[0].recipients.iter().map(|recipient| recipient.ordinal).collect::<Vec<_>>(), [0]);
    assert_eq!(state_of(&rig, batch.batch_id).await, "announced", "delivery has one of it now");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_which_only_later_work_is_left_rests_until_then() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 2).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    defer(&rig, SendId::of(batch.batch_id, 0), "3600").await;
    rig.suppress(&tenant, &people[1], "complaint", "all").await;
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!(state_of(&rig, batch.batch_id).await, "resting");
    rig.assert_books().await;
}

/// It is quiet in Kiribati, fourteen hours ahead of UTC, whatever the time: from an hour ago there, for two hours.
async fn quiet_in_kiribati(rig: &Rig, tenant: &Tenant) {
    sqlx::query(
        "update tenants set quiet_from = (now() at time zone 'Pacific/Kiritimati' - interval '1 hour')::time,
             quiet_to = (now() at time zone 'Pacific/Kiritimati' + interval '1 hour')::time,
             quiet_by_contact = true, quiet_for = '{marketing}', timezone = 'UTC'
         where id = $1",
    )
    .bind(tenant.id)
    .execute(&rig.pool)
    .await
    .unwrap();
}

async fn move_to_kiribati(rig: &Rig, people: &[Person]) {
    let ids: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    sqlx::query("update contacts set timezone = 'Pacific/Kiritimati' where id = any ($1)")
        .bind(ids)
        .execute(&rig.pool)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_quiet_hours_a_batch_waits_as_a_whole() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 3).await;
    quiet_in_kiribati(&rig, &tenant).await;
    move_to_kiribati(&rig, &people).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert_eq!((state_of(&rig, batch.batch_id).await.as_str(), cleared(&rig).await.len()), ("timed", 0));
    assert_eq!(sends(&rig, batch.batch_id).await, [queued(), queued(), queued()]);
    let due = "select count(*) from batches
               where due_at = announce_after
                 and announce_after between now() + interval '58 minutes' and now() + interval '61 minutes'";
    assert_eq!(rig.number(due).await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_those_wait_for_whom_it_is_quiet() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 4).await;
    quiet_in_kiribati(&rig, &tenant).await;
    move_to_kiribati(&rig, &people[2..]).await;
    rig.suppress(&tenant, &people[3], "complaint", "all").await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let quiet = ("deferred".to_owned(), Some("quiet_hours".to_owned()));
    assert_eq!(sends(&rig, batch.batch_id).await, [queued(), queued(), quiet, skipped("complained")]);
    assert_eq!(cleared(&rig).await[0].recipients.len(), 2);
    assert_eq!(state_of(&rig, batch.batch_id).await, "announced", "delivery has two of it now");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_whose_room_is_spoken_for_is_put_off_before_it_is_rendered() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let (urgent, normal) = (rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await);
    let people = rig.people(&tenant, 3).await;
    let owed = rig.batch(&tenant, urgent, Classification::Marketing, &people[..2]).await;
    let capped = "update tenants set frequency_cap_messages = 1, frequency_cap_days = 7";
    sqlx::query(capped).execute(&rig.pool).await.unwrap();
    sqlx::query("update campaigns set urgency = 'urgent', month = $2, materialized_at = now() where id = $1")
        .bind(urgent)
        .bind(month_of(owed.batch_id))
        .execute(&rig.pool)
        .await
        .unwrap();
    let part = rig.batch(&tenant, normal, Classification::Marketing, &people[1..]).await;
    let whole = rig.batch(&tenant, normal, Classification::Marketing, &people[..1]).await;
    announce(&rig, &[&part, &whole], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let put_off = ("deferred".to_owned(), Some("frequency_cap".to_owned()));
    assert_eq!(sends(&rig, part.batch_id).await, [put_off, queued()]);
    assert_eq!(
        (sends(&rig, whole.batch_id).await, state_of(&rig, whole.batch_id).await),
        (vec![queued()], "timed".into())
    );
    let cleared = cleared(&rig).await;
    assert_eq!((cleared.len(), cleared[0].recipients.len(), cleared[0].recipients[0].contact_id), (1, 1, people[2].id));
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_of_several_tenants_are_decided_each_by_its_facts() {
    let rig = Rig::new().await;
    let mut batches = Vec::new();
    for at in 0..6 {
        let (tenant, campaign) = campaign(&rig).await;
        let people = rig.people(&tenant, 3).await;
        if at % 2 == 0 {
            rig.suppress(&tenant, &people[1], "complaint", "all").await;
        }
        batches.push(rig.batch(&tenant, campaign, Classification::Marketing, &people).await);
    }
    // The priority lane takes many at once.
    for batch in &mut batches {
        batch.lane = schemas::Lane::Priority;
    }
    sqlx::query("update batches set lane = 'priority'").execute(&rig.pool).await.unwrap();
    announce(&rig, &batches.iter().collect::<Vec<_>>(), "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let cleared = cleared(&rig).await;
    for (at, batch) in batches.iter().enumerate() {
        let of_batch: Vec<_> = cleared.iter().filter(|message| message.batch_id == batch.batch_id).collect();
        assert_eq!(of_batch.len(), 1);
        assert_eq!(of_batch[0].tenant_id, batch.tenant_id);
        assert_eq!(of_batch[0].recipients.len(), if at % 2 == 0 { 2 } else { 3 });
    }
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_not_in_the_ledger_is_nothing_to_do() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let gone = Resolved {
        tenant_id: tenant.id,
        batch_id: new_batch_id(),
        lane: schemas::Lane::Bulk,
        announcement: 1,
        notify: None,
    };
    announce(&rig, &[&gone], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    assert!(cleared(&rig).await.is_empty() && rig.dead().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_looks_contacts_up_by_key_even_before_there_are_statistics() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 20_000).await;
    let asked: Vec<Uuid> = people.iter().step_by(40).map(|person| person.id).collect();
    let plan: Vec<String> =
        sqlx::query_scalar("explain select contact_id, suppressed_all from recipient_eligibility($1, $2)")
            .bind(tenant.id)
            .bind(&asked)
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("id = w.id") && plan.contains("address = c.address"), "{plan}");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Hash"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frequency_cap_is_counted_by_contact_over_many_rows() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 500).await;
    sqlx::query("update tenants set frequency_cap_messages = 300, frequency_cap_days = 7")
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query(
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), id, now() - make_interval(hours => n) from contacts, generate_series(1, 200) n",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let asked: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    let plan: Vec<String> = sqlx::query_scalar("explain select cap_left from recipient_eligibility($1, $2)")
        .bind(tenant.id)
        .bind(&asked)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("capped_sends_by_contact") && !plan.contains("Seq Scan on capped_sends"), "{plan}");
    let left: Vec<i64> = sqlx::query_scalar("select distinct cap_left from recipient_eligibility($1, $2)")
        .bind(tenant.id)
        .bind(&asked)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert_eq!(left, [300 - 167], "the hours of a week, without the one that is over");
}

/// The topic is the list that the campaign goes to, while it is one that people can see and leave.
#[rstest]
#[case::marketing(Classification::Marketing, "list", Some("News"), true)]
#[case::operational(Classification::Operational, "list", Some("News"), false)]
#[case::left_over_of_another_mode(Classification::Marketing, "segment", Some("News"), false)]
#[case::no_topic_any_more(Classification::Marketing, "list", None, false)]
#[tokio::test(flavor = "multi_thread")]
async fn who_has_left_the_topic_since_the_launch_is_not_mailed(
    #[case] class: Classification,
    #[case] mode: &str,
    #[case] public_name: Option<&str>,
    #[case] withheld: bool,
) {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    sqlx::query(
        "with topic as (
             update audiences a set public_name = $3 from campaigns c where c.id = $1 and a.tenant_id = c.tenant_id and a.id = c.list_id
         )
         update campaigns set audience_mode = $2 where id = $1",
    )
    .bind(campaign)
    .bind(mode)
    .bind(public_name)
    .execute(&rig.pool)
    .await
    .unwrap();
    let people = rig.people(&tenant, 2).await;
    let batch = rig.batch(&tenant, campaign, class, &people).await;
    sqlx::query(
        "insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
         select tenant_id, list_id, $2, $3 from campaigns where id = $1",
    )
    .bind(campaign)
    .bind(people[0].id)
    .bind(batch.batch_id)
    .execute(&rig.pool)
    .await
    .unwrap();
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    let first = if withheld { skipped("unsubscribed") } else { queued() };
    assert_eq!(sends(&rig, batch.batch_id).await, [first, queued()]);
    rig.assert_books().await;
}
