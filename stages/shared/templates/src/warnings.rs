//! What is no fault of a template and still goes wrong in a mailbox: links that lead nowhere, pictures without a text, too much HTML.

use htmlize::unescape_attribute;
use runtime::Budget;

use super::TemplateSource;
use super::fault::{Part, Position};
use super::limits::{FAULTS, TemplateLimits};
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
    let limits = TemplateLimits::default();
    let budget = Budget::new(limits.reading());
    let Ok(scanned) = Scanned::of(source, &limits, &budget) else { return Vec::new() };
    let html = scanned.parts().into_iter().find(|(part, _)| *part == Part::BodyHtml).map(|(_, items)| items);
    let Ok((placeholders, document)) = Placeholders::document(html.unwrap_or_default(), &budget) else {
        return Vec::new();
    };
    let mut found = clipped(source.body_html.len()).into_iter().collect::<Vec<_>>();
    let mut reader = MarkupReader::lenient(&document, &budget);
    while let Ok(Some(token)) = reader.next() {
        let HtmlToken::Start(tag) = &token else { continue };
        if reader.is_hidden() {
            continue;
        }
        let problems = TagReader { tag, document: &document, placeholders: &placeholders }.problems();
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
        position: Position { line: 1, column: 1 },
        detail: format!("has {html_bytes} bytes; Gmail shows {GMAIL_CLIPS_BYTES} and hides the rest"),
    })
}

struct TagReader<'a> {
    tag: &'a HtmlTag<'a>,
    document: &'a str,
    placeholders: &'a Placeholders,
}

impl TagReader<'_> {
    fn problems(&self) -> Vec<(WarningCode, String)> {
        let mut problems = Vec::new();
        if self.tag.name.eq_ignore_ascii_case("a") && self.attribute("name").is_none() && self.attribute("id").is_none()
        {
            match self.attribute("href") {
                None => problems.push((WarningCode::DeadLink, "a link without an address".to_owned())),
                Some(href) => problems.extend(self.address_problem(href, true).map(|why| (WarningCode::DeadLink, why))),
            }
        }
        if self.tag.name.eq_ignore_ascii_case("img") {
            let source = self.attribute("src").unwrap_or_default();
            problems.extend(self.address_problem(source, false).map(|why| (WarningCode::DeadImage, why)));
            if self.attribute("alt").is_none() {
                problems.push((
                    WarningCode::MissingAlt,
                    "a picture without an `alt`; an empty one is for decoration".to_owned(),
                ));
            }
        }
        problems
    }

    /// The value of the first attribute with this name.
    fn attribute(&self, name: &str) -> Option<&str> {
        let text = |range: &std::ops::Range<usize>| self.document.get(range.clone()).unwrap_or_default();
        let found = self.tag.attributes.iter().find(|attribute| text(&attribute.name).eq_ignore_ascii_case(name));
        found.map(|attribute| text(&attribute.value))
    }

    /// Why an address leads nowhere. `None` if it may lead somewhere, or holds Liquid.
    fn address_problem(&self, written: &str, is_link: bool) -> Option<String> {
        if self.placeholders.occur_in(written) {
            return None;
        }
        let address = unescape_attribute(written);
        let address = address.trim();
        let lower = address.to_ascii_lowercase();
        if address.is_empty() || address == "#" {
            return Some("an empty address".to_owned());
        }
        let is_elsewhere = match is_link {
            // A place in the mail itself.
            true => {
                lower.starts_with('#')
                    || lower.starts_with("mailto:")
                    || lower.starts_with("tel:")
                    || lower.starts_with("sms:")
            }
            false => lower.starts_with("cid:") || lower.starts_with("data:"),
        };
        if is_elsewhere {
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
}
