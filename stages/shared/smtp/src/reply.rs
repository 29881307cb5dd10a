//! Server replies (RFC 5321 §4.2) with enhanced status codes (RFC 3463, RFC 2034).

use std::fmt;

use schemas::answers::EnhancedCode;

/// The most octets one reply may have; RFC 5321 lines are at most 512, and no honest server sends more than a screenful.
const MAX_REPLY_BYTES: usize = 16 * 1024;

/// A complete reply.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    /// The basic code, 200 to 599.
    pub code: u16,
    /// The enhanced status code, when the server gave one.
    pub enhanced: Option<EnhancedCode>,
    /// The text of all lines, joined by line feeds, without codes. May name an address.
    pub text: String,
}

/// Servers like to repeat the recipient's address in their text, so a reply prints its codes only.
impl fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.enhanced {
            Some(enhanced) => write!(formatter, "Reply({} {enhanced})", self.code),
            None => write!(formatter, "Reply({})", self.code),
        }
    }
}

/// A reply that cannot be read: the connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server's reply is not SMTP")]
pub struct UnreadableReply;

impl Reply {
    /// A reply from its parts, as tests and stored attempts need it: the text may begin with an enhanced status code.
    #[must_use]
    pub fn new(code: u16, text: &str) -> Self {
        let mut reply = Self { code, enhanced: None, text: String::new() };
        for line in text.lines() {
            reply.add_line(line);
        }
        reply
    }

    /// 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// 4xx.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        (400..500).contains(&self.code)
    }

    /// 4xx or 5xx: the server says no.
    #[must_use]
    pub fn is_negative(&self) -> bool {
        (400..600).contains(&self.code)
    }

    /// Reads one reply from the front of `input`: `None` when it is not complete yet, else the reply and its length.
    pub(super) fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, UnreadableReply> {
        let mut reply: Option<Self> = None;
        let mut start = 0;
        while let Some(length) = memchr::memchr(b'\n', &input[start..]) {
            if start > MAX_REPLY_BYTES {
                return Err(UnreadableReply);
            }
            let line = &input[start..start + length];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let (code, last, text) = split_line(line)?;
            let lines = reply.get_or_insert_with(|| Self::new(code, ""));
            if lines.code != code {
                return Err(UnreadableReply);
            }
            lines.add_line(&String::from_utf8_lossy(text));
            start += length + 1;
            if last {
                return Ok(reply.map(|reply| (reply, start)));
            }
        }
        if input.len() > MAX_REPLY_BYTES { Err(UnreadableReply) } else { Ok(None) }
    }

    fn add_line(&mut self, line: &str) {
        let line = match EnhancedCode::at_start(line) {
            Some((code, length)) => {
                self.enhanced.get_or_insert(code);
                line[length..].trim_start()
            }
            None => line,
        };
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        // A NUL would make Postgres refuse the attempt's row; other controls would garble a terminal.
        self.text.extend(line.chars().map(|character| if character.is_control() { ' ' } else { character }));
    }
}

/// Code, whether it is the last line, and text of one reply line.
fn split_line(line: &[u8]) -> Result<(u16, bool, &[u8]), UnreadableReply> {
    let (digits, rest) = line.split_at_checked(3).ok_or(UnreadableReply)?;
    let [first @ b'2'..=b'5', second @ b'0'..=b'9', third @ b'0'..=b'9'] = digits else { return Err(UnreadableReply) };
    let code = u16::from(first - b'0') * 100 + u16::from(second - b'0') * 10 + u16::from(third - b'0');
    match rest.split_first() {
        None => Ok((code, true, b"")),
        Some((b' ', text)) => Ok((code, true, text)),
        Some((b'-', text)) => Ok((code, false, text)),
        Some(_) => Err(UnreadableReply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[test]
    fn a_one_line_reply_is_read_with_its_enhanced_code() {
        let (reply, used) = Reply::parse(b"550 5.1.1 no such user\r\n250 next").unwrap().unwrap();
        assert_eq!(
            (reply.code, reply.enhanced, reply.text.as_str()),
            (550, Some(EnhancedCode::new(5, 1, 1)), "no such user")
        );
        assert_eq!(used, 24);
    }

    #[test]
    fn a_multi_line_reply_joins_its_texts_and_drops_repeated_codes() {
        let (reply, _) = Reply::parse(b"550-5.7.26 not authenticated\r\n550-5.7.26 see the page\r\n550 5.7.26 bye\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(reply.text, "not authenticated\nsee the page\nbye");
        assert_eq!(reply.enhanced, Some(EnhancedCode::new(5, 7, 26)));
    }

    #[rstest]
    #[case::nothing(b"")]
    #[case::half_a_line(b"250 o")]
    #[case::first_of_two(b"250-one\r\n")]
    fn an_incomplete_reply_waits(#[case] input: &[u8]) {
        assert_eq!(Reply::parse(input), Ok(None));
    }

    #[rstest]
    #[case::words(b"hello\r\n")]
    #[case::other_code_in_between(b"250-one\r\n550 two\r\n")]
    #[case::code_out_of_range(b"650 what\r\n")]
    #[case::no_separator(b"250ok\r\n")]
    fn a_reply_that_is_not_smtp_is_refused(#[case] input: &[u8]) {
        assert_eq!(Reply::parse(input), Err(UnreadableReply));
    }

    #[test]
    fn an_endless_reply_is_refused() {
        let lines = "250-more\r\n".repeat(2_000);
        assert_eq!(Reply::parse(lines.as_bytes()), Err(UnreadableReply));
        assert_eq!(Reply::parse(&vec![b'2'; 20_000]), Err(UnreadableReply));
    }

    #[rstest]
    #[case::version("250 1.2.3.4 is you", None)]
    #[case::class_three("250 3.0.0 what", None)]
    #[case::bare("250 2.0.0", Some(EnhancedCode::new(2, 0, 0)))]
    #[case::three_digits("421 4.7.500 busy", Some(EnhancedCode::new(4, 7, 500)))]
    fn only_a_well_formed_enhanced_code_counts(#[case] line: &str, #[case] expected: Option<EnhancedCode>) {
        let (reply, _) = Reply::parse(format!("{line}\r\n").as_bytes()).unwrap().unwrap();
        assert_eq!(reply.enhanced, expected);
    }

    #[test]
    fn a_reply_prints_codes_only() {
        assert_eq!(format!("{:?}", Reply::new(550, "5.1.1 <ann@example.com> unknown")), "Reply(550 5.1.1)");
    }

    proptest! {
        #[test]
        fn any_octets_are_read_without_panic_and_the_text_is_storable(input in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Some((reply, used))) = Reply::parse(&input) {
                prop_assert!(used <= input.len());
                prop_assert!(!reply.text.contains('\0'));
            }
        }

        #[test]
        fn a_reply_reads_the_same_however_it_is_cut(cut in 0usize..40) {
            let whole = b"250-mx.example.com\r\n250-PIPELINING\r\n250 SIZE\r\n";
            prop_assert_eq!(Reply::parse(&whole[..cut.min(whole.len() - 1)]), Ok(None));
        }
    }
}
