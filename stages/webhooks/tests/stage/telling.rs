//! What is told, to whom, in which words.

use async_nats::HeaderMap;
use futures::StreamExt;
use ledger::outbox;
use schemas::{
    Event, EventType, new_id,
    subjects::stream,
    webhook::{WebhookSecret, sign},
};
use serde_json::json;
use sqlx::{PgPool, Row};
use stage_rig::{
    Rig,
    receiver::{Manner, Receiver},
    until,
};

use crate::world::{PRODUCT, World, facts, link, mail, notice, sealed, subscribe};

#[tokio::test]
async fn a_fact_is_posted_once_with_both_signatures() {
    let world = World::new().await;
    let receiver = Receiver::start(Manner::Status(200)).await;
    let secret = WebhookSecret::generate();
    let subscription = subscribe(&world.rig, &world.tenant, PRODUCT, &receiver.url, &["email.opened"], &secret).await;
    world.start(&[]).await;
    world.opened(1).await;
    receiver.has(1).await;
    until("the delivery is recorded", async || world.deliveries("delivered").await == 1).await;

    let hit = receiver.hits().remove(0);
    let event: Event = serde_json::from_slice(&hit.body).unwrap();
    assert_eq!((event.event_type, event.product_tenant_id.as_str()), (EventType::EmailOpened, "t-1"));
    assert_eq!(event.engine_tenant_id, world.tenant.id);
    let mail = event.data.mail.unwrap();
    assert_eq!((mail.send_id, mail.contact_id), (world.send(0), world.people[0].id));
    assert_eq!(mail.email.as_deref(), Some(world.people[0].address.as_str()));
    assert_eq!((mail.subject.as_deref(), mail.sender_email.as_deref()), (Some("Hello"), Some("news@example.com")));
    assert!(event.data.open.unwrap().first);

    let timestamp = hit.header("webhook-timestamp").parse().unwrap();
    for (name, value) in sign(&[secret], event.id, timestamp, &hit.body) {
        assert_eq!(hit.header(name), value, "{name}");
    }
    assert_eq!(hit.header("content-type"), "application/json");
    assert_eq!(hit.header("x-service-event"), "email.opened");
    assert_eq!(hit.header("x-service-attempt"), "1");
    assert_eq!(hit.header("x-service-delivery"), Event::delivery_of(subscription, event.id).to_string());

    let row = sqlx::query("select body from webhook_events").fetch_one(&world.rig.pool).await.unwrap();
    assert_eq!(row.get::<Vec<u8>, _>(0), hit.body.to_vec());
    let left = "select (select count(*) from outbox) + (select count(*) from webhook_queue)";
    assert_eq!(world.rig.number(left).await, 0);
}

#[tokio::test]
async fn an_event_of_sequence_mail_names_the_enrollment() {
    let (world, receiver, _) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    let (sequence, enrollment, step) = (new_id(), new_id(), new_id());
    sqlx::query(
        "with batch as (update batches set kind = 'sequence', campaign_id = null where id = $1),
              mail as (update sends set campaign_id = null)
         insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id) values ($2, $3, $4, $5, $6)",
    )
    .bind(world.batch)
    .bind(world.tenant.id)
    .bind(world.send(0))
    .bind(sequence)
    .bind(enrollment)
    .bind(step)
    .execute(&world.rig.pool)
    .await
    .unwrap();
    world.start(&[]).await;
    world.opened(1).await;
    receiver.has(1).await;
    let event: Event = serde_json::from_slice(&receiver.hits()[0].body).unwrap();
    let mail = event.data.mail.unwrap();
    assert_eq!(mail.campaign_id, None);
    assert_eq!((mail.sequence_id, mail.enrollment_id, mail.step_id), (Some(sequence), Some(enrollment), Some(step)));
}

