//! The grammar of Liquid markup: operands, filter chains, conditions and the tags this engine has.

use liquid::model::{State, Value};

use super::fault::{FaultCode, Problem};
use super::lexer::{Comparison, LiquidToken, brief, tokens};
use super::limits::{
    ALTERNATIVES, CHAIN_FILTERS, CONDITION_TERMS, INDEX_DEPTH, PATH_PARTS, RANGE_ITEMS, SNIPPET_NAME_MAX,
};

/// A literal or a path to a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand {
    Literal(Value),
    Path(Path),
}

/// `root.key[0][other.path]`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Path {
    pub(super) root: String,
    pub(super) rest: Vec<Index>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Index {
    Key(String),
    Number(i64),
    Computed(Box<Operand>),
}

/// A value and the filters it goes through.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FilterChain {
    pub(super) entry: Operand,
    pub(super) filters: Vec<FilterCall>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct FilterCall {
    pub(super) name: String,
    pub(super) arguments: Vec<Operand>,
}

/// One comparison, or the question whether a value is there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ConditionTest {
    pub(super) left: Operand,
    pub(super) right: Option<(Comparison, Operand)>,
}

/// Any of several groups, of which all tests must hold: `and` binds tighter than `or`.
pub(super) type Condition = Vec<Vec<ConditionTest>>;

/// What a `for` goes over.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Over {
    Value(Operand),
    Range(i64, i64),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ForLoop {
    pub(super) variable: String,
    pub(super) over: Over,
    pub(super) limit: Option<Operand>,
    pub(super) offset: Option<Operand>,
    pub(super) reversed: bool,
}

schemas::named_enum! {
    /// Blocks that have an end tag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum Block {
        If = "if",
        Unless = "unless",
        Case = "case",
        For = "for",
        Capture = "capture",
    }
}

/// A tag that was read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LiquidTag {
    If(Condition),
    Unless(Condition),
    Elsif(Condition),
    Else,
    Case(Operand),
    When(Vec<Operand>),
    For(Box<ForLoop>),
    Capture(String),
    Assign(String, FilterChain),
    Break,
    Continue,
    End(Block),
}

/// Reads `{{ markup }}`.
pub(super) fn output(markup: &str) -> Result<FilterChain, Problem> {
    let mut reader = Reader::new(markup)?;
    if reader.is_done() {
        return Err(Problem::syntax("an empty output `{{ }}`"));
    }
    let chain = reader.chain()?;
    reader.finish()?;
    Ok(chain)
}

/// Reads `{% name markup %}`.
pub(super) fn tag(name: &str, markup: &str) -> Result<LiquidTag, Problem> {
    let mut reader = Reader::new(markup)?;
    let tag = match name {
        "if" => LiquidTag::If(reader.condition()?),
        "unless" => LiquidTag::Unless(reader.condition()?),
        "elsif" => LiquidTag::Elsif(reader.condition()?),
        "else" => LiquidTag::Else,
        "case" => LiquidTag::Case(reader.operand()?),
        "when" => LiquidTag::When(reader.alternatives()?),
        "for" => LiquidTag::For(Box::new(reader.for_loop()?)),
        "capture" => LiquidTag::Capture(reader.local_name()?),
        "assign" => reader.assign()?,
        "break" => LiquidTag::Break,
        "continue" => LiquidTag::Continue,
        _ => match name.strip_prefix("end").and_then(Block::parse) {
            Some(block) => LiquidTag::End(block),
            None => return Err(unknown_tag(name)),
        },
    };
    reader.finish()?;
    Ok(tag)
}

/// `{% include 'name', key: value %}`.
#[derive(Debug)]
pub(super) struct IncludeTag {
    /// The snippet's name.
    pub(super) name: String,
    /// Each parameter's name, and its value as it was written.
    pub(super) parameters: Vec<(String, String)>,
}

