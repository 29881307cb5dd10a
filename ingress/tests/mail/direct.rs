//! Requests published on the bus: the same acts, the same refusals, told instead of answered.

use std::{collections::BTreeMap, time::Duration};

use async_nats::{
    HeaderMap,
    jetstream::{
        self,
        consumer::{FromConsumer, pull},
    },
};
use futures::StreamExt;
use ingress::Serving;
use rstest::rstest;
use schemas::{SendId, rejected::RequestRejected, subjects::stream};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    common::{PRODUCT, TENANT},
    fixtures::{self, Ready, first_on},
};

const WITHIN: Duration = Duration::from_secs(60);

/// An ingress that serves, and a product that publishes.
struct Publisher {
    ready: Ready,
    client: async_nats::Client,
    shutdown: CancellationToken,
    _serving: Serving,
}

impl Publisher {
    async fn new() -> Self {
        Self::of(Self::unserved().await).await
    }

    /// An ingress that takes no requests yet.
    async fn unserved() -> Ready {
        let ready = Ready::start().await;
        ready.edge.ingress.bus.apply_streams().await.unwrap();
        ready
    }

    async fn of(ready: Ready) -> Self {
        let shutdown = CancellationToken::new();
        let serving = ingress::serve(ready.edge.ingress.clone(), shutdown.clone()).await.unwrap();
        let client = async_nats::connect(ready.edge.database.nats_url()).await.unwrap();
        Self { ready, client, shutdown, _serving: serving }
    }

