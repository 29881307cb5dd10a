//! The rows into Postgres: one COPY, then set-based statements, in the transaction of the request.

use chrono::{DateTime, Utc};
use ledger::{
    confirmations::{self, ConfirmationSettings},
    suppressions::{self, NewSuppression, SuppressionReason},
};
use runtime::{MasterKeys, plans};
use schemas::action::SuppressionScope;
use sqlx::{PgConnection, Postgres, Row as _, postgres::PgArguments, query::Query};
use uuid::Uuid;

use super::{
    ImportCompliance, ImportOperation,
    copy::{self, EncodedRows},
    file::quoted,
    reader::ImportReport,
    row::RowFault,
};
use crate::{
    api::{audiences::held::AudienceKind, contacts},
    pipeline::error::ApiError,
};

// The statements below name a temporary table, which the compile-time check cannot know.
const CREATE_TABLE: &str = include_str!("../../../queries/import/table.sql");
const FIND: &str = include_str!("../../../queries/import/find.sql");
/// True if a row has a contact that is not found yet.
const IS_ONE_LEFT: &str = "select exists (
    select from import_rows r join contacts c on c.tenant_id = $1 and c.address = r.address
    where r.contact_id = r.new_id and c.id <> r.new_id)";
/// What stops mail in any row of an address counts in all of them. Of several reasons one that stops all mail, of these the last; an opt-out
/// among them is then the contact's.
const KEEP_OPT_OUTS: &str = "update import_rows r
    set unsubscribed = stopped.unsubscribed, pending = stopped.pending, suppression_reason = stopped.reason
    from (
        select address, bool_or(unsubscribed or suppression_reason is not distinct from 'unsubscribe') as unsubscribed,
               bool_or(pending) as pending,
               (array_agg(suppression_reason order by suppression_reason = 'unsubscribe', number desc)
                filter (where suppression_reason is not null))[1] as reason
        from import_rows group by address
        having count(*) > 1 and bool_or(unsubscribed or pending or suppression_reason is not null)
    ) stopped
    where r.address = stopped.address";
const FOLD: &str = include_str!("../../../queries/import/fold.sql");
const INSERT: &str = include_str!("../../../queries/import/insert.sql");
const OPT_OUT: &str = include_str!("../../../queries/import/opt_out.sql");
/// Leaves nothing of the rows of known contacts but what stops mail.
const SKIP_KNOWN: &str = "update import_rows
    set contact_id = case when changed then contact_id end, lists = null, tags = null
    where contact_id <> new_id";
const UPDATE: &str = include_str!("../../../queries/import/update.sql");
const AUDIENCES: &str = include_str!("../../../queries/import/audiences.sql");
const EXTERNAL_IDS: &str = include_str!("../../../queries/import/external_ids.sql");
const MEMBERS: &str = include_str!("../../../queries/import/members.sql");
/// Suppressions that rows ask for, in the order of their keys, so that two writers cannot wait for each other: by octets, as the ledger sorts
/// what it writes at once. Not those that are over.
const SUPPRESSED: &str =
    "select number, address, suppression_reason, suppression_scope, suppression_note, suppression_expires_at
    from import_rows
    where suppression_reason is not null
      and (address collate \"C\", suppression_reason collate \"C\", number) > ($1, $2, $3)
      and is_in_force(suppression_expires_at)
    order by address collate \"C\", suppression_reason collate \"C\", number limit $4";
/// Of a list of suppressions: how many are over by the file, and how many of the addresses are under a suppression in force.
const OUTCOME_OF_LIST: &str = "select count(*) filter (where r.ends_at <= now()),
       count(distinct r.address) filter (where exists (
           select from suppressions s
           where s.tenant_id = $1 and s.address = r.address and is_in_force(s.expires_at)
       ))
    from (
        select address, max(coalesce(suppression_expires_at, 'infinity')) as ends_at
        from import_rows group by address, suppression_reason
    ) r";
/// Suppressions written by one statement.
const SUPPRESSIONS_AT_ONCE: usize = 20_000;
const OUTCOME: &str = include_str!("../../../queries/import/outcome.sql");

/// Under which terms.
#[derive(Clone, Copy)]
pub(super) struct ImportTerms<'a> {
    pub tenant: Uuid,
    pub operation: ImportOperation,
    pub source_slug: &'a str,
    pub compliance: &'a ImportCompliance,
    pub confirmations: &'a ConfirmationSettings,
    pub keys: &'a MasterKeys,
}

