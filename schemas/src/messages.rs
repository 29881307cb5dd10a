//! One type per bus message. A message is a notification or a batch: the ledger holds the truth, and everything in a
//! repeated message can be checked against it.

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{About, Classification, Lane, MessageKind, RequestKind, Work};

/// The body of a bus message, with the name of its schema.
pub trait Message: Serialize + serde::de::DeserializeOwned + Send + Sync + 'static {
    /// The schema's name, such as `mail.v1.cleared`: the `Mail-Schema` header.
    const SCHEMA: &'static str;

    /// Reads a body: JSON, unless the message has a form of its own.
    fn of_body(body: &Bytes) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }

    /// Writes the body, so that [`Message::of_body`] reads it.
    fn to_body(&self) -> Result<Bytes, serde_json::Error> {
        serde_json::to_vec(self).map(Bytes::from)
    }

    /// The work that it is about, for traces. `None`: a notification without ids.
    fn about(&self) -> Option<About> {
        None
    }

    /// Further requests that it is about.
    fn also_about(&self) -> &[Uuid] {
        &[]
    }
}

/// `mail.v1.accepted.…`: a request in `requests` waits to be handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestAnnounced {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The row in `requests`.
    pub request_id: Uuid,
    /// The kind of request.
    pub kind: RequestKind,
    /// Further ones of the same tenant and kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Uuid>,
    /// The number of requests, if it is more than the named ones: a transactional request stands for its whole batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// True if it came in an array of many, or is due with many others, however few of them it stands for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_bulk: bool,
}

impl RequestAnnounced {
    /// The announcement of one request.
    #[must_use]
    pub fn of(tenant_id: Uuid, request_id: Uuid, kind: RequestKind) -> Self {
        Self { tenant_id, request_id, kind, more: Vec::new(), count: None, is_bulk: false }
    }

    /// Every request it names.
    pub fn requests(&self) -> impl Iterator<Item = Uuid> + '_ {
        std::iter::once(self.request_id).chain(self.more.iter().copied())
    }

    /// The number of requests.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX)).max(1 + self.more.len())
    }
}

impl Message for RequestAnnounced {
    const SCHEMA: &'static str = "mail.v1.accepted";

    fn about(&self) -> Option<About> {
        // The id of a transactional request is that of its send, so its batch identifies the work.
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

/// `mail.v1.resolved.<lane>`: a batch in `batches`, with its sends in `sends`, waits for the compliance gate.
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
    /// A subject that is notified when sends of this work are decided, at most once. The subscriber reads the outcome from the
    /// ledger.
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
    /// How often the batch has been announced, from 1.
    pub announcement: i32,
    /// The kind of message.
    pub kind: MessageKind,
    /// Decides footer and unsubscribe headers.
    pub classification: Classification,
    /// The campaign, for campaign mail.
    pub campaign_id: Option<Uuid>,
    /// The content to render: a row in `contents`.
    pub content_id: Uuid,
    /// The sender: a row in `senders`.
    pub sender_id: Uuid,
    /// The recipients.
    pub recipients: Vec<ClearedRecipient>,
    /// A subject that is notified when sends of this work are decided, at most once. The subscriber reads the outcome from the
    /// ledger.
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

/// The kind of a signal.
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
    /// The recipient unsubscribed from all marketing mail.
    Unsubscribed {
        /// `one_click` (RFC 8058), `page`, `preferences`, or `provider`.
        method: String,
    },
    /// A server or provider reports that the message is in the mailbox.
    Delivered,
    /// The recipient reported the message as spam.
    Complained {
        /// As the feedback loop names it (RFC 5965): `abuse`, `fraud`, `not-spam`, `virus`, `other`.
        feedback_type: String,
    },
    /// A server or provider accepted the message and returned or refused it later.
    Bounced {
        /// The class of the bounce.
        class: crate::BounceClass,
        /// The reply code, if one is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        smtp_code: Option<i16>,
        /// The enhanced status code (RFC 3463).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        enhanced_code: Option<String>,
        /// The server's text, cut to 500 characters.
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
    /// The name of the kind, also a metric label.
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

/// `mail.v1.signal.<source>`: a recipient's action or a provider's report about a send.
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

/// `mail.v1.fact.<stage>`: a notification that facts were committed to `outbox`. The webhooks stage then reads all that are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FactsAnnounced {}

impl Message for FactsAnnounced {
    const SCHEMA: &'static str = "mail.v1.fact";
}

/// `mail.v1.signal.inbound`: a notification that provider events were stored in `inbound_events`. The engagement stage then reads all that
/// are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InboundAnnounced {}

impl Message for InboundAnnounced {
    const SCHEMA: &'static str = "mail.v1.inbound";
}

/// What a request says of a contact beside its address. Filled into the contact where it has none yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContactDetails {
    /// The first name.
    pub first_name: Option<String>,
    /// The last name.
    pub last_name: Option<String>,
    /// The title.
    pub title: Option<String>,
    /// The phone number.
    pub phone: Option<String>,
}

impl ContactDetails {
    /// Each with its name.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("first_name", self.first_name.as_deref()),
            ("last_name", self.last_name.as_deref()),
            ("title", self.title.as_deref()),
            ("phone", self.phone.as_deref()),
        ]
    }
}

