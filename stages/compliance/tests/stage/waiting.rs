//! Sends and batches that have to wait.

use rstest::rstest;
use schemas::{Classification, SendId, month_of, new_id};
use sqlx::AssertSqlSafe;
use stage_rig::{Person, Rig, Tenant};
use uuid::Uuid;

use crate::{all_taken, announce, campaign, cleared, decide, queued, sends, skipped, start, state_of};

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
    decide(&rig, &[&waits, &is_over]).await;
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
    decide(&rig, &[&batch]).await;
    let states: Vec<String> = sends(&rig, batch.batch_id).await.into_iter().map(|(state, _)| state).collect();
    assert_eq!(states, ["deferred", "skipped", "deferred", "skipped"]);
    let cleared = cleared(&rig).await;
    assert_eq!(cleared[0].recipients.iter().map(|recipient| recipient.ordinal).collect::<Vec<_>>(), [0]);
    // Delivery has the one that is due; if it does nothing with it, the batch is announced again soon, and not when it was planned.
    assert_eq!(state_of(&rig, batch.batch_id).await, "resting");
    let soon = "select count(*) from batches where announce_after between now() and now() + interval '2 seconds'";
    assert_eq!(rig.number(soon).await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_in_doubt_that_may_not_be_sent_again_stays_unknown() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 2).await;
    let batch = rig.batch(&tenant, campaign, Classification::Transactional, &people).await;
    sqlx::query("update sends set doubtful = 1, attempts = 1, fenced_at = now() where id = $1")
        .bind(SendId::of(batch.batch_id, 0).0)
        .execute(&rig.pool)
        .await
        .unwrap();
    for person in &people {
        rig.suppress(&tenant, person, "hard_bounce", "all").await;
    }
    decide(&rig, &[&batch]).await;
    let unknown = ("unknown".to_owned(), Some("no_answer".to_owned()));
    assert_eq!(sends(&rig, batch.batch_id).await, [unknown, skipped("hard_bounced")]);
    assert_eq!(state_of(&rig, batch.batch_id).await, "done");
    let facts =
        "select count(*) from events where type = 'unknown' and detail = '{\"reason\": \"no_answer\", \"attempt\": 1}'";
    assert_eq!(rig.number(facts).await, 1);
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
    decide(&rig, &[&batch]).await;
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
    decide(&rig, &[&batch]).await;
    assert_eq!((state_of(&rig, batch.batch_id).await.as_str(), cleared(&rig).await.len()), ("timed", 0));
    assert_eq!(sends(&rig, batch.batch_id).await, [queued(), queued(), queued()]);
    let due = "select count(*) from batches
               where due_at = announce_after
                 and announce_after between now() + interval '58 minutes' and now() + interval '61 minutes'";
    assert_eq!(rig.number(due).await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_does_not_sleep_by_quiet_hours_that_are_changed_meanwhile() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 1).await;
    quiet_in_kiribati(&rig, &tenant).await;
    move_to_kiribati(&rig, &people).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    let mut changing = rig.pool.begin().await.unwrap();
    sqlx::query("select close_gate($1)").bind(tenant.id).execute(&mut *changing).await.unwrap();
    let lifted = "update tenants set quiet_from = null, quiet_to = null, quiet_by_contact = null, quiet_for = null where id = $1";
    sqlx::query(lifted).bind(tenant.id).execute(&mut *changing).await.unwrap();
    announce(&rig, &[&batch], "1").await;
    start(&rig).await;
    all_taken(&rig).await;
    changing.commit().await.unwrap();
    assert_eq!(state_of(&rig, batch.batch_id).await, "announced");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recipients_in_quiet_hours_wait_and_the_others_go_on() {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 4).await;
    quiet_in_kiribati(&rig, &tenant).await;
    move_to_kiribati(&rig, &people[2..]).await;
    rig.suppress(&tenant, &people[3], "complaint", "all").await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    decide(&rig, &[&batch]).await;
    let quiet = ("deferred".to_owned(), Some("quiet_hours".to_owned()));
    assert_eq!(sends(&rig, batch.batch_id).await, [queued(), queued(), quiet, skipped("complained")]);
    assert_eq!(cleared(&rig).await[0].recipients.len(), 2);
    assert_eq!(state_of(&rig, batch.batch_id).await, "announced", "delivery has two of it now");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_that_yields_to_more_urgent_mail_is_put_off_early() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let (urgent, normal) = (rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await);
    let people = rig.people(&tenant, 3).await;
    let owed = rig.batch(&tenant, urgent, Classification::Marketing, &people[..2]).await;
    let capped = "update tenants set frequency_cap_messages = 1, frequency_cap_days = 7";
    sqlx::query(capped).execute(&rig.pool).await.unwrap();
    sqlx::query("update campaigns set urgency = 'urgent', month = $2, launched_at = now() where id = $1")
        .bind(urgent)
        .bind(month_of(owed.batch_id))
        .execute(&rig.pool)
        .await
        .unwrap();
    let part = rig.batch(&tenant, normal, Classification::Marketing, &people[1..]).await;
    let whole = rig.batch(&tenant, normal, Classification::Marketing, &people[..1]).await;
    decide(&rig, &[&part, &whole]).await;
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

/// The sends of the batch are of an enrollment with this status and exit reason, in a sequence with this status.
async fn of_an_enrollment(
    rig: &Rig,
    tenant: &Tenant,
    batch: Uuid,
    (status, reason): (&str, Option<&str>),
    sequence_status: &str,
) {
    let sequence = new_id();
    for sql in [
        "insert into sequences (tenant_id, id, product, environment, name, status) values ($1, $2, 'shop', 'production', 'Welcome', $6)",
        "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, status, exit_reason, next_action_at)
         select $1, s.id, $2, s.contact_id, 'shop', $4, $5, case when $4 in ('active', 'paused') then now() end
         from sends s where batch_of(s.id) = $3",
        "insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id)
         select $1, s.id, $2, s.id, gen_random_uuid() from sends s where batch_of(s.id) = $3",
        "update batches set kind = 'sequence', campaign_id = null where tenant_id = $1 and id = $3",
    ] {
        // Each statement takes all of them, and says what types they have.
        let sql = format!("with p as (select $1::uuid, $2::uuid, $3::uuid, $4::text, $5::text, $6::text) {sql}");
        let query = sqlx::query(AssertSqlSafe(sql)).bind(tenant.id).bind(sequence).bind(batch);
        query.bind(status).bind(reason).bind(sequence_status).execute(&rig.pool).await.unwrap();
    }
}

#[rstest]
#[case::exited("exited", Some("event"), "active", skipped("enrollment_exited"))]
#[case::not_yet_exited_from_an_archived_sequence("active", None, "archived", skipped("enrollment_exited"))]
#[case::of_a_paused_sequence("active", None, "paused", queued())]
#[case::ended_by_its_step("exited", Some("end_step"), "archived", queued())]
#[case::completed("completed", None, "archived", queued())]
#[tokio::test(flavor = "multi_thread")]
async fn mail_of_an_enrollment_that_has_exited_is_withheld(
    #[case] status: &str,
    #[case] reason: Option<&str>,
    #[case] sequence_status: &str,
    #[case] expected: (String, Option<String>),
) {
    let rig = Rig::new().await;
    let (tenant, campaign) = campaign(&rig).await;
    let people = rig.people(&tenant, 1).await;
    let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people).await;
    of_an_enrollment(&rig, &tenant, batch.batch_id, (status, reason), sequence_status).await;
    decide(&rig, &[&batch]).await;
    assert_eq!(sends(&rig, batch.batch_id).await, [expected]);
    rig.assert_books().await;
}
