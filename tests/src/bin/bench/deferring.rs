//! A receiving domain that defers everything, beside others: the rate of the others with it and without.

use std::time::{Duration, Instant};

use pipeline::Rig;
use serde_json::json;

use super::common::{Watch, fill_list, newsletter};

/// The list's domains, `example-0.com` and on.
const DOMAINS: usize = 50;

/// What one run came to.
struct Outcome {
    /// Mails a second to the other domains.
    rate: f64,
    /// Transactions the deferring domain was asked for.
    asked: i64,
    report: String,
}

pub(super) async fn run(recipients: usize, deferring: usize) {
    assert!((1..DOMAINS).contains(&deferring), "of {DOMAINS} domains");
    let without = once(recipients, deferring, false).await;
    let with = once(recipients, deferring, true).await;
    println!(
        "deferring {deferring} of {DOMAINS} domains, {recipients} recipients: the others' rate {:.0} mails/s when all take mail, {:.0} when these \
         defer everything ({:+.1} %); they were asked {} times for {} mails  without: {}  with: {}",
        without.rate,
        with.rate,
        (with.rate / without.rate - 1.0) * 100.0,
        with.asked,
        recipients * deferring / DOMAINS,
        without.report,
        with.report,
    );
}

async fn once(recipients: usize, deferring: usize, defers: bool) -> Outcome {
    let mut rig = Rig::measured().await.with("DKIM_SIGN", "false").with("LOG", "warn");
    rig.start_all().await;
    let list = fill_list(&rig, recipients).await;
    let campaign = rig.campaign(list, "News for {{ first_name }}", &newsletter()).await;
    if defers {
        let rules: Vec<_> = (0..deferring)
            .map(|n| json!({"match": {"domain": format!("example-{n}.com")}, "stage": "rcpt", "reply": "451 4.3.0 Not now"}))
            .collect();
        rig.sink.set_rules(json!(rules)).await;
    }
    let domains: Vec<String> = (0..deferring).map(|n| format!("example-{n}.com")).collect();
    let query = sqlx::query_scalar(
        "select count(*) from contacts where tenant_id = $1 and not split_part(address, '@', 2) = any($2)",
    );
    let others: i64 = query.bind(rig.engine_tenant_id).bind(domains).fetch_one(&rig.pool).await.unwrap();
    let watch = Watch::start(&rig);
    let started = Instant::now();
    rig.launch(campaign).await;
    // Where all take mail, the others are a share of what comes, evenly mixed.
    let wanted = if defers { others as u64 } else { recipients as u64 };
    while rig.sink.wait(wanted, 2_000).await < wanted {
        assert!(started.elapsed() < Duration::from_secs(1_500), "stuck");
    }
    let wall = started.elapsed();
    let query = sqlx::query_scalar("select count(*) from events where tenant_id = $1 and type = 'deferred'");
    let asked = query.bind(rig.engine_tenant_id).fetch_one(&rig.pool).await.unwrap();
    Outcome { rate: others as f64 / wall.as_secs_f64(), asked, report: watch.report(wanted as usize) }
}
