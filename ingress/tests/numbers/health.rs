//! `GET /v1/platform/health` at the edge.

use http::Method;
use schemas::scope::PLATFORM_HEALTH_READ;

use crate::{
    common::{Answer, Client, Edge, PRODUCT},
    fixtures,
};

async fn operations(edge: &Edge) -> Client {
    let client = edge.client().await;
    let key = edge.key(PRODUCT, client.environment, &[PLATFORM_HEALTH_READ]).await;
    Client { key, ..client }
}

async fn ask(client: &Client, query: &str) -> Answer {
    client.send(client.signed(Method::GET, &format!("/v1/platform/health{query}"), b"")).await
}

/// Makes every stream, small.
async fn open_all_streams(edge: &Edge) {
    for spec in runtime::streams::STREAMS {
        stage_rig::make_stream(&edge.ingress.bus, spec, 1024 * 1024).await;
    }
}

async fn beat(edge: &Edge, stages: &[&str], ago: &str) {
    for stage in stages {
        let sql = "insert into heartbeats (process_id, stage, version, seen_at, settings)
             values (gen_random_uuid(), $1, '1', now() - $2::interval, '{public-url,smtp-url,return-path-target,spf-include,tracking-target}')";
        stage_rig::run!(&edge.pool, sql, [stage, ago]);
    }
}

const STAGES: [&str; 8] =
    ["audience", "compliance", "rendering", "delivery", "engagement", "attribution", "sequencing", "ingress"];

async fn well() -> (Edge, Client) {
    let edge = Edge::start().await;
    open_all_streams(&edge).await;
    let client = operations(&edge).await;
    beat(&edge, &STAGES, "1 second").await;
    sqlx::query("insert into provider_pings (provider, ok, latency_ms, ok_at) values ('smtp', true, 2, now())")
        .execute(&edge.pool)
        .await
        .unwrap();
    (edge, client)
}

fn status_of<'a>(answer: &'a Answer, id: &str) -> &'a str {
    let checks = answer.body["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no {id}"))["status"].as_str().unwrap()
}

#[tokio::test]
async fn a_platform_that_is_well_answers_200() {
    let (_edge, client) = well().await;
    let answer = ask(&client, "").await;
    assert_eq!((answer.status.as_u16(), &answer.body["ok"]), (200, &serde_json::json!(true)), "{}", answer.body);
    assert_eq!(answer.body["overall"], "ok", "{}", answer.body);
}

#[tokio::test]
async fn without_a_worker_the_same_body_says_crit_with_a_503() {
    let (edge, client) = well().await;
    sqlx::query("update heartbeats set seen_at = now() - interval '1 minute' where stage = 'delivery'")
        .execute(&edge.pool)
        .await
        .unwrap();
    let answer = ask(&client, "").await;
    assert_eq!(answer.refusal(), (503, "sending_impaired"), "{}", answer.body);
    assert_eq!(
        (&answer.body["overall"], status_of(&answer, "heartbeat.delivery")),
        (&serde_json::json!("crit"), "crit")
    );
}

#[tokio::test]
async fn what_stands_in_every_tenants_rows_is_seen_as_sums() {
    let (edge, client) = well().await;
    let other = edge.client_for(PRODUCT, client.environment, "tenant-2").await;
    for tenant in [client.tenant, other.tenant] {
        sqlx::query(
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now(), 'UTC'), k, e, 0, n
             from (values ('campaign', 'sent', 10), ('campaign', 'failed', 15), ('failure', 'policy', 15)) v (k, e, n)",
        )
        .bind(tenant)
        .execute(&edge.pool)
        .await
        .unwrap();
        fixtures::domain(&edge.pool, tenant, &format!("d{}.example", tenant.simple()), "degraded").await;
        sqlx::query(
            "insert into requests (tenant_id, id, product, environment, kind, payload, announce_after, received_at, due_at)
             select $1, gen_random_uuid(), 'crm', 'production', 'transactional', '{}', now() + late, now() - interval '5 minutes', now() + late
             from unnest('{-5 minutes,5 minutes,29 days}'::interval[]) late",
        )
        .bind(tenant)
        .execute(&edge.pool)
        .await
        .unwrap();
    }
    let answer = ask(&client, "").await;
    let text = answer.body.to_string();
    assert!(text.contains("20 sent, 30 failed") && text.contains("policy 30"), "{text}");
    assert!(text.contains("2 request(s) accepted") && text.contains("0 verified, 2 degraded"), "{text}");
    let found = ["sends.failed", "queue.stuck", "domains"].map(|id| status_of(&answer, id));
    assert_eq!(found, ["crit", "warn", "warn"]);
    for tenant in [client.tenant, other.tenant] {
        assert!(!text.contains(&tenant.to_string()), "sums only");
    }
}

