//! The event of a refused direct request: `request.rejected`, on the bus only.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Environment, EventType, events::in_milliseconds, messages::Message};

/// `mail.v1.event.<product>.<environment>.request.rejected`: a request published to `mail.v1.request.…` was not accepted, or one of
/// an array was not. The request itself is among the dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestRejected {
    /// Stable: to recognise a repetition by.
    pub id: Uuid,
    /// `request.rejected`
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// [`crate::events::EVENT_VERSION`]
    pub version: String,
    /// When the engine refused it.
    #[serde(serialize_with = "in_milliseconds")]
    pub created_at: DateTime<Utc>,
    /// When it was published.
    #[serde(serialize_with = "in_milliseconds")]
    pub occurred_at: DateTime<Utc>,
    /// The tenant, as the request names it; null where it names none.
    pub product_tenant_id: Option<String>,
    /// Production or sandbox, as the subject said.
    pub environment: Environment,
    /// The particulars.
    pub data: Rejection,
}

impl Message for RequestRejected {
    const SCHEMA: &'static str = "mail.v1.rejected";
}

/// Which request was refused, and why. Neither addresses nor bodies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rejection {
    /// The request's `Nats-Msg-Id`, if it had one.
    pub message_id: Option<String>,
    /// Its number in the stream, as the PubAck said it (`seq`).
    pub sequence: u64,
    /// Its kind: the last token of the subject.
    pub kind: String,
    /// The place in the array, from 0, of one that was refused while others may have been accepted. Null: all of the message was.
    pub index: Option<u32>,
    /// The `idempotency_key` of this one of an array, if it had one.
    pub idempotency_key: Option<String>,
    /// Why.
    #[serde(flatten)]
    pub refusal: Refusal,
}

/// A refusal, with the codes that HTTP answers with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// The status HTTP would answer with.
    pub status: u16,
    /// The code: what programs read.
    #[serde(alias = "error")]
    pub code: String,
    /// In words.
    #[serde(default)]
    pub detail: Option<String>,
    /// The faults of a validation; of more than ten the first ten.
    #[serde(default)]
    pub fields: Vec<RefusedField>,
}

/// One thing wrong with a request, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedField {
    /// Where, as `to[3].email`.
    pub path: String,
    /// A stable code, such as `required` or `too_long`.
    pub code: String,
    /// In words.
    pub detail: String,
}

impl Refusal {
    /// The fields at fault in one line: `path code`, separated by `; `.
    #[must_use]
    pub fn fields_line(&self) -> String {
        let fields: Vec<String> = self.fields.iter().map(|field| format!("{} {}", field.path, field.code)).collect();
        fields.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EVENT_VERSION;

    #[test]
    fn a_rejection_is_read_back_as_it_was_written_and_its_fields_fit_a_line() {
        let field = |path: &str, code: &str| RefusedField {
            path: path.to_owned(),
            code: code.to_owned(),
            detail: "is not good".to_owned(),
        };
        let refusal = Refusal {
            status: 400,
            code: "validation_failed".to_owned(),
            detail: Some("email: is required".to_owned()),
            fields: vec![field("email", "required"), field("to[1].name", "too_long")],
        };
        assert_eq!(refusal.fields_line(), "email required; to[1].name too_long");
        let rejected = RequestRejected {
            id: Uuid::nil(),
            event_type: EventType::RequestRejected,
            version: EVENT_VERSION.to_owned(),
            created_at: DateTime::UNIX_EPOCH,
            occurred_at: DateTime::UNIX_EPOCH,
            product_tenant_id: Some("t-1".to_owned()),
            environment: Environment::Sandbox,
            data: Rejection {
                message_id: Some("m-1".to_owned()),
                sequence: 7,
                kind: "transactional".to_owned(),
                index: Some(3),
                idempotency_key: None,
                refusal,
            },
        };
        let text = serde_json::to_string(&rejected).unwrap();
        assert_eq!(serde_json::from_str::<RequestRejected>(&text).unwrap(), rejected);
        assert!(
            text.contains(r#""type":"request.rejected""#) && text.contains(r#""code":"validation_failed""#),
            "{text}"
        );
    }
}
