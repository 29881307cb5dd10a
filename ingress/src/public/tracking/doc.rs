//! How the tracking links are documented.

use schemars::JsonSchema;

use crate::pipeline::Doc;

/// The path of a link in mail.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only described")]
pub(crate) struct LinkPath {
    /// Issued by the engine, and valid for years. A forged or shortened token is a 404.
    token: String,
}

fn about(id: &'static str, summary: &'static str) -> Doc {
    Doc::new(id, summary, "Called by mail programs. A HEAD is answered like a GET and noted as nothing.")
        .path_parameters::<LinkPath>()
        .refuses(404, &["not_found"])
}

pub(super) fn open() -> Doc {
    about("getOpenPixel", "The open pixel").other(200, "A transparent GIF", "image/gif")
}

pub(super) fn would_open() -> Doc {
    about("headOpenPixel", "The open pixel, headers only").other(200, "A transparent GIF", "image/gif")
}

pub(super) fn click() -> Doc {
    about("followLink", "A tracked link").empty(302, "To the address the sender wrote, in `Location`")
}

pub(super) fn would_click() -> Doc {
    about("headLink", "A tracked link, headers only").empty(302, "To the address the sender wrote, in `Location`")
}
