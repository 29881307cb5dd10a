//! One row of an import: cells become a contact's values, or faults.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use ledger::suppressions::SuppressionReason;
use schemars::JsonSchema;
use schemas::{
    Address, MarketingStatus,
    action::{CONTACT_TEXT_MAX_CHARS, SuppressionScope},
    text::check_line,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    ImportOperation,
    file::{quoted, shown},
    header::{Column, CsvHeader},
};
use crate::{
    api::{
        audiences::held::canonical_name,
        contacts::{EXTERNAL_ID_MAX_CHARS, check_consent_time, is_locale, is_timezone},
        exports::format::unescaped,
        fields::definitions::{FieldType, parse_boolean},
        suppressions::NOTE_MAX_CHARS,
    },
    pipeline::{is_in_range, json, validate::AUDIENCE_NAME_MAX},
};

/// Most names in a cell written by hand: more are a sign that the file has another delimiter.
const WRITTEN_NAMES_MAX: usize = 100;

/// What is wrong with a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ImportError")]
pub(super) struct RowFault {
    /// The row. The header is row 1, and empty lines are not counted.
    pub row: u64,
    /// The column's name in the file.
    pub column: String,
    /// A stable code.
    pub code: &'static str,
    /// The cell, cut short; empty when an address is in it.
    pub value: String,
}

/// A row that counts: what has no word of its own is as in `contacts`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ImportRow {
    pub number: i64,
    /// Canonical.
    pub address: String,
    pub external_id: Option<String>,
    pub first_name: Option<String>,
    pub last_name: Option<String>,
    pub title: Option<String>,
    pub phone: Option<String>,
    pub company: Option<String>,
    pub lifecycle_stage: Option<String>,
    pub dot_number: Option<i64>,
    pub timezone: Option<String>,
    pub locale: Option<String>,
    /// Only the cells that are not empty.
    pub fields: Map<String, Value>,
    /// Names, as of `lists`.
    pub tags: Vec<String>,
    pub lists: Vec<String>,
    /// Whether the row says the contact is archived. `None`: nothing counts of it but what stops mail.
    pub archived: Option<bool>,
    /// The row says the contact has left.
    pub unsubscribed: bool,
    /// The row says the contact has not agreed to marketing yet.
    pub pending: bool,
    /// The row says the address is suppressed.
    pub suppression_reason: Option<SuppressionReason>,
    /// Of a suppression; `None`: that of its reason.
    pub scope: Option<SuppressionScope>,
    /// Of a suppression.
    pub note: Option<String>,
    /// Of a suppression; `None`: it is for good.
    pub expires_at: Option<DateTime<Utc>>,
    pub consent_basis: Option<String>,
    pub consent_at: Option<DateTime<Utc>>,
}

/// Reads a row. Answers what counts of it, and every fault in it: of a row with a fault only what stops mail counts, so that no opt-out is
/// lost with it. A row with too many cells says nothing, because the columns of its cells are not certain.
pub(super) fn read(number: u64, record: &csv::StringRecord, header: &CsvHeader) -> (Option<ImportRow>, Vec<RowFault>) {
    let fault = |column: &str, code, value: &str| RowFault {
        row: number,
        column: shown(column),
        code,
        value: quoted(value).unwrap_or_default(),
    };
    if record.len() > header.columns.len() {
        return (None, vec![fault("", "too_many_cells", "")]);
    }
    let mut row = ImportRow { number: number.cast_signed(), archived: Some(false), ..ImportRow::default() };
    let mut faults = Vec::new();
    for (position, (column, name)) in header.columns.iter().zip(&header.names).enumerate() {
        // A short row ends in empty cells; an empty cell leaves the value.
        let cell = unescaped(record.get(position).unwrap_or_default());
        let Some(column) = column.as_ref().filter(|column| !cell.is_empty() || **column == Column::Email) else {
            continue;
        };
        // A note and a text may have several lines.
        let checked = match column {
            Column::SuppressionNote => Ok(cell),
            Column::Field { kind: FieldType::String, .. } => {
                cell.lines().try_for_each(|line| checked_line(line).map(drop)).map(|()| cell)
            }
            _ => checked_line(cell),
        };
        if let Err(code) = checked.and_then(|cell| row.take(column, cell)) {
            faults.push(fault(name, code, cell));
        }
    }
    // In a list of suppressions every row is one, also a bad one.
    if header.operation == ImportOperation::SuppressionImport {
        let default = if row.unsubscribed { SuppressionReason::Unsubscribe } else { SuppressionReason::Import };
        row.suppression_reason.get_or_insert(default);
    }
    let unfit = row.scope.zip(row.suppression_reason).filter(|(scope, reason)| !reason.may_have(*scope));
    if let Some((scope, _)) = unfit {
        faults.push(fault(header.name_of(&Column::SuppressionScope), "not_allowed", scope.as_str()));
        row.scope = None;
    }
    let stops_mail = row.unsubscribed || row.pending || row.suppression_reason.is_some();
    let counts =
        if faults.is_empty() { Some(row) } else { (stops_mail && !row.address.is_empty()).then(|| row.reduced()) };
    (counts, faults)
}

