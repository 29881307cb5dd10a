//! What starts a sequence by itself, and what ends enrollments from outside: the part of a sequence's body that says so, and
//! `/v1/sequences/{id}/trigger`, which changes it.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveTime, Utc};
use schemars::JsonSchema;
use schemas::SequenceStatus;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::store;
use crate::{
    api::{
        audiences::held::{AudienceKind, hold_audiences},
        events::ProductEventTerms,
        fields::definitions::{self, FieldType},
        segments,
    },
    pipeline::{ApiReply, Faults, Id, RequestContext, error::ApiError, json, validate::WORD_MAX},
};

/// The longest gap between two starts: ten years.
pub(super) const GAP_MAX_MINUTES: i32 = 5_256_000;

/// What `trigger_config` is, for the document.
pub(super) const TRIGGER_CONFIG: &str = "\
What starts the sequence by itself, by `trigger_type`: event `{event, properties?}` (an event of `POST /v1/events` with this name, and \
with exactly these values of up to five properties); contact_created `{}` (a contact that is new, other than from transactional or \
one-off mail or a test of a campaign); list_joined `{list_id}`; tag_added `{tag_id}`; segment_entered `{segment_id}` (a contact that was not in it before; looked at \
every five minutes); field_date `{field, offset_days?, yearly?, at?}` (a date field: so many days after it, or before it if negative, at \
09:00 or `at` in the contact's, else the tenant's time zone). An import starts nothing unless it has `start_sequences`, but dates that it brings count. Without a config the sequence is started by \
enrollments only, and `trigger_type` is a label.";

/// The words of `trigger_type` that take a config.
const TRIGGERS: [&str; 6] = ["event", "contact_created", "list_joined", "tag_added", "segment_entered", "field_date"];
/// How far from a date its moment may lie, in days.
const OFFSET_MAX_DAYS: i32 = 3_650;

/// Of `contact_created`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnyContact {}

/// Of `list_joined`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinedList {
    list_id: Id,
}

/// Of `tag_added`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedTag {
    tag_id: Id,
}

/// Of `segment_entered`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnteredSegment {
    segment_id: Id,
}

/// Of `field_date`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldDateTerms {
    field: String,
    #[serde(default)]
    offset_days: i32,
    #[serde(default)]
    yearly: bool,
    #[serde(default = "nine")]
    at: String,
}

fn nine() -> String {
    "09:00".to_owned()
}

impl FieldDateTerms {
    /// Checks them; the field is stored by its bare key.
    fn check(mut self, fields: &BTreeMap<String, FieldType>, faults: &mut Faults) -> Self {
        if let Some(key) = self.field.strip_prefix("fields.") {
            self.field = key.to_owned();
        }
        match fields.get(&self.field) {
            None => faults.add("trigger_config.field", "unknown_field", "is not a field of contacts"),
            // The day of a time is another one in another time zone.
            Some(FieldType::Date) => {}
            Some(_) => faults.add("trigger_config.field", "wrong_type", "must be a date field"),
        }
        faults.within("trigger_config.offset_days", self.offset_days, -OFFSET_MAX_DAYS..=OFFSET_MAX_DAYS);
        let is_time = self.at.len() == 5 && NaiveTime::parse_from_str(&self.at, "%H:%M").is_ok();
        faults.require(is_time, "trigger_config.at", "invalid", "must be a time of day as 09:00");
        self
    }
}

schemas::named_enum! {
    /// How often one contact starts a sequence by its trigger.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub(super) wire enum Reentry {
        /// Never again after the first enrollment, of whatever origin.
        Once = "once",
        /// Again when no enrollment of the contact is under way.
        AfterFinishing = "after_finishing",
        /// Also beside an enrollment that is under way.
        EveryTime = "every_time",
    }
}

impl Reentry {
    /// That of a trigger with this config whose body names none.
    pub(super) fn default_for(trigger_config: Option<&Value>) -> Self {
        if is_yearly(trigger_config) { Self::AfterFinishing } else { Self::Once }
    }
}

/// True for a `field_date` that comes every year.
fn is_yearly(trigger_config: Option<&Value>) -> bool {
    trigger_config.is_some_and(|config| config["yearly"] == true)
}

/// When a sequence starts by itself, and which event ends its enrollments.
#[derive(Debug)]
pub(super) struct StartRules {
    /// As it is stored and shown.
    pub(super) trigger_config: Option<Value>,
    pub(super) reentry: Reentry,
    pub(super) reentry_gap_minutes: i32,
    pub(super) enroll_from: Option<DateTime<Utc>>,
    pub(super) enroll_until: Option<DateTime<Utc>>,
    pub(super) exit_on_event: Option<ProductEventTerms>,
}

