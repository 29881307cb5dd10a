//! The work on HTML that is done once per template: tracked links, the open pixel, the preheader, the place of the footer, and
//! what a value may be where it stands. The document is copied, and changed only where something is put in.

mod blocks;
mod styles;
mod tags;
mod targets;

use runtime::Budget;

use super::conditional;
use super::elements::Elements;
use super::escape::has_prefix;
use super::fault::{FaultCode, Part, Problem, RenderFault, TemplateFault};
use super::limits::{OPEN_ELEMENTS, text_steps};
use super::markup::{Broken, DocumentSpan, HtmlToken, MarkupFaultReason, MarkupReader};
use super::parts::too_complex;
use super::placeholder::{DocumentSegment, Placeholders};
use super::scan::{Item, ItemKind, Place, Shown};
use super::sheet::RootStyles;
use super::syntax::Block;

pub(super) use targets::may_be_web_address;

/// What to put into the document.
pub(super) struct Inserts {
    /// At the start of the body.
    pub(super) start: Vec<Item>,
    /// At the end of the body, outside of all elements.
    pub(super) end: Vec<Item>,
    /// Whether links are replaced by tracked ones.
    pub(super) track_links: bool,
}

/// Rewrites the items of an HTML part. Every Liquid tag is still there, in its order; those of a link or an address stand in its target.
/// Answers as well what the styles of printed values are checked with.
///
/// # Errors
/// The first place where the HTML does not end what it begins, or where a value would be read as markup.
pub(super) fn rewrite(
    items: &[Item],
    inserts: Inserts,
    budget: &Budget,
) -> Result<(Vec<Item>, RootStyles), TemplateFault> {
    let (mut placeholders, document) = Placeholders::document(items, budget).map_err(too_complex)?;
    let start_word = if inserts.start.is_empty() { String::new() } else { placeholders.add(inserts.start) };
    let end_word = if inserts.end.is_empty() { String::new() } else { placeholders.add(inserts.end) };
    let mut rewriter = Rewriter::new(&document, placeholders, Some(RootStyles::default()), budget);
    rewriter.track_links = inserts.track_links;
    rewriter.read(MarkupReader::strict(&document, budget))?;
    let styles = rewriter.styles.take().unwrap_or_default();
    Ok((rewriter.finish(&start_word, &end_word), styles))
}

/// A value that was printed as HTML, read to its end.
pub(super) struct Closed {
    /// What closes all that it leaves open.
    pub(super) end_tags: String,
    /// It may hide what the template shows elsewhere.
    pub(super) is_doubtful: bool,
    /// The styles of the document with those of the value.
    pub(super) styles: Option<RootStyles>,
}

/// Reads a value that is printed as HTML by the rules for templates. `styles`: of the document it stands in; `None` for a
/// message without a footer, in which styles may do what they like.
///
/// # Errors
/// [`RenderFault::HtmlUnclosed`] if the value ends inside a comment, a tag or a style sheet, leaves more open than can be
/// closed, or could hide the footer.
pub(super) fn close(html: &str, styles: Option<RootStyles>, budget: &Budget) -> Result<Closed, RenderFault> {
    budget.take_steps(text_steps(html.len()))?;
    let mut rewriter = Rewriter::new(html, Placeholders::absent_from(html), styles, budget);
    rewriter.is_fragment = true;
    rewriter.read(MarkupReader::fragment(html, budget)).map_err(|fault| match fault.code {
        FaultCode::TooComplex => RenderFault::StepsExceeded,
        FaultCode::TimedOut => RenderFault::DeadlineExceeded,
        _ => RenderFault::HtmlUnclosed,
    })?;
    let Rewriter { elements, is_doubtful, styles, .. } = rewriter;
    Ok(Closed { end_tags: elements.end_tags(), is_doubtful, styles })
}

/// A place in the HTML as its tokenizer sees it: text, or inside a certain tag, attribute, comment or style sheet. A block of
/// Liquid must begin, divide and end at one of them, or the HTML after it would depend on the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spot {
    token: u32,
    /// From 1; 0 is none.
    attribute: usize,
}

const TEXT: Spot = Spot { token: 0, attribute: 0 };

/// Elements in which browsers read markup in other ways than in a body: a value is none there.
const NOT_MARKUP: [&str; 4] = ["svg", "math", "select", "noscript"];

/// A block of Liquid that is open.
struct Open {
    block: Block,
    spot: Spot,
    /// How many elements were open when the branch began: its end tags close no others.
    base: usize,
    /// Tells branches apart.
    branch: u32,
    /// What each branch before this one left open.
    left: Vec<Vec<(u32, String)>>,
    has_else: bool,
}

