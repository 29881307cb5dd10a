//! What became of a message: waits until the ledger says, and answers. Used by the request that made it and by its repeats.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use http::StatusCode;
use schemars::JsonSchema;
use schemas::{SendState, SkipReason, month_of};
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    pipeline::{Awaited, Reply, error::ApiError, types::Email},
    state::Ingress,
};

/// The ledger is looked at again after this long, whether somebody rang or not.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What it takes to store the answer and send it, out of the time a request may take.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);
/// When a repeat of a dispatch that is not decided makes sense, in seconds.
const RETRY_PENDING: u64 = 5;

/// One recipient, as the ledger has him.
#[derive(Debug, Clone)]
struct RecipientRow {
    send_id: Uuid,
    /// None after an erasure.
    email: Option<String>,
    /// None until the message is resolved.
    state: Option<SendState>,
    reason: Option<String>,
    smtp_code: Option<i16>,
    enhanced_code: Option<String>,
    provider_message_id: Option<String>,
    next_attempt_at: Option<DateTime<Utc>>,
}

/// A message, as the ledger has it.
#[derive(Debug, Clone)]
struct Ledger {
    message_id: Uuid,
    /// The request can never be handled.
    rejected: bool,
    sending_domain: String,
    recipients: Vec<RecipientRow>,
}

