//! A rendered message taken apart again, for APIs that build the message themselves. Nothing that matters is lost: what the API
//! has no field for goes along as a header.

use base64::{Engine, engine::general_purpose::STANDARD};
use mail_parser::{Addr, Encoding, MessageParser, MimeHeaders, PartType};

use super::UnsupportedMessage;
use crate::provider::OutgoingMessage;
use smtp::SmtpMessage;

/// Header fields that the API writes from its own fields, or that only hold for the message as it was.
const OWN: [&str; 14] = [
    "from",
    "to",
    "cc",
    "bcc",
    "subject",
    "reply-to",
    "date",
    "mime-version",
    "content-type",
    "content-transfer-encoding",
    "content-disposition",
    "return-path",
    "dkim-signature",
    "received",
];

/// An address with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mailbox {
    pub name: Option<String>,
    pub email: String,
}

impl Mailbox {
    /// As in a header, the name quoted.
    pub fn formatted(&self) -> String {
        match &self.name {
            Some(name) => format!("\"{}\" <{}>", name.replace('\\', "\\\\").replace('"', "\\\""), self.email),
            None => self.email.clone(),
        }
    }
}

/// An attached file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    pub name: String,
    /// Without parameters.
    pub media_type: String,
    /// What a calendar invite is for.
    pub method: Option<String>,
    /// How a text is encoded.
    pub charset: Option<String>,
    /// Base64.
    pub content: String,
    /// For a picture that the HTML shows.
    pub content_id: Option<String>,
    pub is_inline: bool,
}

impl File {
    /// Its type with what says how to read it.
    pub fn content_type(&self) -> String {
        let parameters = [("method", &self.method), ("charset", &self.charset)];
        let written = parameters.into_iter().filter_map(|(name, value)| Some(format!("; {name}={}", value.as_ref()?)));
        std::iter::once(self.media_type.clone()).chain(written).collect()
    }
}

/// The parts of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mail {
    pub from: Mailbox,
    pub to: Mailbox,
    pub reply_to: Vec<Mailbox>,
    pub subject: String,
    pub text: Option<String>,
    pub html: Option<String>,
    pub files: Vec<File>,
    /// All other header fields, unfolded, in order.
    pub headers: Vec<(String, String)>,
}

impl Mail {
    /// Parses an outgoing message. The recipient is that of the envelope.
    pub fn of(outgoing: &OutgoingMessage<'_>) -> Result<Self, UnsupportedMessage> {
        let parsed = MessageParser::default().parse(outgoing.message.as_bytes()).ok_or(UnsupportedMessage)?;
        let from = parsed.from().and_then(|from| from.first()).and_then(mailbox).ok_or(UnsupportedMessage)?;
        let email = outgoing.envelope.to.as_str();
        // A copy has the mail's own recipient in To.
        let to = parsed.to().and_then(|to| to.first()).and_then(mailbox).filter(|to| to.email == email);
        let reply_to = parsed.reply_to().map(|list| list.iter().filter_map(mailbox).collect()).unwrap_or_default();
        let bodies = |wanted_html: bool| {
            parsed.parts.iter().filter(|part| !is_file(part)).find_map(move |part| match &part.body {
                PartType::Html(html) if wanted_html => Some(html.to_string()),
                PartType::Text(text) if !wanted_html => Some(text.to_string()),
                _ => None,
            })
        };
        Ok(Self {
            from,
            to: to.unwrap_or_else(|| Mailbox { name: None, email: email.to_owned() }),
            reply_to,
            subject: parsed.subject().unwrap_or_default().to_owned(),
            // An empty one says nothing, and SendGrid refuses it.
            text: bodies(false).filter(|text| !text.trim().is_empty()),
            html: bodies(true),
            files: files(&parsed),
            headers: other_headers(outgoing.message),
        })
    }
}

fn mailbox(address: &Addr<'_>) -> Option<Mailbox> {
    let email = address.address.as_deref()?.to_owned();
    let name = address.name.as_deref().map(str::to_owned).filter(|name| !name.is_empty());
    Some(Mailbox { name, email })
}

/// The files. A calendar invite stands in the message as an alternative and as a file: one file with the type of the alternative carries its
/// method.
fn files(parsed: &mail_parser::Message<'_>) -> Vec<File> {
    let is_invite = |part: &mail_parser::MessagePart<'_>| part.is_content_type("text", "calendar");
    let has_invite = parsed.parts.iter().any(is_invite);
    let repeats_invite = |part: &mail_parser::MessagePart<'_>| has_invite && part.is_content_type("application", "ics");
    let parts = parsed.parts.iter().filter(|part| is_invite(part) || is_file(part) && !repeats_invite(part));
    parts.map(|part| file(parsed, part)).collect()
}

/// A part that stands in the message as a file, not as its text.
fn is_file(part: &mail_parser::MessagePart<'_>) -> bool {
    match &part.body {
        PartType::Multipart(_) => false,
        PartType::Text(_) | PartType::Html(_) => part.content_disposition().is_some_and(|d| d.is_attachment()),
        PartType::Binary(_) | PartType::InlineBinary(_) | PartType::Message(_) => true,
    }
}

fn file(parsed: &mail_parser::Message<'_>, part: &mail_parser::MessagePart<'_>) -> File {
    let media_type = part.content_type().map_or_else(
        || "application/octet-stream".to_owned(),
        |kind| format!("{}/{}", kind.ctype(), kind.subtype().unwrap_or("octet-stream")),
    );
    let parameter = |name: &str| part.content_type().and_then(|kind| kind.attribute(name)).map(str::to_owned);
    let default = if part.is_content_type("text", "calendar") { "invite.ics" } else { "attachment" };
    File {
        name: part.attachment_name().unwrap_or(default).to_owned(),
        media_type,
        method: parameter("method"),
        charset: parameter("charset"),
        content: encoded(parsed, part),
        content_id: part.content_id().map(str::to_owned),
        is_inline: part.content_disposition().is_some_and(|disposition| disposition.is_inline()),
    }
}

/// The file in base64. Most stand in the message so and are taken as they stand: what the parser has of a text is not the file's octets, but
/// their meaning in UTF-8.
fn encoded(parsed: &mail_parser::Message<'_>, part: &mail_parser::MessagePart<'_>) -> String {
    let range = part.offset_body as usize..part.offset_end as usize;
    let written = parsed.raw_message.get(range).and_then(|written| std::str::from_utf8(written).ok());
    match written {
        Some(written) if part.encoding == Encoding::Base64 => written.split_ascii_whitespace().collect(),
        _ => STANDARD.encode(part.contents()),
    }
}

/// The fields the API has no place of its own for, as they stand, unfolded (RFC 5322 §2.2.3).
fn other_headers(message: &SmtpMessage) -> Vec<(String, String)> {
    let Ok(header) = std::str::from_utf8(message.header()) else { return Vec::new() };
    let unfolded = header.replace("\r\n ", " ").replace("\r\n\t", " ");
    let fields = unfolded.split_terminator("\r\n").filter_map(|field| field.split_once(':'));
    let fields = fields.map(|(name, value)| (name.trim_end().to_owned(), value.trim().to_owned()));
    fields.filter(|(name, value)| !OWN.contains(&name.to_ascii_lowercase().as_str()) && !value.is_empty()).collect()
}
