//! Streams and subjects. Subjects carry low-cardinality tokens only: no tenant, no id, no address.

use crate::{Environment, Lane, RequestKind};

/// `mail.v1.accepted.<product>.<environment>.<kind>`: that a request was accepted and stands in the ledger.
#[must_use]
pub fn accepted(product: &str, environment: Environment, kind: RequestKind) -> String {
    format!("mail.v1.accepted.{product}.{environment}.{kind}")
}

/// `mail.v1.accepted.<product>.<environment>.transactional-array`: the same of many transactional requests that were accepted
/// together. A queue of their own: no single message waits behind them.
#[must_use]
pub fn accepted_array(product: &str, environment: Environment) -> String {
    format!("mail.v1.accepted.{product}.{environment}.transactional-array")
}

/// `mail.v1.resolved.<lane>`
#[must_use]
pub fn resolved(lane: Lane) -> String {
    format!("mail.v1.resolved.{lane}")
}

/// `mail.v1.cleared.<lane>`
#[must_use]
pub fn cleared(lane: Lane) -> String {
    format!("mail.v1.cleared.{lane}")
}

/// `mail.v1.rendered.<lane>`
#[must_use]
pub fn rendered(lane: Lane) -> String {
    format!("mail.v1.rendered.{lane}")
}

/// `mail.v1.signal.<source>`, where source is `tracking` or a provider.
#[must_use]
pub fn signal(source: &str) -> String {
    format!("mail.v1.signal.{source}")
}

/// `mail.v1.fact.<stage>`
#[must_use]
pub fn fact(stage: &str) -> String {
    format!("mail.v1.fact.{stage}")
}

/// `mail.v1.event.<product>.<environment>.<type>`; the type's dot makes it two tokens, so `….email.*` is all of mail.
#[must_use]
pub fn event(product: &str, environment: Environment, event_type: crate::EventType) -> String {
    format!("mail.v1.event.{product}.{environment}.{event_type}")
}

/// A product's consumer of its events, unless it names another.
pub const EVENT_CONSUMER: &str = "events";
/// The longest name of a consumer of events.
pub const CONSUMER_NAME_MAX: usize = 32;

