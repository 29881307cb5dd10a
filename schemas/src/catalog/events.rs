//! Events by type: the body all of them share, and what is particular to each.

mod data;

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use self::data::{
    CampaignPausedData, CampaignSentData, ContactConfirmedData, ContactCreatedData, DomainStatusChangedData,
    EnrollmentExitedData, EnrollmentFailedData, ImportFinishedData, OpportunityCreatedData, OutcomeCreditedData,
    QuotaNearData, SequenceCompletedData, SuppressionData, TaskCreatedData, WebhookDisabledData,
};
use super::{Described, Header, Side, reads, schema_of};
use crate::{
    EventType,
    events::{
        BounceData, ClickData, ComplaintData, DeliveryData, EVENT_VERSION, Event, MailData, OpenData, ReplyData,
        UnsubscribeData,
    },
    rejected::{Rejection, RequestRejected},
    subjects::{header, stream},
};

const ID: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";
const AT: &str = "2026-03-01T09:00:00.000Z";

const HEADERS: &[Header] = &[
    Header { name: "Nats-Msg-Id", about: "The event's id and its product's name.", required: true },
    Header { name: header::SCHEMA, about: "The name of the body's schema.", required: true },
    Header { name: header::CE_SPECVERSION, about: "`1.0`: the version of CloudEvents.", required: true },
    Header { name: header::CE_ID, about: "The event's id, the same in every repetition.", required: true },
    Header { name: header::CE_TYPE, about: "The event's type.", required: true },
    Header { name: header::CE_SOURCE, about: "`/postrider/<product>/<environment>`.", required: true },
    Header { name: header::CE_TIME, about: "When it happened.", required: true },
    Header { name: header::CE_SUBJECT, about: "The send, campaign or other thing it is about.", required: false },
];

/// Every type that is on the bus.
pub(super) fn all() -> Vec<Described> {
    EventType::ALL.iter().filter(|event| **event != EventType::WebhookTest).map(|event| described(*event)).collect()
}

fn described(event: EventType) -> Described {
    let (title, data, example) = particulars(event);
    let is_rejection = event == EventType::RequestRejected;
    let mut schema =
        if is_rejection { schema_of::<RequestRejected>(Side::Outgoing) } else { schema_of::<Event>(Side::Outgoing) };
    schema["title"] = json!(title);
    schema["description"] = json!(event.about());
    schema["properties"]["type"] = json!({"type": "string", "const": event.as_str(), "description": "What happened."});
    schema["properties"]["data"] = data.schema;
    if let Some(known) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
        known.extend(data.definitions);
        // What only the parts of other types need.
        for name in ["EventType", "EventData"] {
            known.remove(name);
        }
    }
    prune(&mut schema);
    Described {
        name: format!("mail.v1.event.{event}"),
        title: title.to_owned(),
        summary: event.about().to_owned(),
        side: Side::Outgoing,
        address: format!("mail.v1.event.{{product}}.{{environment}}.{event}"),
        stream: Some(stream::EVENTS),
        headers: HEADERS,
        schema: super::sorted(schema),
        examples: vec![("event".to_owned(), body(event, example))],
        read: if is_rejection { reads::<RequestRejected> } else { reads::<Event> },
    }
}

/// Takes out definitions that nothing refers to any more.
fn prune(schema: &mut Value) {
    loop {
        let text = schema.to_string();
        let Some(known) = schema.get_mut("$defs").and_then(Value::as_object_mut) else { return };
        let before = known.len();
        known.retain(|name, _| text.contains(&format!("\"#/$defs/{name}\"")));
        if known.len() == before {
            return;
        }
    }
}

fn body(event: EventType, data: Value) -> Value {
    let mut body = json!({
        "id": ID, "type": event, "version": EVENT_VERSION, "created_at": AT, "occurred_at": AT, "product_tenant_id": "tenant-1",
        "environment": "production", "data": data,
    });
    // A request that was refused may have named no tenant there is.
    if event != EventType::RequestRejected {
        body["engine_tenant_id"] = json!(ID);
    }
    body
}

/// The schema of `data`, and what it refers to.
struct Data {
    schema: Value,
    definitions: Map<String, Value>,
}

