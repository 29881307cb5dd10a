//! What is no fault of a template and still goes wrong in a mailbox: links that lead nowhere, pictures without a text, too much HTML.

use htmlize::unescape_attribute;
use runtime::Budget;

use super::TemplateSource;
use super::fault::Position;
use super::limits::{FAULTS, READING};
use super::markup::{HtmlTag, HtmlToken, MarkupReader};
use super::parts::Scanned;
use super::placeholder::Placeholders;

/// Gmail shows so much of a mail's HTML and hides the rest, with the footer, behind a link.
pub const GMAIL_CLIPS_BYTES: usize = 102 * 1024;
/// Hosts of examples, which are left in by mistake.
const EXAMPLE_HOSTS: [&str; 4] = ["example.com", "example.org", "example.net", "localhost"];

schemas::named_enum! {
    /// The kind of a warning. The text form is part of the API.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum WarningCode {
        /// A link that leads nowhere: empty, relative, malformed, or to a host of examples.
        DeadLink = "dead_link",
        /// A picture whose address is empty, relative or malformed.
        DeadImage = "dead_image",
        /// A picture without an `alt`: blocked pictures show nothing, and screen readers read the address.
        MissingAlt = "missing_alt",
        /// More HTML than Gmail shows.
        HtmlClipped = "html_clipped",
    }
}

/// A warning about a template that can be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateWarning {
    /// The kind.
    pub code: WarningCode,
    /// Where in `body_html`.
    pub position: Position,
    /// In words.
    pub detail: String,
}

/// The warnings about a template's HTML, in their order, up to a limit. What Liquid prints is not checked: it is known when the mail is rendered.
#[must_use]
pub fn warnings(source: &TemplateSource) -> Vec<TemplateWarning> {
    let budget = Budget::new(READING);
    let Ok(scanned) = Scanned::of(source, &budget) else { return Vec::new() };
    let Ok((placeholders, document)) = Placeholders::document(&scanned.html, &budget) else { return Vec::new() };
    let mut found = clipped(source.body_html.len()).into_iter().collect::<Vec<_>>();
    let mut reader = MarkupReader::lenient(&document, &budget);
    while let Ok(Some(token)) = reader.next() {
        let HtmlToken::Start(tag) = &token else { continue };
        if reader.is_hidden() {
            continue;
        }
        let problems = problems(tag, &placeholders);
        if problems.is_empty() {
            continue;
        }
        // Found by counting from the last tag of Liquid, so for few.
        let position = placeholders.position(&document, tag.span.start);
        found.extend(problems.into_iter().map(|(code, detail)| TemplateWarning { code, position, detail }));
        if found.len() >= FAULTS {
            break;
        }
    }
    found
}

/// The warning about HTML of this length, source or rendered.
#[must_use]
pub fn clipped(html_bytes: usize) -> Option<TemplateWarning> {
    (html_bytes > GMAIL_CLIPS_BYTES).then(|| TemplateWarning {
        code: WarningCode::HtmlClipped,
        position: Position::START,
        detail: format!("has {html_bytes} bytes; Gmail shows {GMAIL_CLIPS_BYTES} and hides the rest"),
    })
}

fn problems(tag: &HtmlTag<'_>, placeholders: &Placeholders) -> Vec<(WarningCode, String)> {
    let mut problems = Vec::new();
    if tag.name.eq_ignore_ascii_case("a") && tag.attribute("name").is_none() && tag.attribute("id").is_none() {
        let why = match tag.attribute("href") {
            None => Some("a link without an address".to_owned()),
            Some(href) => address_problem(href, placeholders, true),
        };
        problems.extend(why.map(|why| (WarningCode::DeadLink, why)));
    }
    if tag.name.eq_ignore_ascii_case("img") {
        let source = tag.attribute("src").unwrap_or_default();
        problems.extend(address_problem(source, placeholders, false).map(|why| (WarningCode::DeadImage, why)));
        if tag.attribute("alt").is_none() {
            let why = "a picture without an `alt`; an empty one is for decoration";
            problems.push((WarningCode::MissingAlt, why.to_owned()));
        }
    }
    problems
}

/// Why an address leads nowhere. `None` if it may lead somewhere, or holds Liquid.
fn address_problem(written: &str, placeholders: &Placeholders, is_link: bool) -> Option<String> {
    if placeholders.occur_in(written) {
        return None;
    }
    let address = unescape_attribute(written);
    let address = address.trim();
    if address.is_empty() || address == "#" {
        return Some("an empty address".to_owned());
    }
    // A place in the mail itself.
    if is_link && address.starts_with('#') {
        return None;
    }
    // Not addresses with a host: of what may follow them there is no fixed form.
    let schemes: &[&str] = if is_link { &["mailto", "tel", "sms"] } else { &["cid", "data"] };
    if address.split_once(':').is_some_and(|(scheme, _)| schemes.iter().any(|known| scheme.eq_ignore_ascii_case(known)))
    {
        return None;
    }
    match url::Url::parse(address) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            Some(format!("addresses of the scheme `{}` open nowhere", url.scheme()))
        }
        Ok(url) => {
            let host = url.host_str().unwrap_or_default();
            let is_example =
                EXAMPLE_HOSTS.iter().any(|example| host == *example || host.ends_with(&format!(".{example}")));
            is_example.then(|| format!("`{host}` is a host of examples"))
        }
        Err(url::ParseError::RelativeUrlWithoutBase) => {
            Some("a relative address: a mail has no page of its own".to_owned())
        }
        Err(_) => Some("a malformed address".to_owned()),
    }
}
