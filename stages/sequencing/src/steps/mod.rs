//! The effects of steps: each type for all its enrollments of a group at once, within the group's transaction.

mod audiences;
mod contacts;
mod mail;
mod notices;
mod owner;
mod subscriptions;
mod suppress;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use runtime::{Publication, db::WAIT_FOR_PEERS};
use schemas::{ExitReason, StepType};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::{
    due::{Due, EnrolledContact},
    sequence::{Sequence, Step},
};
use schemas::action::Action;

/// An enrollment with the step it is to take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DueStep<'a> {
    pub(crate) due: &'a Due,
    pub(crate) sequence: &'a Sequence,
    pub(crate) step: &'a Step,
    pub(crate) person: &'a EnrolledContact,
}

schemas::named_enum! {
    /// The outcome of a step.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum StepOutcome {
        /// It changed something, or made a mail.
        Done = "done",
        /// Nothing had to change.
        Unchanged = "unchanged",
        /// It would have undone the recipient's own choice, or is not allowed any more.
        Withheld = "withheld",
    }
}

schemas::named_enum! {
    /// What a due step waits for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum StepHold {
        /// Room under the frequency cap.
        FrequencyCap = "frequency_cap",
        /// The end of quiet hours where the contact is.
        QuietHours = "quiet_hours",
        /// The consent that the contact is asked to confirm.
        NoConsent = "no_consent",
        /// The tenant's hourly mails to its owner.
        OwnerMails = "owner_mails",
    }
}

/// A step that was taken.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    pub(crate) outcome: StepOutcome,
    /// Ids and codes only.
    pub(crate) detail: Value,
    pub(crate) send_id: Option<Uuid>,
    /// The contact was suppressed or unsubscribed by it.
    pub(crate) opted_out: bool,
    /// It ends the enrollment.
    pub(crate) ends: Option<ExitReason>,
}

impl Effect {
    pub(crate) fn of(outcome: StepOutcome, detail: Value) -> Self {
        Self { outcome, detail, send_id: None, opted_out: false, ends: None }
    }

    fn done() -> Self {
        Self::of(StepOutcome::Done, json!({}))
    }

    fn changed(changed: bool, detail: Value) -> Self {
        Self::of(if changed { StepOutcome::Done } else { StepOutcome::Unchanged }, detail)
    }
}

