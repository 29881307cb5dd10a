//! Header fields, by lettre: RFC 5322 folding, RFC 2047 encoded words, display names.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lettre::Address;
use lettre::message::header::{Header as _, HeaderName, HeaderValue, Headers, To};
use lettre::message::{Mailbox, Mailboxes};

use super::escape;

/// The field of [`subject`].
const SUBJECT: HeaderName = HeaderName::new_from_ascii_str("Subject");
/// Longest display name that is kept, in characters.
const NAME_CHARACTERS: usize = 150;
/// Longest word of a subject that is written as it is, in bytes: it fits a line (RFC 5322 §2.1.1 allows 998).
const WORD_BYTES: usize = 900;
/// Bytes of an encoded word: with `Subject: ` before the first, lines have at most 76 characters (RFC 2047 §2).
const ENCODED_BYTES: usize = 39;

/// A subject: one logical line, folded.
pub(super) fn subject(text: &str) -> String {
    let text = escape::header(text);
    if text.split(' ').any(|word| word.len() > WORD_BYTES) {
        return encoded(&text);
    }
    written(HeaderValue::new(SUBJECT, text))
}

/// Encoded words alone: they are folded anywhere, where lettre folds between words.
fn encoded(text: &str) -> String {
    let (mut words, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (word, left) = rest.split_at(rest.floor_char_boundary(ENCODED_BYTES));
        words.push(format!("=?utf-8?b?{}?=", STANDARD.encode(word)));
        rest = left;
    }
    words.join("\r\n ")
}

/// `"Display Name" <address>`, or the address alone.
pub(super) fn mailbox(name: &str, address: &str) -> String {
    let address: String = address
        .chars()
        .filter(|letter| !letter.is_control() && !letter.is_whitespace() && !"<>,;:\"()[]\\".contains(*letter))
        .collect();
    let name: String = escape::header(name).chars().take(NAME_CHARACTERS).collect();
    let name = Some(name.trim().to_owned()).filter(|name| !name.is_empty());
    // Contacts' and senders' addresses were checked when they were taken in.
    let (user, domain) = address.rsplit_once('@').unwrap_or((&address, ""));
    let mailbox = Mailbox::new(name, Address::new_dangerous(user, domain));
    written(To::from(Mailboxes::from(mailbox)).display())
}

/// Several of [`mailbox`], each on a line of its own: lettre folds within names alone, and plain addresses have none.
pub(super) fn mailboxes(list: &[(String, String)]) -> String {
    list.iter().map(|(name, address)| mailbox(name, address)).collect::<Vec<_>>().join(",\r\n ")
}

/// A further field with its CRLF; nothing for a name that is not made of letters, digits and dashes.
pub(super) fn field(name: &str, value: &str) -> String {
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let Some(field) = HeaderName::new_from_ascii(name.to_owned()).ok().filter(|_| is_name) else {
        return String::new();
    };
    format!("{name}: {}\r\n", written(HeaderValue::new(field, escape::header(value))))
}

/// A field's value as it stands in a message.
fn written(value: HeaderValue) -> String {
    let mut headers = Headers::new();
    headers.insert_raw(value);
    let field = headers.to_string();
    field.split_once(": ").map(|(_, value)| value.trim_end().to_owned()).unwrap_or_default()
}
