//! What answers have in common, whoever gives them.

use std::time::Duration;

use super::exchange::{NoReply, Reply};
use crate::provider::{Answer, PingFault, Refused};
use smtp::classify::{Class, Decision, Outcome, Scope};

/// What an answer means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The provider has it, under this id.
    Taken { id: Option<String> },
    /// It has not, or nobody can say.
    Refused(Refused),
    /// An earlier request with the same idempotency key is still being worked on: ask again.
    InProgress,
}

/// Nobody can say whether the provider took it.
pub(super) const UNKNOWN: Decision = Decision { outcome: Outcome::Unknown, scope: Scope::Connection };

/// An accepted message by its id; without a readable one nobody can say, because only the provider's own answer counts.
pub(super) fn taken(reply: &Reply, pointer: &str) -> Verdict {
    match reply.text(pointer).filter(|id| !id.is_empty()) {
        Some(id) => Verdict::Taken { id: Some(id.chars().filter(|c| !c.is_control()).take(255).collect()) },
        None => refused(reply, UNKNOWN, "accepted without an id"),
    }
}

/// A refusal with the provider's words.
pub(super) fn refused(reply: &Reply, decision: Decision, words: &str) -> Verdict {
    let answer = Answer::text(format!("{} {words}", reply.status).trim_end());
    // A rate is one of seconds, unless the provider says more.
    let wait = reply.retry_after().or_else(|| (reply.status == 429 && decision == RATE).then_some(RATE_WAIT));
    Verdict::Refused(Refused { decision, answer, wait })
}

/// By the status alone, where the body says nothing better. `is_own`: the body has the form of the provider's own errors, so
/// that a 5xx is its word that it failed, and not that of something in between.
pub(super) fn by_status(reply: &Reply, words: &str, is_own: bool) -> Verdict {
    let decision = match reply.status {
        401 | 402 | 403 | 407 => ACCOUNT,
        408 | 425 => Decision::defer(Class::Temporary, Scope::Connection),
        413 => CONTENT,
        429 => RATE,
        // Nothing followed, so nothing was taken; an address that moved is for a person to look at.
        300..=399 | 404 | 405 | 410 => ACCOUNT,
        400..=499 => CONTENT,
        503 => Decision::defer(Class::Throttled, Scope::Relay),
        500..=599 if is_own => Decision::defer(Class::Temporary, Scope::Recipient),
        _ => UNKNOWN,
    };
    refused(reply, decision, words)
}

/// Something about the account: keys, payment, permission. No recipient is to blame; a person must look.
pub(super) const ACCOUNT: Decision = Decision::defer(Class::Configuration, Scope::Relay);
/// Something about this sender at the provider, such as a domain it does not know: other mail goes on.
pub(super) const SENDER: Decision = Decision::defer(Class::Configuration, Scope::Recipient);
/// Too fast for the account.
pub(super) const RATE: Decision = Decision::defer(Class::Throttled, Scope::Relay);
/// Refused for what it is.
pub(super) const CONTENT: Decision = Decision::fail(Class::Content);
/// The provider does not send to this recipient any more; why is not said well enough to suppress it here.
pub(super) const RECIPIENT: Decision = Decision::fail(Class::Inactive);
/// Not an address the provider takes.
pub(super) const ADDRESS: Decision = Decision::fail(Class::Policy);

/// How long to stay away from a provider that does not say.
const RATE_WAIT: Duration = Duration::from_secs(2);

/// What it means that there is no answer.
pub(super) fn no_reply(why: NoReply) -> Refused {
    let (decision, words) = match why {
        NoReply::Unreachable | NoReply::ConnectTimeout => {
            (Decision::defer(Class::Unreachable, Scope::Relay), "the provider cannot be reached")
        }
        NoReply::Tls => (ACCOUNT, "the TLS handshake failed"),
        NoReply::Unsendable => (ACCOUNT, "the request cannot be made"),
        NoReply::Timeout => (UNKNOWN, "no answer in time"),
        NoReply::Broken => (UNKNOWN, "the connection broke"),
    };
    Refused { decision, answer: Answer::text(words), wait: None }
}

/// What the answer to a ping means.
pub(super) fn ping(reply: &Reply) -> Result<(), PingFault> {
    match reply.status {
        200..=299 => Ok(()),
        401 | 403 => Err(PingFault::Credentials),
        429 => Err(PingFault::RateLimited),
        _ => Err(PingFault::Refused),
    }
}

/// What it means that there is no answer to a ping.
pub(super) fn no_ping(why: NoReply) -> PingFault {
    match why {
        NoReply::Unreachable | NoReply::Broken => PingFault::Unreachable,
        NoReply::ConnectTimeout | NoReply::Timeout => PingFault::Timeout,
        NoReply::Tls => PingFault::Tls,
        NoReply::Unsendable => PingFault::Settings,
    }
}

/// When a limit starts anew, from a header in seconds from now.
pub(super) fn seconds(reply: &Reply, header: &str) -> Option<Duration> {
    reply.header(header)?.trim().parse().ok().map(Duration::from_secs)
}

/// When a limit starts anew, from a header in Unix seconds.
pub(super) fn until(reply: &Reply, header: &str) -> Option<Duration> {
    let at: i64 = reply.header(header)?.trim().parse().ok()?;
    u64::try_from(at - chrono::Utc::now().timestamp()).ok().map(Duration::from_secs)
}
