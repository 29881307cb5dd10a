//! `mail.v1.rendered.<lane>`: what delivery needs to send a batch without ever seeing a template.
//!
//! Bodies do not cross the bus. A template version is compiled once into a [`Skeleton`]: the whole message from its first
//! header to its last MIME boundary, already encoded, with placeholders. The skeleton is stored by content hash. This message carries
//! the texts that merging made, for each recipient. What follows from a send's id, such as its Message-ID and the tokens of its links,
//! is computed when the message is spliced.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::Error as _};
use uuid::Uuid;

use crate::{
    Lane, MessageKind, SendId,
    token::{Purpose, TokenKeyId, TokenKeys, click_rest},
};

/// The largest `Rendered` message rendering publishes, in bytes. A batch that needs more is cut into several.
pub const RENDERED_MAX_BYTES: usize = 256 * 1024;

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
    /// The send's id, as in Message-ID.
    SendId,
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
const QP_LINE: usize = 75;
const SOFT_BREAK: &[u8] = b"=\r\n";

/// Appends a token, in quoted-printable text from this column to column 0. Tokens are letters, digits, `-`, `_` and dots; a dot at the
/// start of a line is encoded, since SMTP changes it.
fn push_token(token: &str, column: Option<u8>, out: &mut Vec<u8>) {
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

/// One recipient of a rendered batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedRecipient {
    /// Position in the batch; the send id is the batch id with this in its low nine bits ([`crate::SendId`]).
    pub ordinal: u16,
    /// The contact, for the tokens that name it.
    pub contact_id: Uuid,
    /// The canonical address and the texts, as in a frame: checked when it was read.
    text: Bytes,
}

impl RenderedRecipient {
    /// A recipient with its canonical address, and its texts encoded for where they stand.
    #[must_use]
    pub fn new(ordinal: u16, contact_id: Uuid, address: &str, slots: &[String]) -> Self {
        let bytes = address.len() + slots.iter().map(|slot| slot.len() + 3).sum::<usize>();
        let mut text = Vec::with_capacity(bytes + 8);
        push_text(&mut text, address.as_bytes());
        push_number(&mut text, slots.len());
        for slot in slots {
            push_text(&mut text, slot.as_bytes());
        }
        Self { ordinal, contact_id, text: text.into() }
    }

    /// The canonical address, RCPT TO.
    #[must_use]
    pub fn address(&self) -> &str {
        FrameReader(&self.text).text().and_then(|address| std::str::from_utf8(address).ok()).unwrap_or_default()
    }

    /// The texts, by number.
    #[must_use]
    pub fn slots(&self) -> Vec<&[u8]> {
        let mut reader = FrameReader(&self.text);
        reader.text();
        let count = reader.number().unwrap_or_default();
        std::iter::from_fn(|| reader.text()).take(count).collect()
    }

    /// How many bytes it takes in a frame.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        2 + 16 + self.text.len()
    }
}

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

    /// The message as a frame.
    ///
    /// # Errors
    /// With more than 65,535 recipients.
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
    ///
    /// # Errors
    /// If it is of another version, cut off, or longer than it says.
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

/// What of a frame is left to read. Takes nothing that is not there.
struct FrameReader<'a>(&'a [u8]);

impl<'a> FrameReader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// A number of at most 28 bits.
    fn number(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in [0, 7, 14, 21] {
            let [byte] = self.array()?;
            number |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(length)
    }

    fn recipient(&mut self, frame: &Bytes) -> Option<RenderedRecipient> {
        let ordinal = u16::from_be_bytes(self.array()?);
        let contact_id = Uuid::from_bytes(self.array()?);
        let start = self.0;
        std::str::from_utf8(self.text()?).ok()?;
        // Each takes a byte at least, so the frame bounds how many there are.
        for _ in 0..self.number()? {
            self.text()?;
        }
        let text = start.get(..start.len() - self.0.len())?;
        Some(RenderedRecipient { ordinal, contact_id, text: frame.slice_ref(text) })
    }
}

