//! Announcements of batches and requests on the bus. The ledger records an announcement first; then it is published.

use std::collections::BTreeMap;

use runner::StageError;
use runtime::{Bus, Publication, column, trace};
use schemas::{Environment, Lane, RequestAnnounced, RequestKind, Resolved, SendId, ids::PROMPT_BATCH_MAX, subjects};
use sqlx::PgPool;
use uuid::Uuid;

use super::traced;

/// A batch whose announcement is committed, and has still to be published.
#[derive(Debug, Clone)]
pub(crate) struct AnnouncedBatch {
    pub(crate) tenant_id: Uuid,
    pub(crate) batch_id: Uuid,
    pub(crate) lane: Lane,
    /// How often it was announced, this time included.
    pub(crate) announcement: i32,
}

impl AnnouncedBatch {
    pub(super) fn work(&self) -> trace::TracedWork {
        (self.tenant_id, self.batch_id)
    }

    /// The message that announces it; `notify` is the subject of a caller that waits for the outcome.
    pub(crate) fn publication(&self, notify: Option<String>) -> Result<Publication, StageError> {
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

/// A request whose announcement is committed, and has still to be published.
#[derive(Debug, Clone)]
pub(super) struct AnnouncedRequest {
    pub(super) tenant_id: Uuid,
    pub(super) request_id: Uuid,
    /// The product that made the request.
    pub(super) product: String,
    pub(super) environment: Environment,
    pub(super) kind: RequestKind,
    /// How often it was announced, this time included.
    pub(super) announcements: i32,
    /// How many sends it becomes, as far as it says so itself: the mail and its copies.
    pub(super) sends: i32,
    /// Whether it says that it came in an array of many, however few of them are in its batch.
    pub(super) is_bulk: bool,
    /// Whether it was to be announced before: by who accepted it, or by an announcement that did not help. Otherwise it waited for its
    /// time, or as a launch for another one.
    pub(super) is_late: bool,
}

impl AnnouncedRequest {
    /// The piece of work that it belongs to. Transactional requests of one call are one: the batch they will be.
    pub(super) fn work(&self) -> trace::TracedWork {
        let work = match self.kind {
            RequestKind::Transactional => SendId(self.request_id).batch(),
            _ => self.request_id,
        };
        (self.tenant_id, work)
    }

    /// The message that announces it, and with it all requests of the same work, which become so many sends together.
    fn publication(&self, sends: usize, is_bulk: bool) -> Result<Publication, StageError> {
        let Self { tenant_id, request_id, product, environment, kind, announcements, .. } = self;
        let message = RequestAnnounced {
            count: u32::try_from(sends).ok().filter(|count| *count > 1),
            is_bulk,
            ..RequestAnnounced::of(*tenant_id, *request_id, *kind)
        };
        let subject = if is_bulk {
            subjects::accepted_array(product, *environment)
        } else {
            subjects::accepted(product, *environment, *kind)
        };
        Ok(Publication::json(subject, format!("request-{}-{announcements}", request_id.simple()), &message)?)
    }
}

/// Publishes announcements of batches. If the bus refuses them, the ledger takes them back: an outage of an hour must not push the
/// next announcement half an hour further.
pub(super) async fn batches(pool: &PgPool, bus: &Bus, announced: &[AnnouncedBatch]) -> Result<(), StageError> {
    let spans = traced::spans_of_batches(pool, announced).await;
    let publication = |batch: &AnnouncedBatch| {
        trace::scope(spans.get(&batch.work()).map(trace::Span::ambient), || batch.publication(None))
    };
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

/// Publishes announcements of requests, one for each piece of work. What a tenant has due beyond a prompt batch belongs in no prompt
/// queue, as if it had come in one array. If the bus refuses them, the ledger takes them back, as in [`batches`].
pub(super) async fn requests(pool: &PgPool, bus: &Bus, announced: &[AnnouncedRequest]) -> Result<(), StageError> {
    let spans = traced::spans_of_requests(pool, announced).await;
    let mut works: BTreeMap<trace::TracedWork, (&AnnouncedRequest, usize)> = BTreeMap::new();
    for request in announced {
        works.entry(request.work()).or_insert((request, 0)).1 += usize::try_from(request.sends).unwrap_or(1);
    }
    let mut prompt: BTreeMap<Uuid, usize> = BTreeMap::new();
    let publication = |(work, (first, sends)): (&trace::TracedWork, &(&AnnouncedRequest, usize))| {
        let is_mail = first.kind == RequestKind::Transactional;
        let mut bulk = is_mail && (first.is_bulk || *sends > PROMPT_BATCH_MAX);
        if is_mail && !bulk {
            let taken = prompt.entry(first.tenant_id).or_default();
            *taken += sends;
            bulk = *taken > PROMPT_BATCH_MAX;
        }
        trace::scope(spans.get(work).map(trace::Span::ambient), || first.publication(*sends, bulk))
    };
    let publications = works.iter().map(publication).collect::<Result<Vec<_>, _>>()?;
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
