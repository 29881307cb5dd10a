//! Benchmarks: `cargo run --release -p pipeline --bin bench -- campaign|import|launch|transactional`.
//!
//! Each starts its own servers, sink and processes on this machine, does the work once, and prints one line of figures: rate,
//! CPU-seconds per 1,000 mails by process, peak memory per process. Machines differ and are shared: compare CPU and ratios.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark talks, and fails loudly")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use pipeline::{Rig, measure, rig::STAGES};
use serde_json::json;
use uuid::Uuid;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// N recipients, a 10 KB HTML template with ten merge fields, from launch to the last acceptance at the sink.
    Campaign {
        #[arg(long, default_value_t = 100_000)]
        recipients: usize,
        /// The relay signs: no DKIM here.
        #[arg(long)]
        relay_signs: bool,
        /// Each stage in a process of its own, to see its CPU.
        #[arg(long)]
        separate: bool,
    },
    /// One import of N rows.
    Import {
        #[arg(long, default_value_t = 50_000)]
        rows: usize,
    },
    /// How long the launch of a list of N answers.
    Launch {
        #[arg(long, default_value_t = 1_000_000)]
        contacts: usize,
    },
    /// Open-loop latency from request to acceptance at the sink.
    Transactional {
        #[arg(long, default_value_t = 20)]
        per_second: u32,
        #[arg(long, default_value_t = 30)]
        seconds: u32,
        /// Runs a campaign of this size meanwhile.
        #[arg(long, default_value_t = 0)]
        beside_campaign: usize,
    },
}

#[tokio::main]
async fn main() {
    match Cli::parse().command {
        Command::Campaign { recipients, relay_signs, separate } => campaign(recipients, relay_signs, separate).await,
        Command::Import { rows } => import(rows).await,
        Command::Launch { contacts } => launch(contacts).await,
        Command::Transactional { per_second, seconds, beside_campaign } => {
            transactional(per_second, seconds, beside_campaign).await;
        }
    }
}

/// About 10 KB of HTML with ten merge fields, three links and a table, as newsletters have.
fn newsletter() -> String {
    let fields = [
        "first_name",
        "last_name",
        "email",
        "company",
        "title",
        "phone",
        "contact.timezone",
        "contact.locale",
        "contact.lifecycle_stage",
        "sender.name",
    ];
    let mut html = String::from("<html><body><table width=\"600\"><tr><td><h1>News for {{ first_name }}</h1>");
    for (n, field) in fields.iter().enumerate().skip(1) {
        html.push_str(&format!(
            "<p style=\"margin:0 0 16px;font-family:Helvetica,Arial,sans-serif\">{n}: {{{{ {field} }}}}</p>"
        ));
        html.push_str(
            &"<p>A paragraph of the letter, with enough words in it to look like one that somebody wrote.</p>"
                .repeat(10),
        );
    }
    for n in 0..3 {
        html.push_str(&format!(
            "<p><a href=\"https://shop.example/offer/{n}?campaign=spring&amp;n={n}\">Offer {n}</a></p>"
        ));
    }
    html.push_str("</td></tr></table></body></html>");
    html
}

/// Fills a list straight in Postgres: the benchmark is not about imports.
async fn fill_list(rig: &Rig, contacts: usize) -> Uuid {
    let list = schemas::new_id();
    sqlx::query("insert into audiences (tenant_id, id, kind, name) values ($1, $2, 'list', $3)")
        .bind(rig.engine_tenant_id)
        .bind(list)
        .bind(list.to_string())
        .execute(&rig.pool)
        .await
        .unwrap();
    // Ids in time order, as the engine makes them.
    let prefix = schemas::LaunchId::fresh().prefix();
    sqlx::query(
        "insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, company, timezone, locale, lifecycle_stage)
         select $1, ($2 || lpad(to_hex(n), 9, '0'))::uuid, 'bench-' || n || '@example-' || (n % 50) || '.com', 'First' || n, 'Last' || n,
                'Dr', '+1 555 ' || n, 'Company ' || n, 'Europe/Berlin', 'en', 'lead'
         from generate_series(1, $3::bigint) n",
    )
    .bind(rig.engine_tenant_id)
    .bind(prefix)
    .bind(contacts as i64)
    .execute(&rig.pool)
    .await
    .unwrap();
    sqlx::query("insert into audience_members (tenant_id, audience_id, contact_id) select tenant_id, $2, id from contacts where tenant_id = $1")
        .bind(rig.engine_tenant_id)
        .bind(list)
        .execute(&rig.pool)
        .await
        .unwrap();
    for table in ["contacts", "audience_members"] {
        sqlx::query(sqlx::AssertSqlSafe(format!("vacuum analyze {table}"))).execute(&rig.pool).await.unwrap();
    }
    sqlx::query("checkpoint").execute(&rig.pool).await.unwrap();
    list
}

