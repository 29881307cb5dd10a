//! Addresses for MAIL and RCPT commands.

use std::fmt;

/// Why a text cannot be an envelope address. Never retried: the text does not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeAddressError {
    /// There is no `@`, or nothing on one side of it.
    #[error("an address needs a local part and a domain")]
    Incomplete,
    /// Longer than RFC 5321 §4.5.3.1 allows (64 octets before the `@`, 254 in all).
    #[error("the address is too long")]
    TooLong,
    /// A character outside dot-atom text (RFC 5321 §4.1.2, RFC 6531 §3.3): white space, control, bracket, quote …
    #[error("the address holds a character that cannot stand in an SMTP command")]
    Character,
    /// An empty label or a label that begins or ends with a hyphen.
    #[error("the domain of the address is malformed")]
    Domain,
}

/// An address that is safe inside an SMTP command: dot-atom local part, domain name, nothing that could end the command.
///
/// Quoted local parts and address literals, which lettre's `Address` takes, are refused; the service does not accept them as
/// recipients either.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EnvelopeAddress {
    text: String,
    at: usize,
}

impl EnvelopeAddress {
    /// Checks a text.
    ///
    /// # Errors
    /// [`EnvelopeAddressError`] says which rule it breaks.
    pub fn parse(text: &str) -> Result<Self, EnvelopeAddressError> {
        let at = text.rfind('@').ok_or(EnvelopeAddressError::Incomplete)?;
        let (local, domain) = (&text[..at], &text[at + 1..]);
        if local.is_empty() || domain.is_empty() {
            return Err(EnvelopeAddressError::Incomplete);
        }
        if local.len() > 64 || text.len() > 254 {
            return Err(EnvelopeAddressError::TooLong);
        }
        if !local.chars().all(is_local_char) || local.starts_with('.') || local.ends_with('.') || local.contains("..") {
            return Err(EnvelopeAddressError::Character);
        }
        if !domain.chars().all(is_domain_char) {
            return Err(EnvelopeAddressError::Character);
        }
        if !domain.split('.').all(is_label) {
            return Err(EnvelopeAddressError::Domain);
        }
        Ok(Self { text: text.to_owned(), at })
    }

    /// The address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part after the `@`.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.text[self.at + 1..]
    }

    /// Whether the address needs SMTPUTF8 (RFC 6531).
    #[must_use]
    pub fn is_international(&self) -> bool {
        !self.text.is_ascii()
    }
}

/// An address is personal data: it does not print, so that no log line can carry it by accident.
impl fmt::Debug for EnvelopeAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EnvelopeAddress(..)")
    }
}

fn is_local_char(character: char) -> bool {
    match character {
        'a'..='z' | 'A'..='Z' | '0'..='9' => true,
        '!' | '#' | '$' | '%' | '&' | '\'' | '*' | '+' | '-' | '/' | '=' | '?' | '^' | '_' | '`' | '{' | '|' | '}'
        | '~' | '.' => true,
        other => is_international_char(other),
    }
}

fn is_domain_char(character: char) -> bool {
    matches!(character, 'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.') || is_international_char(character)
}

/// RFC 6531 allows all of non-ASCII UTF-8; white space, controls and the invisible line separators have no place in a command.
fn is_international_char(character: char) -> bool {
    !character.is_ascii() && !character.is_whitespace() && !character.is_control()
}

fn is_label(label: &str) -> bool {
    !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && !label.ends_with('-')
}

/// The sender and the recipient of a mail, as the SMTP envelope names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The return path; `None` is the null sender `<>`, to which no bounce is sent.
    pub from: Option<EnvelopeAddress>,
    /// The recipient: one per transaction, so that an answer concerns one person.
    pub to: EnvelopeAddress,
    /// Size of the message in bytes, sent to servers that offer SIZE (RFC 1870).
    pub size: usize,
    /// Whether the message holds octets above 127 (RFC 6152).
    pub eight_bit: bool,
    /// Whether its header holds some (RFC 6532): addresses in From, Reply-To and Cc stand there as they are.
    pub international: bool,
}

impl Envelope {
    /// Whether the transaction needs SMTPUTF8.
    #[must_use]
    pub fn is_international(&self) -> bool {
        self.international
            || self.to.is_international()
            || self.from.as_ref().is_some_and(EnvelopeAddress::is_international)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("ann@example.com")]
    #[case::plus_tag("ann+tag@mail.example.com")]
    #[case::bounce("b=0190-1f@send.example.com")]
    #[case::international("jürgen@bücher.example")]
    #[case::localhost("root@localhost")]
    fn a_usual_address_is_accepted(#[case] text: &str) {
        assert_eq!(EnvelopeAddress::parse(text).unwrap().as_str(), text);
    }

    #[rstest]
    #[case::no_at("ann", EnvelopeAddressError::Incomplete)]
    #[case::no_local("@example.com", EnvelopeAddressError::Incomplete)]
    #[case::no_domain("ann@", EnvelopeAddressError::Incomplete)]
    #[case::line_break("ann@example.com\r\nRCPT TO:<eve@example.com>", EnvelopeAddressError::Character)]
    #[case::line_feed("a\nb@example.com", EnvelopeAddressError::Character)]
    #[case::space("ann @example.com", EnvelopeAddressError::Character)]
    #[case::bracket("ann>@example.com", EnvelopeAddressError::Character)]
    #[case::quoted("\"ann lee\"@example.com", EnvelopeAddressError::Character)]
    #[case::literal("ann@[127.0.0.1]", EnvelopeAddressError::Character)]
    #[case::two_ats("ann@b@example.com", EnvelopeAddressError::Character)]
    #[case::no_break_space("ann\u{a0}lee@example.com", EnvelopeAddressError::Character)]
    #[case::line_separator("ann\u{2028}@example.com", EnvelopeAddressError::Character)]
    #[case::dots("ann..lee@example.com", EnvelopeAddressError::Character)]
    #[case::empty_label("ann@example..com", EnvelopeAddressError::Domain)]
    #[case::hyphen("ann@-example.com", EnvelopeAddressError::Domain)]
    #[case::nul("ann\0@example.com", EnvelopeAddressError::Character)]
    fn an_address_that_could_break_a_command_is_refused(#[case] text: &str, #[case] error: EnvelopeAddressError) {
        assert_eq!(EnvelopeAddress::parse(text).unwrap_err(), error);
    }

    #[rstest]
    fn an_overlong_address_is_refused() {
        let local = format!("{}@example.com", "a".repeat(65));
        assert_eq!(EnvelopeAddress::parse(&local).unwrap_err(), EnvelopeAddressError::TooLong);
        let whole = format!("a@{}.com", ["b".repeat(60), "b".repeat(60), "b".repeat(60), "b".repeat(70)].join("."));
        assert_eq!(EnvelopeAddress::parse(&whole).unwrap_err(), EnvelopeAddressError::TooLong);
    }

    #[test]
    fn an_address_does_not_print() {
        let address = EnvelopeAddress::parse("ann@example.com").unwrap();
        assert!(!format!("{address:?}").contains("ann"));
    }

    proptest! {
        #[test]
        fn no_accepted_address_can_end_or_extend_a_command(text in "\\PC{0,20}[@ \r\n<>\\x00-\\x1f]{0,4}\\PC{0,20}@?[a-z.\r\n ]{0,20}") {
            if let Ok(address) = EnvelopeAddress::parse(&text) {
                let breaking = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '<' | '>' | '"' | '\\');
                prop_assert!(!address.as_str().contains(breaking));
            }
        }
    }
}