/// A link to the unsubscribe page that is being read.
struct Leave {
    id: usize,
    elements: usize,
    branch: u32,
    has_text: bool,
}

/// Where the start of the body may be, in bytes of what is written: after `<body>`, after `</head>`, or after document type
/// and `<html>`.
#[derive(Default)]
struct Starts {
    body: Option<usize>,
    head: Option<usize>,
    prologue: usize,
    prologue_ended: bool,
}

/// The condition and the place that decide which readers see a piece.
#[derive(Debug, Default)]
struct View {
    /// Its condition; 0 is none, it is seen by all.
    label: u32,
    /// The token of the conditional comment it stands in: browsers do not see it.
    hidden: Option<u32>,
    /// The branch in which began what Outlook leaves out.
    region: Option<u32>,
}

struct Rewriter<'d> {
    document: &'d str,
    budget: &'d Budget,
    placeholders: Placeholders,
    track_links: bool,
    links: u16,
    out: String,
    /// How far the document is copied.
    copied: usize,
    tokens: u32,
    elements: Elements,
    view: View,
    /// `None` where styles are not checked.
    styles: Option<RootStyles>,
    /// A value is read, which stands somewhere in a document.
    is_fragment: bool,
    blocks: Vec<Open>,
    branches: u32,
    leave: Option<Leave>,
    /// Words that show what the law wants, unless a style sheet hides it.
    shown: Vec<(usize, Shown)>,
    /// There is a style sheet, a script, or a body that hides or colours what is in it.
    is_doubtful: bool,
    starts: Starts,
    /// Where the body ends in what is written, if nothing comes after it.
    end: Option<usize>,
}

impl<'d> Rewriter<'d> {
    fn new(document: &'d str, placeholders: Placeholders, styles: Option<RootStyles>, budget: &'d Budget) -> Self {
        Self {
            document,
            budget,
            placeholders,
            track_links: false,
            links: 0,
            out: String::new(),
            copied: 0,
            tokens: 0,
            elements: Elements::default(),
            view: View::default(),
            styles,
            is_fragment: false,
            blocks: Vec::new(),
            branches: 0,
            leave: None,
            shown: Vec::new(),
            is_doubtful: false,
            starts: Starts::default(),
            end: None,
        }
    }

    /// HTML that is refused, at this byte of the document.
    fn refused(&self, at: usize, detail: impl Into<String>) -> TemplateFault {
        self.fault(at, Problem::new(FaultCode::HtmlInvalid, detail))
    }

    fn fault(&self, at: usize, problem: Problem) -> TemplateFault {
        problem.at(Part::BodyHtml, self.placeholders.position(self.document, at))
    }

    fn unread(&self, Broken { at, why }: Broken) -> TemplateFault {
        match why {
            MarkupFaultReason::Spent(spent) => self.fault(at, spent.into()),
            why => self.refused(at, why.to_string()),
        }
    }

    fn read(&mut self, mut reader: MarkupReader<'d, 'd>) -> Result<(), TemplateFault> {
        while let Some(token) = reader.next().map_err(|broken| self.unread(broken))? {
            self.tokens += 1;
            let start = token.span().start;
            self.look(&reader, start)?;
            match token {
                HtmlToken::Text { span, is_raw } => self.text(span, is_raw)?,
                HtmlToken::Comment { span } => {
                    let spot = Spot { token: self.tokens, attribute: 0 };
                    let text = span.text;
                    let is_conditional = self.view.hidden == Some(self.tokens) || conditional::read(text) != Ok(None);
                    let is_first = text.get(4..).is_some_and(|inner| self.placeholders.word(inner).is_some());
                    if (is_conditional || is_first) && self.placeholders.occur_in(text) {
                        return Err(self.refused(span.start, "a value or a block cannot decide what a comment means"));
                    }
                    for id in self.placeholders.ids(text) {
                        self.item(id, spot, Place::Inert)?;
                    }
                    if has_prefix(text, "<!doctype") && !self.starts.prologue_ended {
                        self.copy(span.end());
                        self.starts.prologue = self.out.len();
                    }
                }
                HtmlToken::Start(tag) => {
                    self.end = None;
                    self.start_tag(&tag)?;
                }
                HtmlToken::End { name, span } => {
                    if self.placeholders.occur_in(span.text) {
                        return Err(self.misplaced(span.start));
                    }
                    self.end_tag(&name.to_ascii_lowercase(), span)?;
                }
            }
            if self.elements.count() > OPEN_ELEMENTS {
                let detail = format!("more than {OPEN_ELEMENTS} elements are open or are never closed");
                return Err(self.fault(start, Problem::new(FaultCode::NestingTooDeep, detail)));
            }
        }
        self.copy(self.document.len());
        self.check_suspects()
    }

