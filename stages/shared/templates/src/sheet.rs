//! Style sheets, read for one thing: whether they hide what the engine puts at the end of the body. The footer's own styles are
//! stronger than any rule; what is left are rules for `html` and `body`, which can crop or move all that is in them, and negative
//! margins, which pull up what follows.
//!
//! A sheet that programs could divide into rules in different ways is refused. What comes from a value counts as anything.

use std::collections::HashMap;

use super::placeholder::Placeholders;
use super::scan::{Item, ItemKind};
use super::structure::{closes, opens};
use super::syntax::Tag;

/// Hosts of style sheets that hold nothing but fonts.
const FONT_HOSTS: [&str; 4] = ["fonts.googleapis.com", "fonts.bunny.net", "use.typekit.net", "p.typekit.net"];
/// Stands for what a value or a condition makes of a piece of a sheet.
const UNKNOWN: char = '\u{1}';

/// Why a style sheet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Why {
    #[error("the style sheet cannot be divided into rules: a quote, a bracket or a comment is not closed")]
    Unclosed,
    #[error("a rule cannot stand inside a rule")]
    Nested,
    #[error("a block must begin and end at the same depth of the style sheet, outside of quotes and brackets")]
    Block,
    #[error("a value can stand in a style sheet only as the value of a property")]
    Value,
    #[error("this rule crops, hides or moves `html` or `body`, and the legal footer with it")]
    Root,
    #[error("this rule puts something over links in general, and over the legal footer with them: give it a class")]
    Cover,
    #[error("a negative margin above or below an element could hide the legal footer")]
    Margin,
    #[error("style sheets can be loaded only from hosts of fonts such as fonts.googleapis.com")]
    Import,
}

/// A fault, and where in the sheet it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) why: Why,
}

/// The attributes of the `html` and `body` tags: all values of a name, as [`words`]. `None`: a value makes one of them.
pub(super) type Roots = HashMap<String, Option<String>>;

/// What styles `html` and `body`, and the legal footer with them.
#[derive(Debug, Clone, Default)]
pub(super) struct RootStyles {
    pub(super) roots: Roots,
    /// Rules that must not be for them.
    pub(super) suspects: Vec<Suspect>,
    /// How many of the rules are known not to be for them.
    pub(super) checked: usize,
}

/// A text in lower case, each word between single spaces.
pub(super) fn words(text: &str) -> String {
    let words: String = text.split_whitespace().map(|word| format!(" {word}")).collect();
    format!("{} ", words.to_lowercase())
}

/// Names of attributes, each with what its value must contain.
type Needs = Vec<(String, String)>;

/// A rule that must not be one for `html` or `body`: it is if these have all these attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) at: usize,
    needs: Needs,
}

/// A selector that can mean `html` or `body`, or what is put before or after the content of these or of an element of the
/// footer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    needs: Needs,
    is_pseudo: bool,
}

impl Suspect {
    /// Whether the rule is one for an element with these attributes.
    pub(super) fn matches(&self, roots: &Roots) -> bool {
        self.needs.iter().all(|(name, value)| match roots.get(name) {
            Some(Some(of_root)) => of_root.contains(value),
            Some(None) => true,
            None => false,
        })
    }

    /// How much there is to compare.
    pub(super) fn size(&self) -> usize {
        self.needs.len() + 1
    }
}

/// Reads the style sheet of a `style` element. Answers the rules that depend on the attributes of `html` and `body`.
pub(super) fn check(sheet: &str, placeholders: &Placeholders) -> Result<Vec<Suspect>, Fault> {
    let mut pieces = Pieces::new(sheet, Some(placeholders));
    // For each open block the rule's targets; `None` for `@media` and the like.
    let mut blocks: Vec<Option<Vec<Target>>> = Vec::new();
    let mut suspects = Vec::new();
    while let Some(piece) = pieces.next(blocks.len())? {
        let Piece { text, at, end } = piece;
        let text = text.trim();
        match (blocks.last(), end) {
            (Some(Some(_)), End::Open) => return Err(Fault { at, why: Why::Nested }),
            (None | Some(None), End::Open) if text.starts_with('@') => blocks.push(None),
            (None | Some(None), End::Open) => blocks.push(Some(targets(text))),
            (Some(Some(targets)), _) => {
                if is_lifting(text) {
                    return Err(Fault { at, why: Why::Margin });
                }
                if text.split(':').next().is_some_and(|property| property.contains(UNKNOWN)) {
                    return Err(Fault { at, why: Why::Value });
                }
                let (is_hiding, is_content) = (hides(text), is_content(text));
                for target in targets {
                    let why = match target.is_pseudo {
                        true if is_content => Why::Cover,
                        false if is_hiding => Why::Root,
                        _ => continue,
                    };
                    if target.needs.is_empty() {
                        return Err(Fault { at, why });
                    }
                    suspects.push(Suspect { at, needs: target.needs.clone() });
                }
                if end == End::Close {
                    blocks.pop();
                }
            }
            (Some(None), End::Close) => drop(blocks.pop()),
            (None, End::Close) => {}
            (None | Some(None), _) => {
                let is_import = text.get(..7).is_some_and(|word| word.eq_ignore_ascii_case("@import"));
                if (is_import || text.contains(['\\', UNKNOWN])) && text.starts_with('@') && !is_font_import(text) {
                    return Err(Fault { at, why: Why::Import });
                }
            }
        }
    }
    Ok(suspects)
}

