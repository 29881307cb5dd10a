//! Tenants that are linked and subscribed, and facts about their mail.

use runtime::{MasterKeys, Vault};
use schemas::{Classification, SendId, new_id, webhook::WebhookSecret};
use serde_json::{Value, json};
use stage_rig::{
    Person, Rig, Tenant,
    receiver::{Manner, Receiver},
    settings,
};
use uuid::Uuid;
use webhooks::Settings;

pub const PRODUCT: &str = "shop";

/// Attempts one after the other, as quick as they come.
pub const AT_ONCE: &[&str] = &["--webhook-backoff", "1ms,1ms,1ms,1ms,1ms"];

/// A tenant of `shop`, with a batch of mail to tell about.
pub struct World {
    pub rig: Rig,
    pub tenant: Tenant,
    pub people: Vec<Person>,
    pub batch: Uuid,
}

impl World {
    /// A linked tenant with a batch of 500. Nothing listens yet, so nothing of it is noted.
    pub async fn new() -> Self {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        link(&rig, &tenant, PRODUCT, "t-1").await;
        let (people, batch) = mail(&rig, &tenant, 500).await;
        Self { rig, tenant, people, batch }
    }

    /// A world, a receiver that is subscribed to these types, and its subscription.
    pub async fn receiving(manner: Manner, events: &[&str]) -> (Self, Receiver, Uuid) {
        let (world, receiver) = (Self::new().await, Receiver::start(manner).await);
        let subscription = world.subscribe(&receiver.url, events).await;
        (world, receiver, subscription)
    }

    /// Starts the stage as another process.
    pub async fn start(&self, arguments: &[&str]) {
        webhooks::start(&self.rig.process(), &settings::<Settings>(arguments));
    }

    pub fn send(&self, at: usize) -> Uuid {
        SendId::of(self.batch, u16::try_from(at).unwrap()).0
    }

    /// Subscribes the tenant's product to these types.
    pub async fn subscribe(&self, url: &str, events: &[&str]) -> Uuid {
        subscribe(&self.rig, &self.tenant, PRODUCT, url, events, &WebhookSecret::generate()).await
    }

    /// Publishes the product's events on the bus as well.
    pub async fn feed(&self) {
        let sql = "insert into event_feeds (product, environment) values ($1, 'production')";
        sqlx::query(sql).bind(PRODUCT).execute(&self.rig.pool).await.unwrap();
    }

    /// Executes a statement about one row.
    pub async fn execute(&self, sql: &'static str, id: Uuid) {
        sqlx::query(sql).bind(id).execute(&self.rig.pool).await.unwrap();
    }

    /// Facts of a type about the first so many mails, in one statement.
    pub async fn facts(&self, fact: &str, count: usize, detail: Value) {
        let sends: Vec<Uuid> = (0..count).map(|at| self.send(at)).collect();
        facts(&self.rig, &self.tenant, &sends, fact, detail).await;
    }

    pub async fn opened(&self, count: usize) {
        self.facts("opened", count, json!({"ip": "192.0.2.1", "user_agent": "mua", "is_machine": false})).await;
    }

    /// One column of one delivery or subscription row, as text.
    pub async fn text(&self, query: &'static str) -> Option<String> {
        sqlx::query_scalar(query).fetch_one(&self.rig.pool).await.unwrap()
    }

    /// How many deliveries are in this state.
    pub async fn deliveries(&self, status: &str) -> i64 {
        sqlx::query_scalar("select count(*) from webhook_deliveries where status = $1")
            .bind(status)
            .fetch_one(&self.rig.pool)
            .await
            .unwrap()
    }

    pub async fn set_status(&self, subscription: Uuid, status: &str) {
        sqlx::query(
            "update webhook_subscriptions set status = $2,
                    disabled_at = case when $2 = 'disabled' then now() end,
                    disabled_reason = case when $2 = 'disabled' then 'deleted' end
             where id = $1",
        )
        .bind(subscription)
        .bind(status)
        .execute(&self.rig.pool)
        .await
        .unwrap();
    }

    /// Asks for a replay of everything there is.
    pub async fn replay(&self, subscription: Uuid) -> Uuid {
        let id = new_id();
        sqlx::query(
            "insert into webhook_replays (tenant_id, id, subscription_id, since, until, cursor_at)
             select $1, $2, $3, t.since, now(), t.since from (select now() - interval '1 hour' as since) t",
        )
        .bind(self.tenant.id)
        .bind(id)
        .bind(subscription)
        .execute(&self.rig.pool)
        .await
        .unwrap();
        id
    }
}

pub fn vault() -> Vault {
    Vault::new(&MasterKeys::parse(&"07".repeat(32)).unwrap()).unwrap()
}

pub fn sealed(tenant: &Tenant, secret: &WebhookSecret) -> Vec<u8> {
    vault().seal(tenant.id, "webhook", secret.expose().as_bytes()).unwrap()
}

pub async fn link(rig: &Rig, tenant: &Tenant, product: &str, name: &str) {
    sqlx::query(
        "insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
         values ($1, 'production', $2, $3, 'owner@example.com')",
    )
    .bind(product)
    .bind(name)
    .bind(tenant.id)
    .execute(&rig.pool)
    .await
    .unwrap();
}

/// People and a batch of a campaign to them.
pub async fn mail(rig: &Rig, tenant: &Tenant, count: usize) -> (Vec<Person>, Uuid) {
    let list = rig.audience(tenant, "list", &[]).await;
    let campaign = rig.campaign(tenant, list).await;
    let people = rig.people(tenant, count).await;
    let batch = rig.batch(tenant, campaign, Classification::Marketing, &people).await.batch_id;
    (people, batch)
}

pub async fn subscribe(
    rig: &Rig,
    tenant: &Tenant,
    product: &str,
    url: &str,
    events: &[&str],
    secret: &WebhookSecret,
) -> Uuid {
    let id = new_id();
    sqlx::query(
        "insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, secret)
         values ($1, $2, $3, 'production', $4, $5, $6)",
    )
    .bind(tenant.id)
    .bind(id)
    .bind(product)
    .bind(url)
    .bind(events)
    .bind(sealed(tenant, secret))
    .execute(&rig.pool)
    .await
    .unwrap();
    id
}

pub async fn facts(rig: &Rig, tenant: &Tenant, sends: &[Uuid], fact: &str, detail: Value) {
    let ids: Vec<Uuid> = sends.iter().map(|_| new_id()).collect();
    sqlx::query(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select $1, f.send_id, f.id, $4, $5, now(), $6 from unnest($2::uuid[], $3::uuid[]) as f (send_id, id)",
    )
    .bind(tenant.id)
    .bind(sends)
    .bind(&ids)
    .bind(SendId(sends[0]).month())
    .bind(fact)
    .bind(detail)
    .execute(&rig.pool)
    .await
    .unwrap();
}

pub async fn notice(
    rig: &Rig,
    tenant: &Tenant,
    notice: &str,
    product: Option<&str>,
    subject: Uuid,
    data: Value,
) -> Uuid {
    let id = new_id();
    sqlx::query("insert into notices (tenant_id, id, type, product, subject_id, data) values ($1, $2, $3, $4, $5, $6)")
        .bind(tenant.id)
        .bind(id)
        .bind(notice)
        .bind(product)
        .bind(subject)
        .bind(data)
        .execute(&rig.pool)
        .await
        .unwrap();
    id
}
