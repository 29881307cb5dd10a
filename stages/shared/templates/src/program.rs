//! A part's tree as it is run, and how it is built from items.

use liquid::model::KString;
use schemas::LinkToken;

use super::escape;
use super::fault::{FaultCode, Part, Problem, TemplateFault};
use super::filters::{CompiledChain, ESCAPES, NEWLINE_TO_BR, RAW};
use super::names::Locals;
use super::scan::{AddressKind, Item, ItemKind, Place, Shown, Special};
use super::structure::{closes, divides};
use super::syntax::{Condition, FilterCall, FilterChain, ForLoop, LiquidTag, Operand};

/// How printed values are made safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Context {
    /// Values are escaped for HTML, unless they say otherwise.
    Html,
    /// Values go out as they are.
    Plain,
    /// As [`Plain`](Self::Plain), from a template written for HTML: escaping filters are left out.
    PlainFromHtml,
}

impl Context {
    /// That of a part as its author writes it.
    pub(super) fn of(part: Part) -> Self {
        match part {
            Part::Preheader | Part::BodyHtml => Self::Html,
            Part::Subject | Part::BodyText => Self::Plain,
        }
    }
}

/// What a printed value is escaped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// Goes out as it is.
    Not,
    /// HTML text and attributes.
    Html,
    /// HTML already, such as captured text, that stands in an attribute: it may not end the attribute.
    Quotes,
    /// HTML already, that stands in a comment or a style sheet: it may not end it.
    Angles,
    /// HTML by the author's wish: it is checked, and what it leaves open is closed after it.
    Close,
}

impl Escape {
    /// Appends text, escaped.
    pub(super) fn push(self, text: &str, out: &mut String) {
        match self {
            Self::Not | Self::Close => out.push_str(text),
            Self::Html => escape::html(text, out),
            Self::Quotes => escape::some(text, b"<>\"'", out),
            Self::Angles => escape::some(text, b"<>", out),
        }
    }
}

#[derive(Debug)]
pub(super) enum Instruction {
    Text(String),
    Output { chain: CompiledChain, escape: Escape, breaks: bool, shows: Option<Shown> },
    Click { link: u16, url: String },
    Link { link: u16, target: Vec<Instruction> },
    // An address, or something that holds addresses, that comes from a value.
    Address { kind: AddressKind, target: Vec<Instruction> },
    OpenPixel,
    Unsubscribe(Escape),
    UnsubscribeWord,
    UnlessShown { field: Shown, body: Vec<Instruction> },
    // Branches in order; the first whose test holds runs.
    Choose { branches: Vec<(BranchTest, Vec<Instruction>)>, otherwise: Vec<Instruction> },
    Case { value: Operand, branches: Vec<(Vec<Operand>, Vec<Instruction>)>, otherwise: Vec<Instruction> },
    For(Box<Loop>),
    Assign { name: KString, chain: CompiledChain },
    Capture { name: KString, body: Vec<Instruction> },
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct BranchTest {
    pub(super) negated: bool,
    pub(super) any_of: Condition,
}

#[derive(Debug)]
pub(super) struct Loop {
    pub(super) read: ForLoop,
    pub(super) body: Vec<Instruction>,
    pub(super) otherwise: Vec<Instruction>,
}

/// The items that are still to be built.
type Rest<'i> = std::slice::Iter<'i, Item>;

/// What ended a run of operations inside a block.
enum Ending<'i> {
    Close,
    Divide(&'i Item),
    Source,
}

/// Builds the tree of a part whose structure has been checked.
pub(super) struct Builder<'a> {
    pub(super) part: Part,
    pub(super) context: Context,
    pub(super) locals: &'a Locals,
}

