//! The stage on a database of its own.

use devtools::servers::TestDatabase;
use mail_parser::MessageParser;
use rstest::rstest;
use runtime::{
    Database,
    db::{MIGRATIONS, Role},
    plans::PreparedPool,
};
use schemas::{Classification, ClearedRecipient, MessageKind, SendId, Skeleton, month_of, new_batch_id, new_id};
use secrecy::SecretString;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use uuid::Uuid;

use super::*;

/// A tenant with a sender, and the stage in the stages' role.
struct World {
    pool: PgPool,
    stage: Rendering,
    tenant: Uuid,
    sender: Uuid,
    database: TestDatabase,
}

const STATES: &str = "queued, fenced, deferred, sent, failed, unknown, skipped, cancelled, expired";

/// One worker a lane, and this public address.
fn settings(public_url: &str) -> Settings {
    Settings {
        public_url: public_url.parse().unwrap(),
        tracking_origin: "https://{host}".to_owned(),
        rendering_workers: 1,
        rendering_cache_mb: 8,
    }
}

/// A new tenant, and its sender at this domain.
async fn tenant_with_sender(pool: &PgPool, domain: &str) -> (Uuid, Uuid) {
    let (tenant, sender, domain_id) = (new_id(), new_id(), new_id());
    sqlx::query("insert into tenants (id, environment, org_name, owner_email, physical_address) values ($1, 'production', 'Acme', 'o@acme.test', '1 Main Street')")
        .bind(tenant).execute(pool).await.unwrap();
    sqlx::query("insert into domains (tenant_id, id, domain, status, selector, dkim_private, dkim_public, ownership_token) values ($1, $2, $3, 'verified', 's', '', '', '')")
        .bind(tenant).bind(domain_id).bind(domain).execute(pool).await.unwrap();
    sqlx::query("insert into senders (tenant_id, id, domain_id, email, name) values ($1, $2, $3, $4, 'Ann')")
        .bind(tenant)
        .bind(sender)
        .bind(domain_id)
        .bind(format!("ann@{domain}"))
        .execute(pool)
        .await
        .unwrap();
    (tenant, sender)
}

impl World {
    async fn new() -> Self {
        let database = TestDatabase::migrated(&MIGRATIONS).await.unwrap();
        let pool = Database::pool(&SecretString::from(database.url()), Role::Stages, 4).unwrap();
        let tokens = Arc::new(TokenKeys::derive(&[[1; 32]]));
        let stage =
            Rendering::new(pool.clone(), PreparedPool::new(&pool, 4), tokens, &settings("https://link.test/")).unwrap();
        let (tenant, sender) = tenant_with_sender(&pool, "acme.test").await;
        Self { pool, stage, tenant, sender, database }
    }

    async fn content(&self, subject: &str, html: &str) -> Uuid {
        let id = new_id();
        sqlx::query(
            "insert into contents (tenant_id, id, kind, subject, body_html) values ($1, $2, 'transactional', $3, $4)",
        )
        .bind(self.tenant)
        .bind(id)
        .bind(subject)
        .bind(html)
        .execute(&self.pool)
        .await
        .unwrap();
        id
    }

    async fn contact(&self, first_name: &str, fields: Value) -> Uuid {
        let id = new_id();
        sqlx::query("insert into contacts (tenant_id, id, address, first_name, fields) values ($1, $2, $3, $4, $5)")
            .bind(self.tenant)
            .bind(id)
            .bind(format!("{}@example.org", id.simple()))
            .bind(first_name)
            .bind(fields)
            .execute(&self.pool)
            .await
            .unwrap();
        id
    }

    /// A batch of queued sends to these contacts, announced once.
    async fn batch(&self, lane: Lane, content: Uuid, contacts: &[Uuid]) -> Cleared {
        let id = new_batch_id();
        let (kind, classification) = match lane {
            Lane::Priority => (MessageKind::Transactional, Classification::Transactional),
            Lane::Bulk => (MessageKind::Campaign, Classification::Marketing),
        };
        let size = i32::try_from(contacts.len()).unwrap();
        sqlx::query("insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, announcement, announce_after, size, queued) values ($1, $2, $3, $4, $5, $6, $7, $8, 'announced', 1, now() + interval '1 minute', $9, $9)")
            .bind(self.tenant).bind(id).bind(month_of(id)).bind(kind.as_str()).bind(lane.as_str()).bind(classification.as_str())
            .bind(content).bind(self.sender).bind(size).execute(&self.pool).await.unwrap();
        let mut recipients = Vec::new();
        for (ordinal, contact_id) in (0..).zip(contacts) {
            sqlx::query("insert into sends (tenant_id, id, month, contact_id) values ($1, $2, $3, $4)")
                .bind(self.tenant)
                .bind(SendId::of(id, ordinal).0)
                .bind(month_of(id))
                .bind(contact_id)
                .execute(&self.pool)
                .await
                .unwrap();
            recipients.push(ClearedRecipient { ordinal, contact_id: *contact_id });
        }
        Cleared {
            tenant_id: self.tenant,
            batch_id: id,
            lane,
            announcement: 1,
            kind,
            classification,
            campaign_id: None,
            content_id: content,
            sender_id: self.sender,
            recipients,
            notify: None,
        }
    }

    async fn render(&self, batches: &[Cleared]) -> Vec<Rendered> {
        let publications = self.stage.handle(batches).await.unwrap();
        publications.iter().map(|publication| Rendered::of_frame(&publication.body).unwrap()).collect()
    }

    /// The bytes delivery would send.
    async fn message(&self, rendered: &Rendered, at: usize) -> Vec<u8> {
        let body: Value = sqlx::query_scalar("select body from skeletons where tenant_id = $1 and id = $2")
            .bind(self.tenant)
            .bind(&rendered.skeleton.0)
            .fetch_one(&self.pool)
            .await
            .unwrap();
        let skeleton: Skeleton = serde_json::from_value(body).unwrap();
        skeleton.splice(&rendered.values(&rendered.recipients[at]), &self.stage.tokens, &[]).unwrap()
    }

