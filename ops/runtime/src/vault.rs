//! Secrets at rest: AES-256-GCM under a key derived from the master key, bound to a tenant and a purpose.

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use schemas::webhook::{CallSigner, WebhookSecret};
use thiserror::Error;
use uuid::Uuid;

const KEY_ID_BYTES: usize = 4;

/// What can go wrong with a secret at rest. None of it is worth a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VaultError {
    /// Not 64 hex digits.
    #[error("a master key is 64 hex digits (32 bytes)")]
    Malformed,
    /// Encrypted under a master key that is not given.
    #[error("encrypted under a master key that is not set")]
    UnknownKey,
    /// Changed, cut, or of another tenant or purpose.
    #[error("the sealed secret does not open")]
    Damaged,
    /// The system's random source or cipher refused.
    #[error("cryptography is not available")]
    Unavailable,
}

/// Master keys, newest first. Does not print.
#[derive(Clone)]
pub struct MasterKeys(Vec<[u8; 32]>);

impl std::fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MasterKeys({})", self.0.len())
    }
}

impl MasterKeys {
    /// Parses keys of 64 hex digits, separated by commas or white space. No key at all is an error, too.
    pub fn parse(text: &str) -> Result<Self, VaultError> {
        let keys: Vec<[u8; 32]> = text
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|part| !part.is_empty())
            .map(|part| {
                let mut key = [0; 32];
                hex::decode_to_slice(part, &mut key).map(|()| key).map_err(|_| VaultError::Malformed)
            })
            .collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(VaultError::Malformed) } else { Ok(Self(keys)) }
    }

    /// The bytes, newest first: for deriving other keys.
    #[must_use]
    pub fn bytes(&self) -> &[[u8; 32]] {
        &self.0
    }

    /// The keys of the tokens in mail.
    #[must_use]
    pub fn tokens(&self) -> schemas::token::TokenKeys {
        schemas::token::TokenKeys::derive(&self.0)
    }

    /// What stands for the address of an erased contact: a keyed hash, so that it is comparable and not readable.
    #[must_use]
    pub fn erased_address(&self, tenant: Uuid, address: &str) -> String {
        self.erased_addresses(tenant, address).next().unwrap_or_default()
    }

    /// Each name that an address may have been erased under: one for each key, the newest first.
    pub fn erased_addresses(&self, tenant: Uuid, address: &str) -> impl Iterator<Item = String> {
        let named = [b"postrider pseudonym v1".as_slice(), tenant.as_bytes(), address.as_bytes()].concat();
        self.0.iter().map(move |key| format!("erased:{}", hex::encode(&mac(key, &named)[..16])))
    }
}

struct VaultKey {
    id: [u8; KEY_ID_BYTES],
    key: LessSafeKey,
}

/// Seals and opens secrets, and derives those that need not be stored. The newest key seals, all open.
pub struct Vault {
    keys: Vec<VaultKey>,
    calls: Vec<[u8; 32]>,
    random: SystemRandom,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Vault({} keys)", self.keys.len())
    }
}

impl Vault {
    /// Derives the encryption keys.
    pub fn new(master: &MasterKeys) -> Result<Self, VaultError> {
        let derive = |master: &[u8; 32]| {
            let derived = mac(master, b"postrider vault key v1");
            let mut id = [0; KEY_ID_BYTES];
            id.copy_from_slice(&mac(&derived, b"id")[..KEY_ID_BYTES]);
            let key = UnboundKey::new(&AES_256_GCM, &derived).map_err(|_| VaultError::Unavailable)?;
            Ok(VaultKey { id, key: LessSafeKey::new(key) })
        };
        let keys = master.bytes().iter().map(derive).collect::<Result<_, VaultError>>()?;
        let calls = master.bytes().iter().map(|master| mac(master, b"postrider call key v1")).collect();
        Ok(Self { keys, calls, random: SystemRandom::new() })
    }

    /// The secrets that calls to a tenant's product are signed with (`call_product_webhook`), newest first. Show the first one.
    #[must_use]
    pub fn call_secrets(&self, signer: CallSigner<'_>) -> Vec<WebhookSecret> {
        schemas::webhook::call_secrets(&self.calls, signer)
    }

