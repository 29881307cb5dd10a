//! Events for products and internal systems. One body for webhooks and for the bus.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{BounceClass, Environment, MessageKind, messages::Message};

/// The version of the body's shape. Fields are only ever added to it.
pub const EVENT_VERSION: &str = "1.0.0";

/// True if a route delivers what it accepts: an SMTP session with the receiving server or a relay, or the sandbox. An HTTP provider
/// accepts a mail and confirms its delivery later. The ledger has the same rule as `delivers_at_once`.
#[must_use]
pub fn delivers_at_once(provider: &str) -> bool {
    matches!(provider, "smtp" | "capture")
}

crate::states::closed_set! {
    /// What happened. All but the last two may be subscribed to by webhook; all but `webhook.test` are on the bus.
    EventType {
        /// Accepted by its route: the receiving server, the relay or the provider.
        EmailSent = "email.sent",
        /// Delivered: confirmed by the provider where it can, otherwise accepted by the receiving server.
        EmailDelivered = "email.delivered",
        /// Opened, by a person or a machine.
        EmailOpened = "email.opened",
        /// A link was followed, by a person or a machine.
        EmailClicked = "email.clicked",
        /// Refused by the receiving server, at once or later.
        EmailBounced = "email.bounced",
        /// Reported as spam.
        EmailComplained = "email.complained",
        /// The recipient unsubscribed.
        EmailUnsubscribed = "email.unsubscribed",
        /// The recipient answered.
        EmailReplied = "email.replied",
        /// Given up: refused, not renderable, or its time ran out.
        EmailFailed = "email.failed",
        /// Withheld on purpose.
        EmailSuppressed = "email.suppressed",
        /// A sequence finished for a contact: after its last step, or by an `end_sequence` step.
        SequenceCompleted = "sequence.completed",
        /// A contact left a sequence before its end.
        EnrollmentExited = "enrollment.exited",
        /// An enrollment ended because a step could not be taken.
        EnrollmentFailed = "enrollment.failed",
        /// A contact was created.
        ContactCreated = "contact.created",
        /// A contact confirmed the consent by the link in a mail.
        ContactConfirmed = "contact.confirmed",
        /// A campaign has no mail left to send.
        CampaignSent = "campaign.sent",
        /// The engine paused a campaign.
        CampaignPaused = "campaign.paused",
        /// A sending domain's status changed.
        DomainStatusChanged = "domain.status_changed",
        /// A sequence step asks the product for a task.
        TaskCreated = "task.created",
        /// A sequence step asks the product for an opportunity.
        OpportunityCreated = "opportunity.created",
        /// An outcome's credit was set, or changed by what came late.
        OutcomeCredited = "outcome.credited",
        /// An address is suppressed.
        SuppressionAdded = "suppression.added",
        /// A suppression was lifted.
        SuppressionLifted = "suppression.lifted",
        /// An import is over.
        ImportFinished = "import.finished",
        /// A tenant has used 80 % of a send quota: once in each period.
        QuotaNear = "quota.near",
        /// The engine disabled a webhook subscription.
        WebhookDisabled = "webhook.disabled",
        /// Asked for by hand, to try a subscription out; never on the bus.
        WebhookTest = "webhook.test",
        /// A request published to the bus, or one of an array, was not accepted.
        RequestRejected = "request.rejected",
    }
}

impl EventType {
    /// Whether a webhook subscription may name it. Tests come to every subscription that is tested; rejections only go where
    /// the request came from, the bus.
    #[must_use]
    pub fn is_subscribable(self) -> bool {
        !matches!(self, Self::WebhookTest | Self::RequestRejected)
    }
}

/// One event: the body of a webhook delivery and of a message on `mail.v1.event.<product>.<environment>.<type>`. The same
/// fact has the same id for everybody and in every repetition. `D` is [`EventData`], or a reference to it where an event is only
/// written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Event")]
pub struct Event<D = EventData> {
    /// Stable: to recognise a repetition by.
    pub id: Uuid,
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// [`EVENT_VERSION`]
    pub version: String,
    /// When the engine recorded it.
    #[serde(serialize_with = "in_milliseconds")]
    pub created_at: DateTime<Utc>,
    /// When it happened.
    #[serde(serialize_with = "in_milliseconds")]
    pub occurred_at: DateTime<Utc>,
    /// The tenant, as the product names it.
    pub product_tenant_id: String,
    /// The tenant.
    pub engine_tenant_id: Uuid,
    /// Production or sandbox.
    pub environment: Environment,
    /// The particulars.
    pub data: D,
}

impl Message for Event {
    const SCHEMA: &'static str = "mail.v1.event";
}

impl Event {
    /// The id of a fact's event: one fact may become two types (`email.sent`, `email.delivered`).
    #[must_use]
    pub fn id_of(fact: Uuid, event_type: EventType) -> Uuid {
        Uuid::new_v5(&fact, event_type.as_str().as_bytes())
    }

    /// The id of an event's delivery to a webhook subscription: however often it is made, it is the same delivery.
    #[must_use]
    pub fn delivery_of(subscription: Uuid, event: Uuid) -> Uuid {
        Uuid::new_v5(&subscription, event.as_bytes())
    }
}

/// As all times of the API are written: UTC, milliseconds.
pub(crate) fn in_milliseconds<S: serde::Serializer>(at: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&at.to_rfc3339_opts(SecondsFormat::Millis, true))
}

