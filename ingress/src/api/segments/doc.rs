//! How `/v1/segments` is documented.

use serde_json::{Value, json};

use super::{
    ChangeSegment, CreateSegment, PreviewSegment, SegmentAnswer, SegmentCreated, SegmentDeleted, SegmentPage,
    SegmentPreview,
};
use crate::pipeline::{
    Doc, NoFields,
    doc::{AT, ID},
    page::PageQuery,
};

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

pub(super) fn list() -> Doc {
    Doc::new("listSegments", "List segments", "Newest first. The id is what campaigns take as `segment_id`.")
        .query::<PageQuery>()
        .answer::<SegmentPage>(200, "A page of segments", json!({"segments": [example()], "next_cursor": null}))
}

/// The refusals of every write that has a rule.
fn with_rule(doc: Doc) -> Doc {
    doc.refuses(404, &["list_not_found", "tag_not_found", "segment_not_found", "campaign_not_found"])
}

pub(super) fn create() -> Doc {
    with_rule(
        Doc::new(
            "createSegment",
            "Create a segment",
            "An audience by rule: the contacts that match when it is used. Faults name their place in the rule, as `rule.all[1].value`.",
        )
        .body::<CreateSegment>(json!({"name": "Sleeping customers", "rule": example_rule()}))
        .answer::<SegmentCreated<'_>>(201, "Created", json!({"segment_id": ID, "name": "Sleeping customers"}))
        .leads_to("segment_id", &["getSegment", "updateSegment", "deleteSegment"])
        .refuses(409, &["segment_name_taken"]),
    )
}

pub(super) fn preview() -> Doc {
    with_rule(
        Doc::new("previewSegment", "Preview a rule", "The contacts that match now. Nothing is stored.")
            .body::<PreviewSegment>(json!({"rule": example_rule()}))
            .answer::<SegmentPreview>(
                200,
                "How many match, and the newest of them",
                json!({
                    "count": 1, "evaluated_at": AT,
                    "sample": [{"contact_id": ID, "email": "ann@example.com", "first_name": "Ann", "last_name": null}],
                }),
            ),
    )
}

fn one(doc: Doc) -> Doc {
    doc.answer::<SegmentAnswer>(200, "The segment", json!({"segment": example()})).refuses(404, &["segment_not_found"])
}

pub(super) fn show() -> Doc {
    one(Doc::new("getSegment", "Read a segment", ""))
}

pub(super) fn change() -> Doc {
    with_rule(one(Doc::new(
        "updateSegment",
        "Change a segment",
        "What is left out stays. A campaign is mailed by the rule as it stands when its audience is looked up.",
    )
    .body::<ChangeSegment>(json!({"name": "Sleeping customers"}))
    .refuses(409, &["segment_name_taken"])))
}

pub(super) fn remove() -> Doc {
    Doc::new("deleteSegment", "Delete a segment", "Not while another segment or a campaign that is not over names it.")
        .body::<NoFields>(json!({}))
        .answer::<SegmentDeleted>(200, "Deleted", json!({"segment_id": ID, "status": "deleted"}))
        .refuses(404, &["segment_not_found"])
        .refuses(409, &["segment_in_use"])
}
