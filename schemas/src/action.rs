//! The configuration of a step: the `action_config` of each step type. One reading for the API, which refuses what it
//! cannot read, and for the stage.

use crate::{StepType, parse_id};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};
use uuid::Uuid;

/// The config of steps that need none.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Of `apply_tag` and `remove_tag`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tag {
    /// The tag.
    #[serde(deserialize_with = "canonical")]
    pub tag_id: Uuid,
}

/// Of `update_field`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateField {
    /// The key of a defined field, or a name of the contact's own: see [`CONTACT_FIELDS`].
    pub field: String,
    /// What it is set to; null clears it.
    pub value: Value,
}

/// What `update_field` may set beside defined fields.
pub const CONTACT_FIELDS: [&str; 5] = ["first_name", "last_name", "title", "phone", "company"];

/// The longest text in one of a contact's own columns, in characters, whoever writes it: [`CONTACT_FIELDS`], `lifecycle_stage`, `source`,
/// `consent_basis`, `consent_source`.
pub const CONTACT_TEXT_MAX_CHARS: usize = 200;

/// Of `update_lifecycle_stage`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LifecycleStage {
    /// The stage.
    pub stage: String,
}

/// Of `notify_owner`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotifyOwner {
    /// The mail's subject.
    pub subject: String,
    /// Its text; who it is about is added.
    pub message: String,
    /// To whom; the tenant's owner when it is left out.
    #[serde(default)]
    pub to: Option<String>,
}

/// Of `create_task`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTask {
    /// What is to be done.
    pub title: String,
    /// By when, in days from the step where the contact is.
    #[serde(default)]
    pub due_in_days: Option<u32>,
    /// Anything else.
    #[serde(default)]
    pub notes: Option<String>,
}

/// Of `create_opportunity`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateOpportunity {
    /// Its name.
    pub name: String,
    /// The product's stage for it.
    #[serde(default)]
    pub stage: Option<String>,
    /// What it is worth.
    #[serde(default)]
    pub value_cents: Option<i64>,
}

/// Of `update_subscription`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpdateSubscription {
    /// A list; all marketing when it is left out.
    #[serde(default, deserialize_with = "canonical_or_null")]
    pub list_id: Option<Uuid>,
    /// In or out.
    pub status: Subscribed,
}

crate::named_enum! {
    /// Whether a contact is to be in or out.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
    pub wire enum Subscribed {
        /// In.
        Subscribed = "subscribed",
        /// Out.
        Unsubscribed = "unsubscribed",
    }
}

/// Of `add_suppression`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddSuppression {
    /// What it is held against.
    pub scope: SuppressionScope,
    /// Why, in the tenant's words.
    #[serde(default)]
    pub note: Option<String>,
}

crate::named_enum! {
    /// What a suppression holds for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
    pub wire enum SuppressionScope {
        /// All mail.
        All = "all",
        /// Marketing.
        Marketing = "marketing",
    }
}

/// Of `call_product_webhook`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallProductWebhook {
    /// Where to.
    pub url: String,
    /// What is sent along, as `payload`.
    #[serde(default)]
    pub payload: Option<Map<String, Value>>,
}

/// Of `end_sequence`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndSequence {
    /// Why, in the tenant's words.
    #[serde(default)]
    pub reason: Option<String>,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Action {
    SendEmail,
    Wait,
    ApplyTag(Tag),
    RemoveTag(Tag),
    UpdateField(UpdateField),
    UpdateLifecycleStage(LifecycleStage),
    NotifyOwner(NotifyOwner),
    CreateTask(CreateTask),
    CreateOpportunity(CreateOpportunity),
    EndSequence(EndSequence),
    UpdateSubscription(UpdateSubscription),
    AddSuppression(AddSuppression),
    CallProductWebhook(CallProductWebhook),
}

