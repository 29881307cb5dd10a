//! What an SMTP answer means for the recipient, the batch and the relay.
//!
//! Order of evidence: the phase and our own causes; then the rules of [`schemas::answers`], which reports that come back
//! later are judged by as well.

pub use schemas::answers::Class;
use schemas::answers::{Meaning, by_reply_code, meaning};

use crate::{Cause, Certainty, Phase, Reply, SmtpFailure};

/// Rules of [`schemas::answers`] that mean more to a sender than their class says.
const SES_THROTTLING: &str = "ses_throttling";
const GMAIL_USER_RATE: &str = "gmail_user_rate";

/// What becomes of the send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplyOutcome {
    /// The server took it.
    Sent,
    /// Try again by the schedule.
    Defer(Class),
    /// Never again.
    Fail {
        /// Why.
        class: Class,
        /// Whether the address goes on the suppression list: only where it certainly does not exist.
        suppress: bool,
    },
    /// The server may or may not have accepted the mail.
    Unknown,
}

/// The party that an answer concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// This recipient only.
    Recipient,
    /// Every recipient at this domain: pace it.
    Domain,
    /// This connection: drop it, another may serve.
    Connection,
    /// The relay as a whole: stop the batch, no recipient is to blame and no attempt counts.
    Relay,
}

/// The decision on one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplyDecision {
    /// What becomes of the send.
    pub outcome: ReplyOutcome,
    /// The party that the answer concerns.
    pub scope: Scope,
}

impl ReplyDecision {
    /// The decision on an accepted message.
    pub const SENT: Self = Self { outcome: ReplyOutcome::Sent, scope: Scope::Recipient };

    /// Tried again by the schedule, for this reason.
    #[must_use]
    pub const fn defer(class: Class, scope: Scope) -> Self {
        Self { outcome: ReplyOutcome::Defer(class), scope }
    }

    /// Never tried again. A hard failure also suppresses the address.
    #[must_use]
    pub const fn fail(class: Class) -> Self {
        Self { outcome: ReplyOutcome::Fail { class, suppress: matches!(class, Class::Hard) }, scope: Scope::Recipient }
    }
}

/// The decision on a failed transaction.
#[must_use]
pub fn classify(failure: &SmtpFailure) -> ReplyDecision {
    if failure.certainty == Certainty::Unknown {
        return ReplyDecision { outcome: ReplyOutcome::Unknown, scope: Scope::Connection };
    }
    match &failure.cause {
        Cause::Refused(reply) => classify_reply(failure.phase, reply),
        Cause::Unreachable(_) | Cause::Unreadable => ReplyDecision::defer(Class::Unreachable, Scope::Relay),
        Cause::Handshake(_) | Cause::TlsNotOffered | Cause::AuthNotOffered => {
            ReplyDecision::defer(Class::Configuration, Scope::Relay)
        }
        Cause::Timeout | Cause::Closed | Cause::Io(_) if failure.phase < Phase::Mail => {
            ReplyDecision::defer(Class::Unreachable, Scope::Relay)
        }
        Cause::Timeout | Cause::Closed | Cause::Io(_) | Cause::FenceTooOld | Cause::ChunkingRefused => {
            ReplyDecision::defer(Class::Temporary, Scope::Connection)
        }
        // RFC 6531 §3.5 and RFC 1870 §6: it will be so for every attempt through this relay.
        Cause::InternationalNotOffered => ReplyDecision::fail(Class::Policy),
        Cause::TooLarge => ReplyDecision::fail(Class::Content),
    }
}

/// The decision on a negative answer in a phase.
#[must_use]
pub fn classify_reply(phase: Phase, reply: &Reply) -> ReplyDecision {
    // A refusal before any transaction concerns the relay, not a recipient.
    match phase {
        Phase::Connect | Phase::Greeting if reply.is_temporary() => {
            ReplyDecision::defer(Class::Throttled, Scope::Relay)
        }
        Phase::Tls | Phase::Auth if reply.is_temporary() => ReplyDecision::defer(Class::Unreachable, Scope::Relay),
        Phase::Connect | Phase::Greeting | Phase::Tls | Phase::Auth => {
            ReplyDecision::defer(Class::Configuration, Scope::Relay)
        }
        Phase::Mail | Phase::Rcpt | Phase::Data | Phase::Body | Phase::Final => transaction(phase, reply),
    }
}

fn transaction(phase: Phase, reply: &Reply) -> ReplyDecision {
    // The relay wants credentials or does not know us: ours to repair (RFC 4954 §6).
    let wants_credentials = matches!(reply.code, 530 | 534 | 535 | 538)
        || reply.enhanced.is_some_and(|code| code.subject == 7 && matches!(code.detail, 8 | 9 | 11 | 12 | 13));
    if wants_credentials && phase <= Phase::Data {
        return ReplyDecision::defer(Class::Configuration, Scope::Relay);
    }
    let Meaning { class, rule } = meaning(reply.enhanced, &reply.text).unwrap_or_else(|| by_reply_code(reply.code));
    // The account's own rate or daily quota: no recipient is to blame, and no receiver is to be slowed.
    if rule == SES_THROTTLING && reply.is_temporary() {
        return ReplyDecision::defer(Class::Throttled, Scope::Relay);
    }
    // One mailbox gets too much: the receiver takes the mail of others.
    if rule == GMAIL_USER_RATE {
        return ReplyDecision::defer(Class::Throttled, Scope::Recipient);
    }
    if reply.is_temporary() { temporary(phase, reply, class) } else { permanent(phase, class) }
}

fn temporary(phase: Phase, reply: &Reply, class: Class) -> ReplyDecision {
    let class = match class {
        // "No such user" with a 4xx is a directory that is away, or a grey answer: not a fact yet.
        Class::Hard | Class::Inactive | Class::Content | Class::Policy => Class::Temporary,
        // 4.7.1 to RCPT is greylisting, whatever its text; to the other commands it is about us: come back slower.
        Class::Block if phase == Phase::Rcpt => Class::Temporary,
        Class::Block => Class::Throttled,
        other => other,
    };
    let scope = match (class, phase) {
        (Class::Throttled, _) => Scope::Domain,
        _ if reply.code == 421 => Scope::Connection,
        _ => Scope::Recipient,
    };
    ReplyDecision::defer(class, scope)
}

fn permanent(phase: Phase, class: Class) -> ReplyDecision {
    match class {
        // A full mailbox empties; some sites answer 552 for it (RFC 5321 §4.2.3 leaves the choice to them).
        Class::MailboxFull => ReplyDecision::defer(Class::MailboxFull, Scope::Recipient),
        Class::Throttled => ReplyDecision::defer(Class::Throttled, Scope::Domain),
        // The relay has lost our address or name, which an operator can mend; or it does not take this domain's mail: others go on.
        Class::Configuration if phase <= Phase::Data => ReplyDecision::defer(Class::Configuration, Scope::Recipient),
        // An answer to MAIL or DATA is not about the recipient, whatever its text.
        Class::Hard if matches!(phase, Phase::Mail | Phase::Data) => ReplyDecision::fail(Class::Policy),
        // A server behind the relay has said so.
        Class::Configuration | Class::Temporary => ReplyDecision::fail(Class::Policy),
        class => ReplyDecision::fail(class),
    }
}

#[cfg(test)]
mod tests;
