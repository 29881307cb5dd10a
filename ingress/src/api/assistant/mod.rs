//! `POST /mcp` and its OAuth metadata: routes in front of the crate `mcp`. They answer 404 unless the settings name an issuer.

mod doc;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};

use crate::{
    pipeline::{Routes, observe::no_such_path, open},
    state::Ingress,
};

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().post(mcp::PATH, open(answer), doc::answer).get(mcp::METADATA_PATH, open(metadata), doc::metadata).get(
        mcp::METADATA_PATH_OF_ENDPOINT,
        open(metadata),
        doc::metadata_of_endpoint,
    )
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
