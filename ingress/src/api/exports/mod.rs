//! `/v1/exports`: all contacts, suppressions, sends or events of a tenant as CSV or newline-delimited JSON.
//!
//! An answer is a stream of slices. Each slice is a short transaction of its own, and the next one is read when the caller has taken
//! the one before: a slow caller holds neither a connection nor more memory than a slice. Rows come in the order of their keys, and
//! each carries the cursor that the export continues after, whoever broke it off.

mod format;
mod rows;

use std::{io, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures::{Stream, stream};
use http::StatusCode;
use runtime::plans::AccessPattern;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use self::{
    format::{ExportFormat, write_header, write_rows},
    rows::{ExportRow, ExportedContact, ExportedEvent, ExportedSend, ExportedSuppression},
};
use crate::{
    pipeline::{ApiReply, Doc, RequestContext, Routes, begin_read, error::ApiError, read},
    state::Ingress,
};

/// Rows of a slice: what an export holds in memory.
const SLICE_ROWS: i64 = 500;
/// The types of answers.
const FILES: &[&str] = &[ExportFormat::Csv.content_type(), ExportFormat::Ndjson.content_type()];

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/exports/contacts",
            read("contacts:read", export::<ExportedContact>),
            doc("exportContacts", "Export contacts", "All that are not erased, with the tenant's own fields."),
        )
        .get(
            "/v1/exports/suppressions",
            read("suppressions:read", export::<ExportedSuppression>),
            doc("exportSuppressions", "Export suppressions", "Also those that have expired."),
        )
        .get(
            "/v1/exports/sends",
            read("sends:read", export::<ExportedSend>),
            doc("exportSends", "Export sends", "Every recipient of every mail that the ledger keeps, by launch."),
        )
        .get(
            "/v1/exports/events",
            read("sends:read", export::<ExportedEvent>),
            doc("exportEvents", "Export events of sends", "Every fact that the ledger keeps, send by send."),
        )
}

fn doc(id: &'static str, summary: &'static str, description: &'static str) -> Doc {
    Doc::new(id, summary, description).files(200, "The rows, each with the cursor to continue after", FILES)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportQuery {
    /// In CSV, a text that a spreadsheet would take for a formula begins with an apostrophe.
    #[serde(default)]
    format: ExportFormat,
    /// The `cursor` of the last row there is. CSV then comes without its header line.
    cursor: Option<String>,
}

/// The key of a row: the rows after it follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ExportCursor {
    first: Uuid,
    /// Of events, the key's second part; else nil.
    second: Uuid,
}

impl ExportCursor {
    /// Before every row.
    const START: Self = Self { first: Uuid::nil(), second: Uuid::nil() };

    fn seal(self) -> String {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(self.first.as_bytes());
        bytes[16..].copy_from_slice(self.second.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn open(text: &str) -> Result<Self, ApiError> {
        let bytes: Option<[u8; 32]> = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        let parts = bytes.and_then(|bytes| {
            Some((Uuid::from_slice(bytes.get(..16)?).ok()?, Uuid::from_slice(bytes.get(16..)?).ok()?))
        });
        let (first, second) =
            parts.ok_or_else(|| ApiError::invalid("cursor", "invalid", "is not a cursor of an export"))?;
        Ok(Self { first, second })
    }
}

async fn export<R: ExportRow>(ctx: &mut RequestContext, query: ExportQuery) -> Result<ApiReply, ApiError> {
    let after = query.cursor.as_deref().map(ExportCursor::open).transpose()?;
    let (tenant, format) = (ctx.tenant, query.format);
    let mut first = Vec::new();
    if after.is_none() {
        write_header::<R>(format, &mut first)?;
    }
    let rows = R::slice(ctx.db(), tenant, after.unwrap_or(ExportCursor::START), SLICE_ROWS).await?;
    write_rows(format, &rows, &mut first)?;
    let rest = slices::<R>(Arc::clone(&ctx.ingress), tenant, format, next(&rows));
    Ok(ApiReply::stream(StatusCode::OK, format.content_type(), first, rest))
}

/// Where the slice after these rows begins; `None` after the last slice.
fn next<R: ExportRow>(rows: &[R]) -> Option<ExportCursor> {
    let is_full = i64::try_from(rows.len()).is_ok_and(|count| count >= SLICE_ROWS);
    rows.last().filter(|_| is_full).map(ExportRow::cursor)
}

/// The slices after the first. A fault breaks the transfer off, so that no caller takes half an export for all of it.
fn slices<R: ExportRow>(
    ingress: Arc<Ingress>,
    tenant: Uuid,
    format: ExportFormat,
    after: Option<ExportCursor>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::try_unfold(after, move |after| {
        let ingress = Arc::clone(&ingress);
        async move {
            let Some(after) = after else { return Ok(None) };
            let mut tx = begin_read(&ingress, AccessPattern::Scan, tenant).await.map_err(io::Error::other)?;
            let rows = R::slice(tx.db(), tenant, after, SLICE_ROWS).await.map_err(io::Error::other)?;
            drop(tx);
            let mut slice = Vec::new();
            write_rows(format, &rows, &mut slice).map_err(|error| io::Error::other(error.code.into_owned()))?;
            Ok(Some((Bytes::from(slice), next(&rows))))
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_no_other() {
        let cursor = ExportCursor { first: Uuid::now_v7(), second: Uuid::now_v7() };
        assert_eq!(ExportCursor::open(&cursor.seal()).unwrap(), cursor);
        for text in ["", "abc", "!", &"A".repeat(64)] {
            assert_eq!(ExportCursor::open(text).unwrap_err().fields[0].path, "cursor");
        }
    }
}
