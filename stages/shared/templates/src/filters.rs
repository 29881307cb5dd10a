//! The filters templates may use. Each is charged for the size of what it is given and of what it makes, and no value grows
//! without end.
//!
//! Those that make one text of another are liquid's: each call is a template of that one filter, `{{ input | truncate: a0 }}`, made
//! of names from the list below and never of what an author wrote. Ours are those whose result is no text (liquid prints a value,
//! and hands none out), and those that multiply (`replace`, `join`), panic on overflow (arithmetic, `slice`), compare all with all
//! (`uniq`) or pad without bound (`date`).

use std::fmt;
use std::sync::LazyLock;

use liquid::model::{DateTime, KString, KStringCow, ScalarCow, State, Value, ValueCow, ValueView, ValueViewCmp};
use liquid::{Object, Parser, ParserBuilder, Template};
use runtime::{Budget, Spent};

use super::arithmetic;
use super::fault::{FaultCode, Problem, RenderFault};
use super::limits::{VALUE_BYTES, VALUE_DEPTH, VALUE_ITEMS, text_steps};
use super::scope::RenderScope;
use super::syntax::{FilterCall, Operand};

/// Names that change how an output is escaped; they are settled when a template is compiled.
pub(super) const RAW: &str = "raw";
pub(super) const NEWLINE_TO_BR: &str = "newline_to_br";
pub(super) const ESCAPES: [&str; 2] = ["escape", "escape_once"];

/// Filters of liquid, from text to text.
pub(super) const LIQUID: [&str; 17] = [
    "capitalize",
    "downcase",
    "escape",
    "escape_once",
    "lstrip",
    "newline_to_br",
    "remove",
    "remove_first",
    "rstrip",
    "strip",
    "strip_html",
    "strip_newlines",
    "truncate",
    "truncatewords",
    "upcase",
    "url_decode",
    "url_encode",
];

/// What a filter makes of a value. It fails with [`RenderFault::Filter`].
pub(super) type FilterResult = Result<Value, RenderFault>;

/// A filter's work: the input and its evaluated arguments.
pub(super) type Run = fn(&dyn ValueView, &[ValueCow<'_>]) -> FilterResult;

/// Bytes an item takes beside its text.
const ITEM_BYTES: usize = 16;

/// Charges for looking at a whole value. Answers roughly how many bytes it holds.
pub(super) fn weigh(value: &dyn ValueView, budget: &Budget) -> Result<usize, Spent> {
    weigh_at(value, budget, 0)
}

fn weigh_at(value: &dyn ValueView, budget: &Budget, depth: u32) -> Result<usize, Spent> {
    if depth > VALUE_DEPTH {
        return Err(Spent::Depth);
    }
    let mut bytes = 0;
    if let Some(array) = value.as_array() {
        budget.take_steps(1)?;
        for item in array.values() {
            bytes += ITEM_BYTES + weigh_at(item, budget, depth + 1)?;
        }
    } else if let Some(object) = value.as_object() {
        budget.take_steps(1)?;
        for (key, item) in object.iter() {
            budget.take_steps(text_steps(key.len()))?;
            bytes += ITEM_BYTES + key.len() + weigh_at(item, budget, depth + 1)?;
        }
    } else {
        bytes = value.to_kstr().len();
        budget.take_steps(text_steps(bytes))?;
    }
    Ok(bytes)
}

static PARSER: LazyLock<Option<Parser>> = LazyLock::new(|| ParserBuilder::with_stdlib().build().ok());

/// A value and the filters it goes through.
#[derive(Debug)]
pub(super) struct CompiledChain {
    entry: Operand,
    calls: Vec<CompiledFilter>,
}

impl CompiledChain {
    /// # Errors
    /// An unknown filter, or wrong arguments.
    pub(super) fn build(entry: &Operand, filters: &[FilterCall]) -> Result<Self, Problem> {
        let calls = filters.iter().map(CompiledFilter::build).collect::<Result<_, _>>()?;
        Ok(Self { entry: entry.clone(), calls })
    }

    /// The value after all filters.
    pub(super) fn evaluate<'s>(&'s self, scope: &'s RenderScope<'_>) -> Result<ValueCow<'s>, RenderFault> {
        let mut value = scope.value(&self.entry)?;
        for call in &self.calls {
            value = ValueCow::Owned(call.evaluate(value.as_view(), scope)?);
        }
        Ok(value)
    }
}

