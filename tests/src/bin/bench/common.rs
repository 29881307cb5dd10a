//! What benchmarks have in common: a letter, a list of people, and what everything costs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pipeline::{Rig, measure};
use serde_json::json;
use uuid::Uuid;

/// About 10 KB of HTML with ten merge fields, three links and a table, as newsletters have.
pub(super) fn newsletter() -> String {
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
pub(super) async fn fill_list(rig: &Rig, contacts: usize) -> Uuid {
    fill_list_of(rig, contacts, "bench").await
}

/// Mails of the campaign that goes first.
const WARM_UP: usize = 2_000;

/// Sends a small campaign, to people of its own: what is measured afterwards is an engine that runs, not one that starts. Answers how
/// many mails it was.
pub(super) async fn warm_up(rig: &Rig) -> u64 {
    let list = fill_list_of(rig, WARM_UP, "warm").await;
    let campaign = rig.campaign(list, "News for {{ first_name }}", &newsletter()).await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    WARM_UP as u64
}

async fn fill_list_of(rig: &Rig, contacts: usize, name: &str) -> Uuid {
    let list = schemas::new_id();
    let insert = sqlx::query("insert into audiences (tenant_id, id, kind, name) values ($1, $2, 'list', $3)");
    insert.bind(rig.engine_tenant_id).bind(list).bind(list.to_string()).execute(&rig.pool).await.unwrap();
    // Ids in time order, as the engine makes them.
    let prefix = schemas::LaunchId::fresh().prefix();
    let insert = sqlx::query(
        "insert into contacts (tenant_id, id, address, first_name, last_name, title, phone, company, timezone, locale, lifecycle_stage)
         select $1, ($2 || lpad(to_hex(n), 9, '0'))::uuid, $4 || '-' || n || '@example-' || (n % 50) || '.com', 'First' || n, 'Last' || n,
                'Dr', '+1 555 ' || n, 'Company ' || n, 'Europe/Berlin', 'en', 'lead'
         from generate_series(1, $3::bigint) n",
    );
    insert.bind(rig.engine_tenant_id).bind(prefix).bind(contacts as i64).bind(name).execute(&rig.pool).await.unwrap();
    let insert = sqlx::query(
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select tenant_id, $2, id from contacts where tenant_id = $1 and address like $3 || '-%'",
    );
    insert.bind(rig.engine_tenant_id).bind(list).bind(name).execute(&rig.pool).await.unwrap();
    vacuum(rig, "contacts, audience_members").await;
    list
}

/// Gives the planner statistics of these tables, and leaves no checkpoint to what is measured.
pub(super) async fn vacuum(rig: &Rig, tables: &'static str) {
    sqlx::query(sqlx::AssertSqlSafe(format!("vacuum analyze {tables}"))).execute(&rig.pool).await.unwrap();
    sqlx::query("checkpoint").execute(&rig.pool).await.unwrap();
}

/// A template for transactional mail with a code; answers its id.
pub(super) async fn code_template(rig: &Rig) -> String {
    let subject = "Code {{ data.code }}";
    let body = json!({"name": "T", "template_type": "transactional", "subject": subject, "body_html": newsletter()});
    rig.made("/v1/templates", body, "template_id").await
}

/// How often memory is looked at.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// CPU and memory of everything that runs, by name.
pub(super) struct Watch {
    pids: BTreeMap<String, u32>,
    before: BTreeMap<String, f64>,
    /// The most memory of its own that each has held, in MiB, with its descendants.
    peaks: Arc<std::sync::Mutex<BTreeMap<String, f64>>>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    pub(super) fn start(rig: &Rig) -> Self {
        let mut pids: BTreeMap<String, u32> =
            rig.processes.iter().map(|(name, process)| (name.clone(), process.pid())).collect();
        pids.insert("sink".to_owned(), rig.sink_process.pid());
        pids.insert("nats".to_owned(), rig.servers().nats().pid().unwrap());
        pids.insert("postgres".to_owned(), rig.servers().postgres().pid().unwrap());
        let before = pids.iter().map(|(name, pid)| (name.clone(), measure::family_cpu_seconds(*pid))).collect();
        let (peaks, stop) = (Arc::new(std::sync::Mutex::new(BTreeMap::new())), Arc::new(AtomicBool::new(false)));
        let (seen, ended, watched) = (peaks.clone(), stop.clone(), pids.clone());
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                for (name, pid) in &watched {
                    let now: f64 = measure::family(*pid).into_iter().map(measure::own_mib).sum();
                    let mut peaks = seen.lock().unwrap();
                    let most = peaks.entry(name.clone()).or_insert(0.0);
                    *most = f64::max(*most, now);
                }
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self { pids, before, peaks, stop }
    }

    /// `cpu_s/1000: engine 0.12 …  peak MiB: …`
    pub(super) fn report(&self, mails: usize) -> String {
        self.stop.store(true, Ordering::Relaxed);
        let mut cpu = String::from("cpu_us/mail:");
        let mut total = 0.0;
        for (name, pid) in &self.pids {
            let used = measure::family_cpu_seconds(*pid) - self.before[name];
            total += used;
            cpu.push_str(&format!(" {name} {:.0}", used * 1e6 / mails as f64));
        }
        let mut memory = String::from("peak_mib:");
        for (name, peak) in self.peaks.lock().unwrap().iter() {
            memory.push_str(&format!(" {name} {peak:.0}"));
        }
        format!(
            "{cpu} total {:.0} (= cpu_s/1000 mails {:.3})  {memory}",
            total * 1e6 / mails as f64,
            total * 1e3 / mails as f64
        )
    }
}

/// The value below which such a part of sorted ones lies.
pub(super) fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Latencies in milliseconds, for the line of figures.
pub(super) fn spread(latencies: &mut [f64]) -> String {
    latencies.sort_by(f64::total_cmp);
    let at = |part: f64| quantile(latencies, part);
    format!("p50 {:.1} ms  p90 {:.1} ms  p99 {:.1} ms  max {:.1} ms", at(0.5), at(0.9), at(0.99), at(1.0))
}

/// How the engine runs whose mail is measured.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Setup {
    /// The relay signs: no DKIM here.
    #[arg(long)]
    pub(super) relay_signs: bool,
    /// Each stage in a process of its own, to see its CPU.
    #[arg(long)]
    pub(super) separate: bool,
    /// The product has a feed: what happens to each mail goes to the bus as events.
    #[arg(long)]
    pub(super) feed: bool,
}

impl Setup {
    /// Starts it.
    pub(super) async fn start(self) -> Rig {
        let mut rig = Rig::measured()
            .await
            .with("DKIM_SIGN", if self.relay_signs { "false" } else { "true" })
            .with("LOG", "warn");
        if !self.feed {
            sqlx::query("delete from event_feeds").execute(&rig.pool).await.unwrap();
        }
        if self.separate {
            rig.start_separate().await;
        } else {
            rig.start_all().await;
        }
        rig
    }

    /// In words, for the line of figures.
    pub(super) fn words(self) -> String {
        let words = [
            if self.relay_signs { "relay-signs" } else { "rsa-2048" },
            if self.separate { "separate" } else { "one-process" },
            if self.feed { "feed" } else { "no-feed" },
        ];
        words.join(" ")
    }
}
