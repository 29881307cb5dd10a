//! The HTTP edge over several processes: what must hold for all of them together, and when one of them dies.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use pipeline::{Rig, eventually, measure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const MIB: usize = 1024 * 1024;

/// One request as bytes: signed with a nonce of the test's choice.
#[derive(Clone)]
struct Call {
    method: &'static str,
    path: &'static str,
    nonce: String,
    idempotency_key: String,
    body: String,
}

impl Call {
    fn get(path: &'static str) -> Self {
        Self { method: "GET", path, nonce: nonce(), idempotency_key: String::new(), body: String::new() }
    }

    fn post(rig: &Rig, path: &'static str, idempotency_key: &str, mut body: Value) -> Self {
        body["product_tenant_id"] = json!(rig.client.tenant());
        let idempotency_key = idempotency_key.to_owned();
        Self { method: "POST", path, nonce: nonce(), idempotency_key, body: body.to_string() }
    }

    /// A copy of this request, signed anew.
    fn again(&self) -> Self {
        Self { nonce: nonce(), ..self.clone() }
    }

    fn head(&self, rig: &Rig) -> String {
        let Self { method, path, nonce, idempotency_key, body } = self;
        let timestamp = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let digest = hex::encode(Sha256::digest(body.as_bytes()));
        let mut mac = Hmac::<Sha256>::new_from_slice(rig.client.key().as_bytes()).unwrap();
        mac.update(format!("{method}\n{path}\n{timestamp}\n{nonce}\n{digest}").as_bytes());
        let signature = hex::encode(mac.finalize().into_bytes());
        let mut head = format!(
            "{method} {path}{} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-service-product: {}\r\n\
             x-service-environment: production\r\nx-service-api-key: {}\r\nx-service-timestamp: {timestamp}\r\n\
             x-service-nonce: {nonce}\r\nx-service-signature: sha256={signature}\r\n",
            if body.is_empty() { format!("?product_tenant_id={}", rig.client.tenant()) } else { String::new() },
            rig.client.product(),
            rig.client.key(),
        );
        if !idempotency_key.is_empty() {
            head.push_str(&format!("idempotency-key: {idempotency_key}\r\n"));
        }
        if !body.is_empty() {
            head.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
        }
        head + "\r\n"
    }

    /// Sends all of it and does not listen.
    async fn shout(&self, rig: &Rig, address: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{}{}", self.head(rig), self.body).as_bytes()).await.unwrap();
        stream
    }

    /// Sends it and hears the answer.
    async fn send(&self, rig: &Rig, address: &str) -> Heard {
        hear(self.shout(rig, address).await).await
    }

    /// Sends it in pieces, over so much time. Repeats it as a caller does while the process has no memory for it: one that waited too
    /// long for the bodies before it is refused, and its connection is closed before the whole body was sent.
    async fn send_slowly(&self, rig: &Rig, address: &str, during: Duration) -> Heard {
        const REPEATS: usize = 10;
        for _ in 0..REPEATS {
            let answer = self.again().try_slowly(rig, address, during).await;
            if let Some(answer) = answer.filter(|answer| answer.status != 503) {
                return answer;
            }
        }
        panic!("{} was refused {REPEATS} times", self.path);
    }

    /// `None`: the connection was closed in the middle of the body.
    async fn try_slowly(&self, rig: &Rig, address: &str, during: Duration) -> Option<Heard> {
        const PIECES: usize = 64;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(self.head(rig).as_bytes()).await.unwrap();
        for piece in self.body.as_bytes().chunks(self.body.len() / PIECES + 1) {
            stream.write_all(piece).await.ok()?;
            tokio::time::sleep(during / PIECES as u32).await;
        }
        Some(hear(stream).await)
    }
}

fn nonce() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// What came back.
#[derive(Debug)]
struct Heard {
    status: u16,
    head: String,
    body: Value,
}

