//! What needs a fixed clock.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use runtime::{Outbound, OutboundSettings};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
};

use super::{super::connection::HookConnection, EventCheck, EventRefusal, Sns, fault, proof::is_fresh, sns::region};

const TOPIC: &str = "arn:aws:sns:us-west-2:123456789012:MyTopic";
/// Made with openssl: a certificate of its own, and a signature of version 1 (RSA over SHA-1), which aws-lc-rs does not make.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIDGTCCAgGgAwIBAgIUG7iFPeCYj1b0NPtF75ypyLQO7fcwDQYJKoZIhvcNAQEL\n\
BQAwHDEaMBgGA1UEAwwRc25zLmFtYXpvbmF3cy5jb20wHhcNMjYxMTIyMDIxMDIz\n\
WhcNMzYxMTE5MDIxMDIzWjAcMRowGAYDVQQDDBFzbnMuYW1hem9uYXdzLmNvbTCC\n\
ASIwDQYJKoZIhvcNAQEBBQADggEPADCCAQoCggEBALAj004J5KVHthxaFF0Wk7ou\n\
pZ6etXmS7TFDrJnoS+q24mQo6r8oy72TXteCbTlPJ9yQR521Xpn91E3PUX6bqdNc\n\
gsDzXjmXL1lEpsNg/fLTn4V88e3qd5JYCB0kCaRwLaprLAODfLhDxCk2mPE1delP\n\
NxR95Z/9yeuQNlDS3QhLd90IUlsoI9/8yq9iOh1G7RHO4BhoYf4jvgxrtsghMkpQ\n\
ErR6/COiXad6dUknmdCPV2zEDHfxGvSA2jvfx1Jbs1+1i7WX7+cKNU8OKjNzpXPQ\n\
jrs1P8f7dS1bttu4ftuytMGH60tTZJyq0yI6Jtw29prCuAmZTgxrjEcZ8+hj32cC\n\
AwEAAaNTMFEwHQYDVR0OBBYEFKCq+/l6VfNDEnBAMMFovoogejc1MB8GA1UdIwQY\n\
MBaAFKCq+/l6VfNDEnBAMMFovoogejc1MA8GA1UdEwEB/wQFMAMBAf8wDQYJKoZI\n\
hvcNAQELBQADggEBAEokPo1rKMAZbNOwhBIjIZFQLBY0EX2T3uq+nzo8w+F4RWGU\n\
q8faMmVERhONUarNh1sjCLmOzEgsnUNQKrl5ihRcb8SBxtpqcEOwGxzVpR/mfhwB\n\
CoyhoI3t1OBvj6ucPBqRL4x6eZ59Naf51iI5LpokEr/2bd91VnI0hN0SNO8gWsJX\n\
kFNiqG0aEXCQHqCwuATtQST3K3XW8DXZKD4iRkscbf+YkB5R/rOr9psqIy/zdaT4\n\
G/ZL/ZGZ4diUT6n6w0oQPM6vnCcelO1QmuH70396hDHLR/q1GMVSK8746Zy9erTP\n\
2ZNzGy8rIa/74Mcy344G3Qbq+UOML9aI6NESAhs=\n\
-----END CERTIFICATE-----\n";
const SIGNATURE: &str = "GVh2LF840tAVRwG2VCa2dFj2Sg7GpjABzmZXo0+njsWVxSIaXxkbgzneGizfDDghaaZ9blh9f9CCq4yE8ILSYmD+HXsYnOxix3C6cl3HIP5stmrCF6sgvwh+56QZCZVG162RwCVwNZo1UEKN3u0nnSokaI6MW9JJ/Tk5kk580UbodQEYRcJP9k7KuvyYShZWn0YkbqfYYq9LWeBQJd2EryPWKxXO/sH+e7cZI4Fo/wys5C7u/6Q9Vl+EvCIFbeJxhbKPjM72PGdTAI+kNB+r9pturveoIGc+/midRrGcxrlEtue80b7rjMWwNLqfXngAy3KxW2Of9IkvTk8j2Aj9Fg==";

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

/// Checks that fetch their certificates from a host that answers none whose name begins with `slow`, and the connections on which it was
/// asked for those.
async fn checks() -> (Arc<Sns>, String, UnboundedReceiver<TcpStream>) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let (asked, slow) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let _ = stream.read(&mut head).await;
            if head.starts_with(b"GET /SimpleNotificationService-slow") {
                let _ = asked.send(stream);
                continue;
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", CERTIFICATE.len());
            let _ = stream.write_all(format!("{head}{CERTIFICATE}").as_bytes()).await;
        }
    });
    let settings = OutboundSettings {
        webhook_allow_networks: vec!["127.0.0.0/8".parse().unwrap()],
        ..OutboundSettings::default()
    };
    let sns = Sns::new(Outbound::new(&settings).unwrap(), std::slice::from_ref(&host));
    (Arc::new(sns), host, slow)
}

