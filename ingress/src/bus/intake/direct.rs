//! A direct request, read from its message: publisher, kind and idempotency key.

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use runner::{Incoming, Origin, StageError, StageInput};
use schemas::{DirectKind, Lane};

use crate::{
    bus::call::{self, Publisher},
    pipeline::{error::ApiError, idempotency::KEPT_HOURS},
};

/// The first tokens of a request's subject: product, environment and kind follow.
pub(super) const SUBJECT: &str = "mail.v1.request";

/// A request as received. It is not validated yet: a fault in it is refused like any other.
#[derive(Debug, Clone)]
pub(crate) struct DirectRequest {
    pub(super) origin: Origin,
    /// None if the subject is malformed.
    pub(super) publisher: Option<Publisher>,
    /// As written in the subject.
    pub(super) kind: String,
    /// `Idempotency-Key`, or else `Nats-Msg-Id`.
    pub(super) message_id: Option<String>,
    /// The key of a message without one: its position in the stream.
    position: String,
    pub(super) published_at: DateTime<Utc>,
    pub(super) body: Bytes,
}

impl StageInput for DirectRequest {
    fn decode(message: &Incoming<'_>) -> Result<Self, StageError> {
        Ok(Self::read(message))
    }
}

impl DirectRequest {
    pub(super) fn read(message: &Incoming<'_>) -> Self {
        Self {
            origin: message.origin(),
            publisher: Publisher::of_subject(message.subject, SUBJECT),
            kind: message.subject.rsplit('.').next().unwrap_or_default().to_owned(),
            message_id: call::message_id(message.headers),
            // The number alone would come again when the stream is lost and made anew.
            position: format!("stream-{}-{}", message.sequence, message.published_ns),
            published_at: i64::try_from(message.published_ns)
                .map_or_else(|_| Utc::now(), DateTime::from_timestamp_nanos),
            body: message.payload.clone(),
        }
    }

    /// The publisher, or 404 for an unknown subject.
    pub(super) fn publisher(&self) -> Result<&Publisher, ApiError> {
        self.publisher.as_ref().ok_or_else(|| call::unknown_subject(SUBJECT, "kind"))
    }

    /// Product and environment as written in the subject, known or not.
    pub(super) fn subject_of_publisher(&self) -> &str {
        call::publisher_in(&self.origin.subject, SUBJECT)
    }

    /// The kind, or 404 for an unknown one.
    pub(super) fn kind(&self) -> Result<DirectKind, ApiError> {
        DirectKind::parse(&self.kind).ok_or_else(|| {
            ApiError::new(http::StatusCode::NOT_FOUND, "unknown_kind")
                .detail(format!("the last token of the subject is one of {}", DirectKind::NAMES.join(", ")))
        })
    }

    /// The kind as a metric label: a bounded set.
    pub(super) fn kind_label(&self) -> &'static str {
        DirectKind::parse(&self.kind).map_or("unknown", DirectKind::as_str)
    }

    /// The lane it came by.
    pub(super) fn lane(&self) -> Lane {
        if self.kind == DirectKind::CampaignLaunch.as_str() { Lane::Bulk } else { Lane::Priority }
    }

    /// The idempotency key: the publisher's id, or the position of the message in the stream.
    pub(super) fn idempotency_key(&self) -> Result<&str, ApiError> {
        match &self.message_id {
            Some(id) => call::idempotency_key(id),
            None => Ok(&self.position),
        }
    }

    /// Whether it was delivered before, and the answer of then may not be kept any more: it is not known whether it was carried out. An hour
    /// is for clocks that differ.
    pub(super) fn outlives_its_key(&self, now: DateTime<Utc>) -> bool {
        self.origin.deliveries > 1 && now - self.published_at > TimeDelta::hours(i64::from(KEPT_HOURS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(subject: &str, message_id: Option<&str>) -> DirectRequest {
        let mut headers = async_nats::HeaderMap::new();
        if let Some(id) = message_id {
            headers.insert("Nats-Msg-Id", id);
        }
        direct_with(subject, &headers)
    }

    fn direct_with(subject: &str, headers: &async_nats::HeaderMap) -> DirectRequest {
        let message = Incoming {
            subject,
            headers: Some(headers),
            payload: &Bytes::from_static(b"{}"),
            stream: "MAIL_REQUESTS",
            sequence: 7,
            published_ns: 1_700_000_000_000_000_000,
            deliveries: 1,
            attempts: 1,
        };
        DirectRequest::read(&message)
    }

    #[test]
    fn the_subject_names_publisher_and_kind() {
        let good = direct("mail.v1.request.shop.sandbox.contact", None);
        assert_eq!(good.publisher().unwrap().product, "shop");
        assert_eq!(good.kind().unwrap(), DirectKind::Contact);
        assert!(direct("mail.v1.request.shop.staging.contact", None).publisher().is_err());
        let unknown = direct("mail.v1.request.shop.sandbox.postcard", None);
        assert_eq!((unknown.kind().unwrap_err().code.as_ref(), unknown.kind_label()), ("unknown_kind", "unknown"));
    }

    #[test]
    fn a_repeat_is_recognised_by_id_or_stream_position() {
        let subject = "mail.v1.request.shop.sandbox.contact";
        assert_eq!(direct(subject, Some("m-1")).idempotency_key().unwrap(), "m-1");
        assert_eq!(direct(subject, None).idempotency_key().unwrap(), "stream-7-1700000000000000000");
        assert!(direct(subject, Some("m 1")).idempotency_key().is_err());
    }

    #[test]
    fn a_request_that_comes_again_after_its_answer_is_gone_is_too_old() {
        let mut again = direct("mail.v1.request.shop.sandbox.contact", Some("m-1"));
        let after = |hours| again.published_at + TimeDelta::hours(hours);
        let (next_day, same_day) = (after(24), after(22));
        assert!(!again.outlives_its_key(next_day), "its first delivery, however late");
        again.origin.deliveries = 2;
        assert!(again.outlives_its_key(next_day) && !again.outlives_its_key(same_day));
    }

    #[test]
    fn the_idempotency_key_goes_before_the_id_that_jetstream_reads() {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Nats-Msg-Id", "m-1");
        headers.insert("Idempotency-Key", "k-1");
        let named = direct_with("mail.v1.request.shop.sandbox.contact", &headers);
        assert_eq!(named.idempotency_key().unwrap(), "k-1");
    }
}
