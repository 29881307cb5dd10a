//! Relaxed canonicalisation (RFC 6376 §3.4.2 and §3.4.4).

use memchr::memmem;

/// White space as DKIM means it.
fn is_wsp(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Passes the relaxed form of a body with CRLF line ends to `take`, in slices: runs of white space become one space, none stands at a
/// line's end, and no empty lines at the end of the body. Most bodies are one slice, so nothing is copied.
pub(super) fn body(body: &[u8], mut take: impl FnMut(&[u8])) {
    let text = trim_end(body);
    if text.is_empty() {
        return;
    }
    // White space that does not stay as it is begins at the first of these.
    let mut runs = [(memmem::Finder::new(b"  "), 0), (memmem::Finder::new(b" \r"), 0), (memmem::Finder::new(b"\t"), 0)];
    for (finder, next) in &mut runs {
        *next = finder.find(text).unwrap_or(text.len());
    }
    let mut start = 0;
    loop {
        let found = runs.iter().map(|(_, next)| *next).min().unwrap_or(text.len());
        // A single space before a tab.
        let run = if found > start && text[found - 1] == b' ' { found - 1 } else { found };
        take(&text[start..run]);
        if run == text.len() {
            break;
        }
        start = text[run..].iter().position(|&byte| !is_wsp(byte)).map_or(text.len(), |length| run + length);
        if text.get(start) != Some(&b'\r') {
            take(b" ");
        }
        for (finder, next) in runs.iter_mut().filter(|(_, next)| *next < start) {
            *next = finder.find(&text[start..]).map_or(text.len(), |at| start + at);
        }
    }
    take(b"\r\n");
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
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn relaxed(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        body(text, |slice| out.extend_from_slice(slice));
        out
    }

    /// The rules of RFC 6376 §3.4.4, one after the other.
    fn by_rule(text: &str) -> String {
        let line = |line: &str| {
            let words: Vec<&str> = line.split([' ', '\t']).filter(|word| !word.is_empty()).collect();
            let indent = if line.starts_with([' ', '\t']) && !words.is_empty() { " " } else { "" };
            format!("{indent}{}\r\n", words.join(" "))
        };
        let mut lines: Vec<String> = text.split_terminator("\r\n").map(line).collect();
        while lines.last().is_some_and(|line| line == "\r\n") {
            lines.pop();
        }
        lines.concat()
    }

    #[rstest]
    #[case::rfc_6376_3_4_5(" C \r\nD \t E\r\n\r\n\r\n", " C\r\nD E\r\n")]
    #[case::empty("", "")]
    #[case::only_empty_lines("\r\n\r\n", "")]
    #[case::only_spaces(" \t\r\n", "")]
    #[case::empty_line_inside("a\r\n\r\nb\r\n", "a\r\n\r\nb\r\n")]
    #[case::no_last_line_end("a", "a\r\n")]
    #[case::tabs("\ta\t\tb \tc\t d\t\r\n\t\r\ne\r\n", " a b c d\r\n\r\ne\r\n")]
    #[case::single_spaces("a b \r\n c\r\n", "a b\r\n c\r\n")]
    #[case::untouched("Hello=20there=\r\nx\r\n", "Hello=20there=\r\nx\r\n")]
    fn a_body_is_relaxed(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(String::from_utf8(relaxed(text.as_bytes())).unwrap(), expected);
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
        fn the_relaxed_form_follows_the_rules(text in "([ab \t]{0,6}\r\n){0,8}") {
            let once = relaxed(text.as_bytes());
            prop_assert_eq!(relaxed(&once), once.clone());
            prop_assert_eq!(String::from_utf8(once).unwrap(), by_rule(&text));
        }
    }
}