    /// Batch state, whether it is due again, and its counters that are not zero.
    async fn ledger(&self, batch: Uuid) -> (String, bool, Value) {
        let row = sqlx::query(AssertSqlSafe(format!(
            "select state, announce_after is not null as due, jsonb_strip_nulls((select jsonb_object_agg(key, nullif(value::int, 0)) from jsonb_each_text(to_jsonb(c)))) as counts, \
             (select count(*) from sends s where s.tenant_id = b.tenant_id and s.id between b.id and $3 and s.month = b.month and s.state = 'failed') = b.failed as recounted \
             from batches b, lateral (select {STATES}) c where b.tenant_id = $1 and b.id = $2"
        )))
        .bind(self.tenant).bind(batch).bind(SendId::last_of(batch)).fetch_one(&self.pool).await.unwrap();
        assert!(row.get::<bool, _>("recounted"), "the counters differ from a recount");
        (row.get("state"), row.get("due"), row.get("counts"))
    }

    async fn run(&self, statement: &'static str) {
        sqlx::query(statement).bind(self.tenant).execute(&self.pool).await.unwrap();
    }

    async fn count(&self, query: &'static str) -> i64 {
        sqlx::query_scalar(query).bind(self.tenant).fetch_one(&self.pool).await.unwrap()
    }
}

#[tokio::test]
async fn a_batch_becomes_messages_that_delivery_can_splice() {
    let world = World::new().await;
    let content = world
        .content(
            "Hi {{ first_name }}",
            "<body><a href=\"https://x.test\">{{ sender.name }} {{ tenant.name }}</a></body>",
        )
        .await;
    let contacts = [world.contact("Ada", json!({})).await, world.contact("Bob", json!({})).await];
    let batch = world.batch(Lane::Bulk, content, &contacts).await;
    let rendered = world.render(std::slice::from_ref(&batch)).await;
    assert_eq!(rendered.len(), 1);
    assert_eq!(
        (rendered[0].sending_domain.as_str(), rendered[0].return_path_domain.as_str()),
        ("acme.test", "send.acme.test")
    );
    for (at, name) in [(0, "Ada"), (1, "Bob")] {
        let message = world.message(&rendered[0], at).await;
        let parsed = MessageParser::default().parse(&message).unwrap();
        let send = SendId::of(batch.batch_id, u16::try_from(at).unwrap());
        assert_eq!(parsed.subject(), Some(format!("Hi {name}").as_str()));
        let local = world.stage.tokens.message_id_local(rendered[0].token_key, send.0);
        assert_eq!(parsed.message_id(), Some(format!("{local}@acme.test").as_str()));
        assert_eq!(parsed.from().unwrap().first().unwrap().address(), Some("ann@acme.test"));
        assert_eq!(parsed.to().unwrap().first().unwrap().address(), Some(rendered[0].recipients[at].address()));
        let html = parsed.body_html(0).unwrap();
        assert!(html.contains("Ann Acme") && html.contains("1 Main Street"));
        let click = html.split("https://link.test/t/c/").nth(1).unwrap().split('"').next().unwrap();
        let claims = world.stage.tokens.open(schemas::token::Purpose::Click, click).unwrap();
        assert_eq!(
            (claims.tenant_id, claims.send_id, claims.click()),
            (world.tenant, send.0, Some((0, "https://x.test")))
        );
        let unsubscribe = html.split("https://link.test/u/").nth(1).unwrap().split('"').next().unwrap();
        assert!(world.stage.tokens.open(schemas::token::Purpose::Unsubscribe, unsubscribe).is_ok());
        assert!(html.contains("https://link.test/t/o/v1."));
    }
}

#[tokio::test]
async fn a_recipient_that_cannot_be_rendered_fails_alone_and_once() {
    let world = World::new().await;
    let content = world.content("s", "{{ 10 | divided_by: contact.fields.n }}").await;
    let contacts = [
        world.contact("a", json!({"n": 5})).await,
        world.contact("b", json!({"n": 0})).await,
        world.contact("c", json!({"n": 2})).await,
    ];
    let batch = world.batch(Lane::Bulk, content, &contacts).await;
    for _ in 0..2 {
        let rendered = world.render(std::slice::from_ref(&batch)).await;
        let ordinals: Vec<u16> = rendered[0].recipients.iter().map(|recipient| recipient.ordinal).collect();
        assert_eq!(ordinals, [0, 2]);
        assert_eq!(
            world.ledger(batch.batch_id).await,
            ("announced".to_owned(), true, json!({"queued": 2, "failed": 1}))
        );
    }
    let send = sqlx::query(
        "select state, reason, response, decided_at is not null as decided from sends where tenant_id = $1 and id = $2",
    )
    .bind(world.tenant)
    .bind(SendId::of(batch.batch_id, 1).0)
    .fetch_one(&world.pool)
    .await
    .unwrap();
    assert_eq!(
        (send.get::<&str, _>(0), send.get::<&str, _>(1), send.get::<&str, _>(2), send.get::<bool, _>(3)),
        ("failed", "render", "render_filter_failed", true)
    );
    assert_eq!(world.count("select count(*) from events where tenant_id = $1 and type = 'failed'").await, 1);
    assert_eq!(
        world
            .count(
                "select sum(count)::bigint from rollups where tenant_id = $1 and event = 'failed' and kind = 'campaign'"
            )
            .await,
        1
    );
}

#[tokio::test]
async fn a_content_that_does_not_compile_fails_its_whole_batch() {
    let world = World::new().await;
    let content = world.content("s", "{% if %}").await;
    let contacts = [world.contact("a", json!({})).await, world.contact("b", json!({})).await];
    let batch = world.batch(Lane::Bulk, content, &contacts).await;
    assert!(world.render(std::slice::from_ref(&batch)).await.is_empty());
    assert_eq!(world.ledger(batch.batch_id).await, ("done".to_owned(), false, json!({"failed": 2})));
}

