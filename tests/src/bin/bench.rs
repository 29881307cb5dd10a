//! Benchmarks: `cargo run --release -p pipeline --bin bench -- campaign|import|launch|segment|transactional|messages|http|webhooks`.
//!
//! Each starts its own servers, sink and processes on this machine, does the work once, and prints one line of figures: rate,
//! CPU-seconds per 1,000 mails by process, peak memory per process. Machines differ and are shared: compare CPU and ratios.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark talks, and fails loudly")]

#[path = "bench/webhooks.rs"]
mod webhooks;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use clap::{Parser, Subcommand};
use pipeline::{
    Rig,
    http_load::{self, SignedRead},
    measure,
    rig::STAGES,
};
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
    /// Previews of typical segments, and the filters of the contact list, over N contacts who were sent one mail each.
    Segment {
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
    /// Latency of `POST /v1/messages`, from request to answer: the mail is at the sink by then.
    Messages {
        #[arg(long, default_value_t = 200)]
        count: usize,
        /// Bytes of one attachment, decoded; 0 for none.
        #[arg(long, default_value_t = 0)]
        attachment: usize,
    },
    /// Signed small reads a second, with the ingress on one core and this load on another; then the latency at half that rate.
    Http {
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        #[arg(long, default_value_t = 32)]
        connections: usize,
        /// The ingress's log filter.
        #[arg(long, default_value = "info")]
        log: String,
    },
    /// Deliveries a second to 100 endpoints and to one, latency when idle, and beside receivers that never answer.
    Webhooks {
        #[arg(long, default_value_t = 30_000)]
        deliveries: usize,
        /// How long 200 healthy receivers are told 50 events a second, without and with silent ones beside them.
        #[arg(long, default_value_t = 40)]
        seconds: u64,
    },
}

