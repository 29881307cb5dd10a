//! Settings of the inbound SMTP server.

use std::{net::SocketAddr, path::PathBuf};

use smtp::server::MailProtocol;

/// Settings of the inbound SMTP server.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Inbound mail")]
#[group(skip)]
pub struct InboundSmtpSettings {
    /// Where mail to return paths is taken: bounces, complaints, answers. Not given: nowhere.
    #[arg(long, env = "POSTRIDER_INBOUND_ADDR")]
    pub inbound_addr: Option<SocketAddr>,
    /// What is spoken there: `smtp` as a mail exchanger, `lmtp` behind a mail server.
    #[arg(long, env = "POSTRIDER_INBOUND_PROTOCOL", value_enum, default_value = "smtp")]
    pub inbound_protocol: MailProtocol,
    /// The name it greets with: that of the mail exchanger record.
    #[arg(long, env = "POSTRIDER_INBOUND_HOSTNAME", default_value = "localhost")]
    pub inbound_hostname: String,
    /// The address that feedback loops report complaints to. Their reports count when they carry a return path or a link to
    /// leave by that we signed.
    #[arg(long, env = "POSTRIDER_INBOUND_FEEDBACK_ADDRESS")]
    pub inbound_feedback_address: Option<String>,
    /// The certificate for STARTTLS, with its chain, as PEM. Not given: STARTTLS is not offered.
    #[arg(long, env = "POSTRIDER_INBOUND_TLS_CERT", requires = "inbound_tls_key")]
    pub inbound_tls_cert: Option<PathBuf>,
    /// Its private key, as PEM.
    #[arg(long, env = "POSTRIDER_INBOUND_TLS_KEY", requires = "inbound_tls_cert")]
    pub inbound_tls_key: Option<PathBuf>,
    /// Connections served at once; others wait.
    #[arg(long, env = "POSTRIDER_INBOUND_CONNECTIONS", default_value_t = 100)]
    pub inbound_connections: usize,
    /// Connections served at once for one client address (an IPv6 network of 64 bits); more are answered 421. 0: no limit. Not counted
    /// with `lmtp`. Behind a proxy that hides the clients' addresses, set 0.
    #[arg(long, env = "POSTRIDER_INBOUND_CONNECTIONS_PER_ADDRESS", default_value_t = 10)]
    pub inbound_connections_per_address: usize,
}
