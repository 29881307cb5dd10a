//! Whether an event is its provider's, for this account, now.

mod mailgun;
mod postmark;
pub(super) mod proof;
mod resend;
mod sendgrid;
pub(super) mod sns;

#[cfg(test)]
mod tests;

use chrono::{DateTime, Utc};
use http::HeaderMap;

pub(super) use self::{
    proof::{EventCheck, EventRefusal, Proof},
    sns::Sns,
};
use super::{connection::HookConnection, raw::RawBody};

/// Checks an event by the rules of its provider.
pub(super) async fn check(
    sns: &Sns,
    provider: &str,
    connection: &HookConnection,
    headers: &HeaderMap,
    raw: &RawBody,
    now: DateTime<Utc>,
) -> Result<EventCheck, EventRefusal> {
    let secrets = &connection.secrets;
    let proof = match provider {
        "ses" => return sns.check(connection, &raw.kept, now).await,
        "postmark" => postmark::check(secrets, headers, raw),
        "sendgrid" => sendgrid::check(secrets, headers, raw, now),
        "mailgun" => mailgun::check(secrets, &raw.kept, now),
        "resend" => resend::check(secrets, headers, &raw.kept, now),
        _ => Err(EventRefusal::Forged),
    };
    proof.map(EventCheck::Event)
}

/// What is wrong with the secret or the topics that events of a provider are to be checked with; `None`: nothing.
#[must_use]
pub fn fault(provider: &str, secret: &str, topics: &[String]) -> Option<&'static str> {
    if provider != "ses" && !topics.is_empty() {
        return Some("topics are of SES only");
    }
    let are_topics = || !topics.is_empty() && topics.iter().all(|topic| sns::region(topic).is_some());
    let is_login = |(user, password): (&str, &str)| !user.is_empty() && password.len() >= 16;
    let (is_good, expected) = match provider {
        "ses" if !secret.is_empty() => return Some("SES has no secret: its topics say whose events count"),
        "ses" => (are_topics(), "needs the ARNs of its SNS topics"),
        "postmark" => (
            secret.split_once(':').is_some_and(is_login),
            "needs user:password, with 16 characters of password or more",
        ),
        "sendgrid" => (sendgrid::is_key(secret), "needs the verification key, as SendGrid shows it"),
        "mailgun" => (secret.len() >= 16, "needs the HTTP webhook signing key"),
        "resend" => (resend::is_key(secret), "needs the signing secret, as Resend shows it: whsec_…"),
        _ => return Some("this provider tells nothing by HTTP"),
    };
    (!is_good).then_some(expected)
}
