//! The certificate for STARTTLS.

use std::{io, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio_rustls::TlsAcceptor;

use super::InboundSmtpSettings;

/// What takes connections over to TLS, if there is a certificate.
pub(super) fn acceptor(settings: &InboundSmtpSettings) -> io::Result<Option<TlsAcceptor>> {
    let (Some(certificate), Some(key)) = (&settings.inbound_tls_cert, &settings.inbound_tls_key) else {
        return Ok(None);
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| io::Error::other(format!("the certificate for STARTTLS: {error}")))?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| io::Error::other(format!("the key for STARTTLS: {error}")))?;
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).map_err(io::Error::other)?;
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}
