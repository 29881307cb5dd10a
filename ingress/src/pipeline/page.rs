//! Lists: newest first, keyset on (created_at, id), an opaque cursor.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, SecondsFormat, Utc};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serializer};
use uuid::Uuid;

use crate::pipeline::error::ApiError;

const LIMIT_DEFAULT: i64 = 50;
const LIMIT_MAX: i64 = 200;
const CURSOR_BYTES: usize = 24;

/// The query of a list that asks for nothing but its part.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// How many to answer at most.
    #[schemars(with = "Option<PageLimit>")]
    pub limit: Option<i64>,
    /// `next_cursor` of the page before.
    #[schemars(with = "Option<PageCursor>")]
    pub cursor: Option<String>,
}

impl PageQuery {
    /// The requested page.
    ///
    /// # Errors
    /// 400 for a limit outside 1..=200 or a cursor we did not make.
    pub fn page(&self) -> Result<ListPage, ApiError> {
        ListPage::new(self.limit, self.cursor.as_deref())
    }
}

/// What `limit` may be, for `#[schemars(with = "Option<PageLimit>")]`.
#[derive(Debug)]
pub enum PageLimit {}

impl JsonSchema for PageLimit {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PageLimit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT,
            "description": "How many to answer at most.",
        })
    }
}

/// What `cursor` may be, for `#[schemars(with = "Option<PageCursor>")]`.
#[derive(Debug)]
pub enum PageCursor {}

impl JsonSchema for PageCursor {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PageCursor".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "`next_cursor` of the page before."})
    }
}

/// The page of a list that is requested. In SQL: `($2::timestamptz is null or (created_at, id) < ($2, $3)) order by created_at desc,
/// id desc limit $4`, with [`Page::fetch`] as the limit.
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
    /// From the query parameters `limit` and `cursor`.
    ///
    /// # Errors
    /// 400 for a limit outside 1..=200 or a cursor we did not make.
    pub fn new(limit: Option<i64>, cursor: Option<&str>) -> Result<Self, ApiError> {
        let limit = limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(ApiError::invalid("limit", "out_of_range", format!("must be from 1 to {LIMIT_MAX}")));
        }
        let position = cursor
            .map(|text| {
                unseal(text).ok_or_else(|| ApiError::invalid("cursor", "invalid", "is not a cursor of this list"))
            })
            .transpose()?;
        Ok(Self { limit, before: position.map(|(at, _)| at), before_id: position.map(|(_, id)| id) })
    }

    /// How many rows to fetch: one more than the limit, to know whether there is a next page.
    #[must_use]
    pub fn fetch(&self) -> i64 {
        self.limit + 1
    }

    /// Cuts the rows to the limit and returns `next_cursor`.
    pub fn cut<T>(&self, rows: &mut Vec<T>, key: impl Fn(&T) -> (DateTime<Utc>, Uuid)) -> Option<String> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        if rows.len() <= limit {
            return None;
        }
        rows.truncate(limit);
        rows.last().map(|row| {
            let (at, id) = key(row);
            seal(at, id)
        })
    }
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
    Some((DateTime::from_timestamp_micros(i64::from_be_bytes(*micros))?, Uuid::from_slice(id).ok()?))
}

/// A time as answers show it: UTC, `Z`, milliseconds.
#[must_use]
pub fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// For `#[serde(serialize_with)]`: as [`time`].
///
/// # Errors
/// Those of the serializer.
pub fn as_time<S: Serializer>(at: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&time(*at))
}

/// For `#[serde(serialize_with)]`: as [`time`], or null.
///
/// # Errors
/// Those of the serializer.
pub fn as_optional_time<S: Serializer>(at: &Option<DateTime<Utc>>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => as_time(at, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_the_last_row_shown() {
        let at = DateTime::from_timestamp_micros(1_767_323_045_123_456).unwrap();
        let mut rows: Vec<(DateTime<Utc>, Uuid)> = (0..3).map(|_| (at, Uuid::now_v7())).collect();
        let second = rows[1];
        let page = ListPage::new(Some(2), None).unwrap();
        assert_eq!(page.fetch(), 3);
        let cursor = page.cut(&mut rows, |row| *row).unwrap();
        assert_eq!(rows.len(), 2);
        let next = ListPage::new(None, Some(&cursor)).unwrap();
        assert_eq!((next.before, next.before_id), (Some(second.0), Some(second.1)));
    }

    #[test]
    fn the_last_page_has_no_cursor() {
        let mut rows = vec![(Utc::now(), Uuid::now_v7())];
        assert_eq!(ListPage::new(Some(1), None).unwrap().cut(&mut rows, |row| *row), None);
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
