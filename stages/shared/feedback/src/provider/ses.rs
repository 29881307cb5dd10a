//! Amazon SES through SNS: event publishing (`eventType`) and the older notifications of identities (`notificationType`). Only the
//! former carry tags; the latter find their send by the mail's id. Mail that a receipt rule took in (`Received`) comes with its header.

use runtime::Budget;
use schemas::{BounceClass, SignalKind};
use serde_json::Value;

use super::{
    InboundMail, Mail, Malformed, REFUSED, SEND, SUPPRESSED, Told, What, bounced, clicked, complained, json, text,
    time, unsubscribed, withheld,
};

/// Reads the SNS envelope, and the event in it.
pub(super) fn read(envelope: &Value, budget: &Budget) -> Result<Told, Malformed> {
    let message = envelope["Message"].as_str().ok_or(Malformed("no_message"))?;
    let event = match json::read(message.as_bytes(), budget) {
        Ok(event) => event,
        Err(fault) if fault != json::NOT_JSON => return Err(fault),
        // What SNS and SES say in prose, such as "Successfully validated SNS topic for Amazon SES event publishing."
        Err(_) => return Mail::default().told(String::new(), None, What::Nothing),
    };
    let kind = text(&event["eventType"]).or_else(|| text(&event["notificationType"])).ok_or(Malformed("no_type"))?;
    let mail = &event["mail"];
    let id = text(&mail["messageId"]);
    let named = Mail::of(&mail["tags"][SEND][0], id);
    let id = id.unwrap_or_default();
    let part = |name: &str| &event[name];
    match kind {
        "Bounce" => {
            let part = part("bounce");
            named.told(format!("bounce {}", unique(part, id)), time(&part["timestamp"]), bounce(part))
        }
        "Complaint" => {
            let part = part("complaint");
            let what = match text(&part["complaintSubType"]) {
                Some("OnAccountSuppressionList") => withheld(SUPPRESSED, "on the account's suppression list"),
                _ => complained(text(&part["complaintFeedbackType"]).unwrap_or("abuse")),
            };
            named.told(format!("complaint {}", unique(part, id)), time(&part["timestamp"]), what)
        }
        "Delivery" => {
            let at = time(&part("delivery")["timestamp"]);
            named.told(format!("delivery {id}"), at, What::Fact(SignalKind::Delivered))
        }
        "Send" => named.told(format!("send {id}"), time(&mail["timestamp"]), What::Taken),
        "DeliveryDelay" => {
            let at = time(&part("deliveryDelay")["timestamp"]);
            named.told(format!("delay {id}"), at, What::Taken)
        }
        "Reject" => {
            let reason = text(&part("reject")["reason"]).unwrap_or_default();
            named.told(format!("reject {id}"), time(&mail["timestamp"]), withheld(REFUSED, reason))
        }
        "Open" => touched(named, id, part("open"), What::Fact(SignalKind::Opened)),
        "Click" => touched(named, id, part("click"), clicked(&part("click")["link"])),
        "Received" => received(&event, budget),
        "Subscription" if event["subscription"]["newTopicPreferences"]["unsubscribeAll"] == true => {
            let at = time(&part("subscription")["timestamp"]);
            named.told(format!("subscription {id}"), at, unsubscribed())
        }
        _ => named.told(String::new(), None, What::Nothing),
    }
}

/// <https://docs.aws.amazon.com/ses/latest/dg/receiving-email-notifications-contents.html>
fn received(event: &Value, budget: &Budget) -> Result<Told, Malformed> {
    let (mail, receipt) = (&event["mail"], &event["receipt"]);
    let field = |field: &Value| Some((text(&field["name"])?.to_owned(), field["value"].as_str()?.to_owned()));
    let mail = InboundMail {
        id: text(&mail["messageId"]).unwrap_or_default().to_owned(),
        at: time(&receipt["timestamp"]),
        headers: mail["headers"].as_array().into_iter().flatten().filter_map(field).collect(),
        recipients: receipt["recipients"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|to| Some(to.as_str()?.to_owned()))
            .collect(),
    };
    mail.read(budget)
}

fn touched(named: Mail, id: &str, part: &Value, what: What) -> Result<Told, Malformed> {
    let at = text(&part["timestamp"]).unwrap_or_default();
    let link = text(&part["link"]).unwrap_or_default();
    let event = format!("touch {id} {at} {} {link}", text(&part["ipAddress"]).unwrap_or_default());
    let told = named.told(event, time(&part["timestamp"]), what)?;
    Ok(told.by(&part["ipAddress"], &part["userAgent"]))
}

/// A report's own id; the mail's where it has none: one mail, one recipient.
fn unique<'a>(part: &'a Value, mail: &'a str) -> &'a str {
    text(&part["feedbackId"]).unwrap_or(mail)
}

fn bounce(part: &Value) -> What {
    let recipient = &part["bouncedRecipients"][0];
    let words = text(&recipient["diagnosticCode"]).unwrap_or_default();
    let hint = match (text(&part["bounceType"]).unwrap_or_default(), text(&part["bounceSubType"]).unwrap_or_default()) {
        // Never tried; the codes are made up by SES.
        (_, "Suppressed" | "OnAccountSuppressionList" | "UnsubscribedRecipient") => return withheld(SUPPRESSED, words),
        (_, "ContentRejected" | "AttachmentRejected" | "MessageTooLarge") => BounceClass::Block,
        ("Permanent", _) => BounceClass::Hard,
        _ => BounceClass::Soft,
    };
    bounced(None, text(&recipient["status"]), words, hint)
}
