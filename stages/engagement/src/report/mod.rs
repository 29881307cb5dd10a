//! Mails that come back, read: what each says of the mail it is about.
//!
//! Which mail that is, its address says (a return path is signed) or a signed part of what it reports; what a mail claims beside
//! that proves nothing. A mail is hostile input: it is read from its first megabyte, with bounded fields, and a parser that
//! panics costs this one mail.

mod dsn;
mod feedback;
mod fields;
mod plain;
mod reply;

use std::panic::{AssertUnwindSafe, catch_unwind};

use mail_parser::{Message, MessageParser, MessagePart, MimeHeaders, PartType};
use schemas::{SignalKind, token::TokenKeys};
use uuid::Uuid;

/// The longest words of a server that are kept.
const DIAGNOSTIC_CHARS: usize = 500;

/// Where a mail came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Road {
    /// The return path of a send.
    ReturnPath,
    /// The address feedback loops report to.
    Feedback,
}

impl Road {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ReturnPath => "return_path",
            Self::Feedback => "feedback",
        }
    }

    pub(crate) fn parse(text: &str) -> Self {
        if text == "feedback" { Self::Feedback } else { Self::ReturnPath }
    }
}

/// What a mail says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reading {
    /// A fact about the send.
    Told(SignalKind),
    /// Nothing that is a fact, by its word: a delay, a receipt, what cannot be read.
    Noted(&'static str),
}

impl Reading {
    /// The word for it, kept with the mail and counted.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Told(SignalKind::Replied { automatic: true, .. }) => "auto_replied",
            Self::Told(kind) => kind.label(),
            Self::Noted(what) => what,
        }
    }
}

/// Reads a mail from its beginning. `null_sender`: it came with `MAIL FROM:<>`, as reports do.
pub(crate) fn read(head: &[u8], road: Road, null_sender: bool) -> Reading {
    let reading = catch_unwind(AssertUnwindSafe(|| {
        let message = MessageParser::default().parse(head)?;
        Some(judge(&message, road, null_sender))
    }));
    reading.ok().flatten().unwrap_or(Reading::Noted("unreadable"))
}

fn judge(message: &Message<'_>, road: Road, null_sender: bool) -> Reading {
    if let Some(reading) = feedback::read(message, road) {
        return reading;
    }
    // What comes to the feedback address and is no report of a complaint is nobody's answer or bounce.
    if road == Road::Feedback {
        return Reading::Noted("no_report");
    }
    dsn::read(message)
        .or_else(|| plain::read(message, null_sender))
        .unwrap_or_else(|| reply::read(message, null_sender))
}

/// What an answer is by its header alone, as providers pass mail on that they took in: a person's, or a program's, reports among them.
pub(crate) fn answer(fields: &[(String, String)]) -> SignalKind {
    let line = |text: &str| text.replace(['\r', '\n'], " ");
    let head: String = fields.iter().map(|(name, value)| format!("{}: {}\r\n", line(name), line(value))).collect();
    let read = || {
        let parsed = MessageParser::default().parse_headers(head.as_bytes())?;
        let is_report = parsed.is_content_type("multipart", "report");
        match reply::read(&parsed, false) {
            Reading::Told(SignalKind::Replied { message_id, automatic }) => {
                Some(SignalKind::Replied { message_id, automatic: automatic || is_report })
            }
            _ => None,
        }
    };
    let unreadable = SignalKind::Replied { message_id: None, automatic: true };
    catch_unwind(AssertUnwindSafe(read)).ok().flatten().unwrap_or(unreadable)
}

/// The send a report of a complaint is about, by a signed part of the mail it carries: the return path, or the link to leave by.
/// Its tenant as well, where the token names it.
pub(crate) fn evidence(head: &[u8], tokens: &TokenKeys) -> Option<(Option<Uuid>, Uuid)> {
    catch_unwind(AssertUnwindSafe(|| feedback::evidence(&MessageParser::default().parse(head)?, tokens))).ok().flatten()
}

/// A mail's parts of these types, the mail itself among them; not those of mails inside it.
fn parts_of<'a>(message: &'a Message<'a>, types: &'a [(&str, &str)]) -> impl Iterator<Item = &'a MessagePart<'a>> {
    message.parts.iter().filter(|part| types.iter().any(|(kind, subtype)| part.is_content_type(kind, subtype)))
}

/// Its own words, as a person would see them: all text but what is attached, HTML only where there is no other.
fn words(message: &Message<'_>) -> String {
    const WORDS_BYTES: usize = 16 * 1024;
    let mut words = String::new();
    let texts = message.parts.iter().filter_map(|part| match &part.body {
        PartType::Text(text) if !part.is_content_type("text", "rfc822-headers") => Some(text.as_ref()),
        _ => None,
    });
    for text in texts {
        words.push_str(text);
        words.push('\n');
    }
    if words.trim().is_empty()
        && let Some(html) = message.body_text(0)
    {
        words = html.into_owned();
    }
    fields::cut(&words, WORDS_BYTES).to_owned()
}

/// A field of the mail itself, unfolded and decoded where it is plain.
fn header<'a>(message: &'a Message<'_>, name: &'static str) -> Option<&'a str> {
    message.header_raw(name).map(str::trim)
}

/// Words of a server as they are kept: one line, without controls, cut.
fn diagnostic(text: &str) -> Option<String> {
    let line: String = text
        .split(|character: char| character.is_whitespace() || character.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let line: String = line.chars().take(DIAGNOSTIC_CHARS).collect();
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests;
