//! Splits a source into static text, outputs and tags, each with its place: the only reader of raw template source.
//!
//! Whitespace control (`{{-`, `-%}`), `raw` and `comment` are dealt with here, so that later steps see none of them.
//! Everything is iterative and bounded, because the source is a stranger's.

use std::ops::Range;

use runtime::{Budget, Spent};

use super::fault::{FaultCode, Part, Position, Problem, TemplateFault};
use super::lexer::brief;
use super::limits::{END_TAG_BYTES, FAULTS, MARKUP_BYTES, SOURCE_BYTES, TAGS, text_steps};
use super::program::shown;
use super::syntax::{self, FilterChain, IncludeTag, LiquidTag};

/// One element of a part, in source order; blocks are not yet trees.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub(super) kind: ItemKind,
    pub(super) at: Position,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ItemKind {
    /// Static text, as it goes out.
    Text(String),
    /// `{{ … }}`. Its place, and what it shows for the law, are those of text until its HTML is read.
    Output { chain: FilterChain, place: Place, shows: Option<Shown> },
    /// `{% … %}`.
    Tag(LiquidTag),
    /// Something this engine puts in.
    Special(Special),
}

/// What an attribute holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressKind {
    /// Where a link leads.
    Link,
    /// One address of anything else.
    Source,
    /// Addresses with their widths, divided by commas.
    Sources,
    /// Declarations of a style, or other text that may hold addresses.
    Style,
    /// A value in a style sheet.
    Sheet,
}

/// What the engine itself puts into a message.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Special {
    /// The tracked form of a link whose target never changes.
    Click { link: u16, url: String },
    /// A tracked link whose target is rendered.
    Link { link: u16, target: Vec<Item> },
    /// An address, or something that holds addresses, that is checked when it is rendered.
    Address { kind: AddressKind, target: Vec<Item> },
    /// The address of the open pixel.
    OpenPixel,
    /// The recipient's unsubscribe address.
    Unsubscribe,
    /// The word of the footer's link, in the recipient's language.
    UnsubscribeWord,
    /// Where the footer goes.
    Footer,
    /// What is left out if the message has shown this field already.
    UnlessShown { field: Shown, body: Vec<Item> },
}

/// Where in the HTML an output stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In text.
    Text,
    /// In the value of an attribute.
    Quoted,
    /// Where a browser reads no markup: in a comment, a style sheet, a script, a title.
    Inert,
}

/// Fields the law wants in marketing mail; the engine notes whether a message showed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Unsubscribe,
    PhysicalAddress,
}

impl Item {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { kind: ItemKind::Text(text.into()), at: Position::default() }
    }

    /// The chain of an output, wherever it stands.
    pub(super) fn output(&self) -> Option<&FilterChain> {
        match &self.kind {
            ItemKind::Output { chain, .. } => Some(chain),
            _ => None,
        }
    }

    pub(super) fn special(special: Special) -> Self {
        Self { kind: ItemKind::Special(special), at: Position::default() }
    }
}

/// Where a snippet, or what a layout is put around, goes into a source.
#[derive(Debug)]
pub(super) struct Insertion {
    /// The tag, in bytes of the source with plain line ends.
    pub(super) span: Range<usize>,
    pub(super) at: Position,
    pub(super) trims_before: bool,
    pub(super) trims_after: bool,
    /// `None` is the place of `{{ content }}`.
    pub(super) include: Option<IncludeTag>,
}

/// What a source is, which decides what may be put into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SourceKind {
    /// What is rendered: everything is in it.
    Whole,
    /// A template as it was written, or a snippet.
    Fragment,
    /// A fragment with the place of `{{ content }}`.
    Layout,
}

/// Scans one part.
///
/// # Errors
/// Every fault of the markup, up to a limit; of a fault in the delimiters only the first, since what comes after it
/// cannot be read.
pub(super) fn scan(part: Part, source: &str, budget: &Budget) -> Result<Vec<Item>, Vec<TemplateFault>> {
    scan_source(part, SourceKind::Whole, source, budget).map(|scanned| scanned.items)
}

/// What there is in a source.
#[derive(Debug)]
pub(super) struct ScannedSource {
    pub(super) items: Vec<Item>,
    pub(super) insertions: Vec<Insertion>,
    /// Each output and tag, with `raw` and `comment` up to their end, in bytes of the source with plain line ends.
    pub(super) markups: Vec<(Range<usize>, Position)>,
}

