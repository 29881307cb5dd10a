//! The outcome of a one-off message: waits until the ledger has it, and answers. The first request and its repeats use it.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use http::StatusCode;
use schemars::JsonSchema;
use schemas::{SendState, SkipReason, month_of};
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    pipeline::{ApiReply, Awaited, error::ApiError, types::Email},
    state::Ingress,
};

/// The ledger is read again after this long, with or without a notification.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Time for storing and sending the answer, out of the time a request may take.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);
/// `Retry-After` of an answer without an outcome, in seconds.
const RETRY_PENDING: u64 = 5;

/// One recipient of the message in the ledger.
#[derive(Debug, Clone)]
struct RecipientRow {
    send_id: Uuid,
    /// None after an erasure.
    email: Option<String>,
    /// None without a send.
    state: Option<SendState>,
    reason: Option<String>,
    smtp_code: Option<i16>,
    enhanced_code: Option<String>,
    /// The provider's id of the mail, or else our Message-ID.
    provider_message_id: Option<String>,
    next_attempt_at: Option<DateTime<Utc>>,
    /// That of the sender.
    domain: String,
}

/// A message and its recipients in the ledger.
#[derive(Debug, Clone)]
struct MessageState {
    message_id: Uuid,
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

/// Waits for the outcome of a message and answers it.
pub(super) fn outcome(
    ingress: Arc<Ingress>,
    awaited: Awaited,
) -> Pin<Box<dyn Future<Output = Result<ApiReply, ApiError>> + Send>> {
    Box::pin(async move { wait(&ingress, awaited).await })
}

async fn wait(ingress: &Ingress, awaited: Awaited) -> Result<ApiReply, ApiError> {
    let Awaited { tenant, reference: message, fresh } = awaited;
    let settings = &ingress.settings;
    let wait_max = settings.message_timeout.min(settings.http_request_timeout.saturating_sub(ANSWER_MARGIN));
    let deadline = Instant::now() + wait_max;
    // Registered before the first read: a decision after that read notifies the waiter.
    let waiter = ingress.reply_inbox.wait_for(message);
    if fresh {
        waiter.wait_at_most(wait_max.min(READ_EVERY)).await;
    }
    loop {
        let quiet_until = match read(ingress, tenant, message).await {
            Ok(ledger) => match ledger.outcome() {
                Some(answer) => return answer,
                None => ledger.quiet_until(),
            },
            // The message is committed; Postgres may be back before the deadline.
            Err(error) if runtime::db::is_transient(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let in_vain = quiet_until.is_some_and(|at| (at - Utc::now()).to_std().is_ok_and(|quiet| quiet > left));
        // A process that stops does not keep the caller waiting: the repeat finds the outcome in another process.
        if left.is_zero() || in_vain || ingress.tasks.is_closed() {
            return Err(pending(message));
        }
        waiter.wait_at_most(left.min(READ_EVERY)).await;
    }
}

fn pending(message: Uuid) -> ApiError {
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, "dispatch_pending")
        .detail("the message is on its way; repeat the request with its Idempotency-Key to hear the outcome")
        .retry_after(RETRY_PENDING)
        .about_message(message)
}

async fn read(ingress: &Ingress, tenant: Uuid, message: Uuid) -> sqlx::Result<MessageState> {
    let mut db = ingress.by_key.read(tenant).await?;
    let mut recipients = sqlx::query_file_as!(RecipientRow, "queries/dispatch.sql", tenant, message, month_of(message))
        .fetch_all(&mut *db)
        .await?;
    drop(db);
    // A message has a recipient, or it was never committed.
    if recipients.is_empty() {
        return Err(sqlx::Error::RowNotFound);
    }
    let tokens = &ingress.tokens;
    // Shown of sent mail only; this is read again and again until then.
    for row in recipients.iter_mut().filter(|row| row.is(SendState::Sent)) {
        let ours = || format!("<{}@{}>", tokens.message_id_local(tokens.newest(), row.send_id), row.domain);
        row.provider_message_id.get_or_insert_with(ours);
    }
    Ok(MessageState { message_id: message, recipients })
}

impl RecipientRow {
    fn is(&self, state: SendState) -> bool {
        self.state == Some(state)
    }

    fn is_open(&self) -> bool {
        self.state.is_none_or(SendState::is_open)
    }

    /// Codes only: the text of a server may quote the address.
    fn refusal(&self) -> Option<String> {
        let smtp_code = self.smtp_code.map(|code| code.to_string());
        let codes: Vec<String> = [smtp_code, self.enhanced_code.clone()].into_iter().flatten().collect();
        if codes.is_empty() { self.reason.clone() } else { Some(codes.join(" ")) }
    }
}

impl MessageState {
    /// The answer. `None`: no outcome is known yet.
    fn outcome(&self) -> Option<Result<ApiReply, ApiError>> {
        let is_open = self.recipients.iter().any(RecipientRow::is_open);
        (!is_open).then(|| self.answer().map_err(|error| error.about_message(self.message_id)))
    }

    /// The time of the next attempt, before which nothing changes, if all open recipients are deferred.
    fn quiet_until(&self) -> Option<DateTime<Utc>> {
        let open = || self.recipients.iter().filter(|recipient| recipient.is_open());
        let resting = open().all(|recipient| recipient.is(SendState::Deferred));
        if resting { open().filter_map(|recipient| recipient.next_attempt_at).min() } else { None }
    }

    /// The answer, when every recipient is decided.
    fn answer(&self) -> Result<ApiReply, ApiError> {
        let any = |state| self.recipients.iter().any(|recipient| recipient.is(state));
        if any(SendState::Sent) {
            return self.accepted();
        }
        if any(SendState::Unknown) {
            // It may have arrived: neither a success nor a refusal, and nothing is tried again. Evidence may still come: it is not kept.
            return Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "outcome_unknown")
                .detail("the provider did not say whether it took the message, which may have arrived"));
        }
        if self.recipients.iter().all(|recipient| recipient.is(SendState::Skipped)) {
            return Err(self.all_skipped());
        }
        let refused = self.recipients.iter().filter(|recipient| !recipient.is(SendState::Skipped));
        let mut codes: Vec<String> = refused.filter_map(RecipientRow::refusal).collect();
        codes.sort_unstable();
        codes.dedup();
        Err(ApiError::new(StatusCode::BAD_GATEWAY, "provider_rejected").detail(codes.join(", ")))
    }