/// The result of the rows that count.
#[derive(Debug, Default, sqlx::FromRow)]
pub(super) struct ImportOutcome {
    pub created: i64,
    pub updated: i64,
    pub unchanged: i64,
    pub skipped: i64,
    pub suppressed: i64,
    /// The rows that count: the valid ones, and bad ones that stop mail.
    #[sqlx(skip)]
    pub rows: usize,
    /// Rows with an `external_id` that cannot be their contact's: they are left out, but for those that stop mail.
    #[sqlx(skip)]
    pub faults: Vec<RowFault>,
}

/// A suppression that a row asks for.
#[derive(sqlx::FromRow)]
struct RowSuppression {
    number: i64,
    address: String,
    suppression_reason: String,
    suppression_scope: Option<String>,
    suppression_note: Option<String>,
    suppression_expires_at: Option<DateTime<Utc>>,
}

impl RowSuppression {
    fn into_new(self, tenant: Uuid) -> Option<NewSuppression> {
        let reason = SuppressionReason::parse(&self.suppression_reason)?;
        let new = NewSuppression::new(tenant, self.address, reason, "import");
        let scope = self.suppression_scope.as_deref().and_then(SuppressionScope::parse).unwrap_or(new.scope);
        Some(NewSuppression { scope, note: self.suppression_note, expires_at: self.suppression_expires_at, ..new })
    }
}

/// Takes the rows into a table of their own. Each piece is freed as soon as Postgres has it.
pub(super) async fn load(db: &mut PgConnection, rows: EncodedRows) -> sqlx::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::raw_sql(CREATE_TABLE).execute(&mut *db).await?;
    let mut stream = db.copy_in_raw(copy::STATEMENT).await?;
    for piece in rows.into_pieces() {
        stream.send(piece.into_bytes()).await?;
    }
    stream.finish().await.map(drop)
}

/// Takes the values of these fields out of the loaded rows.
pub(super) async fn leave_out_fields(db: &mut PgConnection, keys: &[String]) -> sqlx::Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    once("update import_rows set fields = fields - $1").bind(keys).execute(db).await.map(drop)
}

/// Carries an import of loaded rows out, without those that are overridden.
pub(super) async fn apply(
    db: &mut PgConnection,
    terms: ImportTerms<'_>,
    report: &ImportReport,
) -> Result<ImportOutcome, ApiError> {
    if report.counted == 0 {
        return Ok(ImportOutcome::default());
    }
    prepare(&mut *db, report).await?;
    let (faults, taken_out) = check_external_ids(&mut *db, terms).await?;
    plans::checks_keep_their_plans(&mut *db).await?;
    let rows = report.counted - taken_out;
    let outcome = write(&mut *db, terms, i64::try_from(rows).unwrap_or(i64::MAX)).await?;
    plans::plans_are_made_anew(db).await?;
    Ok(ImportOutcome { rows, faults, ..outcome })
}

/// Leaves one row for each address, with what stops mail in the others. With an index for either direction of every join, and statistics, no
/// estimate is wrong enough for a loop over all rows inside a loop over all rows: what is known of a tenant's contacts may be hours old.
async fn prepare(db: &mut PgConnection, report: &ImportReport) -> sqlx::Result<()> {
    let by_address = if report.has_terms {
        // All rows stay: the ledger takes the strictest terms of each suppression.
        "create index on import_rows (address)"
    } else {
        if !report.overridden.is_empty() {
            once(KEEP_OPT_OUTS).execute(&mut *db).await?;
            let overridden = once("delete from import_rows where number = any($1)").bind(&report.overridden);
            overridden.execute(&mut *db).await?;
        }
        "create unique index on import_rows (address)"
    };
    once(by_address).execute(&mut *db).await?;
    sqlx::raw_sql("create index on import_rows (contact_id); analyze import_rows").execute(db).await.map(drop)
}

