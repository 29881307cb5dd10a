//! `POST /v1/messages`: what is accepted, what is stored, and what is answered. The pipeline is played by [`decide`].

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Method;
use rstest::rstest;
use runtime::MasterKeys;
use schemas::{SendId, month_of, parse_id, subjects::stream};
use serde_json::{Value, json};
use stage_rig::until;
use uuid::Uuid;

use crate::{
    common::{Answer, Client, Edge, settings},
    fixtures::{first_on, open_streams, sender},
};

const PATH: &str = "/v1/messages";
/// For messages that nobody decides.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(20);

/// Send, address, name, DOT number, marketing status.
type RecipientRow = (Uuid, String, Option<String>, Option<i64>, String);

struct World {
    edge: Edge,
    client: Client,
    sender: Uuid,
}

impl World {
    async fn waiting(timeout: Duration) -> Self {
        Self::with(ingress::Settings { message_timeout: timeout, ..settings() }).await
    }

    async fn with(settings: ingress::Settings) -> Self {
        let edge = Edge::with(settings).await;
        let client = edge.client().await;
        let sender = sender(&edge.pool, client.tenant, "acme.test", "verified").await;
        Self { edge, client, sender }
    }

    fn body(&self, change: Value) -> Value {
        let mut body = json!({
            "sender_id": self.sender, "to": [{"email": "ann@example.com"}], "subject": "Your certificate",
            "html": "<p>Hello {{ first_name }}</p>", "message_class": "business",
        });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    }

    async fn post(&self, change: Value) -> Answer {
        self.client.post(PATH, self.body(change)).await
    }

    /// Plays the stages for the newest message: each recipient's send in this state, by place.
    async fn decide(&self, states: &[&str]) -> Uuid {
        decide(&self.edge, states).await
    }
}

async fn decide(edge: &Edge, states: &[&str]) -> Uuid {
    until("a message to be accepted", async || edge.count("select count(*) from messages").await > 0).await;
    let message: Uuid = sqlx::query_scalar("select id from messages order by created_at desc limit 1")
        .fetch_one(&edge.pool)
        .await
        .unwrap();
    for (place, state) in states.iter().enumerate() {
        let sql = "update sends set state = $4, reason = case $4 when 'skipped' then 'complained' end,
                    smtp_code = case $4 when 'failed' then 550 end, enhanced_code = case $4 when 'failed' then '5.1.1' end, decided_at = now()
             where request_id = $1 and id = $2 and month = $3";
        let send = SendId::of(message, u16::try_from(place).unwrap()).0;
        stage_rig::run!(&edge.pool, sql, [message, send, month_of(message), state]);
    }
    message
}

