//! Lists: newest first, keyset on (created_at, id), an opaque cursor.

use std::{borrow::Cow, ops::Deref};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, SecondsFormat, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use uuid::Uuid;

use crate::pipeline::{Faults, error::ApiError, patch::is_in_range};

const LIMIT_DEFAULT: i64 = 50;
const LIMIT_MAX: i64 = 200;
const CURSOR_BYTES: usize = 24;

/// The parameters of every list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// How many to answer at most.
    #[schemars(range(min = 1, max = LIMIT_MAX), extend("default" = LIMIT_DEFAULT))]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// What lists and reads answer: an object under a name, with its place in a list.
pub trait Resource: Serialize + JsonSchema {
    /// The field of an answer with one of them, as `sender`.
    const ONE: &'static str;
    /// The field of a page of them, as `senders`.
    const MANY: &'static str;
    /// The refusal where there is none, as `sender_not_found`.
    const NOT_FOUND: &'static str;

    /// Its place in a list, newest first.
    fn position(&self) -> (DateTime<Utc>, Uuid);
}

/// Makes a type a [`Resource`]: its names, and either the field of its id, beside `created_at`, or its place in a list.
macro_rules! resource {
    ($view:ty, $one:literal, $many:literal, $id:ident) => {
        $crate::pipeline::page::resource!($view, $one, $many, row => (*row.created_at, row.$id));
    };
    ($view:ty, $one:literal, $many:literal, $row:ident => $position:expr) => {
        impl $crate::pipeline::page::Resource for $view {
            const ONE: &'static str = $one;
            const MANY: &'static str = $many;
            const NOT_FOUND: &'static str = concat!($one, "_not_found");

            fn position(&self) -> (chrono::DateTime<chrono::Utc>, uuid::Uuid) {
                let $row = self;
                $position
            }
        }
    };
}
pub(crate) use resource;

pub(crate) struct SingleResource<T>(pub(super) T);

impl<T: Resource> Serialize for SingleResource<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(T::ONE, &self.0)])
    }
}

impl<T: Resource> JsonSchema for SingleResource<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}Answer", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({"type": "object", "properties": {T::ONE: one}, "required": [T::ONE]})
    }
}

#[derive(Debug)]
pub(crate) struct ResourcePage<T> {
    pub(super) rows: Vec<T>,
    pub(super) next_cursor: Option<String>,
}

impl<T: Resource> Serialize for ResourcePage<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(T::MANY, &self.rows)?;
        map.serialize_entry("next_cursor", &self.next_cursor)?;
        map.end()
    }
}

impl<T: Resource> JsonSchema for ResourcePage<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}Page", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let rows = generator.subschema_for::<Vec<T>>();
        json_schema!({
            "type": "object", "required": [T::MANY, "next_cursor"],
            "properties": {
                T::MANY: rows,
                "next_cursor": {
                    "type": ["string", "null"], "description": "Give it as `cursor` for the next page; null at the end.",
                },
            },
        })
    }
}

/// The page of a list that is requested. In SQL: `($2::timestamptz is null or (created_at, id) < ($2, $3)) order by created_at desc,
/// id desc limit $4`, with [`ListPage::fetch`] as the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListPage {
    /// Rows in the answer at most.
    pub limit: i64,
    /// Only rows older than this, when a cursor is given.
    pub before: Option<DateTime<Utc>>,
    /// Breaks ties of `before`.
    pub before_id: Option<Uuid>,
}

impl ListPage {
    /// The first row alone.
    pub(crate) const ONE: Self = Self { limit: 0, before: None, before_id: None };

    /// The first page, with the default limit.
    pub(super) fn first() -> Self {
        Self { limit: LIMIT_DEFAULT, before: None, before_id: None }
    }

    /// From the query parameters `limit` and `cursor`.
    ///
    /// # Errors
    /// 400 for a limit outside 1..=200 or a cursor we did not make.
    pub fn new(limit: Option<i64>, cursor: Option<&str>) -> Result<Self, ApiError> {
        let limit = limit.unwrap_or(LIMIT_DEFAULT);
        let mut faults = Faults::default();
        faults.within("limit", limit, 1..=LIMIT_MAX);
        faults.finish()?;
        let position = cursor
            .map(|text| {
                unseal(text).ok_or_else(|| ApiError::invalid("cursor", "invalid", "is not a cursor of this list"))
            })
            .transpose()?;
        Ok(Self { limit, before: position.map(|(at, _)| at), before_id: position.map(|(_, id)| id) })
    }

