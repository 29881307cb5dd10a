//! Whether an event is its provider's, for this account, now.

mod mailgun;
mod postmark;
mod resend;
mod sendgrid;
mod sns;

#[cfg(test)]
mod tests;

use chrono::{DateTime, TimeDelta, Utc};
use http::HeaderMap;
use secrecy::{ExposeSecret, SecretString};

pub(super) use self::{sendgrid::STAMP_HEADER, sns::Sns};
use super::{connection::Connection, raw::Raw};
use crate::pipeline::error::ApiError;

/// How far a provider's clock may be ahead of ours.
const AHEAD: TimeDelta = TimeDelta::minutes(5);

/// What was found out about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Checked {
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
pub(super) struct Proof {
    /// The event: a second delivery has the same.
    pub event: String,
    /// The request: a second delivery has another, a replay the same.
    pub request: String,
}

/// Why an event is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
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

/// Checks an event by the rules of its provider.
pub(super) async fn check(
    sns: &Sns,
    provider: &str,
    connection: &Connection,
    headers: &HeaderMap,
    raw: &Raw,
    now: DateTime<Utc>,
) -> Result<Checked, Refusal> {
    let secrets = &connection.secrets;
    let proof = match provider {
        "ses" => return sns.check(&connection.topics, &raw.kept, now).await,
        "postmark" => postmark::check(secrets, headers, raw),
        "sendgrid" => sendgrid::check(secrets, headers, raw, now),
        "mailgun" => mailgun::check(secrets, &raw.kept, now),
        "resend" => resend::check(secrets, headers, &raw.kept, now),
        _ => Err(Refusal::Forged),
    };
    proof.map(Checked::Event)
}

/// What is wrong with the secret or the topics that events of a provider are to be checked with; `None`: nothing.
#[must_use]
pub fn fault(provider: &str, secret: &str, topics: &[String]) -> Option<&'static str> {
    if provider != "ses" && !topics.is_empty() {
        return Some("topics are of SES only");
    }
    let is_good = match provider {
        "ses" if !secret.is_empty() => return Some("SES has no secret: its topics say whose events count"),
        "ses" => !topics.is_empty() && topics.iter().all(|topic| sns::region(topic).is_some()),
        "postmark" => secret.split_once(':').is_some_and(|(user, password)| !user.is_empty() && password.len() >= 16),
        "sendgrid" => sendgrid::is_key(secret),
        "mailgun" => secret.len() >= 16,
        "resend" => resend::is_key(secret),
        _ => return Some("this provider tells nothing by HTTP"),
    };
    let expected = match provider {
        "ses" => "needs the ARNs of its SNS topics",
        "postmark" => "needs user:password, with 16 characters of password or more",
        "sendgrid" => "needs the verification key, as SendGrid shows it",
        "mailgun" => "needs the HTTP webhook signing key",
        _ => "needs the signing secret, as Resend shows it: whsec_…",
    };
    (!is_good).then_some(expected)
}

/// A header that is there once.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().map_err(|_| Refusal::Forged),
        _ => Err(Refusal::Forged),
    }
}

/// Whether a time is within what the provider needs to send an event, with all its repetitions.
fn is_fresh(at: DateTime<Utc>, now: DateTime<Utc>, window: TimeDelta) -> Result<(), Refusal> {
    if at < now - window || at > now + AHEAD { Err(Refusal::Stale) } else { Ok(()) }
}

/// A time in whole seconds since 1970, as text.
fn unix(text: &str) -> Result<DateTime<Utc>, Refusal> {
    text.parse().ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0)).ok_or(Refusal::Forged)
}

/// Whether any of the secrets proves it. All are tried: how long it takes says nothing about which.
fn any(secrets: &[SecretString], proves: impl Fn(&str) -> bool) -> Result<(), Refusal> {
    let proven = secrets.iter().fold(false, |proven, secret| proves(secret.expose_secret()) | proven);
    if proven { Ok(()) } else { Err(Refusal::Forged) }
}
