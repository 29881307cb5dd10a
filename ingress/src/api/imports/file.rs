//! Reading a CSV file: what it looks like, its header, its rows one by one.

use std::time::Duration;

use runtime::{Budget, Limits, Spent};
use schemas::{Address, address::ADDRESS_MAX_BYTES};

use crate::pipeline::{body::IMPORT_BODY_MAX_BYTES, error::ApiError};

/// The longest name of a column, in bytes. A cell is as long as its column's values may be.
const HEADER_NAME_MAX_BYTES: usize = 8 * 1024;
/// Most columns of a file.
const COLUMNS_MAX: usize = 500;
/// The longest row, in bytes, quotes and delimiters included.
const RECORD_MAX_BYTES: usize = 1024 * 1024;

/// Most characters of a text of the file that a report quotes.
const SHOWN_CHARS: usize = 100;

/// What the reading of one file may cost. A byte is looked at, and read into a record; what is held beside the file is one record, the
/// addresses found so far, and the good rows as Postgres takes them: with ids of their own, and what must be escaped.
pub(super) const LIMITS: Limits = Limits {
    input_bytes: IMPORT_BODY_MAX_BYTES,
    held_bytes: 3 * IMPORT_BODY_MAX_BYTES,
    depth: 1,
    steps: 4 * IMPORT_BODY_MAX_BYTES as u64,
    time: Duration::from_secs(30),
};

/// The refusal of a file that costs more than [`LIMITS`]: 413, or 503 where only a busy machine explains it.
pub(super) fn spent(spent: Spent) -> ApiError {
    if spent.is_transient() {
        return ApiError::unavailable();
    }
    ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "too_many_rows")
        .detail(format!("{spent}; split the file and send it as several imports"))
}

/// A name of the file as a report quotes it. A file without a header has addresses in its place.
pub(super) fn shown(name: &str) -> String {
    quoted(name).unwrap_or_else(|| "[address]".to_owned())
}

/// A text of the file as a report quotes it: cut short. `None` when an address is in it, wherever the columns were mixed up.
pub(super) fn quoted(text: &str) -> Option<String> {
    // Looked at beyond what is quoted, so that the cut leaves no half of an address.
    let start: String = text.chars().take(SHOWN_CHARS + 2 * ADDRESS_MAX_BYTES).collect();
    let ends = |c: char| c.is_whitespace() || c.is_control() || ",;:|<>()[]\"'\\/".contains(c);
    let has_none = !start.split(ends).any(has_address);
    has_none.then(|| start.chars().take(SHOWN_CHARS).collect())
}

/// True if a word is an address or contains one, with any characters around it.
fn has_address(word: &str) -> bool {
    let parts = word.split_once(['@', '\u{ff20}', '\u{fe6b}']);
    Address::parse(word).is_ok() || parts.is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty())
}

/// 400 about the file, with the line.
pub(super) fn fault(line: u64, code: &'static str, detail: &str) -> ApiError {
    ApiError::invalid("csv", code, format!("line {line}: {detail}"))
}

/// A file whose shape is known to be good: its quotes are closed, and no record has more columns or bytes than it may. So a record
/// can be built without looking at its size.
#[derive(Debug)]
pub(super) struct CsvFile<'a> {
    text: &'a str,
    delimiter: u8,
}

impl<'a> CsvFile<'a> {
    /// Looks at a file: its byte order mark, its delimiter, its quotes, the size of each record. Nothing is kept of it.
    ///
    /// # Errors
    /// 400 with the line for an empty file, a quote that is not closed (the csv crate would read the rest of the file as one cell), or
    /// a record that is too long or has too many columns; as [`spent`] when the budget is used up.
    pub fn open(text: &'a str, budget: &Budget) -> Result<Self, ApiError> {
        budget.take_input(text.len()).map_err(spent)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim().is_empty() {
            return Err(fault(1, "empty", "there is no header row"));
        }
        let delimiter = sniff(text);
        for record in Records::of(text, delimiter) {
            let record =
                record.map_err(|line| fault(line, "unterminated_quote", "a quote opens here and never closes"))?;
            // Two steps for a byte: it is looked at here, and read into a record afterwards.
            budget.take_steps(2 * record.bytes as u64 + 1).map_err(spent)?;
            record.check()?;
        }
        Ok(Self { text, delimiter })
    }

