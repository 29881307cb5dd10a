//! `POST /v1/transactional`: one template to one person. 202 means that it is stored; it is on its way a moment later.

mod doc;
mod store;

use std::sync::Arc;

use runtime::Publication;
use schemas::{Address, RequestAnnounced, RequestKind, messages::TransactionalPayload, subjects};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::senders::store as senders;
use crate::{
    act::{Act, Faults, Id, Reply, Routes, write},
    error::ApiError,
};

/// Longest contact field, in characters.
const FIELD_MAX: usize = 200;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().post("/v1/transactional", write("email:send_one:create", send), doc::send)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendBody {
    template_id: Option<Id>,
    email: Option<String>,
    sender_profile_id: Option<Id>,
    first_name: Option<String>,
    last_name: Option<String>,
    title: Option<String>,
    phone: Option<String>,
    data: Option<Map<String, Value>>,
}

async fn send(act: &mut Act, body: SendBody) -> Result<Reply, ApiError> {
    let (template_id, address) = validate(&body)?;
    let (tenant, caller) = (act.tenant, Arc::clone(&act.caller));
    let content_id = store::template_content(act.db(), tenant, template_id.0).await?;
    let content_id = content_id.ok_or_else(|| ApiError::not_found("template"))?;
    let sender = senders::readiness(act.db(), tenant, body.sender_profile_id.map(|id| id.0)).await?;
    let sender = sender.ok_or_else(|| match body.sender_profile_id {
        Some(_) => ApiError::not_found("sender_profile"),
        None => ApiError::unprocessable("sender_required")
            .detail("the tenant has no default sender: name one in sender_profile_id"),
    })?;
    if !sender.may_send() {
        return Err(ApiError::unprocessable("sender_missing_verified_domain"));
    }
    let payload = TransactionalPayload {
        send_id: schemas::new_batch_id(),
        address,
        first_name: body.first_name,
        last_name: body.last_name,
        title: body.title,
        phone: body.phone,
        template_id: template_id.0,
        content_id,
        sender_id: sender.id,
        data: body.data.unwrap_or_default(),
    };
    store::insert_request(act.db(), tenant, &caller.product, caller.environment, &payload).await?;
    let ring = RequestAnnounced {
        tenant_id: tenant,
        request_id: payload.send_id,
        kind: RequestKind::Transactional,
        notify: None,
    };
    let subject = subjects::accepted(&caller.product, caller.environment, RequestKind::Transactional);
    let ring = Publication::json(subject, format!("request-{}", payload.send_id.simple()), &ring);
    act.announce(ring.map_err(|error| ApiError::unexpected(&error))?);
    Reply::accepted(&json!({"ok": true, "send_id": payload.send_id, "status": "scheduled"}))
}

fn validate(body: &SendBody) -> Result<(Id, Address), ApiError> {
    let mut faults = Faults::default();
    let template_id = faults.required("template_id", body.template_id);
    let address = faults.required("email", body.email.as_deref()).and_then(|text| faults.address("email", text));
    for (path, text) in [
        ("first_name", &body.first_name),
        ("last_name", &body.last_name),
        ("title", &body.title),
        ("phone", &body.phone),
    ] {
        faults.one_line(path, text.as_deref().unwrap_or_default(), FIELD_MAX);
    }
    faults.finish()?;
    Ok((template_id.ok_or_else(ApiError::internal)?, address.ok_or_else(ApiError::internal)?))
}