impl ImportRow {
    /// Takes one cell that is not empty.
    fn take(&mut self, column: &Column, cell: &str) -> Result<(), &'static str> {
        match column {
            Column::Email => self.address = Address::parse(cell).map_err(schemas::AddressError::code)?.into_string(),
            Column::ExternalId => self.external_id = Some(short(cell, EXTERNAL_ID_MAX_CHARS)?),
            Column::FirstName => self.first_name = Some(short(cell, CONTACT_TEXT_MAX_CHARS)?),
            Column::LastName => self.last_name = Some(short(cell, CONTACT_TEXT_MAX_CHARS)?),
            Column::Title => self.title = Some(short(cell, CONTACT_TEXT_MAX_CHARS)?),
            Column::Phone => self.phone = Some(short(cell, CONTACT_TEXT_MAX_CHARS)?),
            Column::Company => self.company = Some(short(cell, CONTACT_TEXT_MAX_CHARS)?),
            Column::LifecycleStage => self.lifecycle_stage = Some(short(cell, CONTACT_TEXT_MAX_CHARS)?),
            Column::DotNumber => {
                self.dot_number = Some(cell.parse().ok().filter(|number| *number > 0).ok_or("not_a_positive_integer")?);
            }
            Column::Timezone => self.timezone = Some(checked(cell, is_timezone(cell), "unknown_timezone")?),
            Column::Locale => self.locale = Some(checked(cell, is_locale(cell), "invalid_locale")?),
            Column::Tags => self.tags = names(cell)?,
            Column::List => self.lists.push(name(cell)?),
            Column::Lists => self.lists.extend(names(cell)?),
            Column::Status => self.archived = Some(cell.eq_ignore_ascii_case("archived")),
            Column::Unsubscribed => self.unsubscribed |= parse_boolean(cell).ok_or("not_a_boolean")?,
            Column::MarketingStatus => {
                match MarketingStatus::parse(&cell.to_ascii_lowercase()).ok_or("unknown_status")? {
                    MarketingStatus::Subscribed => {}
                    MarketingStatus::Unsubscribed => self.unsubscribed = true,
                    MarketingStatus::Pending => self.pending = true,
                }
            }
            Column::SuppressionReason => {
                self.suppression_reason =
                    Some(SuppressionReason::parse(&cell.to_ascii_lowercase()).ok_or("unknown_reason")?);
            }
            Column::SuppressionScope => {
                self.scope = Some(SuppressionScope::parse(&cell.to_ascii_lowercase()).ok_or("unknown_scope")?);
            }
            Column::SuppressionNote => {
                let note = short(cell, NOTE_MAX_CHARS)?;
                // All that a request may have in a note.
                self.note = Some(checked(&note, !note.contains('\0'), "control_character")?);
            }
            Column::SuppressionEnd => {
                let at = time(cell).ok_or("not_a_time")?;
                if !is_in_range(at) {
                    return Err("out_of_range");
                }
                self.expires_at = Some(at);
            }
            Column::ConsentBasis => self.consent_basis = Some(short(cell, CONTACT_TEXT_MAX_CHARS)?),
            Column::ConsentAt => {
                let at = time(cell).ok_or("not_a_time")?;
                check_consent_time(at)?;
                self.consent_at = Some(at);
            }
            Column::Field { key, kind } => {
                let value = kind.parse_cell(cell).map_err(|_| "wrong_type")?;
                self.fields.insert(key.clone(), value);
            }
            Column::Fields(defined) => self.fields.extend(fields(cell, defined)?),
        }
        Ok(())
    }

    /// What stops mail, and nothing else.
    fn reduced(self) -> Self {
        Self {
            number: self.number,
            address: self.address,
            unsubscribed: self.unsubscribed,
            pending: self.pending,
            suppression_reason: self.suppression_reason,
            scope: self.scope,
            note: self.note,
            expires_at: self.expires_at,
            ..Self::default()
        }
    }

    /// What the file has one of: an address, or one suppression of it.
    pub(super) fn key(&self, has_terms: bool) -> String {
        match self.suppression_reason.filter(|_| has_terms) {
            Some(reason) => format!("{}\n{}", self.address, reason.as_str()),
            None => self.address.clone(),
        }
    }
}