/// The particulars of an event: for facts about a mail the mail and one part named after what happened, otherwise `other`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventData {
    /// The mail.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub mail: Option<MailData>,
    /// Of `email.sent`, `email.delivered`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryData>,
    /// Of `email.opened`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<OpenData>,
    /// Of `email.clicked`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub click: Option<ClickData>,
    /// Of `email.bounced`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bounce: Option<BounceData>,
    /// Of `email.complained`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complaint: Option<ComplaintData>,
    /// Of `email.unsubscribed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsubscribe: Option<UnsubscribeData>,
    /// Of `email.replied`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<ReplyData>,
    /// Of `email.failed` and `email.suppressed`: the failure class or the skip reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of everything that is no fact about a mail: the type's own fields, beside the others.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The mail that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MailData {
    /// The send.
    pub send_id: Uuid,
    /// What sort of message.
    pub message_kind: MessageKind,
    /// The id that the provider gave it; for SMTP our Message-ID.
    pub provider_message_id: Option<String>,
    /// The recipient.
    pub contact_id: Uuid,
    /// The recipient's address; null once it was erased.
    pub email: Option<String>,
    /// The campaign, for campaign mail.
    pub campaign_id: Option<Uuid>,
    /// The sequence, for sequence mail.
    pub sequence_id: Option<Uuid>,
    /// The enrollment, for sequence mail.
    pub enrollment_id: Option<Uuid>,
    /// The step, for sequence mail.
    pub step_id: Option<Uuid>,
    /// The template, if the mail was made from one.
    pub template_id: Option<Uuid>,
    /// Its version.
    pub template_version: Option<i32>,
    /// The variant of an A/B test.
    pub variant: Option<String>,
    /// The subject, before it was merged.
    pub subject: Option<String>,
    /// The sender's address.
    pub sender_email: Option<String>,
    /// Of a cc or bcc copy: the send it is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<Uuid>,
    /// The tags of its request; left out without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The metadata of its request; left out without any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// What the server said when it took the mail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeliveryData {
    /// The reply code, for SMTP.
    pub smtp_code: Option<i32>,
    /// Its words, cut.
    pub response: Option<String>,
}

/// An open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OpenData {
    /// The client's address.
    pub ip: Option<String>,
    /// The client's name.
    pub user_agent: Option<String>,
    /// Not a person, as far as can be told.
    pub is_machine: bool,
    /// The first of this mail.
    pub first: bool,
}

/// A click.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClickData {
    /// Where the link leads.
    pub url: String,
    /// Which link of the mail, from 0.
    pub link_id: u16,
    /// The client's address.
    pub ip: Option<String>,
    /// The client's name.
    pub user_agent: Option<String>,
    /// Not a person, as far as can be told.
    pub is_machine: bool,
    /// The first of this mail.
    pub first: bool,
}

/// A bounce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BounceData {
    /// Hard, soft or block.
    pub class: BounceClass,
    /// The reply code.
    pub smtp_code: Option<i32>,
    /// The enhanced status code (RFC 3463).
    pub enhanced_code: Option<String>,
    /// The server's words, cut.
    pub diagnostic: Option<String>,
    /// Whether the address is suppressed because of it.
    pub suppressed: bool,
}

/// A complaint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComplaintData {
    /// As the feedback loop names it (RFC 5965).
    pub feedback_type: String,
}

/// An unsubscribe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnsubscribeData {
    /// `one_click` (RFC 8058), `page`, `preferences`, `mailto` or `provider`.
    pub method: String,
    /// What was left: `marketing`, or the topic's id.
    pub scope: String,
}

/// An answer by the recipient.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplyData {
    /// The answer's own Message-ID.
    pub message_id: Option<String>,
    /// Written by a program: an absence note, a ticket system.
    pub is_automatic: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_read_back_as_it_was_written() {
        let event = Event {
            id: Uuid::now_v7(),
            event_type: EventType::EmailClicked,
            version: EVENT_VERSION.to_owned(),
            created_at: DateTime::UNIX_EPOCH,
            occurred_at: DateTime::UNIX_EPOCH,
            product_tenant_id: "t-1".to_owned(),
            engine_tenant_id: Uuid::now_v7(),
            environment: Environment::Production,
            data: EventData {
                mail: Some(MailData {
                    send_id: Uuid::now_v7(),
                    message_kind: MessageKind::Campaign,
                    provider_message_id: None,
                    contact_id: Uuid::now_v7(),
                    email: Some("a@example.org".to_owned()),
                    campaign_id: Some(Uuid::now_v7()),
                    sequence_id: None,
                    enrollment_id: None,
                    step_id: None,
                    template_id: None,
                    template_version: None,
                    variant: None,
                    subject: Some("Hello".to_owned()),
                    sender_email: None,
                    copy_of: None,
                    tags: vec!["invoice".to_owned()],
                    metadata: BTreeMap::new(),
                }),
                click: Some(ClickData {
                    url: "https://example.com/".to_owned(),
                    link_id: 0,
                    ip: None,
                    user_agent: None,
                    is_machine: false,
                    first: true,
                }),
                ..EventData::default()
            },
        };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        assert!(text.contains(r#""occurred_at":"1970-01-01T00:00:00.000Z""#), "{text}");
        assert!(text.contains(r#""type":"email.clicked""#) && text.contains(r#""campaign_id""#), "{text}");
        assert!(text.contains(r#""tags":["invoice"]"#) && !text.contains("metadata"), "{text}");
    }

    #[test]
    fn a_fact_of_two_event_types_has_two_stable_ids() {
        let fact = Uuid::nil();
        assert_eq!(Event::id_of(fact, EventType::EmailSent), Event::id_of(fact, EventType::EmailSent));
        assert_ne!(Event::id_of(fact, EventType::EmailSent), Event::id_of(fact, EventType::EmailDelivered));
    }
}
