//! Many transactional requests at once: an array of up to 500 that an internal system publishes.
//!
//! One transaction with a statement for each step, whatever the number. Each request is judged as if it came alone, by the same
//! code in the same order; the good ones are accepted, each of the others is refused with its place. Those with the same content
//! and sender become one batch: their ids say so. As with single requests on the bus, there is no rate limit, and the send quota
//! is held where mail leaves.

mod item;
mod keys;
mod store;

use std::{collections::BTreeMap, sync::Arc};

use runtime::{Publication, trace};
use schemas::{Environment, RequestAnnounced, RequestKind, SendId, ids::PROMPT_BATCH_MAX, rejected::Refusal, subjects};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use self::item::{Items, Standing};
use super::{ACCEPTED, ready, template_not_found};
use crate::{
    pipeline::{Claim, IdempotencyKey, announce, auth::keys::Caller, error::ApiError},
    state::Ingress,
};

/// The most requests of one array.
pub(crate) const MANY_MAX: usize = schemas::ids::BATCH_MAX;

/// What became of an array. Kept as its answer, so that a repetition tells the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// How many were accepted, those included that were before.
    pub accepted: usize,
    /// The others.
    pub refused: Vec<Refused>,
}

impl Summary {
    /// Of a single request that was accepted.
    pub(crate) fn one() -> Self {
        Self { accepted: 1, refused: Vec::new() }
    }
}

/// One that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    /// Its place, from 0.
    pub index: usize,
    /// The key it had, if it had one.
    pub idempotency_key: Option<String>,
    /// Why.
    pub refusal: Refusal,
}

/// Accepts what is good of an array, once for each key.
///
/// # Errors
/// When nothing of it can be decided: 409 while another one with the key is under way, 422 for a key that was another request's,
/// 503 when Postgres is away.
pub(crate) async fn accept(
    ingress: &Arc<Ingress>,
    caller: &Caller,
    key: &IdempotencyKey,
    bodies: Vec<Value>,
) -> Result<Summary, ApiError> {
    let mut items = tokio::task::spawn_blocking(move || Items::read(bodies)).await?;
    let mut tx = ingress.pool.begin().await?;
    store::bound(&mut tx).await?;
    match key.claim(&mut tx, caller.key_id, std::time::Duration::ZERO).await? {
        Claim::Taken => {}
        Claim::Answered(stored) => {
            tx.rollback().await?;
            return serde_json::from_slice(&stored.body).map_err(|error| ApiError::unexpected(&error));
        }
        Claim::Waiting(_) => return Err(ApiError::conflict("idempotency_in_progress")),
    }
    store::find_tenants(&mut tx, caller, &mut items).await?;
    keys::claim(&mut tx, caller.key_id, &mut items).await?;
    let mut bells = Vec::new();
    for tenant in items.tenants() {
        bells.extend(accept_of(&mut tx, caller, tenant, &mut items).await?);
    }
    keys::complete(&mut tx, caller.key_id, &items).await?;
    let summary = items.summary();
    let stored = serde_json::to_vec(&summary).map_err(|error| ApiError::unexpected(&error))?;
    key.complete(&mut tx, caller.key_id, ACCEPTED, &stored).await?;
    tx.commit().await?;
    ingress.facts.notify();
    announce(ingress, bells);
    Ok(summary)
}