#[tokio::test]
async fn a_rejected_mails_event_has_its_tags_and_metadata() {
    let world = World::new().await;
    let contact = world.rig.people(&world.tenant, 1).await.remove(0);
    let request = world.rig.transactional_request(&world.tenant, contact.address.as_str(), |_| {}).await.request_id;
    sqlx::query("update requests set state = 'rejected', announce_after = null, options = $2 where id = $1")
        .bind(request)
        .bind(json!({
            "tags": ["receipt"], "metadata": {"order": "7"},
            "copies": [{"address": contact.address.as_str(), "role": "bcc"}],
        }))
        .execute(&world.rig.pool)
        .await
        .unwrap();
    let receiver = Receiver::start(Manner::Status(200)).await;
    world.subscribe(&receiver.url, &["email.failed"]).await;
    world.start(&[]).await;
    for ordinal in [0, 1] {
        sqlx::query(
            "insert into notices (tenant_id, id, type, contact_id, subject_id, data)
             values ($1, gen_random_uuid(), 'email.failed', $2, $3, '{\"message_kind\": \"transactional\", \"reason\": \"ledger\"}')",
        )
        .bind(world.tenant.id)
        .bind(contact.id)
        .bind(schemas::SendId::of(request, ordinal).0)
        .execute(&world.rig.pool)
        .await
        .unwrap();
    }
    receiver.has(2).await;
    for hit in receiver.hits() {
        let mail = serde_json::from_slice::<Event>(&hit.body).unwrap().data.mail.unwrap();
        assert_eq!((mail.tags, mail.metadata["order"].as_str()), (vec!["receipt".to_owned()], "7"));
        assert_eq!(mail.copy_of, (mail.send_id != request).then_some(request));
    }
}

#[tokio::test]
async fn a_subscription_receives_only_the_events_it_names() {
    let world = World::new().await;
    let (all, bounces) = (Receiver::start(Manner::Status(200)).await, Receiver::start(Manner::Status(204)).await);
    world.subscribe(&all.url, &["email.failed", "email.bounced", "email.opened"]).await;
    world.subscribe(&bounces.url, &["email.bounced"]).await;
    world.start(&[]).await;
    world.opened(2).await;
    world.facts("failed", 3, json!({"reason": "hard", "smtp_code": 550, "enhanced_code": "5.1.1"})).await;
    all.has(8).await;
    bounces.has(3).await;
    until("all is delivered", async || world.deliveries("delivered").await == 11).await;
    assert_eq!((all.count(), bounces.count()), (8, 3));
    assert_eq!(world.rig.number("select count(*) from webhook_events").await, 8);
    for hit in bounces.hits() {
        assert_eq!(hit.json()["data"]["bounce"]["class"], "hard");
        assert!(all.hits().iter().any(|other| other.event() == hit.event() && other.body == hit.body));
    }
}

#[tokio::test]
async fn outbox_rows_exist_only_for_subscribers() {
    let world = World::new().await;
    world.opened(5).await;
    assert_eq!(world.rig.number("select count(*) from outbox").await, 0);
    let receiver = Receiver::start(Manner::Status(200)).await;
    let subscription = world.subscribe(&receiver.url, &["email.clicked"]).await;
    world.opened(5).await;
    assert_eq!(world.rig.number("select count(*) from outbox").await, 1);
    world.start(&[]).await;
    until("the note is taken", async || world.rig.number("select count(*) from outbox").await == 0).await;
    assert_eq!(world.rig.number("select count(*) from webhook_deliveries").await, 0);
    world.set_status(subscription, "disabled").await;
    assert_eq!(world.rig.number("select count(*) from event_listeners").await, 0);
    world.opened(5).await;
    assert_eq!(world.rig.number("select count(*) from outbox").await, 0);
}

