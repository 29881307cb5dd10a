//! Tokens in links we put into mail, and of exports: `v1.<key id>.<payload>.<mac>`.
//!
//! The payload holds tenant and send (and for clicks the target), never an address. The MAC is HMAC-SHA256 cut to 128 bits
//! over purpose and payload, so a pixel token cannot be used to unsubscribe. Tokens hold for years: keys are kept by id.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;
use uuid::Uuid;

use crate::webhook::mac_of;

const VERSION: &str = "v1";
const MAC_BYTES: usize = 16;
const IDS_BYTES: usize = 32;
/// The label of the host of tracked links, under the sender's domain.
pub const TRACKING_LABEL: &str = "link";
/// The longest token we look at, in bytes: a target of 2 KB and its overhead.
pub const TOKEN_MAX_BYTES: usize = 4096;

crate::named_enum! {
    /// What a token may be used for. The name is signed with the token.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Purpose {
        /// `/t/o/`
        Open = "open",
        /// `/t/c/`
        Click = "click",
        /// `/u/`
        Unsubscribe = "unsubscribe",
        /// `/p/`
        Preferences = "preferences",
        /// `/c/`
        Confirm = "confirm",
        /// `/exports/`: in the place of the send, the key that made the link.
        Export = "export",
        /// The return path's local part.
        ReturnPath = "return-path",
        /// The Message-ID's local part.
        MessageId = "message-id",
    }
}

/// Why a token is refused. Callers answer 404 to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TokenError {
    /// Not of the token's form.
    #[error("malformed token")]
    Malformed,
    /// Made with a key that is not on the ring.
    #[error("unknown token key")]
    UnknownKey,
    /// Forged, cut, or made for another purpose.
    #[error("token MAC does not match")]
    Forged,
}

/// What a good token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenClaims {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The send.
    pub send_id: Uuid,
    /// What follows the ids: for clicks the link number and the target.
    pub rest: Vec<u8>,
}

impl TokenClaims {
    /// The contact, in the tokens to leave, to choose and to confirm by: the recipient is known also when the send is not kept any more.
    #[must_use]
    pub fn contact(&self) -> Option<Uuid> {
        Uuid::from_slice(&self.rest).ok()
    }

    /// For a click token: the link's number and where it leads.
    #[must_use]
    pub fn click(&self) -> Option<(u16, &str)> {
        let (number, url) = self.rest.split_first_chunk::<2>()?;
        Some((u16::from_be_bytes(*number), std::str::from_utf8(url).ok()?))
    }
}

/// The id of a token key: the start of its hash, so it needs no register. In a token it stands in hex.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TokenKeyId([u8; 3]);

struct Key {
    id: TokenKeyId,
    mac: Hmac<Sha256>,
}

/// The keys tokens are made and checked with: the first makes, all check. `Debug` shows ids only.
pub struct TokenKeys {
    keys: Vec<Key>,
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| key.id)).finish()
    }
}

impl TokenKeys {
    /// Derives the token keys from master keys, newest first.
    #[must_use]
    pub fn derive(master_keys: &[[u8; 32]]) -> Self {
        let derive = |master: &[u8; 32]| {
            let mut kdf = mac_of(master);
            kdf.update(b"postrider token key v1");
            let key: [u8; 32] = kdf.finalize().into_bytes().into();
            let [a, b, c, ..]: [u8; 32] = Sha256::digest(key).into();
            Key { id: TokenKeyId([a, b, c]), mac: mac_of(&key) }
        };
        Self { keys: master_keys.iter().map(derive).collect() }
    }

    /// The key that new tokens are made with.
    #[must_use]
    pub fn newest(&self) -> TokenKeyId {
        self.keys.first().map_or_else(TokenKeyId::default, |key| key.id)
    }

    /// Makes a token for a send.
    #[must_use]
    pub fn seal(&self, purpose: Purpose, tenant_id: Uuid, send_id: Uuid, rest: &[u8]) -> String {
        self.seal_with(self.newest(), purpose, tenant_id, send_id, rest)
    }

    /// Makes a token with the key of this id, so that a token that is made again is the same after a rotation. With the newest key if
    /// that one is gone: what it made opens no more.
    #[must_use]
    pub fn seal_with(&self, key: TokenKeyId, purpose: Purpose, tenant_id: Uuid, send_id: Uuid, rest: &[u8]) -> String {
        let Some(key) = self.maker(key) else { return String::new() };
        let payload = [tenant_id.as_bytes().as_slice(), send_id.as_bytes(), rest].concat();
        let tag = URL_SAFE_NO_PAD.encode(tag(key, purpose, &payload));
        format!("{VERSION}.{}.{}.{tag}", hex::encode(key.id.0), URL_SAFE_NO_PAD.encode(&payload))
    }