/// A source with one kind of line end, so that positions and encoding need not know three.
pub(super) fn plain_lines(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Scans one part, with the places of all its markup.
///
/// # Errors
/// As [`scan`].
pub(super) fn scan_source(
    part: Part,
    kind: SourceKind,
    source: &str,
    budget: &Budget,
) -> Result<ScannedSource, Vec<TemplateFault>> {
    if source.len() > SOURCE_BYTES {
        let detail = format!("{} bytes; at most {SOURCE_BYTES} are allowed", source.len());
        return Err(vec![Problem::new(FaultCode::SourceTooLarge, detail).at(part, Position::START)]);
    }
    let copies = source.len().saturating_mul(2);
    budget
        .take_input(source.len())
        .and_then(|()| budget.hold(copies))
        .and_then(|()| budget.take_steps(text_steps(source.len())))
        .map_err(|spent| vec![Problem::from(spent).at(part, Position::START)])?;
    let source = plain_lines(source);
    let mut scanner = Scanner {
        part,
        kind,
        source: &source,
        budget,
        at: 0,
        followed: (0, Position::START),
        tags: 0,
        scanned: ScannedSource { items: Vec::new(), insertions: Vec::new(), markups: Vec::new() },
        faults: Vec::new(),
    };
    if let Err(fault) = scanner.run() {
        scanner.faults.push(fault);
    }
    if scanner.faults.is_empty() { Ok(scanner.scanned) } else { Err(scanner.faults) }
}

struct Scanner<'s> {
    part: Part,
    kind: SourceKind,
    source: &'s str,
    budget: &'s Budget,
    at: usize,
    /// How far the place was followed, and the place there: a thousand tags do not mean a thousand rescans.
    followed: (usize, Position),
    tags: usize,
    scanned: ScannedSource,
    faults: Vec<TemplateFault>,
}

/// What stands between two delimiters.
struct Markup<'s> {
    is_output: bool,
    inner: &'s str,
    trims_before: bool,
    trims_after: bool,
    end: usize,
}

impl<'s> Scanner<'s> {
    fn run(&mut self) -> Result<(), TemplateFault> {
        let mut trim_next = false;
        while let Some(start) = find_opening(self.source, self.at) {
            let markup = self.markup(start)?;
            self.push_text(self.at, start, trim_next, markup.trims_before);
            let at = self.place(start);
            self.charge(at, markup.end - self.at)?;
            self.at = markup.end;
            trim_next = markup.trims_after;
            self.tags += 1;
            if self.tags > TAGS {
                let detail = format!("more than {TAGS} tags and outputs");
                return Err(Problem::new(FaultCode::TooManyTags, detail).at(self.part, at));
            }
            if markup.inner.len() > MARKUP_BYTES {
                let detail = format!("a tag is longer than {MARKUP_BYTES} bytes");
                return Err(Problem::syntax(detail).at(self.part, at));
            }
            if let Some(include) = self.include(&markup) {
                match include {
                    Ok(include) => self.scanned.insertions.push(Insertion {
                        span: start..markup.end,
                        at,
                        trims_before: markup.trims_before,
                        trims_after: markup.trims_after,
                        include,
                    }),
                    Err(problem) => self.read(at, Err(problem)),
                }
            } else if markup.is_output {
                let read = syntax::output(markup.inner);
                self.read(at, read.map(|chain| ItemKind::Output { shows: shown(&chain), place: Place::Text, chain }));
            } else if let Some(trims) = self.tag(at, markup.inner, trim_next)? {
                trim_next = trims;
            }
            self.scanned.markups.push((start..self.at, at));
            if self.faults.len() >= FAULTS {
                return Ok(());
            }
        }
        self.push_text(self.at, self.source.len(), trim_next, false);
        Ok(())
    }

    /// The place of this byte, which is behind those asked for before.
    fn place(&mut self, to: usize) -> Position {
        let (from, at) = self.followed;
        self.followed = (to, at.after(self.source.get(from..to).unwrap_or_default()));
        self.followed.1
    }

    /// What markup puts in, if it puts in something.
    fn include(&self, markup: &Markup<'s>) -> Option<Result<Option<IncludeTag>, Problem>> {
        let inner = markup.inner.trim();
        if markup.is_output {
            return (self.kind == SourceKind::Layout && inner == "content").then_some(Ok(None));
        }
        let rest = inner.strip_prefix("include").filter(|rest| !rest.starts_with(is_name_character))?;
        (self.kind != SourceKind::Whole).then(|| syntax::include(rest).map(Some))
    }

    /// Charges for this many bytes of the source.
    fn charge(&self, at: Position, bytes: usize) -> Result<(), TemplateFault> {
        self.budget.take_steps(text_steps(bytes)).map_err(|spent: Spent| Problem::from(spent).at(self.part, at))
    }