    /// Publishes as a plain request; answers what the stream says.
    async fn publish_on(&self, subject: &str, body: &str, id: Option<&str>) -> Value {
        let subject = self.ready.edge.ingress.bus.prefixed(&format!("mail.v1.request.{subject}"));
        let mut headers = HeaderMap::new();
        if let Some(id) = id {
            headers.insert("Nats-Msg-Id", id);
        }
        let deadline = tokio::time::Instant::now() + WITHIN;
        loop {
            let (subject, headers) = (subject.clone(), headers.clone());
            let answer = self.client.request_with_headers(subject, headers, body.to_owned().into()).await.unwrap();
            let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
            // Within its own short window the stream drops a repetition; what is tested here is what comes through.
            if answer["duplicate"] != true {
                return answer;
            }
            assert!(tokio::time::Instant::now() < deadline, "{answer}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn publish(&self, kind: &str, body: Value, id: &str) -> Value {
        self.publish_on(&format!("{PRODUCT}.production.{kind}"), &body.to_string(), Some(id)).await
    }

    async fn held(&self, name: &str) -> u64 {
        let bus = &self.ready.edge.ingress.bus;
        let mut stream = bus.jetstream().get_stream(bus.prefixed(name)).await.unwrap();
        stream.info().await.unwrap().state.messages
    }

    /// Waits until every request was carried out or refused.
    async fn settled(&self) {
        let deadline = tokio::time::Instant::now() + WITHIN;
        while self.held(stream::REQUESTS).await > 0 {
            assert!(tokio::time::Instant::now() < deadline, "requests are left");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Everything a stream holds: subject, headers and body.
    async fn all_on(&self, name: &str) -> Vec<jetstream::Message> {
        let bus = &self.ready.edge.ingress.bus;
        let stream = bus.jetstream().get_stream(bus.prefixed(name)).await.unwrap();
        let count = usize::try_from(self.held(name).await).unwrap();
        if count == 0 {
            return Vec::new();
        }
        let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
        let messages = consumer.messages().await.unwrap().take(count).map(Result::unwrap).collect();
        tokio::time::timeout(WITHIN, messages).await.unwrap()
    }

    async fn rejections(&self) -> Vec<RequestRejected> {
        let told = self.all_on(stream::EVENTS).await;
        told.iter().map(|message| serde_json::from_slice(&message.payload).unwrap()).collect()
    }

    async fn count(&self, sql: &'static str) -> i64 {
        self.ready.edge.count(sql).await
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

fn header(message: &jetstream::Message, name: &str) -> String {
    message.headers.as_ref().and_then(|headers| headers.get(name)).map_or("", |value| value.as_str()).to_owned()
}

fn transactional(template: &str, email: &str) -> Value {
    json!({"product_tenant_id": TENANT, "template_id": template, "email": email})
}

#[tokio::test]
async fn every_kind_is_carried_out_and_a_plain_request_gets_the_streams_own_answer() {
    let publisher = Publisher::new().await;
    let ready = &publisher.ready;
    let (template, campaign) = (ready.template(json!({})).await, ready.campaign(json!({})).await);
    let steps = json!([{"step_type": "wait", "delay_amount": 1, "delay_unit": "days", "action_config": {}}]);
    let sequence = ready.client.post("/v1/sequences", json!({"name": "S", "activate": true, "steps": steps})).await;
    let requests = [
        ("contact", json!({"email": "ann@example.com"})),
        ("suppression", json!({"email": "bob@example.com", "reason": "manual"})),
        ("enrollment", json!({"email": "cid@example.com", "sequence_id": sequence.body["sequence_id"]})),
        ("outcome", json!({"contact_email": "ann@example.com", "outcome_type": "quote", "source_event_id": "q-1"})),
        ("transactional", json!({"template_id": template, "email": "dora@example.com"})),
        (
            "message",
            json!({"sender_id": ready.sender, "to": [{"email": "eve@example.com"}], "subject": "S", "html": "<p>H</p>",
                   "message_class": "business"}),
        ),
        ("campaign-launch", json!({"id": campaign})),
    ];
    for (number, (kind, mut body)) in requests.into_iter().enumerate() {
        body["product_tenant_id"] = json!(TENANT);
        let answer = publisher.publish(kind, body, &format!("m-{kind}")).await;
        assert_eq!(answer["seq"], json!(number + 1), "{answer}");
        assert!(answer["stream"].as_str().is_some_and(|name| name.ends_with("MAIL_REQUESTS")), "{answer}");
    }
    publisher.settled().await;
    assert!(publisher.rejections().await.is_empty());
    for (rows, expected) in [
        ("select count(*) from contacts where address = 'ann@example.com'", 1),
        ("select count(*) from suppressions where address = 'bob@example.com'", 1),
        ("select count(*) from enrollments", 1),
        ("select count(*) from outcomes", 1),
        ("select count(*) from messages", 1),
        ("select count(*) from requests where kind = 'transactional'", 1),
        ("select count(*) from requests where kind = 'message'", 1),
        ("select count(*) from campaigns where status in ('sending', 'preflight')", 1),
    ] {
        assert_eq!(publisher.count(rows).await, expected, "{rows}");
    }
}

#[rstest]
#[case::contact("contact", json!({"email": "ann@"}), "validation_failed", "email bad_domain")]
#[case::suppression("suppression", json!({"reason": "manual"}), "validation_failed", "")]
#[case::enrollment("enrollment", json!({"email": "ann@example.com", "sequence_id": Uuid::nil()}), "sequence_not_found", "")]
#[case::outcome("outcome", json!({"contact_email": "ann@example.com", "outcome_type": "gift"}), "validation_failed", "")]
#[case::transactional("transactional", json!({"template_id": Uuid::nil(), "email": "ann@example.com"}), "template_not_found", "")]
#[case::message("message", json!({"sender_id": Uuid::nil(), "to": [{"email": "ann@example.com"}], "subject": "S", "html": "H", "message_class": "business"}), "domain_not_verified", "")]
#[case::launch("campaign-launch", json!({"id": Uuid::nil()}), "campaign_not_found", "")]
#[case::unknown_field("contact", json!({"email": "ann@example.com", "bob@example.com": "red"}), "validation_failed", "unknown_field")]
#[tokio::test]
async fn what_is_refused_is_a_dead_letter_and_an_event_with_the_codes_of_http(
    #[case] kind: &str,
    #[case] mut body: Value,
    #[case] code: &str,
    #[case] field: &str,
) {
    let publisher = Publisher::new().await;
    body["product_tenant_id"] = json!(TENANT);
    publisher.publish(kind, body.clone(), "m-1").await;
    publisher.settled().await;
    let told = publisher.all_on(stream::EVENTS).await;
    let rejected: RequestRejected = serde_json::from_slice(&told[0].payload).unwrap();
    let data = &rejected.data;
    assert_eq!((told.len(), data.refusal.code.as_str(), data.kind.as_str()), (1, code, kind), "{rejected:?}");
    assert_eq!((data.message_id.as_deref(), data.sequence, data.index), (Some("m-1"), 1, None));
    assert_eq!(rejected.product_tenant_id.as_deref(), Some(TENANT));
    let subject = format!("mail.v1.event.{PRODUCT}.production.request.rejected");
    assert!(told[0].subject.ends_with(&subject), "{}", told[0].subject);
    assert_eq!(header(&told[0], "ce-id"), rejected.id.to_string());
    assert_eq!(header(&told[0], "ce-type"), "request.rejected");
    assert!(!String::from_utf8_lossy(&told[0].payload).contains("example.com"), "an event names no address");
    let letters = publisher.all_on(stream::DEAD).await;
    assert_eq!((letters.len(), header(&letters[0], "Mail-Dead-Reason").as_str()), (1, code));
    assert!(header(&letters[0], "Mail-Dead-Subject").ends_with(&format!("{PRODUCT}.production.{kind}")));
    assert!(header(&letters[0], "Mail-Dead-Fields").contains(field), "{:?}", letters[0].headers);
    assert_eq!(serde_json::from_slice::<Value>(&letters[0].payload).unwrap(), body);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_and_only_a_known_publisher_is_told() {
    let publisher = Publisher::new().await;
    publisher.publish_on(&format!("{PRODUCT}.production.contact"), "{\"email\": ", Some("broken")).await;
    publisher.publish_on(&format!("{PRODUCT}.production.contact"), "[{}]", Some("array")).await;
    publisher.publish_on(&format!("{PRODUCT}.production.contact"), "{}", Some("bad id")).await;
    publisher.publish_on(&format!("{PRODUCT}.staging.contact"), "{}", Some("staging")).await;
    publisher.settled().await;
    let told: BTreeMap<String, String> = publisher
        .rejections()
        .await
        .into_iter()
        .map(|rejected| (rejected.data.message_id.unwrap(), rejected.data.refusal.code))
        .collect();
    let expected = [("array", "invalid_json"), ("bad id", "validation_failed"), ("broken", "invalid_json")];
    assert_eq!(told, expected.map(|(id, code)| (id.to_owned(), code.to_owned())).into());
    let reasons: Vec<String> =
        publisher.all_on(stream::DEAD).await.iter().map(|letter| header(letter, "Mail-Dead-Reason")).collect();
    assert_eq!(reasons.len(), 4);
    assert!(reasons.contains(&"not_found".to_owned()), "{reasons:?}");
}

#[tokio::test]
async fn a_product_acts_on_no_tenant_but_its_own() {
    let publisher = Publisher::new().await;
    let body = json!({"product_tenant_id": TENANT, "email": "ann@example.com"});
    publisher.publish_on("shop.production.contact", &body.to_string(), Some("m-1")).await;
    publisher.publish_on(&format!("{PRODUCT}.sandbox.contact"), &body.to_string(), Some("m-2")).await;
    let template = publisher.ready.template(json!({})).await;
    let array = json!([transactional(&template, "ann@example.com")]);
    publisher.publish_on("shop.production.transactional", &array.to_string(), Some("m-3")).await;
    publisher.settled().await;
    let codes: Vec<String> =
        publisher.rejections().await.into_iter().map(|rejected| rejected.data.refusal.code).collect();
    assert_eq!(codes, ["tenant_not_found", "tenant_not_found", "tenant_not_found"]);
    assert_eq!(publisher.count("select count(*) from contacts where address = 'ann@example.com'").await, 0);
    assert_eq!(publisher.count("select count(*) from requests").await, 0);
}

#[tokio::test]
async fn an_id_is_carried_out_once_however_often_it_is_published() {
    let publisher = Publisher::new().await;
    let template = publisher.ready.template(json!({})).await;
    let single = transactional(&template, "ann@example.com");
    let array = json!([transactional(&template, "bob@example.com"), transactional(&template, "cid@example.com")]);
    let message = json!({
        "product_tenant_id": TENANT, "sender_id": publisher.ready.sender, "to": [{"email": "eve@example.com"}], "subject": "S",
        "html": "<p>H</p>", "message_class": "business",
    });
    for _ in 0..2 {
        publisher.publish("transactional", single.clone(), "m-1").await;
        publisher.publish("transactional", array.clone(), "m-2").await;
        publisher.publish("message", message.clone(), "m-3").await;
        publisher.settled().await;
    }
    assert_eq!(publisher.count("select count(*) from requests where kind = 'transactional'").await, 3);
    assert_eq!(publisher.count("select count(*) from messages").await, 1);
    assert!(publisher.rejections().await.is_empty());
    publisher.publish("transactional", transactional(&template, "dora@example.com"), "m-2").await;
    publisher.settled().await;
    assert_eq!(publisher.rejections().await[0].data.refusal.code, "idempotency_key_reused");
    assert_eq!(publisher.count("select count(*) from requests where kind = 'transactional'").await, 3);
}

#[tokio::test]
async fn an_array_is_accepted_but_for_its_bad_items_each_told_with_its_place() {
    let publisher = Publisher::new().await;
    let template = publisher.ready.template(json!({})).await;
    let mut keyed = transactional(&template, "ann@");
    keyed["idempotency_key"] = json!("k-2");
    let array = json!([
        transactional(&template, "ann@example.com"),
        transactional(&Uuid::nil().to_string(), "bob@example.com"),
        keyed,
        "ann@example.com",
        transactional(&template, "ann@example.com"),
        {"product_tenant_id": "nobody", "template_id": template, "email": "ann@example.com"},
    ]);
    publisher.publish("transactional", array.clone(), "m-1").await;
    publisher.settled().await;
    assert_eq!(publisher.count("select count(*) from requests").await, 2);
    let refused: Vec<(Option<u32>, String)> =
        publisher.rejections().await.into_iter().map(|event| (event.data.index, event.data.refusal.code)).collect();
    let expected = [(1, "template_not_found"), (2, "validation_failed"), (3, "invalid_json"), (5, "tenant_not_found")];
    assert_eq!(refused, expected.map(|(index, code)| (Some(index), code.to_owned())));
    assert_eq!(publisher.rejections().await[1].data.idempotency_key.as_deref(), Some("k-2"));
    let letters = publisher.all_on(stream::DEAD).await;
    let bodies: Vec<Value> = letters.iter().map(|letter| serde_json::from_slice(&letter.payload).unwrap()).collect();
    assert_eq!(bodies, [1, 2, 3, 5].map(|place: usize| json!([array[place]])));
    // A repetition after a crash before the acknowledgement tells the same, and tells it once.
    publisher.publish("transactional", array, "m-1").await;
    publisher.settled().await;
    assert_eq!(publisher.count("select count(*) from requests").await, 2);
}

#[tokio::test]
async fn items_of_a_published_array_bring_their_files_and_a_bad_one_costs_its_item() {
    let publisher = Publisher::new().await;
    let template = publisher.ready.template(json!({})).await;
    let with_file = |content: &str| {
        let mut item = transactional(&template, "ann@example.com");
        item["attachments"] = json!([{"filename": "a.txt", "content_base64": content}]);
        item
    };
    let mut foreign = with_file("SGVsbG8=");
    foreign["product_tenant_id"] = json!("nobody");
    let array = json!([with_file("SGVsbG8="), with_file("!"), transactional(&template, "bob@example.com"), foreign]);
    publisher.publish("transactional", array, "m-1").await;
    publisher.settled().await;
    let refused: Vec<(Option<u32>, String)> =
        publisher.rejections().await.into_iter().map(|event| (event.data.index, event.data.refusal.code)).collect();
    let expected = [(1, "validation_failed"), (3, "tenant_not_found")];
    assert_eq!(refused, expected.map(|(index, code)| (Some(index), code.to_owned())));
    assert_eq!(publisher.count("select count(*) from requests").await, 2);
    let stored = "select count(*) from message_attachments a join requests r on r.id = a.message_id";
    assert_eq!(publisher.count(stored).await, 1);
}

#[rstest]
#[case::too_many(501, "too_many")]
#[case::none(0, "empty")]
#[tokio::test]
async fn an_array_of_too_many_or_none_is_refused_as_one(#[case] size: usize, #[case] code: &str) {
    let publisher = Publisher::new().await;
    let template = publisher.ready.template(json!({})).await;
    let items: Vec<Value> = (0..size).map(|n| transactional(&template, &format!("p{n}@example.com"))).collect();
    publisher.publish("transactional", json!(items), "m-1").await;
    publisher.settled().await;
    let rejections = publisher.rejections().await;
    assert_eq!(rejections.len(), 1);
    let refusal = &rejections[0].data.refusal;
    assert_eq!((refusal.code.as_str(), refusal.fields[0].code.as_str()), ("validation_failed", code));
    assert_eq!(publisher.count("select count(*) from requests").await, 0);
}

#[tokio::test]
async fn requests_with_one_template_become_one_batch_and_a_large_one_is_announced_for_dispatch() {
    let publisher = Publisher::new().await;
    let (letter, bill) = (publisher.ready.template(json!({})).await, publisher.ready.template(json!({})).await);
    let mut items: Vec<Value> = (0..500).map(|n| transactional(&letter, &format!("p{n}@example.com"))).collect();
    items[7] = transactional(&bill, "p7@example.com");
    publisher.publish("transactional", json!(items), "m-1").await;
    publisher.settled().await;
    let ids: Vec<Uuid> = sqlx::query_scalar("select id from requests where kind = 'transactional'")
        .fetch_all(&publisher.ready.edge.pool)
        .await
        .unwrap();
    let mut batches: BTreeMap<Uuid, usize> = BTreeMap::new();
    for id in &ids {
        *batches.entry(SendId(*id).batch()).or_default() += 1;
    }
    let mut sizes: Vec<usize> = batches.values().copied().collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 499]);
    let states: Vec<(String, String, i32)> = sqlx::query_as("select lane, state, queued from batches order by queued")
        .fetch_all(&publisher.ready.edge.pool)
        .await
        .unwrap();
    let batch = |lane: &str, state: &str, queued| (lane.to_owned(), state.to_owned(), queued);
    assert_eq!(states, [batch("priority", "announced", 1), batch("bulk", "waiting", 499)]);
    let (subject, announced) = first_on(&publisher.ready.edge, stream::ACCEPTED).await;
    assert!(subject.ends_with("transactional-array"), "{subject}");
    assert_eq!(announced["count"], 499);
    let (_, cleared) = first_on(&publisher.ready.edge, stream::CLEARED).await;
    assert_eq!(cleared["recipients"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn an_item_with_a_key_of_its_own_is_carried_out_once_in_whichever_message() {
    let publisher = Publisher::new().await;
    let template = publisher.ready.template(json!({})).await;
    let alone = transactional(&template, "ann@example.com");
    let keyed = |body: &Value, key: &str| {
        let mut body = body.clone();
        body["idempotency_key"] = json!(key);
        body
    };
    publisher.publish("transactional", alone.clone(), "k-1").await;
    publisher.settled().await;
    let other = transactional(&template, "bob@example.com");
    let array = json!([keyed(&alone, "k-1"), keyed(&other, "k-2"), keyed(&other, "k-2"), keyed(&alone, "k-2")]);
    publisher.publish("transactional", array, "m-1").await;
    publisher.settled().await;
    publisher.publish("transactional", json!([keyed(&other, "k-2")]), "m-2").await;
    publisher.publish("transactional", other, "k-2").await;
    publisher.settled().await;
    assert_eq!(publisher.count("select count(*) from requests").await, 2);
    let refused: Vec<(Option<u32>, String)> =
        publisher.rejections().await.into_iter().map(|event| (event.data.index, event.data.refusal.code)).collect();
    assert_eq!(refused, [(Some(3), "idempotency_key_reused".to_owned())]);
}

#[tokio::test]
async fn a_refused_item_is_accepted_once_from_its_dead_letter() {
    let publisher = Publisher::new().await;
    let template = publisher.ready.template(json!({})).await;
    let mut item = transactional(&template, "ann@example.com");
    item["idempotency_key"] = json!("k-1");
    let set_domain = async |status: &str| {
        let update = sqlx::query("update domains set status = $1").bind(status);
        update.execute(&publisher.ready.edge.pool).await.unwrap();
    };
    set_domain("failed").await;
    publisher.publish("transactional", json!([item]), "m-1").await;
    publisher.settled().await;
    assert_eq!(publisher.rejections().await[0].data.refusal.code, "sender_missing_verified_domain");
    set_domain("verified").await;
    let letters = publisher.all_on(stream::DEAD).await;
    let letter: Value = serde_json::from_slice(&letters[0].payload).unwrap();
    // Replayed twice, and repeated by the product.
    for (body, id) in [(letter.clone(), "replay-1-1"), (letter, "replay-1-1"), (json!([item]), "m-2")] {
        publisher.publish("transactional", body, id).await;
        publisher.settled().await;
    }
    assert_eq!(publisher.rejections().await.len(), 1);
    assert_eq!(publisher.count("select count(*) from requests").await, 1);
}

#[tokio::test]
async fn an_item_that_is_refused_before_its_key_is_looked_up_leaves_the_answer_stored_there() {
    let publisher = Publisher::new().await;
    let template = publisher.ready.template(json!({})).await;
    let mut item = transactional(&template, "ann@example.com");
    item["idempotency_key"] = json!("k-1");
    let mut stray = item.clone();
    stray["product_tenant_id"] = json!("nobody");
    publisher.publish("transactional", json!([item]), "m-1").await;
    publisher.settled().await;
    publisher.publish("transactional", json!([stray]), "m-2").await;
    publisher.settled().await;
    publisher.publish("transactional", json!([item]), "m-3").await;
    publisher.settled().await;
    assert_eq!(publisher.count("select count(*) from requests").await, 1);
    let refused: Vec<String> = publisher.rejections().await.into_iter().map(|event| event.data.refusal.code).collect();
    assert_eq!(refused, ["tenant_not_found"]);
    assert_eq!(
        publisher.count("select count(*) from idempotency_keys where idempotency_key = 'k-1' and status = 202").await,
        1
    );
}

#[tokio::test]
async fn requests_of_several_tenants_may_stand_in_one_array() {
    let publisher = Publisher::new().await;
    let edge = &publisher.ready.edge;
    let template = publisher.ready.template(json!({})).await;
    let other = edge.client_for(PRODUCT, schemas::Environment::Production, "tenant-2").await;
    fixtures::sender(&edge.pool, other.tenant, "other.test", "verified").await;
    let theirs = other.post("/v1/templates", json!({"name": "T", "subject": "T", "body_html": "<p>T</p>"})).await;
    let theirs = theirs.text("template_id");
    let mut second = transactional(&theirs, "bob@example.com");
    second["product_tenant_id"] = json!("tenant-2");
    let mut foreign = transactional(&template, "cid@example.com");
    foreign["product_tenant_id"] = json!("tenant-2");
    let array = json!([transactional(&template, "ann@example.com"), second, foreign]);
    publisher.publish("transactional", array, "m-1").await;
    publisher.settled().await;
    assert_eq!(publisher.count("select count(distinct tenant_id) from requests").await, 2);
    let rejections = publisher.rejections().await;
    assert_eq!(rejections.len(), 1);
    assert_eq!((rejections[0].data.index, rejections[0].data.refusal.code.as_str()), (Some(2), "template_not_found"));
}

#[tokio::test]
async fn a_held_contact_of_one_tenant_keeps_no_mail_of_another_waiting() {
    let publisher = Publisher::new().await;
    let edge = &publisher.ready.edge;
    let template = publisher.ready.template(json!({})).await;
    let contact = publisher.ready.client.post("/v1/contacts", json!({"email": "ann@example.com"})).await;
    let other = edge.client_for(PRODUCT, schemas::Environment::Production, "tenant-2").await;
    fixtures::sender(&edge.pool, other.tenant, "other.test", "verified").await;
    let theirs = other.post("/v1/templates", json!({"name": "T", "subject": "T", "body_html": "<p>T</p>"})).await;
    let keyed = |key: &str, mut item: Value| {
        item["idempotency_key"] = json!(key);
        item
    };
    let mut held = transactional(&template, "");
    held.as_object_mut().unwrap().remove("email");
    held["contact_id"] = json!(contact.text("contact_id"));
    let mut second = transactional(&theirs.text("template_id"), "bob@example.com");
    second["product_tenant_id"] = json!("tenant-2");
    // As a merge holds it.
    let mut merge = edge.pool.begin().await.unwrap();
    sqlx::query("select from contacts where address like 'ann@%' for update").execute(&mut *merge).await.unwrap();
    let array = json!([held.clone(), keyed("k-1", held), second.clone(), keyed("k-2", second)]);
    publisher.publish("transactional", array, "m-1").await;
    let deadline = tokio::time::Instant::now() + WITHIN;
    while publisher.count("select count(*) from requests").await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "the other tenant waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let accepted: Vec<Uuid> = sqlx::query_scalar("select tenant_id from requests").fetch_all(&edge.pool).await.unwrap();
    assert_eq!((accepted, publisher.held(stream::REQUESTS).await), (vec![other.tenant; 2], 1));
    merge.rollback().await.unwrap();
    publisher.settled().await;
    assert_eq!(publisher.count("select count(*) from requests").await, 4, "each once");
    assert!(publisher.rejections().await.is_empty());
    let answered = "select count(*) from idempotency_keys where idempotency_key in ('k-1', 'k-2') and status = 202";
    assert_eq!(publisher.count(answered).await, 2);
}

#[tokio::test]
async fn an_array_is_in_the_log_of_each_tenant_with_its_refused_items() {
    let publisher = Publisher::new().await;
    let edge = &publisher.ready.edge;
    let template = publisher.ready.template(json!({})).await;
    edge.client_for(PRODUCT, schemas::Environment::Production, "tenant-2").await;
    let mut foreign = transactional(&template, "cid@example.com");
    foreign["product_tenant_id"] = json!("tenant-2");
    let array = json!([
        transactional(&template, "ann@example.com"),
        transactional(&template, "bob@example.com"),
        transactional(&template, "bob@"),
        foreign,
    ]);
    publisher.publish("transactional", array, "m-1").await;
    publisher.publish("contact", json!({"product_tenant_id": TENANT, "email": "dan@example.com"}), "m-2").await;
    edge.wait_for_calls(5).await;
    let logged: Vec<Value> = sqlx::query_scalar(
        "select jsonb_build_array(tenant_id = $1, operation, status, error, field) from request_log
         where via = 'bus' order by status, operation",
    )
    .bind(publisher.ready.client.tenant)
    .fetch_all(&edge.pool)
    .await
    .unwrap();
    let expected = [
        json!([true, "createContact", 201, null, null]),
        json!([true, "sendTransactional", 202, null, null]),
        json!([true, "sendTransactional", 400, "validation_failed", "email"]),
        json!([false, "sendTransactional", 404, "template_not_found", null]),
    ];
    assert_eq!(logged, expected);
}

#[tokio::test]
async fn a_product_at_its_limit_keeps_no_other_from_being_heard() {
    let ready = Publisher::unserved().await;
    let bus = &ready.edge.ingress.bus;
    let publish = async |product: &str, email: &str| {
        let subject = bus.prefixed(&format!("mail.v1.request.{product}.production.contact"));
        let body = json!({"product_tenant_id": TENANT, "email": email}).to_string();
        let answer = bus.client().request(subject, body.into()).await.unwrap();
        serde_json::from_slice::<Value>(&answer.payload).unwrap()
    };
    for _ in 0..runtime::streams::REQUESTS_WAITING_MAX {
        let answer = publish("flood", "ann@example.com").await;
        assert!(answer["seq"].is_u64(), "{answer}");
    }
    let answer = publish("flood", "ann@example.com").await;
    assert_eq!(answer["error"]["code"], 503, "{answer}");
    let answer = publish(PRODUCT, "bob@example.com").await;
    assert!(answer["seq"].is_u64(), "{answer}");
    let publisher = Publisher::of(ready).await;
    publisher.settled().await;
    assert_eq!(publisher.count("select count(*) from contacts where address = 'bob@example.com'").await, 1);
}

#[tokio::test]
async fn a_request_of_a_kind_that_only_a_newer_process_knows_is_left_to_it() {
    let publisher = Publisher::new().await;
    let bus = &publisher.ready.edge.ingress.bus;
    let requests = bus.stream(stream::REQUESTS).await.unwrap().unwrap();
    // The newer process gives the consumer, which all share, its subject.
    let deadline = tokio::time::Instant::now() + WITHIN;
    let mut config = loop {
        if let Ok(info) = requests.consumer_info("ingress-prompt").await {
            break pull::Config::try_from_consumer_config(info.config).unwrap();
        }
        assert!(tokio::time::Instant::now() < deadline, "the consumer is made");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    config.filter_subjects.push(bus.prefixed("mail.v1.request.*.*.postcard"));
    requests.create_consumer(config).await.unwrap();
    publisher.publish("postcard", json!({"product_tenant_id": TENANT}), "m-1").await;
    while requests.consumer_info("ingress-prompt").await.map_or(0, |info| info.num_redelivered) == 0 {
        assert!(tokio::time::Instant::now() < deadline, "never offered again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(publisher.rejections().await.is_empty());
    assert_eq!((publisher.held(stream::REQUESTS).await, publisher.held(stream::DEAD).await), (1, 0));
}

#[tokio::test]
async fn a_product_whose_launches_are_held_keeps_no_other_product_waiting() {
    let publisher = Publisher::new().await;
    let (ready, edge) = (&publisher.ready, &publisher.ready.edge);
    let mut held = Vec::new();
    // More than a process takes in hand of one product.
    for _ in 0..10 {
        held.push(ready.campaign(json!({})).await);
    }
    let other = edge.client_for("shop", schemas::Environment::Production, "tenant-2").await;
    let sender = fixtures::sender(&edge.pool, other.tenant, "other.test", "verified").await;
    let list = fixtures::audience(&edge.pool, other.tenant, "list", "other", 3).await;
    let body = ready.campaign_body(json!({"sender_profile_id": sender, "list_id": list}));
    let campaign = other.post("/v1/campaigns", body).await.text("campaign_id");
    // Each launch waits for its campaign for longer than this test.
    let mut holder = edge.pool.begin().await.unwrap();
    sqlx::query("select from campaigns where tenant_id = $1 for update")
        .bind(ready.client.tenant)
        .execute(&mut *holder)
        .await
        .unwrap();
    for id in &held {
        publisher.publish("campaign-launch", json!({"product_tenant_id": TENANT, "id": id}), id).await;
    }
    edge.until_waiting(2).await;
    let launch = json!({"product_tenant_id": "tenant-2", "id": campaign});
    publisher.publish_on("shop.production.campaign-launch", &launch.to_string(), Some("m-1")).await;
    let deadline = tokio::time::Instant::now() + WITHIN;
    while edge.count("select count(*) from campaigns where status = 'sending'").await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "the other product waits");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(edge.waiting().await, 2, "no more than its share");
    holder.rollback().await.unwrap();
}

#[tokio::test]
async fn launches_beyond_the_share_of_a_product_wait_in_line() {
    let publisher = Publisher::new().await;
    let (ready, edge) = (&publisher.ready, &publisher.ready.edge);
    let mut holder = edge.pool.begin().await.unwrap();
    let mut campaigns = Vec::new();
    for _ in 0..6 {
        campaigns.push(ready.campaign(json!({})).await);
    }
    sqlx::query("select from campaigns for update").execute(&mut *holder).await.unwrap();
    for id in &campaigns {
        publisher.publish("campaign-launch", json!({"product_tenant_id": TENANT, "id": id}), id).await;
    }
    edge.until_waiting(2).await;
    holder.rollback().await.unwrap();
    publisher.settled().await;
    assert_eq!(publisher.count("select count(*) from campaigns where status = 'sending'").await, 6);
    let requests = edge.ingress.bus.stream(stream::REQUESTS).await.unwrap().unwrap();
    let delivered = requests.consumer_info("ingress-launches").await.unwrap().delivered;
    assert_eq!(delivered.consumer_sequence, 6, "none was given back");
}

#[tokio::test]
async fn at_shutdown_a_launch_that_waits_in_line_is_left_to_another_process() {
    let publisher = Publisher::new().await;
    let (ready, edge) = (&publisher.ready, &publisher.ready.edge);
    let mut campaigns = Vec::new();
    for _ in 0..3 {
        campaigns.push(ready.campaign(json!({})).await);
    }
    let mut holder = edge.pool.begin().await.unwrap();
    sqlx::query("select from campaigns for update").execute(&mut *holder).await.unwrap();
    for id in &campaigns {
        publisher.publish("campaign-launch", json!({"product_tenant_id": TENANT, "id": id}), id).await;
    }
    edge.until_waiting(2).await;
    let requests = edge.ingress.bus.stream(stream::REQUESTS).await.unwrap().unwrap();
    let deadline = tokio::time::Instant::now() + WITHIN;
    while requests.consumer_info("ingress-launches").await.unwrap().delivered.consumer_sequence < 3 {
        assert!(tokio::time::Instant::now() < deadline, "the third is not in line");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    publisher.shutdown.cancel();
    holder.rollback().await.unwrap();
    let sending = async || publisher.count("select count(*) from campaigns where status = 'sending'").await;
    while sending().await < 2 || requests.consumer_info("ingress-launches").await.unwrap().num_redelivered == 0 {
        assert!(tokio::time::Instant::now() < deadline, "the third is not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(sending().await, 2, "those that had begun");
}

#[tokio::test]
async fn a_conflict_that_ends_by_itself_is_tried_again() {
    let publisher = Publisher::new().await;
    let campaign = publisher.ready.campaign(json!({})).await;
    // Another launch is at it.
    let mut other = publisher.ready.edge.pool.begin().await.unwrap();
    let begun: bool = sqlx::query_scalar("select begin_preflight($1, $2::uuid)")
        .bind(publisher.ready.client.tenant)
        .bind(&campaign)
        .fetch_one(&mut *other)
        .await
        .unwrap();
    assert!(begun);
    publisher.publish("campaign-launch", json!({"product_tenant_id": TENANT, "id": campaign}), "m-1").await;
    let bus = &publisher.ready.edge.ingress.bus;
    let requests = bus.stream(stream::REQUESTS).await.unwrap().unwrap();
    let deadline = tokio::time::Instant::now() + WITHIN;
    while requests.consumer_info("ingress-launches").await.map_or(0, |info| info.num_redelivered) == 0 {
        assert!(tokio::time::Instant::now() < deadline, "never tried again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(publisher.rejections().await.is_empty());
    other.rollback().await.unwrap();
    publisher.settled().await;
    assert!(publisher.rejections().await.is_empty());
    assert_eq!(publisher.count("select count(*) from campaigns where status in ('sending', 'preflight')").await, 1);
}
