//! The body of a sequence request and its steps, and their validation: first alone, then against the tenant's objects.

use std::collections::BTreeMap;

use runtime::outbound::TargetRules;
use schemars::JsonSchema;
use schemas::action::{Action, CONTACT_FIELDS, CONTACT_TEXT_MAX_CHARS, Decode, UpdateField};
use schemas::delay;
use schemas::{Address, DelayUnit, StepType};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::start::{GAP_MAX_MINUTES, Reentry, StartRules, TRIGGER_CONFIG, read_trigger, start_body};
use crate::{
    api::{audiences::held::AudienceKind, events::ProductEventTerms, fields::definitions::FieldType},
    pipeline::{
        Faults, Id,
        error::ApiError,
        json,
        types::Name,
        validate::{LINE_MAX, NAME_MAX, WORD_MAX},
    },
};

/// Steps of one sequence.
pub(crate) const STEPS_MAX: usize = 50;
pub(super) const DESCRIPTION_MAX: usize = 1_000;
/// The longest text of a notification, a note or a reason, in characters.
const TEXT_MAX: usize = 10_000;
const NOTE_MAX: usize = 1_000;
/// The longest stage of a contact or an opportunity, in characters.
const STAGE_MAX: usize = 50;
/// The most that a webhook step may send along, in bytes of JSON.
const PAYLOAD_MAX_BYTES: usize = 16 * 1024;
const DUE_DAYS_MAX: u32 = 3_650;
/// The default name of a trigger.
const TRIGGER: &str = "manual_enrollment";

/// What `action_config` is, for the document.
pub(super) const CONFIG: &str = "\
By `step_type`: apply_tag, remove_tag `{tag_id}`; update_field `{field, value}`; update_lifecycle_stage `{stage}`; notify_owner \
`{subject, message, to?}` (plain text, no Liquid; `to`: the owner's address or one on a verified domain of the tenant; at most once an hour for an \
enrollment); create_task `{title, due_in_days?, notes?}`; create_opportunity `{name, stage?, value_cents?}`; update_subscription \
`{list_id?, status: subscribed|unsubscribed}`; add_suppression `{scope: all|marketing, note?}`; call_product_webhook `{url, \
payload?}`; end_sequence `{reason?}`; others `{}`.";

start_body! {
    /// The body of a creation.
    struct CreateSequence {
        #[schemars(with = "Name<NAME_MAX>")]
        name: Option<String>,
        #[schemars(length(max = DESCRIPTION_MAX))]
        description: Option<String>,
        /// Needed before a sequence that sends mail becomes active.
        sender_profile_id: Option<Id>,
        /// What starts it: a trigger with its `trigger_config`, else a label in the caller's words. Default: manual_enrollment.
        #[schemars(length(max = WORD_MAX))]
        trigger_type: Option<String>,
        /// Default: true.
        exit_on_unsubscribe: Option<bool>,
        /// Default: true.
        exit_on_bounce: Option<bool>,
        /// Default: true.
        exit_on_complaint: Option<bool>,
        /// Default: false.
        activate: Option<bool>,
        #[schemars(required, length(min = 1, max = STEPS_MAX))]
        steps: Option<Vec<CreateStep>>,
    }
}

/// A step of a new sequence or version.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateStep {
    #[schemars(with = "StepType")]
    step_type: Option<String>,
    /// Required for send_email, and for nothing else.
    template_id: Option<Id>,
    /// Counts from the step before. 0: at once.
    #[schemars(range(min = 0, max = 5_256_000))]
    delay_amount: Option<i64>,
    /// Default: minutes. Days and business days in the contact's, else the tenant's time zone.
    #[schemars(with = "Option<DelayUnit>")]
    delay_unit: Option<String>,
    #[schemars(description = CONFIG)]
    action_config: Option<Map<String, Value>>,
}

/// A sequence to be.
#[derive(Debug)]
pub(super) struct NewSequence {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) sender_profile_id: Option<Uuid>,
    pub(super) trigger_type: String,
    pub(super) start: StartRules,
    pub(super) exit_on_unsubscribe: bool,
    pub(super) exit_on_bounce: bool,
    pub(super) exit_on_complaint: bool,
    pub(super) activate: bool,
    pub(super) steps: Vec<NewStep>,
}

/// A step to be.
#[derive(Debug)]
pub(super) struct NewStep {
    pub(super) id: Uuid,
    pub(super) step_type: StepType,
    pub(super) template_id: Option<Uuid>,
    pub(super) delay_amount: i32,
    pub(super) delay_unit: DelayUnit,
    /// As it is stored and shown.
    pub(super) action_config: Value,
    pub(super) action: Action,
}

