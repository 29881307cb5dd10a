//! Internal messages: notifications and batches between the stages.

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Described, Header, Side, reads, schema_of};
use crate::{
    Cleared, Control, FactsAnnounced, InboundAnnounced, LedgerMark, Rendered, RequestAnnounced, Resolved, Signal,
    messages::{Decided, Message},
    subjects::{header, stream},
};

/// Ids and times for examples.
const TENANT: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";
const BATCH: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e00";
const CONTACT: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e31";
const AT: &str = "2026-03-01T09:00:00Z";

/// What JetStream and readers know a message by.
pub(super) const STORED: &[Header] = &[
    Header {
        name: "Nats-Msg-Id",
        about: "Equal work has an equal id: a repetition within two minutes is dropped.",
        required: true,
    },
    Header { name: header::SCHEMA, about: "The name of the body's schema.", required: true },
];
const DEAD: &[Header] = &[
    Header { name: header::DEAD_REASON, about: "Why it was set aside: a code.", required: true },
    Header { name: header::DEAD_DETAIL, about: "The error in words.", required: true },
    Header { name: header::DEAD_SUBJECT, about: "Where it came from, and a replay publishes it to.", required: true },
    Header { name: header::DEAD_STREAM, about: "The stream it came from.", required: true },
    Header { name: header::DEAD_ATTEMPTS, about: "How often it was delivered.", required: true },
];

pub(super) fn all() -> Vec<Described> {
    vec![
        of::<RequestAnnounced>(
            "Request accepted",
            "A request stands in the ledger and waits to be handled.",
            "mail.v1.accepted.{product}.{environment}.{kind}",
            Some(stream::ACCEPTED),
            vec![
                ("launch", json!({"tenant_id": TENANT, "request_id": BATCH, "kind": "campaign-launch"})),
                (
                    "several",
                    json!({"tenant_id": TENANT, "request_id": BATCH, "kind": "transactional", "more": [CONTACT]}),
                ),
            ],
        ),
        of::<Resolved>(
            "Batch resolved",
            "A batch and its sends stand in the ledger and wait for the compliance gate.",
            "mail.v1.resolved.{lane}",
            Some(stream::RESOLVED),
            vec![("bulk", json!({"tenant_id": TENANT, "batch_id": BATCH, "lane": "bulk", "announcement": 1}))],
        ),
        of::<Cleared>(
            "Batch cleared",
            "The recipients of a batch that may be mailed.",
            "mail.v1.cleared.{lane}",
            Some(stream::CLEARED),
            vec![
                ("campaign", cleared(Some(TENANT), "campaign", "bulk")),
                ("transactional", cleared(None, "transactional", "priority")),
            ],
        ),
        of::<Rendered>(
            "Batch rendered",
            "Sends that are ready for the wire: one batch, or part of one.",
            "mail.v1.rendered.{lane}",
            Some(stream::RENDERED),
            vec![("campaign", rendered())],
        ),
        of::<Signal>(
            "Signal",
            "A recipient's action or a provider's report about a mail.",
            "mail.v1.signal.{source}",
            Some(stream::SIGNALS),
            signals(),
        ),
        of::<InboundAnnounced>(
            "Inbound events stored",
            "Provider events were stored and wait to be read.",
            "mail.v1.signal.inbound",
            Some(stream::SIGNALS),
            vec![("notification", json!({}))],
        ),
        of::<FactsAnnounced>(
            "Facts committed",
            "Facts were committed and wait to become events.",
            "mail.v1.fact.{stage}",
            Some(stream::FACTS),
            vec![("notification", json!({}))],
        ),
        of::<LedgerMark>(
            "Ledger mark",
            "How far the ledger has come.",
            "mail.v1.mark",
            Some(stream::MARKS),
            vec![("mark", json!({"ledger_id": TENANT, "mark": 42, "at": AT}))],
        ),
        of::<Control>(
            "Operator control",
            "From an operator to every process.",
            "mail.v1.control",
            None,
            vec![
                ("pause_switches", json!({"kind": "pause_switches"})),
                ("log", json!({"kind": "log", "filter": "debug", "for_seconds": 600})),
            ],
        ),
        of::<Decided>(
            "Sends decided",
            "To a process that waits: sends of this batch were decided, the ledger says how.",
            "mail.v1.reply.{waiter}",
            None,
            vec![("batch", json!({"tenant_id": TENANT, "batch_id": BATCH}))],
        ),
        dead(),
    ]
}

