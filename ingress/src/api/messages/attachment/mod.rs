//! Attachments: extension, declared type and content must agree, and nothing active, encrypted or explosive is passed on.
//!
//! The caller is known and the mail is his; an attachment is refused if receivers refuse it or if it could harm the recipient.
//! Every look into a file has a budget ([`LIMITS`]), keeps next to nothing of it, and happens before a connection to Postgres is taken.

mod archive;
pub(crate) mod calendar;
mod examine;
mod image;
mod kind;
mod name;
mod ole;
mod ooxml;
mod pdf;
mod refusal;
#[cfg(test)]
mod tests;
mod text;
mod xml;

use std::{
    collections::HashSet,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use moka::future::Cache;
use runtime::Reader;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;
use uuid::Uuid;

use examine::InspectionResult;
pub(crate) use examine::JOB;
use kind::{DeclaredType, EXTENSIONS, FileKind};
use name::NAME_MAX_CHARS;
use refusal::AttachmentRefusal;

use crate::pipeline::{
    Faults,
    error::{ApiError, FieldFault},
    shares::Shares,
    types::{Name, texts},
    validate::is_ascii_name,
};

/// Most attachments of one mail.
pub(crate) const ATTACHMENTS_MAX: usize = 10;
/// Most bytes of all attachments of one message, decoded, and of all messages of one array.
const TOTAL_MAX_BYTES: usize = 15 * 1024 * 1024;
/// Memory for looking into attachments, in KiB, over all messages: the decoded files, and what the look holds.
static INSPECTIONS: LazyLock<Shares> = LazyLock::new(|| Shares::new(INSPECTIONS_KIB, INSPECTIONS_KIB_OF_ONE_PRODUCT));
const INSPECTIONS_KIB: usize = 48 * 1024;
const INSPECTIONS_KIB_OF_ONE_PRODUCT: usize = INSPECTIONS_KIB - INSPECTION_KIB_MIN;
/// What one look takes of it at least, however small the file: so at most four are under way, and three of one product.
const INSPECTION_KIB_MIN: usize = 12 * 1024;
/// How much more than its own size a file takes while it is looked into.
const INSPECTION_WEIGHT: usize = 3;
/// Most messages with attachments of one tenant that are looked into in an hour, by each process: taken or refused.
pub(crate) const INSPECTIONS_PER_HOUR: u32 = 600;
const HOUR: Duration = Duration::from_secs(3_600);
const TENANTS_REMEMBERED: u64 = 10_000;
/// Longest content id, in bytes.
const CONTENT_ID_MAX: usize = 100;

texts! {
    /// The id of an inline image.
    ContentId = json!({
        "type": "string", "minLength": 1, "maxLength": CONTENT_ID_MAX, "pattern": "^[A-Za-z0-9._@-]+$",
    }),
}

/// Characters of base64 in one line (RFC 2045 §6.8).
const LINE_CHARS: usize = 76;

/// An attachment as the caller gives it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewAttachment {
    #[schemars(with = "Name<NAME_MAX_CHARS>", extend("description" = about_extensions()))]
    filename: Option<String>,
    #[schemars(with = "String", length(min = 1), extend("contentEncoding" = "base64"))]
    content_base64: Option<String>,
    /// Must agree with extension and content. Default: by the extension.
    content_type: Option<String>,
    /// Of an image that the HTML shows: the `id` in `<img src="cid:id">`.
    #[schemars(with = "Option<ContentId>")]
    content_id: Option<String>,
}

fn about_extensions() -> String {
    format!("With one of the extensions {}.", EXTENSIONS.join(", "))
}

/// An attachment with a valid name and declared type. Its content is not inspected yet.
pub(crate) struct Upload {
    filename: String,
    kind: FileKind,
    declared: DeclaredType,
    content_id: Option<String>,
    base64: String,
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({:?}, {} characters)", self.kind, self.base64.len())
    }
}

impl Upload {
    pub(crate) fn decoded_bytes(&self) -> usize {
        decoded_bytes(&self.base64)
    }
}

