//! Rows that tests start from, written past the road.

use std::time::Duration;

use futures::StreamExt;
use schemas::{SendId, subjects::stream};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::common::{Client, Edge};

/// A domain in a status.
pub async fn domain(pool: &PgPool, tenant: Uuid, name: &str, status: &str) -> Uuid {
    let id = schemas::new_id();
    let sql =
        "insert into domains (tenant_id, id, domain, status, selector, dkim_private, dkim_public, ownership_token)
         values ($1, $2, $3, $4, 's1', '', 'AAAA', 'token')";
    stage_rig::run!(pool, sql, [tenant, id, name, status]);
    id
}

/// A sender on a domain of its own; the default one if it is the first.
pub async fn sender(pool: &PgPool, tenant: Uuid, domain_name: &str, domain_status: &str) -> Uuid {
    let domain = domain(pool, tenant, domain_name, domain_status).await;
    let id = schemas::new_id();
    let sql = "insert into senders (tenant_id, id, domain_id, email, name, physical_address, is_default)
         values ($1, $2, $3, 'news@' || $4, 'News', '1 Main Street',
                 not exists (select from senders where tenant_id = $1 and is_default))";
    stage_rig::run!(pool, sql, [tenant, id, domain, domain_name]);
    id
}

/// A list or tag with `members` fresh contacts `<prefix><n>@example.com`.
pub async fn audience(pool: &PgPool, tenant: Uuid, kind: &str, prefix: &str, members: i32) -> Uuid {
    let id = schemas::new_id();
    let sql = "insert into audiences (tenant_id, id, kind, name) values ($1, $2, $3, $4)";
    stage_rig::run!(pool, sql, [tenant, id, kind, format!("{prefix} {id}")]);
    let sql = "with people as (
             insert into contacts (tenant_id, id, address)
             select $1, gen_random_uuid(), $3 || n || '@example.com' from generate_series(1, $4) n
             returning id
         )
         insert into audience_members (tenant_id, audience_id, contact_id) select $1, $2, id from people";
    stage_rig::run!(pool, sql, [tenant, id, prefix, members]);
    id
}

/// Makes the two streams the ingress publishes to, small: a full-sized table for each test would reserve the whole disk.
pub async fn open_streams(edge: &Edge) {
    let named = [stream::ACCEPTED, stream::CLEARED, stream::RESOLVED, stream::SIGNALS];
    for spec in runtime::streams::STREAMS.iter().filter(|spec| named.contains(&spec.name)) {
        stage_rig::make_stream(&edge.ingress.bus, spec, 1024 * 1024).await;
    }
}

/// The first message on a stream, when it is there: subject and body.
pub async fn first_on(edge: &Edge, name: &str) -> (String, Value) {
    let bus = &edge.ingress.bus;
    let stream = bus.jetstream().get_stream(bus.prefixed(name)).await.unwrap();
    let config = async_nats::jetstream::consumer::pull::Config::default();
    let consumer = stream.create_consumer(config).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let message = tokio::time::timeout(Duration::from_secs(120), messages.next()).await.unwrap().unwrap().unwrap();
    (message.subject.to_string(), serde_json::from_slice(&message.payload).unwrap())
}

/// An ingress with a client that has a sender and a list of three.
pub struct Ready {
    pub edge: Edge,
    pub client: Client,
    pub sender: Uuid,
    pub list: Uuid,
}

impl Ready {
    pub async fn start() -> Self {
        Self::on(Edge::start().await).await
    }

    pub async fn on(edge: Edge) -> Self {
        let client = edge.client().await;
        let sender = sender(&edge.pool, client.tenant, "acme.test", "verified").await;
        let list = audience(&edge.pool, client.tenant, "list", "reader", 3).await;
        Self { edge, client, sender, list }
    }

    /// The body of a campaign to the list, with changes.
    pub fn campaign_body(&self, change: Value) -> Value {
        let mut body = json!({
            "name": "Spring", "sender_profile_id": self.sender, "subject": "Hello {{ first_name }}",
            "body_html": "<p>Hello {{ first_name }}</p>", "audience_mode": "list", "list_id": self.list,
        });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    }

    /// A draft.
    pub async fn campaign(&self, change: Value) -> String {
        let answer = self.client.post("/v1/campaigns", self.campaign_body(change)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.text("campaign_id")
    }

    /// Asserts that a campaign with this change is refused for one fault.
    pub async fn refuses(&self, change: Value, path: &str, code: &str) {
        let answer = self.client.post("/v1/campaigns", self.campaign_body(change)).await;
        let faults = vec![(path.to_owned(), code.to_owned())];
        assert_eq!((answer.status.as_u16(), answer.faults()), (400, faults), "{}", answer.body);
    }

    /// A template.
    pub async fn template(&self, change: Value) -> String {
        let mut body = json!({"name": "Receipt", "subject": "Your receipt", "body_html": "<p>Thank you</p>"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let answer = self.client.post("/v1/templates", body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        answer.text("template_id")
    }

    /// Puts a campaign into a status, as the stages would.
    pub async fn set_status(&self, campaign: &str, status: &str) {
        stage_rig::run!(&self.edge.pool, "update campaigns set status = $2 where id = $1::uuid", [campaign, status]);
    }

    /// A batch of a campaign with one send per state to its first contacts, as the audience stage would make it. Answers the ids.
    pub async fn batch(&self, campaign: &str, states: &[&str]) -> Vec<Uuid> {
        let (tenant, batch) = (self.client.tenant, schemas::new_batch_id());
        let month = schemas::month_of(batch);
        let pool = &self.edge.pool;
        let sql = "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, size,
                                  queued, deferred, sent, failed, skipped, delivered)
             select tenant_id, $2, $3, 'campaign', 'bulk', classification, id, content_id, sender_profile_id, 'announced', $4,
                    n.queued, n.deferred, n.sent, n.failed, n.skipped, n.sent
             from campaigns
             cross join (select count(*) filter (where s = 'queued') as queued, count(*) filter (where s = 'deferred') as deferred,
                                count(*) filter (where s = 'sent') as sent, count(*) filter (where s = 'failed') as failed,
                                count(*) filter (where s = 'skipped') as skipped
                         from unnest($5::text[]) s) n
             where tenant_id = $1 and id = $6::uuid";
        let size = i32::try_from(states.len()).unwrap();
        stage_rig::run!(pool, sql, [tenant, batch, month, size, states, campaign]);
        let contacts: Vec<Uuid> = sqlx::query_scalar(
            "select id from contacts c where tenant_id = $1
             and not exists (select from sends s where s.tenant_id = $1 and s.campaign_id = $2::uuid and s.contact_id = c.id)
             order by address",
        )
        .bind(tenant)
        .bind(campaign)
        .fetch_all(pool)
        .await
        .unwrap();
        let mut ids = Vec::new();
        for (ordinal, state) in states.iter().enumerate() {
            let id = SendId::of(batch, u16::try_from(ordinal).unwrap()).0;
            let sql = "insert into sends (tenant_id, id, month, campaign_id, contact_id, state, reason, decided_at, provider)
                 values ($1, $2, $3, $4::uuid, $5, $6, case $6 when 'skipped' then 'unsubscribed' when 'failed' then 'hard' end,
                         case when $6 in ('sent', 'failed', 'skipped') then now() end, case $6 when 'sent' then 'smtp' end)";
            stage_rig::run!(pool, sql, [tenant, id, month, campaign, contacts[ordinal], state]);
            ids.push(id);
        }
        let sql = "update campaigns set month = $2, status = 'sending' where id = $1::uuid";
        stage_rig::run!(pool, sql, [campaign, month]);
        ids
    }
}
