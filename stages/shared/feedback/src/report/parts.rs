//! Splits a mail into the parts that a report needs: one pass over the lines, no tree.
//!
//! The boundaries of the open multiparts are on a short stack, and each line is compared with them once. A carried mail is not
//! parsed: its beginning is kept as bytes, and only its header is read. So the cost is linear in the length of the mail, whatever it
//! nests.

use mail_parser::decoders::{
    base64::base64_decode, charsets::map::charset_decoder, html::html_to_text,
    quoted_printable::quoted_printable_decode,
};
use runtime::budget::Level;
use runtime::{Budget, Spent};

use super::header::{ContentType, HeaderLines, MailHeader, cut};

/// The most bytes of a machine-readable part that are kept.
const FIELDS_BYTES: usize = 64 * 1024;
/// The most bytes of a carried mail that are kept.
const CARRIED_BYTES: usize = 16 * 1024;
/// The most bytes of all text parts that are kept.
const TEXT_BYTES: usize = 16 * 1024;
/// The most text parts that are kept.
const TEXTS_MAX: usize = 4;
/// The longest boundary that is recognised (RFC 2046 allows 70).
const BOUNDARY_MAX: usize = 200;

/// The kept parts of a mail; the first one of each kind.
#[derive(Debug, Default)]
pub(super) struct MailParts {
    /// The mail's own header.
    pub(super) header: MailHeader,
    /// The fields of a delivery status notification (RFC 3464).
    pub(super) status: Option<String>,
    /// The fields of a feedback report (RFC 5965).
    pub(super) feedback: Option<String>,
    /// True if there is a disposition notification (RFC 8098).
    pub(super) is_receipt: bool,
    /// The header of the mail it carries.
    pub(super) carried: Option<MailHeader>,
    /// The human-readable text.
    pub(super) text: String,
}

/// The text parts found so far.
#[derive(Default)]
struct MailTexts {
    plain: Vec<String>,
    html: Option<String>,
    /// The header of a mail, carried alone.
    header_only: Option<MailHeader>,
}

/// A part whose end was not found yet.
struct OpenPart {
    content: ContentType,
    encoding: String,
    start: usize,
}

/// A multipart whose end was not found yet.
struct Multipart<'b> {
    boundary: Vec<u8>,
    _level: Level<'b>,
}

impl MailParts {
    /// Splits a mail into parts.
    ///
    /// # Errors
    /// When the budget is spent.
    pub(super) fn read(mail: &[u8], budget: &Budget) -> Result<Self, Spent> {
        budget.take_input(mail.len())?;
        let (header, body) = MailHeader::read(mail, 0, budget)?;
        let mut stack: Vec<Multipart<'_>> = Vec::new();
        let mut parts = Self { header, ..Self::default() };
        let mut texts = MailTexts::default();
        let mut open = begin_part(&parts.header, body, &mut stack, budget)?;
        let mut lines = HeaderLines { data: mail, at: body };
        let is_multipart = !stack.is_empty();
        let mut divided = false;
        loop {
            let start = lines.at;
            let Some(line) = lines.next(budget)? else { break };
            let Some((level, closes)) = delimiter(line, &stack, budget)? else { continue };
            divided = true;
            if let Some(open) = open.take() {
                parts.keep_part(&mut texts, &open, &mail[open.start..start.max(open.start)], budget)?;
            }
            stack.truncate(if closes { level } else { level + 1 });
            if stack.is_empty() {
                // Text after the last part is ignored.
                lines.at = mail.len();
            } else if !closes {
                let (header, body) = MailHeader::read(mail, lines.at, budget)?;
                lines.at = body;
                open = begin_part(&header, body, &mut stack, budget)?;
            }
        }
        // A multipart without its boundary counts as a text.
        if is_multipart && !divided {
            open = Some(OpenPart { content: ContentType::default(), encoding: String::new(), start: body });
        }
        if let Some(open) = open {
            parts.keep_part(&mut texts, &open, &mail[open.start..], budget)?;
        }
        parts.carried = parts.carried.take().or(texts.header_only.take());
        parts.text = texts.text();
        // The text is searched for some fifty patterns, once each.
        budget.take_steps(parts.text.len() as u64 * 4)?;
        Ok(parts)
    }

