//! Making values safe for where they are put.

use std::borrow::Cow;

/// Appends text escaped for HTML, in text and in attributes alike.
pub(super) fn html(text: &str, out: &mut String) {
    some(text, b"&<>\"'", out);
}

/// Appends text in which these of the characters that mean something to HTML are escaped.
pub(super) fn some(text: &str, which: &[u8], out: &mut String) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate().filter(|(_, byte)| which.contains(byte)) {
        let escaped = match byte {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&quot;",
            b'\'' => "&#39;",
            _ => continue,
        };
        out.push_str(text.get(from..at).unwrap_or_default());
        out.push_str(escaped);
        from = at + 1;
    }
    out.push_str(text.get(from..).unwrap_or_default());
}

/// Text escaped for HTML.
pub(super) fn to_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    html(text, &mut out);
    out
}

/// Text as a body may carry it: CRLF line ends and no control characters but the tab.
pub(super) fn body(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\r' => {
                characters.next_if_eq(&'\n');
                out.push_str("\r\n");
            }
            '\n' => out.push_str("\r\n"),
            '\t' => out.push('\t'),
            control if control.is_control() && control.is_ascii() => {}
            character => out.push(character),
        }
    }
    Cow::Owned(out)
}

/// Text as a header may carry it: one line, single spaces, no control characters. This is what makes header injection
/// impossible, whatever a name contains.
pub(super) fn header(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        // U+2028 and U+2029 end lines for some readers.
        if character.is_whitespace() || character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
            if !out.is_empty() && !out.ends_with(' ') {
                out.push(' ');
            }
        } else {
            out.push(character);
        }
    }
    out.truncate(out.trim_end().len());
    // What looks like an encoded word would be decoded by the reader, and could say anything then.
    if out.contains("=?") && out.contains("?=") { out.replace("=?", "= ?") } else { out }
}

/// A URL as a header or an attribute may carry it: visible ASCII only.
pub(super) fn url(text: &str) -> String {
    text.chars().filter(|character| character.is_ascii_graphic() && !matches!(character, '<' | '>' | '"')).collect()
}

/// Whether this is an `http` or `https` address.
pub(super) fn is_web_address(url: &str) -> bool {
    has_prefix(url, "http://") || has_prefix(url, "https://")
}

pub(super) fn has_prefix(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