/// Takes out the rows whose `external_id` cannot be their contact's, or leaves of them what stops mail. One that is given away at this very
/// moment refuses the whole import. Answers the faults, and how many rows are taken out.
async fn check_external_ids(db: &mut PgConnection, terms: ImportTerms<'_>) -> sqlx::Result<(Vec<RowFault>, usize)> {
    if matches!(terms.operation, ImportOperation::AudienceOnly | ImportOperation::SuppressionImport) {
        return Ok((Vec::new(), 0));
    }
    let mut rows: Vec<(i64, String, String, bool)> =
        sqlx::query_as(EXTERNAL_IDS).persistent(false).bind(terms.tenant).fetch_all(db).await?;
    rows.sort_unstable();
    let taken_out = rows.iter().filter(|(.., stops_mail)| !stops_mail).count();
    let fault = |(number, code, id, _): (i64, String, String, bool)| RowFault {
        row: number.unsigned_abs(),
        column: "external_id".to_owned(),
        code: if code == "external_id_taken" { "external_id_taken" } else { "external_id_differs" },
        value: quoted(&id).unwrap_or_default(),
    };
    Ok((rows.into_iter().map(fault).collect(), taken_out))
}

async fn write(db: &mut PgConnection, terms: ImportTerms<'_>, total: i64) -> Result<ImportOutcome, ApiError> {
    match terms.operation {
        ImportOperation::Create | ImportOperation::Update | ImportOperation::Upsert => {
            write_contacts(&mut *db, terms, total.unsigned_abs()).await.map_err(contacts::external_id_race)?;
            join_audiences(&mut *db, terms.tenant).await?;
            suppress(&mut *db, terms.tenant).await?;
            ask_to_confirm(&mut *db, terms).await?;
        }
        ImportOperation::AudienceOnly => {
            find_only(&mut *db, terms.tenant).await?;
            once(OPT_OUT).bind(terms.tenant).execute(&mut *db).await?;
            join_audiences(&mut *db, terms.tenant).await?;
            suppress(&mut *db, terms.tenant).await?;
        }
        ImportOperation::SuppressionImport => {
            find_only(&mut *db, terms.tenant).await?;
            let created = suppress(&mut *db, terms.tenant).await?;
            let (skipped, suppressed): (i64, i64) =
                sqlx::query_as(OUTCOME_OF_LIST).persistent(false).bind(terms.tenant).fetch_one(&mut *db).await?;
            let unchanged = total - created - skipped;
            return Ok(ImportOutcome { created, unchanged, skipped, suppressed, ..ImportOutcome::default() });
        }
        ImportOperation::VerificationOnly => {
            let found = outcome(&mut *db, terms.tenant).await?;
            return Ok(ImportOutcome { suppressed: found.suppressed, ..ImportOutcome::default() });
        }
    }
    Ok(outcome(db, terms.tenant).await?)
}

/// A statement that is planned for these rows, and not kept.
fn once(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}

/// Finds the contacts of the rows, for an import that creates none: the other rows are skipped.
async fn find_only(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    find_all(&mut *db, tenant).await?;
    sqlx::raw_sql("update import_rows set contact_id = null where contact_id = new_id").execute(db).await.map(drop)
}

/// Finds the contacts of all rows that have one. What a contact was merged into, while a look waited for it, is found by the next.
async fn find_all(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    for _ in 0..contacts::LOOKUPS_MAX {
        find(&mut *db, tenant).await?;
        if !once(IS_ONE_LEFT).bind(tenant).fetch_one(&mut *db).await?.try_get(0)? {
            break;
        }
    }
    Ok(())
}

