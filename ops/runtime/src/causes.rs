//! Prints an error in one line for logs and dead letters, without the data it is about.

use std::error::Error;

use serde_json::error::Category;
use tokio::task::JoinError;

use crate::db;

/// An error and its causes in one line. A cause whose text is already at the end of the line is left out. Errors whose text may
/// quote data are described in our own words: those of Postgres, of JSON, and of a task that panicked. An error that contains one
/// of these must not print it in its own text.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let redacted = redacted(error);
        // The sources of these errors contain the same data.
        next = if redacted.is_some() { None } else { error.source() };
        let cause_text = redacted.unwrap_or_else(|| error.to_string());
        if text.is_empty() {
            text = cause_text;
        } else if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
    }
    text
}

/// Describes a JSON error and its position. The error's own text quotes the value at fault, which may be an address.
#[must_use]
pub fn json_fault(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        Category::Syntax => "no JSON",
        Category::Data => "not of the shape expected",
        Category::Eof => "the end is missing",
        Category::Io => "cannot be read or written",
    };
    // An error about a value has no position.
    match error.line() {
        0 => what.to_owned(),
        line => format!("{what}, at line {line} column {}", error.column()),
    }
}

fn redacted(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        Some(db::describe(error))
    } else if let Some(error) = error.downcast_ref::<serde_json::Error>() {
        Some(json_fault(error))
    } else {
        // The panic hook has logged where it panicked.
        let ended = error.downcast_ref::<JoinError>()?;
        Some(if ended.is_panic() { "a task panicked" } else { "a task was cancelled" }.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thiserror::Error;

    #[derive(Debug, Error)]
    enum Outer {
        #[error("the ledger")]
        Ledger(#[from] sqlx::Error),
        #[error("the text")]
        Json(#[from] serde_json::Error),
        #[error("said: {0}")]
        Said(#[source] Box<dyn Error + Send + Sync>),
    }

    #[test]
    fn a_value_that_does_not_decode_is_not_in_the_line() {
        let quoting = || Box::<dyn Error + Send + Sync>::from("invalid address ann@example.com");
        let column = sqlx::Error::ColumnDecode { index: "address".to_owned(), source: quoting() };
        assert_eq!(chain(&Outer::from(column)), "the ledger: column address does not decode");
        assert_eq!(chain(&sqlx::Error::Decode(quoting())), "a value does not decode");
        assert_eq!(chain(&sqlx::Error::Encode(quoting())), "a value does not encode");
    }

    #[test]
    fn a_json_error_is_described_by_its_position() {
        let error = serde_json::from_str::<u8>("\n \"ann@example.com\"").unwrap_err();
        assert!(error.to_string().contains('@'));
        assert_eq!(chain(&Outer::from(error)), "the text: not of the shape expected, at line 2 column 18");
        let error = serde_json::from_value::<u8>("ann@example.com".into()).unwrap_err();
        assert_eq!(chain(&error), "not of the shape expected");
    }

    #[tokio::test]
    async fn what_a_panic_said_is_not_in_the_line() {
        let ended = tokio::spawn(async { panic!("ann@example.com") }).await;
        let error: JoinError = ended.map(|(): ()| ()).unwrap_err();
        assert!(error.to_string().contains('@'));
        assert_eq!(chain(&error), "a task panicked");
    }

    #[test]
    fn a_cause_that_was_said_already_is_said_once() {
        let said = Outer::Said(Box::new(std::io::Error::other("stream not found")));
        assert_eq!(chain(&said), "said: stream not found");
    }
}