/// The payload of a `transactional` request, as stored in `requests.payload`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionalPayload {
    /// The send that will be: its ordinal bits are zero, so it is also its batch's id.
    pub send_id: Uuid,
    /// The recipient.
    pub address: crate::Address,
    /// The recipient's other fields.
    #[serde(flatten)]
    pub contact: ContactDetails,
    /// The template the caller named.
    pub template_id: Uuid,
    /// The content pinned when the request was accepted.
    pub content_id: Uuid,
    /// The sender.
    pub sender_id: Uuid,
    /// `data.*` for the template.
    #[serde(default)]
    pub data: serde_json::Map<String, serde_json::Value>,
}

/// What a caller set for one mail beside its content, as stored in `requests.options`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MailOptions {
    /// The display name in From, instead of the sender's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_name: Option<String>,
    /// Where replies go, instead of the sender's Reply-To.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<crate::Address>,
    /// Header fields by name. The ingress takes allowed names only.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Come back in events and reports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Come back in events and reports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// True if the mail has no open pixel.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_open_tracking: bool,
    /// True if links stay as they are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_click_tracking: bool,
    /// True if the mail asks its recipient to confirm the consent: rendering adds the link. No caller sets it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub asks_to_confirm: bool,
    /// True if files or a calendar invite are stored for the mail.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_attachments: bool,
    /// True if the mail came in an array of many, so that it takes the bulk lane. No caller sets it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_bulk: bool,
    /// When the mail is due, if later than its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<DateTime<Utc>>,
    /// The recipients of copies. Each copy is a send of its own: the first has the ordinal 1, after the recipient's 0.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<MailCopy>,
}

/// What stands in the place of the address of a copy whose recipient was erased. Other copies are known by their places.
pub const ERASED_COPY: &str = "erased@example.com";

/// The recipient of a copy of a mail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailCopy {
    /// The address.
    pub address: crate::Address,
    /// The display name in Cc.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether other recipients see it.
    pub role: RecipientRole,
}

crate::states::closed_set! {
    /// The role of a mail's recipient.
    RecipientRole {
        /// The mail is for this recipient.
        To = "to",
        /// A copy that the others see.
        Cc = "cc",
        /// A copy that nobody else sees.
        Bcc = "bcc",
    }
}

impl MailOptions {
    /// True if the header of the mail differs from that of others with its content and sender.
    #[must_use]
    pub fn has_own_headers(&self) -> bool {
        self.from_name.is_some() || self.reply_to.is_some() || !self.headers.is_empty() || !self.copies.is_empty()
    }

    /// A fresh id for the batch of the mail, of the time when it is due.
    #[must_use]
    pub fn batch_id(options: Option<&Self>) -> Uuid {
        options.and_then(|options| options.scheduled_at).map_or_else(crate::new_batch_id, crate::ids::batch_id_due)
    }

    /// The copy that the send with this ordinal is.
    #[must_use]
    pub fn copy(&self, ordinal: u16) -> Option<&MailCopy> {
        self.copies.get(usize::from(ordinal).checked_sub(1)?)
    }

    /// The recipient and those of the copies.
    #[must_use]
    pub fn recipient_count(&self) -> u16 {
        u16::try_from(1 + self.copies.len()).unwrap_or(u16::MAX)
    }
}

/// The payload of a `message` request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessagePayload {
    /// The row in `messages`, and the id of the batch that will hold its sends: one per recipient, by ordinal.
    pub message_id: Uuid,
}

/// `mail.v1.reply.<waiter>`: a notification that sends of this batch were decided, at most once. The ledger has the outcome.
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
