//! Style sheets, read for one thing: whether they hide what the engine puts at the end of the body. The footer's own styles are
//! stronger than any rule; what is left are rules for `html` and `body`, which can crop or move all that is in them, and negative
//! margins, which pull up what follows.
//!
//! A sheet that programs could divide into rules in different ways is refused. What comes from a value counts as anything.

mod pieces;
mod selectors;

use std::collections::HashMap;

use super::escape::has_prefix;
use super::placeholder::Placeholders;
use pieces::{PieceEnd, SheetPiece, SheetPieces};
use selectors::{Needs, SelectorTarget, targets};

/// Hosts of style sheets that hold nothing but fonts.
const FONT_HOSTS: [&str; 4] = ["fonts.googleapis.com", "fonts.bunny.net", "use.typekit.net", "p.typekit.net"];
/// Stands for what a value or a condition makes of a piece of a sheet.
const UNKNOWN: char = '\u{1}';

/// Why a style sheet is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum StyleFaultReason {
    #[error("the style sheet cannot be divided into rules: a quote, a bracket or a comment is not closed")]
    Unclosed,
    #[error("a rule cannot stand inside a rule")]
    Nested,
    #[error("a block must begin and end at the same depth of the style sheet, outside of quotes and brackets")]
    Block,
    #[error("a value can stand in a style sheet only as the value of a property")]
    Value,
    #[error("this rule crops, hides or moves `html` or `body`, and the legal footer with it")]
    Root,
    #[error("this rule puts something over links in general, and over the legal footer with them: give it a class")]
    Cover,
    #[error("a negative margin above or below an element could hide the legal footer")]
    Margin,
    #[error("style sheets can be loaded only from hosts of fonts such as fonts.googleapis.com")]
    Import,
}

/// A fault, and where in the sheet it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StyleFault {
    pub(super) at: usize,
    pub(super) why: StyleFaultReason,
}

/// The attributes of the `html` and `body` tags: all values of a name, as [`words`]. `None`: a value makes one of them.
pub(super) type Roots = HashMap<String, Option<String>>;

/// What styles `html` and `body`, and the legal footer with them.
#[derive(Debug, Clone, Default)]
pub(super) struct RootStyles {
    pub(super) roots: Roots,
    /// Rules that must not be for them.
    pub(super) suspects: Vec<Suspect>,
    /// How many of the rules are known not to be for them.
    pub(super) checked: usize,
}

/// A text in lower case, each word between single spaces.
pub(super) fn words(text: &str) -> String {
    let words: String = text.split_whitespace().map(|word| format!(" {word}")).collect();
    format!("{} ", words.to_lowercase())
}

/// A rule that must not be one for `html` or `body`: it is if these have all these attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) at: usize,
    needs: Needs,
}

impl Suspect {
    /// Whether the rule is one for an element with these attributes.
    pub(super) fn matches(&self, roots: &Roots) -> bool {
        self.needs.iter().all(|(name, value)| match roots.get(name) {
            Some(Some(of_root)) => of_root.contains(value),
            Some(None) => true,
            None => false,
        })
    }

    /// How much there is to compare.
    pub(super) fn size(&self) -> usize {
        self.needs.len() + 1
    }
}

