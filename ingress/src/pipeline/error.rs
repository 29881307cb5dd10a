//! The error answer of the API: `{ok: false, error, detail?, fields?}`.

use std::{borrow::Cow, collections::BTreeMap};

use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use http::{HeaderValue, StatusCode, header};
use runner::StageError;
use runtime::{causes, db};
use schemars::JsonSchema;
use schemas::rejected::{Refusal, RefusedField};
use serde::{Deserialize, Serialize};
use tokio::task::JoinError;

/// `Retry-After` while Postgres is away, in seconds.
const RETRY_UNAVAILABLE: u64 = 2;

/// The challenge of a 401.
const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"postrider\"");
/// `Retry-After` while another request holds the same object, in seconds.
const RETRY_BUSY: u64 = 1;

/// Most faults that one answer names: a body of 1 MiB can have several hundred thousand.
pub(crate) const FAULTS_MAX: usize = 100;
/// Most faults that are named of one item of an array, and in an event.
const ITEM_FAULTS_MAX: usize = 10;

/// One thing wrong with a request, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FieldFault {
    /// Where, as `steps[3].template_id`.
    pub path: String,
    /// A stable code, such as `required` or `too_long`.
    pub code: Cow<'static, str>,
    /// A text for people.
    pub detail: String,
}

impl FieldFault {
    /// A fault at `path`.
    pub fn new(path: impl Into<String>, code: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), code: code.into(), detail: detail.into() }
    }
}

/// How often each reason applies, for the detail of a refusal: `frequency_cap: 2, no_consent: 1`.
pub(crate) fn counts_by_reason<'a>(reasons: impl IntoIterator<Item = (&'a str, i64)>) -> String {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    for (reason, count) in reasons {
        *counts.entry(reason).or_default() += count;
    }
    let counts: Vec<String> = counts.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
    counts.join(", ")
}

/// An object that refers to the one that a refusal is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reference {
    /// What it is.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["campaign", "segment", "sender", "sequence", "snippet", "template", "tenant"]))]
    pub object: String,
    /// Its id.
    pub id: uuid::Uuid,
    /// Its name; of a sender the address.
    pub name: String,
}

/// The objects that refer to one: a list of its own, so that every error stays small.
#[derive(Debug, Clone, Default)]
pub struct References(pub Vec<Reference>);

/// Every answer that is not a success.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct ErrorBody<'a> {
    #[schemars(extend("const" = false))]
    ok: bool,
    /// What programs read.
    error: &'a str,
    /// What people read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    detail: Option<&'a str>,
    /// Every fault of a validation; of more than a hundred the first hundred.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schemars(with = "Vec<FieldFault>", length(max = FAULTS_MAX))]
    fields: &'a [FieldFault],
    /// What refers to the object: at most twenty of them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schemars(with = "Vec<Reference>")]
    references: &'a [Reference],
    /// The one-off message that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "uuid::Uuid")]
    message_id: Option<uuid::Uuid>,
}

/// A refusal. `code` is what programs read; `detail` is for people. Neither carries addresses, bodies or secrets of others.
#[must_use]
#[derive(Debug, Clone, thiserror::Error)]
#[error("{status} {code}")]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// The stable code in `error`.
    pub code: Cow<'static, str>,
    /// A text for people.
    pub detail: Option<String>,
    /// The faults of a validation.
    pub fields: Vec<FieldFault>,
    /// What refers to the object, of a refusal to remove it.
    pub references: Option<Box<References>>,
    /// Seconds until a repeat makes sense.
    pub retry_after: Option<u64>,
    /// The one-off message it is about, once there is one.
    pub message_id: Option<uuid::Uuid>,
}

