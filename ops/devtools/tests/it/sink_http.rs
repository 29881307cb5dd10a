//! The sink as tests and people see it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::smtp_client::{Client, connected, get_json, http, start};
use devtools::sink::{Sink, SinkOptions};
use serde_json::json;

const HOSTILE: &str = "From: <me@example.org>\r\n\
    Subject: <script>alert(1)</script>\r\n\
    X-Odd: \"><img src=x onerror=alert(2)>\r\n\
    List-Unsubscribe: <https://example.org/u/1?a=1&b=\"2>\r\n\
    List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n\
    Content-Type: text/html\r\n\r\n\
    <html><head></head><body><script>alert(3)</script><b>Hello</b></body></html>";

#[tokio::test]
async fn nothing_of_a_mail_is_markup_on_our_pages() {
    let (sink, mut client) = connected().await;
    client.mail("me@example.org", "\"<i>\"@example.com", HOSTILE).await;

    let (status, list) = http(&sink, "GET", "/", "").await;
    assert_eq!(status, 200);
    assert!(list.contains("&lt;script&gt;alert(1)"), "{list}");
    let (status, page) = http(&sink, "GET", "/inbox/1", "").await;
    assert_eq!(status, 200);
    for html in [&list, &page] {
        for forbidden in ["<script", "<img", "<i>", "b=\"2"] {
            assert!(!html.contains(forbidden), "{forbidden} in {html}");
        }
    }
    assert!(page.contains("One-click unsubscribe"), "{page}");
    assert!(page.contains("sandbox=\"allow-popups allow-popups-to-escape-sandbox\""));
}

#[tokio::test]
async fn the_rendered_mail_may_not_run_scripts() {
    let (sink, mut client) = connected().await;
    client.mail("me@example.org", "ann@example.com", HOSTILE).await;

    let mut stream = tokio::net::TcpStream::connect(sink.http_addr()).await.unwrap();
    let mut answer = String::new();
    {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        stream.write_all(b"GET /messages/1/html HTTP/1.0\r\n\r\n").await.unwrap();
        stream.read_to_string(&mut answer).await.unwrap();
    }
    let policy = answer.lines().find_map(|line| line.strip_prefix("content-security-policy: ")).unwrap();
    assert!(policy.starts_with("sandbox "), "{policy}");
    assert!(!policy.contains("allow-scripts"), "{policy}");
    assert!(answer.contains("<b>Hello</b>"));
}

#[tokio::test]
async fn a_mail_is_answered_parsed_and_as_received() {
    let (sink, mut client) = connected().await;
    let source = "Subject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\nX-Tag: one\r\n\r\nHi Ann";
    client.mail("me@example.org", "ann@example.com", source).await;
    client.mail("me@example.org", "bob@example.com", source).await;

    let list = get_json(&sink, "/messages?to=ANN@example.com&limit=10").await;
    assert_eq!(list["messages"].as_array().unwrap().len(), 1);
    let id = list["messages"][0]["id"].as_u64().unwrap();
    let mail = get_json(&sink, &format!("/messages/{id}")).await;
    assert_eq!(mail["subject"], "Grüße");
    assert_eq!(mail["from"], "me@example.org");
    assert_eq!(mail["to"], json!(["ann@example.com"]));
    assert_eq!(mail["text"].as_str().unwrap().trim(), "Hi Ann");
    assert_eq!(mail["html"], json!(null));
    let tag = json!({"name": "X-Tag", "value": "one"});
    assert!(mail["headers"].as_array().unwrap().contains(&tag));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let age = now.as_micros() - u128::from(mail["accepted_at_us"].as_u64().unwrap());
    assert!(age < 60_000_000, "{age} µs");

    let (_, raw) = http(&sink, "GET", &format!("/messages/{id}/source"), "").await;
    assert_eq!(raw, format!("{source}\r\n"));
    assert_eq!(http(&sink, "GET", "/messages/99", "").await.0, 404);
    assert_eq!(http(&sink, "GET", &format!("/messages/{id}/html"), "").await.0, 404);
}

#[tokio::test]
async fn counts_are_answered_for_many_addresses_at_once() {
    let (sink, mut client) = connected().await;
    for to in ["ann", "bob", "ann"] {
        client.mail("", &format!("{to}@example.com"), "Subject: x\r\n\r\nx").await;
    }
    let asked = r#"["ann@example.com","bob@example.com","cid@example.com"]"#;

    let (_, body) = http(&sink, "POST", "/counts", asked).await;
    let all: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&all["checked"], &all["matching"]), (&json!(3), &json!(3)));
    let ann = &all["counts"][0];
    assert_eq!(ann["count"], 2);
    assert!(ann["first_at_us"].as_u64() <= ann["last_at_us"].as_u64());
    assert_eq!(all["counts"][2]["first_at_us"], json!(null));

    let (_, body) = http(&sink, "POST", "/counts?not=1", asked).await;
    let odd: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&odd["checked"], &odd["matching"]), (&json!(3), &json!(2)));

    let one = get_json(&sink, "/count?address=bob%40example.com").await;
    assert_eq!(one["count"], 1);
    let stats = get_json(&sink, "/stats").await;
    assert_eq!((&stats["accepted"], &stats["distinct"]), (&json!(3), &json!(2)));

    assert_eq!(http(&sink, "DELETE", "/messages", "").await.0, 204);
    assert_eq!(get_json(&sink, "/stats").await["accepted"], 0);
}

#[tokio::test]
async fn a_waiting_caller_is_woken_by_the_mail_it_waits_for() {
    let sink = start().await;
    let waiting = tokio::join!(
        get_json(&sink, "/wait?accepted=2&timeout_ms=20000"),
        get_json(&sink, "/wait?address=bob@example.com&timeout_ms=20000"),
        async {
            let mut client = Client::connect(&sink).await;
            for to in ["ann", "bob"] {
                client.mail("", &format!("{to}@example.com"), "Subject: x\r\n\r\nx").await;
            }
        }
    );
    assert_eq!(waiting.0["reached"], true);
    assert_eq!(waiting.1["reached"], true);

    let never = get_json(&sink, "/wait?accepted=3&timeout_ms=10").await;
    assert_eq!(never, json!({"reached": false, "accepted": 2}));
    assert!(sink.inbox().wait_for_address("ANN@example.com", 1, Duration::ZERO).await);
    assert_eq!(http(&sink, "GET", "/wait", "").await.0, 400);
}

#[tokio::test]
async fn a_faulty_file_of_rules_stops_the_start() {
    let path = std::env::temp_dir().join(format!("rules-{}.json", std::process::id()));
    std::fs::write(&path, r#"[{"match": "all", "stage": "dot"}]"#).unwrap();
    let options = SinkOptions { rules: Some(path.clone()), ..SinkOptions::default() };
    let error = Sink::start(options).await.unwrap_err();
    std::fs::remove_file(path).unwrap();
    assert!(format!("{error:#}").contains("a reply, an action or a delay_ms"), "{error:#}");
}

#[tokio::test]
async fn a_stopped_sink_frees_its_ports() {
    let sink = start().await;
    let options = SinkOptions { smtp_addr: sink.smtp_addr(), http_addr: sink.http_addr(), ..SinkOptions::default() };
    let mut client = Client::connect(&sink).await;
    sink.stop().await;
    assert_eq!(client.say("NOOP").await, None);
    Sink::start(options).await.unwrap();
}