#[tokio::test]
async fn the_oldest_is_found_behind_any_number_of_younger_ones() {
    let (edge, client) = well().await;
    let other = edge.client_for(PRODUCT, client.environment, "tenant-2").await;
    let of_tenants = async |statement: &'static str| {
        sqlx::query(statement)
            .bind(client.tenant.min(other.tenant))
            .bind(client.tenant.max(other.tenant))
            .execute(&edge.pool)
            .await
            .unwrap();
    };
    of_tenants(
        "insert into requests (tenant_id, id, product, environment, kind, payload, announce_after, due_at)
         select $1::uuid, gen_random_uuid(), 'crm', 'production', 'transactional', '{}'::jsonb, now(), now() - interval '1 minute'
         from generate_series(1, 10001)
         union all
         select $2::uuid, gen_random_uuid(), 'crm', 'production', k, '{}'::jsonb, now() + interval '9 minutes', now() - interval '1 hour'
         from unnest(array['transactional', 'outcome']) k",
    )
    .await;
    let requests: Vec<(String, i64, bool)> =
        sqlx::query_as("select kind, requests, oldest >= 3600 from platform_requests() order by kind")
            .fetch_all(&edge.pool)
            .await
            .unwrap();
    assert_eq!(requests, [("outcome".to_owned(), 1, true), ("transactional".to_owned(), 10_000, true)]);

    of_tenants(
        "insert into webhook_subscriptions (tenant_id, id, product, environment, url, events, secret)
         select t, t, 'crm', 'production', 'https://example.org/', '{send.sent}', '' from unnest(array[$1::uuid, $2::uuid]) t",
    )
    .await;
    of_tenants(
        "insert into webhook_queue (tenant_id, subscription_id, due_at, delivery_id)
         select $1::uuid, $1::uuid, now() - interval '1 minute', gen_random_uuid() from generate_series(1, 10001)
         union all
         select $2::uuid, $2::uuid, now() - interval '1 hour', gen_random_uuid()",
    )
    .await;
    let deliveries: (i64, bool) =
        sqlx::query_as("select due, oldest >= 3600 from platform_webhooks()").fetch_one(&edge.pool).await.unwrap();
    assert_eq!(deliveries, (10_000, true));
}