/// A filter with its arguments.
#[derive(Debug)]
struct CompiledFilter {
    work: Work,
    arguments: Vec<Operand>,
}

enum Work {
    Ours(Run),
    Liquid(Template),
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours(_) => "Ours",
            Self::Liquid(_) => "Liquid",
        })
    }
}

impl CompiledFilter {
    /// The filter of this name over these arguments.
    ///
    /// # Errors
    /// There is no such filter, or it takes other arguments.
    fn build(call: &FilterCall) -> Result<Self, Problem> {
        let FilterCall { name, arguments } = call;
        let work = if let Some((fewest, most, run)) = ours(name) {
            (fewest..=most).contains(&arguments.len()).then_some(Work::Ours(run))
        } else if LIQUID.contains(&name.as_str()) {
            template(name, arguments.len()).map(Work::Liquid)
        } else {
            return Err(Problem::new(FaultCode::UnknownFilter, format!("there is no filter `{name}`")));
        };
        let wrong = || Problem::syntax(format!("the filter `{name}` is given wrong arguments"));
        Ok(Self { work: work.ok_or_else(wrong)?, arguments: arguments.clone() })
    }

    fn evaluate(&self, input: &dyn ValueView, scope: &RenderScope<'_>) -> FilterResult {
        weigh(input, &scope.budget)?;
        let arguments =
            self.arguments.iter().map(|argument| scope.value(argument)).collect::<Result<Vec<_>, Spent>>()?;
        for argument in &arguments {
            weigh(argument.as_view(), &scope.budget)?;
        }
        let value = match &self.work {
            Work::Ours(run) => run(input, &arguments)?,
            Work::Liquid(template) => render(template, input, &arguments)?,
        };
        if weigh(&value, &scope.budget)? > VALUE_BYTES { Err(RenderFault::Filter) } else { Ok(value) }
    }
}

/// A template of one filter. `None`: it takes another number of arguments.
fn template(filter: &str, arguments: usize) -> Option<Template> {
    let arguments: Vec<String> = (0..arguments).map(|at| format!("a{at}")).collect();
    let colon = if arguments.is_empty() { "" } else { ": " };
    PARSER.as_ref()?.parse(&format!("{{{{ input | {filter}{colon}{} }}}}", arguments.join(", "))).ok()
}

fn render(template: &Template, input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    // A value that is absent is an empty text.
    let given = |value: &dyn ValueView| if value.is_nil() { Value::scalar("") } else { value.to_value() };
    let mut globals = Object::new();
    globals.insert("input".into(), given(input));
    for (at, argument) in arguments.iter().enumerate() {
        globals.insert(format!("a{at}").into(), given(argument.as_view()));
    }
    let mut printed = Vec::new();
    template.render_to(&mut printed, &globals).map_err(|_| RenderFault::Filter)?;
    text(String::from_utf8(printed).map_err(|_| RenderFault::Filter)?)
}

/// A filter of ours: the fewest and the most arguments it takes, and what it does.
fn ours(name: &str) -> Option<(usize, usize, Run)> {
    Some(match name {
        "append" => (1, 1, append),
        "compact" => (0, 1, compact),
        "date" => (1, 1, date),
        "default" => (1, 1, default),
        "first" => (0, 0, first),
        "join" => (0, 1, join),
        "last" => (0, 0, last),
        "map" => (1, 1, map),
        "prepend" => (1, 1, prepend),
        "replace" => (1, 2, replace),
        "replace_first" => (1, 2, replace_first),
        "reverse" => (0, 0, reverse),
        "size" => (0, 0, size),
        "slice" => (1, 2, slice),
        "split" => (1, 1, split),
        "uniq" => (0, 0, uniq),
        "where" => (1, 2, filter_where),
        // `round` alone has an operand that may be left out.
        "round" => (0, 1, arithmetic::round),
        _ => {
            let (operands, run) = arithmetic::find(name)?;
            (operands, operands, run)
        }
    })
}

