//! A message that is safe to put after DATA.

use memchr::{memchr, memmem, memrchr};

/// The longest line RFC 5322 §2.1.1 allows, without its CRLF.
const MAX_LINE: usize = 998;

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
    /// Checks octets and takes them as a message; a missing last CRLF is added. `None` is never retried: the octets do not change.
    #[must_use]
    pub fn new(mut bytes: Vec<u8>) -> Option<Self> {
        if has_bare_line_end(&bytes) || memchr(0, &bytes).is_some() {
            return None;
        }
        if last_line_start(&bytes)? != bytes.len() {
            bytes.extend_from_slice(b"\r\n");
        }
        let header_length = memmem::find(&bytes, b"\r\n\r\n")? + 2;
        Some(Self { is_eight_bit: !bytes.is_ascii(), bytes, header_length })
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

/// A CR or LF that is not part of a CRLF: servers differ in how they read one, which lets a body smuggle commands. Looks at all pairs of
/// neighbours at once, without a branch for each: the compiler makes vectors of it.
fn has_bare_line_end(bytes: &[u8]) -> bool {
    let ends_bare = bytes.first() == Some(&b'\n') || bytes.last() == Some(&b'\r');
    let pairs = std::iter::zip(bytes, bytes.get(1..).unwrap_or_default());
    let unequal = pairs.fold(0, |bare, (&octet, &next)| bare | (u8::from(octet == b'\r') ^ u8::from(next == b'\n')));
    ends_bare || unequal != 0
}

/// Where the last line begins, if no line is too long. A line that is not must end within the reach of its limit, and all before that are
/// shorter still: so the last end in reach is looked for, not each.
fn last_line_start(bytes: &[u8]) -> Option<usize> {
    const REACH: usize = MAX_LINE + 2;
    let mut start = 0;
    while bytes.len() - start > MAX_LINE {
        let reach = &bytes[start..bytes.len().min(start + REACH)];
        start += memrchr(b'\n', reach)? + 1;
    }
    Some(start + memrchr(b'\n', &bytes[start..]).map_or(0, |end| end + 1))
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
    #[case::bare_lf(b"Subject: a\r\n\r\nx\n.\r\n")]
    #[case::bare_cr(b"Subject: a\r\n\r\nx\r.\r\n")]
    #[case::leading_lf(b"\nSubject: a\r\n\r\nx\r\n")]
    #[case::doubled_cr(b"Subject: a\r\n\r\nx\r\r\n")]
    #[case::nul(b"Subject: a\r\n\r\n\0\r\n")]
    #[case::no_empty_line(b"Subject: a\r\n")]
    fn a_malformed_message_is_refused(#[case] bytes: &[u8]) {
        assert_eq!(SmtpMessage::new(bytes.to_vec()), None);
    }

    #[rstest]
    #[case::at_the_limit(998, true)]
    #[case::beyond(999, false)]
    fn a_line_has_at_most_998_octets(#[case] length: usize, #[case] accepted: bool) {
        let with_end = format!("Subject: a\r\n\r\n{}\r\n", "x".repeat(length));
        assert_eq!(SmtpMessage::new(with_end.into_bytes()).is_some(), accepted);
        let without = format!("Subject: a\r\n\r\n{}", "x".repeat(length));
        assert_eq!(SmtpMessage::new(without.into_bytes()).is_some(), accepted);
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
            prop_assert_eq!(SmtpMessage::new(text.clone().into_bytes()).is_some(), is_well_formed(&text));
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