impl Action {
    /// Reads a config. `decode` is the caller's way to read an object: the API wants paths in its errors, the stage does not.
    pub fn read<E>(kind: StepType, config: Map<String, Value>, decode: &impl Decode<E>) -> Result<Self, E> {
        Ok(match kind {
            StepType::SendEmail => decode.decode::<Nothing>(config).map(|_| Self::SendEmail)?,
            StepType::Wait => decode.decode::<Nothing>(config).map(|_| Self::Wait)?,
            StepType::ApplyTag => Self::ApplyTag(decode.decode(config)?),
            StepType::RemoveTag => Self::RemoveTag(decode.decode(config)?),
            StepType::UpdateField => Self::UpdateField(decode.decode(config)?),
            StepType::UpdateLifecycleStage => Self::UpdateLifecycleStage(decode.decode(config)?),
            StepType::NotifyOwner => Self::NotifyOwner(decode.decode(config)?),
            StepType::CreateTask => Self::CreateTask(decode.decode(config)?),
            StepType::CreateOpportunity => Self::CreateOpportunity(decode.decode(config)?),
            StepType::EndSequence => Self::EndSequence(decode.decode(config)?),
            StepType::UpdateSubscription => Self::UpdateSubscription(decode.decode(config)?),
            StepType::AddSuppression => Self::AddSuppression(decode.decode(config)?),
            StepType::CallProductWebhook => Self::CallProductWebhook(decode.decode(config)?),
        })
    }
}

/// A way to read an object into a type.
pub trait Decode<E> {
    /// Reads it.
    fn decode<T: serde::de::DeserializeOwned>(&self, object: Map<String, Value>) -> Result<T, E>;
}

/// Plainly.
#[derive(Debug, Clone, Copy)]
pub struct Plainly;

impl Decode<serde_json::Error> for Plainly {
    fn decode<T: serde::de::DeserializeOwned>(&self, object: Map<String, Value>) -> Result<T, serde_json::Error> {
        serde_json::from_value(Value::Object(object))
    }
}

fn canonical<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
    parse_id(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn canonical_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Uuid>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse_id(&text).map_err(D::Error::custom)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    const ID: &str = "0198c0de-0000-7000-8000-000000000001";

    #[rstest]
    #[case(StepType::SendEmail, json!({}), true)]
    #[case(StepType::Wait, json!({"x": 1}), false)]
    #[case(StepType::ApplyTag, json!({"tag_id": ID}), true)]
    #[case(StepType::ApplyTag, json!({"tag_id": "urn:uuid:0198c0de-0000-7000-8000-000000000001"}), false)]
    #[case(StepType::RemoveTag, json!({}), false)]
    #[case(StepType::UpdateField, json!({"field": "plan", "value": null}), true)]
    #[case(StepType::UpdateField, json!({"field": "plan"}), false)]
    #[case(StepType::UpdateLifecycleStage, json!({"stage": "customer"}), true)]
    #[case(StepType::NotifyOwner, json!({"subject": "a", "message": "b", "to": null}), true)]
    #[case(StepType::NotifyOwner, json!({"subject": "a"}), false)]
    #[case(StepType::CreateTask, json!({"title": "Call", "due_in_days": 3}), true)]
    #[case(StepType::CreateTask, json!({"title": "Call", "due_in_days": -1}), false)]
    #[case(StepType::CreateOpportunity, json!({"name": "Big", "value_cents": 100}), true)]
    #[case(StepType::EndSequence, json!({"reason": "done"}), true)]
    #[case(StepType::UpdateSubscription, json!({"status": "unsubscribed"}), true)]
    #[case(StepType::UpdateSubscription, json!({"list_id": ID, "status": "gone"}), false)]
    #[case(StepType::AddSuppression, json!({"scope": "all"}), true)]
    #[case(StepType::AddSuppression, json!({"scope": "everything"}), false)]
    #[case(StepType::CallProductWebhook, json!({"url": "https://example.com", "payload": {"a": [1]}}), true)]
    #[case(StepType::CallProductWebhook, json!({"url": "https://example.com", "payload": 1}), false)]
    fn a_config_is_read_strictly(#[case] kind: StepType, #[case] config: Value, #[case] good: bool) {
        let Value::Object(config) = config else { unreachable!() };
        assert_eq!(Action::read(kind, config, &Plainly).is_ok(), good);
    }
}