/// The facts about tenant and platform that the validation needs.
#[derive(Debug)]
pub(super) struct ValidationContext<'a> {
    pub(super) fields: BTreeMap<String, FieldType>,
    pub(super) rules: &'a TargetRules,
}

impl CreateSequence {
    /// Checks everything that needs no row of the tenant's.
    pub(super) fn validate(mut self, known: &ValidationContext<'_>) -> Result<NewSequence, ApiError> {
        let mut faults = Faults::default();
        let name = faults.name("name", self.name.take());
        faults.optional("description", self.description.as_deref(), DESCRIPTION_MAX);
        let trigger_type = self.trigger_type.take().unwrap_or_else(|| TRIGGER.to_owned());
        faults.key_word("trigger_type", &trigger_type);
        let start = self.take_rules(&trigger_type, &known.fields, &mut faults);
        let bodies = faults.required("steps", self.steps).unwrap_or_default();
        let steps = read_steps(bodies, known, &mut faults);
        faults.finish()?;
        Ok(NewSequence {
            name,
            description: self.description,
            sender_profile_id: self.sender_profile_id.map(|id| id.0),
            trigger_type,
            start,
            exit_on_unsubscribe: self.exit_on_unsubscribe.unwrap_or(true),
            exit_on_bounce: self.exit_on_bounce.unwrap_or(true),
            exit_on_complaint: self.exit_on_complaint.unwrap_or(true),
            activate: self.activate.unwrap_or(false),
            steps,
        })
    }
}

/// The steps of a sequence or of a version of one; what is wrong with them is in `faults`.
pub(super) fn read_steps(bodies: Vec<CreateStep>, known: &ValidationContext<'_>, faults: &mut Faults) -> Vec<NewStep> {
    faults.require((1..=STEPS_MAX).contains(&bodies.len()), "steps", "out_of_range", "must have 1 to 50 items");
    let mut steps = Vec::with_capacity(bodies.len());
    for (place, body) in bodies.into_iter().take(STEPS_MAX).enumerate() {
        steps.extend(body.validate(&format!("steps[{place}]"), known, faults));
    }
    steps
}

/// Whether any of them needs a sender.
pub(super) fn send(steps: &[NewStep]) -> bool {
    steps.iter().any(|step| step.step_type == StepType::SendEmail)
}

impl CreateStep {
    /// `None` for an invalid step; the faults are in `faults`.
    fn validate(self, path: &str, known: &ValidationContext<'_>, faults: &mut Faults) -> Option<NewStep> {
        let at = |name: &str| format!("{path}.{name}");
        let kind = faults.required(&at("step_type"), self.step_type);
        let step_type = kind.and_then(|kind| faults.word(&at("step_type"), &kind, StepType::ALL, StepType::as_str));
        let unit = self.delay_unit.unwrap_or_else(|| DelayUnit::Minutes.as_str().to_owned());
        let delay_unit = faults.word(&at("delay_unit"), &unit, DelayUnit::ALL, DelayUnit::as_str);
        let amount = self.delay_amount.unwrap_or(0);
        if let Some(unit) = delay_unit {
            faults.within(&at("delay_amount"), amount, 0..=i64::from(delay::longest(unit)));
        }
        let step_type = step_type?;
        let is_mail = step_type == StepType::SendEmail;
        match (is_mail, &self.template_id) {
            (true, None) => faults.add(at("template_id"), "required", "is required for send_email"),
            (false, Some(_)) => faults.add(at("template_id"), "not_allowed", "is for send_email only"),
            _ => {}
        }
        let (action, action_config) =
            read_action(&at("action_config"), step_type, self.action_config.unwrap_or_default(), known, faults)?;
        Some(NewStep {
            id: schemas::new_id(),
            step_type,
            template_id: self.template_id.map(|id| id.0),
            delay_amount: i32::try_from(amount).ok()?,
            delay_unit: delay_unit?,
            action_config,
            action,
        })
    }
}

/// Reads objects and keeps the path of a fault.
struct PathReader;

impl Decode<ApiError> for PathReader {
    fn decode<T: DeserializeOwned>(&self, object: Map<String, Value>) -> Result<T, ApiError> {
        json::decode(object)
    }
}

/// Reads a config and holds it against its rules. Answers it as it is to be stored, too.
fn read_action(
    path: &str,
    kind: StepType,
    mut config: Map<String, Value>,
    known: &ValidationContext<'_>,
    faults: &mut Faults,
) -> Option<(Action, Value)> {
    // Segments and templates say `fields.plan`; the bare key is what is kept.
    if let Some(Value::String(field)) = config.get_mut("field")
        && let Some(key) = field.strip_prefix("fields.")
    {
        *field = key.to_owned();
    }
    match Action::read(kind, config.clone(), &PathReader) {
        Ok(action) => {
            check(path, &action, known, faults);
            Some((action, Value::Object(config)))
        }
        Err(error) => {
            faults.add_within(path, error.fields);
            None
        }
    }
}

