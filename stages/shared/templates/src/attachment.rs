//! The MIME headers of an attachment (RFC 2183), by lettre, with file names in any script (RFC 2231).

use lettre::message::header::{ContentDisposition, Headers};

use super::escape;

/// What is known of an attachment when its message is compiled.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Attached {
    /// The file name, checked when the message was accepted.
    pub filename: String,
    /// The media type with its parameters, such as `text/csv; charset=utf-8`.
    pub media_type: String,
    /// How many bytes its base64 lines take.
    pub bytes: u32,
}

/// The part's headers, each with its CRLF.
pub(super) fn part_header(attached: &Attached) -> String {
    let mut headers = Headers::new();
    headers.set(ContentDisposition::attachment(&escape::header(&attached.filename)));
    let media_type = escape::header(&attached.media_type);
    format!("Content-Type: {media_type}\r\n{headers}Content-Transfer-Encoding: base64\r\n")
}
