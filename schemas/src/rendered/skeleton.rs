//! A compiled message with placeholders, and how it is spliced for one recipient.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::recipient::RenderedRecipient;
use crate::{
    SendId,
    token::{Purpose, TokenKeyId, TokenKeys, click_rest},
};

/// The date of a message, in UTC. With two digits for the day, which chrono's own format does not promise.
const RFC_2822: &str = "%a, %d %b %Y %H:%M:%S +0000";

/// One piece of a skeleton, in wire order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// Text that is the same for every recipient, already encoded for where it stands, with CRLF line ends.
    Text(String),
    /// The recipient's text of this number goes here, as it is (the renderer has encoded it).
    Slot(u16),
    /// The send's id, as in X-Postrider-Send.
    SendId,
    /// The local part of the Message-ID: the send's id with a proof.
    MessageId,
    /// When the send was made, or the time that it waited for, as in the Date header.
    Date,
    /// A token: what follows the path in an address of ours.
    Token {
        /// What it is for.
        token: LinkToken,
        /// In quoted-printable text: the column it begins in. It ends in column 0, after a soft line break. `None`: it stands as it is.
        column: Option<u8>,
    },
    /// A stored attachment of the message goes here: base64 in lines, each with its CRLF. Only in mail of a batch of its own.
    Attachment {
        /// Which of the message's attachments, from 0.
        place: u16,
        /// How many bytes it takes, encoded: known before it is loaded, so that memory can be reserved.
        bytes: u32,
    },
}

/// What a token in a message is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkToken {
    /// The open pixel.
    Open,
    /// A tracked link.
    Click {
        /// Which link of the message, from 0.
        link: u16,
        /// Where it leads.
        url: String,
    },
    /// To unsubscribe.
    Unsubscribe,
    /// To choose what one gets.
    Preferences,
}

/// The tenant, the send and the contact of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenIds {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The send.
    pub send_id: SendId,
    /// The recipient. The tokens to leave and to choose by name it: mail is read for longer than the ledger may keep its send.
    pub contact_id: Uuid,
}

impl LinkToken {
    /// Makes the token, with this key.
    #[must_use]
    pub fn seal(&self, tokens: &TokenKeys, key: TokenKeyId, ids: &TokenIds) -> String {
        let seal = |purpose, rest: &[u8]| tokens.seal_with(key, purpose, ids.tenant_id, ids.send_id.0, rest);
        match self {
            Self::Open => seal(Purpose::Open, &[]),
            Self::Click { link, url } => seal(Purpose::Click, &click_rest(*link, url)),
            Self::Unsubscribe => seal(Purpose::Unsubscribe, ids.contact_id.as_bytes()),
            Self::Preferences => seal(Purpose::Preferences, ids.contact_id.as_bytes()),
        }
    }

    /// About how many bytes the token takes.
    #[must_use]
    pub fn size(&self) -> usize {
        // Frame and MAC, then base64 of the ids and what follows them.
        let rest = match self {
            Self::Open => 0,
            Self::Click { url, .. } => 2 + url.len(),
            Self::Unsubscribe | Self::Preferences => 16,
        };
        40 + (32 + rest) * 4 / 3
    }
}

/// A message compiled for splicing: pieces in order give the complete RFC 5322 message, without DKIM-Signature,
/// CRLF line ends, not dot-stuffed. Lines stay within 998 octets whatever the slots hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skeleton {
    /// The pieces, in wire order.
    pub pieces: Vec<Piece>,
    /// How many texts a recipient must bring.
    pub slots: u16,
}

impl Skeleton {
    /// The content hash (SHA-256, lower-case hex) under which the skeleton is stored.
    #[must_use]
    pub fn id(&self) -> SkeletonId {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        // As it is stored: writing to memory does not fail, and neither do these types.
        hash.update(serde_json::to_vec(self).unwrap_or_default());
        SkeletonId(hex::encode(hash.finalize()))
    }

