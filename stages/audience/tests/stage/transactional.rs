//! Transactional requests.

use std::collections::BTreeSet;

use ledger::{
    dispatch::AnnounceRequests,
    requeue::{RequeueScope, RequeuedWork, requeue},
};
use runner::Sweep;
use runtime::Notifier;
use schemas::{
    Cleared, Lane, RequestAnnounced, Resolved, SendId, messages::ERASED_COPY, new_batch_id, subjects::stream,
};
use serde_json::json;
use stage_rig::{Rig, until};
use uuid::Uuid;

use crate::{run, start};

async fn all_handled(rig: &Rig, count: i64) {
    until("all requests are handled and every ring is taken", async || {
        rig.number("select count(*) from requests where state = 'handled'").await == count
            && rig.held(stream::ACCEPTED).await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_becomes_one_announced_send_however_often_and_by_whom_it_is_handled() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let mut requests = Vec::new();
    for at in 0..100 {
        // Ten people, ten mails each.
        requests.push(rig.transactional_request(&tenant, &format!("p{}@example.org", at % 10), |_| {}).await);
    }
    for ring in 0..3 {
        rig.ring(&requests, &ring.to_string()).await;
    }
    for _ in 0..2 {
        start(&rig, &[]).await;
    }
    all_handled(&rig, 100).await;
    assert_eq!(rig.number("select count(*) from contacts").await, 10);
    assert_eq!(rig.number("select count(*) from sends where request_id = id and state = 'queued'").await, 100);
    assert_eq!(
        rig.number("select count(*) from batches where state = 'announced' and announcement = 1 and lane = 'priority'")
            .await,
        100
    );
    rig.assert_books().await;
    let announced: Vec<Cleared> = rig.messages(stream::CLEARED).await;
    let expected: BTreeSet<Uuid> = requests.iter().map(|request| request.request_id).collect();
    assert_eq!(announced.len(), 100, "once each");
    assert_eq!(announced.iter().map(|message| message.batch_id).collect::<BTreeSet<_>>(), expected);
    assert!(announced.iter().all(|message| message.lane == Lane::Priority && message.announcement == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_mail_to_be_withheld_is_announced_to_compliance() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    sqlx::query("insert into suppressions (tenant_id, id, address, scope, reason, source) values ($1, $2, 'no@example.org', 'all', 'hard_bounce', 'api')")
        .bind(tenant.id)
        .bind(schemas::new_id())
        .execute(&rig.pool)
        .await
        .unwrap();
    let mut requests = Vec::new();
    for address in ["yes@example.org", "no@example.org"] {
        requests.push(rig.transactional_request(&tenant, address, |_| {}).await);
    }
    start(&rig, &[]).await;
    rig.ring(&requests, "1").await;
    all_handled(&rig, 2).await;
    until("both are announced", async || rig.held(stream::CLEARED).await == 1 && rig.held(stream::RESOLVED).await == 1)
        .await;
    let cleared: Vec<Cleared> = rig.messages(stream::CLEARED).await;
    let resolved: Vec<Resolved> = rig.messages(stream::RESOLVED).await;
    assert_eq!((cleared[0].batch_id, resolved[0].batch_id), (requests[0].request_id, requests[1].request_id));
    let contact: Uuid = sqlx::query_scalar("select contact_id from sends where id = $1")
        .bind(requests[0].request_id)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    assert_eq!(cleared[0].recipients.iter().map(|recipient| recipient.contact_id).collect::<Vec<_>>(), [contact]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_fills_what_is_empty_in_a_contact_and_replaces_nothing() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    run(&rig, "update contacts set first_name = 'Ann'").await;
    let request = rig
        .transactional_request(&tenant, &people[0].address.to_uppercase(), |payload| {
            payload.contact.first_name = Some("Bob".to_owned());
            payload.contact.last_name = Some("Lee".to_owned());
        })
        .await;
    start(&rig, &[]).await;
    rig.ring(&[request], "1").await;
    all_handled(&rig, 1).await;
    let contact: (Uuid, Option<String>, Option<String>, String) =
        sqlx::query_as("select id, first_name, last_name, marketing_status from contacts")
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!(contact, (people[0].id, Some("Ann".to_owned()), Some("Lee".to_owned()), "subscribed".to_owned()));
    let mailed: Uuid = sqlx::query_scalar("select contact_id from sends").fetch_one(&rig.pool).await.unwrap();
    assert_eq!(mailed, people[0].id);
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_new_has_not_agreed_to_marketing() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    run(&rig, "update contents set kind = 'transactional'").await;
    let request = rig
        .transactional_request(&tenant, "new@example.org", |payload| payload.contact.title = Some("Dr".into()))
        .await;
    start(&rig, &[]).await;
    rig.ring(&[request], "1").await;
    all_handled(&rig, 1).await;
    let contact: (String, Option<String>, String) =
        sqlx::query_as("select address, title, marketing_status from contacts").fetch_one(&rig.pool).await.unwrap();
    assert_eq!(contact, ("new@example.org".to_owned(), Some("Dr".to_owned()), "pending".to_owned()));
    assert_eq!(rig.number("select count(*) from batches where classification = 'transactional'").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_marketing_template_says_is_marketing_and_opt_outs_hold() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let mut requests = Vec::new();
    for email in ["new@example.org", "left@example.org", "asked@example.org", "gone@example.org"] {
        requests.push(rig.transactional_request(&tenant, email, |_| {}).await);
    }
    for (address, status, source) in [
        ("left@example.org", "unsubscribed", "message"),
        ("asked@example.org", "pending", "api"),
        ("gone@example.org", "pending", "message"),
    ] {
        sqlx::query(
            "insert into contacts (tenant_id, id, address, marketing_status, source) values ($1, gen_random_uuid(), $2, $3, $4)",
        )
        .bind(tenant.id)
        .bind(address)
        .bind(status)
        .bind(source)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    // The recipient left before the contact of then was erased.
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         values ($1, gen_random_uuid(), 'gone@example.org', 'unsubscribe', 'marketing', 'recipient')",
    )
    .bind(tenant.id)
    .execute(&rig.pool)
    .await
    .unwrap();
    start(&rig, &[]).await;
    rig.ring(&requests, "1").await;
    all_handled(&rig, 4).await;
    assert_eq!(rig.number("select count(*) from batches where classification = 'marketing'").await, 4);
    let statuses: Vec<String> =
        sqlx::query_scalar("select address || ' ' || marketing_status from contacts order by address")
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    let expected = [
        "asked@example.org pending",
        "gone@example.org pending",
        "left@example.org unsubscribed",
        "new@example.org subscribed",
    ];
    assert_eq!(statuses, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_address_in_two_tenants_is_two_contacts() {
    let rig = Rig::new().await;
    let (one, other) = (rig.tenant().await, rig.tenant().await);
    let mut requests = Vec::new();
    for tenant in [&one, &other] {
        requests.push(rig.transactional_request(tenant, "both@example.org", |_| {}).await);
    }
    rig.ring(&requests, "1").await;
    start(&rig, &[]).await;
    all_handled(&rig, 2).await;
    assert_eq!(rig.number("select count(*) from contacts").await, 2);
    assert_eq!(
        rig.number("select count(*) from sends s join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id")
            .await,
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poison_request_is_rejected_alone_and_the_others_go_on() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let mut people = rig.people(&tenant, 2).await;
    let (copied, known) = (people.remove(1), people.remove(0));
    let mut requests = Vec::new();
    for at in 0..10 {
        let address = if at == 5 { known.address.clone() } else { format!("p{at}@example.org") };
        requests.push(rig.transactional_request(&tenant, &address, |_| {}).await);
    }
    // Two that can never be: a payload that is none, a content that is not there.
    sqlx::query("update requests set payload = '{\"address\": \"secret@example.org\"}' where id = $1")
        .bind(requests[3].request_id)
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query("update requests set payload = payload || jsonb_build_object('content_id', id) where id = $1")
        .bind(requests[5].request_id)
        .execute(&rig.pool)
        .await
        .unwrap();
    let copies = [ERASED_COPY, copied.address.as_str()].map(|address| json!({"address": address, "role": "bcc"}));
    sqlx::query("update requests set options = $2 where id = $1")
        .bind(requests[5].request_id)
        .bind(json!({"copies": copies}))
        .execute(&rig.pool)
        .await
        .unwrap();
    rig.ring(&requests, "1").await;
    start(&rig, &[]).await;
    all_handled(&rig, 8).await;
    until("both are set aside", async || rig.held(stream::DEAD).await == 2).await;
    let reasons: BTreeSet<String> = rig.dead().await.into_iter().map(|dead| dead.reason).collect();
    assert_eq!(reasons, BTreeSet::from(["ledger".to_owned(), "malformed".to_owned()]));
    assert_eq!(
        rig.number("select count(*) from requests where state = 'rejected' and announce_after is null").await,
        2
    );
    assert_eq!(rig.number("select count(*) from sends").await, 8);
    let noticed: Vec<(Uuid, Uuid, String, String)> =
        sqlx::query_as("select subject_id, contact_id, type, data ->> 'reason' from notices order by subject_id")
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    let expected = [(0, known.id), (2, copied.id)].map(|(ordinal, contact)| {
        let send = SendId::of(requests[5].request_id, ordinal).0;
        (send, contact, "email.failed".to_owned(), "ledger".to_owned())
    });
    assert_eq!(noticed, expected, "the erased copy keeps its ordinal");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poison_batch_of_an_array_is_rejected_alone_and_can_be_requeued() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let mut requests = Vec::new();
    for at in 0..3 {
        requests.push(rig.transactional_request(&tenant, &format!("p{at}@example.org"), |_| {}).await);
    }
    let poison = requests[1].request_id;
    let set_content = async |content: Uuid| {
        sqlx::query(
            "update requests set payload = payload || jsonb_build_object('content_id', $2::uuid) where id = $1",
        )
        .bind(poison)
        .bind(content)
        .execute(&rig.pool)
        .await
        .unwrap();
    };
    set_content(poison).await;
    let array = RequestAnnounced {
        more: requests[1..].iter().map(|request| request.request_id).collect(),
        count: Some(3),
        ..requests[0].clone()
    };
    rig.ring(&[array], "1").await;
    start(&rig, &[]).await;
    all_handled(&rig, 2).await;
    until("it is set aside", async || rig.held(stream::DEAD).await == 1).await;
    let rejected: Vec<Uuid> =
        sqlx::query_scalar("select id from requests where state = 'rejected'").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(rejected, [poison]);
    set_content(tenant.content).await;
    let scope = RequeueScope { tenant: tenant.id, work: RequeuedWork::Send(poison) };
    assert_eq!(requeue(&rig.pool, &scope, false).await.unwrap().requests, 1);
    all_handled(&rig, 3).await;
    assert_eq!(requeue(&rig.pool, &scope, false).await.unwrap().requests, 0);
    assert_eq!(rig.number("select count(*) from sends").await, 3);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_is_not_requeued() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let request = rig.transactional_request(&tenant, "ann@example.org", |_| {}).await;
    for outcome in ["cancelled", "contact_erased"] {
        sqlx::query("update requests set state = 'rejected', outcome = $1, announce_after = null")
            .bind(outcome)
            .execute(&rig.pool)
            .await
            .unwrap();
        let scope = RequeueScope { tenant: tenant.id, work: RequeuedWork::Batch(request.request_id) };
        assert_eq!(requeue(&rig.pool, &scope, false).await.unwrap().requests, 0, "{outcome}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_request_whose_files_were_purged_is_not_requeued() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let request = rig.transactional_request(&tenant, "ann@example.org", |_| {}).await;
    run(
        &rig,
        "update requests set state = 'rejected', outcome = 'ledger', announce_after = null,
             options = '{\"has_attachments\": true}'",
    )
    .await;
    let scope = RequeueScope { tenant: tenant.id, work: RequeuedWork::Batch(request.request_id) };
    let left = requeue(&rig.pool, &scope, false).await.unwrap();
    assert_eq!((left.requests, left.not_requeued.purged), (0, 1));
    run(
        &rig,
        "insert into message_attachments (tenant_id, message_id, place, filename, media_type, encoded)
         select tenant_id, id, 0, 'a.pdf', 'application/pdf', '' from requests",
    )
    .await;
    let accepted = requeue(&rig.pool, &scope, false).await.unwrap();
    assert_eq!((accepted.requests, accepted.not_requeued.purged), (1, 0));
    let people = rig.people(&tenant, 1).await;
    let message = rig.message_request(&tenant, &people).await;
    run(
        &rig,
        "update requests set state = 'rejected', outcome = 'ledger', announce_after = null where kind = 'message'",
    )
    .await;
    run(&rig, "update messages set purged_at = now()").await;
    let scope = RequeueScope { tenant: tenant.id, work: RequeuedWork::Batch(message.request_id) };
    let left = requeue(&rig.pool, &scope, false).await.unwrap();
    assert_eq!((left.requests, left.not_requeued.purged), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_outlives_a_ledger_that_is_not_migrated_yet() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let request = rig.transactional_request(&tenant, "ann@example.org", |_| {}).await;
    // As its login, which owns the tables.
    let mut owner = rig.pool.acquire().await.unwrap().detach();
    let older = "set role none; alter table contents rename column kind to kind_of_then";
    sqlx::raw_sql(older).execute(&mut owner).await.unwrap();
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&request), "1").await;
    until("it is set aside", async || rig.held(stream::DEAD).await == 1).await;
    assert_eq!(
        rig.number("select count(*) from requests where state = 'accepted' and announce_after is not null").await,
        1
    );
    sqlx::raw_sql("alter table contents rename column kind_of_then to kind").execute(&mut owner).await.unwrap();
    rig.ring(&[request], "2").await;
    all_handled(&rig, 1).await;
    assert_eq!(rig.number("select count(*) from sends").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_delays_no_mail_of_other_tenants() {
    let rig = Rig::new().await;
    let (importing, other) = (rig.tenant().await, rig.tenant().await);
    let mut import = rig.pool.begin().await.unwrap();
    sqlx::query("insert into contacts (tenant_id, id, address) values ($1, gen_random_uuid(), 'new@example.org')")
        .bind(importing.id)
        .execute(&mut *import)
        .await
        .unwrap();
    let mut requests = Vec::new();
    for tenant in [&importing, &other] {
        requests.push(rig.transactional_request(tenant, "new@example.org", |_| {}).await);
    }
    rig.ring(&requests, "1").await;
    start(&rig, &[]).await;
    all_handled(&rig, 1).await;
    let handled: Vec<Uuid> = sqlx::query_scalar("select tenant_id from requests where state = 'handled'")
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert_eq!(handled, [other.id]);
    import.commit().await.unwrap();
    all_handled(&rig, 2).await;
    assert_eq!(rig.number("select count(*) from contacts").await, 2);
    assert!(rig.dead().await.is_empty());
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_of_a_large_array_takes_the_bulk_lane_with_its_copies() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let copies = json!([{"address": "eve@example.org", "role": "bcc"}]);
    let mut announced = Vec::new();
    for is_bulk in [true, false] {
        let batch = new_batch_id();
        let request = rig.transactional_request(&tenant, "ann@example.org", |payload| payload.send_id = batch).await;
        sqlx::query("update requests set options = $2 where id = $1")
            .bind(request.request_id)
            .bind(json!({"copies": copies, "is_bulk": is_bulk}))
            .execute(&rig.pool)
            .await
            .unwrap();
        announced.push(request);
    }
    rig.ring(&announced, "all").await;
    start(&rig, &[]).await;
    all_handled(&rig, 2).await;
    for (request, lane) in announced.iter().zip(["bulk", "priority"]) {
        let found: (String, i32) = sqlx::query_as("select lane, size from batches where id = $1")
            .bind(request.request_id)
            .fetch_one(&rig.pool)
            .await
            .unwrap();
        assert_eq!(found, (lane.to_owned(), 2));
    }
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scheduled_mails_of_large_arrays_wait_in_no_prompt_queue() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    for at in 0..61 {
        rig.transactional_request(&tenant, &format!("p{at}@example.org"), |_| {}).await;
    }
    // All are due at once, each in a batch of its own; one came alone.
    sqlx::query(
        "update requests
         set announce_after = now(),
             options = case when id > (select min(id::text)::uuid from requests) then '{\"is_bulk\": true}'::jsonb end",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let sweep = AnnounceRequests::new(rig.pool.clone(), rig.bus.clone(), Notifier::default());
    assert_eq!(sweep.sweep().await.unwrap(), 61);
    let accepted = rig.bus.jetstream().get_stream(rig.bus.prefixed(stream::ACCEPTED)).await.unwrap();
    let mut arrays = 0;
    for sequence in 1..=61 {
        let announced = accepted.get_raw_message(sequence).await.unwrap();
        arrays += usize::from(announced.subject.ends_with(".transactional-array"));
    }
    assert_eq!(arrays, 60);
    start(&rig, &[]).await;
    all_handled(&rig, 61).await;
    assert_eq!(rig.number("select count(*) from batches where lane = 'bulk'").await, 60);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_mail_of_one_tenant_that_is_due_at_once_waits_in_no_prompt_queue() {
    let rig = Rig::new().await;
    let (large, small) = (rig.tenant().await, rig.tenant().await);
    for at in 0..51 {
        rig.transactional_request(&large, &format!("p{at}@example.org"), |_| {}).await;
    }
    let prompt = rig.transactional_request(&small, "ann@example.org", |_| {}).await;
    run(&rig, "update requests set announce_after = now()").await;
    let sweep = AnnounceRequests::new(rig.pool.clone(), rig.bus.clone(), Notifier::default());
    assert_eq!(sweep.sweep().await.unwrap(), 52);
    let accepted = rig.bus.jetstream().get_stream(rig.bus.prefixed(stream::ACCEPTED)).await.unwrap();
    let mut in_prompt_queue = Vec::new();
    for sequence in 1..=52 {
        let announced = accepted.get_raw_message(sequence).await.unwrap();
        if !announced.subject.ends_with(".transactional-array") {
            let request: RequestAnnounced = serde_json::from_slice(&announced.payload).unwrap();
            in_prompt_queue.push(request.request_id);
        }
    }
    assert_eq!(in_prompt_queue.len(), 51, "of one tenant as many as a prompt batch has");
    assert!(in_prompt_queue.contains(&prompt.request_id));
    start(&rig, &[]).await;
    all_handled(&rig, 52).await;
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_scheduled_mail_of_one_tenant_does_not_fill_the_priority_lane() {
    let rig = Rig::new().await;
    let (large, small) = (rig.tenant().await, rig.tenant().await);
    let first = rig.transactional_request(&large, "ann@example.org", |_| {}).await;
    start(&rig, &[]).await;
    rig.ring(std::slice::from_ref(&first), "1").await;
    all_handled(&rig, 1).await;
    // A thousand under way, as many as there may be.
    sqlx::query(
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announce_after,
                              announcement, size, queued)
         select b.tenant_id, gen_random_uuid(), b.month, b.kind, b.lane, b.classification, b.content_id, b.sender_id, b.state,
                now() + interval '1 hour', 1, 1, 1
         from batches b, generate_series(2, 1000)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let mut requests = Vec::new();
    for tenant in [&large, &small] {
        requests.push(rig.transactional_request(tenant, "bob@example.org", |_| {}).await);
    }
    let scheduled =
        "update requests set options = '{\"scheduled_at\": \"2026-01-01T00:00:00Z\"}' where state = 'accepted'";
    run(&rig, scheduled).await;
    // Mail that is not scheduled is not counted.
    requests.push(rig.transactional_request(&large, "eve@example.org", |_| {}).await);
    rig.ring(&requests, "1").await;
    all_handled(&rig, 4).await;
    // Nor is what is set aside for a day.
    let aside = "update batches set announce_after = now() + interval '1 day', quiet_at = now() + interval '1 day'
                 where lane = 'priority'";
    run(&rig, aside).await;
    let next = rig.transactional_request(&large, "kim@example.org", |_| {}).await;
    run(&rig, scheduled).await;
    rig.ring(std::slice::from_ref(&next), "1").await;
    requests.push(next);
    all_handled(&rig, 5).await;
    let lanes = ["priority", "bulk", "priority", "priority", "priority"];
    for (request, lane) in [&first].into_iter().chain(&requests).zip(lanes) {
        let found: String = sqlx::query_scalar("select lane from batches where id = $1")
            .bind(request.request_id)
            .fetch_one(&rig.pool)
            .await
            .unwrap();
        assert_eq!(found, lane);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_copy_leaves_the_others_their_sends() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let request = rig.transactional_request(&tenant, "ann@example.org", |_| {}).await;
    let copy = |address: &str| json!({"address": address, "role": "bcc"});
    sqlx::query("update requests set options = $1")
        .bind(json!({"copies": [copy("bob@example.org"), copy(ERASED_COPY), copy("eve@example.org")]}))
        .execute(&rig.pool)
        .await
        .unwrap();
    let batch = request.request_id;
    rig.ring(&[request], "1").await;
    start(&rig, &[]).await;
    all_handled(&rig, 1).await;
    let sends: Vec<(Uuid, String)> =
        sqlx::query_as("select s.id, c.address from sends s join contacts c on c.id = s.contact_id order by s.id")
            .fetch_all(&rig.pool)
            .await
            .unwrap();
    let expected = [(0, "ann"), (1, "bob"), (3, "eve")];
    assert_eq!(sends, expected.map(|(ordinal, name)| (SendId::of(batch, ordinal).0, format!("{name}@example.org"))));
    assert_eq!(rig.number("select count(*) from contacts").await, 3);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_to_the_contact_that_exists() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 1).await;
    let request = rig.transactional_request(&tenant, "new@example.org", |_| {}).await;
    sqlx::query("update requests set options = $1")
        .bind(json!({"copies": [{"address": people[0].address.as_str(), "role": "bcc"}]}))
        .execute(&rig.pool)
        .await
        .unwrap();
    rig.ring(&[request], "1").await;
    start(&rig, &[]).await;
    all_handled(&rig, 1).await;
    assert_eq!(rig.number("select count(*) from contacts").await, 2);
    let copied: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from sends order by id offset 1").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(copied, [people[0].id]);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_accepted_together_become_one_batch() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let (small, large) = (new_batch_id(), new_batch_id());
    let mut announced = Vec::new();
    for (batch, size) in [(small, 3_u16), (large, 60)] {
        for ordinal in 0..size {
            let address = format!("p{ordinal}@example.org");
            let send = SendId::of(batch, ordinal).0;
            announced.push(rig.transactional_request(&tenant, &address, |payload| payload.send_id = send).await);
        }
    }
    // One of each is enough, also one in the middle; a later ring for another changes nothing.
    rig.ring(&[announced[1].clone(), announced[40].clone()], "first").await;
    start(&rig, &[]).await;
    all_handled(&rig, 63).await;
    rig.ring(&[announced[0].clone(), announced[50].clone()], "second").await;
    all_handled(&rig, 63).await;
    let batches: Vec<(Uuid, String, i32)> =
        sqlx::query_as("select id, lane, size from batches order by size").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(batches, [(small, "priority".to_owned(), 3), (large, "bulk".to_owned(), 60)]);
    assert_eq!(rig.number("select count(*) from sends where request_id = id").await, 63);
    rig.assert_books().await;
    // The large one is dispatched in its tenant's turn.
    until("both are announced", async || {
        rig.number("select count(*) from batches where state = 'announced' and announcement = 1").await == 2
    })
    .await;
}
