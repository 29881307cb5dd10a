//! One recipient of a rendered batch, as it stands in a frame.

use bytes::Bytes;
use uuid::Uuid;

/// One recipient of a rendered batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedRecipient {
    /// Position in the batch; the send id is the batch id with this in its low nine bits ([`crate::SendId`]).
    pub ordinal: u16,
    /// The contact, for the tokens that name it.
    pub contact_id: Uuid,
    /// The canonical address and the texts, as in a frame: checked when it was read.
    pub(super) text: Bytes,
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

/// What of a frame is left to read. Takes nothing that is not there.
pub(super) struct FrameReader<'a>(pub(super) &'a [u8]);

impl<'a> FrameReader<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
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

    pub(super) fn recipient(&mut self, frame: &Bytes) -> Option<RenderedRecipient> {
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