/// True if a product may name a consumer of its events so.
#[must_use]
pub fn is_consumer_name(name: &str) -> bool {
    (1..=CONSUMER_NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The durable consumer of a product's events with this name. Slugs hold no underscore, so no two products' consumers meet.
#[must_use]
pub fn event_consumer(product: &str, environment: &str, name: &str) -> String {
    format!("{product}_{environment}_{name}")
}

/// `mail.v1.due.webhooks`: core NATS, in no stream. That deliveries are due to subscriptions which another process holds.
pub const DELIVERIES_DUE: &str = "mail.v1.due.webhooks";

/// `mail.v1.control`: core NATS, in no stream. Commands of an operator to running processes.
pub const CONTROL: &str = "mail.v1.control";

/// Where processes answer an operator's command, by the word the operator made for it.
#[must_use]
pub fn control_answer(word: &str) -> String {
    format!("{CONTROL}.answer.{word}")
}

/// The inbox prefix of a process's client, by its role: no other role may listen under it.
#[must_use]
pub fn inbox(role: &str) -> String {
    format!("_INBOX_{role}")
}

/// `mail.v1.mark`: how far the ledger has come.
pub const MARK: &str = "mail.v1.mark";

/// `mail.v1.dead.<stage>`
#[must_use]
pub fn dead(stage: &str) -> String {
    format!("mail.v1.dead.{stage}")
}

/// `mail.v1.reply.<waiter>`: core NATS, in no stream. `waiter` is a process's own random token.
#[must_use]
pub fn reply(waiter: &str) -> String {
    format!("mail.v1.reply.{waiter}")
}

/// True if a subject is one that [`reply`] makes: stages notify no other, whatever a message asks for.
#[must_use]
pub fn is_reply(subject: &str) -> bool {
    const WAITER_MAX: usize = 64;
    subject.strip_prefix("mail.v1.reply.").is_some_and(|waiter| {
        (1..=WAITER_MAX).contains(&waiter.len()) && waiter.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// The streams, by name.
pub mod stream {
    /// What internal systems ask for, not yet checked.
    pub const REQUESTS: &str = "MAIL_REQUESTS";
    /// That accepted requests stand in the ledger.
    pub const ACCEPTED: &str = "MAIL_ACCEPTED";
    /// Batches with their recipients found.
    pub const RESOLVED: &str = "MAIL_RESOLVED";
    /// Batches past the compliance gate.
    pub const CLEARED: &str = "MAIL_CLEARED";
    /// Batches ready for the wire.
    pub const RENDERED: &str = "MAIL_RENDERED";
    /// Signals of recipients and providers.
    pub const SIGNALS: &str = "MAIL_SIGNALS";
    /// Notifications of committed facts.
    pub const FACTS: &str = "MAIL_FACTS";
    /// Facts for subscribers.
    pub const EVENTS: &str = "MAIL_EVENTS";
    /// Set aside, with reasons.
    pub const DEAD: &str = "MAIL_DEAD";
    /// How far the ledger has come.
    pub const MARKS: &str = "MAIL_MARKS";
}

/// Message headers we set.
pub mod header {
    /// The schema of the body, such as `mail.v1.cleared`.
    pub const SCHEMA: &str = "Mail-Schema";
    /// The trace it is part of, and the step above it (W3C Trace Context).
    pub const TRACEPARENT: &str = "traceparent";
    /// What tracing systems add to that, for themselves.
    pub const TRACESTATE: &str = "tracestate";
    /// On a dead letter: why it was set aside (a code).
    pub const DEAD_REASON: &str = "Mail-Dead-Reason";
    /// On a dead letter: the error in words.
    pub const DEAD_DETAIL: &str = "Mail-Dead-Detail";
    /// On a dead letter: the subject it came from, to which a replay publishes it.
    pub const DEAD_SUBJECT: &str = "Mail-Dead-Subject";
    /// On a dead letter: the stream it came from.
    pub const DEAD_STREAM: &str = "Mail-Dead-Stream";
    /// On a dead letter: how often it was delivered.
    pub const DEAD_ATTEMPTS: &str = "Mail-Dead-Attempts";
    /// On a dead letter: the fields at fault, `path code` separated by `; `.
    pub const DEAD_FIELDS: &str = "Mail-Dead-Fields";
    /// On an event: its attributes by the CloudEvents binding for NATS (binary mode). The event's id.
    pub const CE_ID: &str = "ce-id";
    /// On an event: its type.
    pub const CE_TYPE: &str = "ce-type";
    /// On an event: its source.
    pub const CE_SOURCE: &str = "ce-source";
    /// On an event: the version of the CloudEvents specification.
    pub const CE_SPECVERSION: &str = "ce-specversion";
    /// On an event: when it happened.
    pub const CE_TIME: &str = "ce-time";
    /// On an event: the send or other object it is about.
    pub const CE_SUBJECT: &str = "ce-subject";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumers_name_is_one_token_and_no_path_to_another_products() {
        for good in [EVENT_CONSUMER, "billing-2"] {
            assert!(is_consumer_name(good), "{good}");
        }
        for bad in ["", "a.b", "a_b", "A", "*", ">", &"a".repeat(33)] {
            assert!(!is_consumer_name(bad), "{bad}");
        }
    }

    #[test]
    fn only_a_plain_reply_subject_is_notified() {
        assert!(is_reply(&reply("0198c0de00007000")));
        for other in ["mail.v1.reply.", "mail.v1.reply.a.b", "mail.v1.reply.*", "mail.v1.cleared.priority", "reply.a"] {
            assert!(!is_reply(other), "{other}");
        }
    }
}
