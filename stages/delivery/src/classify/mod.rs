//! What an SMTP answer means for the recipient, the batch and the relay.
//!
//! Order of evidence: the phase and our own causes; then well-known texts, but only where a provider is known to use its
//! codes loosely; then the enhanced status code (RFC 3463); then other well-known texts; then the basic code (RFC 5321
//! §4.2). When in doubt a person is not suppressed: a suppression is for good, a bounce is not.

mod rules;

use crate::smtp::{Cause, Certainty, EnhancedCode, Phase, Reply, SmtpFailure};

/// Why a send failed or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The address does not exist.
    Hard,
    /// The mailbox exists and takes nothing now: full.
    MailboxFull,
    /// The mailbox exists and is switched off, or takes no mail from outside.
    Inactive,
    /// Refused for reputation, spam or authentication of the sender: says nothing about the person.
    Block,
    /// Refused for what the message is: size, content, form.
    Content,
    /// Refused by a rule of the recipient's site: relaying, sender not wanted, closed list.
    Policy,
    /// Too many messages or connections from us; slow down.
    Throttled,
    /// A temporary fault at the other side: greylisting, local errors.
    Temporary,
    /// Their DNS or routing is broken, or their server cannot be reached by the relay.
    Routing,
    /// The relay cannot be reached or does not speak SMTP.
    Unreachable,
    /// Our settings are wrong: TLS, credentials, relay permission. A person must look.
    Configuration,
}

impl Class {
    /// The class's name: a failure's reason in the ledger, a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::MailboxFull => "mailbox_full",
            Self::Inactive => "inactive",
            Self::Block => "block",
            Self::Content => "content",
            Self::Policy => "policy",
            Self::Throttled => "throttled",
            Self::Temporary => "temporary",
            Self::Routing => "routing",
            Self::Unreachable => "unreachable",
            Self::Configuration => "configuration",
        }
    }
}

/// What becomes of the send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
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
    /// Nobody can say whether the server took it.
    Unknown,
}

/// Whom an answer concerns.
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

/// The verdict on one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// What becomes of the send.
    pub outcome: Outcome,
    /// Whom the answer concerns.
    pub scope: Scope,
}

impl Decision {
    /// The verdict on an accepted message.
    pub const SENT: Self = Self { outcome: Outcome::Sent, scope: Scope::Recipient };

    pub(crate) const fn defer(class: Class, scope: Scope) -> Self {
        Self { outcome: Outcome::Defer(class), scope }
    }

    pub(crate) const fn fail(class: Class) -> Self {
        Self { outcome: Outcome::Fail { class, suppress: matches!(class, Class::Hard) }, scope: Scope::Recipient }
    }
}

/// The verdict on a failed transaction.
#[must_use]
pub fn classify(failure: &SmtpFailure) -> Decision {
    if failure.certainty == Certainty::Unknown {
        return Decision { outcome: Outcome::Unknown, scope: Scope::Connection };
    }
    match &failure.cause {
        Cause::Refused(reply) => classify_reply(failure.phase, reply),
        Cause::Unreachable(_) | Cause::Unreadable => Decision::defer(Class::Unreachable, Scope::Relay),
        Cause::Handshake(_) | Cause::TlsNotOffered | Cause::AuthNotOffered => {
            Decision::defer(Class::Configuration, Scope::Relay)
        }
        Cause::Timeout | Cause::Closed | Cause::Io(_) if failure.phase < Phase::Mail => {
            Decision::defer(Class::Unreachable, Scope::Relay)
        }
        Cause::Timeout | Cause::Closed | Cause::Io(_) | Cause::FenceTooOld => {
            Decision::defer(Class::Temporary, Scope::Connection)
        }
        // RFC 6531 §3.5 and RFC 1870 §6: it will be so for every attempt through this relay.
        Cause::InternationalNotOffered => Decision::fail(Class::Policy),
        Cause::TooLarge => Decision::fail(Class::Content),
    }
}

/// The verdict on a negative answer in a phase.
#[must_use]
pub fn classify_reply(phase: Phase, reply: &Reply) -> Decision {
    match phase {
        Phase::Connect | Phase::Greeting => opening(reply),
        Phase::Tls | Phase::Auth if reply.is_temporary() => Decision::defer(Class::Unreachable, Scope::Relay),
        Phase::Tls | Phase::Auth => Decision::defer(Class::Configuration, Scope::Relay),
        Phase::Mail | Phase::Rcpt | Phase::Data | Phase::Body | Phase::Final => transaction(phase, reply),
    }
}

/// A refusal before any transaction concerns the relay, not a recipient.
fn opening(reply: &Reply) -> Decision {
    if reply.is_temporary() {
        return Decision::defer(Class::Throttled, Scope::Relay);
    }
    Decision::defer(Class::Configuration, Scope::Relay)
}

