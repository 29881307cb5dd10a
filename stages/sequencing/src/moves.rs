//! Where an enrollment goes, and the log of its steps. A trigger of the table makes the event when an enrollment ends.

use std::time::Duration;

use chrono::{DateTime, Utc};
use runtime::column;
use schemas::{EnrollmentStatus, ExitReason, StepType};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    due::{Due, EnrolledContact},
    sequence::Sequence,
    steps::{Effect, StepHold},
};

/// The pauses after failed attempts at a step; after the last one the enrollment fails.
const BACKOFF: [Duration; 4] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 60 * 60),
];

/// The new cursor of an enrollment.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    tenant_id: Uuid,
    id: Uuid,
    pub(crate) status: EnrollmentStatus,
    pub(crate) exit_reason: Option<ExitReason>,
    next_step: i16,
    next_action_at: Option<DateTime<Utc>>,
    attempts: i16,
    last_error: Option<&'static str>,
    claim_token: Option<Uuid>,
    held_by: Option<&'static str>,
    opted_out: bool,
    /// A step was taken.
    took_step: bool,
}

impl Move {
    fn stay(due: &Due) -> Self {
        Self {
            tenant_id: due.tenant_id,
            id: due.id,
            status: EnrollmentStatus::Active,
            exit_reason: None,
            next_step: due.next_step,
            next_action_at: Some(due.due_at),
            attempts: due.attempts,
            last_error: None,
            claim_token: None,
            held_by: None,
            opted_out: false,
            took_step: false,
        }
    }

    /// Advances to the next step.
    pub(crate) fn next(due: &Due, at: DateTime<Utc>) -> Self {
        Self { next_step: due.next_step + 1, next_action_at: Some(at), attempts: 0, ..Self::stay(due) }
    }

    /// Tries the step again at another time; no attempt is counted.
    pub(crate) fn again(due: &Due, at: DateTime<Utc>) -> Self {
        Self { next_action_at: Some(at), ..Self::stay(due) }
    }

    /// The step waits for something, and is tried again at this time.
    pub(crate) fn hold(due: &Due, hold: StepHold, at: DateTime<Utc>) -> Self {
        Self { held_by: Some(hold.as_str()), ..Self::again(due, at) }
    }

    /// Tries the step again after a failed attempt.
    pub(crate) fn retry(due: &Due, at: DateTime<Utc>, code: &'static str) -> Self {
        Self { attempts: due.attempts.saturating_add(1), last_error: Some(code), ..Self::again(due, at) }
    }

    /// A worker has claimed its step until then.
    pub(crate) fn claim(due: &Due, token: Uuid, until: DateTime<Utc>) -> Self {
        Self { claim_token: Some(token), ..Self::again(due, until) }
    }

    /// Paused with its sequence; its time stays.
    pub(crate) fn pause(due: &Due) -> Self {
        Self { status: EnrollmentStatus::Paused, ..Self::stay(due) }
    }

    /// Over: every step is taken.
    pub(crate) fn complete(due: &Due) -> Self {
        Self {
            status: EnrollmentStatus::Completed,
            next_step: due.next_step.saturating_add(1),
            next_action_at: None,
            ..Self::stay(due)
        }
    }

    /// Over, before its last step.
    pub(crate) fn exit(due: &Due, reason: ExitReason) -> Self {
        Self { status: EnrollmentStatus::Exited, exit_reason: Some(reason), next_action_at: None, ..Self::stay(due) }
    }

    /// Over: a step could not be taken.
    pub(crate) fn fail(due: &Due, code: &'static str) -> Self {
        Self {
            status: EnrollmentStatus::Failed,
            exit_reason: Some(ExitReason::Error),
            next_action_at: None,
            attempts: due.attempts.saturating_add(1),
            last_error: Some(code),
            ..Self::stay(due)
        }
    }
}

/// After a step: to the next one, or to the end.
pub(crate) fn advance(
    due: &Due,
    sequence: &Sequence,
    person: &EnrolledContact,
    effect: &Effect,
    now: DateTime<Utc>,
) -> Move {
    let moved = match (effect.ends, sequence.due((due.version, due.next_step + 1), now, person.timezone.as_deref())) {
        (Some(reason), _) => Move::exit(due, reason),
        (None, None) => Move::complete(due),
        (None, Some(at)) => Move::next(due, at),
    };
    Move { opted_out: effect.opted_out, took_step: true, ..moved }
}

