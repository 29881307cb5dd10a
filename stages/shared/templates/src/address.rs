//! Addresses that come from values: they lead to the web, to a mailbox or to a telephone, and nowhere else.

use super::escape::has_prefix;
use super::scan::AddressKind;
use super::sheet;

/// The schemes an address may have.
const SCHEMES: [&str; 4] = ["http", "https", "mailto", "tel"];
/// What a style may not contain: ways to write an address, or to load one, that are not looked into.
const STYLE_REFUSED: [&str; 8] =
    ["\\", "/*", "expression(", "@import", "image-set(", "-moz-binding", "behavior:", "src("];

impl AddressKind {
    /// The attribute with this name (in lower case), if it holds addresses.
    pub(super) fn of(element: &str, attribute: &str) -> Option<Self> {
        Some(match attribute {
            "href" if matches!(element, "a" | "area") => Self::Link,
            "href" | "src" | "action" | "formaction" | "background" | "poster" | "longdesc" | "lowsrc" | "dynsrc"
            | "cite" | "xlink:href" | "ping" | "manifest" | "icon" | "codebase" | "classid" | "profile" | "usemap"
            | "from" | "to" | "values" | "by" => Self::Source,
            "data" if element == "object" => Self::Source,
            "srcset" | "imagesrcset" | "archive" => Self::Sources,
            "style" => Self::Style,
            "content" if element == "meta" => Self::Style,
            _ => return None,
        })
    }

    /// This rendered value, or what stands instead if it may not stand.
    pub(super) fn checked(self, value: &str) -> &str {
        let allowed = match self {
            Self::Link | Self::Source => is_allowed(value),
            Self::Sources => value.split(',').all(is_allowed),
            Self::Style => is_style_allowed(value) && sheet::check_inline(value, false).is_ok(),
            Self::Sheet => is_style_allowed(value) && sheet::is_value(value),
        };
        match (allowed, self) {
            (true, _) => value,
            (false, Self::Link) => "#",
            (false, _) => "",
        }
    }
}

/// Whether an address has a scheme that is allowed, or none: then it leads to where the message came from, which is nowhere.
fn is_allowed(address: &str) -> bool {
    scheme(address).is_none_or(|scheme| SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known)))
}

/// What stands before the first colon, unless a path, a query or a fragment begins before it. Browsers skip white space and
/// control characters at the start, and tabs and line ends anywhere.
fn scheme(address: &str) -> Option<String> {
    let mut scheme = String::new();
    for character in address.chars() {
        match character {
            ':' => return Some(scheme),
            '/' | '?' | '#' | '\\' => return None,
            skipped if skipped.is_whitespace() || skipped.is_control() => {}
            character => scheme.push(character),
        }
    }
    None
}

/// Whether the text an author wrote begins with a scheme of its own that runs nothing: a value after it cannot change it.
pub(super) fn has_own_scheme(text: &str) -> bool {
    scheme(text).is_some_and(|scheme| {
        !scheme.is_empty()
            && !["javascript", "vbscript", "data"].iter().any(|script| scheme.eq_ignore_ascii_case(script))
    })
}

/// Whether the text an author wrote names the host of a web address to its end: a value after it cannot change it.
pub(super) fn has_own_host(text: &str) -> bool {
    let text = text.trim_start();
    let rest =
        ["https://", "http://"].iter().find_map(|scheme| has_prefix(text, scheme).then(|| text.get(scheme.len()..)));
    let Some(rest) = rest.flatten() else { return false };
    let is_host = |end: usize| end > 0 && rest.get(end..).is_some_and(|after| after.starts_with(['/', '?', '#']));
    rest.find(['/', '?', '#', '\\', '@']).is_some_and(is_host)
}

fn is_style_allowed(style: &str) -> bool {
    let written = style.chars().filter(|character| !character.is_whitespace() && !character.is_control());
    let style = written.collect::<String>().to_ascii_lowercase();
    if STYLE_REFUSED.iter().any(|refused| style.contains(refused))
        || ["javascript:", "vbscript:", "data:"].iter().any(|script| style.contains(script))
    {
        return false;
    }
    style.split("url(").skip(1).all(|address| {
        let address = address.trim_start_matches(['"', '\'']);
        is_allowed(address.split([')', '"', '\'', ';']).next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://x.test/a:b", true)]
    #[case("HTTP://x.test", true)]
    #[case("mailto:a@x.test", true)]
    #[case("tel:+1", true)]
    #[case("/path:x", true)]
    #[case("?a=b:c", true)]
    #[case("#a:b", true)]
    #[case("", true)]
    #[case("javascript:alert(1)", false)]
    #[case(" \u{1}Java\tScript\n:x", false)]
    #[case("data:text/html,x", false)]
    #[case("vbscript:x", false)]
    #[case("file:///etc/passwd", false)]
    #[case("blob:https://x.test", false)]
    #[case("a\u{200b}b:x", false)]
    fn only_known_schemes_pass(#[case] address: &str, #[case] allowed: bool) {
        assert_eq!(AddressKind::Link.checked(address) == address, allowed);
        assert_eq!(AddressKind::Source.checked(address) == address, allowed);
    }

    #[rstest]
    #[case("https://a.test 1x, https://b.test 2x", true)]
    #[case("https://a.test 1x, javascript:x 2x", false)]
    #[case("data:image/png;base64,AAAA 1x", false)]
    fn every_source_of_a_set_is_looked_at(#[case] sources: &str, #[case] allowed: bool) {
        assert_eq!(AddressKind::Sources.checked(sources) == sources, allowed);
    }

    #[rstest]
    #[case("color:red", true)]
    #[case("background: url('https://x.test/a.png')", true)]
    #[case("background:url( javascript:x )", false)]
    #[case("background:URL(\"data:image/png,x\")", false)]
    #[case("background:\\75rl(javascript:x)", false)]
    #[case("width:expr/**/ession(alert(1))", false)]
    fn a_style_has_no_other_addresses(#[case] style: &str, #[case] allowed: bool) {
        assert_eq!(AddressKind::Style.checked(style) == style, allowed);
    }

    #[rstest]
    #[case("https://x.test/", true)]
    #[case("https://x.test?a=", true)]
    #[case("https://x.test", false)]
    #[case("https://", false)]
    #[case("https:///", false)]
    #[case("https://x.test@", false)]
    #[case("https://user@y.test/", false)]
    #[case("", false)]
    fn a_host_is_the_authors_once_it_has_ended(#[case] text: &str, #[case] own: bool) {
        assert_eq!(has_own_host(text), own);
    }
}
