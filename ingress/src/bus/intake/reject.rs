//! A refused request becomes a dead letter for the operator and an event for its product. Their ids derive from the position of the
//! request in the stream, so that a repeat publishes nothing twice.

use std::time::Duration;

use bytes::Bytes;
use chrono::Utc;
use runner::{DeadLetter, StageError};
use runtime::{Counter, Publication};
use schemas::{
    EventType,
    events::EVENT_VERSION,
    rejected::{Refusal, Rejection, RequestRejected},
    subjects::{self, header},
};
use uuid::Uuid;

use super::{NAME, direct::DirectRequest};
use crate::{
    api::transactional::array::RefusedItem,
    bus::calls::operation_of_kind,
    pipeline::{Operation, error::ApiError, request_log::known_part, tenant_named_in, time},
    public::rate::RateWindows,
    routes,
};

/// Longest piece of a publisher's text that the event repeats.
const ECHO_MAX_CHARS: usize = 255;

const WINDOW: Duration = Duration::from_secs(60 * 60);
/// Dead letters of a product and environment in a window, for each ingress process.
const DEAD_LETTERS_MAX: usize = 1_000;
/// Bytes of them: a sixteenth of the stream.
const DEAD_LETTER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The dead letters that refused requests of a product may leave. All share one stream, which drops its oldest when it is full: without
/// a quota, one product would push out the dead letters of others.
#[derive(Debug)]
pub(super) struct DeadLetterQuota {
    count: RateWindows,
    bytes: RateWindows,
}

impl DeadLetterQuota {
    pub(super) fn new() -> Self {
        let (count, bytes) = (DEAD_LETTERS_MAX, DEAD_LETTER_BYTES_MAX);
        Self { count: RateWindows::new(count, WINDOW), bytes: RateWindows::new(bytes, WINDOW) }
    }

    /// True if one more dead letter of so many bytes fits into the product's quota. Counts it if so.
    async fn admit(&self, product: &str, bytes: usize) -> bool {
        let product = Uuid::new_v5(&Uuid::NAMESPACE_OID, product.as_bytes());
        self.bytes.admit(product, bytes).await && self.count.admit(product, 1).await
    }
}

/// Rejects a whole message.
pub(super) async fn reject_message(
    quota: &DeadLetterQuota,
    direct: &DirectRequest,
    error: &ApiError,
) -> Result<Vec<Publication>, StageError> {
    rejections(quota, direct, None, direct.body.clone(), &error.refusal(), None).await
}

/// Rejects items of an array: each becomes a dead letter and an event.
pub(super) async fn reject_items(
    quota: &DeadLetterQuota,
    direct: &DirectRequest,
    refused: &[RefusedItem],
) -> Result<Vec<Publication>, StageError> {
    if refused.is_empty() {
        return Ok(Vec::new());
    }
    let bodies: Vec<&serde_json::value::RawValue> = serde_json::from_slice(&direct.body).unwrap_or_default();
    let mut publications = Vec::with_capacity(2 * refused.len());
    for item in refused {
        // The dead letter holds an array of one item, so that a replay is handled as an array again.
        let body = bodies.get(item.index).map_or_else(Bytes::new, |body| format!("[{body}]").into());
        let key = item.idempotency_key.clone();
        publications.extend(rejections(quota, direct, Some(item.index), body, &item.refusal, key).await?);
    }
    Ok(publications)
}

async fn rejections(
    quota: &DeadLetterQuota,
    direct: &DirectRequest,
    index: Option<usize>,
    body: Bytes,
    refusal: &Refusal,
    idempotency_key: Option<String>,
) -> Result<Vec<Publication>, StageError> {
    Counter::StageDeadLetteredTotal.add_owned(
        1,
        [("stage", NAME.to_owned()), ("lane", direct.lane().as_str().to_owned()), ("reason", refusal.code.clone())],
    );
    tracing::warn!(
        stage = NAME,
        kind = direct.kind_label(),
        sequence = direct.origin.sequence,
        index,
        code = refusal.code,
        "direct request rejected"
    );
    let operation = direct.kind().ok().and_then(|kind| routes::operation(operation_of_kind(kind)));
    let refusal = &without_own_names(refusal.clone(), operation);
    let detail = refusal.detail.as_deref().unwrap_or_default();
    let dead_letter =
        DeadLetter::new(NAME, &direct.origin, body.clone(), &refusal.code, detail).fields(&refusal.fields_line());
    let dead_letter = match index {
        Some(index) => dead_letter.part(index),
        None => dead_letter,
    };
    // Beyond its quota a product gets the event only, and no dead letter is kept.
    let is_kept = quota.admit(direct.subject_of_publisher(), body.len()).await;
    let mut publications: Vec<Publication> = is_kept.then(|| dead_letter.into_publication()).into_iter().collect();
    publications.extend(rejected_event(direct, index, &body, refusal, idempotency_key)?);
    Ok(publications)
}

