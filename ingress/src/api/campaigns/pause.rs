//! Pauses and resumes a campaign for an operator, under the lock and the conditions of the API.

use schemas::CampaignStatus;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    change::{CampaignChange, allows},
    store,
};

/// Why a campaign is not paused or resumed.
#[derive(Debug, thiserror::Error)]
pub enum PauseRefused {
    /// There is no campaign with this id.
    #[error("no such campaign")]
    NotFound,
    /// Its status allows no pause.
    #[error("the campaign is {0}")]
    Already(CampaignStatus),
    /// Postgres was away.
    #[error("the ledger")]
    Store(#[from] sqlx::Error),
}

/// Pauses or resumes a campaign. Returns true if it was paused before.
///
/// # Errors
/// [`PauseRefused`]
pub async fn set_paused(db: &mut PgConnection, tenant: Uuid, id: Uuid, paused: bool) -> Result<bool, PauseRefused> {
    let row = store::lock(&mut *db, tenant, id).await?.ok_or(PauseRefused::NotFound)?;
    if !allows(row.status, &CampaignChange::Pause(paused)) {
        return Err(PauseRefused::Already(row.status));
    }
    store::pause(db, tenant, id, paused).await?;
    Ok(row.paused)
}
