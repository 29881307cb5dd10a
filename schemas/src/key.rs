//! API keys: `svc_live_<slug>_<43 base62 + 6 checksum>` and `svc_test_…`. Stored as SHA-256 only.

use rand::distr::{Alphanumeric, SampleString};
use sha2::{Digest, Sha256};

use crate::Environment;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const RANDOM_CHARS: usize = 43;
const CHECKSUM_CHARS: usize = 6;

/// Whether a text can be a product's slug: 2 to 32 of a–z, 0–9 and dashes inside. It is a subject token, too.
#[must_use]
pub fn is_slug(text: &str) -> bool {
    (2..=32).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Makes a fresh key. It is shown once; only [`hash`] is stored.
#[must_use]
pub fn generate(product: &str, environment: Environment) -> String {
    let random = Alphanumeric.sample_string(&mut rand::rng(), RANDOM_CHARS);
    let mode = match environment {
        Environment::Production => "live",
        Environment::Sandbox => "test",
    };
    let body = format!("svc_{mode}_{product}_{random}");
    format!("{body}{}", checksum(&body))
}

/// Whether a text has a key's form and checksum: lets a scanner, and us, dismiss a mistyped key without a look-up.
#[must_use]
pub fn is_well_formed(key: &str) -> bool {
    let Some(at) = key.len().checked_sub(CHECKSUM_CHARS).filter(|at| key.is_char_boundary(*at)) else { return false };
    let (body, sum) = key.split_at(at);
    let is_random = |text: &str| text.len() == RANDOM_CHARS && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    parts(body).is_some_and(|(slug, _, random)| is_slug(slug) && is_random(random)) && checksum(body) == sum
}

/// The product and the environment that a key names.
#[must_use]
pub fn owner(key: &str) -> Option<(&str, Environment)> {
    parts(key).map(|(slug, environment, _)| (slug, environment))
}

fn parts(key: &str) -> Option<(&str, Environment, &str)> {
    let mut parts = key.splitn(4, '_');
    let environment = match (parts.next()?, parts.next()?) {
        ("svc", "live") => Environment::Production,
        ("svc", "test") => Environment::Sandbox,
        _ => return None,
    };
    Some((parts.next()?, environment, parts.next()?))
}

/// What is stored of a key.
#[must_use]
pub fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

fn checksum(body: &str) -> String {
    let digest = Sha256::digest(body.as_bytes());
    digest.iter().take(CHECKSUM_CHARS).map(|byte| char::from(ALPHABET[usize::from(byte % 62)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_key_is_well_formed_and_a_mistyped_one_is_not() {
        let key = generate("acme-crm", Environment::Production);
        assert!(key.starts_with("svc_live_acme-crm_") && is_well_formed(&key), "{}", key.len());
        let mut mistyped = key.clone();
        mistyped.replace_range(20..21, if &key[20..21] == "a" { "b" } else { "a" });
        assert!(!is_well_formed(&mistyped));
        assert!(!is_well_formed("") && !is_well_formed("svc_live_x") && !is_well_formed("ééééééé"));
    }

    #[test]
    fn a_key_says_product_and_environment() {
        assert_eq!(owner("svc_live_acme-crm_abc"), Some(("acme-crm", Environment::Production)));
        assert_eq!(owner("svc_test_acme-crm_abc"), Some(("acme-crm", Environment::Sandbox)));
        assert_eq!(owner("svc_live_acme"), None);
        assert_eq!(owner("bearer"), None);
    }

    #[test]
    fn slugs_are_subject_tokens() {
        assert!(is_slug("crm") && is_slug("a-1"));
        assert!(!is_slug("a.b") && !is_slug("A") && !is_slug("-a") && !is_slug("a_b") && !is_slug(">"));
    }
}
