//! How `/v1/suppressions` is documented.

use serde_json::{Value, json};

use super::{
    AddSuppressions, LiftSuppressions, ListSuppressions, SuppressionPage, SuppressionsAdded, SuppressionsLifted,
};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

fn example() -> Value {
    json!({
        "suppression_id": ID, "email": "ann@example.com", "reason": "manual", "scope": "all", "source": "api", "send_id": null,
        "note": null, "created_at": AT, "expires_at": null,
    })
}

pub(super) fn list() -> Doc {
    Doc::new("listSuppressions", "List suppressions", "Newest first.")
        .query::<ListSuppressions>()
        .answer::<SuppressionPage>(
            200,
            "A page of suppressions",
            json!({"suppressions": [example()], "next_cursor": null}),
        )
}

pub(super) fn add() -> Doc {
    Doc::new(
        "createSuppressions",
        "Suppress one address or many",
        "Not mailed from the moment this is answered. One that exists is never weakened: the wider scope and the later end hold.",
    )
    .body::<AddSuppressions>(json!({"email": "ann@example.com", "reason": "manual"}))
    .answer::<SuppressionsAdded>(201, "Suppressed", json!({"suppression_id": ID, "already_existed": false}))
    .answer::<SuppressionsAdded>(200, "All were there", json!({"suppression_id": ID, "already_existed": true}))
}

pub(super) fn lift() -> Doc {
    Doc::new(
        "deleteSuppressions",
        "Lift suppressions",
        "One by id, or those of an address; all or none. A hard bounce or complaint needs `confirm: true`. What recipients did \
         themselves only they can undo.",
    )
    .body::<LiftSuppressions>(json!({"email": "ann@example.com"}))
    .answer::<SuppressionsLifted>(200, "Lifted", json!({"lifted": 1, "suppression_ids": [ID]}))
    .refuses(404, &["suppression_not_found"])
    .refuses(409, &["confirmation_required", "unsubscribed_by_recipient"])
}
