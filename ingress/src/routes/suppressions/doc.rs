//! How `/v1/suppressions` is documented.

use serde_json::{Value, json};

use super::{MANY_MAX, NOTE_MAX_CHARS};
use crate::openapi::{
    AT, Doc, ID,
    schema::{
        Schema, any_of, array, array_max, boolean, count, email, id, nullable, object, one_of, optional, page_of,
        required, success, text, text_max, time,
    },
};

const REASONS: [&str; 6] = ["hard_bounce", "complaint", "unsubscribe", "manual", "invalid", "import"];
const SCOPES: [&str; 2] = ["all", "marketing"];

fn suppression() -> Schema {
    object([
        required("suppression_id", id()),
        required("email", text()),
        required("reason", one_of(REASONS)),
        required("scope", one_of(SCOPES)),
        required("source", text()),
        required("send_id", id().or_null()),
        required("note", text().or_null()),
        required("created_at", time()),
        required("expires_at", time().or_null()),
    ])
    .named("Suppression")
}

fn example() -> Value {
    json!({
        "suppression_id": ID, "email": "ann@example.com", "reason": "manual", "scope": "all", "source": "api", "send_id": null,
        "note": null, "created_at": AT, "expires_at": null,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listSuppressions", "List suppressions", "Newest first.")
        .query([optional("email", email()), optional("reason", one_of(REASONS)), optional("scope", one_of(SCOPES))])
        .paged()
        .answer(
            200,
            "A page of suppressions",
            page_of("suppressions", suppression()),
            json!({"ok": true, "suppressions": [example()], "next_cursor": null}),
        )
}

/// One suppression as asked for.
fn item() -> Schema {
    object([
        required("email", email()),
        nullable("reason", one_of(REASONS).about("Default: manual.")),
        nullable("scope", one_of(SCOPES).about("A choice for manual and import; else it follows from the reason.")),
        nullable("note", text_max(NOTE_MAX_CHARS)),
        nullable("expires_at", time().about("In the future. Left out: never.")),
    ])
}

pub(super) fn add() -> Doc {
    let many = object([required("suppressions", array_max(item(), MANY_MAX).with("minItems", 1))]);
    let one_written = success([required("suppression_id", id()), required("already_existed", boolean())]);
    let written = object([
        required("suppression_id", id()),
        required("email", text()),
        required("reason", one_of(REASONS)),
        required("already_existed", boolean()),
    ]);
    let many_written = success([
        required("suppressions", array(written)),
        required("created", count()),
        required("already_existed", count()),
    ]);
    let body = any_of([one_written, many_written]);
    Doc::new(
        "createSuppressions",
        "Suppress one address or many",
        "Not mailed from the moment this is answered. One that exists is never weakened: the wider scope and the later end hold.",
    )
    .body(any_of([item(), many]), json!({"email": "ann@example.com", "reason": "manual"}))
    .answer(201, "Suppressed", body.clone(), json!({"ok": true, "suppression_id": ID, "already_existed": false}))
    .answer(200, "All were there", body, json!({"ok": true, "suppression_id": ID, "already_existed": true}))
}

pub(super) fn lift() -> Doc {
    let terms = || {
        [
            nullable("reason", one_of(REASONS).about("Only those of this reason.")),
            optional("confirm", boolean().default(false)),
        ]
    };
    let by_id = object([required("suppression_id", id())].into_iter().chain(terms()));
    let by_email = object([required("email", email())].into_iter().chain(terms()));
    Doc::new(
        "deleteSuppressions",
        "Lift suppressions",
        "One by id, or those of an address; all or none. A hard bounce or complaint needs `confirm: true`. What recipients did \
         themselves only they can undo.",
    )
    .body(any_of([by_id, by_email]), json!({"email": "ann@example.com"}))
    .answer(
        200,
        "Lifted",
        success([required("lifted", count()), required("suppression_ids", array(id()))]),
        json!({"ok": true, "lifted": 1, "suppression_ids": [ID]}),
    )
    .refuses(404, &["suppression_not_found"])
    .refuses(409, &["confirmation_required", "unsubscribed_by_recipient"])
}