    /// Takes note of who sees the piece that was just read.
    fn look(&mut self, reader: &MarkupReader<'_, '_>, at: usize) -> Result<(), TemplateFault> {
        let before = self.view.region;
        let branch = self.branch();
        self.view.label = reader.label();
        self.view.hidden = reader.is_hidden().then(|| self.view.hidden.unwrap_or(self.tokens));
        if self.view.hidden.is_none() {
            self.view.region = (self.view.label != 0).then(|| before.unwrap_or(branch));
        }
        if self.view.region.is_none() && before.is_some_and(|began| began != branch) {
            return Err(self.refused(at, "a conditional comment must begin and end in the same branch"));
        }
        Ok(())
    }

    fn misplaced(&self, at: usize) -> TemplateFault {
        self.refused(at, "a value or a block cannot stand here in a tag: put values into the quotes of an attribute")
    }

    fn copy(&mut self, to: usize) {
        self.out.push_str(self.document.get(self.copied..to).unwrap_or_default());
        self.copied = self.copied.max(to);
    }

    fn text(&mut self, DocumentSpan { text, start }: DocumentSpan<'_>, is_raw: bool) -> Result<(), TemplateFault> {
        let is_blank = text.trim().is_empty();
        if !is_blank && self.view.hidden.is_none() {
            self.end = None;
            self.starts.prologue_ended = true;
        }
        let (spot, place) = match self.view.hidden {
            _ if is_raw => (Spot { token: self.tokens, attribute: 0 }, Place::Inert),
            Some(token) => (Spot { token, attribute: 0 }, Place::Inert),
            None if NOT_MARKUP.iter().any(|element| self.elements.is_in(element)) => (TEXT, Place::Inert),
            None => (TEXT, Place::Text),
        };
        let is_style = is_raw && self.elements.is_in("style");
        if is_style {
            self.check_sheet(text, start)?;
        }
        for segment in self.placeholders.segments(text) {
            match segment {
                DocumentSegment::Text(text) if !is_raw && is_readable_text(text) => self.readable(),
                DocumentSegment::Text(_) => {}
                DocumentSegment::Id(id) => {
                    self.item(id, spot, place)?;
                    if is_style {
                        self.guard(id);
                    }
                }
            }
        }
        Ok(())
    }

    /// Text that a reader sees stands here, if its elements show it.
    fn readable(&mut self) {
        let (branch, is_plain) = (self.branch(), self.is_plain());
        if let Some(leave) = &mut self.leave {
            leave.has_text |= is_plain && leave.branch == branch;
        }
    }

    fn branch(&self) -> u32 {
        self.blocks.last().map_or(0, |open| open.branch)
    }

    /// How many elements a tag cannot close where it stands.
    fn base(&self) -> usize {
        self.blocks.last().map_or(0, |open| open.base).max(self.elements.base(self.view.label))
    }

    /// Whether what stands here is seen, by all programs.
    fn is_plain(&self) -> bool {
        self.view.label == 0 && self.elements.is_plain()
    }

    fn new_branch(&mut self) -> u32 {
        self.branches += 1;
        self.branches
    }

    /// Whether what is read here is kept to be printed somewhere else.
    fn is_captured(&self) -> bool {
        self.blocks.iter().any(|open| open.block == Block::Capture)
    }

    fn finish(mut self, start_word: &str, end_word: &str) -> Vec<Item> {
        if !self.is_doubtful {
            for (id, shown) in std::mem::take(&mut self.shown) {
                for item in self.placeholders.get_mut(id).into_iter().flatten() {
                    if let ItemKind::Output { shows, .. } = &mut item.kind {
                        *shows = Some(shown);
                    }
                }
            }
        }
        if !end_word.is_empty() {
            let at = self.end.unwrap_or(self.out.len());
            self.out.insert_str(at, &format!("{}{end_word}", self.elements.end_tags()));
        }
        if !start_word.is_empty() {
            let at = self.starts.body.or(self.starts.head).unwrap_or(self.starts.prologue);
            self.out.insert_str(at, start_word);
        }
        self.placeholders.items(&self.out)
    }
}

/// Whether a reader sees something in this text: a letter or a digit, and none of those that are blank.
fn is_readable_text(text: &str) -> bool {
    htmlize::unescape(text).chars().any(|character| {
        character.is_alphanumeric() && !matches!(character, '\u{115F}' | '\u{1160}' | '\u{3164}' | '\u{FFA0}')
    })
}
