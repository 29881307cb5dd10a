//! A message that its caller wrote for this very occasion: subject and bodies go out as they stand. Nothing in it is read as
//! Liquid, no link is rewritten, nothing is added; only what mail itself needs is made: headers, encoding, a text part when
//! there is none.

use runtime::Budget;

use super::attachment::multipart;
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
    /// The test of a campaign: the header `X-Postrider-Test` says so.
    pub is_test: bool,
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
    let mut draft = Draft::default();
    draft.headers(options, |draft| {
        draft.text(&header::subject(&written.subject));
        Ok::<_, Vec<TemplateFault>>(())
    })?;
    if written.is_test {
        draft.text("X-Postrider-Test: campaign\r\n");
    }
    multipart(
        &mut draft,
        &options.attachments,
        &hash,
        |draft| body(draft, "text/plain", &text),
        |draft| body(draft, "text/html", &written.html),
    )?;
    draft.finish(options, None)
}

/// A part as it is written. It has no faults, unlike that of a template.
fn body(draft: &mut Draft, media_type: &str, text: &str) -> Result<(), Vec<TemplateFault>> {
    draft.text(&format!(
        "Content-Type: {media_type}; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    ));
    let mut encoder = qp::Encoder::default();
    encoder.text(&escape::body(text));
    draft.text(&encoder.take());
    Ok(())
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