fn short(cell: &str, max_chars: usize) -> Result<String, &'static str> {
    checked(cell, cell.chars().nth(max_chars).is_none(), "too_long")
}

fn checked(cell: &str, good: bool, code: &'static str) -> Result<String, &'static str> {
    if good { Ok(cell.to_owned()) } else { Err(code) }
}

fn checked_line(text: &str) -> Result<&str, &'static str> {
    check_line(text).map(|()| text).map_err(schemas::text::TextError::code)
}

/// The name of a list or tag, as it is stored. Control characters, which separate names on the way into Postgres, are refused.
fn name(text: &str) -> Result<String, &'static str> {
    let name = short(checked_line(text)?, AUDIENCE_NAME_MAX)?;
    checked(&canonical_name(&name), schemas::parse_id(text).is_err(), "invalid_name")
}

/// Names of lists or tags: a JSON array, as an export writes them, or separated by `;` or `|`.
fn names(cell: &str) -> Result<Vec<String>, &'static str> {
    let exported: Option<Vec<String>> = serde_json::from_str(cell).ok();
    let parts = match &exported {
        Some(names) => names.iter().map(String::as_str).collect(),
        None => cell.split([';', '|']).collect::<Vec<_>>(),
    };
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    let names: Vec<String> = parts.map(name).collect::<Result<_, _>>()?;
    if exported.is_none() && names.len() > WRITTEN_NAMES_MAX { Err("too_many") } else { Ok(names) }
}

/// Values of fields: a JSON object, as an export writes them.
fn fields(cell: &str, defined: &BTreeMap<String, FieldType>) -> Result<Map<String, Value>, &'static str> {
    let mut fields = json::parse(cell.as_bytes()).map_err(|_| "not_an_object")?;
    fields.retain(|_, value| !value.is_null());
    for (key, value) in &fields {
        defined.get(key).ok_or("unknown_field")?.check(value).map_err(|_| "wrong_type")?;
    }
    Ok(fields)
}