    /// Keeps a complete part, if a report needs it.
    fn keep_part(&mut self, texts: &mut MailTexts, part: &OpenPart, body: &[u8], budget: &Budget) -> Result<(), Spent> {
        let decoded = |max: usize| decode(body, &part.encoding, max, budget);
        match part.content.kind.as_str() {
            "message/delivery-status" | "message/global-delivery-status" if self.status.is_none() => {
                self.status = Some(lossy(&decoded(FIELDS_BYTES)?));
            }
            "message/feedback-report" if self.feedback.is_none() => {
                self.feedback = Some(lossy(&decoded(FIELDS_BYTES)?));
            }
            "message/disposition-notification" | "message/global-disposition-notification" => self.is_receipt = true,
            "message/rfc822" | "message/global" if self.carried.is_none() => {
                self.carried = Some(MailHeader::read(&decoded(CARRIED_BYTES)?, 0, budget)?.0);
            }
            "text/rfc822-headers" | "message/rfc822-headers" | "message/global-headers" => {
                // Only the first one counts. A later one is not a text part.
                texts.header_only = match texts.header_only.take() {
                    Some(header) => Some(header),
                    None => Some(MailHeader::read(&decoded(CARRIED_BYTES)?, 0, budget)?.0),
                };
            }
            "text/html" if texts.html.is_none() => {
                texts.html = Some(decode_text(&decoded(TEXT_BYTES)?, part.content.charset.as_deref()));
            }
            kind if (kind.is_empty() || kind.starts_with("text/") && kind != "text/html")
                && texts.plain.len() < TEXTS_MAX =>
            {
                texts.plain.push(decode_text(&decoded(TEXT_BYTES)?, part.content.charset.as_deref()));
            }
            _ => {}
        }
        Ok(())
    }
}

impl MailTexts {
    /// The plain text; the HTML as text if there is no plain text.
    fn text(&self) -> String {
        let mut text = self.plain.concat();
        if text.trim().is_empty()
            && let Some(html) = &self.html
        {
            text = html_to_text(html);
        }
        cut(&text, TEXT_BYTES).to_owned()
    }
}

/// Begins a part after its header. A multipart goes onto the stack instead.
fn begin_part<'b>(
    header: &MailHeader,
    start: usize,
    stack: &mut Vec<Multipart<'b>>,
    budget: &'b Budget,
) -> Result<Option<OpenPart>, Spent> {
    let mut content = header.content_type();
    if let Some(boundary) = &content.boundary
        && content.kind.starts_with("multipart/")
        && boundary.len() <= BOUNDARY_MAX
    {
        stack.push(Multipart { boundary: boundary.clone().into_bytes(), _level: budget.enter()? });
        return Ok(None);
    }
    if content.kind.starts_with("multipart/") {
        content = ContentType::default();
    }
    let encoding = header.get("content-transfer-encoding").unwrap_or_default().trim().to_ascii_lowercase();
    Ok(Some(OpenPart { content, encoding, start }))
}

/// The multipart whose delimiter a line is, innermost first, and whether it is the closing delimiter.
fn delimiter(line: &[u8], stack: &[Multipart<'_>], budget: &Budget) -> Result<Option<(usize, bool)>, Spent> {
    let Some(rest) = line.strip_prefix(b"--") else { return Ok(None) };
    for (level, multipart) in stack.iter().enumerate().rev() {
        budget.take_steps(rest.len().min(multipart.boundary.len()) as u64)?;
        match rest.strip_prefix(multipart.boundary.as_slice()).map(<[u8]>::trim_ascii_end) {
            Some(b"") => return Ok(Some((level, false))),
            Some(b"--") => return Ok(Some((level, true))),
            _ => {}
        }
    }
    Ok(None)
}

/// Decodes the transfer encoding of a part, at most `max` bytes. Returns invalid data as it is.
fn decode(body: &[u8], encoding: &str, max: usize, budget: &Budget) -> Result<Vec<u8>, Spent> {
    // Quoted-printable needs three octets for one at most, base64 about four for three.
    let taken = &body[..body.len().min(max.saturating_mul(3))];
    budget.take_steps(taken.len() as u64)?;
    budget.hold(taken.len().min(max))?;
    let mut decoded = match encoding {
        "base64" => base64_decode(taken).unwrap_or_else(|| taken.to_vec()),
        "quoted-printable" => quoted_printable_decode(taken).unwrap_or_else(|| taken.to_vec()),
        _ => taken[..taken.len().min(max)].to_vec(),
    };
    decoded.truncate(max);
    Ok(decoded)
}

fn lossy(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// Decodes a text from its character set.
fn decode_text(octets: &[u8], charset: Option<&str>) -> String {
    match charset.and_then(|charset| charset_decoder(charset.as_bytes())) {
        Some(decoder) => decoder(octets),
        None => lossy(octets),
    }
}
