//! Rows in the text format of COPY.

use chrono::{DateTime, SecondsFormat, Utc};
use schemas::{action::SuppressionScope, new_id};
use serde_json::Value;

use super::row::ImportRow;

/// The statement the bytes belong to.
pub(super) const STATEMENT: &str = "copy import_rows (number, address, new_id, contact_id, first_name, last_name, title, phone, company, \
    lifecycle_stage, dot_number, timezone, locale, fields, tags, lists, status, unsubscribed, pending, suppression_reason, consent_basis, consent_at, external_id, \
    suppression_scope, suppression_note, suppression_expires_at) \
    from stdin";

/// Between names; cannot occur in one.
const NAME_SEPARATOR: &str = "\u{1f}";
/// How much goes into one message to Postgres, in bytes, at most: unless a row alone is longer.
const PIECE_BYTES: usize = 256 * 1024;

/// Rows as COPY takes them, in pieces of whole rows.
#[derive(Debug, Default)]
pub(super) struct EncodedRows {
    pieces: Vec<String>,
    /// The current row.
    line: String,
}

impl EncodedRows {
    /// Takes a row, and answers how many bytes are held of it.
    pub fn take(&mut self, row: ImportRow) -> usize {
        self.line.clear();
        encode_row(row, &mut self.line);
        match self.pieces.last_mut() {
            Some(piece) if piece.len() + self.line.len() <= PIECE_BYTES => piece.push_str(&self.line),
            _ => {
                let mut piece = String::with_capacity(PIECE_BYTES.max(self.line.len()));
                piece.push_str(&self.line);
                self.pieces.push(piece);
            }
        }
        self.line.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces, in order.
    pub fn into_pieces(self) -> Vec<String> {
        self.pieces
    }
}

fn encode_row(row: ImportRow, line: &mut String) {
    cell(line, Some(&row.number.to_string()), '\t');
    cell(line, Some(&row.address), '\t');
    let id = new_id().to_string();
    cell(line, Some(&id), '\t');
    cell(line, Some(&id), '\t');
    for text in [&row.first_name, &row.last_name, &row.title, &row.phone, &row.company, &row.lifecycle_stage] {
        cell(line, text.as_deref(), '\t');
    }
    cell(line, row.dot_number.map(|number| number.to_string()).as_deref(), '\t');
    cell(line, row.timezone.as_deref(), '\t');
    cell(line, row.locale.as_deref(), '\t');
    cell(line, Some(&Value::Object(row.fields).to_string()), '\t');
    for names in [row.tags, row.lists] {
        cell(line, (!names.is_empty()).then(|| names.join(NAME_SEPARATOR)).as_deref(), '\t');
    }
    cell(line, row.archived.map(|is_so| if is_so { "archived" } else { "active" }), '\t');
    for is_so in [row.unsubscribed, row.pending] {
        cell(line, Some(if is_so { "t" } else { "f" }), '\t');
    }
    cell(line, row.suppression_reason.map(|reason| reason.as_str()), '\t');
    cell(line, row.consent_basis.as_deref(), '\t');
    let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Micros, true);
    cell(line, row.consent_at.map(time).as_deref(), '\t');
    cell(line, row.external_id.as_deref(), '\t');
    cell(line, row.scope.map(SuppressionScope::as_str), '\t');
    cell(line, row.note.as_deref(), '\t');
    cell(line, row.expires_at.map(time).as_deref(), '\n');
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
mod tests {
    use super::*;

    fn pieces(rows: impl IntoIterator<Item = ImportRow>) -> Vec<String> {
        let mut encoded = EncodedRows::default();
        let held: usize = rows.into_iter().map(|row| encoded.take(row)).sum();
        let pieces = encoded.into_pieces();
        assert_eq!(held, pieces.iter().map(String::len).sum::<usize>());
        pieces
    }

    #[test]
    fn what_separates_cells_is_escaped_inside_them() {
        let row = ImportRow {
            number: 2,
            address: "ann@example.com".into(),
            first_name: Some("a\tb\\N\nc".into()),
            tags: vec!["x".into(), "y".into()],
            ..ImportRow::default()
        };
        let text = pieces([row]).concat();
        let cells: Vec<&str> = text.trim_end_matches('\n').split('\t').collect();
        assert_eq!(cells.len(), 26);
        assert_eq!(text.matches('\n').count(), 1);
        assert_eq!((cells[0], cells[1], cells[4]), ("2", "ann@example.com", "a\\tb\\\\N\\nc"));
        assert_eq!((cells[5], cells[13], cells[14], cells[17]), ("\\N", "{}", "x\u{1f}y", "f"));
    }

    #[test]
    fn pieces_are_whole_rows_and_together_all_of_them() {
        let long = "x".repeat(1_000);
        let row = |n: usize| ImportRow {
            address: format!("{n}@example.com"),
            company: Some(long.clone()),
            ..ImportRow::default()
        };
        let several = pieces((0..1_000).map(row));
        assert!(several.len() > 3 && several.iter().all(|piece| piece.len() <= PIECE_BYTES && piece.ends_with('\n')));
        let text = several.concat();
        let addresses: Vec<&str> = text.lines().filter_map(|line| line.split('\t').nth(1)).collect();
        assert_eq!(addresses, (0..1_000).map(|n| format!("{n}@example.com")).collect::<Vec<_>>());
        assert!(pieces([]).is_empty());
    }
}
