//! `/v1/imports`: many contacts from one CSV text, in one transaction. The file is read, checked and encoded for Postgres
//! before the transaction begins: no connection waits for a stranger's bytes.

mod apply;
mod copy;
mod file;
pub(crate) mod header;
mod reader;
mod row;

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Instant,
};

use runtime::Budget;
use schemars::JsonSchema;
use schemas::new_id;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use self::{
    apply::ImportOutcome,
    copy::EncodedRows,
    file::LIMITS,
    reader::{ERRORS_SHOWN, ImportReport},
    row::RowFault,
};
use super::{
    contacts::check_source,
    fields::definitions::{self, FieldType},
};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoParameters, PreparationContext, RequestContext, Routes, error::ApiError, page::Time, read,
    resource, shares::Shares, types::counts, validate::NAME_MAX, write_large,
};

const SLUG_MAX_CHARS: usize = 50;
const SLUG_PATTERN: &str = "^[a-z0-9_-]{1,50}$";
const TEXT_MAX_CHARS: usize = 1_000;
/// Files read at one time, in this process.
const READ_AT_ONCE: usize = 4;
/// Files of one product among them.
const READ_OF_ONE_PRODUCT: usize = 3;

static READINGS: LazyLock<Shares> = LazyLock::new(|| Shares::new(READ_AT_ONCE, READ_OF_ONE_PRODUCT));

pub(crate) fn routes() -> Routes {
    let endpoint = write_large("imports:write", |context, body| Box::pin(prepare(context, body)), import);
    Routes::new()
        .post(
            "/v1/imports",
            endpoint,
            Doc::new(
                "createImport",
                "Import contacts from CSV",
                "Staged, validated and committed before the answer, in one transaction. Bad rows are reported and \
                 skipped, but what stops mail in one with a good address counts all the same (`unsubscribed`, \
                 `marketing_status`, `suppression_reason`; a row of a `suppression_import` is a suppression), unless it \
                 has too many cells, and is among the created and updated: a contact that such a row creates is \
                 `pending` or `unsubscribed`, without consent. The last good duplicate wins, but an opt-out, a `pending` \
                 or a suppression in any of them counts; an empty cell leaves the value; no suppression or opt-out is \
                 ever lifted. A file that cannot be read (no header, an unclosed quote, a column twice, more than 500 \
                 columns, a name of one over 8 KB, a row over 1 MB) is a 400 that names the line. A reported value is cut \
                 short, and left empty when an address is in it. A `create` applies the opt-outs of contacts that \
                 are known. A row whose `external_id` another contact has, or whose contact has another one, is a bad row. \
                 A `suppression_import` skips suppressions that have expired, and weakens none that is in force; a \
                 `scope` that its reason cannot have makes a bad row.",
            )
            .example(json!({"name": "first", "csv": "email,first_name\nann@example.com,Ann\n"}))
            .answer::<ImportSummary>(200, "Imported")
            .leads_to("import_id", &["getImport"])
            .refuses(409, &["external_id_taken", "list_limit_reached", "tag_limit_reached"])
            .refuses(413, &["too_many_rows"]),
        )
        .get(
            "/v1/imports/{id}",
            read("imports:write", show),
            Doc::new("getImport", "Read an import's summary", "")
                .single::<Import>("The import"),
        )
}

schemas::named_enum! {
    /// What an import does with its rows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub wire enum ImportOperation {
        /// New contacts only; known ones are skipped, but an opt-out of theirs is applied.
        Create = "create",
        /// Known contacts only; new ones are skipped.
        Update = "update",
        /// Both.
        #[default]
        Upsert = "upsert",
        /// The addresses become suppressions, with the terms of their rows; contacts stay as they are.
        SuppressionImport = "suppression_import",
        /// Lists and tags of known contacts only, and, as with every operation that writes, their opt-outs and all suppressions.
        AudienceOnly = "audience_only",
        /// Checks the file, writes nothing.
        VerificationOnly = "verification_only",
    }
}

/// What the caller says about the right to mail these people.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ImportCompliance {
    #[schemars(length(max = TEXT_MAX_CHARS))]
    consent_basis: Option<String>,
    marketing_allowed: Option<bool>,
    /// Double opt-in: whoever is not subscribed yet is subscribed by the link in a confirmation mail. Without leave to send marketing
    /// nobody is asked.
    require_verification: Option<bool>,
    #[schemars(length(max = TEXT_MAX_CHARS))]
    source_description: Option<String>,
}

