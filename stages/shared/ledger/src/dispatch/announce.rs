//! Announcements of batches and requests on the bus. The ledger records an announcement first; then it is published.

use std::collections::BTreeMap;

use runner::StageError;
use runtime::{Bus, Publication, column, trace};
use schemas::{RequestAnnounced, RequestKind, SendId, ids::PROMPT_BATCH_MAX, subjects};
use sqlx::PgPool;
use uuid::Uuid;

use super::{
    announced::{AnnouncedBatch, AnnouncedRequest},
    traced::AnnouncementSpans,
};

/// The announcement of requests that are handled together: of one, or of transactional ones that will be one batch.
struct Announcement<'a> {
    first: &'a AnnouncedRequest,
    count: usize,
}

impl<'a> Announcement<'a> {
    /// One announcement for each future batch, and one for each request of another kind.
    fn of(announced: &'a [AnnouncedRequest]) -> Vec<Self> {
        let mut announcements: BTreeMap<(Uuid, Uuid), Self> = BTreeMap::new();
        for request in announced {
            let work = match request.kind {
                RequestKind::Transactional => SendId(request.request_id).batch(),
                _ => request.request_id,
            };
            announcements
                .entry((request.tenant_id, work))
                .or_insert(Announcement { first: request, count: 0 })
                .count += usize::try_from(request.sends).unwrap_or(1);
        }
        announcements.into_values().collect()
    }

    fn publication(&self) -> Result<Publication, StageError> {
        let AnnouncedRequest { tenant_id, request_id, product, environment, kind, announcements, .. } = self.first;
        let message = RequestAnnounced {
            count: u32::try_from(self.count).ok().filter(|count| *count > 1),
            is_bulk: self.first.is_bulk,
            ..RequestAnnounced::of(*tenant_id, *request_id, *kind)
        };
        let subject = if self.first.is_bulk || self.count > PROMPT_BATCH_MAX {
            subjects::accepted_array(product, *environment)
        } else {
            subjects::accepted(product, *environment, *kind)
        };
        Ok(Publication::json(subject, format!("request-{}-{announcements}", request_id.simple()), &message)?)
    }
}

/// Publishes announcements of batches. If the bus refuses them, the ledger takes them back: an outage of an hour must not push the
/// next announcement half an hour further.
pub async fn batches(pool: &PgPool, bus: &Bus, announced: &[AnnouncedBatch]) -> Result<(), StageError> {
    let traced = AnnouncementSpans::batches(pool, announced).await;
    let publication = |batch: &AnnouncedBatch| trace::scope(traced.of_batch(batch), || batch.publication());
    let publications = announced.iter().map(publication).collect::<Result<Vec<_>, _>>()?;
    let Err(refused) = bus.publish_all(publications).await else { return Ok(()) };
    sqlx::query!(
        "update batches b set announcement = b.announcement - 1, announce_after = now() + interval '2 seconds'
         from unnest($1::uuid[], $2::uuid[], $3::integer[]) as w (tenant_id, id, announcement)
         where b.tenant_id = w.tenant_id and b.id = w.id and b.announcement = w.announcement and b.state = 'announced'",
        &column(announced, |batch| batch.tenant_id),
        &column(announced, |batch| batch.batch_id),
        &column(announced, |batch| batch.announcement),
    )
    .execute(pool)
    .await?;
    Err(refused.into())
}

/// Publishes announcements of requests. If the bus refuses them, the ledger takes them back, as in [`batches`].
pub async fn requests(pool: &PgPool, bus: &Bus, announced: &[AnnouncedRequest]) -> Result<(), StageError> {
    let traced = AnnouncementSpans::requests(pool, announced).await;
    let publication = |announcement: &Announcement<'_>| {
        trace::scope(traced.of_request(announcement.first), || announcement.publication())
    };
    let publications = Announcement::of(announced).iter().map(publication).collect::<Result<Vec<_>, _>>()?;
    let Err(refused) = bus.publish_all(publications).await else { return Ok(()) };
    sqlx::query!(
        "update requests r set announcements = r.announcements - 1, announce_after = now() + interval '2 seconds'
         from unnest($1::uuid[], $2::uuid[], $3::integer[]) as w (tenant_id, id, announcements)
         where r.tenant_id = w.tenant_id and r.id = w.id and r.announcements = w.announcements and r.state = 'accepted'",
        &column(announced, |request| request.tenant_id),
        &column(announced, |request| request.request_id),
        &column(announced, |request| request.announcements),
    )
    .execute(pool)
    .await?;
    Err(refused.into())
}
