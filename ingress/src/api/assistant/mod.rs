//! `POST /mcp` and its OAuth metadata: routes in front of the crate `mcp`. They answer 404 unless the settings name an issuer.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value};

use crate::{
    pipeline::{Doc, Routes, observe::no_such_path, open},
    state::Ingress,
};

pub(crate) fn routes() -> Routes {
    let about = |id| {
        Doc::new(
            id,
            "Get the assistant's OAuth metadata",
            "OAuth 2.0 protected resource metadata (RFC 9728). 404 unless the installation has the endpoint \
                 switched on.",
        )
        .plain_answer::<mcp::ProtectedResource>(200, "The metadata")
        .refuses(404, &["not_found"])
    };
    Routes::new()
        .post(
            mcp::PATH,
            open(answer),
            Doc::new(
                "callAssistantEndpoint",
                "Call the assistant endpoint",
                "One JSON-RPC message of the Model Context Protocol (Streamable HTTP, without sessions), with an \
                 OAuth access token of the configured issuer; API keys do not count here. 404 unless the \
                 installation has it switched on. The tools answer campaign metadata and counts; counts under 5 are \
                 hidden. What the protocol itself refuses is a JSON-RPC error.",
            )
            .plain_answer::<Map<String, Value>>(200, "The answer, or a JSON-RPC error")
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
            .refuses(503, &["unavailable"]),
        )
        .get(mcp::METADATA_PATH, open(metadata), about("getProtectedResource"))
        .get(mcp::METADATA_PATH_OF_ENDPOINT, open(metadata), about("getProtectedResourceOfAssistant"))
}

async fn answer(State(ingress): State<Arc<Ingress>>, request: Request) -> Response {
    match &ingress.assistant {
        Some(assistant) => mcp::answer(assistant, request).await,
        None => no_such_path().await.into_response(),
    }
}

async fn metadata(State(ingress): State<Arc<Ingress>>) -> Response {
    match &ingress.assistant {
        Some(assistant) => mcp::metadata(assistant),
        None => no_such_path().await.into_response(),
    }
}
