//! Direct requests: what internal systems publish on `mail.v1.request.<product>.<environment>.<kind>` (DESIGN §5).
//!
//! A request takes the road that HTTP takes ([`super::call`]): the same code validates, acts and answers. The stream keeps it until
//! that is committed; `Nats-Msg-Id` is the `Idempotency-Key`, so that a repetition after a crash finds the answer and does nothing
//! twice. What is refused becomes a dead letter and an event `request.rejected`; what cannot be decided now comes again.

mod direct;
mod kind;
mod letters;
mod reject;
mod strays;

use std::sync::Arc;

use async_trait::async_trait;
use axum::{Router, body};
use bytes::Bytes;
use futures::FutureExt;
use http::{StatusCode, header};
use runner::{Intake, MAX_DELIVERIES, Stage, StageError};
use runtime::{Counter, Publication};
use schemas::{DirectKind, Lane, subjects::stream};
use tower::ServiceExt;

use self::{direct::Direct, letters::Letters, strays::Strays};
use super::{
    ANSWER_MAX_BYTES,
    call::{self, Manner},
    calls::operation_of,
};
use crate::{
    api::transactional::{self, many},
    pipeline::{IdempotencyKey, error::ApiError, json},
    routes,
    state::Ingress,
};

/// The stage's name: in durables, dead letters and metrics.
pub(super) const NAME: &str = "ingress";
/// Launches carried out at once: each counts an audience.
const LAUNCHES: usize = 2;
/// Deliveries after which a fault of ours, or a conflict that may end by itself, is told. One less than what the runner would set aside without telling.
const ATTEMPTS_MAX: i64 = MAX_DELIVERIES - 1;

/// The stage.
pub(super) struct Requests {
    ingress: Arc<Ingress>,
    router: Router,
    letters: Arc<Letters>,
}

/// Starts taking direct requests, with the runner of the ingress.
pub(crate) fn start(ingress: &Arc<Ingress>) {
    let letters = Arc::<Letters>::default();
    let router = routes::router(Arc::clone(ingress));
    let stage = Arc::new(Requests { ingress: Arc::clone(ingress), router, letters: Arc::clone(&letters) });
    let workers = ingress.settings.bus_intake_workers;
    let intakes = kind::SORTS.iter().map(|sort| Intake {
        lane: sort.lane,
        stream: stream::REQUESTS,
        durable: format!("{NAME}-{}", sort.name),
        subjects: sort.kinds.iter().map(|kind| format!("{}.*.*.{kind}", direct::SUBJECT)).collect(),
        workers: if sort.lane == Lane::Bulk { LAUNCHES } else { workers.max(1) },
        coalesce: 1,
    });
    ingress.runner.start(stage, intakes.collect());
    ingress.runner.start_sweep(NAME, Arc::new(Strays::new(ingress.bus.clone(), letters)));
}

#[async_trait]
impl Stage for Requests {
    const NAME: &'static str = NAME;
    const SPAN: &'static str = "ingress take in";
    type Input = Direct;

    async fn handle(&self, inputs: &[Direct]) -> Result<Vec<Publication>, StageError> {
        let mut outputs = Vec::new();
        for direct in inputs {
            outputs.extend(self.take(direct).await?);
        }
        Ok(outputs)
    }

    fn commits_facts(&self, _: &[Self::Input]) -> bool {
        // Rung where the act commits.
        false
    }
}