/// Answers how many rows it found a contact for.
async fn find(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<u64> {
    Ok(once(FIND).bind(tenant).execute(db).await?.rows_affected())
}

/// Of so many rows.
async fn write_contacts(db: &mut PgConnection, terms: ImportTerms<'_>, rows: u64) -> sqlx::Result<()> {
    let ImportTerms { tenant, operation, source_slug, compliance, .. } = terms;
    if operation == ImportOperation::Update {
        find_only(&mut *db, tenant).await?;
    } else {
        let known = find(&mut *db, tenant).await?;
        let made = once(INSERT)
            .bind(tenant)
            .bind(compliance.new_contacts_are())
            .bind(source_slug)
            .bind(&compliance.consent_basis)
            .bind(&compliance.source_description)
            .execute(&mut *db)
            .await?
            .rows_affected();
        if made == rows {
            return Ok(());
        }
        if known + made < rows {
            // Again: another transaction inserted the others meanwhile.
            find_all(&mut *db, tenant).await?;
        }
    }
    once(FOLD).execute(&mut *db).await?;
    if operation == ImportOperation::Create {
        // Known contacts are skipped, but for those who have left: no opt-out is lost.
        once(OPT_OUT).bind(tenant).execute(&mut *db).await?;
        once(SKIP_KNOWN).execute(db).await?;
    } else {
        once(UPDATE)
            .bind(tenant)
            .bind(compliance.agrees())
            .bind(&compliance.consent_basis)
            .bind(source_slug)
            .bind(&compliance.source_description)
            .bind(compliance.new_contacts_are() == "pending")
            .execute(db)
            .await?;
    }
    Ok(())
}

/// Asks the contacts of the good rows to confirm, where the import says so.
async fn ask_to_confirm(db: &mut PgConnection, terms: ImportTerms<'_>) -> sqlx::Result<()> {
    if !terms.compliance.asks_to_confirm() {
        return Ok(());
    }
    let good = "select contact_id from import_rows where contact_id is not null and status is not null";
    let contacts: Vec<Uuid> = sqlx::query_scalar(good).persistent(false).fetch_all(&mut *db).await?;
    confirmations::request(db, terms.tenant, &contacts, true, terms.confirmations, terms.keys).await.map(drop)
}

/// Writes the suppressions of the rows; answers how many there were not before. The contacts are locked: they were found or written.
async fn suppress(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<i64> {
    let (mut created, mut last) = (0, (String::new(), String::new(), 0_i64));
    loop {
        let limit = i64::try_from(SUPPRESSIONS_AT_ONCE).unwrap_or(i64::MAX);
        let rows: Vec<RowSuppression> = sqlx::query_as(SUPPRESSED)
            .persistent(false)
            .bind(&last.0)
            .bind(&last.1)
            .bind(last.2)
            .bind(limit)
            .fetch_all(&mut *db)
            .await?;
        let is_last = rows.len() < SUPPRESSIONS_AT_ONCE;
        if let Some(row) = rows.last() {
            last = (row.address.clone(), row.suppression_reason.clone(), row.number);
        }
        let new = rows.into_iter().filter_map(|row| row.into_new(tenant));
        let written = suppressions::suppress(&mut *db, new.collect()).await?;
        created += written.iter().filter(|row| !row.already_existed).count();
        if is_last {
            return Ok(i64::try_from(created).unwrap_or(i64::MAX));
        }
    }
}

async fn outcome(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<ImportOutcome> {
    sqlx::query_as(OUTCOME).persistent(false).bind(tenant).fetch_one(db).await
}

/// Puts contacts into the lists and tags that their rows name, and makes those that are missing.
async fn join_audiences(db: &mut PgConnection, tenant: Uuid) -> Result<(), ApiError> {
    let (lists, tags): (Vec<String>, Vec<String>) =
        sqlx::query_as(AUDIENCES).persistent(false).fetch_one(&mut *db).await?;
    if lists.is_empty() && tags.is_empty() {
        return Ok(());
    }
    contacts::hold_or_create_audiences(&mut *db, tenant, AudienceKind::List, &lists).await?;
    contacts::hold_or_create_audiences(&mut *db, tenant, AudienceKind::Tag, &tags).await?;
    once(MEMBERS).bind(tenant).execute(db).await?;
    Ok(())
}
