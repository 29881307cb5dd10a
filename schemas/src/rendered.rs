//! `mail.v1.rendered.<lane>`: what delivery needs to send a batch without ever seeing a template.
//!
//! Bodies do not cross the bus. A template version is compiled once into a [`Skeleton`]: the whole message from its first
//! header to its last MIME boundary, already encoded, with numbered slots. The skeleton is stored by content hash; this
//! message carries, per recipient, the slot values only. Delivery splices and never interprets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Lane, MessageKind};

/// The largest `Rendered` message rendering publishes, in bytes of JSON. A batch that needs more is cut into several.
pub const RENDERED_MAX_BYTES: usize = 256 * 1024;

/// One piece of a skeleton, in wire order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// Text that is the same for every recipient, already encoded for where it stands, with CRLF line ends.
    Text(String),
    /// The recipient's slot of this number goes here, as it is (the renderer has encoded it).
    Slot(u16),
    /// A stored attachment of the message goes here: base64 in lines, each with its CRLF. Only in one-off messages.
    Attachment {
        /// Which of the message's attachments, from 0.
        place: u16,
        /// How many bytes it takes, encoded: known before it is loaded, so that memory can be reserved.
        bytes: u32,
    },
}

/// A message compiled for splicing: pieces in order give the complete RFC 5322 message, without DKIM-Signature,
/// CRLF line ends, not dot-stuffed. Lines stay within 998 octets whatever the slots hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skeleton {
    /// The pieces, in wire order.
    pub pieces: Vec<Piece>,
    /// How many slots a recipient must bring.
    pub slots: u16,
}

impl Skeleton {
    /// The content hash (SHA-256, lower-case hex) under which the skeleton is stored.
    #[must_use]
    pub fn id(&self) -> SkeletonId {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        hash.update(self.slots.to_be_bytes());
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => {
                    hash.update([0]);
                    hash.update((text.len() as u64).to_be_bytes());
                    hash.update(text.as_bytes());
                }
                Piece::Slot(slot) => {
                    hash.update([1]);
                    hash.update(slot.to_be_bytes());
                }
                Piece::Attachment { place, bytes } => {
                    hash.update([2]);
                    hash.update(place.to_be_bytes());
                    hash.update(bytes.to_be_bytes());
                }
            }
        }
        SkeletonId(hex::encode(hash.finalize()))
    }

    /// Splices one recipient's slots into complete message bytes. `None` when the number of slots is not the skeleton's, or
    /// it has attachments.
    #[must_use]
    pub fn splice(&self, slots: &[String]) -> Option<Vec<u8>> {
        self.splice_with(slots, &[])
    }

    /// As [`Skeleton::splice`], with the message's attachments in their order. `None` also when one is missing or not of the
    /// size it had when the message was compiled.
    #[must_use]
    pub fn splice_with(&self, slots: &[String], attachments: &[Vec<u8>]) -> Option<Vec<u8>> {
        if slots.len() != usize::from(self.slots) {
            return None;
        }
        let slot_bytes = slots.iter().map(String::len).sum::<usize>();
        let mut out = Vec::with_capacity(self.text_bytes() + self.attachment_bytes() + slot_bytes);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Slot(slot) => out.extend_from_slice(slots.get(usize::from(*slot))?.as_bytes()),
                Piece::Attachment { place, bytes } => {
                    let attachment = attachments.get(usize::from(*place))?;
                    if attachment.len() != *bytes as usize {
                        return None;
                    }
                    out.extend_from_slice(attachment);
                }
            }
        }
        Some(out)
    }

    /// How many bytes of stored attachments a message takes; 0 for one without.
    #[must_use]
    pub fn attachment_bytes(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Attachment { bytes, .. } => *bytes as usize,
                Piece::Text(_) | Piece::Slot(_) => 0,
            })
            .sum()
    }

    /// How many bytes of static text a message takes.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.len(),
                Piece::Slot(_) | Piece::Attachment { .. } => 0,
            })
            .sum()
    }
}

/// A skeleton's content hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SkeletonId(pub String);

/// One recipient of a rendered batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RenderedRecipient {
    /// Position in the batch; the send id is the batch id with this in its low nine bits ([`crate::SendId`]).
    pub ordinal: u16,
    /// The canonical address, RCPT TO.
    pub address: String,
    /// Slot values, encoded for where they stand.
    pub slots: Vec<String>,
}

/// Sends that are ready for the wire: one batch, or part of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rendered {
    /// The tenant that sends.
    pub tenant_id: Uuid,
    /// The batch these sends belong to.
    pub batch_id: Uuid,
    /// The campaign, for campaign mail.
    pub campaign_id: Option<Uuid>,
    /// What sort of message this is.
    pub kind: MessageKind,
    /// The lane it travels in.
    pub lane: Lane,
    /// Numbers the messages one batch was cut into, from 0: part of the message id.
    pub part: u16,
    /// Which skeleton the slots belong to.
    pub skeleton: SkeletonId,
    /// The domain of the From header: whose DKIM key signs.
    pub sending_domain: String,
    /// The domain of the return path (MAIL FROM), such as `send.example.com`.
    pub return_path_domain: String,
    /// The recipients, each with its slots.
    pub recipients: Vec<RenderedRecipient>,
    /// A subject that is notified when sends of this work are decided, at most once. The subscriber reads the outcome from the
    /// ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn attachments_are_spliced_in_their_place_and_none_may_be_missing_or_changed() {
        let pieces = vec![
            Piece::Text("a".into()),
            Piece::Attachment { place: 1, bytes: 2 },
            Piece::Slot(0),
            Piece::Attachment { place: 0, bytes: 1 },
        ];
        let skeleton = Skeleton { pieces, slots: 1 };
        let slots = ["-".to_owned()];
        let whole = skeleton.splice_with(&slots, &[b"x".to_vec(), b"yz".to_vec()]).unwrap();
        assert_eq!(whole, b"ayz-x");
        assert_eq!(skeleton.attachment_bytes(), 3);
        assert_eq!(skeleton.splice(&slots), None);
        assert_eq!(skeleton.splice_with(&slots, &[b"x".to_vec(), b"y".to_vec()]), None);
    }
}
