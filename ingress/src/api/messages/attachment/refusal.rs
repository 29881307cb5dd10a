//! Why an attachment is not passed on, and how much may unpack of it.

use runtime::{Budget, Spent};
use serde::{Deserialize, Serialize};

/// What an open decoder holds.
pub(super) const DECODER_BYTES: usize = 64 * 1024;
/// So much may unpack from whatever little; beyond it the ratio counts.
const UNPACKED_FREE: u64 = 10 * 1024 * 1024;

/// Why a content is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AttachmentRefusal {
    NotBase64,
    Empty,
    Mismatch,
    Damaged,
    Macros,
    Encrypted,
    Active,
    Embedded,
    Bomb,
    TooManyPixels,
    NotInspectable,
}

impl AttachmentRefusal {
    /// The code of the fault, and a text for people.
    pub(super) fn fault(self) -> (&'static str, &'static str) {
        match self {
            Self::NotBase64 => {
                ("invalid_base64", "must be standard base64 with padding, without line breaks or a data: prefix")
            }
            Self::Empty => ("empty", "must not be empty"),
            Self::Mismatch => ("content_mismatch", "is not what its extension says"),
            Self::Damaged => ("unreadable", "is damaged or incomplete"),
            Self::Macros => ("macros", "contains macros"),
            Self::Encrypted => ("encrypted", "is encrypted"),
            Self::Active => ("active_content", "contains active content"),
            Self::Embedded => ("embedded_file", "has another file embedded"),
            Self::Bomb => ("archive_bomb", "unpacks to far more than a document"),
            Self::TooManyPixels => ("image_too_large", "has too many pixels"),
            Self::NotInspectable => ("not_inspectable", "is packed in a way that cannot be inspected"),
        }
    }
}

/// Why an inspection ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InspectionFault {
    /// The file is not passed on.
    Refused(AttachmentRefusal),
    /// The budget is used up.
    Spent(Spent),
}

impl From<AttachmentRefusal> for InspectionFault {
    fn from(refusal: AttachmentRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Spent> for InspectionFault {
    fn from(spent: Spent) -> Self {
        Self::Spent(spent)
    }
}

/// What was unpacked of a document so far. Nothing of it is kept.
#[derive(Debug)]
pub(super) struct Unpacked {
    packed: u64,
    most: u64,
    ratio: u64,
    bytes: u64,
}

impl Unpacked {
    /// Of a document of so many bytes: at most so many, and so many times its size.
    pub(super) fn new(packed: usize, most: u64, ratio: u64) -> Self {
        Self { packed: packed as u64, most, ratio, bytes: 0 }
    }

    /// Counts what was unpacked, before it is looked at.
    pub(super) fn add(&mut self, bytes: usize, budget: &Budget) -> Result<(), InspectionFault> {
        budget.take_steps(bytes as u64)?;
        self.bytes += bytes as u64;
        let is_sane =
            self.bytes <= self.most && (self.bytes <= UNPACKED_FREE || self.bytes / self.ratio <= self.packed);
        if is_sane { Ok(()) } else { Err(AttachmentRefusal::Bomb.into()) }
    }
}
