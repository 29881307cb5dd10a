//! Signatures on what we post to others: webhook deliveries and the calls of a sequence's `call_product_webhook` step.
//!
//! A secret reads `whsec_<base64 of 32 bytes>`. Two signatures are made with it, and a receiver checks the one it likes:
//!
//! - `X-Service-Signature: t=<unix>,v1=<lower-case hex>`: HMAC-SHA256 over `<t>.<body>`. The key is the
//!   secret **as it was given to the caller**, the whole text with its prefix: nothing has to be decoded.
//! - `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,<base64>` (Standard Webhooks): HMAC-SHA256 over `<id>.<t>.<body>`.
//!   The key is the 32 bytes that the part after the prefix encodes, as that standard has it.
//!
//! While a secret is being replaced, both are made with the new secret and with the old one, the new one first: several `v1=`
//! parts, several `v1,` words. `webhook-id` is the event's id, the same in every repetition: what a receiver knows already, it
//! may drop.
//!
//! A webhook delivery is signed with its subscription's secret. A call by a sequence has no subscription: it is signed with the
//! call secret of the tenant and the product ([`call_secrets`], in a process `runtime::Vault::call_secrets`), which is derived from the master keys
//! and stored nowhere. `GET /v1/webhooks/call_secret` returns it, `POST /v1/webhooks/call_secret/rotate` replaces it. After a change of
//! the master key the old one signs along for as long as it is kept.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;
use uuid::Uuid;

/// What a secret begins with.
pub const SECRET_PREFIX: &str = "whsec_";
/// The vault's purpose under which subscriptions' secrets are sealed.
pub const SECRET_PURPOSE: &str = "webhook";
/// The type of the event, as `email.sent`.
pub const EVENT_HEADER: &str = "x-service-event";
/// The delivery's id.
pub const DELIVERY_HEADER: &str = "x-service-delivery";
/// Which attempt it is, from 1.
pub const ATTEMPT_HEADER: &str = "x-service-attempt";

const KEY_BYTES: usize = 32;

/// The text is no secret of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a webhook secret is whsec_ and the base64 of 32 bytes")]
pub struct MalformedSecret;

/// What a receiver's messages are signed with. Does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret([u8; KEY_BYTES]);

impl std::fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WebhookSecret")
    }
}

impl WebhookSecret {
    /// A new one.
    #[must_use]
    pub fn generate() -> Self {
        Self(rand::random())
    }

    /// Reads the text that [`WebhookSecret::expose`] gives.
    pub fn parse(text: &str) -> Result<Self, MalformedSecret> {
        let encoded = text.strip_prefix(SECRET_PREFIX).ok_or(MalformedSecret)?;
        let key = STANDARD.decode(encoded).map_err(|_| MalformedSecret)?;
        key.try_into().map(Self).map_err(|_| MalformedSecret)
    }

    /// The secret as the caller gets it: for its answer and for the vault, and nowhere else.
    #[must_use]
    pub fn expose(&self) -> String {
        format!("{SECRET_PREFIX}{}", STANDARD.encode(self.0))
    }
}

/// How long a replaced secret signs along.
pub const ROTATION_OVERLAP: Duration = Duration::from_secs(24 * 60 * 60);

/// Whose calls are signed, and with which of its secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSigner<'a> {
    /// The tenant.
    pub tenant: Uuid,
    /// The product that owns the sequence: another one of the same tenant has another secret.
    pub product: &'a str,
    /// How often its secret was rotated.
    pub generation: u32,
    /// True while the secret before signs along.
    pub is_rotating: bool,
}

/// The secrets that calls to a tenant's product are signed with: one per key, newest first, then, after a rotation, those before.
/// The first is the one to check with. The keys are derived from the master keys, for this alone.
#[must_use]
pub fn call_secrets(keys: &[[u8; 32]], signer: CallSigner<'_>) -> Vec<WebhookSecret> {
    let derive = |key: &[u8; 32], generation: u32| {
        let mut kdf = mac_of(key);
        kdf.update(b"postrider call secret v2\0");
        kdf.update(signer.tenant.as_bytes());
        kdf.update(&generation.to_be_bytes());
        kdf.update(signer.product.as_bytes());
        WebhookSecret(kdf.finalize().into_bytes().into())
    };
    let before = signer.generation.checked_sub(1).filter(|_| signer.is_rotating);
    let generations = std::iter::once(signer.generation).chain(before);
    generations.flat_map(|generation| keys.iter().map(move |key| derive(key, generation))).collect()
}