fn of<T: Message + JsonSchema + Serialize + DeserializeOwned>(
    title: &str,
    summary: &str,
    address: &str,
    stream: Option<&'static str>,
    examples: Vec<(&str, Value)>,
) -> Described {
    let mut schema = schema_of::<T>(Side::Internal);
    schema["title"] = json!(title);
    // As today's code writes it.
    let written = |example: Value| {
        let read = serde_json::from_value::<T>(example.clone()).ok();
        read.and_then(|read| serde_json::to_value(read).ok()).unwrap_or(example)
    };
    Described {
        name: T::SCHEMA.to_owned(),
        title: title.to_owned(),
        summary: summary.to_owned(),
        side: Side::Internal,
        address: address.to_owned(),
        stream,
        headers: if stream.is_some() { STORED } else { &[] },
        schema,
        examples: examples.into_iter().map(|(name, example)| (name.to_owned(), written(example))).collect(),
        read: reads::<T>,
    }
}

/// What was set aside is as it was: any body.
fn dead() -> Described {
    Described {
        name: "mail.v1.dead".to_owned(),
        title: "Dead letter".to_owned(),
        summary: "A message that can never be handled, as it was, with its reason in headers.".to_owned(),
        side: Side::Internal,
        address: "mail.v1.dead.{stage}".to_owned(),
        stream: Some(stream::DEAD),
        headers: DEAD,
        schema: json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Dead letter",
            "description": "The body of the message as it was; it need not even be JSON.",
        }),
        examples: vec![("malformed".to_owned(), json!({"tenant_id": "not an id"}))],
        read: |_| Ok(()),
    }
}

fn cleared(campaign: Option<&str>, kind: &str, lane: &str) -> Value {
    json!({
        "tenant_id": TENANT, "batch_id": BATCH, "lane": lane, "announcement": 1, "kind": kind,
        "classification": if campaign.is_some() { "marketing" } else { "transactional" },
        "campaign_id": campaign, "content_id": BATCH, "sender_id": TENANT,
        "recipients": [{"ordinal": 0, "contact_id": CONTACT}],
    })
}

fn rendered() -> Value {
    json!({
        "tenant_id": TENANT, "batch_id": BATCH, "campaign_id": TENANT, "kind": "campaign", "lane": "bulk", "part": 0,
        "skeleton": "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", "token_key": [161, 178, 195],
        "sending_domain": "acme.example", "return_path_domain": "send.acme.example",
    })
}

fn signals() -> Vec<(&'static str, Value)> {
    let signal = |own: Value| {
        let mut signal = json!({
            "signal_id": CONTACT, "tenant_id": TENANT, "send_id": BATCH, "occurred_at": AT, "ip": "192.0.2.7",
            "user_agent": "Mozilla/5.0",
        });
        if let (Value::Object(signal), Value::Object(own)) = (&mut signal, own) {
            signal.extend(own);
        }
        signal
    };
    vec![
        ("opened", signal(json!({"kind": "opened"}))),
        ("clicked", signal(json!({"kind": "clicked", "url": "https://shop.example/offer", "link": 0}))),
        ("unsubscribed", signal(json!({"kind": "unsubscribed", "method": "one_click"}))),
        ("delivered", signal(json!({"kind": "delivered", "ip": null, "user_agent": null}))),
        ("complained", signal(json!({"kind": "complained", "feedback_type": "abuse"}))),
        (
            "bounced",
            signal(json!({
                "kind": "bounced", "class": "hard", "smtp_code": 550, "enhanced_code": "5.1.1", "diagnostic": "no such user",
                "rule": "enhanced",
            })),
        ),
        ("replied", signal(json!({"kind": "replied", "message_id": "<1@example.com>", "automatic": false}))),
    ]
}
