//! A database, a relay and one tenant for a test.

use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use chrono::Utc;
use clap::{Args, Command, FromArgMatches};
use devtools::servers::TestDatabase;
use devtools::sink::{Sink, SinkOptions};
use futures::FutureExt;
use runner::{Stage, StageError, Sweep};
use runtime::{Bus, Database, MasterKeys, Role, Vault, panics::caught, plans::PreparedPool};
use schemas::{
    Lane, MessageKind, Piece, Rendered, RenderedRecipient, SendId, Skeleton, month_of, new_batch_id, new_id,
    token::TokenKeyId,
};
use secrecy::ExposeSecret;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::super::{Delivery, Settings};
use crate::provider::PROVIDER_PURPOSE;
use dkim::DkimKey;
use ledger::leases::ExpireLeases;

pub(super) use stage_rig::run;

pub const DOMAIN: &str = "acme.example";

pub struct World {
    pub pool: PgPool,
    pub sink: Sink,
    pub tenant: Uuid,
    pub domain: &'static str,
    pub sender: Uuid,
    pub content: Uuid,
    pub skeleton: Skeleton,
    pub keys: MasterKeys,
    pub shutdown: CancellationToken,
    database: TestDatabase,
}

/// A batch and its message.
pub struct Batch {
    pub id: Uuid,
    pub rendered: Rendered,
}

impl Batch {
    pub fn send(&self, ordinal: u16) -> Uuid {
        SendId::of(self.id, ordinal).0
    }
}

/// A row of `sends`, as tests look at it.
#[derive(Debug, PartialEq, Eq)]
pub struct Row {
    pub state: String,
    pub reason: Option<String>,
    pub attempts: i16,
}

pub fn row(state: &str, reason: Option<&str>, attempts: i16) -> Row {
    Row { state: state.into(), reason: reason.map(Into::into), attempts }
}

impl World {
    pub async fn new() -> Self {
        Self::of_environment("production").await
    }

    pub async fn with_campaign_batch(addresses: &[&str]) -> (Self, Batch) {
        let world = Self::new().await;
        let (_, batch) = world.campaign_batch(addresses).await;
        (world, batch)
    }

    pub async fn with_transactional_batch(address: &str) -> (Self, Batch) {
        let world = Self::new().await;
        let batch = world.transactional_batch(address).await;
        (world, batch)
    }

    pub async fn of_environment(environment: &str) -> Self {
        let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
        let pool = Database::pool(&database.url().into(), Role::Stages, 8).unwrap();
        let keys = MasterKeys::parse(&"07".repeat(32)).unwrap();
        let skeleton = skeleton();
        let [tenant, sender, content] = add_tenant(&pool, &keys, environment, DOMAIN, &skeleton).await;
        let sink = Sink::start(SinkOptions::default()).await.unwrap();
        Self {
            pool,
            sink,
            tenant,
            domain: DOMAIN,
            sender,
            content,
            skeleton,
            keys,
            shutdown: CancellationToken::new(),
            database,
        }
    }

    /// From here on another tenant of the same database, in production.
    pub async fn become_another(&mut self) {
        self.domain = Box::leak(format!("other-{}.example", new_id()).into_boxed_str());
        [self.tenant, self.sender, self.content] =
            add_tenant(&self.pool, &self.keys, "production", self.domain, &self.skeleton).await;
    }

    /// Which gate is the tenant's.
    pub async fn gate(&self) -> i64 {
        self.number("select gate_of($1)::int8").await
    }

    /// A default connection of the tenant, spoken to at `host`.
    pub async fn connection(&self, provider: &str, host: &str) -> Uuid {
        let id = new_id();
        let secret = Vault::new(&self.keys).unwrap().seal(self.tenant, PROVIDER_PURPOSE, b"the-key").unwrap();
        run!(
            &self.pool,
            "insert into provider_connections (tenant_id, id, provider, name, settings, secret, is_default)
             values ($1, $2, $3, 'main', jsonb_build_object('base_url', 'http://' || $4::text || '/'), $5, true)",
            [self.tenant, id, provider, host, secret]
        );
        id
    }

    /// A connection that takes over for the default one.
    pub async fn fallback(&self, provider: &str, host: &str) {
        self.run("update provider_connections set is_default = false, name = 'first'").await;
        self.connection(provider, host).await;
        self.run("update provider_connections set is_default = false, fallback_rank = 1 where name = 'main'").await;
        self.run("update provider_connections set is_default = true where name = 'first'").await;
    }

    pub fn stage(&self) -> Delivery {
        self.stage_with(&[])
    }

    pub fn stage_with(&self, more: &[&str]) -> Delivery {
        self.stage_of(&self.settings(more))
    }

