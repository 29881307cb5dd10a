//! The rules of fields. Faults are collected, so that one answer names them all.

use std::{borrow::Cow, fmt::Display, ops::RangeInclusive};

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use schemas::{Address, AddressError, text::check_line};

use crate::pipeline::{
    GivenTime,
    error::{ApiError, FAULTS_MAX, FieldFault},
};

/// Longest name of anything, in characters.
pub(crate) const NAME_MAX: usize = 200;
/// Characters in the name of a list, a tag or a segment.
pub(crate) const AUDIENCE_NAME_MAX: usize = 100;
/// The names of the events that products report.
pub(crate) const EVENT_PATTERN: &str = "^[a-z][a-z0-9_.]{0,99}$";
/// The keys of fields, and the triggers of sequences.
pub(crate) const WORD_PATTERN: &str = "^[a-z][a-z0-9_]{0,49}$";
/// The longest of them.
pub(crate) const WORD_MAX: usize = 50;
/// Longest postal address, in characters.
pub(crate) const POSTAL_ADDRESS_MAX: usize = 500;
/// Longest subject or preheader source, in characters.
pub(crate) const LINE_MAX: usize = 998;
/// Longest text of a snippet or a layout, in bytes.
pub(crate) const SNIPPET_MAX: usize = 128 * 1024;
/// Longest id that a product gives an event of its own, in characters.
pub(crate) const SOURCE_EVENT_ID_MAX: usize = 255;
/// How far in the past a due time may be: clocks differ, and requests are repeated.
pub(crate) const PAST_MAX: TimeDelta = TimeDelta::minutes(5);
/// How far ahead of ours the clock of a product may be.
pub(crate) const AHEAD_MAX: TimeDelta = TimeDelta::minutes(5);
/// The earliest year in which something may have happened.
pub(crate) const FIRST_YEAR: i32 = 2000;

/// The faults found so far: the first [`FAULTS_MAX`] are kept.
#[derive(Debug, Default)]
pub struct Faults(Vec<FieldFault>);

impl Faults {
    pub fn add(&mut self, path: impl Into<String>, code: impl Into<Cow<'static, str>>, detail: impl Into<String>) {
        if self.0.len() < FAULTS_MAX {
            self.0.push(FieldFault::new(path, code, detail));
        }
    }

    /// Adds the faults of a part that stands at `path`.
    pub(crate) fn add_within(&mut self, path: &str, faults: Vec<FieldFault>) {
        for FieldFault { path: below, code, detail } in faults {
            let place = if below.is_empty() { path.to_owned() } else { format!("{path}.{below}") };
            self.add(place, code, detail);
        }
    }

    /// Adds a fault unless `good`.
    pub fn require(&mut self, good: bool, path: &str, code: &'static str, detail: &str) {
        if !good {
            self.add(path, code, detail);
        }
    }

    /// A text of 1 to `max_chars` characters that is not only white space.
    pub fn text(&mut self, path: &str, text: &str, max_chars: usize) {
        if text.trim().is_empty() {
            self.add(path, "empty", "must not be empty");
        }
        self.length(path, text, max_chars);
    }

    /// A text of at most `max_chars` characters, if there is one.
    pub fn optional(&mut self, path: &str, text: Option<&str>, max_chars: usize) {
        if let Some(text) = text {
            self.length(path, text, max_chars);
        }
    }

    fn length(&mut self, path: &str, text: &str, max_chars: usize) {
        if text.chars().nth(max_chars).is_some() {
            self.add(path, "too_long", format!("may have at most {max_chars} characters"));
        }
    }

    /// A text of at most `max_bytes` bytes.
    pub(crate) fn bytes(&mut self, path: &str, text: &str, max_bytes: usize) {
        if text.len() > max_bytes {
            self.add(path, "too_long", format!("may have at most {max_bytes} bytes"));
        }
    }

    /// An address in canonical form; `None` and a fault for everything else.
    pub fn address(&mut self, path: &str, text: &str) -> Option<Address> {
        Address::parse(text).map_err(|error| self.add(path, error.code(), error.to_string())).ok()
    }