/// Checks the declarations of a `style` attribute; `of_root` for `html` and `body`.
pub(super) fn check_inline(style: &str, of_root: bool) -> Result<(), Why> {
    let mut pieces = Pieces::new(style, None);
    loop {
        match pieces.next(0) {
            Ok(Some(Piece { text, end, .. })) => {
                if of_root && (hides(&text) || matches!(end, End::Open | End::Close)) {
                    return Err(Why::Root);
                }
                if is_lifting(&text) {
                    return Err(Why::Margin);
                }
            }
            Ok(None) => return Ok(()),
            // Broken styles are common and mean nothing, unless they may mean this.
            Err(_) if of_root => return Err(Why::Unclosed),
            Err(_) if style.to_ascii_lowercase().contains("margin") => return Err(Why::Unclosed),
            Err(_) => return Ok(()),
        }
    }
}

/// Whether a rendered value can stand in a style sheet: it ends nothing of what it stands in.
pub(super) fn is_value(value: &str) -> bool {
    if value.contains(['"', '\'', '\\', '{', '}', ';', '@', '*'])
        || value.ends_with('/')
        || value.contains(char::is_control)
    {
        return false;
    }
    let mut depth = 0_u32;
    for character in value.chars() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' if depth == 0 => return false,
            ')' | ']' => depth -= 1,
            _ => {}
        }
    }
    depth == 0
}

/// Whether this is the address of a sheet that holds nothing but fonts.
pub(super) fn is_font_address(address: &str) -> bool {
    let address = address.trim().to_ascii_lowercase();
    let rest = ["https://", "http://", "//"].iter().find_map(|scheme| address.strip_prefix(scheme));
    rest.is_some_and(|rest| {
        FONT_HOSTS.iter().any(|host| rest.strip_prefix(host).is_some_and(|path| path.starts_with('/')))
    })
}

fn is_font_import(statement: &str) -> bool {
    let Some(rest) = statement.get(7..) else { return false };
    let rest = rest.trim_start();
    let is_url = rest.get(..4).is_some_and(|word| word.eq_ignore_ascii_case("url("));
    let rest = if is_url { rest.get(4..).unwrap_or_default() } else { rest };
    !statement.contains(['\\', UNKNOWN]) && is_font_address(rest.trim_start().trim_start_matches(['"', '\'']))
}

/// The property (in lower case and without a vendor's prefix) and the value of a declaration.
fn declaration(text: &str) -> Option<(String, String)> {
    let (property, value) = text.split_once(':')?;
    let property = property.trim().to_ascii_lowercase();
    let bare = ["-webkit-", "-moz-", "-ms-", "-o-"].iter().find_map(|prefix| property.strip_prefix(prefix));
    let value = value.trim().to_ascii_lowercase();
    let value = value.split('!').next().unwrap_or_default().trim().to_owned();
    Some((bare.map_or_else(|| property.clone(), str::to_owned), value))
}

/// Whether a value may be below zero.
fn may_be_negative(value: &str) -> bool {
    value.contains(['(', '\\', UNKNOWN])
        || value.match_indices('-').any(|(at, _)| {
            let before = value.get(..at).unwrap_or_default();
            let after = value.get(at + 1..).unwrap_or_default();
            after.starts_with(|next: char| next.is_ascii_digit() || next == '.')
                && !before.ends_with(|last: char| last.is_alphanumeric())
        })
}

/// Whether a declaration pulls up what follows its element.
fn is_lifting(text: &str) -> bool {
    let Some((property, value)) = declaration(text) else { return false };
    if property.contains(['\\', UNKNOWN]) {
        return value.contains('-') && may_be_negative(&value);
    }
    match property.as_str() {
        "margin" if !value.contains(['(', '\\', UNKNOWN]) => {
            let vertical = value.split_whitespace().enumerate().filter(|(index, _)| index % 2 == 0);
            vertical.map(|(_, length)| length).any(may_be_negative)
        }
        "margin" | "margin-top" | "margin-bottom" | "margin-block" | "margin-block-start" | "margin-block-end"
        | "margin-before" | "margin-after" => may_be_negative(&value),
        _ => false,
    }
}

