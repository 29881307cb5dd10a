//! Webhooks: deliveries a second over many endpoints and to one, latency when idle, and beside receivers that never answer.
//!
//! Facts are written straight into the ledger, as the stages write them, and readers are notified as stages notify them. The receivers are
//! part of this process: a few lines of HTTP each, so that what is measured is the stage.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use pipeline::{Rig, measure};
use runtime::{MasterKeys, Vault};
use schemas::{Event, EventType, SendId, month_of, new_batch_id, new_id, subjects, webhook::WebhookSecret};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use uuid::Uuid;

use super::common::quantile;

/// Sends of each tenant, to have facts about.
const SENDS: usize = 100;

/// When each event came, by its id; the first time counts.
type Hits = Arc<Mutex<HashMap<Uuid, Instant>>>;

struct Bench {
    rig: Rig,
    hits: Hits,
    vault: Vault,
}

/// A tenant with one subscription.
#[derive(Clone, Copy)]
struct Subscriber {
    tenant: Uuid,
    batch: Uuid,
}

/// A fact that was written: its event's id, and when the commit was answered.
type Written = (Uuid, Instant);

pub async fn run(deliveries: usize, seconds: u64) {
    rate(100, deliveries).await;
    rate(1, deliveries / 3).await;
    idle(200).await;
    let alone = beside_silent(0, seconds).await;
    let beside = beside_silent(20, seconds).await;
    println!(
        "webhooks beside silent receivers: healthy p99 {:.1} ms without, {:.1} ms with 20 of them ({:.2}x)",
        alone * 1e3,
        beside * 1e3,
        beside / alone
    );
}

async fn rate(endpoints: usize, deliveries: usize) {
    let bench = Bench::start().await;
    let subscribers = bench.subscribers(endpoints, false).await;
    bench.warm(&subscribers).await;
    let each = deliveries / endpoints;
    let started = Instant::now();
    let mut written = 0;
    let mut next = vec![0; endpoints];
    while written < each * endpoints {
        for (at, subscriber) in subscribers.iter().enumerate() {
            let count = (each - next[at]).min(SENDS);
            next[at] += count;
            written += count;
            if count > 0 {
                bench.facts(subscriber, count).await;
            }
        }
        bench.ring().await;
    }
    let all = written + endpoints;
    bench.wait(all).await;
    let took = bench.last().duration_since(started).as_secs_f64();
    let pid = bench.rig.processes["webhooks"].pid();
    println!(
        "webhooks to {endpoints} endpoint(s): {written} deliveries in {took:.2} s, {:.0}/s; the stage: {:.2} CPU-s per 1,000, peak {:.0} MiB",
        written as f64 / took,
        measure::cpu_seconds(pid) * 1e3 / all as f64,
        measure::peak_mib(pid)
    );
}

async fn idle(samples: usize) {
    let bench = Bench::start().await;
    let subscribers = bench.subscribers(5, false).await;
    bench.warm(&subscribers).await;
    let mut written = Vec::with_capacity(samples);
    for n in 0..samples {
        written.extend(bench.facts(&subscribers[n % subscribers.len()], 1).await);
        bench.ring().await;
        tokio::time::sleep(Duration::from_millis(40 + rand::random::<u64>() % 20)).await;
    }
    bench.wait(samples + subscribers.len()).await;
    let latencies = bench.latencies(&written);
    println!(
        "webhooks when idle, commit to POST received: p50 {:.1} ms, p99 {:.1} ms of {samples}",
        quantile(&latencies, 0.50) * 1e3,
        quantile(&latencies, 0.99) * 1e3
    );
}

/// 50 events a second in all, over 200 healthy receivers and these; answers the healthy ones' p99 in seconds.
async fn beside_silent(silent: usize, seconds: u64) -> f64 {
    let bench = Bench::start().await;
    let healthy = bench.subscribers(200, false).await;
    let silent = bench.subscribers(silent, true).await;
    bench.warm(&healthy).await;
    let mut turn = tokio::time::interval(Duration::from_millis(20));
    let mut written = Vec::new();
    for n in 0..(seconds as usize * 50) {
        turn.tick().await;
        let at = n % (healthy.len() + silent.len());
        match silent.get(at) {
            Some(subscriber) => drop(bench.facts(subscriber, 1).await),
            None => written.extend(bench.facts(&healthy[at - silent.len()], 1).await),
        }
        bench.ring().await;
    }
    bench.wait(written.len() + healthy.len()).await;
    let latencies = bench.latencies(&written);
    println!(
        "webhooks to 200 healthy receivers beside {} silent ones: p50 {:.1} ms, p99 {:.1} ms of {}; peak {:.0} MiB",
        silent.len(),
        quantile(&latencies, 0.50) * 1e3,
        quantile(&latencies, 0.99) * 1e3,
        latencies.len(),
        measure::peak_mib(bench.rig.processes["webhooks"].pid())
    );
    quantile(&latencies, 0.99)
}

