//! The DATA of a mail: read to the final dot, dot-unstuffed, with its head kept.

use feedback::report::HEAD_BYTES;

/// Progress of DATA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The mail is not complete.
    More,
    /// The final dot was read.
    Done,
    /// A line feed without a carriage return before it, or one without a line feed after it. Where such a mail ends is read
    /// differently by different servers, so it ends nowhere: the connection is closed.
    Bare,
}

/// A mail while it is received.
#[derive(Debug)]
pub(super) struct MailData {
    head: Vec<u8>,
    size: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    LineStart,
    /// A dot at the start of a line.
    Dot,
    /// A dot at the start of a line, and a carriage return.
    DotCr,
    Line,
    Cr,
}

impl MailData {
    pub(super) fn new() -> Self {
        Self { head: Vec::with_capacity(16 * 1024), size: 0, state: State::LineStart }
    }

    /// Octets received so far.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The head of the mail.
    pub(super) fn into_head(self) -> Vec<u8> {
        self.head
    }

    /// Takes octets; answers how many belonged to the mail.
    pub(super) fn take(&mut self, octets: &[u8]) -> (usize, Progress) {
        for (at, octet) in octets.iter().copied().enumerate() {
            self.state = match (self.state, octet) {
                (State::LineStart, b'.') => State::Dot,
                (State::Dot, b'\r') => State::DotCr,
                (State::DotCr, b'\n') => return (at + 1, Progress::Done),
                (State::Cr, b'\n') => {
                    self.keep(b'\n');
                    State::LineStart
                }
                // Also a carriage return that is not followed by a line feed.
                (State::Cr | State::DotCr, _) | (_, b'\n') => return (at + 1, Progress::Bare),
                // RFC 5321 §4.5.2: the first dot of a line that has more was put there by the client.
                (State::LineStart | State::Dot | State::Line, octet) => {
                    self.keep(octet);
                    if octet == b'\r' { State::Cr } else { State::Line }
                }
            };
        }
        (octets.len(), Progress::More)
    }

    fn keep(&mut self, octet: u8) {
        self.size += 1;
        if self.head.len() < HEAD_BYTES {
            self.head.push(octet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn read(wire: &[u8]) -> (Vec<u8>, usize, Progress) {
        let mut data = MailData::new();
        let (used, progress) = data.take(wire);
        (data.into_head(), used, progress)
    }

    #[rstest]
    #[case(b"a\r\n.\r\nQUIT", b"a\r\n", 6, Progress::Done)]
    #[case(b".\r\n", b"", 3, Progress::Done)]
    #[case(b"..a\r\n.\r\n", b".a\r\n", 8, Progress::Done)]
    #[case(b"..\r\n.\r\n", b".\r\n", 7, Progress::Done)]
    #[case(b"a\r\n.b\r\n.\r\n", b"a\r\nb\r\n", 10, Progress::Done)]
    #[case(b"a\n.\r\n", b"a", 2, Progress::Bare)]
    #[case(b"a\r\n.\nMAIL", b"a\r\n", 5, Progress::Bare)]
    #[case(b"a\r.\r\n", b"a\r", 3, Progress::Bare)]
    #[case(b"a\r\n.\r.\r\n", b"a\r\n", 6, Progress::Bare)]
    fn a_mail_ends_at_the_lonely_dot_and_nowhere_else(
        #[case] wire: &[u8],
        #[case] mail: &[u8],
        #[case] used: usize,
        #[case] progress: Progress,
    ) {
        assert_eq!(read(wire), (mail.to_vec(), used, progress));
    }

    #[test]
    fn only_the_head_of_a_large_mail_is_kept() {
        let mut data = MailData::new();
        let line = [b"x".repeat(998), b"\r\n".to_vec()].concat();
        for _ in 0..2_000 {
            assert_eq!(data.take(&line), (line.len(), Progress::More));
        }
        assert_eq!(data.size(), 2_000_000);
        assert_eq!(data.into_head().len(), HEAD_BYTES);
    }

    proptest! {
        #[test]
        fn a_stuffed_mail_comes_out_as_it_was_however_it_is_cut(
            lines in proptest::collection::vec("[.a-z]{0,6}", 0..12), cut in 1_usize..7,
        ) {
            let mail: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let stuffed: String = lines
                .iter()
                .map(|line| if line.starts_with('.') { format!(".{line}\r\n") } else { format!("{line}\r\n") })
                .collect();
            let wire = format!("{stuffed}.\r\n");
            let mut data = MailData::new();
            let progress: Vec<Progress> = wire.as_bytes().chunks(cut).map(|piece| data.take(piece).1).collect();
            prop_assert_eq!(progress.last().copied(), Some(Progress::Done));
            prop_assert_eq!(data.into_head(), mail.into_bytes());
        }
    }
}
