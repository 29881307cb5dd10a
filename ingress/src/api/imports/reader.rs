//! A whole file: its rows that count one by one, and what there is to say of the others.

use std::collections::{BTreeMap, HashMap};

use http::StatusCode;
use runtime::Budget;

use super::{
    ImportOperation,
    file::{CsvFile, spent},
    header::CsvHeader,
    row::{self, ImportRow, RowFault},
};
use crate::{api::fields::definitions::FieldType, pipeline::error::ApiError};

/// Most faults that are reported.
pub(super) const ERRORS_SHOWN: usize = 100;

/// What a name, a cell or an address takes beside its bytes.
const NAME_WEIGHT: usize = 64;
const CELL_WEIGHT: usize = 16;
const ADDRESS_WEIGHT: usize = 64;

fn hold(budget: &Budget, bytes: usize) -> Result<(), ApiError> {
    budget.hold(bytes).map_err(spent)
}

/// What was found in a file.
#[derive(Debug, Default)]
pub(super) struct ImportReport {
    /// Rows after the header.
    pub total_rows: usize,
    /// Addresses with a good row; in a list of suppressions with terms, suppressions.
    pub valid: usize,
    /// The same, and the addresses of which only bad rows count, by what stops mail.
    pub counted: usize,
    /// True for a list of suppressions with terms: of each the strictest terms of its rows count.
    pub has_terms: bool,
    /// Good rows in whose place a later good one of the address counts.
    pub duplicates: usize,
    /// Numbers of the rows in whose place another one of the address counts. Of these only what stops mail counts.
    pub overridden: Vec<i64>,
    /// Rows with a fault.
    pub invalid: usize,
    /// Columns that are not read.
    pub ignored_columns: Vec<String>,
    /// The first faults.
    pub errors: Vec<RowFault>,
}