/// Of a type of its own.
fn own<T: JsonSchema>() -> Data {
    let mut schema = schema_of::<T>(Side::Outgoing);
    let definitions = schema.as_object_mut().and_then(|object| {
        for keyword in ["$schema", "title"] {
            object.remove(keyword);
        }
        object.remove("$defs")
    });
    let definitions = definitions.and_then(|definitions| definitions.as_object().cloned()).unwrap_or_default();
    Data { schema, definitions }
}

/// The title of a type of event, its data and an example of it.
type Particulars = (&'static str, Data, Value);

/// Of what is no fact about a mail.
fn other<T: JsonSchema>(title: &'static str, example: Value) -> Particulars {
    (title, own::<T>(), example)
}

/// Of a fact about a mail: the mail, and one part named after what happened.
fn mail<T: JsonSchema>(title: &'static str, part: &str, example: Value) -> Particulars {
    let (mut data, added) = (own::<MailData>(), own::<T>());
    data.schema["properties"][part] = added.schema;
    if let Some(required) = data.schema["required"].as_array_mut() {
        required.push(json!(part));
    }
    data.definitions.extend(added.definitions);
    (title, data, mailed(part, example))
}

/// Of a mail that was not sent: the mail and the reason.
fn unsent() -> Data {
    let mut data = own::<MailData>();
    data.schema["properties"]["reason"] =
        json!({"type": "string", "description": "The failure's class, or why it was withheld."});
    data
}

fn mailed(part: &str, own: Value) -> Value {
    let mut data = json!({
        "send_id": ID, "message_kind": "campaign", "provider_message_id": "<1@acme.example>", "contact_id": ID,
        "email": "ann@example.com", "campaign_id": ID, "sequence_id": null, "enrollment_id": null, "step_id": null,
        "template_id": null, "template_version": null, "variant": null, "subject": "News", "sender_email": "hello@acme.example",
    });
    data[part] = own;
    data
}

fn particulars(event: EventType) -> Particulars {
    let taken = json!({"smtp_code": 250, "response": "2.0.0 Ok"});
    match event {
        EventType::EmailSent => mail::<DeliveryData>("Mail sent", "delivery", taken),
        EventType::EmailDelivered => mail::<DeliveryData>("Mail delivered", "delivery", taken),
        EventType::EmailOpened => mail::<OpenData>(
            "Mail opened",
            "open",
            json!({"ip": "192.0.2.7", "user_agent": "Mozilla/5.0", "is_machine": false, "first": true}),
        ),
        EventType::EmailClicked => mail::<ClickData>(
            "Link followed",
            "click",
            json!({"url": "https://shop.example/offer", "link_id": 0, "ip": "192.0.2.7", "user_agent": "Mozilla/5.0",
                   "is_machine": false, "first": true}),
        ),
        EventType::EmailBounced => mail::<BounceData>(
            "Mail bounced",
            "bounce",
            json!({"class": "hard", "smtp_code": 550, "enhanced_code": "5.1.1", "diagnostic": "no such user", "suppressed": true}),
        ),
        EventType::EmailComplained => {
            mail::<ComplaintData>("Complaint", "complaint", json!({"feedback_type": "abuse"}))
        }
        EventType::EmailUnsubscribed => {
            let example = json!({"method": "one_click", "scope": "marketing"});
            mail::<UnsubscribeData>("Unsubscribed", "unsubscribe", example)
        }
        EventType::EmailReplied => {
            mail::<ReplyData>("Answered", "reply", json!({"message_id": "<1@example.com>", "is_automatic": false}))
        }
        EventType::EmailFailed => ("Mail failed", unsent(), mailed("reason", json!("hard"))),
        EventType::EmailSuppressed => ("Mail withheld", unsent(), mailed("reason", json!("unsubscribed"))),
        EventType::SequenceCompleted => other::<SequenceCompletedData>(
            "Sequence completed",
            json!({"enrollment_id": ID, "sequence_id": ID, "contact_id": ID, "email": "ann@example.com"}),
        ),
        EventType::EnrollmentExited => other::<EnrollmentExitedData>(
            "Enrollment exited",
            json!({"enrollment_id": ID, "sequence_id": ID, "exit_reason": "unsubscribed", "contact_id": ID,
                   "email": "ann@example.com"}),
        ),
        EventType::EnrollmentFailed => other::<EnrollmentFailedData>(
            "Enrollment failed",
            json!({"enrollment_id": ID, "sequence_id": ID, "step_order": 2, "error": "sender_required", "contact_id": ID,
                   "email": "ann@example.com"}),
        ),
        EventType::ContactCreated => other::<ContactCreatedData>(
            "Contact created",
            json!({"contact_id": ID, "email": "ann@example.com", "first_name": "Ann", "last_name": null, "source": "api"}),
        ),
        EventType::ContactConfirmed => other::<ContactConfirmedData>(
            "Contact confirmed",
            json!({"contact_id": ID, "email": "ann@example.com", "send_id": ID}),
        ),
        EventType::CampaignSent => other::<CampaignSentData>(
            "Campaign sent",
            json!({"campaign_id": ID, "name": "News", "counts": {"sent": 2, "skipped": 1}}),
        ),
        EventType::CampaignPaused => other::<CampaignPausedData>(
            "Campaign paused",
            json!({"campaign_id": ID, "reason": "tripwire_bounces", "decided": 100, "bounced": 9, "complained": 0}),
        ),
        EventType::DomainStatusChanged => other::<DomainStatusChangedData>(
            "Domain status changed",
            json!({"domain_id": ID, "from": "pending", "to": "verified"}),
        ),
        EventType::TaskCreated => other::<TaskCreatedData>(
            "Task wanted",
            json!({"enrollment_id": ID, "sequence_id": ID, "step_id": ID, "contact_id": ID, "email": "ann@example.com",
                   "title": "Call Ann", "due_on": "2026-03-08", "notes": null}),
        ),
        EventType::OpportunityCreated => other::<OpportunityCreatedData>(
            "Opportunity wanted",
            json!({"enrollment_id": ID, "sequence_id": ID, "step_id": ID, "contact_id": ID, "email": "ann@example.com",
                   "name": "Renewal", "stage": null, "value_cents": 120_000}),
        ),
        EventType::OutcomeCredited => other::<OutcomeCreditedData>(
            "Outcome credited",
            json!({"outcome_id": ID, "contact_id": ID, "email": "ann@example.com", "outcome_type": "bind", "revision": 1,
                   "reason": "recorded", "model": "last_touch", "rule": "human_click", "before": [],
                   "after": [{"send_id": ID, "campaign_id": ID, "share": 1.0, "premium_amount": 1200, "value_cents": null}]}),
        ),
        EventType::SuppressionAdded => other::<SuppressionData>(
            "Suppression added",
            json!({"suppression_id": ID, "reason": "hard_bounce", "scope": "all", "source": "delivery", "send_id": ID,
                   "contact_id": ID, "email": "ann@example.com"}),
        ),
        EventType::SuppressionLifted => other::<SuppressionData>(
            "Suppression lifted",
            json!({"suppression_id": ID, "reason": "manual", "scope": "all", "source": "api", "contact_id": ID,
                   "email": "ann@example.com"}),
        ),
        EventType::ImportFinished => other::<ImportFinishedData>(
            "Import finished",
            json!({"import_id": ID, "name": "Spring", "operation": "upsert", "status": "completed", "source_slug": "api_import",
                   "total_rows": 2, "valid": 2, "created": 1, "updated": 1, "unchanged": 0, "skipped": 0, "duplicates": 0,
                   "invalid": 0, "suppressed": 0}),
        ),
        EventType::QuotaNear => other::<QuotaNearData>(
            "Quota near",
            json!({"period": "month", "starts_on": "2026-03-01", "limit": 10_000, "used": 8_004}),
        ),
        EventType::WebhookDisabled => {
            other::<WebhookDisabledData>("Webhook disabled", json!({"subscription_id": ID, "reason": "gone"}))
        }
        EventType::RequestRejected => other::<Rejection>(
            "Request rejected",
            json!({"message_id": "order-17", "sequence": 7, "kind": "transactional", "index": null, "idempotency_key": null,
                   "status": 400, "code": "validation_failed", "detail": "template_id: is required",
                   "fields": [{"path": "template_id", "code": "required", "detail": "is required"}]}),
        ),
        EventType::WebhookTest => other::<MailData>("Test", json!({"subscription_id": ID})),
    }
}