fn message(host: &str, certificate: &str, signature: &str, version: &str) -> String {
    json!({
        "Type": "Notification", "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324", "TopicArn": TOPIC,
        "Subject": "My First Message", "Message": r#"{"notificationType":"Delivery"}"#,
        "Timestamp": "2026-05-02T00:54:06.655Z", "SignatureVersion": version, "Signature": signature,
        "SigningCertURL": format!("http://{host}/SimpleNotificationService-{certificate}.pem"),
    })
    .to_string()
}

fn connection(topics: &[&str]) -> HookConnection {
    HookConnection {
        id: schemas::new_id(),
        tenant_id: schemas::new_id(),
        provider: "ses".to_owned(),
        secrets: Vec::new(),
        topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
    }
}

#[tokio::test]
async fn a_signature_of_the_first_version_counts_as_one_of_the_second_does() {
    let (sns, host, _slow) = checks().await;
    let message = |signature: &str, version: &str| message(&host, "good", signature, version);
    let (own, none) = (connection(&[TOPIC]), connection(&[]));
    let now = at("2026-05-02T01:00:00Z");
    let good = sns.check(&own, message(SIGNATURE, "1").as_bytes(), now).await;
    assert!(matches!(good, Ok(EventCheck::Event(_))), "{good:?}");
    assert_eq!(sns.check(&own, message(SIGNATURE, "2").as_bytes(), now).await, Err(EventRefusal::Forged));
    assert_eq!(sns.check(&own, message("AAAA", "1").as_bytes(), now).await, Err(EventRefusal::Forged));
    assert_eq!(sns.check(&none, message(SIGNATURE, "1").as_bytes(), now).await, Err(EventRefusal::Forged));
    let late = at("2026-05-02T03:00:00Z");
    assert_eq!(sns.check(&own, message(SIGNATURE, "1").as_bytes(), late).await, Err(EventRefusal::Stale));
}

#[tokio::test]
async fn certificates_of_one_connection_keep_no_other_waiting() {
    let (sns, host, mut slow) = checks().await;
    let (attacked, other) = (Arc::new(connection(&[TOPIC])), connection(&[TOPIC]));
    let now = at("2026-05-02T01:00:00Z");
    for n in 0..8 {
        let (sns, attacked) = (Arc::clone(&sns), Arc::clone(&attacked));
        let forged = message(&host, &format!("slow{n}"), "AAAA", "1");
        tokio::spawn(async move { sns.check(&attacked, forged.as_bytes(), now).await });
    }
    let _first = slow.recv().await.unwrap();
    let good = sns.check(&other, message(&host, "good", SIGNATURE, "1").as_bytes(), now).await;
    assert!(matches!(good, Ok(EventCheck::Event(_))), "{good:?}");
    assert!(slow.try_recv().is_err(), "one at a time");
}

#[test]
fn what_events_are_to_be_checked_with_is_looked_at_when_it_is_set() {
    let topics = [TOPIC.to_owned()];
    let key = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g==";
    for (provider, secret, topics, good) in [
        ("ses", "", &topics[..], true),
        ("ses", "", &[], false),
        ("ses", "x", &topics[..], false),
        ("ses", "", &["arn:aws:sqs:eu-central-1:1:x".to_owned()][..], false),
        ("postmark", "hook:0123456789abcdef", &[], true),
        ("postmark", "hook:short", &[], false),
        ("postmark", "hook:0123456789abcdef", &topics[..], false),
        ("sendgrid", key, &[], true),
        ("sendgrid", "MFkw", &[], false),
        ("mailgun", "0123456789abcdef", &[], true),
        ("mailgun", "", &[], false),
        ("resend", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &[], true),
        ("resend", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &[], false),
        ("smtp", "x", &[], false),
    ] {
        assert_eq!(fault(provider, secret, topics).is_none(), good, "{provider} {secret}");
    }
}

#[test]
fn a_time_is_fresh_as_long_as_the_provider_may_repeat() {
    let (now, window) = (at("2026-05-02T12:00:00Z"), chrono::TimeDelta::minutes(5));
    for (time, fresh) in [
        ("2026-05-02T11:55:00Z", true),
        ("2026-05-02T11:54:59Z", false),
        ("2026-05-02T12:05:00Z", true),
        ("2026-05-02T12:05:01Z", false),
    ] {
        assert_eq!(is_fresh(at(time), now, window).is_ok(), fresh, "{time}");
    }
}

#[test]
fn the_region_comes_from_a_topic_and_from_nothing_else() {
    assert_eq!(region(TOPIC), Some("us-west-2"));
    assert_eq!(region("arn:aws-cn:sns:cn-north-1:123456789012:x"), Some("cn-north-1"));
    for odd in ["", "arn:aws:sqs:us-west-2:1:x", "arn:aws:sns:evil.example/:1:x", "arn:aws:sns:US-WEST-2:1:x", "sns"] {
        assert_eq!(region(odd), None, "{odd}");
    }
}