impl ApiError {
    /// A refusal with a code.
    pub fn new(status: StatusCode, code: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code: code.into(),
            detail: None,
            fields: Vec::new(),
            references: None,
            retry_after: None,
            message_id: None,
        }
    }

    /// Adds a detail for people.
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the field that it is about, with a text for people. The code stands in both places.
    pub fn at(mut self, path: impl Into<String>, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        self.fields.push(FieldFault::new(path, self.code.clone(), detail.clone()));
        self.detail(detail)
    }

    /// Adds what refers to the object.
    pub fn referred_by(mut self, references: Vec<Reference>) -> Self {
        self.references = Some(Box::new(References(references)));
        self
    }

    /// Adds the id of the one-off message in the ledger.
    pub fn about_message(mut self, message: uuid::Uuid) -> Self {
        self.message_id = Some(message);
        self
    }

    /// Adds `Retry-After`, in seconds.
    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Adds `Retry-After` until a time, in seconds: never a moment before it.
    pub fn retry_at(self, at: DateTime<Utc>) -> Self {
        let seconds = u64::try_from((at - Utc::now()).num_seconds()).unwrap_or(0);
        self.retry_after(seconds.saturating_add(1))
    }

    /// 401
    pub fn unauthorized(code: &'static str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, code)
    }

    /// 403
    pub fn forbidden(code: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code)
    }

    /// 404 `<object>_not_found`: there is no such object, or it is another tenant's.
    pub fn not_found(object: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("{object}_not_found"))
    }

    /// 409
    pub fn conflict(code: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::CONFLICT, code)
    }

    /// 422
    pub fn unprocessable(code: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code)
    }

    /// 400 `validation_failed` with every fault, but for those beyond [`FAULTS_MAX`]; `detail` names the first in words.
    pub fn validation(mut fields: Vec<FieldFault>) -> Self {
        fields.truncate(FAULTS_MAX);
        let detail = fields.first().map(|fault| match fault.path.as_str() {
            "" => fault.detail.clone(),
            path => format!("{path}: {}", fault.detail),
        });
        Self { detail, fields, ..Self::new(StatusCode::BAD_REQUEST, "validation_failed") }
    }

    /// 400 `validation_failed` with one fault.
    pub fn invalid(path: impl Into<String>, code: &'static str, detail: impl Into<String>) -> Self {
        Self::validation(vec![FieldFault::new(path, code, detail)])
    }

    /// 400 `invalid_json`
    pub fn invalid_json(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_json").detail(detail)
    }

    /// 500: the answer carries nothing but the code. Log the cause where it is known.
    pub fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error")
    }

    /// 503: a dependency is away; the same request may succeed in a moment.
    pub fn unavailable() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable").retry_after(RETRY_UNAVAILABLE)
    }

    /// Logs an unexpected error with its chain ([`causes::chain`]), and answers 500.
    pub fn unexpected(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = causes::chain(error), "request failed");
        Self::internal()
    }

    /// 409 with `Retry-After`: another request holds the object for a moment. It is not stored for a repeat.
    pub fn busy(code: impl Into<Cow<'static, str>>) -> Self {
        Self::conflict(code).retry_after(RETRY_BUSY)
    }

    /// True if a repeat with the same idempotency key gets this answer again: a 4xx of the handler that time does not change.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.status.is_client_error()
            && self.retry_after.is_none()
            && !matches!(
                self.status,
                StatusCode::UNAUTHORIZED
                    | StatusCode::FORBIDDEN
                    | StatusCode::REQUEST_TIMEOUT
                    | StatusCode::TOO_MANY_REQUESTS
            )
    }

    /// Reads a refusal that was answered in this process.
    pub(crate) fn read(status: StatusCode, body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct AnsweredError {
            error: String,
            detail: Option<String>,
            #[serde(default)]
            fields: Vec<FieldFault>,
            #[serde(default)]
            references: Vec<Reference>,
        }
        match serde_json::from_slice::<AnsweredError>(body) {
            Ok(AnsweredError { error, detail, fields, references }) => {
                Self { detail, fields, ..Self::new(status, error) }.referred_by(references)
            }
            Err(_) => Self::new(status, "internal_error"),
        }
    }

    /// The error as an answer for one item of an array has it: with its first faults.
    pub(crate) fn of_item(mut self) -> Self {
        self.fields.truncate(ITEM_FAULTS_MAX);
        self
    }

    /// The error as an event on the bus and an item of an array have it: with its first faults.
    pub(crate) fn refusal(&self) -> Refusal {
        let field = |fault: &FieldFault| RefusedField {
            path: fault.path.clone(),
            code: fault.code.to_string(),
            detail: fault.detail.clone(),
        };
        Refusal {
            status: self.status.as_u16(),
            code: self.code.to_string(),
            detail: self.detail.clone(),
            fields: self.fields.iter().take(ITEM_FAULTS_MAX).map(field).collect(),
        }
    }

    /// The body as sent.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let body = ErrorBody {
            ok: false,
            error: &self.code,
            detail: self.detail.as_deref(),
            fields: &self.fields,
            references: self.references.as_ref().map_or(&[], |references| references.0.as_slice()),
            message_id: self.message_id,
        };
        // Strings and a bool always serialise.
        serde_json::to_vec(&body).unwrap_or_else(|_| br#"{"ok":false,"error":"internal_error"}"#.to_vec())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response =
            (self.status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.body())
                .into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            // RFC 9110 §11.6.1. Signed mode has headers of its own and no scheme.
            response.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE);
        }
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(RefusalReason::of(&self));
        response
    }
}