#[tokio::test]
async fn no_product_receives_events_of_another_tenant() {
    let world = World::new().await;
    let other = world.rig.tenant().await;
    link(&world.rig, &other, PRODUCT, "t-2").await;
    link(&world.rig, &world.tenant, "crm", "crm-1").await;
    let (_, batch) = mail(&world.rig, &other, 3).await;
    let receivers = [
        Receiver::start(Manner::Status(200)).await,
        Receiver::start(Manner::Status(200)).await,
        Receiver::start(Manner::Status(200)).await,
    ];
    let secret = WebhookSecret::generate();
    for (receiver, tenant, product) in [
        (&receivers[0], &world.tenant, PRODUCT),
        (&receivers[1], &world.tenant, "crm"),
        (&receivers[2], &other, PRODUCT),
    ] {
        subscribe(&world.rig, tenant, product, &receiver.url, &["email.opened", "campaign.sent"], &secret).await;
    }
    world.start(&[]).await;
    world.opened(2).await;
    facts(&world.rig, &other, &[batch], "opened", json!({})).await;
    notice(&world.rig, &world.tenant, "campaign.sent", Some("crm"), new_id(), json!({})).await;
    until("all is delivered", async || world.deliveries("delivered").await == 6).await;
    let told = |at: usize| -> Vec<(String, String)> {
        let hits = receivers[at].hits();
        let word = |hit: &serde_json::Value, key: &str| hit[key].as_str().unwrap().to_owned();
        let mut told: Vec<_> =
            hits.iter().map(|hit| (word(&hit.json(), "type"), word(&hit.json(), "product_tenant_id"))).collect();
        told.sort();
        told
    };
    let opened = |name: &str| ("email.opened".to_owned(), name.to_owned());
    assert_eq!(told(0), [opened("t-1"), opened("t-1")]);
    assert_eq!(told(1), [("campaign.sent".to_owned(), "crm-1".to_owned()), opened("crm-1"), opened("crm-1")]);
    assert_eq!(told(2), [opened("t-2")]);
}

