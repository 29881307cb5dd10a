//! Rows in the text format of COPY.

use chrono::SecondsFormat;
use schemas::new_id;
use serde_json::Value;

use super::row::Row;

/// The statement the bytes belong to.
pub const STATEMENT: &str = "copy import_rows (address, new_id, suppression_id, first_name, last_name, title, phone, company, \
    lifecycle_stage, dot_number, timezone, locale, fields, tags, list, unsubscribed, suppression_reason, consent_basis, consent_at) \
    from stdin";

/// Between tag names; cannot occur in one.
const TAG_SEPARATOR: &str = "\u{1f}";
const BYTES_PER_ROW: usize = 256;

/// All rows, ready to send.
#[must_use]
pub fn encode(rows: Vec<Row>) -> Vec<u8> {
    let mut text = String::with_capacity(rows.len() * BYTES_PER_ROW);
    for row in rows {
        encode_row(row, &mut text);
    }
    text.into_bytes()
}

fn encode_row(row: Row, line: &mut String) {
    let suppression_id = row.suppression_reason.map(|_| new_id().to_string());
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

    #[test]
    fn what_separates_cells_is_escaped_inside_them() {
        let row = Row {
            address: "ann@example.com".into(),
            first_name: Some("a\tb\\N\nc".into()),
            tags: vec!["x".into(), "y".into()],
            ..Row::default()
        };
        let text = String::from_utf8(encode(vec![row])).unwrap();
        let cells: Vec<&str> = text.trim_end_matches('\n').split('\t').collect();
        assert_eq!(cells.len(), 19);
        assert_eq!(text.matches('\n').count(), 1);
        assert_eq!((cells[0], cells[2], cells[3], cells[4]), ("ann@example.com", "\\N", "a\\tb\\\\N\\nc", "\\N"));
        assert_eq!((cells[12], cells[13], cells[15]), ("{}", "x\u{1f}y", "f"));
    }
}