/// The items of a list. What is nil or empty is a list of none, and another value is a list of itself.
fn items(input: &dyn ValueView) -> Vec<&dyn ValueView> {
    match input.as_array() {
        Some(array) => array.values().collect(),
        None if input.query_state(State::Empty) => Vec::new(),
        None => vec![input],
    }
}

/// What an object has under the name that an argument says.
fn property<'v>(item: &'v dyn ValueView, arguments: &[ValueCow<'_>]) -> Option<&'v dyn ValueView> {
    item.as_object()?.get(&argument(arguments, 0))
}

fn default(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let instead = arguments.first().filter(|_| input.query_state(State::DefaultValue));
    Ok(instead.map_or_else(|| input.to_value(), ValueView::to_value))
}

/// The size of a text: its characters, not its bytes.
pub(super) fn characters(text: &ScalarCow<'_>) -> i64 {
    i64::try_from(text.to_kstr().chars().count()).unwrap_or(i64::MAX)
}

fn size(input: &dyn ValueView, _: &[ValueCow<'_>]) -> FilterResult {
    let size = match (input.as_scalar(), input.as_array(), input.as_object()) {
        (Some(scalar), ..) => characters(&scalar),
        (_, Some(array), _) => array.size(),
        (.., Some(object)) => object.size(),
        _ => 0,
    };
    Ok(Value::scalar(size))
}

fn first(input: &dyn ValueView, _: &[ValueCow<'_>]) -> FilterResult {
    match input.as_scalar() {
        Some(scalar) => text(scalar.to_kstr().chars().take(1).collect()),
        None => Ok(items(input).first().copied().map_or(Value::Nil, ValueView::to_value)),
    }
}

fn last(input: &dyn ValueView, _: &[ValueCow<'_>]) -> FilterResult {
    match input.as_scalar() {
        Some(scalar) => text(scalar.to_kstr().chars().next_back().into_iter().collect()),
        None => Ok(items(input).last().copied().map_or(Value::Nil, ValueView::to_value)),
    }
}

fn reverse(input: &dyn ValueView, _: &[ValueCow<'_>]) -> FilterResult {
    Ok(Value::Array(items(input).into_iter().rev().map(ValueView::to_value).collect()))
}

fn map(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let values = items(input).into_iter().filter_map(|item| property(item, arguments));
    Ok(Value::Array(values.map(ValueView::to_value).collect()))
}

/// Without items that are nil, or whose property is.
fn compact(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let is_kept = |item: &&dyn ValueView| match arguments.is_empty() {
        true => !item.is_nil(),
        false => property(*item, arguments).is_some_and(|value| !value.is_nil()),
    };
    Ok(Value::Array(items(input).into_iter().filter(is_kept).map(ValueView::to_value).collect()))
}

/// The objects whose property is true, or equals the second argument.
fn filter_where(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let is_wanted = |item: &&dyn ValueView| {
        property(*item, arguments).is_some_and(|value| match arguments.get(1) {
            Some(wanted) => ValueViewCmp::new(value) == ValueViewCmp::new(wanted.as_view()),
            None => value.query_state(State::Truthy),
        })
    };
    Ok(Value::Array(items(input).into_iter().filter(is_wanted).map(ValueView::to_value).collect()))
}

fn text(parts: String) -> FilterResult {
    if parts.len() > VALUE_BYTES { Err(RenderFault::Filter) } else { Ok(Value::scalar(KString::from_string(parts))) }
}

fn argument<'a>(arguments: &'a [ValueCow<'_>], at: usize) -> KStringCow<'a> {
    arguments.get(at).map(ValueView::to_kstr).unwrap_or_default()
}

fn append(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    text(format!("{}{}", input.to_kstr(), argument(arguments, 0)))
}

fn prepend(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    text(format!("{}{}", argument(arguments, 0), input.to_kstr()))
}

fn replace(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let (input, from, to) = (input.to_kstr(), argument(arguments, 0), argument(arguments, 1));
    // Measured before it is built: 64 KB of one letter, each replaced by 64 KB, would be 4 GB.
    let found = input.matches(from.as_str()).count();
    if input.len().saturating_add(found.saturating_mul(to.len())) > 2 * VALUE_BYTES {
        return Err(RenderFault::Filter);
    }
    text(input.replace(from.as_str(), to.as_str()))
}

fn replace_first(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    text(input.to_kstr().replacen(argument(arguments, 0).as_str(), argument(arguments, 1).as_str(), 1))
}

fn join(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let Some(array) = input.as_array() else { return text(input.to_kstr().into_string()) };
    let separator = if arguments.is_empty() { " ".into() } else { argument(arguments, 0) };
    let mut joined = String::new();
    for (at, item) in array.values().enumerate() {
        if at > 0 {
            joined.push_str(&separator);
        }
        joined.push_str(&item.to_kstr());
        if joined.len() > VALUE_BYTES {
            return Err(RenderFault::Filter);
        }
    }
    text(joined)
}

fn split(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let (input, separator) = (input.to_kstr(), argument(arguments, 0));
    if input.is_empty() {
        return Ok(Value::Array(Vec::new()));
    }
    let mut items: Vec<Value> = Vec::new();
    if separator.is_empty() {
        items.extend(input.chars().take(VALUE_ITEMS + 1).map(|letter| Value::scalar(letter.to_string())));
    } else {
        items.extend(input.split(separator.as_str()).take(VALUE_ITEMS + 1).map(|item| Value::scalar(item.to_owned())));
    }
    if items.len() > VALUE_ITEMS { Err(RenderFault::Filter) } else { Ok(Value::Array(items)) }
}

fn uniq(input: &dyn ValueView, _: &[ValueCow<'_>]) -> FilterResult {
    let Some(array) = input.as_array() else { return Ok(input.to_value()) };
    let mut seen = std::collections::HashSet::new();
    let unique: Vec<Value> =
        array.values().filter(|item| seen.insert(item.to_kstr().into_string())).map(ValueView::to_value).collect();
    Ok(Value::Array(unique))
}

/// `slice: offset, length`; a negative offset counts from the end.
fn slice(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let whole =
        |at: usize| arguments.get(at).and_then(|value| value.as_scalar().and_then(|scalar| scalar.to_integer()));
    let offset = whole(0).ok_or(RenderFault::Filter)?;
    let length = if arguments.len() > 1 { whole(1) } else { Some(1) };
    let length = usize::try_from(length.unwrap_or(0)).unwrap_or(0);
    let start = |count: usize| {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let start = if offset < 0 { count.saturating_add(offset) } else { offset };
        usize::try_from(start).ok()
    };
    if let Some(array) = input.as_array() {
        let items = start(usize::try_from(array.size()).unwrap_or(0))
            .map(|from| array.values().skip(from).take(length).map(ValueView::to_value).collect())
            .unwrap_or_default();
        return Ok(Value::Array(items));
    }
    let input = input.to_kstr();
    let part = start(input.chars().count()).map(|from| input.chars().skip(from).take(length).collect::<String>());
    text(part.unwrap_or_default())
}

/// Reads a day (`2026-12-24`), an RFC 3339 time, seconds since 1970, or what else liquid reads. A time keeps its offset.
fn read_date(text: &str) -> Option<DateTime> {
    if text.as_bytes().get(4) != Some(&b'-') {
        return DateTime::from_str(text);
    }
    // liquid reads no day alone, and none of the `T`, the `Z` and the colon in the offset that RFC 3339 has.
    let (day, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00:00"));
    let time = time.strip_suffix(['Z', 'z']).unwrap_or(time);
    let (clock, offset) = time.find(['+', '-']).map_or((time, "+0000"), |at| time.split_at(at));
    DateTime::from_str(&format!("{day} {} {}", clock.trim_end(), offset.replace(':', "")))
}

/// `date: "%B %d, %Y"`. What is no date passes unchanged, as in Liquid.
fn date(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> FilterResult {
    let format = argument(arguments, 0);
    let Some(date) = input.as_scalar().and_then(|scalar| read_date(&scalar.to_kstr())) else {
        return Ok(input.to_value());
    };
    if format.is_empty() {
        return Ok(input.to_value());
    }
    // `%999999999d` asks for a gigabyte of padding.
    let is_padding = |digits: &str| digits.len() > 4;
    if format.len() > 256 || format.split(|character: char| !character.is_ascii_digit()).any(is_padding) {
        return Err(RenderFault::Filter);
    }
    text(date.format(&format).map_err(|_| RenderFault::Filter)?)
}
