//! `POST /v1/transactional`: one template to one person. 202 means that it is stored; it is on its way a moment later.

pub(crate) mod array;
mod store;

use std::sync::Arc;

use http::StatusCode;
use runtime::{Publication, trace};
use schemars::JsonSchema;
use schemas::{Address, RequestAnnounced, RequestKind, messages::TransactionalPayload, subjects};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    senders::store::{self as senders, Readiness},
    templates::merge,
};
use crate::pipeline::{
    ApiReply, Doc, Faults, Id, RequestContext, Routes,
    doc::ID,
    error::ApiError,
    types::{Email, Line},
    write_by_key,
};

/// The request's line, which its idempotency key is bound to.
pub(crate) const METHOD: &str = "POST";
pub(crate) const PATH: &str = "/v1/transactional";
/// What it is answered with.
const ACCEPTED: StatusCode = StatusCode::ACCEPTED;
/// Longest contact field, in characters.
const FIELD_MAX: usize = 200;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new().post(
        PATH,
        write_by_key("email:send_one:create", send),
        Doc::new(
            "sendTransactional",
            "Send one template to one person",
            "202 means that it is stored; `GET /v1/sends/{send_id}` follows it. The contact is found or created \
                 by address. A template of type marketing or sequence makes the mail marketing: it carries the \
                 footer, and unsubscribed recipients are not mailed.",
        )
        .example(json!({"template_id": ID, "email": "ann@example.com", "data": {"total": "12.50"}}))
        .answer::<TransactionalAccepted>(202, "Accepted")
        .leads_to("send_id", &["getSend"])
        .refuses(404, &["template_not_found", "sender_profile_not_found"])
        .refuses(422, &["sender_required", "sender_missing_verified_domain"]),
    )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendTransactional {
    #[schemars(with = "Id")]
    template_id: Option<Id>,
    #[schemars(with = "Email")]
    email: Option<String>,
    /// Default: the tenant's default sender.
    sender_profile_id: Option<Id>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    first_name: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    last_name: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    title: Option<String>,
    #[schemars(with = "Option<Line<FIELD_MAX>>")]
    phone: Option<String>,
    /// What the template reads as `data.…`. At most 256 KB, 10,000 values and 16 levels.
    data: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct TransactionalAccepted {
    send_id: Uuid,
    #[schemars(extend("const" = "scheduled"))]
    status: &'static str,
}

/// A valid request; template and sender are not checked yet.
#[derive(Debug)]
struct ValidRequest {
    template_id: Uuid,
    address: Address,
    /// `None`: the tenant's default.
    sender_id: Option<Uuid>,
    first_name: Option<String>,
    last_name: Option<String>,
    title: Option<String>,
    phone: Option<String>,
    data: Map<String, Value>,
}

impl ValidRequest {
    fn payload(self, send_id: Uuid, content_id: Uuid, sender_id: Uuid) -> TransactionalPayload {
        TransactionalPayload {
            send_id,
            address: self.address,
            first_name: self.first_name,
            last_name: self.last_name,
            title: self.title,
            phone: self.phone,
            template_id: self.template_id,
            content_id,
            sender_id,
            data: self.data,
        }
    }
}

async fn send(ctx: &mut RequestContext, body: SendTransactional) -> Result<ApiReply, ApiError> {
    let valid = validate(body)?;
    let (tenant, caller) = (ctx.tenant, Arc::clone(&ctx.caller));
    let content_id = store::template_content(ctx.db(), tenant, valid.template_id).await?;
    let content_id = content_id.ok_or_else(template_not_found)?;
    let sender = senders::readiness(ctx.db(), tenant, valid.sender_id).await?;
    let sender_id = ready(sender, valid.sender_id)?;
    let payload = valid.payload(schemas::new_batch_id(), content_id, sender_id);
    store::insert_request(ctx.db(), tenant, &caller.product, caller.environment, &payload).await?;
    trace::keep(ctx.db(), tenant, payload.send_id).await?;
    let announced = RequestAnnounced::of(tenant, payload.send_id, RequestKind::Transactional);
    let subject = subjects::accepted(&caller.product, caller.environment, RequestKind::Transactional);
    let publication = Publication::json(subject, format!("request-{}", payload.send_id.simple()), &announced);
    ctx.announce(publication.map_err(|error| ApiError::unexpected(&error))?);
    // Its contact and its send are written by the audience stage.
    ctx.commits_no_facts();
    accepted(payload.send_id)
}

fn accepted(send_id: Uuid) -> Result<ApiReply, ApiError> {
    ApiReply::new(ACCEPTED, &TransactionalAccepted { send_id, status: "scheduled" })
}

fn template_not_found() -> ApiError {
    ApiError::not_found("template")
}

/// The sender, if mail may leave in its name.
fn ready(found: Option<Readiness>, named: Option<Uuid>) -> Result<Uuid, ApiError> {
    let sender = found.ok_or_else(|| match named {
        Some(_) => ApiError::not_found("sender_profile"),
        None => ApiError::unprocessable("sender_required")
            .detail("the tenant has no default sender: name one in sender_profile_id"),
    })?;
    if !sender.may_send() {
        return Err(ApiError::unprocessable("sender_missing_verified_domain"));
    }
    Ok(sender.id)
}

fn validate(body: SendTransactional) -> Result<ValidRequest, ApiError> {
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
    if let Some(data) = &body.data {
        merge::check_data("data", data, &mut faults);
    }
    faults.finish()?;
    Ok(ValidRequest {
        template_id: template_id.ok_or_else(ApiError::internal)?.0,
        address: address.ok_or_else(ApiError::internal)?,
        sender_id: body.sender_profile_id.map(|id| id.0),
        first_name: body.first_name,
        last_name: body.last_name,
        title: body.title,
        phone: body.phone,
        data: body.data.unwrap_or_default(),
    })
}
