//! The client for addresses that customers name, against servers that would notice.

use std::{net::SocketAddr, time::Duration};

use crate::receivers::{Dns, Receiver, Tls, answer};
use bytes::Bytes;
use chrono::Utc;
use http::{HeaderMap, HeaderValue};
use rstest::rstest;
use runtime::{
    Outbound, OutboundError, OutboundSettings,
    outbound::{OutboundAnswer, OutboundLimits, TargetFault, retry_after},
};

const HERE: &[&str] = &["127.0.0.0/8", "::1/128"];

fn settings(allowed: &[&str]) -> OutboundSettings {
    let webhook_allow_networks = allowed.iter().map(|text| text.parse().unwrap()).collect();
    OutboundSettings { webhook_allow_networks, ..OutboundSettings::default() }
}

fn client(allowed: &[&str]) -> Outbound {
    Outbound::new(&settings(allowed)).unwrap()
}

fn asking(dns: &Dns, allowed: &[&str]) -> Outbound {
    Outbound::new(&OutboundSettings { dns_servers: vec![dns.address], ..settings(allowed) }).unwrap()
}

async fn post(client: &Outbound, url: &str) -> Result<OutboundAnswer, OutboundError> {
    let limits = OutboundLimits { timeout: Duration::from_secs(20), ..OutboundLimits::default() };
    client.post(&url.parse().unwrap(), HeaderMap::new(), Bytes::from_static(b"{}"), limits).await
}

/// Every way to write or to wrap an address that is not public.
const LITERALS: &str = "
    127.0.0.1 127.0.0.2 127.1 127.0.1 0x7f.1 0x7f000001 0x7F.0x0.0x0.0x1 017700000001 0177.0.0.01 2130706433
    127.0.0.1. 127.000.000.001 %31%32%37.0.0.1 ①②⑦.⓪.⓪.① 127。0。0。1 0 0.0.0.0 10.0.0.1 100.64.0.1 100.100.100.200
    168.63.129.16 169.254.169.254 0xa9fea9fe 2852039166 172.16.0.1 192.0.0.192 192.168.1.1 198.18.0.1 224.0.0.1
    255.255.255.255 [::] [::1] [0:0:0:0:0:0:0:1] [::127.0.0.1] [::ffff:127.0.0.1] [::ffff:7f00:1]
    [::ffff:169.254.169.254] [64:ff9b::127.0.0.1] [64:ff9b::a9fe:a9fe] [64:ff9b:1::7f00:1]
    [2001:0:53aa:64c:0:fffe:f5ff:fffe] [2002:7f00:1::1] [2002:a9fe:a9fe::] [fc00::1] [fd00:ec2::254] [fe80::1]
    [fec0::1] [ff02::1] [2001:db8::1] localhost LOCALHOST localhost. a.localhost metadata.google.internal intranet";

#[tokio::test]
async fn no_private_address_is_dialled_however_it_is_written() {
    let receiver = Receiver::start(answer(200, "")).await;
    let beside = Receiver::at("[::1]:0", answer(200, "")).await;
    let client = client(&[]);
    assert!(LITERALS.split_whitespace().count() >= 40);
    for host in LITERALS.split_whitespace() {
        for port in [receiver.address.port(), beside.address.port()] {
            let refused = post(&client, &format!("https://{host}:{port}/")).await.unwrap_err();
            assert_eq!(refused.code(), "address_not_allowed", "{host}: {refused:?}");
        }
    }
    assert_eq!((receiver.connections(), beside.connections()), (0, 0));
}

/// What a name may lead to. Which addresses are public is tested where the table of them is.
const ADDRESSES: &[&str] = &["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fd00:ec2::254"];

#[tokio::test]
async fn no_private_address_is_dialled_that_a_name_leads_to() {
    let receiver = Receiver::start(answer(200, "")).await;
    let beside = Receiver::at("[::1]:0", answer(200, "")).await;
    let dns = Dns::start().await;
    let client = asking(&dns, &[]);
    for (number, address) in ADDRESSES.iter().enumerate() {
        let name = format!("target-{number}.example.com");
        dns.always(&name, &[address.parse().unwrap()]);
        for port in [receiver.address.port(), beside.address.port()] {
            let refused = post(&client, &format!("https://{name}:{port}/")).await.unwrap_err();
            assert_eq!(refused, OutboundError::AddressNotAllowed, "{address}");
        }
    }
    let all: Vec<_> = ADDRESSES.iter().map(|address| address.parse().unwrap()).collect();
    dns.always("all.example.com", &all);
    assert_eq!(post(&client, "https://all.example.com/").await.unwrap_err(), OutboundError::AddressNotAllowed);
    assert_eq!((receiver.connections(), beside.connections()), (0, 0));
}