/// Why an attempt at a step did not succeed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FailedAttempt {
    /// Another attempt may succeed.
    Again(&'static str),
    /// No attempt can succeed.
    ForGood(&'static str),
}

/// After a failed attempt: the same step later, or the end.
pub(crate) fn fail(
    due: &Due,
    step_id: Uuid,
    kind: StepType,
    failed: FailedAttempt,
    now: DateTime<Utc>,
) -> (Move, Option<Log>) {
    let (code, pauses): (&'static str, &[Duration]) = match failed {
        FailedAttempt::Again(code) => (code, &BACKOFF),
        FailedAttempt::ForGood(code) => (code, &[]),
    };
    if let Some(pause) = usize::try_from(due.attempts).ok().and_then(|attempt| pauses.get(attempt)) {
        return (Move::retry(due, now + *pause, code), None);
    }
    let moved = Move::fail(due, code);
    let detail = json!({"error": code, "attempts": moved.attempts});
    (moved, Some(Log::new(due, step_id, kind, "failed", detail)))
}

/// What a step did.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    tenant_id: Uuid,
    enrollment_id: Uuid,
    step_order: i16,
    step_id: Uuid,
    pub(crate) kind: StepType,
    pub(crate) outcome: &'static str,
    detail: Value,
    send_id: Option<Uuid>,
    due_at: DateTime<Utc>,
}

impl Log {
    fn new(due: &Due, step_id: Uuid, kind: StepType, outcome: &'static str, detail: Value) -> Self {
        Self {
            tenant_id: due.tenant_id,
            enrollment_id: due.id,
            step_order: due.next_step,
            step_id,
            kind,
            outcome,
            detail,
            send_id: None,
            due_at: due.due_at,
        }
    }

    pub(crate) fn of(due: &Due, step_id: Uuid, kind: StepType, effect: &Effect) -> Self {
        let log = Self::new(due, step_id, kind, effect.outcome.as_str(), effect.detail.clone());
        Self { send_id: effect.send_id, ..log }
    }
}

/// Writes moves and log entries. The enrollments are locked.
pub(crate) async fn write(db: &mut PgConnection, moves: &[Move], log: &[Log]) -> sqlx::Result<()> {
    sqlx::query_file!(
        "queries/move.sql",
        &column(moves, |to| to.tenant_id),
        &column(moves, |to| to.id),
        &column(moves, |to| to.status.as_str()) as &[&str],
        &column(moves, |to| to.exit_reason.map(ExitReason::as_str)) as &[Option<&str>],
        &column(moves, |to| to.next_step),
        &column(moves, |to| to.next_action_at) as &[Option<DateTime<Utc>>],
        &column(moves, |to| to.attempts),
        &column(moves, |to| to.last_error) as &[Option<&str>],
        &column(moves, |to| to.claim_token) as &[Option<Uuid>],
        &column(moves, |to| to.opted_out),
        &column(moves, |to| to.took_step),
        &column(moves, |to| to.held_by) as &[Option<&str>],
    )
    .execute(&mut *db)
    .await?;
    if log.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "insert into enrollment_steps (tenant_id, enrollment_id, step_order, step_id, step_type, outcome, detail, send_id, due_at)
         select * from unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::uuid[], $5::text[], $6::text[], $7::jsonb[], $8::uuid[],
                              $9::timestamptz[])",
        &column(log, |entry| entry.tenant_id),
        &column(log, |entry| entry.enrollment_id),
        &column(log, |entry| entry.step_order),
        &column(log, |entry| entry.step_id),
        &column(log, |entry| entry.kind.as_str()) as &[&str],
        &column(log, |entry| entry.outcome) as &[&str],
        &column(log, |entry| entry.detail.clone()),
        &column(log, |entry| entry.send_id) as &[Option<Uuid>],
        &column(log, |entry| entry.due_at),
    )
    .execute(db)
    .await
    .map(drop)
}
