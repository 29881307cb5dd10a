//! The filters templates may use. Each is charged for the size of what it is given and of what it makes, and no value grows
//! without end. Those that multiply (`replace`, `join`), panic on overflow (arithmetic, `slice`), compare all with all (`uniq`) or
//! pad without bound (`date`) are ours; the others are the standard library's.

use liquid_core::model::{KString, ScalarCow, Value, ValueView};
use liquid_core::parser::{FilterArguments, ParseFilter};
use liquid_core::{Error, Expression, Filter, Result, ValueCow};
use liquid_lib::stdlib;
use runtime::{Budget, Spent};

use super::arithmetic;
use super::fault::RenderFault;
use super::limits::{VALUE_BYTES, VALUE_DEPTH, VALUE_ITEMS, text_steps};
use super::scope::Scope;

/// Names that change how an output is escaped; they are settled when a template is compiled.
pub(super) const RAW: &str = "raw";
pub(super) const NEWLINE_TO_BR: &str = "newline_to_br";
pub(super) const ESCAPES: [&str; 2] = ["escape", "escape_once"];

/// A value and the filters it goes through.
#[derive(Debug)]
pub(super) struct Chain {
    entry: Expression,
    calls: Vec<Call>,
}

impl Chain {
    pub(super) fn new(entry: Expression, calls: Vec<Call>) -> Self {
        Self { entry, calls }
    }

    /// The value after all filters.
    pub(super) fn evaluate<'s>(&'s self, scope: &'s Scope<'_>) -> std::result::Result<ValueCow<'s>, RenderFault> {
        let mut value = self.entry.evaluate(scope).map_err(|_| RenderFault::Filter)?;
        scope.check()?;
        for call in &self.calls {
            value = ValueCow::Owned(call.evaluate(value.as_view(), scope)?);
        }
        Ok(value)
    }
}

/// A filter with its arguments.
#[derive(Debug)]
pub(super) struct Call {
    work: Work,
    arguments: Vec<Expression>,
}

#[derive(Debug)]
enum Work {
    Ours(Run),
    /// Evaluates its arguments itself.
    Standard(Box<dyn Filter>),
}

impl Call {
    /// The filter of this name over these arguments. `None`: there is no such filter.
    pub(super) fn build(name: &str, arguments: Vec<Expression>) -> Option<Result<Self>> {
        if let Some(native) = native(name) {
            return Some(native.build(arguments));
        }
        let parse = standard(name)?;
        let given = FilterArguments {
            positional: Box::new(arguments.clone().into_iter()),
            keyword: Box::new(std::iter::empty()),
        };
        Some(parse.parse(given).map(|filter| Self { work: Work::Standard(filter), arguments }))
    }

    fn evaluate(&self, input: &dyn ValueView, scope: &Scope<'_>) -> std::result::Result<Value, RenderFault> {
        let failed = |_| RenderFault::Filter;
        weigh(input, &scope.budget)?;
        let arguments = self
            .arguments
            .iter()
            .map(|argument| argument.evaluate(scope))
            .collect::<Result<Vec<_>>>()
            .map_err(failed)?;
        scope.check()?;
        for argument in &arguments {
            weigh(argument.as_view(), &scope.budget)?;
        }
        let value = match &self.work {
            Work::Ours(run) => run(input, &arguments),
            Work::Standard(filter) => filter.evaluate(input, scope),
        };
        let value = value.map_err(failed)?;
        scope.check()?;
        if weigh(&value, &scope.budget)? > VALUE_BYTES { Err(RenderFault::Filter) } else { Ok(value) }
    }
}

/// Bytes an item takes beside its text.
const ITEM_BYTES: usize = 16;

/// Charges for looking at a whole value. Answers roughly how many bytes it holds.
pub(super) fn weigh(value: &dyn ValueView, budget: &Budget) -> std::result::Result<usize, Spent> {
    weigh_at(value, budget, 0)
}