    /// An address that mail comes from or is answered to, in canonical form: plain ASCII, since not every server takes another one in a header
    /// (RFC 6532).
    pub(crate) fn sender_address(&mut self, path: &str, text: &str) -> Option<Address> {
        let address = self.address(path, text)?;
        let is_plain = address.as_str().is_ascii();
        let code = AddressError::LocalPart.code();
        self.require(is_plain, path, code, "must have nothing but ASCII before the @: not every server takes more");
        is_plain.then_some(address)
    }

    /// The value of a field that must be there.
    pub fn required<T>(&mut self, path: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            self.add(path, "required", "is required");
        }
        value
    }

    /// A text that must be there and not be blank.
    pub fn not_blank(&mut self, path: &str, value: Option<String>) -> String {
        let Some(text) = self.required(path, value) else { return String::new() };
        self.require(!text.trim().is_empty(), path, "empty", "must not be empty");
        text
    }

    /// A name: not blank, one line, at most [`NAME_MAX`] characters; trimmed.
    pub fn name(&mut self, path: &str, value: Option<String>) -> String {
        // A line break at its end is whitespace, too: it stays, and is refused.
        let is_blank = |c: char| c.is_whitespace() && !c.is_control();
        let name = self.not_blank(path, value).trim_matches(is_blank).to_owned();
        self.one_line(path, &name, NAME_MAX);
        name
    }

    /// A text for a header, a label or a name: no control characters, so that nothing can start a header line of its own, and nothing
    /// that deceives the reader ([`check_line`]).
    pub fn one_line(&mut self, path: &str, text: &str, max_chars: usize) {
        self.optional(path, Some(text), max_chars);
        if let Err(error) = check_line(text) {
            self.add(path, error.code(), error.to_string());
        }
    }

    /// A label that is not blank, of one line ([`Self::one_line`]).
    pub fn title(&mut self, path: &str, text: &str, max_chars: usize) {
        self.require(!text.trim().is_empty(), path, "empty", "must not be empty");
        self.one_line(path, text, max_chars);
    }

    /// A postal address: at most [`POSTAL_ADDRESS_MAX`] characters, line breaks among them but no other control characters; trimmed.
    /// A blank one is none.
    pub fn postal_address(&mut self, path: &str, text: Option<String>) -> Option<String> {
        let text = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        self.optional(path, text.as_deref(), POSTAL_ADDRESS_MAX);
        let odd = text.iter().flat_map(|text| text.chars()).any(|c| c.is_control() && !matches!(c, '\n' | '\r'));
        self.require(!odd, path, "control_character", "must not contain control characters");
        text
    }

    /// One of a closed set of words.
    pub fn one_of(&mut self, path: &str, text: &str, words: &[&str]) {
        if !words.contains(&text) {
            self.add(path, "not_allowed", format!("must be one of {}", words.join(", ")));
        }
    }

    /// The member of an enum that a word names.
    pub fn word<T: Copy>(&mut self, path: &str, text: &str, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
        let found = all.iter().copied().find(|member| name(*member) == text);
        if found.is_none() {
            self.one_of(path, text, &all.iter().map(|member| name(*member)).collect::<Vec<_>>());
        }
        found
    }

    /// A lower-case word ([`WORD_PATTERN`]).
    pub(crate) fn key_word(&mut self, path: &str, text: &str) {
        if !is_word(text) {
            self.add(path, "invalid", format!("must match {}", WORD_PATTERN.trim_matches(['^', '$'])));
        }
    }

    /// A number within a range.
    pub(crate) fn within<T: PartialOrd + Display>(&mut self, path: &str, value: T, range: RangeInclusive<T>) {
        if !range.contains(&value) {
            self.add(path, "out_of_range", format!("must be from {} to {}", range.start(), range.end()));
        }
    }

    /// A time with a zone; `None` and a fault for everything else.
    pub(crate) fn time(&mut self, path: &str, text: &str) -> Option<DateTime<Utc>> {
        let at = GivenTime::parse(text).map(|at| at.0);
        let detail = "must be an existing time with a zone, as 2026-03-01T09:00:00Z (RFC 3339)";
        self.require(at.is_some(), path, "invalid", detail);
        at
    }

    /// When something is due: at most [`PAST_MAX`] past and at most so far ahead; `far` says that it is further.
    pub(crate) fn due(
        &mut self,
        path: &str,
        text: &str,
        ahead: TimeDelta,
        far: &str,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let at = self.time(path, text)?;
        self.require(at >= now - PAST_MAX, path, "in_the_past", "is more than five minutes past");
        self.require(at <= now + ahead, path, "too_far_ahead", far);
        Some(at)
    }

    /// When something happened: at most [`AHEAD_MAX`] ahead, and not before [`FIRST_YEAR`].
    pub(crate) fn happened(&mut self, path: &str, at: DateTime<Utc>, now: DateTime<Utc>) {
        let sane = at <= now + AHEAD_MAX && at.year() >= FIRST_YEAR;
        self.require(sane, path, "out_of_range", "must not be in the future nor before the year 2000");
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the validation: 400 `validation_failed` with the faults.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.0.is_empty() { Ok(()) } else { Err(ApiError::validation(self.0)) }
    }
}

