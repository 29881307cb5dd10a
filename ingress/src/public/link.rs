//! The links in mail: a token, and the host on which it was followed.
//!
//! All tenants' hosts lead to the same ingress, so a tenant's token would work on any of them: a link that one tenant made could redirect
//! from another's domain, or show its text there.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::extract::{FromRequestParts, Path};
use http::{header::HOST, request::Parts};
use moka::future::Cache;
use schemars::JsonSchema;
use schemas::token::{Purpose, TRACKING_LABEL, TokenClaims};
use sqlx::PgPool;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::state::Ingress;

/// How long the owner of a host, or that it has none, is cached.
const LIFE: Duration = Duration::from_secs(60);
const KEPT: u64 = 10_000;
/// Lookups at once: a client that has one link can make up hosts.
const LOOKUPS_AT_ONCE: usize = 2;
/// Longest a link waits for the owner of its host, with the wait for a permit. It works without.
const LOOKUP_MAX: Duration = Duration::from_millis(500);

/// The path of a link in mail.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only described")]
pub(crate) struct LinkPath {
    /// Issued by the engine, and valid for years. A forged or shortened token is a 404.
    token: String,
}

/// The tenants of the hosts on which links are followed.
#[derive(Debug)]
pub struct LinkHosts {
    /// The engine's own host: it is no tenant's, even if the operator has added its domain as a tenant's.
    own: String,
    owners: Cache<String, Option<Uuid>>,
    lookups: Semaphore,
}

impl LinkHosts {
    pub(crate) fn new(own: &str) -> Self {
        Self {
            own: normalize_host(own),
            owners: Cache::builder().max_capacity(KEPT).time_to_live(LIFE).build(),
            lookups: Semaphore::new(LOOKUPS_AT_ONCE),
        }
    }

    /// The tenant whose proven domain has this tracking host. `None` for the engine's own host, for those that a proxy made up, and, for as
    /// long as an owner is cached, for those that Postgres does not find in time.
    async fn owner(&self, pool: &PgPool, host: &str) -> Option<Uuid> {
        let host = normalize_host(host);
        if host == self.own {
            return None;
        }
        let domain = host.strip_prefix(TRACKING_LABEL)?.strip_prefix('.')?;
        let lookup = async {
            let _permit = self.lookups.acquire().await;
            sqlx::query_scalar!("select tenant_of_proven_domain($1)", domain).fetch_one(pool).await
        };
        // Those that follow links on one host at the same moment share a lookup.
        let found = self.owners.get_with_by_ref(domain, async {
            runtime::db::within(LOOKUP_MAX, lookup).await.unwrap_or_else(|error| {
                tracing::warn!(error = runtime::db::describe(&error), "the owner of a link's host is not known");
                None
            })
        });
        found.await
    }
}

/// A host in lower case without the trailing dot, for comparison.
fn normalize_host(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// A link that was followed.
pub(super) struct FollowedLink {
    token: String,
    host: Option<String>,
}

impl FollowedLink {
    /// The claims of its token. `None` if that is forged, cut or made for another purpose.
    pub(super) fn claims(&self, ingress: &Ingress, purpose: Purpose) -> Option<TokenClaims> {
        ingress.tokens.open(purpose, &self.token).ok()
    }

    /// Whether it was followed on a host of another tenant than its own. While Postgres is away the owner is unknown, and the link works.
    pub(super) async fn is_on_foreign_host(&self, ingress: &Ingress, claims: &TokenClaims) -> bool {
        let Some(host) = &self.host else { return false };
        ingress.link_hosts.owner(&ingress.pool, host).await.is_some_and(|owner| owner != claims.tenant_id)
    }
}

impl FromRequestParts<Arc<Ingress>> for FollowedLink {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, ingress: &Arc<Ingress>) -> Result<Self, Infallible> {
        // A path that cannot be decoded is no token.
        let token =
            Path::<String>::from_request_parts(parts, ingress).await.map_or_else(|_| String::new(), |Path(t)| t);
        // HTTP/2 has the host in the address of the request.
        let of_address = parts.uri.host();
        let of_header = || parts.headers.get(HOST)?.to_str().ok()?.split(':').next();
        Ok(Self { token, host: of_address.or_else(of_header).map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_link_works_while_the_owner_of_its_host_is_unknown() {
        let hosts = LinkHosts::new("link.postrider.dev");
        // No server listens there.
        let pool = PgPool::connect_lazy("postgres://postrider@127.0.0.1:1/postrider").unwrap();
        let owner_of =
            async |host: &str| tokio::time::timeout(Duration::from_secs(5), hosts.owner(&pool, host)).await.unwrap();
        let lookups = hosts.lookups.acquire_many(2).await.unwrap();
        assert_eq!(owner_of("link.busy.example").await, None);
        drop(lookups);
        assert_eq!(owner_of("link.away.example").await, None);
        for domain in ["busy.example", "away.example"] {
            assert_eq!(hosts.owners.get(domain).await, Some(None), "{domain}: the next link does not wait");
        }
    }
}
