//! One mail, as received and as read.

use mail_parser::{HeaderValue, MessageParser, MimeHeaders, PartType};
use serde::Serialize;

/// A mail as it was accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StoredMessage {
    /// Counts up from 1, in order of acceptance.
    pub id: u64,
    /// When it was accepted, in microseconds since 1970.
    pub accepted_at_us: u64,
    /// The sender of the envelope; empty for bounces.
    pub from: String,
    /// The recipients of the envelope that were accepted.
    pub to: Vec<String>,
    /// Header and body as sent, dots unstuffed.
    #[serde(skip)]
    pub source: Vec<u8>,
}

/// A mail as a reader sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Parsed {
    /// The decoded subject.
    pub subject: String,
    /// In order, decoded (RFC 2047) and unfolded.
    pub headers: Vec<HeaderField>,
    /// The text part, when there is one; never made from the HTML.
    pub text: Option<String>,
    /// The HTML part, when there is one.
    pub html: Option<String>,
    /// What else it carries.
    pub attachments: Vec<Attachment>,
}

/// One header field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeaderField {
    /// As written.
    pub name: String,
    /// Decoded and unfolded.
    pub value: String,
}

/// One attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// Its file name, when it has one.
    pub name: Option<String>,
    /// Its declared type, such as `image/png`.
    pub content_type: String,
    /// Decoded size.
    pub bytes: usize,
}

impl Parsed {
    /// The value of the first header field with this name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value.as_str())
    }
}

impl StoredMessage {
    /// Reads it. Never fails: what cannot be read is left out.
    pub fn parse(&self) -> Parsed {
        let parser = MessageParser::new().with_mime_headers().default_header_text();
        let Some(message) = parser.parse(&self.source) else { return Parsed::default() };
        let headers = message
            .headers()
            .iter()
            .map(|header| HeaderField {
                name: header.name().to_owned(),
                value: match &header.value {
                    HeaderValue::Text(text) => text.trim().to_owned(),
                    // Content-Type and its kind were taken apart: show them as written.
                    _ => unfold(self.slice(header.offset_start, header.offset_end)),
                },
            })
            .collect();
        let attachments = message
            .attachments()
            .map(|part| Attachment {
                name: part.attachment_name().map(str::to_owned),
                content_type: part.content_type().map_or_else(
                    || "application/octet-stream".to_owned(),
                    |kind| format!("{}/{}", kind.c_type, kind.subtype().unwrap_or("*")),
                ),
                bytes: part.len(),
            })
            .collect();
        Parsed {
            subject: message.subject().unwrap_or_default().to_owned(),
            headers,
            text: message.text_bodies().find_map(|part| match &part.body {
                PartType::Text(text) => Some(text.to_string()),
                _ => None,
            }),
            html: message.html_bodies().find_map(|part| match &part.body {
                PartType::Html(html) => Some(html.to_string()),
                _ => None,
            }),
            attachments,
        }
    }

    fn slice(&self, start: u32, end: u32) -> &[u8] {
        self.source.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The value of `Message-ID`, found without reading the whole mail.
    pub(crate) fn message_id(&self) -> Option<&[u8]> {
        const NAME: &[u8] = b"message-id:";
        let mut rest = self.source.as_slice();
        loop {
            let end = memchr::memchr(b'\n', rest)?;
            let line = rest[..end].trim_ascii_end();
            if line.is_empty() {
                return None;
            }
            rest = &rest[end + 1..];
            let is_id = line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME));
            if is_id {
                let value = line[NAME.len()..].trim_ascii();
                // Folded behind the name: the value is the next line.
                return if value.is_empty() {
                    rest.split(|byte| *byte == b'\n').next().map(<[u8]>::trim_ascii)
                } else {
                    Some(value)
                };
            }
        }
    }
}

fn unfold(raw: &[u8]) -> String {
    String::from_utf8_lossy(raw).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn message(source: &str) -> StoredMessage {
        StoredMessage { source: source.replace('\n', "\r\n").into_bytes(), ..Default::default() }
    }

    #[rstest]
    #[case("Subject: x\nMessage-ID: <a@b>\n\nbody\n", Some("<a@b>"))]
    #[case("MESSAGE-id:<a@b>\n\n", Some("<a@b>"))]
    #[case("Message-ID:\n <a@b>\nSubject: x\n\n", Some("<a@b>"))]
    #[case("Subject: x\n\nMessage-ID: <a@b>\n", None)]
    #[case("", None)]
    fn the_message_id_stands_in_the_header_only(#[case] source: &str, #[case] id: Option<&str>) {
        assert_eq!(message(source).message_id(), id.map(str::as_bytes));
    }

    #[test]
    fn headers_and_both_parts_are_decoded() {
        let parsed = message(
            "From: =?utf-8?q?Ann_M=C3=BCller?= <ann@example.com>\n\
             Subject: =?utf-8?b?R3LDvMOfZQ==?=\n\
             List-Unsubscribe: <https://example.com/u/1>,\n <mailto:u@example.com>\n\
             MIME-Version: 1.0\n\
             Content-Type: multipart/alternative;\n boundary=\"b\"\n\
             \n--b\nContent-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\nHallo M=C3=BCller\n\
             --b\nContent-Type: text/html; charset=utf-8\n\n<p>Hallo</p>\n--b--\n",
        )
        .parse();
        assert_eq!(parsed.subject, "Grüße");
        assert_eq!(parsed.header("from"), Some("Ann Müller <ann@example.com>"));
        assert_eq!(parsed.header("list-unsubscribe"), Some("<https://example.com/u/1>, <mailto:u@example.com>"));
        assert_eq!(parsed.header("content-type"), Some("multipart/alternative; boundary=\"b\""));
        assert_eq!(parsed.text.unwrap().trim(), "Hallo Müller");
        assert_eq!(parsed.html.unwrap().trim(), "<p>Hallo</p>");
        assert!(parsed.attachments.is_empty());
    }

    #[test]
    fn a_mail_of_html_alone_has_no_text() {
        let parsed = message("Content-Type: text/html\n\n<p>Hi</p>\n").parse();
        assert_eq!(parsed.text, None);
        assert!(parsed.html.is_some());
    }
}