    /// The local part of a send's return path: `b-<32 hex digits of the send>-<16 of a MAC>`. Short and lower-case only: a local
    /// part has 64 octets, and some hosts change its case. A stranger who guessed the MAC of a send could report its bounce: 64 bits are
    /// not guessed.
    #[must_use]
    pub fn return_path_local(&self, send_id: Uuid) -> String {
        let tag = self.keys.first().map_or([0; 8], |key| short_tag(key, Purpose::ReturnPath, send_id));
        format!("b-{}-{}", send_id.simple(), hex::encode(tag))
    }

    /// The send a return path's local part belongs to; `None` when it is not one of ours. Any case.
    #[must_use]
    pub fn returned_send(&self, local_part: &str) -> Option<Uuid> {
        let local_part = local_part.to_ascii_lowercase();
        let (id, tag) = local_part.strip_prefix("b-")?.split_once('-')?;
        if id.len() != 32 {
            return None;
        }
        self.proven(Purpose::ReturnPath, Uuid::try_parse(id).ok()?, tag)
    }

    /// The local part of a send's Message-ID: `<send id>.<16 hex digits of a MAC>`. An answer names its mail by it: the ids of a batch
    /// follow from any of them, the MACs do not. The MAC is not the return path's, since answers show it to their other readers, who may
    /// not report a bounce. Made with the key of this id, so that it is the same on every attempt.
    #[must_use]
    pub fn message_id_local(&self, key: TokenKeyId, send_id: Uuid) -> String {
        let tag = self.maker(key).map_or([0; 8], |key| short_tag(key, Purpose::MessageId, send_id));
        format!("{send_id}.{}", hex::encode(tag))
    }

    /// The send a Message-ID's local part belongs to; `None` when it is not one of ours.
    #[must_use]
    pub fn identified_send(&self, local_part: &str) -> Option<Uuid> {
        let (id, tag) = local_part.split_once('.')?;
        self.proven(Purpose::MessageId, crate::parse_id(id).ok()?, tag)
    }

    /// The send, if its short tag was made for it and this purpose, with any key of the ring.
    fn proven(&self, purpose: Purpose, send_id: Uuid, tag: &str) -> Option<Uuid> {
        let mut given = [0; 8];
        hex::decode_to_slice(tag, &mut given).ok()?;
        let is_ours = self.keys.iter().any(|key| short_tag(key, purpose, send_id).as_slice().ct_eq(&given).into());
        is_ours.then_some(send_id)
    }

    /// The key of this id, or the newest if that one is gone.
    fn maker(&self, id: TokenKeyId) -> Option<&Key> {
        self.keys.iter().find(|each| each.id == id).or(self.keys.first())
    }

    /// Checks a token. Nothing of the payload is trusted before the MAC matches.
    pub fn open(&self, purpose: Purpose, token: &str) -> Result<TokenClaims, TokenError> {
        if token.len() > TOKEN_MAX_BYTES {
            return Err(TokenError::Malformed);
        }
        let mut parts = token.split('.');
        let (Some(VERSION), Some(id), Some(payload), Some(mac), None) =
            (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed);
        };
        let key = self.keys.iter().find(|key| hex::encode(key.id.0) == id).ok_or(TokenError::UnknownKey)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| TokenError::Malformed)?;
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| TokenError::Malformed)?;
        if !bool::from(tag(key, purpose, &payload).as_slice().ct_eq(&mac)) {
            return Err(TokenError::Forged);
        }
        let (ids, rest) = payload.split_at_checked(IDS_BYTES).ok_or(TokenError::Malformed)?;
        let id_at = |at: usize| Uuid::from_slice(&ids[at..at + 16]).map_err(|_| TokenError::Malformed);
        Ok(TokenClaims { tenant_id: id_at(0)?, send_id: id_at(16)?, rest: rest.to_vec() })
    }
}

/// What a click token says beside its ids: link number and target are signed, so the redirect needs no look-up and cannot be bent.
#[must_use]
pub fn click_rest(link: u16, url: &str) -> Vec<u8> {
    [&link.to_be_bytes(), url.as_bytes()].concat()
}

fn short_tag(key: &Key, purpose: Purpose, send_id: Uuid) -> [u8; 8] {
    let [a, b, c, d, e, f, g, h, ..] = tag(key, purpose, send_id.as_bytes());
    [a, b, c, d, e, f, g, h]
}