/// Whether a declaration for `html` or `body` crops, hides or moves what is in it, other than all of it.
fn hides(text: &str) -> bool {
    let Some((property, value)) = declaration(text) else { return false };
    if property.contains(['\\', UNKNOWN]) {
        return true;
    }
    let is_unclear = value.contains(['\\', UNKNOWN]);
    let value = value.as_str();
    if matches!(value, "initial" | "inherit" | "unset" | "revert" | "none" | "normal" | "auto") && property != "display"
    {
        return false;
    }
    match property.as_str() {
        "display" => !matches!(value, "block" | "flow-root" | "table" | "inline-block" | "initial" | "inherit"),
        "visibility" => value != "visible",
        "overflow" | "overflow-y" | "overflow-block" => {
            is_unclear || ["hidden", "clip", "("].iter().any(|crops| value.contains(crops))
        }
        "opacity" | "zoom" | "scale" => !matches!(value, "1" | "1.0" | "100%"),
        "position" => !matches!(value, "static" | "relative"),
        "left" | "right" | "top" | "bottom" | "inset" => !matches!(value, "0" | "0px"),
        "writing-mode" => value != "horizontal-tb",
        "content-visibility" => value != "visible",
        "column-count" => value != "1",
        "float" | "interactivity" | "clip" | "clip-path" | "filter" | "contain" | "content" | "columns"
        | "column-width" | "line-clamp" | "mix-blend-mode" | "translate" | "rotate" | "perspective" | "mso-hide" => {
            true
        }
        property if property.starts_with("margin") => is_unclear || may_be_negative(value),
        property => {
            ["transform", "animation", "mask", "offset", "inset-"].iter().any(|kind| property.starts_with(kind))
        }
    }
}

/// Whether a declaration makes something stand before or after an element's content.
fn is_content(text: &str) -> bool {
    declaration(text).is_some_and(|(property, value)| {
        property.contains(['\\', UNKNOWN]) || (property == "content" && !matches!(value.as_str(), "none" | "normal"))
    })
}

/// What ends a piece of a sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Close,
    Semicolon,
    Sheet,
}

/// A selector list, a declaration or a statement, without its comments.
struct Piece {
    text: String,
    at: usize,
    end: End,
}

/// Divides a sheet into pieces.
struct Pieces<'s> {
    sheet: &'s str,
    placeholders: Option<&'s Placeholders>,
    at: usize,
    is_done: bool,
    /// How deep the rules are in which blocks of Liquid began.
    liquid: Vec<usize>,
}

impl<'s> Pieces<'s> {
    fn new(sheet: &'s str, placeholders: Option<&'s Placeholders>) -> Self {
        Self { sheet, placeholders, at: 0, is_done: false, liquid: Vec::new() }
    }

