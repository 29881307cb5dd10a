//! The first announcements of priority batches.

use std::collections::HashMap;

use runner::StageError;
use runtime::Publication;
use schemas::{Classification, Cleared, ClearedRecipient, Lane, MessageKind, SendId, subjects};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    dispatch::announced::AnnouncedBatch,
    gate::{RecipientEligibility, decide_recipient, load_eligibility},
    hours::BatchKey,
};

/// The first announcement of a priority batch.
const FIRST: i32 = 1;

/// A priority batch that was written just now.
pub(super) struct PromptBatch {
    pub(super) tenant_id: Uuid,
    pub(super) batch_id: Uuid,
    pub(super) kind: MessageKind,
    pub(super) classification: Classification,
    pub(super) content_id: Uuid,
    pub(super) sender_id: Uuid,
    pub(super) send_ids: Vec<Uuid>,
    /// The recipient of each send.
    pub(super) contact_ids: Vec<Uuid>,
    /// The subject of a caller that waits for the outcome.
    pub(super) notify: Option<String>,
}

/// The first announcements of these batches, whose recipients are read here.
pub(super) async fn first_announcements(
    db: &mut PgConnection,
    batches: Vec<PromptBatch>,
) -> Result<Vec<Publication>, StageError> {
    let mut contacts: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    for batch in &batches {
        contacts.entry(batch.tenant_id).or_default().extend(&batch.contact_ids);
    }
    let mut eligibility = HashMap::new();
    for (tenant, contacts) in contacts {
        eligibility.extend(load_eligibility(db, tenant, &contacts).await?);
    }
    announce(batches.into_iter(), &eligibility)
}

/// The first announcements of these batches, by the eligibility of their recipients. Compliance saves the rendering of mail that is withheld.
/// One look at the recipients here does the same for a few, so a batch of which all may be mailed goes straight to rendering. The fence
/// decides about each of them in any case.
pub(super) fn announce(
    batches: impl Iterator<Item = PromptBatch>,
    eligibility: &HashMap<BatchKey, RecipientEligibility>,
) -> Result<Vec<Publication>, StageError> {
    batches.map(|batch| batch.publication(eligibility)).collect()
}

impl PromptBatch {
    fn publication(self, eligibility: &HashMap<BatchKey, RecipientEligibility>) -> Result<Publication, StageError> {
        let may_be_mailed = |contact: &Uuid| {
            let known = eligibility.get(&(self.tenant_id, *contact));
            known.is_some_and(|known| decide_recipient(known, self.kind, self.classification).is_none())
        };
        if !self.contact_ids.iter().all(may_be_mailed) {
            let Self { tenant_id, batch_id, notify, .. } = self;
            let announced = AnnouncedBatch { tenant_id, batch_id, lane: Lane::Priority, announcement: FIRST };
            return announced.publication_notifying(notify);
        }
        let sends = self.send_ids.iter().zip(self.contact_ids);
        let mut recipients: Vec<ClearedRecipient> =
            sends.map(|(send, contact_id)| ClearedRecipient { ordinal: SendId(*send).ordinal(), contact_id }).collect();
        recipients.sort_by_key(|recipient| recipient.ordinal);
        let message = Cleared {
            tenant_id: self.tenant_id,
            batch_id: self.batch_id,
            lane: Lane::Priority,
            announcement: FIRST,
            kind: self.kind,
            classification: self.classification,
            campaign_id: None,
            content_id: self.content_id,
            sender_id: self.sender_id,
            recipients,
            notify: self.notify,
        };
        Ok(Publication::json(subjects::cleared(Lane::Priority), message.message_id(), &message)?)
    }
}
