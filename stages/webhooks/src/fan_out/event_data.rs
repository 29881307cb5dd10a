//! Builds an event's data from a row. Pure: the same row gives the same data at any time, so a replayed body equals the first one.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, Utc};
use schemas::{
    BounceClass, EventData, EventType, MessageKind,
    answers::Class,
    events::{BounceData, ClickData, ComplaintData, DeliveryData, MailData, OpenData, ReplyData, UnsubscribeData},
};
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use uuid::Uuid;

/// A fact about a send, without the mail's data.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendFact<'a> {
    pub fact_type: &'a str,
    /// The provider of the mail's last attempt.
    pub provider: Option<&'a str>,
    /// True for the first open or click of the mail.
    pub is_first: bool,
    pub detail: &'a Value,
}

/// True if an open or click is the first of its mail, as far as the ledger knows when the event is emitted.
pub(super) fn is_first(
    fact_type: &str,
    occurred_at: DateTime<Utc>,
    opened_at: Option<DateTime<Utc>>,
    clicked_at: Option<DateTime<Utc>>,
) -> bool {
    let first = match fact_type {
        "opened" => opened_at,
        "clicked" => clicked_at,
        _ => None,
    };
    first.is_none_or(|first| occurred_at <= first)
}

/// An event's data as it stands in every body, written once.
pub(super) fn to_json(data: &EventData) -> Result<Arc<RawValue>, serde_json::Error> {
    to_raw_value(data).map(Arc::from)
}

/// The type and the data of an event.
pub(super) type EventJson = (EventType, Arc<RawValue>);

/// The events of a fact about a mail. `None`: this version does not know the fact's type.
pub(super) fn events_of(fact: &SendFact<'_>, mail: MailData) -> Result<Option<Vec<EventJson>>, serde_json::Error> {
    let Some(types) = event_types(fact) else { return Ok(None) };
    let mut data = EventData { mail: Some(mail), ..EventData::default() };
    let mut events: Vec<EventJson> = Vec::with_capacity(2);
    for event_type in types {
        let json = match events.last() {
            // What is said of a mail that was sent and delivered at once is the same.
            Some((EventType::EmailSent, sent)) => Arc::clone(sent),
            _ => {
                data = event_data(event_type, fact, data.mail);
                to_json(&data)?
            }
        };
        events.push((event_type, json));
    }
    Ok(Some(events))
}

/// The event types of a fact; none for internal facts. `None`: of a type that this version does not know.
pub(super) fn event_types(fact: &SendFact<'_>) -> Option<Vec<EventType>> {
    // The mail's route delivers what it accepts, and confirms nothing later. Without a route, as `counted_delivered_at` in the ledger.
    let delivers_at_once = fact.provider.is_some_and(schemas::events::delivers_at_once);
    Some(match fact.fact_type {
        "sent" if delivers_at_once => vec![EventType::EmailSent, EventType::EmailDelivered],
        "sent" => vec![EventType::EmailSent],
        "delivered" if delivers_at_once => Vec::new(),
        "delivered" => vec![EventType::EmailDelivered],
        "failed" | "expired" if bounce_class(fact.detail).is_some() => {
            vec![EventType::EmailFailed, EventType::EmailBounced]
        }
        "failed" | "expired" => vec![EventType::EmailFailed],
        "bounced" => vec![EventType::EmailBounced],
        "opened" => vec![EventType::EmailOpened],
        "clicked" => vec![EventType::EmailClicked],
        "complained" => vec![EventType::EmailComplained],
        "unsubscribed" | "topic_left" => vec![EventType::EmailUnsubscribed],
        "replied" => vec![EventType::EmailReplied],
        "skipped" => vec![EventType::EmailSuppressed],
        "deferred" | "unknown" | "not_spam" | "resubscribed" => Vec::new(),
        _ => return None,
    })
}

