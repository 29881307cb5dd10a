//! `call_product_webhook`: a signed POST to an address of the product's, made outside of any transaction. The enrollment is
//! claimed under a token for as long as a call may take, and moved on afterwards; when the process dies in between, the claim runs
//! out and the call is made again under the same id. A receiver that answers late or never delays its own tenant only.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use runner::{Deps, Runner, StageError};
use runtime::{
    CommitNotifier, Counter, Outbound, Vault,
    outbound::{OutboundError, OutboundLimits},
    plans::PreparedPool,
    trace,
};
use schemas::{
    StepType,
    webhook::{self, CallSigner, WebhookSecret},
};
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use url::Url;
use uuid::Uuid;

use crate::{
    due::{self, Due},
    moves::{self, FailedAttempt, Log, advance, fail},
    sequence,
    steps::{DueStep, Effect, StepOutcome},
};
use schemas::action::{Action, CallProductWebhook};

/// How long a claim holds: longer than a call may take, with what comes before and after it.
pub(crate) const LEASE: Duration = Duration::from_secs(45);
/// Calls of one process at the same time, and of one tenant among them.
const CALLS_MAX: usize = 128;
pub(crate) const CALLS_PER_TENANT: usize = 8;
/// The type that the call's headers name.
const CALL_TYPE: &str = "sequence.step";

/// A call to make.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) token: Uuid,
    id: Uuid,
    due: Due,
    step_id: Uuid,
    config: CallProductWebhook,
    body: Value,
    /// Given back when the call is over: one of its tenant's, and one of all.
    _permits: [OwnedSemaphorePermit; 2],
}

/// Makes calls. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pool: PgPool,
    by_key: PreparedPool,
    outbound: Outbound,
    vault: Arc<Vault>,
    facts: CommitNotifier,
    runner: Runner,
    permits: Arc<Semaphore>,
    permits_by_tenant: Arc<Mutex<HashMap<Uuid, Arc<Semaphore>>>>,
}

impl Calls {
    pub(crate) fn new(deps: &Deps) -> Self {
        Self {
            pool: deps.pool.clone(),
            by_key: deps.by_key.bulk("sequencing"),
            outbound: deps.outbound.clone(),
            vault: Arc::clone(&deps.vault),
            facts: deps.facts.clone(),
            runner: deps.runner.clone(),
            permits: Arc::new(Semaphore::new(CALLS_MAX)),
            permits_by_tenant: Arc::default(),
        }
    }

    /// Prepares an item's call. `None`: the limit of concurrent calls is reached.
    pub(crate) fn claim(&self, item: &DueStep<'_>) -> Option<Call> {
        let Some(Action::CallProductWebhook(config)) = &item.step.action else { return None };
        let permits = self.permits(item.due.tenant_id)?;
        // The same in every attempt, over processes and crashes.
        let id = Uuid::new_v5(&item.due.id, item.step.id.as_bytes());
        let body = json!({
            "id": id,
            "type": CALL_TYPE,
            "version": schemas::events::EVENT_VERSION,
            "engine_tenant_id": item.due.tenant_id,
            "environment": item.sequence.environment,
            "data": {
                "sequence_id": item.due.sequence_id,
                "enrollment_id": item.due.id,
                "step_id": item.step.id,
                "contact_id": item.due.contact_id,
                "email": item.person.address,
                "payload": config.payload,
            },
        });
        let (due, config) = (item.due.clone(), config.clone());
        Some(Call { token: Uuid::new_v4(), id, due, step_id: item.step.id, config, body, _permits: permits })
    }

    fn permits(&self, tenant: Uuid) -> Option<[OwnedSemaphorePermit; 2]> {
        let mut by_tenant = self.permits_by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        by_tenant.retain(|_, permits| permits.available_permits() < CALLS_PER_TENANT);
        let own = by_tenant.entry(tenant).or_insert_with(|| Arc::new(Semaphore::new(CALLS_PER_TENANT)));
        Some([Arc::clone(own).try_acquire_owned().ok()?, Arc::clone(&self.permits).try_acquire_owned().ok()?])
    }

    /// Makes a call whose claim is committed, in the background.
    pub(crate) fn start(&self, call: Call) {
        let calls = self.clone();
        self.runner.spawn(
            "sequencing",
            trace::inherit(async move {
                let answer = calls.post(&call).await;
                if let Err(error) = calls.record_answer(&call, answer).await {
                    // The claim runs out, and the call is made again.
                    tracing::warn!(code = error.code(), error = %error.chain(), "a call's outcome is not written down");
                }
            }),
        );
    }

