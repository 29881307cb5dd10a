//! How the rule of a segment is described. [`segments::Rule::parse`] reads it.
#![expect(dead_code, reason = "described, not built")]

use schemars::JsonSchema;
use segments::{DEPTH_MAX, EVENT_OPS, EVENTS, EVENTS_MAX, EXPANDED_LEAVES_MAX, LEAVES_MAX, OPS, PROPERTIES_MAX};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::pipeline::validate::EVENT_PATTERN;

/// A tree of `all`, `any` and `not` over leaves. A missing value matches no operator but `neq`, `not_in`, `not_contains` and
/// `not_exists`, which are exact complements; an empty text or list is missing. Text is compared without regard to case.
/// Days count from now, in UTC; `within_days: -30` is the thirty days to come. An event counts once for each mail.
/// Archived contacts match nothing.
#[derive(JsonSchema)]
#[schemars(untagged)]
pub(super) enum SegmentRule {
    All(AllOf),
    Any(AnyOf),
    Not(NoneOf),
    Field(FieldCondition),
    List(ListCondition),
    Tag(TagCondition),
    Segment(SegmentCondition),
    Event(EventCondition),
    ProductEvent(ProductEventCondition),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct AllOf {
    #[schemars(length(min = 1, max = LEAVES_MAX))]
    all: Vec<SegmentRule>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct AnyOf {
    #[schemars(length(min = 1, max = LEAVES_MAX))]
    any: Vec<SegmentRule>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct NoneOf {
    not: Box<SegmentRule>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct FieldCondition {
    /// A field of the contact, or `fields.<key>` of a defined one.
    field: String,
    #[schemars(extend("enum" = OPS))]
    op: String,
    /// Of the field's type; a list for `in`, `not_in` and `between`; none for `exists`.
    #[schemars(skip_serializing_if = "Option::is_none")]
    value: Option<RuleValue>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct ListCondition {
    in_list: Uuid,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct TagCondition {
    has_tag: Uuid,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct SegmentCondition {
    in_segment: Uuid,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct EventCondition {
    #[schemars(extend("enum" = EVENTS))]
    event: String,
    #[schemars(skip_serializing_if = "Option::is_none", extend("enum" = EVENT_OPS))]
    op: Option<String>,
    /// How many mails it happened to; 1, if left out.
    #[schemars(skip_serializing_if = "Option::is_none", range(min = 0, max = 1_000_000))]
    count: Option<i64>,
    #[schemars(skip_serializing_if = "Option::is_none", range(min = 1, max = 36_500))]
    within_days: Option<i64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    campaign_id: Option<Uuid>,
    /// Of opens and clicks: only those that a person made, as far as can be known.
    #[schemars(skip_serializing_if = "Option::is_none")]
    human_only: Option<bool>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct ProductEventCondition {
    /// An event that products record (`POST /v1/events`), counted each time.
    #[schemars(regex(pattern = EVENT_PATTERN))]
    product_event: String,
    #[schemars(skip_serializing_if = "Option::is_none", extend("enum" = EVENT_OPS))]
    op: Option<String>,
    /// How often it happened; 1, if left out.
    #[schemars(skip_serializing_if = "Option::is_none", range(min = 0, max = 1_000_000))]
    count: Option<i64>,
    #[schemars(skip_serializing_if = "Option::is_none", range(min = 1, max = 36_500))]
    within_days: Option<i64>,
    /// Properties that the event has with exactly these values: texts, numbers, true or false.
    #[schemars(skip_serializing_if = "Option::is_none", extend("maxProperties" = PROPERTIES_MAX))]
    properties: Option<Map<String, Value>>,
}

#[derive(JsonSchema)]
#[schemars(untagged, inline)]
pub(super) enum RuleValue {
    One(RuleScalar),
    Many(#[schemars(length(min = 1))] Vec<RuleScalar>),
}

#[derive(JsonSchema)]
#[schemars(inline, extend("type" = ["string", "number", "boolean"]))]
pub(super) struct RuleScalar(Value);

/// How large a rule may be.
pub(super) fn limits() -> String {
    format!(
        "At most {DEPTH_MAX} deep, {LEAVES_MAX} leaves; with those of the segments it names {EXPANDED_LEAVES_MAX}, {EVENTS_MAX} of them \
         events."
    )
}