impl Heard {
    fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

async fn hear(mut stream: TcpStream) -> Heard {
    let mut bytes = Vec::new();
    tokio::time::timeout(Duration::from_secs(90), stream.read_to_end(&mut bytes)).await.expect("no answer").unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Heard { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or_default() }
}

/// Two ingress processes on one database: their addresses.
async fn two(rig: &mut Rig) -> [String; 2] {
    rig.start("ingress", &["ingress"]).await;
    let first = rig.env["POSTRIDER_HTTP_ADDR"].clone();
    rig.env.insert("POSTRIDER_HTTP_ADDR".to_owned(), "127.0.0.1:0".to_owned());
    let second = rig.start("second", &["ingress"]).await;
    rig.env.insert("POSTRIDER_HTTP_ADDR".to_owned(), first.clone());
    [first, second["http_addr"].as_str().unwrap().to_owned()]
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_calls_with_one_idempotency_key_at_two_processes_are_one_effect() {
    let mut rig = Rig::shared().await;
    let at = two(&mut rig).await;
    let csv = (0..200).fold(String::from("email\n"), |csv, n| format!("{csv}once-{n}@example.com\n"));
    let call = Call::post(&rig, "/v1/imports", "only-once", json!({"csv": csv}));
    let answers = join_all((0..50).map(|n| {
        let (call, rig, address) = (call.again(), &rig, &at[n % 2]);
        async move { call.send(rig, address).await }
    }))
    .await;
    let done: Vec<&Value> = answers.iter().filter(|answer| answer.status == 200).map(|answer| &answer.body).collect();
    assert!(!done.is_empty() && done.iter().all(|body| *body == done[0]), "{answers:?}");
    for answer in &answers {
        assert!(
            answer.status == 200 || (answer.status, answer.error()) == (409, "idempotency_in_progress"),
            "{answer:?}"
        );
    }
    assert_eq!(rig.number("select count(*) from imports").await, 1);
    for address in &at {
        let again = call.again().send(&rig, address).await;
        assert_eq!((again.status, again.header("idempotency-replayed"), &again.body), (200, Some("true"), done[0]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_between_effect_and_answer_has_acted_once() {
    let mut rig = Rig::shared().await;
    let [first, second] = two(&mut rig).await;
    for round in 0..4 {
        let call = Call::post(
            &rig,
            "/v1/audiences",
            &format!("killed-{round}"),
            json!({"kind": "list", "name": format!("Killed {round}")}),
        );
        let unheard = call.shout(&rig, &first).await;
        let sql = "select count(*) from audiences where name like 'Killed %'";
        eventually("the effect", Duration::from_secs(60), || async { (rig.number(sql).await > round).then_some(()) })
            .await;
        rig.kill9("ingress");
        drop(unheard);
        let again = call.again().send(&rig, &second).await;
        assert_eq!((again.status, again.header("idempotency-replayed")), (201, Some("true")), "{again:?}");
        assert!(again.body["audience_id"].is_string());
        assert_eq!(rig.number(sql).await, round + 1, "no second effect");
        rig.start("ingress", &["ingress"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_counts_once_at_all_processes_together() {
    let mut rig = Rig::shared().await;
    let at = two(&mut rig).await;
    for _ in 0..20 {
        let call = Call::get("/v1/contacts");
        let answers = join_all((0..6).map(|n| call.send(&rig, &at[n % 2]))).await;
        assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            assert_eq!((answer.status, answer.error()), (401, "replayed_nonce"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_limit_is_exact_over_all_processes_together() {
    const LIMIT: usize = 30;
    let mut rig = Rig::shared().await.with("RATE_LIMIT_PER_MINUTE", &LIMIT.to_string());
    let at = two(&mut rig).await;
    let answers = join_all((0..3 * LIMIT).map(|n| {
        let (rig, address) = (&rig, &at[n % 2]);
        async move { Call::get("/v1/audiences").send(rig, address).await }
    }))
    .await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), LIMIT);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((answer.status, answer.error()), (429, "rate_limit_exceeded"));
        assert!(
            answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|wait| wait <= 60))
        );
    }
}

/// What a process may hold beyond what bodies declared.
const MORE_MIB: f64 = 64.0;

/// Sends these at once and slowly, and answers what came. What the process held meanwhile beyond what they declared is no more than
/// it may be.
async fn within_its_memory(rig: &Rig, calls: &[Call]) -> Vec<Heard> {
    const SLOWLY: Duration = Duration::from_secs(4);
    let address = rig.env["POSTRIDER_HTTP_ADDR"].clone();
    let pid = rig.processes["ingress"].pid();
    let whole = calls.iter().map(|call| call.body.len()).sum::<usize>() / MIB;
    let before = measure::own_mib(pid);
    let done = std::sync::atomic::AtomicBool::new(false);
    let (mut receiving, mut most) = (0_f64, 0_f64);
    let begun = Instant::now();
    let sent = async {
        let answers = join_all(calls.iter().map(|call| call.send_slowly(rig, &address, SLOWLY))).await;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        answers
    };
    let watched = async {
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            let now = measure::own_mib(pid);
            most = most.max(now);
            if begun.elapsed() < SLOWLY {
                receiving = receiving.max(now);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (answers, ()) = tokio::join!(sent, watched);
    let told = format!(
        "{before:.0} MiB before, {receiving:.0} while receiving, {most:.0} at most, for {whole} MiB in {} bodies",
        calls.len()
    );
    eprintln!("{told}");
    assert!(most - before <= whole as f64 + MORE_MIB, "{told}");
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_take_the_memory_they_declared_and_little_more() {
    const BODIES: usize = 3;
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let address = rig.env["POSTRIDER_HTTP_ADDR"].clone();
    // What is made once is made before.
    let warm = Call::post(&rig, "/v1/imports", "warm", json!({"csv": "email\nwarm@example.com\n"}));
    assert_eq!(warm.send(&rig, &address).await.status, 200);
    let row = |n: usize| format!("memory-{n}@example.com,{}\n", "x".repeat(800));
    let mut csv = String::from("email,colour\n");
    for n in 0.. {
        csv.push_str(&row(n));
        if csv.len() > 30 * MIB {
            break;
        }
    }
    let calls: Vec<Call> =
        (0..BODIES).map(|n| Call::post(&rig, "/v1/imports", &format!("large-{n}"), json!({"csv": csv}))).collect();
    drop(csv);
    for answer in within_its_memory(&rig, &calls).await {
        assert!(answer.status == 200, "{answer:?}");
    }
}

/// A byte or two of text can become hundreds in memory.
#[tokio::test(flavor = "multi_thread")]
async fn so_do_bodies_made_to_take_much() {
    let mut rig = Rig::shared().await;
    rig.start("ingress", &["ingress"]).await;
    let address = rig.env["POSTRIDER_HTTP_ADDR"].clone();
    let warm = Call::post(&rig, "/v1/imports", "warm", json!({"csv": "email\nwarm@example.com\n"}));
    assert_eq!(warm.send(&rig, &address).await.status, 200);
    let of_text = |key: &str, text: &str| {
        let mut call = Call::post(&rig, "/v1/imports", key, json!({}));
        call.body = format!(r#"{{"product_tenant_id":"{}","csv":[{text}0]}}"#, rig.client.tenant());
        call
    };
    let tags: Vec<String> = (0..100).map(|n| format!("t{n}")).collect();
    let row = |n: usize| format!("tags-{n}@example.com,{}\n", tags.join(";"));
    let csv = format!("email,tags\n{}", (0..15_000).map(row).collect::<String>());
    let calls = [
        of_text("numbers", &"0,".repeat(12 * MIB)),
        of_text("objects", &r#"{"":0},"#.repeat(3 * MIB)),
        Call::post(&rig, "/v1/imports", "tags", json!({"csv": csv, "operation": "verification_only"})),
    ];
    let statuses: Vec<u16> = within_its_memory(&rig, &calls).await.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [400, 400, 200]);
}

/// A commit of attachments that takes its time, as on a disk that stands still.
const SLOW_COMMIT: &str = "
    create function take_time() returns trigger language plpgsql as 'begin perform pg_sleep(2); return null; end';
    create constraint trigger slow_commit after insert on message_attachments
        deferrable initially deferred for each row execute function take_time();
";

/// A message with as much as it may carry: decoded, looked at, encoded for the mail and stored, however long the disk takes.
#[tokio::test(flavor = "multi_thread")]
async fn so_does_a_message_with_all_it_may_carry() {
    const BODIES: usize = 3;
    let mut rig = Rig::shared().await.with("MESSAGE_TIMEOUT", "1s");
    sqlx::raw_sql(SLOW_COMMIT).execute(&rig.pool).await.unwrap();
    rig.start("ingress", &["ingress"]).await;
    let address = rig.env["POSTRIDER_HTTP_ADDR"].clone();
    let message = |bytes: usize| {
        let text = "0123456789abcde\n".repeat(bytes / 16);
        json!({
            "sender_id": rig.sender_id, "to": [{"email": "large@example.com"}], "subject": "Large", "html": "<p>Large</p>",
            "message_class": "business",
            "attachments": [{"filename": "a.txt", "content_base64": STANDARD.encode(text), "content_type": "text/plain"}],
        })
    };
    // No stage is there to send it: it is committed, and not decided yet.
    let warm = Call::post(&rig, "/v1/messages", "warm", message(16));
    assert_eq!(warm.send(&rig, &address).await.status, 504);
    let calls: Vec<Call> = (0..BODIES)
        .map(|n| Call::post(&rig, "/v1/messages", &format!("large-{n}"), message(15 * MIB - 1024)))
        .collect();
    for answer in within_its_memory(&rig, &calls).await {
        assert!(answer.status == 504, "{answer:?}");
    }
    let stored: i64 =
        sqlx::query_scalar("select count(*) from message_attachments").fetch_one(&rig.pool).await.unwrap();
    assert_eq!(stored, 1 + i64::try_from(BODIES).unwrap());
}
