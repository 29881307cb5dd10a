//! How `/v1/sequences` is documented.

use serde_json::{Value, json};

use super::{
    ChangeSequence, ListSequences, SequenceAnswer, SequenceChanged, SequenceCreated, SequencePage,
    input::CreateSequence,
};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

fn example() -> Value {
    json!({
        "sequence_id": ID, "name": "Welcome", "description": null, "sender_profile_id": ID, "trigger_type": "manual_enrollment",
        "exit_on_unsubscribe": true, "exit_on_bounce": true, "exit_on_complaint": true, "status": "active", "activated_at": AT,
        "archived_at": null, "created_at": AT, "updated_at": AT,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listSequences", "List sequences", "Newest first.").query::<ListSequences>().answer::<SequencePage>(
        200,
        "A page of sequences",
        json!({"sequences": [example()], "next_cursor": null}),
    )
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createSequence",
        "Create a sequence with its steps",
        "Steps are taken in the order of the array and never change. Its mail is marketing: it needs consent, and carries a footer and a way \
         to unsubscribe. With `activate` contacts may be enrolled at once.",
    )
    .body::<CreateSequence>(json!({"name": "Welcome", "steps": [
        {"step_type": "wait", "delay_amount": 2, "delay_unit": "business_days"},
        {"step_type": "create_task", "action_config": {"title": "Call", "due_in_days": 1}},
    ]}))
    .answer::<SequenceCreated>(
        201,
        "Created",
        json!({"sequence_id": ID, "status": "draft", "steps": [{"step_id": ID, "step_order": 1, "step_type": "wait"}]}),
    )
    .leads_to("sequence_id", &["getSequence", "updateSequence"])
    .refuses(404, &["template_not_found", "sender_profile_not_found", "tag_not_found", "list_not_found"])
    .refuses(409, &["sender_profile_required_to_activate"])
}

pub(super) fn show() -> Doc {
    let step = json!({
        "step_id": ID, "step_order": 1, "step_type": "send_email", "template_id": ID, "delay_amount": 0, "delay_unit": "minutes",
        "action_config": {},
    });
    Doc::new("getSequence", "Read a sequence", "With its steps, in order.")
        .answer::<SequenceAnswer>(200, "The sequence", json!({"sequence": example(), "steps": [step]}))
        .refuses(404, &["sequence_not_found"])
}

pub(super) fn change() -> Doc {
    Doc::new(
        "updateSequence",
        "Change a sequence, activate, pause or archive it",
        "While it is paused no step is taken and due times are kept: after a resumption overdue steps are taken at once, the others on \
         time. Archiving ends all its enrollments.",
    )
    .body::<ChangeSequence>(json!({"status": "paused"}))
    .answer::<SequenceChanged>(200, "Changed", json!({"sequence_id": ID, "status": "paused"}))
    .refuses(404, &["sequence_not_found", "sender_profile_not_found"])
    .refuses(409, &["invalid_status_transition", "sequence_has_no_steps", "sender_profile_required_to_activate"])
}
