//! The issuer's keys: fetched when they are needed, kept for a while, fetched again when a token names one we do not know.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey,
    jwk::{Jwk, KeyAlgorithm, PublicKeyUse},
};
use reqwest::redirect;
use runtime::outbound::tls;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use url::Url;

use crate::{
    refusal::AssistantRefusal,
    settings::{StartError, Terms, key_url},
};

/// The longest answer of an issuer, in bytes, and the most keys that are kept of one.
const ANSWER_MAX_BYTES: usize = 256 * 1024;
const KEYS_MAX: usize = 64;

/// Keys are fetched again when they are older than this.
const FRESH: Duration = Duration::from_secs(10 * 60);
/// Keys are trusted no longer than this, however long the issuer is away.
const TRUSTED: Duration = Duration::from_secs(60 * 60);
/// Pause between two fetches: tokens with made-up key ids cannot make us flood the issuer.
const PAUSE: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(crate) struct VerifyingKey {
    decoding: DecodingKey,
    only: Option<KeyAlgorithm>,
}

impl VerifyingKey {
    /// The key, if it is one for this algorithm: of its family, and not published for another one.
    pub(crate) fn for_algorithm(&self, algorithm: Algorithm) -> Option<&DecodingKey> {
        let published_for = self.only.is_none_or(|only| KeyAlgorithm::from(algorithm) == only);
        (published_for && self.decoding.family() == family(algorithm)?).then_some(&self.decoding)
    }
}

/// The family of an algorithm we take; none for shared secrets: a public key must never be taken for one.
fn family(algorithm: Algorithm) -> Option<AlgorithmFamily> {
    match algorithm {
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => Some(AlgorithmFamily::Rsa),
        Algorithm::ES256 | Algorithm::ES384 => Some(AlgorithmFamily::Ec),
        Algorithm::EdDSA => Some(AlgorithmFamily::Ed),
        _ => None,
    }
}

/// Whether tokens may be signed so.
pub(crate) fn is_allowed(algorithm: Algorithm) -> bool {
    family(algorithm).is_some()
}

#[derive(Debug)]
struct KeySet {
    keys: HashMap<String, Arc<VerifyingKey>>,
    fetched: Instant,
}

#[derive(Debug)]
pub(crate) struct KeySource {
    http: reqwest::Client,
    known: RwLock<Option<Arc<KeySet>>>,
    /// Held while the issuer is asked; holds when that was last begun.
    turn: Mutex<Option<Instant>>,
}

impl KeySource {
    pub(crate) fn new() -> Result<Self, StartError> {
        let http = reqwest::Client::builder()
            // The image has no certificates of the system.
            .tls_backend_preconfigured(tls::config_with_own_authorities()?)
            // A redirect could lead to plain http, or into our own network.
            .redirect(redirect::Policy::none())
            .timeout(ANSWER_MAX)
            .connect_timeout(ANSWER_MAX)
            .build()?;
        Ok(Self { http, known: RwLock::new(None), turn: Mutex::new(None) })
    }

    /// The issuer's key with this id; `None` when it has none. Unavailable without keys that can be trusted.
    pub(crate) async fn find(&self, terms: &Terms, id: &str) -> Result<Option<Arc<VerifyingKey>>, AssistantRefusal> {
        let known = self.trusted();
        let found = known.as_ref().and_then(|set| set.keys.get(id).cloned());
        let fresh = known.as_ref().is_some_and(|set| set.fetched.elapsed() < FRESH);
        if found.is_some() && fresh {
            return Ok(found);
        }
        // A known key that is not fresh is used while another request fetches the keys.
        let turn = if found.is_some() { self.turn.try_lock().ok() } else { Some(self.turn.lock().await) };
        let Some(mut last) = turn else { return Ok(found) };
        if last.is_none_or(|begun| begun.elapsed() >= PAUSE) {
            *last = Some(Instant::now());
            self.refresh(terms).await;
        }
        drop(last);
        let known = self.trusted().ok_or(AssistantRefusal::Unavailable)?;
        Ok(known.keys.get(id).cloned())
    }

    fn trusted(&self) -> Option<Arc<KeySet>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).clone();
        known.filter(|set| set.fetched.elapsed() < TRUSTED)
    }

    async fn refresh(&self, terms: &Terms) {
        let fetched = Instant::now();
        match self.fetch(terms).await {
            Ok(keys) => {
                let set = Arc::new(KeySet { keys, fetched });
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(set);
            }
            Err(fault) => tracing::warn!(fault, "the issuer's keys were not fetched"),
        }
    }

    async fn fetch(&self, terms: &Terms) -> Result<HashMap<String, Arc<VerifyingKey>>, &'static str> {
        let url = match &terms.jwks_url {
            Some(url) => url.clone(),
            None => self.discover(terms).await?,
        };
        #[derive(Deserialize)]
        struct Published {
            keys: Vec<Value>,
        }
        let published: Published = self.get(url).await?;
        // One key that we cannot read does not spoil the others.
        Ok(published.keys.into_iter().take(KEYS_MAX).filter_map(read_key).collect())
    }

    /// Asks the issuer's own metadata (RFC 8414 §3, then OpenID Connect Discovery §4).
    async fn discover(&self, terms: &Terms) -> Result<Url, &'static str> {
        #[derive(Deserialize)]
        struct Metadata {
            issuer: String,
            jwks_uri: String,
        }
        let path = terms.issuer_url.path().trim_end_matches('/');
        let inserted = format!("/.well-known/oauth-authorization-server{path}");
        let appended = format!("{path}/.well-known/openid-configuration");
        let mut fault = "the issuer has no metadata";
        for path in [inserted, appended] {
            let mut url = terms.issuer_url.clone();
            url.set_path(&path);
            match self.get::<Metadata>(url).await {
                Ok(metadata) if metadata.issuer == terms.issuer => {
                    return key_url(&metadata.jwks_uri, &terms.issuer_url)
                        .map_err(|_| "the metadata names keys that are not safe to fetch");
                }
                Ok(_) => fault = "the metadata is another issuer's",
                Err(why) => fault = why,
            }
        }
        Err(fault)
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, url: Url) -> Result<T, &'static str> {
        let mut response = self.http.get(url).send().await.map_err(|_| "no answer")?;
        if response.status() != reqwest::StatusCode::OK {
            return Err("the answer is not 200");
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| "the answer broke off")? {
            if body.len() + chunk.len() > ANSWER_MAX_BYTES {
                return Err("the answer is too long");
            }
            body.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&body).map_err(|_| "the answer does not parse")
    }
}

fn read_key(value: Value) -> Option<(String, Arc<VerifyingKey>)> {
    let key: Jwk = serde_json::from_value(value).ok()?;
    if key.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return None;
    }
    let decoding = DecodingKey::from_jwk(&key).ok()?;
    // A shared secret in a public place is no key.
    if matches!(decoding.family(), AlgorithmFamily::Hmac) {
        return None;
    }
    Some((key.common.key_id?, Arc::new(VerifyingKey { decoding, only: key.common.key_algorithm })))
}