/// The data of an event of this type for a fact about a mail.
fn event_data(event_type: EventType, fact: &SendFact<'_>, mail: Option<MailData>) -> EventData {
    let mut data = EventData { mail, ..EventData::default() };
    let detail = Detail(fact.detail);
    match event_type {
        EventType::EmailSent | EventType::EmailDelivered => {
            data.delivery =
                Some(DeliveryData { smtp_code: detail.code("smtp_code"), response: detail.text("response") });
        }
        EventType::EmailOpened => {
            data.open = Some(OpenData {
                ip: detail.text("ip"),
                user_agent: detail.text("user_agent"),
                is_machine: detail.flag("is_machine"),
                first: fact.is_first,
            });
        }
        EventType::EmailClicked => {
            data.click = Some(ClickData {
                url: detail.text("url").unwrap_or_default(),
                link_id: detail.code("link").and_then(|link| u16::try_from(link).ok()).unwrap_or_default(),
                ip: detail.text("ip"),
                user_agent: detail.text("user_agent"),
                is_machine: detail.flag("is_machine"),
                first: fact.is_first,
            });
        }
        EventType::EmailBounced => data.bounce = Some(bounce_of(&detail)),
        EventType::EmailComplained => {
            data.complaint = Some(ComplaintData {
                feedback_type: detail.text("feedback_type").unwrap_or_else(|| "abuse".to_owned()),
            });
        }
        EventType::EmailUnsubscribed => {
            data.unsubscribe = Some(UnsubscribeData {
                method: detail.text("method").unwrap_or_else(|| "page".to_owned()),
                scope: scope_of(&detail),
            });
        }
        EventType::EmailReplied => {
            data.reply =
                Some(ReplyData { message_id: detail.text("message_id"), is_automatic: detail.flag("automatic") });
        }
        EventType::EmailFailed | EventType::EmailSuppressed => data.reason = detail.text("reason"),
        // These types are not about a mail.
        EventType::SequenceCompleted
        | EventType::EnrollmentExited
        | EventType::EnrollmentFailed
        | EventType::ContactCreated
        | EventType::ContactConfirmed
        | EventType::CampaignSent
        | EventType::CampaignPaused
        | EventType::DomainStatusChanged
        | EventType::TaskCreated
        | EventType::OpportunityCreated
        | EventType::OutcomeCredited
        | EventType::SuppressionAdded
        | EventType::SuppressionLifted
        | EventType::ImportFinished
        | EventType::QuotaNear
        | EventType::WebhookDisabled
        | EventType::WebhookTest
        | EventType::RequestRejected => {}
    }
    data
}

/// What a recipient unsubscribed from: a topic, or all marketing.
fn scope_of(detail: &Detail<'_>) -> String {
    detail.text("topic").unwrap_or_else(|| "marketing".to_owned())
}

fn bounce_of(detail: &Detail<'_>) -> BounceData {
    let class = bounce_class(detail.0).unwrap_or(BounceClass::Block);
    BounceData {
        class,
        smtp_code: detail.code("smtp_code"),
        enhanced_code: detail.text("enhanced_code"),
        diagnostic: detail.text("diagnostic").or_else(|| detail.text("response")),
        // What the ledger does with each class: the address of a hard bounce is suppressed.
        suppressed: detail.0.get("suppressed").and_then(Value::as_bool).unwrap_or(class == BounceClass::Hard),
    }
}

/// The class of a bounce: as it was classified, or, for a refusal during the transaction, by the failure's class.
/// `None`: no server has refused this mail; it failed for another reason.
fn bounce_class(detail: &Value) -> Option<BounceClass> {
    let word = |key: &str| detail.get(key).and_then(Value::as_str);
    word("class").and_then(BounceClass::parse).or_else(|| Class::parse(word("reason")?)?.refused_as())
}

/// The particulars of a notice: what its writer wrote, the id of what it is about under that thing's name, and the contact.
pub(super) fn of_notice(
    event_type: EventType,
    subject: Option<Uuid>,
    contact: Option<Uuid>,
    address: Option<String>,
    data: Value,
) -> EventData {
    if let (EventType::EmailFailed, Some(send_id), Some(contact_id)) = (event_type, subject, contact) {
        return of_rejected_request(send_id, contact_id, address, &data);
    }
    let mut other = Map::new();
    if let (Some(name), Some(id)) = (subject_name(event_type), subject) {
        other.insert(name.to_owned(), Value::from(id.to_string()));
    }
    if let Some(contact) = contact {
        other.insert("contact_id".to_owned(), Value::from(contact.to_string()));
    }
    // A suppression may be of an address that is no contact's.
    if contact.is_some() || address.is_some() {
        other.insert("email".to_owned(), address.map_or(Value::Null, Value::from));
    }
    if let Value::Object(own) = data {
        other.extend(own);
    }
    EventData { other, ..EventData::default() }
}

/// The data of `email.failed` for a mail that never became a send: its request was accepted, and rejected later.
fn of_rejected_request(send_id: Uuid, contact_id: Uuid, email: Option<String>, data: &Value) -> EventData {
    let detail = Detail(data);
    let kind = detail.text("message_kind").and_then(|kind| MessageKind::parse(&kind));
    let mail = MailData {
        send_id,
        message_kind: kind.unwrap_or(MessageKind::Transactional),
        provider_message_id: None,
        contact_id,
        email,
        campaign_id: None,
        sequence_id: None,
        enrollment_id: None,
        step_id: None,
        template_id: detail.text("template_id").and_then(|id| id.parse().ok()),
        template_version: None,
        variant: None,
        subject: None,
        sender_email: None,
        copy_of: None,
        tags: Vec::new(),
        metadata: BTreeMap::new(),
    };
    EventData { mail: Some(mail), reason: detail.text("reason"), ..EventData::default() }
}

