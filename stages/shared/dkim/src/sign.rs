//! Writing the DKIM-Signature header field.

use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256};
use base64::{Engine, engine::general_purpose::STANDARD};

use super::{DkimKey, canonical};
use smtp::SmtpMessage;

/// Header fields that are signed once more often than they occur, so that another one cannot be added without breaking the
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

/// Signs for one domain, with one key or two.
#[derive(Debug)]
pub struct DkimSigner {
    domain: String,
    keys: Vec<(String, DkimKey)>,
    left_out: &'static [&'static str],
}

impl DkimSigner {
    /// A signer; the public key stands at `<selector>._domainkey.<domain>`.
    #[must_use]
    pub fn new(domain: impl Into<String>, selector: impl Into<String>, key: DkimKey) -> Self {
        Self { domain: domain.into(), keys: vec![(selector.into(), key)], left_out: &[] }
    }

    /// Signs with a second key as well: a field of its own, so that every verifier finds one it knows (RFC 8463 §3).
    #[must_use]
    pub fn and(mut self, selector: impl Into<String>, key: DkimKey) -> Self {
        self.keys.push((selector.into(), key));
        self
    }

    /// Leaves these fields out, for a provider that writes its own.
    #[must_use]
    pub fn without(self, fields: &'static [&'static str]) -> Self {
        Self { left_out: fields, ..self }
    }

    /// The complete DKIM-Signature fields with their CRLF, one for each key, to precede the message. `None` if the message has no From
    /// field, or the library could not sign with a key.
    ///
    /// Costs CPU (RSA: some 355 µs): call it on [`super::SigningThreads`], not on the reactor.
    #[must_use]
    pub fn sign(&self, message: &SmtpMessage, now: SystemTime) -> Option<String> {
        let fields = fields(message.header());
        // RFC 6376 §5.4: the From field must be signed, so there must be one.
        if !fields.iter().any(|field| field.name.eq_ignore_ascii_case(b"From")) {
            return None;
        }
        let mut body_hash = Context::new(&SHA256);
        canonical::body(message.body(), |slice| body_hash.update(slice));
        let body_hash = STANDARD.encode(body_hash.finish());
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (canonical_text, names) = self.canonical_header(&fields);
        let mut signed = String::with_capacity(1024);
        for (selector, key) in &self.keys {
            let mut field = format!(
                "DKIM-Signature: v=1; a={}; c=relaxed/relaxed;\r\n\td={}; s={selector}; t={seconds};\r\n\th={names};\r\n\tbh={body_hash};\r\n\tb=",
                key.algorithm(),
                self.domain,
            );
            let mut text = canonical_text.clone();
            // The signature field itself comes last, with an empty b= and without CRLF (RFC 6376 §3.7). It does not cover the
            // other one: a verifier that does not know the other's algorithm may drop that.
            canonical::header(&mut text, b"DKIM-Signature", &field.as_bytes()["DKIM-Signature:".len()..]);
            let signature = key.sign(&text)?;
            append_folded(&mut field, &STANDARD.encode(signature));
            field.push_str("\r\n");
            signed.push_str(&field);
        }
        Some(signed)
    }

    /// The signed fields in canonical form, and their names for `h=`.
    fn canonical_header(&self, fields: &[SignedField<'_>]) -> (Vec<u8>, String) {
        let mut canonical_text = Vec::with_capacity(2048);
        let mut names = String::with_capacity(512);
        for (name, oversign) in
            OVERSIGNED.iter().map(|name| (name, true)).chain(SIGNED.iter().map(|name| (name, false)))
        {
            if self.left_out.contains(name) {
                continue;
            }
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
        (canonical_text, names)
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
        field.push_str(&String::from_utf8_lossy(line));
    }
}

/// A header field of the message.
struct SignedField<'a> {
    name: &'a [u8],
    /// What follows the colon, with folding and the last CRLF.
    value: &'a [u8],
}

/// Splits a header into its fields; a line that begins with white space continues the one before.
fn fields(header: &[u8]) -> Vec<SignedField<'_>> {
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
            fields.push(SignedField { name: field[..colon].trim_ascii_end(), value: &field[colon + 1..] });
        }
        start = end;
    }
    fields
}

#[cfg(test)]
mod tests;
