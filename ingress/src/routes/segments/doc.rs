//! How `/v1/segments` is documented.

use segments::{DEPTH_MAX, EVENT_OPS, EVENTS, EVENTS_MAX, EXPANDED_LEAVES_MAX, LEAVES_MAX, OPS, SAMPLE_MAX};
use serde_json::{Value, json};

use super::{DESCRIPTION_MAX_CHARS, NAME_MAX_CHARS};
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Schema, any_of, array, array_max, boolean, count, email, id, integer, nullable, object, one_of, page_of,
        required, success, text, text_max, time, words,
    },
};

/// A rule, which is made of rules.
fn rule() -> Schema {
    let part = || Schema::raw(json!({"$ref": "#/components/schemas/SegmentRule"}));
    let parts = || array_max(part(), LEAVES_MAX).with("minItems", 1);
    let scalar = || Schema::raw(json!({"type": ["string", "number", "boolean"]}));
    let value = any_of([scalar(), array(scalar()).with("minItems", 1)]);
    let event = object([
        required("event", one_of(EVENTS)),
        nullable("op", one_of(EVENT_OPS)),
        nullable("count", integer(0, 1_000_000).about("How many mails it happened to; 1, if left out.")),
        nullable("within_days", integer(1, 36_500)),
        nullable("campaign_id", id()),
        nullable("human_only", boolean().about("Of opens and clicks: only what a person did, as far as can be told.")),
    ]);
    any_of([
        object([required("all", parts())]),
        object([required("any", parts())]),
        object([required("not", part())]),
        object([
            required("field", text().about("A field of the contact, or `fields.<key>` of a defined one.")),
            required("op", one_of(OPS)),
            nullable("value", value.about("Of the field's type; a list for `in`, `not_in` and `between`; none for `exists`.")),
        ]),
        object([required("in_list", id())]),
        object([required("has_tag", id())]),
        object([required("in_segment", id())]),
        event,
    ])
    .about(
        "A tree of `all`, `any` and `not` over leaves. A missing value matches no operator but `neq`, `not_in`, `not_contains` and \
         `not_exists`, which are exact complements; an empty text or list is missing. Text is compared without regard to case. \
         Days count from now, in UTC; `within_days: -30` is the thirty days to come. An event counts once for each mail. \
         Archived contacts match nothing.",
    )
    .named("SegmentRule")
}

fn segment() -> Schema {
    object([
        required("segment_id", id()),
        required("name", text()),
        required("description", text().or_null()),
        required("rule", rule()),
        required("created_at", time()),
        required("updated_at", time()),
    ])
    .named("Segment")
}

fn example_rule() -> Value {
    json!({"all": [
        {"field": "fields.plan", "op": "eq", "value": "pro"},
        {"not": {"event": "email.opened", "within_days": 90, "human_only": true}},
    ]})
}

fn example() -> Value {
    json!({
        "segment_id": ID, "name": "Sleeping customers", "description": null, "rule": example_rule(), "created_at": AT,
        "updated_at": AT,
    })
}

fn limits() -> String {
    format!(
        "At most {DEPTH_MAX} deep, {LEAVES_MAX} leaves; with those of the segments it names {EXPANDED_LEAVES_MAX}, {EVENTS_MAX} of them \
         events."
    )
}

pub(super) fn list() -> Doc {
    Doc::new("listSegments", "List segments", "Newest first. The id is what campaigns take as `segment_id`.")
        .paged()
        .answer_schema(
            200,
            "A page of segments",
            page_of("segments", segment()),
            json!({"ok": true, "segments": [example()], "next_cursor": null}),
        )
}

/// The refusals of every write that has a rule.
fn with_rule(doc: Doc) -> Doc {
    doc.refuses(404, &["list_not_found", "tag_not_found", "segment_not_found", "campaign_not_found"])
}

pub(super) fn create() -> Doc {
    let body = object([
        required("name", words(NAME_MAX_CHARS)),
        nullable("description", text_max(DESCRIPTION_MAX_CHARS)),
        required("rule", rule().about(&limits())),
    ]);
    with_rule(
        Doc::new(
            "createSegment",
            "Create a segment",
            "An audience by rule: whoever matches when it is asked. Faults name their place in the rule, as `rule.all[1].value`.",
        )
      .body_schema(body, json!({"name": "Sleeping customers", "rule": example_rule()}))
        .answer_schema(
            201,
            "Created",
            success([required("segment_id", id()), required("name", text())]),
            json!({"ok": true, "segment_id": ID, "name": "Sleeping customers"}),
        )
        .leads_to("segment_id", &["getSegment", "updateSegment", "deleteSegment"])
        .refuses(409, &["segment_name_taken"]),
    )
}

pub(super) fn preview() -> Doc {
    let contact = object([
        required("contact_id", id()),
        required("email", email()),
        required("first_name", text().or_null()),
        required("last_name", text().or_null()),
    ]);
    let sample = array_max(contact, usize::try_from(SAMPLE_MAX).unwrap_or_default());
    with_rule(
        Doc::new("previewSegment", "See what a rule comes to", "Now, and without storing anything.")
            .body_schema(object([required("rule", rule().about(&limits()))]), json!({"rule": example_rule()}))
            .answer_schema(
                200,
                "How many match, and the newest of them",
                success([required("count", count()), required("sample", sample), required("evaluated_at", time())]),
                json!({
                    "ok": true, "count": 1, "evaluated_at": AT,
                    "sample": [{"contact_id": ID, "email": "ann@example.com", "first_name": "Ann", "last_name": null}],
                }),
            ),
    )
}

fn one(doc: Doc) -> Doc {
    let body = success([required("segment", segment())]);
    doc.answer_schema(200, "The segment", body, json!({"ok": true, "segment": example()}))
        .refuses(404, &["segment_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getSegment", "Read a segment", ""))
}

pub(super) fn change() -> Doc {
    let body = object([
        nullable("name", words(NAME_MAX_CHARS)),
        nullable("description", text_max(DESCRIPTION_MAX_CHARS)),
        nullable("rule", rule().about(&limits())),
    ]);
    with_rule(one(Doc::new(
        "updateSegment",
        "Change a segment",
        "What is left out stays. A campaign is mailed by the rule as it stands when its audience is looked up.",
    )
    .body_schema(body, json!({"name": "Sleeping customers"}))
    .refuses(409, &["segment_name_taken"])))
}

pub(super) fn remove() -> Doc {
    Doc::new("deleteSegment", "Delete a segment", "Not while another segment or a campaign that is not over names it.")
        .body_schema(object([]), json!({}))
        .answer_schema(
            200,
            "Deleted",
            success([required("segment_id", id()), required("status", one_of(["deleted"]))]),
            json!({"ok": true, "segment_id": ID, "status": "deleted"}),
        )
        .refuses(404, &["segment_not_found"])
        .refuses(409, &["segment_in_use"])
}