/// Whether a text is 1 to `max_chars` ASCII letters, digits and these other characters.
pub(crate) fn is_ascii_name(text: &str, max_chars: usize, others: &[u8]) -> bool {
    (1..=max_chars).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || others.contains(&byte))
}

/// Whether a text is a lower-case word, as [`WORD_PATTERN`] says it.
fn is_word(text: &str) -> bool {
    (1..=WORD_MAX).contains(&text.len())
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn every_fault_is_named() {
        let mut faults = Faults::default();
        faults.text("name", "  ", 10);
        faults.optional("title", Some("12345678901"), 10);
        faults.optional("phone", None, 10);
        assert_eq!(faults.address("email", "nobody"), None);
        assert_eq!(faults.address("reply_to", "Ann@Example.com").unwrap().as_str(), "ann@example.com");
        let error = faults.finish().unwrap_err();
        let codes: Vec<_> = error.fields.iter().map(|fault| (fault.path.as_str(), fault.code.as_ref())).collect();
        assert_eq!(codes, [("name", "empty"), ("title", "too_long"), ("email", "missing_at")]);
    }

    #[test]
    fn mail_comes_from_plain_addresses_and_goes_to_all() {
        let mut faults = Faults::default();
        assert!(faults.address("email", "jürgen@bücher.example").is_some());
        assert!(faults.sender_address("email", "ann@bücher.example").is_some());
        assert_eq!(faults.sender_address("reply_to", "jürgen@example.com"), None);
        let error = faults.finish().unwrap_err();
        let codes: Vec<_> = error.fields.iter().map(|fault| (fault.path.as_str(), fault.code.as_ref())).collect();
        assert_eq!(codes, [("reply_to", "bad_local_part")]);
    }

    #[test]
    fn a_hundred_faults_are_kept() {
        let mut faults = Faults::default();
        (0..=FAULTS_MAX).for_each(|n| faults.text(&format!("names[{n}]"), "", 10));
        assert_eq!(faults.0.len(), FAULTS_MAX);
        assert_eq!(faults.finish().unwrap_err().fields.last().unwrap().path, "names[99]");
    }

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
    fn a_key_is_a_lower_case_word() {
        assert!(
            is_word("plan_2") && !is_word("2plan") && !is_word("Plan") && !is_word("") && !is_word(&"a".repeat(51))
        );
        let mut faults = Faults::default();
        faults.key_word("key", "");
        assert_eq!(faults.finish().unwrap_err().fields[0].detail, "must match [a-z][a-z0-9_]{0,49}");
    }

    #[test]
    fn a_number_out_of_range_is_answered_with_the_range() {
        let mut faults = Faults::default();
        faults.within("days", 30, 1..=30);
        faults.within("percent", 100.0, 0.0..=100.0);
        assert!(faults.is_empty());
        faults.within("days", 31, 1..=30);
        faults.within("percent", -0.5, 0.0..=100.0);
        let details: Vec<_> = faults.finish().unwrap_err().fields.into_iter().map(|fault| fault.detail).collect();
        assert_eq!(details, ["must be from 1 to 30", "must be from 0 to 100"]);
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
