//! Rules that the bodies of several routes share.

use schemas::text::check_line;

use crate::pipeline::validate::Faults;

/// Longest name of anything, in characters.
pub(crate) const NAME_MAX: usize = 200;
/// Longest postal address, in characters.
pub(crate) const POSTAL_ADDRESS_MAX: usize = 500;
/// Longest subject or preheader source, in characters.
pub(crate) const LINE_MAX: usize = 998;

impl Faults {
    /// The value of a field that must be there.
    pub(crate) fn required<T>(&mut self, path: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.add(path, "required", "is required");
        }
        value
    }

    /// A text that must be there and not be blank.
    pub(crate) fn not_blank(&mut self, path: &str, value: Option<String>) -> String {
        let Some(text) = self.required(path, value) else { return String::new() };
        self.require(!text.trim().is_empty(), path, "empty", "must not be empty");
        text
    }

    /// A name: not blank, one line, at most [`NAME_MAX`] characters; trimmed.
    pub(crate) fn name(&mut self, path: &str, value: Option<String>) -> String {
        // A line break at its end is whitespace, too: it stays, and is refused.
        let is_blank = |c: char| c.is_whitespace() && !c.is_control();
        let name = self.not_blank(path, value).trim_matches(is_blank).to_owned();
        self.one_line(path, &name, NAME_MAX);
        name
    }

    /// A text for a header, a label or a name: no control characters, so that nothing can start a header line of its own, and nothing
    /// that deceives the reader ([`check_line`]).
    pub(crate) fn one_line(&mut self, path: &str, text: &str, max_chars: usize) {
        self.optional(path, Some(text), max_chars);
        if let Err(error) = check_line(text) {
            self.add(path, error.code(), error.to_string());
        }
    }

    /// A label that is not blank, of one line ([`Self::one_line`]).
    pub(crate) fn title(&mut self, path: &str, text: &str, max_chars: usize) {
        self.require(!text.trim().is_empty(), path, "empty", "must not be empty");
        self.one_line(path, text, max_chars);
    }

    /// A postal address: at most [`POSTAL_ADDRESS_MAX`] characters, line breaks among them but no other control characters; trimmed.
    /// A blank one is none.
    pub(crate) fn postal_address(&mut self, path: &str, text: Option<String>) -> Option<String> {
        let text = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        self.optional(path, text.as_deref(), POSTAL_ADDRESS_MAX);
        let odd = text.iter().flat_map(|text| text.chars()).any(|c| c.is_control() && !matches!(c, '\n' | '\r'));
        self.require(!odd, path, "control_character", "must not contain control characters");
        text
    }

    /// One of a closed set of words.
    pub(crate) fn one_of(&mut self, path: &str, text: &str, words: &[&str]) {
        if !words.contains(&text) {
            self.add(path, "not_allowed", format!("must be one of {}", words.join(", ")));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(None, Some("required"))]
    #[case(Some("  "), Some("empty"))]
    #[case(Some("a\r\nBcc: b"), Some("control_character"))]
    #[case(Some("invoice\u{202e}fdp"), Some("invisible_character"))]
    #[case(Some("pay\u{200b}pal"), Some("invisible_character"))]
    #[case(Some("ok\n"), Some("control_character"))]
    #[case(Some(" ok "), None)]
    fn a_name_is_one_line_that_says_something(#[case] name: Option<&str>, #[case] code: Option<&str>) {
        let mut faults = Faults::default();
        faults.name("name", name.map(str::to_owned));
        let found = faults.finish().err().map(|error| error.fields[0].code.clone());
        assert_eq!(found.as_deref(), code);
    }

    #[test]
    fn a_name_has_at_most_two_hundred_characters_not_bytes() {
        let mut faults = Faults::default();
        assert_eq!(faults.name("name", Some(format!(" {} ", "é".repeat(NAME_MAX)))).chars().count(), NAME_MAX);
        assert!(faults.is_empty());
        faults.name("name", Some("é".repeat(NAME_MAX + 1)));
        assert_eq!(faults.finish().unwrap_err().fields[0].code, "too_long");
    }
}
