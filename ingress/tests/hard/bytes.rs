//! Any bytes at all: never a 5xx, never a panic, never a hang.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Method;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use rstest::rstest;
use schemas::Environment;
use serde_json::{Value, json};

use crate::{
    common::{Client, PRODUCT, settings},
    wire::{Wire, exchange, signed, statuses},
};

/// More with `POSTRIDER_FUZZ_CASES`; each run has other dice.
const REQUESTS: usize = 8_000;
const WORKERS: usize = 16;
/// Requests to routes that wait for the stages, which are not there.
const REQUESTS_APART: usize = 1_500;
/// Says 503 when mail cannot leave, and here nothing is there to send it. The last waits for the stages, which are not there either.
const APART: [&str; 2] = ["/v1/platform/health", "/v1/messages"];

/// The routes, with their methods: those apart, or all others.
fn routes(apart: bool) -> Vec<(String, Method)> {
    let operations = ingress::operations();
    operations
        .iter()
        .filter(|operation| APART.contains(&operation.path) == apart)
        .map(|operation| (operation.path.to_owned(), operation.method.clone()))
        .collect()
}

struct Generator {
    dice: StdRng,
    client: Client,
    routes: Arc<Vec<(String, Method)>>,
}

impl Generator {
    fn below(&mut self, limit: usize) -> usize {
        self.dice.random_range(0..limit)
    }

