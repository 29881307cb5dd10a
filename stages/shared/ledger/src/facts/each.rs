//! The facts a send can have, and what a signal means for them.

use chrono::{DateTime, Utc};
use schemas::{BounceClass, Signal, SignalKind};
use serde_json::{Value, json};

use crate::{erasure::PERSONAL_DETAILS, machine};

schemas::named_enum! {
    /// A fact about a send: a first time on its row, a counter on its batch, a total by the hour. Its number is its index in every
    /// array here and in `queries/facts/fold.sql`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Fact {
        Delivered = "delivered",
        Complained = "complained",
        Opened = "opened",
        Clicked = "clicked",
        Unsubscribed = "unsubscribed",
        OpenedHuman = "opened_human",
        ClickedHuman = "clicked_human",
        Bounced = "bounced",
        Replied = "replied",
        /// Delivered, confirmed by a provider. No signal reports it: it follows from `Delivered`.
        Confirmed = "confirmed",
    }
}

/// The feedback type of a message that was put back into the inbox.
const NOT_SPAM: &str = "not-spam";

/// The number of facts.
pub(super) const FACTS: usize = Fact::ALL.len();

/// One number or time for each fact.
pub(super) type Each<T> = [T; FACTS];

impl Fact {
    /// The fact a signal reports, by a person or a machine; `None` for a signal that is kept and changes nothing.
    pub(super) fn of(kind: &SignalKind) -> Option<Self> {
        match kind {
            SignalKind::Delivered => Some(Self::Delivered),
            SignalKind::Complained { .. } => is_complaint(kind).then_some(Self::Complained),
            SignalKind::Opened => Some(Self::Opened),
            SignalKind::Clicked { .. } => Some(Self::Clicked),
            SignalKind::Unsubscribed { .. } => Some(Self::Unsubscribed),
            SignalKind::Bounced { .. } => Some(Self::Bounced),
            // A program's answer is kept as an event, and is not a reply.
            SignalKind::Replied { automatic, .. } => (!automatic).then_some(Self::Replied),
        }
    }
}

/// The total that counts every signal, also repeated ones of the same fact: opens, clicks, and bounces by class.
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

/// True for a report of spam. A `not-spam` report says that the message was moved back into the inbox (RFC 6430).
pub(super) fn is_complaint(kind: &SignalKind) -> bool {
    matches!(kind, SignalKind::Complained { feedback_type } if feedback_type != NOT_SPAM)
}

/// The type of a signal's event.
pub(super) fn event_type(kind: &SignalKind) -> &'static str {
    match kind {
        SignalKind::Complained { .. } if !is_complaint(kind) => "not_spam",
        kind => kind.label(),
    }
}

/// Why the signal is a machine's; `None` for a person's, and for signals that are neither opens nor clicks.
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
    machine::classify(&machine::Touch {
        click,
        at: signal.occurred_at,
        accepted_at,
        ip: signal.ip.as_deref(),
        user_agent: signal.user_agent.as_deref(),
    })
}

/// The detail of a signal's event; of an erased contact's without what it says about the person.
pub(super) fn detail_of(signal: &Signal, machine: Option<&'static str>, is_erased: bool) -> Value {
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
    if is_erased && let Value::Object(detail) = &mut detail {
        detail.retain(|name, _| !PERSONAL_DETAILS.contains(&name.as_str()));
    }
    detail
}
