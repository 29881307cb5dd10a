//! How the assistant endpoint is documented.

use serde_json::{Map, Value, json};

use crate::pipeline::Doc;

pub(super) fn answer() -> Doc {
    Doc::new(
        "callAssistantEndpoint",
        "Call the assistant endpoint",
        "One JSON-RPC message of the Model Context Protocol (Streamable HTTP, without sessions), with an OAuth access token of the \
         configured issuer; API keys do not count here. 404 unless the installation has it switched on. The tools answer campaign \
         metadata and counts; counts under 5 are hidden. What the protocol itself refuses is a JSON-RPC error.",
    )
    .plain_answer::<Map<String, Value>>(
        200,
        "The answer, or a JSON-RPC error",
        json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "{\"campaigns\":[]}"}], "isError": false}}),
    )
    .empty(202, "A notification was taken")
    .refuses(400, &["invalid_json", "invalid_message", "incomplete_body"])
    .refuses(401, &["missing_credentials", "invalid_token"])
    .refuses(403, &["client_not_allowed", "not_approved", "origin_not_allowed", "missing_scope:mail:read"])
    .refuses(404, &["not_found"])
    .refuses(406, &["not_acceptable"])
    .refuses(408, &["request_timeout"])
    .refuses(413, &["body_too_large"])
    .refuses(415, &["unsupported_media_type"])
    .refuses(429, &["rate_limit_exceeded"])
    .refuses(503, &["unavailable"])
}

fn about(id: &'static str) -> Doc {
    Doc::new(
        id,
        "Get the assistant's OAuth metadata",
        "OAuth 2.0 protected resource metadata (RFC 9728). 404 unless the installation has the endpoint switched on.",
    )
    .plain_answer::<mcp::ProtectedResource>(
        200,
        "The metadata",
        json!({
            "resource": "https://mail.example.com/mcp",
            "authorization_servers": ["https://id.example.com"],
            "scopes_supported": [mcp::SCOPE_READ, mcp::SCOPE_DRAFTS],
            "bearer_methods_supported": ["header"],
            "resource_name": "Postrider",
        }),
    )
    .refuses(404, &["not_found"])
}

pub(super) fn metadata() -> Doc {
    about("getProtectedResource")
}

pub(super) fn metadata_of_endpoint() -> Doc {
    about("getProtectedResourceOfAssistant")
}
