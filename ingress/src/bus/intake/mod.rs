//! Direct requests: what internal systems publish on `mail.v1.request.<product>.<environment>.<kind>`.
//!
//! A request is handled as an HTTP request ([`super::call`]): the same code validates, handles and answers it. The stream keeps it
//! until it is committed. `Nats-Msg-Id` is the `Idempotency-Key`, so that a repeat after a crash finds the answer and has no second
//! effect. A refused request becomes a dead letter and an event `request.rejected`; one that cannot be handled now is delivered again.

mod direct;
mod reject;
mod unroutable;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::Router;
use bytes::Bytes;
use chrono::Utc;
use futures::FutureExt;
use http::{StatusCode, header};
use runner::{Intake, MAX_ATTEMPTS, Stage, StageError};
use runtime::{Counter, Publication};
use schemas::{DirectKind, Lane, subjects::stream};
use tokio_util::sync::CancellationToken;

use self::{direct::DirectRequest, reject::DeadLetterQuota, unroutable::UnroutableRequests};
use super::{
    call::{self, CallMode},
    calls::operation_of_kind,
};
use crate::{
    api::transactional::{self, array},
    pipeline::{
        IdempotencyKey,
        error::ApiError,
        json,
        shares::{Share, Shares},
    },
    routes,
    state::Ingress,
};

/// The stage's name: in durables, dead letters and metrics.
pub(super) const NAME: &str = "ingress";
/// Arrays and single transactional requests that each ingress process handles at once, and as many of the other kinds.
const WORKERS: usize = 4;
/// Launches handled at once, and of them those of one product in one environment: each counts an audience.
const LAUNCHES: usize = 4;
const LAUNCHES_PER_PRODUCT: usize = 2;
/// Launches that are handled or wait for their turn, which comes in the order of the stream: a worker for each. Of them those of one product in
/// one environment: a product whose launches last leaves workers to the others.
const LAUNCHES_IN_HAND: usize = 32;
const LAUNCHES_IN_HAND_PER_PRODUCT: usize = 8;
/// How long a launch stays on the bus that is more than its product may have in hand, or whose turn did not come.
const LAUNCH_WAIT: Duration = Duration::from_secs(5);
/// The attempt at which an internal error, or a conflict that may end by itself, is final. One less than the runner's limit, beyond which
/// it would leave a dead letter without an event.
const ATTEMPTS_MAX: i64 = MAX_ATTEMPTS - 1;
/// The attempt at which an audience that cannot be counted in time is final: each costs Postgres as much as it may.
const SLOW_ATTEMPTS_MAX: i64 = 2;
/// How long a request of an unknown kind stays on the bus before it is delivered again, to a process that may know the kind.
const UNKNOWN_WAIT: Duration = Duration::from_secs(10);

/// Kinds that share a durable consumer, which all ingress processes share.
struct IntakeQueue {
    /// The durable consumer is `ingress-<name>`.
    name: &'static str,
    lane: Lane,
    kinds: &'static [DirectKind],
}

/// Three queues: no request waits behind a launch, which counts an audience, and no single message behind an array. A consumer may have
/// more messages pending than one product may have waiting, so that a product whose requests are all deferred does not block others.
const INTAKE_QUEUES: [IntakeQueue; 3] = [
    IntakeQueue {
        name: "prompt",
        lane: Lane::Priority,
        kinds: &[
            DirectKind::Message,
            DirectKind::Enrollment,
            DirectKind::Outcome,
            DirectKind::Contact,
            DirectKind::Event,
            DirectKind::Suppression,
        ],
    },
    IntakeQueue { name: "transactional", lane: Lane::Priority, kinds: &[DirectKind::Transactional] },
    IntakeQueue { name: "launches", lane: Lane::Bulk, kinds: &[DirectKind::CampaignLaunch] },
];

pub(super) struct DirectRequestStage {
    ingress: Arc<Ingress>,
    router: Router,
    dead_letters: Arc<DeadLetterQuota>,
    /// Launches in hand, by product and environment.
    launches_in_hand: Shares,
    /// Those of them that are handled.
    launches: Shares,
    shutdown: CancellationToken,
}