/// Makes a body with what starts a sequence, beside its own fields.
macro_rules! start_body {
    ($(#[$about:meta])* struct $body:ident { $($own:tt)* }) => {
        #[derive(Debug, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub(super) struct $body {
            $($own)*
            #[schemars(description = TRIGGER_CONFIG)]
            trigger_config: Option<Map<String, Value>>,
            /// How often one contact starts it by the trigger. Default: once; of a `yearly` trigger, which takes no `once`, after_finishing.
            reentry: Option<Reentry>,
            /// The least time between two starts of a contact by the trigger. Default: 0; `every_time` needs one.
            #[schemars(range(min = 0, max = GAP_MAX_MINUTES))]
            reentry_gap_minutes: Option<i32>,
            /// The trigger starts nothing before.
            enroll_from: Option<$crate::pipeline::GivenTime>,
            /// The trigger starts nothing from then on.
            enroll_until: Option<$crate::pipeline::GivenTime>,
            /// An event of `POST /v1/events` that ends enrollments which are under way.
            exit_on_event: Option<ProductEventTerms>,
        }

        impl $body {
            /// The rules of a sequence with this trigger, after every fault in them was added.
            fn take_rules(
                &mut self,
                trigger_type: &str,
                fields: &BTreeMap<String, FieldType>,
                faults: &mut Faults,
            ) -> StartRules {
                let config = self.trigger_config.take();
                let trigger_config = config.and_then(|config| read_trigger(trigger_type, config, fields, faults));
                let rules = StartRules {
                    reentry: self.reentry.unwrap_or_else(|| Reentry::default_for(trigger_config.as_ref())),
                    trigger_config,
                    reentry_gap_minutes: self.reentry_gap_minutes.unwrap_or(0),
                    enroll_from: self.enroll_from.map(|at| at.0),
                    enroll_until: self.enroll_until.map(|at| at.0),
                    exit_on_event: self.exit_on_event.take(),
                };
                rules.check(faults);
                rules
            }
        }
    };
}
pub(super) use start_body;

impl StartRules {
    /// The list or tag that the trigger names, with what it is.
    fn audience(&self) -> Option<(AudienceKind, Uuid)> {
        let config = self.trigger_config.as_ref()?;
        let named = |key: &str| config.get(key)?.as_str()?.parse().ok();
        let list = named("list_id").map(|id| (AudienceKind::List, id));
        list.or_else(|| named("tag_id").map(|id| (AudienceKind::Tag, id)))
    }

    /// The segment that the trigger names.
    fn segment(&self) -> Option<Uuid> {
        self.trigger_config.as_ref()?.get("segment_id")?.as_str()?.parse().ok()
    }

    /// Checks the rules of a sequence with this trigger.
    pub(super) fn check(&self, faults: &mut Faults) {
        let stops_after_a_year = is_yearly(self.trigger_config.as_ref()) && self.reentry == Reentry::Once;
        faults.require(!stops_after_a_year, "reentry", "not_allowed", "must not be once for a yearly trigger");
        let gap = self.reentry_gap_minutes;
        let least = i32::from(self.reentry == Reentry::EveryTime);
        if !(least..=GAP_MAX_MINUTES).contains(&gap) {
            let detail = format!("must be from {least} to {GAP_MAX_MINUTES} for {}", self.reentry.as_str());
            faults.add("reentry_gap_minutes", "out_of_range", detail);
        }
        let in_order = match (self.enroll_from, self.enroll_until) {
            (Some(from), Some(until)) => from < until,
            _ => true,
        };
        faults.require(in_order, "enroll_until", "out_of_range", "must be after enroll_from");
        if let Some(terms) = &self.exit_on_event {
            terms.check("exit_on_event", faults);
        }
    }
}

/// Where a config stands in a body.
const CONFIG_PATH: &str = "trigger_config";

/// Reads the config of a trigger; answers it as it is to be stored. `None` and a fault for one that cannot be.
pub(super) fn read_trigger(
    trigger_type: &str,
    config: Map<String, Value>,
    fields: &BTreeMap<String, FieldType>,
    faults: &mut Faults,
) -> Option<Value> {
    match trigger_type {
        "event" => {
            let terms: ProductEventTerms = decode(config, faults)?;
            terms.check(CONFIG_PATH, faults);
            serde_json::to_value(terms).ok()
        }
        "contact_created" => decode_as_stored::<AnyContact>(config, faults),
        "list_joined" => decode_as_stored::<JoinedList>(config, faults),
        "tag_added" => decode_as_stored::<AddedTag>(config, faults),
        "segment_entered" => decode_as_stored::<EnteredSegment>(config, faults),
        "field_date" => {
            let terms: FieldDateTerms = decode(config, faults)?;
            serde_json::to_value(terms.check(fields, faults)).ok()
        }
        _ => {
            faults.add(CONFIG_PATH, "not_allowed", format!("is for the trigger types {}", TRIGGERS.join(", ")));
            None
        }
    }
}