    /// The next piece. `depth`: how many blocks of the sheet are open.
    fn next(&mut self, depth: usize) -> Result<Option<Piece>, Fault> {
        if self.is_done {
            return Ok(None);
        }
        let mut text = String::new();
        let mut start = self.at;
        let mut brackets = Vec::new();
        let mut quote = None;
        while let Some(character) = self.sheet.get(self.at..).and_then(|rest| rest.chars().next()) {
            let at = self.at;
            let rest = self.sheet.get(at..).unwrap_or_default();
            let fault = |why| Err(Fault { at, why });
            if let Some((id, length)) =
                self.placeholders.filter(|_| character == 'q').and_then(|words| words.word(rest))
            {
                self.at += length;
                let is_plain = quote.is_none() && brackets.is_empty();
                let item = self.placeholders.and_then(|words| words.get(id).first());
                let is_output = item.is_some_and(|item| item.output().is_some());
                if let Some(item) = item.filter(|_| !is_output)
                    && !(is_plain && self.block(item, depth))
                {
                    return fault(Why::Block);
                }
                if is_output || !text.trim().is_empty() {
                    text.push(UNKNOWN);
                }
                continue;
            }
            self.at += character.len_utf8();
            match (character, quote) {
                ('\\', _) => {
                    text.push(character);
                    if let Some(next) = self.sheet.get(self.at..).and_then(|rest| rest.chars().next()) {
                        self.at += next.len_utf8();
                        text.push(next);
                    }
                    continue;
                }
                ('\n' | '\r' | '\u{c}', Some(_)) => return fault(Why::Unclosed),
                (_, Some(open)) => quote = Some(open).filter(|_| character != open),
                ('"' | '\'', None) => quote = Some(character),
                ('/', None) if rest.starts_with("/*") => {
                    let Some(end) = rest.get(2..).and_then(|rest| rest.find("*/")) else { return fault(Why::Unclosed) };
                    let comment = rest.get(..end + 4).unwrap_or_default();
                    let items = self.placeholders.map(|words| words.items(comment)).unwrap_or_default();
                    if items.iter().any(|item| item.output().is_none() && !matches!(item.kind, ItemKind::Text(_))) {
                        return fault(Why::Block);
                    }
                    self.at = at + end + 4;
                    continue;
                }
                ('(', None) => {
                    brackets.push(')');
                    let is_url = text.len() >= 3
                        && text.get(text.len() - 3..).is_some_and(|word| word.eq_ignore_ascii_case("url"));
                    let inner = rest.get(1..).unwrap_or_default();
                    if is_url && !inner.trim_start().starts_with(['"', '\'']) {
                        // An address without quotes: nothing in it means anything up to its end.
                        let Some(end) = inner.find(')') else { return fault(Why::Unclosed) };
                        let address = inner.get(..end).unwrap_or_default();
                        if address.contains(['\\', '(', '"', '\'']) {
                            return fault(Why::Unclosed);
                        }
                        let items = self.placeholders.map(|words| words.items(address)).unwrap_or_default();
                        if items.iter().any(|item| item.output().is_none() && !matches!(item.kind, ItemKind::Text(_))) {
                            return fault(Why::Block);
                        }
                        text.push('(');
                        text.push_str(address);
                        self.at = at + 1 + end;
                        continue;
                    }
                }
                ('[', None) => brackets.push(']'),
                (')' | ']', None) if brackets.pop().is_some_and(|open| open != character) => {
                    return fault(Why::Unclosed);
                }
                ('{' | '}', None) if !brackets.is_empty() => return fault(Why::Unclosed),
                ('{', None) => return Ok(Some(Piece { text, at: start, end: End::Open })),
                ('}', None) => {
                    if self.liquid.last().is_some_and(|opened| depth <= *opened) {
                        return fault(Why::Block);
                    }
                    return Ok(Some(Piece { text, at: start, end: End::Close }));
                }
                (';', None) if brackets.is_empty() => return Ok(Some(Piece { text, at: start, end: End::Semicolon })),
                ('<', None) if rest.starts_with("<!--") && text.is_empty() => {
                    self.at = at + 4;
                    continue;
                }
                ('-', None) if rest.starts_with("-->") && text.is_empty() => {
                    self.at = at + 3;
                    continue;
                }
                _ => {}
            }
            if text.is_empty() {
                if character.is_ascii_whitespace() {
                    continue;
                }
                start = at;
            }
            text.push(character);
        }
        if quote.is_some() || !brackets.is_empty() {
            return Err(Fault { at: start, why: Why::Unclosed });
        }
        self.is_done = true;
        Ok(Some(Piece { text, at: start, end: End::Sheet }))
    }

    /// Whether a tag of Liquid stands at the depth where its block began.
    fn block(&mut self, item: &Item, depth: usize) -> bool {
        if opens(item).is_some() {
            self.liquid.push(depth);
            return true;
        }
        if closes(item).is_some() {
            return self.liquid.pop() == Some(depth);
        }
        match &item.kind {
            ItemKind::Tag(Tag::Else | Tag::Elsif(_) | Tag::When(_)) => self.liquid.last() == Some(&depth),
            ItemKind::Tag(Tag::Break | Tag::Continue) => self.liquid.iter().all(|opened| *opened == depth),
            _ => true,
        }
    }
}

/// The selectors of a list that can mean `html`, `body` or what is put into the footer.
fn targets(list: &str) -> Vec<Target> {
    split(list, |character| character == ',').into_iter().flat_map(target).collect()
}

fn target(selector: &str) -> Vec<Target> {
    if selector.contains(['\\', UNKNOWN]) {
        return [true, false].map(|is_pseudo| Target { needs: Vec::new(), is_pseudo }).into();
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
    vec![Target { needs, is_pseudo }]
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
        let pseudo = match () {
            () if is_any(&[":before", ":after"]) => Some(true),
            () if is_any(&["::", ":first-line", ":first-letter"]) => Some(false),
            () => None,
        };
        let name = outer.split(['.', '#', ':', '&']).next().unwrap_or_default();
        let mut rest = outer.get(name.len()..).unwrap_or_default();
        while let Some(kind) = rest.chars().next() {
            let inner = rest.get(kind.len_utf8()..).unwrap_or_default();
            let end = inner.find(['.', '#', ':', '&']).unwrap_or(inner.len());
            let word = inner.get(..end).unwrap_or_default();
            match kind {
                '.' => needs.push(("class".to_owned(), words(word))),
                '#' => needs.push(("id".to_owned(), words(word))),
                _ => {}
            }
            rest = inner.get(end..).unwrap_or_default();
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