#[tokio::main]
async fn main() {
    match Cli::parse().command {
        Command::Campaign { recipients, relay_signs, separate } => campaign(recipients, relay_signs, separate).await,
        Command::Import { rows } => import(rows).await,
        Command::Launch { contacts } => launch(contacts).await,
        Command::Segment { contacts } => segment(contacts).await,
        Command::Transactional { per_second, seconds, beside_campaign } => {
            transactional(per_second, seconds, beside_campaign).await;
        }
        Command::Messages { count, attachment } => messages(count, attachment).await,
        Command::Webhooks { deliveries, seconds } => webhooks::run(deliveries, seconds).await,
        Command::Http { seconds, connections, log } => http(Duration::from_secs(seconds), connections, &log).await,
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
    let mut reached = rig.sink.wait(1, 60_000).await;
    let first = started.elapsed();
    assert!(reached > 0, "nothing arrives; {:?}", pipeline::ledger::states(&rig.pool, campaign).await);
    while reached < recipients as u64 {
        let now = rig
            .sink
            .wait((reached + 1).max(recipients as u64 / 20 * (reached * 20 / recipients as u64 + 1)), 2_000)
            .await;
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
        "campaign recipients {recipients} {} {}: {:.0} mails/s ({:.1} s; launch answered in {:.2} s, first mail after {:.2} s, completed {:.1} s)  duplicates {}  {report}",
        if relay_signs { "relay-signs" } else { "rsa-2048" },
        if separate { "separate" } else { "one-process" },
        recipients as f64 / wall.as_secs_f64(),
        wall.as_secs_f64(),
        launched.as_secs_f64(),
        first.as_secs_f64(),
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

/// Fields of all types, a tag for a few, and a campaign of the past: a third opened it, a twentieth followed a link.
async fn furnish(rig: &Rig, tag: Uuid, campaign: Uuid) {
    let launch = schemas::LaunchId::fresh();
    for sql in [
        "insert into fields (tenant_id, id, key, label, type) select $1, gen_random_uuid(), key, key, type
         from (values ('plan', 'string'), ('seats', 'number'), ('vip', 'boolean'), ('renews', 'date'), ('seen', 'datetime'),
                      ('langs', 'string_list')) f (key, type)
         where $2::uuid is not null and $3::uuid is not null and $4::text is not null and $5::date is not null",
        "with numbered as (select id, row_number() over (order by id) as n from contacts where tenant_id = $1)
         update contacts c
         set fields = jsonb_build_object(
                 'plan', (array['pro', 'Free', 'team'])[n % 3 + 1], 'seats', n % 100, 'vip', n % 10 = 0,
                 'renews', to_char(current_date + (n % 700)::int - 350, 'YYYY-MM-DD'),
                 'seen', to_char(now() at time zone 'utc' - (n % 300) * interval '1 day', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),
                 'langs', jsonb_build_array('en', (array['de', 'fr'])[n % 2 + 1])),
             created_at = now() - n * interval '1 second'
         from numbered
         where c.tenant_id = $1 and c.id = numbered.id
           and $2::uuid is not null and $3::uuid is not null and $4::text is not null and $5::date is not null",
        "insert into audiences (tenant_id, id, kind, name)
         select $1, $2, 'tag', 'few' where $3::uuid is not null and $4::text is not null and $5::date is not null",
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select $1, $2, id from contacts where tenant_id = $1 and address like '%000@%'
           and $3::uuid is not null and $4::text is not null and $5::date is not null",
        "update campaigns set launch_prefix = $4, month = $5, status = 'sent', completed_at = now()
         where tenant_id = $1 and id = $3 and $2::uuid is not null",
        "insert into sends (tenant_id, id, month, campaign_id, contact_id, state, decided_at)
         select $1, ($4 || lpad(to_hex(((n - 1) / 500) << 9 | (n - 1) % 500), 9, '0'))::uuid, $5, $3, id, 'sent', now() - interval '3 days'
         from (select id, row_number() over (order by id) as n from contacts where tenant_id = $1) c where $2::uuid is not null",
        "update sends set opened_at = now() - interval '2 days',
                human_opened_at = case when hashtext(contact_id::text) % 2 = 0 then now() - interval '1 day' end,
                clicked_at = case when hashtext(contact_id::text) % 20 = 0 then now() - interval '1 day' end
         where tenant_id = $1 and hashtext(contact_id::text) % 3 = 0
           and $2::uuid is not null and $3::uuid is not null and $4::text is not null and $5::date is not null",
    ] {
        sqlx::query(sql)
            .bind(rig.engine_tenant_id)
            .bind(tag)
            .bind(campaign)
            .bind(launch.prefix())
            .bind(launch.month())
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    for table in ["contacts", "audience_members", "sends", "contact_facts"] {
        sqlx::query(sqlx::AssertSqlSafe(format!("vacuum analyze {table}"))).execute(&rig.pool).await.unwrap();
    }
    sqlx::query("checkpoint").execute(&rig.pool).await.unwrap();
}

async fn segment(contacts: usize) {
    let mut rig = Rig::private().await.with("LOG", "warn");
    rig.start("ingress", &["ingress"]).await;
    let list = fill_list(&rig, contacts).await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    let tag = schemas::new_id();
    furnish(&rig, tag, campaign).await;
    let field = |field: &str, op: &str, value: serde_json::Value| json!({"field": field, "op": op, "value": value});
    let rules = [
        ("email eq", field("email", "eq", json!("bench-7@example-7.com"))),
        ("lifecycle_stage eq", field("lifecycle_stage", "eq", json!("lead"))),
        ("company contains", field("company", "contains", json!("y 77"))),
        ("created_at within_days", field("created_at", "within_days", json!(3))),
        ("in_list and has_tag", json!({"all": [{"in_list": list}, {"has_tag": tag}]})),
        ("in_list, not has_tag", json!({"all": [{"in_list": list}, {"not": {"has_tag": tag}}]})),
        ("fields: string eq", field("fields.plan", "eq", json!("pro"))),
        ("fields: number gt", field("fields.seats", "gt", json!(50))),
        ("fields: date within_days", field("fields.renews", "within_days", json!(-30))),
        ("fields: datetime older_than_days", field("fields.seen", "older_than_days", json!(90))),
        ("fields: list includes", field("fields.langs", "includes", json!("de"))),
        ("opened in 30 days", json!({"event": "email.opened", "within_days": 30})),
        ("clicked the campaign", json!({"event": "email.clicked", "campaign_id": campaign})),
        (
            "no person opened in 90 days",
            json!({"not": {"event": "email.opened", "within_days": 90, "human_only": true}}),
        ),
        ("sent in 30 days", json!({"event": "email.sent", "within_days": 30})),
        (
            "five leaves",
            json!({"all": [
                {"in_list": list}, field("fields.plan", "in", json!(["pro", "team"])), field("lifecycle_stage", "neq", json!("customer")),
                {"event": "email.opened", "within_days": 30, "human_only": true}, {"not": {"event": "email.clicked", "within_days": 7}},
            ]}),
        ),
    ];
    for (name, rule) in rules {
        let started = Instant::now();
        let answer = rig.client.post("/v1/segments/preview", json!({ "rule": rule })).await.expect(200);
        println!("preview {name}: {} ms, {} of {contacts}", started.elapsed().as_millis(), answer["count"]);
    }
    let (tag, list) = (tag.to_string(), list.to_string());
    let rule = field("fields.plan", "eq", json!("pro"));
    let segment = rig.client.post("/v1/segments", json!({"name": "Pro", "rule": rule})).await.expect(201);
    for (name, value) in [
        ("email", "bench-7@example-7.com"),
        ("q", "bench-7@example"),
        ("q", "nobody at all"),
        ("q", "n\u{e9}ant"),
        ("list_id", list.as_str()),
        ("tag_id", tag.as_str()),
        ("status", "archived"),
        ("updated_since", "2999-01-01T00:00:00Z"),
        ("segment_id", segment["segment_id"].as_str().unwrap()),
    ] {
        let started = Instant::now();
        let answer = rig.client.get("/v1/contacts", &[(name, value)]).await.expect(200);
        let found = answer["contacts"].as_array().unwrap().len();
        println!("contacts {name}={value}: {} ms, {found} on the page", started.elapsed().as_millis());
    }
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

async fn messages(count: usize, attachment: usize) {
    let mut rig = Rig::private().await.with("LOG", "warn").with("MESSAGE_RATE_PER_HOUR", "0");
    rig.start_all().await;
    // Four letters of base64 for three of content: a text of one letter.
    let content = format!("{}QQ==", "QUFB".repeat(attachment / 3));
    let attachments =
        if attachment == 0 { json!([]) } else { json!([{"filename": "a.txt", "content_base64": content}]) };
    let body = |n: usize| {
        json!({
            "sender_id": rig.sender_id, "to": [{"email": format!("message-{n}@example.com")}], "subject": "Your certificate",
            "html": newsletter(), "message_class": "business", "attachments": attachments,
        })
    };
    // One first, so that caches and connections are as in a running system.
    rig.client.post("/v1/messages", body(count)).await.expect(200);
    let watch = Watch::start(&rig);
    let mut latencies = Vec::with_capacity(count);
    for n in 0..count {
        let body = body(n);
        let begun = Instant::now();
        rig.client.post("/v1/messages", body).await.expect(200);
        latencies.push(begun.elapsed().as_secs_f64() * 1_000.0);
    }
    latencies.sort_by(f64::total_cmp);
    let at = |quantile: f64| latencies[((latencies.len() - 1) as f64 * quantile).round() as usize];
    println!(
        "messages {count}, attachment {attachment} bytes: p50 {:.1} ms  p90 {:.1} ms  p99 {:.1} ms  max {:.1} ms  {}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        watch.report(count)
    );
}

async fn send_one(rig: &Rig, template: &serde_json::Value, address: String) {
    let body = json!({"template_id": template, "email": address, "first_name": "Ann", "data": {"code": "123456"}});
    rig.client.post("/v1/transactional", body).await.expect(202);
}

async fn http(during: Duration, connections: usize, log: &str) {
    let mut rig = Rig::private().await.with("LOG", log);
    rig.start("ingress", &["ingress"]).await;
    let contact =
        rig.client.post("/v1/contacts", json!({"email": "ann@example.com", "first_name": "Ann"})).await.expect(201);
    let read = SignedRead {
        product: rig.client.product().to_owned(),
        key: rig.client.key().to_owned(),
        path: format!("/v1/contacts/{}", contact["contact_id"].as_str().unwrap()),
        query: format!("product_tenant_id={}", rig.client.tenant()),
    };
    http_load::pin(rig.processes["ingress"].pid(), "0");
    http_load::pin(std::process::id(), "1");
    let address = rig.base_url.trim_start_matches("http://").parse().unwrap();
    http_load::closed_loop(address, &read, connections, Duration::from_secs(3)).await;
    let watch = Watch::start(&rig);
    let rate = http_load::closed_loop(address, &read, connections, during).await;
    let report = watch.report((rate * during.as_secs_f64()) as usize);
    let latencies = http_load::open_loop(address, &read, rate / 2.0, connections, during).await;
    let at = |quantile: f64| latencies[((latencies.len() - 1) as f64 * quantile).round() as usize];
    println!(
        "http {connections} connections, log {log}: {rate:.0} signed reads/s; at half that rate p50 {:.1} ms  p99 {:.1} ms  max {:.1} ms  {report}",
        at(0.5),
        at(0.99),
        at(1.0),
    );
}
