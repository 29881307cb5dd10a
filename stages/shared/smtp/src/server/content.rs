//! The octets of a mail: of DATA, read to the final dot, dots unstuffed; of BDAT, as they are.

use super::BareLineEnds;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataProgress {
    /// The mail is not complete.
    More,
    /// The final dot was read.
    Done,
    /// A bare line feed or carriage return, where these are refused: where the mail ends is read differently by different servers.
    BareLineEnd,
}

#[derive(Debug)]
pub(super) struct MailContent {
    kept: Vec<u8>,
    kept_max: usize,
    size: u64,
    bare_line_ends: BareLineEnds,
    state: DataState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataState {
    LineStart,
    /// A dot at the start of a line.
    Dot,
    /// A dot at the start of a line, and a carriage return.
    DotCr,
    Line,
    /// A carriage return, which is kept already.
    Cr,
}

impl MailContent {
    /// Keeps `kept_max` octets; `expected` are allocated at once.
    pub(super) fn new(bare_line_ends: BareLineEnds, kept_max: usize, expected: usize) -> Self {
        let kept = Vec::with_capacity(expected.min(kept_max));
        Self { kept, kept_max, size: 0, bare_line_ends, state: DataState::LineStart }
    }

    /// Octets received so far.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn into_kept(self) -> Vec<u8> {
        self.kept
    }

    /// Takes octets; answers how many belonged to the mail.
    pub(super) fn take(&mut self, octets: &[u8]) -> (usize, DataProgress) {
        let mut at = 0;
        while let Some(octet) = octets.get(at).copied() {
            self.state = match (self.state, octet) {
                (DataState::LineStart, b'.') => DataState::Dot,
                (DataState::Dot, b'\r') => DataState::DotCr,
                (DataState::DotCr, b'\n') => return (at + 1, DataProgress::Done),
                (DataState::Cr, b'\n') => {
                    self.keep(b"\n");
                    DataState::LineStart
                }
                (DataState::Cr | DataState::DotCr, _) | (_, b'\n') if self.bare_line_ends == BareLineEnds::Refuse => {
                    return (at + 1, DataProgress::BareLineEnd);
                }
                (DataState::DotCr, _) => {
                    self.keep(b"\r");
                    self.state = DataState::Cr;
                    continue;
                }
                (_, b'\r') => {
                    self.keep(b"\r");
                    DataState::Cr
                }
                // RFC 5321 §4.5.2: the first dot of a line that has more was put there by the client.
                (DataState::LineStart | DataState::Dot | DataState::Line | DataState::Cr, _) => {
                    let (end, state) = text_end(octets, at);
                    self.keep(&octets[at..end]);
                    at = end - 1;
                    state
                }
            };
            at += 1;
        }
        (octets.len(), DataProgress::More)
    }

    /// Takes octets as they are, such as those of a chunk, which has no final dot and no stuffed dots. A bare line end in it hides nothing:
    /// a chunk ends by its length.
    pub(super) fn keep(&mut self, octets: &[u8]) {
        self.size = self.size.saturating_add(octets.len() as u64);
        let left = self.kept_max - self.kept.len();
        self.kept.extend_from_slice(&octets[..octets.len().min(left)]);
    }
}

/// Where the text that begins at `at` ends, with its line end if that is there.
fn text_end(octets: &[u8], at: usize) -> (usize, DataState) {
    let rest = &octets[at + 1..];
    let end = at + 1 + memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
    if octets[end..].starts_with(b"\r\n") { (end + 2, DataState::LineStart) } else { (end, DataState::Line) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const ALL: usize = 1 << 20;

    fn read(bare_line_ends: BareLineEnds, wire: &[u8]) -> (Vec<u8>, usize, DataProgress) {
        let mut content = MailContent::new(bare_line_ends, ALL, 0);
        let (used, progress) = content.take(wire);
        (content.into_kept(), used, progress)
    }

    #[rstest]
    #[case(b"a\r\n.\r\nQUIT", b"a\r\n", 6, DataProgress::Done)]
    #[case(b".\r\n", b"", 3, DataProgress::Done)]
    #[case(b"..a\r\n.\r\n", b".a\r\n", 8, DataProgress::Done)]
    #[case(b"..\r\n.\r\n", b".\r\n", 7, DataProgress::Done)]
    #[case(b"a\r\n.b\r\n.\r\n", b"a\r\nb\r\n", 10, DataProgress::Done)]
    #[case(b"a\n.\r\n", b"a", 2, DataProgress::BareLineEnd)]
    #[case(b"a\r\n.\nMAIL", b"a\r\n", 5, DataProgress::BareLineEnd)]
    #[case(b"a\r.\r\n", b"a\r", 3, DataProgress::BareLineEnd)]
    #[case(b"a\r\n.\r.\r\n", b"a\r\n", 6, DataProgress::BareLineEnd)]
    fn a_mail_ends_at_the_lonely_dot_and_nowhere_else(
        #[case] wire: &[u8],
        #[case] mail: &[u8],
        #[case] used: usize,
        #[case] progress: DataProgress,
    ) {
        assert_eq!(read(BareLineEnds::Refuse, wire), (mail.to_vec(), used, progress));
    }

    #[rstest]
    #[case(b"a\n.\n\r\n.\r\n", b"a\n.\n\r\n")]
    #[case(b"\n.\r\n.\r\n", b"\n.\r\n")]
    #[case(b"a\r.\r\r\n.\r\n", b"a\r.\r\r\n")]
    #[case(b"a\r\n.\r.\r\n.\r\n", b"a\r\n\r.\r\n")]
    #[case(b".\n.\r\n.\r\n", b"\n.\r\n")]
    fn where_bare_line_ends_are_kept_they_are_text(#[case] wire: &[u8], #[case] mail: &[u8]) {
        assert_eq!(read(BareLineEnds::Keep, wire), (mail.to_vec(), wire.len(), DataProgress::Done));
    }

    #[test]
    fn only_the_head_of_a_large_mail_is_kept() {
        let mut content = MailContent::new(BareLineEnds::Refuse, 2_500, 0);
        let line = [b"x".repeat(998), b"\r\n".to_vec()].concat();
        for _ in 0..2_000 {
            assert_eq!(content.take(&line), (line.len(), DataProgress::More));
        }
        assert_eq!(content.size(), 2_000_000);
        assert_eq!(content.into_kept().len(), 2_500);
    }

    proptest! {
        #[test]
        fn a_stuffed_mail_comes_out_as_it_was_however_it_is_cut(
            lines in proptest::collection::vec("[.a]{0,5}", 0..12), cut in 1_usize..7, keeps in any::<bool>(),
        ) {
            let mail: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let stuffed: String = lines
                .iter()
                .map(|line| if line.starts_with('.') { format!(".{line}\r\n") } else { format!("{line}\r\n") })
                .collect();
            let wire = format!("{stuffed}.\r\n");
            let mut content =
                MailContent::new(if keeps { BareLineEnds::Keep } else { BareLineEnds::Refuse }, ALL, 0);
            let progress: Vec<DataProgress> = wire.as_bytes().chunks(cut).map(|piece| content.take(piece).1).collect();
            prop_assert_eq!(progress.last().copied(), Some(DataProgress::Done));
            prop_assert_eq!(content.into_kept(), mail.into_bytes());
        }
    }
}
