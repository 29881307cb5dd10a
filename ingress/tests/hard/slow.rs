//! Clients that take their time, and many that do nothing.

use std::time::{Duration, Instant};

use http::Method;
use rstest::rstest;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    common::settings,
    wire::{PATIENCE, Wire, exchange, statuses},
};

/// What the client may take for its headers, and then for its body.
const ALLOWED: Duration = Duration::from_millis(700);

async fn impatient() -> Wire {
    let mut settings = settings();
    settings.http_body_timeout = ALLOWED;
    Wire::with(settings).await
}

/// Writes byte by byte, and answers what came back and when the connection was over.
async fn drip(wire: &Wire, whole: &[u8], drops: &[u8]) -> (Vec<u8>, Duration) {
    let mut stream = wire.connect().await;
    let begun = Instant::now();
    stream.write_all(whole).await.unwrap();
    let (mut read, mut write) = stream.split();
    let mut answer = Vec::new();
    let mut buffer = [0; 4_096];
    let mut drops = drops.iter();
    loop {
        tokio::select! {
            count = read.read(&mut buffer) => match count {
                Ok(0) | Err(_) => return (answer, begun.elapsed()),
                Ok(count) => answer.extend_from_slice(&buffer[..count]),
            },
            () = tokio::time::sleep(Duration::from_millis(50)) => {
                if let Some(drop) = drops.next() {
                    let _ = write.write_all(&[*drop]).await;
                }
            }
        }
        assert!(begun.elapsed() < PATIENCE, "never cut off; {:?}", String::from_utf8_lossy(&answer));
    }
}