/// A refusal without the names that the publisher made up, as the request log has it: an address may stand among them, and what is said of
/// a rejection is kept and published.
fn without_own_names(mut refusal: Refusal, operation: Option<&'static Operation>) -> Refusal {
    for (at, field) in refusal.fields.iter_mut().enumerate() {
        let known = operation.and_then(|operation| known_part(operation, &field.path)).unwrap_or_default();
        if at == 0 && known != field.path {
            refusal.detail = Some(field.detail.clone());
        }
        field.path = known;
    }
    // Of what is no JSON, a duplicate key is quoted.
    let quoted = refusal.detail.as_deref().filter(|_| refusal.code == "invalid_json").and_then(|detail| {
        let ((before, _), (_, after)) = (detail.split_once('`')?, detail.rsplit_once('`')?);
        Some(format!("{}{after}", before.trim_end()))
    });
    refusal.detail = quoted.or(refusal.detail);
    refusal
}

/// The event `request.rejected`. None if the subject names no product.
fn rejected_event(
    direct: &DirectRequest,
    index: Option<usize>,
    body: &[u8],
    refusal: &Refusal,
    idempotency_key: Option<String>,
) -> Result<Option<Publication>, StageError> {
    let Some(publisher) = &direct.publisher else { return Ok(None) };
    let place = format!(
        "{} {} {} {}",
        direct.origin.stream,
        direct.origin.sequence,
        direct.published_at.timestamp_micros(),
        index.map_or_else(String::new, |index| index.to_string())
    );
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, place.as_bytes());
    let echo = |text: &str| text.chars().filter(|c| !c.is_control()).take(ECHO_MAX_CHARS).collect::<String>();
    let rejected = RequestRejected {
        id,
        event_type: EventType::RequestRejected,
        version: EVENT_VERSION.to_owned(),
        created_at: Utc::now(),
        occurred_at: direct.published_at,
        product_tenant_id: tenant_named_in(body),
        environment: publisher.environment,
        data: Rejection {
            message_id: direct.message_id.as_deref().map(echo),
            sequence: direct.origin.sequence,
            kind: echo(&direct.kind),
            index: index.and_then(|index| u32::try_from(index).ok()),
            idempotency_key,
            refusal: refusal.clone(),
        },
    };
    let subject = subjects::event(&publisher.product, publisher.environment, EventType::RequestRejected);
    let mut publication = Publication::json(subject, format!("{}-{}", id.simple(), publisher.product), &rejected)?;
    publication.headers = vec![
        (header::CE_SPECVERSION, "1.0".to_owned()),
        (header::CE_ID, id.to_string()),
        (header::CE_TYPE, EventType::RequestRejected.as_str().to_owned()),
        (header::CE_SOURCE, format!("/postrider/{}/{}", publisher.product, publisher.environment)),
        (header::CE_TIME, time(direct.published_at)),
    ];
    Ok(Some(publication))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::pipeline::json;

    #[rstest]
    #[case::unknown(ApiError::invalid("ann@example.com", "unknown_field", "is no field"), "", "is no field")]
    #[case::data(ApiError::invalid("fields.ann@example.com", "wrong_type", "is wrong"), "fields", "is wrong")]
    #[case::known(
        ApiError::invalid("consent.basis", "required", "is required"),
        "consent.basis",
        "consent.basis: is required"
    )]
    fn what_is_kept_of_a_rejection_has_no_names_of_the_publisher(
        #[case] error: ApiError,
        #[case] path: &str,
        #[case] detail: &str,
    ) {
        let kept = without_own_names(error.refusal(), routes::operation("createContact"));
        assert_eq!((kept.fields[0].path.as_str(), kept.detail.as_deref()), (path, Some(detail)));
    }

    #[test]
    fn a_duplicate_key_is_not_quoted_in_what_is_kept() {
        let error = json::parse(br#"{"ann@example.com":1,"ann@example.com":2}"#).unwrap_err();
        let kept = without_own_names(error.refusal(), routes::operation("createContact"));
        let detail = kept.detail.unwrap();
        assert!(detail.starts_with("duplicate key at line 1") && !detail.contains('@'), "{detail}");
        let detail = without_own_names(ApiError::invalid_json("the body is not UTF-8").refusal(), None).detail;
        assert_eq!(detail.as_deref(), Some("the body is not UTF-8"));
    }

    #[tokio::test]
    async fn one_products_refusals_leave_the_quota_of_others() {
        let quota = DeadLetterQuota::new();
        let eighth = DEAD_LETTER_BYTES_MAX / 8;
        for _ in 0..8 {
            assert!(quota.admit("shop.production", eighth).await);
        }
        assert!(!quota.admit("shop.production", eighth).await, "too many bytes");
        assert!(quota.admit("rival.production", eighth).await);
        for _ in 0..DEAD_LETTERS_MAX {
            assert!(quota.admit("third.production", 10).await);
        }
        assert!(!quota.admit("third.production", 10).await, "too many dead letters");
    }
}