/// Reads the style sheet of a `style` element. Answers the rules that depend on the attributes of `html` and `body`.
pub(super) fn check(sheet: &str, placeholders: &Placeholders) -> Result<Vec<Suspect>, StyleFault> {
    let mut pieces = SheetPieces::new(sheet, placeholders);
    // For each open block the rule's targets; `None` for `@media` and the like.
    let mut blocks: Vec<Option<Vec<SelectorTarget>>> = Vec::new();
    let mut suspects = Vec::new();
    while let Some(piece) = pieces.next(blocks.len())? {
        let SheetPiece { text, at, end } = piece;
        let text = text.trim();
        match (blocks.last(), end) {
            (Some(Some(_)), PieceEnd::Open) => return Err(StyleFault { at, why: StyleFaultReason::Nested }),
            (None | Some(None), PieceEnd::Open) if text.starts_with('@') => blocks.push(None),
            (None | Some(None), PieceEnd::Open) => blocks.push(Some(targets(text))),
            (Some(Some(targets)), _) => {
                if is_lifting(text) {
                    return Err(StyleFault { at, why: StyleFaultReason::Margin });
                }
                if text.split(':').next().is_some_and(|property| property.contains(UNKNOWN)) {
                    return Err(StyleFault { at, why: StyleFaultReason::Value });
                }
                let (is_hiding, is_content) = (hides(text), is_content(text));
                for target in targets {
                    let why = match target.is_pseudo {
                        true if is_content => StyleFaultReason::Cover,
                        false if is_hiding => StyleFaultReason::Root,
                        _ => continue,
                    };
                    if target.needs.is_empty() {
                        return Err(StyleFault { at, why });
                    }
                    suspects.push(Suspect { at, needs: target.needs.clone() });
                }
                if end == PieceEnd::Close {
                    blocks.pop();
                }
            }
            (None | Some(None), PieceEnd::Close) => drop(blocks.pop()),
            (None | Some(None), _) => {
                let is_import = has_prefix(text, "@import");
                if (is_import || text.contains(['\\', UNKNOWN])) && text.starts_with('@') && !is_font_import(text) {
                    return Err(StyleFault { at, why: StyleFaultReason::Import });
                }
            }
        }
    }
    Ok(suspects)
}

/// Checks the declarations of a `style` attribute; `of_root` for `html` and `body`.
pub(super) fn check_inline(style: &str, of_root: bool) -> Result<(), StyleFaultReason> {
    let none = Placeholders::absent_from(style);
    let mut pieces = SheetPieces::new(style, &none);
    loop {
        match pieces.next(0) {
            Ok(Some(SheetPiece { text, end, .. })) => {
                if of_root && (hides(&text) || matches!(end, PieceEnd::Open | PieceEnd::Close)) {
                    return Err(StyleFaultReason::Root);
                }
                if is_lifting(&text) {
                    return Err(StyleFaultReason::Margin);
                }
            }
            // Broken styles are common and mean nothing, unless they may mean this.
            Err(_) if of_root || style.to_ascii_lowercase().contains("margin") => {
                return Err(StyleFaultReason::Unclosed);
            }
            Ok(None) | Err(_) => return Ok(()),
        }
    }
}

/// Whether a rendered value can stand in a style sheet: it ends nothing of what it stands in.
pub(super) fn is_value(value: &str) -> bool {
    if value.contains(['"', '\'', '\\', '{', '}', ';', '@', '*'])
        || value.ends_with('/')
        || value.contains(char::is_control)
    {
        return false;
    }
    let depth = value.chars().try_fold(0_u32, |depth, character| match character {
        '(' | '[' => Some(depth + 1),
        ')' | ']' => depth.checked_sub(1),
        _ => Some(depth),
    });
    depth == Some(0)
}

/// Whether this is the address of a sheet that holds nothing but fonts.
pub(super) fn is_font_address(address: &str) -> bool {
    let address = address.trim().to_ascii_lowercase();
    let rest = ["https://", "http://", "//"].iter().find_map(|scheme| address.strip_prefix(scheme));
    rest.is_some_and(|rest| {
        FONT_HOSTS.iter().any(|host| rest.strip_prefix(host).is_some_and(|path| path.starts_with('/')))
    })
}

fn is_font_import(statement: &str) -> bool {
    let Some(rest) = statement.get(7..) else { return false };
    let rest = rest.trim_start();
    let rest = if has_prefix(rest, "url(") { rest.get(4..).unwrap_or_default() } else { rest };
    !statement.contains(['\\', UNKNOWN]) && is_font_address(rest.trim_start().trim_start_matches(['"', '\'']))
}