impl Builder<'_> {
    /// # Errors
    /// An unknown filter, wrong arguments, or a structure that does not close.
    pub(super) fn build(&self, items: &[Item]) -> Result<Vec<Instruction>, TemplateFault> {
        let mut rest = items.iter();
        let (ops, ending) = self.run(&mut rest)?;
        match ending {
            Ending::Source => Ok(ops),
            Ending::Close | Ending::Divide(_) => Err(self.broken(items.last())),
        }
    }

    /// The fault of a single item: an unknown filter, wrong arguments, a misplaced `raw`.
    pub(super) fn fault(&self, item: &Item) -> Option<TemplateFault> {
        self.single(item).err()
    }

    fn broken(&self, item: Option<&Item>) -> TemplateFault {
        let at = item.map(|item| item.at).unwrap_or_default();
        Problem::new(FaultCode::UnclosedBlock, "blocks do not close as they were opened").at(self.part, at)
    }

    fn run<'i>(&self, rest: &mut Rest<'i>) -> Result<(Vec<Instruction>, Ending<'i>), TemplateFault> {
        let mut ops = Vec::new();
        while let Some(item) = rest.next() {
            if closes(item).is_some() {
                return Ok((ops, Ending::Close));
            }
            if divides(item) {
                return Ok((ops, Ending::Divide(item)));
            }
            ops.extend(self.block(item, rest)?);
        }
        Ok((ops, Ending::Source))
    }

    fn single(&self, item: &Item) -> Result<Option<Instruction>, TemplateFault> {
        let at = |problem: Problem| problem.at(self.part, item.at);
        Ok(Some(match &item.kind {
            ItemKind::Text(text) => Instruction::Text(text.clone()),
            ItemKind::Output { chain, place, shows } => self.output(chain, *place, *shows).map_err(at)?,
            ItemKind::Special(special) => match special {
                Special::Click { link, url } => Instruction::Click { link: *link, url: url.clone() },
                Special::OpenPixel => Instruction::OpenPixel,
                Special::Unsubscribe if self.context == Context::Html => Instruction::Unsubscribe(Escape::Html),
                Special::Unsubscribe => Instruction::Unsubscribe(Escape::Not),
                Special::UnsubscribeWord => Instruction::UnsubscribeWord,
                Special::Link { link, target } => Instruction::Link { link: *link, target: self.build(target)? },
                Special::Address { kind, target } => Instruction::Address { kind: *kind, target: self.build(target)? },
                Special::UnlessShown { field, body } => {
                    Instruction::UnlessShown { field: *field, body: self.build(body)? }
                }
                Special::Footer => return Ok(None),
            },
            ItemKind::Tag(LiquidTag::Assign(name, chain)) => {
                if let Some(raw) = chain.filters.iter().find(|filter| filter.name == RAW) {
                    return Err(at(misplaced_raw(raw)));
                }
                Instruction::Assign {
                    name: KString::from_ref(name),
                    chain: CompiledChain::build(&chain.entry, &chain.filters).map_err(at)?,
                }
            }
            ItemKind::Tag(LiquidTag::Break) => Instruction::Break,
            ItemKind::Tag(LiquidTag::Continue) => Instruction::Continue,
            ItemKind::Tag(_) => return Ok(None),
        }))
    }

    /// A block with what stands in it, or a single item.
    fn block(&self, item: &Item, rest: &mut Rest<'_>) -> Result<Option<Instruction>, TemplateFault> {
        Ok(Some(match &item.kind {
            ItemKind::Tag(LiquidTag::If(condition)) => self.choose(condition, false, item, rest)?,
            ItemKind::Tag(LiquidTag::Unless(condition)) => self.choose(condition, true, item, rest)?,
            ItemKind::Tag(LiquidTag::Case(value)) => self.case(value, item, rest)?,
            ItemKind::Tag(LiquidTag::For(read)) => {
                let (body, ending) = self.run(rest)?;
                let otherwise = self.otherwise(ending, item, rest)?;
                Instruction::For(Box::new(Loop { read: (**read).clone(), body, otherwise }))
            }
            ItemKind::Tag(LiquidTag::Capture(name)) => {
                Instruction::Capture { name: KString::from_ref(name), body: self.closed(item, rest)? }
            }
            _ => return self.single(item),
        }))
    }

    /// A block without branches.
    fn closed(&self, item: &Item, rest: &mut Rest<'_>) -> Result<Vec<Instruction>, TemplateFault> {
        match self.run(rest)? {
            (body, Ending::Close) => Ok(body),
            _ => Err(self.broken(Some(item))),
        }
    }

    /// What follows a body: its end, or `else` and its body.
    fn otherwise(
        &self,
        ending: Ending<'_>,
        item: &Item,
        rest: &mut Rest<'_>,
    ) -> Result<Vec<Instruction>, TemplateFault> {
        match ending {
            Ending::Close => Ok(Vec::new()),
            Ending::Divide(Item { kind: ItemKind::Tag(LiquidTag::Else), .. }) => self.closed(item, rest),
            Ending::Divide(_) | Ending::Source => Err(self.broken(Some(item))),
        }
    }

    fn choose(
        &self,
        condition: &Condition,
        negated: bool,
        item: &Item,
        rest: &mut Rest<'_>,
    ) -> Result<Instruction, TemplateFault> {
        let (body, mut ending) = self.run(rest)?;
        let mut branches = vec![(BranchTest { negated, any_of: condition.clone() }, body)];
        while let Ending::Divide(Item { kind: ItemKind::Tag(LiquidTag::Elsif(condition)), .. }) = ending {
            let (body, next) = self.run(rest)?;
            branches.push((BranchTest { negated: false, any_of: condition.clone() }, body));
            ending = next;
        }
        Ok(Instruction::Choose { branches, otherwise: self.otherwise(ending, item, rest)? })
    }

    fn case(&self, value: &Operand, item: &Item, rest: &mut Rest<'_>) -> Result<Instruction, TemplateFault> {
        // What stands between `case` and its first `when` is never shown.
        let (_, mut ending) = self.run(rest)?;
        let mut branches = Vec::new();
        while let Ending::Divide(Item { kind: ItemKind::Tag(LiquidTag::When(values)), .. }) = ending {
            let (body, next) = self.run(rest)?;
            branches.push((values.clone(), body));
            ending = next;
        }
        let otherwise = self.otherwise(ending, item, rest)?;
        Ok(Instruction::Case { value: value.clone(), branches, otherwise })
    }

    fn output(&self, chain: &FilterChain, place: Place, shows: Option<Shown>) -> Result<Instruction, Problem> {
        let (mut filters, mut breaks) = (chain.filters.as_slice(), false);
        let is_raw = prints_markup(chain);
        let mut is_markup = bare_name(chain).is_some_and(|name| self.locals.is_escaped(name));
        match filters.split_last() {
            Some((_, before)) if is_raw => filters = before,
            Some((last, before)) if last.name == NEWLINE_TO_BR && self.context != Context::Plain => {
                filters = before;
                breaks = self.context == Context::Html;
            }
            _ => {}
        }
        if let Some((last, before)) = filters.split_last()
            && ESCAPES.contains(&last.name.as_str())
        {
            is_markup = true;
            if self.context == Context::PlainFromHtml {
                filters = before;
            }
        }
        if let Some(raw) = filters.iter().find(|filter| filter.name == RAW) {
            return Err(misplaced_raw(raw));
        }
        let escape = match (self.context, place) {
            (Context::Plain | Context::PlainFromHtml, _) => Escape::Not,
            (Context::Html, _) if !is_raw && !is_markup => Escape::Html,
            (Context::Html, Place::Text) if is_raw => Escape::Close,
            (Context::Html, Place::Text) => Escape::Not,
            (Context::Html, Place::Quoted) => Escape::Quotes,
            (Context::Html, Place::Inert) => Escape::Angles,
        };
        // A line break is markup, which only text may hold.
        breaks &= place == Place::Text;
        Ok(Instruction::Output { chain: CompiledChain::build(&chain.entry, filters)?, escape, breaks, shows })
    }
}

