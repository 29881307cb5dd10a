//! Which elements of a document may be open at its end, and whether what stands in them can be seen.
//!
//! Browsers repair HTML in many ways. Here an element counts as closed only where every browser closes it, so what is left is
//! all that may be open: an end tag for an element that is not open does nothing. Seen is only what stands in elements known to
//! hide nothing.

use std::collections::HashMap;

/// Elements an open one of which a browser opens again after it was closed by another's end tag.
const FORMATTING: [&str; 14] =
    ["a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"];
/// Elements that end by themselves where another of their kind begins.
const ENDING: [&str; 8] = ["p", "li", "dt", "dd", "td", "th", "tr", "option"];
/// Elements that an end tag does not reach through: it finds no formatting element outside of them. In `noscript`, it is text to
/// a browser that runs scripts.
const BARRIERS: [&str; 13] = [
    "applet", "button", "caption", "marquee", "math", "noscript", "object", "select", "svg", "table", "td", "template",
    "th",
];
/// More formatting elements of a kind than this are not all closed by end tags that stand in other elements: a browser remembers
/// no more.
const FORMATTING_OPEN: usize = 3;
/// Nor is one around more elements than this.
const FORMATTING_DEPTH: usize = 7;
/// What a browser makes of an element's tags.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ElementKind {
    /// Its start tag ends an open paragraph.
    Block,
    /// It is closed when a table or a part of it ends. Its start tag means nothing outside of a table.
    TablePart,
    /// Neither of these, and an end tag of another element does not close it.
    Special,
    /// An end tag of an element around it closes it.
    Other,
}

impl ElementKind {
    fn of(name: &str) -> Self {
        match name {
            "address" | "article" | "aside" | "blockquote" | "center" | "details" | "dialog" | "dir" | "div" | "dl"
            | "fieldset" | "figcaption" | "figure" | "footer" | "form" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6"
            | "header" | "main" | "menu" | "nav" | "ol" | "p" | "pre" | "section" | "ul" => Self::Block,
            "tbody" | "thead" | "tfoot" | "tr" | "td" | "th" | "caption" | "colgroup" => Self::TablePart,
            "applet" | "body" | "button" | "frame" | "head" | "hgroup" | "html" | "iframe" | "li" | "dd" | "dt"
            | "listing" | "marquee" | "math" | "noembed" | "noframes" | "noscript" | "object" | "script" | "search"
            | "select" | "style" | "summary" | "svg" | "table" | "template" | "textarea" => Self::Special,
            _ => Self::Other,
        }
    }
}

#[derive(Debug)]
struct Element {
    name: String,
    /// It and all around it hide nothing.
    is_plain: bool,
    /// The condition under which it is opened; 0 is none.
    label: u32,
    /// Where the elements of the same condition begin that end with it.
    run: usize,
    /// Whether it is open for sure: a browser ignores some start tags where they mean nothing, and then their end tags too.
    is_certain: bool,
}

/// The elements that may be open.
#[derive(Debug, Default)]
pub(super) struct Elements {
    open: Vec<Element>,
    /// How many of each name are open.
    counts: HashMap<String, usize>,
    /// Formatting elements that were closed by another's end tag: a browser opens them again.
    reopened: Vec<String>,
}

impl Elements {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// All that would need an end tag.
    pub(super) fn count(&self) -> usize {
        self.open.len() + self.reopened.len()
    }

    pub(super) fn is_in(&self, name: &str) -> bool {
        self.counts.get(name).is_some_and(|count| *count > 0)
    }

    /// Whether this element is one of SVG or MathML, where `/>` closes.
    pub(super) fn is_foreign(&self, name: &str) -> bool {
        matches!(name, "svg" | "math") || self.is_in("svg") || self.is_in("math")
    }

    /// Whether what stands here can be seen.
    pub(super) fn is_plain(&self) -> bool {
        self.reopened.is_empty() && self.open.last().is_none_or(|element| element.is_plain)
    }

    /// The elements opened since then, with their conditions.
    pub(super) fn opened_from(&self, base: usize) -> Vec<(u32, String)> {
        self.open.iter().skip(base).map(|element| (element.label, element.name.clone())).collect()
    }