    pub fn stage_of(&self, settings: &Settings) -> Delivery {
        let vault = Arc::new(Vault::new(&self.keys).unwrap());
        let tokens = Arc::new(self.keys.tokens());
        Delivery::new(
            self.pool.clone(),
            &PreparedPool::new(&self.pool, 8),
            vault,
            &tokens,
            self.shutdown.clone(),
            settings,
        )
        .unwrap()
    }

    /// A bus of its own, without streams.
    pub async fn bus(&self) -> Bus {
        let prefix = format!("t{}_", hex::encode(rand::random::<[u8; 4]>()));
        Bus::connect(&self.database.nats_url().into(), None, &prefix, 1, "test").await.unwrap()
    }

    /// Few connections, and times that no answer takes which comes at all.
    pub fn settings(&self, more: &[&str]) -> Settings {
        let url = format!("{}?tls=none", self.sink.smtp_url());
        let mut arguments =
            vec!["test", "--smtp-url", &url, "--smtp-final-timeout", "20s", "--smtp-command-timeout", "20s"];
        arguments.extend(["--provider-timeout", "20s"]);
        arguments.extend(["--smtp-connections", "8", "--smtp-priority-connections", "2"]);
        arguments.extend(more);
        let command = Settings::augment_args(Command::new("test")).args_override_self(true);
        Settings::from_arg_matches(&command.get_matches_from(arguments)).unwrap()
    }

    pub async fn contact(&self, address: &str) -> Uuid {
        let id = new_id();
        run!(
            &self.pool,
            "insert into contacts (tenant_id, id, address) values ($1, $2, $3)",
            [self.tenant, id, address]
        );
        id
    }