/// The rules of each config.
fn check(path: &str, action: &Action, known: &ValidationContext<'_>, faults: &mut Faults) {
    let at = |name: &str| format!("{path}.{name}");
    match action {
        Action::SendEmail
        | Action::Wait
        | Action::ApplyTag(_)
        | Action::RemoveTag(_)
        | Action::UpdateSubscription(_) => {}
        Action::UpdateField(update) => check_field(path, update, known, faults),
        Action::UpdateLifecycleStage(stage) => faults.title(&at("stage"), &stage.stage, STAGE_MAX),
        Action::NotifyOwner(notify) => {
            faults.title(&at("subject"), &notify.subject, LINE_MAX);
            faults.text(&at("message"), &notify.message, TEXT_MAX);
            if let Some(to) = &notify.to {
                faults.address(&at("to"), to);
            }
        }
        Action::CreateTask(task) => {
            faults.title(&at("title"), &task.title, NAME_MAX);
            faults.within(&at("due_in_days"), task.due_in_days.unwrap_or(0), 0..=DUE_DAYS_MAX);
            faults.optional(&at("notes"), task.notes.as_deref(), TEXT_MAX);
        }
        Action::CreateOpportunity(opportunity) => {
            faults.title(&at("name"), &opportunity.name, NAME_MAX);
            if let Some(stage) = &opportunity.stage {
                faults.title(&at("stage"), stage, STAGE_MAX);
            }
            let sane = opportunity.value_cents.is_none_or(|cents| cents >= 0);
            faults.require(sane, &at("value_cents"), "out_of_range", "must not be negative");
        }
        Action::AddSuppression(add) => faults.optional(&at("note"), add.note.as_deref(), NOTE_MAX),
        Action::EndSequence(end) => faults.optional(&at("reason"), end.reason.as_deref(), NOTE_MAX),
        Action::CallProductWebhook(call) => {
            faults.target(&at("url"), &call.url, known.rules);
            let bytes = call.payload.as_ref().map_or(0, |payload| json!(payload).to_string().len());
            faults.require(bytes <= PAYLOAD_MAX_BYTES, &at("payload"), "too_long", "may have at most 16384 bytes");
        }
    }
}

/// A field of the contact's own takes a line of text, a defined one what its type says; null clears either.
fn check_field(path: &str, update: &UpdateField, known: &ValidationContext<'_>, faults: &mut Faults) {
    let (field, value) = (format!("{path}.field"), format!("{path}.value"));
    if CONTACT_FIELDS.contains(&update.field.as_str()) {
        match &update.value {
            Value::Null => {}
            Value::String(text) => faults.title(&value, text, CONTACT_TEXT_MAX_CHARS),
            _ => faults.add(value, "wrong_type", "must be a string or null"),
        }
        return;
    }
    match known.fields.get(&update.field) {
        None => faults.add(field, "unknown_field", "is not a field of contacts"),
        Some(_) if update.value.is_null() => {}
        Some(kind) => {
            if let Err(wanted) = kind.check(&update.value) {
                faults.add(value, "wrong_type", wanted);
            }
        }
    }
}

/// The canonical addresses that `notify_owner` steps name, each with the step's place.
pub(super) fn owner_addresses(steps: &[NewStep]) -> Vec<(usize, String)> {
    let named = |step: &NewStep| match &step.action {
        Action::NotifyOwner(notify) => Address::parse(notify.to.as_deref()?).ok().map(Address::into_string),
        _ => None,
    };
    steps.iter().enumerate().filter_map(|(place, step)| Some((place, named(step)?))).collect()
}

