//! The look of the pages that recipients open from a mail: the tenant's own sentences, its logo and its colours. All of it is checked
//! when it is stored, so that the pages can show it as it is.

use schemars::JsonSchema;
use schemas::text::check_line;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::pipeline::{Faults, Patch};

/// Longest sentence of the tenant's own on a page, in characters.
const PAGE_TEXT_MAX: usize = 1_000;
/// Longest address of a logo, in characters.
const LOGO_URL_MAX: usize = 2_048;
/// A colour as callers and pages write it.
const COLOR_PATTERN: &str = "^#[0-9A-Fa-f]{6}$";
/// The least contrast of text with what is behind it (WCAG 2.2, 1.4.3).
const CONTRAST_MIN: f64 = 4.5;
/// The colour of text on buttons, and of the panel behind links.
const WHITE: [u8; 3] = [255, 255, 255];
/// The colour of the pages' text.
const INK: [u8; 3] = [0x1c, 0x1c, 0x1e];

/// What a tenant adds to the unsubscribe page and the preferences page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PageBranding {
    /// A sentence above the button of the unsubscribe page. Plain text; line breaks stay.
    pub unsubscribe_text: Option<String>,
    /// A sentence above the topics of the preferences page. Plain text; line breaks stay.
    pub preferences_text: Option<String>,
    /// The logo. Only the recipient's browser fetches it.
    pub logo_url: Option<String>,
    /// The colour of buttons and links.
    pub button_color: Option<String>,
    /// The colour around the panel.
    pub background_color: Option<String>,
}

/// What is to be changed of the pages. What is left out stays; null gives the engine's own again.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PageChange {
    /// A sentence above the button of the unsubscribe page.
    #[schemars(length(max = PAGE_TEXT_MAX))]
    pub unsubscribe_text: Patch<String>,
    /// A sentence above the topics of the preferences page.
    #[schemars(length(max = PAGE_TEXT_MAX))]
    pub preferences_text: Patch<String>,
    /// An https address of a picture, on a host with a name.
    #[schemars(length(max = LOGO_URL_MAX), extend("format" = "uri"))]
    pub logo_url: Patch<String>,
    /// `#rrggbb`, with a contrast of at least 4.5 with white.
    #[schemars(regex(pattern = COLOR_PATTERN))]
    pub button_color: Patch<String>,
    /// `#rrggbb`, with a contrast of at least 4.5 with the pages' dark text.
    #[schemars(regex(pattern = COLOR_PATTERN))]
    pub background_color: Patch<String>,
}

impl PageChange {
    /// The branding after this change. Faults are named by their fields.
    pub(super) fn applied_to(self, before: PageBranding, faults: &mut Faults) -> PageBranding {
        let mut set = |path: &str, patch: Patch<String>, before, check: FieldCheck| match patch {
            Patch::Absent => before,
            Patch::Null => None,
            Patch::Value(value) => check(faults, path, value),
        };
        PageBranding {
            unsubscribe_text: set("pages.unsubscribe_text", self.unsubscribe_text, before.unsubscribe_text, page_text),
            preferences_text: set("pages.preferences_text", self.preferences_text, before.preferences_text, page_text),
            logo_url: set("pages.logo_url", self.logo_url, before.logo_url, logo_address),
            button_color: set("pages.button_color", self.button_color, before.button_color, |faults, path, text| {
                page_color(faults, path, &text, WHITE)
            }),
            background_color: set(
                "pages.background_color",
                self.background_color,
                before.background_color,
                |faults, path, text| page_color(faults, path, &text, INK),
            ),
        }
    }
}

/// Checks a new value and answers what is stored.
type FieldCheck = fn(&mut Faults, &str, String) -> Option<String>;

/// A text of at most [`PAGE_TEXT_MAX`] characters that shows all it says; trimmed. A blank one is none.
fn page_text(faults: &mut Faults, path: &str, text: String) -> Option<String> {
    let text = text.replace("\r\n", "\n").trim().to_owned();
    faults.optional(path, Some(&text), PAGE_TEXT_MAX);
    if let Some(error) = text.split('\n').find_map(|line| check_line(line).err()) {
        faults.add(path, error.code(), error.to_string());
    }
    (!text.is_empty()).then_some(text)
}

/// The address of a logo. Its host stands in the pages' content security policy, where a comma or a semicolon would end the
/// directive, so only letters, digits, dots and dashes are taken.
fn logo_address(faults: &mut Faults, path: &str, text: String) -> Option<String> {
    let plain = |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
    let address = Url::parse(text.trim()).ok().filter(|address| {
        let named = matches!(address.host(), Some(Host::Domain(host)) if host.contains('.') && plain(host));
        address.scheme() == "https" && named && address.username().is_empty() && address.password().is_none()
    });
    let detail = "must be an https address whose host has a name, without user and password";
    faults.require(address.is_some(), path, "invalid", detail);
    let address = address.map(String::from);
    faults.optional(path, address.as_deref(), LOGO_URL_MAX);
    address
}

