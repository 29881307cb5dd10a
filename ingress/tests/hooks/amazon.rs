//! A stand-in for SNS: signs messages, and serves its certificate and the confirmation of subscriptions.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::{DateTime, SecondsFormat, Utc};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::accounts::Sent;

pub const TOPIC: &str = "arn:aws:sns:eu-central-1:123456789012:ses-events";

pub struct Amazon {
    key: RsaKeyPair,
    pub host: String,
    /// Certificates served, and subscriptions confirmed.
    pub served: Arc<AtomicUsize>,
    pub confirmed: Arc<AtomicUsize>,
}

impl Amazon {
    pub async fn start() -> Self {
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
        let certificate =
            CertificateParams::new(vec!["sns.amazonaws.com".to_owned()]).unwrap().self_signed(&key).unwrap();
        let rsa = RsaKeyPair::from_pkcs8(&key.serialize_der()).unwrap();
        assert!(!rsa.public_key().as_ref().is_empty());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (served, confirmed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let counts = (Arc::clone(&served), Arc::clone(&confirmed));
        let pem = certificate.pem();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 4096];
                let read = stream.read(&mut head).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                let (status, body) = if head.starts_with("GET /SimpleNotificationService-abc123.pem ") {
                    counts.0.fetch_add(1, Ordering::SeqCst);
                    ("200 OK", pem.clone())
                } else if head.contains("Action=ConfirmSubscription") {
                    counts.1.fetch_add(1, Ordering::SeqCst);
                    ("200 OK", "<ConfirmSubscriptionResponse/>".to_owned())
                } else {
                    ("404 Not Found", String::new())
                };
                let answer =
                    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { key: rsa, host, served, confirmed }
    }

    pub fn certificate_url(&self) -> String {
        format!("http://{}/SimpleNotificationService-abc123.pem", self.host)
    }

    /// A message of a topic, signed (version 2).
    pub fn sign(&self, mut envelope: Value, at: DateTime<Utc>) -> Sent {
        envelope["Timestamp"] = json!(at.to_rfc3339_opts(SecondsFormat::Millis, true));
        envelope["SignatureVersion"] = json!("2");
        envelope["SigningCertURL"] = json!(self.certificate_url());
        let names: &[&str] = match envelope["Type"].as_str().unwrap() {
            "Notification" => &["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"],
            _ => &["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
        };
        let text: String =
            names.iter().filter_map(|name| Some(format!("{name}\n{}\n", envelope[*name].as_str()?))).collect();
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature).unwrap();
        envelope["Signature"] = json!(STANDARD.encode(signature));
        // SNS says text/plain.
        Sent {
            headers: vec![
                ("content-type", "text/plain; charset=UTF-8".to_owned()),
                ("x-amz-sns-topic-arn", TOPIC.to_owned()),
            ],
            body: envelope.to_string(),
        }
    }

    pub fn notification(&self, id: &str, at: DateTime<Utc>) -> Sent {
        let event = json!({"eventType": "Delivery", "mail": {"messageId": id}, "delivery": {}});
        let envelope = json!({
            "Type": "Notification", "MessageId": id, "TopicArn": TOPIC, "Subject": "Amazon SES Email Event Notification",
            "Message": event.to_string(),
            "UnsubscribeURL": "https://sns.eu-central-1.amazonaws.com/?Action=Unsubscribe",
        });
        self.sign(envelope, at)
    }

    pub fn confirmation(&self, topic: &str, subscribe: &str, at: DateTime<Utc>) -> Sent {
        let envelope = json!({
            "Type": "SubscriptionConfirmation", "MessageId": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b", "Token": "2336412f37",
            "TopicArn": topic, "Message": "You have chosen to subscribe to the topic.", "SubscribeURL": subscribe,
        });
        self.sign(envelope, at)
    }
}
