//! `mail.v1.rendered.<lane>`: what delivery needs to send a batch without ever seeing a template.
//!
//! Bodies do not cross the bus. A template version is compiled once into a [`Skeleton`]: the whole message from its first
//! header to its last MIME boundary, already encoded, with placeholders. The skeleton is stored by content hash. This message carries
//! the texts that merging made, for each recipient. What follows from a send's id, such as its Message-ID and the tokens of its links,
//! is computed when the message is spliced.

mod recipient;
mod skeleton;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::Error as _};
use uuid::Uuid;

use self::recipient::FrameReader;
pub use self::{
    recipient::RenderedRecipient,
    skeleton::{LinkToken, Piece, PlaceholderValues, Skeleton, SkeletonId, TokenIds},
};
use crate::{About, Lane, MessageKind, Work, messages::Message, token::TokenKeyId};

/// The largest `Rendered` message rendering publishes, in bytes. A batch that needs more is cut into several.
pub const RENDERED_MAX_BYTES: usize = 256 * 1024;

/// Sends that are ready for the wire: one batch, or part of one. This is the head of a binary frame: a byte 1, the length of the head
/// (four bytes), the head as JSON, the number of recipients (two bytes), and the recipients. Each of them is its position in the batch
/// (two bytes), the contact's id (16 bytes), the address, the number of its texts, and the texts in the order of the skeleton's slots.
/// Address and texts have their length before them. Integers are big-endian. The number of texts and the lengths take as many bytes as
/// they need: seven bits in each, the lowest first, the highest bit set in all but the last.
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
    /// Which skeleton the texts belong to.
    pub skeleton: SkeletonId,
    /// The id of the key that the mail's tokens are made with.
    pub token_key: TokenKeyId,
    /// The domain of the From header: whose DKIM key signs.
    pub sending_domain: String,
    /// The domain of the return path (MAIL FROM), such as `send.example.com`.
    pub return_path_domain: String,
    /// The recipients, each with its texts. They follow the head.
    #[serde(skip)]
    pub recipients: Vec<RenderedRecipient>,
    /// A subject that is notified when sends of this work are decided, at most once. The subscriber reads the outcome from the
    /// ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notify: Option<String>,
}

/// The first byte of a frame. JSON never begins with it.
const FRAME_VERSION: u8 = 1;

impl Rendered {
    /// What fills the placeholders for this recipient of the message.
    #[must_use]
    pub fn values(&self, recipient: &RenderedRecipient) -> PlaceholderValues {
        PlaceholderValues {
            tenant_id: self.tenant_id,
            batch_id: self.batch_id,
            token_key: self.token_key,
            recipient: recipient.clone(),
            due_at: None,
        }
    }

    /// The message as a frame. It holds at most 65,535 recipients.
    pub fn frame(&self) -> Result<Bytes, serde_json::Error> {
        let too_large = |_| serde_json::Error::custom("too large for a frame");
        let head = serde_json::to_vec(self)?;
        let recipients = self.recipients.iter().map(RenderedRecipient::frame_bytes).sum::<usize>();
        let mut frame = Vec::with_capacity(1 + 4 + head.len() + 2 + recipients);
        frame.push(FRAME_VERSION);
        frame.extend_from_slice(&u32::try_from(head.len()).map_err(too_large)?.to_be_bytes());
        frame.extend_from_slice(&head);
        frame.extend_from_slice(&u16::try_from(self.recipients.len()).map_err(too_large)?.to_be_bytes());
        for recipient in &self.recipients {
            frame.extend_from_slice(&recipient.ordinal.to_be_bytes());
            frame.extend_from_slice(recipient.contact_id.as_bytes());
            frame.extend_from_slice(&recipient.text);
        }
        Ok(frame.into())
    }

    /// Reads a frame. The texts are not copied.
    pub fn of_frame(frame: &Bytes) -> Result<Self, serde_json::Error> {
        let malformed = || serde_json::Error::custom("not a frame of rendered recipients");
        let mut reader = FrameReader(frame);
        if reader.take(1) != Some(&[FRAME_VERSION]) {
            return Err(malformed());
        }
        let head_length = reader.array().map(u32::from_be_bytes).ok_or_else(malformed)?;
        let head = reader.take(head_length as usize).ok_or_else(malformed)?;
        let mut message: Self = serde_json::from_slice(head)?;
        let count = reader.array().map(u16::from_be_bytes).ok_or_else(malformed)?;
        for _ in 0..count {
            message.recipients.push(reader.recipient(frame).ok_or_else(malformed)?);
        }
        if reader.0.is_empty() { Ok(message) } else { Err(malformed()) }
    }
}

impl Message for Rendered {
    const SCHEMA: &'static str = "mail.v1.rendered";

    fn of_body(body: &Bytes) -> Result<Self, serde_json::Error> {
        Self::of_frame(body)
    }

    fn to_body(&self) -> Result<Bytes, serde_json::Error> {
        self.frame()
    }

    fn about(&self) -> Option<About> {
        Some(About { campaign_id: self.campaign_id, ..About::new(self.tenant_id, Work::Batch(self.batch_id)) })
    }
}