    fn junk(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.below(most)];
        self.dice.fill_bytes(&mut bytes);
        bytes
    }

    fn text(&mut self) -> String {
        const PIECES: [&str; 23] = [
            "",
            "a",
            "\u{0}",
            "'",
            "\"",
            "\\",
            "%00",
            "%",
            "../",
            "💥",
            "\u{202e}",
            "<script>",
            "{{",
            "{% for %}",
            "ann@example.com",
            "00000000-0000-7000-8000-000000000000",
            "-1",
            "99999999999999999999",
            "2026-13-45T99:99:99Z",
            "0000-01-01T00:00:00Z",
            "null",
            " ",
            "ß",
        ];
        let count = self.below(5);
        let mut text: String = (0..count).map(|_| PIECES[self.below(PIECES.len())]).collect();
        if self.below(50) == 0 {
            text = text.repeat(2_000);
        }
        text
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth > 4 { 7 } else { 9 }) {
            0 => Value::Null,
            1 => json!(self.below(2) == 0),
            2 => json!(self.dice.random::<i64>()),
            3 => json!(self.dice.random::<f64>() * 1e300),
            4 => json!(self.below(100)),
            5 | 6 => json!(self.text()),
            7 => (0..self.below(4)).map(|_| self.value(depth + 1)).collect(),
            _ => self.object(depth + 1),
        }
    }

    fn object(&mut self, depth: usize) -> Value {
        const NAMES: [&str; 38] = [
            "email",
            "name",
            "kind",
            "fields",
            "tags",
            "lists",
            "csv",
            "operation",
            "subject",
            "body_html",
            "template_id",
            "list_id",
            "segment_id",
            "tag_ids",
            "audience_mode",
            "sender_profile_id",
            "rule",
            "all",
            "any",
            "field",
            "op",
            "value",
            "add",
            "remove",
            "domain",
            "reason",
            "scope",
            "status",
            "data",
            "variants",
            "sender_id",
            "to",
            "html",
            "message_class",
            "reply_to",
            "attachments",
            "filename",
            "content_base64",
        ];
        let count = self.below(7);
        let pairs = (0..count).map(|_| (NAMES[self.below(NAMES.len())].to_owned(), self.value(depth + 1)));
        let mut object = Value::Object(pairs.collect::<Vec<_>>().into_iter().collect());
        if depth == 0 && self.below(10) > 0 {
            object["product_tenant_id"] = json!(self.client.product_tenant_id);
        }
        object
    }

    /// A path with something in its parameters, and a query.
    fn target(&mut self, path: &str, is_read: bool) -> String {
        let mut target = String::new();
        for part in path.split_inclusive('/') {
            if part.starts_with('{') {
                let filled = match self.below(4) {
                    0 => schemas::new_id().to_string(),
                    1 => "x".repeat(self.below(300)),
                    _ => url::form_urlencoded::byte_serialize(self.text().as_bytes()).collect(),
                };
                target.push_str(&filled);
                target.push_str(if part.ends_with('/') { "/" } else { "" });
            } else {
                target.push_str(part);
            }
        }
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        if is_read && self.below(10) > 0 {
            query.append_pair("product_tenant_id", &self.client.product_tenant_id.clone());
        }
        for _ in 0..self.below(3) {
            const NAMES: [&str; 8] = ["limit", "cursor", "status", "email", "q", "list_id", "from", "updated_since"];
            let name = NAMES[self.below(NAMES.len())];
            query.append_pair(name, &self.text());
        }
        match query.finish() {
            query if query.is_empty() => target,
            query => format!("{target}?{query}"),
        }
    }

    /// A request with a good signature over whatever it says.
    async fn well_signed(&mut self) -> Vec<u8> {
        let routes = Arc::clone(&self.routes);
        let (path, method) = &routes[self.below(routes.len())];
        let is_read = matches!(method.as_str(), "GET" | "HEAD");
        let target = self.target(path, is_read);
        let target = if target.parse::<http::Uri>().is_ok() { target } else { "/v1/contacts".to_owned() };
        let body = match self.below(12) {
            _ if is_read => Vec::new(),
            0 => self.junk(200),
            1 => "[".repeat(self.below(50_000)).into_bytes(),
            _ => self.object(0).to_string().into_bytes(),
        };
        let key = self.text();
        let keyed = [("idempotency-key", key.as_str())];
        let sane = key.bytes().all(|byte| byte.is_ascii_graphic()) && !key.is_empty();
        let extra: &[(&str, &str)] = if sane && self.below(3) == 0 { &keyed } else { &[] };
        signed(&self.client.clone(), method.clone(), &target, &body, extra).await
    }

    /// A copy, damaged on its way.
    async fn damaged(&mut self) -> Vec<u8> {
        let mut bytes = self.well_signed().await;
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len().max(1));
            if bytes.is_empty() {
                break;
            }
            match self.below(4) {
                0 => bytes[at] = self.dice.random(),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, self.dice.random()),
                _ => bytes.truncate(at.max(1)),
            }
        }
        bytes
    }

    fn shape(&mut self) -> Vec<u8> {
        const SHAPES: [&str; 24] = [
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\nhello",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nhello\r\n0\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5;a=\"\r\nhello\r\n0\r\nx: y\r\n\r\n",
            "POST /v1/contacts HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
            "GET /health HTTP/1.1\r\nhost: x\r\n folded: y\r\n\r\n",
            "GET /health HTTP/1.1\nhost: x\n\n",
            "GET /health HTTP/9.9\r\nhost: x\r\n\r\n",
            "GET http://other/health HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET //health?%zz HTTP/1.1\r\nhost: x\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
            "CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET /health HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk\r\n\r\n",
            "GET /health HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\u{0}\u{0}\u{0}\u{4}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{9}\u{1}\u{5}\u{0}\u{0}\u{0}\u{1}garbage",
            "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}",
        ];
        SHAPES[self.below(SHAPES.len())].as_bytes().to_vec()
    }

    fn huge_head(&mut self) -> Vec<u8> {
        let mut head = "GET /health HTTP/1.1\r\nhost: x\r\n".to_owned();
        match self.below(3) {
            0 => head.push_str(&format!("x: {}\r\n", "y".repeat(self.below(200_000)))),
            1 => (0..self.below(500)).for_each(|n| head.push_str(&format!("x-{n}: y\r\n"))),
            _ => head = format!("GET /{} HTTP/1.1\r\nhost: x\r\n", "a".repeat(self.below(100_000))),
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    async fn pipelined(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..=self.below(6) {
            let next = if self.below(4) == 0 { self.damaged().await } else { self.well_signed().await };
            bytes.extend_from_slice(&next);
        }
        bytes
    }

    async fn next(&mut self) -> Vec<u8> {
        match self.below(16) {
            0 => self.junk(2_048),
            1 | 2 => self.shape(),
            3 if self.below(8) == 0 => self.huge_head(),
            4 => self.pipelined().await,
            5..8 => self.damaged().await,
            _ => self.well_signed().await,
        }
    }
}

/// Puts so many requests on the wire, each made of dice; answers how often each status came. `is_known` says which may.
async fn throw(
    wire: &Wire,
    apart: bool,
    requests: usize,
    is_known: fn(u16) -> bool,
) -> std::collections::BTreeMap<u16, usize> {
    let seed = std::env::var("POSTRIDER_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(rand::random::<u64>);
    eprintln!("seed {seed}: repeat with POSTRIDER_TEST_SEED={seed}");
    let (routes, sent) = (Arc::new(routes(apart)), Arc::new(AtomicUsize::new(0)));
    let workers = (0..WORKERS).map(|worker| {
        let mut generator = Generator {
            dice: StdRng::seed_from_u64(seed.wrapping_add(worker as u64)),
            client: wire.client.clone(),
            routes: Arc::clone(&routes),
        };
        let (address, sent) = (wire.address, Arc::clone(&sent));
        tokio::spawn(async move {
            let mut seen = std::collections::BTreeMap::<u16, usize>::new();
            while sent.fetch_add(1, Ordering::Relaxed) < requests {
                let bytes = generator.next().await;
                let answer = exchange(address, &bytes).await;
                for status in statuses(&answer) {
                    assert!(
                        is_known(status),
                        "seed {seed}: {status} to\n{}\nanswered\n{}",
                        String::from_utf8_lossy(&bytes[..bytes.len().min(3_000)]),
                        String::from_utf8_lossy(&answer[..answer.len().min(3_000)]),
                    );
                    *seen.entry(status).or_default() += 1;
                }
            }
            seen
        })
    });
    let mut seen = std::collections::BTreeMap::<u16, usize>::new();
    for worker in futures::future::join_all(workers.collect::<Vec<_>>()).await {
        for (status, count) in worker.unwrap() {
            *seen.entry(status).or_default() += count;
        }
    }
    eprintln!("{seen:?}");
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bytes_are_a_5xx_a_panic_or_a_hang() {
    assert!(routes(false).len() > 30);
    let wire = Wire::start().await;
    let requests = std::env::var("POSTRIDER_FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(REQUESTS);
    let seen = throw(&wire, false, requests, |status| status < 500).await;
    // It got through to the acts, and was refused before them. Other refusals come up by luck.
    for status in [200, 400, 401, 404] {
        assert!(seen.contains_key(&status), "no {status} among {seen:?}");
    }
    let health = exchange(wire.address, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(statuses(&health), [200]);
    wire.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_are_those_to_health_and_messages_but_what_these_say_of_others() {
    assert_eq!(routes(true).len(), APART.len());
    let mut settings = settings();
    settings.message_timeout = Duration::from_millis(200);
    let mut wire = Wire::with(settings).await;
    let scopes: Vec<&str> = schemas::scope::ALL.iter().copied().chain([schemas::scope::PLATFORM_HEALTH_READ]).collect();
    wire.client.key = wire.edge.key(PRODUCT, Environment::Production, &scopes).await;
    // 503: mail cannot leave. 504: it has not, yet.
    let seen = throw(&wire, true, REQUESTS_APART, |status| status < 500 || matches!(status, 503 | 504)).await;
    for status in [400, 401, 503] {
        assert!(seen.contains_key(&status), "no {status} among {seen:?}");
    }
    wire.stop().await;
}

#[tokio::test]
async fn a_time_that_the_database_cannot_read_is_refused() {
    let wire = Wire::start().await;
    let client = &wire.client;
    for path in [
        "outcomes?since",
        "audit?since",
        "audit?until",
        "requests?since",
        "requests?until",
        "requests/accepted?since",
        "requests/accepted?until",
        "contacts?updated_since",
        "exports/events?recorded_since",
    ] {
        for time in ["-9999-01-01T00:00:00Z", "0000-01-01T00:00:00Z", "%2B262000-01-01T00:00:00Z"] {
            let answer = client.get(&format!("/v1/{path}={time}")).await;
            assert_eq!(answer.refusal(), (400, "validation_failed"), "{path} {time}");
        }
    }
    // A cursor is eight bytes of a time and sixteen of an id: 200,000 years ago.
    let bytes: Vec<u8> = (-6_311_433_600_000_000_000_i64).to_be_bytes().into_iter().chain([0; 16]).collect();
    let cursor = URL_SAFE_NO_PAD.encode(bytes);
    let answer = client.get(&format!("/v1/contacts?cursor={cursor}")).await;
    assert_eq!(answer.faults(), [("cursor".to_owned(), "invalid".to_owned())]);
    let suppression = json!({"email": "ann@example.com", "expires_at": "+262000-01-01T00:00:00Z"});
    assert_eq!(client.post("/v1/suppressions", suppression).await.refusal().0, 400);
    wire.stop().await;
}

#[tokio::test]
async fn one_request_is_not_taken_for_two() {
    let wire = Wire::start().await;
    // A length and chunks: whoever stands before us may see the end elsewhere.
    let smuggled = b"POST /v1/contacts HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let answers = statuses(&exchange(wire.address, smuggled).await);
    assert!(!answers.contains(&200), "{answers:?}");
    let twice = b"POST /v1/contacts HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 38\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let answers = statuses(&exchange(wire.address, twice).await);
    assert!(!answers.contains(&200), "{answers:?}");
    wire.stop().await;
}

#[rstest]
#[case::length_and_coding("content-length: 6\r\ntransfer-encoding: chunked\r\n")]
#[case::coding_and_length("transfer-encoding: chunked\r\ncontent-length: 6\r\n")]
#[case::nul("x-a: a\0b\r\n")]
#[case::escape("x-a: a\u{1b}b\r\n")]
#[case::bare_return("x-a: a\rb: c\r\n")]
#[tokio::test]
async fn a_request_with_more_than_one_reading_is_refused_and_the_connection_closed(#[case] headers: &str) {
    let wire = Wire::start().await;
    let good = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let odd = format!("POST /v1/contacts HTTP/1.1\r\nhost: x\r\n{headers}\r\n0\r\n\r\n");
    let answer = exchange(wire.address, format!("{odd}{good}").as_bytes()).await;
    assert_eq!(statuses(&answer), [400]);
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: application/json") && head.contains("connection: close"), "{head}");
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&body["ok"], &body["error"]), (&json!(false), &json!("malformed_request")));
    // What was asked before it is answered.
    let answer = exchange(wire.address, format!("{good}{good}{odd}{good}").as_bytes()).await;
    assert_eq!(statuses(&answer), [200, 200, 400]);
    wire.stop().await;
}

#[tokio::test]
async fn an_unknown_caller_hears_how_to_sign_in() {
    let wire = Wire::start().await;
    let answer = exchange(wire.address, b"GET /v1/contacts HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let text = String::from_utf8(answer).unwrap();
    assert!(text.starts_with("HTTP/1.1 401 ") && text.contains("www-authenticate: Bearer realm="), "{text}");
    assert!(text.contains("Authorization: Bearer") && text.contains("x-service-signature"), "{text}");
    wire.stop().await;
}

#[tokio::test]
async fn while_the_assistant_is_off_its_endpoint_is_not_there_for_any_method() {
    let wire = Wire::start().await;
    for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let request = format!("{method} /mcp HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = String::from_utf8(exchange(wire.address, request.as_bytes()).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{method}: {answer}");
    }
    wire.stop().await;
}
