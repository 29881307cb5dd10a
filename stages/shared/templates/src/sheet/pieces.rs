//! Divides a style sheet into selector lists, declarations and statements.

use super::super::placeholder::Placeholders;
use super::super::scan::{Item, ItemKind};
use super::super::structure::{closes, divides, is_control, opens};
use super::super::syntax::LiquidTag;
use super::{StyleFault, StyleFaultReason, UNKNOWN};

/// What ends a piece of a sheet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PieceEnd {
    Open,
    Close,
    Semicolon,
    Sheet,
}

/// A selector list, a declaration or a statement, without its comments.
pub(super) struct SheetPiece {
    pub(super) text: String,
    pub(super) at: usize,
    pub(super) end: PieceEnd,
}

/// Divides a sheet into pieces.
pub(super) struct SheetPieces<'s> {
    sheet: &'s str,
    placeholders: &'s Placeholders,
    at: usize,
    is_done: bool,
    /// How deep the rules are in which blocks of Liquid began.
    liquid: Vec<usize>,
}

impl<'s> SheetPieces<'s> {
    pub(super) fn new(sheet: &'s str, placeholders: &'s Placeholders) -> Self {
        Self { sheet, placeholders, at: 0, is_done: false, liquid: Vec::new() }
    }

    /// The next piece. `depth`: how many blocks of the sheet are open.
    pub(super) fn next(&mut self, depth: usize) -> Result<Option<SheetPiece>, StyleFault> {
        if self.is_done {
            return Ok(None);
        }
        let mut text = String::new();
        let mut start = self.at;
        let mut brackets = Vec::new();
        let mut quote = None;
        let end = loop {
            let at = self.at;
            let rest = self.sheet.get(at..).unwrap_or_default();
            let Some(character) = rest.chars().next() else { break PieceEnd::Sheet };
            let fault = |why| Err(StyleFault { at, why });
            if let Some((id, length)) = self.placeholders.word(rest) {
                self.at += length;
                let is_plain = quote.is_none() && brackets.is_empty();
                let item = self.placeholders.get(id).first();
                let is_output = item.is_some_and(|item| item.output().is_some());
                if let Some(item) = item.filter(|_| !is_output)
                    && !(is_plain && self.block(item, depth))
                {
                    return fault(StyleFaultReason::Block);
                }
                if is_output || !text.trim().is_empty() {
                    text.push(UNKNOWN);
                }
                continue;
            }
            self.at += character.len_utf8();
            match (character, quote) {
                ('\\', _) => {
                    text.push(character);
                    if let Some(next) = rest.chars().nth(1) {
                        self.at += next.len_utf8();
                        text.push(next);
                    }
                    continue;
                }
                ('\n' | '\r' | '\u{c}', Some(_)) => return fault(StyleFaultReason::Unclosed),
                (_, Some(open)) => quote = Some(open).filter(|_| character != open),
                ('"' | '\'', None) => quote = Some(character),
                ('/', None) if rest.starts_with("/*") => {
                    let Some(end) = rest.get(2..).and_then(|rest| rest.find("*/")) else {
                        return fault(StyleFaultReason::Unclosed);
                    };
                    if self.has_control(rest.get(..end + 4).unwrap_or_default()) {
                        return fault(StyleFaultReason::Block);
                    }
                    self.at = at + end + 4;
                    continue;
                }
                ('(', None) => {
                    brackets.push(')');
                    let is_url = text.len() >= 3
                        && text.get(text.len() - 3..).is_some_and(|word| word.eq_ignore_ascii_case("url"));
                    let inner = rest.get(1..).unwrap_or_default();
                    if is_url && !inner.trim_start().starts_with(['"', '\'']) {
                        // An address without quotes: nothing in it means anything up to its end.
                        let Some(end) = inner.find(')') else { return fault(StyleFaultReason::Unclosed) };
                        let address = inner.get(..end).unwrap_or_default();
                        if address.contains(['\\', '(', '"', '\'']) {
                            return fault(StyleFaultReason::Unclosed);
                        }
                        if self.has_control(address) {
                            return fault(StyleFaultReason::Block);
                        }
                        text.push('(');
                        text.push_str(address);
                        self.at = at + 1 + end;
                        continue;
                    }
                }
                ('[', None) => brackets.push(']'),
                (')' | ']', None) if brackets.pop().is_some_and(|open| open != character) => {
                    return fault(StyleFaultReason::Unclosed);
                }
                ('{' | '}', None) if !brackets.is_empty() => return fault(StyleFaultReason::Unclosed),
                ('{', None) => break PieceEnd::Open,
                ('}', None) if self.liquid.last().is_some_and(|opened| depth <= *opened) => {
                    return fault(StyleFaultReason::Block);
                }
                ('}', None) => break PieceEnd::Close,
                (';', None) if brackets.is_empty() => break PieceEnd::Semicolon,
                ('<', None) if rest.starts_with("<!--") && text.is_empty() => {
                    self.at = at + 4;
                    continue;
                }
                ('-', None) if rest.starts_with("-->") && text.is_empty() => {
                    self.at = at + 3;
                    continue;
                }
                _ => {}
            }
            if text.is_empty() {
                if character.is_ascii_whitespace() {
                    continue;
                }
                start = at;
            }
            text.push(character);
        };
        self.is_done = end == PieceEnd::Sheet;
        if self.is_done && (quote.is_some() || !brackets.is_empty()) {
            return Err(StyleFault { at: start, why: StyleFaultReason::Unclosed });
        }
        Ok(Some(SheetPiece { text, at: start, end }))
    }

    /// Whether tags of Liquid stand in this text.
    fn has_control(&self, text: &str) -> bool {
        self.placeholders.items(text).iter().any(is_control)
    }

    /// Whether a tag of Liquid stands at the depth where its block began.
    fn block(&mut self, item: &Item, depth: usize) -> bool {
        if opens(item).is_some() {
            self.liquid.push(depth);
            return true;
        }
        if closes(item).is_some() {
            return self.liquid.pop() == Some(depth);
        }
        if divides(item) {
            return self.liquid.last() == Some(&depth);
        }
        let leaves = matches!(item.kind, ItemKind::Tag(LiquidTag::Break | LiquidTag::Continue));
        !leaves || self.liquid.iter().all(|opened| *opened == depth)
    }
}
