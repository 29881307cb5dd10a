//! Dead letters: the message as it was, with its reason, kept for people (`postrider dead …`).

use async_nats::jetstream;
use bytes::Bytes;
use runtime::{Bus, Publication};
use schemas::subjects::{self, header};

use crate::StageError;

/// Longest detail in a header, in characters.
const DETAIL_MAX: usize = 500;

/// A message set aside.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    stage: &'static str,
    message_id: String,
    body: Bytes,
    headers: Vec<(&'static str, String)>,
}

impl DeadLetter {
    /// Describes a message that cannot be handled.
    pub(crate) fn of(
        stage: &'static str,
        bus: &Bus,
        message: &jetstream::Message,
        deliveries: i64,
        error: &StageError,
    ) -> Self {
        let (stream, sequence) =
            message.info().map_or((String::new(), 0), |info| (info.stream.to_owned(), info.stream_sequence));
        let original = |name: &str| {
            let headers = message.headers.as_ref()?;
            headers.get(name).map(|value| value.as_str().to_owned())
        };
        let subject = message.subject.strip_prefix(bus.prefix()).unwrap_or(&message.subject).to_owned();
        let mut headers = vec![
            (header::DEAD_REASON, error.code().to_owned()),
            (header::DEAD_DETAIL, header_text(&error.chain())),
            (header::DEAD_SUBJECT, subject),
            (header::DEAD_STREAM, stream.clone()),
            (header::DEAD_ATTEMPTS, deliveries.to_string()),
        ];
        if let Some(schema) = original(header::SCHEMA) {
            headers.push(("Mail-Dead-Schema", header_text(&schema)));
        }
        Self { stage, message_id: format!("dead-{stream}-{sequence}"), body: message.payload.clone(), headers }
    }

    pub(crate) fn into_publication(self) -> Publication {
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
fn header_text(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).take(DETAIL_MAX).collect()
}
