//! Relaxed canonicalisation (RFC 6376 §3.4.2 and §3.4.4).

use memchr::memchr_iter;

/// White space as DKIM means it.
fn is_wsp(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// The relaxed form of a body with CRLF line ends: runs of white space become one space, none stands at a line's end,
/// and no empty lines at the end of the body.
pub(super) fn body(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut empty_lines = 0;
    let mut start = 0;
    let ends = memchr_iter(b'\n', body).map(|position| position + 1).chain(std::iter::once(body.len()));
    for end in ends {
        if end == start {
            continue;
        }
        let line = trim_end(&body[start..end]);
        start = end;
        if line.is_empty() {
            empty_lines += 1;
            continue;
        }
        for _ in 0..std::mem::take(&mut empty_lines) {
            out.extend_from_slice(b"\r\n");
        }
        reduce(&mut out, line);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Appends the relaxed form of a header field given as in the message, without CRLF at its end.
pub(super) fn header(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend(trim_end(name).iter().map(u8::to_ascii_lowercase));
    out.push(b':');
    let value = trim_end(value);
    let lead = value.iter().position(|&byte| !is_line_space(byte)).unwrap_or(value.len());
    reduce(out, &value[lead..]);
}

/// Appends `text` with each run of white space (and the line ends of folding in it) as one space.
fn reduce(out: &mut Vec<u8>, text: &[u8]) {
    let mut in_space = false;
    for &byte in text {
        if is_wsp(byte) {
            in_space = true;
        } else if byte != b'\r' && byte != b'\n' {
            if std::mem::take(&mut in_space) {
                out.push(b' ');
            }
            out.push(byte);
        }
    }
}

fn is_line_space(byte: u8) -> bool {
    is_wsp(byte) || byte == b'\r' || byte == b'\n'
}

fn trim_end(text: &[u8]) -> &[u8] {
    let kept = text.iter().rposition(|&byte| !is_line_space(byte)).map_or(0, |last| last + 1);
    &text[..kept]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::rfc_6376_3_4_5(" C \r\nD \t E\r\n\r\n\r\n", " C\r\nD E\r\n")]
    #[case::empty("", "")]
    #[case::only_empty_lines("\r\n\r\n", "")]
    #[case::only_spaces(" \t\r\n", "")]
    #[case::empty_line_inside("a\r\n\r\nb\r\n", "a\r\n\r\nb\r\n")]
    #[case::no_last_line_end("a", "a\r\n")]
    #[case::untouched("Hello=20there=\r\nx\r\n", "Hello=20there=\r\nx\r\n")]
    fn a_body_is_relaxed(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(String::from_utf8(body(text.as_bytes())).unwrap(), expected);
    }

    #[rstest]
    #[case::rfc_6376_first("A", " X\r\n", "a:X")]
    #[case::rfc_6376_second("B ", "  Y\t\r\n\tZ  \r\n", "b:Y Z")]
    #[case::empty("Subject", "\r\n", "subject:")]
    #[case::folded("To", " a,\r\n\t\tb\r\n", "to:a, b")]
    fn a_header_is_relaxed(#[case] name: &str, #[case] value: &str, #[case] expected: &str) {
        let mut out = Vec::new();
        header(&mut out, name.as_bytes(), value.as_bytes());
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    proptest! {
        #[test]
        fn relaxing_twice_changes_nothing_more(text in "([ab \t]{0,6}\r\n){0,8}") {
            let once = body(text.as_bytes());
            prop_assert_eq!(body(&once), once);
        }
    }
}
