//! The MIME headers of an attachment (RFC 2183), by lettre, with file names in any script (RFC 2231).

use lettre::message::header::{ContentDisposition, Headers};

use super::escape;
use super::fault::{Part, TemplateFault};
use super::message::Draft;
use super::options::{Attached, MessageOptions};
use super::parts::Prepared;

/// The MIME body of a message: the two texts as alternatives, the images that the HTML shows beside it, and what is attached. A calendar
/// invite is a third alternative, which mail programs act on (RFC 6047), and a file for those that do not. `hash` makes boundaries that
/// quoted-printable text cannot contain.
pub(super) fn multipart(
    draft: &mut Draft,
    options: &MessageOptions,
    hash: &str,
    text: Prepared,
    html: Prepared,
) -> Result<(), TemplateFault> {
    let [mixed, alternative, related] = ["m", "a", "r"].map(|kind| format!("=_{kind}{hash}"));
    let places = (0..).zip(&options.attachments);
    let (inline, attached): (Vec<_>, Vec<_>) = places.partition(|(_, attached)| attached.content_id.is_some());
    draft.text("MIME-Version: 1.0\r\n");
    if !attached.is_empty() {
        draft.text(&format!("Content-Type: multipart/mixed;\r\n boundary=\"{mixed}\"\r\n\r\n--{mixed}\r\n"));
    }
    draft.text(&format!(
        "Content-Type: multipart/alternative;\r\n boundary=\"{alternative}\"\r\n\r\n--{alternative}\r\n"
    ));
    draft.body(Part::BodyText, text, &options.bases)?;
    draft.text(&format!("\r\n--{alternative}\r\n"));
    if !inline.is_empty() {
        draft.text(&format!("Content-Type: multipart/related;\r\n boundary=\"{related}\"\r\n\r\n--{related}\r\n"));
    }
    draft.body(Part::BodyHtml, html, &options.bases)?;
    files(draft, &related, &inline);
    for (place, invite) in attached.iter().filter(|(_, attached)| attached.is_calendar()) {
        let media_type = escape::header(&invite.media_type);
        draft.text(&format!(
            "\r\n--{alternative}\r\nContent-Type: {media_type}\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        ));
        draft.attachment(*place, invite.bytes);
    }
    draft.text(&format!("\r\n--{alternative}--\r\n"));
    files(draft, &mixed, &attached);
    Ok(())
}

/// The files of a multipart that was begun, with its end.
fn files(draft: &mut Draft, boundary: &str, files: &[(u16, &Attached)]) {
    for (place, file) in files {
        draft.text(&format!("\r\n--{boundary}\r\n{}\r\n", part_header(file)));
        draft.attachment(*place, file.bytes);
    }
    if !files.is_empty() {
        draft.text(&format!("--{boundary}--\r\n"));
    }
}

/// The part's headers, each with its CRLF.
fn part_header(attached: &Attached) -> String {
    let mut headers = Headers::new();
    let filename = escape::header(&attached.filename);
    headers.set(match &attached.content_id {
        Some(_) => ContentDisposition::inline_with_name(&filename),
        None => ContentDisposition::attachment(&filename),
    });
    let id = attached.content_id.as_ref().map(|id| format!("Content-ID: <{}>\r\n", escape::header(id)));
    let id = id.unwrap_or_default();
    // Of another type than the alternative, so that it is not acted on twice.
    let media_type = if attached.is_calendar() { "application/ics" } else { &attached.media_type };
    let media_type = escape::header(media_type);
    format!("Content-Type: {media_type}\r\n{headers}{id}Content-Transfer-Encoding: base64\r\n")
}
