//! SendGrid: an array of events a request; mail that its Inbound Parse took in comes as a form, with its header as it was in `headers`,
//! or whole in `email`.

use runtime::Budget;
use schemas::{BounceClass, SignalKind};
use serde_json::Value;

use super::{
    EventMeaning, InboundMail, MailRef, Malformed, ProviderEvent, REFUSED, SEND, SUPPRESSED, clicked, complained, json,
    reply::header_fields, seconds, server_bounce, text, texts, unsubscribed, withheld,
};
use crate::form;

/// A mail that Inbound Parse took in.
/// <https://www.twilio.com/docs/sendgrid/for-developers/parsing-email/setting-up-the-inbound-parse-webhook>
pub(super) fn inbound_mail(raw: &[u8], budget: &Budget) -> Result<Option<InboundMail>, Malformed> {
    let fields = form::fields(raw, &["headers", "email", "envelope"], budget)?;
    let Some(header) = fields.get("headers").or_else(|| fields.get("email")) else { return Ok(None) };
    let headers = header_fields(header, budget)?;
    let envelope = fields.get("envelope").map(|text| json::read(text.as_bytes(), budget)).transpose();
    let envelope = match envelope {
        Err(fault) if fault != json::NOT_JSON => return Err(fault),
        read => read.ok().flatten().unwrap_or_default(),
    };
    let recipients = texts(&envelope["to"]).collect();
    Ok(Some(InboundMail { id: String::new(), at: None, headers, recipients }))
}

pub(super) fn read(events: &Value) -> Result<Vec<ProviderEvent>, Malformed> {
    let events = events.as_array().ok_or(Malformed("not_an_array"))?;
    let read: Vec<_> = events.iter().map(read_event).collect();
    // One odd event costs itself only, and is counted as ignored.
    let ignored = || MailRef::default().event(String::new(), None, EventMeaning::Ignored);
    match read.first() {
        Some(Err(fault)) if read.iter().all(Result::is_err) => Err(*fault),
        _ => read.into_iter().map(|event| event.or_else(|_| ignored())).collect(),
    }
}

fn read_event(event: &Value) -> Result<ProviderEvent, Malformed> {
    let kind = text(&event["event"]).ok_or(Malformed("no_type"))?;
    let named = MailRef::of(&event[SEND], text(&event["sg_message_id"]).map(accepted_id)).to([&event["email"]]);
    let at = &event["timestamp"];
    let meaning = match kind {
        "processed" | "deferred" => EventMeaning::Accepted,
        "delivered" => EventMeaning::Fact(SignalKind::Delivered),
        "bounce" => bounce(event),
        "dropped" => dropped(event),
        "open" => EventMeaning::Fact(SignalKind::Opened),
        "click" => clicked(&event["url"]),
        "spamreport" => complained("abuse"),
        "unsubscribe" | "group_unsubscribe" => unsubscribed(),
        _ => EventMeaning::Ignored,
    };
    // Other mail that was sent through the same account; or a bounce that came late, which SendGrid reports without ids.
    let is_foreign = !named.is_named_for(&meaning);
    let meaning = if is_foreign { EventMeaning::Ignored } else { meaning };
    let unique = match text(&event["sg_event_id"]) {
        Some(id) => id.to_owned(),
        None => format!("{kind} {} {at}", named.message_id.clone().unwrap_or_default()),
    };
    Ok(named.event(unique, seconds(at), meaning)?.with_client(&event["ip"], &event["useragent"]))
}

/// The id from the answer to the send request: events append the machine and the recipient.
fn accepted_id(id: &str) -> &str {
    let end = [".filter", ".recvd"].into_iter().filter_map(|mark| id.find(mark)).min();
    end.and_then(|end| id.get(..end)).unwrap_or(id)
}

fn bounce(event: &Value) -> EventMeaning {
    let reason_text = text(&event["reason"]).unwrap_or_default();
    let hint = match (text(&event["type"]), text(&event["bounce_classification"])) {
        (Some("blocked"), _) | (_, Some("Reputation" | "Content" | "Technical")) => BounceClass::Block,
        (_, Some("Mailbox Unavailable" | "Frequency or Volume Too High" | "Unclassified")) => BounceClass::Soft,
        _ => BounceClass::Hard,
    };
    server_bounce(None, text(&event["status"]), reason_text, hint)
}

fn dropped(event: &Value) -> EventMeaning {
    let reason_text = text(&event["reason"]).unwrap_or_default();
    let is_listed = ["Bounced Address", "Spam Reporting Address", "Unsubscribed Address", "Invalid", "Recipient List"]
        .iter()
        .any(|start| reason_text.starts_with(start));
    withheld(if is_listed { SUPPRESSED } else { REFUSED }, reason_text)
}
