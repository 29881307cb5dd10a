//! How `/v1/enrollments` is documented.

use serde_json::{Value, json};

use super::{
    EnrollmentAnswer, EnrollmentEnded, EnrollmentPage, ListEnrollments, enroll::Enrolled, input::EnrollContact,
};
use crate::pipeline::{
    Doc, NoFields,
    doc::{AT, ID},
};

fn example() -> Value {
    json!({
        "enrollment_id": ID, "sequence_id": ID, "contact_id": ID, "email": "ann@example.com", "status": "active", "exit_reason": null,
        "next_step_order": 2, "next_action_at": AT, "attempt_count": 0, "last_error": null, "ended_at": null, "created_at": AT,
        "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listEnrollments", "List enrollments", "Newest first.")
        .query::<ListEnrollments>()
        .answer::<EnrollmentPage>(
            200,
            "A page of enrollments",
            json!({"enrollments": [example()], "next_cursor": null}),
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
    .body::<EnrollContact>(json!({"sequence_id": ID, "email": "ann@example.com", "first_name": "Ann"}))
    .answer::<Enrolled>(
        201,
        "Enrolled",
        json!({
            "enrollment_id": ID, "contact_id": ID, "sequence_id": ID, "next_action_at": AT, "mailable": true, "skip_reason": null,
        }),
    )
    .leads_to("enrollment_id", &["getEnrollment", "exitEnrollment"])
    .refuses(404, &["sequence_not_found"])
    .refuses(409, &["already_enrolled", "sequence_not_active", "sequence_has_no_steps"])
}

pub(super) fn show() -> Doc {
    let mut enrollment = example();
    enrollment["steps"] = json!([{
        "step_id": ID, "step_order": 1, "step_type": "send_email", "outcome": "done", "detail": {"template_id": ID}, "send_id": ID,
        "due_at": AT, "done_at": AT,
    }]);
    Doc::new("getEnrollment", "Read an enrollment", "Its next step, and what its steps did.")
        .answer::<EnrollmentAnswer>(200, "The enrollment", json!({"enrollment": enrollment}))
        .refuses(404, &["enrollment_not_found"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "exitEnrollment",
        "End an enrollment",
        "No further step is taken. An enrollment that has ended stays as it ended.",
    )
    .body::<NoFields>(json!({}))
    .answer::<EnrollmentEnded>(200, "Ended", json!({"enrollment_id": ID, "status": "exited", "exit_reason": "manual"}))
    .refuses(404, &["enrollment_not_found"])
}
