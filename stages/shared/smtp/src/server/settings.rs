//! Settings of the SMTP server.

use std::{io, path::Path, sync::Arc, time::Duration};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::SmtpCredentials;

/// What a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum MailProtocol {
    /// As a mail exchanger (RFC 5321).
    Smtp,
    /// Behind the operator's own mail server (RFC 2033): an answer for each recipient.
    Lmtp,
}

/// What happens to a line feed without a carriage return before it, and to a carriage return without a line feed after it. Servers differ
/// in where such a mail ends, which smuggles one mail inside another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareLineEnds {
    /// The connection is closed.
    Refuse,
    /// A command may end with a line feed alone. In mail, both are text like other text.
    Keep,
}

/// Reads a certificate with its chain, and its private key, as PEM.
pub fn tls_acceptor(certificate: &Path, key: &Path) -> io::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| io::Error::other(format!("the certificate for STARTTLS: {error}")))?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| io::Error::other(format!("the key for STARTTLS: {error}")))?;
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).map_err(io::Error::other)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What a server offers, and its limits of size, number and time.
pub struct SmtpServerSettings {
    /// What is spoken.
    pub protocol: MailProtocol,
    /// The name in the greeting.
    pub hostname: String,
    /// For STARTTLS; `None`: not offered.
    pub tls: Option<TlsAcceptor>,
    /// `AUTH` is offered and required when set.
    pub credentials: Option<SmtpCredentials>,
    /// Whether bare line feeds and carriage returns are accepted.
    pub bare_line_ends: BareLineEnds,
    /// Largest mail in octets, announced as `SIZE`. A larger one is read to its end and refused.
    pub size_max: u64,
    /// The octets of a mail, from its beginning, that the handler gets; the rest is counted only.
    pub kept_max: usize,
    /// The octets of one mail after which the connection is closed: the mail does not end, or a BDAT announces more.
    pub read_max: u64,
    /// Recipients of one mail; more are refused.
    pub recipients_max: usize,
    /// Permanent refusals in one connection, after which it is closed.
    pub faults_max: u32,
    /// Connections served at once; others wait.
    pub connections: usize,
    /// Connections served at once for one client (an IPv6 client is a network of 64 bits); more are answered 421. 0: no limit.
    pub connections_per_client: usize,
    /// How long a client may be silent, and take for one command.
    pub silence_timeout: Duration,
    /// The longest a connection may last.
    pub session_timeout: Duration,
    /// How long a mail may take, whatever its length. Beyond it, `data_rate_min` octets must have come for each second.
    pub data_timeout: Duration,
    /// See `data_timeout`; at least 1.
    pub data_rate_min: u64,
}
