//! Makes the HTTP request that a message on the bus stands for, from its subject and body.

use std::{error::Error, sync::Arc};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{Request, StatusCode, header, response};
use http_body_util::LengthLimitError;
use schemas::Environment;
use serde::Serialize;
use serde_json::{Map, Value};
use tower::ServiceExt;
use uuid::Uuid;

use super::calls::ValidateWrite;
use crate::pipeline::{
    IdempotencyKey, Operation,
    auth::{TrustedCaller, keys::Caller},
    body::{BODY_MAX_BYTES, CALL_MAX_BYTES},
    error::ApiError,
    idempotency::invalid_key,
    json, may_read_call,
    request_log::RequestLog,
};

/// The product that published a message. Its subject says so, and the server's permissions enforce it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Publisher {
    pub product: String,
    pub environment: Environment,
}

impl Publisher {
    /// From `<prefix>.<product>.<environment>.<rest>`.
    pub fn of_subject(subject: &str, prefix: &str) -> Option<Self> {
        let (product, rest) = subject.strip_prefix(prefix)?.strip_prefix('.')?.split_once('.')?;
        let environment = Environment::parse(rest.split_once('.')?.0)?;
        (!product.is_empty()).then(|| Self { product: product.to_owned(), environment })
    }

    /// The publisher as a caller: with every scope of a product, and a constant key id for idempotency and the audit log.
    pub fn caller(&self) -> Arc<Caller> {
        let name = format!("nats:{}:{}", self.product, self.environment);
        Arc::new(Caller::on_the_bus(
            Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()),
            self.product.clone(),
            self.environment,
        ))
    }
}

/// 404 for a subject without a publisher. `last` is what its last tokens name.
pub(super) fn unknown_subject(prefix: &str, last: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found").detail(format!(
        "the subject is {prefix}.<product>.<environment>.<{last}>, the environment production or sandbox"
    ))
}

/// Product and environment as they stand in `<prefix>.<product>.<environment>.<rest>`, known or not.
pub(super) fn publisher_in<'a>(subject: &'a str, prefix: &str) -> &'a str {
    let tokens = subject.strip_prefix(prefix).unwrap_or_default().trim_start_matches('.');
    tokens.match_indices('.').nth(1).map_or(tokens, |(end, _)| &tokens[..end])
}

/// Sends a request through the same router as HTTP.
pub(super) async fn route(router: &Router, request: Request<Body>) -> (response::Parts, Body) {
    match router.clone().oneshot(request).await {
        Ok(response) => response.into_parts(),
        Err(never) => match never {},
    }
}

/// The longest answer: the server's limit of a message counts its headers, too.
const ANSWER_MAX_BYTES: usize = CALL_MAX_BYTES - 4 * 1024;

/// Reads an answer of the router.
///
/// # Errors
/// 413 `answer_too_large`.
pub(super) async fn read_answer(body: Body) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(body, ANSWER_MAX_BYTES).await.map_err(|error| {
        if error.source().is_some_and(|source| source.is::<LengthLimitError>()) {
            return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "answer_too_large")
                .detail("the answer does not fit into one message: ask for a smaller limit, or over HTTP");
        }
        ApiError::unexpected(&error)
    })
}

/// How a request is handled and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallMode {
    /// The caller waits for the answer.
    Answered,
    /// It is rolled back, and the answer says whether it would be accepted.
    DryRun,
    /// It came from the stream: no caller waits for an outcome after the commit.
    Published,
}

