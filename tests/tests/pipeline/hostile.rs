//! What strangers send to stop the engine: each attack is answered, and meanwhile the engine lives, stays within its memory, serves
//! another tenant, and loses nothing.

use std::{
    future::Future,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{StreamExt, future::join_all};
use pipeline::{Client, Rig, eventually, measure, process};
use serde_json::{Value, json};

use crate::aftermath::deliver_inbound;

/// Most memory of its own the engine may hold during an attack, in MiB.
const MEMORY_MAX_MIB: f64 = 256.0;
/// Longest an attacker or a neighbour waits for an answer. Far above what either takes: it only tells "slow" from "stopped".
const ANSWER_MAX: Duration = Duration::from_secs(90);
const WITHIN: Duration = Duration::from_secs(60);
const FEEDBACK: &str = "fbl@bounces.example";

/// An engine in one process, its inbound SMTP server, and a tenant next to the attacker's.
struct Target {
    rig: Rig,
    neighbour: Client,
    inbound: SocketAddr,
}

impl Target {
    async fn start() -> Self {
        let inbound = SocketAddr::from(([127, 0, 0, 1], devtools::servers::free_port()));
        let mut rig = Rig::shared()
            .await
            .with("INBOUND_ADDR", &inbound.to_string())
            .with("INBOUND_FEEDBACK_ADDRESS", FEEDBACK)
            .with("MESSAGE_RATE_PER_HOUR", "1000");
        rig.start_all().await;
        let issued = process::run(
            &["key", "issue", "--product", "demo", "--environment", "sandbox", "--json"],
            &rig.operator_env(),
        );
        let issued: Value = serde_json::from_str(issued.lines().next().unwrap()).unwrap();
        let neighbour = Client::new(&rig.base_url, "demo", "sandbox", issued["key"].as_str().unwrap(), "demo-tenant");
        Self { rig, neighbour, inbound }
    }

    /// Runs an attack while the neighbour reads. Every read is answered, the process lives, and its memory stays in bounds.
    async fn withstands<T>(&self, name: &str, attack: impl Future<Output = T>) -> T {
        let pid = self.rig.processes["all"].pid();
        let over = AtomicBool::new(false);
        let attacked = async {
            let answer = attack.await;
            over.store(true, Ordering::Relaxed);
            answer
        };
        let watched = async {
            let mut peak = 0_f64;
            while !over.load(Ordering::Relaxed) {
                peak = peak.max(measure::own_mib(pid));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            peak
        };
        let served = async {
            let mut times = Vec::new();
            while times.is_empty() || !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let read = self.neighbour.get("/v1/contacts", &[("limit", "1")]);
                tokio::time::timeout(ANSWER_MAX, read).await.expect("the neighbour waits in vain").expect(200);
                times.push(begun.elapsed());
            }
            times.sort_unstable();
            times
        };
        let (answer, peak, times) = tokio::join!(attacked, watched, served);
        let p99 = times[(times.len() * 99 / 100).min(times.len() - 1)];
        #[allow(clippy::print_stdout, reason = "the figures of a run")]
        {
            println!("{name}: peak {peak:.0} MiB, {} reads of a neighbour, p99 {} ms", times.len(), p99.as_millis());
        }
        assert!(peak <= MEMORY_MAX_MIB, "{name}: the engine held {peak:.0} MiB");
        assert!(measure::own_mib(pid) > 0.0, "{name}: the process is gone\n{}", self.rig.processes["all"].log_end());
        answer
    }

    /// Sends these at once; every one is answered in time. Their statuses.
    async fn statuses(&self, path: &str, bodies: Vec<Value>) -> Vec<u16> {
        let calls = bodies.into_iter().map(|body| async move {
            let answer = tokio::time::timeout(ANSWER_MAX, self.rig.client.try_post(path, body)).await;
            answer.expect("no answer in time").unwrap().status.as_u16()
        });
        join_all(calls).await
    }

    async fn template(&self, name: &str, html: &str) -> Value {
        let body = json!({"name": name, "template_type": "transactional", "subject": "Hello", "body_html": html});
        self.rig.client.post("/v1/templates", body).await.expect(201)["template_id"].clone()
    }
}

/// A report in `message/rfc822` in `message/rfc822` …, so many levels deep.
fn nested_mail(levels: usize, encoded: bool) -> String {
    let inner = "Content-Type: message/rfc822\r\n\r\n".repeat(levels) + "Subject: x\r\n\r\nx\r\n";
    if !encoded {
        return inner;
    }
    let lines: Vec<String> = STANDARD
        .encode(inner)
        .as_bytes()
        .chunks(76)
        .map(|line| String::from_utf8_lossy(line).into_owned() + "\r\n")
        .collect();
    format!("Content-Type: message/rfc822\r\nContent-Transfer-Encoding: base64\r\n\r\n{}", lines.concat())
}

/// A part whose boundary never comes, so many times.
fn unclosed_multiparts(count: usize) -> String {
    "Content-Type: multipart/mixed; boundary=z\r\n\r\n--z\r\n".repeat(count)
}

/// One header with so many continued parameters.
fn continued_parameters(count: usize) -> String {
    let parameters: String = (0..count).map(|n| format!(" a{n}*1=x;\r\n")).collect();
    format!("Content-Type: text/plain;\r\n{parameters} b=c\r\n\r\nx\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn inbound_mail_that_nests_costs_itself_only() {
    let target = Target::start().await;
    let rig = &target.rig;
    let (list, people) = rig.list_of(12, "bounce", "example.com").await;
    let campaign = rig.campaign(list, "News", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", WITHIN).await;
    let mut return_paths = Vec::new();
    for address in &people {
        let mail = &rig.sink.messages_to(address).await[0];
        return_paths.push(mail["from"].as_str().unwrap().to_owned());
    }
    let (poisoned, innocent) = return_paths.split_at(4);
    let attack = async {
        let hostile = [
            nested_mail(6_000, true),
            nested_mail(6_000, false),
            unclosed_multiparts(4_000),
            continued_parameters(20_000),
        ];
        for (path, mail) in poisoned.iter().zip(&hostile) {
            deliver_inbound(target.inbound, "", path, mail).await;
        }
        for mail in &hostile {
            // Whatever the feedback address answers to it: it answers.
            deliver_inbound(target.inbound, "", FEEDBACK, mail).await;
        }
        for (n, path) in innocent.iter().enumerate() {
            let report = format!(
                "From: MAILER-DAEMON@mx.example\r\nTo: <{path}>\r\nSubject: Undelivered\r\nMIME-Version: 1.0\r\n\
                 Content-Type: multipart/report; report-type=delivery-status; boundary=\"b\"\r\n\r\n--b\r\n\
                 Content-Type: text/plain\r\n\r\nNo such user.\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n\
                 Reporting-MTA: dns; mx.example\r\n\r\nFinal-Recipient: rfc822; bounce-{}@example.com\r\n\
                 Action: failed\r\nStatus: 5.1.1\r\nDiagnostic-Code: smtp; 550 5.1.1 No such user\r\n\r\n--b--\r\n",
                n + 4
            );
            let reply = deliver_inbound(target.inbound, "", path, &report).await;
            assert!(reply.starts_with("250"), "{reply}");
        }
        eventually("every bounce to be known", WITHIN, || async {
            let bounced: i64 = sqlx::query_scalar("select count(*) from suppressions where reason = 'hard_bounce'")
                .fetch_one(&rig.pool)
                .await
                .ok()?;
            (bounced == innocent.len() as i64).then_some(())
        })
        .await;
    };
    target.withstands("inbound mail", attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_over_large_data_is_stopped_and_others_are_served() {
    let target = Target::start().await;
    let alternatives = format!("{{% when 1{} %}}", ",1".repeat(1_900));
    let case = format!("<p>{{% case data.big %}}{}{{% endcase %}}</p>", alternatives.repeat(100));
    let refused = json!({"name": "case", "template_type": "transactional", "subject": "Hello", "body_html": case});
    let big: Vec<u8> = vec![2; 400_000];
    let repeated =
        target.template("repeated", "<p>{% for x in data.big %}{% if data.big == data.big %}{{ data.big | uniq | join }}{% endif %}{% endfor %}</p>");
    let repeated = repeated.await;
    let attack = async {
        let saved = target.rig.client.try_post("/v1/templates", refused).await.unwrap();
        if saved.status == 201 {
            let path = format!("/v1/templates/{}/render", saved.body["template_id"].as_str().unwrap());
            target.statuses(&path, vec![json!({"data": {"big": big}}); 16]).await;
        }
        let path = format!("/v1/templates/{}/render", repeated.as_str().unwrap());
        for size in [9_000, 400_000] {
            target.statuses(&path, vec![json!({"data": {"big": vec![2; size]}}); 16]).await;
        }
    };
    target.withstands("merge data", attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn template_sources_that_never_close_are_refused_at_once() {
    let target = Target::start().await;
    let hostile = [
        format!("{{% raw %}}{} %}}", "{%".repeat(240_000)),
        format!("{{% comment %}}{} %}}", "{%".repeat(240_000)),
        (0..60_000).map(|n| format!("qz{n}x")).collect::<String>(),
        "<div>".repeat(90_000),
        "<a href=".repeat(60_000),
        "&amp".repeat(120_000),
        "<!--".repeat(120_000),
    ];
    let bodies = hostile.iter().map(|html| json!({"name": "hostile", "subject": "Hello", "body_html": html})).collect();
    let statuses = target.withstands("template sources", target.statuses("/v1/templates", bodies)).await;
    assert!(statuses.iter().all(|status| matches!(status, 201 | 400)), "{statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_commas_is_refused_before_it_is_built() {
    let target = Target::start().await;
    let files = [
        format!("email{}", ",".repeat(31_000_000)),
        format!("email,first_name\na@example.com{}", ",".repeat(31_000_000)),
        format!("email\n\"{}", "a".repeat(31_000_000)),
    ];
    for file in files {
        let bodies = vec![json!({"csv": file})];
        let statuses = target.withstands("csv", target.statuses("/v1/imports", bodies)).await;
        assert!(statuses.iter().all(|status| matches!(status, 200 | 400 | 413)), "{statuses:?}");
    }
}

/// An object stream that unpacks to so many bytes.
fn packed_pdf(unpacked: usize) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..unpacked >> 20 {
        packer.write_all(&zeros).unwrap();
    }
    let mut pdf = b"%PDF-1.4\n1 0 obj<</Type/ObjStm/N 1/First 1/Filter/FlateDecode>>stream\n".to_vec();
    pdf.extend(packer.finish().unwrap());
    pdf.extend(b"\nendstream endobj\n%%EOF");
    pdf
}

#[tokio::test(flavor = "multi_thread")]
async fn attachments_that_unpack_to_much_are_read_within_one_memory() {
    let target = Target::start().await;
    let message = |pdf: &[u8]| {
        json!({
            "sender_id": target.rig.sender_id, "to": [{"email": "ann@example.com"}], "subject": "Papers",
            "html": "<p>Here</p>", "message_class": "business",
            "attachments": [{"filename": "a.pdf", "content_type": "application/pdf", "content_base64": STANDARD.encode(pdf)}],
        })
    };
    let packed = message(&packed_pdf(64 << 20));
    let statuses = target.withstands("packed attachments", target.statuses("/v1/messages", vec![packed; 16])).await;
    assert!(statuses.iter().all(|status| matches!(status, 200 | 400 | 413 | 429 | 503)), "{statuses:?}");

    let mut scanned = b"%PDF-1.4\n1 0 obj ".to_vec();
    for _ in 0..1_000 {
        scanned.extend(b"/First ".repeat(585));
        scanned.extend(b"stream\n");
    }
    scanned.extend(b"%%EOF");
    let large: Vec<u8> = [b"%PDF-1.4\n".as_slice(), &b"% harmless\n".repeat(180_000), b"%%EOF"].concat();
    let bodies = vec![message(&scanned), message(&large)];
    let statuses = target.withstands("scanned attachments", target.statuses("/v1/messages", bodies)).await;
    assert!(matches!(statuses[0], 200 | 400 | 413), "{statuses:?}");
    assert!(statuses[1] < 500, "a good message beside it: {statuses:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_eight_megabytes_are_answered_within_the_memory() {
    const CALLS: usize = 40;
    // What the server has not handed to the engine yet, in calls: it cuts off a client with more than 64 MB waiting.
    const ON_THE_WAY: usize = 4;
    let target = Target::start().await;
    let env = |name: &str| target.rig.env[name].as_str();
    let client = async_nats::connect(env("POSTRIDER_NATS_URL")).await.unwrap();
    let subject = |call: &str| format!("{}mail.v1.api.demo.{call}", env("POSTRIDER_STREAM_PREFIX"));
    let status =
        |answer: &async_nats::Message| answer.headers.as_ref()?.get("Mail-Status")?.as_str().parse::<u16>().ok();
    let resolve = Bytes::from(json!({"product_tenant_id": target.neighbour.tenant()}).to_string());
    let small = async || {
        let answer = client.request(subject("sandbox.tenant.resolve"), resolve.clone()).await.ok()?;
        status(&answer).filter(|status| *status == 200)
    };
    eventually("the API to be offered on the bus", WITHIN, &small).await;
    // Of no tenant, so that a call that is read costs no more than its reading.
    let large = json!({
        "product_tenant_id": "nobody", "sender_id": target.rig.sender_id, "subject": "Papers",
        "to": [{"email": "ann@example.com"}], "html": "<p>Here</p>", "message_class": "business",
        "attachments": [{"filename": "a.txt", "content_base64": "QUFB".repeat(2_000_000)}],
    });
    let large = Bytes::from(large.to_string());
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.unwrap();
    let attack = async {
        for n in 0..CALLS {
            client.publish_with_reply(subject("production.message"), inbox.clone(), large.clone()).await.unwrap();
            if n % ON_THE_WAY == ON_THE_WAY - 1 {
                assert_eq!(small().await, Some(200), "another's call is answered behind {n} large ones");
            }
        }
        let mut statuses = Vec::new();
        while statuses.len() < CALLS {
            let answer = tokio::time::timeout(WITHIN, answers.next()).await.expect("each is answered").unwrap();
            statuses.push(status(&answer).unwrap());
        }
        statuses
    };
    let statuses = target.withstands("calls over the bus", attack).await;
    let count = |status| statuses.iter().filter(|answered| **answered == status).count();
    assert!(count(404) > 0 && count(503) > 0 && count(404) + count(503) == CALLS, "{statuses:?}");
}
