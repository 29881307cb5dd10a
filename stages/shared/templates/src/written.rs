//! A message that its caller wrote for this very occasion: subject and bodies go out as they stand. Nothing in it is read as
//! Liquid, no link is rewritten, nothing is added; only what mail itself needs is made: headers, encoding, a text part when
//! there is none, attachments.

use runtime::Budget;

use super::attachment::{self, Attached};
use super::escape;
use super::fault::TemplateFault;
use super::header;
use super::message::{CompiledMessage, Draft, digest};
use super::options::MessageOptions;
use super::parts::too_complex;
use super::plain;
use super::qp;
use super::scan::{Item, ItemKind};

/// A message as its caller wrote it.
#[derive(Debug, Clone)]
pub struct Written {
    /// The subject line.
    pub subject: String,
    /// The HTML body.
    pub html: String,
    /// The text body. Derived from the HTML when there is none.
    pub text: Option<String>,
    /// What is attached, in order; the content itself is spliced in when it is sent.
    pub attachments: Vec<Attached>,
}

/// Compiles a written message. Of what differs by recipient there is only the To header, the Message-ID and the Date; `contact`
/// of the [`super::MergeData`] gives the name in To.
///
/// # Errors
/// When no text can be derived from the HTML.
pub fn compile_written(written: &Written, options: &MessageOptions) -> Result<CompiledMessage, Vec<TemplateFault>> {
    let text = match written.text.as_deref().filter(|text| !text.trim().is_empty()) {
        Some(text) => text.to_owned(),
        None => derived(&written.html, &Budget::new(options.limits.reading()))?,
    };
    let hash = digest(&[&written.subject, &written.html, &text]);
    let (mixed, alternative) = (format!("=_m{hash}"), format!("=_a{hash}"));
    let mut draft = Draft::default();
    draft.headers(options, |draft| {
        draft.text(&header::subject(&written.subject));
        Ok::<_, Vec<TemplateFault>>(())
    })?;
    draft.text("MIME-Version: 1.0\r\n");
    if !written.attachments.is_empty() {
        draft.text(&format!("Content-Type: multipart/mixed;\r\n boundary=\"{mixed}\"\r\n\r\n--{mixed}\r\n"));
    }
    draft.text(&format!(
        "Content-Type: multipart/alternative;\r\n boundary=\"{alternative}\"\r\n\r\n--{alternative}\r\n"
    ));
    body(&mut draft, "text/plain", &text);
    draft.text(&format!("\r\n--{alternative}\r\n"));
    body(&mut draft, "text/html", &written.html);
    draft.text(&format!("\r\n--{alternative}--\r\n"));
    for (place, attached) in written.attachments.iter().enumerate() {
        draft.text(&format!("\r\n--{mixed}\r\n{}\r\n", attachment::part_header(attached)));
        // The ingress takes ten at most.
        draft.attachment(u16::try_from(place).unwrap_or(u16::MAX), attached.bytes);
    }
    if !written.attachments.is_empty() {
        draft.text(&format!("--{mixed}--\r\n"));
    }
    draft.finish(options, None)
}

fn body(draft: &mut Draft, media_type: &str, text: &str) {
    draft.text(&format!(
        "Content-Type: {media_type}; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    ));
    let mut encoder = qp::Encoder::default();
    encoder.text(&escape::body(text));
    draft.text(&encoder.take());
}

fn derived(html: &str, budget: &Budget) -> Result<String, Vec<TemplateFault>> {
    let items = plain::derive(&[Item::text(html)], budget).map_err(|spent| vec![too_complex(spent)])?;
    Ok(items
        .into_iter()
        .filter_map(|item| match item.kind {
            ItemKind::Text(text) => Some(text),
            _ => None,
        })
        .collect())
}