#[tokio::test]
async fn a_batch_left_with_deferred_sends_rests_until_the_first_is_due() {
    let world = World::new().await;
    let content = world.content("s", "{{ 10 | divided_by: contact.fields.n }}").await;
    let contacts = [world.contact("a", json!({"n": 0})).await, world.contact("b", json!({"n": 1})).await];
    let batch = world.batch(Lane::Bulk, content, &contacts).await;
    sqlx::query(
        "update sends set state = 'deferred', next_attempt_at = '2100-01-01Z' where tenant_id = $1 and id = $2",
    )
    .bind(world.tenant)
    .bind(SendId::of(batch.batch_id, 1).0)
    .execute(&world.pool)
    .await
    .unwrap();
    sqlx::query("update batches set queued = 1, deferred = 1 where tenant_id = $1")
        .bind(world.tenant)
        .execute(&world.pool)
        .await
        .unwrap();
    let only_queued = Cleared { recipients: batch.recipients[..1].to_vec(), ..batch.clone() };
    assert!(world.render(&[only_queued]).await.is_empty());
    assert_eq!(world.ledger(batch.batch_id).await, ("resting".to_owned(), true, json!({"deferred": 1, "failed": 1})));
    assert_eq!(
        world.count("select count(*) from batches where tenant_id = $1 and announce_after = '2100-01-01Z'").await,
        1
    );
}

#[tokio::test]
async fn sends_that_moved_on_are_not_failed() {
    let world = World::new().await;
    let content = world.content("s", "{% if %}").await;
    let batch = world.batch(Lane::Bulk, content, &[world.contact("a", json!({})).await]).await;
    sqlx::query("update sends set state = 'sent' where tenant_id = $1")
        .bind(world.tenant)
        .execute(&world.pool)
        .await
        .unwrap();
    sqlx::query("update batches set queued = 0, sent = 1 where tenant_id = $1")
        .bind(world.tenant)
        .execute(&world.pool)
        .await
        .unwrap();
    assert!(world.render(std::slice::from_ref(&batch)).await.is_empty());
    assert_eq!(world.ledger(batch.batch_id).await.2, json!({"sent": 1}));
}

#[tokio::test]
async fn a_priority_send_has_the_same_bytes_on_every_announcement() {
    let world = World::new().await;
    let content = world.content("Hi {{ first_name }}", "<p>{{ first_name }}</p>").await;
    let contacts = [world.contact("Ada", json!({})).await];
    let batch = world.batch(Lane::Priority, content, &contacts).await;
    let first = world.render(std::slice::from_ref(&batch)).await;
    sqlx::query("update contacts set first_name = 'Eve' where tenant_id = $1")
        .bind(world.tenant)
        .execute(&world.pool)
        .await
        .unwrap();
    sqlx::query("update senders set name = 'Other' where tenant_id = $1")
        .bind(world.tenant)
        .execute(&world.pool)
        .await
        .unwrap();
    let restarted = Rendering::new(
        world.pool.clone(),
        PreparedPool::new(&world.pool, 4),
        world.stage.tokens.clone(),
        &settings("https://elsewhere.test"),
    )
    .unwrap();
    let publications = restarted.handle(&[Cleared { announcement: 2, ..batch.clone() }]).await.unwrap();
    assert_eq!(publications[0].message_id, format!("rendered-{}-2-0", batch.batch_id.simple()));
    let second = Rendered::of_frame(&publications[0].body).unwrap();
    assert_eq!(second, first[0]);
    assert!(String::from_utf8(world.message(&second, 0).await).unwrap().contains("Subject: Hi Ada\r\n"));
}

#[tokio::test]
async fn of_two_workers_that_render_a_priority_send_the_first_to_keep_it_wins() {
    let world = World::new().await;
    let content = world.content("s", "x").await;
    let batch = world.batch(Lane::Priority, content, &[world.contact("a", json!({})).await]).await;
    let message = world.render(std::slice::from_ref(&batch)).await.remove(0);
    let head = Arc::new(Rendered { recipients: Vec::new(), ..message });
    world.run("delete from renditions where tenant_id = $1").await;
    let rendition = |slot: &str| Rendition {
        head: head.clone(),
        recipient: RenderedRecipient::new(0, Uuid::nil(), "a@b.test", &[slot.to_owned()]),
    };
    let send = people::owed(&[batch])[0];
    let (mut ours, mut theirs) = (vec![(send, rendition("first"))], vec![(send, rendition("second"))]);
    let mut db = world.pool.acquire().await.unwrap();
    renditions::keep(&mut db, &mut ours, Vec::new()).await.unwrap();
    renditions::keep(&mut db, &mut theirs, Vec::new()).await.unwrap();
    assert_eq!((&ours[0].1, &theirs[0].1), (&rendition("first"), &rendition("first")));
}

#[tokio::test]
async fn batches_in_hand_together_keep_their_own_data() {
    let world = World::new().await;
    let content = world.content("{{ data.code }}", "{{ first_name }}").await;
    let mut batches = Vec::new();
    for code in ["one", "two"] {
        let contact = world.contact(code, json!({})).await;
        let batch = world.batch(Lane::Priority, content, &[contact]).await;
        // A request has the id of its send.
        let request = batch.batch_id;
        sqlx::query("insert into requests (tenant_id, id, product, environment, kind, payload) values ($1, $2, 'p', 'production', 'transactional', $3)")
            .bind(world.tenant).bind(request).bind(json!({"data": {"code": code}})).execute(&world.pool).await.unwrap();
        sqlx::query("update sends set request_id = $3 where tenant_id = $1 and id = $2")
            .bind(world.tenant)
            .bind(batch.batch_id)
            .bind(request)
            .execute(&world.pool)
            .await
            .unwrap();
        batches.push(batch);
    }
    let rendered = world.render(&batches).await;
    assert_eq!(
        rendered.iter().map(|message| message.batch_id).collect::<Vec<_>>(),
        [batches[0].batch_id, batches[1].batch_id]
    );
    for (message, code) in rendered.iter().zip(["one", "two"]) {
        let bytes = world.message(message, 0).await;
        let parsed = MessageParser::default().parse(&bytes).unwrap();
        assert_eq!((parsed.subject(), parsed.body_text(0).unwrap().trim_end()), (Some(code), code));
    }
}