fn decode_as_stored<T: DeserializeOwned + Serialize>(config: Map<String, Value>, faults: &mut Faults) -> Option<Value> {
    serde_json::to_value(decode::<T>(config, faults)?).ok()
}

/// What is null counts as left out.
fn decode<T: DeserializeOwned>(mut config: Map<String, Value>, faults: &mut Faults) -> Option<T> {
    config.retain(|_, value| !value.is_null());
    json::decode(config).map_err(|error| faults.add_within(CONFIG_PATH, error.fields)).ok()
}

start_body! {
    /// The body of a change: all of it, what is left out takes its default.
    struct ChangeTrigger {
        #[schemars(required, length(max = WORD_MAX))]
        trigger_type: Option<String>,
    }
}

/// The sequence with its new trigger.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TriggerChanged {
    sequence: store::SequenceRow,
}

/// Replaces the trigger. Occurrences that are noted already are decided by the new re-entry rule.
pub(super) async fn change(ctx: &mut RequestContext, mut body: ChangeTrigger) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sequence")?);
    let mut faults = Faults::default();
    let given = faults.required("trigger_type", body.trigger_type.take());
    if let Some(word) = &given {
        faults.key_word("trigger_type", word);
    }
    let trigger_type = given.unwrap_or_default();
    let fields = definitions::read_for_naming(ctx.db(), tenant).await?;
    let rules = body.take_rules(&trigger_type, &fields, &mut faults);
    faults.finish()?;
    let before = store::lock(ctx.db(), tenant, id).await?;
    if before.status == SequenceStatus::Archived {
        return Err(ApiError::conflict("sequence_archived").detail("an archived sequence is started by nothing"));
    }
    require_named(ctx, &rules).await?;
    // What is looked for by a sweep is looked for from the beginning, unless it is the same as before: a contact that entered the segment
    // since the last look still starts the sequence.
    sqlx::query!(
        "update sequences
         set trigger_type = $3, trigger_config = $4, reentry = $5, reentry_gap_minutes = $6, enroll_from = $7, enroll_until = $8,
             exit_event = $9, triggers_tried_at = null, updated_at = now(),
             triggers_swept_at = case
                 when trigger_type = $3 and (trigger_config ->> 'segment_id', trigger_config ->> 'field')
                     is not distinct from ($4::jsonb ->> 'segment_id', $4::jsonb ->> 'field') then triggers_swept_at
             end
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        trigger_type,
        rules.trigger_config,
        rules.reentry.as_str(),
        rules.reentry_gap_minutes,
        rules.enroll_from,
        rules.enroll_until,
        rules.exit_on_event.as_ref().map(|terms| json!(terms)),
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("sequence.trigger_changed", &format!("sequence:{id}"), json!({"trigger_type": trigger_type})).await?;
    let sequence = store::get(ctx.db(), tenant, id).await?;
    ApiReply::ok(&TriggerChanged { sequence })
}

/// 404 for a segment, list or tag that the trigger names and the tenant does not have.
pub(super) async fn require_named(ctx: &mut RequestContext, rules: &StartRules) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    if let Some(segment) = rules.segment() {
        segments::lock_for_use(ctx.db(), tenant, segment).await?;
    }
    let Some((kind, id)) = rules.audience() else { return Ok(()) };
    hold_audiences(ctx.db(), tenant, &[id]).await?.require(kind, id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::date(FieldType::Date, None)]
    #[case::datetime(FieldType::Datetime, Some("wrong_type"))]
    #[case::number(FieldType::Number, Some("wrong_type"))]
    fn only_a_date_field_starts_a_sequence(#[case] kind: FieldType, #[case] fault: Option<&str>) {
        let config = Map::from_iter([("field".to_owned(), json!("renewal"))]);
        let (fields, mut faults) = (BTreeMap::from([("renewal".to_owned(), kind)]), Faults::default());
        read_trigger("field_date", config, &fields, &mut faults);
        let codes = faults.finish().err().map(|error| error.fields[0].code.to_string());
        assert_eq!(codes.as_deref(), fault);
    }
}