#[tokio::test]
async fn a_message_is_stored_whole_and_rung_for_with_where_its_caller_waits() {
    let world = World::waiting(SHORT).await;
    open_streams(&world.edge).await;
    let answer = world
        .post(json!({
            "to": [{"email": " Ann@Example.COM", "name": " Ann Lee "}, {"email": "bob@example.com"}, {"email": "ann@example.com"}],
            "reply_to": "desk@acme.test", "text": "Hello", "dot_number": 77,
            "attachments": [{"filename": "a.txt", "content_base64": STANDARD.encode("x".repeat(100)), "content_type": "text/plain"}],
        }))
        .await;
    assert_eq!(answer.refusal(), (504, "dispatch_pending"));
    let id = parse_id(&answer.text("message_id")).unwrap();
    assert_eq!(SendId(id).ordinal(), 0);

    let row: (Uuid, Option<String>, Option<i64>, bool, String, String, Option<String>) = sqlx::query_as(
        "select m.sender_id, m.reply_to, m.dot_number, m.is_metered, c.kind, c.body_html, c.body_text
         from messages m join contents c on c.tenant_id = m.tenant_id and c.id = m.content_id where m.id = $1",
    )
    .bind(id)
    .fetch_one(&world.edge.pool)
    .await
    .unwrap();
    assert_eq!((row.0, row.1.as_deref(), row.2, row.3), (world.sender, Some("desk@acme.test"), Some(77), true));
    assert_eq!(
        (row.4.as_str(), row.5.as_str(), row.6.as_deref()),
        ("one_off", "<p>Hello {{ first_name }}</p>", Some("Hello"))
    );
    let recipients: Vec<RecipientRow> = sqlx::query_as(
        "select r.send_id, c.address, r.name, c.dot_number, c.marketing_status
         from message_recipients r join contacts c on c.id = r.contact_id order by r.send_id",
    )
    .fetch_all(&world.edge.pool)
    .await
    .unwrap();
    let expected = |place, address: &str, name: Option<&str>| {
        (SendId::of(id, place).0, address.to_owned(), name.map(str::to_owned), Some(77), "pending".to_owned())
    };
    assert_eq!(recipients, [expected(0, "ann@example.com", Some("Ann Lee")), expected(1, "bob@example.com", None)]);
    let attachment: (String, String, Vec<u8>) =
        sqlx::query_as("select filename, media_type, encoded from message_attachments")
            .fetch_one(&world.edge.pool)
            .await
            .unwrap();
    assert_eq!((attachment.0.as_str(), attachment.1.as_str()), ("a.txt", "text/plain; charset=utf-8"));
    let lines = String::from_utf8(attachment.2).unwrap();
    assert_eq!(STANDARD.decode(lines.replace("\r\n", "")).unwrap(), "x".repeat(100).as_bytes());

    let request: (Uuid, String, Value) =
        sqlx::query_as("select id, kind, payload from requests").fetch_one(&world.edge.pool).await.unwrap();
    assert_eq!(request, (id, "message".to_owned(), json!({"message_id": id})));
    let (subject, cleared) = first_on(&world.edge, stream::CLEARED).await;
    assert!(subject.ends_with("mail.v1.cleared.priority"), "{subject}");
    assert_eq!((&cleared["batch_id"], &cleared["kind"]), (&json!(id), &json!("one_off")));
    assert!(schemas::subjects::is_reply(cleared["notify"].as_str().unwrap()), "{cleared}");
}

#[tokio::test]
async fn the_answer_is_what_the_ledger_says_of_every_recipient() {
    let world = World::waiting(LONG).await;
    let to = json!({"to": [{"email": "ann@example.com"}, {"email": "bob@example.com"}, {"email": "eve@example.com"}]});
    let (answer, id) = tokio::join!(world.post(to), world.decide(&["sent", "failed", "skipped"]));
    let send = |place| SendId::of(id, place).0;
    let tokens = MasterKeys::parse(&"5a".repeat(32)).unwrap().tokens();
    let ours = tokens.message_id_local(tokens.newest(), send(0));
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(
        answer.body,
        json!({
            "ok": true, "message_id": id, "provider_message_id": format!("<{ours}@acme.test>"),
            "skipped": [{"email": "eve@example.com", "send_id": send(2), "reason": "complained"}],
            "recipients": [
                {"email": "ann@example.com", "send_id": send(0), "state": "sent"},
                {"email": "bob@example.com", "send_id": send(1), "state": "failed"},
            ],
        })
    );
}

#[tokio::test]
async fn a_message_that_everybody_refused_is_a_502_with_codes_and_without_addresses() {
    let world = World::waiting(LONG).await;
    let (answer, id) = tokio::join!(world.post(json!({})), world.decide(&["failed"]));
    assert_eq!(answer.refusal(), (502, "provider_rejected"));
    assert_eq!((answer.text("detail"), answer.text("message_id")), ("550 5.1.1".to_owned(), id.to_string()));
}

