//! How the unsubscribe page is documented.

use crate::openapi::{
    Doc,
    schema::{required, text},
};

fn about(id: &'static str, summary: &'static str, description: &'static str) -> Doc {
    Doc::new(id, summary, description).path(required("token", text().about("Made by us, and valid for years.")))
}

pub(super) fn ask() -> Doc {
    about(
        "getUnsubscribePage",
        "The unsubscribe page",
        "Shows a button and never acts: link checkers follow every link.",
    )
    .other(200, "The page", "text/html")
    .other(404, "No such link", "text/html")
}

pub(super) fn leave() -> Doc {
    about(
        "unsubscribe",
        "Unsubscribe",
        "The page's button, or a mail program's one click (RFC 8058). Committed before it is answered.",
    )
    .other(200, "Unsubscribed", "text/html")
    .other(400, "The body broke off", "text/html")
    .other(404, "No such link", "text/html")
    .other(408, "The body did not arrive in time", "text/html")
    .other(413, "The body is too large", "text/html")
    .other(500, "A fault of ours", "text/html")
    .other(503, "Try again in a moment", "text/html")
}

pub(super) fn preferences() -> Doc {
    about(
        "getPreferencesPage",
        "The preferences page",
        "Topics the recipient gets, and all of it. Shows and never acts.",
    )
    .other(200, "The page", "text/html")
    .other(404, "No such link", "text/html")
    .other(500, "A fault of ours", "text/html")
    .other(503, "Try again in a moment", "text/html")
}

pub(super) fn choose() -> Doc {
    about(
        "choosePreferences",
        "Choose topics, leave, or come back",
        "The page's own forms (`application/x-www-form-urlencoded`): `action=save` with `shown` and `topic`, `action=leave`, \
         `action=return`. Committed before it is answered; sent twice is sent once.",
    )
    .other(200, "The page, with what came of it", "text/html")
    .other(400, "Not a form of ours, or it broke off", "text/html")
    .other(404, "No such link", "text/html")
    .other(408, "The form did not arrive in time", "text/html")
    .other(413, "The form is too large", "text/html")
    .other(500, "A fault of ours", "text/html")
    .other(503, "Try again in a moment", "text/html")
}