/// Makes the request that a call stands for. What the path names is taken out of the body; the rest is the query of a read, the
/// body of a write. The body of a long call is not read: its path names nothing.
pub(super) async fn request(
    operation: &Operation,
    publisher: &Publisher,
    payload: Bytes,
    message_id: Option<&str>,
    manner: CallMode,
) -> Result<Request<Body>, ApiError> {
    let is_long = payload.len() > BODY_MAX_BYTES;
    let _permit = if is_long { None } else { may_read_call(&payload, &publisher.product).await };
    let mut fields = if payload.is_empty() || is_long { Map::new() } else { json::parse(&payload)? };
    let path = fill(operation.path, &mut fields)?;
    let (dry_run, skips_outcome) = (manner == CallMode::DryRun, manner == CallMode::Published);
    let trusted = TrustedCaller { caller: publisher.caller(), dry_run, skips_outcome };
    let builder = Request::builder().method(operation.method.clone()).extension(trusted);
    let request = if operation.is_write() {
        let body = if is_long { payload } else { to_bytes(&fields)? };
        let builder = builder.uri(path).header(header::CONTENT_TYPE, "application/json");
        let builder = match message_id.filter(|_| !dry_run) {
            Some(id) => builder.header("idempotency-key", idempotency_key(id)?),
            None => builder,
        };
        builder.body(Body::from(body))
    } else {
        builder.uri(format!("{path}?{}", query(&fields)?)).body(Body::empty())
    };
    request.map_err(|error| ApiError::unexpected(&error))
}

/// As [`request`], for a call that is meant: if it is refused here, the router does not see it, and the request log has it from here.
pub(super) async fn request_or_log(
    log: &RequestLog,
    operation: &'static Operation,
    publisher: &Publisher,
    payload: Bytes,
    message_id: Option<&str>,
    manner: CallMode,
) -> Result<Request<Body>, ApiError> {
    let received = payload.clone();
    request(operation, publisher, payload, message_id, manner)
        .await
        .inspect_err(|error| log.note_refused(publisher.caller(), operation, &received, error))
}

fn to_bytes(value: &impl Serialize) -> Result<Bytes, ApiError> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| ApiError::unexpected(&error))
}

/// What is to be validated: the operation and its body.
pub(super) async fn to_validate(publisher: &Publisher, payload: Bytes) -> Result<(String, Bytes), ApiError> {
    let _permit = may_read_call(&payload, &publisher.product).await;
    // On a blocking thread: a long one would hold up the reactor.
    let split = move || -> Result<(String, Bytes), ApiError> {
        let ValidateWrite { operation, request } = json::decode(json::parse(&payload)?)?;
        Ok((operation, to_bytes(&request)?))
    };
    tokio::task::spawn_blocking(split).await?
}

/// Puts fields of the body into the `{…}` of a path.
fn fill(template: &str, fields: &mut Map<String, Value>) -> Result<String, ApiError> {
    let mut path = String::with_capacity(template.len() + 36);
    for segment in template.split('/').skip(1) {
        path.push('/');
        match segment.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            None => path.push_str(segment),
            Some(name) => match fields.remove(name) {
                Some(Value::String(text)) => path.extend(url::form_urlencoded::byte_serialize(text.as_bytes())),
                Some(_) => return Err(ApiError::invalid(name, "wrong_type", "must be a string")),
                None => return Err(ApiError::invalid(name, "required", "is required")),
            },
        }
    }
    Ok(path)
}

fn query(fields: &Map<String, Value>) -> Result<String, ApiError> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in fields {
        match value {
            Value::Null => continue,
            Value::String(text) => query.append_pair(name, text),
            Value::Bool(_) | Value::Number(_) => query.append_pair(name, &value.to_string()),
            Value::Array(_) | Value::Object(_) => {
                return Err(ApiError::invalid(name, "wrong_type", "must be a string, number or boolean"));
            }
        };
    }
    Ok(query.finish())
}

/// The headers of a message that hold its idempotency key, in order. JetStream drops repeats of a `Nats-Msg-Id`, of any sender.
const KEY_HEADERS: [&str; 2] = ["Idempotency-Key", "Nats-Msg-Id"];

/// The text of the header that holds the idempotency key. Its name has any case, as over HTTP. Values of a header that is there twice are
/// joined as RFC 9110 §5.3 joins them: with a space, which no key has, so that [`idempotency_key`] refuses them.
pub(super) fn message_id(headers: Option<&async_nats::HeaderMap>) -> Option<String> {
    let headers = headers?;
    KEY_HEADERS.iter().find_map(|name| {
        let named = headers.iter().filter(|(given, _)| AsRef::<str>::as_ref(*given).eq_ignore_ascii_case(name));
        let values: Vec<&str> = named.flat_map(|(_, values)| values).map(async_nats::HeaderValue::as_str).collect();
        (!values.is_empty()).then(|| values.join(", "))
    })
}