#[tokio::test]
async fn a_message_that_rests_for_longer_than_its_caller_waits_is_pending_at_once() {
    let world = World::waiting(LONG).await;
    let rest = async {
        let id = world.decide(&["deferred"]).await;
        sqlx::query("update sends set next_attempt_at = now() + interval '1 minute'")
            .execute(&world.edge.pool)
            .await
            .unwrap();
        id
    };
    let begun = std::time::Instant::now();
    let (answer, id) = tokio::join!(world.post(json!({})), rest);
    assert_eq!((answer.refusal(), answer.text("message_id")), ((504, "dispatch_pending"), id.to_string()));
    assert!(begun.elapsed() < LONG / 2);
    assert!(!answer.header("retry-after").is_empty());
}

#[tokio::test]
async fn a_repeat_after_a_504_sends_nothing_again_and_answers_the_outcome() {
    let world = World::waiting(SHORT).await;
    let body = world.body(json!({}));
    let post = || world.client.post_once("k-1", PATH, body.clone());
    let first = post().await;
    assert_eq!(first.refusal(), (504, "dispatch_pending"));
    let again = post().await;
    assert_eq!((again.refusal(), again.header("idempotency-replayed")), ((504, "dispatch_pending"), "true"));
    let id = world.decide(&["sent"]).await;
    assert_eq!(first.text("message_id"), id.to_string());
    let (found, stored) = (post().await, post().await);
    assert_eq!((found.status.as_u16(), found.text("message_id")), (200, id.to_string()));
    assert_eq!((stored.status, stored.bytes), (found.status, found.bytes));
    assert_eq!(
        (found.headers["idempotency-replayed"].as_bytes(), stored.headers["idempotency-replayed"].as_bytes()),
        (&b"true"[..], &b"true"[..])
    );
    assert_eq!(world.edge.count("select count(*) from messages").await, 1);
}

#[tokio::test]
async fn a_502_is_found_again_by_a_repeat() {
    let world = World::waiting(LONG).await;
    let body = world.body(json!({}));
    let (first, _) = tokio::join!(world.client.post_once("k-1", PATH, body.clone()), world.decide(&["failed"]));
    let again = world.client.post_once("k-1", PATH, body).await;
    assert_eq!((first.refusal(), again.refusal()), ((502, "provider_rejected"), (502, "provider_rejected")));
    assert_eq!(world.edge.count("select count(*) from messages").await, 1);
}

#[tokio::test]
async fn a_repeat_while_somebody_waits_is_told_to_come_back_and_after_a_crash_takes_over() {
    let world = World::waiting(SHORT).await;
    let body = world.body(json!({}));
    let first = world.client.post_once("k-1", PATH, body.clone()).await;
    // As a process leaves it that was killed while it waited: nobody gives the lease up.
    let lease = |interval: &'static str| sqlx::query(interval).execute(&world.edge.pool);
    lease("update idempotency_keys set locked_until = now() + interval '1 minute'").await.unwrap();
    let told = world.client.post_once("k-1", PATH, body.clone()).await;
    assert_eq!((told.refusal(), told.header("retry-after")), ((409, "idempotency_in_progress"), "1"));
    lease("update idempotency_keys set locked_until = now() - interval '1 second'").await.unwrap();
    world.decide(&["sent"]).await;
    let restarted = world.client.at(world.edge.another().await);
    let found = restarted.post_once("k-1", PATH, body).await;
    assert_eq!((found.status.as_u16(), found.text("message_id")), (200, first.text("message_id")));
}

