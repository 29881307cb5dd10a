//! Fields of bodies that serde has no type for: ids in one form, times that can be stored, and what a PATCH says of a field.

use chrono::{DateTime, Datelike, Utc};
use schemars::JsonSchema;
use schemas::parse_id;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use uuid::Uuid;

/// An id in canonical form only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[schemars(inline, description = "")]
pub struct Id(pub Uuid);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_id(&text).map(Self).map_err(D::Error::custom)
    }
}

/// A time as RFC 3339 writes it, in the years that Postgres and the readers of answers can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(inline, description = "")]
pub struct GivenTime(pub DateTime<Utc>);

impl GivenTime {
    /// Reads a time; `None`: it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let at = DateTime::parse_from_rfc3339(text).ok()?.to_utc();
        is_in_range(at).then_some(Self(at))
    }
}

/// Whether a time is one that callers may name: of these years, and no leap second, which Postgres keeps as the second after it.
pub(crate) fn is_in_range(at: DateTime<Utc>) -> bool {
    (1..=9999).contains(&at.year()) && at.timestamp_subsec_nanos() < 1_000_000_000
}

impl<'de> Deserialize<'de> for GivenTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let detail = "must be an existing time with a zone, as 2026-03-01T09:00:00Z (RFC 3339), of the years 1 to 9999";
        Self::parse(&text).ok_or_else(|| D::Error::custom(detail))
    }
}

/// Reads a field of a body that is at its default when it is null, as when it is left out. Goes with `#[serde(default)]`, and with
/// `#[schemars(with = "Option<T>")]` for the document.
///
/// # Errors
/// If it is neither null nor a `T`.
pub(crate) fn or_default<'de, T: Deserialize<'de> + Default, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A field of a PATCH: left out, cleared by `null`, or set. Needs `#[serde(default)]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, JsonSchema)]
#[schemars(inline, with = "Option<T>", description = "")]
pub enum Patch<T> {
    /// Not in the body: stays as it is.
    #[default]
    Absent,
    /// `null`: is cleared.
    Null,
    /// Gets this value.
    Value(T),
}

impl<T> Patch<T> {
    /// The new value, if one is set.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }

    /// Whether the body says anything about the field.
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::Absent)
    }

    /// The field after the change: as it was `before`, if the body says nothing about it.
    pub fn applied_to(self, before: Option<T>) -> Option<T> {
        self.into_option().unwrap_or(before)
    }

    /// `None`: leave; `Some(None)`: clear; `Some(Some(…))`: set.
    pub fn into_option(self) -> Option<Option<T>> {
        match self {
            Self::Absent => None,
            Self::Null => Some(None),
            Self::Value(value) => Some(Some(value)),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Value))
    }
}
