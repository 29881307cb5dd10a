//! The bus as a front door: internal systems in Python and Node, as the examples have them, on servers with users and TLS.

mod secured;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use pipeline::{Rig, eventually, process, rig::STAGES};
use rstest::rstest;
use secured::Secured;
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(120);
const COUNT: u64 = 1_200;
/// What a script ends with when it cannot do its work here.
const SKIPPED: i32 = 77;

/// The examples in one language, ready to run.
struct Examples {
    program: PathBuf,
    place: PathBuf,
    extension: &'static str,
}

impl Examples {
    /// `None`, with a word about it, where the language or its packages are not to be had.
    #[allow(clippy::print_stdout, reason = "says what was skipped")]
    fn prepare(language: &str) -> Option<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let there =
            |tool: &str| Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
        let tools: &[&str] = if language == "python" { &["python3"] } else { &["node", "npm"] };
        if !tools.iter().all(|tool| there(tool)) {
            println!("SKIPPED: {} is not installed", tools.join(" or "));
            return None;
        }
        let prepared = Command::new(here.join("prepare.sh")).arg(language).output().unwrap();
        let said = String::from_utf8_lossy(&prepared.stdout).trim().to_owned();
        if prepared.status.code() == Some(SKIPPED) {
            println!("SKIPPED: {said}");
            return None;
        }
        assert!(prepared.status.success(), "{said} {}", String::from_utf8_lossy(&prepared.stderr));
        Some(match language {
            "python" => Self { program: said.into(), place: here.join("python"), extension: "py" },
            _ => Self { program: "node".into(), place: said.into(), extension: "mjs" },
        })
    }

    fn command(&self, name: &str, arguments: &[&str], env: &BTreeMap<String, String>) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(self.place.join(format!("{name}.{}", self.extension))).args(arguments);
        command.env("PYTHONDONTWRITEBYTECODE", "1").envs(env).stdin(Stdio::null());
        command
    }

    /// Runs one to its end; answers the lines it printed.
    async fn run(&self, name: &str, arguments: &[&str], env: &BTreeMap<String, String>) -> Vec<Value> {
        let mut command = self.command(name, arguments, env);
        let output = tokio::time::timeout(WITHIN, tokio::task::spawn_blocking(move || command.output().unwrap()))
            .await
            .unwrap_or_else(|_| panic!("{name} does not end"))
            .unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        lines(&output.stdout)
    }
}

fn lines(output: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The line with this word in it.
#[track_caller]
fn said<'a>(lines: &'a [Value], word: &str) -> &'a Value {
    lines.iter().find_map(|line| line.get(word)).unwrap_or_else(|| panic!("nothing about {word} in {lines:?}"))
}

/// Every process with a user of its own, each with the rights of its name and no others.
async fn engine(secured: &Secured) -> Rig {
    let mut rig = Rig::shared().await.with("NATS_URL", secured.url()).with("STREAM_PREFIX", "");
    rig.env.insert("SSL_CERT_FILE".to_owned(), secured.authority());
    // No process may make the streams: an operator does.
    let mut operator = rig.operator_env();
    operator.insert("POSTRIDER_NATS_CREDENTIALS".to_owned(), secured.seed("operator"));
    operator.insert("SSL_CERT_FILE".to_owned(), secured.authority());
    process::run(&["streams", "apply"], &operator);
    rig = rig.with("NATS_CREDENTIALS", &secured.seed("ingress"));
    rig.start("ingress", &["ingress"]).await;
    for stage in STAGES {
        rig = rig.with("NATS_CREDENTIALS", &secured.seed(stage));
        rig.start(stage, &["stage", stage]).await;
    }
    rig
}