    /// The answer when the gate skipped all recipients: for the state of tenant, sender or domain after the message was accepted, or
    /// for the recipients' own.
    fn all_skipped(&self) -> ApiError {
        let any = |reason: SkipReason| {
            self.recipients.iter().any(|recipient| recipient.reason.as_deref() == Some(reason.as_str()))
        };
        if any(SkipReason::TenantSuspended) {
            return ApiError::forbidden("tenant_suspended").detail("the operator suspended the tenant");
        }
        if [SkipReason::DomainUnverified, SkipReason::SenderDisabled].into_iter().any(any) {
            return ApiError::forbidden("domain_not_verified").detail("the sender or its domain may not send any more");
        }
        if any(SkipReason::QuotaExceeded) {
            // Without `Retry-After`: the message is skipped for good, and a repeat with its key would find the same.
            return ApiError::new(StatusCode::TOO_MANY_REQUESTS, "send_quota_exceeded")
                .detail("the quota was used up when the message came to its turn; send it as a new one");
        }
        super::all_suppressed(self.recipients.iter().filter_map(|recipient| recipient.reason.as_deref()))
    }

    fn accepted(&self) -> Result<ApiReply, ApiError> {
        let (skipped, others): (Vec<&RecipientRow>, Vec<&RecipientRow>) =
            self.recipients.iter().partition(|recipient| recipient.is(SendState::Skipped));
        let first = others.iter().find(|recipient| recipient.is(SendState::Sent));
        let provider_message_id = first.and_then(|recipient| recipient.provider_message_id.clone());
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
        ApiReply::ok(&MessageSent {
            message_id: self.message_id,
            provider_message_id,
            skipped: skipped.collect(),
            recipients: recipients.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn ledger(states: &[Option<SendState>]) -> MessageState {
        let row = |(place, state): (usize, &Option<SendState>)| RecipientRow {
            send_id: Uuid::from_u128(place as u128),
            email: Some(format!("p{place}@example.com")),
            state: *state,
            reason: None,
            smtp_code: Some(550),
            enhanced_code: Some("5.1.1".into()),
            provider_message_id: None,
            next_attempt_at: (*state == Some(SendState::Deferred)).then(|| Utc::now() + chrono::TimeDelta::minutes(1)),
            domain: "example.com".into(),
        };
        MessageState { message_id: Uuid::nil(), recipients: states.iter().enumerate().map(row).collect() }
    }

    use SendState::{Deferred, Expired, Failed, Fenced, Queued, Sent, Skipped, Unknown};

    #[rstest]
    #[case::unresolved(&[None], None)]
    #[case::queued(&[Some(Queued)], None)]
    #[case::on_the_wire(&[Some(Sent), Some(Fenced)], None)]
    #[case::later(&[Some(Sent), Some(Deferred)], None)]
    #[case::sent(&[Some(Sent)], Some((200, "")))]
    #[case::some_sent(&[Some(Sent), Some(Failed), Some(Skipped), Some(Unknown)], Some((200, "")))]
    #[case::refused(&[Some(Failed), Some(Failed)], Some((502, "provider_rejected")))]
    #[case::refused_or_blocked(&[Some(Failed), Some(Skipped)], Some((502, "provider_rejected")))]
    #[case::too_late(&[Some(Expired)], Some((502, "provider_rejected")))]
    #[case::doubtful(&[Some(Failed), Some(Unknown)], Some((504, "outcome_unknown")))]
    #[case::all_blocked(&[Some(Skipped)], Some((422, "all_recipients_suppressed")))]
    fn the_answer_follows_from_the_states(#[case] states: &[Option<SendState>], #[case] expected: Option<(u16, &str)>) {
        let found = ledger(states).outcome().map(|answer| match answer {
            Ok(_) => (200, String::new()),
            Err(error) => (error.status.as_u16(), error.code.to_string()),
        });
        assert_eq!(found, expected.map(|(status, code)| (status, code.to_owned())));
    }

    #[rstest]
    #[case::the_recipients(&["unsubscribed", "hard_bounced"], (422, "all_recipients_suppressed"))]
    #[case::the_domain(&["unsubscribed", "domain_unverified"], (403, "domain_not_verified"))]
    #[case::the_sender(&["sender_disabled"], (403, "domain_not_verified"))]
    #[case::the_tenant(&["domain_unverified", "tenant_suspended"], (403, "tenant_suspended"))]
    #[case::the_quota(&["quota_exceeded", "unsubscribed"], (429, "send_quota_exceeded"))]
    fn when_all_are_skipped_the_answer_has_the_reason(#[case] reasons: &[&str], #[case] expected: (u16, &str)) {
        let mut ledger = ledger(&vec![Some(Skipped); reasons.len()]);
        for (recipient, reason) in ledger.recipients.iter_mut().zip(reasons) {
            recipient.reason = Some((*reason).to_owned());
        }
        let Some(Err(error)) = ledger.outcome() else { panic!() };
        assert_eq!((error.status.as_u16(), error.code.to_string().as_str()), expected);
        assert_eq!(error.is_deterministic(), expected.0 == 422, "what may pass is not kept for the key");
        assert_eq!(error.message_id, Some(Uuid::nil()));
    }

    #[test]
    fn an_unknown_outcome_asks_for_no_repeat_and_is_not_kept() {
        let Some(Err(error)) = ledger(&[Some(Unknown)]).outcome() else { panic!() };
        assert_eq!((error.retry_after, error.is_deterministic()), (None, false));
        assert_eq!(error.message_id, Some(Uuid::nil()));
    }

    #[test]
    fn a_refusal_says_its_codes_and_no_address() {
        let Some(Err(error)) = ledger(&[Some(Failed), Some(Failed)]).outcome() else { panic!() };
        assert_eq!((error.detail.as_deref(), error.message_id), (Some("550 5.1.1"), Some(Uuid::nil())));
    }

    #[test]
    fn it_is_quiet_only_when_all_that_is_open_is_deferred() {
        assert!(ledger(&[Some(Sent), Some(Deferred)]).quiet_until().is_some());
        assert!(ledger(&[Some(Queued), Some(Deferred)]).quiet_until().is_none());
        assert!(ledger(&[None]).quiet_until().is_none());
    }
}
