//! An ingress with the endpoint switched on, an approved user, and what that user's assistant says.

use axum::body::Body;
use http::{Method, Request, header};
use schemas::Environment;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    common::{Answer, Edge, PRODUCT, TENANT, send, settings},
    issuer::{Issuer, SigningKey},
};

pub const RESOURCE: &str = "https://mail.example.com/mcp";
pub const CLIENT: &str = "pilot-client";
pub const USER: &str = "user-1";

/// Everything a test of the endpoint stands on.
pub struct Pilot {
    pub edge: Edge,
    pub issuer: Issuer,
    pub key: SigningKey,
    pub tenant: Uuid,
    pub approval: Uuid,
    router: axum::Router,
}

impl Pilot {
    /// With an approval that may not save drafts.
    pub async fn start() -> Self {
        Self::with(60, false).await
    }

    /// With an approval that may.
    pub async fn drafting() -> Self {
        Self::with(60, true).await
    }

    pub async fn with(rate: u32, drafts: bool) -> Self {
        let key = SigningKey::new("key-1");
        let issuer = Issuer::start(&[&key]).await;
        let mut settings = settings();
        settings.assistant = mcp::Settings {
            mcp_issuer: Some(issuer.url.clone()),
            mcp_resource: Some(RESOURCE.to_owned()),
            mcp_jwks_url: None,
            mcp_clients: vec![CLIENT.to_owned(), "second-client".to_owned()],
            mcp_rate_per_minute: rate,
        };
        let edge = Edge::with(settings).await;
        let tenant = edge.link(PRODUCT, Environment::Production, TENANT).await;
        let approval = approve(&edge, &issuer.url, USER, CLIENT, tenant, drafts).await;
        let router = ingress::router(std::sync::Arc::clone(&edge.ingress));
        Self { edge, issuer, key, tenant, approval, router }
    }

    /// Good claims, changed as a test wants.
    pub fn claims(&self, change: Value) -> Value {
        let now = chrono::Utc::now().timestamp();
        let mut claims = json!({
            "iss": self.issuer.url, "aud": RESOURCE, "sub": USER, "client_id": CLIENT, "iat": now, "nbf": now,
            "exp": now + 300, "scope": "openid mail:read mail:drafts",
        });
        for (name, value) in change.as_object().unwrap() {
            match value {
                Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
                value => claims[name] = value.clone(),
            }
        }
        claims
    }

    /// A good token.
    pub fn token(&self) -> String {
        self.key.sign(&self.claims(json!({})))
    }

    /// Posts a message with a token.
    pub async fn post(&self, token: &str, message: &Value) -> Answer {
        self.send(request(Some(token), message.to_string())).await
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        send(&self.router, request).await
    }

    /// Calls a tool with a good token: what it answers, or its error code.
    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value, String> {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
        let answer = self.post(&self.token(), &message).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let result = &answer.body["result"];
        if result.is_null() {
            return Err(answer.body["error"]["message"].as_str().unwrap().to_owned());
        }
        let content = result["structuredContent"].clone();
        assert_eq!(result["content"][0]["text"].as_str().unwrap(), content.to_string(), "both say the same");
        if result["isError"] == json!(true) {
            return Err(content["error"].as_str().unwrap().to_owned());
        }
        Ok(content)
    }
}

/// The messages a client begins with.
pub fn list_tools() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
}

/// A request as clients of the protocol send it.
pub fn request(token: Option<&str>, body: String) -> Request<Body> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri("/mcp")
        .header(header::HOST, "mail.example.com")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    request.body(Body::from(body)).unwrap()
}

/// Approves, as the command line does.
pub async fn approve(edge: &Edge, issuer: &str, user: &str, client: &str, tenant: Uuid, drafts: bool) -> Uuid {
    let id = schemas::new_id();
    let sql = "insert into assistant_approvals (id, issuer, subject, client_id, tenant_id, environment, may_draft)
         values ($1, $2, $3, $4, $5, 'production', $6)";
    stage_rig::run!(&edge.pool, sql, [id, issuer, user, client, tenant, drafts]);
    id
}
