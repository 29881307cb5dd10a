//! Where an enrollment goes after a step, and after a failed attempt at one.

use std::time::Duration;

use chrono::{DateTime, Utc};
use schemas::StepType;
use uuid::Uuid;

use crate::{
    due::{Due, EnrolledContact},
    moves::{Log, Move},
    sequence::Sequence,
    steps::Effect,
};

/// The pauses after failed attempts at a step; after the last one the enrollment fails.
const BACKOFF: [Duration; 4] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 60 * 60),
];

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
    moved.after(effect)
}

/// Why an attempt at a step did not succeed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedAttempt {
    code: &'static str,
    for_good: bool,
}

impl FailedAttempt {
    /// Another attempt may succeed.
    pub(crate) fn again(code: &'static str) -> Self {
        Self { code, for_good: false }
    }

    /// No attempt can succeed.
    pub(crate) fn for_good(code: &'static str) -> Self {
        Self { code, for_good: true }
    }
}

/// After a failed attempt: the same step later, or the end.
pub(crate) fn fail(
    due: &Due,
    step_id: Uuid,
    kind: StepType,
    failed: FailedAttempt,
    now: DateTime<Utc>,
) -> (Move, Option<Log>) {
    let FailedAttempt { code, for_good } = failed;
    match usize::try_from(due.attempts).ok().and_then(|attempt| BACKOFF.get(attempt)).filter(|_| !for_good) {
        Some(pause) => (Move::retry(due, now + *pause, code), None),
        None => (Move::fail(due, code), Some(Log::failure(due, step_id, kind, code))),
    }
}
