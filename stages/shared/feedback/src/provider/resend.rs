//! Resend: one event a request. It has no id of its own but that of the request; type, mail and time make it unique.
//!
//! Of mail it took in (`email.received`) it reports sender, recipients and subject, and neither `In-Reply-To` nor `References`
//! (<https://resend.com/docs/webhooks/emails/received>), so it cannot be said what is answered: only what came to a return path of ours
//! is an answer, all else is taken and ignored.

use runtime::Budget;
use schemas::{BounceClass, SignalKind, token::TokenKeys};
use serde_json::Value;

use super::{
    EventMeaning, InboundMail, MailRef, Malformed, ProviderEvent, REFUSED, SEND, SUPPRESSED, clicked, complained,
    server_bounce, text, texts, time, withheld,
};

pub(super) fn read(event: &Value, tokens: &TokenKeys, budget: &Budget) -> Result<ProviderEvent, Malformed> {
    let kind = text(&event["type"]).ok_or(Malformed("no_type"))?;
    let data = &event["data"];
    let id = text(&data["email_id"]);
    if kind == "email.received" {
        return received(event, tokens, budget);
    }
    let named = MailRef::of(tag(&data["tags"]), id).to(data["to"].as_array().into_iter().flatten());
    let at = &event["created_at"];
    let unique = format!("{kind} {} {}", id.unwrap_or_default(), text(at).unwrap_or_default());
    let meaning = match kind {
        "email.sent" | "email.delivery_delayed" => EventMeaning::Accepted,
        "email.delivered" => EventMeaning::Fact(SignalKind::Delivered),
        "email.bounced" => bounce(&data["bounce"]),
        "email.suppressed" => {
            withheld(SUPPRESSED, text(&data["suppressed"]["message"]).unwrap_or("on the account's suppression list"))
        }
        "email.failed" => withheld(REFUSED, text(&data["failed"]["reason"]).unwrap_or_default()),
        "email.complained" => complained("abuse"),
        "email.opened" => EventMeaning::Fact(SignalKind::Opened),
        "email.clicked" => clicked(&data["click"]["link"]),
        _ => EventMeaning::Ignored,
    };
    let touch = match kind {
        "email.opened" => &data["open"],
        "email.clicked" => &data["click"],
        _ => return named.event(unique, time(at), meaning),
    };
    let link = text(&touch["link"]).unwrap_or_default();
    let when = time(&touch["timestamp"]).or_else(|| time(at));
    Ok(named.event(format!("{unique} {link}"), when, meaning)?.with_client(&touch["ipAddress"], &touch["userAgent"]))
}

fn received(event: &Value, tokens: &TokenKeys, budget: &Budget) -> Result<ProviderEvent, Malformed> {
    let data = &event["data"];
    let mail = InboundMail {
        id: text(&data["email_id"]).unwrap_or_default().to_owned(),
        at: time(&event["created_at"]),
        headers: vec![("Subject".to_owned(), text(&data["subject"]).unwrap_or_default().to_owned())],
        recipients: ["to", "received_for"].into_iter().flat_map(|field| texts(&data[field])).collect(),
    };
    mail.read(tokens, budget)
}

/// Tags come as an object, or as the list they were sent as.
fn tag(tags: &Value) -> &Value {
    let listed = tags.as_array().into_iter().flatten().find(|tag| tag["name"] == SEND);
    listed.map_or(&tags[SEND], |tag| &tag["value"])
}

fn bounce(bounce: &Value) -> EventMeaning {
    let reason_text = text(&bounce["message"]).unwrap_or_default();
    let hint = match (text(&bounce["type"]).unwrap_or_default(), text(&bounce["subType"]).unwrap_or_default()) {
        (_, "Suppressed" | "OnAccountSuppressionList") => return withheld(SUPPRESSED, reason_text),
        (_, "ContentRejected" | "AttachmentRejected" | "MessageTooLarge") => BounceClass::Block,
        ("Permanent", _) => BounceClass::Hard,
        _ => BounceClass::Soft,
    };
    server_bounce(None, None, reason_text, hint)
}