    /// Seals a secret: key id, nonce, ciphertext with tag.
    pub fn seal(&self, tenant: Uuid, purpose: &str, secret: &[u8]) -> Result<Vec<u8>, VaultError> {
        let newest = self.keys.first().ok_or(VaultError::UnknownKey)?;
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| VaultError::Unavailable)?;
        let mut sealed = secret.to_vec();
        newest
            .key
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad(tenant, purpose), &mut sealed)
            .map_err(|_| VaultError::Unavailable)?;
        Ok([newest.id.as_slice(), &nonce, &sealed].concat())
    }

    /// Opens what [`Vault::seal`] made for the same tenant and purpose.
    pub fn open(&self, tenant: Uuid, purpose: &str, sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        let (id, rest) = sealed.split_first_chunk::<KEY_ID_BYTES>().ok_or(VaultError::Damaged)?;
        let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>().ok_or(VaultError::Damaged)?;
        let key = self.keys.iter().find(|key| key.id == *id).ok_or(VaultError::UnknownKey)?;
        let mut body = body.to_vec();
        let plain = key
            .key
            .open_in_place(Nonce::assume_unique_for_key(*nonce), aad(tenant, purpose), &mut body)
            .map_err(|_| VaultError::Damaged)?;
        Ok(plain.to_vec())
    }
}

/// HMAC-SHA-256 of a text.
fn mac(key: &[u8; 32], text: &[u8]) -> [u8; 32] {
    let mut tag = [0; 32];
    tag.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text).as_ref());
    tag
}

fn aad(tenant: Uuid, purpose: &str) -> Aad<Vec<u8>> {
    Aad::from([tenant.as_bytes(), purpose.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_secret_opens_for_its_tenant_and_purpose_only() {
        let vault = Vault::new(&MasterKeys::parse(&"ab".repeat(32)).unwrap()).unwrap();
        let tenant = Uuid::now_v7();
        let sealed = vault.seal(tenant, "dkim", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(vault.open(tenant, "dkim", &sealed).unwrap(), b"secret");
        assert_eq!(vault.open(tenant, "smtp", &sealed), Err(VaultError::Damaged));
        assert_eq!(vault.open(Uuid::now_v7(), "dkim", &sealed), Err(VaultError::Damaged));
        assert_eq!(vault.open(tenant, "dkim", &sealed[..10]), Err(VaultError::Damaged));
    }

    #[test]
    fn rotation_keeps_old_secrets_readable() {
        let (old, new) = ("01".repeat(32), "02".repeat(32));
        let tenant = Uuid::now_v7();
        let sealed = Vault::new(&MasterKeys::parse(&old).unwrap()).unwrap().seal(tenant, "x", b"s").unwrap();
        let both = Vault::new(&MasterKeys::parse(&format!("{new},{old}")).unwrap()).unwrap();
        assert_eq!(both.open(tenant, "x", &sealed).unwrap(), b"s");
        let fresh = Vault::new(&MasterKeys::parse(&new).unwrap()).unwrap();
        assert_eq!(fresh.open(tenant, "x", &sealed), Err(VaultError::UnknownKey));
        let signer = CallSigner { tenant, product: "crm", generation: 0, is_rotating: false };
        let calls = [&fresh, &both].map(|vault| vault.call_secrets(signer));
        assert_eq!((calls[0].len(), calls[1].len()), (1, 2));
        assert_eq!(calls[0][0], calls[1][0]);
    }

    #[test]
    fn an_erased_address_has_a_name_under_each_key() {
        let [old, new] = ["01".repeat(32), "02".repeat(32)];
        let both = MasterKeys::parse(&format!("{new},{old}")).unwrap();
        let tenant = Uuid::now_v7();
        let names: Vec<String> = both.erased_addresses(tenant, "a@example.org").collect();
        let each = [new, old].map(|key| MasterKeys::parse(&key).unwrap().erased_address(tenant, "a@example.org"));
        assert_eq!(names, each, "the newest first");
        assert_ne!(names[0], names[1]);
        assert_eq!(both.erased_address(tenant, "a@example.org"), names[0]);
    }

    #[test]
    fn a_master_key_is_64_hex_digits_and_does_not_print() {
        assert!(MasterKeys::parse("").is_err() && MasterKeys::parse("abc").is_err());
        assert!(!format!("{:?}", MasterKeys::parse(&"ab".repeat(32)).unwrap()).contains("171"));
    }
}
