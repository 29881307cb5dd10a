//! The work on HTML that is done once per template: tracked links, the open pixel, the preheader, the place of the footer, and
//! what a value may be where it stands. The document is copied, and changed only where something is put in.

use runtime::Budget;

use super::address::{self, Kind};
use super::elements::{Elements, is_plain};
use super::entities;
use super::escape::{has_prefix, is_web_address};
use super::fault::{FaultCode, Part, Position, Problem, TemplateFault};
use super::limits::OPEN_ELEMENTS;
use super::markup::{Attribute, Broken, Reader, Tag as HtmlTag, Token, Why, is_void};
use super::placeholder::{Placeholders, Segment};
use super::program::shown;
use super::scan::{Item, ItemKind, Place, Shown, Special};
use super::structure::{closes, is_balanced, opens};
use super::syntax::{Block, Operand, Tag};

/// What to put into the document.
pub(super) struct Inserts {
    /// At the start of the body.
    pub(super) start: Vec<Item>,
    /// At the end of the body, outside of all elements.
    pub(super) end: Vec<Item>,
    /// Whether links are replaced by tracked ones.
    pub(super) track_links: bool,
}

/// Rewrites the items of an HTML part. Answers the new items; every Liquid tag is still there, in its order.
///
/// # Errors
/// The first place where the HTML does not end what it begins, or where a value would be read as markup.
pub(super) fn rewrite(items: &[Item], inserts: Inserts, budget: &Budget) -> Result<Vec<Item>, TemplateFault> {
    let first = Position { line: 1, column: 1 };
    let (mut placeholders, document) =
        Placeholders::document(items, budget).map_err(|spent| Problem::from(spent).at(Part::BodyHtml, first))?;
    let start_word = if inserts.start.is_empty() { String::new() } else { placeholders.add(inserts.start) };
    let end_word = if inserts.end.is_empty() { String::new() } else { placeholders.add(inserts.end) };
    let mut rewriter = Rewriter {
        document: &document,
        budget,
        placeholders,
        track_links: inserts.track_links,
        links: 0,
        out: String::with_capacity(document.len()),
        copied: 0,
        tokens: 0,
        elements: Elements::default(),
        blocks: Vec::new(),
        branches: 0,
        leave: None,
        shown: Vec::new(),
        is_doubtful: false,
        starts: Starts::default(),
        end: None,
    };
    if let Err(fault) = rewriter.read() {
        let at = fault.at.position(&rewriter.placeholders, &document);
        return Err(fault.problem.at(Part::BodyHtml, at));
    }
    Ok(rewriter.finish(&start_word, &end_word))
}

/// A fault, and where in the document or the source it is.
struct Fault {
    problem: Problem,
    at: At,
}

#[derive(Clone, Copy)]
enum At {
    Document(usize),
    Source(Position),
}

impl At {
    fn position(self, placeholders: &Placeholders, document: &str) -> Position {
        match self {
            Self::Document(at) => placeholders.position(document, at),
            Self::Source(position) => position,
        }
    }
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        let problem = match broken.why {
            Why::Spent(spent) => spent.into(),
            why => invalid(why.to_string()),
        };
        Self { problem, at: At::Document(broken.at) }
    }
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(FaultCode::HtmlInvalid, detail)
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

/// A block of Liquid that is open.
struct Open {
    block: Block,
    spot: Spot,
    /// How many elements were open when the branch began: its end tags close no others.
    base: usize,
    /// Tells branches apart.
    branch: u32,
    /// What each branch before this one left open.
    left: Vec<Vec<String>>,
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
    fn read(&mut self) -> Result<(), Fault> {
        let document = self.document;
        let mut reader = Reader::strict(document, self.budget);
        while let Some(token) = reader.next()? {
            self.tokens += 1;
            let start = match &token {
                Token::Text { span, .. } | Token::Comment { span } | Token::End { span, .. } => span.start,
                Token::Start(tag) => tag.span.start,
            };
            match token {
                Token::Text { span, is_raw } => self.text(document.get(span).unwrap_or_default(), is_raw)?,
                Token::Comment { span } => {
                    let spot = Spot { token: self.tokens, attribute: 0 };
                    let text = document.get(span.clone()).unwrap_or_default();
                    for id in self.placeholders.ids(text) {
                        self.item(id, spot, Place::Inert)?;
                    }
                    if has_prefix(text, "<!doctype") && !self.starts.prologue_ended {
                        self.copy(span.end);
                        self.starts.prologue = self.out.len();
                    }
                }
                Token::Start(tag) => {
                    self.end = None;
                    self.start_tag(&tag)?;
                }
                Token::End { name, span } => {
                    if self.placeholders.occur_in(document.get(span.clone()).unwrap_or_default()) {
                        return Err(self.misplaced(span.start));
                    }
                    self.end_tag(&name.to_ascii_lowercase(), span.start, span.end)?;
                }
            }
            if self.elements.count() > OPEN_ELEMENTS {
                let detail = format!("more than {OPEN_ELEMENTS} elements are open or are never closed");
                let problem = Problem::new(FaultCode::NestingTooDeep, detail);
                return Err(Fault { problem, at: At::Document(start) });
            }
        }
        self.copy(document.len());
        Ok(())
    }