    /// The product's own id of the tenant, and the secrets its calls are signed with now.
    async fn product(&self, call: &Call) -> sqlx::Result<(Option<String>, Vec<WebhookSecret>)> {
        let row = sqlx::query!(
            r#"select (
                   select k.product_tenant_id
                   from tenant_links k join tenants t on t.id = k.tenant_id and t.environment = k.environment
                   where k.tenant_id = $1 and k.product = $2
                   order by k.created_at, k.product_tenant_id limit 1
               ) as known, s.generation as "generation?",
               coalesce(s.rotated_at > now() - make_interval(secs => $3), false) as "is_rotating!"
               from (values (1)) as one (row)
               left join call_secrets s on s.tenant_id = $1 and s.product = $2"#,
            call.due.tenant_id,
            call.due.product,
            webhook::ROTATION_OVERLAP.as_secs_f64(),
        )
        .fetch_one(&self.pool)
        .await?;
        let secrets = self.vault.call_secrets(CallSigner {
            tenant: call.due.tenant_id,
            product: &call.due.product,
            generation: row.generation.and_then(|generation| u32::try_from(generation).ok()).unwrap_or(0),
            is_rotating: row.is_rotating,
        });
        Ok((row.known, secrets))
    }

    /// The status that was answered, or the code of why there is none.
    async fn post(&self, call: &Call) -> Result<u16, FailedAttempt> {
        let url: Url =
            self.outbound.rules().parse(&call.config.url).map_err(|_| FailedAttempt::ForGood("address_not_allowed"))?;
        let mut body = call.body.clone();
        let (known, secrets) = self.product(call).await.map_err(|_| FailedAttempt::Again("ledger"))?;
        body["product_tenant_id"] = json!(known);
        let body = Bytes::from(body.to_string());
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let ours = [
            (webhook::EVENT_HEADER, CALL_TYPE.to_owned()),
            (webhook::ATTEMPT_HEADER, call.due.attempts.saturating_add(1).to_string()),
            (webhook::DELIVERY_HEADER, call.id.to_string()),
        ];
        let signed = webhook::sign(&secrets, call.id, Utc::now().timestamp(), &body);
        for (name, value) in ours.into_iter().chain(signed) {
            let value = HeaderValue::try_from(value).map_err(|_| FailedAttempt::ForGood("header"))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        let answer = self.outbound.post(&url, headers, body, OutboundLimits::default()).await?;
        match answer.status.as_u16() {
            status @ 200..=299 => Ok(status),
            410 => Err(FailedAttempt::ForGood("answered_gone")),
            300..=399 => Err(FailedAttempt::Again("answered_redirect")),
            400..=499 => Err(FailedAttempt::Again("answered_client_error")),
            _ => Err(FailedAttempt::Again("answered_server_error")),
        }
    }

    /// Moves the enrollment on, if its claim still holds: it may have ended meanwhile.
    async fn record_answer(&self, call: &Call, answer: Result<u16, FailedAttempt>) -> Result<(), StageError> {
        let mut tx = self.by_key.begin().await?;
        let Some(now) = lock_claimed(&mut tx, call).await? else { return Ok(tx.rollback().await?) };
        let due = std::slice::from_ref(&call.due);
        let sequences = sequence::load(&mut tx, due).await?;
        let people = due::people(&mut tx, due, &sequences).await?;
        let sequence = sequences.get(&(call.due.tenant_id, call.due.sequence_id));
        let (Some(sequence), Some(Some(person))) = (sequence, people.first()) else { return Ok(tx.rollback().await?) };
        let (moved, log) = match answer {
            Ok(status) => {
                let effect = Effect::of(StepOutcome::Done, json!({"status": status, "call_id": call.id}));
                let log = Log::of(&call.due, call.step_id, StepType::CallProductWebhook, &effect);
                (advance(&call.due, sequence, person, &effect, now), Some(log))
            }
            Err(failed) => fail(&call.due, call.step_id, StepType::CallProductWebhook, failed, now),
        };
        let outcome = log.as_ref().map_or("retried", |log| log.outcome);
        moves::write(&mut tx, &[moved], log.as_slice()).await?;
        tx.commit().await?;
        self.facts.notify();
        let labels = [("step_type", StepType::CallProductWebhook.as_str()), ("outcome", outcome)];
        Counter::SequenceStepsTotal.add(1, labels);
        Ok(())
    }
}

/// Locks the enrollment if the claim still holds; answers the time.
async fn lock_claimed(db: &mut PgConnection, call: &Call) -> sqlx::Result<Option<DateTime<Utc>>> {
    sqlx::query_scalar!(
        r#"select now() as "now!" from enrollments
           where tenant_id = $1 and id = $2 and claim_token = $3 and status in ('active', 'paused')
           for no key update"#,
        call.due.tenant_id,
        call.due.id,
        call.token,
    )
    .fetch_optional(db)
    .await
}

impl From<OutboundError> for FailedAttempt {
    fn from(error: OutboundError) -> Self {
        let of = if error.is_retryable() { Self::Again } else { Self::ForGood };
        of(error.code())
    }
}