fn weigh_at(value: &dyn ValueView, budget: &Budget, depth: u32) -> std::result::Result<usize, Spent> {
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

fn standard(name: &str) -> Option<Box<dyn ParseFilter>> {
    Some(match name {
        "capitalize" => Box::new(stdlib::Capitalize),
        "compact" => Box::new(stdlib::Compact),
        "default" => Box::new(stdlib::Default),
        "downcase" => Box::new(stdlib::Downcase),
        "escape" => Box::new(stdlib::Escape),
        "escape_once" => Box::new(stdlib::EscapeOnce),
        "first" => Box::new(stdlib::First),
        "last" => Box::new(stdlib::Last),
        "lstrip" => Box::new(stdlib::Lstrip),
        "map" => Box::new(stdlib::Map),
        "newline_to_br" => Box::new(stdlib::NewlineToBr),
        "remove" => Box::new(stdlib::Remove),
        "remove_first" => Box::new(stdlib::RemoveFirst),
        "reverse" => Box::new(stdlib::Reverse),
        "rstrip" => Box::new(stdlib::Rstrip),
        "size" => Box::new(stdlib::Size),
        "strip" => Box::new(stdlib::Strip),
        "strip_html" => Box::new(stdlib::StripHtml),
        "strip_newlines" => Box::new(stdlib::StripNewlines),
        "truncate" => Box::new(stdlib::Truncate),
        "truncatewords" => Box::new(stdlib::TruncateWords),
        "upcase" => Box::new(stdlib::Upcase),
        "url_decode" => Box::new(stdlib::UrlDecode),
        "url_encode" => Box::new(stdlib::UrlEncode),
        "where" => Box::new(stdlib::Where),
        _ => return None,
    })
}

fn native(name: &str) -> Option<Native> {
    let (name, fewest, most, run): (&'static str, usize, usize, Run) = match name {
        "append" => ("append", 1, 1, append),
        "prepend" => ("prepend", 1, 1, prepend),
        "replace" => ("replace", 1, 2, replace),
        "replace_first" => ("replace_first", 1, 2, replace_first),
        "join" => ("join", 0, 1, join),
        "split" => ("split", 1, 1, split),
        "slice" => ("slice", 1, 2, slice),
        "date" => ("date", 1, 1, date),
        "uniq" => ("uniq", 0, 0, uniq),
        _ => {
            let (name, operands, run) = arithmetic::find(name)?;
            (name, operands, operands, run)
        }
    };
    // `round` alone has an operand that may be left out.
    let fewest = if name == "round" { 0 } else { fewest };
    Some(Native { name, fewest, most, run })
}

/// A filter's work: the input and its evaluated arguments.
pub(super) type Run = fn(&dyn ValueView, &[ValueCow<'_>]) -> Result<Value>;

/// A filter of ours: a plain function with a number of arguments.
#[derive(Clone, Copy)]
struct Native {
    name: &'static str,
    fewest: usize,
    most: usize,
    run: Run,
}

impl Native {
    fn build(self, arguments: Vec<Expression>) -> Result<Call> {
        if arguments.len() < self.fewest || arguments.len() > self.most {
            let wanted = match (self.fewest, self.most) {
                (0, 0) => "no argument".to_owned(),
                (fewest, most) if fewest == most => format!("{fewest} argument{}", if fewest == 1 { "" } else { "s" }),
                (fewest, most) => format!("{fewest} to {most} arguments"),
            };
            return Err(Error::with_msg(format!("`{}` takes {wanted}", self.name)));
        }
        Ok(Call { work: Work::Ours(self.run), arguments })
    }
}

fn too_large() -> Error {
    Error::with_msg("a value is larger than allowed")
}

fn text(parts: String) -> Result<Value> {
    if parts.len() > VALUE_BYTES { Err(too_large()) } else { Ok(Value::scalar(KString::from_string(parts))) }
}

fn argument<'a>(arguments: &'a [ValueCow<'_>], at: usize) -> liquid_core::model::KStringCow<'a> {
    arguments.get(at).map(ValueView::to_kstr).unwrap_or_default()
}

fn append(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
    text(format!("{}{}", input.to_kstr(), argument(arguments, 0)))
}

fn prepend(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
    text(format!("{}{}", argument(arguments, 0), input.to_kstr()))
}

fn replace(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
    let (input, from, to) = (input.to_kstr(), argument(arguments, 0), argument(arguments, 1));
    // Measured before it is built: 64 KB of one letter, each replaced by 64 KB, would be 4 GB.
    let found = input.matches(from.as_str()).count();
    if input.len().saturating_add(found.saturating_mul(to.len())) > 2 * VALUE_BYTES {
        return Err(too_large());
    }
    text(input.replace(from.as_str(), to.as_str()))
}

fn replace_first(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
    text(input.to_kstr().replacen(argument(arguments, 0).as_str(), argument(arguments, 1).as_str(), 1))
}

fn join(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
    let Some(array) = input.as_array() else { return text(input.to_kstr().into_string()) };
    let separator = if arguments.is_empty() { " ".into() } else { argument(arguments, 0) };
    let mut joined = String::new();
    for (at, item) in array.values().enumerate() {
        if at > 0 {
            joined.push_str(&separator);
        }
        joined.push_str(&item.to_kstr());
        if joined.len() > VALUE_BYTES {
            return Err(too_large());
        }
    }
    text(joined)
}

fn split(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
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
    if items.len() > VALUE_ITEMS { Err(too_large()) } else { Ok(Value::Array(items)) }
}

fn uniq(input: &dyn ValueView, _: &[ValueCow<'_>]) -> Result<Value> {
    let Some(array) = input.as_array() else { return Ok(input.to_value()) };
    let mut seen = std::collections::HashSet::new();
    let unique: Vec<Value> =
        array.values().filter(|item| seen.insert(item.to_kstr().into_string())).map(ValueView::to_value).collect();
    Ok(Value::Array(unique))
}

/// `slice: offset, length`; a negative offset counts from the end.
fn slice(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
    let whole =
        |at: usize| arguments.get(at).and_then(|value| value.as_scalar().and_then(|scalar| scalar.to_integer()));
    let offset = whole(0).ok_or_else(|| Error::with_msg("`slice` needs a whole number"))?;
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

/// `date: "%B %d, %Y"`. What is no date passes unchanged, as in Liquid.
fn date(input: &dyn ValueView, arguments: &[ValueCow<'_>]) -> Result<Value> {
    let format = argument(arguments, 0);
    let Some(date) = input.as_scalar().as_ref().and_then(ScalarCow::to_date_time) else { return Ok(input.to_value()) };
    if format.is_empty() {
        return Ok(input.to_value());
    }
    // `%999999999d` asks for a gigabyte of padding.
    let mut digits = 0;
    for byte in format.bytes() {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return Err(Error::with_msg("a date format asks for too much padding"));
        }
    }
    if format.len() > 256 {
        return Err(Error::with_msg("a date format is too long"));
    }
    text(date.format(&format).map_err(|_| Error::with_msg("a date format cannot be read"))?)
}