pub(super) fn idempotency_key(message_id: &str) -> Result<&str, ApiError> {
    if IdempotencyKey::is_valid_text(message_id) { Ok(message_id) } else { Err(invalid_key()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes;

    fn operation(id: &str) -> &'static Operation {
        routes::operation(id).unwrap()
    }

    fn publisher() -> Publisher {
        Publisher { product: "shop".to_owned(), environment: Environment::Production }
    }

    #[test]
    fn a_subject_names_its_publisher() {
        let of = |subject: &str| Publisher::of_subject(subject, "mail.v1.api");
        assert_eq!(of("mail.v1.api.shop.production.send.status"), Some(publisher()));
        for bad in
            ["", ".shop", ".shop.production", ".shop.staging.message", "..production.message", "s.production.message"]
        {
            assert_eq!(of(&format!("mail.v1.api{bad}")), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn what_a_path_names_leaves_the_body_and_a_read_becomes_a_query() {
        let call = br#"{"product_tenant_id":"t","id":"a/b","limit":5}"#;
        let call = Bytes::from_static(call);
        let request = request(operation("getSend"), &publisher(), call, Some("m-1"), CallMode::Answered).await.unwrap();
        assert_eq!(request.uri(), "/v1/sends/a%2Fb?limit=5&product_tenant_id=t");
        assert!(request.headers().get("idempotency-key").is_none());
    }

    #[tokio::test]
    async fn a_write_is_done_once_for_a_message_id_and_a_dry_one_keeps_none() {
        let call = Bytes::from_static(br#"{"product_tenant_id":"t"}"#);
        let create = operation("createContact");
        let key = async |mode| {
            let request = request(create, &publisher(), call.clone(), Some("m-1"), mode).await.unwrap();
            request.headers().get("idempotency-key").map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!((key(CallMode::Answered).await.as_deref(), key(CallMode::DryRun).await), (Some("m-1"), None));
        assert!(request(create, &publisher(), call, Some("a b"), CallMode::Answered).await.is_err());
    }

    #[test]
    fn a_key_is_read_in_any_case_and_given_once() {
        let key = |given: &[(&str, &str)]| {
            let mut headers = async_nats::HeaderMap::new();
            for (name, value) in given {
                headers.append(*name, *value);
            }
            let text = message_id(Some(&headers))?;
            let is_taken = idempotency_key(&text).is_ok();
            Some(is_taken.then_some(text))
        };
        assert_eq!(key(&[("idempotency-key", "k-1"), ("Nats-Msg-Id", "m-1")]), Some(Some("k-1".to_owned())));
        assert_eq!(key(&[("NATS-MSG-ID", "m-1")]), Some(Some("m-1".to_owned())));
        assert_eq!(key(&[("Idempotency-Key", "k-1"), ("Idempotency-Key", "k-1")]), Some(None));
        assert_eq!(key(&[("Idempotency-Key", "k-1"), ("idempotency-key", "k-2")]), Some(None));
        assert_eq!((key(&[("X-Other", "x")]), message_id(None)), (None, None));
    }

    #[tokio::test]
    async fn an_answer_that_does_not_fit_into_a_message_is_refused() {
        assert_eq!(read_answer(Body::from("{}")).await.unwrap(), "{}");
        let refused = read_answer(Body::from(vec![b' '; CALL_MAX_BYTES])).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code.as_ref()), (413, "answer_too_large"));
    }

    #[tokio::test]
    async fn a_call_that_is_no_object_or_lacks_what_the_path_names_is_refused() {
        for body in ["[1]", "{\"id\":7}", "{}"] {
            assert!(
                request(operation("getSend"), &publisher(), body.into(), None, CallMode::Answered).await.is_err(),
                "{body}"
            );
        }
    }
}
