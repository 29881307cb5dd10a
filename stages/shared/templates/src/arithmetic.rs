//! Arithmetic filters that neither overflow nor panic. As in Liquid, what is no number counts as 0; a result out of range, as
//! after a division by zero, is the recipient's fault.

use liquid::model::{Value, ValueCow, ValueView};

use super::fault::RenderFault;
use super::filters::{FilterResult, Run};

/// How many operands the filter of this name takes, and what it does.
pub(super) fn find(name: &str) -> Option<(usize, Run)> {
    Some(match name {
        "abs" => (0, |input, _| one(input, i64::checked_abs, f64::abs)),
        "ceil" => (0, |input, _| one(input, Some, f64::ceil)),
        "floor" => (0, |input, _| one(input, Some, f64::floor)),
        "plus" => (1, |input, operands| two(input, operands, i64::checked_add, sum)),
        "minus" => (1, |input, operands| two(input, operands, i64::checked_sub, |a, b| sum(a, -b))),
        "times" => (1, |input, operands| two(input, operands, i64::checked_mul, |a, b| decimal(a * b, 0.0))),
        "at_least" => (1, |input, operands| two(input, operands, |a, b| Some(a.max(b)), f64::max)),
        "at_most" => (1, |input, operands| two(input, operands, |a, b| Some(a.min(b)), f64::min)),
        "divided_by" => (1, |input, operands| two(input, operands, floor_div, quotient)),
        "modulo" => (1, |input, operands| two(input, operands, floor_rem, |a, b| sum(a, -b * quotient(a, b).floor()))),
        _ => return None,
    })
}

#[derive(Clone, Copy)]
enum Number {
    Whole(i64),
    Float(f64),
}

impl Number {
    fn of(value: &dyn ValueView) -> Self {
        let Some(scalar) = value.as_scalar() else { return Self::Whole(0) };
        // A text such as "1.5" is a number too, so the float is asked only when the whole number is none.
        match (scalar.to_integer(), scalar.to_float()) {
            (Some(whole), _) => Self::Whole(whole),
            (None, Some(float)) => Self::Float(float),
            (None, None) => Self::Whole(0),
        }
    }

    fn float(self) -> f64 {
        match self {
            // Precision beyond 2^53 is of no use in a letter.
            Self::Whole(whole) => whole as f64,
            Self::Float(float) => float,
        }
    }
}

/// Whole division rounds down, as in Ruby: -7 by 2 is -4.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    let rounds_down = a.checked_rem(b)? != 0 && (a < 0) != (b < 0);
    quotient.checked_sub(i64::from(rounds_down))
}

fn floor_rem(a: i64, b: i64) -> Option<i64> {
    let rest = a.checked_rem(b)?;
    if rest != 0 && (rest < 0) != (b < 0) { rest.checked_add(b) } else { Some(rest) }
}

/// A result without the error of binary fractions, which prices would show: 0.1 plus 0.2 is 0.30000000000000004. The error is at the
/// sixteenth digit of the largest of the numbers, which are the result and `operand`.
fn decimal(result: f64, operand: f64) -> f64 {
    let exponent = result.abs().max(operand).log10().floor();
    // The smallest number has the exponent -324.
    let places = (14.0 - exponent).clamp(0.0, 340.0) as usize;
    // Adding zero takes the sign from a zero.
    format!("{result:.places$}").parse::<f64>().map_or(result, |rounded| rounded + 0.0)
}

fn sum(a: f64, b: f64) -> f64 {
    decimal(a + b, a.abs().max(b.abs()))
}

fn quotient(a: f64, b: f64) -> f64 {
    decimal(a / b, 0.0)
}

fn float(result: f64) -> FilterResult {
    if result.is_finite() { Ok(Value::scalar(result)) } else { Err(RenderFault::Filter) }
}

fn one(input: &dyn ValueView, whole: fn(i64) -> Option<i64>, real: fn(f64) -> f64) -> FilterResult {
    match Number::of(input) {
        Number::Whole(number) => whole(number).map(Value::scalar).ok_or(RenderFault::Filter),
        Number::Float(number) => to_whole(real(number)),
    }
}

/// `ceil` and `floor` of 1.5 print as whole numbers; `abs` keeps its fraction.
fn to_whole(number: f64) -> FilterResult {
    if number.fract() == 0.0 && number.abs() < 9.0e15 { Ok(Value::scalar(number as i64)) } else { float(number) }
}

fn two(
    input: &dyn ValueView,
    operands: &[ValueCow<'_>],
    whole: fn(i64, i64) -> Option<i64>,
    real: fn(f64, f64) -> f64,
) -> FilterResult {
    let operand = operands.first().map_or(Number::Whole(0), |operand| Number::of(operand.as_view()));
    match (Number::of(input), operand) {
        (Number::Whole(a), Number::Whole(b)) => whole(a, b).map(Value::scalar).ok_or(RenderFault::Filter),
        (a, b) => float(real(a.float(), b.float())),
    }
}

pub(super) fn round(input: &dyn ValueView, operands: &[ValueCow<'_>]) -> FilterResult {
    let places = operands.first().map_or(0, |operand| match Number::of(operand.as_view()) {
        Number::Whole(places) => places.clamp(0, 12),
        Number::Float(_) => 0,
    });
    match Number::of(input) {
        Number::Whole(number) => Ok(Value::scalar(number)),
        Number::Float(number) if places == 0 => to_whole(number.round()),
        Number::Float(number) => {
            let scale = 10f64.powi(i32::try_from(places).unwrap_or(0));
            // Adding zero takes the sign from a zero.
            float(decimal(number * scale, 0.0).round() / scale + 0.0)
        }
    }
}