#[tokio::test]
async fn a_rebinding_name_reaches_no_new_address() {
    let target = Receiver::at("127.0.0.1:0", answer(200, "")).await;
    let port = target.address.port();
    // Its own answers are allowed, its neighbour's port is what it is after.
    let honest = Receiver::at(&format!("127.0.0.2:{port}"), answer(200, "honest")).await;
    let dns = Dns::start().await;
    dns.in_turn("rebind.example.com", &["127.0.0.2".parse().unwrap(), "127.0.0.1".parse().unwrap()]);
    let client = asking(&dns, &["127.0.0.2/32"]);
    let url = format!("http://rebind.example.com:{port}/");
    let (mut honest_answers, mut refusals) = (0, 0);
    for _ in 0..20 {
        match post(&client, &url).await {
            Ok(answer) => {
                assert_eq!(&answer.body[..], b"honest");
                honest_answers += 1;
                // Kept connections were checked when they were made; here each request is to need a new one.
                honest.hang_up();
            }
            Err(error) => {
                assert_eq!(error, OutboundError::AddressNotAllowed);
                refusals += 1;
            }
        }
    }
    assert!(honest_answers > 0 && refusals > 0, "{honest_answers} {refusals}");
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn of_a_names_addresses_only_the_permitted_one_is_dialled() {
    let target = Receiver::at("127.0.0.1:0", answer(200, "")).await;
    let port = target.address.port();
    let honest = Receiver::at(&format!("127.0.0.2:{port}"), answer(200, "honest")).await;
    let dns = Dns::start().await;
    dns.always("mixed.example.com", &["127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap()]);
    let client = asking(&dns, &["127.0.0.2/32"]);
    let found = post(&client, &format!("http://mixed.example.com:{port}/")).await.unwrap();
    assert_eq!(&found.body[..], b"honest");
    assert_eq!((target.connections(), honest.connections()), (0, 1));
}

#[tokio::test]
async fn plain_http_goes_to_allowed_networks_only_also_by_name() {
    let dns = Dns::start().await;
    dns.always("public.example.com", &["8.8.8.8".parse().unwrap()]);
    let client = asking(&dns, HERE);
    assert_eq!(post(&client, "http://public.example.com/").await.unwrap_err(), OutboundError::AddressNotAllowed);
    let refused = post(&client, "http://8.8.8.8/").await.unwrap_err();
    assert_eq!(refused, OutboundError::Target(TargetFault::NotHttps));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let target = Receiver::start(answer(200, "")).await;
    for status in [301, 302, 303, 307, 308] {
        let head =
            format!("HTTP/1.1 {status} Elsewhere\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n", target.address);
        let receiver = Receiver::start(head.into_bytes()).await;
        let found = post(&client(HERE), &receiver.url()).await.unwrap();
        assert_eq!(found.status.as_u16(), status);
    }
    assert_eq!(target.connections(), 0);
}

#[tokio::test]
async fn the_process_does_not_call_itself_whatever_is_allowed() {
    let own = Receiver::start(answer(200, "")).await;
    let settings = settings(HERE);
    let client = Outbound::new(&settings).unwrap();
    assert!(post(&client, &own.url()).await.is_ok());
    own.hang_up();
    settings.own_listeners.add(SocketAddr::from(([0, 0, 0, 0], own.address.port())));
    let before = own.connections();
    let client = Outbound::new(&settings).unwrap();
    assert_eq!(post(&client, &own.url()).await.unwrap_err(), OutboundError::AddressNotAllowed);
    assert_eq!(own.connections(), before);
    let refused = post(&client, "https://api.postrider.dev/").await.unwrap_err();
    assert_eq!(refused, OutboundError::Target(TargetFault::OwnHost));
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let receiver = Receiver::start(answer(204, "")).await;
    let client = client(HERE);
    for _ in 0..10 {
        assert_eq!(post(&client, &receiver.url()).await.unwrap().status.as_u16(), 204);
    }
    assert_eq!((receiver.connections(), receiver.requests()), (1, 10));
}

#[tokio::test]
async fn a_connection_that_the_other_side_closed_costs_no_request() {
    let receiver = Receiver::start(answer(200, "")).await;
    let client = client(HERE);
    for _ in 0..10 {
        assert!(post(&client, &receiver.url()).await.is_ok());
        receiver.hang_up();
    }
    assert_eq!(receiver.requests(), 10);
}

#[tokio::test]
async fn headers_and_body_arrive_unchanged() {
    let receiver = Receiver::start(answer(200, "thanks")).await;
    let mut headers = HeaderMap::new();
    headers.insert("x-service-event", HeaderValue::from_static("email.sent"));
    let url = format!("{}hook?a=b", receiver.url()).parse().unwrap();
    let found =
        client(HERE).post(&url, headers, Bytes::from_static(b"{\"a\":1}"), OutboundLimits::default()).await.unwrap();
    assert_eq!(&found.body[..], b"thanks");
    let seen = receiver.last_request();
    assert!(seen.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{seen}");
    for line in ["x-service-event: email.sent", "user-agent: postrider/", "content-length: 7", "host: 127.0.0.1:"] {
        assert!(seen.contains(line), "{line} in {seen}");
    }
    assert!(seen.ends_with("\r\n\r\n{\"a\":1}"), "{seen}");
}

#[tokio::test]
async fn of_a_long_answer_the_beginning_is_read() {
    let receiver = Receiver::start(answer(200, &"x".repeat(200_000))).await;
    let found = post(&client(HERE), &receiver.url()).await.unwrap();
    assert_eq!((found.status.as_u16(), found.body.len()), (200, 65_536));
}

#[tokio::test]
async fn an_endless_answer_ends_at_the_timeout() {
    let receiver = Receiver::start(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec()).await;
    let limits = OutboundLimits { timeout: Duration::from_millis(500), ..OutboundLimits::default() };
    let url = receiver.url().parse().unwrap();
    let found = client(HERE).post(&url, HeaderMap::new(), Bytes::new(), limits).await.unwrap();
    assert_eq!((found.status.as_u16(), &found.body[..]), (200, &b"half"[..]));
}

#[rstest]
#[case::silent("", OutboundError::TimedOut)]
#[case::not_http("220 mail.example.com ESMTP\r\n", OutboundError::AnswerMalformed)]
#[case::half_a_head("HTTP/1.1 200 OK\r\ncontent-le", OutboundError::TimedOut)]
#[tokio::test]
async fn no_answer_says_why(#[case] said: &str, #[case] expected: OutboundError) {
    let receiver = Receiver::start(said.as_bytes().to_vec()).await;
    let limits = OutboundLimits { timeout: Duration::from_secs(1), ..OutboundLimits::default() };
    let url = receiver.url().parse().unwrap();
    let error = client(HERE).post(&url, HeaderMap::new(), Bytes::new(), limits).await.unwrap_err();
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_head_without_end_is_not_read() {
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "x-a: b\r\n".repeat(50_000));
    let receiver = Receiver::start(endless.into_bytes()).await;
    assert_eq!(post(&client(HERE), &receiver.url()).await.unwrap_err(), OutboundError::AnswerTooLarge);
}

#[tokio::test]
async fn a_connection_that_breaks_or_is_refused_says_so() {
    let receiver = Receiver::that_hangs_up().await;
    assert_eq!(post(&client(HERE), &receiver.url()).await.unwrap_err(), OutboundError::ConnectionLost);
    // A port that was just given back.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(post(&client(HERE), &format!("http://{free}/")).await.unwrap_err(), OutboundError::ConnectFailed);
    let dns = Dns::start().await;
    let unknown = post(&asking(&dns, HERE), "https://nobody.example.com/").await.unwrap_err();
    assert_eq!(unknown, OutboundError::DnsFailed);
}

#[tokio::test]
async fn certificates_are_checked_for_authority_and_name() {
    let dns = Dns::start().await;
    for name in ["receiver.example.com", "other.example.com"] {
        dns.always(name, &["127.0.0.1".parse().unwrap()]);
    }
    let tls = Tls::of("receiver.example.com");
    let receiver = Receiver::start_tls(&tls, answer(200, "safe")).await;
    let port = receiver.address.port();
    let with = |ca_file| {
        let settings = OutboundSettings { dns_servers: vec![dns.address], webhook_ca_file: ca_file, ..settings(HERE) };
        Outbound::new(&settings).unwrap()
    };
    let trusting = with(Some(tls.ca_file.path().to_owned()));
    let found = post(&trusting, &format!("https://receiver.example.com:{port}/")).await.unwrap();
    assert_eq!(&found.body[..], b"safe");
    let wrong_name = post(&trusting, &format!("https://other.example.com:{port}/")).await.unwrap_err();
    let unknown_authority = post(&with(None), &format!("https://receiver.example.com:{port}/")).await.unwrap_err();
    assert_eq!((wrong_name, unknown_authority), (OutboundError::TlsFailed, OutboundError::TlsFailed));
}

#[rstest]
#[case("120", Some(120))]
#[case(" 0 ", Some(0))]
#[case("4294967296", Some(4_294_967_295))]
#[case("99999999999999999999999", Some(4_294_967_295))]
#[case("Thu, 01 Jan 2015 00:00:00 GMT", Some(0))]
#[case("soon", None)]
#[case("-5", None)]
#[tokio::test]
async fn retry_after_is_seconds_or_a_date(#[case] value: &str, #[case] seconds: Option<u64>) {
    let head = format!("HTTP/1.1 503 Busy\r\nretry-after: {value}\r\ncontent-length: 0\r\n\r\n");
    let receiver = Receiver::start(head.into_bytes()).await;
    let found = post(&client(HERE), &receiver.url()).await.unwrap();
    assert_eq!(retry_after(&found.headers, Utc::now()).map(|wait| wait.as_secs()), seconds);
}
