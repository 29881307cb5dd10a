//! The fields a rule may test, what they hold, and which operators apply to that.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use uuid::Uuid;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    Text,
    /// A canonical address.
    Email,
    /// One word of a closed set.
    Word(&'static [&'static str]),
    Number,
    Boolean,
    Date,
    Instant,
    TextList,
}

schemas::named_enum! {
    /// An operator of a field's leaf, as callers write it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Op {
        Eq = "eq",
        Neq = "neq",
        In = "in",
        NotIn = "not_in",
        Contains = "contains",
        NotContains = "not_contains",
        StartsWith = "starts_with",
        EndsWith = "ends_with",
        Gt = "gt",
        Gte = "gte",
        Lt = "lt",
        Lte = "lte",
        Between = "between",
        Exists = "exists",
        NotExists = "not_exists",
        Before = "before",
        After = "after",
        WithinDays = "within_days",
        OlderThanDays = "older_than_days",
        Includes = "includes",
    }
}

/// Every operator, as callers write it.
pub const OPS: &[&str] = Op::NAMES;

impl Op {
    pub(crate) fn takes_no_value(self) -> bool {
        matches!(self, Self::Exists | Self::NotExists)
    }

    pub(crate) fn is_negative(self) -> bool {
        matches!(self, Self::Neq | Self::NotIn | Self::NotContains | Self::NotExists)
    }
}

impl ValueKind {
    /// What a tenant's own field of this type holds (column `fields.type`).
    fn from_column(text: &str) -> Self {
        match text {
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            "date" => Self::Date,
            "datetime" => Self::Instant,
            "string_list" => Self::TextList,
            _ => Self::Text,
        }
    }

    pub(crate) fn takes(self, op: Op) -> bool {
        match op {
            Op::Exists | Op::NotExists => true,
            Op::Eq | Op::Neq => !matches!(self, Self::Instant | Self::TextList),
            Op::In | Op::NotIn => !matches!(self, Self::Boolean | Self::Instant | Self::TextList),
            Op::Contains | Op::NotContains | Op::StartsWith | Op::EndsWith => matches!(self, Self::Text | Self::Email),
            Op::Gt | Op::Gte | Op::Lt | Op::Lte | Op::Between => {
                matches!(self, Self::Number | Self::Date | Self::Instant)
            }
            Op::Before | Op::After | Op::WithinDays | Op::OlderThanDays => matches!(self, Self::Date | Self::Instant),
            Op::Includes => self == Self::TextList,
        }
    }

    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::Email => "an address",
            Self::Word(_) => "a word of a closed set",
            Self::Number => "a number",
            Self::Boolean => "true or false",
            Self::Date => "a date",
            Self::Instant => "a time",
            Self::TextList => "a list of texts",
        }
    }
}

/// A tenant's own fields, by key.
pub type Definitions = BTreeMap<String, ValueKind>;

/// Loads the tenant's own fields.
pub async fn definitions(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<Definitions> {
    let rows = sqlx::query!("select key, type from fields where tenant_id = $1", tenant).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| (row.key, ValueKind::from_column(&row.r#type))).collect())
}

/// A field that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub source: FieldSource,
    pub kind: ValueKind,
}

/// Where a field's value is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldSource {
    /// A column of `contacts`: one of [`BUILT_IN`], never a caller's text.
    Column(&'static str),
    /// A key of `contacts.fields`.
    Custom(String),
}

const MARKETING_STATUSES: &[&str] = &["subscribed", "unsubscribed", "pending"];
/// Segments choose among active contacts; an archived one is in none.
const STATUSES: &[&str] = &["active"];

/// The fields every contact has: name as the API shows it, column, what it holds.
pub(crate) const BUILT_IN: [(&str, &str, ValueKind); 19] = [
    ("email", "address", ValueKind::Email),
    ("first_name", "first_name", ValueKind::Text),
    ("last_name", "last_name", ValueKind::Text),
    ("title", "title", ValueKind::Text),
    ("phone", "phone", ValueKind::Text),
    ("company", "company", ValueKind::Text),
    ("dot_number", "dot_number", ValueKind::Number),
    ("timezone", "timezone", ValueKind::Text),
    ("locale", "locale", ValueKind::Text),
    ("lifecycle_stage", "lifecycle_stage", ValueKind::Text),
    ("status", "status", ValueKind::Word(STATUSES)),
    ("marketing_status", "marketing_status", ValueKind::Word(MARKETING_STATUSES)),
    ("source", "source", ValueKind::Text),
    ("consent.basis", "consent_basis", ValueKind::Text),
    ("consent.at", "consent_at", ValueKind::Instant),
    ("consent.source", "consent_source", ValueKind::Text),
    ("consent.description", "consent_description", ValueKind::Text),
    ("created_at", "created_at", ValueKind::Instant),
    ("updated_at", "updated_at", ValueKind::Instant),
];

impl Field {
    /// The field of this name, as the API shows it: `company`, `consent.at`, `fields.plan`.
    pub(crate) fn find(name: &str, definitions: &Definitions) -> Option<Self> {
        if let Some(key) = name.strip_prefix("fields.") {
            let kind = *definitions.get(key)?;
            return Some(Self { source: FieldSource::Custom(key.to_owned()), kind });
        }
        let (_, column, kind) = BUILT_IN.iter().find(|(known, ..)| *known == name)?;
        Some(Self { source: FieldSource::Column(column), kind: *kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_the_built_in_ones_and_those_the_tenant_defined() {
        let definitions = Definitions::from([("plan".to_owned(), ValueKind::Text)]);
        let find = |name| Field::find(name, &definitions);
        assert_eq!(find("fields.plan").unwrap().source, FieldSource::Custom("plan".to_owned()));
        assert_eq!(find("consent.at").unwrap().kind, ValueKind::Instant);
        for unknown in ["plan", "fields.colour", "fields.", "address", "tenant_id", "", "email; drop table contacts"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }
}