/// Reads what stands after `include`. A parameter's value is what `assign` takes.
pub(super) fn include(markup: &str) -> Result<IncludeTag, Problem> {
    let mut pieces = between_commas(markup).into_iter();
    let written = pieces.next().unwrap_or_default();
    let name = match tokens(written)?.as_slice() {
        [LiquidToken::Text(name)] if is_snippet_name(name) => (*name).to_owned(),
        [LiquidToken::Text(name), ..] if is_snippet_name(name) => {
            return Err(expected("a comma after the name", markup));
        }
        _ => return Err(expected("a snippet's name in quotes", markup)),
    };
    let mut parameters = Vec::new();
    for piece in pieces {
        let (key, value) = piece.split_once(':').ok_or_else(|| expected("`name: value`", piece))?;
        let mut reader = Reader::new(piece)?;
        reader.local_name()?;
        reader.expect(&LiquidToken::Colon, "`name: value`")?;
        reader.chain()?;
        if !reader.is_done() {
            return Err(reader.unexpected("a comma after the value"));
        }
        parameters.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(IncludeTag { name, parameters })
}

/// The pieces of a markup between the commas that stand in no quotes.
fn between_commas(markup: &str) -> Vec<&str> {
    let mut quote: Option<char> = None;
    let ends_piece = |character: char| {
        match quote {
            Some(open) if open == character => quote = None,
            None if matches!(character, '"' | '\'') => quote = Some(character),
            _ => {}
        }
        quote.is_none() && character == ','
    };
    markup.split(ends_piece).collect()
}

/// Whether a snippet can have this name: lower-case letters, digits, `_` and `-`, at most [`SNIPPET_NAME_MAX`], the first a letter.
#[must_use]
pub fn is_snippet_name(name: &str) -> bool {
    name.len() <= SNIPPET_NAME_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'))
}

/// A fault of markup that lacks something. What is not there cannot be quoted.
pub(super) fn expected(wanted: &str, markup: &str) -> Problem {
    match brief(markup).as_str() {
        "" => Problem::syntax(format!("{wanted} expected, but nothing stands there")),
        found => Problem::syntax(format!("{wanted} expected in `{found}`")),
    }
}

fn unknown_tag(name: &str) -> Problem {
    if name == "include" {
        return Problem::new(FaultCode::UnknownTag, "`include` is for the bodies of templates and snippets");
    }
    let detail = format!(
        "the tag `{}` is not available; use if, elsif, else, unless, case, when, for, break, continue, assign, capture, \
         comment, raw, or include in a body",
        brief(name)
    );
    Problem::new(FaultCode::UnknownTag, detail)
}

struct Reader<'s> {
    markup: &'s str,
    tokens: Vec<LiquidToken<'s>>,
    at: usize,
}

impl<'s> Reader<'s> {
    fn new(markup: &'s str) -> Result<Self, Problem> {
        Ok(Self { markup, tokens: tokens(markup)?, at: 0 })
    }