    pub async fn campaign(&self) -> Uuid {
        let id = new_id();
        run!(
            &self.pool,
            "insert into campaigns (tenant_id, id, product, environment, name, sender_profile_id, content_id, audience_mode,
                                    message_purpose, classification, status)
             values ($1, $2, 'p', 'production', 'n', $3, $4, 'tags', 'newsletter', 'marketing', 'sending')",
            [self.tenant, id, self.sender, self.content]
        );
        id
    }

    /// A campaign's batch to these addresses, announced and queued.
    pub async fn campaign_batch(&self, addresses: &[&str]) -> (Uuid, Batch) {
        let campaign = self.campaign().await;
        (campaign, self.batch(Some(campaign), MessageKind::Campaign, Lane::Bulk, addresses).await)
    }

    pub async fn transactional_batch(&self, address: &str) -> Batch {
        self.batch(None, MessageKind::Transactional, Lane::Priority, &[address]).await
    }

    /// A one-off message with one attachment, stored as it is sent; a caller waits at `notify`.
    pub async fn one_off_batch(&self, addresses: &[&str], attachment: &[u8], notify: &str) -> Batch {
        let mut batch = self.batch(None, MessageKind::OneOff, Lane::Priority, addresses).await;
        let mut skeleton = self.skeleton.clone();
        skeleton.pieces.push(Piece::Attachment { place: 0, bytes: u32::try_from(attachment.len()).unwrap() });
        run!(
            &self.pool,
            "insert into skeletons (tenant_id, id, body) values ($1, $2, $3) on conflict do nothing",
            [self.tenant, skeleton.id().0, serde_json::to_value(&skeleton).unwrap()]
        );
        run!(
            &self.pool,
            "insert into messages (tenant_id, id, sender_id, content_id) values ($1, $2, $3, $4)",
            [self.tenant, batch.id, self.sender, self.content]
        );
        run!(
            &self.pool,
            "insert into requests (tenant_id, id, product, environment, kind, payload)
             values ($1, $2, 'shop', 'production', 'message', '{}') on conflict do nothing",
            [self.tenant, batch.id]
        );
        sqlx::query("insert into message_attachments (tenant_id, message_id, place, filename, media_type, encoded) values ($1, $2, 0, 'a.pdf', 'application/pdf', $3)")
            .bind(self.tenant).bind(batch.id).bind(attachment).execute(&self.pool).await.unwrap();
        batch.rendered.skeleton = skeleton.id();
        batch.rendered.notify = Some(notify.to_owned());
        batch
    }

    pub async fn batch(&self, campaign: Option<Uuid>, kind: MessageKind, lane: Lane, addresses: &[&str]) -> Batch {
        let id = new_batch_id();
        let size = i32::try_from(addresses.len()).unwrap();
        let classification = if kind == MessageKind::Campaign { "marketing" } else { "transactional" };
        run!(
            &self.pool,
            "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state,
                                  announce_after, announcement, size, queued)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'announced', now() + interval '60 s', 1, $10, $10)",
            [
                self.tenant, id, month_of(id), kind.as_str(), lane.as_str(), classification,
                campaign, self.content, self.sender, size
            ]
        );
        let mut recipients = Vec::new();
        for (ordinal, address) in addresses.iter().enumerate() {
            let ordinal = u16::try_from(ordinal).unwrap();
            let contact = self.contact(address).await;
            let request = campaign.is_none().then(new_id);
            sqlx::query("insert into sends (tenant_id, id, month, campaign_id, request_id, contact_id) values ($1, $2, $3, $4, $5, $6)")
                .bind(self.tenant).bind(SendId::of(id, ordinal).0).bind(month_of(id)).bind(campaign).bind(request).bind(contact)
                .execute(&self.pool).await.unwrap();
            recipients.push(RenderedRecipient::new(ordinal, contact, address, &[(*address).to_owned(), "you".into()]));
        }
        let rendered = Rendered {
            tenant_id: self.tenant,
            batch_id: id,
            campaign_id: campaign,
            kind,
            lane,
            part: 0,
            skeleton: self.skeleton.id(),
            token_key: TokenKeyId::default(),
            sending_domain: self.domain.into(),
            return_path_domain: format!("send.{}", self.domain),
            recipients,
            notify: None,
        };
        Batch { id, rendered }
    }

    pub async fn row(&self, send: Uuid) -> Row {
        let (state, reason, attempts) =
            sqlx::query_as("select state, reason, attempts from sends where tenant_id = $1 and id = $2")
                .bind(self.tenant)
                .bind(send)
                .fetch_one(&self.pool)
                .await
                .unwrap();
        Row { state, reason, attempts }
    }

    /// The rows of a batch, in order.
    pub async fn states(&self, batch: &Batch) -> Vec<String> {
        sqlx::query_scalar("select state from sends where tenant_id = $1 and id between $2 and $3 order by id")
            .bind(self.tenant)
            .bind(batch.id)
            .bind(SendId::last_of(batch.id))
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    pub async fn text(&self, sql: &'static str) -> Option<String> {
        sqlx::query_scalar(sql).bind(self.tenant).fetch_one(&self.pool).await.unwrap()
    }

    pub async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).bind(self.tenant).fetch_one(&self.pool).await.unwrap()
    }

    pub async fn run(&self, sql: &'static str) {
        run!(&self.pool, sql, [self.tenant]);
    }

    /// Ends the leases of all fences a second ago.
    pub async fn leases_are_over(&self) {
        self.run("update sends set lease_until = now() - interval '1 s' where tenant_id = $1").await;
        self.run("update batches set lease_until = now() - interval '1 s' where tenant_id = $1").await;
    }

    /// Sets the last heartbeat of all sessions to this many seconds ago.
    pub async fn silence_sessions(&self, seconds: f64) {
        let silent = "update delivery_sessions set seen_at = clock_timestamp() - make_interval(secs => $1)";
        assert!(sqlx::query(silent).bind(seconds).execute(&self.pool).await.unwrap().rows_affected() > 0);
    }

    pub async fn sweep_leases(&self) -> u64 {
        ExpireLeases::new(&PreparedPool::new(&self.pool, 1), Duration::ZERO).sweep().await.unwrap()
    }

    /// Every batch's counters and the totals of hours equal a recount of the sends, and the state of a batch follows from them.
    pub async fn assert_counters_are_right(&self) {
        let wrong: Vec<(Uuid, String)> = sqlx::query_as(
            "select b.id, b.state from batches b cross join lateral (
                 select count(*) filter (where state = 'queued') as queued,
                        count(*) filter (where state = 'fenced') as fenced, count(*) filter (where state = 'deferred') as deferred,
                        count(*) filter (where state = 'sent') as sent, count(*) filter (where state = 'failed') as failed,
                        count(*) filter (where state = 'unknown') as unknown, count(*) filter (where state = 'skipped') as skipped,
                        count(*) filter (where state = 'cancelled') as cancelled, count(*) filter (where state = 'expired') as expired,
                        count(*) filter (where bounced_at is not null) as bounced,
                        count(counted_delivered_at(provider, state, decided_at, delivered_at, bounced_at)) as delivered
                 from sends s where s.tenant_id = b.tenant_id
                   and s.id between b.id and last_id_of(b.id)) n
             where b.tenant_id = $1 and (
                 row(b.queued, b.fenced, b.deferred, b.sent, b.failed, b.unknown, b.skipped, b.cancelled, b.expired, b.bounced, b.delivered)
                     <> row(n.queued, n.fenced, n.deferred, n.sent, n.failed, n.unknown, n.skipped, n.cancelled, n.expired, n.bounced, n.delivered)
                 or (b.state = 'done') <> (b.queued + b.fenced + b.deferred = 0)
                 or (b.state = 'done') <> (b.done_at is not null)
                 or (b.state in ('done', 'waiting')) <> (b.announce_after is null))",
        )
        .bind(self.tenant)
        .fetch_all(&self.pool)
        .await
        .unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
        let off: Vec<(String, Option<i64>, Option<i64>)> = sqlx::query_as(
            "with counted as (
                 select case state when 'expired' then 'failed' when 'cancelled' then 'skipped' else state end as event,
                        date_trunc('hour', decided_at, 'UTC') as hour, count(*) as n
                 from sends where tenant_id = $1 and state in ('sent', 'failed', 'expired', 'unknown', 'skipped', 'cancelled')
                 group by 1, 2
             ), booked as (
                 select event, hour, sum(count)::bigint as n from rollups
                 where tenant_id = $1 and kind not in ('failure', 'suppression') and event in ('sent', 'failed', 'unknown', 'skipped')
                 group by 1, 2 having sum(count) <> 0
             )
             select event, b.n, c.n from booked b full join counted c using (event, hour) where b.n is distinct from c.n",
        )
        .bind(self.tenant)
        .fetch_all(&self.pool)
        .await
        .unwrap();
        assert!(off.is_empty(), "{off:?}");
    }

    /// What is in doubt has been so for two hours.
    pub async fn doubted_hours_ago(&self) {
        self.run(
            "update sends set decided_at = decided_at - interval '2 hours' where tenant_id = $1 and state = 'unknown'",
        )
        .await;
        self.run("update rollups set hour = hour - interval '2 hours' where tenant_id = $1 and event = 'unknown'")
            .await;
    }
}

