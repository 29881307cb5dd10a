//! A mail over which the process dies again and again costs itself only.

use std::time::Duration;

use pipeline::{Rig, eventually};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

const WITHIN: Duration = Duration::from_secs(60);
const GOOD: usize = 50;
/// Starts of a mail before it is set aside.
const STARTS_MAX: usize = 4;

const BOUNCE: &str = "From: MAILER-DAEMON@mx.example\r\nSubject: Undelivered Mail Returned to Sender\r\nMIME-Version: 1.0\r\n\
    Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n\
    Reporting-MTA: dns; mx.example\r\n\r\nFinal-Recipient: rfc822; a@example.org\r\nAction: failed\r\nStatus: 5.1.1\r\n\
    Diagnostic-Code: smtp; 550 5.1.1 user unknown\r\n\r\n--b--\r\n";

/// A campaign that was sent; answers its sends.
async fn sent(rig: &Rig, people: usize, prefix: &str) -> Vec<Uuid> {
    let (list, _) = rig.list_of(people, prefix, "example.com").await;
    let campaign = rig.campaign(list, "News", "<p>Hello</p>").await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", WITHIN).await;
    sqlx::query_scalar("select id from sends where campaign_id = $1").bind(campaign).fetch_all(&rig.pool).await.unwrap()
}

/// A bounce of each send, as the server for such mail stores it. Earlier ones are due first.
async fn came_back(rig: &Rig, sends: &[Uuid], seconds_ago: i32) {
    sqlx::query(
        "insert into inbound_mails (tenant_id, id, send_id, address_kind, null_sender, size, head, due_at)
         select $1, gen_random_uuid(), send_id, 'return_path', true, octet_length($3), $3, now() - make_interval(secs => $4)
         from unnest($2::uuid[]) send_id",
    )
    .bind(rig.engine_tenant_id)
    .bind(sends)
    .bind(BOUNCE.as_bytes())
    .bind(f64::from(seconds_ago))
    .execute(&rig.pool)
    .await
    .unwrap();
}

/// Holds the batch of a send: whoever takes its mail in hand stands still over it, and can be killed there.
async fn hold(rig: &Rig, send: Uuid) -> Transaction<'static, Postgres> {
    let mut held = rig.pool.begin().await.unwrap();
    sqlx::query("select 1 from batches where id = $1 for update")
        .bind(schemas::SendId(send).batch())
        .execute(&mut *held)
        .await
        .unwrap();
    held
}

/// Starts engagement, waits until it stands over the held mail, and kills it there.
async fn die_over_it(rig: &mut Rig) {
    rig.start("engagement", &["stage", "engagement"]).await;
    eventually("engagement to have the mail in hand", WITHIN, || async {
        let waits =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        (rig.number(waits).await > 0).then_some(())
    })
    .await;
    rig.kill9("engagement");
    // Its session of Postgres would wait on for the lock, and be taken for the next process's.
    let sessions = "select pg_terminate_backend(pid, 10000) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock'";
    sqlx::query(sessions).execute(&rig.pool).await.unwrap();
    sqlx::query("update inbound_mails set due_at = due_at - interval '1 hour' where due_at is not null")
        .execute(&rig.pool)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_over_which_the_process_dies_is_set_aside_and_fifty_beside_it_are_recorded() {
    let mut rig = Rig::shared().await;
    rig.start("stages", &["stage", "audience", "compliance", "rendering", "delivery"]).await;
    rig.start("ingress", &["ingress"]).await;
    let good = sent(&rig, GOOD, "good").await;
    let poison = sent(&rig, 1, "poison").await[0];
    rig.kill9("stages");
    came_back(&rig, &[poison], 60).await;
    came_back(&rig, &good, 0).await;
    let held = hold(&rig, poison).await;

    // A group was taken together, and each of it counts as started.
    die_over_it(&mut rig).await;
    assert_eq!(rig.number("select count(*) from inbound_mails where attempts = 1 and outcome is null").await, 50);
    // Each is read alone now: only the one in hand is started once more.
    die_over_it(&mut rig).await;
    assert_eq!(rig.number("select count(*) from inbound_mails where attempts = 2 and outcome is null").await, 1);
    sqlx::query("update inbound_mails set due_at = now() + interval '1 hour' where send_id = $1")
        .bind(poison)
        .execute(&rig.pool)
        .await
        .unwrap();
    rig.start("engagement", &["stage", "engagement"]).await;
    eventually("fifty bounces to be recorded", WITHIN, || async {
        (rig.number("select count(*) from inbound_mails where outcome = 'bounced' and head is null").await == 50)
            .then_some(())
    })
    .await;
    rig.kill9("engagement");
    for _ in 2..STARTS_MAX {
        sqlx::query("update inbound_mails set due_at = now() where due_at is not null")
            .execute(&rig.pool)
            .await
            .unwrap();
        die_over_it(&mut rig).await;
    }
    rig.start("engagement", &["stage", "engagement"]).await;
    let set_aside =
        "select count(*) from inbound_mails where outcome = 'given_up' and head is not null and due_at is null";
    eventually("the one to be set aside, with its head", WITHIN, || async {
        (rig.number(set_aside).await == 1).then_some(())
    })
    .await;
    held.rollback().await.unwrap();
    assert_eq!(rig.number("select count(*) from sends where bounced_at is not null").await, 50);
    assert_eq!(rig.number("select count(*) from suppressions where reason = 'hard_bounce'").await, 50);
    rig.books_balance().await;
}