    /// Of a list of versions: only those before this one, when a cursor is given.
    pub fn before_version(&self) -> Option<i32> {
        // Not one of our cursors: nothing is before it.
        self.before_id.map(|id| i32::try_from(id.as_u128()).unwrap_or(0))
    }

    /// How many rows to fetch: one more than the limit, to know whether there is a next page.
    pub fn fetch(&self) -> i64 {
        self.limit + 1
    }

    /// The answer with this page: the fetched rows cut to the limit, and the cursor of the next page.
    pub(crate) fn answer<T: Resource>(&self, mut rows: Vec<T>) -> ResourcePage<T> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next_cursor = rows.last().filter(|_| more).map(|row| {
            let (at, id) = row.position();
            seal(at, id)
        });
        ResourcePage { rows, next_cursor }
    }
}

/// The place of a version in a cursor, which names a row by an id: its number.
pub(crate) fn numbered(version: i32) -> Uuid {
    Uuid::from_u128(u128::from(version.unsigned_abs()))
}

fn seal(at: DateTime<Utc>, id: Uuid) -> String {
    let mut bytes = [0; CURSOR_BYTES];
    // Postgres keeps microseconds: the cursor names the row's time exactly.
    bytes[..8].copy_from_slice(&at.timestamp_micros().to_be_bytes());
    bytes[8..].copy_from_slice(id.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn unseal(text: &str) -> Option<(DateTime<Utc>, Uuid)> {
    let bytes: [u8; CURSOR_BYTES] = URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()?;
    let (micros, id) = bytes.split_first_chunk::<8>()?;
    let at = DateTime::from_timestamp_micros(i64::from_be_bytes(*micros)).filter(|at| is_in_range(*at))?;
    Some((at, Uuid::from_slice(id).ok()?))
}

/// A time as answers show it: UTC, `Z`, milliseconds.
#[must_use]
pub fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// A time of an answer, or a time that may be null: written as by [`time`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "")]
pub struct AnswerTime<T>(pub T);

pub type Time = AnswerTime<DateTime<Utc>>;
/// A time of an answer, or null.
pub type OptionalTime = AnswerTime<Option<DateTime<Utc>>>;

impl<T> From<T> for AnswerTime<T> {
    fn from(at: T) -> Self {
        Self(at)
    }
}

impl<T> Deref for AnswerTime<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time(self.0))
    }
}

impl Serialize for OptionalTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.map(time).serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Resource for (DateTime<Utc>, Uuid) {
        const ONE: &'static str = "row";
        const MANY: &'static str = "rows";
        const NOT_FOUND: &'static str = "row_not_found";

        fn position(&self) -> (DateTime<Utc>, Uuid) {
            *self
        }
    }

    #[test]
    fn a_cursor_names_the_last_row_shown() {
        let at = DateTime::from_timestamp_micros(1_767_323_045_123_456).unwrap();
        let rows: Vec<(DateTime<Utc>, Uuid)> = (0..3).map(|_| (at, Uuid::now_v7())).collect();
        let second = rows[1];
        let page = ListPage::new(Some(2), None).unwrap();
        assert_eq!(page.fetch(), 3);
        let answer = page.answer(rows);
        assert_eq!(answer.rows.len(), 2);
        let cursor = answer.next_cursor.unwrap();
        let next = ListPage::new(None, Some(&cursor)).unwrap();
        assert_eq!((next.before, next.before_id), (Some(second.0), Some(second.1)));
    }

    #[test]
    fn the_last_page_has_no_cursor() {
        let rows = vec![(Utc::now(), Uuid::now_v7())];
        assert_eq!(ListPage::new(Some(1), None).unwrap().answer(rows).next_cursor, None);
    }

    #[test]
    fn a_cursor_carries_the_number_of_a_version() {
        let before = |id| ListPage { before_id: Some(id), ..ListPage::first() }.before_version();
        assert_eq!((before(numbered(7)), before(Uuid::max())), (Some(7), Some(0)));
    }

    #[test]
    fn limits_outside_1_to_200_and_foreign_cursors_are_refused() {
        for limit in [-1, 0, 201] {
            assert_eq!(ListPage::new(Some(limit), None).unwrap_err().fields[0].path, "limit");
        }
        for cursor in ["", "abc", "!!!!", &"A".repeat(40)] {
            assert_eq!(ListPage::new(None, Some(cursor)).unwrap_err().fields[0].path, "cursor");
        }
    }
}
