//! A message that its caller wrote for this very occasion: subject and bodies go out as they stand. Nothing in it is read as
//! Liquid, no link is rewritten, nothing is added; only what mail itself needs is made: headers, encoding, a text part when
//! there is none.

use runtime::Budget;

use super::attachment::multipart;
use super::fault::{Part, TemplateFault};
use super::header;
use super::limits::READING;
use super::message::{CompiledMessage, Draft, boundary};
use super::names::Locals;
use super::options::MessageOptions;
use super::parts::{Prepared, too_complex};
use super::plain;
use super::program::Context;
use super::scan::Item;

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
    let given = written.text.as_deref().filter(|text| !text.trim().is_empty());
    let html = vec![Item::text(written.html.as_str())];
    let text = match given {
        Some(text) => vec![Item::text(text)],
        None => plain::derive(&html, &Budget::new(READING)).map_err(|spent| vec![too_complex(spent)])?,
    };
    let mut draft = Draft::default();
    draft.headers_to_subject(options);
    draft.text(&header::subject(&written.subject));
    draft.headers_after_subject(options);
    if written.is_test {
        draft.text("X-Postrider-Test: campaign\r\n");
    }
    let hash = boundary(&written.subject, &written.html, given);
    let whole = |part, items| Prepared { part, context: Context::Plain, items, locals: Locals::default() };
    multipart(&mut draft, options, &hash, whole(Part::BodyText, text), whole(Part::BodyHtml, html))
        .map_err(|fault| vec![fault])?;
    Ok(draft.finish(options, None))
}
