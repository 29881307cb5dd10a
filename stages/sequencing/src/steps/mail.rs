//! `send_email`: mail through the whole pipeline. A step's mails of a group are a batch (or several): a few take the priority lane, many
//! the bulk lane. Gate, claim and fence decide about each recipient again. What the mail would wait for is waited for before the step, not
//! behind it: what ends the enrollment meanwhile comes before the mail, and later steps keep their distance.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use ledger::fence::CAP_WAIT;
use ledger::frequency::{CappedMail, OwedMail, Urgency};
use ledger::gate::{Hold, decide_hold, decide_recipient};
use ledger::sequence_sends::{self, SequenceBatch, SequenceSend};
use runtime::{Publication, trace};
use schemas::{
    Classification, Lane, MessageKind, Resolved, SendId, SkipReason, ids::BATCH_MAX, new_batch_id, subjects,
};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Announcements, DueStep, Effect, StepHold, StepOutcome, StepResult};

/// Wait before a contact is looked at again that is asked to confirm its consent.
const CONSENT_WAIT: Duration = Duration::from_secs(60 * 60);

/// An item that is mailed, with its place.
type Mailed<'a> = (usize, &'a DueStep<'a>);

pub(super) async fn send(
    db: &mut PgConnection,
    items: &[DueStep<'_>],
    announce: &mut Announcements,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<StepResult>> {
    let capped = items.iter().map(|item| CappedMail {
        tenant_id: item.due.tenant_id,
        contact_id: item.due.contact_id,
        urgency: Urgency::SEQUENCE,
        cap_left: item.person.eligibility.cap_left,
    });
    let owed = OwedMail::load(&mut *db, capped).await?;
    let mut taken = Vec::with_capacity(items.len());
    let mut by_step: BTreeMap<(Uuid, Uuid), Vec<Mailed<'_>>> = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        taken.push(match hold(item, &owed, now) {
            Some((hold, until)) => StepResult::Wait(hold, until),
            None => {
                by_step.entry((item.due.tenant_id, item.step.id)).or_default().push((place, item));
                // Unless it is in a batch.
                StepResult::Failed("sender_required")
            }
        });
    }
    let batches = cut(&by_step);
    let prompt = sequence_sends::insert_batches(&mut *db, batches.iter().map(|(batch, _)| batch)).await?;
    trace::keep_each(&mut *db, batches.iter().map(|(batch, _)| (batch.tenant_id, batch.id))).await?;
    let mut sends = Vec::with_capacity(items.len());
    for (batch, mailed) in &batches {
        for (ordinal, (place, item)) in mailed.iter().enumerate() {
            let send = SendId::of(batch.id, u16::try_from(ordinal).unwrap_or(u16::MAX)).0;
            sends.push(SequenceSend {
                id: send,
                tenant_id: item.due.tenant_id,
                contact_id: item.due.contact_id,
                sequence_id: item.due.sequence_id,
                enrollment_id: item.due.id,
                step_id: item.step.id,
            });
            let effect = Effect::of(StepOutcome::Done, json!({"template_id": batch.template_id}));
            taken[*place] = StepResult::Took(Effect { send_id: Some(send), ..effect });
        }
        if prompt.contains(&batch.id) {
            announce.push(publication(batch)?);
        }
    }
    sequence_sends::insert_sends(db, &sends).await?;
    Ok(taken)
}

/// What the mail to a contact waits for, and when it is looked at again. Mail that is withheld for good does not wait: the gate says so.
fn hold(item: &DueStep<'_>, owed: &OwedMail, now: DateTime<Utc>) -> Option<(StepHold, DateTime<Utc>)> {
    let eligibility = &item.person.eligibility;
    let mail = (MessageKind::Sequence, Classification::Marketing);
    match decide_recipient(eligibility, mail.0, mail.1) {
        Some(SkipReason::FrequencyCap) => Some((StepHold::FrequencyCap, now + CAP_WAIT)),
        // The confirmation wakes it; or it expires.
        Some(SkipReason::NoConsent) if item.person.is_asked_to_confirm => {
            Some((StepHold::NoConsent, now + CONSENT_WAIT))
        }
        Some(_) => None,
        None => {
            let more_urgent = owed.more_urgent(item.due.contact_id, Urgency::SEQUENCE);
            match decide_hold(eligibility, item.sequence.quiet, mail, more_urgent, now)? {
                // The tenant may change them, and the contact its time zone.
                Hold::QuietHours { until } => Some((StepHold::QuietHours, until.min(now + CAP_WAIT))),
                Hold::MoreUrgent { until } => Some((StepHold::FrequencyCap, until)),
                Hold::FrequencyCap => Some((StepHold::FrequencyCap, now + CAP_WAIT)),
            }
        }
    }
}

/// One batch per step, and per sender and template by that; at most 500 sends each.
fn cut<'a>(by_step: &'a BTreeMap<(Uuid, Uuid), Vec<Mailed<'a>>>) -> Vec<(SequenceBatch, &'a [Mailed<'a>])> {
    let mut batches = Vec::new();
    for ((tenant_id, _), mailed) in by_step {
        let Some((_, first)) = mailed.first() else { continue };
        let (Some(template_id), Some(sender_id)) = (first.step.template_id, first.sequence.sender_profile_id) else {
            continue;
        };
        for part in mailed.chunks(BATCH_MAX) {
            let (id, tenant_id) = (new_batch_id(), *tenant_id);
            batches.push((SequenceBatch { id, tenant_id, template_id, sender_id, size: part.len() }, part));
        }
    }
    batches
}

fn publication(batch: &SequenceBatch) -> sqlx::Result<Publication> {
    let message = Resolved {
        tenant_id: batch.tenant_id,
        batch_id: batch.id,
        lane: Lane::Priority,
        announcement: 1,
        notify: None,
    };
    Publication::json(subjects::resolved(Lane::Priority), message.message_id(), &message)
        .map_err(|error| sqlx::Error::Encode(error.into()))
}
