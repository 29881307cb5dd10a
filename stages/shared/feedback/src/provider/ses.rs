//! Amazon SES through SNS: event publishing (`eventType`) and the older notifications of identities (`notificationType`). Only the
//! former carry tags; the latter find their send by the mail's id. Mail that a receipt rule took in (`Received`) comes with its header.

use runtime::Budget;
use schemas::{BounceClass, SignalKind, token::TokenKeys};
use serde_json::Value;

use super::{
    EventMeaning, InboundMail, MailRef, Malformed, ProviderEvent, REFUSED, SEND, SUPPRESSED, clicked, complained, json,
    server_bounce, text, texts, time, unsubscribed, withheld,
};

/// Reads the SNS envelope, and the event in it.
pub(super) fn read(envelope: &Value, tokens: &TokenKeys, budget: &Budget) -> Result<ProviderEvent, Malformed> {
    let message = envelope["Message"].as_str().ok_or(Malformed("no_message"))?;
    let event = match json::read(message.as_bytes(), budget) {
        Ok(event) => event,
        Err(fault) if fault != json::NOT_JSON => return Err(fault),
        // Plain text of SNS and SES, such as "Successfully validated SNS topic for Amazon SES event publishing."
        Err(_) => return MailRef::default().event(String::new(), None, EventMeaning::Ignored),
    };
    let kind = text(&event["eventType"]).or_else(|| text(&event["notificationType"])).ok_or(Malformed("no_type"))?;
    let mail = &event["mail"];
    let id = text(&mail["messageId"]);
    let named = MailRef::of(&mail["tags"][SEND][0], id).to(recipients(&event));
    let id = id.unwrap_or_default();
    let (key, at, meaning) = match kind {
        "Bounce" => {
            let part = &event["bounce"];
            (format!("bounce {}", unique(part, id)), &part["timestamp"], bounce(part))
        }
        "Complaint" => {
            let part = &event["complaint"];
            let meaning = match text(&part["complaintSubType"]) {
                Some("OnAccountSuppressionList") => withheld(SUPPRESSED, "on the account's suppression list"),
                _ => complained(text(&part["complaintFeedbackType"]).unwrap_or("abuse")),
            };
            (format!("complaint {}", unique(part, id)), &part["timestamp"], meaning)
        }
        "Delivery" => {
            let at = &event["delivery"]["timestamp"];
            (format!("delivery {id}"), at, EventMeaning::Fact(SignalKind::Delivered))
        }
        "Send" => (format!("send {id}"), &mail["timestamp"], EventMeaning::Accepted),
        "DeliveryDelay" => (format!("delay {id}"), &event["deliveryDelay"]["timestamp"], EventMeaning::Accepted),
        "Reject" => {
            let reason = text(&event["reject"]["reason"]).unwrap_or_default();
            (format!("reject {id}"), &mail["timestamp"], withheld(REFUSED, reason))
        }
        "Open" => return engagement_event(named, id, &event["open"], EventMeaning::Fact(SignalKind::Opened)),
        "Click" => return engagement_event(named, id, &event["click"], clicked(&event["click"]["link"])),
        "Received" => return received(&event, tokens, budget),
        "Subscription" if event["subscription"]["newTopicPreferences"]["unsubscribeAll"] == true => {
            // Who agrees again may leave again by the same mail.
            let at = &event["subscription"]["timestamp"];
            (format!("subscription {id} {}", text(at).unwrap_or_default()), at, unsubscribed())
        }
        _ => return named.event(String::new(), None, EventMeaning::Ignored),
    };
    named.event(key, time(at), meaning)
}

/// The recipients a bounce or complaint is about, or else those of the mail.
fn recipients(event: &Value) -> Vec<&Value> {
    let listed = [&event["bounce"]["bouncedRecipients"], &event["complaint"]["complainedRecipients"]];
    match listed.into_iter().find_map(Value::as_array) {
        Some(listed) => listed.iter().map(|recipient| &recipient["emailAddress"]).collect(),
        None => event["mail"]["destination"].as_array().into_iter().flatten().collect(),
    }
}

/// <https://docs.aws.amazon.com/ses/latest/dg/receiving-email-notifications-contents.html>
fn received(event: &Value, tokens: &TokenKeys, budget: &Budget) -> Result<ProviderEvent, Malformed> {
    let (mail, receipt) = (&event["mail"], &event["receipt"]);
    let field = |field: &Value| Some((text(&field["name"])?.to_owned(), field["value"].as_str()?.to_owned()));
    let mail = InboundMail {
        id: text(&mail["messageId"]).unwrap_or_default().to_owned(),
        at: time(&receipt["timestamp"]),
        headers: mail["headers"].as_array().into_iter().flatten().filter_map(field).collect(),
        recipients: texts(&receipt["recipients"]).collect(),
    };
    mail.read(tokens, budget)
}

fn engagement_event(named: MailRef, id: &str, part: &Value, meaning: EventMeaning) -> Result<ProviderEvent, Malformed> {
    let at = text(&part["timestamp"]).unwrap_or_default();
    let link = text(&part["link"]).unwrap_or_default();
    let event = format!("touch {id} {at} {} {link}", text(&part["ipAddress"]).unwrap_or_default());
    let provider_event = named.event(event, time(&part["timestamp"]), meaning)?;
    Ok(provider_event.with_client(&part["ipAddress"], &part["userAgent"]))
}

/// The report's id, or else the mail's: a mail has one recipient.
fn unique<'a>(part: &'a Value, mail: &'a str) -> &'a str {
    text(&part["feedbackId"]).unwrap_or(mail)
}

fn bounce(part: &Value) -> EventMeaning {
    let recipient = &part["bouncedRecipients"][0];
    let reason_text = text(&recipient["diagnosticCode"]).unwrap_or_default();
    // An absence note is reported as a bounce, without the parts of a delivery report.
    let is_note = recipient["action"].is_null() && recipient["status"].is_null() && reason_text.is_empty();
    let hint = match (text(&part["bounceType"]).unwrap_or_default(), text(&part["bounceSubType"]).unwrap_or_default()) {
        ("Transient", "General") if is_note => return EventMeaning::Accepted,
        // Never sent; SES invents the codes.
        (_, "Suppressed" | "OnAccountSuppressionList" | "UnsubscribedRecipient") => {
            return withheld(SUPPRESSED, reason_text);
        }
        (_, "ContentRejected" | "AttachmentRejected" | "MessageTooLarge") => BounceClass::Block,
        ("Permanent", _) => BounceClass::Hard,
        _ => BounceClass::Soft,
    };
    server_bounce(None, text(&recipient["status"]), reason_text, hint)
}
