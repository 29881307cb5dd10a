//! A mail taken apart, as far as a report needs it: one pass over the lines, no tree.
//!
//! The boundaries of the open multiparts stand on a short stack, and each line is compared with them once. A mail inside the mail is
//! not read: its beginning is kept as octets, and only its header is looked at. So the cost grows with the length of the mail,
//! whatever it nests.

use mail_parser::decoders::{
    base64::base64_decode, charsets::map::charset_decoder, html::html_to_text,
    quoted_printable::quoted_printable_decode,
};
use runtime::budget::Level;
use runtime::{Budget, Spent};

use super::{
    fields,
    header::{ContentType, Header, Lines},
};

/// Octets of a part for machines that are kept.
const FIELDS_BYTES: usize = 64 * 1024;
/// Octets of a carried mail that are kept.
const CARRIED_BYTES: usize = 16 * 1024;
/// Octets of the texts that are kept, all told.
const WORDS_BYTES: usize = 16 * 1024;
/// Texts that are kept.
const TEXTS_MAX: usize = 4;
/// The longest boundary that is known again (RFC 2046 allows 70).
const BOUNDARY_MAX: usize = 200;

/// What is kept of a mail. Of several parts of a kind the first.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The mail's own header.
    pub(super) header: Header,
    /// The fields of a delivery status notification (RFC 3464).
    pub(super) status: Option<String>,
    /// The fields of a feedback report (RFC 5965).
    pub(super) feedback: Option<String>,
    /// It has a part that says what the recipient did with the mail (RFC 8098).
    pub(super) is_receipt: bool,
    /// The header of the mail it carries.
    pub(super) carried: Option<Header>,
    /// What is written for people.
    pub(super) words: String,
}

/// Texts found on the way.
#[derive(Default)]
struct Texts {
    plain: Vec<String>,
    html: Option<String>,
    /// The header of a mail, carried alone.
    header_only: Option<Header>,
}

/// A part whose end has not come.
struct Open {
    content: ContentType,
    encoding: String,
    start: usize,
}

/// A multipart whose end has not come.
struct Multipart<'b> {
    boundary: Vec<u8>,
    _level: Level<'b>,
}

impl Parts {
    /// Takes a mail apart.
    ///
    /// # Errors
    /// When the budget is spent.
    pub(super) fn read(mail: &[u8], budget: &Budget) -> Result<Self, Spent> {
        budget.take_input(mail.len())?;
        let (header, body) = Header::read(mail, 0, budget)?;
        let mut stack: Vec<Multipart<'_>> = Vec::new();
        let mut parts = Self { header, ..Self::default() };
        let mut texts = Texts::default();
        let mut open = opened(&parts.header, body, &mut stack, budget)?;
        let mut lines = Lines { data: mail, at: body };
        let is_multipart = !stack.is_empty();
        let mut divided = false;
        loop {
            let start = lines.at;
            let Some(line) = lines.next(budget)? else { break };
            let Some((level, closes)) = delimiter(line, &stack, budget)? else { continue };
            divided = true;
            if let Some(open) = open.take() {
                parts.keep(&mut texts, &open, &mail[open.start..start.max(open.start)], budget)?;
            }
            stack.truncate(if closes { level } else { level + 1 });
            if stack.is_empty() {
                // What comes after the last part is nobody's.
                lines.at = mail.len();
            } else if !closes {
                let (header, body) = Header::read(mail, lines.at, budget)?;
                lines.at = body;
                open = opened(&header, body, &mut stack, budget)?;
            }
        }
        // A multipart whose boundary never comes is taken for a text.
        if is_multipart && !divided {
            open = Some(Open { content: ContentType::default(), encoding: String::new(), start: body });
        }
        if let Some(open) = open {
            parts.keep(&mut texts, &open, &mail[open.start..], budget)?;
        }
        parts.carried = parts.carried.take().or(texts.header_only.take());
        parts.words = texts.words();
        // What is looked for in the words: some fifty patterns, each once.
        budget.take_steps(parts.words.len() as u64 * 4)?;
        Ok(parts)
    }

    /// Keeps a part that has ended, if a report needs it.
    fn keep(&mut self, texts: &mut Texts, part: &Open, body: &[u8], budget: &Budget) -> Result<(), Spent> {
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
                self.carried = Some(Header::read(&decoded(CARRIED_BYTES)?, 0, budget)?.0);
            }
            "text/rfc822-headers" | "message/rfc822-headers" | "message/global-headers" => {
                // The first one counts. A later one is no text either.
                texts.header_only = match texts.header_only.take() {
                    Some(header) => Some(header),
                    None => Some(Header::read(&decoded(CARRIED_BYTES)?, 0, budget)?.0),
                };
            }
            "text/html" if texts.html.is_none() => {
                texts.html = Some(written(&decoded(WORDS_BYTES)?, part.content.charset.as_deref()));
            }
            kind if (kind.is_empty() || kind.starts_with("text/") && kind != "text/html")
                && texts.plain.len() < TEXTS_MAX =>
            {
                texts.plain.push(written(&decoded(WORDS_BYTES)?, part.content.charset.as_deref()));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Texts {
    /// As a person would see them; HTML only where there is no other.
    fn words(&self) -> String {
        let mut words = self.plain.concat();
        if words.trim().is_empty()
            && let Some(html) = &self.html
        {
            words = html_to_text(html);
        }
        fields::cut(&words, WORDS_BYTES).to_owned()
    }
}

/// What begins behind a header: a part, or a multipart, which goes onto the stack.
fn opened<'b>(
    header: &Header,
    start: usize,
    stack: &mut Vec<Multipart<'b>>,
    budget: &'b Budget,
) -> Result<Option<Open>, Spent> {
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
    Ok(Some(Open { content, encoding, start }))
}

/// Whose delimiter a line is, the innermost first, and whether it is the last one.
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

/// A part's octets without their transfer encoding, at most so many; as they are, where they are not what they say.
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

/// A text in its character set.
fn written(octets: &[u8], charset: Option<&str>) -> String {
    match charset.and_then(|charset| charset_decoder(charset.as_bytes())) {
        Some(decoder) => decoder(octets),
        None => lossy(octets),
    }
}