#[tokio::test]
async fn sends_of_one_batch_keep_their_own_options() {
    let world = World::new().await;
    let content = world.content("s", "<body><a href=\"https://x.test\">x</a></body>").await;
    let contacts = [world.contact("a", json!({})).await, world.contact("b", json!({})).await];
    let batch = world.batch(Lane::Priority, content, &contacts).await;
    let own = json!({"from_name": "Billing", "headers": {"X-Order": "17"}, "no_open_tracking": true});
    for (ordinal, options) in [(0, None), (1, Some(own))] {
        let send = SendId::of(batch.batch_id, ordinal).0;
        sqlx::query("insert into requests (tenant_id, id, product, environment, kind, payload, options) values ($1, $2, 'p', 'production', 'transactional', '{}', $3)")
            .bind(world.tenant).bind(send).bind(options).execute(&world.pool).await.unwrap();
        sqlx::query("update sends set request_id = id where tenant_id = $1 and id = $2")
            .bind(world.tenant)
            .bind(send)
            .execute(&world.pool)
            .await
            .unwrap();
    }
    let rendered = world.render(&[batch]).await;
    let mut mails = Vec::new();
    for message in &rendered {
        let bytes = world.message(message, 0).await;
        let parsed = MessageParser::default().parse(&bytes).unwrap();
        let from = parsed.from().unwrap().first().unwrap().name().unwrap().to_owned();
        let html = parsed.body_html(0).unwrap();
        mails.push((from, parsed.header("X-Order").is_some(), html.contains("/t/o/"), html.contains("/t/c/")));
    }
    assert_eq!(mails, [("Ann".to_owned(), false, true, true), ("Billing".to_owned(), true, false, true)]);
}

#[tokio::test]
async fn a_field_without_a_value_prints_the_tenant_s_fallback() {
    let world = World::new().await;
    sqlx::query("insert into fields (tenant_id, id, key, label, type, fallback) values ($1, $2, 'plan', 'Plan', 'string', 'free')")
        .bind(world.tenant).bind(new_id()).execute(&world.pool).await.unwrap();
    let content = world.content("{{ contact.fields.plan }}", "x").await;
    let batch = world.batch(Lane::Bulk, content, &[world.contact("a", json!({})).await]).await;
    let rendered = world.render(&[batch]).await;
    assert!(String::from_utf8(world.message(&rendered[0], 0).await).unwrap().contains("Subject: free\r\n"));
}

#[tokio::test]
async fn a_value_of_a_removed_field_is_not_printed() {
    let world = World::new().await;
    sqlx::query("insert into removed_fields (tenant_id, id, key) values ($1, $2, 'plan')")
        .bind(world.tenant)
        .bind(new_id())
        .execute(&world.pool)
        .await
        .unwrap();
    let content = world.content("{{ contact.fields.plan }}{{ contact.fields.seats }}", "x").await;
    let batch = world.batch(Lane::Bulk, content, &[world.contact("a", json!({"plan": "pro", "seats": 3})).await]).await;
    let rendered = world.render(&[batch]).await;
    assert!(String::from_utf8(world.message(&rendered[0], 0).await).unwrap().contains("Subject: 3\r\n"));
}

#[tokio::test]
async fn another_tenant_s_content_is_unknown() {
    let mut world = World::new().await;
    let own = world.tenant;
    (world.tenant, _) = tenant_with_sender(&world.pool, "other.test").await;
    let foreign = world.content("s", "x").await;
    world.tenant = own;
    let content = world.content("s", "x").await;
    let batch = world.batch(Lane::Bulk, content, &[world.contact("a", json!({})).await]).await;
    let error = world.stage.handle(&[Cleared { content_id: foreign, ..batch }]).await.unwrap_err();
    assert!(!error.is_transient());
    assert_eq!(error.code(), "unknown_content");
}

/// Renders a mail; all its links stand under this host, and `List-Unsubscribe` under the engine's own name.
async fn assert_links_under(world: &World, contact: Uuid, host: &str, why: &str) {
    let html = "<body><a href=\"https://x.test\">x</a> <a href=\"{{ preferences_url }}\">choose</a></body>";
    // A content of its own, since compiled ones are kept for a minute.
    let content = world.content("s", html).await;
    let batch = world.batch(Lane::Bulk, content, &[contact]).await;
    let rendered = world.render(&[batch]).await;
    let bytes = world.message(&rendered[0], 0).await;
    let parsed = MessageParser::default().parse(&bytes).unwrap();
    let html = parsed.body_html(0).unwrap();
    for path in ["t/c/", "t/o/", "u/", "p/"] {
        assert!(html.contains(&format!("\"https://{host}/{path}v1.")), "{why} {path}: {html}");
    }
    let header = parsed.header_raw("List-Unsubscribe").unwrap();
    assert!(header.contains("https://link.test/u/v1."), "the header keeps the engine's name: {header}");
}

fn tracking_record(host: &str, valid: bool) -> Value {
    json!([{"purpose": "tracking", "host": host, "valid": valid}])
}

#[tokio::test]
async fn links_have_the_name_of_the_sender_once_it_was_verified() {
    let world = World::new().await;
    let contact = world.contact("Ada", json!({})).await;
    for (records, host) in [
        (tracking_record("link.acme.test", true), "link.acme.test"),
        (tracking_record("link.acme.test", false), "link.test"),
        (tracking_record("link.other.test", true), "link.test"),
        (json!([]), "link.test"),
    ] {
        sqlx::query("update domains set records = $2 where tenant_id = $1")
            .bind(world.tenant)
            .bind(&records)
            .execute(&world.pool)
            .await
            .unwrap();
        assert_links_under(&world, contact, host, &records.to_string()).await;
    }
}

#[tokio::test]
async fn links_of_the_sandbox_have_the_engines_name() {
    let world = World::new().await;
    let contact = world.contact("Ada", json!({})).await;
    sqlx::query(
        "with verified as (update domains set records = $2 where tenant_id = $1)
         update tenants set environment = 'sandbox' where id = $1",
    )
    .bind(world.tenant)
    .bind(tracking_record("link.acme.test", true))
    .execute(&world.pool)
    .await
    .unwrap();
    assert_links_under(&world, contact, "link.test", "verified, in the sandbox").await;
}

#[tokio::test]
async fn links_have_the_name_of_the_tracking_domain_that_the_tenant_chose() {
    let world = World::new().await;
    let contact = world.contact("Ada", json!({})).await;
    sqlx::query(
        "with chosen as (
             insert into domains (tenant_id, id, domain, status, records, selector, dkim_private, dkim_public, ownership_token)
             values ($1, $2, 'brand.test', 'verified', $3, 's', '', '', '')
             returning id
         )
         update tenants set tracking_domain_id = chosen.id from chosen where tenants.id = $1",
    )
    .bind(world.tenant)
    .bind(schemas::new_id())
    .bind(tracking_record("link.brand.test", true))
    .execute(&world.pool)
    .await
    .unwrap();
    assert_links_under(&world, contact, "link.brand.test", "chosen and verified").await;
    sqlx::query("update domains set status = 'failed' where domain = 'brand.test'").execute(&world.pool).await.unwrap();
    assert_links_under(&world, contact, "link.test", "chosen, and no longer verified").await;
}

