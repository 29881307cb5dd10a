//! One type per bus message. Messages are doorbells and batches: the ledger holds the truth, and everything a repeated
//! message says can be checked against it.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    Classification, Lane, MessageKind, RequestKind,
    about::{About, Work},
};

/// A body that says which schema it follows.
pub trait Message: Serialize + serde::de::DeserializeOwned + Send + Sync + 'static {
    /// The schema's name, such as `mail.v1.cleared`: the `Mail-Schema` header.
    const SCHEMA: &'static str;

    /// What it is about, for whoever follows it. `None`: a bell that says only "look now".
    fn about(&self) -> Option<About> {
        None
    }

    /// Further works, where it is about several at once.
    fn also_about(&self) -> &[Uuid] {
        &[]
    }
}

/// `mail.v1.accepted.…`: a request stands in `requests` and waits to be handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestAnnounced {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The row in `requests`.
    pub request_id: Uuid,
    /// What is asked for.
    pub kind: RequestKind,
    /// Further ones of the same tenant and kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Uuid>,
    /// How many requests that is, where it is more than are named: a transactional request stands for all that its batch will hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Where somebody waits for the outcome: a subject that is told, once and without guarantee, when sends of this
    /// work are decided. Whoever waits looks the outcome up in the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

impl RequestAnnounced {
    /// Of one request that nobody waits for.
    #[must_use]
    pub fn of(tenant_id: Uuid, request_id: Uuid, kind: RequestKind) -> Self {
        Self { tenant_id, request_id, kind, more: Vec::new(), count: None, notify: None }
    }

    /// The same, telling who waits.
    #[must_use]
    pub fn telling(self, notify: impl Into<String>) -> Self {
        Self { notify: Some(notify.into()), ..self }
    }

    /// Every request it names.
    pub fn requests(&self) -> impl Iterator<Item = Uuid> + '_ {
        std::iter::once(self.request_id).chain(self.more.iter().copied())
    }

    /// How many requests that is.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX)).max(1 + self.more.len())
    }
}

impl Message for RequestAnnounced {
    const SCHEMA: &'static str = "mail.v1.accepted";

    fn about(&self) -> Option<About> {
        // A transactional request is its send's; its batch's other requests have its name in common with it.
        let work = match self.kind {
            RequestKind::Transactional => crate::SendId(self.request_id).batch(),
            _ => self.request_id,
        };
        Some(About::new(self.tenant_id, Work::Request(work)))
    }

    fn also_about(&self) -> &[Uuid] {
        &self.more
    }
}

/// `mail.v1.resolved.<lane>`: a batch stands in `batches`, its sends in `sends`, and waits for the compliance gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Resolved {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The batch.
    pub batch_id: Uuid,
    /// The lane it travels in.
    pub lane: Lane,
    /// How often the batch has been announced, from 1: part of every message id derived from this one.
    pub announcement: i32,
    /// Where somebody waits for the outcome: a subject that is told, once and without guarantee, when sends of this
    /// work are decided. Whoever waits looks the outcome up in the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

impl Message for Resolved {
    const SCHEMA: &'static str = "mail.v1.resolved";

    fn about(&self) -> Option<About> {
        Some(About::new(self.tenant_id, Work::Batch(self.batch_id)))
    }
}

impl Resolved {
    /// `Nats-Msg-Id`
    #[must_use]
    pub fn message_id(&self) -> String {
        format!("resolved-{}-{}", self.batch_id.simple(), self.announcement)
    }
}

/// One recipient past the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClearedRecipient {
    /// Position in the batch; the send id is [`crate::SendId::of`] batch and ordinal.
    pub ordinal: u16,
    /// The contact.
    pub contact_id: Uuid,
}

/// `mail.v1.cleared.<lane>`: the recipients of a batch that may be mailed. The others have their reason in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cleared {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The batch.
    pub batch_id: Uuid,
    /// The lane it travels in.
    pub lane: Lane,
    /// As in [`Resolved`].
    pub announcement: i32,
    /// What sort of message.
    pub kind: MessageKind,
    /// Decides footer and unsubscribe headers.
    pub classification: Classification,
    /// The campaign, for campaign mail.
    pub campaign_id: Option<Uuid>,
    /// The content to render: a row in `contents`.
    pub content_id: Uuid,
    /// Who sends: a row in `senders`.
    pub sender_id: Uuid,
    /// The recipients.
    pub recipients: Vec<ClearedRecipient>,
    /// Where somebody waits for the outcome: a subject that is told, once and without guarantee, when sends of this
    /// work are decided. Whoever waits looks the outcome up in the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

impl Message for Cleared {
    const SCHEMA: &'static str = "mail.v1.cleared";

    fn about(&self) -> Option<About> {
        Some(About { campaign_id: self.campaign_id, ..About::new(self.tenant_id, Work::Batch(self.batch_id)) })
    }
}

impl Cleared {
    /// `Nats-Msg-Id`
    #[must_use]
    pub fn message_id(&self) -> String {
        format!("cleared-{}-{}", self.batch_id.simple(), self.announcement)
    }
}

