//! Reads, replays and removes dead letters.

use anyhow::{Context, ensure};
use async_nats::jetstream::{self, message::StreamMessage, stream::DirectGetErrorKind};
use chrono::{DateTime, TimeDelta, Utc};
use runtime::{Bus, Publication, trace::TraceContext};
use schemas::{
    Rendered,
    subjects::{self, header, stream},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::DeadLetterFilter;

pub(super) struct DeadLetters<'a> {
    bus: &'a Bus,
    /// `None` before the stream exists: there are no dead letters yet.
    stream: Option<jetstream::stream::Stream>,
}

impl<'a> DeadLetters<'a> {
    pub(super) async fn open(bus: &'a Bus) -> anyhow::Result<Self> {
        Ok(Self { bus, stream: bus.stream(stream::DEAD).await? })
    }

    /// Visits the dead letters that match, oldest first, until the visitor has taken `limit` of them. The server skips removed ones; those
    /// that are set aside meanwhile are left out.
    pub(super) async fn each(
        &self,
        filter: &DeadLetterFilter,
        limit: usize,
        mut take: impl AsyncFnMut(StreamMessage) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let subject = self.bus.prefixed(&subjects::dead(filter.stage.as_deref().unwrap_or("*")));
        let last = stream.get_info().await?.state.last_sequence;
        let now = Utc::now();
        let (mut number, mut taken) = (1, 0);
        while taken < limit {
            let letter = match stream.direct_get_next_for_subject(subject.clone(), Some(number)).await {
                Ok(letter) => letter,
                Err(error) if error.kind() == DirectGetErrorKind::NotFound => break,
                Err(error) => return Err(error.into()),
            };
            if letter.sequence > last {
                break;
            }
            number = letter.sequence + 1;
            if filter.fits(&letter, now) && take(letter).await? {
                taken += 1;
            }
        }
        Ok(())
    }

    pub(super) async fn get(&self, number: u64) -> anyhow::Result<StreamMessage> {
        let none = || format!("no dead letter {number}");
        let stream = self.stream.as_ref().with_context(none)?;
        stream.get_raw_message(number).await.with_context(none)
    }

    pub(super) async fn remove(&self, number: u64) -> anyhow::Result<()> {
        if let Some(stream) = &self.stream {
            stream.delete_message(number).await?;
        }
        Ok(())
    }

    /// Publishes a dead letter again to the subject it came from.
    pub(super) async fn replay(&self, letter: &StreamMessage) -> anyhow::Result<()> {
        let subject = text(letter, header::DEAD_SUBJECT);
        ensure!(!subject.is_empty(), "dead letter {} does not say where it came from", letter.sequence);
        let publication = Publication {
            subject,
            message_id: replay_id(letter),
            schema: "mail.v1.replay",
            body: letter.payload.clone(),
            headers: TraceContext::of_message(Some(&letter.headers)).iter().flat_map(TraceContext::headers).collect(),
        };
        self.bus.publish_all(vec![publication]).await.context("the message could not be published")
    }
}

impl DeadLetterFilter {
    fn fits(&self, letter: &StreamMessage, now: DateTime<Utc>) -> bool {
        let age = now - at(letter);
        let longer_than = |wanted: std::time::Duration| TimeDelta::from_std(wanted).is_ok_and(|wanted| age > wanted);
        self.code.as_deref().is_none_or(|code| text(letter, header::DEAD_REASON) == code)
            && self.subject.as_deref().is_none_or(|subject| text(letter, header::DEAD_SUBJECT).starts_with(subject))
            && self.tenant.is_none_or(|tenant| tenant_of(letter) == Some(tenant))
            && self.older.is_none_or(longer_than)
            && self.newer.is_none_or(|wanted| !longer_than(wanted))
    }
}

pub(super) fn record(letter: &StreamMessage) -> Value {
    let fields = text(letter, header::DEAD_FIELDS);
    json!({
        "number": letter.sequence,
        "at": at(letter).to_rfc3339(),
        "stage": letter.subject.rsplit('.').next().unwrap_or_default(),
        "code": text(letter, header::DEAD_REASON),
        "attempts": text(letter, header::DEAD_ATTEMPTS),
        "subject": text(letter, header::DEAD_SUBJECT),
        "tenant": tenant_of(letter),
        "trace": TraceContext::of_message(Some(&letter.headers)).map(|trace| trace.trace_id()),
        "fields": (!fields.is_empty()).then_some(fields),
        "detail": text(letter, header::DEAD_DETAIL),
    })
}

/// The message id of a replay. It derives from the letter, so that a direct request that is replayed again, because the letter could not be
/// removed, finds the answer of the first replay. The number alone would come again when the stream is lost and made anew.
fn replay_id(letter: &StreamMessage) -> String {
    format!("replay-{}-{}", letter.sequence, letter.time.unix_timestamp_nanos())
}

/// True for what a product published itself.
pub(super) fn is_request(letter: &StreamMessage) -> bool {
    text(letter, header::DEAD_SUBJECT).starts_with("mail.v1.request.")
}

pub(super) fn text(letter: &StreamMessage, name: &str) -> String {
    letter.headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default()
}

fn at(letter: &StreamMessage) -> DateTime<Utc> {
    DateTime::from_timestamp(letter.time.unix_timestamp(), letter.time.nanosecond()).unwrap_or_default()
}

/// The body as JSON; of the frame of a rendered batch its head. `None`: neither.
pub(super) fn body(letter: &StreamMessage) -> Option<Value> {
    let json = serde_json::from_slice(&letter.payload).ok();
    json.or_else(|| serde_json::to_value(Rendered::of_frame(&letter.payload).ok()?).ok())
}

/// The tenant that the body names, if any.
fn tenant_of(letter: &StreamMessage) -> Option<Uuid> {
    let body = body(letter)?;
    body["tenant_id"].as_str().or_else(|| body["engine_tenant_id"].as_str())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_is_replayed_under_one_id_however_often() {
        let letter = |sequence, time| StreamMessage {
            subject: "mail.v1.dead.ingress".into(),
            sequence,
            headers: async_nats::HeaderMap::new(),
            payload: "{}".into(),
            time: async_nats::datetime::parse_rfc3339(time).unwrap(),
        };
        let (morning, noon) = ("2026-01-02T08:00:00.000000001Z", "2026-01-02T12:00:00Z");
        let first = replay_id(&letter(7, morning));
        assert_eq!(replay_id(&letter(7, morning)), first);
        for other in [letter(8, morning), letter(7, noon)] {
            assert_ne!(replay_id(&other), first);
        }
    }
}
