//! The filters templates may use. Those of the standard library come in wrapped, so that no value grows without end;
//! those that multiply (`replace`, `join`), panic on overflow (arithmetic, `slice`) or pad without bound (`date`) are ours.

use std::fmt;

use liquid_core::model::{KString, ScalarCow, Value, ValueView};
use liquid_core::parser::{FilterArguments, ParseFilter};
use liquid_core::{Error, Expression, Filter, Result, Runtime, ValueCow};
use liquid_lib::stdlib;

use super::arithmetic;
use super::limits::{VALUE_BYTES, VALUE_ITEMS};

/// Names that change how an output is escaped; they are settled when a template is compiled.
pub(super) const RAW: &str = "raw";
pub(super) const NEWLINE_TO_BR: &str = "newline_to_br";
pub(super) const ESCAPES: [&str; 2] = ["escape", "escape_once"];

/// Builds the filter of this name over these arguments. `None`: there is no such filter.
pub(super) fn build(name: &str, arguments: Vec<Expression>) -> Option<Result<Box<dyn Filter>>> {
    if let Some(native) = native(name) {
        return Some(native.build(arguments));
    }
    let parse = standard(name)?;
    let arguments =
        FilterArguments { positional: Box::new(arguments.into_iter()), keyword: Box::new(std::iter::empty()) };
    Some(parse.parse(arguments).map(|inner| Box::new(Capped { inner }) as Box<dyn Filter>))
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
    fn build(self, arguments: Vec<Expression>) -> Result<Box<dyn Filter>> {
        if arguments.len() < self.fewest || arguments.len() > self.most {
            let wanted = match (self.fewest, self.most) {
                (0, 0) => "no argument".to_owned(),
                (fewest, most) if fewest == most => format!("{fewest} argument{}", if fewest == 1 { "" } else { "s" }),
                (fewest, most) => format!("{fewest} to {most} arguments"),
            };
            return Err(Error::with_msg(format!("`{}` takes {wanted}", self.name)));
        }
        Ok(Box::new(NativeCall { filter: self, arguments }))
    }
}

struct NativeCall {
    filter: Native,
    arguments: Vec<Expression>,
}

impl fmt::Debug for NativeCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.filter.name)
    }
}

impl fmt::Display for NativeCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.filter.name)
    }
}

impl Filter for NativeCall {
    fn evaluate(&self, input: &dyn ValueView, runtime: &dyn Runtime) -> Result<Value> {
        let arguments = self.arguments.iter().map(|argument| argument.evaluate(runtime)).collect::<Result<Vec<_>>>()?;
        (self.filter.run)(input, &arguments)
    }
}

/// A filter of the standard library whose result is measured.
#[derive(Debug)]
struct Capped {
    inner: Box<dyn Filter>,
}

impl fmt::Display for Capped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Filter for Capped {
    fn evaluate(&self, input: &dyn ValueView, runtime: &dyn Runtime) -> Result<Value> {
        let value = self.inner.evaluate(input, runtime)?;
        if size(&value, 0) > VALUE_BYTES { Err(too_large()) } else { Ok(value) }
    }
}

/// Roughly how many bytes a value holds.
pub(super) fn size(value: &Value, depth: usize) -> usize {
    match value {
        Value::Scalar(scalar) => scalar.to_kstr().len(),
        Value::Array(items) if depth < 8 => items.iter().map(|item| 16 + size(item, depth + 1)).sum(),
        Value::Object(object) if depth < 8 => {
            object.iter().map(|(key, value)| 16 + key.len() + size(value, depth + 1)).sum()
        }
        _ => 1,
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
