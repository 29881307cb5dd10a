//! Prints records as a table that fits the terminal. Text cells are cut first, ids are never cut, and a table that is still too
//! wide is printed as one value per line.

use std::io::IsTerminal as _;

use serde_json::Value;

const GAP: usize = 2;
/// The least width of a text column.
const NARROWEST: usize = 10;
const CUT: char = '…';

/// The width of the terminal. Without a terminal it is unlimited, unless `COLUMNS` is set.
pub fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let seen = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    match std::io::stdout().is_terminal() {
        true => seen().or(told).unwrap_or(80),
        false => told.unwrap_or(usize::MAX),
    }
}

/// The records' values of these columns, as text that ends with a line.
pub fn render(records: &[Value], columns: &[&str], width: usize) -> String {
    let rows: Vec<Vec<String>> =
        records.iter().map(|record| columns.iter().map(|column| cell(&record[*column])).collect()).collect();
    let wide = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let natural: Vec<usize> = (0..columns.len()).map(|at| wide(at).max(columns[at].chars().count())).collect();
    let may_shrink: Vec<bool> = (0..columns.len()).map(|at| rows.iter().any(|row| is_text(&row[at]))).collect();
    match fit(&natural, &may_shrink, width) {
        Some(widths) => side_by_side(&rows, columns, &widths),
        None => one_below_the_other(&rows, columns),
    }
}

/// The column widths that fit, with shrunk text columns.
fn fit(natural: &[usize], may_shrink: &[bool], width: usize) -> Option<Vec<usize>> {
    let mut widths = natural.to_vec();
    let gaps = GAP * natural.len().saturating_sub(1);
    loop {
        let total = widths.iter().sum::<usize>() + gaps;
        if total <= width {
            return Some(widths);
        }
        // The widest gives first, down to the next: so no column is cut that is short anyway.
        let (widest, _) = widths
            .iter_mut()
            .zip(may_shrink)
            .filter(|(width, may_shrink)| **may_shrink && **width > NARROWEST)
            .max_by_key(|(width, _)| **width)?;
        *widest -= 1;
    }
}

fn side_by_side(rows: &[Vec<String>], columns: &[&str], widths: &[usize]) -> String {
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> =
            cells.zip(widths).map(|(cell, width)| format!("{:<width$}", cut(cell, *width), width = *width)).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut columns.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

fn one_below_the_other(rows: &[Vec<String>], columns: &[&str]) -> String {
    let names = columns.iter().map(|column| column.chars().count()).max().unwrap_or(0);
    let record = |row: &Vec<String>| {
        let lines = columns.iter().zip(row).filter(|(_, cell)| *cell != "-");
        lines.map(|(column, cell)| format!("{column:<names$}  {cell}\n")).collect::<String>()
    };
    rows.iter().map(record).collect::<Vec<_>>().join("\n")
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let mut kept: String = cell.chars().take(width.saturating_sub(1)).collect();
    kept.push(CUT);
    kept
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => as_time(text).unwrap_or_else(|| text.replace(['\n', '\r', '\t'], " ")),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// A time in UTC, to the second.
fn as_time(text: &str) -> Option<String> {
    let is_time = text.len() >= 20 && text.as_bytes().get(10) == Some(&b'T') && text.as_bytes().get(13) == Some(&b':');
    let at = is_time.then(|| chrono::DateTime::parse_from_rfc3339(text).ok()).flatten()?;
    Some(at.with_timezone(&chrono::Utc).format("%Y-%m-%d %H:%M:%S").to_string())
}

/// True if a cell may be cut: it is not an id, a number or a time.
fn is_text(cell: &str) -> bool {
    let is_id = uuid::Uuid::try_parse(cell).is_ok();
    let is_number = cell.parse::<f64>().is_ok();
    let is_time = chrono::NaiveDateTime::parse_from_str(cell, "%Y-%m-%d %H:%M:%S").is_ok();
    cell != "-" && !is_id && !is_number && !is_time
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "0198c0de-0000-7000-8000-000000000001";

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn a_narrow_table_is_printed_side_by_side() {
        let text = render(&[json!({"id": ID, "state": "paused", "none": null})], &["id", "state", "none"], 80);
        assert_eq!(text, format!("{:<36}  state   none\n{ID}  paused  -\n", "id"));
    }

    #[test]
    fn text_cells_are_cut_and_ids_are_not() {
        let detail = "a long story about what went wrong, and when, and how often, and why".to_owned();
        let text = render(&[json!({"id": ID, "detail": detail, "n": 123_456})], &["id", "detail", "n"], 80);
        assert!(widest(&text) <= 80 && text.contains(ID) && text.contains('…') && text.contains("123456"), "{text}");
    }

    #[test]
    fn a_wide_table_is_printed_one_value_per_line() {
        let record = json!({"a": ID, "b": ID, "c": ID, "nothing": null});
        let text = render(&[record.clone(), record], &["a", "b", "c", "nothing"], 80);
        assert!(widest(&text) <= 80, "{text}");
        assert_eq!(
            (text.matches(ID).count(), text.matches("nothing").count(), text.lines().count()),
            (6, 0, 7),
            "{text}"
        );
    }

    #[test]
    fn a_time_is_shown_to_the_second() {
        let text = render(&[json!({"at": "2026-03-01T09:30:12.123456Z"})], &["at"], 80);
        assert_eq!(text, "at\n2026-03-01 09:30:12\n");
    }

    #[test]
    fn no_records_are_a_head_and_nothing_more() {
        assert_eq!(render(&[], &["id", "state"], 80), "id  state\n");
    }
}
