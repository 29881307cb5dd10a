//! Reads selectors, to know which can mean `html`, `body` or what is put into the footer.

use super::{UNKNOWN, words};

/// Names of attributes, each with what its value must contain.
pub(super) type Needs = Vec<(String, String)>;

/// A selector that can mean `html` or `body`, or what is put before or after the content of these or of an element of the
/// footer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SelectorTarget {
    pub(super) needs: Needs,
    pub(super) is_pseudo: bool,
}

/// The selectors of a list that can mean `html`, `body` or what is put into the footer.
pub(super) fn targets(list: &str) -> Vec<SelectorTarget> {
    split(list, |character| character == ',').into_iter().flat_map(target).collect()
}

fn target(selector: &str) -> Vec<SelectorTarget> {
    if selector.contains(['\\', UNKNOWN]) {
        return [true, false].map(|is_pseudo| SelectorTarget { needs: Vec::new(), is_pseudo }).into();
    }
    let has_siblings = split(selector, |character| matches!(character, '+' | '~')).len() > 1;
    let compounds =
        split(selector, |character| character.is_ascii_whitespace() || matches!(character, '>' | '+' | '~'));
    let mut compounds = compounds.into_iter().rev().filter(|compound| !compound.is_empty());
    let Some(subject) = compounds.next().map(Compound::read) else { return Vec::new() };
    let around = compounds.next().filter(|_| !has_siblings).map(Compound::read);
    let is_pseudo = match subject.pseudo {
        Some(is_content) if !is_content => return Vec::new(),
        pseudo => pseudo.is_some(),
    };
    // The elements of the footer have neither class nor id.
    let is_named = subject.needs.iter().any(|(name, _)| matches!(name.as_str(), "class" | "id"));
    let (elements, around_elements): (&[&str], &[&str]) = match (is_pseudo, is_named) {
        (true, false) => (&["html", "body", "div", "a", "span", "br", "img"], &["html", "body", "div", "a", "span"]),
        _ => (&["html", "body"], &["html"]),
    };
    if !subject.is_one_of(elements) || around.as_ref().is_some_and(|around| !around.is_one_of(around_elements)) {
        return Vec::new();
    }
    // Attributes other than those two may be the footer's.
    let mut needs = if is_pseudo && !is_named { Vec::new() } else { subject.needs };
    needs.extend(around.into_iter().flat_map(|around| around.needs));
    vec![SelectorTarget { needs, is_pseudo }]
}

/// A part of a selector without spaces, such as `a.b:hover::after`.
struct Compound {
    /// The element's name; empty for any.
    name: String,
    needs: Needs,
    /// Whether it ends with a part of an element, and whether that is one for content that the sheet puts in.
    pseudo: Option<bool>,
}

impl Compound {
    fn read(compound: &str) -> Self {
        let (outer, mut needs) = without_brackets(&compound.to_ascii_lowercase());
        let is_any = |parts: &[&str]| parts.iter().any(|part| outer.contains(part));
        let is_content = is_any(&[":before", ":after"]);
        let pseudo = (is_content || is_any(&["::", ":first-line", ":first-letter"])).then_some(is_content);
        let name = outer.split(['.', '#', ':', '&']).next().unwrap_or_default();
        for (at, kind) in outer.match_indices(['.', '#']) {
            let word = outer.get(at + 1..).and_then(|rest| rest.split(['.', '#', ':', '&']).next()).unwrap_or_default();
            let attribute = if kind == "." { "class" } else { "id" };
            needs.push((attribute.to_owned(), words(word)));
        }
        let is_any_name = name == "*" || name.contains('|');
        Self { name: if is_any_name { String::new() } else { name.to_owned() }, needs, pseudo }
    }

    fn is_one_of(&self, elements: &[&str]) -> bool {
        self.name.is_empty() || elements.contains(&self.name.as_str())
    }
}

/// A part of a selector without what stands in brackets, and the attributes that stood in square ones.
fn without_brackets(compound: &str) -> (String, Needs) {
    let mut outer = String::new();
    let mut inner = String::new();
    let mut attributes = Vec::new();
    let (mut depth, mut quote, mut is_attribute) = (0_u32, None, false);
    for character in compound.chars() {
        match (character, quote) {
            (_, Some(open)) => {
                quote = quote.filter(|_| character != open);
                inner.push(character);
            }
            ('"' | '\'', None) => {
                quote = Some(character);
                inner.push(character);
            }
            ('(' | '[', None) => {
                is_attribute |= depth == 0 && character == '[';
                depth += 1;
            }
            (')' | ']', None) => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    let attribute = std::mem::take(&mut inner);
                    if std::mem::take(&mut is_attribute) {
                        let (name, value) = attribute.split_once('=').unwrap_or((&attribute, ""));
                        let name = name.trim().trim_end_matches(['~', '|', '^', '$', '*']).trim();
                        // What follows the quotes, `[class="a" i]`, compares in any case, as is done anyway.
                        let value = value.trim().trim_end_matches(" i").trim_end_matches(" s").trim();
                        let value = words(value.trim_matches(['"', '\'']));
                        attributes.push((name.to_owned(), value.trim().to_owned()));
                    }
                }
            }
            _ if depth > 0 => inner.push(character),
            _ => outer.push(character),
        }
    }
    (outer, attributes)
}

/// Divides a text outside of quotes and brackets.
fn split(text: &str, is_end: impl Fn(char) -> bool) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut depth, mut quote) = (0, 0_u32, None);
    for (at, character) in text.char_indices() {
        match (character, quote) {
            (_, Some(open)) => quote = quote.filter(|_| character != open),
            ('"' | '\'', None) => quote = Some(character),
            ('(' | '[', None) => depth += 1,
            (')' | ']', None) => depth = depth.saturating_sub(1),
            _ if depth == 0 && is_end(character) => {
                pieces.push(text.get(start..at).unwrap_or_default());
                start = at + character.len_utf8();
            }
            _ => {}
        }
    }
    pieces.push(text.get(start..).unwrap_or_default());
    pieces
}
