//! Reading a CSV file: what it looks like, what its header means, its rows one by one.

use std::collections::BTreeMap;

use crate::{error::ApiError, routes::fields::FieldType};

/// The longest cell, in bytes.
const CELL_MAX_BYTES: usize = 8 * 1024;
const COLUMNS_MAX: usize = 500;

/// What a column is read into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// The address: the one column that must be there.
    Email,
    /// A plain text of the contact, by its column in `contacts`.
    Text(TextColumn),
    /// `dot_number`
    DotNumber,
    /// `timezone`
    Timezone,
    /// `locale`
    Locale,
    /// Tag names, separated by `;` or `|`.
    Tags,
    /// A list's name.
    List,
    /// Whether the contact has left.
    Unsubscribed,
    /// Why the address is suppressed.
    SuppressionReason,
    /// On what basis the contact may be mailed.
    ConsentBasis,
    /// Since when.
    ConsentAt,
    /// A field the tenant defined.
    Field {
        /// Its key.
        key: String,
        /// What it holds.
        kind: FieldType,
    },
}

/// The plain texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TextColumn {
    FirstName,
    LastName,
    Title,
    Phone,
    Company,
    LifecycleStage,
}

/// A header, understood.
#[derive(Debug, PartialEq, Eq)]
pub struct Header {
    /// What each column is; `None` for ignored ones.
    pub columns: Vec<Option<Column>>,
    /// The names as they stand in the file.
    pub names: Vec<String>,
}

impl Header {
    /// Understands the names. Case, spaces, dashes and underscores do not matter.
    ///
    /// # Errors
    /// 400 with the line for a name that is there twice, or without an address column.
    pub fn read(names: &[String], defined: &BTreeMap<String, FieldType>) -> Result<Self, ApiError> {
        if names.len() > COLUMNS_MAX {
            return Err(fault(1, "too_many_columns", &format!("a file may have at most {COLUMNS_MAX} columns")));
        }
        let fields: BTreeMap<String, (&String, FieldType)> =
            defined.iter().map(|(key, kind)| (plain(key), (key, *kind))).collect();
        let mut columns: Vec<Option<Column>> = Vec::with_capacity(names.len());
        for (position, name) in names.iter().enumerate() {
            let word = plain(name);
            let column = builtin(&word)
                .or_else(|| fields.get(&word).map(|(key, kind)| Column::Field { key: (*key).clone(), kind: *kind }));
            let repeats_a_name = !word.is_empty() && names[..position].iter().any(|other| plain(other) == word);
            if repeats_a_name || (column.is_some() && columns.contains(&column)) {
                return Err(fault(1, "duplicate_header", &format!("two columns mean {}", shown(name))));
            }
            columns.push(column);
        }
        if !columns.contains(&Some(Column::Email)) {
            return Err(fault(1, "missing_column", "there is no email column"));
        }
        Ok(Self { columns, names: names.to_vec() })
    }

    /// The names of the columns that are not read.
    #[must_use]
    pub fn ignored(&self) -> Vec<String> {
        let unread = self.columns.iter().zip(&self.names).filter(|(column, _)| column.is_none());
        unread.map(|(_, name)| shown(name)).collect()
    }
}

fn builtin(word: &str) -> Option<Column> {
    Some(match word {
        "email" | "emailaddress" | "mail" => Column::Email,
        "firstname" => Column::Text(TextColumn::FirstName),
        "lastname" => Column::Text(TextColumn::LastName),
        "title" => Column::Text(TextColumn::Title),
        "phone" => Column::Text(TextColumn::Phone),
        "company" => Column::Text(TextColumn::Company),
        "lifecyclestage" => Column::Text(TextColumn::LifecycleStage),
        "dotnumber" => Column::DotNumber,
        "timezone" => Column::Timezone,
        "locale" => Column::Locale,
        "tags" => Column::Tags,
        "list" => Column::List,
        "unsubscribed" => Column::Unsubscribed,
        "suppressionreason" => Column::SuppressionReason,
        "consentbasis" => Column::ConsentBasis,
        "consentat" => Column::ConsentAt,
        _ => return None,
    })
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace() && *c != '-' && *c != '_').flat_map(char::to_lowercase).collect()
}

fn shown(name: &str) -> String {
    name.chars().take(100).collect()
}

/// 400 about the file, with the line.
pub fn fault(line: u64, code: &'static str, detail: &str) -> ApiError {
    ApiError::invalid("csv", code, format!("line {line}: {detail}"))
}

/// A file whose quotes are known to be closed.
#[derive(Debug)]
pub struct File<'a> {
    text: &'a str,
    delimiter: u8,
}

