//! Request signatures: the signed parts, and how long a signature is valid.

use chrono::{DateTime, TimeDelta, Utc};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Largest difference between a timestamp and server time.
const SKEW_MAX: TimeDelta = TimeDelta::minutes(5);
const NONCE_MAX_CHARS: usize = 128;
const SCHEME: &str = "sha256=";
const HEX_CHARS: usize = 64;

/// True if a timestamp is well-formed and within five minutes of now, before or after.
#[must_use]
pub fn is_fresh(timestamp: &str, now: DateTime<Utc>) -> bool {
    DateTime::parse_from_rfc3339(timestamp).is_ok_and(|at| (now - at.to_utc()).abs() <= SKEW_MAX)
}

/// True if a nonce is 1 to 128 visible ASCII characters.
#[must_use]
pub fn is_nonce(nonce: &str) -> bool {
    (1..=NONCE_MAX_CHARS).contains(&nonce.len()) && nonce.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The parts that the caller signed: method, raw path, timestamp, nonce and body, all exactly as received.
#[derive(Debug, Clone, Copy)]
pub struct SignedParts<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The path, without query.
    pub path: &'a str,
    /// The text of `X-Service-Timestamp`.
    pub timestamp: &'a str,
    /// The text of `X-Service-Nonce`.
    pub nonce: &'a str,
    /// The body.
    pub body: &'a [u8],
}

impl SignedParts<'_> {
    fn mac(&self, key: &str) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).ok()?;
        for part in [self.method, self.path, self.timestamp, self.nonce] {
            mac.update(part.as_bytes());
            mac.update(b"\n");
        }
        mac.update(hex::encode(Sha256::digest(self.body)).as_bytes());
        Some(mac)
    }

    /// The text of `X-Service-Signature`.
    #[must_use]
    pub fn sign(&self, key: &str) -> String {
        let digest = self.mac(key).map(|mac| hex::encode(mac.finalize().into_bytes())).unwrap_or_default();
        format!("{SCHEME}{digest}")
    }

    /// True if a signature is correct. Compares in constant time; only lower-case hex is accepted.
    #[must_use]
    pub fn is_signed_by(&self, key: &str, signature: &str) -> bool {
        let Some(digits) = signature.strip_prefix(SCHEME) else { return false };
        if digits.len() != HEX_CHARS || digits.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return false;
        }
        let mut tag = [0; HEX_CHARS / 2];
        match (hex::decode_to_slice(digits, &mut tag), self.mac(key)) {
            (Ok(()), Some(mac)) => mac.verify_slice(&tag).is_ok(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const PARTS: SignedParts<'static> = SignedParts {
        method: "POST",
        path: "/v1/imports",
        timestamp: "2026-01-02T03:04:05Z",
        nonce: "n-1",
        body: b"{}",
    };

    #[test]
    fn the_signature_is_the_hmac_of_five_lines() {
        // Computed with: printf 'POST\n/v1/imports\n2026-01-02T03:04:05Z\nn-1\n<sha256 of {}>' | openssl dgst -sha256 -hmac secret
        let expected = "sha256=757e937c5e08a530896b3b9d83c3195e4dadbe12c110d944790d9b6d31786985";
        assert_eq!(PARTS.sign("secret"), expected);
        assert!(PARTS.is_signed_by("secret", expected));
    }

    #[test]
    fn any_changed_part_breaks_the_signature() {
        let signature = PARTS.sign("secret");
        for changed in [
            SignedParts { method: "PATCH", ..PARTS },
            SignedParts { path: "/v1/imports/", ..PARTS },
            SignedParts { timestamp: "2026-01-02T03:04:05.0Z", ..PARTS },
            SignedParts { nonce: "n-2", ..PARTS },
            SignedParts { body: b"{ }", ..PARTS },
        ] {
            assert!(!changed.is_signed_by("secret", &signature), "{changed:?}");
        }
        assert!(!PARTS.is_signed_by("other", &signature));
        assert!(!PARTS.is_signed_by("secret", &signature.to_uppercase()));
        assert!(!PARTS.is_signed_by("secret", &signature[7..]));
        assert!(!PARTS.is_signed_by("secret", &format!("{SCHEME}{}", signature[7..].to_uppercase())));
        assert!(!PARTS.is_signed_by("secret", ""));
    }

    #[rstest]
    #[case("2026-01-02T03:04:05Z", true)]
    #[case("2026-01-02T03:09:05Z", true)]
    #[case("2026-01-02T02:59:05+00:00", true)]
    #[case("2026-01-02T04:04:05+01:00", true)]
    #[case("2026-01-02T03:09:06Z", false)]
    #[case("2026-01-02T02:59:04Z", false)]
    #[case("2026-01-02T03:04:05", false)]
    #[case("1767323045", false)]
    #[case("", false)]
    fn a_timestamp_is_fresh_within_five_minutes(#[case] timestamp: &str, #[case] fresh: bool) {
        let now = DateTime::parse_from_rfc3339("2026-01-02T03:04:05Z").unwrap().to_utc();
        assert_eq!(is_fresh(timestamp, now), fresh);
    }

    #[test]
    fn a_nonce_is_1_to_128_visible_ascii_characters() {
        assert!(is_nonce("a") && is_nonce(&"a".repeat(128)));
        assert!(!is_nonce("") && !is_nonce(&"a".repeat(129)) && !is_nonce("a b") && !is_nonce("é"));
    }
}