/// The name whose value an output prints as it is. One that goes through a filter may show anything.
fn bare_name(chain: &FilterChain) -> Option<&str> {
    match &chain.entry {
        Operand::Path(path) if path.rest.is_empty() && chain.filters.is_empty() => Some(&path.root),
        _ => None,
    }
}

/// Which of the fields the law wants an output shows.
pub(super) fn shown(chain: &FilterChain) -> Option<Shown> {
    match bare_name(chain)? {
        "unsubscribe_url" => Some(Shown::Unsubscribe),
        "physical_address" => Some(Shown::PhysicalAddress),
        _ => None,
    }
}

/// The token of the page of ours whose address an output prints as it is.
pub(super) fn own_page(chain: &FilterChain) -> Option<LinkToken> {
    match bare_name(chain)? {
        "unsubscribe_url" => Some(LinkToken::Unsubscribe),
        "preferences_url" => Some(LinkToken::Preferences),
        _ => None,
    }
}

/// Whether an output prints its value as HTML.
pub(super) fn prints_markup(chain: &FilterChain) -> bool {
    chain.filters.last().is_some_and(|filter| filter.name == RAW)
}

fn misplaced_raw(filter: &FilterCall) -> Problem {
    Problem::syntax(format!("`{}` must be the last filter of an output", filter.name))
}
