//! Addresses for MAIL and RCPT commands.

use std::fmt;

/// An address that is safe inside an SMTP command: dot-atom local part, domain name, nothing that could end the command.
///
/// Quoted local parts and address literals, which lettre's `Address` takes, are refused; the service does not accept them as
/// recipients either.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct EnvelopeAddress(String);

impl EnvelopeAddress {
    /// Checks a text. `None` is never retried: the text does not change.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (local, domain) = text.rsplit_once('@')?;
        // RFC 5321 §4.5.3.1.
        let fits = local.len() <= 64 && text.len() <= 254;
        (fits && local.split('.').all(is_atom) && domain.split('.').all(is_label)).then(|| Self(text.to_owned()))
    }

    /// The address.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the address needs SMTPUTF8 (RFC 6531).
    #[must_use]
    pub fn is_international(&self) -> bool {
        !self.0.is_ascii()
    }
}

/// An address is personal data: it does not print, so that no log line can carry it by accident.
impl fmt::Debug for EnvelopeAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EnvelopeAddress(..)")
    }
}

/// RFC 5321 §4.1.2.
fn is_atom(atom: &str) -> bool {
    let is_atom_char =
        |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || is_international_char(c);
    !atom.is_empty() && atom.chars().all(is_atom_char)
}

fn is_label(label: &str) -> bool {
    let is_label_char = |c: char| c.is_ascii_alphanumeric() || c == '-' || is_international_char(c);
    let length_fits = (1..=63).contains(&label.len());
    length_fits && !label.starts_with('-') && !label.ends_with('-') && label.chars().all(is_label_char)
}

/// RFC 6531 allows all of non-ASCII UTF-8; white space, controls and the invisible line separators have no place in a command.
fn is_international_char(character: char) -> bool {
    !character.is_ascii() && !character.is_whitespace() && !character.is_control()
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
    #[case::no_at("ann")]
    #[case::no_local("@example.com")]
    #[case::no_domain("ann@")]
    #[case::line_break("ann@example.com\r\nRCPT TO:<eve@example.com>")]
    #[case::line_feed("a\nb@example.com")]
    #[case::space("ann @example.com")]
    #[case::bracket("ann>@example.com")]
    #[case::quoted("\"ann lee\"@example.com")]
    #[case::literal("ann@[127.0.0.1]")]
    #[case::two_ats("ann@b@example.com")]
    #[case::no_break_space("ann\u{a0}lee@example.com")]
    #[case::line_separator("ann\u{2028}@example.com")]
    #[case::dots("ann..lee@example.com")]
    #[case::empty_label("ann@example..com")]
    #[case::hyphen("ann@-example.com")]
    #[case::nul("ann\0@example.com")]
    fn an_address_that_could_break_a_command_is_refused(#[case] text: &str) {
        assert_eq!(EnvelopeAddress::parse(text), None);
    }

    #[test]
    fn an_overlong_address_is_refused() {
        let local = format!("{}@example.com", "a".repeat(65));
        assert_eq!(EnvelopeAddress::parse(&local), None);
        let whole = format!("a@{}", vec!["b".repeat(63); 4].join("."));
        assert_eq!(EnvelopeAddress::parse(&whole), None);
    }

    #[test]
    fn an_address_does_not_print() {
        let address = EnvelopeAddress::parse("ann@example.com").unwrap();
        assert!(!format!("{address:?}").contains("ann"));
    }

    proptest! {
        #[test]
        fn no_accepted_address_can_end_or_extend_a_command(text in "\\PC{0,20}[@ \r\n<>\\x00-\\x1f]{0,4}\\PC{0,20}@?[a-z.\r\n ]{0,20}") {
            if let Some(address) = EnvelopeAddress::parse(&text) {
                let breaking = |c: char| c.is_control() || c.is_whitespace() || matches!(c, '<' | '>' | '"' | '\\');
                prop_assert!(!address.as_str().contains(breaking));
            }
        }
    }
}
