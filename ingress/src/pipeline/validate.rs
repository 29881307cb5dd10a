//! Collecting faults, so that one answer names them all.

use std::borrow::Cow;

use schemas::Address;

use crate::pipeline::error::{ApiError, FieldFault};

/// The faults found so far.
#[derive(Debug, Default)]
pub struct Faults(Vec<FieldFault>);

impl Faults {
    /// Adds a fault.
    pub fn add(&mut self, path: impl Into<String>, code: impl Into<Cow<'static, str>>, detail: impl Into<String>) {
        self.0.push(FieldFault::new(path, code, detail));
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

    /// An address in canonical form; `None` and a fault for everything else.
    pub fn address(&mut self, path: &str, text: &str) -> Option<Address> {
        Address::parse(text).map_err(|error| self.add(path, error.code(), error.to_string())).ok()
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the validation.
    ///
    /// # Errors
    /// 400 `validation_failed` with everything found.
    pub fn finish(self) -> Result<(), ApiError> {
        if self.0.is_empty() { Ok(()) } else { Err(ApiError::validation(self.0)) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
}