#[tokio::test]
async fn of_fifty_at_once_with_one_key_one_is_accepted() {
    let world = World::waiting(LONG).await;
    let other = world.client.at(world.edge.another().await);
    let body = world.body(json!({}));
    let posts = futures::future::join_all((0..50).map(|number| {
        let at = if number % 2 == 0 { &world.client } else { &other };
        at.post_once("k-1", PATH, body.clone())
    }));
    let (answers, id) = tokio::join!(posts, world.decide(&["sent"]));
    let (good, others): (Vec<&Answer>, Vec<&Answer>) = answers.iter().partition(|answer| answer.status == 200);
    assert!(!good.is_empty() && good.iter().all(|answer| answer.text("message_id") == id.to_string()));
    assert!(others.iter().all(|answer| answer.refusal() == (409, "idempotency_in_progress")));
    assert_eq!(world.edge.count("select count(*) from messages").await, 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_loses_nothing() {
    let world = World::waiting(LONG).await;
    let body = world.body(json!({}));
    let request = tokio::spawn({
        let (client, body) = (world.client.clone(), body.clone());
        async move { client.post_once("k-1", PATH, body).await }
    });
    until("its acceptance", async || world.edge.count("select count(*) from messages").await > 0).await;
    request.abort();
    let id = world.decide(&["sent"]).await;
    let mut again = world.client.post_once("k-1", PATH, body.clone()).await;
    until("the request to be over", async || {
        if again.status == 409 {
            again = world.client.post_once("k-1", PATH, body.clone()).await;
        }
        again.status != 409
    })
    .await;
    assert_eq!((again.status.as_u16(), again.text("message_id")), (200, id.to_string()));
}

#[tokio::test]
async fn waiting_holds_no_connection() {
    let world = World::waiting(Duration::from_secs(2)).await;
    // More than the pool has.
    let posts = futures::future::join_all((0..20).map(|_| world.post(json!({})))).await;
    assert!(posts.iter().all(|answer| answer.refusal() == (504, "dispatch_pending")));
}

#[tokio::test]
async fn repeats_that_wait_for_an_outcome_leave_their_tenants_turns_to_others() {
    let world = World::waiting(Duration::from_secs(4)).await;
    let (keys, body) = ((0..8).map(|number| format!("k-{number}")).collect::<Vec<_>>(), world.body(json!({})));
    let post = || futures::future::join_all(keys.iter().map(|key| world.client.post_once(key, PATH, body.clone())));
    assert!(post().await.iter().all(|answer| answer.refusal() == (504, "dispatch_pending")));
    let upsert = async {
        // By now they wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        world.client.post("/v1/contacts", json!({"email": "bob@example.com"})).await
    };
    tokio::select! {
        answers = post() => panic!("the repeats ended first: {answers:?}"),
        made = upsert => assert_eq!(made.status, 201),
    }
}

#[rstest]
#[case::no_sender(json!({"sender_id": null}), 400, "validation_failed")]
#[case::unknown_sender(json!({"sender_id": Uuid::max().to_string()}), 403, "domain_not_verified")]
#[case::nobody(json!({"to": []}), 400, "validation_failed")]
#[case::no_to(json!({"to": null}), 400, "validation_failed")]
#[case::no_email(json!({"to": [{"name": "Ann"}]}), 400, "validation_failed")]
#[case::bad_email(json!({"to": [{"email": "ann"}]}), 400, "validation_failed")]
#[case::unknown_recipient_field(json!({"to": [{"email": "ann@example.com", "cc": true}]}), 400, "validation_failed")]
#[case::header_in_a_name(json!({"to": [{"email": "ann@example.com", "name": "a\r\nBcc: b"}]}), 400, "validation_failed")]
#[case::header_in_the_subject(json!({"subject": "a\r\nBcc: b"}), 400, "validation_failed")]
#[case::blank_subject(json!({"subject": " "}), 400, "validation_failed")]
#[case::no_html(json!({"html": null}), 400, "validation_failed")]
#[case::bad_reply_to(json!({"reply_to": "desk"}), 400, "validation_failed")]
#[case::bad_number(json!({"dot_number": 0}), 400, "validation_failed")]
#[case::unknown_class(json!({"message_class": "personal"}), 400, "validation_failed")]
#[case::no_class(json!({"message_class": null}), 400, "validation_failed")]
#[case::marketing(json!({"message_class": "marketing"}), 422, "use_campaigns_for_marketing")]
#[case::unknown_field(json!({"template_id": Uuid::max().to_string()}), 400, "validation_failed")]
#[case::long_html(json!({"html": "x".repeat(512 * 1024 + 1)}), 400, "validation_failed")]
#[case::attachment_without_name(json!({"attachments": [{"content_base64": "QQ=="}]}), 400, "validation_failed")]
#[case::attachment_without_content(json!({"attachments": [{"filename": "a.txt"}]}), 400, "validation_failed")]
#[tokio::test]
async fn a_message_that_cannot_be_sent_is_refused_and_leaves_nothing(
    #[case] change: Value,
    #[case] status: u16,
    #[case] code: &str,
) {
    let world = World::waiting(SHORT).await;
    assert_eq!(world.post(change).await.refusal(), (status, code));
    assert_eq!(world.edge.count("select (select count(*) from messages) + (select count(*) from contacts)").await, 0);
}

#[tokio::test]
async fn every_fault_is_named_with_its_place() {
    let world = World::waiting(SHORT).await;
    let many: Vec<Value> = (0..51).map(|number| json!({"email": format!("p{number}@example.com")})).collect();
    assert_eq!(world.post(json!({"to": many})).await.faults(), [("to".to_owned(), "too_many".to_owned())]);
    let attachment = |filename: &str, content: &[u8], declared: &str| json!({"filename": filename, "content_base64": STANDARD.encode(content), "content_type": declared});
    let answer = world
        .post(json!({"subject": "", "attachments": [
            attachment("a.txt", b"fine", "text/plain"),
            attachment("x.pdf.exe", b"MZ", "application/pdf"),
            attachment("b.pdf", b"%PDF-1.4", "image/png"),
        ]}))
        .await;
    let fault = |path: &str, code: &str| (path.to_owned(), code.to_owned());
    assert_eq!(
        answer.faults(),
        [
            fault("subject", "empty"),
            fault("attachments[1].filename", "extension_not_allowed"),
            fault("attachments[2].content_type", "content_type_mismatch"),
        ]
    );
    let answer = world
        .post(json!({"attachments": [
            attachment("a.txt", b"fine", "text/plain"),
            attachment("b.pdf", b"<html>", "application/pdf"),
            json!({"filename": "c.txt", "content_base64": "data:text/plain;base64,QQ=="}),
        ]}))
        .await;
    assert_eq!(
        answer.faults(),
        [
            fault("attachments[1].content_base64", "content_mismatch"),
            fault("attachments[2].content_base64", "invalid_base64"),
        ]
    );
    let eleven: Vec<Value> = (0..11).map(|_| attachment("a.txt", b"x", "text/plain")).collect();
    assert_eq!(world.post(json!({"attachments": eleven})).await.faults(), [fault("attachments", "too_many")]);
}

#[tokio::test]
async fn fifteen_megabytes_of_attachments_are_taken_and_a_byte_more_is_not() {
    let world = World::waiting(SHORT).await;
    let text = "x".repeat(15 * 1024 * 1024 / 2);
    let attachments = |more: &str| {
        let file = |content: &str| json!({"filename": "a.txt", "content_base64": STANDARD.encode(content)});
        json!({"attachments": [file(&text), file(&format!("{text}{more}"))]})
    };
    assert_eq!(world.post(attachments("")).await.refusal(), (504, "dispatch_pending"));
    assert_eq!(world.post(attachments("y")).await.refusal(), (413, "attachments_too_large"));
    let huge = world.post(json!({"html": "x".repeat(24 * 1024 * 1024)})).await;
    assert_eq!(huge.refusal(), (413, "body_too_large"));
}

#[tokio::test]
async fn a_sender_of_another_tenant_or_without_a_verified_domain_is_a_403() {
    let world = World::waiting(SHORT).await;
    let other = world.edge.client_for("crm", world.client.environment, "tenant-2").await;
    let foreign = sender(&world.edge.pool, other.tenant, "other.test", "verified").await;
    let pending = sender(&world.edge.pool, world.client.tenant, "pending.test", "pending").await;
    for id in [foreign, pending] {
        assert_eq!(world.post(json!({"sender_id": id})).await.refusal(), (403, "domain_not_verified"));
    }
    sqlx::query("update senders set status = 'disabled'").execute(&world.edge.pool).await.unwrap();
    let refused = world.post(json!({})).await;
    assert_eq!(refused.refusal(), (403, "domain_not_verified"));
    assert!(refused.text("detail").contains("disabled"), "{}", refused.body);
}

#[tokio::test]
async fn hard_suppressions_block_and_marketing_opt_outs_do_not() {
    let world = World::waiting(SHORT).await;
    for (email, reason, scope) in
        [("bounced@example.com", "hard_bounce", "all"), ("left@example.com", "unsubscribe", "marketing")]
    {
        sqlx::query("insert into suppressions (tenant_id, id, address, reason, scope, source) values ($1, $2, $3, $4, $5, 'api')")
            .bind(world.client.tenant)
            .bind(schemas::new_id())
            .bind(email)
            .bind(reason)
            .bind(scope)
            .execute(&world.edge.pool)
            .await
            .unwrap();
    }
    let body = world.body(json!({"to": [{"email": "bounced@example.com"}]}));
    let refused = world.client.post_once("k-1", PATH, body.clone()).await;
    assert_eq!(refused.refusal(), (422, "all_recipients_suppressed"));
    assert!(refused.body["detail"].as_str().unwrap().contains("hard_bounced: 1"), "{}", refused.body);
    assert_eq!(world.client.post_once("k-1", PATH, body).await.header("idempotency-replayed"), "true");
    assert_eq!(world.edge.count("select count(*) from messages").await, 0);
    assert_eq!(
        world.post(json!({"to": [{"email": "left@example.com"}, {"email": "bounced@example.com"}]})).await.status,
        504
    );
    assert_eq!(world.edge.count("select count(*) from messages where is_metered").await, 1);
    assert_eq!(world.edge.count("select count(*) from message_recipients").await, 2);
}

#[tokio::test]
async fn a_contact_keeps_its_number_and_gets_one_where_it_has_none() {
    let world = World::waiting(SHORT).await;
    for (email, number) in [("ann@example.com", json!(5)), ("bob@example.com", json!(null))] {
        world.client.post("/v1/contacts", json!({"email": email, "dot_number": number})).await;
    }
    world.post(json!({"dot_number": 9, "to": [{"email": "ann@example.com"}, {"email": "bob@example.com"}]})).await;
    let numbers: Vec<Option<i64>> = sqlx::query_scalar("select dot_number from contacts order by address")
        .fetch_all(&world.edge.pool)
        .await
        .unwrap();
    assert_eq!(numbers, [Some(5), Some(9)]);
}

#[tokio::test]
async fn the_hourly_limit_counts_messages_and_is_exact_over_processes() {
    let world = World::with(ingress::Settings { message_timeout: SHORT, message_rate_per_hour: 3, ..settings() }).await;
    let other = world.client.at(world.edge.another().await);
    let two = json!({"to": [{"email": "ann@example.com"}, {"email": "bob@example.com"}]});
    let posts = (0..8).map(|number| {
        let at = if number % 2 == 0 { &world.client } else { &other };
        at.post(PATH, world.body(two.clone()))
    });
    let answers = futures::future::join_all(posts).await;
    let accepted = answers.iter().filter(|answer| answer.status == 504).count();
    assert_eq!(accepted, 3, "however many people a message is for, it is one");
    for refused in answers.iter().filter(|answer| answer.status != 504) {
        assert_eq!(refused.refusal(), (429, "message_rate_exceeded"));
        let wait: u64 = refused.header("retry-after").parse().unwrap();
        assert!((3_500..=3_601).contains(&wait), "{wait}");
    }
    sqlx::query("update messages set created_at = created_at - interval '61 minutes'")
        .execute(&world.edge.pool)
        .await
        .unwrap();
    assert_eq!(world.post(two).await.status, 504);
    assert_eq!(world.edge.count("select count(*) from messages").await, 4, "a refused message leaves nothing");
    // The clock of the database is set back.
    let ahead = "update messages set created_at = now() + interval '1 hour'";
    sqlx::query(ahead).execute(&world.edge.pool).await.unwrap();
    assert_eq!(world.post(json!({})).await.status, 504, "what lies ahead is not of the last hour");
}

#[tokio::test]
async fn attachments_are_not_looked_into_beyond_the_hourly_limit() {
    let world = World::with(ingress::Settings { message_timeout: SHORT, message_rate_per_hour: 1, ..settings() }).await;
    let bad = json!({"attachments": [{"filename": "a.pdf", "content_base64": STANDARD.encode("MZ")}]});
    assert_eq!(world.post(bad.clone()).await.refusal(), (400, "validation_failed"));
    assert_eq!(world.post(json!({})).await.status, 504);
    assert_eq!(world.post(bad).await.refusal(), (429, "message_rate_exceeded"));
}

#[tokio::test]
async fn a_message_over_the_quota_is_refused_with_when_it_resets() {
    let mut settings = ingress::Settings { message_timeout: SHORT, ..settings() };
    settings.quota.send_quota_monthly = 1;
    let world = World::with(settings).await;
    let refused = world.post(json!({"to": [{"email": "ann@example.com"}, {"email": "bob@example.com"}]})).await;
    assert_eq!(refused.refusal(), (429, "send_quota_exceeded"));
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(world.edge.count("select count(*) from messages").await, 0);
    assert_eq!(world.post(json!({})).await.status, 504);
}

#[tokio::test]
async fn a_message_that_the_quota_stops_at_its_turn_is_a_429_that_asks_for_no_repeat() {
    let world = World::waiting(SHORT).await;
    let body = world.body(json!({}));
    assert_eq!(world.client.post_once("k-1", PATH, body.clone()).await.refusal(), (504, "dispatch_pending"));
    let id = world.decide(&["skipped"]).await;
    sqlx::query("update sends set reason = 'quota_exceeded'").execute(&world.edge.pool).await.unwrap();
    let refused = world.client.post_once("k-1", PATH, body).await;
    assert_eq!((refused.refusal(), refused.text("message_id")), ((429, "send_quota_exceeded"), id.to_string()));
    assert_eq!(refused.headers.get("retry-after"), None);
}

#[tokio::test]
async fn an_unknown_outcome_is_final_until_evidence_comes() {
    let world = World::waiting(SHORT).await;
    let body = world.body(json!({}));
    let post = || world.client.post_once("k-1", PATH, body.clone());
    assert_eq!(post().await.refusal(), (504, "dispatch_pending"));
    world.decide(&["unknown"]).await;
    let unknown = post().await;
    assert_eq!((unknown.refusal(), unknown.headers.get("retry-after")), ((504, "outcome_unknown"), None));
    sqlx::query("update sends set state = 'sent'").execute(&world.edge.pool).await.unwrap();
    assert_eq!(post().await.status, 200);
}

#[tokio::test]
async fn erasing_the_only_recipient_erases_what_was_written_to_him() {
    let world = World::waiting(SHORT).await;
    let attachments = json!([{"filename": "a.txt", "content_base64": STANDARD.encode("secret")}]);
    world.post(json!({"to": [{"email": "ann@example.com", "name": "Ann"}], "attachments": attachments})).await;
    world.decide(&["sent"]).await;
    let contact: Uuid = sqlx::query_scalar("select id from contacts").fetch_one(&world.edge.pool).await.unwrap();
    let erased =
        world.client.write(Method::DELETE, &format!("/v1/contacts/{contact}"), json!({"erase": true}), &[]).await;
    assert_eq!(erased.status, 200, "{}", erased.body);
    world.edge.finish_erasures().await;
    let left = "select (select count(*) from message_attachments) + (select count(name) from message_recipients)
                     + (select count(*) from contents where body_html like '%Hello%')";
    assert_eq!(world.edge.count(left).await, 0);
}

#[tokio::test]
async fn a_persons_data_has_the_messages_to_the_person() {
    let world = World::waiting(SHORT).await;
    let due = chrono::Utc::now() + chrono::TimeDelta::days(20);
    for to in ["ann@example.com", "bob@example.com"] {
        let recipient = json!({"email": to, "name": "Annabel"});
        let sent = world.post(json!({"scheduled_at": due.to_rfc3339(), "to": [recipient], "subject": to})).await;
        assert_eq!(sent.status, 202, "{}", sent.body);
    }
    let contact: Uuid = sqlx::query_scalar("select id from contacts where address = 'ann@example.com'")
        .fetch_one(&world.edge.pool)
        .await
        .unwrap();
    let held = world.client.post(&format!("/v1/contacts/{contact}/data"), json!({})).await.body;
    let records = held["records"].as_array().unwrap();
    let messages: Vec<&Value> = records.iter().filter(|record| record["kind"] == "message").collect();
    assert_eq!(messages.len(), 1, "{held}");
    assert_eq!(messages[0]["data"]["subject"], "ann@example.com");
    assert_eq!(messages[0]["data"]["names"], json!(["Annabel"]));
    assert!(messages[0]["data"]["due_at"].is_string(), "{held}");
}

#[tokio::test]
async fn a_scheduled_message_waits_with_its_attachments_until_cancelled() {
    let world = World::waiting(SHORT).await;
    let due = chrono::Utc::now() + chrono::TimeDelta::days(20);
    let body = json!({
        "scheduled_at": due.to_rfc3339(), "to": [{"email": "ann@example.com"}, {"email": "bob@example.com"}],
        "attachments": [{"filename": "a.txt", "content_base64": STANDARD.encode("Hello")}],
    });
    let answer = world.post(body).await;
    assert_eq!((answer.status.as_u16(), &answer.body["status"]), (202, &json!("scheduled")), "{}", answer.body);
    let id: Uuid = answer.text("message_id").parse().unwrap();
    let sends: Vec<Value> = answer.body["recipients"].as_array().unwrap().clone();
    assert_eq!(sends[1], json!({"email": "bob@example.com", "send_id": SendId::of(id, 1).0}));
    assert_eq!(SendId(id).made_at().timestamp(), due.timestamp());
    let waiting = "select count(*) from requests r join messages m on m.id = r.id
                   where r.announce_after = m.due_at and m.due_at > now() + interval '19 days' and r.state = 'accepted'";
    assert_eq!(world.edge.count(waiting).await, 1);
    assert_eq!(world.edge.count("select count(*) from message_attachments").await, 1);
    let path = format!("/v1/sends/{}", sends[1]["send_id"].as_str().unwrap());
    let read = world.client.get(&path).await.body["send"].clone();
    assert_eq!((&read["state"], &read["email"]), (&json!("queued"), &json!("bob@example.com")));
    let nobodys = format!("/v1/sends/{}", SendId::of(id, 2).0);
    assert_eq!(world.client.delete(&nobodys, json!({})).await.refusal(), (404, "send_not_found"));
    assert_eq!(world.client.delete(&path, json!({})).await.body["status"], "cancelled");
    for send in &sends {
        let path = format!("/v1/sends/{}", send["send_id"].as_str().unwrap());
        assert_eq!(world.client.get(&path).await.body["send"]["state"], "cancelled");
    }
    assert_eq!(world.client.delete(&path, json!({})).await.refusal(), (409, "send_not_scheduled"));
    assert_eq!(world.edge.count(waiting).await, 0);
}