    /// The header's cells and the rows after it.
    ///
    /// # Errors
    /// 400 when there is no readable header.
    pub fn rows(&self) -> Result<(Vec<String>, CsvRows<'a>), ApiError> {
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(self.delimiter)
            .has_headers(true)
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(self.text.as_bytes());
        let header = reader.headers().map_err(|_| fault(1, "unreadable", "the header cannot be read"))?;
        let names: Vec<String> = header.iter().map(str::to_owned).collect();
        if names.iter().any(|name| name.len() > HEADER_NAME_MAX_BYTES) {
            let detail = format!("the name of a column may have at most {HEADER_NAME_MAX_BYTES} bytes");
            return Err(fault(1, "oversize_field", &detail));
        }
        Ok((names, CsvRows { reader, record: csv::StringRecord::new(), number: 1 }))
    }
}

/// The rows of a file.
#[derive(Debug)]
pub(super) struct CsvRows<'a> {
    reader: csv::Reader<&'a [u8]>,
    record: csv::StringRecord,
    number: u64,
}

impl CsvRows<'_> {
    /// The next row and its number. The header is row 1, a row of several lines is one, and an empty line is none.
    ///
    /// # Errors
    /// 400 with the line for a row that cannot be read.
    pub fn next_row(&mut self) -> Result<Option<(u64, &csv::StringRecord)>, ApiError> {
        let line = self.reader.position().line();
        match self.reader.read_record(&mut self.record) {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(_) => return Err(fault(line, "unreadable", "the row cannot be read")),
        }
        self.number += 1;
        Ok(Some((self.number, &self.record)))
    }
}

/// The size of one record in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    /// The line it begins on.
    line: u64,
    /// Its bytes, without the line break.
    bytes: usize,
    columns: usize,
}

impl Size {
    fn check(self) -> Result<(), ApiError> {
        if self.columns > COLUMNS_MAX {
            let detail = format!("a row may have at most {COLUMNS_MAX} columns");
            return Err(fault(self.line, "too_many_columns", &detail));
        }
        if self.bytes > RECORD_MAX_BYTES {
            let detail = format!("a row may have at most {RECORD_MAX_BYTES} bytes");
            return Err(fault(self.line, "oversize_row", &detail));
        }
        Ok(())
    }
}

/// The sizes of the records, counted and not built. Reads as the csv crate does: a quote opens at the start of a cell only, two
/// quotes inside a quoted cell are one, and a line without a byte is no record. Ends with the line of a quote that never closes.
struct Records<'a> {
    bytes: std::iter::Peekable<std::slice::Iter<'a, u8>>,
    delimiter: u8,
    line: u64,
}

impl<'a> Records<'a> {
    fn of(text: &'a str, delimiter: u8) -> Self {
        Self { bytes: text.as_bytes().iter().peekable(), delimiter, line: 1 }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Size, u64>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut size = Size { line: self.line, bytes: 0, columns: 1 };
        let (mut opened, mut at_start) = (None, true);
        while let Some(&byte) = self.bytes.next() {
            if byte == b'\n' {
                self.line += 1;
            }
            if opened.is_none() && matches!(byte, b'\n' | b'\r') {
                if size.bytes > 0 {
                    return Some(Ok(size));
                }
                size.line = self.line;
                continue;
            }
            size.bytes += 1;
            if opened.is_some() {
                if byte == b'"' {
                    match self.bytes.next_if_eq(&&b'"') {
                        Some(_) => size.bytes += 1,
                        None => opened = None,
                    }
                }
                continue;
            }
            match byte {
                b'"' if at_start => {
                    opened = Some(self.line);
                    at_start = false;
                }
                byte if byte == self.delimiter => {
                    size.columns += 1;
                    at_start = true;
                }
                _ => at_start = false,
            }
        }
        match opened {
            Some(line) => Some(Err(line)),
            None => (size.bytes > 0).then_some(Ok(size)),
        }
    }
}