/// An attachment that may be sent.
pub(crate) struct ValidAttachment {
    pub(super) filename: String,
    pub(super) media_type: &'static str,
    /// The id by which the HTML shows it.
    pub(super) content_id: Option<String>,
    /// Base64 in lines, as it goes over the wire.
    pub(super) encoded: Vec<u8>,
}

impl std::fmt::Debug for ValidAttachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ValidAttachment({}, {} bytes)", self.media_type, self.encoded.len())
    }
}

/// Checks name, type and size, without the content.
///
/// # Errors
/// 413 `attachments_too_large`.
pub(crate) fn uploads(faults: &mut Faults, bodies: Vec<NewAttachment>) -> Result<Vec<Upload>, ApiError> {
    if bodies.len() > ATTACHMENTS_MAX {
        faults.add("attachments", "too_many", format!("may have at most {ATTACHMENTS_MAX} files"));
        return Ok(Vec::new());
    }
    check_total(bodies.iter().filter_map(|body| body.content_base64.as_deref()).map(decoded_bytes).sum())?;
    let mut ids = HashSet::new();
    for (place, id) in bodies.iter().enumerate().filter_map(|(place, body)| Some((place, body.content_id.as_ref()?))) {
        let path = format!("attachments[{place}].content_id");
        let is_id = is_ascii_name(id, CONTENT_ID_MAX, b"-_.@");
        faults.require(is_id, &path, "invalid", "has letters, digits, dashes, underscores, dots and @, at most 100");
        faults.require(ids.insert(id), &path, "duplicate", "is that of another attachment");
    }
    drop(ids);
    let uploads = bodies.into_iter().enumerate().filter_map(|(place, body)| upload(faults, place, body));
    Ok(uploads.collect())
}

/// Whether one request may bring so many bytes of files, decoded.
///
/// # Errors
/// 413 `attachments_too_large`.
pub(crate) fn check_total(bytes: usize) -> Result<(), ApiError> {
    if bytes <= TOTAL_MAX_BYTES {
        return Ok(());
    }
    Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "attachments_too_large")
        .detail(format!("the attachments may have at most {TOTAL_MAX_BYTES} bytes together, decoded")))
}

fn decoded_bytes(base64: &str) -> usize {
    let padding = base64.bytes().rev().take_while(|byte| *byte == b'=').take(2).count();
    (base64.len() / 4 * 3).saturating_sub(padding)
}

fn upload(faults: &mut Faults, place: usize, body: NewAttachment) -> Option<Upload> {
    let path = |field: &str| format!("attachments[{place}].{field}");
    let base64 = faults.required(&path("content_base64"), body.content_base64);
    let filename = faults.required(&path("filename"), body.filename)?;
    let kind = name::check(&filename).map_err(|(code, detail)| faults.add(path("filename"), code, detail)).ok()?;
    let declared = body.content_type.map_or(Some(DeclaredType::default()), |text| kind.declared(&text, &filename));
    let Some(declared) = declared else {
        faults.add(path("content_type"), TYPE_MISMATCH, type_mismatch(kind));
        return None;
    };
    let may_be_shown = kind.is_image() || body.content_id.is_none();
    faults.require(may_be_shown, &path("content_id"), "not_allowed", "only an image can be shown by the HTML");
    Some(Upload { filename, kind, declared, content_id: body.content_id, base64: base64? })
}

const TYPE_MISMATCH: &str = "content_type_mismatch";

fn type_mismatch(kind: FileKind) -> String {
    format!("must be {} for this extension, with parameters that are true of the file", kind.media_type())
}

/// A tenant's messages that were looked into since this time.
type Hour = (Instant, AtomicU32);

/// A message that is counted among those of its tenant that are looked into. Dropped before it is kept, it does not count: nothing came of
/// it, and it comes again.
#[derive(Debug)]
pub(crate) struct Inspection(Option<Arc<Hour>>);

