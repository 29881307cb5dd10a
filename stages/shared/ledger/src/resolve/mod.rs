//! Requests become sends: those that are due now in the transaction that accepts them, the others when they are due.

mod contacts;
pub mod message;
pub mod transactional;

use std::collections::HashMap;

use runner::StageError;
use runtime::Publication;
use schemas::{Classification, Cleared, ClearedRecipient, Lane, MessageKind, SendId, subjects};
use uuid::Uuid;

use crate::{
    dispatch::AnnouncedBatch,
    gate::{RecipientEligibility, may_all_be_mailed},
};

/// The first announcement of a priority batch.
const FIRST: i32 = 1;

/// A priority batch that was written just now.
struct PromptBatch {
    tenant_id: Uuid,
    batch_id: Uuid,
    kind: MessageKind,
    classification: Classification,
    content_id: Uuid,
    sender_id: Uuid,
    send_ids: Vec<Uuid>,
    /// The recipient of each send.
    contact_ids: Vec<Uuid>,
    /// The subject of a caller that waits for the outcome.
    notify: Option<String>,
}

impl PromptBatch {
    /// Its first announcement, by the eligibility of its recipients. Compliance saves the rendering of mail that is withheld. One look at
    /// the recipients here does the same for a few, so a batch of which all may be mailed goes straight to rendering. The fence decides
    /// about each of them in any case.
    fn publication(self, eligibility: &HashMap<(Uuid, Uuid), RecipientEligibility>) -> Result<Publication, StageError> {
        let mail = (self.kind, self.classification);
        if !may_all_be_mailed(eligibility, self.tenant_id, &self.contact_ids, mail) {
            let Self { tenant_id, batch_id, notify, .. } = self;
            let announced = AnnouncedBatch { tenant_id, batch_id, lane: Lane::Priority, announcement: FIRST };
            return announced.publication(notify);
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
