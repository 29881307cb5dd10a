//! Writing the DKIM-Signature header field.

use std::{fmt::Write as _, time::SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine, engine::general_purpose::STANDARD};

use super::{DkimKey, canonical};
use crate::smtp::Message;

/// Header fields that are signed once more often than they occur, so that nobody can add another one and keep the
/// signature (RFC 6376 §8.15). Those that are absent are signed as absent.
const OVERSIGNED: &[&str] = &[
    "From",
    "To",
    "Cc",
    "Subject",
    "Date",
    "Message-ID",
    "Reply-To",
    "MIME-Version",
    "Content-Type",
    "Content-Transfer-Encoding",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
];
/// Header fields that are signed as often as they occur.
const SIGNED: &[&str] =
    &["Sender", "In-Reply-To", "References", "List-Id", "List-Help", "Auto-Submitted", "Feedback-ID"];

/// Why a message was not signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// RFC 6376 §5.4: the From field must be signed, so there must be one. The message does not change: reject.
    #[error("the message has no From field")]
    NoFrom,
    /// The library could not sign with this key.
    #[error("the key could not sign")]
    Key,
}

/// Signs for one domain and selector.
#[derive(Debug)]
pub struct DkimSigner {
    domain: String,
    selector: String,
    key: DkimKey,
}

impl DkimSigner {
    /// A signer; the public key stands at `<selector>._domainkey.<domain>`.
    #[must_use]
    pub fn new(domain: impl Into<String>, selector: impl Into<String>, key: DkimKey) -> Self {
        Self { domain: domain.into(), selector: selector.into(), key }
    }

    /// The complete DKIM-Signature field with its CRLF, to stand in front of the message.
    ///
    /// Costs CPU (RSA: some 355 µs): call it on [`super::SigningThreads`], not on the reactor.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn sign(&self, message: &Message, now: SystemTime) -> Result<String, SignError> {
        let fields = fields(message.header());
        if !fields.iter().any(|field| field.name.eq_ignore_ascii_case(b"From")) {
            return Err(SignError::NoFrom);
        }
        let body_hash = STANDARD.encode(digest(&SHA256, &canonical::body(message.body())));
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut canonical_text = Vec::with_capacity(2048);
        let mut names = String::with_capacity(512);
        for (name, oversign) in
            OVERSIGNED.iter().map(|name| (name, true)).chain(SIGNED.iter().map(|name| (name, false)))
        {
            let mut times = usize::from(oversign);
            // RFC 6376 §5.4.2: several fields of one name are signed from the last up.
            for field in fields.iter().rev().filter(|field| field.name.eq_ignore_ascii_case(name.as_bytes())) {
                canonical::header(&mut canonical_text, field.name, field.value);
                canonical_text.extend_from_slice(b"\r\n");
                times += 1;
            }
            for _ in 0..times {
                append_name(&mut names, name);
            }
        }
        let mut field = format!(
            "DKIM-Signature: v=1; a={}; c=relaxed/relaxed;\r\n\td={}; s={}; t={seconds};\r\n\th={names};\r\n\tbh={body_hash};\r\n\tb=",
            self.key.algorithm(),
            self.domain,
            self.selector,
        );
        // The signature field itself comes last, with an empty b= and without CRLF (RFC 6376 §3.7).
        canonical::header(&mut canonical_text, b"DKIM-Signature", &field.as_bytes()["DKIM-Signature:".len()..]);
        let signature = self.key.sign(&canonical_text).ok_or(SignError::Key)?;
        append_folded(&mut field, &STANDARD.encode(signature));
        field.push_str("\r\n");
        Ok(field)
    }
}

/// Adds a name to `h=`, folded so that lines stay short.
fn append_name(names: &mut String, name: &str) {
    if !names.is_empty() {
        names.push(':');
        let line = names.rfind('\t').map_or(names.len(), |tab| names.len() - tab);
        if line + name.len() > 70 {
            names.push_str("\r\n\t ");
        }
    }
    names.push_str(name);
}

/// Adds base64 in lines of 72.
fn append_folded(field: &mut String, base64: &str) {
    for (number, line) in base64.as_bytes().chunks(72).enumerate() {
        if number > 0 {
            field.push_str("\r\n\t ");
        }
        // Base64 is ASCII; writing to a String cannot fail.
        let _ = write!(field, "{}", String::from_utf8_lossy(line));
    }
}

/// A header field as it stands in the message.
struct Field<'a> {
    name: &'a [u8],
    /// What follows the colon, with folding and the last CRLF.
    value: &'a [u8],
}

/// Splits a header into its fields; a line that begins with white space continues the one before.
fn fields(header: &[u8]) -> Vec<Field<'_>> {
    let mut fields = Vec::with_capacity(24);
    let mut start = 0;
    while start < header.len() {
        let mut end = start;
        loop {
            end = memchr::memchr(b'\n', &header[end..]).map_or(header.len(), |at| end + at + 1);
            if !matches!(header.get(end), Some(b' ' | b'\t')) {
                break;
            }
        }
        let field = &header[start..end];
        if let Some(colon) = memchr::memchr(b':', field) {
            fields.push(Field { name: field[..colon].trim_ascii_end(), value: &field[colon + 1..] });
        }
        start = end;
    }
    fields
}

#[cfg(test)]
mod tests;
