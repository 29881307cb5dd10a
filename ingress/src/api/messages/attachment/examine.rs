//! The look into one file, as a function of its bytes alone: so that it can be done in another process.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use runtime::{
    Budget, Job, Limits, Reader, Spent,
    reader::{ReadFault, ReaderError},
};
use serde::{Deserialize, Serialize};

use super::{
    TOTAL_MAX_BYTES, image,
    kind::FileKind,
    ole, ooxml, pdf,
    refusal::{AttachmentRefusal, InspectionFault},
    text::{self, Charset},
};
use crate::pipeline::error::ApiError;

/// What the look into one file may cost. A step is a byte looked at or unpacked; what is held is an archive within the document, the
/// tables of a compound file, a part that is read as a whole.
pub(super) const LIMITS: Limits = Limits {
    input_bytes: TOTAL_MAX_BYTES,
    held_bytes: 36 * 1024 * 1024,
    depth: 2,
    steps: 512 * 1024 * 1024,
    time: Duration::from_secs(10),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum InspectionResult {
    /// It is what its extension says. A text is encoded so.
    Good { charset: Option<Charset> },
    /// It is not passed on.
    Refused(AttachmentRefusal),
}

/// The bytes of a job: the kind, and the file. `None`: this is not base64.
pub(super) fn job(kind: FileKind, base64: &str) -> Option<Vec<u8>> {
    let mut job = Vec::with_capacity(1 + base64.len() / 4 * 3);
    job.push(kind as u8);
    STANDARD.decode_vec(base64, &mut job).ok()?;
    Some(job)
}

/// Runs a job.
///
/// # Errors
/// [`Spent::Time`]: another time the same look may be done.
pub(super) fn run(job: &[u8]) -> Result<InspectionResult, Spent> {
    let Some((kind, content)) =
        job.split_first().and_then(|(kind, content)| Some((FileKind::of_byte(*kind)?, content)))
    else {
        return Ok(InspectionResult::Refused(AttachmentRefusal::Mismatch));
    };
    match examine(kind, content, &Budget::new(LIMITS)) {
        Ok(charset) => Ok(InspectionResult::Good { charset }),
        Err(InspectionFault::Refused(refusal)) => Ok(InspectionResult::Refused(refusal)),
        Err(InspectionFault::Spent(spent)) if spent.is_transient() => Err(spent),
        Err(InspectionFault::Spent(_)) => Ok(InspectionResult::Refused(AttachmentRefusal::Bomb)),
    }
}

/// The job, as a process of readers does it.
pub(crate) const JOB: Job =
    Job { kind: "attachment", run: |job| serde_json::to_vec(&run(job)?).map_err(|_| ReadFault::Undecodable) };

/// Has a job done where it cannot take this process along.
///
/// # Errors
/// 503 when there is no time to look.
pub(super) async fn read(reader: &Reader, job: Vec<u8>) -> Result<InspectionResult, ApiError> {
    match reader.read(&JOB, job).await {
        Ok(finding) => serde_json::from_slice(&finding).map_err(|error| ApiError::unexpected(&error)),
        // The fault of this file only.
        Err(ReaderError::Crashed) => Ok(InspectionResult::Refused(AttachmentRefusal::Damaged)),
        Err(ReaderError::Spent(spent)) if !spent.is_transient() => {
            Ok(InspectionResult::Refused(AttachmentRefusal::Bomb))
        }
        Err(error) if error.is_transient() => Err(ApiError::unavailable()),
        Err(error) => Err(ApiError::unexpected(&error)),
    }
}

/// Whether the content is what the extension says; for a text, how it is encoded.
pub(super) fn examine(kind: FileKind, content: &[u8], budget: &Budget) -> Result<Option<Charset>, InspectionFault> {
    budget.take_input(content.len())?;
    if content.is_empty() {
        return Err(AttachmentRefusal::Empty.into());
    }
    if kind.is_image() || kind.is_text() {
        // Read once, from beginning to end.
        budget.take_steps(content.len() as u64)?;
    }
    match kind {
        FileKind::Pdf => pdf::inspect(content, budget)?,
        FileKind::Docx => ooxml::inspect(content, ooxml::OoxmlDocument::Word, budget)?,
        FileKind::Xlsx => ooxml::inspect(content, ooxml::OoxmlDocument::Sheet, budget)?,
        FileKind::Xls => ole::inspect(content, budget)?,
        FileKind::Png => image::png(content)?,
        FileKind::Jpeg => image::jpeg(content)?,
        FileKind::Csv | FileKind::Txt => return Ok(Some(text::charset(content)?)),
    }
    Ok(None)
}
