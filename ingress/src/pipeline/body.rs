//! Reads request bodies, bounded in bytes, time and memory.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::pipeline::error::ApiError;

/// The longest body of an ordinary request, in bytes.
pub const BODY_MAX_BYTES: usize = 1024 * 1024;
/// The longest body of an import, in bytes.
pub const IMPORT_BODY_MAX_BYTES: usize = 32 * 1024 * 1024;
/// The longest body of a one-off message, in bytes: 15 MB of attachments in base64, and the message.
pub const MESSAGE_BODY_MAX_BYTES: usize = 24 * 1024 * 1024;

const KIB: usize = 1024;

/// The memory limit of a process for bodies, from their first byte until they are parsed, in KiB. Over all connections: 176 MiB.
#[derive(Debug)]
struct BodyMemory {
    /// For bodies of at most [`BODY_MAX_BYTES`]. They take it as they arrive, so that an idle caller holds none, and are refused
    /// if it is used up.
    short: Semaphore,
    /// For longer messages. Each waits for all the memory it may need before it is read further: half-read bodies would block
    /// each other.
    messages: Semaphore,
    /// For longer imports, so that no message waits for an import.
    imports: Semaphore,
}

static MEMORY: BodyMemory = BodyMemory {
    short: Semaphore::const_new(64 * 1024),
    messages: Semaphore::const_new(2 * MESSAGE_BODY_MAX_BYTES / KIB),
    imports: Semaphore::const_new(2 * IMPORT_BODY_MAX_BYTES / KIB),
};