/// The headers of a signed message: `secrets` newest first, `id` the event's, `timestamp` in unix seconds, the very bytes that
/// are sent as `body`. A message is signed anew for each attempt: receivers refuse old timestamps.
#[must_use]
pub fn sign(secrets: &[WebhookSecret], id: Uuid, timestamp: i64, body: &[u8]) -> [(&'static str, String); 4] {
    let id = id.hyphenated().to_string();
    let moment = timestamp.to_string();
    let service = |secret: &WebhookSecret| {
        format!(",v1={}", hex::encode(tag(secret.expose().as_bytes(), &[moment.as_bytes(), b".", body])))
    };
    let standard = |secret: &WebhookSecret| {
        let tag = tag(&secret.0, &[id.as_bytes(), b".", moment.as_bytes(), b".", body]);
        format!("v1,{}", STANDARD.encode(tag))
    };
    let services: Vec<String> = secrets.iter().map(service).collect();
    let standards: Vec<String> = secrets.iter().map(standard).collect();
    [
        ("x-service-signature", format!("t={moment}{}", services.concat())),
        ("webhook-id", id),
        ("webhook-timestamp", moment),
        ("webhook-signature", standards.join(" ")),
    ]
}

fn tag(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = mac_of(key);
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Our keys are no longer than a block (64 bytes), so they are padded with zeros, as HMAC does with short ones.
pub(crate) fn mac_of(key: &[u8]) -> Hmac<Sha256> {
    let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
    block[..key.len()].copy_from_slice(key);
    Hmac::<Sha256>::new(&block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// The bytes 0 to 31.
    const KNOWN: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const BODY: &[u8] = br#"{"type":"email.sent"}"#;

    fn known() -> WebhookSecret {
        WebhookSecret::parse(KNOWN).unwrap()
    }

    fn id() -> Uuid {
        Uuid::from_u128(0x0197_a1c2_7b1e_7c44_9d3f_2a6b_8c0d_1e2f)
    }

    #[test]
    fn the_signatures_are_those_that_others_compute() {
        let headers = sign(&[known()], id(), 1_767_225_600, BODY);
        // Computed with Python's hmac module.
        let expected = [
            ("x-service-signature", "t=1767225600,v1=6e377409ec07e319fba27177951fa4064a3c3cd9fc732cae7c270d293f6be5fe"),
            ("webhook-id", "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f"),
            ("webhook-timestamp", "1767225600"),
            ("webhook-signature", "v1,rna8i2L47HTkVsJmIOw7BRnAuSDjlrf+KoVdSK6r6gE="),
        ];
        assert_eq!(headers, expected.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn during_a_rotation_both_secrets_sign_the_new_one_first() {
        let (new, old) = (WebhookSecret::generate(), known());
        let of = |secrets: &[WebhookSecret]| sign(secrets, id(), 7, BODY).map(|(_, value)| value);
        let ([one_new, .., standard_new], [one_old, .., standard_old]) =
            (of(std::slice::from_ref(&new)), of(std::slice::from_ref(&old)));
        let [both, .., standard_both] = of(&[new, old]);
        assert_eq!(both, format!("{one_new}{}", one_old.strip_prefix("t=7").unwrap()));
        assert_eq!(standard_both, format!("{standard_new} {standard_old}"));
    }

    #[rstest]
    #[case("")]
    #[case("whsec_")]
    #[case("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")]
    #[case("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg==")]
    #[case("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gIQ==")]
    #[case("whsec_not base64 at all")]
    fn what_is_no_secret_is_not_read(#[case] text: &str) {
        assert_eq!(WebhookSecret::parse(text), Err(MalformedSecret));
    }

    #[test]
    fn a_secret_reads_back_is_never_made_twice_and_does_not_print() {
        let secret = WebhookSecret::generate();
        assert_eq!(WebhookSecret::parse(&secret.expose()), Ok(secret.clone()));
        assert_ne!(secret, WebhookSecret::generate());
        assert_eq!(known().expose(), KNOWN);
        assert_eq!(format!("{secret:?}"), "WebhookSecret");
    }

    #[test]
    fn call_secrets_are_one_per_tenant_product_and_master_key_and_stay() {
        let of = |tenant, product| CallSigner { tenant, product, generation: 0, is_rotating: false };
        let tenant = Uuid::now_v7();
        let (one, other) = (of(tenant, "crm"), of(Uuid::now_v7(), "crm"));
        let before = call_secrets(&[[1; 32]], one);
        let after = call_secrets(&[[2; 32], [1; 32]], one);
        assert_eq!((before.len(), after.len()), (1, 2));
        assert_eq!(after[1], before[0]);
        assert_ne!(after[0], before[0]);
        assert_ne!(call_secrets(&[[1; 32]], other), before);
        assert_ne!(call_secrets(&[[1; 32]], of(tenant, "billing")), before);
    }

    #[test]
    fn a_rotated_call_secret_signs_along_under_every_master_key() {
        let (new, old) = ([2; 32], [1; 32]);
        let of = |keys: &[[u8; 32]], generation, is_rotating| {
            call_secrets(keys, CallSigner { tenant: Uuid::nil(), product: "crm", generation, is_rotating })
        };
        let known = &of(&[old], 0, false)[0];
        let now = of(&[new, old], 1, true);
        assert!(now.contains(known), "the receiver knows the secret from before both changes");
        assert_eq!((now.len(), &now[0]), (4, &of(&[new], 1, false)[0]));
    }

    #[test]
    fn a_rotated_call_secret_signs_along_for_a_while() {
        let of = |generation, is_rotating| {
            call_secrets(&[[1; 32]], CallSigner { tenant: Uuid::nil(), product: "crm", generation, is_rotating })
        };
        let (before, now, later) = (of(0, false), of(1, true), of(1, false));
        assert_eq!((now.len(), &now[1], &now[0]), (2, &before[0], &later[0]));
        assert_ne!(now[0], before[0]);
        assert_eq!(later.len(), 1);
    }
}