impl<'a> File<'a> {
    /// Looks at a file: its byte order mark, its delimiter, its quotes.
    ///
    /// # Errors
    /// 400 for an empty file, or a quote that is not closed (the csv crate would read the rest of the file as one cell).
    pub fn open(text: &'a str) -> Result<Self, ApiError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.trim().is_empty() {
            return Err(fault(1, "empty", "there is no header row"));
        }
        let delimiter = sniff(text);
        match unclosed_quote(text, delimiter) {
            Some(line) => Err(fault(line, "unterminated_quote", "a quote opens here and never closes")),
            None => Ok(Self { text, delimiter }),
        }
    }

    /// The header's cells and the rows after it.
    ///
    /// # Errors
    /// 400 when there is no readable header.
    pub fn rows(&self) -> Result<(Vec<String>, Rows<'a>), ApiError> {
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(self.delimiter)
            .has_headers(true)
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(self.text.as_bytes());
        let header = reader.headers().map_err(|_| fault(1, "unreadable", "the header cannot be read"))?;
        let names = header.iter().map(str::to_owned).collect();
        Ok((names, Rows { reader, record: csv::StringRecord::new(), number: 1 }))
    }
}

/// The rows of a file.
#[derive(Debug)]
pub struct Rows<'a> {
    reader: csv::Reader<&'a [u8]>,
    record: csv::StringRecord,
    number: u64,
}

impl Rows<'_> {
    /// The next row and its number: as a spreadsheet counts, so the header is row 1.
    ///
    /// # Errors
    /// 400 with the line for a cell that is too long.
    pub fn next_row(&mut self) -> Result<Option<(u64, &csv::StringRecord)>, ApiError> {
        let line = self.reader.position().line();
        match self.reader.read_record(&mut self.record) {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(_) => return Err(fault(line, "unreadable", "the row cannot be read")),
        }
        self.number += 1;
        if self.record.iter().any(|cell| cell.len() > CELL_MAX_BYTES) {
            let line = self.record.position().map_or(line, csv::Position::line);
            return Err(fault(line, "oversize_field", &format!("a cell may have at most {CELL_MAX_BYTES} bytes")));
        }
        Ok(Some((self.number, &self.record)))
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

/// The line on which a quote opens that never closes. As the csv crate reads: a quote opens at the start of a cell only, and
/// two quotes inside a quoted cell are one.
fn unclosed_quote(text: &str, delimiter: u8) -> Option<u64> {
    let (mut line, mut opened) = (1_u64, None);
    let mut at_start = true;
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b'\n' {
            line += 1;
        }
        if opened.is_some() {
            if byte == b'"' && bytes.next_if_eq(&b'"').is_none() {
                opened = None;
            }
            continue;
        }
        match byte {
            b'"' if at_start => {
                opened = Some(line);
                at_start = false;
            }
            b'\n' | b'\r' => at_start = true,
            _ => at_start = byte == delimiter,
        }
    }
    opened
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn cells(text: &str) -> Vec<Vec<String>> {
        let file = File::open(text).unwrap();
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
        let error = File::open(text).unwrap_err();
        assert_eq!(error.fields[0].code, "unterminated_quote");
        assert!(error.fields[0].detail.starts_with(line), "{error:?}");
    }

    #[test]
    fn an_oversize_cell_is_refused_with_its_line() {
        let text = format!("email,name\na@b.co,x\nc@d.co,{}\n", "y".repeat(CELL_MAX_BYTES + 1));
        let file = File::open(&text).unwrap();
        let (_, mut rows) = file.rows().unwrap();
        rows.next_row().unwrap();
        let error = rows.next_row().unwrap_err();
        assert_eq!(error.fields[0].code, "oversize_field");
        assert!(error.fields[0].detail.starts_with("line 3"), "{error:?}");
    }

    fn header(names: &[&str]) -> Result<Header, ApiError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Header::read(&names, &BTreeMap::from([("plan_tier".to_owned(), FieldType::String)]))
    }

    #[test]
    fn header_names_ignore_case_spaces_dashes_and_underscores() {
        let header = header(&["E-Mail", "FIRST NAME", "Dot_Number", "Plan-Tier", "Shoe size"]).unwrap();
        assert_eq!(header.columns[0], Some(Column::Email));
        assert_eq!(header.columns[1], Some(Column::Text(TextColumn::FirstName)));
        assert_eq!(header.columns[2], Some(Column::DotNumber));
        assert_eq!(header.columns[3], Some(Column::Field { key: "plan_tier".to_owned(), kind: FieldType::String }));
        assert_eq!(header.ignored(), ["Shoe size"]);
    }

    #[rstest]
    #[case(&["email", "E-mail"], "duplicate_header")]
    #[case(&["email", "mail"], "duplicate_header")]
    #[case(&["email", "colour", "Colour"], "duplicate_header")]
    #[case(&["name", "phone"], "missing_column")]
    fn a_header_that_cannot_be_meant_is_refused(#[case] names: &[&str], #[case] code: &str) {
        assert_eq!(header(names).unwrap_err().fields[0].code, code);
    }

    proptest! {
        #[test]
        fn what_opens_is_read_without_swallowing_lines(text in "[ab\",\n]{1,60}") {
            // With every quote closed, no row can reach past the end of the file: the reader sees as many line ends as there are.
            if let Ok(file) = File::open(&text) {
                let (_, mut rows) = file.rows().unwrap();
                while rows.next_row().unwrap().is_some() {}
            }
        }
    }
}