    /// Splices complete message bytes for one recipient, with the message's attachments in their order. `None` when the number of texts
    /// is not the skeleton's, or an attachment is missing or not of the size it had when the message was compiled.
    #[must_use]
    pub fn splice(&self, values: &PlaceholderValues, tokens: &TokenKeys, attachments: &[Vec<u8>]) -> Option<Vec<u8>> {
        let slots = values.recipient.slots();
        if slots.len() != usize::from(self.slots) {
            return None;
        }
        let slot_bytes = slots.iter().map(|slot| slot.len()).sum::<usize>();
        let mut out = Vec::with_capacity(self.static_bytes() + self.attachment_bytes() + slot_bytes);
        let (ids, mut unsubscribe) = (values.ids(), None);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Slot(slot) => out.extend_from_slice(slots.get(usize::from(*slot))?),
                Piece::SendId => {
                    let mut buffer = Uuid::encode_buffer();
                    out.extend_from_slice(ids.send_id.0.hyphenated().encode_lower(&mut buffer).as_bytes());
                }
                Piece::MessageId => {
                    out.extend_from_slice(tokens.message_id_local(values.token_key, ids.send_id.0).as_bytes());
                }
                Piece::Date => out.extend_from_slice(values.date().format(RFC_2822).to_string().as_bytes()),
                Piece::Token { token: LinkToken::Unsubscribe, column } => {
                    // It stands in the header and in both bodies.
                    let token =
                        unsubscribe.get_or_insert_with(|| LinkToken::Unsubscribe.seal(tokens, values.token_key, &ids));
                    push_token(token, *column, &mut out);
                }
                Piece::Token { token, column } => {
                    push_token(&token.seal(tokens, values.token_key, &ids), *column, &mut out);
                }
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
        let attached = self.pieces.iter().map(|piece| match piece {
            Piece::Attachment { bytes, .. } => *bytes as usize,
            _ => 0,
        });
        attached.sum()
    }

    /// About how many bytes a message takes without its slots and attachments.
    #[must_use]
    pub fn static_bytes(&self) -> usize {
        let pieces = self.pieces.iter().map(|piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::SendId | Piece::Date => 40,
            Piece::MessageId => 56,
            // With its soft line breaks.
            Piece::Token { token, .. } => token.size() * 26 / 25 + 3,
            Piece::Slot(_) | Piece::Attachment { .. } => 0,
        });
        pieces.sum()
    }

    /// About how much memory the skeleton takes, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.static_bytes() + self.pieces.len() * size_of::<Piece>()
    }
}

/// The longest line of quoted-printable text before the `=` of a soft line break (RFC 2045 §6.7).
pub(super) const QP_LINE: usize = 75;
const SOFT_BREAK: &[u8] = b"=\r\n";

/// Appends a token, in quoted-printable text from this column to column 0. Tokens are letters, digits, `-`, `_` and dots; a dot at the
/// start of a line is encoded, since SMTP changes it.
pub(super) fn push_token(token: &str, column: Option<u8>, out: &mut Vec<u8>) {
    let mut rest = token.as_bytes();
    let Some(column) = column else { return out.extend_from_slice(rest) };
    let mut column = usize::from(column);
    while !rest.is_empty() {
        if column >= QP_LINE {
            out.extend_from_slice(SOFT_BREAK);
            column = 0;
        }
        if let (0, [b'.', after @ ..]) = (column, rest) {
            out.extend_from_slice(b"=2E");
            (column, rest) = (3, after);
        }
        let (line, after) = rest.split_at(rest.len().min(QP_LINE - column));
        out.extend_from_slice(line);
        column += line.len();
        rest = after;
    }
    if column > 0 {
        out.extend_from_slice(SOFT_BREAK);
    }
}

/// A skeleton's content hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SkeletonId(pub String);

/// What fills the placeholders of a skeleton for one recipient. Cheap to clone: the texts are shared.
#[derive(Debug, Clone)]
pub struct PlaceholderValues {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The batch.
    pub batch_id: Uuid,
    /// The key that tokens are made with.
    pub token_key: TokenKeyId,
    /// The recipient and its texts.
    pub recipient: RenderedRecipient,
    /// The time that the send waited for, if it did.
    pub due_at: Option<DateTime<Utc>>,
}

impl PlaceholderValues {
    /// The date of the mail: the same in every attempt, unless it is marketing, which waits for each attempt.
    fn date(&self) -> DateTime<Utc> {
        let made_at = self.ids().send_id.made_at();
        self.due_at.map_or(made_at, |due| due.max(made_at))
    }

    fn ids(&self) -> TokenIds {
        TokenIds {
            tenant_id: self.tenant_id,
            send_id: SendId::of(self.batch_id, self.recipient.ordinal),
            contact_id: self.recipient.contact_id,
        }
    }
}