#[tokio::test]
async fn a_rendering_that_spends_its_budget_fails_its_recipient_and_the_next_is_rendered() {
    let world = World::new().await;
    // Every alternative of every branch is compared with a list of a thousand, some hundred times over.
    let branch = "{% when list, list, list, list, list, list, list, list, list, list %}x";
    let content = format!(
        "{{% assign list = contact.fields.list %}}{{% assign other = contact.fields.other %}}\
         {{% for i in (1..1000) %}}{{% case other %}}{}{{% endcase %}}{{% endfor %}}done",
        branch.repeat(100)
    );
    let content = world.content("s", &content).await;
    let long = vec![1; 1_000];
    let mut other = long.clone();
    other[999] = 2;
    let contacts = [
        world.contact("slow", json!({"list": long, "other": other})).await,
        world.contact("quick", json!({"list": "a", "other": "a"})).await,
    ];
    let batch = world.batch(Lane::Bulk, content, &contacts).await;
    let rendered = world.render(std::slice::from_ref(&batch)).await;
    assert_eq!(rendered[0].recipients.iter().map(|recipient| recipient.ordinal).collect::<Vec<_>>(), [1]);
    let response: String = sqlx::query_scalar("select response from sends where tenant_id = $1 and id = $2")
        .bind(world.tenant)
        .bind(SendId::of(batch.batch_id, 0).0)
        .fetch_one(&world.pool)
        .await
        .unwrap();
    assert_eq!(response, "render_deadline_exceeded");
}

#[tokio::test]
async fn a_costly_template_delays_no_mail_of_other_tenants() {
    let mut world = World::new().await;
    // Each rendering takes as long as its limits allow.
    let loops = "{% for i in (1..1000) %}{% for j in (1..1000) %}{% if i == j %}{% endif %}{% endfor %}{% endfor %}";
    let content = world.content("s", loops).await;
    let mut contacts = Vec::new();
    for _ in 0..100 {
        contacts.push(world.contact("slow", json!({})).await);
    }
    let costly = world.batch(Lane::Priority, content, &contacts).await;
    let own = (world.tenant, world.sender);
    (world.tenant, world.sender) = tenant_with_sender(&world.pool, "other.test").await;
    let content = world.content("s", "x").await;
    let plain = world.batch(Lane::Priority, content, &[world.contact("quick", json!({})).await]).await;
    (world.tenant, world.sender) = own;
    let group = [costly, plain];
    let rendered = world.render(&group).await;
    assert!(rendered.iter().any(|message| message.batch_id == group[1].batch_id));
    let left = "select queued::bigint from batches where tenant_id = $1";
    let first = world.count(left).await;
    assert!(first > 0, "the plain mail waited for all of the costly ones");
    let again = "select count(*) from batches where tenant_id = $1 and announce_after < now() + interval '10 seconds'";
    assert_eq!(world.count(again).await, 1);
    // In another order, since the first ones have failed.
    let recipients = group[0].recipients.iter().rev().copied().collect();
    world.render(&[Cleared { announcement: 2, recipients, ..group[0].clone() }]).await;
    let second = world.count(left).await;
    assert!(0 < second && second < first, "each announcement brings it further");
}

#[tokio::test]
async fn bulk_mail_waits_while_its_stream_is_nearly_full() {
    let world = World::new().await;
    let prefix = format!("{}_", world.database.name());
    let bus = Bus::connect(&world.database.nats_url().to_owned().into(), None, &prefix, 1, "test").await.unwrap();
    let spec = runtime::streams::STREAMS.iter().find(|spec| spec.name == stream::RENDERED).unwrap();
    stage_rig::make_stream(&bus, spec, 1024 * 1024).await;
    let filler = Publication {
        subject: schemas::subjects::rendered(Lane::Bulk),
        message_id: "filler".to_owned(),
        schema: "mail.v1.rendered",
        body: vec![0_u8; 900 * 1024].into(),
        headers: Vec::new(),
    };
    bus.publish_all(vec![filler]).await.unwrap();
    let stage = Rendering::new(
        world.pool.clone(),
        PreparedPool::new(&world.pool, 4),
        world.stage.tokens.clone(),
        &settings("https://link.test"),
    );
    let stage = stage.unwrap().notifying(bus.clone(), CommitNotifier::default());
    let (content, contact) = (world.content("s", "x").await, world.contact("a", json!({})).await);
    let bulk = [world.batch(Lane::Bulk, content, &[contact]).await];
    let prompt = [world.batch(Lane::Priority, content, &[contact]).await];
    let refused = stage.handle(&bulk).await.unwrap_err();
    assert!(matches!(refused, StageError::Busy { .. }), "{refused}");
    assert_eq!(stage.handle(&prompt).await.unwrap().len(), 1);
    bus.stream(stream::RENDERED).await.unwrap().unwrap().purge().await.unwrap();
    assert_eq!(stage.handle(&bulk).await.unwrap().len(), 1);
}

/// With one connection for all workers, which a second batch gets while the first is compiled or rendered.
#[rstest]
#[case::compiled(format!("<div>{{{{ first_name }}}}{}</div>", "<p>a &amp; <a href=\"https://x.test\">b</a></p>".repeat(10_000)), 1)]
#[case::rendered("{% for i in (1..100) %}{% for j in (1..100) %}{% if i == j %}{% endif %}{% endfor %}{% endfor %}".to_owned(), 100)]
#[tokio::test]
async fn a_template_at_work_holds_no_connection(#[case] html: String, #[case] recipients: usize) {
    let world = World::new().await;
    let settings = settings("https://link.test");
    let stage =
        Rendering::new(world.pool.clone(), PreparedPool::new(&world.pool, 4), world.stage.tokens.clone(), &settings)
            .unwrap();
    let mut contacts = Vec::new();
    for _ in 0..recipients {
        contacts.push(world.contact("slow", json!({})).await);
    }
    let slow = [world.batch(Lane::Bulk, world.content("s", &html).await, &contacts).await];
    let quick = world.content("s", "x").await;
    let quick = [world.batch(Lane::Priority, quick, &[world.contact("quick", json!({})).await]).await];
    let (mut slow, quick) = (stage.handle(&slow), stage.handle(&quick));
    tokio::select! {
        biased;
        _ = &mut slow => panic!("the second batch waited for the template of the first"),
        rendered = quick => assert_eq!(rendered.unwrap().len(), 1),
    }
    slow.await.unwrap();
}

