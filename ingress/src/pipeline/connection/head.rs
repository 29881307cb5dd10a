//! Checks the heads of HTTP/1 requests as they arrive, against request smuggling.
//!
//! hyper repairs silently what a proxy in front may read differently: of a request with both `Content-Length` and `Transfer-Encoding` it
//! drops the length (RFC 9112 §6.1 allows a refusal, and asks to close the connection). And its own refusals have no body. So each
//! head is checked here before hyper sees its end.

use super::HEAD_MAX_BYTES;

/// Follows the bytes of a connection from request to request.
#[derive(Debug, Default)]
pub(super) struct HeadChecker {
    position: HeadPosition,
}

/// Where in a request the next byte stands.
#[derive(Debug)]
enum HeadPosition {
    Head(RequestHead),
    /// In a body of which so many bytes are to come.
    Body(u64),
    /// In the size of a chunk: the digits so far, and whether its extensions have begun.
    ChunkSize(u64, bool),
    /// In a chunk of which so many bytes are to come, or at its end.
    Chunk(u64),
    /// In what follows the last chunk, so many characters into a line.
    Trailer(usize),
    /// In what hyper refuses, or in another protocol: nothing is checked any more.
    Unknown,
}

impl Default for HeadPosition {
    fn default() -> Self {
        Self::Head(RequestHead::default())
    }
}

/// A head that has not ended.
#[derive(Debug, Default)]
struct RequestHead {
    bytes: usize,
    lines: usize,
    line: Vec<u8>,
    /// The last byte was a carriage return.
    has_return: bool,
    length: Option<u64>,
    coding: Option<Coding>,
    is_tunnel: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Chunked,
    Other,
}

#[derive(Debug, PartialEq, Eq)]
struct RefusedHead;

impl HeadChecker {
    /// Looks at a piece.
    ///
    /// # Errors
    /// When a head is refused: where in the piece that head begins. What stands before may be served.
    pub(super) fn follow(&mut self, piece: &[u8]) -> Result<(), usize> {
        let (mut at, mut begun) = (0, 0);
        while let Some(&byte) = piece.get(at) {
            let rest = (piece.len() - at) as u64;
            match &mut self.position {
                HeadPosition::Unknown => return Ok(()),
                HeadPosition::Body(left) => {
                    let step = rest.min(*left);
                    *left -= step;
                    if *left == 0 {
                        self.position = HeadPosition::default();
                    }
                    at += usize::try_from(step).unwrap_or(usize::MAX).max(1);
                }
                HeadPosition::Chunk(left) if *left > 0 => {
                    let step = rest.min(*left);
                    *left -= step;
                    at += usize::try_from(step).unwrap_or(usize::MAX);
                }
                HeadPosition::Head(head) => {
                    if head.bytes == 0 {
                        begun = at;
                    }
                    match head.take(byte) {
                        Ok(None) => {}
                        Ok(Some(next)) => self.position = next,
                        Err(RefusedHead) => return Err(begun),
                    }
                    at += 1;
                }
                other => {
                    let next = after(other, byte);
                    self.position = next;
                    at += 1;
                }
            }
        }
        Ok(())
    }
}

/// What follows a byte between chunks.
fn after(position: &HeadPosition, byte: u8) -> HeadPosition {
    match (position, byte) {
        (HeadPosition::ChunkSize(0, _), b'\n') => HeadPosition::Trailer(0),
        (HeadPosition::ChunkSize(size, _), b'\n') => HeadPosition::Chunk(*size),
        (HeadPosition::ChunkSize(size, _), b'\r') => HeadPosition::ChunkSize(*size, true),
        (HeadPosition::ChunkSize(size, true), _) | (HeadPosition::ChunkSize(size, false), b';' | b' ' | b'\t') => {
            HeadPosition::ChunkSize(*size, true)
        }
        (HeadPosition::ChunkSize(size, false), digit) => {
            let digit = char::from(digit).to_digit(16).map(u64::from);
            let size = digit.and_then(|digit| size.checked_mul(16)?.checked_add(digit));
            size.map_or(HeadPosition::Unknown, |size| HeadPosition::ChunkSize(size, false))
        }
        (HeadPosition::Chunk(_), b'\r') => HeadPosition::Chunk(0),
        (HeadPosition::Chunk(_), b'\n') => HeadPosition::ChunkSize(0, false),
        (HeadPosition::Trailer(0), b'\n') => HeadPosition::default(),
        (HeadPosition::Trailer(_), b'\n') => HeadPosition::Trailer(0),
        (HeadPosition::Trailer(length), b'\r') => HeadPosition::Trailer(*length),
        (HeadPosition::Trailer(length), _) => HeadPosition::Trailer(length.saturating_add(1)),
        _ => HeadPosition::Unknown,
    }
}

impl RequestHead {
    /// Takes a byte; answers what follows the head, at its end.
    fn take(&mut self, byte: u8) -> Result<Option<HeadPosition>, RefusedHead> {
        // Empty lines may stand before a request (RFC 9112 §2.2).
        if self.bytes == 0 && matches!(byte, b'\r' | b'\n') {
            return Ok(None);
        }
        self.bytes += 1;
        // hyper answers it.
        if self.bytes > HEAD_MAX_BYTES {
            return Ok(Some(HeadPosition::Unknown));
        }
        match byte {
            b'\n' => {
                self.has_return = false;
                let line = std::mem::take(&mut self.line);
                self.end_line(&line)
            }
            // A carriage return stands before a line feed only.
            _ if self.has_return => Err(RefusedHead),
            b'\r' => {
                self.has_return = true;
                Ok(None)
            }
            byte if byte.is_ascii_control() && byte != b'\t' => Err(RefusedHead),
            byte => {
                self.line.push(byte);
                Ok(None)
            }
        }
    }

