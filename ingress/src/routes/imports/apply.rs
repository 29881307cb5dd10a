//! The rows into Postgres: one COPY, then set-based statements, in the transaction of the act.

use runtime::plans;
use sqlx::{PgConnection, Postgres, Row as _, postgres::PgArguments, query::Query};
use uuid::Uuid;

use super::{Compliance, Operation, copy, row::Row};
use crate::{
    error::ApiError,
    routes::{audiences::AudienceKind, contacts, suppressions::Reason},
};

// The statements below name a temporary table, which the compile-time check cannot know.
const CREATE_TABLE: &str = include_str!("../../../queries/import/table.sql");
const FIND: &str = include_str!("../../../queries/import/find.sql");
const INSERT: &str = include_str!("../../../queries/import/insert.sql");
const UPDATE: &str = include_str!("../../../queries/import/update.sql");
const MEMBERS: &str = include_str!("../../../queries/import/members.sql");
const SUPPRESS: &str = include_str!("../../../queries/import/suppress.sql");
const OUTCOME: &str = include_str!("../../../queries/import/outcome.sql");

/// How much of the COPY goes into one message to Postgres, in bytes.
const COPY_CHUNK: usize = 256 * 1024;

/// Under which terms.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    pub tenant: Uuid,
    pub operation: Operation,
    pub source_slug: &'a str,
    pub compliance: &'a Compliance,
}

/// What became of the good rows.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub created: i64,
    pub updated: i64,
    pub unchanged: i64,
    pub skipped: i64,
    pub suppressed: i64,
}

/// Carries an import out.
///
/// # Errors
/// When Postgres is away.
pub(super) async fn apply(db: &mut PgConnection, terms: Terms<'_>, rows: Vec<Row>) -> Result<Outcome, ApiError> {
    plans::checks_keep_their_plans(&mut *db).await?;
    let outcome = write(&mut *db, terms, rows).await?;
    plans::plans_are_made_anew(db).await?;
    Ok(outcome)
}

async fn write(db: &mut PgConnection, terms: Terms<'_>, mut rows: Vec<Row>) -> Result<Outcome, ApiError> {
    if terms.operation == Operation::SuppressionImport {
        for row in &mut rows {
            let default = if row.unsubscribed { Reason::Unsubscribe } else { Reason::Import };
            row.suppression_reason.get_or_insert(default);
        }
    }
    let total = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let audiences = Audiences::named_in(&rows);
    load(&mut *db, rows).await?;
    match terms.operation {
        Operation::Create | Operation::Update | Operation::Upsert => {
            write_contacts(&mut *db, terms, total.unsigned_abs()).await?;
            audiences.join(&mut *db, terms.tenant).await?;
            suppress(&mut *db, terms.tenant).await?;
        }
        Operation::AudienceOnly => {
            find(&mut *db, terms.tenant).await?;
            audiences.join(&mut *db, terms.tenant).await?;
        }
        Operation::SuppressionImport => {
            find(&mut *db, terms.tenant).await?;
            let created = suppress(&mut *db, terms.tenant).await?;
            let found = outcome(&mut *db, terms.tenant).await?;
            return Ok(Outcome {
                created,
                unchanged: total - created,
                suppressed: found.suppressed,
                ..Outcome::default()
            });
        }
        Operation::VerificationOnly => {
            let found = outcome(&mut *db, terms.tenant).await?;
            return Ok(Outcome { suppressed: found.suppressed, ..Outcome::default() });
        }
    }
    Ok(outcome(db, terms.tenant).await?)
}

async fn load(db: &mut PgConnection, rows: Vec<Row>) -> Result<(), ApiError> {
    let bytes = tokio::task::spawn_blocking(move || copy::encode(rows)).await?;
    sqlx::raw_sql(CREATE_TABLE).execute(&mut *db).await?;
    let mut stream = db.copy_in_raw(copy::STATEMENT).await?;
    for chunk in bytes.chunks(COPY_CHUNK) {
        stream.send(chunk).await?;
    }
    stream.finish().await?;
    // With an index for either direction of every join, and statistics, no estimate is wrong enough for a loop over all rows
    // inside a loop over all rows: what is known of a tenant's contacts may be hours old.
    sqlx::raw_sql(
        "create unique index on import_rows (address); create index on import_rows (contact_id); analyze import_rows",
    )
    .execute(db)
    .await?;
    Ok(())
}

/// A statement that is planned for these rows, and not kept.
fn once(sql: &'static str) -> Query<'static, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}

/// Answers how many rows it found a contact for.
async fn find(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<u64> {
    Ok(once(FIND).bind(tenant).execute(db).await?.rows_affected())
}

/// Of so many rows.
async fn write_contacts(db: &mut PgConnection, terms: Terms<'_>, rows: u64) -> sqlx::Result<()> {
    let Terms { tenant, operation, source_slug, compliance } = terms;
    let known = find(&mut *db, tenant).await?;
    if operation != Operation::Update {
        let made = once(INSERT)
            .bind(tenant)
            .bind(compliance.new_contacts_are())
            .bind(source_slug)
            .bind(&compliance.consent_basis)
            .bind(&compliance.source_description)
            .execute(&mut *db)
            .await?
            .rows_affected();
        if known + made < rows {
            // Again: somebody else made the others in between.
            find(&mut *db, tenant).await?;
        }
    }
    if operation == Operation::Create {
        // Known contacts are skipped altogether.
        sqlx::raw_sql("update import_rows set contact_id = null where contact_id <> new_id").execute(db).await?;
    } else {
        once(UPDATE)
            .bind(tenant)
            .bind(compliance.agrees())
            .bind(&compliance.consent_basis)
            .bind(source_slug)
            .bind(&compliance.source_description)
            .execute(db)
            .await?;
    }
    Ok(())
}

async fn suppress(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<i64> {
    sqlx::query_scalar(SUPPRESS).persistent(false).bind(tenant).fetch_one(db).await
}

async fn outcome(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<Outcome> {
    let row = once(OUTCOME).bind(tenant).fetch_one(db).await?;
    Ok(Outcome {
        created: row.try_get("created")?,
        updated: row.try_get("updated")?,
        unchanged: row.try_get("unchanged")?,
        skipped: row.try_get("skipped")?,
        suppressed: row.try_get("suppressed")?,
    })
}

/// The lists and tags an import names.
#[derive(Debug, Default)]
struct Audiences {
    lists: Vec<String>,
    tags: Vec<String>,
}

impl Audiences {
    fn named_in(rows: &[Row]) -> Self {
        let distinct = |mut names: Vec<&str>| -> Vec<String> {
            names.sort_unstable();
            names.dedup();
            names.into_iter().map(str::to_owned).collect()
        };
        Self {
            lists: distinct(rows.iter().filter_map(|row| row.list.as_deref()).collect()),
            tags: distinct(rows.iter().flat_map(|row| &row.tags).map(String::as_str).collect()),
        }
    }

    async fn join(&self, db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
        if self.lists.is_empty() && self.tags.is_empty() {
            return Ok(());
        }
        contacts::ensure_audiences(&mut *db, tenant, AudienceKind::List, &self.lists).await?;
        contacts::ensure_audiences(&mut *db, tenant, AudienceKind::Tag, &self.tags).await?;
        once(MEMBERS).bind(tenant).execute(db).await.map(drop)
    }
}
