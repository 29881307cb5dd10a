//! A tenant's accounts with providers, and requests as the providers make them.

use std::sync::Arc;

use axum::body::Body;
use http::Request;
use runtime::{MasterKeys, Vault};
use schemas::{Environment, new_id};
use uuid::Uuid;

use crate::common::{Answer, Edge, PRODUCT, send, settings};

/// An ingress with a tenant.
pub struct Door {
    pub edge: Edge,
    pub tenant: Uuid,
    vault: Vault,
}

impl Door {
    pub async fn open(rate: u32, sns_hosts: Vec<String>) -> Self {
        let mut settings = settings();
        settings.hooks.hook_rate_per_second = rate;
        settings.hooks.hook_sns_hosts = sns_hosts;
        settings.outbound.webhook_allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
        let edge = Edge::with(settings).await;
        let tenant = edge.link(PRODUCT, Environment::Production, "tenant-1").await;
        let vault = Vault::new(&MasterKeys::parse(&"5a".repeat(32)).unwrap()).unwrap();
        Self { edge, tenant, vault }
    }

    /// A connection whose events are checked with these secrets, or come over these topics.
    pub async fn connection(&self, provider: &str, secrets: &str, topics: &[&str]) -> Uuid {
        let id = new_id();
        let sealed = self.vault.seal(self.tenant, "provider_hook", secrets.as_bytes()).unwrap();
        let sql = "insert into provider_connections (tenant_id, id, provider, name, secret, hook_secret, hook_topics)
             values ($1, $2, $3, $2::text, '\\x00', $4, $5)";
        stage_rig::run!(&self.edge.pool, sql, [self.tenant, id, provider, sealed, topics]);
        id
    }

    pub async fn tell(&self, provider: &str, connection: Uuid, sent: &Sent) -> Answer {
        let mut request = Request::post(format!("/hooks/{provider}/{connection}"));
        for (name, value) in &sent.headers {
            request = request.header(*name, value);
        }
        let router = ingress::router(Arc::clone(&self.edge.ingress));
        send(&router, request.body(Body::from(sent.body.clone())).unwrap()).await
    }

    pub async fn stored(&self) -> i64 {
        self.edge.count("select count(*) from inbound_events").await
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Sent {
    pub headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl Sent {
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    pub fn without(mut self, name: &'static str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self
    }

    /// With a changed body under the old proof.
    pub fn changed(mut self, from: &str, to: &str) -> Self {
        assert!(self.body.contains(from), "{}", self.body);
        self.body = self.body.replace(from, to);
        self
    }
}
