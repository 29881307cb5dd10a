//! Mailgun: one event a request, in `event-data`, beside the signature; mail that a route forwards comes as a form, with its header as
//! a list in `message-headers`.

use runtime::Budget;
use schemas::{BounceClass, SignalKind};
use serde_json::Value;

use super::{
    EventMeaning, InboundMail, MailRef, Malformed, ProviderEvent, REFUSED, SEND, SUPPRESSED, clicked, complained, json,
    reply_code, seconds, server_bounce, text, unsubscribed, withheld,
};
use crate::form;

/// A mail that a route forwarded.
/// <https://documentation.mailgun.com/docs/mailgun/user-manual/receive-forward-store/receive-http>
pub(super) fn inbound_mail(raw: &[u8], budget: &Budget) -> Result<Option<InboundMail>, Malformed> {
    let mut fields = form::fields(raw, &["message-headers", "recipient", "timestamp"], budget)?;
    let Some(list) = fields.get("message-headers") else { return Ok(None) };
    json::weigh(list.as_bytes(), budget)?;
    let Ok(headers) = serde_json::from_str(list) else { return Ok(None) };
    let at = fields.remove("timestamp").and_then(|text| seconds(&Value::String(text)));
    Ok(Some(InboundMail {
        id: String::new(),
        at,
        headers,
        recipients: fields.remove("recipient").into_iter().collect(),
    }))
}

pub(super) fn read(request: &Value) -> Result<ProviderEvent, Malformed> {
    let event = &request["event-data"];
    let kind = text(&event["event"]).ok_or(Malformed("no_type"))?;
    let id = text(&event["id"]).ok_or(Malformed("no_id"))?;
    let named = MailRef::of(&event["user-variables"][SEND], text(&event["message"]["headers"]["message-id"]))
        .to([&event["recipient"]]);
    let meaning = match kind {
        "accepted" => EventMeaning::Accepted,
        "delivered" => EventMeaning::Fact(SignalKind::Delivered),
        "failed" if text(&event["severity"]) == Some("temporary") => EventMeaning::Accepted,
        "failed" => failed(event),
        "rejected" => withheld(REFUSED, text(&event["reject"]["reason"]).unwrap_or_default()),
        "opened" => EventMeaning::Fact(SignalKind::Opened),
        "clicked" => clicked(&event["url"]),
        "complained" => complained("abuse"),
        "unsubscribed" => unsubscribed(),
        _ => EventMeaning::Ignored,
    };
    let provider_event = named.event(id.to_owned(), seconds(&event["timestamp"]), meaning)?;
    Ok(provider_event.with_client(&event["ip"], &event["client-info"]["user-agent"]))
}

fn failed(event: &Value) -> EventMeaning {
    let status = &event["delivery-status"];
    let reason_text = text(&status["message"]).or_else(|| text(&status["description"])).unwrap_or_default();
    let hint = match text(&event["reason"]).unwrap_or_default() {
        // Never tried: the address stands on a list of the domain's.
        reason if reason.starts_with("suppress-") => return withheld(SUPPRESSED, reason_text),
        "bounce" | "hardfail" => BounceClass::Hard,
        "espblock" => BounceClass::Block,
        // `old`: tried until it was too late; `generic`.
        _ => BounceClass::Soft,
    };
    server_bounce(reply_code(&status["code"]), text(&status["enhanced-code"]), reason_text, hint)
}
