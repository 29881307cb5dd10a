//! Attachments: extension, declared type and content must agree, and nothing active, encrypted or explosive is passed on.
//!
//! The caller is known and the mail is his; what is refused here is what receivers refuse or what would hurt whoever opens it.
//! Every look into a file is bounded in bytes, and happens off the reactor.

mod image;
mod kind;
mod name;
mod ole;
mod ooxml;
mod pdf;
#[cfg(test)]
mod tests;
mod text;

use std::panic::{AssertUnwindSafe, catch_unwind};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use serde::Deserialize;

pub(super) use kind::EXTENSIONS;
use kind::Kind;
pub(super) use name::NAME_MAX_CHARS;

use crate::{
    act::Faults,
    error::{ApiError, FieldFault},
};

/// Most attachments of one message.
pub(super) const ATTACHMENTS_MAX: usize = 10;
/// Most bytes of all attachments of one message, decoded.
const TOTAL_MAX_BYTES: usize = 15 * 1024 * 1024;
/// Characters of base64 in one line (RFC 2045 §6.8).
const LINE_CHARS: usize = 76;

/// An attachment as the caller gives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttachmentBody {
    filename: Option<String>,
    content_base64: Option<String>,
    content_type: Option<String>,
}

/// An attachment whose name and declared type are good, and into which nobody has looked yet.
pub(super) struct Upload {
    filename: String,
    kind: Kind,
    base64: String,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({:?}, {} characters)", self.kind, self.base64.len())
    }
}

/// An attachment that may be sent.
pub(super) struct Attachment {
    pub(super) filename: String,
    pub(super) media_type: &'static str,
    /// Base64 in lines, as it goes over the wire.
    pub(super) encoded: Vec<u8>,
}

/// Why a content is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
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

impl Refusal {
    fn code(self) -> &'static str {
        match self {
            Self::NotBase64 => "invalid_base64",
            Self::Empty => "empty",
            Self::Mismatch => "content_mismatch",
            Self::Damaged => "unreadable",
            Self::Macros => "macros",
            Self::Encrypted => "encrypted",
            Self::Active => "active_content",
            Self::Embedded => "embedded_file",
            Self::Bomb => "archive_bomb",
            Self::TooManyPixels => "image_too_large",
            Self::NotInspectable => "not_inspectable",
        }
    }

    fn detail(self) -> &'static str {
        match self {
            Self::NotBase64 => "must be standard base64 with padding, without line breaks or a data: prefix",
            Self::Empty => "must not be empty",
            Self::Mismatch => "is not what its extension says",
            Self::Damaged => "is damaged or incomplete",
            Self::Macros => "contains macros",
            Self::Encrypted => "is encrypted",
            Self::Active => "contains active content",
            Self::Embedded => "has another file embedded",
            Self::Bomb => "unpacks to far more than a document",
            Self::TooManyPixels => "has too many pixels",
            Self::NotInspectable => "is packed in a way that cannot be inspected",
        }
    }
}

/// Checks what can be told without looking inside.
///
/// # Errors
/// 413 `attachments_too_large`.
pub(super) fn uploads(faults: &mut Faults, bodies: Vec<AttachmentBody>) -> Result<Vec<Upload>, ApiError> {
    if bodies.len() > ATTACHMENTS_MAX {
        faults.add("attachments", "too_many", format!("may have at most {ATTACHMENTS_MAX} files"));
        return Ok(Vec::new());
    }
    let total: usize = bodies.iter().filter_map(|body| body.content_base64.as_deref()).map(decoded_bytes).sum();
    if total > TOTAL_MAX_BYTES {
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "attachments_too_large")
            .detail(format!("the attachments may have at most {TOTAL_MAX_BYTES} bytes together, decoded")));
    }
    let uploads = bodies.into_iter().enumerate().filter_map(|(place, body)| upload(faults, place, body));
    Ok(uploads.collect())
}

fn decoded_bytes(base64: &str) -> usize {
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').take(2).count();
    (base64.len() / 4 * 3).saturating_sub(padding)
}

fn upload(faults: &mut Faults, place: usize, body: AttachmentBody) -> Option<Upload> {
    let path = |field: &str| format!("attachments[{place}].{field}");
    let base64 = faults.required(&path("content_base64"), body.content_base64);
    let filename = faults.required(&path("filename"), body.filename)?;
    let kind = match name::check(&filename) {
        Ok(kind) => kind,
        Err(fault) => {
            faults.add(path("filename"), fault.code(), fault.detail());
            return None;
        }
    };
    if let Some(declared) = body.content_type
        && !kind.may_be_called(&declared)
    {
        let detail = format!("must be {} for this extension", kind.media_type());
        faults.add(path("content_type"), "content_type_mismatch", detail);
    }
    Some(Upload { filename, kind, base64: base64? })
}

/// Looks into all of them, one after the other, off the reactor.
///
/// # Errors
/// 400 `validation_failed` with every fault.
pub(super) async fn inspect(uploads: Vec<Upload>) -> Result<Vec<Attachment>, ApiError> {
    if uploads.is_empty() {
        return Ok(Vec::new());
    }
    let work = move || {
        let (mut attachments, mut faults) = (Vec::with_capacity(uploads.len()), Vec::new());
        for (place, upload) in uploads.into_iter().enumerate() {
            match attachment(upload) {
                Ok(attachment) => attachments.push(attachment),
                Err(refusal) => faults.push(FieldFault::new(
                    format!("attachments[{place}].content_base64"),
                    refusal.code(),
                    refusal.detail(),
                )),
            }
        }
        if faults.is_empty() { Ok(attachments) } else { Err(ApiError::validation(faults)) }
    };
    tokio::task::spawn_blocking(work).await?
}

fn attachment(upload: Upload) -> Result<Attachment, Refusal> {
    let Upload { filename, kind, base64 } = upload;
    let content = STANDARD.decode(&base64).map_err(|_| Refusal::NotBase64)?;
    // A stranger's file in a parser: a panic there is that file's fault and nobody else's.
    let media_type = catch_unwind(AssertUnwindSafe(|| media_type(kind, &content))).unwrap_or(Err(Refusal::Damaged))?;
    drop(content);
    Ok(Attachment { filename, media_type, encoded: lines(&base64) })
}

/// The media type to send it with, if the content is what the extension says.
fn media_type(kind: Kind, content: &[u8]) -> Result<&'static str, Refusal> {
    if content.is_empty() {
        return Err(Refusal::Empty);
    }
    match kind {
        Kind::Pdf => pdf::inspect(content)?,
        Kind::Docx => ooxml::inspect(content, ooxml::Document::Word)?,
        Kind::Xlsx => ooxml::inspect(content, ooxml::Document::Sheet)?,
        Kind::Xls => ole::inspect(content)?,
        Kind::Png => image::inspect_png(content)?,
        Kind::Jpeg => image::inspect_jpeg(content)?,
        Kind::Csv | Kind::Txt => return text::inspect(content).map(|charset| kind.text_type(charset)),
    }
    Ok(kind.media_type())
}

/// The same base64 in lines, each with its CRLF.
fn lines(base64: &str) -> Vec<u8> {
    let mut lines = Vec::with_capacity(base64.len() + base64.len() / LINE_CHARS * 2 + 2);
    for line in base64.as_bytes().chunks(LINE_CHARS) {
        lines.extend_from_slice(line);
        lines.extend_from_slice(b"\r\n");
    }
    lines
}
