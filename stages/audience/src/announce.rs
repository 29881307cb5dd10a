//! Ringing for what stands in the ledger. The ledger says first that it was announced; only then is it.

use runner::StageError;
use runtime::{Bus, Publication};
use schemas::{Environment, Lane, RequestAnnounced, RequestKind, Resolved, subjects};
use sqlx::PgPool;
use uuid::Uuid;

/// A batch whose announcement is committed.
#[derive(Debug, Clone)]
pub(crate) struct RungBatch {
    pub tenant_id: Uuid,
    pub batch_id: Uuid,
    pub lane: Lane,
    pub announcement: i32,
}

impl RungBatch {
    pub(crate) fn publication(&self) -> Result<Publication, StageError> {
        self.publication_telling(None)
    }

    /// The announcement of a batch whose outcome somebody waits for.
    pub(crate) fn publication_telling(&self, notify: Option<String>) -> Result<Publication, StageError> {
        let message = Resolved {
            tenant_id: self.tenant_id,
            batch_id: self.batch_id,
            lane: self.lane,
            announcement: self.announcement,
            notify,
        };
        Ok(Publication::json(subjects::resolved(self.lane), message.message_id(), &message)?)
    }
}

/// A request whose announcement is committed.
#[derive(Debug, Clone)]
pub(crate) struct RungRequest {
    pub tenant_id: Uuid,
    pub request_id: Uuid,
    pub product: String,
    pub environment: Environment,
    pub kind: RequestKind,
    pub announcements: i32,
}

impl RungRequest {
    fn publication(&self) -> Result<Publication, StageError> {
        let message =
            RequestAnnounced { tenant_id: self.tenant_id, request_id: self.request_id, kind: self.kind, notify: None };
        let id = format!("request-{}-{}", self.request_id.simple(), self.announcements);
        Ok(Publication::json(subjects::accepted(&self.product, self.environment, self.kind), id, &message)?)
    }
}

/// Publishes announcements of batches. When the bus does not take them, the ledger forgets them: a bus that is away for an hour
/// must not push the next announcement half an hour further.
pub(crate) async fn batches(pool: &PgPool, bus: &Bus, rung: &[RungBatch]) -> Result<(), StageError> {
    let publications = rung.iter().map(RungBatch::publication).collect::<Result<Vec<_>, _>>()?;
    let Err(refused) = bus.publish_all(publications).await else { return Ok(()) };
    let tenants: Vec<_> = rung.iter().map(|batch| batch.tenant_id).collect();
    let ids: Vec<_> = rung.iter().map(|batch| batch.batch_id).collect();
    let announcements: Vec<_> = rung.iter().map(|batch| batch.announcement).collect();
    sqlx::query!(
        "update batches b set announcement = b.announcement - 1, announce_after = now() + interval '2 seconds'
         from unnest($1::uuid[], $2::uuid[], $3::integer[]) as w (tenant_id, id, announcement)
         where b.tenant_id = w.tenant_id and b.id = w.id and b.announcement = w.announcement and b.state = 'announced'",
        &tenants,
        &ids,
        &announcements,
    )
    .execute(pool)
    .await?;
    Err(refused.into())
}

/// Publishes announcements of requests, and forgets them like those of batches when the bus does not take them.
pub(crate) async fn requests(pool: &PgPool, bus: &Bus, rung: &[RungRequest]) -> Result<(), StageError> {
    let publications = rung.iter().map(RungRequest::publication).collect::<Result<Vec<_>, _>>()?;
    let Err(refused) = bus.publish_all(publications).await else { return Ok(()) };
    let tenants: Vec<_> = rung.iter().map(|request| request.tenant_id).collect();
    let ids: Vec<_> = rung.iter().map(|request| request.request_id).collect();
    let announcements: Vec<_> = rung.iter().map(|request| request.announcements).collect();
    sqlx::query!(
        "update requests r set announcements = r.announcements - 1, announce_after = now() + interval '2 seconds'
         from unnest($1::uuid[], $2::uuid[], $3::integer[]) as w (tenant_id, id, announcements)
         where r.tenant_id = w.tenant_id and r.id = w.id and r.announcements = w.announcements and r.state = 'accepted'",
        &tenants,
        &ids,
        &announcements,
    )
    .execute(pool)
    .await?;
    Err(refused.into())
}
