//! A message that is safe to put after DATA.

use memchr::{memmem, memrchr};

/// The longest line RFC 5322 §2.1.1 allows, without its CRLF.
const MAX_LINE: usize = 998;

/// Why octets are not a message. Never retried: the octets do not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedMessage {
    /// A CR or LF that is not part of a CRLF. Servers differ in how they read one, which lets a body smuggle commands.
    #[error("the message has a bare CR or LF")]
    BareLineEnd,
    /// A line of more than 998 octets.
    #[error("the message has a line that is too long")]
    LongLine,
    /// A NUL octet.
    #[error("the message has a NUL octet")]
    Nul,
    /// No empty line ends the header, or the header is empty.
    #[error("the message has no header")]
    NoHeader,
}

/// A complete RFC 5322 message: CRLF line ends only, a header, lines within 998 octets, no NUL. Not dot-stuffed.
#[derive(Clone, PartialEq, Eq)]
pub struct SmtpMessage {
    bytes: Vec<u8>,
    header_length: usize,
    is_eight_bit: bool,
}

/// A body is the sender's business: it does not print.
impl std::fmt::Debug for SmtpMessage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Message({} octets)", self.bytes.len())
    }
}

impl SmtpMessage {
    /// Checks octets and takes them as a message; a missing last CRLF is added.
    ///
    /// # Errors
    /// [`MalformedMessage`] says which rule they break.
    pub fn new(mut bytes: Vec<u8>) -> Result<Self, MalformedMessage> {
        let octets = Octets::of(&bytes);
        if octets.has_bare_line_end {
            return Err(MalformedMessage::BareLineEnd);
        }
        let line_start = last_line_start(&bytes)?;
        if octets.has_nul {
            return Err(MalformedMessage::Nul);
        }
        if line_start != bytes.len() {
            bytes.extend_from_slice(b"\r\n");
        }
        let header_length = memmem::find(&bytes, b"\r\n\r\n").ok_or(MalformedMessage::NoHeader)? + 2;
        Ok(Self { bytes, header_length, is_eight_bit: octets.is_eight_bit })
    }

    /// The header fields, each with its CRLF, without the empty line.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.bytes[..self.header_length]
    }

    /// What follows the empty line.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.bytes[self.header_length + 2..]
    }

    /// The whole message.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it holds octets above 127.
    #[must_use]
    pub fn is_eight_bit(&self) -> bool {
        self.is_eight_bit
    }
}

/// What single octets, and pairs of neighbours, say of a message.
struct Octets {
    has_bare_line_end: bool,
    has_nul: bool,
    is_eight_bit: bool,
}

impl Octets {
    /// Looks at all octets at once, without a branch for each: the compiler makes vectors of it.
    fn of(bytes: &[u8]) -> Self {
        let ends_bare = bytes.first() == Some(&b'\n') || bytes.last() == Some(&b'\r');
        let pairs = std::iter::zip(bytes, bytes.get(1..).unwrap_or_default());
        let unequal =
            pairs.fold(0, |bare, (&octet, &next)| bare | (u8::from(octet == b'\r') ^ u8::from(next == b'\n')));
        let nul = bytes.iter().fold(0, |nul, &octet| nul | u8::from(octet == 0));
        Self { has_bare_line_end: ends_bare || unequal != 0, has_nul: nul != 0, is_eight_bit: !bytes.is_ascii() }
    }
}

/// Where the last line begins, if no line is too long. A line that is not must end within the reach of its limit, and all before that are
/// shorter still: so the last end in reach is looked for, not each.
fn last_line_start(bytes: &[u8]) -> Result<usize, MalformedMessage> {
    const REACH: usize = MAX_LINE + 2;
    let mut start = 0;
    while bytes.len() - start > MAX_LINE {
        let reach = &bytes[start..bytes.len().min(start + REACH)];
        start += memrchr(b'\n', reach).ok_or(MalformedMessage::LongLine)? + 1;
    }
    Ok(start + memrchr(b'\n', &bytes[start..]).map_or(0, |end| end + 1))
}

/// Appends `prefix` (further header fields, complete with CRLFs) and the message to `out`, dot-stuffed (RFC 5321 §4.5.2),
/// and the final dot: all of it leaves in one write.
pub(super) fn append_data(out: &mut Vec<u8>, prefix: &[u8], message: &SmtpMessage) {
    out.reserve(prefix.len() + message.bytes.len() + 64);
    stuff(out, prefix);
    stuff(out, &message.bytes);
    out.extend_from_slice(b".\r\n");
}

