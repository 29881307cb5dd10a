//! How `/v1/enrollments` is documented.

use schemas::{EnrollmentStatus, ExitReason, SkipReason, StepType};
use serde_json::{Value, json};

use super::input::FIELD_MAX;
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Field, Schema, any_object, array, boolean, count, email, id, integer, line, nullable, object, one_of, optional,
        page_of, required, success, text, time,
    },
};

fn statuses() -> Schema {
    one_of(EnrollmentStatus::ALL.iter().map(|status| status.as_str()))
}

fn reasons() -> Schema {
    one_of(ExitReason::ALL.iter().map(|reason| reason.as_str())).or_null()
}

fn common() -> Vec<Field> {
    vec![
        required("enrollment_id", id()),
        required("sequence_id", id()),
        required("contact_id", id()),
        required("email", text().or_null().about("Null once the contact was erased.")),
        required("status", statuses()),
        required("exit_reason", reasons().about("Why it ended early: the step failed for `failed`.")),
        required("next_step_order", integer(1, 50).or_null()),
        required("next_action_at", time().or_null()),
        required("attempt_count", count().about("Attempts at the next step so far.")),
        required("last_error", text().or_null().about("Why the last attempt failed: a code.")),
        required("ended_at", time().or_null()),
        required("created_at", time()),
        required("updated_at", time()),
    ]
}

fn example() -> Value {
    json!({
        "enrollment_id": ID, "sequence_id": ID, "contact_id": ID, "email": "ann@example.com", "status": "active", "exit_reason": null,
        "next_step_order": 2, "next_action_at": AT, "attempt_count": 0, "last_error": null, "ended_at": null, "created_at": AT,
        "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listEnrollments", "List enrollments", "Newest first.")
        .query_fields([
            optional("sequence_id", id()),
            optional("contact_id", id()),
            optional("email", email().about("Instead of contact_id.")),
            optional("status", statuses()),
        ])
        .paged()
        .answer_schema(
            200,
            "A page of enrollments",
            page_of("enrollments", object(common()).named("EnrollmentSummary")),
            json!({"ok": true, "enrollments": [example()], "next_cursor": null}),
        )
}

pub(super) fn create() -> Doc {
    Doc::new(
        "enroll",
        "Enroll a contact in a sequence",
        "The contact is found or created by address; its empty fields are filled. A new one is subscribed, and so is one that is known from \
         transactional or one-off mail only: the product that enrolls a contact says that it may be written to. A contact that \
         unsubscribed, bounced or complained is never subscribed by this; it leaves the sequence again at once. `mailable` tells \
         whether the sequence's mail would pass the gate now, and `skip_reason` why not.",
    )
  .body_schema(
        object([
            required("sequence_id", id()),
            required("email", email()),
            nullable("first_name", line(FIELD_MAX)),
            nullable("last_name", line(FIELD_MAX)),
            nullable("title", line(FIELD_MAX)),
            nullable("phone", line(FIELD_MAX)),
        ]),
        json!({"sequence_id": ID, "email": "ann@example.com", "first_name": "Ann"}),
    )
    .answer_schema(
        201,
        "Enrolled",
        success([
            required("enrollment_id", id()),
            required("contact_id", id()),
            required("sequence_id", id()),
            required("next_action_at", time().about("When its first step is due.")),
            optional("mailable", boolean().about("Whether mail to the contact would pass the gate now.")),
            optional(
                "skip_reason",
                one_of(SkipReason::ALL.iter().map(|reason| reason.as_str())).or_null().about("Why it would not."),
            ),
        ]),
        json!({
            "ok": true, "enrollment_id": ID, "contact_id": ID, "sequence_id": ID, "next_action_at": AT, "mailable": true,
            "skip_reason": null,
        }),
    )
    .leads_to("enrollment_id", &["getEnrollment", "exitEnrollment"])
    .refuses(404, &["sequence_not_found"])
    .refuses(409, &["already_enrolled", "sequence_not_active", "sequence_has_no_steps"])
}

pub(super) fn show() -> Doc {
    let step = object([
        required("step_id", id()),
        required("step_order", integer(1, 50)),
        required("step_type", one_of(StepType::ALL.iter().map(|kind| kind.as_str()))),
        required("outcome", one_of(["done", "unchanged", "withheld", "failed"])),
        required("detail", any_object().about("Ids and codes of what it did.")),
        required("send_id", id().or_null().about("Its mail: `GET /v1/sends/{send_id}`.")),
        required("due_at", time()),
        required("done_at", time()),
    ]);
    let mut fields = common();
    fields.push(required("steps", array(step).about("Those that were taken, in order.")));
    let mut enrollment = example();
    enrollment["steps"] = json!([{
        "step_id": ID, "step_order": 1, "step_type": "send_email", "outcome": "done", "detail": {"template_id": ID}, "send_id": ID,
        "due_at": AT, "done_at": AT,
    }]);
    Doc::new("getEnrollment", "Read an enrollment", "Where it is, and what its steps did.")
        .answer_schema(
            200,
            "The enrollment",
            success([required("enrollment", object(fields).named("Enrollment"))]),
            json!({"ok": true, "enrollment": enrollment}),
        )
        .refuses(404, &["enrollment_not_found"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "exitEnrollment",
        "End an enrollment",
        "Nothing of it happens any more. One that is over stays as it ended.",
    )
    .body_schema(object([]), json!({}))
    .answer_schema(
        200,
        "It is over",
        success([required("enrollment_id", id()), required("status", statuses()), required("exit_reason", reasons())]),
        json!({"ok": true, "enrollment_id": ID, "status": "exited", "exit_reason": "manual"}),
    )
    .refuses(404, &["enrollment_not_found"])
}