/// Why a call was refused, as far as the request log has it: the detail may quote the caller, so it is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusalReason {
    pub code: Cow<'static, str>,
    /// Where the first fault is. The caller may have made up names in it, which the writer cuts off.
    pub field: Option<String>,
}

impl RefusalReason {
    /// Of an error that is answered.
    pub fn of(error: &ApiError) -> Self {
        let field = error.fields.first().map(|fault| fault.path.clone());
        Self { code: error.code.clone(), field }
    }

    /// Of an item of an array.
    pub fn of_item(refusal: &Refusal) -> Self {
        let field = refusal.fields.first().map(|fault| fault.path.clone());
        Self { code: refusal.code.clone().into(), field }
    }
}

/// What a call of the ledger answers that also serves a stage.
impl From<StageError> for ApiError {
    fn from(error: StageError) -> Self {
        match error {
            StageError::Ledger(error) => error.into(),
            error if error.is_transient() => Self::unavailable(),
            error => Self::unexpected(&error),
        }
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        // 40: deadlock or serialization, 55P03: lock not available. A repeat may well succeed, as after a statement that took too long.
        let again = code.starts_with("40") || code == "55P03" || db::is_timeout(&error);
        if again || db::is_unavailable(&error) {
            tracing::warn!(error = db::describe(&error), "database unavailable");
            return Self::unavailable();
        }
        tracing::error!(error = db::describe(&error), "database refused");
        Self::internal()
    }
}

/// A task of ours that panicked: 500. What it said may quote the caller's data; the panic hook has said where.
impl From<JoinError> for ApiError {
    fn from(error: JoinError) -> Self {
        Self::unexpected(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[test]
    fn an_error_has_the_documented_shape() {
        let error = ApiError::validation(vec![
            FieldFault::new("steps[3].template_id", "required", "is required"),
            FieldFault::new("name", "too_long", "is longer than 200 characters"),
        ]);
        let body: Value = serde_json::from_slice(&error.body()).unwrap();
        assert_eq!(
            body,
            json!({
                "ok": false,
                "error": "validation_failed",
                "detail": "steps[3].template_id: is required",
                "fields": [
                    {"path": "steps[3].template_id", "code": "required", "detail": "is required"},
                    {"path": "name", "code": "too_long", "detail": "is longer than 200 characters"},
                ],
            })
        );
    }

    #[test]
    fn an_answer_names_a_hundred_faults_and_an_item_ten() {
        let faults = (0..=FAULTS_MAX).map(|n| FieldFault::new(format!("names[{n}]"), "empty", "must not be empty"));
        let error = ApiError::validation(faults.collect());
        assert_eq!((error.fields.len(), error.refusal().fields.len()), (FAULTS_MAX, ITEM_FAULTS_MAX));
        assert_eq!(error.of_item().fields.len(), ITEM_FAULTS_MAX);
    }

    #[test]
    fn an_internal_error_carries_nothing_but_the_code() {
        let body: Value = serde_json::from_slice(&ApiError::internal().body()).unwrap();
        assert_eq!(body, json!({"ok": false, "error": "internal_error"}));
    }

    #[rstest]
    #[case(ApiError::not_found("contact"), true)]
    #[case(ApiError::conflict("campaign_already_sent"), true)]
    #[case(ApiError::unprocessable("x"), true)]
    #[case(ApiError::unauthorized("x"), false)]
    #[case(ApiError::forbidden("x"), false)]
    #[case(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "x"), false)]
    #[case(ApiError::busy("campaign_busy"), false)]
    #[case(ApiError::internal(), false)]
    #[case(ApiError::unavailable(), false)]
    fn only_what_the_handler_decided_is_stored(#[case] error: ApiError, #[case] stored: bool) {
        assert_eq!(error.is_deterministic(), stored);
    }

    #[rstest]
    #[case::a_part_of_a_second_counts(2_500, 3)]
    #[case::about_to_be(10, 1)]
    #[case::past(-90_000, 1)]
    fn a_retry_is_never_before_its_time(#[case] milliseconds: i64, #[case] seconds: u64) {
        let at = Utc::now() + chrono::TimeDelta::milliseconds(milliseconds);
        assert_eq!(ApiError::conflict("x").retry_at(at).retry_after, Some(seconds));
    }

    #[test]
    fn an_away_database_is_a_503_with_retry_after() {
        let error = ApiError::from(sqlx::Error::PoolTimedOut);
        assert_eq!((error.status, error.retry_after.is_some()), (StatusCode::SERVICE_UNAVAILABLE, true));
        assert_eq!(ApiError::from(sqlx::Error::RowNotFound).status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