impl ImportCompliance {
    /// Without leave to send marketing, or before the address is verified, a new contact has not agreed yet.
    fn new_contacts_are(&self) -> &'static str {
        match (self.marketing_allowed, self.require_verification) {
            (Some(false), _) | (_, Some(true)) => "pending",
            _ => "subscribed",
        }
    }

    /// Whether contacts whose consent is pending are asked by mail to confirm it.
    fn asks_to_confirm(&self) -> bool {
        self.require_verification == Some(true) && self.marketing_allowed != Some(false)
    }

    /// Whether the import is an agreement that known contacts had not given yet.
    fn agrees(&self) -> bool {
        self.marketing_allowed == Some(true) && self.require_verification != Some(true) && self.consent_basis.is_some()
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateImport {
    /// CSV with a header row; `email` is required. Other columns: `external_id`, `first_name`, `last_name`, `title`, `phone`, `company`,
    /// `lifecycle_stage`, `dot_number`, `timezone`, `locale`; `tags` and `lists` (names with `;` between them or a JSON array), `list` (one
    /// name); `unsubscribed`, `marketing_status` (`subscribed` says nothing, `pending` that the contact has not agreed yet, `unsubscribed` is
    /// an opt-out), `suppression_reason`, `consent_basis`, `consent_at`; each defined field by its key, and `fields` (a JSON object of
    /// values by key). So the CSV of `/v1/exports/contacts` can be imported; beside `fields`, `status` says whether a contact is archived: a
    /// new one then is, and an archived one stays so, but no active one becomes archived. Columns of other names are ignored, and
    /// those that the operation does not use.
    ///
    /// With `suppression_import` also `reason` (as `suppression_reason`), `scope` (`all`, `marketing`; else that of the reason), `note` and
    /// `expires_at` (else for good): so the CSV of `/v1/exports/suppressions` can be imported, but for its `source`, its mail and its times of
    /// creation. Each row of such a file is a suppression, also several of one address by reason; of one the strictest terms count.
    csv: String,
    #[schemars(length(max = NAME_MAX))]
    name: Option<String>,
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<ImportOperation>")]
    operation: ImportOperation,
    /// The source of new contacts. Default: api_import. Not transactional, message or campaign_test.
    #[schemars(regex(pattern = SLUG_PATTERN))]
    source_slug: Option<String>,
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<ImportCompliance>")]
    compliance: ImportCompliance,
    /// Whether its new contacts and members start sequences (`contact_created`, `list_joined`, `tag_added`, `segment_entered`). Without it,
    /// none of the contacts that it makes or changes starts anything by a segment that it is in at the next look at the trigger, whatever
    /// brought it there. Dates that it brings always count (`field_date`). Default: false.
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<bool>")]
    start_sequences: bool,
}

impl CreateImport {
    fn check(&self) -> Result<(), ApiError> {
        let mut faults = Faults::default();
        faults.one_line("name", self.name.as_deref().unwrap_or_default(), NAME_MAX);
        if let Some(slug) = &self.source_slug {
            let good = (1..=SLUG_MAX_CHARS).contains(&slug.len())
                && slug.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte));
            faults.require(good, "source_slug", "invalid", "must be 1 to 50 of a-z, 0-9, _ and -");
            check_source(&mut faults, "source_slug", slug);
        }
        faults.optional("compliance.consent_basis", self.compliance.consent_basis.as_deref(), TEXT_MAX_CHARS);
        faults.optional("compliance.source_description", self.compliance.source_description.as_deref(), TEXT_MAX_CHARS);
        faults.finish()
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
struct ImportCounts {
    total_rows: usize,
    valid: usize,
    created: i64,
    updated: i64,
    unchanged: i64,
    skipped: i64,
    duplicates: usize,
    invalid: usize,
    suppressed: i64,
}

/// What an import did with its rows, as it is stored.
#[derive(Debug, Serialize, JsonSchema)]
struct ImportDetails {
    counts: ImportCounts,
    ignored_columns: Vec<String>,
    #[schemars(length(max = ERRORS_SHOWN))]
    errors: Vec<RowFault>,
}

/// What is known of an import.
#[derive(Debug, Serialize, JsonSchema)]
struct ImportSummary {
    import_id: Uuid,
    name: Option<String>,
    #[schemars(with = "ImportOperation")]
    operation: String,
    #[schemars(extend("enum" = ["completed", "completed_with_errors", "failed"]))]
    status: String,
    source_slug: String,
    #[serde(flatten)]
    #[schemars(with = "ImportDetails")]
    summary: Value,
    #[schemars(with = "usize")]
    duration_ms: i32,
}

/// An import whose file was read.
struct PreparedImport {
    begun: Instant,
    /// Without the file.
    body: CreateImport,
    report: ImportReport,
    rows: EncodedRows,
    /// The fields that the rows were checked against.
    defined: BTreeMap<String, FieldType>,
}

/// Checks an import and reads its file.
async fn prepare(context: PreparationContext, mut body: CreateImport) -> Result<PreparedImport, ApiError> {
    let begun = Instant::now();
    body.check()?;
    let mut db = context.read().await?;
    let defined = definitions::read(&mut db, context.tenant).await?;
    drop(db);
    let rows_max = context.ingress.settings.import_max_rows;
    let (csv, operation) = (std::mem::take(&mut body.csv), body.operation);
    let _permit = READINGS.take(&context.caller.product, 1).await;
    // Off the reactor: fifty thousand rows are a good part of a second of work. The file is dropped with its reading.
    let reading = move || {
        let mut rows = EncodedRows::default();
        let report = reader::read(&Budget::new(LIMITS), &csv, &defined, operation, rows_max, |row| rows.take(row))?;
        Ok::<_, ApiError>((report, rows, defined))
    };
    let (report, rows, defined) = tokio::task::spawn_blocking(reading).await??;
    Ok(PreparedImport { begun, body, report, rows, defined })
}

async fn import(ctx: &mut RequestContext, prepared: Result<PreparedImport, ApiError>) -> Result<ApiReply, ApiError> {
    let PreparedImport { begun, body, report, rows, defined } = prepared?;
    let CreateImport { name, operation, source_slug, compliance, start_sequences, .. } = body;
    let source_slug = source_slug.unwrap_or_else(|| "api_import".to_owned());
    let tenant = ctx.tenant;
    if !start_sequences {
        sqlx::query!("select set_config('app.starts_nothing', 'on', true)").fetch_one(ctx.db()).await?;
    }
    let still_defined = definitions::read_for_write(ctx.db(), tenant).await?;
    apply::load(ctx.db(), rows).await?;
    // Removed since the file was read, and perhaps defined anew with another type.
    let removed: Vec<String> =
        defined.into_iter().filter(|(key, kind)| still_defined.get(key) != Some(kind)).map(|(key, _)| key).collect();
    apply::leave_out_fields(ctx.db(), &removed).await?;
    let ingress = Arc::clone(&ctx.ingress);
    let terms = apply::ImportTerms {
        tenant,
        operation,
        source_slug: &source_slug,
        compliance: &compliance,
        confirmations: &ingress.settings.confirmations,
        keys: &ingress.master_keys,
    };
    let outcome = apply::apply(ctx.db(), terms, &report).await?;
    if !start_sequences && report.counted > 0 && operation != ImportOperation::VerificationOnly {
        // What the import made of its contacts starts no sequence by a segment that they are in now. The statement names a temporary table,
        // which the compile-time check cannot know.
        let passed_over = "select pass_over_segments($1, array_agg(contact_id)) from import_rows where contact_id = new_id or changed";
        sqlx::query(passed_over).persistent(false).bind(tenant).execute(ctx.db()).await?;
    }
    let ImportOutcome { created, updated, unchanged, skipped, suppressed, rows, faults } = outcome;
    let (valid, invalid) = (report.valid - faults.len(), report.invalid + faults.len());
    let mut errors = report.errors;
    errors.extend(faults);
    errors.sort_by_key(|fault| fault.row);
    errors.truncate(ERRORS_SHOWN);
    let (total_rows, duplicates) = (report.total_rows, report.duplicates);
    let counts =
        ImportCounts { total_rows, valid, created, updated, unchanged, skipped, duplicates, invalid, suppressed };
    // A check applies nothing, so a bad row that would stop mail is only a bad row.
    let applied = if operation == ImportOperation::VerificationOnly { valid } else { rows };
    let status = match (applied, invalid) {
        (_, 0) => "completed",
        (0, _) => "failed",
        _ => "completed_with_errors",
    };
    let id = new_id();
    let duration_ms = i32::try_from(begun.elapsed().as_millis()).unwrap_or(i32::MAX);
    let details = ImportDetails { counts, ignored_columns: report.ignored_columns, errors };
    let summary = serde_json::to_value(details).map_err(|error| ApiError::unexpected(&error))?;
    sqlx::query!(
        "insert into imports (tenant_id, id, name, operation, status, source_slug, summary, duration_ms)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        tenant,
        id,
        name,
        operation.as_str(),
        status,
        source_slug,
        summary,
        duration_ms,
    )
    .execute(ctx.db())
    .await?;
    let detail = json!({
        "operation": operation.as_str(), "status": status, "created": created, "updated": updated, "suppressed": suppressed,
    });
    ctx.audit("import.created", &id.to_string(), detail).await?;
    let (operation, status) = (operation.as_str().to_owned(), status.to_owned());
    ApiReply::ok(&ImportSummary { import_id: id, name, operation, status, source_slug, summary, duration_ms })
}

#[derive(Debug, Serialize, JsonSchema)]
struct Import {
    #[serde(flatten)]
    summary: ImportSummary,
    created_at: Time,
}

resource!(Import, "import", "imports", row => (*row.created_at, row.summary.import_id));

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("import")?);
    let stored = sqlx::query!(
        "select name, operation, status, source_slug, summary, duration_ms, created_at from imports
         where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::not_found("import"))?;
    let summary = ImportSummary {
        import_id: id,
        name: stored.name,
        operation: stored.operation,
        status: stored.status,
        source_slug: stored.source_slug,
        summary: stored.summary,
        duration_ms: stored.duration_ms,
    };
    ApiReply::single(Import { summary, created_at: stored.created_at.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_leave_for_marketing_new_contacts_have_not_agreed() {
        let with = |marketing_allowed, require_verification| {
            ImportCompliance { marketing_allowed, require_verification, ..ImportCompliance::default() }
                .new_contacts_are()
        };
        assert_eq!(with(None, None), "subscribed");
        assert_eq!(with(Some(true), None), "subscribed");
        assert_eq!(with(Some(false), None), "pending");
        assert_eq!(with(Some(true), Some(true)), "pending");
    }
}
