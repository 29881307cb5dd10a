//! What is asked about, and what of it is in doubt.

use schemas::{SendId, month_of};
use sqlx::PgPool;
use uuid::Uuid;

/// What is asked about, and whose it is.
#[derive(Debug, Clone, Copy)]
pub enum Scope {
    /// One batch.
    Batch {
        /// Whose.
        tenant: Uuid,
        /// Which.
        id: Uuid,
    },
    /// One send.
    Send {
        /// Whose.
        tenant: Uuid,
        /// Which.
        id: Uuid,
    },
    /// All batches of a campaign.
    Campaign {
        /// Whose.
        tenant: Uuid,
        /// Which.
        id: Uuid,
    },
}

impl Scope {
    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> Uuid {
        match self {
            Self::Batch { tenant, .. } | Self::Send { tenant, .. } | Self::Campaign { tenant, .. } => *tenant,
        }
    }

    /// What it is, for the audit log.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::Batch { id, .. } => format!("batch {id}"),
            Self::Send { id, .. } => format!("send {id}"),
            Self::Campaign { id, .. } => format!("campaign {id}"),
        }
    }

    /// The campaign all of whose batches are meant, or the one batch.
    pub fn batches(&self) -> (Option<Uuid>, Option<Uuid>) {
        match self {
            Self::Batch { id, .. } => (None, Some(*id)),
            Self::Send { id, .. } => (None, Some(SendId(*id).batch())),
            Self::Campaign { id, .. } => (Some(*id), None),
        }
    }

    /// The one send that is meant, of its batch.
    pub fn send(&self) -> Option<Uuid> {
        match self {
            Self::Send { id, .. } => Some(*id),
            Self::Batch { .. } | Self::Campaign { .. } => None,
        }
    }
}

/// The sends in doubt, each with its tenant.
pub async fn in_doubt(pool: &PgPool, scope: &Scope) -> sqlx::Result<Vec<(Uuid, Uuid)>> {
    let tenant = scope.tenant();
    let (campaign, batch) = scope.batches();
    let batches = sqlx::query_scalar!(
        "select id from batches
         where tenant_id = $1 and ($2::uuid is null or campaign_id = $2) and ($3::uuid is null or id = $3) and unknown > 0
         order by id",
        tenant,
        campaign,
        batch,
    )
    .fetch_all(pool)
    .await?;
    let last: Vec<Uuid> = batches.iter().map(|batch| SendId::last_of(*batch)).collect();
    let months: Vec<_> = batches.iter().map(|batch| month_of(*batch)).collect();
    let sends = sqlx::query_scalar!(
        "select s.id
         from unnest($2::uuid[], $3::uuid[], $4::date[]) as w (first, last, month)
         cross join lateral (
             select s.id from sends s
             where s.tenant_id = $1 and s.id between w.first and w.last and s.month = w.month and s.state = 'unknown'
               and ($5::uuid is null or s.id = $5)
             offset 0
         ) s
         order by s.id",
        tenant,
        &batches,
        &last,
        &months,
        scope.send(),
    )
    .fetch_all(pool)
    .await?;
    Ok(sends.into_iter().map(|send| (tenant, send)).collect())
}