/// Reads a file within `budget` and hands over each row that counts. Of several for one address the last good one does
/// ([`ImportReport::overridden`]). `keep` answers how many bytes it holds of a row.
///
/// # Errors
/// 400 with the line for a file that cannot be read, 413 `too_many_rows`.
pub(super) fn read(
    budget: &Budget,
    text: &str,
    defined: &BTreeMap<String, FieldType>,
    operation: ImportOperation,
    rows_max: usize,
    mut keep: impl FnMut(ImportRow) -> usize,
) -> Result<ImportReport, ApiError> {
    let file = CsvFile::open(text, budget)?;
    let (names, mut rows) = file.rows()?;
    hold(budget, names.iter().map(|name| name.len() + NAME_WEIGHT).sum())?;
    let header = CsvHeader::read(&names, defined, operation)?;
    let mut widest = 0;
    let (ignored_columns, has_terms) = (header.ignored(), header.has_terms);
    let mut report = ImportReport { ignored_columns, has_terms, ..ImportReport::default() };
    // The row of each address that counts, and whether it is good.
    let mut latest: HashMap<String, (i64, bool)> = HashMap::new();
    while let Some((number, record)) = rows.next_row()? {
        report.total_rows += 1;
        if report.total_rows > rows_max {
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many_rows")
                .detail(format!("an import may have at most {rows_max} rows; send the rest in another")));
        }
        budget.take_steps(1).map_err(spent)?;
        // One record at a time is held, in a buffer that grows to the widest.
        let width = record.as_slice().len() + record.len() * CELL_WEIGHT;
        if width > widest {
            hold(budget, width - widest)?;
            widest = width;
        }
        let (row, faults) = row::read(number, record, &header);
        let is_good = faults.is_empty();
        report.invalid += usize::from(!is_good);
        let room = ERRORS_SHOWN.saturating_sub(report.errors.len());
        report.errors.extend(faults.into_iter().take(room));
        let Some(row) = row else { continue };
        let (key, number) = (row.key(has_terms), row.number);
        let before = latest.get(&key).copied();
        let was_good = before.is_some_and(|(_, was_good)| was_good);
        report.valid += usize::from(is_good && !was_good);
        report.duplicates += usize::from(is_good && was_good);
        if was_good && !is_good {
            report.overridden.push(number);
        } else {
            report.overridden.extend(before.map(|(number, _)| number));
            if before.is_none() {
                hold(budget, key.len() + ADDRESS_WEIGHT)?;
            }
            latest.insert(key, (number, is_good));
        }
        hold(budget, keep(row))?;
    }
    report.counted = latest.len();
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{copy::EncodedRows, file::LIMITS},
        *,
    };
    use hostile::{Shape, check_growth, fuzz};
    use runtime::Used;

    fn kept(text: &str, rows_max: usize) -> Result<(ImportReport, Vec<ImportRow>), ApiError> {
        let mut rows = Vec::new();
        let keep = |row| {
            rows.push(row);
            0
        };
        let budget = Budget::new(LIMITS);
        read(&budget, text, &BTreeMap::new(), ImportOperation::Upsert, rows_max, keep).map(|report| (report, rows))
    }

    #[test]
    fn the_last_of_several_good_rows_for_an_address_wins() {
        let text = "email,first_name,dot_number\nann@example.com,A,1\nANN@example.com,B,2\nann@example.com,C,none\n";
        let (report, rows) = kept(text, 10).unwrap();
        assert_eq!((report.total_rows, report.valid, report.overridden.len(), report.invalid), (3, 1, 1, 1));
        let counts: Vec<&ImportRow> = rows.iter().filter(|row| !report.overridden.contains(&row.number)).collect();
        assert_eq!((counts.len(), counts[0].first_name.as_deref()), (1, Some("B")));
        assert_eq!((report.errors[0].row, report.errors[0].code), (4, "not_a_positive_integer"));
    }

    #[test]
    fn a_bad_row_counts_only_by_what_stops_mail() {
        let text = "email,phone,dot_number,unsubscribed,suppression_reason\n\
                    ann@example.com,1,none,yes,\nann@example.com,2,,,\nann@example.com,3,none,,complaint\n\
                    bob@example.com,1,none,yes,\nbob@example.com,2,none,,complaint\ncid@example.com,1,none,no,\n";
        let (report, rows) = kept(text, 10).unwrap();
        assert_eq!((report.valid, report.counted, report.duplicates, report.invalid), (1, 2, 0, 5));
        let counts = rows.iter().filter(|row| !report.overridden.contains(&row.number));
        assert_eq!(
            counts.map(|row| (row.number, row.phone.as_deref())).collect::<Vec<_>>(),
            [(3, Some("2")), (6, None)]
        );
        let stops = rows.iter().map(|row| (row.number, row.unsubscribed, row.suppression_reason.is_some()));
        let expected = [(2, true, false), (3, false, false), (4, false, true), (5, true, false), (6, false, true)];
        assert_eq!(stops.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rows_are_counted_while_reading() {
        let error = kept("email\na@b.co\nb@b.co\nc@b.co\n", 2).err().unwrap();
        assert_eq!((error.status.as_u16(), error.code.as_ref()), (413, "too_many_rows"));
    }

    /// What a reading of these bytes costs, whatever comes of it.
    fn cost(bytes: &[u8]) -> Used {
        cost_of(ImportOperation::Upsert, bytes)
    }

    fn cost_of(operation: ImportOperation, bytes: &[u8]) -> Used {
        let budget = Budget::new(LIMITS);
        let text = String::from_utf8_lossy(bytes);
        let mut rows = EncodedRows::default();
        let _ = read(&budget, &text, &BTreeMap::new(), operation, 50_000, |row| rows.take(row));
        budget.used()
    }

    #[test]
    fn the_cost_of_a_file_grows_with_its_length() {
        let shapes: [Shape; 11] = [
            ("commas", |n| b",".repeat(n)),
            ("commas in rows", |n| [b"email\n".as_slice(), &b",".repeat(n)].concat()),
            ("quotes", |n| b"\"".repeat(n)),
            ("an open quote", |n| [b"email\n\"".as_slice(), &b"x,\n".repeat(n / 3)].concat()),
            ("doubled quotes", |n| [b"email\n\"".as_slice(), &b"\"\"".repeat(n / 2), b"\""].concat()),
            ("cells of quotes", |n| [b"email\n".as_slice(), &b"\"\",".repeat(n / 3)].concat()),
            ("empty lines", |n| [b"email\n".as_slice(), &b"\r\n".repeat(n / 2)].concat()),
            ("bad rows", |n| [b"email\n".as_slice(), &b"x\n".repeat(n / 2)].concat()),
            ("addresses", |n| {
                (0..n / 16)
                    .fold(b"email\n".to_vec(), |all, at| [all, format!("p{at}@example.com\n").into_bytes()].concat())
            }),
            ("what COPY escapes", |n| {
                let row = |at: usize| format!("p{at}@example.com,{}\n", "\\".repeat(180));
                ["email,company\n".to_owned(), (0..n / 200).map(row).collect()].concat().into_bytes()
            }),
            ("names", |n| (0..n / 8).map(|at| format!("n{at},")).collect::<String>().into_bytes()),
        ];
        check_growth(&shapes, 20_000, 4_096, cost);
    }

    #[test]
    fn a_body_of_commas_is_refused_before_it_is_held() {
        let used = cost(&b",".repeat(8 * 1024 * 1024));
        assert!(used.held_bytes < 64 * 1024, "{used:?}");
        let used = cost(&[b"email\n".as_slice(), &b",".repeat(8 * 1024 * 1024)].concat());
        assert!(used.held_bytes < 64 * 1024, "{used:?}");
    }

    #[test]
    fn fuzz_csv() {
        const TOKENS: &[&[u8]] = &[
            b"email",
            b"E-Mail",
            b"first_name",
            b"tags",
            b"unsubscribed",
            b"consent_at",
            b"reason",
            b"expires_at",
            b",",
            b";",
            b"\t",
            b"\"",
            b"\"\"",
            b"\n",
            b"\r\n",
            b"\r",
            b"\0",
            b" ",
            b"ann@example.com",
            b"@",
            b"yes",
            b"2026-01-02",
            b"\xef\xbb\xbf",
            b"\xe2\x80\xae",
            b"x|y",
        ];
        fuzz(TOKENS, |input| {
            // Together they read every column.
            cost_of(ImportOperation::Upsert, input);
            cost_of(ImportOperation::SuppressionImport, input);
        });
    }
}
