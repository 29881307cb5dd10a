//! How the tracking links are documented.

use crate::openapi::{
    Doc,
    schema::{required, text},
};

fn about(id: &'static str, summary: &'static str) -> Doc {
    let token = text().about("Made by us; forged, cut or foreign ones are a 404.");
    Doc::new(id, summary, "Called by mail programs. A HEAD is answered like a GET and noted as nothing.")
        .path(required("token", token))
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
