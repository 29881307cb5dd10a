//! A whole file: its good rows one by one, and what there is to say of the others.

use std::collections::{BTreeMap, HashMap};

use http::StatusCode;

use super::{
    file::{File, Header},
    row::{self, Row, RowFault},
};
use crate::{error::ApiError, routes::fields::FieldType};

/// Most faults that are told.
pub(super) const ERRORS_SHOWN: usize = 100;

/// What was found in a file.
#[derive(Debug, Default)]
pub struct Report {
    /// Rows after the header.
    pub total_rows: usize,
    /// Addresses with a good row.
    pub valid: usize,
    /// Numbers of the good rows that count no more, because a later one for the same address does: the file's duplicates.
    pub overridden: Vec<i64>,
    /// Rows with a fault.
    pub invalid: usize,
    /// Columns that mean nothing to us.
    pub ignored_columns: Vec<String>,
    /// The first faults.
    pub errors: Vec<RowFault>,
}

/// Reads a file and hands over each good row. The last of several for one address counts ([`Report::overridden`]).
///
/// # Errors
/// 400 with the line for a file that cannot be read, 413 `too_many_rows`; what `keep` refuses.
pub fn read(
    text: &str,
    defined: &BTreeMap<String, FieldType>,
    rows_max: usize,
    mut keep: impl FnMut(Row) -> Result<(), ApiError>,
) -> Result<Report, ApiError> {
    let file = File::open(text)?;
    let (names, mut rows) = file.rows()?;
    let header = Header::read(&names, defined)?;
    let mut report = Report { ignored_columns: header.ignored(), ..Report::default() };
    let mut latest: HashMap<String, i64> = HashMap::new();
    while let Some((number, record)) = rows.next_row()? {
        report.total_rows += 1;
        if report.total_rows > rows_max {
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many_rows")
                .detail(format!("an import may have at most {rows_max} rows; send the rest in another")));
        }
        match row::read(number, record, &header) {
            Err(faults) => {
                report.invalid += 1;
                let room = ERRORS_SHOWN.saturating_sub(report.errors.len());
                report.errors.extend(faults.into_iter().take(room));
            }
            Ok(row) => {
                report.overridden.extend(latest.insert(row.address.clone(), row.number));
                keep(row)?;
            }
        }
    }
    report.valid = latest.len();
    Ok(report)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn kept(text: &str, rows_max: usize) -> Result<(Report, Vec<Row>), ApiError> {
        let mut rows = Vec::new();
        let keep = |row| {
            rows.push(row);
            Ok(())
        };
        read(text, &BTreeMap::new(), rows_max, keep).map(|report| (report, rows))
    }

    #[test]
    fn the_last_of_several_good_rows_for_an_address_wins() {
        let text = "email,first_name,dot_number\nann@example.com,A,1\nANN@example.com,B,2\nann@example.com,C,none\n";
        let (report, rows) = kept(text, 10).unwrap();
        assert_eq!((report.total_rows, report.valid, report.overridden.len(), report.invalid), (3, 1, 1, 1));
        let counts: Vec<&Row> = rows.iter().filter(|row| !report.overridden.contains(&row.number)).collect();
        assert_eq!((counts.len(), counts[0].first_name.as_deref()), (1, Some("B")));
        assert_eq!((report.errors[0].row, report.errors[0].code), (4, "not_a_positive_integer"));
    }

    #[test]
    fn rows_are_counted_while_reading() {
        let error = kept("email\na@b.co\nb@b.co\nc@b.co\n", 2).err().unwrap();
        assert_eq!((error.status.as_u16(), error.code.as_ref()), (413, "too_many_rows"));
    }
}
