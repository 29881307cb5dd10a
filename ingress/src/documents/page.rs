//! `GET /docs`: the document in Scalar's API reference. The viewer is part of the program; the page loads nothing from elsewhere, and its
//! policy would not let it.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use sha2::{Digest, Sha256};

/// Starts the viewer. What would call other hosts is off: fonts, the assistant, telemetry, the vendor's API clients.
const START: &str = "Scalar.createApiReference('#app',{url:'/openapi.json',withDefaultFonts:false,telemetry:false,\
agent:{disabled:true},mcp:{disabled:true},hideClientButton:true,showDeveloperTools:'never',persistAuth:false,\
authentication:{preferredSecurityScheme:'bearer'},defaultOpenFirstTag:false})";

/// The viewer's script.
pub(super) fn script() -> Bytes {
    Bytes::from(scalar_api_reference::get_asset("scalar.js").unwrap_or_default())
}

/// The page: an element for the viewer, and its start.
pub(super) fn html() -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>Postrider API</title></head><body><div id=\"app\"></div>\
         <noscript>This page needs JavaScript. The document itself is at <a href=\"/openapi.json\">openapi.json</a>.</noscript>\
         <script src=\"/docs/scalar.js\"></script><script>{START}</script></body></html>\n"
    )
}

/// The Content-Security-Policy: the viewer's script, its start, and requests to this host. The viewer sets styles as it runs.
pub(super) fn policy() -> String {
    let digest = STANDARD.encode(Sha256::digest(START.as_bytes()));
    format!(
        "default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'unsafe-inline'; img-src 'self' data:; font-src data:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
