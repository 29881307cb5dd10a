//! Postmark: one record a request, its kind in `RecordType`; a record without one is mail it took in, with its header in `Headers`.

use std::fmt;

use runtime::Budget;
use schemas::{BounceClass, SignalKind};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

use super::{
    InboundMail, Mail, Malformed, REFUSED, SEND, SUPPRESSED, Told, What, bounced, clicked, complained, json, text,
    time, unsubscribed, withheld,
};

/// A mail it took in. <https://postmarkapp.com/developer/webhooks/inbound-webhook>
pub(super) fn inbound_mail(raw: &[u8], budget: &Budget) -> Result<Option<InboundMail>, Malformed> {
    json::weigh(raw, budget)?;
    let mut taken = Taken::default();
    // What broke off in the middle of an attachment is an error, and all before it is there.
    let _ = serde_json::Deserializer::from_slice(raw).deserialize_map(Fields(&mut taken));
    Ok((!taken.is_event && !taken.mail.headers.is_empty()).then_some(taken.mail))
}

#[derive(Default)]
struct Taken {
    mail: InboundMail,
    is_event: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Header {
    name: String,
    value: String,
}

/// Fields of a record, noted as they come.
struct Fields<'a>(&'a mut Taken);

impl<'de> Visitor<'de> for Fields<'_> {
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
                    let fields = map.next_value::<Vec<Header>>()?;
                    mail.headers = fields.into_iter().map(|field| (field.name, field.value)).collect();
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

pub(super) fn read(record: &Value) -> Result<Told, Malformed> {
    let kind = text(&record["RecordType"]).ok_or(Malformed("no_type"))?;
    let id = text(&record["MessageID"]);
    let named = Mail::of(&record["Metadata"][SEND], id);
    let id = id.unwrap_or_default();
    match kind {
        "Delivery" => {
            named.told(format!("delivery {id}"), time(&record["DeliveredAt"]), What::Fact(SignalKind::Delivered))
        }
        "Bounce" => named.told(format!("bounce {}", record["ID"]), time(&record["BouncedAt"]), bounce(record)),
        "SpamComplaint" => {
            named.told(format!("bounce {}", record["ID"]), time(&record["BouncedAt"]), complained("abuse"))
        }
        "Open" => touched(named, id, record, What::Fact(SignalKind::Opened)),
        "Click" => touched(named, id, record, clicked(&record["OriginalLink"])),
        "SubscriptionChange" => {
            let at = text(&record["ChangedAt"]).unwrap_or_default();
            named.told(format!("subscription {id} {at}"), time(&record["ChangedAt"]), subscription(record))
        }
        _ => named.told(String::new(), None, What::Nothing),
    }
}

fn touched(named: Mail, id: &str, record: &Value, what: What) -> Result<Told, Malformed> {
    let at = text(&record["ReceivedAt"]).unwrap_or_default();
    let link = text(&record["OriginalLink"]).unwrap_or_default();
    let told = named.told(format!("touch {id} {at} {link}"), time(&record["ReceivedAt"]), what)?;
    Ok(told.by(&record["Geo"]["IP"], &record["UserAgent"]))
}

/// Who left by his own act. Bounces and complaints are told as such, and what the customer did is no word of the recipient's.
fn subscription(record: &Value) -> What {
    let is_own = text(&record["Origin"]) == Some("Recipient");
    let is_manual = text(&record["SuppressionReason"]) == Some("ManualSuppression");
    if record["SuppressSending"] == true && is_own && is_manual { unsubscribed() } else { What::Nothing }
}

/// <https://postmarkapp.com/developer/api/bounce-api#bounce-types>
fn bounce(record: &Value) -> What {
    let words = text(&record["Details"]).or_else(|| text(&record["Description"])).unwrap_or_default();
    let hint = match text(&record["Type"]).unwrap_or_default() {
        "HardBounce" | "BadEmailAddress" => BounceClass::Hard,
        "SpamComplaint" => return complained("abuse"),
        "Unsubscribe" => return unsubscribed(),
        "ManuallyDeactivated" | "Unconfirmed" => return withheld(SUPPRESSED, words),
        "SMTPApiError" | "TemplateRenderingFailed" | "InboundError" => return withheld(REFUSED, words),
        "Blocked" | "SpamNotification" | "VirusNotification" | "DMARCPolicy" => BounceClass::Block,
        // Answers by programs, which bounce nothing.
        "AutoResponder" | "AddressChange" | "ChallengeVerification" | "OpenRelayTest" | "Subscribe" => {
            return What::Nothing;
        }
        _ => BounceClass::Soft,
    };
    bounced(None, None, words, hint)
}
