//! Resolves host names with an own resolver: no hosts file, no search list, answers cached for a minute at most.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{
    Resolver as Hickory, TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig},
    net::runtime::TokioRuntimeProvider,
    proto::rr::Name,
};

use super::{SetupError, error::OutboundError};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const KEPT_MAX: Duration = Duration::from_secs(60);
const KEPT_NAMES: u64 = 4_096;
/// The most addresses of one name that are used.
const ADDRESSES_MAX: usize = 16;

/// Resolves host names by DNS.
pub(super) struct Resolver(TokioResolver);

impl Resolver {
    pub(super) fn new(servers: &[SocketAddr]) -> Result<Self, SetupError> {
        let mut builder = if servers.is_empty() {
            TokioResolver::builder_tokio().map_err(|_| SetupError::Resolver)?
        } else {
            let servers = servers.iter().map(name_server).collect();
            Hickory::builder_with_config(ResolverConfig::from_name_servers(servers), TokioRuntimeProvider::default())
        };
        let options = builder.options_mut();
        options.timeout = ANSWER_TIMEOUT;
        options.attempts = 2;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = KEPT_NAMES;
        options.positive_max_ttl = Some(KEPT_MAX);
        options.negative_max_ttl = Some(KEPT_MAX / 4);
        Ok(Self(builder.build().map_err(|_| SetupError::Resolver)?))
    }

    /// The addresses of a name, IPv4 first.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, OutboundError> {
        // Fully qualified: the search list of the host must not make another name of it.
        let mut name = Name::from_ascii(name).map_err(|_| OutboundError::DnsFailed)?;
        name.set_fqdn(true);
        let found = self.0.lookup_ip(name).await.map_err(|_| OutboundError::DnsFailed)?;
        Ok(found.iter().take(ADDRESSES_MAX).collect())
    }
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].into_iter().map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.collect())
}
