//! Plain text and CSV: readable text, and not a page or program under another name.

use serde::{Deserialize, Serialize};

use super::refusal::AttachmentRefusal;

/// How a text is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Charset {
    /// UTF-8 of ASCII characters only.
    Ascii,
    Utf8,
    Windows1252,
}

/// Beginnings of documents that a receiver may run or show as such, whatever the name says.
const POSING: [&[u8]; 8] = [b"<!doctype html", b"<html", b"<script", b"<svg", b"<?php", b"<?xml", b"%pdf-", b"{\\rtf"];

/// UTF-8 or Windows-1252 without control characters.
pub(super) fn charset(content: &[u8]) -> Result<Charset, AttachmentRefusal> {
    let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    if content.iter().any(|byte| (*byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c)) || *byte == 0x7f) {
        return Err(AttachmentRefusal::Mismatch);
    }
    let start: Vec<u8> =
        content.iter().skip_while(|byte| byte.is_ascii_whitespace()).take(16).map(u8::to_ascii_lowercase).collect();
    if POSING.iter().any(|posing| start.starts_with(posing)) {
        return Err(AttachmentRefusal::Mismatch);
    }
    if content.is_ascii() {
        return Ok(Charset::Ascii);
    }
    if std::str::from_utf8(content).is_ok() {
        return Ok(Charset::Utf8);
    }
    // Windows-1252 leaves five bytes without a character; UTF-16 is full of NULs and was refused above.
    let undefined = |byte: &u8| matches!(byte, 0x81 | 0x8d | 0x8f | 0x90 | 0x9d);
    if content.iter().any(undefined) { Err(AttachmentRefusal::Mismatch) } else { Ok(Charset::Windows1252) }
}