    /// How many elements a tag under this condition cannot close: where it is read, others may be open that are not seen here,
    /// or the reverse.
    pub(super) fn base(&self, label: u32) -> usize {
        match self.open.last() {
            Some(last) if last.label == label => last.run,
            _ => self.open.len(),
        }
    }

    /// Whether what was opened since then ends where it is opened again: an element such as `li`, or a row with its cell, and a
    /// paragraph in it.
    pub(super) fn end_by_themselves(&self, base: usize) -> bool {
        let names: Vec<&str> = self.open.iter().skip(base).map(|element| element.name.as_str()).collect();
        match names.strip_suffix(&["p"]).unwrap_or(&names) {
            [] => true,
            [name] => ENDING.contains(name),
            ["tr", cell] => matches!(*cell, "td" | "th"),
            _ => false,
        }
    }

    /// What was opened since then is open only if a condition holds.
    pub(super) fn doubt(&mut self, base: usize) {
        self.open.iter_mut().skip(base).for_each(|element| element.is_certain = false);
    }

    /// Whether an end tag of a form stands where its form ends for all browsers: elsewhere it makes one that cannot be ended.
    pub(super) fn ends_form(&self) -> bool {
        let last = self.open.iter().rev().find(|element| !ENDING.contains(&element.name.as_str()));
        last.is_some_and(|element| element.name == "form")
    }

    /// Whether an element that begins here is certainly one.
    fn is_certain(&self, name: &str, label: u32) -> bool {
        if ["select", "svg", "math", "noscript", "template"].iter().any(|around| self.is_in(around)) {
            return false;
        }
        let around: &[&str] = match name {
            "tr" => &["table", "tbody", "thead", "tfoot"],
            "td" | "th" => &["tr"],
            "tbody" | "thead" | "tfoot" | "caption" | "colgroup" => &["table"],
            "head" => return false,
            _ => return true,
        };
        self.open.last().is_some_and(|last| {
            last.is_certain
                && matches!(last.label, own if own == 0 || own == label)
                && around.contains(&last.name.as_str())
        })
    }

    /// Opens an element under a condition. Those open since `base` that end by its start tag are closed.
    pub(super) fn open(&mut self, name: &str, is_plain: bool, base: usize, label: u32) {
        if !self.is_in("svg") && !self.is_in("math") {
            let ends: &[&[&str]] = match name {
                "li" => &[&["p"], &["li"]],
                "dt" | "dd" => &[&["p"], &["dt", "dd"]],
                "option" => &[&["option"]],
                "td" | "th" => &[&["td", "th"]],
                "tr" => &[&["td", "th"], &["tr"]],
                block if ElementKind::of(block) == ElementKind::Block => &[&["p"]],
                _ => &[],
            };
            for names in ends {
                let is_last = self.open.len() > base
                    && self.open.last().is_some_and(|element| names.contains(&element.name.as_str()));
                if is_last {
                    self.pop();
                }
            }
        }
        let is_plain = match name {
            // Elements that hide nothing of what is in them.
            "a" | "address" | "article" | "aside" | "b" | "big" | "blockquote" | "center" | "code" | "dd" | "div"
            | "dl" | "dt" | "em" | "font" | "footer" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "header" | "i"
            | "li" | "main" | "nav" | "ol" | "p" | "pre" | "section" | "small" | "span" | "strong" | "sub" | "sup"
            | "table" | "tbody" | "td" | "tfoot" | "th" | "thead" | "tr" | "tt" | "u" | "ul" | "html" | "body"
            | "figure" => is_plain && self.is_plain(),
            _ => false,
        };
        let run = self.base(label);
        let is_certain = self.is_certain(name, label);
        *self.counts.entry(name.to_owned()).or_default() += 1;
        self.open.push(Element { name: name.to_owned(), is_plain, label, run, is_certain });
    }

