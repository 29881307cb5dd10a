//! A local authorization server: keys, metadata over HTTP, tokens as good or bad as a test wants them.

use std::sync::{Arc, Mutex};

use aws_lc_rs::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair},
};
use axum::{Json, Router, extract::State, routing::get};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A signing key with its id.
pub struct SigningKey {
    pub id: String,
    pair: EcdsaKeyPair,
}

impl SigningKey {
    pub fn new(id: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { id: id.to_owned(), pair }
    }

    /// The public half, as the issuer publishes it.
    pub fn published(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.id,
            "x": encode(&point[1..33]), "y": encode(&point[33..]),
        })
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(&json!({"alg": "ES256", "typ": "at+jwt", "kid": self.id}), claims)
    }

    /// A token with these claims and this header, signed all the same.
    pub fn sign_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", encode(signature))
    }

    /// A token "signed" with the public key as a shared secret: what a careless verifier takes.
    pub fn confused(&self, claims: &Value) -> String {
        let header = json!({"alg": "HS256", "typ": "JWT", "kid": self.id});
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.pair.public_key().as_ref());
        format!("{signed}.{}", encode(hmac::sign(&key, signed.as_bytes())))
    }
}

/// A token without a signature.
pub fn unsigned(claims: &Value) -> String {
    format!("{}.{}.", encode(r#"{"alg":"none","typ":"JWT"}"#), encode(claims.to_string()))
}

/// The authorization server.
pub struct Issuer {
    pub url: String,
    keys: Arc<Mutex<Vec<Value>>>,
    asked: Arc<Mutex<u32>>,
}

type Shared = (String, Arc<Mutex<Vec<Value>>>, Arc<Mutex<u32>>);

impl Issuer {
    pub async fn start(keys: &[&SigningKey]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let published = Arc::new(Mutex::new(keys.iter().map(|key| key.published()).collect()));
        let asked = Arc::new(Mutex::new(0));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(metadata))
            .route("/keys", get(published_keys))
            .with_state((url.clone(), Arc::clone(&published), Arc::clone(&asked)));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, keys: published, asked }
    }

    /// Publishes other keys from now on.
    pub fn publish(&self, keys: Vec<Value>) {
        *self.keys.lock().unwrap() = keys;
    }

    /// How often the keys were fetched.
    pub fn asked(&self) -> u32 {
        *self.asked.lock().unwrap()
    }
}

async fn metadata(State((url, ..)): State<Shared>) -> Json<Value> {
    Json(json!({"issuer": url, "jwks_uri": format!("{url}/keys")}))
}

async fn published_keys(State((_, keys, asked)): State<Shared>) -> Json<Value> {
    *asked.lock().unwrap() += 1;
    Json(json!({"keys": *keys.lock().unwrap()}))
}
