//! Reads request bodies, bounded in bytes, time and memory.

use std::{sync::LazyLock, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use uuid::Uuid;

use super::{
    error::ApiError,
    shares::{Share, Shares},
};

/// The longest body of an ordinary request, in bytes.
pub const BODY_MAX_BYTES: usize = 1024 * 1024;
/// The longest body of an import, in bytes.
pub const IMPORT_BODY_MAX_BYTES: usize = 32 * 1024 * 1024;
/// The longest body of a one-off message or of transactional mail, in bytes: 15 MB of attachments in base64, and the rest.
pub const MESSAGE_BODY_MAX_BYTES: usize = 24 * 1024 * 1024;

/// The longest call over the bus, and the longest answer to one, in bytes: what one message of the bus may carry.
pub const CALL_MAX_BYTES: usize = 8 * 1024 * 1024;

const KIB: usize = 1024;

/// Memory for recipients' forms, in KiB, and of it for the forms of one mail: with more, its recipient is answered 503, and no other.
const FORMS_KIB: usize = 8 * 1024;
const FORMS_OF_A_MAIL_KIB: usize = 64;
/// Memory for providers' events, in KiB, and of it for the events of one connection: with more, its provider is answered 503, and no
/// other.
const EVENTS_KIB: usize = 24 * 1024;
const EVENTS_OF_A_CONNECTION_KIB: usize = 4 * 1024;

/// The memory limit of a process for bodies, from their first byte until they are parsed, in KiB. Over all connections: 224 MiB. One
/// product holds at most half of each kind of its requests.
#[derive(Debug)]
struct BodyMemory {
    /// For bodies of at most [`BODY_MAX_BYTES`]. They take it as they arrive, so that an idle caller holds none, and are refused
    /// if it is used up.
    short: Shares,
    /// For longer messages. Each waits for all the memory it may need before it is read further: half-read bodies would block
    /// each other.
    messages: Shares,
    /// For longer imports, so that no message waits for an import.
    imports: Shares,
    /// For calls over the bus, which are received as a whole. They are refused if it is used up.
    calls: Shares,
    /// For recipients' forms, by mail, and for providers' events, by connection. They take it as they arrive, and are refused if it is
    /// used up.
    forms: Shares,
    events: Shares,
}

impl BodyMemory {
    /// So much for short bodies, and for two of the longest messages and imports, and six of the longest calls.
    fn new(short_kib: usize) -> Self {
        let halves = |kib: usize| Shares::new(kib, kib / 2);
        Self {
            short: halves(short_kib),
            messages: halves(2 * MESSAGE_BODY_MAX_BYTES / KIB),
            imports: halves(2 * IMPORT_BODY_MAX_BYTES / KIB),
            calls: halves(6 * CALL_MAX_BYTES / KIB),
            forms: Shares::new(FORMS_KIB, FORMS_OF_A_MAIL_KIB),
            events: Shares::new(EVENTS_KIB, EVENTS_OF_A_CONNECTION_KIB),
        }
    }
}

static MEMORY: LazyLock<BodyMemory> = LazyLock::new(|| BodyMemory::new(32 * 1024));

/// The memory that one body holds until it is dropped.
#[derive(Debug, Default)]
struct MemoryShare(Option<Share>);

impl MemoryShare {
    fn holds(&self, bytes: usize) -> bool {
        self.0.as_ref().map_or(0, Share::permits) >= bytes.div_ceil(KIB)
    }

    /// Takes the memory that a short body of so many bytes still needs.
    fn grow(&mut self, short: &Shares, owner: &str, bytes: usize) -> Result<(), ApiError> {
        let held = self.0.as_ref().map_or(0, Share::permits);
        let more = short.try_take(owner, bytes.div_ceil(KIB).saturating_sub(held)).ok_or_else(no_memory)?;
        match &mut self.0 {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }

    /// Waits for all the memory that a long body may need.
    async fn take_whole(
        &mut self,
        long: &Shares,
        owner: &str,
        bytes: usize,
        body_timeout: Duration,
    ) -> Result<(), ApiError> {
        let taken = tokio::time::timeout(body_timeout, long.take(owner, bytes.div_ceil(KIB))).await;
        self.0 = Some(taken.map_err(|_| no_memory())?);
        Ok(())
    }
}

fn no_memory() -> ApiError {
    ApiError::unavailable().detail("too many bodies are being read; repeat the request")
}

/// Counts a call over the bus from its receipt until it is dropped.
///
/// # Errors
/// 503 when other calls hold the memory.
pub fn hold_call(bytes: Bytes, owner: &str) -> Result<Bytes, ApiError> {
    hold_call_in(&MEMORY, bytes, owner)
}

fn hold_call_in(memory: &BodyMemory, bytes: Bytes, owner: &str) -> Result<Bytes, ApiError> {
    let share = memory.calls.try_take(owner, bytes.len().div_ceil(KIB)).ok_or_else(no_memory)?;
    Ok(Bytes::from_owner(ReceivedBody { bytes, share: MemoryShare(Some(share)) }))
}

/// The bytes of a body so far, or of a call over the bus, with the memory they hold until dropped.
#[derive(Debug, Default)]
struct ReceivedBody<B = Vec<u8>> {
    bytes: B,
    share: MemoryShare,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ReceivedBody<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// A body of at most [`BODY_MAX_BYTES`] that no product sends.
#[derive(Debug)]
pub(crate) struct PublicBody {
    received: ReceivedBody,
    memory: &'static Shares,
    owner: String,
}

impl PublicBody {
    /// A form of the recipient of this send.
    pub fn form(send: Uuid) -> Self {
        Self::new(&MEMORY.forms, send)
    }

    /// An event of this provider connection.
    pub fn event(connection: Uuid) -> Self {
        Self::new(&MEMORY.events, connection)
    }

    fn new(memory: &'static Shares, owner: Uuid) -> Self {
        Self { received: ReceivedBody::default(), memory, owner: owner.to_string() }
    }

    /// Adds a piece; 503 when other bodies hold the memory.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        let ReceivedBody { bytes, share } = &mut self.received;
        share.grow(self.memory, &self.owner, bytes.len() + piece.len())?;
        bytes.extend_from_slice(piece);
        Ok(())
    }

    /// The number of bytes received.
    pub fn len(&self) -> usize {
        self.received.bytes.len()
    }
}

impl From<PublicBody> for Bytes {
    fn from(body: PublicBody) -> Self {
        Self::from_owner(body.received)
    }
}

/// Reads a body of at most `max_bytes`, within `body_timeout`. It holds its share of the memory limit until it is dropped. Its
/// owner is the product that sends it.
///
/// # Errors
/// 413 `body_too_large` (at once when the length is declared), 408 `request_timeout`, 400 when the caller breaks off, 503 when other
/// bodies hold the memory.
pub async fn read(
    body: Body,
    owner: &str,
    headers: &HeaderMap,
    max_bytes: usize,
    body_timeout: Duration,
) -> Result<Bytes, ApiError> {
    read_within(&MEMORY, body, owner, headers, max_bytes, body_timeout).await
}

async fn read_within(
    memory: &BodyMemory,
    body: Body,
    owner: &str,
    headers: &HeaderMap,
    max_bytes: usize,
    body_timeout: Duration,
) -> Result<Bytes, ApiError> {
    let declared = declared_length(headers, max_bytes)?;
    let most = declared.unwrap_or(max_bytes);
    let long = if max_bytes > MESSAGE_BODY_MAX_BYTES { &memory.imports } else { &memory.messages };
    let mut share = MemoryShare::default();
    if declared.is_some_and(|length| length > BODY_MAX_BYTES) {
        share.take_whole(long, owner, most, body_timeout / 2).await?;
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
                ..=BODY_MAX_BYTES => share.grow(&memory.short, owner, length)?,
                _ => share.take_whole(long, owner, most, body_timeout / 2).await?,
            }
            bytes.extend_from_slice(&piece);
        }
        Ok::<(), ApiError>(())
    };
    tokio::time::timeout(body_timeout, all).await.map_err(|_| body_timed_out())??;
    Ok(Bytes::from_owner(ReceivedBody { bytes, share }))
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
    declared_length(headers, max_bytes)?;
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

/// The length that the headers declare; 413 for one that is too long.
fn declared_length(headers: &HeaderMap, max_bytes: usize) -> Result<Option<usize>, ApiError> {
    let text = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared: Option<usize> = text.and_then(|text| text.parse().ok());
    if declared.is_some_and(|length| length > max_bytes) { Err(too_large(max_bytes)) } else { Ok(declared) }
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
        assert_eq!(read(Body::from("12345"), "shop", &headers, 5, body_timeout).await.unwrap(), "12345");
        assert_eq!(
            read(Body::from("123456"), "shop", &headers, 5, body_timeout).await.unwrap_err().code,
            "body_too_large"
        );
        headers.insert(header::CONTENT_LENGTH, "6".parse().unwrap());
        assert_eq!(read(Body::empty(), "shop", &headers, 5, body_timeout).await.unwrap_err().code, "body_too_large");
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
        Box::leak(Box::new(BodyMemory::new(kib)))
    }

    const MOST: usize = MESSAGE_BODY_MAX_BYTES;

    #[tokio::test(start_paused = true)]
    async fn bodies_in_progress_hold_no_more_than_the_limit() {
        let (memory, none) = (memory(200), HeaderMap::new());
        let body_timeout = Duration::from_secs(20);
        let slow = |bytes| {
            let body = begun(bytes);
            tokio::spawn(async move { read_within(memory, body, "shop", &HeaderMap::new(), MOST, body_timeout).await })
        };
        let first = [slow(60 * KIB), slow(40 * KIB)];
        while memory.short.free() > 100 {
            tokio::task::yield_now().await;
        }
        let refused = read_within(memory, Body::from("{}"), "shop", &none, MOST, body_timeout).await.unwrap_err();
        let rival = read_within(memory, Body::from("{}"), "rival", &none, MOST, body_timeout).await;
        assert_eq!(rival.unwrap(), "{}", "another product has a share of its own");
        assert_eq!((refused.status, refused.retry_after.is_some()), (StatusCode::SERVICE_UNAVAILABLE, true));
        for slow in first {
            assert_eq!(slow.await.unwrap().unwrap_err().code, "request_timeout");
        }
        let whole = read_within(memory, Body::from("{}"), "shop", &none, MOST, body_timeout).await.unwrap();
        assert_eq!(memory.short.free(), 199, "until it is dropped");
        let again = whole.clone();
        drop(whole);
        assert_eq!(memory.short.free(), 199);
        drop(again);
        assert_eq!(memory.short.free(), 200);
    }

    #[rstest]
    #[case::declared(declaring(MOST))]
    #[case::not_declared(HeaderMap::new())]
    #[tokio::test(start_paused = true)]
    async fn a_long_body_waits_until_another_is_parsed(#[case] headers: HeaderMap) {
        let memory = memory(64 * 1024);
        let body_timeout = Duration::from_secs(20);
        let long = || Body::from(vec![b'x'; MOST]);
        let held = read_within(memory, long(), "shop", &headers, MOST, body_timeout).await.unwrap();
        let refused = read_within(memory, long(), "shop", &headers, MOST, body_timeout).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        // Imports and short bodies have memory of their own.
        read_within(memory, long(), "shop", &headers, IMPORT_BODY_MAX_BYTES, body_timeout).await.unwrap();
        read_within(memory, Body::from("{}"), "shop", &HeaderMap::new(), MOST, body_timeout).await.unwrap();
        let again = headers.clone();
        let waiting =
            tokio::spawn(async move { read_within(memory, long(), "shop", &again, MOST, body_timeout).await });
        tokio::time::sleep(body_timeout / 4).await;
        assert!(!waiting.is_finished());
        let begun = tokio::time::Instant::now();
        let rival = read_within(memory, long(), "rival", &headers, MOST, body_timeout).await.unwrap();
        assert_eq!((rival.len(), begun.elapsed()), (MOST, Duration::ZERO), "another product does not wait");
        drop(rival);
        drop(held);
        assert_eq!(waiting.await.unwrap().unwrap().len(), MOST);
        assert_eq!(memory.short.free(), 64 * 1024);
    }

    #[test]
    fn calls_hold_memory_until_they_are_read() {
        let memory = memory(1);
        let call = || Bytes::from(vec![b'x'; CALL_MAX_BYTES]);
        let held: Vec<_> = (0..3).map(|_| hold_call_in(memory, call(), "shop").unwrap()).collect();
        assert_eq!(hold_call_in(memory, call(), "shop").unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(hold_call_in(memory, call(), "rival").unwrap().len(), CALL_MAX_BYTES);
        drop(held);
        assert!(hold_call_in(memory, call(), "shop").is_ok());
    }

    #[test]
    fn bodies_of_one_stranger_leave_memory_to_the_others() {
        let memory = memory(1);
        let full = vec![b'x'; 16 * KIB];
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut held: Vec<_> = (0..5).map(|_| PublicBody::new(&memory.forms, one)).collect();
        let refused = held.iter_mut().filter_map(|form| form.push(&full).err()).count();
        assert_eq!(refused, 1, "64 KiB are one mail's");
        PublicBody::new(&memory.forms, other).push(&full).unwrap();
        PublicBody::new(&memory.events, one).push(&full).unwrap();
        drop(held);
        PublicBody::new(&memory.forms, one).push(&full).unwrap();
    }
}