    fn is_done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    fn peek(&self) -> Option<&LiquidToken<'s>> {
        self.tokens.get(self.at)
    }

    fn next(&mut self) -> Option<LiquidToken<'s>> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    fn take(&mut self, wanted: &LiquidToken<'_>) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn unexpected(&self, wanted: &str) -> Problem {
        expected(wanted, self.markup)
    }

    fn expect(&mut self, token: &LiquidToken<'_>, wanted: &str) -> Result<(), Problem> {
        if self.take(token) { Ok(()) } else { Err(self.unexpected(wanted)) }
    }

    fn finish(&self) -> Result<(), Problem> {
        if self.is_done() { Ok(()) } else { Err(self.unexpected("nothing more")) }
    }

    fn name(&mut self, wanted: &str) -> Result<&'s str, Problem> {
        match self.next() {
            Some(LiquidToken::Name(name)) => Ok(name),
            _ => Err(self.unexpected(wanted)),
        }
    }

    fn local_name(&mut self) -> Result<String, Problem> {
        let name = self.name("a name")?;
        if is_reserved(name) {
            return Err(Problem::syntax(format!("`{name}` cannot be used as a name")));
        }
        Ok(name.to_owned())
    }

    fn operand(&mut self) -> Result<Operand, Problem> {
        match self.next() {
            Some(LiquidToken::Text(text)) => Ok(Operand::Literal(Value::scalar(text.to_owned()))),
            Some(LiquidToken::Integer(number)) => Ok(Operand::Literal(Value::scalar(number))),
            Some(LiquidToken::Float(number)) => Ok(Operand::Literal(Value::scalar(number))),
            Some(LiquidToken::Name(name)) => self.named(name, 0),
            _ => Err(self.unexpected("a value")),
        }
    }

    fn named(&mut self, name: &str, depth: usize) -> Result<Operand, Problem> {
        match literal(name) {
            Some(value) if !matches!(self.peek(), Some(LiquidToken::Dot | LiquidToken::IndexOpen)) => {
                Ok(Operand::Literal(value))
            }
            _ => self.path(name, depth).map(Operand::Path),
        }
    }

    fn path(&mut self, root: &str, depth: usize) -> Result<Path, Problem> {
        let mut rest = Vec::new();
        loop {
            if self.take(&LiquidToken::Dot) {
                rest.push(Index::Key(self.name("a name after `.`")?.to_owned()));
            } else if self.take(&LiquidToken::IndexOpen) {
                if depth >= INDEX_DEPTH {
                    return Err(Problem::new(FaultCode::NestingTooDeep, "indexes are nested too deeply"));
                }
                let index = match self.next() {
                    Some(LiquidToken::Integer(number)) => Index::Number(number),
                    Some(LiquidToken::Text(text)) => Index::Key(text.to_owned()),
                    Some(LiquidToken::Name(name)) => Index::Computed(Box::new(self.named(name, depth + 1)?)),
                    _ => return Err(self.unexpected("a text, a number or a name in `[ ]`")),
                };
                self.expect(&LiquidToken::IndexClose, "`]`")?;
                rest.push(index);
            } else {
                break;
            }
            if rest.len() >= PATH_PARTS {
                return Err(Problem::syntax(format!("the path `{}` is too long", brief(self.markup))));
            }
        }
        Ok(Path { root: root.to_owned(), rest })
    }

    fn chain(&mut self) -> Result<FilterChain, Problem> {
        let entry = self.operand()?;
        let mut filters = Vec::new();
        while self.take(&LiquidToken::Pipe) {
            if filters.len() >= CHAIN_FILTERS {
                return Err(Problem::syntax(format!("more than {CHAIN_FILTERS} filters in one output")));
            }
            filters.push(self.filter()?);
        }
        Ok(FilterChain { entry, filters })
    }

    fn filter(&mut self) -> Result<FilterCall, Problem> {
        let name = self.name("a filter after `|`")?.to_owned();
        let mut arguments = Vec::new();
        if self.take(&LiquidToken::Colon) {
            arguments.push(self.operand()?);
            while self.take(&LiquidToken::Comma) {
                arguments.push(self.operand()?);
            }
        }
        Ok(FilterCall { name, arguments })
    }

    fn condition(&mut self) -> Result<Condition, Problem> {
        let mut groups = vec![vec![self.test()?]];
        let mut terms = 1;
        while let Some(LiquidToken::Name(joint)) = self.peek().cloned() {
            self.at += 1;
            let test = self.test()?;
            match (joint, groups.last_mut()) {
                ("and", Some(group)) => group.push(test),
                ("or", _) => groups.push(vec![test]),
                _ => return Err(self.unexpected("`and` or `or`")),
            }
            terms += 1;
            if terms > CONDITION_TERMS {
                return Err(Problem::syntax(format!("more than {CONDITION_TERMS} comparisons in one condition")));
            }
        }
        Ok(groups)
    }

    fn test(&mut self) -> Result<ConditionTest, Problem> {
        let left = self.operand()?;
        let comparison = match self.peek() {
            Some(LiquidToken::Compare(comparison)) => *comparison,
            Some(LiquidToken::Name("contains")) => Comparison::Contains,
            _ => return Ok(ConditionTest { left, right: None }),
        };
        self.at += 1;
        let right = self.operand()?;
        Ok(ConditionTest { left, right: Some((comparison, right)) })
    }

    fn alternatives(&mut self) -> Result<Vec<Operand>, Problem> {
        let mut values = vec![self.operand()?];
        while self.take(&LiquidToken::Comma) || self.take(&LiquidToken::Name("or")) {
            if values.len() >= ALTERNATIVES {
                return Err(Problem::syntax(format!("more than {ALTERNATIVES} alternatives in one `when`")));
            }
            values.push(self.operand()?);
        }
        Ok(values)
    }

    fn assign(&mut self) -> Result<LiquidTag, Problem> {
        let name = self.local_name()?;
        self.expect(&LiquidToken::Assign, "`=`")?;
        Ok(LiquidTag::Assign(name, self.chain()?))
    }

    fn for_loop(&mut self) -> Result<ForLoop, Problem> {
        let variable = self.local_name()?;
        self.expect(&LiquidToken::Name("in"), "`in`")?;
        let over = if self.take(&LiquidToken::GroupOpen) { self.range()? } else { Over::Value(self.operand()?) };
        let mut read = ForLoop { variable, over, limit: None, offset: None, reversed: false };
        while let Some(token) = self.next() {
            match token {
                LiquidToken::Name("reversed") => read.reversed = true,
                LiquidToken::Name("limit") => read.limit = Some(self.parameter()?),
                LiquidToken::Name("offset") => read.offset = Some(self.parameter()?),
                _ => return Err(self.unexpected("`limit`, `offset` or `reversed`")),
            }
        }
        Ok(read)
    }

    fn parameter(&mut self) -> Result<Operand, Problem> {
        self.expect(&LiquidToken::Colon, "`:`")?;
        self.operand()
    }

    fn range(&mut self) -> Result<Over, Problem> {
        let (
            Some(LiquidToken::Integer(from)),
            Some(LiquidToken::Range),
            Some(LiquidToken::Integer(to)),
            Some(LiquidToken::GroupClose),
        ) = (self.next(), self.next(), self.next(), self.next())
        else {
            return Err(Problem::new(FaultCode::RangeTooLarge, "a range must have two whole numbers, as in `(1..5)`"));
        };
        if to.saturating_sub(from) >= RANGE_ITEMS {
            let detail = format!("the range `({from}..{to})` has more than {RANGE_ITEMS} items");
            return Err(Problem::new(FaultCode::RangeTooLarge, detail));
        }
        Ok(Over::Range(from, to))
    }
}

fn literal(name: &str) -> Option<Value> {
    match name {
        "true" => Some(Value::scalar(true)),
        "false" => Some(Value::scalar(false)),
        "nil" | "null" => Some(Value::Nil),
        "empty" => Some(Value::State(State::Empty)),
        "blank" => Some(Value::State(State::Blank)),
        _ => None,
    }
}

/// Whether a template cannot set this name. What the law wants in marketing mail is never something the template says itself.
fn is_reserved(name: &str) -> bool {
    match name {
        "and" | "or" | "in" | "contains" | "forloop" | "data" | "contact" | "sender" | "campaign" | "tenant"
        | "unsubscribe_url" | "preferences_url" | "physical_address" => true,
        name => literal(name).is_some() || name.starts_with("__"),
    }
}