fn tag(key: &Key, purpose: Purpose, payload: &[u8]) -> [u8; MAC_BYTES] {
    let mut mac = key.mac.clone();
    mac.update(purpose.as_str().as_bytes());
    mac.update(&[0]);
    mac.update(payload);
    let full = mac.finalize().into_bytes();
    let mut tag = [0; MAC_BYTES];
    tag.copy_from_slice(&full[..MAC_BYTES]);
    tag
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids() -> (Uuid, Uuid) {
        (Uuid::now_v7(), Uuid::now_v7())
    }

    #[test]
    fn a_token_answers_what_was_sealed_for_its_purpose_only() {
        let keys = TokenKeys::derive(&[[7; 32]]);
        let (tenant, send) = ids();
        let token = keys.seal(Purpose::Click, tenant, send, &click_rest(3, "https://example.com/?a=b&c=d"));
        let claims = keys.open(Purpose::Click, &token).unwrap();
        assert_eq!((claims.tenant_id, claims.send_id), (tenant, send));
        assert_eq!(claims.click(), Some((3, "https://example.com/?a=b&c=d")));
        assert_eq!(keys.open(Purpose::Unsubscribe, &token), Err(TokenError::Forged));
    }

    #[test]
    fn a_token_that_is_made_again_after_a_rotation_is_the_same() {
        let old = TokenKeys::derive(&[[1; 32]]);
        let rotated = TokenKeys::derive(&[[2; 32], [1; 32]]);
        let (tenant, send) = ids();
        let token = old.seal(Purpose::Open, tenant, send, b"");
        assert_eq!(rotated.seal_with(old.newest(), Purpose::Open, tenant, send, b""), token);
        let without = TokenKeys::derive(&[[2; 32]]).seal_with(old.newest(), Purpose::Open, tenant, send, b"");
        assert!(rotated.open(Purpose::Open, &without).is_ok() && without != token);
    }

    #[test]
    fn an_old_key_still_opens_and_an_unknown_one_does_not() {
        let old = TokenKeys::derive(&[[1; 32]]);
        let rotated = TokenKeys::derive(&[[2; 32], [1; 32]]);
        let (tenant, send) = ids();
        let token = old.seal(Purpose::Open, tenant, send, b"");
        assert!(rotated.open(Purpose::Open, &token).is_ok());
        assert_eq!(
            old.open(Purpose::Open, &rotated.seal(Purpose::Open, tenant, send, b"")),
            Err(TokenError::UnknownKey)
        );
    }

    #[test]
    fn a_message_id_proves_its_own_send_only() {
        let old = TokenKeys::derive(&[[1; 32]]);
        let rotated = TokenKeys::derive(&[[2; 32], [1; 32]]);
        let send = crate::SendId::of(crate::new_batch_id(), 3);
        let local = old.message_id_local(old.newest(), send.0);
        assert_eq!(rotated.message_id_local(old.newest(), send.0), local, "the same on an attempt after a rotation");
        assert_eq!(rotated.identified_send(&local), Some(send.0));
        let (id, tag) = local.split_once('.').unwrap();
        let neighbour = crate::SendId::of(send.batch(), 4).0;
        let path = old.return_path_local(send.0);
        let (_, path_tag) = path.rsplit_once('-').unwrap();
        for forged in [id.to_owned(), format!("{neighbour}.{tag}"), format!("{id}.{path_tag}"), format!("{id}.")] {
            assert_eq!(old.identified_send(&forged), None, "{forged}");
        }
        assert_eq!(old.returned_send(&format!("b-{}-{tag}", send.0.simple())), None, "it reports no bounce");
    }

    proptest! {
        #[test]
        fn one_changed_character_is_refused(at in 0_usize..200, with in "[A-Za-z0-9_.-]") {
            let keys = TokenKeys::derive(&[[9; 32]]);
            let token = keys.seal(Purpose::Click, Uuid::nil(), Uuid::max(), &click_rest(1, "https://example.com/long/enough/path"));
            let at = at % token.len();
            let mut changed = token.clone();
            changed.replace_range(at..=at, &with);
            // The last character of an unpadded group has spare bits, which the decoder refuses unless they are zero.
            prop_assume!(changed != token);
            prop_assert!(keys.open(Purpose::Click, &changed).is_err());
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,200}") {
            let _ = TokenKeys::derive(&[[9; 32]]).open(Purpose::Open, &text);
        }
    }
}