/// What the subject of a notice is called.
fn subject_name(event_type: EventType) -> Option<&'static str> {
    match event_type {
        EventType::CampaignSent | EventType::CampaignPaused => Some("campaign_id"),
        EventType::DomainStatusChanged => Some("domain_id"),
        EventType::SequenceCompleted
        | EventType::EnrollmentExited
        | EventType::EnrollmentFailed
        | EventType::TaskCreated
        | EventType::OpportunityCreated => Some("enrollment_id"),
        EventType::OutcomeCredited => Some("outcome_id"),
        EventType::SuppressionAdded | EventType::SuppressionLifted => Some("suppression_id"),
        EventType::ImportFinished => Some("import_id"),
        EventType::WebhookDisabled | EventType::WebhookTest => Some("subscription_id"),
        EventType::RequestRejected => Some("request_id"),
        _ => None,
    }
}

/// A fact's detail: what is missing or of another type is not known.
struct Detail<'a>(&'a Value);

impl Detail<'_> {
    fn text(&self, key: &str) -> Option<String> {
        self.0.get(key).and_then(Value::as_str).map(str::to_owned)
    }

    fn code(&self, key: &str) -> Option<i32> {
        self.0.get(key).and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok())
    }

    fn flag(&self, key: &str) -> bool {
        self.0.get(key).and_then(Value::as_bool).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn fact<'a>(fact_type: &'a str, provider: Option<&'a str>, detail: &'a Value) -> SendFact<'a> {
        SendFact { fact_type, provider, is_first: true, detail }
    }

    #[rstest]
    #[case::smtp_takes_it_to_the_mailbox("sent", Some("smtp"), json!({}), &["email.sent", "email.delivered"])]
    #[case::so_does_the_sandbox("sent", Some("capture"), json!({}), &["email.sent", "email.delivered"])]
    #[case::a_provider_tells_later("sent", Some("ses"), json!({}), &["email.sent"])]
    #[case::and_then_it_is_delivered("delivered", Some("ses"), json!({}), &["email.delivered"])]
    #[case::not_twice("delivered", Some("smtp"), json!({}), &[])]
    #[case::without_a_route_it_is_only_sent("sent", None, json!({}), &["email.sent"])]
    #[case::until_it_is_reported("delivered", None, json!({}), &["email.delivered"])]
    #[case::refused("failed", Some("smtp"), json!({"reason": "hard"}), &["email.failed", "email.bounced"])]
    #[case::blocked("failed", Some("smtp"), json!({"reason": "policy"}), &["email.failed", "email.bounced"])]
    #[case::classified("failed", Some("smtp"), json!({"reason": "x", "class": "soft"}), &["email.failed", "email.bounced"])]
    #[case::not_renderable("failed", None, json!({"reason": "render"}), &["email.failed"])]
    #[case::too_late("expired", Some("smtp"), json!({"reason": "greylisted"}), &["email.failed"])]
    #[case::bounced_later("bounced", Some("smtp"), json!({"class": "hard"}), &["email.bounced"])]
    #[case::opened("opened", None, json!({}), &["email.opened"])]
    #[case::clicked("clicked", None, json!({}), &["email.clicked"])]
    #[case::complained("complained", None, json!({}), &["email.complained"])]
    #[case::left("unsubscribed", None, json!({}), &["email.unsubscribed"])]
    #[case::left_a_topic("topic_left", None, json!({"topic": "t"}), &["email.unsubscribed"])]
    #[case::answered("replied", None, json!({}), &["email.replied"])]
    #[case::withheld("skipped", None, json!({"reason": "suppressed"}), &["email.suppressed"])]
    #[case::put_off("deferred", Some("smtp"), json!({}), &[])]
    #[case::in_doubt("unknown", Some("smtp"), json!({}), &[])]
    #[case::back_in_the_inbox("not_spam", None, json!({}), &[])]
    #[case::joined_again("resubscribed", None, json!({}), &[])]
    fn each_fact_has_its_event_types(
        #[case] fact_type: &str,
        #[case] provider: Option<&str>,
        #[case] detail: Value,
        #[case] expected: &[&str],
    ) {
        let types = event_types(&fact(fact_type, provider, &detail)).unwrap();
        assert_eq!(types.into_iter().map(EventType::as_str).collect::<Vec<_>>(), expected);
    }

    #[rstest]
    #[case::smtp(Some("smtp"))]
    #[case::sandbox(Some("capture"))]
    #[case::http(Some("ses"))]
    #[case::no_route(None)]
    fn mail_accepted_and_reported_is_delivered_once(#[case] provider: Option<&str>) {
        let types = ["sent", "delivered"].map(|fact_type| event_types(&fact(fact_type, provider, &json!({}))).unwrap());
        assert_eq!(types.concat().into_iter().filter(|of| *of == EventType::EmailDelivered).count(), 1);
    }

    fn mail() -> MailData {
        let contact = Uuid::from_u128(1);
        let none = json!({"send_id": contact, "message_kind": "campaign", "contact_id": contact});
        serde_json::from_value(none).unwrap()
    }

    #[rstest]
    #[case::sent_and_delivered_say_the_same("sent", json!({"smtp_code": 250, "response": "2.0.0 Ok"}), true)]
    #[case::failed_and_bounced_do_not("failed", json!({"reason": "hard", "smtp_code": 550}), false)]
    fn the_data_of_a_facts_events_is_written_once_if_it_is_the_same(
        #[case] fact_type: &str,
        #[case] detail: Value,
        #[case] is_same: bool,
    ) {
        let fact = fact(fact_type, Some("smtp"), &detail);
        let events = events_of(&fact, mail()).unwrap().unwrap();
        for (event_type, json) in &events {
            let own = serde_json::to_string(&event_data(*event_type, &fact, Some(mail()))).unwrap();
            assert_eq!(json.get(), own, "{event_type}");
        }
        let [(_, first), (_, second)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(Arc::ptr_eq(first, second), is_same);
    }

    #[test]
    fn a_bounce_event_has_its_class_and_suppression() {
        let detail = json!({"reason": "hard", "smtp_code": 550, "enhanced_code": "5.1.1", "response": "no such user"});
        let hard = bounce_of(&Detail(&detail));
        assert_eq!((hard.class, hard.smtp_code, hard.suppressed), (BounceClass::Hard, Some(550), true));
        assert_eq!(hard.diagnostic.as_deref(), Some("no such user"));
        let soft = bounce_of(&Detail(&json!({"class": "soft", "suppressed": true})));
        assert!(soft.class == BounceClass::Soft && soft.suppressed);
        assert!(!bounce_of(&Detail(&json!({"reason": "policy"}))).suppressed);
    }

    #[test]
    fn an_unsubscribe_event_names_its_scope() {
        assert_eq!(scope_of(&Detail(&json!({"method": "one_click"}))), "marketing");
        assert_eq!(scope_of(&Detail(&json!({"method": "preferences", "topic": "t-1"}))), "t-1");
    }

    #[test]
    fn a_rejected_request_is_a_failed_mail() {
        let (send, contact) = (Uuid::now_v7(), Uuid::now_v7());
        let data = json!({"message_kind": "one_off", "template_id": null, "reason": "ledger"});
        let data = of_notice(EventType::EmailFailed, Some(send), Some(contact), Some("a@example.org".to_owned()), data);
        let mail = data.mail.unwrap();
        assert_eq!((mail.send_id, mail.contact_id, mail.message_kind), (send, contact, MessageKind::OneOff));
        assert_eq!((mail.email.as_deref(), data.reason.as_deref()), (Some("a@example.org"), Some("ledger")));
        assert!(data.other.is_empty());
    }

    #[test]
    fn a_notices_own_data_overrides_its_subject() {
        let (campaign, contact) = (Uuid::now_v7(), Uuid::now_v7());
        let data = of_notice(EventType::CampaignSent, Some(campaign), None, None, json!({"name": "May"}));
        assert_eq!(Value::Object(data.other), json!({"campaign_id": campaign, "name": "May"}));
        let data = of_notice(
            EventType::SequenceCompleted,
            Some(campaign),
            Some(contact),
            Some("a@example.org".to_owned()),
            json!({"sequence_id": 1}),
        );
        let expected = json!({
            "enrollment_id": campaign, "contact_id": contact, "email": "a@example.org", "sequence_id": 1,
        });
        assert_eq!(Value::Object(data.other), expected);
    }

    #[test]
    fn the_first_open_is_the_one_in_the_ledger() {
        let (early, late) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(1));
        assert!(is_first("opened", early, Some(early), None));
        assert!(!is_first("opened", late, Some(early), None));
        assert!(is_first("clicked", late, Some(early), Some(late)));
    }
}
