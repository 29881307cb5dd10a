//! How rows are written.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rows::ExportRow;
use crate::pipeline::error::ApiError;

schemas::named_enum! {
    /// The form of an export.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub(super) wire enum ExportFormat {
        /// A header line, then a line for each row (RFC 4180).
        #[default]
        Csv = "csv",
        /// A JSON object on each line.
        Ndjson = "ndjson",
    }
}

impl ExportFormat {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv",
            Self::Ndjson => "application/x-ndjson",
        }
    }
}

/// The column of the cursor, in both forms.
pub(super) const CURSOR: &str = "cursor";

/// Writes the header line of CSV.
pub(super) fn write_header<R: ExportRow>(format: ExportFormat, out: &mut Vec<u8>) -> Result<(), ApiError> {
    match format {
        ExportFormat::Csv => write_record(R::columns().chain([CURSOR]), &mut line_writer(out)),
        ExportFormat::Ndjson => Ok(()),
    }
}

/// Writes rows.
pub(super) fn write_rows<R: ExportRow>(format: ExportFormat, rows: &[R], out: &mut Vec<u8>) -> Result<(), ApiError> {
    for row in rows {
        let mut value = serde_json::to_value(row).map_err(|error| ApiError::unexpected(&error))?;
        value[CURSOR] = row.cursor().seal(R::NAME).into();
        match format {
            ExportFormat::Csv => {
                let cells = R::columns().chain([CURSOR]).map(|column| cell(&value[column]));
                write_record(cells.map(|cell| cell.into_owned()), &mut line_writer(out))?;
            }
            ExportFormat::Ndjson => write_line(&value, out)?,
        }
    }
    Ok(())
}

/// Writes an object as a line of NDJSON.
pub(in crate::api) fn write_line(object: &impl Serialize, out: &mut Vec<u8>) -> Result<(), ApiError> {
    serde_json::to_writer(&mut *out, object).map_err(|error| ApiError::unexpected(&error))?;
    out.push(b'\n');
    Ok(())
}

fn line_writer(out: &mut Vec<u8>) -> csv::Writer<&mut Vec<u8>> {
    csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(out)
}

fn write_record<T: AsRef<[u8]>>(
    cells: impl Iterator<Item = T>,
    writer: &mut csv::Writer<&mut Vec<u8>>,
) -> Result<(), ApiError> {
    writer.write_record(cells).map_err(|error| ApiError::unexpected(&error))?;
    writer.flush().map_err(|error| ApiError::unexpected(&error))
}

/// A value as a cell. A text that a spreadsheet would run as a formula gets an apostrophe, which makes it a text there, too.
fn cell(value: &Value) -> Cow<'_, str> {
    match value {
        Value::Null => Cow::Borrowed(""),
        Value::String(text) if is_formula(text) => Cow::Owned(format!("'{text}")),
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// A cell without the apostrophe that an export has put before a formula.
pub(in crate::api) fn unescaped(cell: &str) -> &str {
    cell.strip_prefix('\'').filter(|text| is_formula(text)).unwrap_or(cell)
}

/// Whatever apostrophes it has of its own: each text is another cell.
fn is_formula(text: &str) -> bool {
    const STARTS: [char; 11] = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
    text.trim_start_matches('\'').starts_with(STARTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(json!("=1+1"), "'=1+1")]
    #[case(json!("+4930"), "'+4930")]
    #[case(json!("-2"), "'-2")]
    #[case(json!("@SUM(A1)"), "'@SUM(A1)")]
    #[case(json!("\t=1"), "'\t=1")]
    #[case(json!("\r=1"), "'\r=1")]
    #[case(json!("＝1"), "'＝1")]
    #[case(json!("Ann = Bob"), "Ann = Bob")]
    #[case(json!("'=1"), "''=1")]
    #[case(json!("'tis"), "'tis")]
    #[case(json!(-2), "-2")]
    #[case(json!(null), "")]
    #[case(json!({"plan": "=1"}), r#"{"plan":"=1"}"#)]
    fn no_cell_is_a_formula(#[case] value: Value, #[case] expected: &str) {
        assert_eq!(cell(&value), expected);
        assert_eq!(unescaped(expected), value.as_str().unwrap_or(expected), "read as it was written");
    }
}
