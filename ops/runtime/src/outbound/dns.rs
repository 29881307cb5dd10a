//! Resolvers for outgoing connections and for the checks of domains: configured servers, no hosts file, no search list.

use std::net::SocketAddr;

use hickory_resolver::{
    Resolver, TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{ProtoError, rr::Name},
};

/// A resolver that asks these servers, or those of the system if there are none; `set` chooses its timeouts and its cache.
///
/// # Errors
/// If no servers are given and the system's cannot be read.
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

/// A fully qualified name: the search list of the host must not make another name of it.
///
/// # Errors
/// If it is no name of the DNS.
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
