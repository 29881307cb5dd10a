//! `/v1/exports`: all contacts, suppressions, sends or events of a tenant, as CSV or newline-delimited JSON.
//!
//! An answer is a stream of slices. Each slice is a short transaction of its own, and the next one is read when the caller has taken
//! the one before: a slow caller holds neither a connection nor more memory than a slice. Rows come in the order of their keys, and
//! each carries the cursor that the export continues after, if it breaks off.

pub(super) mod format;
mod link;
mod rows;

use std::{future::Future, io, marker::PhantomData, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{Stream, stream};
use http::StatusCode;
use runtime::plans::AccessPattern;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use self::{
    format::{CURSOR, ExportFormat, write_header, write_rows},
    rows::{ExportRow, ExportedContact, ExportedEvent, ExportedProductEvent, ExportedSend, ExportedSuppression},
};
use crate::{
    pipeline::{
        ApiReply, Doc, GivenTime, RequestContext, Routes, begin_read, error::ApiError, open, read, write,
        write_audit_log,
    },
    state::Ingress,
};

/// Rows of a slice: what an export holds in memory.
const SLICE_ROWS: i64 = 500;
/// No transaction that writes what a caller reads by its time takes longer.
pub(super) const WRITING_MAX: TimeDelta = TimeDelta::minutes(10);
/// The type of answers with a JSON object on each line.
pub(super) const NDJSON: &str = ExportFormat::Ndjson.content_type();
/// The types of answers.
const FILES: &[&str] = &[ExportFormat::Csv.content_type(), NDJSON];

/// The columns of an export of contacts.
pub(super) fn contact_columns() -> impl Iterator<Item = &'static str> {
    ExportedContact::columns().chain([CURSOR])
}

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/exports/contacts",
            read("contacts:read", export::<ExportedContact>),
            doc(
                "exportContacts",
                "Export contacts",
                "All that are not erased, with the tenant's own fields, and the names of their lists and tags.",
            ),
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
            read("sends:read", export_events),
            doc("exportEvents", "Export events of sends", "Every fact that the ledger keeps, send by send."),
        )
        .get(
            "/v1/exports/product_events",
            read("contacts:read", export::<ExportedProductEvent>),
            doc(
                "exportProductEvents",
                "Export events of products",
                "Every fact that products reported about contacts.",
            ),
        )
        .post(
            "/v1/exports/contacts/links",
            write("contacts:read", link::make::<ExportedContact>),
            link_doc("linkContactsExport", "Make a link to the contacts"),
        )
        .post(
            "/v1/exports/suppressions/links",
            write("suppressions:read", link::make::<ExportedSuppression>),
            link_doc("linkSuppressionsExport", "Make a link to the suppressions"),
        )
        .post(
            "/v1/exports/sends/links",
            write("sends:read", link::make::<ExportedSend>),
            link_doc("linkSendsExport", "Make a link to the sends"),
        )
        .post(
            "/v1/exports/events/links",
            write("sends:read", link::make_of_events),
            link_doc("linkEventsExport", "Make a link to the events of sends"),
        )
        .post(
            "/v1/exports/product_events/links",
            write("contacts:read", link::make::<ExportedProductEvent>),
            link_doc("linkProductEventsExport", "Make a link to the events of products"),
        )
        .get(
            "/exports/{token}",
            open(link::fetch),
            Doc::new(
                "fetchExport",
                "Fetch an export by its link",
                "What the link was made for, as it is now. Counts against the rate limit of the key that made it.",
            )
            .path_parameters::<link::ExportLinkPath>()
            .files(200, "The rows", FILES)
            .refuses(404, &["link_not_found"])
            .refuses(429, &["rate_limit_exceeded"]),
        )
}

fn doc(id: &'static str, summary: &'static str, description: &'static str) -> Doc {
    Doc::new(id, summary, description).files(200, "The rows, each with the cursor to continue after", FILES)
}