    /// Reads a tag. `Some` for `raw` and `comment`: whether their end tag trims what follows.
    fn tag(&mut self, at: Position, inner: &'s str, trims: bool) -> Result<Option<bool>, TemplateFault> {
        let inner = inner.trim();
        if inner.starts_with('#') {
            return Ok(None);
        }
        let end = inner.find(|character: char| !is_name_character(character)).unwrap_or(inner.len());
        let (name, rest) = inner.split_at(end);
        let read = match name {
            "raw" | "comment" => return self.verbatim(at, name, trims).map(Some),
            "" => Err(syntax::expected("the name of a tag", inner)),
            _ => syntax::tag(name, rest).map(ItemKind::Tag),
        };
        self.read(at, read);
        Ok(None)
    }

    fn read(&mut self, at: Position, read: Result<ItemKind, Problem>) {
        match read {
            Ok(kind) => self.scanned.items.push(Item { kind, at }),
            Err(problem) => self.faults.push(problem.at(self.part, at)),
        }
    }

    /// Skips over `raw` (whose text is kept as it is) or `comment` (which leaves nothing).
    fn verbatim(&mut self, at: Position, name: &str, trims: bool) -> Result<bool, TemplateFault> {
        let (mut from, mut closing) = (self.at, self.at);
        let mut charged = self.at;
        while let Some(found) = self.source.get(from..).and_then(|rest| rest.find("{%")) {
            let start = from + found;
            let inner_from = start + 2;
            // The next `%}` serves for all `{%` before it: looked for only once it is behind.
            if closing < inner_from {
                let Some(length) = self.source.get(inner_from..).and_then(|rest| rest.find("%}")) else { break };
                closing = inner_from + length;
            }
            self.charge(at, start - charged)?;
            charged = start;
            from = inner_from;
            let inner = self.source.get(inner_from..closing).unwrap_or_default();
            if inner.len() > END_TAG_BYTES {
                continue;
            }
            let word = inner.strip_prefix('-').unwrap_or(inner);
            let word = word.strip_suffix('-').unwrap_or(word).trim();
            if word.strip_prefix("end") == Some(name) {
                if name == "raw" {
                    self.push_text(self.at, start, trims, inner.starts_with('-'));
                }
                self.at = closing + 2;
                return Ok(inner.ends_with('-'));
            }
        }
        Err(Problem::new(FaultCode::UnclosedTag, format!("`{name}` is never closed by `end{name}`")).at(self.part, at))
    }

    fn markup(&mut self, start: usize) -> Result<Markup<'s>, TemplateFault> {
        let is_output = self.source.as_bytes().get(start + 1) == Some(&b'{');
        let body = self.source.get(start + 2..).unwrap_or_default();
        let closing = if is_output { "}}" } else { "%}" };
        let Some(length) = find_closing(body, closing) else {
            let at = self.place(start);
            let opening = if is_output { "{{" } else { "{%" };
            let line = brief(body.lines().next().unwrap_or_default());
            let detail = format!("`{opening}` is never closed by `{closing}`: `{line}`");
            return Err(Problem::new(FaultCode::UnclosedTag, detail).at(self.part, at));
        };
        let inner = body.get(..length).unwrap_or_default();
        let trims_before = inner.starts_with('-');
        let inner = inner.strip_prefix('-').unwrap_or(inner);
        let trims_after = inner.ends_with('-');
        let inner = inner.strip_suffix('-').unwrap_or(inner);
        Ok(Markup { is_output, inner, trims_before, trims_after, end: start + 2 + length + 2 })
    }

    fn push_text(&mut self, from: usize, to: usize, trim_start: bool, trim_end: bool) {
        let text = self.source.get(from..to).unwrap_or_default();
        let begun = if trim_start { text.trim_start() } else { text };
        let from = from + text.len() - begun.len();
        let text = if trim_end { begun.trim_end() } else { begun };
        if !text.is_empty() {
            let at = self.place(from);
            self.scanned.items.push(Item { kind: ItemKind::Text(text.to_owned()), at });
        }
    }
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn find_opening(source: &str, from: usize) -> Option<usize> {
    let mut braces = source.get(from..)?.match_indices('{').map(|(at, _)| from + at);
    braces.find(|at| matches!(source.as_bytes().get(at + 1), Some(b'{' | b'%')))
}

/// The closing delimiter outside quoted text, else the first one at all (an apostrophe in a comment is no quote).
/// Looks for quotes only as far as markup may reach, so that open quotes do not make every tag a scan to the end.
fn find_closing(body: &str, closing: &str) -> Option<usize> {
    let mut quote = None;
    for (at, byte) in body.bytes().take(MARKUP_BYTES).enumerate() {
        match quote {
            Some(open) if byte == open => quote = None,
            None if byte == b'"' || byte == b'\'' => quote = Some(byte),
            None if body.get(at..).is_some_and(|rest| rest.starts_with(closing)) => return Some(at),
            _ => {}
        }
    }
    body.find(closing)
}