/// The property (in lower case and without a vendor's prefix) and the value of a declaration.
fn declaration(text: &str) -> Option<(String, String)> {
    let (property, value) = text.split_once(':')?;
    let property = property.trim().to_ascii_lowercase();
    let bare = ["-webkit-", "-moz-", "-ms-", "-o-"].iter().find_map(|prefix| property.strip_prefix(prefix));
    let value = value.trim().to_ascii_lowercase();
    let value = value.split('!').next().unwrap_or_default().trim().to_owned();
    Some((bare.map_or_else(|| property.clone(), str::to_owned), value))
}

/// Whether a value may be below zero.
fn may_be_negative(value: &str) -> bool {
    value.contains(['(', '\\', UNKNOWN])
        || value.match_indices('-').any(|(at, _)| {
            let before = value.get(..at).unwrap_or_default();
            let after = value.get(at + 1..).unwrap_or_default();
            after.starts_with(|next: char| next.is_ascii_digit() || next == '.')
                && !before.ends_with(|last: char| last.is_alphanumeric())
        })
}

/// Whether a declaration pulls up what follows its element.
fn is_lifting(text: &str) -> bool {
    let Some((property, value)) = declaration(text) else { return false };
    if property.contains(['\\', UNKNOWN]) {
        return value.contains('-') && may_be_negative(&value);
    }
    match property.as_str() {
        "margin" if !value.contains(['(', '\\', UNKNOWN]) => {
            let vertical = value.split_whitespace().enumerate().filter(|(index, _)| index % 2 == 0);
            vertical.map(|(_, length)| length).any(may_be_negative)
        }
        "margin" | "margin-top" | "margin-bottom" | "margin-block" | "margin-block-start" | "margin-block-end"
        | "margin-before" | "margin-after" => may_be_negative(&value),
        _ => false,
    }
}

/// Whether a declaration for `html` or `body` crops, hides or moves what is in it, other than all of it.
fn hides(text: &str) -> bool {
    let Some((property, value)) = declaration(text) else { return false };
    if property.contains(['\\', UNKNOWN]) {
        return true;
    }
    let is_unclear = value.contains(['\\', UNKNOWN]);
    let value = value.as_str();
    if matches!(value, "initial" | "inherit" | "unset" | "revert" | "none" | "normal" | "auto") && property != "display"
    {
        return false;
    }
    match property.as_str() {
        "display" => !matches!(value, "block" | "flow-root" | "table" | "inline-block" | "initial" | "inherit"),
        "visibility" => value != "visible",
        "overflow" | "overflow-y" | "overflow-block" => {
            is_unclear || ["hidden", "clip", "("].iter().any(|crops| value.contains(crops))
        }
        "opacity" | "zoom" | "scale" => !matches!(value, "1" | "1.0" | "100%"),
        "position" => !matches!(value, "static" | "relative"),
        "left" | "right" | "top" | "bottom" | "inset" => !matches!(value, "0" | "0px"),
        "writing-mode" => value != "horizontal-tb",
        "content-visibility" => value != "visible",
        "column-count" => value != "1",
        "float" | "interactivity" | "clip" | "clip-path" | "filter" | "contain" | "content" | "columns"
        | "column-width" | "line-clamp" | "mix-blend-mode" | "translate" | "rotate" | "perspective" | "mso-hide" => {
            true
        }
        property if property.starts_with("margin") => is_unclear || may_be_negative(value),
        property => {
            ["transform", "animation", "mask", "offset", "inset-"].iter().any(|kind| property.starts_with(kind))
        }
    }
}

/// Whether a declaration makes something stand before or after an element's content.
fn is_content(text: &str) -> bool {
    declaration(text).is_some_and(|(property, value)| {
        property.contains(['\\', UNKNOWN]) || (property == "content" && !matches!(value.as_str(), "none" | "normal"))
    })
}