#[rstest]
#[case::no_line(b"".as_slice())]
#[case::half_a_method(b"PO")]
#[case::half_the_http2_preface(b"PRI * HTT")]
#[case::half_a_head(b"POST /v1/contacts HTTP/1.1\r\nhost: x\r\n")]
#[tokio::test]
async fn headers_that_do_not_come_are_cut_off(#[case] begun: &[u8]) {
    let wire = impatient().await;
    let (answer, _) = drip(&wire, begun, if begun.ends_with(b"\r\n") { &[b'a'; 1_000] } else { b"" }).await;
    if begun.ends_with(b"\r\n") {
        assert_eq!(statuses(&answer), [408], "{}", String::from_utf8_lossy(&answer));
    }
    if begun.is_empty() {
        assert!(answer.is_empty(), "an idle connection hears nothing");
    }
    wire.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_a_408() {
    let wire = impatient().await;
    let body = json!({"product_tenant_id": "tenant-1", "email": "ann@example.com"}).to_string();
    let whole = wire.signed(Method::POST, "/v1/contacts", body.as_bytes(), &[]).await;
    let (head, rest) = whole.split_at(whole.len() - 30);
    let (answer, after) = drip(&wire, head, rest).await;
    assert_eq!(statuses(&answer), [408], "{}", String::from_utf8_lossy(&answer));
    assert!(after >= ALLOWED, "{after:?}");
    let edge = wire.stop().await;
    assert_eq!(edge.count("select count(*) from contacts").await, 0);
}

#[tokio::test]
async fn a_connection_is_kept_between_requests_and_a_slow_second_one_is_cut_off() {
    let wire = impatient().await;
    let mut stream = wire.connect().await;
    let mut buffer = vec![0; 4_096];
    for _ in 0..3 {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let count = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert_eq!(statuses(&buffer[..count]), [200]);
        // Longer than headers may take: an idle connection is not a slow one.
        tokio::time::sleep(ALLOWED + ALLOWED / 2).await;
    }
    stream.write_all(b"GET /health HTTP/1.1\r\nhos").await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(statuses(&answer), [408]);
    wire.stop().await;
}

#[tokio::test]
async fn many_idle_connections_take_nobody_elses_place() {
    let wire = impatient().await;
    let mut idle = Vec::new();
    for _ in 0..400 {
        idle.push(wire.connect().await);
    }
    assert_eq!(statuses(&exchange(wire.address, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await), [200]);
    for mut stream in idle {
        let mut rest = Vec::new();
        let _ =
            tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("an idle connection is closed");
    }
    wire.stop().await;
}

#[rstest]
#[case::of_all(10, 1_000)]
#[case::of_one_address(1_000, 10)]
#[tokio::test]
async fn connections_are_bounded_and_free_again(#[case] of_all: usize, #[case] of_one: usize) {
    let mut settings = settings();
    (settings.http_connections, settings.http_connections_per_address) = (of_all, of_one);
    let wire = Wire::with(settings).await;
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut stream = wire.connect().await;
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut buffer = [0; 4_096];
        assert!(tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.unwrap().unwrap() > 0);
        held.push(stream);
    }
    assert_eq!(statuses(&exchange(wire.address, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await), Vec::<u16>::new());
    drop(held);
    let deadline = Instant::now() + PATIENCE;
    while statuses(&exchange(wire.address, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await)
        != [200]
    {
        assert!(Instant::now() < deadline, "places are never free again");
    }
    wire.stop().await;
}

#[tokio::test]
async fn the_connections_of_a_proxy_are_those_of_many_clients() {
    let mut settings = settings();
    settings.http_connections_per_address = 1;
    settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    let wire = Wire::with(settings).await;
    let _held = [wire.connect().await, wire.connect().await];
    assert_eq!(statuses(&exchange(wire.address, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await), [200]);
    wire.stop().await;
}

#[tokio::test]
async fn over_http2_a_client_that_only_pings_is_idle() {
    let wire = impatient().await;
    let mut stream = wire.connect().await;
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    hello.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    stream.write_all(&hello).await.unwrap();
    let (mut read, mut write) = stream.split();
    let pings = async {
        for _ in 0..1_000 {
            let _ = write.write_all(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]).await;
            tokio::time::sleep(ALLOWED / 10).await;
        }
    };
    let mut answers = Vec::new();
    tokio::select! {
        () = pings => {}
        // Sooner than hyper gives up a client that does not answer pings.
        ended = tokio::time::timeout(Duration::from_secs(10), read.read_to_end(&mut answers)) => {
            assert!(ended.is_ok(), "never cut off");
        }
    }
    assert!(answers.len() > 9 + 17, "pings were answered");
    wire.stop().await;
}

#[tokio::test]
async fn a_refusal_arrives_while_the_body_is_still_on_its_way() {
    let wire = Wire::start().await;
    let body = vec![b'x'; 40 * 1024 * 1024];
    let mut whole = wire.signed(Method::POST, "/v1/imports", b"{}", &[]).await;
    let at = whole.windows(17).position(|part| part == b"content-length: 2").unwrap();
    whole.truncate(at);
    whole.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    whole.extend_from_slice(&body);
    let answer = exchange(wire.address, &whole).await;
    assert_eq!(statuses(&answer), [413], "{}", String::from_utf8_lossy(&answer));
    wire.stop().await;
}

#[tokio::test]
async fn over_http2_a_client_may_send_little_before_it_is_read() {
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    const INITIAL_WINDOW_SIZE: u16 = 4;
    const PING: u8 = 6;
    let wire = Wire::start().await;
    let mut stream = wire.connect().await;
    // The preface, no settings, and a ping: its answer comes after all that the server says of windows.
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    hello.extend_from_slice(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]);
    hello.extend_from_slice(&[0, 0, 8, PING, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    stream.write_all(&hello).await.unwrap();
    // What the protocol gives without a word.
    let (mut of_stream, mut of_connection) = (65_535, 65_535);
    loop {
        let mut head = [0; 9];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().unwrap();
        let mut frame = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut frame)).await.unwrap().unwrap();
        let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        match head[3] {
            SETTINGS => {
                for setting in frame.chunks(6).filter(|setting| number(&setting[..2]) == u32::from(INITIAL_WINDOW_SIZE))
                {
                    of_stream = number(&setting[2..]);
                }
            }
            WINDOW_UPDATE => of_connection += number(&frame),
            PING => break,
            _ => {}
        }
    }
    assert!(of_stream <= 64 * 1024 && of_connection <= 64 * 1024, "{of_stream} {of_connection}");
    drop(stream);
    wire.stop().await;
}