#[test]
fn the_public_address_must_be_a_web_address() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let pool = PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
    let build = |url: &str| {
        Rendering::new(
            pool.clone(),
            PreparedPool::new(&pool, 4),
            Arc::new(TokenKeys::derive(&[[1; 32]])),
            &settings(url),
        )
    };
    assert!(build("https://link.test/base").is_ok());
    for origin in ["https://link.test", "https://x.{host}", "{host}", "ftp://{host}", "https://{host}/a"] {
        let settings = Settings { tracking_origin: origin.to_owned(), ..settings("https://link.test") };
        let tokens = Arc::new(TokenKeys::derive(&[[1; 32]]));
        assert!(Rendering::new(pool.clone(), PreparedPool::new(&pool, 4), tokens, &settings).is_err(), "{origin}");
    }
    for url in ["ftp://link.test", "https://link.test/?a=1", "https://link.test/#x", "mailto:a@b.test"] {
        assert!(build(url).is_err(), "{url}");
    }
}

/// A one-off message with an attachment to these people, resolved.
async fn one_off_message(world: &World, contacts: &[Uuid]) -> Cleared {
    let content = world.content("Hello {{ first_name }}", "<p>{{ first_name }}</p>").await;
    sqlx::query("update contents set kind = 'one_off' where id = $1").bind(content).execute(&world.pool).await.unwrap();
    let batch = world.batch(Lane::Priority, content, contacts).await;
    let id = batch.batch_id;
    sqlx::query("insert into messages (tenant_id, id, sender_id, content_id, reply_to) values ($1, $2, $3, $4, 'desk@acme.test')")
        .bind(world.tenant).bind(id).bind(world.sender).bind(content).execute(&world.pool).await.unwrap();
    for (ordinal, contact) in (0..).zip(contacts) {
        sqlx::query("insert into message_recipients (tenant_id, message_id, send_id, contact_id, name) values ($1, $2, $3, $4, 'Ann Lee')")
            .bind(world.tenant).bind(id).bind(SendId::of(id, ordinal).0).bind(contact).execute(&world.pool).await.unwrap();
    }
    sqlx::query("insert into requests (tenant_id, id, product, environment, kind, payload) values ($1, $2, 'shop', 'production', 'message', '{}')")
        .bind(world.tenant).bind(id).execute(&world.pool).await.unwrap();
    sqlx::query("insert into message_attachments (tenant_id, message_id, place, filename, media_type, encoded) values ($1, $2, 0, 'a.txt', 'text/plain; charset=utf-8', $3)")
        .bind(world.tenant).bind(id).bind(b"SGVsbG8=\r\n".as_slice()).execute(&world.pool).await.unwrap();
    Cleared { kind: MessageKind::OneOff, classification: Classification::Operational, ..batch }
}

#[tokio::test]
async fn a_one_off_message_is_rendered_as_it_was_written_and_its_attachments_stay_where_they_are() {
    let world = World::new().await;
    let contact = world.contact("Contact", json!({})).await;
    let batch = one_off_message(&world, &[contact]).await;
    let rendered = world.render(std::slice::from_ref(&batch)).await;
    assert_eq!(rendered[0].skeleton.0, format!("message-{}", batch.batch_id.simple()));
    let body: Value = sqlx::query_scalar("select body from skeletons").fetch_one(&world.pool).await.unwrap();
    assert!(!body.to_string().contains("SGVsbG8"), "{body}");
    let skeleton: Skeleton = serde_json::from_value(body).unwrap();
    let values = rendered[0].values(&rendered[0].recipients[0]);
    let message = skeleton.splice(&values, &world.stage.tokens, &[b"SGVsbG8=\r\n".to_vec()]).unwrap();
    let parsed = MessageParser::default().parse(&message).unwrap();
    assert_eq!(
        (parsed.subject(), parsed.body_html(0).as_deref()),
        (Some("Hello {{ first_name }}"), Some("<p>{{ first_name }}</p>"))
    );
    let (to, reply_to) = (parsed.to().unwrap().first().unwrap(), parsed.reply_to().unwrap().first().unwrap());
    assert_eq!((to.name(), reply_to.address()), (Some("Ann Lee"), Some("desk@acme.test")));
    assert_eq!(parsed.attachment(0).unwrap().contents(), b"Hello");
    let again = world.render(&[batch]).await;
    assert_eq!(again[0].recipients, rendered[0].recipients, "a repeat has the same bytes");
}

#[tokio::test]
async fn an_erased_recipient_costs_the_others_of_a_message_nothing() {
    let world = World::new().await;
    let contacts = [world.contact("Ada", json!({})).await, world.contact("Bob", json!({})).await];
    let batches = [one_off_message(&world, &contacts).await];
    for statement in [
        "delete from message_attachments where tenant_id = $1",
        "update requests set options = '{\"from_name\": \"Billing\"}' where tenant_id = $1",
        "update sends set request_id = (select id from requests where tenant_id = $1) where tenant_id = $1",
        "update contacts set status = 'erased' where tenant_id = $1 and first_name = 'Bob'",
    ] {
        world.run(statement).await;
    }
    let sends = people::owed(&batches);
    let mut db = world.pool.acquire().await.unwrap();
    let people = people::load_merge_data(&mut db, &sends).await.unwrap();
    let contents = world.stage.contents(&batches, &sends, &people).await.unwrap();
    assert_eq!(contents.len(), 1, "a second one would be stored under the same id");
    let rendered = world.render(&batches).await;
    assert_eq!(rendered[0].recipients.iter().map(|recipient| recipient.ordinal).collect::<Vec<_>>(), [0]);
    let bytes = world.message(&rendered[0], 0).await;
    let parsed = MessageParser::default().parse(&bytes).unwrap();
    assert_eq!(parsed.from().unwrap().first().unwrap().name(), Some("Billing"));
    let gone =
        "select count(*) from sends where tenant_id = $1 and state = 'failed' and response = 'render_contact_gone'";
    assert_eq!(world.count(gone).await, 1);
}