/// Judges one tenant's requests, stores the good ones, and answers the bells for them.
async fn accept_of(
    db: &mut PgConnection,
    caller: &Caller,
    tenant: Uuid,
    items: &mut Items,
) -> Result<Vec<Publication>, ApiError> {
    runtime::db::confine(db, tenant).await?;
    let contents = store::contents(db, tenant, &items.templates(tenant)).await?;
    let senders = store::senders(db, tenant, &items.senders(tenant)).await?;
    let mut batches = Batches::default();
    let mut payloads = Vec::new();
    for item in items.of_mut(tenant) {
        item.decide(|wanted| {
            let content = contents.get(&wanted.template_id).copied().ok_or_else(template_not_found)?;
            let sender = ready(senders.of(wanted.sender_id), wanted.sender_id)?;
            let send = batches.next(content, sender);
            payloads.push(wanted.payload(send, content, sender));
            Ok(send)
        });
    }
    if payloads.is_empty() {
        return Ok(Vec::new());
    }
    store::insert_requests(db, tenant, caller, &payloads).await?;
    trace::keep_each(db, batches.0.values().map(|(batch, _)| (tenant, *batch))).await?;
    batches.bells(tenant, &caller.product, caller.environment)
}

/// The batches that requests will become: one for each content and sender.
#[derive(Debug, Default)]
struct Batches(BTreeMap<(Uuid, Uuid), (Uuid, u16)>);

impl Batches {
    /// The id of the next send with this content and sender.
    fn next(&mut self, content: Uuid, sender: Uuid) -> Uuid {
        let (batch, size) = self.0.entry((content, sender)).or_insert_with(|| (schemas::new_batch_id(), 0));
        let send = SendId::of(*batch, *size);
        *size += 1;
        send.0
    }

    /// One bell for all small batches, and one for the large ones, which are no business of the prompt queue.
    fn bells(&self, tenant: Uuid, product: &str, environment: Environment) -> Result<Vec<Publication>, ApiError> {
        let is_prompt = |size: u16| usize::from(size) <= PROMPT_BATCH_MAX;
        let (prompt, large): (Vec<_>, Vec<_>) = self.0.values().copied().partition(|(_, size)| is_prompt(*size));
        let prompt = bell(tenant, &prompt, subjects::accepted(product, environment, RequestKind::Transactional))?;
        let large = bell(tenant, &large, subjects::accepted_array(product, environment))?;
        Ok([prompt, large].into_iter().flatten().collect())
    }
}

fn bell(tenant: Uuid, batches: &[(Uuid, u16)], subject: String) -> Result<Option<Publication>, ApiError> {
    let Some(((first, _), more)) = batches.split_first() else { return Ok(None) };
    let count: u32 = batches.iter().map(|(_, size)| u32::from(*size)).sum();
    let ring = RequestAnnounced {
        more: more.iter().map(|(batch, _)| *batch).collect(),
        count: Some(count),
        ..RequestAnnounced::of(tenant, *first, RequestKind::Transactional)
    };
    let ring = Publication::json(subject, format!("request-{}", first.simple()), &ring);
    ring.map(Some).map_err(|error| ApiError::unexpected(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_one_content_and_sender_are_one_batch() {
        let mut batches = Batches::default();
        let (letter, bill, sender) = (schemas::new_id(), schemas::new_id(), schemas::new_id());
        let first = batches.next(letter, sender);
        let other = batches.next(bill, sender);
        let second = batches.next(letter, sender);
        assert_eq!((SendId(first).ordinal(), SendId(second).ordinal(), SendId(other).ordinal()), (0, 1, 0));
        assert_eq!(SendId(first).batch(), SendId(second).batch());
        assert_ne!(SendId(first).batch(), SendId(other).batch());
    }

    #[test]
    fn large_batches_are_rung_for_apart_from_small_ones() {
        let mut batches = Batches::default();
        let (letter, bill, sender) = (schemas::new_id(), schemas::new_id(), schemas::new_id());
        for _ in 0..=PROMPT_BATCH_MAX {
            batches.next(letter, sender);
        }
        batches.next(bill, sender);
        let bells = batches.bells(schemas::new_id(), "shop", Environment::Production).unwrap_or_default();
        let subjects: Vec<&str> = bells.iter().map(|bell| bell.subject.as_str()).collect();
        assert_eq!(
            subjects,
            ["mail.v1.accepted.shop.production.transactional", "mail.v1.accepted.shop.production.transactional-array"]
        );
    }
}
