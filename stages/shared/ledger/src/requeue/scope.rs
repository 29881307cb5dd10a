//! The scope of a requeue, and its sends with an unknown outcome.

use runtime::column;
use schemas::{SendId, month_of};
use sqlx::PgPool;
use uuid::Uuid;

/// What an operator requeues: a batch, a send or a campaign, with its tenant.
#[derive(Debug, Clone, Copy)]
pub enum RequeueScope {
    /// One batch.
    Batch {
        /// The tenant.
        tenant: Uuid,
        /// The id.
        id: Uuid,
    },
    /// One send.
    Send {
        /// The tenant.
        tenant: Uuid,
        /// The id.
        id: Uuid,
    },
    /// All batches of a campaign.
    Campaign {
        /// The tenant.
        tenant: Uuid,
        /// The id.
        id: Uuid,
    },
}

impl RequeueScope {
    /// The tenant.
    #[must_use]
    pub fn tenant(&self) -> Uuid {
        match self {
            Self::Batch { tenant, .. } | Self::Send { tenant, .. } | Self::Campaign { tenant, .. } => *tenant,
        }
    }

    /// Name and id, for the audit log.
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Self::Batch { id, .. } => format!("batch {id}"),
            Self::Send { id, .. } => format!("send {id}"),
            Self::Campaign { id, .. } => format!("campaign {id}"),
        }
    }

    /// The campaign, if all its batches are in scope; or the one batch.
    pub fn batches(&self) -> (Option<Uuid>, Option<Uuid>) {
        match self {
            Self::Batch { id, .. } => (None, Some(*id)),
            Self::Send { id, .. } => (None, Some(SendId(*id).batch())),
            Self::Campaign { id, .. } => (Some(*id), None),
        }
    }

    /// The send, if only one is in scope.
    pub fn send(&self) -> Option<Uuid> {
        match self {
            Self::Send { id, .. } => Some(*id),
            Self::Batch { .. } | Self::Campaign { .. } => None,
        }
    }
}

/// The sends in state `unknown`, each with its tenant.
pub async fn unknown_sends(pool: &PgPool, scope: &RequeueScope) -> sqlx::Result<Vec<(Uuid, Uuid)>> {
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
        &column(&batches, |batch| SendId::last_of(*batch)),
        &column(&batches, |batch| month_of(*batch)),
        scope.send(),
    )
    .fetch_all(pool)
    .await?;
    Ok(sends.into_iter().map(|send| (tenant, send)).collect())
}