/// CPU and memory of everything that runs, by name.
struct Watch {
    pids: BTreeMap<String, u32>,
    before: BTreeMap<String, f64>,
    postgres_peak: Arc<std::sync::Mutex<f64>>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    fn start(rig: &Rig) -> Self {
        let mut pids: BTreeMap<String, u32> =
            rig.processes.iter().map(|(name, process)| (name.clone(), process.pid())).collect();
        pids.insert("sink".to_owned(), rig.sink_process.pid());
        pids.insert("nats".to_owned(), rig.servers().nats().pid().unwrap());
        let postgres = rig.servers().postgres().pid().unwrap();
        pids.insert("postgres".to_owned(), postgres);
        let before = pids.iter().map(|(name, pid)| (name.clone(), measure::family_cpu_seconds(*pid))).collect();
        let (peak, stop) = (Arc::new(std::sync::Mutex::new(0.0)), Arc::new(AtomicBool::new(false)));
        let (seen, ended) = (peak.clone(), stop.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let now: f64 = measure::family(postgres).into_iter().map(measure::own_mib).sum();
                let mut most = seen.lock().unwrap();
                *most = f64::max(*most, now);
                drop(most);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Self { pids, before, postgres_peak: peak, stop }
    }

    /// `cpu_s/1000: engine 0.12 …  peak MiB: …`
    fn report(&self, mails: usize) -> String {
        self.stop.store(true, Ordering::Relaxed);
        let mut cpu = String::from("cpu_us/mail:");
        let mut total = 0.0;
        for (name, pid) in &self.pids {
            let used = measure::family_cpu_seconds(*pid) - self.before[name];
            total += used;
            cpu.push_str(&format!(" {name} {:.0}", used * 1e6 / mails as f64));
        }
        let mut memory = String::from("peak_mib:");
        for (name, pid) in &self.pids {
            let peak = if name == "postgres" { *self.postgres_peak.lock().unwrap() } else { measure::peak_mib(*pid) };
            memory.push_str(&format!(" {name} {peak:.0}"));
        }
        format!(
            "{cpu} total {:.0} (= cpu_s/1000 mails {:.3})  {memory}",
            total * 1e6 / mails as f64,
            total * 1e3 / mails as f64
        )
    }
}

async fn campaign(recipients: usize, relay_signs: bool, separate: bool) {
    let mut rig =
        Rig::private().await.with("DKIM_SIGN", if relay_signs { "false" } else { "true" }).with("LOG", "warn");
    if separate {
        rig.start_separate().await;
    } else {
        rig.start_all().await;
    }
    let list = fill_list(&rig, recipients).await;
    let campaign = rig.campaign(list, "News for {{ first_name }}", &newsletter()).await;
    let watch = Watch::start(&rig);
    let started = Instant::now();
    rig.launch(campaign).await;
    let launched = started.elapsed();
    let mut reached = 0;
    let mut first = None;
    while reached < recipients as u64 {
        let now = rig
            .sink
            .wait((reached + 1).max(recipients as u64 / 20 * (reached * 20 / recipients as u64 + 1)), 2_000)
            .await;
        if now > 0 && first.is_none() {
            first = Some(started.elapsed());
        }
        if now == reached && started.elapsed() > Duration::from_secs(60) && reached == 0 {
            panic!("nothing arrives; {:?}", pipeline::ledger::states(&rig.pool, campaign).await);
        }
        eprint!("\r{now} of {recipients} in {:.1} s   ", started.elapsed().as_secs_f64());
        reached = now;
        if started.elapsed() > Duration::from_secs(1_500) {
            panic!("stuck: {:?}", pipeline::ledger::states(&rig.pool, campaign).await);
        }
    }
    let wall = started.elapsed();
    eprintln!();
    let report = watch.report(recipients);
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    let stats = rig.sink.stats().await;
    println!(
        "campaign recipients {recipients} {} {}: {:.0} mails/s ({:.1} s; launch answered in {:.2} s, first mail within {:.2} s, completed {:.1} s)  duplicates {}  {report}",
        if relay_signs { "relay-signs" } else { "rsa-2048" },
        if separate { "separate" } else { "one-process" },
        recipients as f64 / wall.as_secs_f64(),
        wall.as_secs_f64(),
        launched.as_secs_f64(),
        first.unwrap_or_default().as_secs_f64(),
        started.elapsed().as_secs_f64(),
        stats["duplicates"],
    );
    let _ = STAGES;
}

async fn import(rows: usize) {
    let mut rig = Rig::private().await.with("LOG", "warn").with("IMPORT_MAX_ROWS", &rows.max(50_000).to_string());
    rig.start("ingress", &["ingress"]).await;
    let mut csv = String::from("email,first_name,last_name,company,phone,list,tags\n");
    for n in 0..rows {
        csv.push_str(&format!("import-{n}@example.com,First{n},Last{n},Company {n},+1 555 {n},big,a;b\n"));
    }
    let watch = Watch::start(&rig);
    let started = Instant::now();
    let answer = rig.client.post("/v1/imports", json!({"csv": csv})).await.expect(200);
    let fresh = started.elapsed();
    let again = Instant::now();
    rig.client.post("/v1/imports", json!({"csv": csv})).await.expect(200);
    println!(
        "import rows {rows}: fresh {:.2} s ({:.0} rows/s), again {:.2} s; counts {}  {}",
        fresh.as_secs_f64(),
        rows as f64 / fresh.as_secs_f64(),
        again.elapsed().as_secs_f64(),
        answer["counts"],
        watch.report(rows * 2)
    );
}

async fn launch(contacts: usize) {
    let mut rig = Rig::private().await.with("LOG", "warn");
    rig.start("ingress", &["ingress"]).await;
    let list = fill_list(&rig, contacts).await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello {{ first_name }}</p>").await;
    let path = format!("/v1/campaigns/{campaign}/launch");
    let dry = Instant::now();
    rig.client.post(&path, json!({"dry_run": true})).await;
    let dry = dry.elapsed();
    let started = Instant::now();
    let answer = rig.client.post(&path, json!({})).await.expect(202);
    println!(
        "launch contacts {contacts}: dry run {:.2} s, launch {:.2} s, queued {}",
        dry.as_secs_f64(),
        started.elapsed().as_secs_f64(),
        answer["queued"]
    );
}

async fn transactional(per_second: u32, seconds: u32, beside_campaign: usize) {
    let mut rig = Rig::private().await.with("LOG", "warn");
    rig.start_all().await;
    let template = rig
        .client
        .post("/v1/templates", json!({"name": "T", "template_type": "transactional", "subject": "Code {{ data.code }}", "body_html": newsletter()}))
        .await
        .expect(201)["template_id"]
        .clone();
    let mut campaign = None;
    if beside_campaign > 0 {
        let list = fill_list(&rig, beside_campaign).await;
        campaign = Some(rig.campaign(list, "News for {{ first_name }}", &newsletter()).await);
    }
    let rig = Arc::new(rig);
    // One first, so that caches and connections are as in a running system.
    send_one(&rig, &template, "warm@example.com".to_owned()).await;
    rig.sink.wait(1, 10_000).await;
    let watch = Watch::start(&rig);
    if let Some(campaign) = campaign {
        rig.launch(campaign).await;
        rig.sink.wait(1_000, 30_000).await;
    }
    let total = per_second * seconds;
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / f64::from(per_second)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    let mut tasks = Vec::new();
    for n in 0..total {
        ticks.tick().await;
        let (rig, template) = (rig.clone(), template.clone());
        let due = std::time::SystemTime::now();
        tasks.push(tokio::spawn(async move {
            let address = format!("latency-{n}@example.com");
            send_one(&rig, &template, address.clone()).await;
            (address, due)
        }));
    }
    let mut due = Vec::new();
    for task in tasks {
        due.push(task.await.unwrap());
    }
    let during = match campaign {
        Some(campaign) => pipeline::ledger::states(&rig.pool, campaign).await.get("queued").copied().unwrap_or(0),
        None => 0,
    };
    let addresses: Vec<String> = due.iter().map(|(address, _)| address.clone()).collect();
    let mut latencies = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut times = rig.sink.first_accepted_us(&addresses).await;
    while times.iter().any(Option::is_none) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        times = rig.sink.first_accepted_us(&addresses).await;
    }
    for ((_, due), accepted) in due.iter().zip(times) {
        let due_us = due.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as f64;
        latencies.push((accepted.expect("a mail was lost") as f64 - due_us) / 1_000.0);
    }
    latencies.sort_by(f64::total_cmp);
    let at = |quantile: f64| latencies[((latencies.len() - 1) as f64 * quantile).round() as usize];
    println!(
        "transactional {per_second}/s for {seconds} s beside a campaign of {beside_campaign} ({during} still queued at the end): p50 {:.1} ms  p90 {:.1} ms  p99 {:.1} ms  max {:.1} ms  {}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        watch.report(total as usize)
    );
}

async fn send_one(rig: &Rig, template: &serde_json::Value, address: String) {
    let body = json!({"template_id": template, "email": address, "first_name": "Ann", "data": {"code": "123456"}});
    rig.client.post("/v1/transactional", body).await.expect(202);
}