impl Bench {
    async fn start() -> Self {
        let mut rig = Rig::measured().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
        rig.start("webhooks", &["stage", "webhooks"]).await;
        let vault = Vault::new(&MasterKeys::parse(&rig.env["POSTRIDER_MASTER_KEY"]).unwrap()).unwrap();
        Self { rig, hits: Hits::default(), vault }
    }

    /// So many tenants, each linked, with some mail and one subscription to opens.
    async fn subscribers(&self, count: usize, silent: bool) -> Vec<Subscriber> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/hook", listener.local_addr().unwrap());
            tokio::spawn(serve(listener, self.hits.clone(), silent));
            all.push(self.subscriber(&url).await);
        }
        all
    }

    async fn subscriber(&self, url: &str) -> Subscriber {
        let (tenant, content, domain, sender, list, campaign) =
            (new_id(), new_id(), new_id(), new_id(), new_id(), new_id());
        let batch = new_batch_id();
        let secret = self.vault.seal(tenant, "webhook", WebhookSecret::generate().expose().as_bytes()).unwrap();
        let mut tx = self.rig.pool.begin().await.unwrap();
        // A statement of its own: a domain asks for its tenant.
        sqlx::query("insert into tenants (id, environment, owner_email) values ($1, 'production', 'o@example.com')")
            .bind(tenant)
            .execute(&mut *tx)
            .await
            .unwrap();
        let insert = sqlx::query(
            "with link as (
                 insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
                 values ('bench', 'production', $1::text, $1, 'o@example.com')
             ), content as (
                 insert into contents (tenant_id, id, kind, subject, body_html) values ($1, $2, 'marketing', 'Hello', 'x')
             ), domain as (
                 insert into domains (tenant_id, id, domain, status, selector, dkim_private, dkim_public, ownership_token)
                 values ($1, $3, $1::text || '.example', 'verified', 's', '', '', '')
             ), sender as (
                 insert into senders (tenant_id, id, domain_id, email, name) values ($1, $4, $3, 'n@example.com', 'N')
             ), list as (
                 insert into audiences (tenant_id, id, kind, name) values ($1, $5, 'list', 'l')
             )
             insert into campaigns (tenant_id, id, product, environment, name, sender_profile_id, content_id, audience_mode, list_id,
                                    message_purpose, classification, status)
             values ($1, $6, 'bench', 'production', 'c', $4, $2, 'list', $5, 'newsletter', 'marketing', 'sending')",
        );
        let insert = insert.bind(tenant).bind(content).bind(domain).bind(sender).bind(list).bind(campaign);
        insert.execute(&mut *tx).await.unwrap();
        let insert = sqlx::query(
            "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, size, sent)
             values ($1, $2, $3, 'campaign', 'bulk', 'marketing', $4, $5, $6, 'done', $7, $7)",
        );
        let insert = insert.bind(tenant).bind(batch).bind(month_of(batch)).bind(campaign).bind(content).bind(sender);
        insert.bind(SENDS as i32).execute(&mut *tx).await.unwrap();
        let contacts: Vec<Uuid> = (0..SENDS).map(|_| new_id()).collect();
        let sends: Vec<Uuid> = (0..SENDS).map(|n| SendId::of(batch, n as u16).0).collect();
        let insert = sqlx::query(
            "insert into contacts (tenant_id, id, address) select $1, c, c::text || '@example.org' from unnest($2::uuid[]) c",
        );
        insert.bind(tenant).bind(&contacts).execute(&mut *tx).await.unwrap();
        let insert = sqlx::query(
            "insert into sends (tenant_id, id, month, campaign_id, contact_id, state)
             select $1, s.id, $2, $3, s.contact, 'sent' from unnest($4::uuid[], $5::uuid[]) s (id, contact)",
        );
        let insert = insert.bind(tenant).bind(month_of(batch)).bind(campaign).bind(&sends).bind(&contacts);
        insert.execute(&mut *tx).await.unwrap();
        let insert = sqlx::query(
            "insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, secret)
             values ($1, $2, 'bench', 'production', $3, '{email.opened}', $4)",
        );
        insert.bind(tenant).bind(new_id()).bind(url).bind(secret).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        Subscriber { tenant, batch }
    }

    /// One event to each, so that leases are held and connections open, as in any hour but the first.
    async fn warm(&self, subscribers: &[Subscriber]) {
        for subscriber in subscribers {
            self.facts(subscriber, 1).await;
        }
        self.ring().await;
        self.wait(subscribers.len()).await;
    }

    /// Opens of this tenant's mails, in one transaction.
    async fn facts(&self, subscriber: &Subscriber, count: usize) -> Vec<Written> {
        let facts: Vec<Uuid> = (0..count).map(|_| new_id()).collect();
        let sends: Vec<Uuid> = (0..count).map(|n| SendId::of(subscriber.batch, n as u16).0).collect();
        let insert = sqlx::query(
            r#"insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
               select $1, f.send, f.id, $4, 'opened', now(), '{"ip": "192.0.2.1", "user_agent": "Mozilla/5.0", "is_machine": false}'
               from unnest($2::uuid[], $3::uuid[]) f (send, id)"#,
        );
        let insert = insert.bind(subscriber.tenant).bind(&sends).bind(&facts).bind(month_of(subscriber.batch));
        insert.execute(&self.rig.pool).await.unwrap();
        let committed = Instant::now();
        facts.into_iter().map(|fact| (Event::id_of(fact, EventType::EmailOpened), committed)).collect()
    }

    /// Publishes a notification as `runtime::CommitNotifier` does.
    async fn ring(&self) {
        static CLIENT: tokio::sync::OnceCell<(String, async_nats::Client)> = tokio::sync::OnceCell::const_new();
        let url = self.rig.env["POSTRIDER_NATS_URL"].clone();
        let client = match CLIENT.get() {
            Some((known, client)) if *known == url => client.clone(),
            _ => {
                let client = async_nats::connect(&url).await.unwrap();
                let _ = CLIENT.set((url, client.clone()));
                client
            }
        };
        client.publish(subjects::fact("bench"), "{}".into()).await.unwrap();
        client.flush().await.unwrap();
    }

    async fn wait(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(300);
        while self.hits.lock().unwrap().len() < count {
            assert!(Instant::now() < deadline, "{} of {count} events came", self.hits.lock().unwrap().len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn last(&self) -> Instant {
        self.hits.lock().unwrap().values().copied().max().unwrap()
    }

    /// In seconds, sorted.
    fn latencies(&self, written: &[Written]) -> Vec<f64> {
        let hits = self.hits.lock().unwrap();
        let mut latencies: Vec<f64> =
            written.iter().filter_map(|(id, since)| Some((*hits.get(id)? - *since).as_secs_f64())).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }
}

async fn serve(listener: TcpListener, hits: Hits, silent: bool) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        tokio::spawn(answer(stream, hits.clone(), silent));
    }
}

/// As much HTTP as it takes: a head, a body of the length it says, 200.
async fn answer(mut stream: TcpStream, hits: Hits, silent: bool) {
    let mut buffer = Vec::with_capacity(8 * 1024);
    loop {
        while let Some((length, id)) = request(&buffer) {
            buffer.drain(..length);
            if silent {
                std::future::pending::<()>().await;
            }
            hits.lock().unwrap().entry(id).or_insert_with(Instant::now);
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
                return;
            }
        }
        match stream.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// The length of the first request, if all of it is there, and the event's id.
fn request(buffer: &[u8]) -> Option<(usize, Uuid)> {
    let head = buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&buffer[..head]).ok()?;
    let header = |name: &str| {
        text.lines().find_map(|line| {
            line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        })
    };
    let length = head + header("content-length")?.parse::<usize>().ok()?;
    (buffer.len() >= length).then_some((length, header("webhook-id")?.parse().ok()?))
}