/// A new internal team sends from the examples, watches events arrive, breaks the schema and finds the rejection.
#[rstest]
#[case::python("python")]
#[case::node("node")]
#[tokio::test(flavor = "multi_thread")]
async fn an_internal_team_sends_follows_and_asks_over_the_bus(#[case] language: &str) {
    let Some(examples) = Examples::prepare(language) else { return };
    let secured = Secured::start().await;
    let rig = engine(&secured).await;
    process::run(&["feed", "on", "demo", "production"], &rig.operator_env());
    let template = json!({"name": "Receipt", "template_type": "transactional", "subject": "Receipt {{ data.number }}",
                          "body_html": "<p>Thank you: {{ data.number }}</p>"});
    let template = rig.client.post("/v1/templates", template).await.expect(201)["template_id"].clone();
    let (list, _) = rig.list_of(1, "ann", "example.com").await;
    let campaign = rig.campaign(list, "News", "<p>News</p>").await;
    let env = BTreeMap::from([
        ("NATS_URL".to_owned(), secured.url().to_owned()),
        ("NATS_SEED_FILE".to_owned(), secured.seed("demo")),
        ("SSL_CERT_FILE".to_owned(), secured.authority()),
        ("NODE_EXTRA_CA_CERTS".to_owned(), secured.authority()),
        ("PRODUCT".to_owned(), "demo".to_owned()),
        ("TENANT".to_owned(), "demo-tenant".to_owned()),
        ("TEMPLATE_ID".to_owned(), template.as_str().unwrap().to_owned()),
        ("CAMPAIGN_ID".to_owned(), campaign.to_string()),
    ]);

    // Somebody follows from the start.
    let until = json!({"email.sent": COUNT, "request.rejected": 1}).to_string();
    let follow = ["--until", &until];
    let follower = examples.run("subscriber", &follow, &env);
    let count = COUNT.to_string();
    let publish = ["--count", &count, "--name", "march", "--broken"];
    let publisher = examples.run("publisher", &publish, &env);
    let (followed, published) = tokio::join!(follower, publisher);
    assert_eq!(said(&published, "published"), &json!(COUNT));
    assert_eq!(said(&followed, "rejected"), "march-broken");
    let rejected = followed.iter().find(|line| line["rejected"].is_string()).unwrap();
    assert_eq!(rejected["code"], "validation_failed");
    let faults = rejected["fields"].as_array().unwrap();
    assert!(faults.iter().any(|fault| fault["path"] == "template_id"), "{rejected}");

    // The same run again sends nothing twice.
    examples.run("publisher", &publish[..4], &env).await;
    let addresses: Vec<String> = (0..COUNT).map(|number| format!("march-{number}@example.com")).collect();
    eventually("every mail at the sink", WITHIN, || async {
        rig.sink.counts(&addresses).await.iter().all(|count| *count == 1).then_some(())
    })
    .await;

    // What is past is read again when somebody asks for it.
    let replay = ["--since", "2026-01-01T00:00:00Z", "--consumer", "events", "--until", &until];
    let replayed = examples.run("subscriber", &replay, &env).await;
    assert!(said(&replayed, "pending").as_u64().unwrap() > COUNT);

    let asked = examples.run("caller", &["ann-0@example.com"], &env).await;
    assert_eq!(said(&asked, "validate"), &json!({"ok": true, "would_answer": 202}));
    assert_eq!(said(&asked, "refused"), "validation_failed");
    assert_eq!(said(&asked, "send.status"), "sent");
    assert_eq!(said(&asked, "explain")["ok"], true);
    assert_eq!(rig.sink.counts(&["ann-0@example.com".to_owned()]).await, [1]);
    nobody_was_refused(&rig);
    rig.books_balance().await;
}

/// The rights of each process are enough for all it does: the servers refused nothing.
fn nobody_was_refused(rig: &Rig) {
    for (name, process) in &rig.processes {
        let log = process.log().to_lowercase();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("permissions violation")).take(3).collect();
        assert!(refused.is_empty(), "{name} wanted what it may not: {refused:#?}");
    }
}

/// The forbidden things, tried by another client on three servers with TLS.
#[tokio::test(flavor = "multi_thread")]
async fn users_of_the_servers_may_do_what_is_theirs_and_nothing_else() {
    let Some(python) = Examples::prepare("python") else { return };
    let directory = tempfile::TempDir::new().unwrap();
    // The script looks on PATH.
    std::os::unix::fs::symlink(devtools::servers::nats_program().unwrap(), directory.path().join("nats-server"))
        .unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap_or_default());
    let script = fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/nats/try.py")).unwrap();
    let mut command = Command::new(&python.program);
    command.arg(script).env("PATH", path).env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    command.env("POSTRIDER_TEST_BINARY", process::binary());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.ends_with("0 faults\n"), "{said}");
}
