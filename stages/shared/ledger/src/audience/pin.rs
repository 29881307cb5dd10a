//! Pins an audience, so that exactly these contacts are mailed, however long it takes to write them to `sends`, range by range.
//!
//! A digest promises the caller an audience, so its launch is pinned when it is answered. Selecting it again could break the promise, or
//! cancel a launch that was answered 202. A contact that is suppressed in between is still not mailed: its send is skipped, with the reason.

use runtime::plans;
use sqlx::{Arguments, PgConnection, postgres::PgArguments};
use uuid::Uuid;

use super::{AudienceSelector, count::AudienceMembers, lookup};
use segments::SegmentError;

/// Contacts in a row of `launch_audiences`, which are written to `sends` together: in a tenth of a second.
const PART: i64 = 20_000;

/// Stores the current members of the audience of a campaign that is being launched. Works in either role, inside a transaction.
///
/// # Errors
/// A segment that cannot be evaluated; nothing is stored then.
pub async fn pin(
    db: &mut PgConnection,
    tenant: Uuid,
    selector: &AudienceSelector,
    campaign: Uuid,
) -> Result<AudienceMembers, SegmentError> {
    // A merge does not see that the campaign may owe mail: it waits for the launch, or this for the merge ([`crate::merged_mail`]). Launches do
    // not wait for each other, unless a merge waits between them, a second at most; merges of a tenant take turns.
    sqlx::query!(
        "select pg_advisory_xact_lock_shared(hashtextextended('pinned audiences ' || $1::uuid::text, 0))",
        tenant,
    )
    .fetch_one(&mut *db)
    .await?;
    pin_locked(db, tenant, selector, campaign).await
}

/// As [`pin`], for a campaign that is launched and locked: a merge waits for that lock.
///
/// # Errors
/// A segment that cannot be evaluated; nothing is stored then.
pub async fn pin_locked(
    db: &mut PgConnection,
    tenant: Uuid,
    selector: &AudienceSelector,
    campaign: Uuid,
) -> Result<AudienceMembers, SegmentError> {
    let segment = lookup::segment_of(&mut *db, tenant, selector).await?;
    plans::many_rows(&mut *db).await?;
    let members = match &segment {
        None => {
            sqlx::query_file_as!(
                AudienceMembers,
                "queries/audience/pin.sql",
                tenant,
                selector.audiences(),
                campaign,
                PART
            )
            .fetch_one(&mut *db)
            .await?
        }
        Some(segment) => {
            let bind = |arguments: &mut PgArguments| {
                arguments.add(campaign)?;
                arguments.add(PART)
            };
            let sql = include_str!("../../queries/audience/pin.sql");
            let mut query = lookup::over_segment(sql, tenant, segment, bind)?;
            let (contacts, fingerprint) = query.build_query_as().fetch_one(&mut *db).await?;
            AudienceMembers { contacts, fingerprint }
        }
    };
    plans::few_rows(db).await?;
    Ok(members)
}

/// Stores the current members of a list, archived contacts as well: faster than [`pin`] by four fifths, and with no fingerprint to compare.
pub async fn pin_list(db: &mut PgConnection, tenant: Uuid, list: Uuid, campaign: Uuid) -> sqlx::Result<()> {
    // Without statistics it would sort all that is left for each part.
    sqlx::query_scalar!("select set_config('enable_sort', 'off', true)").fetch_one(&mut *db).await?;
    sqlx::query_file!("queries/audience/pin_list.sql", tenant, list, campaign, PART).execute(&mut *db).await?;
    sqlx::query_scalar!("select set_config('enable_sort', null, true)").fetch_one(db).await.map(drop)
}

/// True if the audience that is pinned for a campaign has the contact. `None`: none is pinned.
pub async fn pinned_includes(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<bool>> {
    sqlx::query_scalar!(
        "select bool_or($3 = any (contacts)) from launch_audiences where tenant_id = $1 and campaign_id = $2",
        tenant,
        campaign,
        contact,
    )
    .fetch_one(db)
    .await
}

/// Deletes a pinned audience: the launch is withdrawn.
pub async fn unpin(db: &mut PgConnection, tenant: Uuid, campaign: Uuid) -> sqlx::Result<()> {
    sqlx::query!("delete from launch_audiences where tenant_id = $1 and campaign_id = $2", tenant, campaign)
        .execute(db)
        .await
        .map(drop)
}
