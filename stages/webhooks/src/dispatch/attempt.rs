//! One webhook attempt: sign, post, interpret the answer.

use std::time::Duration;

use bytes::Bytes;
use chrono::Utc;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use runtime::outbound::{Outbound, OutboundAnswer, OutboundError, OutboundLimits, retry_after};
use schemas::webhook::{self, WebhookSecret};
use tokio::time::Instant;
use url::Url;

use super::{endpoint::DeliveryJob, schedule::AttemptOutcome};

/// The most bytes of an answer that are read. The body has no meaning; it is read so that the connection can be reused.
const BODY_MAX: usize = 64 * 1024;
/// A receiver that takes longer to answer counts as silent: it holds its sockets nearly as long as one that does not answer.
const SLOW: Duration = Duration::from_secs(5);

/// Where to deliver to: URL and signing secrets of a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeliveryTarget {
    pub url: Url,
    /// The secrets that sign, newest first.
    pub secrets: Vec<WebhookSecret>,
    /// A hash of the row it was read from. An equal version means an equal target.
    pub version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttemptResult {
    pub outcome: AttemptOutcome,
    pub status_code: Option<u16>,
    /// The engine's error code of a failed attempt.
    pub error_code: Option<&'static str>,
    pub duration: Duration,
    /// True if the receiver was unreachable: no connection, no answer in time, or a late one.
    pub is_silent: bool,
}

pub(super) async fn post(
    outbound: &Outbound,
    target: &DeliveryTarget,
    job: &DeliveryJob,
    body: Bytes,
    timeout: Duration,
) -> AttemptResult {
    let started = Instant::now();
    let limits = OutboundLimits { timeout, body_max_bytes: BODY_MAX };
    let headers = signed_headers(target, job, &body);
    let answer = outbound.post(&target.url, headers, body, limits).await;
    interpret_answer(answer, started.elapsed())
}

fn signed_headers(target: &DeliveryTarget, job: &DeliveryJob, body: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(10);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let ours = [
        (webhook::EVENT_HEADER, job.event_type.clone()),
        (webhook::DELIVERY_HEADER, job.delivery_id.to_string()),
        (webhook::ATTEMPT_HEADER, job.attempt().to_string()),
    ];
    let signed = webhook::sign(&target.secrets, job.event_id, Utc::now().timestamp(), body);
    for (name, value) in ours.into_iter().chain(signed) {
        // All names and values are the engine's own, in plain ASCII.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

fn interpret_answer(answer: Result<OutboundAnswer, OutboundError>, duration: Duration) -> AttemptResult {
    let failed = |code, retry_after| (AttemptOutcome::Failed { retry_after }, Some(code));
    let (status_code, (outcome, error_code), is_unreachable) = match answer {
        Ok(answer) => {
            let result = match answer.status {
                status if status.is_success() => (AttemptOutcome::Delivered, None),
                StatusCode::GONE => (AttemptOutcome::Gone, Some("gone")),
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                    failed("asked_to_wait", retry_after(&answer.headers, Utc::now()))
                }
                status if status.is_redirection() => failed("redirected", None),
                status if status.is_client_error() => failed("refused", None),
                _ => failed("server_error", None),
            };
            (Some(answer.status.as_u16()), result, false)
        }
        Err(error) => {
            let is_unreachable = matches!(
                error,
                OutboundError::TimedOut
                    | OutboundError::ConnectFailed
                    | OutboundError::DnsFailed
                    | OutboundError::TlsFailed
            );
            (None, failed(error.code(), None), is_unreachable)
        }
    };
    AttemptResult { outcome, status_code, error_code, duration, is_silent: is_unreachable || duration > SLOW }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn answered(status: u16, retry_after: Option<&'static str>) -> AttemptResult {
        let mut headers = HeaderMap::new();
        if let Some(value) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(value));
        }
        let status = StatusCode::from_u16(status).unwrap();
        interpret_answer(Ok(OutboundAnswer { status, headers, body: Bytes::new() }), Duration::ZERO)
    }

    #[rstest]
    #[case(200, None, AttemptOutcome::Delivered, None)]
    #[case(204, None, AttemptOutcome::Delivered, None)]
    #[case(301, None, AttemptOutcome::Failed { retry_after: None }, Some("redirected"))]
    #[case(307, None, AttemptOutcome::Failed { retry_after: None }, Some("redirected"))]
    #[case(404, None, AttemptOutcome::Failed { retry_after: None }, Some("refused"))]
    #[case(410, None, AttemptOutcome::Gone, Some("gone"))]
    #[case(500, Some("7"), AttemptOutcome::Failed { retry_after: None }, Some("server_error"))]
    #[case(429, Some("7"), AttemptOutcome::Failed { retry_after: Some(Duration::from_secs(7)) }, Some("asked_to_wait"))]
    #[case(503, Some("7"), AttemptOutcome::Failed { retry_after: Some(Duration::from_secs(7)) }, Some("asked_to_wait"))]
    #[case(503, None, AttemptOutcome::Failed { retry_after: None }, Some("asked_to_wait"))]
    fn every_answer_has_its_meaning(
        #[case] status: u16,
        #[case] retry_after: Option<&'static str>,
        #[case] outcome: AttemptOutcome,
        #[case] error_code: Option<&'static str>,
    ) {
        let reply = answered(status, retry_after);
        assert_eq!((reply.outcome, reply.error_code, reply.is_silent), (outcome, error_code, false));
    }

    #[rstest]
    #[case(OutboundError::TimedOut, true)]
    #[case(OutboundError::ConnectFailed, true)]
    #[case(OutboundError::ConnectionLost, false)]
    fn an_unreachable_receiver_is_silent(#[case] error: OutboundError, #[case] silent: bool) {
        let reply = interpret_answer(Err(error), Duration::ZERO);
        assert_eq!((reply.is_silent, reply.status_code), (silent, None));
        assert!(matches!(reply.outcome, AttemptOutcome::Failed { retry_after: None }));
    }

    #[rstest]
    #[case(StatusCode::OK, SLOW, false)]
    #[case(StatusCode::OK, SLOW * 2, true)]
    #[case(StatusCode::INTERNAL_SERVER_ERROR, SLOW * 2, true)]
    fn a_receiver_that_answers_late_is_as_good_as_silent(
        #[case] status: StatusCode,
        #[case] duration: Duration,
        #[case] silent: bool,
    ) {
        let answer = OutboundAnswer { status, headers: HeaderMap::new(), body: Bytes::new() };
        assert_eq!(interpret_answer(Ok(answer), duration).is_silent, silent);
    }
}
