//! Splits the markup inside `{{ }}` and `{% %}` into tokens. Knows no grammar.

use super::fault::Problem;

/// How two values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Contains,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum LiquidToken<'s> {
    Name(&'s str),
    Text(&'s str),
    Integer(i64),
    Float(f64),
    Dot,
    Range,
    Pipe,
    Colon,
    Comma,
    Assign,
    IndexOpen,
    IndexClose,
    GroupOpen,
    GroupClose,
    Compare(Comparison),
}

pub(super) fn tokens(markup: &str) -> Result<Vec<LiquidToken<'_>>, Problem> {
    let bytes = markup.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let next = bytes.get(at + 1).copied();
        let (token, length) = match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {
                at += 1;
                continue;
            }
            b'.' if next == Some(b'.') => (LiquidToken::Range, 2),
            b'.' => (LiquidToken::Dot, 1),
            b'|' => (LiquidToken::Pipe, 1),
            b':' => (LiquidToken::Colon, 1),
            b',' => (LiquidToken::Comma, 1),
            b'[' => (LiquidToken::IndexOpen, 1),
            b']' => (LiquidToken::IndexClose, 1),
            b'(' => (LiquidToken::GroupOpen, 1),
            b')' => (LiquidToken::GroupClose, 1),
            b'=' if next == Some(b'=') => (LiquidToken::Compare(Comparison::Equal), 2),
            b'=' => (LiquidToken::Assign, 1),
            b'!' if next == Some(b'=') => (LiquidToken::Compare(Comparison::NotEqual), 2),
            b'<' if next == Some(b'>') => (LiquidToken::Compare(Comparison::NotEqual), 2),
            b'<' if next == Some(b'=') => (LiquidToken::Compare(Comparison::LessOrEqual), 2),
            b'<' => (LiquidToken::Compare(Comparison::Less), 1),
            b'>' if next == Some(b'=') => (LiquidToken::Compare(Comparison::GreaterOrEqual), 2),
            b'>' => (LiquidToken::Compare(Comparison::Greater), 1),
            b'\'' | b'"' => text(markup, at, char::from(byte))?,
            b'0'..=b'9' => number(markup, at)?,
            b'+' | b'-' if next.is_some_and(|digit| digit.is_ascii_digit()) => number(markup, at)?,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => name(markup, at),
            _ => {
                let unexpected = markup.get(at..).and_then(|rest| rest.chars().next()).unwrap_or('?');
                return Err(Problem::syntax(format!("unexpected character `{unexpected}` in `{}`", brief(markup))));
            }
        };
        tokens.push(token);
        at += length;
    }
    Ok(tokens)
}

/// The markup as quoted in a fault: on one line and short.
pub(super) fn brief(markup: &str) -> String {
    let line: String = markup.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= 80 {
        return line;
    }
    line.chars().take(77).chain("...".chars()).collect()
}

fn text(markup: &str, at: usize, quote: char) -> Result<(LiquidToken<'_>, usize), Problem> {
    let rest = markup.get(at + 1..).unwrap_or_default();
    let end =
        rest.find(quote).ok_or_else(|| Problem::syntax(format!("a text is never closed in `{}`", brief(markup))))?;
    Ok((LiquidToken::Text(rest.get(..end).unwrap_or_default()), end + 2))
}

fn name(markup: &str, at: usize) -> (LiquidToken<'_>, usize) {
    let rest = markup.get(at..).unwrap_or_default();
    let is_end = |letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == '-');
    let end = rest.find(is_end).unwrap_or(rest.len());
    (LiquidToken::Name(rest.get(..end).unwrap_or_default()), end)
}

fn number(markup: &str, at: usize) -> Result<(LiquidToken<'_>, usize), Problem> {
    let rest = markup.get(at..).unwrap_or_default();
    let digits = |from: usize| {
        rest.bytes().skip(from).position(|byte| !byte.is_ascii_digit()).map_or(rest.len(), |length| from + length)
    };
    let whole = digits(1);
    let bytes = rest.as_bytes();
    let is_float = bytes.get(whole) == Some(&b'.') && bytes.get(whole + 1).is_some_and(|digit| digit.is_ascii_digit());
    let end = if is_float { digits(whole + 1) } else { whole };
    let literal = rest.get(..end).unwrap_or_default();
    let too_large = || Problem::syntax(format!("the number `{}` is too large", brief(literal)));
    let token = if is_float {
        LiquidToken::Float(literal.parse().map_err(|_| too_large())?)
    } else {
        LiquidToken::Integer(literal.parse().map_err(|_| too_large())?)
    };
    Ok((token, end))
}
