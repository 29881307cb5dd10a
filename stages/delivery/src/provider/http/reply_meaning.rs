//! What replies mean: the rules that all providers share.

use std::time::Duration;

use super::exchange::{HttpReply, NoReply};
use crate::provider::{Answer, PingFault, Refused};
use smtp::classify::{Class, ReplyDecision, ReplyOutcome, Scope};

/// The provider may or may not have accepted the mail.
pub(super) const UNKNOWN: ReplyDecision = ReplyDecision { outcome: ReplyOutcome::Unknown, scope: Scope::Connection };

/// An accepted message by its id. Without a readable id the outcome is unknown: the reply may not be the provider's own.
pub(super) fn accepted(reply: &HttpReply, pointer: &str) -> Result<Option<String>, Refused> {
    match reply.text(pointer).filter(|id| !id.is_empty()) {
        Some(id) => Ok(Some(id.chars().filter(|c| !c.is_control()).take(255).collect())),
        None => Err(refusal(reply, UNKNOWN, "accepted without an id")),
    }
}

/// A refusal with the provider's own text.
pub(super) fn refusal(reply: &HttpReply, decision: ReplyDecision, text: &str) -> Refused {
    let answer = Answer::text(format!("{} {text}", reply.status).trim_end());
    // A rate limit lasts for seconds, unless the provider names a time.
    let wait = reply.retry_after().or_else(|| (reply.status == 429 && decision == RATE).then_some(RATE_WAIT));
    Refused { decision, answer, wait }
}

/// The account sends too fast. `reset`: the time until its rate limit ends, where a header of the provider's own says so.
pub(super) fn rate_limited(reply: &HttpReply, text: &str, reset: Option<Duration>) -> Refused {
    let refused = refusal(reply, RATE, text);
    Refused { wait: reply.retry_after().or(reset).or(refused.wait), ..refused }
}

/// What the status alone means, for a reply whose body says nothing better. `is_own`: the body has the form of the provider's own
/// errors, so a 5xx comes from the provider and not from a proxy in between.
pub(super) fn by_status(reply: &HttpReply, text: &str, is_own: bool) -> Refused {
    let decision = match reply.status {
        401 | 402 | 403 | 407 => ACCOUNT,
        408 | 425 => ReplyDecision::defer(Class::Temporary, Scope::Connection),
        413 => CONTENT,
        429 => RATE,
        // A redirect was not followed, so the mail was not accepted. A moved address needs an operator.
        300..=399 | 404 | 405 | 410 => ACCOUNT,
        400..=499 => CONTENT,
        503 => ReplyDecision::defer(Class::Throttled, Scope::Relay),
        500..=599 if is_own => ReplyDecision::defer(Class::Temporary, Scope::Recipient),
        _ => UNKNOWN,
    };
    refusal(reply, decision, text)
}

/// The account is at fault: keys, payment, permission. No recipient is to blame; an operator must act.
pub(super) const ACCOUNT: ReplyDecision = ReplyDecision::defer(Class::Configuration, Scope::Relay);
/// The sender is not set up at the provider, such as an unknown domain. Mail of other senders goes on.
pub(super) const SENDER: ReplyDecision = ReplyDecision::defer(Class::Configuration, Scope::Recipient);
/// The account sends too fast.
pub(super) const RATE: ReplyDecision = ReplyDecision::defer(Class::Throttled, Scope::Relay);
/// The provider refuses the content.
pub(super) const CONTENT: ReplyDecision = ReplyDecision::fail(Class::Content);
/// The provider no longer sends to this recipient. Its reason is not precise enough for a suppression.
pub(super) const RECIPIENT: ReplyDecision = ReplyDecision::fail(Class::Inactive);
/// The provider does not accept this address.
pub(super) const ADDRESS: ReplyDecision = ReplyDecision::fail(Class::Policy);

/// The wait after a rate limit whose reply names no time.
const RATE_WAIT: Duration = Duration::from_secs(2);

/// What a missing reply to a send request means.
pub(super) fn no_reply(why: NoReply) -> Refused {
    let (decision, text) = match why {
        NoReply::Unreachable | NoReply::ConnectTimeout => {
            (ReplyDecision::defer(Class::Unreachable, Scope::Relay), "the provider cannot be reached")
        }
        NoReply::Tls => (ACCOUNT, "the TLS handshake failed"),
        NoReply::Unsendable => (ACCOUNT, "the request cannot be made"),
        NoReply::Timeout => (UNKNOWN, "no answer in time"),
        NoReply::BrokenConnection => (UNKNOWN, "the connection broke"),
    };
    Refused { decision, answer: Answer::text(text), wait: None }
}

/// What the reply to a ping means, by its status.
pub(super) fn ping(reply: &HttpReply) -> Result<(), PingFault> {
    match reply.status {
        200..=299 => Ok(()),
        401 | 403 => Err(PingFault::Credentials),
        429 => Err(PingFault::RateLimited),
        _ => Err(PingFault::Refused),
    }
}

/// What a missing reply to a ping means.
pub(super) fn no_ping(why: NoReply) -> PingFault {
    match why {
        NoReply::Unreachable | NoReply::BrokenConnection => PingFault::Unreachable,
        NoReply::ConnectTimeout | NoReply::Timeout => PingFault::Timeout,
        NoReply::Tls => PingFault::Tls,
        NoReply::Unsendable => PingFault::Settings,
    }
}

/// The time until a rate limit resets, from a header in seconds from now.
pub(super) fn seconds(reply: &HttpReply, header: &str) -> Option<Duration> {
    reply.header(header)?.trim().parse().ok().map(Duration::from_secs)
}

/// The time until a rate limit resets, from a header in Unix seconds.
pub(super) fn until(reply: &HttpReply, header: &str) -> Option<Duration> {
    let at: i64 = reply.header(header)?.trim().parse().ok()?;
    u64::try_from(at - chrono::Utc::now().timestamp()).ok().map(Duration::from_secs)
}