    fn misplaced(&self, at: usize) -> Fault {
        let problem =
            invalid("a value or a block cannot stand here in a tag: put values into the quotes of an attribute");
        Fault { problem, at: At::Document(at) }
    }

    fn copy(&mut self, to: usize) {
        self.out.push_str(self.document.get(self.copied..to).unwrap_or_default());
        self.copied = self.copied.max(to);
    }

    fn text(&mut self, text: &str, is_raw: bool) -> Result<(), Fault> {
        let is_blank = text.trim().is_empty();
        if !is_blank {
            self.end = None;
            self.starts.prologue_ended = true;
        }
        let (spot, place) =
            if is_raw { (Spot { token: self.tokens, attribute: 0 }, Place::Inert) } else { (TEXT, Place::Text) };
        let is_style = is_raw && self.elements.is_in("style");
        let mut ids = Vec::new();
        let mut is_readable = false;
        for segment in self.placeholders.segments(text) {
            match segment {
                Segment::Text(text) if !is_raw => is_readable |= is_readable_text(text),
                Segment::Text(_) => {}
                Segment::Id(id) => {
                    // What stands before a block is text outside of it.
                    ids.push((id, is_readable));
                    is_readable = false;
                }
            }
        }
        for (id, was_readable) in ids {
            if was_readable {
                self.readable();
            }
            self.item(id, spot, place)?;
            if is_style {
                self.guard(id);
            }
        }
        if is_readable {
            self.readable();
        }
        Ok(())
    }

    /// Text that a reader sees stands here, if its elements show it.
    fn readable(&mut self) {
        let (branch, is_plain) = (self.branch(), self.elements.is_plain());
        if let Some(leave) = &mut self.leave {
            leave.has_text |= is_plain && leave.branch == branch;
        }
    }

    fn branch(&self) -> u32 {
        self.blocks.last().map_or(0, |open| open.branch)
    }

    fn base(&self) -> usize {
        self.blocks.last().map_or(0, |open| open.base)
    }

    fn new_branch(&mut self) -> u32 {
        self.branches += 1;
        self.branches
    }

    /// Whether what is read here is kept to be printed somewhere else.
    fn is_captured(&self) -> bool {
        self.blocks.iter().any(|open| open.block == Block::Capture)
    }