fn skeleton() -> Skeleton {
    Skeleton {
        pieces: vec![
            Piece::Text("From: Acme <news@acme.example>\r\nTo: ".into()),
            Piece::Slot(0),
            Piece::Text("\r\nDate: ".into()),
            Piece::Date,
            Piece::Text("\r\nSubject: Hello\r\nMIME-Version: 1.0\r\n\r\nHello ".into()),
            Piece::Slot(1),
            Piece::Text("\r\n".into()),
        ],
        slots: 2,
    }
}

/// A tenant that may send; answers its id, its sender and its content.
async fn add_tenant(
    pool: &PgPool,
    keys: &MasterKeys,
    environment: &str,
    domain_name: &str,
    skeleton: &Skeleton,
) -> [Uuid; 3] {
    let [tenant, domain, sender, content] = [new_id(), new_id(), new_id(), new_id()];
    let dkim = DkimKey::generate_ed25519().unwrap();
    let sealed = Vault::new(keys).unwrap().seal(tenant, "dkim", dkim.private_pkcs8.expose_secret()).unwrap();
    run!(
        pool,
        "insert into tenants (id, environment, owner_email) values ($1, $2, 'owner@acme.example')",
        [tenant, environment]
    );
    run!(
        pool,
        "insert into domains (tenant_id, id, domain, status, selector, dkim_private, dkim_public, ownership_token)
         values ($1, $2, $3, 'verified', 'pr1', $4, $5, 't')",
        [tenant, domain, domain_name, sealed, dkim.public]
    );
    run!(
        pool,
        "insert into senders (tenant_id, id, domain_id, email, name) values ($1, $2, $3, 'news@acme.example', 'Acme')",
        [tenant, sender, domain]
    );
    run!(
        pool,
        "insert into contents (tenant_id, id, kind, subject, body_html) values ($1, $2, 'marketing', 'Hello', '<p>')",
        [tenant, content]
    );
    run!(
        pool,
        "insert into skeletons (tenant_id, id, body) values ($1, $2, $3)",
        [tenant, skeleton.id().0, serde_json::to_value(skeleton).unwrap()]
    );
    [tenant, sender, content]
}

/// For what counts by days (UTC), which begin anew at midnight: what failed over one is tried once more.
pub async fn within_a_day(test: impl AsyncFn()) {
    loop {
        let day = Utc::now().date_naive();
        match AssertUnwindSafe(test()).catch_unwind().await {
            Ok(()) => return,
            Err(failed) if day == Utc::now().date_naive() => resume_unwind(failed),
            Err(_) => {}
        }
    }
}

/// Handles messages as the runner does.
#[async_trait]
pub trait Handle {
    async fn deliver(&self, batches: &[&Batch]) -> Result<(), StageError>;
}

#[async_trait]
impl Handle for Delivery {
    async fn deliver(&self, batches: &[&Batch]) -> Result<(), StageError> {
        let inputs: Vec<Rendered> = batches.iter().map(|batch| batch.rendered.clone()).collect();
        let handled =
            tokio::time::timeout(Duration::from_secs(120), caught("delivery", "handler", self.handle(&inputs)));
        handled.await.unwrap().unwrap_or_else(|panicked| Err(panicked.into())).map(drop)
    }
}
