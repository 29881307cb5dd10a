//! What can be known of a send, and what a signal says of it.

use chrono::{DateTime, Utc};
use schemas::{BounceClass, Signal, SignalKind};
use serde_json::{Value, json};

use crate::machine;

/// A fact about a send: a first time on its row, a counter on its batch, a total of its hours. Its number is its place in every
/// array here and in `queries/facts/fold.sql`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fact {
    Delivered,
    Complained,
    Opened,
    Clicked,
    Unsubscribed,
    OpenedHuman,
    ClickedHuman,
    Bounced,
    Replied,
    /// Delivered, by a provider's word. Nobody tells it by itself: it follows from `Delivered`.
    Confirmed,
}

/// The feedback type of a message that was put back into the inbox.
const NOT_SPAM: &str = "not-spam";

/// How many facts there are.
pub(super) const FACTS: usize = 10;

/// One number or time for each fact.
pub(super) type Each<T> = [T; FACTS];

impl Fact {
    pub(super) const ALL: Each<Self> = [
        Self::Delivered,
        Self::Complained,
        Self::Opened,
        Self::Clicked,
        Self::Unsubscribed,
        Self::OpenedHuman,
        Self::ClickedHuman,
        Self::Bounced,
        Self::Replied,
        Self::Confirmed,
    ];

    /// The fact a signal tells, whoever caused it; `None` for one that is kept and changes nothing.
    pub(super) fn of(kind: &SignalKind) -> Option<Self> {
        match kind {
            SignalKind::Delivered => Some(Self::Delivered),
            SignalKind::Complained { .. } => is_complaint(kind).then_some(Self::Complained),
            SignalKind::Opened => Some(Self::Opened),
            SignalKind::Clicked { .. } => Some(Self::Clicked),
            SignalKind::Unsubscribed { .. } => Some(Self::Unsubscribed),
            SignalKind::Bounced { .. } => Some(Self::Bounced),
            // What a program wrote is kept, and is nobody's answer.
            SignalKind::Replied { automatic, .. } => (!automatic).then_some(Self::Replied),
        }
    }

    /// The word in totals.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Complained => "complained",
            Self::Opened => "opened",
            Self::Clicked => "clicked",
            Self::Unsubscribed => "unsubscribed",
            Self::OpenedHuman => "opened_human",
            Self::ClickedHuman => "clicked_human",
            Self::Bounced => "bounced",
            Self::Replied => "replied",
            Self::Confirmed => "confirmed",
        }
    }
}

/// The total in which each single signal counts, also another of the same fact: every open and click, and what came back by class.
pub(super) fn total(kind: &SignalKind) -> Option<&'static str> {
    match kind {
        SignalKind::Opened => Some("opened_total"),
        SignalKind::Clicked { .. } => Some("clicked_total"),
        SignalKind::Bounced { class, .. } => Some(match class {
            BounceClass::Hard => "bounced_hard",
            BounceClass::Soft => "bounced_soft",
            BounceClass::Block => "bounced_block",
        }),
        _ => None,
    }
}

/// Whether it is a report of spam. `not-spam` is a report, too: that the message was put back into the inbox (RFC 6430).
#[must_use]
pub fn is_complaint(kind: &SignalKind) -> bool {
    matches!(kind, SignalKind::Complained { feedback_type } if feedback_type != NOT_SPAM)
}

/// The type of the event that is kept of a signal.
pub(super) fn event_type(kind: &SignalKind) -> &'static str {
    match kind {
        SignalKind::Complained { .. } if !is_complaint(kind) => "not_spam",
        kind => kind.label(),
    }
}

/// Why the signal is a machine's; `None` for a person's, and for what neither opens nor clicks.
pub(super) fn machine_reason(signal: &Signal, accepted_at: Option<DateTime<Utc>>) -> Option<&'static str> {
    let click = match signal.kind {
        SignalKind::Opened => false,
        SignalKind::Clicked { .. } => true,
        SignalKind::Unsubscribed { .. }
        | SignalKind::Delivered
        | SignalKind::Complained { .. }
        | SignalKind::Bounced { .. }
        | SignalKind::Replied { .. } => return None,
    };
    machine::judge(&machine::Touch {
        click,
        at: signal.occurred_at,
        accepted_at,
        ip: signal.ip.as_deref(),
        user_agent: signal.user_agent.as_deref(),
    })
}

/// What is kept of a signal beside its type and time.
pub(super) fn detail_of(signal: &Signal, machine: Option<&'static str>) -> Value {
    let mut detail = match &signal.kind {
        SignalKind::Opened | SignalKind::Delivered => json!({}),
        SignalKind::Clicked { url, link } => json!({"url": url, "link": link}),
        SignalKind::Unsubscribed { method } => json!({"method": method}),
        SignalKind::Complained { feedback_type } => json!({"feedback_type": feedback_type}),
        SignalKind::Bounced { class, smtp_code, enhanced_code, diagnostic, rule } => json!({
            "class": class, "smtp_code": smtp_code, "enhanced_code": enhanced_code, "diagnostic": diagnostic, "rule": rule,
        }),
        SignalKind::Replied { message_id, automatic } => json!({"message_id": message_id, "automatic": automatic}),
    };
    for (name, value) in [("ip", &signal.ip), ("user_agent", &signal.user_agent)] {
        if let Some(value) = value {
            detail[name] = json!(value);
        }
    }
    if matches!(signal.kind, SignalKind::Opened | SignalKind::Clicked { .. }) {
        detail["is_machine"] = json!(machine.is_some());
        detail["rules"] = json!(machine::VERSION);
        if let Some(reason) = machine {
            detail["machine_reason"] = json!(reason);
        }
    }
    detail
}