/// A colour in lower case, readable beside another one.
fn page_color(faults: &mut Faults, path: &str, text: &str, beside: [u8; 3]) -> Option<String> {
    let Some(color) = rgb(text) else {
        faults.add(path, "invalid", "must be #rrggbb");
        return None;
    };
    let against = if beside == WHITE { "white" } else { "the text of the page" };
    let detail = format!("must have a contrast of at least {CONTRAST_MIN} with {against}");
    faults.require(contrast(color, beside) >= CONTRAST_MIN, path, "low_contrast", &detail);
    Some(text.to_ascii_lowercase())
}

fn rgb(text: &str) -> Option<[u8; 3]> {
    let mut color = [0; 3];
    hex::decode_to_slice(text.strip_prefix('#')?, &mut color).ok()?;
    Some(color)
}

/// The contrast ratio of two colours, from 1 to 21 (WCAG 2.2).
fn contrast(one: [u8; 3], other: [u8; 3]) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Relative luminance, from 0 (black) to 1 (white).
fn luminance(color: [u8; 3]) -> f64 {
    let linear = |channel: u8| {
        let value = f64::from(channel) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * linear(color[0]) + 0.7152 * linear(color[1]) + 0.0722 * linear(color[2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn fault(change: PageChange) -> Option<String> {
        let mut faults = Faults::default();
        change.applied_to(PageBranding::default(), &mut faults);
        faults.finish().err().map(|error| format!("{} {}", error.fields[0].path, error.fields[0].code))
    }

    #[rstest]
    #[case("https://cdn.acme.example/logo.png", None)]
    #[case("https://cdn.acme.example:8443/logo.png?v={body}", None)]
    #[case("http://cdn.acme.example/logo.png", Some("pages.logo_url invalid"))]
    #[case("data:image/png;base64,AAAA", Some("pages.logo_url invalid"))]
    #[case("javascript:alert(1)", Some("pages.logo_url invalid"))]
    #[case("https://a.example;script-src*/x", Some("pages.logo_url invalid"))]
    #[case("https://*.example/x", Some("pages.logo_url invalid"))]
    #[case("https://127.0.0.1/x", Some("pages.logo_url invalid"))]
    #[case("https://localhost/x", Some("pages.logo_url invalid"))]
    #[case("https://ann:secret@acme.example/x", Some("pages.logo_url invalid"))]
    #[case("logo.png", Some("pages.logo_url invalid"))]
    fn a_logo_is_a_picture_on_a_named_https_host(#[case] address: &str, #[case] expected: Option<&str>) {
        let change = PageChange { logo_url: Patch::Value(address.to_owned()), ..PageChange::default() };
        assert_eq!(fault(change).as_deref(), expected);
    }

    #[rstest]
    #[case("#1d4ed8", "#f4f4f5", None)]
    #[case("#B91C1C", "#FFFFFF", None)]
    #[case("#ffff00", "#ffffff", Some("pages.button_color low_contrast"))]
    #[case("#777777", "#ffffff", Some("pages.button_color low_contrast"))]
    #[case("#767676", "#333333", Some("pages.background_color low_contrast"))]
    #[case("red", "#ffffff", Some("pages.button_color invalid"))]
    #[case("#fff", "#ffffff", Some("pages.button_color invalid"))]
    #[case("#000000", "#fff;}*{x:y", Some("pages.background_color invalid"))]
    fn colors_are_readable_or_refused(#[case] button: &str, #[case] back: &str, #[case] expected: Option<&str>) {
        let change = PageChange {
            button_color: Patch::Value(button.to_owned()),
            background_color: Patch::Value(back.to_owned()),
            ..PageChange::default()
        };
        assert_eq!(fault(change).as_deref(), expected);
    }

    #[rstest]
    #[case("Two lines,\r\nno more.", None)]
    #[case("a\u{0007}", Some("pages.unsubscribe_text control_character"))]
    #[case("a\u{202e}b", Some("pages.unsubscribe_text invisible_character"))]
    fn a_page_text_shows_all_it_says(#[case] text: &str, #[case] expected: Option<&str>) {
        let change = PageChange { unsubscribe_text: Patch::Value(text.to_owned()), ..PageChange::default() };
        assert_eq!(fault(change).as_deref(), expected);
    }

    #[test]
    fn a_page_text_has_at_most_a_thousand_characters() {
        let change =
            |length| PageChange { preferences_text: Patch::Value("é".repeat(length)), ..PageChange::default() };
        assert_eq!(fault(change(PAGE_TEXT_MAX)), None);
        assert_eq!(fault(change(PAGE_TEXT_MAX + 1)).as_deref(), Some("pages.preferences_text too_long"));
    }
}
