//! What contacts did with mail and in products, as rules ask for it.

use serde_json::Value;
use uuid::Uuid;

/// The events a rule may ask for, as callers write them.
pub const EVENTS: &[&str] = EventKind::NAMES;

/// How often, as callers write it.
pub const EVENT_OPS: [&str; 3] = ["at_least", "at_most", "exactly"];

schemas::named_enum! {
    /// An event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum EventKind {
        /// A mail was accepted by the relay or provider.
        Sent = "email.sent",
        /// It counts as delivered, as in reports.
        Delivered = "email.delivered",
        Opened = "email.opened",
        /// A link was followed.
        Clicked = "email.clicked",
        Bounced = "email.bounced",
        Complained = "email.complained",
        /// The recipient left through this mail.
        Unsubscribed = "email.unsubscribed",
        /// The recipient answered; what programs write does not count.
        Replied = "email.replied",
    }
}

impl EventKind {
    /// The word in `contact_facts.fact`; `None` for what is read from `sends`, because nearly every send has it.
    pub(crate) fn fact(self) -> Option<&'static str> {
        match self {
            Self::Sent | Self::Delivered => None,
            Self::Opened => Some("opened"),
            Self::Clicked => Some("clicked"),
            Self::Bounced => Some("bounced"),
            Self::Complained => Some("complained"),
            Self::Unsubscribed => Some("unsubscribed"),
            Self::Replied => Some("replied"),
        }
    }

    /// Whether a machine may have done it.
    pub(crate) fn has_humans(self) -> bool {
        matches!(self, Self::Opened | Self::Clicked)
    }
}

/// How often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    AtLeast(i64),
    /// So often or less, also never.
    AtMost(i64),
    Exactly(i64),
}

/// Which events are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventSource {
    /// What happened with mail.
    Mail(MailEvents),
    /// What products reported.
    Product(ProductEvents),
}

impl EventSource {
    /// The campaign it names.
    pub(crate) fn campaign_id(&self) -> Option<Uuid> {
        match self {
            Self::Mail(mail) => mail.campaign_id,
            Self::Product(_) => None,
        }
    }
}

/// What a contact did with mail, or mail with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MailEvents {
    pub kind: EventKind,
    /// In the last so many days only.
    pub within_days: Option<i32>,
    /// Of this campaign's mail only.
    pub campaign_id: Option<Uuid>,
    /// Only events classified as human.
    pub human_only: bool,
}

/// What a contact did in a product, as the product reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProductEvents {
    pub name: String,
    /// In the last so many days only.
    pub within_days: Option<i32>,
    /// Properties that the event has with exactly these values.
    pub properties: Option<Value>,
}

/// An event's leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventTest {
    pub source: EventSource,
    pub times: Times,
}

/// Whether a text can be the name of a product's event: up to 100 of a-z, 0-9, _ and ., beginning with a letter.
#[must_use]
pub fn is_event_name(text: &str) -> bool {
    let in_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'.';
    text.len() <= 100 && text.starts_with(|first: char| first.is_ascii_lowercase()) && text.bytes().all(in_word)
}
