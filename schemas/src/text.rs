//! The rule for texts that people read in one line: names, titles, companies, subjects.
//!
//! What shows nothing, or shows the line in another order than it was written in, serves only to deceive the reader.

use thiserror::Error;

/// Why a text is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TextError {
    /// A line break, or another control character (C0, C1, DEL).
    #[error("must not contain line breaks or other control characters")]
    Control,
    /// A character that shows nothing, or that changes the direction of what follows.
    #[error("must not contain characters that show nothing or change the direction of the text")]
    Invisible,
}

impl TextError {
    /// The stable code of the fault, for API answers and import reports.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Control => "control_character",
            Self::Invisible => "invisible_character",
        }
    }
}

/// Checks a text of one line.
pub fn check_line(text: &str) -> Result<(), TextError> {
    if text.chars().any(char::is_control) { Err(TextError::Control) } else { check_visible(text) }
}

/// Checks that a text shows all it says; line breaks are not looked at.
///
/// Joiners are taken inside what is written with them (emoji, Persian, Indic scripts), and direction marks in a text that has letters
/// written from right to left.
pub fn check_visible(text: &str) -> Result<(), TextError> {
    if text.is_ascii() {
        return Ok(());
    }
    let is_joined = |letter: Option<char>| letter.is_some_and(|letter| !letter.is_ascii() && !is_invisible(letter));
    let mut has_right_to_left = None;
    let mut before = None;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let good = match letter {
            '\u{200c}' | '\u{200d}' => is_joined(before) && is_joined(letters.peek().copied()),
            '\u{200e}' | '\u{200f}' | '\u{61c}' => {
                *has_right_to_left.get_or_insert_with(|| text.chars().any(is_right_to_left))
            }
            other => !is_invisible(other),
        };
        if !good {
            return Err(TextError::Invisible);
        }
        before = Some(letter);
    }
    Ok(())
}

/// Shows nothing, or changes the direction of what follows. Tags (`U+E0020…`) are part of some flags and are not counted.
#[must_use]
pub fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}')
}

fn is_right_to_left(letter: char) -> bool {
    matches!(letter, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{10800}'..='\u{10fff}'
        | '\u{1e800}'..='\u{1efff}')
        && !is_invisible(letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("Ann O'Neill (42) – Zoë 写真", None)]
    #[case::family("👨\u{200d}👩\u{200d}👧", None)]
    #[case::persian("می\u{200c}خواهم", None)]
    #[case::hebrew("שלום!\u{200f} ok", None)]
    #[case::flag("🏴\u{e0067}\u{e0062}\u{e007f}", None)]
    #[case::line_break("a\r\nBcc: b", Some("control_character"))]
    #[case::nul("a\0b", Some("control_character"))]
    #[case::c1("a\u{85}b", Some("control_character"))]
    #[case::delete("a\u{7f}b", Some("control_character"))]
    #[case::direction("invoice\u{202e}fdp", Some("invisible_character"))]
    #[case::isolate("a\u{2066}b", Some("invisible_character"))]
    #[case::zero_width_space("pay\u{200b}pal", Some("invisible_character"))]
    #[case::joiner_between_ascii("pay\u{200d}pal", Some("invisible_character"))]
    #[case::joiner_at_the_end("👧\u{200d}", Some("invisible_character"))]
    #[case::mark_without_reason("pay\u{200e}pal", Some("invisible_character"))]
    #[case::soft_hyphen("pay\u{ad}pal", Some("invisible_character"))]
    #[case::byte_order_mark("\u{feff}Ann", Some("invisible_character"))]
    #[case::word_joiner("a\u{2060}b", Some("invisible_character"))]
    #[case::line_separator("a\u{2028}b", Some("invisible_character"))]
    fn a_line_shows_all_it_says(#[case] text: &str, #[case] code: Option<&str>) {
        assert_eq!(check_line(text).err().map(TextError::code), code);
    }
}