/// The memory that one body holds until it is dropped.
#[derive(Debug, Default)]
struct MemoryShare(Option<SemaphorePermit<'static>>);

impl MemoryShare {
    fn holds(&self, bytes: usize) -> bool {
        self.0.as_ref().map_or(0, SemaphorePermit::num_permits) >= bytes.div_ceil(KIB)
    }

    /// Takes the memory that a short body of so many bytes still needs.
    fn grow(&mut self, memory: &'static BodyMemory, bytes: usize) -> Result<(), ApiError> {
        let held = self.0.as_ref().map_or(0, SemaphorePermit::num_permits);
        let lacking = kib(bytes).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        let more = memory.short.try_acquire_many(lacking).map_err(|_| no_memory())?;
        match &mut self.0 {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Waits for all the memory that a long body may need.
    async fn take_whole(
        &mut self,
        long: &'static Semaphore,
        bytes: usize,
        body_timeout: Duration,
    ) -> Result<(), ApiError> {
        let taken = tokio::time::timeout(body_timeout, long.acquire_many(kib(bytes))).await;
        let permit = taken.map_err(|_| no_memory())?;
        self.0 = Some(permit.map_err(|error| ApiError::unexpected(&error))?);
        Ok(())
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX)
}

fn no_memory() -> ApiError {
    ApiError::unavailable().detail("too many bodies are being read; repeat the request")
}

/// The bytes of a body so far, with the memory they hold until dropped.
#[derive(Debug, Default)]
pub struct ReceivedBody {
    bytes: Vec<u8>,
    share: MemoryShare,
}

impl ReceivedBody {
    /// Adds a piece of a body of at most [`BODY_MAX_BYTES`].
    ///
    /// # Errors
    /// 503 when other bodies hold the memory.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        self.share.grow(&MEMORY, self.bytes.len() + piece.len())?;
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// The number of bytes received.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if no byte was received.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl AsRef<[u8]> for ReceivedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<ReceivedBody> for Bytes {
    fn from(gathered: ReceivedBody) -> Self {
        Self::from_owner(gathered)
    }
}

/// Reads a body of at most `max_bytes`, within `body_timeout`. It holds its share of the memory limit until it is dropped.
///
/// # Errors
/// 413 `body_too_large` (at once when the length is declared), 408 `request_timeout`, 400 when the caller breaks off, 503 when other
/// bodies hold the memory.
pub async fn read(
    body: Body,
    headers: &HeaderMap,
    max_bytes: usize,
    body_timeout: Duration,
) -> Result<Bytes, ApiError> {
    read_within(&MEMORY, body, headers, max_bytes, body_timeout).await
}

async fn read_within(
    memory: &'static BodyMemory,
    body: Body,
    headers: &HeaderMap,
    max_bytes: usize,
    body_timeout: Duration,
) -> Result<Bytes, ApiError> {
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > max_bytes) {
        return Err(too_large(max_bytes));
    }
    let most = declared.unwrap_or(max_bytes);
    let long = if max_bytes > MESSAGE_BODY_MAX_BYTES { &memory.imports } else { &memory.messages };
    let mut share = MemoryShare::default();
    if declared.is_some_and(|length| length > BODY_MAX_BYTES) {
        share.take_whole(long, most, body_timeout / 2).await?;
    }
    // One allocation, filled as the pieces arrive: collecting the pieces first would hold all of it twice.
    let mut bytes = Vec::with_capacity(declared.unwrap_or(0));
    let mut body = Limited::new(body, max_bytes);
    let all = async {
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.map_err(|error| body_error(&*error, max_bytes))?.into_data() else { continue };
            let length = bytes.len() + piece.len();
            match length {
                _ if share.holds(length) => {}
                ..=BODY_MAX_BYTES => share.grow(memory, length)?,
                _ => share.take_whole(long, most, body_timeout / 2).await?,
            }
            bytes.extend_from_slice(&piece);
        }
        Ok::<(), ApiError>(())
    };
    tokio::time::timeout(body_timeout, all).await.map_err(|_| body_timed_out())??;
    Ok(ReceivedBody { bytes, share }.into())
}

/// The error of a body that is too long or breaks off.
fn body_error(error: &(dyn std::error::Error + Send + Sync + 'static), max_bytes: usize) -> ApiError {
    if error.is::<LengthLimitError>() {
        return too_large(max_bytes);
    }
    ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body").detail("the body broke off")
}

/// The error of a body that takes too long.
fn body_timed_out() -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout").detail("the body did not arrive in time")
}

/// Reads a body piece by piece into a function of the caller.
///
/// # Errors
/// 413, 408 and 400 as in [`read`], and the errors of the function.
pub async fn read_pieces(
    body: Body,
    headers: &HeaderMap,
    max_bytes: usize,
    body_timeout: Duration,
    mut into: impl FnMut(&[u8]) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > max_bytes) {
        return Err(too_large(max_bytes));
    }
    let mut body = Limited::new(body, max_bytes);
    let all = async {
        while let Some(frame) = body.frame().await {
            if let Ok(piece) = frame.map_err(|error| body_error(&*error, max_bytes))?.into_data() {
                into(&piece)?;
            }
        }
        Ok(())
    };
    tokio::time::timeout(body_timeout, all).await.map_err(|_| body_timed_out())?
}

fn declared_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// 413.
pub(crate) fn too_large(max_bytes: usize) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large")
        .detail(format!("the body may have at most {max_bytes} bytes"))
}

/// Refuses a body that does not say it is JSON in UTF-8, or is compressed.
///
/// # Errors
/// 415 `unsupported_media_type`.
pub fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase());
    let plain = text(header::CONTENT_ENCODING).is_none_or(|coding| coding == "identity");
    if plain && text(header::CONTENT_TYPE).is_some_and(|content_type| is_json(&content_type)) {
        return Ok(());
    }
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
        .detail("send application/json in UTF-8, not compressed"))
}

