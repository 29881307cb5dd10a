//! Tenants' accounts with mail providers: which providers there are, which settings belong to each, and whether an account's settings
//! can work. The ingress and the command line check an account by it before they store one; the delivery stage before it opens one.

mod connection;
mod host_policy;
mod ping;

pub use connection::{Connection, ConnectionFault, ConnectionSettings, SECRET_MAX_BYTES, check_secret};
pub use host_policy::HostPolicy;
pub use ping::PingFault;
pub use schemas::ProviderKind;

/// The vault's purpose for a connection's secret.
pub const PROVIDER_PURPOSE: &str = "provider";
