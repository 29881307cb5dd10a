//! A caller: signs requests as the specification says, byte for byte.

use std::sync::LazyLock;

use contract::{Contract, Exchange};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{
    Method, StatusCode,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The document as it is committed.
static CONTRACT: LazyLock<Contract> =
    LazyLock::new(|| Contract::new(serde_json::from_str(include_str!("../../schemas/openapi.json")).unwrap()));

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    /// The body; null when it is no JSON.
    pub body: Value,
    pub retry_after: Option<String>,
}

impl Answer {
    /// The body of an answer with this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }

    pub fn error(&self) -> &str {
        self.body["error"].as_str().unwrap_or_default()
    }
}

/// A product that calls the API.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base_url: String,
    product: String,
    environment: String,
    key: String,
    tenant: String,
}

impl Client {
    pub fn new(base_url: &str, product: &str, environment: &str, key: &str, tenant: &str) -> Self {
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self {
            http,
            base_url: base_url.to_owned(),
            product: product.to_owned(),
            environment: environment.to_owned(),
            key: key.to_owned(),
            tenant: tenant.to_owned(),
        }
    }

    /// A copy of this caller, for another of its tenants.
    #[must_use]
    pub fn for_tenant(&self, tenant: &str) -> Self {
        Self { tenant: tenant.to_owned(), ..self.clone() }
    }

    /// A copy of this caller, whose requests carry this header.
    #[must_use]
    pub fn saying(&self, name: &'static str, value: &str) -> Self {
        let headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())]);
        let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).default_headers(headers);
        Self { http: http.build().unwrap(), ..self.clone() }
    }

    /// The product's own tenant id.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    pub fn product(&self) -> &str {
        &self.product
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// A copy of this caller, at another process.
    #[must_use]
    pub fn at(&self, base_url: &str) -> Self {
        Self { base_url: base_url.to_owned(), ..self.clone() }
    }

    /// The unsigned HTTP client, for what recipients do.
    pub fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// A signed read; `query` follows the tenant.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Answer {
        self.try_send(Method::GET, path, query, None, None).await.unwrap()
    }

    /// A signed POST; the tenant is put into the body.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.try_send(Method::POST, path, &[], Some(self.with_tenant(body)), None).await.unwrap()
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.try_send(Method::PATCH, path, &[], Some(self.with_tenant(body)), None).await.unwrap()
    }

    pub async fn delete(&self, path: &str, body: Value) -> Answer {
        self.try_send(Method::DELETE, path, &[], Some(self.with_tenant(body)), None).await.unwrap()
    }

    /// A signed POST that may meet a server that is away.
    pub async fn try_post(&self, path: &str, body: Value) -> reqwest::Result<Answer> {
        self.try_send(Method::POST, path, &[], Some(self.with_tenant(body)), None).await
    }

    /// A signed POST with an `Idempotency-Key`.
    pub async fn post_once(&self, key: &str, path: &str, body: Value) -> reqwest::Result<Answer> {
        self.try_send(Method::POST, path, &[], Some(self.with_tenant(body)), Some(key)).await
    }

    fn with_tenant(&self, mut body: Value) -> Value {
        body["product_tenant_id"] = Value::from(self.tenant.as_str());
        body
    }

    async fn try_send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, &str)],
        body: Option<Value>,
        idempotency_key: Option<&str>,
    ) -> reqwest::Result<Answer> {
        let bytes = body.map(|body| body.to_string()).unwrap_or_default();
        let timestamp = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let nonce = uuid::Uuid::now_v7().to_string();
        let digest = hex::encode(Sha256::digest(bytes.as_bytes()));
        let signed = format!("{method}\n{path}\n{timestamp}\n{nonce}\n{digest}");
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_bytes()).unwrap();
        mac.update(signed.as_bytes());
        let mut url = reqwest::Url::parse(&format!("{}{path}", self.base_url)).unwrap();
        // A caller without a tenant is the operations integration: it reads above tenants.
        if method == Method::GET && !self.tenant.is_empty() {
            url.query_pairs_mut().append_pair("product_tenant_id", &self.tenant).extend_pairs(query);
        }
        let mut request = self
            .http
            .request(method.clone(), url)
            .header("X-Service-Product", &self.product)
            .header("X-Service-Environment", &self.environment)
            .header("X-Service-Api-Key", &self.key)
            .header("X-Service-Timestamp", timestamp)
            .header("X-Service-Nonce", nonce)
            .header("X-Service-Signature", format!("sha256={}", hex::encode(mac.finalize().into_bytes())));
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        if !bytes.is_empty() {
            request = request.header("Content-Type", "application/json").body(bytes.clone());
        }
        let answer = request.send().await?;
        let status = answer.status();
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (retry_after, content_type) = (header("retry-after"), header("content-type").unwrap_or_default());
        let received = answer.bytes().await?;
        // Not in a benchmark: it would measure the validator.
        if cfg!(debug_assertions) {
            let exchange = Exchange {
                method: method.as_str(),
                path,
                sent: bytes.as_bytes(),
                status: status.as_u16(),
                content_type: &content_type,
                received: &received,
            };
            CONTRACT.check(&exchange).unwrap_or_else(|fault| panic!("{fault}"));
        }
        Ok(Answer { status, body: serde_json::from_slice(&received).unwrap_or_default(), retry_after })
    }
}