impl Message for crate::Rendered {
    const SCHEMA: &'static str = "mail.v1.rendered";

    fn about(&self) -> Option<About> {
        Some(About { campaign_id: self.campaign_id, ..About::new(self.tenant_id, Work::Batch(self.batch_id)) })
    }
}

/// What a signal says happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SignalKind {
    /// The pixel was fetched.
    Opened,
    /// A link was followed.
    Clicked {
        /// Where it led.
        url: String,
        /// Which link of the message, from 0.
        link: u16,
    },
    /// The recipient left all marketing mail.
    Unsubscribed {
        /// `one_click` (RFC 8058), `page`, `preferences`, or `provider`.
        method: String,
    },
    /// A server or provider says that the message is in the mailbox.
    Delivered,
    /// The recipient reported the message as spam.
    Complained {
        /// As the feedback loop names it (RFC 5965): `abuse`, `fraud`, `not-spam`, `virus`, `other`.
        feedback_type: String,
    },
    /// A server or provider took the message and gave it back, or refused it later.
    Bounced {
        /// What it says about the address.
        class: crate::BounceClass,
        /// The reply code, if one is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        smtp_code: Option<i16>,
        /// The enhanced status code (RFC 3463).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        enhanced_code: Option<String>,
        /// The server's words, cut to 500 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        diagnostic: Option<String>,
        /// Which rule classified it: a name of the rule table.
        rule: String,
    },
    /// The recipient answered.
    Replied {
        /// The answer's own Message-ID.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message_id: Option<String>,
        /// Written by a program (RFC 3834): an absence note, a ticket system. Stops no sequence.
        automatic: bool,
    },
}

impl SignalKind {
    /// The word for it, also a metric label.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Clicked { .. } => "clicked",
            Self::Unsubscribed { .. } => "unsubscribed",
            Self::Delivered => "delivered",
            Self::Complained { .. } => "complained",
            Self::Bounced { .. } => "bounced",
            Self::Replied { .. } => "replied",
        }
    }
}

/// `mail.v1.signal.<source>`: something a recipient or provider told us about a send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Signal {
    /// Made at the edge; a repeat carries the same id and is counted once. Also the `Nats-Msg-Id`.
    pub signal_id: Uuid,
    /// The tenant, from the token.
    pub tenant_id: Uuid,
    /// The send, from the token.
    pub send_id: Uuid,
    /// When it happened.
    pub occurred_at: DateTime<Utc>,
    /// What happened.
    #[serde(flatten)]
    pub kind: SignalKind,
    /// The client's address as the edge saw it.
    pub ip: Option<String>,
    /// The client's User-Agent, cut to 512 characters.
    pub user_agent: Option<String>,
}

impl Message for Signal {
    const SCHEMA: &'static str = "mail.v1.signal";

    fn about(&self) -> Option<About> {
        Some(About::new(self.tenant_id, Work::Signal(self.signal_id)))
    }
}

/// `mail.v1.fact.<stage>`: facts were committed and stand in `outbox`, to be told. Says only "look now": who reads it takes
/// what there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FactsAnnounced {}

impl Message for FactsAnnounced {
    const SCHEMA: &'static str = "mail.v1.fact";
}

/// `mail.v1.signal.inbound`: what providers told was stored in `inbound_events`, to be understood. Says only "look now": who
/// reads it takes what there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InboundAnnounced {}

impl Message for InboundAnnounced {
    const SCHEMA: &'static str = "mail.v1.inbound";
}

/// The payload of a `transactional` request, as stored in `requests.payload`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionalPayload {
    /// The send that will be: its ordinal bits are zero, so it is also its batch's id.
    pub send_id: Uuid,
    /// The recipient.
    pub address: crate::Address,
    /// Filled into the contact where it has nothing yet.
    #[serde(default)]
    pub first_name: Option<String>,
    /// As `first_name`.
    #[serde(default)]
    pub last_name: Option<String>,
    /// As `first_name`.
    #[serde(default)]
    pub title: Option<String>,
    /// As `first_name`.
    #[serde(default)]
    pub phone: Option<String>,
    /// The template the caller named.
    pub template_id: Uuid,
    /// The content pinned when the request was accepted.
    pub content_id: Uuid,
    /// Who sends.
    pub sender_id: Uuid,
    /// `data.*` for the template.
    #[serde(default)]
    pub data: serde_json::Map<String, serde_json::Value>,
}

/// The payload of a `message` request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessagePayload {
    /// The row in `messages`, and the id of the batch that will hold its sends: one per recipient, by ordinal.
    pub message_id: Uuid,
}

/// `mail.v1.reply.<waiter>`: sends of this batch were decided; the ledger says how. A doorbell without any guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Decided {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The batch; for a one-off message also its message id.
    pub batch_id: Uuid,
}

impl Message for Decided {
    const SCHEMA: &'static str = "mail.v1.reply";
}

/// The payload of a `campaign-launch` request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CampaignLaunchPayload {
    /// The campaign to materialise.
    pub campaign_id: Uuid,
    /// The digest the caller launched with: an audience that has changed since is not mailed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}
