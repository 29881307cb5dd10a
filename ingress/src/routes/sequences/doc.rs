//! How `/v1/sequences` is documented.

use schemas::{DelayUnit, SequenceStatus, StepType};
use serde_json::{Value, json};

use super::input::{DESCRIPTION_MAX, STEPS_MAX, WORD_MAX};
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{
            Field, Schema, any_object, array, boolean, id, integer, name, nullable, object, one_of, optional, page_of,
            required, success, text, text_max, time,
        },
    },
    routes::input::NAME_MAX,
};

const CONFIG: &str = "By `step_type`: apply_tag, remove_tag `{tag_id}`; update_field `{field, value}`; update_lifecycle_stage `{stage}`; \
                      notify_owner `{subject, message, to?}` (`to`: the owner's address or one on a verified domain of the tenant; at most once \
                      an hour for an enrollment); create_task `{title, due_in_days?, notes?}`; create_opportunity \
                      `{name, stage?, value_cents?}`; update_subscription `{list_id?, status: subscribed|unsubscribed}`; add_suppression \
                      `{scope: all|marketing, note?}`; call_product_webhook `{url, payload?}`; end_sequence `{reason?}`; others `{}`.";

fn statuses() -> Schema {
    one_of(SequenceStatus::ALL.iter().map(|status| status.as_str()))
}

fn step_types() -> Schema {
    one_of(StepType::ALL.iter().map(|kind| kind.as_str()))
}

fn units() -> Schema {
    one_of(DelayUnit::ALL.iter().map(|unit| unit.as_str()))
}

fn order() -> Schema {
    integer(1, 50).about("The place, from 1.")
}

fn sequence() -> Schema {
    object([
        required("sequence_id", id()),
        required("name", text()),
        required("description", text().or_null()),
        required("sender_profile_id", id().or_null()),
        required("trigger_type", text()),
        required("exit_on_unsubscribe", boolean()),
        required("exit_on_bounce", boolean()),
        required("exit_on_complaint", boolean()),
        required("status", statuses()),
        required("activated_at", time().or_null()),
        required("archived_at", time().or_null()),
        required("created_at", time()),
        required("updated_at", time()),
    ])
    .named("Sequence")
}

fn example() -> Value {
    json!({
        "sequence_id": ID, "name": "Welcome", "description": null, "sender_profile_id": ID, "trigger_type": "manual_enrollment",
        "exit_on_unsubscribe": true, "exit_on_bounce": true, "exit_on_complaint": true, "status": "active", "activated_at": AT,
        "archived_at": null, "created_at": AT, "updated_at": AT,
    })
}

fn step() -> Schema {
    object([
        required("step_id", id()),
        required("step_order", order()),
        required("step_type", step_types()),
        required("template_id", id().or_null()),
        required("delay_amount", integer(0, i64::from(i32::MAX))),
        required("delay_unit", units()),
        required("action_config", any_object().about(CONFIG)),
    ])
    .named("SequenceStep")
}

pub(super) fn list() -> Doc {
    Doc::new("listSequences", "List sequences", "Newest first.")
        .query_fields([optional("status", statuses())])
        .paged()
        .answer_schema(
            200,
            "A page of sequences",
            page_of("sequences", sequence()),
            json!({"ok": true, "sequences": [example()], "next_cursor": null}),
        )
}

pub(super) fn create() -> Doc {
    let step = object([
        required("step_type", step_types()),
        nullable("template_id", id().about("Required for send_email, and for nothing else.")),
        nullable("delay_amount", integer(0, 5_256_000).about("Counts from the step before. 0: at once.")),
        nullable(
            "delay_unit",
            units().about("Default: minutes. Days and business days in the contact's, else the tenant's time zone."),
        ),
        nullable("action_config", any_object().about(CONFIG)),
    ]);
    let made =
        object([required("step_id", id()), required("step_order", order()), required("step_type", step_types())]);
    Doc::new(
        "createSequence",
        "Create a sequence with its steps",
        "Steps are taken in the order of the array and never change. Its mail is marketing: it needs consent, and carries a footer and a way \
         to unsubscribe. With `activate` contacts may be enrolled at once.",
    )
  .body_schema(
        object([
            required("name", name(NAME_MAX)),
            nullable("description", text_max(DESCRIPTION_MAX)),
            nullable("sender_profile_id", id().about("Needed before a sequence that sends mail becomes active.")),
            nullable("trigger_type", text_max(WORD_MAX).about("What starts it, in the caller's words. Default: manual_enrollment.")),
            nullable("exit_on_unsubscribe", boolean().about("Default: true.")),
            nullable("exit_on_bounce", boolean().about("Default: true.")),
            nullable("exit_on_complaint", boolean().about("Default: true.")),
            nullable("activate", boolean().about("Default: false.")),
            required("steps", array(step).with("minItems", 1).with("maxItems", STEPS_MAX)),
        ]),
        json!({"name": "Welcome", "steps": [
            {"step_type": "wait", "delay_amount": 2, "delay_unit": "business_days"},
            {"step_type": "create_task", "action_config": {"title": "Call", "due_in_days": 1}},
        ]}),
    )
    .answer_schema(
        201,
        "Created",
        success([required("sequence_id", id()), required("status", one_of(["draft", "active"])), required("steps", array(made))]),
        json!({"ok": true, "sequence_id": ID, "status": "draft", "steps": [{"step_id": ID, "step_order": 1, "step_type": "wait"}]}),
    )
    .leads_to("sequence_id", &["getSequence", "updateSequence"])
    .refuses(404, &["template_not_found", "sender_profile_not_found", "tag_not_found", "list_not_found"])
    .refuses(409, &["sender_profile_required_to_activate"])
}

pub(super) fn show() -> Doc {
    let example_step = json!({
        "step_id": ID, "step_order": 1, "step_type": "send_email", "template_id": ID, "delay_amount": 0, "delay_unit": "minutes",
        "action_config": {},
    });
    Doc::new("getSequence", "Read a sequence", "With its steps, in order.")
        .answer_schema(
            200,
            "The sequence",
            success([required("sequence", sequence()), required("steps", array(step()))]),
            json!({"ok": true, "sequence": example(), "steps": [example_step]}),
        )
        .refuses(404, &["sequence_not_found"])
}

fn changeable() -> Vec<Field> {
    vec![
        nullable("name", name(NAME_MAX)),
        nullable("description", text_max(DESCRIPTION_MAX)),
        nullable("sender_profile_id", id()),
        nullable("status", one_of(["active", "paused", "archived"])),
    ]
}

pub(super) fn change() -> Doc {
    Doc::new(
        "updateSequence",
        "Change a sequence, activate, pause or archive it",
        "While it is paused nothing moves and times are kept: after a resumption what is overdue goes at once, the rest on time. Archiving \
         ends all its enrollments.",
    )
  .body_schema(object(changeable()), json!({"status": "paused"}))
    .answer_schema(
        200,
        "Changed",
        success([required("sequence_id", id()), required("status", statuses())]),
        json!({"ok": true, "sequence_id": ID, "status": "paused"}),
    )
    .refuses(404, &["sequence_not_found", "sender_profile_not_found"])
    .refuses(409, &["invalid_status_transition", "sequence_has_no_steps", "sender_profile_required_to_activate"])
}
