//! What was found out about an event, and what the providers' rules share.

use chrono::{DateTime, TimeDelta, Utc};
use http::HeaderMap;
use secrecy::{ExposeSecret, SecretString};

use crate::pipeline::error::ApiError;

/// How far a provider's clock may be ahead of ours.
const AHEAD: TimeDelta = TimeDelta::minutes(5);

/// The result of checking a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum EventCheck {
    Event(Proof),
    /// A request to confirm a subscription, which is confirmed.
    Confirmed {
        /// The SNS topic.
        topic: String,
    },
    /// Genuine, with nothing to store.
    Nothing,
}

/// The ids by which a repeated event and a repeated request are recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Proof {
    /// The event: a second delivery has the same.
    pub event: String,
    /// The request: a second delivery has another, a replay the same.
    pub request: String,
}

/// Why an event is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum EventRefusal {
    /// Not authentic: unsigned, changed, or signed by or for another account.
    Forged,
    /// Too old for a provider to send it still, or not yet.
    Stale,
    /// Seen before.
    Replayed,
    /// The certificate or database that it is checked against is away. The provider retries.
    Unavailable,
}

impl From<EventRefusal> for ApiError {
    fn from(refusal: EventRefusal) -> Self {
        match refusal {
            EventRefusal::Forged => Self::unauthorized("invalid_signature"),
            EventRefusal::Stale => Self::unauthorized("stale_timestamp")
                .detail(format!("the server's time is {}", Utc::now().format("%Y-%m-%dT%H:%M:%SZ"))),
            EventRefusal::Replayed => Self::unauthorized("replayed_event"),
            EventRefusal::Unavailable => Self::unavailable(),
        }
    }
}

/// A header that is there once.
pub(in super::super) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, EventRefusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| EventRefusal::Forged),
        _ => Err(EventRefusal::Forged),
    }
}

/// Whether a time is within what the provider needs to send an event, with all its repetitions.
pub(super) fn is_fresh(at: DateTime<Utc>, now: DateTime<Utc>, window: TimeDelta) -> Result<(), EventRefusal> {
    if at < now - window || at > now + AHEAD { Err(EventRefusal::Stale) } else { Ok(()) }
}

/// A time in whole seconds since 1970, as text.
pub(super) fn unix(text: &str) -> Result<DateTime<Utc>, EventRefusal> {
    text.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0)).ok_or(EventRefusal::Forged)
}

/// Whether any of the secrets proves it. All are tried: how long it takes says nothing about which.
pub(super) fn any(secrets: &[SecretString], proves: impl Fn(&str) -> bool) -> Result<(), EventRefusal> {
    let proven = secrets.iter().fold(false, |proven, secret| proves(secret.expose_secret()) | proven);
    if proven { Ok(()) } else { Err(EventRefusal::Forged) }
}
