//! Dead letters: the message as it was, with its reason, kept for people (`postrider dead …`).

use bytes::Bytes;
use runtime::{Publication, trace::TraceContext};
use schemas::subjects::{self, header};

use crate::Origin;

/// Longest detail in a header, in characters.
const DETAIL_MAX: usize = 500;
/// Longest list of fields at fault, in characters.
const FIELDS_MAX: usize = 2_000;

/// A message set aside.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    stage: &'static str,
    message_id: String,
    body: Bytes,
    headers: Vec<(&'static str, String)>,
}

impl DeadLetter {
    /// A message, or a part of one, with the code of why it cannot be handled and words without personal data. It stays part of its
    /// trace, and so does a replay.
    #[must_use]
    pub fn new(stage: &'static str, origin: &Origin, body: Bytes, code: &str, detail: &str) -> Self {
        let mut headers = vec![
            (header::DEAD_REASON, header_text(code, DETAIL_MAX)),
            (header::DEAD_DETAIL, header_text(detail, DETAIL_MAX)),
            (header::DEAD_SUBJECT, origin.subject.clone()),
            (header::DEAD_STREAM, origin.stream.clone()),
            (header::DEAD_ATTEMPTS, origin.deliveries.to_string()),
        ];
        if let Some(schema) = &origin.schema {
            headers.push(("Mail-Dead-Schema", header_text(schema, DETAIL_MAX)));
        }
        headers.extend(origin.trace.iter().flat_map(TraceContext::headers));
        // A stream that was lost and made again has the same numbers again.
        let message_id = format!("dead-{}-{}-{}", origin.stream, origin.sequence, origin.published_ns);
        Self { stage, message_id, body, headers }
    }

    /// The dead letter of one part of a message: each part has a message id of its own.
    #[must_use]
    pub fn part(mut self, index: usize) -> Self {
        self.message_id = format!("{}-{index}", self.message_id);
        self
    }

    /// Names the fields at fault: `path code`, separated by `; `.
    #[must_use]
    pub fn fields(mut self, fields: &str) -> Self {
        if !fields.is_empty() {
            self.headers.push((header::DEAD_FIELDS, header_text(fields, FIELDS_MAX)));
        }
        self
    }

    /// As it is published.
    #[must_use]
    pub fn into_publication(self) -> Publication {
        Publication {
            subject: subjects::dead(self.stage),
            message_id: self.message_id,
            schema: "mail.v1.dead",
            body: self.body,
            headers: self.headers,
        }
    }
}

/// One line of printable ASCII, bounded: what a NATS header can carry.
fn header_text(text: &str, max_chars: usize) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).take(max_chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_stream_and_of_its_successor_are_set_aside_side_by_side() {
        let id_of = |published_ns| {
            let origin = Origin { stream: "MAIL_CLEARED".to_owned(), sequence: 1, published_ns, ..Origin::default() };
            DeadLetter::new("rendering", &origin, Bytes::new(), "malformed", "").into_publication().message_id
        };
        assert_eq!(id_of(1), id_of(1));
        assert_ne!(id_of(1), id_of(2));
    }
}