fn is_json(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(str::trim);
    parts.next() == Some("application/json")
        && parts.all(|parameter| match parameter.split_once('=') {
            Some(("charset", charset)) => matches!(charset.trim_matches('"'), "utf-8" | "utf8"),
            _ => true,
        })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("application/json", true)]
    #[case("Application/JSON; charset=UTF-8", true)]
    #[case("application/json; charset=latin1", false)]
    #[case("text/json", false)]
    #[case("application/x-www-form-urlencoded", false)]
    fn only_json_in_utf8_is_taken(#[case] content_type: &str, #[case] taken: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        assert_eq!(require_json(&headers).is_ok(), taken);
        headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        assert_eq!(require_json(&headers).unwrap_err().status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }

    #[tokio::test]
    async fn a_body_over_its_limit_is_refused_whether_declared_or_not() {
        let body_timeout = Duration::from_secs(5);
        let mut headers = HeaderMap::new();
        assert_eq!(read(Body::from("12345"), &headers, 5, body_timeout).await.unwrap(), "12345");
        assert_eq!(read(Body::from("123456"), &headers, 5, body_timeout).await.unwrap_err().code, "body_too_large");
        headers.insert(header::CONTENT_LENGTH, "6".parse().unwrap());
        assert_eq!(read(Body::empty(), &headers, 5, body_timeout).await.unwrap_err().code, "body_too_large");
    }

    /// A body that has sent this much and goes on.
    fn begun(bytes: usize) -> Body {
        use futures::StreamExt;
        let sent = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; bytes]))]);
        Body::from_stream(sent.chain(futures::stream::pending()))
    }

    fn declaring(length: usize) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_LENGTH, length.into())])
    }

    fn memory(kib: usize) -> &'static BodyMemory {
        Box::leak(Box::new(BodyMemory {
            short: Semaphore::new(kib),
            messages: Semaphore::new(MESSAGE_BODY_MAX_BYTES / KIB),
            imports: Semaphore::new(IMPORT_BODY_MAX_BYTES / KIB),
        }))
    }

    const MOST: usize = MESSAGE_BODY_MAX_BYTES;

    #[tokio::test(start_paused = true)]
    async fn bodies_in_progress_hold_no_more_than_the_limit() {
        let (memory, none) = (memory(100), HeaderMap::new());
        let body_timeout = Duration::from_secs(20);
        let slow = |bytes| {
            tokio::spawn(async move { read_within(memory, begun(bytes), &HeaderMap::new(), MOST, body_timeout).await })
        };
        let first = [slow(60 * KIB), slow(40 * KIB)];
        while memory.short.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = read_within(memory, Body::from("{}"), &none, MOST, body_timeout).await.unwrap_err();
        assert_eq!((refused.status, refused.retry_after.is_some()), (StatusCode::SERVICE_UNAVAILABLE, true));
        for slow in first {
            assert_eq!(slow.await.unwrap().unwrap_err().code, "request_timeout");
        }
        let whole = read_within(memory, Body::from("{}"), &none, MOST, body_timeout).await.unwrap();
        assert_eq!(memory.short.available_permits(), 99, "until it is dropped");
        let again = whole.clone();
        drop(whole);
        assert_eq!(memory.short.available_permits(), 99);
        drop(again);
        assert_eq!(memory.short.available_permits(), 100);
    }

    #[rstest]
    #[case::declared(declaring(MOST))]
    #[case::not_declared(HeaderMap::new())]
    #[tokio::test(start_paused = true)]
    async fn a_long_body_waits_until_another_is_parsed(#[case] headers: HeaderMap) {
        let memory = memory(64 * 1024);
        let body_timeout = Duration::from_secs(20);
        let long = || Body::from(vec![b'x'; MOST]);
        let held = read_within(memory, long(), &headers, MOST, body_timeout).await.unwrap();
        let refused = read_within(memory, long(), &headers, MOST, body_timeout).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        // Imports and short bodies have memory of their own.
        read_within(memory, long(), &headers, IMPORT_BODY_MAX_BYTES, body_timeout).await.unwrap();
        read_within(memory, Body::from("{}"), &HeaderMap::new(), MOST, body_timeout).await.unwrap();
        let waiting = tokio::spawn(async move { read_within(memory, long(), &headers, MOST, body_timeout).await });
        tokio::time::sleep(body_timeout / 4).await;
        assert!(!waiting.is_finished());
        drop(held);
        assert_eq!(waiting.await.unwrap().unwrap().len(), MOST);
        assert_eq!(memory.short.available_permits(), 64 * 1024);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_a_408() {
        let silent = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = read(silent, &HeaderMap::new(), 5, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!((error.status, error.code.as_ref()), (StatusCode::REQUEST_TIMEOUT, "request_timeout"));
    }
}