/// Starts taking direct requests, with the runner of the ingress, until shut down.
pub(crate) fn start(ingress: &Arc<Ingress>, shutdown: CancellationToken) {
    let dead_letters = Arc::new(DeadLetterQuota::new());
    let router = routes::router(Arc::clone(ingress));
    let stage = Arc::new(DirectRequestStage {
        ingress: Arc::clone(ingress),
        router,
        dead_letters: Arc::clone(&dead_letters),
        launches_in_hand: Shares::new(LAUNCHES_IN_HAND, LAUNCHES_IN_HAND_PER_PRODUCT),
        launches: Shares::new(LAUNCHES, LAUNCHES_PER_PRODUCT),
        shutdown,
    });
    let intakes = INTAKE_QUEUES.iter().map(|queue| Intake {
        lane: queue.lane,
        stream: stream::REQUESTS,
        durable: format!("{NAME}-{}", queue.name),
        subjects: queue.kinds.iter().map(|kind| format!("{}.*.*.{kind}", direct::SUBJECT)).collect(),
        workers: if queue.lane == Lane::Bulk { LAUNCHES_IN_HAND } else { WORKERS },
        coalesce: 1,
    });
    ingress.runner.start(stage, intakes.collect());
    ingress.runner.start_sweep(NAME, Arc::new(UnroutableRequests::new(ingress.bus.clone(), dead_letters)));
}

#[async_trait]
impl Stage for DirectRequestStage {
    const NAME: &'static str = NAME;
    const SPAN: &'static str = "ingress take in";
    type Input = DirectRequest;

    async fn handle(&self, inputs: &[DirectRequest]) -> Result<Vec<Publication>, StageError> {
        let mut outputs = Vec::new();
        for direct in inputs {
            outputs.extend(self.handle_one(direct).await?);
        }
        Ok(outputs)
    }

    async fn given_up(&self, direct: &DirectRequest, code: &'static str) -> Result<Vec<Publication>, StageError> {
        let error = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, code)
            .detail("it was begun several times and never finished: it may have been carried out");
        self.reject(direct, &error).await
    }

    fn commits_facts(&self, _: &[Self::Input]) -> bool {
        // The handler of the request notifies when it commits.
        false
    }
}

impl DirectRequestStage {
    /// Handles one message. Returns what is published about its rejections.
    async fn handle_one(&self, direct: &DirectRequest) -> Result<Vec<Publication>, StageError> {
        // A newer process has given the consumer its subject.
        if direct.kind().is_err() && Utc::now() - direct.published_at < unroutable::LEFT_FOR {
            return Err(StageError::Busy { reason: "unknown_kind", wait: UNKNOWN_WAIT });
        }
        if direct.outlives_its_key(Utc::now()) {
            let error = ApiError::conflict("request_too_old")
                .detail("it was delivered before, so long ago that it is not known whether it was carried out");
            return self.reject(direct, &error).await;
        }
        let _turn = self.take_turn(direct).await?;
        // A panic is an internal error: the message is delivered again, and rejected in the end.
        let result = std::panic::AssertUnwindSafe(self.run_request(direct)).catch_unwind().await;
        let outcome = result.unwrap_or_else(|_| {
            tracing::error!("a direct request panicked");
            Err(ApiError::internal())
        });
        let kind = direct.kind_label();
        match outcome {
            Ok(refused) => {
                let (accepted, rejected) = (refused.accepted as u64, refused.refused.len() as u64);
                Counter::DirectRequestsTotal.add(accepted, [("kind", kind), ("outcome", "accepted")]);
                Counter::DirectRequestsTotal.add(rejected, [("kind", kind), ("outcome", "rejected")]);
                reject::reject_items(&self.dead_letters, direct, &refused.refused).await
            }
            Err(error) => {
                check_is_final(&error, direct.origin.attempts)?;
                self.reject(direct, &error).await
            }
        }
    }

    /// A place and a turn of the product, for a launch. Others take none. A launch whose turn has not come at shutdown is left to another
    /// process: counting its audience would outlast the drain.
    async fn take_turn(&self, direct: &DirectRequest) -> Result<Option<[Share; 2]>, StageError> {
        if direct.lane() != Lane::Bulk {
            return Ok(None);
        }
        let product = direct.subject_of_publisher();
        let busy = || StageError::Busy { reason: "launches_busy", wait: LAUNCH_WAIT };
        let place = self.launches_in_hand.try_take(product, 1).ok_or_else(busy)?;
        let turn = self.shutdown.run_until_cancelled(self.launches.take_turn(product)).await;
        let turn = turn.and_then(Result::ok).ok_or_else(busy)?;
        Ok(Some([place, turn]))
    }

    async fn reject(&self, direct: &DirectRequest, error: &ApiError) -> Result<Vec<Publication>, StageError> {
        Counter::DirectRequestsTotal.add(1, [("kind", direct.kind_label()), ("outcome", "rejected")]);
        reject::reject_message(&self.dead_letters, direct, error).await
    }