fn link_doc(id: &'static str, summary: &'static str) -> Doc {
    Doc::new(
        id,
        summary,
        "For an hour, the export can be fetched under the answered path without a key, by whoever has it. The link ends early with \
         the key that made it.",
    )
    .answer::<link::ExportLink>(201, "Made")
    .example(json!({"format": "csv"}))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportQuery {
    /// In CSV, a text that a spreadsheet would take for a formula begins with an apostrophe.
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<ExportFormat>")]
    format: ExportFormat,
    /// After a broken transfer, the `cursor` of its last whole row. CSV then comes without its header line.
    cursor: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExportEventsQuery {
    /// In CSV, a text that a spreadsheet would take for a formula begins with an apostrophe.
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<ExportFormat>")]
    format: ExportFormat,
    /// After a broken transfer, the `cursor` of its last whole row. CSV then comes without its header line.
    cursor: Option<String>,
    /// Events recorded not before this time, of whichever send: what has been added since another export began. Those of the ten minutes
    /// before come again: tell them by `event_id`.
    recorded_since: Option<GivenTime>,
}

/// Rows of a tenant after a key, in their form.
struct ExportSlice<R> {
    tenant: Uuid,
    format: ExportFormat,
    /// `None`: from the first row on.
    after: Option<ExportCursor>,
    /// Of events, those recorded not before this time.
    since: Option<DateTime<Utc>>,
    row: PhantomData<fn() -> R>,
}

impl<R: ExportRow> ExportSlice<R> {
    /// The first slice of an export, or that after the row of a cursor.
    fn open(
        tenant: Uuid,
        format: ExportFormat,
        cursor: Option<&str>,
        since: Option<DateTime<Utc>>,
    ) -> Result<Self, ApiError> {
        let after = cursor.map(|cursor| ExportCursor::open(R::NAME, cursor)).transpose()?;
        Ok(Self { tenant, format, after, since, row: PhantomData })
    }

    fn start(&self) -> ExportCursor {
        self.after.unwrap_or(ExportCursor::START)
    }

    /// An event is recorded at the beginning of its transaction and can be read after its end: those of transactions that had not
    /// ended come again.
    fn recorded_since(&self) -> Option<DateTime<Utc>> {
        self.since.map(|since| since - WRITING_MAX)
    }
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

    /// As a text that only the same export opens: the keys of others are in another order.
    fn seal(self, export: &str) -> String {
        let bytes = [self.first.into_bytes(), self.second.into_bytes()].concat();
        format!("{export}.{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    fn open(export: &str, text: &str) -> Result<Self, ApiError> {
        let key = text.strip_prefix(export).and_then(|rest| rest.strip_prefix('.'));
        let cursor = key.and_then(|key| {
            let bytes = URL_SAFE_NO_PAD.decode(key).ok()?;
            let (first, second) = bytes.split_at_checked(16)?;
            Some(Self { first: Uuid::from_slice(first).ok()?, second: Uuid::from_slice(second).ok()? })
        });
        cursor.ok_or_else(|| ApiError::invalid("cursor", "invalid", "is not a cursor of this export"))
    }
}

/// What a stream reads in a transaction of its own.
pub(super) trait StreamSlice: Send + Sized + 'static {
    /// Reads the slice. Answers it as it is sent, and the slice after it; `None` after the last one.
    fn read(self, db: &mut PgConnection) -> impl Future<Output = Result<(Vec<u8>, Option<Self>), ApiError>> + Send;
}

impl<R: ExportRow> StreamSlice for ExportSlice<R> {
    /// Of the rows that it has, the wanted ones are answered, which may be none.
    async fn read(self, db: &mut PgConnection) -> Result<(Vec<u8>, Option<Self>), ApiError> {
        let mut rows = R::slice(db, &self).await?;
        let is_full = i64::try_from(rows.len()).is_ok_and(|count| count >= SLICE_ROWS);
        let last = rows.last().filter(|_| is_full).map(ExportRow::cursor);
        rows.retain(|row| row.is_wanted(&self));
        let mut written = Vec::new();
        write_rows(self.format, &rows, &mut written)?;
        Ok((written, last.map(|last| Self { after: Some(last), ..self })))
    }
}

async fn export<R: ExportRow>(ctx: &mut RequestContext, query: ExportQuery) -> Result<ApiReply, ApiError> {
    let slice = ExportSlice::open(ctx.tenant, query.format, query.cursor.as_deref(), None)?;
    begin_export::<R>(&Arc::clone(&ctx.ingress), &ctx.caller.actor(), ctx.db(), slice).await
}

async fn export_events(ctx: &mut RequestContext, query: ExportEventsQuery) -> Result<ApiReply, ApiError> {
    let since = query.recorded_since.map(|at| at.0);
    let slice = ExportSlice::open(ctx.tenant, query.format, query.cursor.as_deref(), since)?;
    begin_export::<ExportedEvent>(&Arc::clone(&ctx.ingress), &ctx.caller.actor(), ctx.db(), slice).await
}

/// The first slice, and the stream of the others. `actor`: in the audit log.
async fn begin_export<R: ExportRow>(
    ingress: &Arc<Ingress>,
    actor: &str,
    db: &mut PgConnection,
    slice: ExportSlice<R>,
) -> Result<ApiReply, ApiError> {
    let (tenant, format, is_continued) = (slice.tenant, slice.format, slice.after.is_some());
    let mut first = Vec::new();
    if !is_continued {
        write_header::<R>(format, &mut first)?;
    }
    let (rows, next) = slice.read(db).await?;
    first.extend_from_slice(&rows);
    note_begun(ingress, tenant, actor, "export.begin", R::NAME, json!({"continued": is_continued})).await?;
    let rest = stream_slices(Arc::clone(ingress), tenant, next);
    Ok(ApiReply::stream(StatusCode::OK, format.content_type(), first, rest))
}

/// Writes into the audit log who takes what out. A transaction of its own, because that of a read writes nothing; committed before the first
/// row leaves.
pub(super) async fn note_begun(
    ingress: &Ingress,
    tenant: Uuid,
    actor: &str,
    action: &str,
    subject: &str,
    detail: Value,
) -> Result<(), ApiError> {
    let mut db = ingress.by_key.take().await?;
    write_audit_log(&mut db, Some(tenant), actor, action, vec![(subject.to_owned(), detail)]).await?;
    db.put_back();
    Ok(())
}

/// The slices after the first. A fault breaks the transfer off, so that no caller takes half an export for all of it.
pub(super) fn stream_slices<S: StreamSlice>(
    ingress: Arc<Ingress>,
    tenant: Uuid,
    slice: Option<S>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::try_unfold(slice, move |slice| {
        let ingress = Arc::clone(&ingress);
        async move {
            let Some(slice) = slice else { return Ok(None) };
            let mut tx = begin_read(&ingress, AccessPattern::Scan, tenant).await.map_err(io::Error::other)?;
            let read = slice.read(tx.db()).await;
            drop(tx);
            let (written, next) = read.map_err(|error| io::Error::other(error.code.into_owned()))?;
            Ok(Some((Bytes::from(written), next)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_no_other() {
        let cursor = ExportCursor { first: Uuid::now_v7(), second: Uuid::now_v7() };
        assert_eq!(ExportCursor::open("sends", &cursor.seal("sends")).unwrap(), cursor);
        let of_another = cursor.seal("events");
        for text in ["", "abc", "!", "sends", "sends.", &format!("sends.{}", "A".repeat(64)), &of_another] {
            assert_eq!(ExportCursor::open("sends", text).unwrap_err().fields[0].path, "cursor");
        }
    }
}