    /// Reads an end tag under a condition. It closes no element that was opened before `base`. Answers how many elements were
    /// looked at.
    pub(super) fn close(&mut self, name: &str, base: usize, label: u32) -> usize {
        let is_formatting = FORMATTING.contains(&name);
        if !self.is_in(name) {
            if is_formatting
                && base == 0
                && label == 0
                && !BARRIERS.iter().any(|barrier| self.is_in(barrier))
                && let Some(at) = self.reopened.iter().rposition(|known| known == name)
            {
                self.reopened.remove(at);
            }
            return self.reopened.len();
        }
        let kind = ElementKind::of(name);
        let ends_block = kind != ElementKind::Other;
        let is_table_part = name == "table" || kind == ElementKind::TablePart;
        let mut at = self.open.len();
        let mut is_clear = true;
        while at > base {
            at -= 1;
            let Some(element) = self.open.get(at) else { break };
            let other = element.name.as_str();
            if other == name {
                break;
            }
            let other_kind = ElementKind::of(other);
            is_clear &= other_kind == ElementKind::Other
                || (ends_block && matches!(other, "p" | "li" | "dt" | "dd"))
                || (is_table_part && other_kind == ElementKind::TablePart);
            let is_reached = is_clear || (is_formatting && !BARRIERS.contains(&other));
            // The end tag of a form closes the form and nothing in it.
            if at == base || !is_reached || name == "form" {
                return self.open.len() - at;
            }
        }
        let looked = self.open.len() - at + self.reopened.len();
        let is_last = at + 1 == self.open.len();
        if self.open.get(at).is_none_or(|element| element.name != name || !(element.is_certain || is_last)) {
            return looked;
        }
        if is_clear {
            while self.open.len() > at + 1 {
                if let Some(element) = self.pop()
                    && FORMATTING.contains(&element.name.as_str())
                {
                    self.reopened.push(element.name);
                }
            }
            self.pop();
        } else if self.ends_alone(name, at) {
            // A formatting element ends alone: the blocks inside it stay open.
            self.open.remove(at);
            self.uncount(name);
        }
        looked
    }

    /// Whether a formatting element around others is certainly ended by its end tag.
    fn ends_alone(&self, name: &str, at: usize) -> bool {
        let of_its_kind = self.counts.get(name).copied().unwrap_or_default()
            + self.reopened.iter().filter(|known| *known == name).count();
        let kinds = self.open.iter().skip(at).map(|element| ElementKind::of(&element.name));
        let around = kinds.filter(|kind| *kind != ElementKind::Other).count();
        of_its_kind <= FORMATTING_OPEN && around <= FORMATTING_DEPTH
    }

    fn pop(&mut self) -> Option<Element> {
        let element = self.open.pop()?;
        self.uncount(&element.name);
        Some(element)
    }

    fn uncount(&mut self, name: &str) {
        if let Some(count) = self.counts.get_mut(name) {
            *count = count.saturating_sub(1);
        }
    }

    pub(super) fn truncate(&mut self, length: usize) {
        while self.open.len() > length {
            self.pop();
        }
    }

    /// Removes the last `count` elements.
    pub(super) fn remove_last(&mut self, count: usize) {
        let length = self.open.len().saturating_sub(count);
        // The element that stays replaces the removed ones: it hides if one of them hides.
        let hides = self.open.iter().skip(length).any(|element| !element.is_plain);
        self.truncate(length);
        if hides && let Some(last) = self.open.last_mut() {
            last.is_plain = false;
        }
    }

    /// A `head` that is still open ends where the body begins.
    pub(super) fn end_head(&mut self) {
        if self.open.last().is_some_and(|element| element.name == "head") {
            self.pop();
        }
    }

    /// End tags for all that may be open, innermost first. An end tag for a paragraph that is not open would make one; a block
    /// ends it where it is open.
    pub(super) fn end_tags(&self) -> String {
        let open = self.open.iter().rev().map(|element| element.name.as_str());
        let reopened = self.reopened.iter().rev().map(String::as_str);
        open.chain(reopened)
            .filter(|name| *name != "head")
            .map(|name| if name == "p" { "<div></div>".to_owned() } else { format!("</{name}>") })
            .collect()
    }
}

