//! Writing an audience down at its launch, so that exactly these contacts are mailed, however long the launch waits.
//!
//! A digest promises its caller an audience. Looking again when the audience is materialised could only break the promise, or
//! cancel what was answered 202; so the audience is kept. Whoever is suppressed in between is still not mailed: he is
//! skipped, with the reason.

use runtime::plans;
use sqlx::{Arguments, PgConnection};
use uuid::Uuid;

use super::{AudienceSelector, count::Members, lookup};
use segments::Compiled;

/// Writes down who the audience is now. Works in either role, inside a transaction.
///
/// # Errors
/// When Postgres is away.
pub async fn pin(
    db: &mut PgConnection,
    tenant: Uuid,
    selector: &AudienceSelector,
    campaign: Uuid,
) -> sqlx::Result<Members> {
    let segment = lookup::segment_of(&mut *db, tenant, selector).await?;
    plans::many_rows(&mut *db).await?;
    let members = match &segment {
        None => {
            sqlx::query_file_as!(Members, "queries/audience/pin.sql", tenant, selector.audiences(), campaign)
                .fetch_one(&mut *db)
                .await?
        }
        Some(segment) => pin_segment(&mut *db, tenant, segment, campaign).await?,
    };
    plans::few_rows(db).await?;
    Ok(members)
}

async fn pin_segment(db: &mut PgConnection, tenant: Uuid, segment: &Compiled, campaign: Uuid) -> sqlx::Result<Members> {
    let sql = include_str!("../../queries/audience/pin.sql");
    let mut query = lookup::over_segment(sql, tenant, segment, |arguments| arguments.add(campaign))?;
    let (contacts, fingerprint) = query.build_query_as().fetch_one(db).await?;
    Ok(Members { contacts, fingerprint })
}

/// Forgets a pinned audience: it stands in `sends`, or never will.
///
/// # Errors
/// When Postgres is away.
pub async fn unpin(db: &mut PgConnection, tenant: Uuid, campaign: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from launch_audiences where tenant_id = $1 and campaign_id = $2", tenant, campaign)
        .execute(db)
        .await
        .map(drop)
}
