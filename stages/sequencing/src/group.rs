//! A group of due enrollments in one transaction: locks them, decides about each, takes their steps, moves their cursors. A step is taken
//! once, whenever a process dies: the cursor moves in the transaction of the effect.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use runner::StageError;
use runtime::{
    Bus, Counter, Histogram,
    plans::PreparedPool,
    trace::{self, Span, SpanKind},
};
use schemas::{EnrollmentStatus, ExitReason, StepType};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    calls::{CALLS_PER_TENANT, Call, Calls, LEASE},
    decide::{NextMove, next_move},
    due::{self, Due, LockedDue},
    moves::{self, FailedAttempt, Log, Move, advance, fail},
    sequence,
    steps::{self, Announcements, DueStep, MALFORMED, StepResult},
};

/// Wait before a contact is tried again that another transaction has locked.
const LATER: Duration = Duration::from_secs(1);
/// Longest wait of an enrollment for others of its contact.
const CONTACT_WAIT_MAX: Duration = Duration::from_secs(5 * 60);

/// Takes the steps of groups of due enrollments.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    pub(crate) by_key: PreparedPool,
    pub(crate) bus: Bus,
    pub(crate) calls: Calls,
    pub(crate) group_max: i64,
    pub(crate) steps_per_day: i64,
    pub(crate) owner_mails_per_hour: u32,
}

/// The moves and log entries of a group.
#[derive(Debug, Default)]
struct GroupResult {
    moves: Vec<Move>,
    log: Vec<Log>,
}

impl Groups {
    /// Takes the steps of one group; answers how many enrollments it had.
    pub(crate) async fn work(&self) -> Result<u64, StageError> {
        let mut announce = Announcements::new();
        let mut calls = Vec::new();
        let mut tx = self.by_key.begin().await?;
        let locked = due::lock(&mut tx, self.group_max).await?;
        if locked.due.is_empty() {
            tx.rollback().await?;
            return Ok(0);
        }
        // No caller started a trace: a share of the groups starts one, and their mail continues it.
        let span = Span::enter(SpanKind::Internal, || "sequencing step".into(), None);
        let traced = || span.as_ref().map(Span::ambient);
        let result = trace::within(traced(), self.take_steps(&mut tx, &locked, &mut announce, &mut calls)).await?;
        moves::write(&mut tx, &result.moves, &result.log).await?;
        tx.commit().await?;
        measure(&locked.due, &result);
        trace::scope(traced(), || calls.into_iter().for_each(|call| self.calls.start(call)));
        // The ledger has it: the sweeps of the audience stage announce again what the bus did not take.
        if let Err(error) = self.bus.publish_all(announce).await {
            tracing::warn!(%error, "not announced; the sweep will");
        }
        Ok(u64::try_from(locked.due.len() + locked.behind.len()).unwrap_or(0))
    }

    async fn take_steps(
        &self,
        db: &mut PgConnection,
        LockedDue { due, behind }: &LockedDue,
        announce: &mut Announcements,
        calls: &mut Vec<Call>,
    ) -> Result<GroupResult, StageError> {
        let now = sqlx::query_scalar!(r#"select now() as "now!""#).fetch_one(&mut *db).await?;
        let sequences = sequence::load(&mut *db, due).await?;
        let people = due::people(&mut *db, due, &sequences).await?;
        let mut result = GroupResult::default();
        result.moves.extend(behind.iter().map(|(due, ahead)| {
            let wait = LATER.saturating_mul(*ahead).min(CONTACT_WAIT_MAX);
            Move::again(due, now + wait)
        }));
        let mut by_type: BTreeMap<StepType, Vec<DueStep<'_>>> = BTreeMap::new();
        for (due, person) in due.iter().zip(&people) {
            // A foreign key makes sure that the sequence exists.
            let Some(sequence) = sequences.get(&(due.tenant_id, due.sequence_id)) else { continue };
            match next_move(due, sequence, person.as_ref(), self.steps_per_day) {
                NextMove::Step(step, person) => {
                    by_type.entry(step.kind).or_default().push(DueStep { due, sequence, step, person });
                }
                NextMove::Exit(reason) => result.moves.push(Move::exit(due, reason)),
                NextMove::Complete => result.moves.push(Move::complete(due)),
                NextMove::Pause => result.moves.push(Move::pause(due)),
            }
        }
        for (kind, items) in by_type {
            if kind == StepType::CallProductWebhook {
                self.claim_calls(&items, now, &mut result, calls);
                continue;
            }
            let taken = steps::take(&mut *db, kind, &items, announce, self.owner_mails_per_hour, now).await?;
            for (item, taken) in items.iter().zip(taken) {
                let (moved, log) = follow(item, taken, now);
                result.moves.push(moved);
                result.log.extend(log);
            }
        }
        Ok(result)
    }

    /// Claims enrollments whose step is a call to a product, which is made after the commit. Those above the limit of concurrent calls are
    /// due again by their place in the queue, so that a slow receiver does not have all of them written again and again.
    fn claim_calls(&self, items: &[DueStep<'_>], now: DateTime<Utc>, result: &mut GroupResult, calls: &mut Vec<Call>) {
        let mut refused: HashMap<Uuid, usize> = HashMap::new();
        for item in items {
            if item.step.action.is_none() {
                let (moved, log) = follow(item, MALFORMED, now);
                result.moves.push(moved);
                result.log.extend(log);
                continue;
            }
            result.moves.push(match self.calls.claim(item) {
                Some(call) => {
                    let token = call.token;
                    calls.push(call);
                    Move::claim(item.due, token, now + LEASE)
                }
                None => {
                    let ahead = refused.entry(item.due.tenant_id).or_default();
                    let wait = LATER * u32::try_from(*ahead / CALLS_PER_TENANT + 1).unwrap_or(u32::MAX);
                    *ahead += 1;
                    Move::again(item.due, now + wait.min(LEASE))
                }
            });
        }
    }
}

/// The move and the log entry after a step.
pub(crate) fn follow(item: &DueStep<'_>, taken: StepResult, now: DateTime<Utc>) -> (Move, Option<Log>) {
    match taken {
        StepResult::Later => (Move::again(item.due, now + LATER), None),
        StepResult::Wait(hold, until) => (Move::hold(item.due, hold, until), None),
        StepResult::Failed(code) => fail(item.due, item.step.id, item.step.kind, FailedAttempt::Again(code), now),
        StepResult::Took(effect) => {
            let log = Log::of(item.due, item.step.id, item.step.kind, &effect);
            (advance(item.due, item.sequence, item.person, &effect, now), Some(log))
        }
    }
}

fn measure(due: &[Due], result: &GroupResult) {
    let now = Utc::now();
    for due in due {
        let late = (now - due.due_at).max(TimeDelta::zero());
        Histogram::SequenceLagSeconds.record(late.as_seconds_f64(), []);
    }
    for log in &result.log {
        Counter::SequenceStepsTotal.add(1, [("step_type", log.kind.as_str()), ("outcome", log.outcome)]);
    }
    for moved in &result.moves {
        let end = match moved.status {
            EnrollmentStatus::Active | EnrollmentStatus::Paused => None,
            EnrollmentStatus::Completed => Some("completed"),
            EnrollmentStatus::Exited | EnrollmentStatus::Failed => moved.exit_reason.map(ExitReason::as_str),
        };
        if let Some(end) = end {
            Counter::EnrollmentsEndedTotal.add(1, [("reason", end)]);
        }
    }
}
