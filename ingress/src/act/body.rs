//! The body as received: bounded in bytes and time.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::error::ApiError;

/// The longest body of an ordinary request, in bytes.
pub const BODY_MAX_BYTES: usize = 1024 * 1024;
/// The longest body of an import, in bytes.
pub const IMPORT_BODY_MAX_BYTES: usize = 32 * 1024 * 1024;
/// The longest body of a one-off message, in bytes: 15 MB of attachments in base64, and the message.
pub const MESSAGE_BODY_MAX_BYTES: usize = 24 * 1024 * 1024;

/// Reads a body of at most `max_bytes`, within `patience`.
///
/// # Errors
/// 413 `body_too_large` (at once when the length is declared), 408 `request_timeout`, 400 when the caller breaks off.
pub async fn read(body: Body, headers: &HeaderMap, max_bytes: usize, patience: Duration) -> Result<Bytes, ApiError> {
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > max_bytes) {
        return Err(too_large(max_bytes));
    }
    // In one piece of memory, whose room is asked for at once and used as it arrives: gathering the pieces first would hold all of it
    // twice.
    let mut whole = Vec::with_capacity(declared.unwrap_or(0));
    pour(body, headers, max_bytes, patience, |data| whole.extend_from_slice(data)).await?;
    Ok(whole.into())
}

/// Reads a body piece by piece; whoever reads it decides what is kept.
///
/// # Errors
/// As [`read`].
pub async fn pour(
    body: Body,
    headers: &HeaderMap,
    max_bytes: usize,
    patience: Duration,
    mut into: impl FnMut(&[u8]),
) -> Result<(), ApiError> {
    let declared = declared_length(headers);
    if declared.is_some_and(|length| length > max_bytes) {
        return Err(too_large(max_bytes));
    }
    let mut body = Limited::new(body, max_bytes);
    let all = async {
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data() {
                into(&data);
            }
        }
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    };
    match tokio::time::timeout(patience, all).await {
        Err(_) => {
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout").detail("the body did not arrive in time"))
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(max_bytes)),
        Ok(Err(_)) => Err(ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body").detail("the body broke off")),
        Ok(Ok(())) => Ok(()),
    }
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
        let patience = Duration::from_secs(5);
        let mut headers = HeaderMap::new();
        assert_eq!(read(Body::from("12345"), &headers, 5, patience).await.unwrap(), "12345");
        assert_eq!(read(Body::from("123456"), &headers, 5, patience).await.unwrap_err().code, "body_too_large");
        headers.insert(header::CONTENT_LENGTH, "6".parse().unwrap());
        assert_eq!(read(Body::empty(), &headers, 5, patience).await.unwrap_err().code, "body_too_large");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_a_408() {
        let silent = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = read(silent, &HeaderMap::new(), 5, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!((error.status, error.code.as_ref()), (StatusCode::REQUEST_TIMEOUT, "request_timeout"));
    }
}