#[tokio::test]
async fn a_test_event_goes_to_its_subscription_only() {
    let world = World::new().await;
    let (tested, other) = (Receiver::start(Manner::Status(200)).await, Receiver::start(Manner::Status(200)).await);
    let subscription = world.subscribe(&tested.url, &["email.opened"]).await;
    world.subscribe(&other.url, &["contact.created"]).await;
    world.start(&[]).await;
    let test = notice(&world.rig, &world.tenant, "webhook.test", Some(PRODUCT), subscription, json!({})).await;
    let people = world.rig.people(&world.tenant, 2).await;
    until("all is delivered", async || world.deliveries("delivered").await == 3).await;
    assert_eq!(tested.events(), [test.to_string()]);
    assert_eq!(tested.hits()[0].header("x-service-event"), "webhook.test");
    let mut told: Vec<String> =
        other.hits().iter().map(|hit| hit.json()["data"]["email"].as_str().unwrap().to_owned()).collect();
    told.sort();
    let mut expected: Vec<String> = people.into_iter().map(|person| person.address).collect();
    expected.sort();
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_rotated_secret_signs_until_it_expires() {
    let world = World::new().await;
    let receiver = Receiver::start(Manner::Status(200)).await;
    let (new, old) = (WebhookSecret::generate(), WebhookSecret::generate());
    let subscription = subscribe(&world.rig, &world.tenant, PRODUCT, &receiver.url, &["email.opened"], &new).await;
    sqlx::query("update webhook_subscriptions set previous_secret = $2, previous_until = now() + interval '1 hour' where id = $1")
        .bind(subscription)
        .bind(sealed(&world.tenant, &old))
        .execute(&world.rig.pool)
        .await
        .unwrap();
    world.start(&[]).await;
    world.opened(1).await;
    receiver.has(1).await;
    let hit = receiver.hits().remove(0);
    let (id, timestamp) = (hit.event().parse().unwrap(), hit.header("webhook-timestamp").parse().unwrap());
    for (name, value) in sign(&[new.clone(), old], id, timestamp, &hit.body) {
        assert_eq!(hit.header(name), value, "{name}");
    }
    world.execute("update webhook_subscriptions set previous_until = now() where id = $1", subscription).await;
    until("the new secret signs alone", async || {
        world.opened(1).await;
        let hits = receiver.hits();
        let hit = hits.last().unwrap();
        let (id, timestamp) = (hit.event().parse().unwrap(), hit.header("webhook-timestamp").parse().unwrap());
        hit.header("x-service-signature") == sign(std::slice::from_ref(&new), id, timestamp, &hit.body)[0].1
    })
    .await;
}

#[tokio::test]
async fn every_delivery_after_a_rotation_carries_both_signatures() {
    let (world, receiver, subscription) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    world.start(&[]).await;
    world.opened(1).await;
    receiver.has(1).await;
    // Each rotation comes right after a delivery, when what is known of the subscription is as fresh as it can be.
    let mut old: Option<WebhookSecret> = None;
    for round in 2..=20 {
        let new = WebhookSecret::generate();
        sqlx::query(
            "update webhook_subscriptions
             set previous_secret = secret, previous_until = now() + interval '24 hours', secret = $2 where id = $1",
        )
        .bind(subscription)
        .bind(sealed(&world.tenant, &new))
        .execute(&world.rig.pool)
        .await
        .unwrap();
        world.opened(1).await;
        receiver.has(round).await;
        let hit = receiver.hits().pop().unwrap();
        let (id, timestamp) = (hit.event().parse().unwrap(), hit.header("webhook-timestamp").parse().unwrap());
        let signature = hit.header("x-service-signature");
        assert_eq!(signature.matches("v1=").count(), 2, "round {round}");
        let alone = sign(std::slice::from_ref(&new), id, timestamp, &hit.body)[0].1.clone();
        assert!(signature.starts_with(&alone), "round {round}");
        if let Some(old) = &old {
            let both = sign(&[new.clone(), old.clone()], id, timestamp, &hit.body)[0].1.clone();
            assert_eq!(signature, both, "round {round}");
        }
        old = Some(new);
    }
}

#[tokio::test]
async fn a_feed_publishes_the_events_of_the_webhooks() {
    let (world, receiver, _) = World::receiving(Manner::Status(200), &["email.clicked"]).await;
    link(&world.rig, &world.tenant, "crm", "crm-1").await;
    world.feed().await;
    let events = world.rig.bus.jetstream().get_stream(world.rig.bus.prefixed(stream::EVENTS)).await.unwrap();
    world.start(&[]).await;
    world.facts("clicked", 1, json!({"url": "https://example.com/", "link": 2})).await;
    world.opened(2).await;
    until("three events", async || world.rig.held(stream::EVENTS).await >= 3).await;
    receiver.has(1).await;
    assert_eq!(world.rig.held(stream::EVENTS).await, 3, "of the product with a feed only");
    let next_note = "with note as (insert into feed_notes (tenant_id, source, ids)
                                   values (gen_random_uuid(), 'contacts', '{}') returning id)
                     select id from note";
    assert_eq!(world.rig.number(next_note).await, 1, "the first note: the events had none");
    let consumer = events.create_consumer(async_nats::jetstream::consumer::pull::Config::default()).await.unwrap();
    let mut messages = consumer.fetch().max_messages(3).messages().await.unwrap();
    let mut clicks = 0;
    while let Some(message) = messages.next().await {
        let message = message.unwrap();
        let event: Event = serde_json::from_slice(&message.payload).unwrap();
        let headers: &HeaderMap = message.headers.as_ref().unwrap();
        let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned()).unwrap();
        assert_eq!(header("ce-id"), event.id.to_string());
        assert_eq!(header("ce-type"), event.event_type.as_str());
        assert_eq!(header("ce-source"), "/postrider/shop/production");
        assert_eq!(header("ce-specversion"), "1.0");
        assert_eq!(header("ce-subject"), event.data.mail.as_ref().unwrap().send_id.to_string());
        assert!(message.subject.ends_with(&format!("mail.v1.event.shop.production.{}", event.event_type)));
        if event.event_type == EventType::EmailClicked {
            assert_eq!(message.payload, receiver.hits()[0].body);
            clicks += 1;
        }
    }
    assert_eq!(clicks, 1);
}

