//! TLS for outgoing connections: Mozilla's roots, the name always checked.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

use super::SetupError;

/// The TLS configuration for servers that the operator chose: the authorities in the file that `SSL_CERT_FILE` names are trusted as well.
pub fn config_with_own_authorities() -> Result<ClientConfig, SetupError> {
    config(std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from).as_deref())
}

/// The TLS configuration; `extra` is a file with additional certificate authorities.
pub fn config(extra: Option<&Path>) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = extra {
        let unreadable = || SetupError::CaFile(path.to_owned());
        for certificate in CertificateDer::pem_file_iter(path).map_err(|_| unreadable())? {
            roots.add(certificate.map_err(|_| unreadable())?).map_err(|_| unreadable())?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| SetupError::Tls)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