/// The result of trying a step.
#[derive(Debug, Clone)]
pub(crate) enum StepResult {
    /// Its step was taken.
    Took(Effect),
    /// Its step could not be taken, for this reason (a code).
    Failed(&'static str),
    /// Another transaction has locked its contact: again in a moment.
    Later,
    /// It waits for this, and is looked at again then.
    Wait(StepHold, DateTime<Utc>),
}

/// What a group publishes after its commit.
pub(crate) type Announcements = Vec<Publication>;

/// Takes one step for items of one type, at this time by the database's clock. Rows that others hold hold up their tenant's steps only:
/// those of each tenant are then taken alone.
pub(crate) async fn take(
    db: &mut PgConnection,
    kind: StepType,
    items: &[DueStep<'_>],
    announce: &mut Announcements,
    owner_mails_per_hour: u32,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<StepResult>> {
    if let Some(taken) = take_together(db, kind, items, announce, owner_mails_per_hour, now).await? {
        return Ok(taken);
    }
    let mut taken = vec![StepResult::Later; items.len()];
    let mut of_tenants: BTreeMap<Uuid, (Vec<usize>, Vec<DueStep<'_>>)> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        let (places, own) = of_tenants.entry(item.due.tenant_id).or_default();
        places.push(place);
        own.push(*item);
    }
    if of_tenants.len() < 2 {
        return Ok(taken);
    }
    for (places, own) in of_tenants.into_values() {
        let of_tenant = take_together(db, kind, &own, announce, owner_mails_per_hour, now).await?;
        for (place, result) in places.into_iter().zip(of_tenant.unwrap_or_default()) {
            if let Some(slot) = taken.get_mut(place) {
                *slot = result;
            }
        }
    }
    Ok(taken)
}

/// Takes one step for these items in one go; `None` if others hold rows of theirs. One that the database refuses costs itself only: the
/// others are taken one by one.
async fn take_together(
    db: &mut PgConnection,
    kind: StepType,
    items: &[DueStep<'_>],
    announce: &mut Announcements,
    owner_mails_per_hour: u32,
    now: DateTime<Utc>,
) -> sqlx::Result<Option<Vec<StepResult>>> {
    let error = match attempt(db, kind, items, announce, owner_mails_per_hour, now).await {
        Ok(taken) => return Ok(Some(taken)),
        Err(error) if runtime::db::is_lock_timeout(&error) => return Ok(None),
        Err(error) if runtime::db::is_transient(&error) => return Err(error),
        Err(error) => error,
    };
    tracing::error!(step_type = %kind, items = items.len(), error = runtime::db::describe(&error), "a step's statement was refused");
    let mut taken = Vec::with_capacity(items.len());
    let mut are_held = BTreeSet::new();
    for item in items {
        // Each wait would hold up the group.
        if are_held.contains(&item.due.tenant_id) {
            taken.push(StepResult::Later);
            continue;
        }
        match attempt(db, kind, std::slice::from_ref(item), announce, owner_mails_per_hour, now).await {
            Ok(one) => taken.extend(one),
            Err(error) if runtime::db::is_lock_timeout(&error) => {
                are_held.insert(item.due.tenant_id);
                taken.push(StepResult::Later);
            }
            Err(error) if runtime::db::is_transient(&error) => return Err(error),
            Err(_) => taken.push(StepResult::Failed("refused_by_ledger")),
        }
    }
    Ok(Some(taken))
}

/// All of them within a savepoint, or none. It waits for rows no longer than prompt mail does: the transaction is that of all tenants' steps.
async fn attempt(
    db: &mut PgConnection,
    kind: StepType,
    items: &[DueStep<'_>],
    announce: &mut Announcements,
    owner_mails_per_hour: u32,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<StepResult>> {
    let mut savepoint = db.begin().await?;
    sqlx::raw_sql(WAIT_FOR_PEERS).execute(&mut *savepoint).await?;
    let announced = announce.len();
    let db = &mut *savepoint;
    let result = match kind {
        StepType::SendEmail => mail::send(db, items, announce, now).await,
        StepType::Wait => Ok(items.iter().map(|_| StepResult::Took(Effect::done())).collect()),
        StepType::EndSequence => Ok(items.iter().map(end).collect()),
        StepType::ApplyTag => audiences::change(db, items, true).await,
        StepType::RemoveTag => audiences::change(db, items, false).await,
        StepType::UpdateField | StepType::UpdateLifecycleStage => contacts::update(db, items).await,
        StepType::UpdateSubscription => subscriptions::update(db, items).await,
        StepType::AddSuppression => suppress::add(db, items).await,
        StepType::CreateTask | StepType::CreateOpportunity => notices::add_notices(db, items, now).await,
        StepType::NotifyOwner => owner::notify(db, items, announce, owner_mails_per_hour).await,
        // Taken outside of the transaction: see `calls`.
        StepType::CallProductWebhook => Ok(items.iter().map(|_| StepResult::Later).collect()),
    };
    match result {
        Ok(taken) => {
            // A rollback takes the setting back, a release does not.
            sqlx::raw_sql("set local lock_timeout to default").execute(&mut *savepoint).await?;
            savepoint.commit().await?;
            Ok(taken)
        }
        Err(error) => {
            announce.truncate(announced);
            // A connection that cannot roll back is closed by the pool; the error that matters is the first one.
            let _ = savepoint.rollback().await;
            Err(error)
        }
    }
}

fn end(item: &DueStep<'_>) -> StepResult {
    let reason = match &item.step.action {
        Some(Action::EndSequence(end)) => end.reason.clone(),
        _ => None,
    };
    let detail = json!({ "reason": reason });
    StepResult::Took(Effect { ends: Some(ExitReason::EndStep), ..Effect::of(StepOutcome::Done, detail) })
}

/// The code of a step whose stored config cannot be read.
pub(crate) const MALFORMED: StepResult = StepResult::Failed("malformed_step");