/// The answer when at least one recipient was accepted.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MessageSent {
    message_id: Uuid,
    /// Of the first accepted mail.
    #[schemars(with = "String")]
    provider_message_id: Option<String>,
    /// Recipients that may not be mailed, and why.
    skipped: Vec<SkippedRecipient>,
    recipients: Vec<RecipientOutcome>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SkippedRecipient {
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    send_id: Uuid,
    #[schemars(with = "String")]
    reason: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RecipientOutcome {
    #[schemars(with = "Option<Email>")]
    email: Option<String>,
    send_id: Uuid,
    #[schemars(with = "SendState")]
    state: Option<SendState>,
}

/// What follows from the ledger.
#[derive(Debug)]
enum DispatchState {
    /// This is the answer.
    Decided(Result<Reply, ApiError>),
    /// Not yet; `quiet_until`: nothing will happen before.
    Open { quiet_until: Option<DateTime<Utc>> },
}

/// Waits for the outcome of a message and answers it.
pub(super) fn outcome(
    ingress: Arc<Ingress>,
    awaited: Awaited,
) -> Pin<Box<dyn Future<Output = Result<Reply, ApiError>> + Send>> {
    Box::pin(async move { wait(&ingress, awaited).await })
}

async fn wait(ingress: &Ingress, awaited: Awaited) -> Result<Reply, ApiError> {
    let Awaited { tenant, reference: message, fresh } = awaited;
    let settings = &ingress.settings;
    let patience = settings.message_timeout.min(settings.http_request_timeout.saturating_sub(ANSWER_MARGIN));
    let deadline = Instant::now() + patience;
    // Before the first look: what is decided after it rings.
    let waiter = ingress.inbox.wait_for(message);
    if fresh {
        waiter.rung_within(patience.min(LOOK_EVERY)).await;
    }
    loop {
        let quiet_until = match read(ingress, tenant, message).await {
            Ok(ledger) => match ledger.state() {
                DispatchState::Decided(answer) => return answer,
                DispatchState::Open { quiet_until } => quiet_until,
            },
            // It is committed; Postgres may be back in time.
            Err(error) if runtime::db::is_transient(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let in_vain = quiet_until.is_some_and(|at| (at - Utc::now()).to_std().is_ok_and(|quiet| quiet > left));
        // A process that stops does not keep its caller: the repeat finds the outcome elsewhere.
        if left.is_zero() || in_vain || ingress.tasks.is_closed() {
            return Err(pending(message));
        }
        waiter.rung_within(left.min(LOOK_EVERY)).await;
    }
}

fn pending(message: Uuid) -> ApiError {
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "dispatch_pending")
        .detail("the message is on its way; repeat the request with its Idempotency-Key to hear the outcome")
        .retry_after(RETRY_PENDING)
        .about_message(message)
}

async fn read(ingress: &Ingress, tenant: Uuid, message: Uuid) -> sqlx::Result<Ledger> {
    let mut db = ingress.by_key.read(tenant).await?;
    let rows =
        sqlx::query_file!("queries/dispatch.sql", tenant, message, month_of(message)).fetch_all(&mut *db).await?;
    drop(db);
    // A message has a recipient and a request, or it was never committed.
    let head = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let (rejected, sending_domain) = (head.rejected, head.domain.clone());
    let recipients = rows.into_iter().map(|row| RecipientRow {
        send_id: row.send_id,
        email: row.email,
        state: row.state,
        reason: row.reason,
        smtp_code: row.smtp_code,
        enhanced_code: row.enhanced_code,
        provider_message_id: row.provider_message_id,
        next_attempt_at: row.next_attempt_at,
    });
    Ok(Ledger { message_id: message, rejected, sending_domain, recipients: recipients.collect() })
}

impl RecipientRow {
    fn is(&self, state: SendState) -> bool {
        self.state == Some(state)
    }

    fn is_open(&self) -> bool {
        self.state.is_none_or(SendState::is_open)
    }

    /// Codes only: a server's words may quote the address.
    fn refusal(&self) -> Option<String> {
        let smtp_code = self.smtp_code.map(|code| code.to_string());
        let codes: Vec<String> = [smtp_code, self.enhanced_code.clone()].into_iter().flatten().collect();
        match (codes.is_empty(), &self.reason) {
            (false, _) => Some(codes.join(" ")),
            (true, Some(reason)) => Some(reason.clone()),
            (true, None) => None,
        }
    }
}

impl Ledger {
    fn state(&self) -> DispatchState {
        if self.rejected {
            tracing::error!(message_id = %self.message_id, "a message was rejected by the pipeline");
            return DispatchState::Decided(Err(ApiError::internal()));
        }
        if self.recipients.iter().any(RecipientRow::is_open) {
            return DispatchState::Open { quiet_until: self.quiet_until() };
        }
        DispatchState::Decided(self.answer())
    }

    /// When all that is open waits for its next attempt: the first of these times.
    fn quiet_until(&self) -> Option<DateTime<Utc>> {
        let open = || self.recipients.iter().filter(|recipient| recipient.is_open());
        let resting = open().all(|recipient| recipient.is(SendState::Deferred));
        if resting { open().filter_map(|recipient| recipient.next_attempt_at).min() } else { None }
    }

    /// The answer, when all is decided.
    fn answer(&self) -> Result<Reply, ApiError> {
        let any = |state| self.recipients.iter().any(|recipient| recipient.is(state));
        if any(SendState::Sent) {
            return self.accepted();
        }
        if any(SendState::Unknown) {
            // It may have arrived, and nobody can say: neither a success nor a refusal.
            return Err(pending(self.message_id).detail("the provider took the message and did not answer"));
        }
        let refused: Vec<&RecipientRow> =
            self.recipients.iter().filter(|recipient| !recipient.is(SendState::Skipped)).collect();
        if refused.is_empty() {
            return Err(self.withheld());
        }
        let mut codes: Vec<String> = refused.iter().filter_map(|recipient| recipient.refusal()).collect();
        codes.sort_unstable();
        codes.dedup();
        Err(ApiError::new(StatusCode::BAD_GATEWAY, "provider_rejected")
            .detail(codes.join(", "))
            .about_message(self.message_id))
    }

    /// Nobody may be mailed: because of what happened to the tenant or its domain after the message was accepted, or because of who
    /// they are.
    fn withheld(&self) -> ApiError {
        let any = |reason: SkipReason| {
            self.recipients.iter().any(|recipient| recipient.reason.as_deref() == Some(reason.as_str()))
        };
        if [SkipReason::DomainUnverified, SkipReason::SenderDisabled, SkipReason::TenantSuspended].into_iter().any(any)
        {
            return ApiError::forbidden("domain_not_verified")
                .detail("the tenant, the sender or its domain may not send any more")
                .about_message(self.message_id);
        }
        if any(SkipReason::QuotaExceeded) {
            return ApiError::new(StatusCode::TOO_MANY_REQUESTS, "send_quota_exceeded")
                .detail("the quota was used up when the message came to its turn")
                .about_message(self.message_id);
        }
        super::all_suppressed()
    }

    fn accepted(&self) -> Result<Reply, ApiError> {
        let (skipped, others): (Vec<&RecipientRow>, Vec<&RecipientRow>) =
            self.recipients.iter().partition(|recipient| recipient.is(SendState::Skipped));
        let first = others.iter().find(|recipient| recipient.is(SendState::Sent));
        let provider_message_id = first.map(|recipient| {
            let ours = || format!("<{}@{}>", recipient.send_id, self.sending_domain);
            recipient.provider_message_id.clone().unwrap_or_else(ours)
        });
        let skipped = skipped.into_iter().map(|recipient| SkippedRecipient {
            email: recipient.email.clone(),
            send_id: recipient.send_id,
            reason: recipient.reason.clone(),
        });
        let recipients = others.into_iter().map(|recipient| RecipientOutcome {
            email: recipient.email.clone(),
            send_id: recipient.send_id,
            state: recipient.state,
        });
        Reply::ok(&MessageSent {
            message_id: self.message_id,
            provider_message_id,
            skipped: skipped.collect(),
            recipients: recipients.collect(),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn ledger(states: &[Option<SendState>]) -> Ledger {
        let row = |(place, state): (usize, &Option<SendState>)| RecipientRow {
            send_id: Uuid::from_u128(place as u128),
            email: Some(format!("p{place}@example.com")),
            state: *state,
            reason: None,
            smtp_code: Some(550),
            enhanced_code: Some("5.1.1".into()),
            provider_message_id: None,
            next_attempt_at: (*state == Some(SendState::Deferred)).then(|| Utc::now() + chrono::TimeDelta::minutes(1)),
        };
        Ledger {
            message_id: Uuid::nil(),
            rejected: false,
            sending_domain: "acme.test".into(),
            recipients: states.iter().enumerate().map(row).collect(),
        }
    }

    use SendState::{Claimed, Deferred, Expired, Failed, Fenced, Queued, Sent, Skipped, Unknown};

    #[rstest]
    #[case::unresolved(&[None], None)]
    #[case::queued(&[Some(Queued)], None)]
    #[case::in_hand(&[Some(Sent), Some(Claimed)], None)]
    #[case::on_the_wire(&[Some(Sent), Some(Fenced)], None)]
    #[case::later(&[Some(Sent), Some(Deferred)], None)]
    #[case::sent(&[Some(Sent)], Some((200, "")))]
    #[case::some_sent(&[Some(Sent), Some(Failed), Some(Skipped), Some(Unknown)], Some((200, "")))]
    #[case::refused(&[Some(Failed), Some(Failed)], Some((502, "provider_rejected")))]
    #[case::refused_or_blocked(&[Some(Failed), Some(Skipped)], Some((502, "provider_rejected")))]
    #[case::too_late(&[Some(Expired)], Some((502, "provider_rejected")))]
    #[case::doubtful(&[Some(Failed), Some(Unknown)], Some((504, "dispatch_pending")))]
    #[case::all_blocked(&[Some(Skipped)], Some((422, "all_recipients_suppressed")))]
    fn the_answer_follows_from_the_states(#[case] states: &[Option<SendState>], #[case] expected: Option<(u16, &str)>) {
        let found = match ledger(states).state() {
            DispatchState::Open { .. } => None,
            DispatchState::Decided(Ok(_)) => Some((200, String::new())),
            DispatchState::Decided(Err(error)) => Some((error.status.as_u16(), error.code.to_string())),
        };
        assert_eq!(found, expected.map(|(status, code)| (status, code.to_owned())));
    }

    #[rstest]
    #[case::who_they_are(&["unsubscribed", "hard_bounced"], (422, "all_recipients_suppressed"))]
    #[case::the_domain(&["unsubscribed", "domain_unverified"], (403, "domain_not_verified"))]
    #[case::the_sender(&["sender_disabled"], (403, "domain_not_verified"))]
    #[case::the_tenant(&["tenant_suspended"], (403, "domain_not_verified"))]
    #[case::the_quota(&["quota_exceeded", "unsubscribed"], (429, "send_quota_exceeded"))]
    fn when_all_are_withheld_the_answer_says_whose_doing_it_is(
        #[case] reasons: &[&str],
        #[case] expected: (u16, &str),
    ) {
        let mut ledger = ledger(&vec![Some(Skipped); reasons.len()]);
        for (recipient, reason) in ledger.recipients.iter_mut().zip(reasons) {
            recipient.reason = Some((*reason).to_owned());
        }
        let DispatchState::Decided(Err(error)) = ledger.state() else { panic!() };
        assert_eq!((error.status.as_u16(), error.code.to_string().as_str()), expected);
        assert_eq!(error.is_deterministic(), expected.0 == 422, "what may pass is not kept for the key");
    }

    #[test]
    fn a_refusal_says_its_codes_and_no_address() {
        let DispatchState::Decided(Err(error)) = ledger(&[Some(Failed), Some(Failed)]).state() else { panic!() };
        assert_eq!((error.detail.as_deref(), error.message_id), (Some("550 5.1.1"), Some(Uuid::nil())));
    }

    #[test]
    fn it_is_quiet_only_when_all_that_is_open_is_deferred() {
        assert!(ledger(&[Some(Sent), Some(Deferred)]).quiet_until().is_some());
        assert!(ledger(&[Some(Queued), Some(Deferred)]).quiet_until().is_none());
        assert!(ledger(&[None]).quiet_until().is_none());
    }
}