    async fn run_request(&self, direct: &DirectRequest) -> Result<array::ArraySummary, ApiError> {
        let publisher = direct.publisher()?;
        let kind = direct.kind()?;
        let key = direct.idempotency_key()?;
        let operation = routes::operation(operation_of_kind(kind)).ok_or_else(ApiError::internal)?;
        if kind == DirectKind::Transactional && json::is_array(&direct.body) {
            let items = read_array(&direct.body).await?;
            let key = IdempotencyKey::of(key, transactional::METHOD, transactional::PATH, &direct.body);
            return array::accept_array(&self.ingress, operation, &publisher.caller(), &key, items).await;
        }
        let (log, body) = (&self.ingress.request_log, direct.body.clone());
        let request = call::request_or_log(log, operation, publisher, body, Some(key), CallMode::Published).await?;
        let (parts, content) = call::route(&self.router, request).await;
        if parts.status.is_success() {
            return Ok(array::ArraySummary::one());
        }
        let answered = call::read_answer(content).await?;
        let retry_after =
            parts.headers.get(header::RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        Err(ApiError { retry_after, ..ApiError::read(parts.status, &answered) })
    }
}

/// Reads an array on a blocking thread: a long one would hold up the reactor.
async fn read_array(body: &Bytes) -> Result<Vec<serde_json::Value>, ApiError> {
    let body = body.clone();
    tokio::task::spawn_blocking(move || json::parse_array(&body, array::ARRAY_MAX)).await?
}

/// Ok if a refusal is final. Otherwise the message is delivered again: without end while a dependency is away or the same request is
/// being handled, for five minutes or more after an internal error or a conflict with another request, and once by each process where an
/// audience could not be counted in time.
fn check_is_final(error: &ApiError, attempts: i64) -> Result<(), StageError> {
    let attempts_max = if error.code == "audience_too_slow" { SLOW_ATTEMPTS_MAX } else { ATTEMPTS_MAX };
    match error.status {
        StatusCode::SERVICE_UNAVAILABLE if error.code == "unavailable" => {
            Err(StageError::Unavailable { reason: "unavailable" })
        }
        StatusCode::CONFLICT if error.code == "idempotency_in_progress" => {
            Err(StageError::Unavailable { reason: "idempotency_in_progress" })
        }
        StatusCode::CONFLICT if error.retry_after.is_some() && attempts < ATTEMPTS_MAX => {
            Err(StageError::Deferred { reason: "conflict" })
        }
        status if status.is_server_error() && attempts < attempts_max => {
            Err(StageError::Deferred { reason: "internal_error" })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use runner::MAX_ACK_PENDING;
    use runtime::streams::REQUESTS_WAITING_MAX;
    use schemas::Environment;

    #[test]
    fn a_consumer_delivers_more_than_one_product_may_have_waiting() {
        for queue in &INTAKE_QUEUES {
            let subjects = i64::try_from(queue.kinds.len() * Environment::ALL.len()).unwrap();
            assert!(subjects * REQUESTS_WAITING_MAX < MAX_ACK_PENDING, "{}", queue.name);
        }
    }

    #[test]
    fn every_kind_stands_for_a_write_and_comes_by_one_consumer() {
        for kind in DirectKind::ALL {
            assert!(routes::operation(operation_of_kind(*kind)).unwrap().is_write(), "{kind}");
            assert_eq!(INTAKE_QUEUES.iter().filter(|queue| queue.kinds.contains(kind)).count(), 1, "{kind}");
        }
    }

    #[rstest]
    #[case::away(ApiError::unavailable(), 1_000, false)]
    #[case::too_slow(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "audience_too_slow"), 1, false)]
    #[case::too_slow_for_good(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "audience_too_slow"), 2, true)]
    #[case::in_progress(ApiError::conflict("idempotency_in_progress"), 1_000, false)]
    #[case::our_fault(ApiError::internal(), 1, false)]
    #[case::our_fault_for_good(ApiError::internal(), ATTEMPTS_MAX, true)]
    #[case::refused(ApiError::not_found("template"), 1, true)]
    #[case::conflict(ApiError::conflict("already_enrolled"), 1, true)]
    #[case::conflict_that_may_end(ApiError::busy("campaign_already_preflight"), 1, false)]
    #[case::conflict_that_lasts(ApiError::busy("campaign_already_preflight"), ATTEMPTS_MAX, true)]
    #[case::too_many(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "send_quota_exceeded"), 1, true)]
    fn only_a_final_refusal_is_rejected(#[case] error: ApiError, #[case] attempts: i64, #[case] is_final: bool) {
        assert_eq!(check_is_final(&error, attempts).is_ok(), is_final);
    }
}
