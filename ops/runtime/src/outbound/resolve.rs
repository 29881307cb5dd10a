//! Resolves host names, with answers cached for a minute at most.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{TokioResolver, config::LookupIpStrategy};

use super::{SetupError, dns, error::OutboundError};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const KEPT_MAX: Duration = Duration::from_secs(60);
const KEPT_NAMES: u64 = 4_096;
/// The most addresses of one name that are used.
const ADDRESSES_MAX: usize = 16;

/// Resolves host names by DNS.
pub(super) struct Resolver(TokioResolver);

impl Resolver {
    pub(super) fn new(servers: &[SocketAddr]) -> Result<Self, SetupError> {
        let resolver = dns::resolver(servers, |options| {
            options.timeout = ANSWER_TIMEOUT;
            options.attempts = 2;
            options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
            options.cache_size = KEPT_NAMES;
            options.positive_max_ttl = Some(KEPT_MAX);
            options.negative_max_ttl = Some(KEPT_MAX / 4);
        });
        Ok(Self(resolver.map_err(|_| SetupError::Resolver)?))
    }

    /// The addresses of a name, IPv4 first.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, OutboundError> {
        let name = dns::absolute_name(name).map_err(|_| OutboundError::DnsFailed)?;
        let found = self.0.lookup_ip(name).await.map_err(|_| OutboundError::DnsFailed)?;
        Ok(found.iter().take(ADDRESSES_MAX).collect())
    }
}
