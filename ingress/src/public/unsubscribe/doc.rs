//! How the unsubscribe page is documented.

use crate::{pipeline::Doc, public::tracking::LinkPath};

/// What all of them answer with.
const PAGE: &str = "text/html";

fn about(id: &'static str, summary: &'static str, description: &'static str) -> Doc {
    Doc::new(id, summary, description).path_parameters::<LinkPath>()
}

/// What every page that asks the ledger may answer.
fn away(doc: Doc) -> Doc {
    doc.other(404, "No such link", PAGE).other(500, "A fault of ours", PAGE).other(503, "Try again in a moment", PAGE)
}

/// What a form may be answered.
fn with_a_body(doc: Doc) -> Doc {
    doc.other(408, "The body did not arrive in time", PAGE).other(413, "The body is too large", PAGE)
}

pub(super) fn ask() -> Doc {
    about(
        "getUnsubscribePage",
        "The unsubscribe page",
        "Shows a button and never acts: link checkers follow every link.",
    )
    .other(200, "The page", PAGE)
    .other(404, "No such link", PAGE)
}

pub(super) fn leave() -> Doc {
    let doc = about(
        "unsubscribe",
        "Unsubscribe",
        "The page's button (`confirm=yes`), or a mail program's one click (`List-Unsubscribe=One-Click`, RFC 8058). Committed before it \
         is answered; sent twice is sent once.",
    )
    .other(200, "Unsubscribed", PAGE)
    .other(400, "Neither of the two, or it broke off: nothing changed", PAGE);
    with_a_body(away(doc))
}

pub(super) fn preferences() -> Doc {
    let doc = about(
        "getPreferencesPage",
        "The preferences page",
        "Topics the recipient gets, and all of it. Shows and never acts.",
    )
    .other(200, "The page", PAGE);
    away(doc)
}

pub(super) fn choose() -> Doc {
    let doc = about(
        "choosePreferences",
        "Choose topics, leave, or come back",
        "The page's own forms (`application/x-www-form-urlencoded`): `action=save` with `shown` and `topic`, `action=leave`, \
         `action=return`. Committed before it is answered; sent twice is sent once.",
    )
    .other(200, "The page, with what came of it", PAGE)
    .other(400, "Not a form of ours, or it broke off", PAGE);
    with_a_body(away(doc))
}
