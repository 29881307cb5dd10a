//! Postmark: one record per request, its kind in `RecordType`. A record without a kind is inbound mail, with its header in `Headers`.

use std::fmt;

use runtime::Budget;
use schemas::{BounceClass, SignalKind};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

use super::{
    EventMeaning, InboundMail, MailRef, Malformed, ProviderEvent, REFUSED, SEND, SUPPRESSED, clicked, complained, json,
    server_bounce, text, time, unsubscribed, withheld,
};

/// Inbound mail. <https://postmarkapp.com/developer/webhooks/inbound-webhook>
pub(super) fn inbound_mail(raw: &[u8], budget: &Budget) -> Result<Option<InboundMail>, Malformed> {
    json::weigh(raw, budget)?;
    let mut taken = InboundRecord::default();
    // A record cut off in an attachment is an error; the fields before it are parsed.
    let _ = serde_json::Deserializer::from_slice(raw).deserialize_map(RecordVisitor(&mut taken));
    Ok((!taken.is_event && !taken.mail.headers.is_empty()).then_some(taken.mail))
}

#[derive(Default)]
struct InboundRecord {
    mail: InboundMail,
    is_event: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PostmarkHeader {
    name: String,
    value: String,
}

/// Visits the fields of a record in their order.
struct RecordVisitor<'a>(&'a mut InboundRecord);

impl<'de> Visitor<'de> for RecordVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            let mail = &mut self.0.mail;
            match name.as_str() {
                "RecordType" => {
                    self.0.is_event = true;
                    map.next_value::<IgnoredAny>()?;
                }
                "MessageID" => mail.id = map.next_value()?,
                "OriginalRecipient" => mail.recipients.push(map.next_value()?),
                "Headers" => {
                    let fields = map.next_value::<Vec<PostmarkHeader>>()?;
                    mail.headers = fields.into_iter().map(|field| (field.name, field.value)).collect();
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

pub(super) fn read(record: &Value) -> Result<ProviderEvent, Malformed> {
    let kind = text(&record["RecordType"]).ok_or(Malformed("no_type"))?;
    let id = text(&record["MessageID"]);
    let named = MailRef::of(&record["Metadata"][SEND], id).to([&record["Email"], &record["Recipient"]]);
    let id = id.unwrap_or_default();
    let (key, at, meaning) = match kind {
        "Delivery" => (format!("delivery {id}"), "DeliveredAt", EventMeaning::Fact(SignalKind::Delivered)),
        "Bounce" => (format!("bounce {}", record["ID"]), "BouncedAt", bounce(record)),
        "SpamComplaint" => (format!("bounce {}", record["ID"]), "BouncedAt", complained("abuse")),
        "Open" => return engagement_event(named, id, record, EventMeaning::Fact(SignalKind::Opened)),
        "Click" => return engagement_event(named, id, record, clicked(&record["OriginalLink"])),
        "SubscriptionChange" => {
            let at = text(&record["ChangedAt"]).unwrap_or_default();
            (format!("subscription {id} {at}"), "ChangedAt", subscription(record))
        }
        _ => return named.event(String::new(), None, EventMeaning::Ignored),
    };
    named.event(key, time(&record[at]), meaning)
}

fn engagement_event(
    named: MailRef,
    id: &str,
    record: &Value,
    meaning: EventMeaning,
) -> Result<ProviderEvent, Malformed> {
    let at = text(&record["ReceivedAt"]).unwrap_or_default();
    let link = text(&record["OriginalLink"]).unwrap_or_default();
    let provider_event = named.event(format!("touch {id} {at} {link}"), time(&record["ReceivedAt"]), meaning)?;
    Ok(provider_event.with_client(&record["Geo"]["IP"], &record["UserAgent"]))
}

/// An unsubscribe by the recipient. Bounces and complaints have events of their own, and changes by the customer do not count.
fn subscription(record: &Value) -> EventMeaning {
    let is_own = text(&record["Origin"]) == Some("Recipient");
    let is_manual = text(&record["SuppressionReason"]) == Some("ManualSuppression");
    if record["SuppressSending"] == true && is_own && is_manual { unsubscribed() } else { EventMeaning::Ignored }
}

/// <https://postmarkapp.com/developer/api/bounce-api#bounce-types>
fn bounce(record: &Value) -> EventMeaning {
    let reason_text = text(&record["Details"]).or_else(|| text(&record["Description"])).unwrap_or_default();
    let hint = match text(&record["Type"]).unwrap_or_default() {
        "HardBounce" | "BadEmailAddress" => BounceClass::Hard,
        "SpamComplaint" => return complained("abuse"),
        "Unsubscribe" => return unsubscribed(),
        "ManuallyDeactivated" | "Unconfirmed" => return withheld(SUPPRESSED, reason_text),
        "SMTPApiError" | "TemplateRenderingFailed" | "InboundError" => return withheld(REFUSED, reason_text),
        "Blocked" | "SpamNotification" | "VirusNotification" | "DMARCPolicy" => BounceClass::Block,
        // Automatic replies are not bounces.
        "AutoResponder" | "AddressChange" | "ChallengeVerification" | "OpenRelayTest" | "Subscribe" => {
            return EventMeaning::Ignored;
        }
        _ => BounceClass::Soft,
    };
    server_bounce(None, None, reason_text, hint)
}
