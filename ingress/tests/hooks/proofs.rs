//! Signs as Postmark, SendGrid, Mailgun and Resend do.

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::accounts::Sent;

pub fn postmark(user_and_password: &str, record: &Value) -> Sent {
    let authorization = format!("Basic {}", STANDARD.encode(user_and_password));
    Sent {
        headers: vec![("content-type", "application/json".to_owned()), ("authorization", authorization)],
        body: record.to_string(),
    }
}

/// A SendGrid account's signing key.
pub struct Sendgrid(EcdsaKeyPair);

impl Sendgrid {
    pub fn new() -> Self {
        Self(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap())
    }

    /// As its page shows it.
    pub fn public_key(&self) -> String {
        // SubjectPublicKeyInfo of an uncompressed point on P-256 (RFC 5480).
        let head = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
        STANDARD.encode([hex::decode(head).unwrap(), self.0.public_key().as_ref().to_vec()].concat())
    }

    pub fn sign(&self, events: &Value, at: DateTime<Utc>) -> Sent {
        self.sign_text(events.to_string(), at)
    }

    pub fn sign_text(&self, body: String, at: DateTime<Utc>) -> Sent {
        let timestamp = at.timestamp().to_string();
        let signature = self.0.sign(&SystemRandom::new(), format!("{timestamp}{body}").as_bytes()).unwrap();
        Sent {
            headers: vec![
                ("content-type", "application/json".to_owned()),
                ("x-twilio-email-event-webhook-signature", STANDARD.encode(signature.as_ref())),
                ("x-twilio-email-event-webhook-timestamp", timestamp),
            ],
            body,
        }
    }
}

pub fn mailgun(key: &str, token: &str, event: &Value, at: DateTime<Utc>) -> Sent {
    let timestamp = at.timestamp().to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let signature = hex::encode(hmac::sign(&key, format!("{timestamp}{token}").as_bytes()));
    let body =
        json!({"signature": {"timestamp": timestamp, "token": token, "signature": signature}, "event-data": event});
    Sent { headers: vec![("content-type", "application/json".to_owned())], body: body.to_string() }
}

pub fn resend(secret: &str, id: &str, event: &Value, at: DateTime<Utc>) -> Sent {
    let (body, timestamp) = (event.to_string(), at.timestamp().to_string());
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let signed = format!("{id}.{timestamp}.{body}");
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), signed.as_bytes());
    Sent {
        headers: vec![
            ("content-type", "application/json".to_owned()),
            ("svix-id", id.to_owned()),
            ("svix-timestamp", timestamp),
            // Beside one of a key that was taken out of use.
            ("svix-signature", format!("v1,AAAA v1,{}", STANDARD.encode(signature.as_ref()))),
        ],
        body,
    }
}
