//! What contacts did with mail, as rules ask for it.

use uuid::Uuid;

/// The events a rule may ask for, as callers write them.
pub const EVENTS: [&str; 8] = [
    "email.sent",
    "email.delivered",
    "email.opened",
    "email.clicked",
    "email.bounced",
    "email.complained",
    "email.unsubscribed",
    "email.replied",
];

/// How often, as callers write it.
pub const EVENT_OPS: [&str; 3] = ["at_least", "at_most", "exactly"];

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A mail was accepted by the relay or provider.
    Sent,
    /// Accepted, and it did not bounce.
    Delivered,
    /// Opened.
    Opened,
    /// A link was followed.
    Clicked,
    /// It bounced.
    Bounced,
    /// The recipient complained.
    Complained,
    /// The recipient left through this mail.
    Unsubscribed,
    /// The recipient answered; what programs write does not count.
    Replied,
}

impl EventKind {
    /// In the order of [`EVENTS`].
    const ALL: [Self; 8] = [
        Self::Sent,
        Self::Delivered,
        Self::Opened,
        Self::Clicked,
        Self::Bounced,
        Self::Complained,
        Self::Unsubscribed,
        Self::Replied,
    ];

    pub(crate) fn parse(text: &str) -> Option<Self> {
        EVENTS.iter().position(|name| *name == text).map(|at| Self::ALL[at])
    }

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
    /// So often or more.
    AtLeast(i64),
    /// So often or less, also never.
    AtMost(i64),
    /// Exactly so often.
    Exactly(i64),
}

/// Which events are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventSource {
    /// The event.
    pub kind: EventKind,
    /// In the last so many days only.
    pub within_days: Option<i32>,
    /// Of this campaign's mail only.
    pub campaign_id: Option<Uuid>,
    /// Only events classified as human.
    pub human_only: bool,
}

/// An event's leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventTest {
    /// What is counted.
    pub source: EventSource,
    /// How often it must be there.
    pub times: Times,
}