/// A time with a zone, or a date, which counts from its midnight in UTC.
fn time(cell: &str) -> Option<DateTime<Utc>> {
    let date = || NaiveDate::parse_from_str(cell, "%Y-%m-%d").ok().map(|date| date.and_time(NaiveTime::MIN).and_utc());
    DateTime::parse_from_rfc3339(cell).ok().map(|at| at.to_utc()).or_else(date)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    const NAMES: [&str; 18] = [
        "email",
        "first_name",
        "dot_number",
        "timezone",
        "tags",
        "list",
        "unsubscribed",
        "suppression_reason",
        "consent_at",
        "seats",
        "ignored",
        "locale",
        "phone",
        "lists",
        "marketing_status",
        "fields",
        "status",
        "memo",
    ];

    fn read_cells(cells: &[&str]) -> Result<ImportRow, Vec<RowFault>> {
        let names: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
        let defined = BTreeMap::from(
            [("seats", FieldType::Number), ("memo", FieldType::String)].map(|(key, kind)| (key.to_owned(), kind)),
        );
        let header = CsvHeader::read(&names, &defined, ImportOperation::Upsert).unwrap();
        match read(2, &csv::StringRecord::from(cells.to_vec()), &header) {
            (Some(row), faults) if faults.is_empty() => Ok(row),
            (_, faults) => Err(faults),
        }
    }

    /// The cells of a row with a memo.
    fn with_memo(memo: &str) -> Vec<&str> {
        let mut cells = vec![""; NAMES.len()];
        (cells[0], cells[NAMES.len() - 1]) = ("a@b.co", memo);
        cells
    }

    #[test]
    fn a_field_of_text_may_have_several_lines() {
        let row = read_cells(&with_memo("Call first.\r\nThen write.")).unwrap();
        assert_eq!(Value::Object(row.fields), json!({"memo": "Call first.\r\nThen write."}));
        for (memo, code) in [
            ("x\0y", "control_character"),
            ("x\n\u{1f}y", "control_character"),
            ("x\n\u{202e}y", "invisible_character"),
        ] {
            let faults = read_cells(&with_memo(memo)).unwrap_err();
            assert_eq!((faults[0].column.as_str(), faults[0].code), ("memo", code));
        }
    }

    #[test]
    fn cells_become_values_and_empty_cells_nothing() {
        let row = read_cells(&[
            "Ann@Example.com",
            "Ann",
            "42",
            "Europe/Paris",
            "a; b|c",
            "news",
            "yes",
            "manual",
            "2026-01-02",
            "3",
        ]);
        let row = row.unwrap();
        assert_eq!(
            (row.address.as_str(), row.first_name.as_deref(), row.dot_number),
            ("ann@example.com", Some("Ann"), Some(42))
        );
        assert_eq!(
            (row.tags, row.lists, row.unsubscribed),
            (vec!["a".into(), "b".into(), "c".into()], vec!["news".into()], true)
        );
        assert_eq!(
            (row.suppression_reason, Value::Object(row.fields)),
            (Some(SuppressionReason::Manual), json!({"seats": 3}))
        );
        assert_eq!(row.consent_at.unwrap().to_rfc3339(), "2026-01-02T00:00:00+00:00");
        let exported = read_cells(&[
            "'+ann@example.com",
            "'=Ann",
            "",
            "",
            r#"["a;b","c"]"#,
            "news",
            "",
            "",
            "",
            "",
            "",
            "",
            "'+4930",
            r#"["x","y"]"#,
            "Pending",
            r#"{"seats":3}"#,
            "Archived",
        ]);
        let exported = exported.unwrap();
        assert_eq!((exported.address.as_str(), exported.first_name.as_deref()), ("+ann@example.com", Some("=Ann")));
        assert_eq!((exported.phone.as_deref(), exported.pending, exported.archived), (Some("+4930"), true, Some(true)));
        assert_eq!((exported.tags.join(" "), exported.lists.join(" ")), ("a;b c".into(), "news x y".into()));
        assert_eq!(Value::Object(exported.fields), json!({"seats": 3}));
        let bare = read_cells(&["ann@example.com", "", "", ""]).unwrap();
        let address = "ann@example.com".into();
        assert_eq!(bare, ImportRow { number: 2, address, archived: Some(false), ..ImportRow::default() });
    }

    #[rstest]
    #[case(&[""], "email", "empty")]
    #[case(&["nobody"], "email", "missing_at")]
    #[case(&["a@b.co", "x", "-1"], "dot_number", "not_a_positive_integer")]
    #[case(&["a@b.co", "", "", "Mars"], "timezone", "unknown_timezone")]
    #[case(&["a@b.co", "", "", "", "", "", "perhaps"], "unsubscribed", "not_a_boolean")]
    #[case(&["a@b.co", "", "", "", "", "", "", "because"], "suppression_reason", "unknown_reason")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "yesterday"], "consent_at", "not_a_time")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "2099-01-01T00:00:00Z"], "consent_at", "in_the_future")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "0000-01-01"], "consent_at", "out_of_range")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "-0001-01-01"], "consent_at", "out_of_range")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "", "many"], "seats", "wrong_type")]
    #[case(&["a@b.co", "x\0y"], "first_name", "control_character")]
    #[case(&["a@b.co", "x\r\ny"], "first_name", "control_character")]
    #[case(&["a@b.co", "x\u{85}y"], "first_name", "control_character")]
    #[case(&["a@b.co", "x\u{202e}y"], "first_name", "invisible_character")]
    #[case(&["a@b.co", "", "", "", "a;b\u{1f}c"], "tags", "control_character")]
    #[case(&["a\u{200b}@b.co"], "email", "invisible_character")]
    #[case(&["a@b.co", "", "", "", r#"["a\u001fb"]"#], "tags", "control_character")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "", "", "", "", "", "", "active"], "marketing_status", "unknown_status")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "[3]"], "fields", "not_an_object")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "", "", "", "", "", "", "", r#"{"seats":"3"}"#], "fields", "wrong_type")]
    #[case(&["a@b.co", "", "", "", "", "", "", "", "", "", "", "", "", "", "", r#"{"plan":"x"}"#], "fields", "unknown_field")]
    fn a_bad_cell_is_named_with_row_column_and_code(#[case] cells: &[&str], #[case] column: &str, #[case] code: &str) {
        let faults = read_cells(cells).unwrap_err();
        assert_eq!((faults[0].row, faults[0].column.as_str(), faults[0].code), (2, column, code));
    }

    #[test]
    fn a_cell_may_be_as_long_as_an_export_writes_it_and_a_longer_one_is_a_fault_of_its_row() {
        let names: Vec<String> = (0..=WRITTEN_NAMES_MAX).map(|at| format!("{at} {}", "x".repeat(90))).collect();
        let exported = serde_json::to_string(&names).unwrap();
        assert_eq!(read_cells(&["a@b.co", "", "", "", &exported]).unwrap().tags, names);
        let fault = |cells: &[&str]| read_cells(cells).unwrap_err().remove(0).code;
        assert_eq!(fault(&["a@b.co", "", "", "", &names.join(";")]), "too_many");
        assert_eq!(fault(&["a@b.co", &"x".repeat(1_000_000)]), "too_long");
    }

    #[test]
    fn a_row_longer_than_the_header_is_a_fault() {
        assert_eq!(read_cells(&["a@b.co"; NAMES.len() + 1]).unwrap_err()[0].code, "too_many_cells");
    }
}
