//! The fields that a tenant has defined: which values each takes, and how they are held while something is stored that needs them.

use std::collections::BTreeMap;

use chrono::DateTime;
use schemars::JsonSchema;
use segments::parse_date;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

const TEXT_MAX_CHARS: usize = 2_000;
const LIST_MAX_ITEMS: usize = 100;

schemas::named_enum! {
    /// What a field holds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub wire enum FieldType {
        /// Text.
        String = "string",
        /// A number.
        Number = "number",
        /// True or false.
        Boolean = "boolean",
        /// `YYYY-MM-DD`
        Date = "date",
        /// RFC 3339 with a zone.
        Datetime = "datetime",
        /// Texts.
        StringList = "string_list",
    }
}

impl FieldType {
    /// Whether a JSON value is one of this type; `Err` says what it must be.
    ///
    /// # Errors
    /// A description of valid values.
    pub fn check(self, value: &Value) -> Result<(), &'static str> {
        let short = |text: &str| text.chars().nth(TEXT_MAX_CHARS).is_none();
        let good = match (self, value) {
            (Self::String, Value::String(text)) => short(text),
            (Self::Number, Value::Number(_)) | (Self::Boolean, Value::Bool(_)) => true,
            (Self::Date, Value::String(text)) => parse_date(text).is_some(),
            (Self::Datetime, Value::String(text)) => DateTime::parse_from_rfc3339(text).is_ok(),
            (Self::StringList, Value::Array(items)) => {
                items.len() <= LIST_MAX_ITEMS && items.iter().all(|item| item.as_str().is_some_and(short))
            }
            _ => false,
        };
        if good { Ok(()) } else { Err(self.wanted()) }
    }

    /// Reads a cell of a CSV file.
    ///
    /// # Errors
    /// A description of valid cells.
    pub fn parse_cell(self, cell: &str) -> Result<Value, &'static str> {
        let value = match self {
            Self::String | Self::Date | Self::Datetime => Some(Value::String(cell.to_owned())),
            Self::Number => cell
                .parse::<i64>()
                .map(Value::from)
                .ok()
                .or_else(|| cell.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Value::Number)),
            Self::Boolean => parse_boolean(cell).map(Value::Bool),
            Self::StringList => {
                let items = cell.split([';', '|']).map(str::trim).filter(|item| !item.is_empty());
                Some(items.map(|item| Value::String(item.to_owned())).collect())
            }
        };
        let value = value.ok_or(self.wanted())?;
        self.check(&value).map(|()| value)
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::String => "must be a string of at most 2000 characters",
            Self::Number => "must be a number",
            Self::Boolean => "must be true or false",
            Self::Date => "must be an existing date as YYYY-MM-DD",
            Self::Datetime => "must be an RFC 3339 time with a zone",
            Self::StringList => "must be a list of at most 100 strings",
        }
    }
}

/// A truth value as people write it in files.
pub(crate) fn parse_boolean(cell: &str) -> Option<bool> {
    match cell.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// The defined fields of a tenant, by key.
pub(crate) async fn read(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<BTreeMap<String, FieldType>> {
    let rows = sqlx::query!("select key, type from fields where tenant_id = $1", tenant).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| (row.key, FieldType::parse(&row.r#type).unwrap_or(FieldType::String))).collect())
}

/// The defined fields of a tenant, by key, for a transaction that stores values of them: the sweep that takes out the values of a removed
/// field waits for those that still know it.
pub(crate) async fn read_for_write(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<BTreeMap<String, FieldType>> {
    sqlx::query!("select hold_fields($1)", tenant).fetch_one(&mut *db).await?;
    read(db, tenant).await
}

/// The defined fields of a tenant, by key, for a transaction that stores what names them.
pub(crate) async fn read_for_naming(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<BTreeMap<String, FieldType>> {
    hold_names(&mut *db, tenant).await?;
    read(db, tenant).await
}

/// Holds the names of the tenant's fields until the transaction ends, which stores what names them: a template, a rule, a step. A removal
/// waits for it and finds what it stored, or is over before. To be called before the statement that reads the definitions, and before a
/// row is locked that others hold while they wait for this.
pub(crate) async fn hold_names(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select pg_advisory_xact_lock_shared(hashtextextended('field names ' || $1::uuid::text, 0))", tenant)
        .fetch_one(db)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(FieldType::String, json!("x"), true)]
    #[case(FieldType::String, json!(1), false)]
    #[case(FieldType::Number, json!(1.5), true)]
    #[case(FieldType::Number, json!("1.5"), false)]
    #[case(FieldType::Boolean, json!(false), true)]
    #[case(FieldType::Date, json!("2026-02-28"), true)]
    #[case(FieldType::Date, json!("2026-02-30"), false)]
    #[case(FieldType::Date, json!("2026-2-3"), false)]
    #[case(FieldType::Date, json!("2026- 1- 2"), false)]
    #[case(FieldType::Date, json!("+2026-1-02"), false)]
    #[case(FieldType::Date, json!("-999-01-01"), false)]
    #[case(FieldType::Datetime, json!("2026-02-28T10:00:00+01:00"), true)]
    #[case(FieldType::Datetime, json!("2026-02-28T10:00:00"), false)]
    #[case(FieldType::StringList, json!(["a", "b"]), true)]
    #[case(FieldType::StringList, json!(["a", 1]), false)]
    fn a_value_has_its_fields_type(#[case] kind: FieldType, #[case] value: Value, #[case] good: bool) {
        assert_eq!(kind.check(&value).is_ok(), good);
    }

    #[rstest]
    #[case(FieldType::Number, "12", Some(json!(12)))]
    #[case(FieldType::Number, "1.5", Some(json!(1.5)))]
    #[case(FieldType::Number, "NaN", None)]
    #[case(FieldType::Boolean, "Yes", Some(json!(true)))]
    #[case(FieldType::Boolean, "perhaps", None)]
    #[case(FieldType::StringList, "a; b|c;", Some(json!(["a", "b", "c"])))]
    #[case(FieldType::Date, "28.02.2026", None)]
    fn a_cell_becomes_a_value_of_its_fields_type(
        #[case] kind: FieldType,
        #[case] cell: &str,
        #[case] value: Option<Value>,
    ) {
        assert_eq!(kind.parse_cell(cell).ok(), value);
    }
}