#[tokio::test]
async fn one_tenants_own_waiting_is_no_fault_of_the_platform() {
    let (edge, client) = well().await;
    let run = async |statement: &'static str| {
        sqlx::query(statement).bind(client.tenant).execute(&edge.pool).await.unwrap();
    };
    // A launch that waited for others of its tenant, and mail that its own connection does not take.
    run("insert into requests (tenant_id, id, product, environment, kind, payload, announce_after, announcements, due_at)
         values ($1, $1, 'crm', 'production', 'campaign-launch', '{}', now() + interval '30 seconds', 1, now() - interval '1 hour')")
        .await;
    run("insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token)
         values ($1, $1, 'example.com', 's', '', '', 't')")
    .await;
    run("insert into senders (tenant_id, id, domain_id, email, name) values ($1, $1, $1, 'ann@example.com', 'Ann')")
        .await;
    run("insert into contents (tenant_id, id, kind, subject, body_html) values ($1, $1, 'one_off', 'S', '')").await;
    run("insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, size, queued, created_at)
         values ($1, $1, date_trunc('month', now() at time zone 'utc'), 'one_off', 'priority', 'operational', $1, $1, 'announced', 1, 1,
                 now() - interval '1 hour')")
        .await;
    run("insert into provider_connections (tenant_id, id, provider, name, secret, is_default) values ($1, $1, 'smtp', 'own', '', true)")
        .await;
    run("insert into connection_health (tenant_id, connection_id, open_until) values ($1, $1, now() - interval '1 minute')").await;
    let answer = ask(&client, "").await;
    assert_eq!((answer.status.as_u16(), status_of(&answer, "queue.stuck")), (200, "ok"), "{}", answer.body);
    assert!(answer.body.to_string().contains("1 request(s) accepted, 1 priority batch(es) open"), "{}", answer.body);

    // What the platform owes.
    let stuck = async || status_of(&ask(&client, "").await, "queue.stuck").to_owned();
    run("update requests set announcements = 3 where tenant_id = $1").await;
    assert_eq!(stuck().await, "crit", "three announcements did not help");
    run("update requests set announcements = 0, announce_after = now() - interval '1 hour' where tenant_id = $1").await;
    assert_eq!(stuck().await, "crit", "nobody announces it");
    run("update requests set announcements = 1, announce_after = now() where tenant_id = $1").await;
    assert_eq!(stuck().await, "ok");
    run("update connection_health set open_until = null where tenant_id = $1").await;
    assert_eq!(stuck().await, "crit", "the connection serves");
}

#[tokio::test]
async fn mail_that_waited_for_its_time_is_as_old_as_its_return() {
    let (edge, client) = well().await;
    let run = async |statement: &'static str| {
        sqlx::query(statement).bind(client.tenant).execute(&edge.pool).await.unwrap();
    };
    run("insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token)
         values ($1, $1, 'example.com', 's', '', '', 't')")
    .await;
    run("insert into senders (tenant_id, id, domain_id, email, name) values ($1, $1, $1, 'ann@example.com', 'Ann')")
        .await;
    run("insert into contents (tenant_id, id, kind, subject, body_html) values ($1, $1, 'one_off', 'S', '')").await;
    run("insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, size, queued, created_at)
         values ($1, $1, date_trunc('month', now() at time zone 'utc'), 'one_off', 'priority', 'operational', $1, $1, 'announced', 1, 1,
                 now() - interval '1 hour')")
        .await;
    let stuck = async || status_of(&ask(&client, "").await, "queue.stuck").to_owned();
    assert_eq!(stuck().await, "crit", "it never waited for a time");
    run("update batches set quiet_at = now() where tenant_id = $1").await;
    assert_eq!(stuck().await, "ok", "it was deferred, and is back");
    run("update batches set quiet_at = now() - interval '50 minutes', due_at = now() where tenant_id = $1").await;
    assert_eq!(stuck().await, "ok", "its time has just come");
    run("update batches set due_at = now() - interval '40 minutes' where tenant_id = $1").await;
    assert_eq!(stuck().await, "crit", "and it is not handled");
}

#[tokio::test]
async fn it_asks_for_its_scope_and_takes_no_tenant() {
    let (edge, client) = well().await;
    let product = edge.client().await;
    assert_eq!(ask(&product, "").await.refusal(), (403, "missing_scope:platform:health:read"));
    assert_eq!(ask(&client, "?product_tenant_id=tenant-1").await.refusal(), (400, "validation_failed"));
}

#[tokio::test]
async fn the_ingress_may_ask_for_sums_and_still_sees_no_rows_of_tenants() {
    let (edge, _) = well().await;
    let pool = &edge.ingress.pool;
    sqlx::query("select * from platform_totals(), platform_batches(), platform_domains()").execute(pool).await.unwrap();
    sqlx::query("insert into rollups (tenant_id, hour, kind, event, shard, count) select id, now(), 'campaign', 'sent', 0, 1 from tenants")
        .execute(&edge.pool)
        .await
        .unwrap();
    let seen: i64 = sqlx::query_scalar("select count(*) from rollups").fetch_one(pool).await.unwrap();
    assert_eq!(seen, 0);
}

#[tokio::test]
async fn without_postgres_the_body_keeps_its_shape_and_names_the_database() {
    let (edge, client) = well().await;
    edge.ingress.pool.close().await;
    let answer = ask(&client, "").await;
    assert_eq!(answer.refusal(), (503, "unavailable"), "{}", answer.body);
    assert_eq!((&answer.body["ok"], &answer.body["overall"]), (&serde_json::json!(false), &serde_json::json!("crit")));
    assert_eq!((status_of(&answer, "database"), status_of(&answer, "queue.stuck")), ("crit", "warn"));
    assert!(answer.body["generated_at"].is_string() && !answer.header("retry-after").is_empty());
}
