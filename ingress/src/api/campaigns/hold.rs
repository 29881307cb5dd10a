//! An operator pauses a campaign, or lets it go on: what the API does, under the same lock and the same conditions.

use schemas::CampaignStatus;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Change, allows, store};

/// Why a campaign is not paused or resumed.
#[derive(Debug, thiserror::Error)]
pub enum HoldRefused {
    /// There is none with this id.
    #[error("no such campaign")]
    NotFound,
    /// It is in a state in which nothing can be held back.
    #[error("the campaign is {0}")]
    Already(CampaignStatus),
    /// Postgres was away.
    #[error("the ledger")]
    Store(#[from] sqlx::Error),
}

/// Pauses or resumes; answers whether it was paused before.
///
/// # Errors
/// [`HoldRefused`]
pub async fn hold(db: &mut PgConnection, tenant: Uuid, id: Uuid, paused: bool) -> Result<bool, HoldRefused> {
    if !store::lock(db, tenant, id).await? {
        return Err(HoldRefused::NotFound);
    }
    let row = store::get(db, tenant, id).await?.ok_or(HoldRefused::NotFound)?;
    if !allows(row.status, &Change::Pause(paused)) {
        return Err(HoldRefused::Already(row.status));
    }
    store::pause(db, tenant, id, paused).await?;
    Ok(row.paused)
}
