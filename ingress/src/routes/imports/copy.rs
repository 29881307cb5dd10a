//! Rows in the text format of COPY.

use std::mem;

use chrono::SecondsFormat;
use schemas::new_id;
use serde_json::Value;
use tokio::sync::mpsc;

use super::row::Row;
use crate::error::ApiError;

/// The statement the bytes belong to.
pub const STATEMENT: &str = "copy import_rows (number, address, new_id, suppression_id, first_name, last_name, title, phone, company, \
    lifecycle_stage, dot_number, timezone, locale, fields, tags, list, unsubscribed, suppression_reason, consent_basis, consent_at) \
    from stdin";

/// Between tag names; cannot occur in one.
const TAG_SEPARATOR: &str = "\u{1f}";
/// How much goes into one message to Postgres, in bytes, give or take a row: encoded in about a millisecond.
const PIECE_BYTES: usize = 256 * 1024;

/// Rows on their way into Postgres: what was taken goes off when there is a piece of it.
#[derive(Debug)]
pub struct Copy {
    pieces: mpsc::Sender<Vec<u8>>,
    text: String,
}

impl Copy {
    /// Into whatever receives the pieces.
    #[must_use]
    pub fn into(pieces: mpsc::Sender<Vec<u8>>) -> Self {
        Self { pieces, text: String::new() }
    }

    /// Takes a row. Blocks while pieces wait that were made before.
    ///
    /// # Errors
    /// 503 when nobody receives any more; whoever did knows why.
    pub fn take(&mut self, row: Row) -> Result<(), ApiError> {
        encode_row(row, &mut self.text);
        if self.text.len() < PIECE_BYTES { Ok(()) } else { self.send() }
    }

    /// Sends what is left.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn finish(mut self) -> Result<(), ApiError> {
        if self.text.is_empty() { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> Result<(), ApiError> {
        let piece = mem::take(&mut self.text).into_bytes();
        self.pieces.blocking_send(piece).map_err(|_| ApiError::unavailable())
    }
}

fn encode_row(row: Row, line: &mut String) {
    let suppression_id = row.suppression_reason.map(|_| new_id().to_string());
    cell(line, Some(&row.number.to_string()), '\t');
    cell(line, Some(&row.address), '\t');
    cell(line, Some(&new_id().to_string()), '\t');
    cell(line, suppression_id.as_deref(), '\t');
    for text in [&row.first_name, &row.last_name, &row.title, &row.phone, &row.company, &row.lifecycle_stage] {
        cell(line, text.as_deref(), '\t');
    }
    cell(line, row.dot_number.map(|number| number.to_string()).as_deref(), '\t');
    cell(line, row.timezone.as_deref(), '\t');
    cell(line, row.locale.as_deref(), '\t');
    cell(line, Some(&Value::Object(row.fields).to_string()), '\t');
    let tags = (!row.tags.is_empty()).then(|| row.tags.join(TAG_SEPARATOR));
    cell(line, tags.as_deref(), '\t');
    cell(line, row.list.as_deref(), '\t');
    cell(line, Some(if row.unsubscribed { "t" } else { "f" }), '\t');
    cell(line, row.suppression_reason.map(|reason| reason.as_str()), '\t');
    cell(line, row.consent_basis.as_deref(), '\t');
    cell(line, row.consent_at.map(|at| at.to_rfc3339_opts(SecondsFormat::Micros, true)).as_deref(), '\n');
}

fn cell(line: &mut String, text: Option<&str>, end: char) {
    match text {
        None => line.push_str("\\N"),
        Some(text) => {
            for c in text.chars() {
                match c {
                    '\\' => line.push_str("\\\\"),
                    '\n' => line.push_str("\\n"),
                    '\r' => line.push_str("\\r"),
                    '\t' => line.push_str("\\t"),
                    other => line.push(other),
                }
            }
        }
    }
    line.push(end);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pieces(rows: impl IntoIterator<Item = Row>) -> Vec<String> {
        let (sender, mut receiver) = mpsc::channel(100);
        let mut copy = Copy::into(sender);
        rows.into_iter().for_each(|row| copy.take(row).unwrap());
        copy.finish().unwrap();
        std::iter::from_fn(|| receiver.try_recv().ok()).map(|piece| String::from_utf8(piece).unwrap()).collect()
    }

    #[test]
    fn what_separates_cells_is_escaped_inside_them() {
        let row = Row {
            number: 2,
            address: "ann@example.com".into(),
            first_name: Some("a\tb\\N\nc".into()),
            tags: vec!["x".into(), "y".into()],
            ..Row::default()
        };
        let text = pieces([row]).concat();
        let cells: Vec<&str> = text.trim_end_matches('\n').split('\t').collect();
        assert_eq!(cells.len(), 20);
        assert_eq!(text.matches('\n').count(), 1);
        assert_eq!((cells[0], cells[1], cells[3], cells[4]), ("2", "ann@example.com", "\\N", "a\\tb\\\\N\\nc"));
        assert_eq!((cells[5], cells[13], cells[14], cells[16]), ("\\N", "{}", "x\u{1f}y", "f"));
    }

    #[test]
    fn pieces_are_whole_rows_and_together_all_of_them() {
        let long = "x".repeat(1_000);
        let row = |n: usize| Row { address: format!("{n}@example.com"), company: Some(long.clone()), ..Row::default() };
        let several = pieces((0..1_000).map(row));
        assert!(
            several.len() > 3 && several.iter().all(|piece| piece.len() < PIECE_BYTES + 2_000 && piece.ends_with('\n'))
        );
        let text = several.concat();
        let addresses: Vec<&str> = text.lines().filter_map(|line| line.split('\t').nth(1)).collect();
        assert_eq!(addresses, (0..1_000).map(|n| format!("{n}@example.com")).collect::<Vec<_>>());
        assert!(pieces([]).is_empty());
    }
}
