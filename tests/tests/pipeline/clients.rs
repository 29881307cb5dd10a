//! The clients in Python and TypeScript and on the command line, as `schemas/clients` makes them, against a running system.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, response::IntoResponse};
use pipeline::{Rig, process};
use reqwest::{Method, StatusCode, Url};
use rstest::rstest;
use serde_json::{Value, json};

/// What `schemas/clients/build` ends with when it cannot do its work here.
const SKIPPED: i32 = 77;

#[rstest]
#[case("python")]
#[case("typescript")]
#[case("shell")]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_signs_and_tries_again(#[case] language: &str) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(journey) = journey(language, here) else { return };
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let proxy = BusyProxy::start(&rig.base_url).await;
    take_journey(journey, &proxy.url, rig.client.key(), rig.client.tenant()).await;
    let attempts = proxy.attempts.lock().unwrap();
    let of = |attempt: usize, name: &str| attempts[attempt][name].to_str().unwrap().to_owned();
    assert_eq!(of(0, "idempotency-key"), of(1, "idempotency-key"), "the second attempt acts for the first");
    assert_ne!(of(0, "x-service-nonce"), of(1, "x-service-nonce"), "a nonce counts once");
}

/// Runs a journey against a server: it finds the contact that it made, and is refused another.
pub(crate) async fn take_journey(mut journey: Command, url: &str, key: &str, tenant: &str) {
    journey
        .env("POSTRIDER_API_URL", url)
        .env("POSTRIDER_API_KEY", key)
        .env("POSTRIDER_API_TENANT", tenant)
        .stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || journey.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: BTreeMap<String, Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .flat_map(|line| serde_json::from_str::<BTreeMap<String, Value>>(line).unwrap())
        .collect();
    assert_eq!(said["found"], json!([said["created"]]));
    assert_eq!(said["refused"], "validation_failed");
}

/// What is run; `None`, with a word about it, where the language or its packages are not to be had.
#[allow(clippy::print_stdout, reason = "says what was skipped")]
pub(crate) fn journey(language: &str, here: &Path) -> Option<Command> {
    if language == "shell" {
        let mut command = Command::new(here.join("clients/journey.sh"));
        command.env("POSTRIDER", process::binary());
        return Some(command);
    }
    let built = Command::new(here.join("../schemas/clients/build")).arg(language).output().unwrap();
    let said = String::from_utf8_lossy(&built.stdout).trim().to_owned();
    if built.status.code() == Some(SKIPPED) {
        println!("SKIPPED: {said}");
        return None;
    }
    assert!(built.status.success(), "{said} {}", String::from_utf8_lossy(&built.stderr));
    let built = PathBuf::from(said);
    let mut command = match language {
        "python" => Command::new(built.join(".tools/bin/python")),
        _ => Command::new("node"),
    };
    match language {
        "python" => command.arg(here.join("clients/journey.py")).env("PYTHONPATH", &built),
        _ => command.arg(here.join("clients/journey.mjs")).env("CLIENT", built.join("dist/index.js")),
    };
    Some(command)
}

/// Stands before a server and answers the first request as a busy one does. The others it passes on.
struct BusyProxy {
    url: String,
    attempts: Arc<Mutex<Vec<HeaderMap>>>,
}

#[derive(Clone)]
struct Proxied {
    to: Url,
    attempts: Arc<Mutex<Vec<HeaderMap>>>,
}

impl BusyProxy {
    async fn start(to: &str) -> Self {
        let attempts = Arc::default();
        let proxied = Proxied { to: to.parse().unwrap(), attempts: Arc::clone(&attempts) };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = Router::new().fallback(pass_on).with_state(proxied);
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { url, attempts }
    }
}

async fn pass_on(
    State(proxied): State<Proxied>,
    method: Method,
    uri: axum::http::Uri,
    mut headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    let is_first = {
        let mut attempts = proxied.attempts.lock().unwrap();
        attempts.push(headers.clone());
        attempts.len() == 1
    };
    if is_first {
        return (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "0")], Bytes::new()).into_response();
    }
    headers.remove("host");
    let url = proxied.to.join(&uri.to_string()).unwrap();
    let answer = reqwest::Client::new().request(method, url).headers(headers).body(body).send().await.unwrap();
    let content_type = answer.headers()["content-type"].clone();
    (answer.status(), [("content-type", content_type)], answer.bytes().await.unwrap()).into_response()
}
