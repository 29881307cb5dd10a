//! DKIM key pairs.

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der},
    rand::SystemRandom,
    rsa::KeySize,
    signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use secrecy::SecretSlice;

/// A key that cannot be made or read. Reading the same octets again does not help.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The octets are not an RSA (2,048 bits or more) or Ed25519 private key in PKCS#8.
    #[error("not a usable RSA or Ed25519 private key in PKCS#8")]
    Rejected,
    /// The library could not make or encode a key.
    #[error("a key pair could not be generated")]
    Generation,
}

/// A private key, parsed once and used for many signatures. It does not print.
pub struct DkimKey {
    kind: KeyKind,
}

enum KeyKind {
    Rsa(Box<RsaKeyPair>),
    Ed25519(Box<Ed25519KeyPair>),
}

/// A new key pair, ready to be encrypted at rest and published.
pub struct GeneratedKey {
    /// PKCS#8, DER.
    pub private_pkcs8: SecretSlice<u8>,
    /// The value of the TXT record's `p=`: base64 of the SubjectPublicKeyInfo (RSA) or the raw key (Ed25519).
    pub public: String,
}

impl DkimKey {
    /// Makes an RSA-2048 key pair: the size every verifier takes and a TXT record holds.
    ///
    /// # Errors
    /// [`KeyError::Generation`] when the library fails.
    pub fn generate_rsa() -> Result<GeneratedKey, KeyError> {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).map_err(|_| KeyError::Generation)?;
        let private: Pkcs8V1Der<'_> = pair.as_der().map_err(|_| KeyError::Generation)?;
        let private = private.as_ref().to_vec();
        let public = Self { kind: KeyKind::Rsa(Box::new(pair)) }.public()?;
        Ok(GeneratedKey { private_pkcs8: SecretSlice::from(private), public })
    }

    /// Makes an Ed25519 key pair (RFC 8463); not every verifier knows these yet, so they sign beside RSA.
    ///
    /// # Errors
    /// [`KeyError::Generation`] when the library fails.
    pub fn generate_ed25519() -> Result<GeneratedKey, KeyError> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Generation)?;
        let public = Self::from_pkcs8(document.as_ref())?.public()?;
        Ok(GeneratedKey { private_pkcs8: SecretSlice::from(document.as_ref().to_vec()), public })
    }

    /// Reads a private key, RSA or Ed25519.
    ///
    /// # Errors
    /// [`KeyError::Rejected`] when it is neither, or an RSA key of less than 2,048 bits.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, KeyError> {
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8(der) {
            return Ok(Self { kind: KeyKind::Ed25519(Box::new(pair)) });
        }
        let pair = RsaKeyPair::from_pkcs8(der).map_err(|_| KeyError::Rejected)?;
        Ok(Self { kind: KeyKind::Rsa(Box::new(pair)) })
    }

    /// The public key as in the TXT record's `p=`.
    ///
    /// # Errors
    /// [`KeyError::Generation`] when the library cannot encode it.
    pub fn public(&self) -> Result<String, KeyError> {
        match &self.kind {
            KeyKind::Rsa(pair) => {
                let der: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(|_| KeyError::Generation)?;
                Ok(STANDARD.encode(der.as_ref()))
            }
            KeyKind::Ed25519(pair) => Ok(STANDARD.encode(pair.public_key().as_ref())),
        }
    }

    /// The signature's `a=`.
    pub(super) fn algorithm(&self) -> &'static str {
        match self.kind {
            KeyKind::Rsa(_) => "rsa-sha256",
            KeyKind::Ed25519(_) => "ed25519-sha256",
        }
    }

    /// Signs the canonical header. RSA takes some 355 µs of one core, Ed25519 some 20.
    pub(super) fn sign(&self, canonical: &[u8]) -> Option<Vec<u8>> {
        match &self.kind {
            KeyKind::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), canonical, &mut signature).ok()?;
                Some(signature)
            }
            // RFC 8463 §3: Ed25519 signs the SHA-256 hash, not the text itself.
            KeyKind::Ed25519(pair) => {
                let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, canonical);
                pair.try_sign(digest.as_ref()).ok().map(|signature| signature.as_ref().to_vec())
            }
        }
    }
}

impl std::fmt::Debug for DkimKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "DkimKey({})", self.algorithm())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    #[test]
    fn a_generated_key_is_read_back_with_the_same_public_key() {
        for generated in [DkimKey::generate_rsa().unwrap(), DkimKey::generate_ed25519().unwrap()] {
            let key = DkimKey::from_pkcs8(generated.private_pkcs8.expose_secret()).unwrap();
            assert_eq!(key.public().unwrap(), generated.public);
        }
    }

    #[test]
    fn the_public_keys_have_the_published_forms() {
        let rsa = STANDARD.decode(DkimKey::generate_rsa().unwrap().public).unwrap();
        // SubjectPublicKeyInfo of a 2,048 bit key: 294 octets of DER.
        assert_eq!((rsa.len(), rsa[0]), (294, 0x30));
        assert_eq!(STANDARD.decode(DkimKey::generate_ed25519().unwrap().public).unwrap().len(), 32);
    }

    #[test]
    fn octets_that_are_no_key_are_refused() {
        assert!(matches!(DkimKey::from_pkcs8(b"no key"), Err(KeyError::Rejected)));
    }
}