fn transaction(phase: Phase, reply: &Reply) -> Decision {
    // The relay wants credentials or does not know us: ours to repair (RFC 4954 §6).
    let wants_credentials =
        matches!(reply.code, 530 | 534 | 535 | 538) || reply.enhanced.is_some_and(is_authentication);
    if wants_credentials && phase <= Phase::Data {
        return Decision::defer(Class::Configuration, Scope::Relay);
    }
    let text = reply.text.to_lowercase();
    let class = rules::overriding(reply, &text)
        .or_else(|| reply.enhanced.and_then(by_enhanced_code))
        .or_else(|| rules::supporting(&text))
        .unwrap_or_else(|| by_basic_code(reply.code));
    if reply.is_temporary() { temporary(phase, reply, class) } else { permanent(phase, class) }
}

fn temporary(phase: Phase, reply: &Reply, class: Class) -> Decision {
    let class = match class {
        // "No such user" with a 4xx is a directory that is away, or a grey answer: not a fact yet.
        Class::Hard | Class::Inactive | Class::Content | Class::Policy => Class::Temporary,
        // 4.7.1 to RCPT is greylisting, whatever its words; to the other commands it is about us: come back slower.
        Class::Block if phase == Phase::Rcpt => Class::Temporary,
        Class::Block => Class::Throttled,
        other => other,
    };
    let scope = match (class, phase) {
        (Class::Throttled, _) => Scope::Domain,
        _ if reply.code == 421 => Scope::Connection,
        _ => Scope::Recipient,
    };
    Decision::defer(class, scope)
}

fn permanent(phase: Phase, class: Class) -> Decision {
    match class {
        // A full mailbox empties; some sites answer 552 for it (RFC 5321 §4.2.3 leaves the choice to them).
        Class::MailboxFull => Decision::defer(Class::MailboxFull, Scope::Recipient),
        Class::Throttled => Decision::defer(Class::Throttled, Scope::Domain),
        Class::Configuration | Class::Unreachable => Decision::defer(Class::Configuration, Scope::Relay),
        // An answer to MAIL or DATA is not about the recipient, whatever its words.
        Class::Hard if matches!(phase, Phase::Mail | Phase::Data) => Decision::fail(Class::Policy),
        Class::Temporary => Decision::fail(Class::Policy),
        class => Decision::fail(class),
    }
}

fn is_authentication(code: EnhancedCode) -> bool {
    code.subject == 7 && matches!(code.detail, 8 | 9 | 11 | 12 | 13)
}

/// RFC 3463 and the IANA registry of enhanced status codes; `None` where the code says too little.
fn by_enhanced_code(code: EnhancedCode) -> Option<Class> {
    let class = match (code.subject, code.detail) {
        // X.1: addressing. 1 bad mailbox, 2 bad system, 3 bad syntax, 6 moved without a new address, 10 null MX (RFC 7505).
        (1, 1 | 2 | 3 | 6 | 10) => Class::Hard,
        // X.1.7 and X.1.8: the sender's address is at fault.
        (1, 7 | 8) => Class::Policy,
        // X.2: mailbox. 1 disabled, 2 full, 3 message too long for it, 4 list expansion.
        (2, 1) => Class::Inactive,
        (2, 2) => Class::MailboxFull,
        (2, 3) => Class::Content,
        (2, 4) => Class::Policy,
        // X.3: system. 1 full, 2 not accepting, 3 not capable, 4 message too big.
        (3, 4) => Class::Content,
        (3, 0..=2) => Class::Temporary,
        (3, 3) => Class::Policy,
        // X.4: network and routing.
        (4, _) => Class::Routing,
        // X.5: protocol; X.5.3 is "too many recipients".
        (5, 3) => Class::Throttled,
        (5, _) => Class::Policy,
        // X.6: content or media; 7 is "needs SMTPUTF8".
        (6, _) => Class::Content,
        // X.7: security and policy. 1 is what everybody uses for everything, also Gmail's 7.26 for failed authentication
        // of the sender, 7.27–7.30, 7.32, 7.33; 28 is Gmail's rate limit. None is about the person.
        (7, 28) => Class::Throttled,
        (7, _) => Class::Block,
        _ => return None,
    };
    Some(class)
}

/// RFC 5321 §4.2.3, where nothing better is known.
fn by_basic_code(code: u16) -> Class {
    match code {
        421 => Class::Temporary,
        452 | 552 => Class::MailboxFull,
        // Without words or an enhanced code, 550 may be policy as well as an unknown user: nobody is suppressed for it.
        550 | 554 => Class::Policy,
        551 => Class::Policy,
        553 => Class::Policy,
        556 => Class::Hard,
        400..=499 => Class::Temporary,
        _ => Class::Policy,
    }
}

#[cfg(test)]
mod tests;