/// Doubles the dot of each line that begins with one. `text` begins at a line start and ends with CRLF, or is empty.
fn stuff(out: &mut Vec<u8>, text: &[u8]) {
    if text.first() == Some(&b'.') {
        out.push(b'.');
    }
    let mut copied = 0;
    for position in memmem::find_iter(text, b"\n.") {
        out.extend_from_slice(&text[copied..=position]);
        out.push(b'.');
        copied = position + 1;
    }
    out.extend_from_slice(&text[copied..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::bare_lf(b"Subject: a\r\n\r\nx\n.\r\n", MalformedMessage::BareLineEnd)]
    #[case::bare_cr(b"Subject: a\r\n\r\nx\r.\r\n", MalformedMessage::BareLineEnd)]
    #[case::leading_lf(b"\nSubject: a\r\n\r\nx\r\n", MalformedMessage::BareLineEnd)]
    #[case::doubled_cr(b"Subject: a\r\n\r\nx\r\r\n", MalformedMessage::BareLineEnd)]
    #[case::nul(b"Subject: a\r\n\r\n\0\r\n", MalformedMessage::Nul)]
    #[case::no_empty_line(b"Subject: a\r\n", MalformedMessage::NoHeader)]
    fn a_malformed_message_is_refused(#[case] bytes: &[u8], #[case] error: MalformedMessage) {
        assert_eq!(SmtpMessage::new(bytes.to_vec()).unwrap_err(), error);
    }

    #[rstest]
    #[case::at_the_limit(998, true)]
    #[case::beyond(999, false)]
    fn a_line_has_at_most_998_octets(#[case] length: usize, #[case] accepted: bool) {
        let with_end = format!("Subject: a\r\n\r\n{}\r\n", "x".repeat(length));
        assert_eq!(SmtpMessage::new(with_end.into_bytes()).is_ok(), accepted);
        let without = format!("Subject: a\r\n\r\n{}", "x".repeat(length));
        assert_eq!(SmtpMessage::new(without.into_bytes()).is_ok(), accepted);
    }

    #[test]
    fn header_and_body_part_at_the_first_empty_line() {
        let message = SmtpMessage::new(b"Subject: a\r\nTo: b\r\n\r\none\r\n\r\ntwo".to_vec()).unwrap();
        assert_eq!(message.header(), b"Subject: a\r\nTo: b\r\n");
        assert_eq!(message.body(), b"one\r\n\r\ntwo\r\n");
    }

    #[test]
    fn dots_at_line_starts_are_doubled_and_the_final_dot_follows() {
        let message = SmtpMessage::new(b".a: b\r\n\r\n.\r\n..x\r\ny.\r\n".to_vec()).unwrap();
        let mut out = Vec::new();
        append_data(&mut out, b"", &message);
        assert_eq!(out, b"..a: b\r\n\r\n..\r\n...x\r\ny.\r\n.\r\n");
    }

    /// The rules as the RFC states them, line by line.
    fn is_well_formed(text: &str) -> bool {
        let lines: Vec<&str> = text.split("\r\n").collect();
        lines.iter().all(|line| line.len() <= MAX_LINE && !line.contains(['\r', '\n', '\0']))
            && lines.iter().rev().skip(1).any(|line| line.is_empty())
    }

    proptest! {
        #[test]
        fn what_is_taken_is_what_reading_line_by_line_takes(
            parts in proptest::collection::vec(
                prop_oneof!["[a\u{e4}]{0,3}", Just("\r\n".to_owned()), Just("\r\n".to_owned()), "[\r\n\0]?", (996..1001_usize).prop_map(|n| "x".repeat(n))],
                0..12,
            ),
        ) {
            let text = format!("S: x\r\n\r\n{}", parts.concat());
            prop_assert_eq!(SmtpMessage::new(text.clone().into_bytes()).is_ok(), is_well_formed(&text));
        }

        #[test]
        fn what_a_server_unstuffs_is_the_message(lines in proptest::collection::vec("[.a]{0,4}", 0..12)) {
            let text = format!("S: x\r\n\r\n{}\r\n", lines.join("\r\n"));
            let message = SmtpMessage::new(text.clone().into_bytes()).unwrap();
            let mut out = Vec::new();
            append_data(&mut out, b"D: s\r\n", &message);
            let out = String::from_utf8(out).unwrap();
            prop_assert_eq!(out.matches("\r\n.\r\n").count(), 1);
            let received: String = out.strip_suffix(".\r\n").unwrap().split_inclusive("\r\n").map(|line| line.strip_prefix('.').unwrap_or(line)).collect();
            prop_assert_eq!(received, format!("D: s\r\n{text}"));
        }
    }
}
