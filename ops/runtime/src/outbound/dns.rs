//! Resolvers for outgoing connections and for the checks of domains: configured servers, no hosts file, no search list.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{
    Resolver, TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{ProtoError, rr::Name},
};

use super::OutboundError;

/// Timeout of a name server, when a customer's host is looked up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the addresses of a customer's host are kept.
const KEPT_MAX: Duration = Duration::from_secs(60);
const KEPT_NAMES: u64 = 4_096;
/// The most addresses of one host that are used.
const ADDRESSES_MAX: usize = 16;

/// A resolver that asks these servers, or those of the system if there are none; `set` chooses its timeouts and its cache.
pub fn resolver(servers: &[SocketAddr], set: impl FnOnce(&mut ResolverOpts)) -> Result<TokioResolver, NetError> {
    let mut builder = if servers.is_empty() {
        TokioResolver::builder_tokio()?
    } else {
        let servers = servers.iter().map(name_server).collect();
        Resolver::builder_with_config(ResolverConfig::from_name_servers(servers), TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    options.use_hosts_file = ResolveHosts::Never;
    set(options);
    builder.build()
}

/// The resolver for the hosts of customers' URLs.
pub(super) fn host_resolver(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
    resolver(servers, |options| {
        options.timeout = ANSWER_TIMEOUT;
        options.attempts = 2;
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.cache_size = KEPT_NAMES;
        options.positive_max_ttl = Some(KEPT_MAX);
        options.negative_max_ttl = Some(KEPT_MAX / 4);
    })
}

/// The addresses of a host, IPv4 first.
pub(super) async fn host_addresses(resolver: &TokioResolver, host: &str) -> Result<Vec<IpAddr>, OutboundError> {
    let name = absolute_name(host).map_err(|_| OutboundError::DnsFailed)?;
    let found = resolver.lookup_ip(name).await.map_err(|_| OutboundError::DnsFailed)?;
    Ok(found.iter().take(ADDRESSES_MAX).collect())
}

/// A fully qualified name: the search list of the host must not make another name of it.
pub fn absolute_name(name: &str) -> Result<Name, ProtoError> {
    let mut name = Name::from_ascii(name)?;
    name.set_fqdn(true);
    Ok(name)
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].into_iter().map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.collect())
}
