//! E-mail addresses in the one canonical form that contacts, suppressions and sends are keyed by.
//!
//! Rule: trim, NFC, IDNA on the domain, ASCII lower case; no quoted local parts, no literals, no dotless hosts.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;
use unicode_normalization::UnicodeNormalization;

use crate::text::is_invisible;

/// The longest address, in octets (RFC 5321 §4.5.3.1.3: a path is 256 with its brackets).
pub const ADDRESS_MAX_BYTES: usize = 254;
/// The longest local part, in octets (RFC 5321 §4.5.3.1.1).
pub const LOCAL_PART_MAX_BYTES: usize = 64;

/// Why a text is not an address we mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AddressError {
    /// There is no text.
    #[error("the address is empty")]
    Empty,
    /// Longer than RFC 5321 allows.
    #[error("the address is longer than 254 octets, or its local part than 64")]
    TooLong,
    /// No `@`, or more than one.
    #[error("an address has exactly one @")]
    At,
    /// A character or dot where none may be; quoted local parts are not accepted.
    #[error("the part before the @ is not a plain dot-atom")]
    LocalPart,
    /// Not a host name with at least two labels; address literals are not accepted.
    #[error("the part after the @ is not a domain name with a dot")]
    Domain,
}

impl AddressError {
    /// The stable code of the fault, for API answers and import reports.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooLong => "too_long",
            Self::At => "missing_at",
            Self::LocalPart => "bad_local_part",
            Self::Domain => "bad_domain",
        }
    }
}

/// A canonical address. Prints itself only through [`Address::as_str`]; `Debug` hides it, so that it cannot reach a log.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Address(String);

impl Address {
    /// Parses and canonicalises.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if text.len() > ADDRESS_MAX_BYTES * 2 {
            return Err(AddressError::TooLong);
        }
        let text: String = text.nfc().collect();
        let (local, domain) = text.split_once('@').ok_or(AddressError::At)?;
        if domain.contains('@') {
            return Err(AddressError::At);
        }
        if !is_dot_atom(local) {
            return Err(AddressError::LocalPart);
        }
        // A host name may end in a dot; the domain of an address may not (RFC 5321 §4.1.2).
        let domain = canonical_domain(domain).filter(|_| !domain.ends_with('.')).ok_or(AddressError::Domain)?;
        let canonical = format!("{}@{domain}", local.to_ascii_lowercase());
        if local.len() > LOCAL_PART_MAX_BYTES || canonical.len() > ADDRESS_MAX_BYTES {
            return Err(AddressError::TooLong);
        }
        Ok(Self(canonical))
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The canonical text, owned.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0
    }

    /// The canonical text with the domain in U-labels, as people write it.
    #[must_use]
    pub fn with_unicode_domain(&self) -> String {
        let (local, domain) = self.0.split_once('@').unwrap_or((self.0.as_str(), ""));
        format!("{local}@{}", idna::domain_to_unicode(domain).0)
    }

    /// The part after the `@`, as A-labels.
    #[must_use]
    pub fn domain(&self) -> &str {
        self.0.split_once('@').map_or("", |(_, domain)| domain)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Address(…)")
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// A domain name in canonical form: IDNA A-labels, lower case, at least two labels, no trailing dot, no IP address.
#[must_use]
pub fn canonical_domain(text: &str) -> Option<String> {
    let text = text.trim();
    let text = text.strip_suffix('.').unwrap_or(text);
    let ascii = idna::domain_to_ascii_strict(text).ok()?;
    if ascii.len() > 253 || !ascii.contains('.') || ascii.parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    let label_ok = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let top = ascii.rsplit('.').next()?;
    let numeric_top = top.bytes().all(|byte| byte.is_ascii_digit());
    (ascii.split('.').all(label_ok) && !numeric_top).then(|| ascii.to_ascii_lowercase())
}

/// RFC 5322 dot-atom, with RFC 6531 letters.
fn is_dot_atom(local: &str) -> bool {
    let atext = |c: char| {
        c.is_ascii_alphanumeric()
            || "!#$%&'*+-/=?^_`{|}~".contains(c)
            || (!c.is_ascii() && !c.is_control() && !c.is_whitespace() && !is_invisible(c))
    };
    !local.is_empty() && local.split('.').all(|atom| !atom.is_empty() && atom.chars().all(atext))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("  Ann.Lee@Example.COM ", "ann.lee@example.com")]
    #[case("a+tag@bücher.example", "a+tag@xn--bcher-kva.example")]
    #[case("o'neil@sub.example.co.uk", "o'neil@sub.example.co.uk")]
    #[case("ju\u{0308}rgen@example.com", "jürgen@example.com")]
    fn an_address_has_one_canonical_form(#[case] text: &str, #[case] canonical: &str) {
        assert_eq!(Address::parse(text).unwrap().as_str(), canonical);
    }

    #[rstest]
    #[case("", AddressError::Empty)]
    #[case("nobody", AddressError::At)]
    #[case("a@b@example.com", AddressError::At)]
    #[case("\"a b\"@example.com", AddressError::LocalPart)]
    #[case(".a@example.com", AddressError::LocalPart)]
    #[case("a..b@example.com", AddressError::LocalPart)]
    #[case("a b@example.com", AddressError::LocalPart)]
    #[case("a\r\nb@example.com", AddressError::LocalPart)]
    #[case("a@[127.0.0.1]", AddressError::Domain)]
    #[case("a@127.0.0.1", AddressError::Domain)]
    #[case("a@localhost", AddressError::Domain)]
    #[case("a@-bad.example", AddressError::Domain)]
    #[case("a@exa mple.com", AddressError::Domain)]
    #[case("a@example..com", AddressError::Domain)]
    #[case("a@example.com.", AddressError::Domain)]
    #[case("a@example.com\u{3002}", AddressError::Domain)]
    #[case("a\u{200b}b@example.com", AddressError::LocalPart)]
    fn a_text_that_is_no_address_is_refused_with_its_fault(#[case] text: &str, #[case] fault: AddressError) {
        assert_eq!(Address::parse(text).unwrap_err(), fault);
    }

    #[test]
    fn lengths_are_those_of_rfc_5321() {
        assert!(Address::parse(&format!("{}@example.com", "a".repeat(64))).is_ok());
        assert_eq!(Address::parse(&format!("{}@example.com", "a".repeat(65))).unwrap_err(), AddressError::TooLong);
    }

    #[test]
    fn debug_output_hides_the_address() {
        assert!(!format!("{:?}", Address::parse("ann@example.com").unwrap()).contains("ann"));
    }

    proptest! {
        #[test]
        fn canonicalising_twice_changes_nothing(text in "\\PC{0,40}@\\PC{1,20}\\.[a-z]{2,5}") {
            if let Ok(once) = Address::parse(&text) {
                prop_assert_eq!(Address::parse(once.as_str()).unwrap(), once);
            }
        }
    }
}