#[tokio::test]
async fn a_send_that_is_to_another_contact_by_now_is_left_as_it_is() {
    let world = World::new().await;
    let (content, contact) = (world.content("Hi", "<p>Hi</p>").await, world.contact("Ann", json!({})).await);
    let mut batch = world.batch(Lane::Priority, content, &[contact]).await;
    // A crash of Postgres took back the contact that the message names.
    batch.recipients[0].contact_id = Uuid::now_v7();
    assert!(world.render(std::slice::from_ref(&batch)).await.is_empty());
    assert_eq!(world.ledger(batch.batch_id).await, ("announced".to_owned(), true, json!({"queued": 1})));
}

#[rstest]
#[case::to_an_owner(MessageKind::OneOff)]
#[case::of_a_campaign_test(MessageKind::Test)]
#[tokio::test]
async fn a_written_message_that_was_erased_is_not_sent_empty(#[case] kind: MessageKind) {
    let world = World::new().await;
    let contact = world.contact("Contact", json!({})).await;
    let batch = Cleared { kind, ..one_off_message(&world, &[contact]).await };
    world.run("update contents set subject = '', body_html = '', body_text = null where tenant_id = $1").await;
    assert!(world.render(std::slice::from_ref(&batch)).await.is_empty());
    assert_eq!(world.ledger(batch.batch_id).await, ("done".to_owned(), false, json!({"failed": 1})));
    let failed =
        "select count(*) from sends where tenant_id = $1 and reason = 'render' and response = 'render_content_invalid'";
    assert_eq!(world.count(failed).await, 1);
}

#[tokio::test]
async fn a_mail_whose_files_were_purged_fails_once() {
    let world = World::new().await;
    let contact = world.contact("Contact", json!({})).await;
    let batch = Cleared { kind: MessageKind::Transactional, ..one_off_message(&world, &[contact]).await };
    for statement in [
        "update contents set kind = 'transactional' where tenant_id = $1",
        "update requests set kind = 'transactional', options = '{\"has_attachments\": true}' where tenant_id = $1",
        "update sends set request_id = id where tenant_id = $1",
        "delete from message_attachments where tenant_id = $1",
    ] {
        world.run(statement).await;
    }
    assert!(world.render(std::slice::from_ref(&batch)).await.is_empty());
    assert_eq!(world.ledger(batch.batch_id).await, ("done".to_owned(), false, json!({"failed": 1})));
}

#[rstest]
#[case::its_content("update contents set subject = '', body_html = '' where tenant_id = $1", MessageKind::OneOff)]
#[case::its_attachments("delete from message_attachments where tenant_id = $1", MessageKind::Transactional)]
#[tokio::test]
async fn mail_that_is_erased_while_it_is_compiled_leaves_nothing(
    #[case] erases: &'static str,
    #[case] kind: MessageKind,
) {
    let world = World::new().await;
    let contact = world.contact("Contact", json!({})).await;
    let batches = [Cleared { kind, ..one_off_message(&world, &[contact]).await }];
    if kind == MessageKind::Transactional {
        for statement in [
            "update contents set kind = 'transactional' where tenant_id = $1",
            "update requests set kind = 'transactional', options = '{\"has_attachments\": true}' where tenant_id = $1",
            "update sends set request_id = id where tenant_id = $1",
        ] {
            world.run(statement).await;
        }
    }
    let mut erasure = world.pool.begin().await.unwrap();
    sqlx::query(erases).bind(world.tenant).execute(&mut *erasure).await.unwrap();
    let waiting = "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                   where not l.granted and a.datname = current_database() and $1::uuid is not null";
    let erasing = async {
        stage_rig::until("the worker to wait for the erasure", async || world.count(waiting).await > 0).await;
        erasure.commit().await.unwrap();
    };
    let (rendered, ()) = tokio::join!(world.render(&batches), erasing);
    assert!(rendered.is_empty());
    let stored = "select (select count(*) from skeletons where tenant_id = $1)
                      + (select count(*) from renditions where tenant_id = $1)";
    assert_eq!(world.count(stored).await, 0);
}

/// Attachments and compiled messages of the tenant.
const STORED: &str = "select (select count(*) from message_attachments where tenant_id = $1)
    + (select count(*) from skeletons where tenant_id = $1)";

#[tokio::test]
async fn attachments_and_compiled_forms_are_forgotten_some_days_after_the_message() {
    let world = World::new().await;
    let contact = world.contact("Contact", json!({})).await;
    world.render(&[one_off_message(&world, &[contact]).await]).await;
    let sweep = PurgeMessages(world.pool.clone());
    assert_eq!((runner::Sweep::sweep(&sweep).await.unwrap(), world.count(STORED).await), (0, 2));
    sqlx::query("update messages set created_at = created_at - interval '5 days', due_at = now() - interval '5 days'")
        .execute(&world.pool)
        .await
        .unwrap();
    assert_eq!((runner::Sweep::sweep(&sweep).await.unwrap(), world.count(STORED).await), (1, 0));
    assert_eq!(runner::Sweep::sweep(&sweep).await.unwrap(), 0);
    sqlx::query(
        "insert into messages (tenant_id, id, sender_id, content_id, due_at)
         select tenant_id, gen_random_uuid(), sender_id, content_id, due_at from messages, generate_series(1, 250)",
    )
    .execute(&world.pool)
    .await
    .unwrap();
    assert_eq!(runner::Sweep::sweep(&sweep).await.unwrap(), 250, "in one run");
}

/// Transactional mails of five days ago that are over, each with three files and a compiled form of its own.
async fn old_mails_with_files(world: &World, mails: i64) {
    let mail = "select (left(first_id_at(now() - interval '5 days')::text, 24) || lpad(to_hex(n), 12, '0'))::uuid as id
                from generate_series(1, $2) n";
    for sql in [
        format!(
            "insert into requests (tenant_id, id, product, environment, kind, payload, state)
             select $1, id, 'shop', 'production', 'transactional', '{{}}', 'handled' from ({mail}) m"
        ),
        "insert into message_attachments (tenant_id, message_id, place, filename, media_type, encoded)
         select tenant_id, id, place, 'a.pdf', 'application/pdf', '' from requests, generate_series(0, 2) place
         where tenant_id = $1 and $2::bigint > 0"
            .to_owned(),
        "insert into skeletons (tenant_id, id, body)
         select tenant_id, 'message-' || replace(id::text, '-', ''), '{}' from requests where tenant_id = $1 and $2::bigint > 0"
            .to_owned(),
    ] {
        sqlx::query(AssertSqlSafe(sql)).bind(world.tenant).bind(mails).execute(&world.pool).await.unwrap();
    }
    assert_eq!(world.count(STORED).await, 4 * mails);
}

