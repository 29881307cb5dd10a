//! Receivers: one of ours that keeps what it gets, and those in other languages that verify it.
#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode};
use pipeline::eventually;
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};

/// What a script ends with when it cannot do its work here.
const SKIPPED: i32 = 77;

/// Keeps every body, answers 204. Stops when dropped.
pub struct Receiver {
    port: u16,
    bodies: Arc<Mutex<Vec<Value>>>,
    task: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let bodies = Arc::<Mutex<Vec<Value>>>::default();
        let service = Router::new().fallback(take).with_state(Arc::clone(&bodies));
        let task = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
        Self { port, bodies, task }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hooks", self.port)
    }

    /// The first event of a type.
    pub async fn wait_for(&self, event: &str, within: Duration) -> Value {
        eventually(&format!("{event} at the receiver"), within, || async {
            self.bodies.lock().unwrap().iter().find(|body| body["type"] == event).cloned()
        })
        .await
    }

    /// Waits for an event whose data has this value in a field.
    pub async fn wait_for_about(&self, event: &str, field: &str, value: &str, within: Duration) -> Value {
        eventually(&format!("{event} with {field} {value} at the receiver"), within, || async {
            let bodies = self.bodies.lock().unwrap();
            bodies.iter().find(|body| body["type"] == event && body["data"][field] == value).cloned()
        })
        .await
    }

    /// The ids of the events of these types, by what they are about: a field of their data.
    pub fn told<'a>(
        &self,
        types: &BTreeMap<&'a str, (&str, usize)>,
    ) -> BTreeMap<&'a str, BTreeMap<String, BTreeSet<String>>> {
        let mut told: BTreeMap<&str, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for body in self.bodies.lock().unwrap().iter() {
            let Some((event, (about, _))) = types.get_key_value(body["type"].as_str().unwrap()) else { continue };
            let about = body["data"][*about].as_str().unwrap_or_else(|| panic!("no {about} in {body}")).to_owned();
            told.entry(*event).or_default().entry(about).or_default().insert(body["id"].to_string());
        }
        told
    }

    /// The same id means the same body.
    pub fn assert_ids_are_stable(&self) {
        let mut known: BTreeMap<String, Value> = BTreeMap::new();
        for body in self.bodies.lock().unwrap().iter() {
            let before = known.insert(body["id"].to_string(), body.clone());
            assert!(before.is_none_or(|before| before == *body), "{body}");
        }
    }
}

async fn take(State(kept): State<Arc<Mutex<Vec<Value>>>>, body: Bytes) -> StatusCode {
    kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    StatusCode::NO_CONTENT
}

/// A receiver in another language. Stops when dropped.
pub struct Signed {
    child: Child,
    port: u16,
    lines: mpsc::UnboundedReceiver<Value>,
}

impl Drop for Signed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Signed {
    /// `None`, with a word about it, where the language or its package is not to be had.
    pub async fn start(language: &str) -> Option<Self> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("webhooks");
        let tools: &[&str] = if language == "python" { &["python3"] } else { &["node", "npm"] };
        let there =
            |tool: &&str| Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
        if !tools.iter().all(there) {
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
        let mut command = Command::new(tools[0]);
        match language {
            "python" => command.arg("receiver.py").env("PYTHONPATH", &said).env("PYTHONDONTWRITEBYTECODE", "1"),
            _ => command.args(["receiver.mjs", &said]),
        };
        let mut child = command.current_dir(here).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, mut lines) = mpsc::unbounded_channel::<Value>();
        let output = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            for line in std::io::BufRead::lines(std::io::BufReader::new(output)).map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let first = tokio::time::timeout(super::WITHIN, lines.recv()).await.unwrap().expect("the receiver ended");
        Some(Self { child, port: first["port"].as_u64().unwrap().try_into().unwrap(), lines })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// Tells it the secret.
    pub fn trust(&mut self, secret: &str) {
        use std::io::Write;
        writeln!(self.child.stdin.as_mut().unwrap(), "{secret}").unwrap();
    }

    /// What it says of the next delivery.
    pub async fn next(&mut self, within: Duration) -> Value {
        tokio::time::timeout(within, self.lines.recv()).await.expect("no delivery in time").expect("the receiver ended")
    }
}