#[tokio::test]
async fn webhooks_do_not_wait_for_the_bus() {
    let (world, receiver, _) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    world.feed().await;
    world.start(&[]).await;
    let bus = &world.rig.bus;
    bus.jetstream().delete_stream(bus.prefixed(stream::EVENTS)).await.unwrap();
    world.opened(3).await;
    receiver.has(3).await;
    until("all are delivered", async || world.deliveries("delivered").await == 3).await;
    assert_eq!(world.rig.number("select coalesce(sum(cardinality(ids)), 0)::bigint from feed_notes").await, 3);
    bus.apply_streams().await.unwrap();
    until("the bus has them", async || world.rig.held(stream::EVENTS).await == 3).await;
    until("nothing is left over", async || world.rig.number("select count(*) from feed_notes").await == 0).await;
    assert_eq!(world.rig.held(stream::EVENTS).await, 3, "each once");
    // A process that ends between commit and publication leaves its notes to the next.
    sqlx::query("insert into feed_notes (tenant_id, source, month, sends, ids, noted_at)
                 select tenant_id, 'events', month, array_agg(send_id), array_agg(id), now() - interval '1 minute' from events group by 1, 3")
        .execute(&world.rig.pool)
        .await
        .unwrap();
    until("they are taken", async || world.rig.number("select count(*) from feed_notes").await == 0).await;
    assert_eq!(world.rig.held(stream::EVENTS).await, 3, "and known by their ids");
}

#[tokio::test]
async fn a_notice_of_a_newer_version_waits_for_that_version() {
    let (world, receiver, _) = World::receiving(Manner::Status(200), &["campaign.sent"]).await;
    world.start(&[]).await;
    let emit = async |kind: &str| notice(&world.rig, &world.tenant, kind, None, new_id(), json!({})).await;
    let unknown = emit("x.unknown").await;
    let put_back = "select (select ids[1]::text from outbox where noted_at > now() + interval '30 seconds')";
    until("it is put back", async || world.text(put_back).await.is_some()).await;
    assert_eq!(world.text(put_back).await, Some(unknown.to_string()));
    // Neither is it taken again at once, nor does anything wait behind it.
    emit("campaign.sent").await;
    receiver.has(1).await;
    assert_eq!(world.rig.number("select max(id) - min(id) from outbox").await, 0);
    assert_eq!(world.rig.number("select coalesce(unfanned, 0)::bigint from platform_webhooks()").await, 0);
    // Nobody knows it after a day, either.
    sqlx::raw_sql("update notices set recorded_at = now() - interval '25 hours'; update outbox set noted_at = now()")
        .execute(&world.rig.pool)
        .await
        .unwrap();
    until("it is left out", async || world.rig.number("select count(*) from outbox").await == 0).await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_fact_of_a_newer_version_waits_for_that_version() {
    let (world, receiver, _) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    world.start(&[]).await;
    world.facts("x_unknown", 1, json!({})).await;
    let put_back = "select (select ids[1]::text from outbox
                            where source = 'events' and noted_at > now() + interval '30 seconds')";
    until("it is put back", async || world.text(put_back).await.is_some()).await;
    let fact = world.text("select id::text from events where type = 'x_unknown'").await;
    assert_eq!(world.text(put_back).await, fact);
    world.opened(1).await;
    receiver.has(1).await;
    // It is taken once it is known.
    sqlx::raw_sql("update events set type = 'opened' where type = 'x_unknown'; update outbox set noted_at = now()")
        .execute(&world.rig.pool)
        .await
        .unwrap();
    receiver.has(2).await;
    until("nothing is left over", async || world.rig.number("select count(*) from outbox").await == 0).await;
}

/// While a transaction has an id, Postgres prunes nothing that changed since it got it, and the bus may be slow.
#[tokio::test]
async fn facts_are_read_by_one_transaction_that_has_no_id_until_it_writes() {
    let (world, ..) = World::receiving(Manner::Silent, &["email.clicked"]).await;
    for _ in 0..2 {
        world.facts("clicked", 1, json!({"url": "https://example.com/", "link": 2})).await;
    }
    let mut one = world.rig.pool.begin().await.unwrap();
    let mut other = world.rig.pool.begin().await.unwrap();
    assert_eq!(outbox::read(&mut one).await.unwrap().taken.notes, 2);
    assert_eq!(outbox::read(&mut other).await.unwrap().taken.notes, 0, "read by two");
    let has_id = "select count(pg_current_xact_id_if_assigned())";
    assert_eq!(sqlx::query_scalar::<_, i64>(has_id).fetch_one(&mut *one).await.unwrap(), 0);
    one.rollback().await.unwrap();
    assert_eq!(outbox::read(&mut other).await.unwrap().taken.notes, 2);
}

#[tokio::test]
async fn of_the_notes_for_feeds_only_what_is_taken_is_locked() {
    let rig = Rig::new().await;
    sqlx::query(
        "insert into feed_notes (tenant_id, source, ids)
         select gen_random_uuid(), 'contacts', array_fill(gen_random_uuid(), array[1500]) from generate_series(1, 3)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let mut one = rig.pool.begin().await.unwrap();
    let mut other = rig.pool.begin().await.unwrap();
    assert_eq!(outbox::read_for_feed(&mut one).await.unwrap().taken.notes, 2);
    assert_eq!(outbox::read_for_feed(&mut other).await.unwrap().taken.notes, 1);
}

#[tokio::test]
async fn while_it_waits_for_the_bus_a_fan_out_holds_back_no_pruning() {
    let world = World::new().await;
    world.feed().await;
    world.start(&[]).await;
    let bus = &world.rig.bus;
    bus.jetstream().delete_stream(bus.prefixed(stream::EVENTS)).await.unwrap();
    // Somebody hears what is published and does not answer.
    let _silent = bus.client().subscribe(bus.prefixed("mail.v1.event.>")).await.unwrap();
    world.opened(1).await;
    let waiting = "select count(*) from pg_stat_activity
                   where datname = current_database() and state = 'idle in transaction' and query = 'select'
                     and backend_xid is null and backend_xmin is null";
    // Seen by the owner of the database only.
    let owner = PgPool::connect_lazy(&world.rig.database.url()).unwrap();
    let is_waiting = async || sqlx::query_scalar::<_, i64>(waiting).fetch_one(&owner).await.unwrap() == 1;
    until("a transaction with neither id nor snapshot waits", is_waiting).await;
}

#[tokio::test]
async fn many_facts_are_fanned_out_in_several_transactions() {
    let world = World::new().await;
    let ids: Vec<_> = (0..9_000).map(|_| new_id()).collect();
    // Nobody listens yet: these leave no note of their own.
    sqlx::query("insert into notices (tenant_id, id, type) select $1, id, 'campaign.sent' from unnest($2::uuid[]) id")
        .bind(world.tenant.id)
        .bind(&ids)
        .execute(&world.rig.pool)
        .await
        .unwrap();
    // Deliveries stay where they are: only that they are there counts.
    let receiver = Receiver::start(Manner::Silent).await;
    world.subscribe(&receiver.url, &["campaign.sent"]).await;
    // One note of nine thousand, as no writer of today makes it.
    sqlx::query("insert into outbox (tenant_id, source, ids) values ($1, 'notices', $2)")
        .bind(world.tenant.id)
        .bind(&ids)
        .execute(&world.rig.pool)
        .await
        .unwrap();
    world.start(&[]).await;
    until("all parts are taken", async || world.rig.number("select count(*) from outbox").await == 0).await;
    assert_eq!(world.rig.number("select count(*) from webhook_deliveries").await, 9_000);
    assert_eq!(world.rig.number("select count(distinct event_id) from webhook_deliveries").await, 9_000, "each once");
    let transactions = "select count(distinct xmin::text) from webhook_events";
    assert!(world.rig.number(transactions).await > 1, "all of it in one transaction");
}

#[tokio::test]
async fn an_event_has_no_subject_once_retention_has_emptied_it() {
    let (world, receiver, _) = World::receiving(Manner::Status(200), &["email.opened"]).await;
    world.start(&[]).await;
    sqlx::query("update contents set subject = '', body_html = ''").execute(&world.rig.pool).await.unwrap();
    world.opened(1).await;
    receiver.has(1).await;
    let event: Event = serde_json::from_slice(&receiver.hits()[0].body).unwrap();
    assert_eq!(event.data.mail.unwrap().subject, None);
}