    fn end_line(&mut self, line: &[u8]) -> Result<Option<HeadPosition>, RefusedHead> {
        self.lines += 1;
        if self.lines == 1 {
            self.is_tunnel = line.starts_with(b"CONNECT ");
            return Ok(line.starts_with(b"PRI * HTTP/2").then_some(HeadPosition::Unknown));
        }
        if line.is_empty() {
            return Ok(Some(self.end()));
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return Ok(Some(HeadPosition::Unknown)) };
        let (name, value) = line.split_at(colon);
        let (name, value) = (name.trim_ascii(), value.get(1..).unwrap_or_default().trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let Some(length) = length else { return Ok(Some(HeadPosition::Unknown)) };
            self.length = Some(length);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
            let is_chunked = last.eq_ignore_ascii_case(b"chunked");
            self.coding = Some(if is_chunked { Coding::Chunked } else { Coding::Other });
        }
        // One that hyper refuses for its length must be refused here for having both.
        if self.length.is_some() && self.coding.is_some() { Err(RefusedHead) } else { Ok(None) }
    }

    /// What follows the head.
    fn end(&self) -> HeadPosition {
        match (self.coding, self.length) {
            _ if self.is_tunnel => HeadPosition::Unknown,
            (Some(Coding::Chunked), _) => HeadPosition::ChunkSize(0, false),
            (Some(Coding::Other), _) => HeadPosition::Unknown,
            (None, None | Some(0)) => HeadPosition::default(),
            (None, Some(length)) => HeadPosition::Body(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const GOOD: &str = "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello";
    const CHUNKED: &str = "POST /a HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n5;a=\"b\"\r\nhe\0lo\r\nA\r\n0123456789\r\n0\r\nx: y\r\n\r\n";
    const BARE: &str = "GET /b HTTP/1.1\r\n\r\n";

    fn refused(bytes: &str) -> Option<usize> {
        HeadChecker::default().follow(bytes.as_bytes()).err()
    }

    #[rstest]
    #[case::both("POST / HTTP/1.1\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n")]
    #[case::both_reversed("POST / HTTP/1.1\r\nTRANSFER-ENCODING: chunked\r\nx: y\r\nContent-Length: 6\r\n\r\n")]
    #[case::odd_coding("POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\ncontent-length: 6\r\n\r\n")]
    #[case::nul("GET / HTTP/1.1\r\nx: a\0b\r\n\r\n")]
    #[case::escape("GET / HTTP/1.1\r\nx: a\u{1b}b\r\n\r\n")]
    #[case::delete("GET / HTTP/1.1\r\nx: a\u{7f}b\r\n\r\n")]
    #[case::bare_return("GET / HTTP/1.1\r\nx: a\rb: c\r\n\r\n")]
    #[case::in_the_line("GET /\u{1} HTTP/1.1\r\n\r\n")]
    fn an_ambiguous_head_is_refused_wherever_it_stands(#[case] head: &str) {
        for before in ["", GOOD, CHUNKED, BARE, "\r\n"] {
            assert!(refused(&format!("{before}{head}")).is_some(), "{before}");
        }
        assert_eq!(refused(&format!("{GOOD}{CHUNKED}{head}")), Some(GOOD.len() + CHUNKED.len()));
    }

    #[rstest]
    #[case::tab("GET / HTTP/1.1\r\nx: a\tb\r\n\r\n")]
    #[case::letters("GET / HTTP/1.1\r\nx: Zoë\r\n\r\n")]
    #[case::line_feeds("GET / HTTP/1.1\nx: y\n\n")]
    #[case::http2("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\u{12}")]
    #[case::bytes_in_a_body("POST / HTTP/1.1\r\ncontent-length: 4\r\n\r\n\0\r\n\0GET / HTTP/1.1\r\n\r\n")]
    #[case::heads_in_a_body("POST / HTTP/1.1\r\ncontent-length: 12\r\n\r\nGET \0\r\n\r\n\0\0")]
    fn what_has_one_reading_passes(#[case] bytes: &str) {
        assert_eq!(refused(bytes), None);
    }

    proptest! {
        #[test]
        fn pieces_are_read_as_the_whole_is(
            parts in prop::collection::vec(prop::sample::select(vec![
                GOOD, CHUNKED, BARE, "\r\n", "GET / HTTP/1.1\r\nx: a\0", "POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            ]), 1..6),
            cuts in prop::collection::vec(1..40_usize, 1..40),
        ) {
            let bytes = parts.concat();
            let whole = refused(&bytes).is_some();
            let (mut heads, mut rest, mut found) = (HeadChecker::default(), bytes.as_bytes(), false);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() || found {
                    break;
                }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                found = heads.follow(piece).is_err();
                rest = after;
            }
            prop_assert_eq!(found, whole);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = HeadChecker::default().follow(&bytes);
        }
    }
}