    /// Takes note of one tag or output of Liquid.
    fn item(&mut self, id: usize, spot: Spot, place: Place) -> Result<(), Fault> {
        let Some(item) = self.placeholders.get(id).first().cloned() else { return Ok(()) };
        let at = At::Source(item.at);
        let fault = |detail: &str| Fault { problem: invalid(detail), at };
        if let Some(block) = opens(&item) {
            let branch = self.new_branch();
            let base = self.elements.len();
            self.blocks.push(Open { block, spot, base, branch, left: Vec::new(), has_else: false });
            return Ok(());
        }
        let is_close = closes(&item).is_some();
        let is_divide = matches!(&item.kind, ItemKind::Tag(Tag::Else | Tag::Elsif(_) | Tag::When(_)));
        if is_close || is_divide {
            let branch = self.new_branch();
            let Some(open) = self.blocks.last_mut() else { return Ok(()) };
            if open.spot != spot {
                return Err(fault(
                    "a block must begin and end at the same place of the HTML: in text, or in the value of one attribute",
                ));
            }
            let left = self.elements.names_from(open.base);
            let taken = self.budget.take_steps(left.len() as u64);
            taken.map_err(|spent| Fault { problem: spent.into(), at })?;
            if matches!(open.block, Block::For | Block::Capture) && !self.elements.end_by_themselves(open.base) {
                return Err(fault("an element that is opened inside `for` or `capture` must be closed inside it"));
            }
            let is_case_start = open.block == Block::Case && open.left.is_empty() && !open.has_else;
            if is_divide {
                open.has_else |= matches!(&item.kind, ItemKind::Tag(Tag::Else));
                if is_case_start {
                    // What stands between `case` and its first `when` is never shown.
                    self.elements.truncate(open.base);
                    open.left.push(Vec::new());
                } else {
                    open.left.push(left);
                }
                open.branch = branch;
                open.base = self.elements.len();
                return Ok(());
            }
            let mut branches = open.left.iter().skip(usize::from(open.block == Block::Case));
            // Branches that all leave the same open count once.
            let doubled = if open.has_else && branches.all(|other| *other == left) {
                left.len() * open.left.len().saturating_sub(usize::from(open.block == Block::Case))
            } else {
                0
            };
            self.elements.forget(doubled);
            self.blocks.pop();
            return Ok(());
        }
        match &item.kind {
            ItemKind::Tag(Tag::Break | Tag::Continue) => {
                let open = self.blocks.iter().rev().find(|open| open.block == Block::For);
                let is_clean = open.is_none_or(|open| open.spot == spot && self.elements.end_by_themselves(open.base));
                if is_clean { Ok(()) } else { Err(fault("`break` and `continue` cannot stand inside an element")) }
            }
            ItemKind::Output(chain) => {
                if place == Place::Text
                    && shown(chain) == Some(Shown::PhysicalAddress)
                    && self.elements.is_plain()
                    && !self.is_captured()
                {
                    self.shown.push((id, Shown::PhysicalAddress));
                }
                let kind = ItemKind::Placed { chain: chain.clone(), place, shows: None };
                if let Some(items) = self.placeholders.get_mut(id) {
                    *items = vec![Item { kind, at: item.at }];
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Has the output behind a word checked for addresses when it is rendered.
    fn guard(&mut self, id: usize) {
        let Some(items) = self.placeholders.get_mut(id) else { return };
        if items.iter().any(|item| item.output().is_some()) {
            *items = guarded(Kind::Style, std::mem::take(items));
        }
    }

    fn start_tag(&mut self, tag: &HtmlTag<'_>) -> Result<(), Fault> {
        if self.placeholders.occur_in(tag.name) {
            return Err(self.misplaced(tag.span.start));
        }
        let name = tag.name.to_ascii_lowercase();
        let (mut is_plain_element, mut is_leave) = (true, None);
        let is_tracked =
            self.track_links && !tag.attributes.iter().any(|attribute| self.name_of(attribute) == "data-no-track");
        for (index, attribute) in tag.attributes.iter().enumerate() {
            let written_name = self.document.get(attribute.name.clone()).unwrap_or_default();
            for id in self.placeholders.ids(written_name) {
                if self.placeholders.get(id).iter().any(|item| item.output().is_some()) {
                    return Err(self.misplaced(attribute.name.start));
                }
                self.item(id, Spot { token: self.tokens, attribute: 0 }, Place::Quoted)?;
            }
            let attribute_name = self.name_of(attribute);
            if attribute_name == "data-no-track" && matches!(name.as_str(), "a" | "area") {
                self.leave_out(attribute);
                continue;
            }
            let value = self.document.get(attribute.value.clone()).unwrap_or_default();
            let ids = self.placeholders.ids(value);
            for id in &ids {
                self.item(*id, Spot { token: self.tokens, attribute: index + 1 }, Place::Quoted)?;
            }
            let is_own = name == "a" && attribute_name == "href" && ids.len() == 1 && self.is_unsubscribe(value);
            if is_own {
                is_leave = ids.first().copied();
            } else {
                let value = ids.is_empty().then_some(value);
                is_plain_element &= is_plain(&attribute_name, value);
            }
            self.value(&name, &attribute_name, attribute, is_tracked)?;
        }
        self.count_element(tag, name, is_plain_element, is_leave)
    }

    /// An attribute's name without the Liquid that is written against it.
    fn name_of(&self, attribute: &Attribute) -> String {
        let written = self.document.get(attribute.name.clone()).unwrap_or_default();
        self.placeholders.without(written).to_ascii_lowercase()
    }

    fn is_unsubscribe(&self, value: &str) -> bool {
        match self.placeholders.items(value.trim()).as_slice() {
            [item] => item.output().and_then(shown) == Some(Shown::Unsubscribe),
            _ => false,
        }
    }

    /// Opens an element.
    fn count_element(
        &mut self,
        tag: &HtmlTag<'_>,
        name: String,
        is_plain_element: bool,
        leave: Option<usize>,
    ) -> Result<(), Fault> {
        self.is_doubtful |= matches!(name.as_str(), "style" | "link" | "script");
        if matches!(name.as_str(), "html" | "body") {
            return self.root_tag(tag, &name, is_plain_element);
        }
        self.starts.prologue_ended = true;
        if is_void(&name) || (tag.is_self_closing && self.elements.is_foreign(&name)) {
            return Ok(());
        }
        self.elements.open(&name, is_plain_element, self.base());
        if name == "a" {
            let is_visible = self.elements.is_plain() && !self.is_captured();
            let (elements, branch) = (self.elements.len(), self.branch());
            self.leave = leave.filter(|_| is_visible).map(|id| Leave { id, elements, branch, has_text: false });
        }
        Ok(())
    }

    /// `<html>` and `<body>` are never closed before the end; what hides them hides everything.
    fn root_tag(&mut self, tag: &HtmlTag<'_>, name: &str, is_plain_element: bool) -> Result<(), Fault> {
        self.is_doubtful |= !is_plain_element;
        for attribute in &tag.attributes {
            let value = self.document.get(attribute.value.clone()).unwrap_or_default();
            let style: String = entities::decode(value).to_ascii_lowercase().split_whitespace().collect();
            let hides = match self.name_of(attribute).as_str() {
                "hidden" => true,
                "style" => {
                    self.placeholders.occur_in(value)
                        || ["\\", "/*", "display:none", "visibility:", "opacity:"]
                            .iter()
                            .any(|hides| style.contains(hides))
                }
                _ => false,
            };
            if hides {
                let problem = invalid(format!("`{name}` cannot be hidden, and its style cannot come from a value"));
                return Err(Fault { problem, at: At::Document(attribute.name.start) });
            }
        }
        self.copy(tag.span.end);
        if name == "body" {
            self.elements.end_head();
            self.starts.body.get_or_insert(self.out.len());
            self.starts.prologue_ended = true;
        } else if !self.starts.prologue_ended {
            self.starts.prologue = self.out.len();
        }
        Ok(())
    }

    fn end_tag(&mut self, name: &str, start: usize, end: usize) -> Result<(), Fault> {
        if matches!(name, "body" | "html") {
            if self.end.is_none() && self.blocks.is_empty() {
                self.copy(start);
                self.end = Some(self.out.len());
            }
            return Ok(());
        }
        self.end = None;
        if name == "a"
            && let Some(leave) = self.leave.take()
            && leave.has_text
            && leave.elements == self.elements.len()
            && leave.branch == self.branch()
        {
            self.shown.push((leave.id, Shown::Unsubscribe));
        }
        let looked = self.elements.close(name, self.base());
        self.charge(looked, start)?;
        if name == "head" && self.starts.head.is_none() {
            self.copy(end);
            self.starts.head = Some(self.out.len());
        }
        Ok(())
    }

    /// Charges for elements that were looked at.
    fn charge(&self, elements: usize, at: usize) -> Result<(), Fault> {
        let taken = self.budget.take_steps(elements as u64);
        taken.map_err(|spent| Fault { problem: spent.into(), at: At::Document(at) })
    }

    /// Drops an attribute and the space before it.
    fn leave_out(&mut self, attribute: &Attribute) {
        let before = self.document.get(..attribute.name.start).unwrap_or_default().trim_end().len();
        self.copy(before.max(self.copied));
        let end = attribute.value.end.max(attribute.name.end) + usize::from(attribute.quote.is_some());
        self.copied = end;
    }

    /// Writes an attribute's value: a tracked link, a checked address, or in quotes.
    fn value(&mut self, element: &str, name: &str, attribute: &Attribute, is_tracked: bool) -> Result<(), Fault> {
        let value = self.document.get(attribute.value.clone()).unwrap_or_default();
        let is_link = name == "href" && matches!(element, "a" | "area");
        let is_dynamic = self.placeholders.occur_in(value);
        let may_be_tracked = is_link && is_tracked;
        if !is_dynamic && !may_be_tracked {
            return Ok(());
        }
        let target = self.placeholders.items(value);
        let has_output = target.iter().any(|item| item.output().is_some());
        if has_output && (name.starts_with("on") || name == "srcdoc") {
            let problem = invalid(format!("a value cannot stand in `{name}`"));
            return Err(Fault { problem, at: At::Document(attribute.name.start) });
        }
        if may_be_tracked
            && self.links < u16::MAX
            && let Some(items) = tracked(&target, self.links)
        {
            self.links += 1;
            let word = self.placeholders.add(items);
            self.write_value(attribute, &word);
            return Ok(());
        }
        let kind = Kind::of(element, name).filter(|kind| has_output && needs_guard(*kind, &target));
        if let Some(kind) = kind {
            let word = self.placeholders.add(guarded(kind, target));
            self.write_value(attribute, &word);
        } else if is_dynamic && attribute.quote.is_none() {
            // An unquoted value would end at the first space of what is put in.
            self.write_value(attribute, &value.replace('"', "&quot;"));
        }
        Ok(())
    }

    fn write_value(&mut self, attribute: &Attribute, value: &str) {
        self.copy(attribute.value.start);
        let quote = if attribute.quote.is_some() { "" } else { "\"" };
        self.out.push_str(quote);
        self.out.push_str(value);
        self.out.push_str(quote);
        self.copied = attribute.value.end;
    }

    fn finish(mut self, start_word: &str, end_word: &str) -> Vec<Item> {
        if !self.is_doubtful {
            for (id, shown) in std::mem::take(&mut self.shown) {
                for item in self.placeholders.get_mut(id).into_iter().flatten() {
                    if let ItemKind::Placed { shows, .. } = &mut item.kind {
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
    entities::decode(text).chars().any(|character| {
        character.is_alphanumeric() && !matches!(character, '\u{115F}' | '\u{1160}' | '\u{3164}' | '\u{FFA0}')
    })
}

fn guarded(kind: Kind, target: Vec<Item>) -> Vec<Item> {
    let mut items = vec![Item::special(Special::AddressStart(kind))];
    items.extend(target);
    items.push(Item::tag(Tag::End(Block::Address)));
    items
}

/// Whether a value can decide where an address leads, or what a style loads. Pages of ours are what they are.
fn needs_guard(kind: Kind, target: &[Item]) -> bool {
    let is_one = matches!(kind, Kind::Link | Kind::Source);
    match target {
        [item] if is_own_page(item) => false,
        [Item { kind: ItemKind::Text(text), .. }, ..] if is_one => !address::has_own_scheme(&entities::decode(text)),
        _ => true,
    }
}

/// The items of a tracked link with this target. `None`: not a link to track. A link whose host comes from a value is not:
/// whoever sets the value would borrow our name for any place.
fn tracked(target: &[Item], link: u16) -> Option<Vec<Item>> {
    if let [Item { kind: ItemKind::Text(text), .. }] = target {
        let url = entities::decode(text).trim().to_owned();
        return is_web_address(&url).then(|| vec![Item::special(Special::Click { link, url })]);
    }
    let has_output = target.iter().any(|item| item.output().is_some());
    let has_own_host = match target.first().map(|item| &item.kind) {
        Some(ItemKind::Text(text)) => address::has_own_host(&entities::decode(text)),
        _ => false,
    };
    if !may_be_web_address(target) || !is_balanced(target) || (has_output && !has_own_host) {
        return None;
    }
    let mut items = vec![Item::special(Special::LinkStart { link })];
    items.extend_from_slice(target);
    items.push(Item::tag(Tag::End(Block::Link)));
    Some(items)
}

/// Whether a target that is rendered can turn out to be a web address, judging by how it begins.
pub(super) fn may_be_web_address(target: &[Item]) -> bool {
    let has_quotes = target.iter().any(|item| matches!(&item.kind, ItemKind::Text(text) if text.contains(['"', '\''])));
    let begins = match target.first().map(|item| &item.kind) {
        Some(ItemKind::Text(text)) => {
            let text = entities::decode(text);
            let text = text.trim_start();
            text.is_empty() || is_web_address(text) || has_prefix("https://", text) || has_prefix("http://", text)
        }
        Some(_) => true,
        None => false,
    };
    begins && !has_quotes
}

/// Whether an item prints a page of ours as it is.
fn is_own_page(item: &Item) -> bool {
    let Some(chain) = item.output() else { return false };
    shown(chain) == Some(Shown::Unsubscribe)
        || (chain.filters.is_empty()
            && matches!(&chain.entry, Operand::Path(path) if path.root == "preferences_url" && path.rest.is_empty()))
}