/// Whether an attribute hides nothing. A value that is not known may hide anything, except where no value can.
pub(super) fn is_plain(name: &str, value: Option<&str>) -> bool {
    match name {
        "" | "title" | "alt" | "target" | "rel" | "lang" | "dir" | "align" | "valign" | "role" | "id" | "class"
        | "name" | "border" | "cellpadding" | "cellspacing" | "href" | "xmlns" | "data-no-track" => true,
        "bgcolor" => value.is_some_and(|value| brightness(value.trim()).is_some_and(|brightness| brightness > 240)),
        "width" => value.is_some_and(is_wide),
        "style" => value.is_some_and(|style| htmlize::unescape_attribute(style).split(';').all(is_plain_declaration)),
        _ => false,
    }
}

/// A width that leaves room for a line of text.
fn is_wide(width: &str) -> bool {
    let width = width.trim();
    match width.strip_suffix('%') {
        Some(percent) => percent.parse::<u32>().is_ok_and(|percent| percent >= 30),
        None => width.strip_suffix("px").unwrap_or(width).parse::<u32>().is_ok_and(|pixels| pixels >= 100),
    }
}

/// Whether a declaration of an inline style is one of those that hide nothing.
fn is_plain_declaration(declaration: &str) -> bool {
    if declaration.trim().is_empty() {
        return true;
    }
    let Some((property, value)) = declaration.split_once(':') else { return false };
    let value = value.trim().to_ascii_lowercase();
    let value = value.strip_suffix("!important").unwrap_or(&value).trim();
    let is_simple = !value.contains(['\\', '(', '/', '-', '"', '\'']);
    match property.trim().to_ascii_lowercase().as_str() {
        "font-family" | "text-decoration" => !value.contains(['\\', '(', '/']),
        "font-weight" | "font-style" | "text-align" | "vertical-align" | "border-collapse" | "border-spacing" => {
            is_simple
        }
        "margin" | "margin-top" | "margin-right" | "margin-bottom" | "margin-left" | "padding" | "padding-top"
        | "padding-right" | "padding-bottom" | "padding-left" => {
            // Not so far that text is moved out of sight.
            is_simple && value.split_whitespace().all(|length| length == "auto" || is_small_length(length))
        }
        "width" | "max-width" => is_wide(value),
        "font-size" => pixels(value).is_some_and(|pixels| (9.0..=72.0).contains(&pixels)),
        "line-height" => match value.parse::<f32>() {
            Ok(factor) => (1.0..=3.0).contains(&factor),
            Err(_) => {
                let percent = value.strip_suffix('%').and_then(|percent| percent.parse::<f32>().ok());
                percent.is_some_and(|percent| percent >= 100.0)
                    || pixels(value).is_some_and(|pixels| (9.0..=100.0).contains(&pixels))
            }
        },
        // On the white that nothing else may change.
        "color" => brightness(value).is_some_and(|brightness| brightness <= 170),
        "background" | "background-color" => brightness(value).is_some_and(|brightness| brightness > 240),
        _ => false,
    }
}

fn is_small_length(length: &str) -> bool {
    length == "0" || pixels(length).is_some_and(|pixels| (0.0..=100.0).contains(&pixels))
}

/// A length in pixels, from `px` or `pt`.
fn pixels(length: &str) -> Option<f32> {
    if let Some(pixels) = length.strip_suffix("px") {
        return pixels.trim().parse().ok();
    }
    let points: f32 = length.strip_suffix("pt")?.trim().parse().ok()?;
    Some(points * 4.0 / 3.0)
}

/// How bright a colour is, from 0 to 255. `None`: not known.
fn brightness(colour: &str) -> Option<u32> {
    let digits = match colour {
        "black" => "000",
        "gray" | "grey" => "808080",
        "white" => "fff",
        colour => colour.strip_prefix('#')?,
    };
    let channel = |at: usize| match digits.len() {
        3 => digits.get(at..=at).and_then(|digit| u32::from_str_radix(digit, 16).ok()).map(|value| value * 17),
        6 => digits.get(at * 2..at * 2 + 2).and_then(|pair| u32::from_str_radix(pair, 16).ok()),
        _ => None,
    };
    Some((channel(0)? * 299 + channel(1)? * 587 + channel(2)? * 114) / 1_000)
}
