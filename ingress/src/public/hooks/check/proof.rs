//! What was found out about an event, and what the providers' rules share.

use chrono::{DateTime, TimeDelta, Utc};
use http::HeaderMap;
use secrecy::{ExposeSecret, SecretString};

use crate::pipeline::error::ApiError;

/// How far a provider's clock may be ahead of ours.
const AHEAD: TimeDelta = TimeDelta::minutes(5);

/// What was found out about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Checked {
    /// An event.
    Event(Proof),
    /// The provider asked whether we want its events, and was told so.
    Confirmed {
        /// The SNS topic.
        topic: String,
    },
    /// Genuine, and nothing to keep.
    Nothing,
}

/// What an event and its request are known again by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Proof {
    /// The event: a second delivery has the same.
    pub event: String,
    /// The request: a second delivery has another, a replay the same.
    pub request: String,
}

/// Why an event is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum Refusal {
    /// Not proven: unsigned, signed by somebody else, for another account, changed.
    #[error("invalid_signature")]
    Forged,
    /// Too old for a provider to send it still, or not yet.
    #[error("stale_timestamp")]
    Stale,
    /// Seen before.
    #[error("replayed_event")]
    Replayed,
    /// Nobody can say: what it is checked against cannot be had now. The provider comes again.
    #[error("unavailable")]
    Unavailable,
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Forged => Self::unauthorized("invalid_signature"),
            Refusal::Stale => Self::unauthorized("stale_timestamp")
                .detail(format!("the server's time is {}", Utc::now().format("%Y-%m-%dT%H:%M:%SZ"))),
            Refusal::Replayed => Self::unauthorized("replayed_event"),
            Refusal::Unavailable => Self::unavailable(),
        }
    }
}

/// A header that is there once.
pub(in super::super) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| Refusal::Forged),
        _ => Err(Refusal::Forged),
    }
}

/// Whether a time is within what the provider needs to send an event, with all its repetitions.
pub(super) fn is_fresh(at: DateTime<Utc>, now: DateTime<Utc>, window: TimeDelta) -> Result<(), Refusal> {
    if at < now - window || at > now + AHEAD { Err(Refusal::Stale) } else { Ok(()) }
}

/// A time in whole seconds since 1970, as text.
pub(super) fn unix(text: &str) -> Result<DateTime<Utc>, Refusal> {
    text.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0)).ok_or(Refusal::Forged)
}

/// Whether any of the secrets proves it. All are tried: how long it takes says nothing about which.
pub(super) fn any(secrets: &[SecretString], proves: impl Fn(&str) -> bool) -> Result<(), Refusal> {
    let proven = secrets.iter().fold(false, |proven, secret| proves(secret.expose_secret()) | proven);
    if proven { Ok(()) } else { Err(Refusal::Forged) }
}
