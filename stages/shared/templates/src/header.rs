//! Header fields: RFC 5322 folding, RFC 2047 encoded words, display names.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::escape;

/// Longest line aimed at (RFC 5322 §2.1.1).
const LINE: usize = 76;
/// Bytes of text in one encoded word: with its frame 64 characters, so that it fits after any field name of ours.
const WORD_BYTES: usize = 39;
/// Longest display name that is kept, in characters.
const NAME_CHARACTERS: usize = 150;

/// Text for a header such as `Subject`: one logical line, folded. `column` is how much of the line is taken already.
pub(super) fn unstructured(text: &str, column: usize) -> String {
    let text = escape::header(text);
    if needs_encoding(&text) { encoded_words(&text) } else { folded(&text, column) }
}

/// `"Display Name" <address>`, or the address alone.
pub(super) fn mailbox(name: &str, address: &str) -> String {
    let address: String = address
        .chars()
        .filter(|letter| !letter.is_control() && !letter.is_whitespace() && !"<>,;:\"()[]\\".contains(*letter))
        .collect();
    let name: String = escape::header(name).chars().take(NAME_CHARACTERS).collect();
    let name = name.trim();
    if name.is_empty() {
        return address;
    }
    let phrase = if needs_encoding(name) || name.len() > WORD_BYTES {
        encoded_words(name)
    } else {
        format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
    };
    // The address on a line of its own: neither part can push the other over the limit.
    format!("{phrase}\r\n <{address}>")
}

/// An RFC 5322 date in UTC.
pub(super) fn date(at: chrono::DateTime<chrono::Utc>) -> String {
    at.format("%a, %d %b %Y %H:%M:%S +0000").to_string()
}

/// Whether text must be encoded: not ASCII, a word too long to fold, or something a reader would take for an encoded word.
fn needs_encoding(text: &str) -> bool {
    !text.is_ascii() || text.contains("=?") || text.split(' ').any(|word| word.len() > LINE - 16)
}

fn encoded_words(text: &str) -> String {
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut end = rest.len().min(WORD_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (word, after) = rest.split_at(end);
        words.push(format!("=?UTF-8?B?{}?=", STANDARD.encode(word)));
        rest = after;
    }
    words.join("\r\n ")
}

fn folded(text: &str, column: usize) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let mut column = column;
    for (at, word) in text.split(' ').enumerate() {
        if at > 0 {
            let folds = column + 1 + word.len() > LINE;
            out.push_str(if folds { "\r\n " } else { " " });
            column = if folds { 1 } else { column + 1 };
        }
        out.push_str(word);
        column += word.len();
    }
    out
}