impl Requests {
    /// Carries one message out, and answers what there is to tell of it.
    async fn take(&self, direct: &Direct) -> Result<Vec<Publication>, StageError> {
        // A panic is a fault of ours like another: the message comes again, and in the end it is told.
        let carried_out = std::panic::AssertUnwindSafe(self.carry_out(direct)).catch_unwind().await;
        let outcome = carried_out.unwrap_or_else(|_| {
            tracing::error!("a direct request panicked");
            Err(ApiError::internal())
        });
        let kind = direct.kind_label();
        match outcome {
            Ok(refused) => {
                let (accepted, rejected) = (refused.accepted as u64, refused.refused.len() as u64);
                Counter::DirectRequestsTotal.add(accepted, [("kind", kind), ("outcome", "accepted")]);
                Counter::DirectRequestsTotal.add(rejected, [("kind", kind), ("outcome", "rejected")]);
                reject::items(&self.letters, direct, &refused.refused)
            }
            Err(error) => {
                may_be_told(&error, direct.origin.deliveries)?;
                Counter::DirectRequestsTotal.add(1, [("kind", kind), ("outcome", "rejected")]);
                reject::whole(&self.letters, direct, &error)
            }
        }
    }

    async fn carry_out(&self, direct: &Direct) -> Result<many::Summary, ApiError> {
        let publisher = direct.publisher()?;
        let kind = direct.kind()?;
        let key = direct.idempotency_key()?;
        if kind == DirectKind::Transactional && json::is_array(&direct.body) {
            let items = read_array(&direct.body).await?;
            let key = IdempotencyKey::of(key, transactional::METHOD, transactional::PATH, &direct.body);
            return many::accept(&self.ingress, &publisher.caller(), &key, items).await;
        }
        let operation = routes::operation(operation_of(kind)).ok_or_else(ApiError::internal)?;
        let request = call::request(operation, publisher, &direct.body, Some(key), Manner::Told)?;
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, content) = response.into_parts();
        if parts.status.is_success() {
            return Ok(many::Summary::one());
        }
        let answered = body::to_bytes(content, ANSWER_MAX_BYTES).await.map_err(|error| ApiError::unexpected(&error))?;
        let retry_after =
            parts.headers.get(header::RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        Err(ApiError { retry_after, ..ApiError::read(parts.status, &answered) })
    }
}

/// Reads an array; a long one off the reactor, where it would hold up everybody else.
async fn read_array(body: &Bytes) -> Result<Vec<serde_json::Value>, ApiError> {
    let body = body.clone();
    tokio::task::spawn_blocking(move || json::parse_array(&body, many::MANY_MAX)).await?
}

/// Whether a refusal is the last word. What a repetition may decide otherwise comes again: without end where something is away or the
/// same request is under way, and for some five minutes where the fault is ours or somebody else is at the same object.
fn may_be_told(error: &ApiError, deliveries: i64) -> Result<(), StageError> {
    match error.status {
        StatusCode::SERVICE_UNAVAILABLE => Err(StageError::Unavailable { reason: "unavailable" }),
        StatusCode::CONFLICT if error.code == "idempotency_in_progress" => {
            Err(StageError::Unavailable { reason: "idempotency_in_progress" })
        }
        StatusCode::CONFLICT if error.retry_after.is_some() && deliveries < ATTEMPTS_MAX => {
            Err(StageError::Deferred { reason: "conflict" })
        }
        status if status.is_server_error() && deliveries < ATTEMPTS_MAX => {
            Err(StageError::Deferred { reason: "internal_error" })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::away(ApiError::unavailable(), 1_000, false)]
    #[case::in_progress(ApiError::conflict("idempotency_in_progress"), 1_000, false)]
    #[case::our_fault(ApiError::internal(), 1, false)]
    #[case::our_fault_for_good(ApiError::internal(), ATTEMPTS_MAX, true)]
    #[case::refused(ApiError::not_found("template"), 1, true)]
    #[case::conflict(ApiError::conflict("already_enrolled"), 1, true)]
    #[case::conflict_that_may_end(ApiError::busy("campaign_already_preflight"), 1, false)]
    #[case::conflict_that_lasts(ApiError::busy("campaign_already_preflight"), ATTEMPTS_MAX, true)]
    #[case::too_many(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "send_quota_exceeded"), 1, true)]
    fn only_the_last_word_is_told(#[case] error: ApiError, #[case] deliveries: i64, #[case] told: bool) {
        assert_eq!(may_be_told(&error, deliveries).is_ok(), told);
    }
}