impl Inspection {
    /// Counts it.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        if let Some(hour) = &self.0 {
            hour.1.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Counts a message of a tenant that is to be looked into.
///
/// # Errors
/// 429 `message_rate_exceeded`: refused ones are not counted among the tenant's messages, so they have a limit of their own.
pub(crate) async fn admit(tenant: Uuid) -> Result<Inspection, ApiError> {
    static COUNTS: LazyLock<Cache<Uuid, Arc<Hour>>> =
        LazyLock::new(|| Cache::builder().max_capacity(TENANTS_REMEMBERED).time_to_live(HOUR).build());
    let hour = COUNTS.get_with(tenant, async { Arc::new((Instant::now(), AtomicU32::default())) }).await;
    let counted = hour.1.fetch_add(1, Ordering::Relaxed);
    let begun = hour.0;
    let inspection = Inspection(Some(hour));
    if counted < INSPECTIONS_PER_HOUR {
        return Ok(inspection);
    }
    Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "message_rate_exceeded")
        .detail(format!("the attachments of at most {INSPECTIONS_PER_HOUR} messages an hour are looked into"))
        .retry_after(HOUR.saturating_sub(begun.elapsed()).as_secs() + 1))
}

/// Looks into the files of a tenant's message. The caller keeps the inspection when the message is decided.
///
/// # Errors
/// 400 `validation_failed` with every fault, 429 beyond the hourly limit, 503 when there is no time to look.
pub(crate) async fn inspect(
    reader: &Reader,
    product: &str,
    tenant: Uuid,
    uploads: Vec<Upload>,
) -> Result<(Vec<ValidAttachment>, Inspection), ApiError> {
    let inspection = admit(tenant).await?;
    match read_all(reader, product, uploads).await {
        Ok(files) => Ok((files, inspection)),
        Err(error) => {
            if !error.status.is_server_error() {
                inspection.keep();
            }
            Err(error)
        }
    }
}

/// Looks into all of them, one after the other.
async fn read_all(reader: &Reader, product: &str, uploads: Vec<Upload>) -> Result<Vec<ValidAttachment>, ApiError> {
    let (mut attachments, mut faults) = (Vec::with_capacity(uploads.len()), Vec::new());
    for (place, upload) in uploads.into_iter().enumerate() {
        let fault = |field: &str, code: &'static str, detail: String| {
            FieldFault::new(format!("attachments[{place}].{field}"), code, detail)
        };
        let Upload { filename, kind, declared, content_id, base64 } = upload;
        let (base64, finding) = look_into(reader, product, kind, base64).await?;
        match finding {
            InspectionResult::Refused(refusal) => {
                let (code, detail) = refusal.fault();
                faults.push(fault("content_base64", code, detail.to_owned()));
            }
            InspectionResult::Good { charset } if !declared.agrees(charset) => {
                faults.push(fault("content_type", TYPE_MISMATCH, type_mismatch(kind)));
            }
            InspectionResult::Good { charset } => {
                let encoded = tokio::task::spawn_blocking(move || lines(&base64)).await?;
                attachments.push(ValidAttachment { filename, media_type: kind.sent_as(charset), content_id, encoded });
            }
        }
    }
    if faults.is_empty() { Ok(attachments) } else { Err(ApiError::validation(faults)) }
}

/// What one file is. Gives its base64 back.
async fn look_into(
    reader: &Reader,
    product: &str,
    kind: FileKind,
    base64: String,
) -> Result<(String, InspectionResult), ApiError> {
    let kib = decoded_bytes(&base64) * INSPECTION_WEIGHT / 1024;
    let _memory = INSPECTIONS.take(product, kib.max(INSPECTION_KIB_MIN)).await;
    let (base64, job) = tokio::task::spawn_blocking(move || {
        let job = examine::job(kind, &base64);
        (base64, job)
    })
    .await?;
    let Some(job) = job else { return Ok((base64, InspectionResult::Refused(AttachmentRefusal::NotBase64))) };
    Ok((base64, examine::read(reader, job).await?))
}

/// The base64 in lines, each with its CRLF.
fn lines(base64: &str) -> Vec<u8> {
    let mut lines = Vec::with_capacity(base64.len() + base64.len() / LINE_CHARS * 2 + 2);
    for line in base64.as_bytes().chunks(LINE_CHARS) {
        lines.extend_from_slice(line);
        lines.extend_from_slice(b"\r\n");
    }
    lines
}