#[tokio::test]
async fn mails_with_several_files_are_purged_in_one_run() {
    let world = World::new().await;
    old_mails_with_files(&world, 250).await;
    assert_eq!(runner::Sweep::sweep(&PurgeMessages(world.pool.clone())).await.unwrap(), 250);
    assert_eq!(world.count(STORED).await, 0);
}

#[tokio::test]
async fn a_compiled_form_goes_with_its_request() {
    let world = World::new().await;
    old_mails_with_files(&world, 1).await;
    world.run("delete from requests where tenant_id = $1").await;
    assert_eq!(world.count(STORED).await, 0);
}

#[tokio::test]
async fn open_mail_keeps_its_attachments_however_old_it_is() {
    let world = World::new().await;
    let contact = world.contact("Contact", json!({})).await;
    let fresh = one_off_message(&world, &[contact]).await;
    // A message of six days ago, and a receipt of five days ago.
    let (message, receipt) = ("first_id_at(now() - interval '6 days')", "first_id_at(now() - interval '5 days')");
    let mut tx = world.pool.begin().await.unwrap();
    for sql in [
        format!("insert into requests (tenant_id, id, product, environment, kind, payload, state)
                 select $1, id, 'shop', 'production', kind, '{{}}', 'handled'
                 from (values ({message}, 'message'), ({receipt}, 'transactional')) m (id, kind) where $2::uuid is not null"),
        format!("insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, size, queued)
                 select tenant_id, m.id, month, m.kind, 'priority', 'transactional', content_id, sender_id, 'resting', 1, 1
                 from batches b, (values ({message}, 'one_off'), ({receipt}, 'transactional')) m (id, kind)
                 where b.tenant_id = $1 and b.id = $2"),
        format!("insert into messages (tenant_id, id, sender_id, content_id, due_at)
                 select tenant_id, {message}, sender_id, content_id, now() - interval '6 days' from messages
                 where tenant_id = $1 and id = $2"),
        format!("insert into message_attachments (tenant_id, message_id, place, filename, media_type, encoded)
                 select $1, id, 0, 'a.pdf', 'application/pdf', '' from unnest(array[{message}, {receipt}]) id where $2::uuid is not null"),
    ] {
        sqlx::query(AssertSqlSafe(sql)).bind(world.tenant).bind(fresh.batch_id).execute(&mut *tx).await.unwrap();
    }
    tx.commit().await.unwrap();
    let sweep = PurgeMessages(world.pool.clone());
    let purged = async || runner::Sweep::sweep(&sweep).await.unwrap();
    assert_eq!(purged().await, 0);
    let end = |kind: &str| {
        AssertSqlSafe(format!(
            "update batches set state = 'done', queued = 0, sent = 1 where tenant_id = $1 and state = 'resting' and kind = '{kind}'"
        ))
    };
    sqlx::query(end("one_off")).bind(world.tenant).execute(&world.pool).await.unwrap();
    assert_eq!((purged().await, purged().await), (1, 0), "the receipt is open");
    sqlx::query(end("transactional")).bind(world.tenant).execute(&world.pool).await.unwrap();
    assert_eq!((purged().await, purged().await), (1, 0));
    assert_eq!(world.count("select count(*) from message_attachments where tenant_id = $1").await, 1);
}

#[tokio::test]
async fn recipients_and_their_requests_are_read_by_key_in_tables_without_statistics() {
    let world = World::new().await;
    let (content, contact) =
        (world.content("Code", "<p>{{ data.code }}</p>").await, world.contact("Ann", json!({})).await);
    let batch = world.batch(Lane::Bulk, content, &[contact]).await;
    // As after a first hour of transactional mail: nobody has analysed the tables yet.
    sqlx::raw_sql(AssertSqlSafe(format!(
        "insert into requests (tenant_id, id, product, environment, kind, payload, options)
         select '{tenant}', gen_random_uuid(), 'shop', 'production', 'transactional', '{{}}', '{{}}' from generate_series(1, 5000);
         insert into sends (tenant_id, id, month, contact_id, request_id)
         select r.tenant_id, r.id, '{month}', '{contact}', r.id from requests r",
        tenant = world.tenant,
        month = month_of(batch.batch_id),
    )))
    .execute(&world.pool)
    .await
    .unwrap();
    let sends: Vec<Uuid> =
        sqlx::query_scalar("select id from requests limit 100").fetch_all(&world.pool).await.unwrap();
    let sql = format!("explain (analyze, format json)\n{}", include_str!("../../queries/recipients.sql"));
    let plan: Value = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(vec![world.tenant; sends.len()])
        .bind(vec![contact; sends.len()])
        .bind(&sends)
        .bind(vec![month_of(batch.batch_id); sends.len()])
        .fetch_one(&mut *PreparedPool::new(&world.pool, 1).begin().await.unwrap())
        .await
        .unwrap();
    let in_vain = stage_rig::rows_in_vain(&plan);
    assert!(in_vain < 1_000.0, "{in_vain} rows were looked at in vain: {plan:#}");
}

#[tokio::test]
async fn a_batch_over_which_processes_ended_is_not_announced_for_a_day() {
    let world = World::new().await;
    let (content, contact) = (world.content("Hi", "<p>Hi</p>").await, world.contact("Ann", json!({})).await);
    let batch = world.batch(Lane::Bulk, content, &[contact]).await;
    world.stage.given_up(&batch, "never_finished").await.unwrap();
    let set_aside =
        "select count(*) from batches where state = 'announced' and announce_after > now() + interval '23 hours'";
    assert_eq!(sqlx::query_scalar::<_, i64>(set_aside).fetch_one(&world.pool).await.unwrap(), 1);
}
