//! Fairness between tenants: many small campaigns while one tenant sends a large one.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures::{StreamExt, stream};
use pipeline::{Client, Rig};
use serde_json::json;
use uuid::Uuid;

use super::common::{fill_list, newsletter, quantile, vacuum};

/// Small campaigns that run alone, on an idle engine, before the others.
const ALONE: usize = 7;
/// Launches asked for at once.
const CALLERS: usize = 8;

pub(super) struct Options {
    pub tenants: usize,
    pub recipients: usize,
    pub large: usize,
}

/// A small tenant with its campaign, ready to launch.
struct Small {
    tenant: Uuid,
    client: Client,
    campaign: Uuid,
}

/// When a small campaign was asked for, in seconds since 1970.
struct Launched {
    tenant: Uuid,
    at: f64,
}

pub(super) async fn run(options: Options) {
    // The DKIM keys of tenants made in SQL are none.
    let mut rig = Rig::measured().await.with("DKIM_SIGN", "false").with("LOG", "warn");
    rig.start_all().await;
    let list = fill_list(&rig, options.large).await;
    let large = rig.campaign(list, "News for {{ first_name }}", &newsletter()).await;
    let smalls = make_smalls(&rig, options.tenants + ALONE, options.recipients).await;
    let (alone, together) = smalls.split_at(ALONE);
    let alone = run_alone(&rig, alone, options.recipients).await;

    let before = rig.sink.accepted().await;
    rig.launch(large).await;
    rig.sink.wait(before + 1_000, 60_000).await;
    let (started, mails_before) = (Instant::now(), rig.sink.accepted().await);
    let launched: Vec<Launched> = stream::iter(together).map(launch).buffer_unordered(CALLERS).collect().await;
    let launching = started.elapsed();
    wait_for(&rig, together, options.recipients).await;
    let (wall, mails) = (started.elapsed(), rig.sink.accepted().await - mails_before);
    let rate = mails as f64 / wall.as_secs_f64();
    let seconds = completions(&rig, &launched).await;
    let fair = (options.tenants + 1) as f64 * options.recipients as f64 / rate;
    let bound = alone + fair;
    let at = |part: f64| quantile(&seconds, part);
    let within = seconds.iter().filter(|seconds| **seconds <= 2.0 * bound).count();
    println!(
        "fairness {} tenants x {} beside one of {}: launches took {:.1} s, {rate:.0} mails/s in all ({} of them the large one's); \
         alone on the idle engine {alone:.2} s, fair share {fair:.1} s; completed after p50 {:.1} s  p90 {:.1} s  p99 {:.1} s  max {:.1} s; \
         over alone + fair share: p50 {:.2}  p90 {:.2}  p99 {:.2}  max {:.2}; within twice: {within} of {}",
        options.tenants,
        options.recipients,
        options.large,
        launching.as_secs_f64(),
        mails as i64 - (options.tenants * options.recipients) as i64,
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        at(0.5) / bound,
        at(0.9) / bound,
        at(0.99) / bound,
        at(1.0) / bound,
        seconds.len(),
    );
}