/// What a config names and the tenant must have: tags, lists.
pub(super) fn audiences(steps: &[NewStep]) -> Vec<(AudienceKind, Uuid)> {
    let named = |step: &NewStep| match &step.action {
        Action::ApplyTag(tag) | Action::RemoveTag(tag) => Some((AudienceKind::Tag, tag.tag_id)),
        Action::UpdateSubscription(update) => update.list_id.map(|list| (AudienceKind::List, list)),
        _ => None,
    };
    steps.iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const ID: &str = "0198c0de-0000-7000-8000-000000000001";

    fn faults_of(step: &Value) -> Vec<(String, String)> {
        let body = json!({"name": "Welcome", "steps": [{"step_type": "wait"}, step]});
        let Value::Object(body) = body else { unreachable!() };
        let rules = TargetRules::default();
        let fields = BTreeMap::from([("plan".to_owned(), FieldType::String), ("seats".to_owned(), FieldType::Number)]);
        let known = ValidationContext { fields, rules: &rules };
        match json::decode::<CreateSequence>(body).and_then(|body| body.validate(&known)) {
            Ok(_) => Vec::new(),
            Err(error) => error.fields.into_iter().map(|fault| (fault.path, fault.code.into_owned())).collect(),
        }
    }

    #[rstest]
    #[case(json!({}), "step_type", "required")]
    #[case(json!({"step_type": "jump"}), "step_type", "not_allowed")]
    #[case(json!({"step_type": "send_email"}), "template_id", "required")]
    #[case(json!({"step_type": "wait", "template_id": ID}), "template_id", "not_allowed")]
    #[case(json!({"step_type": "wait", "delay_amount": -1}), "delay_amount", "out_of_range")]
    #[case(json!({"step_type": "wait", "delay_amount": 3651, "delay_unit": "days"}), "delay_amount", "out_of_range")]
    #[case(json!({"step_type": "wait", "delay_unit": "years"}), "delay_unit", "not_allowed")]
    #[case(json!({"step_type": "wait", "colour": "red"}), "colour", "unknown_field")]
    #[case(json!({"step_type": "wait", "action_config": {"x": 1}}), "action_config.x", "unknown_field")]
    #[case(json!({"step_type": "apply_tag"}), "action_config.tag_id", "required")]
    #[case(json!({"step_type": "apply_tag", "action_config": {"tag_id": "x"}}), "action_config.tag_id", "invalid")]
    #[case(json!({"step_type": "update_field", "action_config": {"field": "colour", "value": 1}}), "action_config.field", "unknown_field")]
    #[case(json!({"step_type": "update_field", "action_config": {"field": "seats", "value": "two"}}), "action_config.value", "wrong_type")]
    #[case(json!({"step_type": "update_field", "action_config": {"field": "title", "value": 2}}), "action_config.value", "wrong_type")]
    #[case(json!({"step_type": "update_lifecycle_stage", "action_config": {"stage": " "}}), "action_config.stage", "empty")]
    #[case(json!({"step_type": "notify_owner", "action_config": {"subject": "a\nb", "message": "m"}}), "action_config.subject", "control_character")]
    #[case(json!({"step_type": "notify_owner", "action_config": {"subject": "a", "message": "m", "to": "nobody"}}), "action_config.to", "missing_at")]
    #[case(json!({"step_type": "create_task", "action_config": {"title": "Call", "due_in_days": 9999}}), "action_config.due_in_days", "out_of_range")]
    #[case(json!({"step_type": "create_task", "action_config": {"title": "x".repeat(300)}}), "action_config.title", "too_long")]
    #[case(json!({"step_type": "update_field", "action_config": {"field": "title", "value": " "}}), "action_config.value", "empty")]
    #[case(json!({"step_type": "create_opportunity", "action_config": {"name": "Big", "value_cents": -1}}), "action_config.value_cents", "out_of_range")]
    #[case(json!({"step_type": "update_subscription", "action_config": {"status": "gone"}}), "action_config.status", "not_allowed")]
    #[case(json!({"step_type": "add_suppression", "action_config": {}}), "action_config.scope", "required")]
    #[case(json!({"step_type": "call_product_webhook", "action_config": {"url": "http://example.com/"}}), "action_config.url", "not_https")]
    #[case(json!({"step_type": "call_product_webhook", "action_config": {"url": "https://127.0.0.1/"}}), "action_config.url", "address_not_allowed")]
    #[case(json!({"step_type": "call_product_webhook", "action_config": {"url": "https://example.com/a\nb"}}), "action_config.url", "invalid")]
    fn a_fault_of_a_step_names_its_place(#[case] step: Value, #[case] path: &str, #[case] code: &str) {
        assert_eq!(faults_of(&step), [(format!("steps[1].{path}"), code.to_owned())]);
    }

    #[rstest]
    #[case(json!({"step_type": "send_email", "template_id": ID, "delay_amount": 2, "delay_unit": "business_days"}))]
    #[case(json!({"step_type": "update_field", "action_config": {"field": "fields.plan", "value": "pro"}}))]
    #[case(json!({"step_type": "update_field", "action_config": {"field": "seats", "value": null}}))]
    #[case(json!({"step_type": "update_field", "action_config": {"field": "company", "value": "Acme"}}))]
    #[case(json!({"step_type": "update_subscription", "action_config": {"list_id": ID, "status": "subscribed"}}))]
    #[case(json!({"step_type": "call_product_webhook", "action_config": {"url": "https://example.com/hook", "payload": {"a": 1}}}))]
    #[case(json!({"step_type": "end_sequence", "action_config": {"reason": "done"}}))]
    fn a_good_step_has_no_fault(#[case] step: Value) {
        assert_eq!(faults_of(&step), []);
    }
}
