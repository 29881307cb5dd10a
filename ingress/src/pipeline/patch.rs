//! Fields of bodies that serde has no type for: ids in one form, and what a PATCH says of a field.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use schemas::parse_id;
use serde::{Deserialize, Deserializer, de::Error as _};
use uuid::Uuid;

/// An id in canonical form only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(pub Uuid);

impl JsonSchema for Id {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Id".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Uuid::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_id(&text).map(Self).map_err(D::Error::custom)
    }
}

/// A field of a PATCH: left out, cleared by `null`, or set. Needs `#[serde(default)]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    #[must_use]
    pub fn is_given(&self) -> bool {
        !matches!(self, Self::Absent)
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

/// May be left out, and be null.
impl<T: JsonSchema> JsonSchema for Patch<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{}Patch", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Option::<T>::json_schema(generator)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Value))
    }
}