/// The delimiter that is most frequent in the header, outside quotes.
fn sniff(text: &str) -> u8 {
    let mut counts = [(b',', 0_usize), (b';', 0), (b'\t', 0)];
    let mut quoted = false;
    for byte in text.bytes() {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' | b'\r' if !quoted => break,
            _ if !quoted => {
                if let Some((_, count)) = counts.iter_mut().find(|(delimiter, _)| *delimiter == byte) {
                    *count += 1;
                }
            }
            _ => {}
        }
    }
    // The first of equals: a file of one column is read with commas.
    counts.iter().rev().max_by_key(|(_, count)| *count).map_or(b',', |(delimiter, _)| *delimiter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn open(text: &str) -> Result<CsvFile<'_>, ApiError> {
        CsvFile::open(text, &Budget::new(LIMITS))
    }

    fn cells(text: &str) -> Vec<Vec<String>> {
        let file = open(text).unwrap();
        let (header, mut rows) = file.rows().unwrap();
        let mut all = vec![header];
        while let Some((_, record)) = rows.next_row().unwrap() {
            all.push(record.iter().map(str::to_owned).collect());
        }
        all
    }

    #[rstest]
    #[case("email,name\na@b.co,Ann\n")]
    #[case("\u{feff}email,name\r\na@b.co,Ann\r\n")]
    #[case("email;name\na@b.co;Ann")]
    #[case("email\tname\na@b.co\tAnn\n\n")]
    #[case("\"email\",\"name\"\n\"a@b.co\",\" Ann \"\n")]
    fn files_of_every_usual_dialect_read_the_same(#[case] text: &str) {
        assert_eq!(cells(text), [["email", "name"], ["a@b.co", "Ann"]]);
    }

    #[test]
    fn a_quoted_cell_may_hold_delimiters_quotes_and_lines() {
        assert_eq!(cells("email,name\na@b.co,\"A, \"\"B\"\"\nC\"\n")[1], ["a@b.co", "A, \"B\"\nC"]);
        assert_eq!(cells("email,name\na@b.co,5\" pipe\n")[1], ["a@b.co", "5\" pipe"]);
    }

    #[rstest]
    #[case("email,name\na@b.co,\"Ann\nc@d.co,Bob\n", "line 2")]
    #[case("\"email,name\na@b.co,Ann\n", "line 1")]
    #[case("email,name\n\"x\n\",b\nc,\"d", "line 4")]
    fn a_quote_that_never_closes_is_refused_with_its_line(#[case] text: &str, #[case] line: &str) {
        let error = open(text).unwrap_err();
        assert_eq!(error.fields[0].code, "unterminated_quote");
        assert!(error.fields[0].detail.starts_with(line), "{error:?}");
    }

    #[rstest]
    #[case::header(format!("email{}\n", ",x".repeat(COLUMNS_MAX)), "too_many_columns", "line 1")]
    #[case::row(format!("email\n\na@b.co{}\n", ",".repeat(COLUMNS_MAX)), "too_many_columns", "line 3")]
    #[case::wide_row(format!("email\na@b.co,\"{}\"", "x\n".repeat(RECORD_MAX_BYTES / 2)), "oversize_row", "line 2")]
    #[case::long_name(format!("email,{}\n", "x".repeat(HEADER_NAME_MAX_BYTES + 1)), "oversize_field", "line 1")]
    fn a_record_is_refused_by_its_size_with_its_line(#[case] text: String, #[case] code: &str, #[case] line: &str) {
        let error = open(&text).and_then(|file| file.rows().map(drop)).unwrap_err();
        assert_eq!(error.fields[0].code, code, "{error:?}");
        assert!(error.fields[0].detail.starts_with(line), "{error:?}");
    }

    #[test]
    fn a_row_may_have_as_many_columns_as_are_allowed() {
        assert_eq!(cells(&format!("email{}\n", ",".repeat(COLUMNS_MAX - 1)))[0].len(), COLUMNS_MAX);
    }

    #[rstest]
    #[case("nobody", true)]
    #[case("ann@example.com", false)]
    #[case("Ann <ann@example.com>, later", false)]
    #[case("ann@example.com.", false)]
    #[case("ann@@example.com", false)]
    #[case("ann@localhost", false)]
    #[case("ann\u{ff20}example.com", false)]
    #[case("mailto:ann@example.com?x", false)]
    #[case("ann@", true)]
    #[case("@ann", true)]
    #[case("at @ home", true)]
    #[case("Mars", true)]
    fn a_report_quotes_only_what_is_no_address(#[case] text: &str, #[case] is_quoted: bool) {
        assert_eq!(quoted(text), is_quoted.then(|| text.to_owned()));
    }

    #[test]
    fn a_quotation_that_is_cut_leaves_no_part_of_an_address() {
        for length in SHOWN_CHARS - 30..=SHOWN_CHARS {
            let filling = "x".repeat(length);
            assert_eq!(quoted(&format!("{filling} ann@example.com")), None);
            assert_eq!(quoted(&format!("{filling} later")).unwrap().len(), SHOWN_CHARS.min(length + 6));
        }
    }

    proptest! {
        #[test]
        fn records_are_counted_as_the_csv_crate_reads_them(text in "[ab\",;\n\r]{1,60}") {
            let mut sizes = Vec::new();
            for record in Records::of(&text, b',') {
                match record {
                    Ok(size) => sizes.push(size.columns),
                    // The csv crate would swallow the rest.
                    Err(_) => return Ok(()),
                }
            }
            let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
            let read: Vec<usize> = reader.records().map(|record| record.unwrap().len()).collect();
            prop_assert_eq!(sizes, read);
        }
    }
}