/// Appends a number of at most 28 bits, in as few bytes as it needs.
fn push_number(out: &mut Vec<u8>, mut number: usize) {
    while number > 0x7f {
        out.push(0x80 | number.to_le_bytes()[0]);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Appends a text and its length. Rendering makes none that is longer than a message may be.
fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    push_number(out, text.len());
    out.extend_from_slice(text);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens() -> TokenKeys {
        TokenKeys::derive(&[[7; 32]])
    }

    fn rendered(recipients: Vec<RenderedRecipient>) -> Rendered {
        Rendered {
            tenant_id: Uuid::from_u128(1),
            batch_id: crate::new_batch_id(),
            campaign_id: None,
            kind: MessageKind::Campaign,
            lane: Lane::Bulk,
            part: 0,
            skeleton: SkeletonId("s".to_owned()),
            token_key: tokens().newest(),
            sending_domain: "acme.example".to_owned(),
            return_path_domain: "send.acme.example".to_owned(),
            recipients,
            notify: None,
        }
    }

    fn recipient(slots: &[&str]) -> RenderedRecipient {
        let slots: Vec<String> = slots.iter().map(|slot| (*slot).to_owned()).collect();
        RenderedRecipient::new(3, Uuid::from_u128(9), "ann@example.com", &slots)
    }

    fn spliced(pieces: Vec<Piece>, slots: &[&str], attachments: &[Vec<u8>]) -> Option<Vec<u8>> {
        let count = pieces.iter().filter(|piece| matches!(piece, Piece::Slot(_))).count();
        let skeleton = Skeleton { pieces, slots: u16::try_from(count).unwrap() };
        let message = rendered(vec![recipient(slots)]);
        skeleton.splice(&message.values(&message.recipients[0]), &tokens(), attachments)
    }

    #[test]
    fn attachments_are_spliced_in_their_place_and_none_may_be_missing_or_changed() {
        let pieces = || {
            vec![
                Piece::Text("a".into()),
                Piece::Attachment { place: 1, bytes: 2 },
                Piece::Slot(0),
                Piece::Attachment { place: 0, bytes: 1 },
            ]
        };
        assert_eq!(spliced(pieces(), &["-"], &[b"x".to_vec(), b"yz".to_vec()]).unwrap(), b"ayz-x");
        assert_eq!(Skeleton { pieces: pieces(), slots: 1 }.attachment_bytes(), 3);
        assert_eq!(spliced(pieces(), &["-"], &[]), None);
        assert_eq!(spliced(pieces(), &["-"], &[b"x".to_vec(), b"y".to_vec()]), None);
        assert_eq!(spliced(pieces(), &["-", "-"], &[b"x".to_vec(), b"yz".to_vec()]), None);
    }

    #[test]
    fn what_follows_from_the_send_is_computed_for_it() {
        let message = rendered(vec![recipient(&[])]);
        let pieces = vec![
            Piece::SendId,
            Piece::Text(" ".into()),
            Piece::Date,
            Piece::Text(" ".into()),
            Piece::Token { token: LinkToken::Click { link: 2, url: "https://x.test".into() }, column: None },
            Piece::Text(" ".into()),
            Piece::Token { token: LinkToken::Unsubscribe, column: None },
        ];
        let values = message.values(&message.recipients[0]);
        let skeleton = Skeleton { pieces, slots: 0 };
        let text = String::from_utf8(skeleton.splice(&values, &tokens(), &[]).unwrap()).unwrap();
        let send = SendId::of(message.batch_id, 3);
        let (id, rest) = text.split_once(' ').unwrap();
        assert_eq!(id, send.0.to_string());
        let words: Vec<&str> = rest.rsplitn(3, ' ').collect();
        let date = chrono::DateTime::parse_from_rfc2822(words[2]).unwrap();
        assert_eq!(date.timestamp(), send.made_at().timestamp());
        let click = tokens().open(Purpose::Click, words[1]).unwrap();
        assert_eq!(
            (click.tenant_id, click.send_id, click.click()),
            (Uuid::from_u128(1), send.0, Some((2, "https://x.test")))
        );
        let leave = tokens().open(Purpose::Unsubscribe, words[0]).unwrap();
        assert_eq!((leave.send_id, leave.contact()), (send.0, Some(Uuid::from_u128(9))));
        let later = send.made_at() + chrono::TimeDelta::hours(9);
        for (due_at, dated) in [(later, later), (send.made_at() - chrono::TimeDelta::hours(1), send.made_at())] {
            let waited = PlaceholderValues { due_at: Some(due_at), ..values.clone() };
            let only = Skeleton { pieces: vec![Piece::Date], slots: 0 };
            let text = String::from_utf8(only.splice(&waited, &tokens(), &[]).unwrap()).unwrap();
            assert_eq!(chrono::DateTime::parse_from_rfc2822(&text).unwrap().timestamp(), dated.timestamp());
        }
        // No allocation is made a second time.
        assert!(text.len() <= skeleton.static_bytes(), "{} {}", text.len(), skeleton.static_bytes());
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let long = "x".repeat(70_000);
        let message = rendered(vec![recipient(&["Ann", "", &long]), recipient(&[])]);
        let frame = message.frame().unwrap();
        let read = Rendered::of_frame(&frame).unwrap();
        assert_eq!(read, message);
        assert_eq!(read.recipients[0].address(), "ann@example.com");
        assert_eq!(read.recipients[0].slots(), [b"Ann".as_slice(), b"", long.as_bytes()]);
        assert_eq!(read.recipients[1].slots(), Vec::<&[u8]>::new());
    }

    #[test]
    fn a_frame_that_is_cut_off_or_too_long_is_refused() {
        let frame = rendered(vec![recipient(&["Ann", "x"])]).frame().unwrap();
        for length in 0..frame.len() {
            assert!(Rendered::of_frame(&frame.slice(..length)).is_err(), "{length}");
        }
        assert!(Rendered::of_frame(&[&frame[..], b"\0"].concat().into()).is_err());
    }

    /// A token in quoted-printable text, a byte at a time.
    fn quoted(token: &str, mut column: usize) -> String {
        let mut out = String::new();
        for letter in token.chars() {
            let encoded = letter == '.' && (column == 0 || column == QP_LINE);
            let width = if encoded { 3 } else { 1 };
            if column + width > QP_LINE {
                out.push_str("=\r\n");
                column = 0;
            }
            if encoded {
                out.push_str("=2E")
            } else {
                out.push(letter)
            }
            column += width;
        }
        if column > 0 { out + "=\r\n" } else { out }
    }

    proptest! {
        #[test]
        fn a_token_is_quoted_as_any_text_is(token in "[A-Za-z0-9._-]{0,400}", column in 0..=75_u8) {
            let mut out = Vec::new();
            push_token(&token, Some(column), &mut out);
            prop_assert_eq!(String::from_utf8(out).unwrap(), quoted(&token, usize::from(column)));
        }

        #[test]
        fn a_changed_frame_is_read_or_refused(at in 0..2_000_usize, with in any::<u8>()) {
            let frame = rendered(vec![recipient(&["Ann", "x"]), recipient(&["y"])]).frame().unwrap();
            let mut frame = frame.to_vec();
            let at = at % frame.len();
            frame[at] = with;
            if let Ok(read) = Rendered::of_frame(&frame.into()) {
                for recipient in &read.recipients {
                    let _ = (recipient.address(), recipient.slots());
                }
            }
        }
    }
}