/// Tenants, domains, senders and people in SQL; campaigns by the API.
async fn make_smalls(rig: &Rig, count: usize, recipients: usize) -> Vec<Small> {
    let ids = |count: usize| (0..count).map(|_| schemas::new_id()).collect::<Vec<Uuid>>();
    let (tenants, domains, senders, lists) = (ids(count), ids(count), ids(count), ids(count));
    let names: Vec<String> = (0..count).map(|n| format!("small-{n}")).collect();
    let sql = [
        "insert into tenants (id, environment, owner_email, physical_address)
         select t, 'production', 'owner@example.com', '1 Example Street' from unnest($1::uuid[]) t",
        "insert into tenant_links (product, environment, product_tenant_id, tenant_id, owner_email)
         select 'demo', 'production', n, t, 'owner@example.com' from unnest($1::uuid[], $5::text[]) as u (t, n)",
        "insert into domains (tenant_id, id, domain, status, selector, dkim_private, dkim_public, ownership_token, verified_at)
         select t, d, n || '.example.net', 'verified', 's', '\\x00', 'x', 't', now()
         from unnest($1::uuid[], $2::uuid[], $5::text[]) as u (t, d, n)",
        "insert into senders (tenant_id, id, domain_id, email, name)
         select t, s, d, 'news@' || n || '.example.net', 'News'
         from unnest($1::uuid[], $2::uuid[], $3::uuid[], $5::text[]) as u (t, d, s, n)",
        "insert into audiences (tenant_id, id, kind, name) select t, l, 'list', n from unnest($1::uuid[], $4::uuid[], $5::text[]) as u (t, l, n)",
        "insert into contacts (tenant_id, id, address, first_name)
         select t, gen_random_uuid(), n || '-' || k || '@example-' || (k % 50) || '.com', 'First' || k
         from unnest($1::uuid[], $5::text[]) as u (t, n), generate_series(1, $6::bigint) k",
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select u.t, u.l, c.id from unnest($1::uuid[], $4::uuid[]) as u (t, l) join contacts c on c.tenant_id = u.t",
    ];
    let used = "where $1::uuid[] is not null and $2::uuid[] is not null and $3::uuid[] is not null and $4::uuid[] is not null and $5::text[] is not null and $6::bigint is not null";
    for statement in sql {
        sqlx::query(sqlx::AssertSqlSafe(format!("{statement} {used}")))
            .bind(&tenants)
            .bind(&domains)
            .bind(&senders)
            .bind(&lists)
            .bind(&names)
            .bind(recipients as i64)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    vacuum(rig, "tenants, domains, senders, contacts, audience_members").await;
    let mut smalls = Vec::with_capacity(count);
    for n in 0..count {
        let client = rig.client.for_tenant(&names[n]);
        let body = json!({
            "name": "small", "sender_profile_id": senders[n], "audience_mode": "list", "list_id": lists[n],
            "subject": "News for {{ first_name }}", "body_html": newsletter(),
        });
        let answer = client.post("/v1/campaigns", body).await.expect(201);
        let campaign = answer["campaign_id"].as_str().unwrap().parse().unwrap();
        smalls.push(Small { tenant: tenants[n], client, campaign });
    }
    smalls
}

async fn launch(small: &Small) -> Launched {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    small.client.post(&format!("/v1/campaigns/{}/launch", small.campaign), json!({})).await.expect(202);
    Launched { tenant: small.tenant, at }
}

/// The median, one after the other.
async fn run_alone(rig: &Rig, smalls: &[Small], recipients: usize) -> f64 {
    let mut seconds = Vec::new();
    for small in smalls {
        let launched = launch(small).await;
        wait_for(rig, std::slice::from_ref(small), recipients).await;
        seconds.extend(completions(rig, &[launched]).await);
    }
    seconds.sort_by(f64::total_cmp);
    quantile(&seconds, 0.5)
}

/// Waits until all mail of these tenants is sent.
async fn wait_for(rig: &Rig, smalls: &[Small], recipients: usize) {
    let tenants: Vec<Uuid> = smalls.iter().map(|small| small.tenant).collect();
    let deadline = Instant::now() + Duration::from_secs(1_500);
    loop {
        let query = sqlx::query_scalar("select coalesce(sum(sent), 0)::int8 from batches where tenant_id = any($1)");
        let sent: i64 = query.bind(&tenants).fetch_one(&rig.pool).await.unwrap();
        if sent == (smalls.len() * recipients) as i64 {
            return;
        }
        assert!(Instant::now() < deadline, "stuck at {sent}");
        tokio::time::sleep(Duration::from_millis(if smalls.len() == 1 { 20 } else { 500 })).await;
    }
}

/// Seconds from asking for the launch to the last mail of each, sorted.
async fn completions(rig: &Rig, launched: &[Launched]) -> Vec<f64> {
    let tenants: Vec<Uuid> = launched.iter().map(|launched| launched.tenant).collect();
    let query = sqlx::query_as(
        "select tenant_id, extract(epoch from max(decided_at))::float8 from sends where tenant_id = any($1) and state = 'sent' group by tenant_id",
    );
    let ended: Vec<(Uuid, f64)> = query.bind(&tenants).fetch_all(&rig.pool).await.unwrap();
    let ended: HashMap<Uuid, f64> = ended.into_iter().collect();
    let mut seconds: Vec<f64> = launched.iter().map(|launched| ended[&launched.tenant] - launched.at).collect();
    seconds.sort_by(f64::total_cmp);
    seconds
}
