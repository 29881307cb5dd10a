//! Turns facts into events and deliveries, in one transaction: read notes of `outbox` and the facts they name, compose the events,
//! publish those for the bus ([`feed`]), write the others with their deliveries, and delete the notes. If the transaction fails, the
//! notes are still there and the repetition has the same result: ids follow from the facts, and stored bodies are kept. It writes
//! nothing before the bus has answered: an open transaction that has written keeps Postgres from pruning.

mod compose;
mod event_data;
mod feed;
mod pending_events;
mod store;
mod subscribers;

use std::{collections::HashSet, time::Instant};

use runner::StageError;
use runtime::{Counter, Histogram, db::BEGIN_ASYNC_COMMIT, plans::PreparedPool};
use schemas::EventType;
use sqlx::PgConnection;
use uuid::Uuid;

pub(crate) use feed::{FeedPublisher, PublishFeedNotes};
pub(crate) use ledger::outbox::{EventKey, Taken};
pub(crate) use pending_events::PendingEvent;
pub(crate) use store::FreshDeliveries;

use ledger::outbox;
use subscribers::Subscribers;

/// Fans out a bounded number of facts. Returns how many, and the deliveries to attempt at once.
pub(crate) async fn fan_out_notes(
    by_key: &PreparedPool,
    feed: &FeedPublisher,
) -> Result<(Taken, FreshDeliveries), StageError> {
    let started = Instant::now();
    // What a crash of Postgres takes back is noted again, and fanned out with the same ids.
    let mut tx = by_key.begin_with(BEGIN_ASYNC_COMMIT).await?;
    let noted = outbox::read(&mut tx).await?;
    if noted.taken.notes == 0 {
        tx.rollback().await?;
        return Ok(Default::default());
    }
    let (pending, unknown_facts) = read_pending_events(&mut tx, &noted.events, &noted.notices, &noted.contacts).await?;
    let subscribers = Subscribers::load(&mut tx, &pending).await?;
    let composed = compose::compose(&pending, &subscribers)?;
    feed.publish_or_note(&mut tx, &noted, compose::for_bus(&composed)).await?;
    let fresh = store::insert(&mut tx, &composed).await?;
    outbox::delete(&mut tx, &noted).await?;
    let unknown = without(&noted.notices, &pending);
    let (notices, facts) = (unknown.len(), unknown_facts.len());
    if notices + facts > 0 {
        tracing::warn!(
            stage = "webhooks",
            notices,
            facts,
            "notices and facts of types that this version does not know wait for a newer one"
        );
        outbox::put_back(&mut tx, &unknown, &unknown_facts).await?;
    }
    tx.commit().await?;
    Histogram::FanOutSeconds.record(started.elapsed().as_secs_f64(), []);
    count_events(&pending);
    Ok((noted.taken, fresh))
}

/// The notices of which there is no event: their type is unknown here. Contacts and facts have other ids than their events.
fn without(notices: &[(Uuid, Uuid)], pending: &[PendingEvent]) -> Vec<(Uuid, Uuid)> {
    let emitted: HashSet<Uuid> = pending.iter().map(|pending| pending.id).collect();
    notices.iter().filter(|(_, id)| !emitted.contains(id)).copied().collect()
}

/// Delivers these events again to one subscription. Returns how many deliveries were started.
pub(crate) async fn replay_events(
    db: &mut PgConnection,
    subscription: Uuid,
    mut pending: Vec<PendingEvent>,
) -> Result<i64, StageError> {
    pending.retain(|pending| pending.event_type != EventType::WebhookTest);
    let subscribers = Subscribers::load(db, &pending).await?.only_subscription(subscription);
    let composed = compose::compose(&pending, &subscribers)?;
    Ok(store::replay_deliveries(db, &composed).await?)
}

/// Reads the events that these facts become, from the ledger, and the keys of facts about sends whose type is unknown.
pub(crate) async fn read_pending_events(
    db: &mut PgConnection,
    events: &[EventKey],
    notices: &[(Uuid, Uuid)],
    contacts: &[(Uuid, Uuid)],
) -> Result<(Vec<PendingEvent>, Vec<EventKey>), StageError> {
    let (mut pending, unknown) = pending_events::of_sends(db, events).await?;
    pending.extend(pending_events::of_notices(db, notices).await?);
    pending.extend(pending_events::of_contacts(db, contacts).await?);
    Ok((pending, unknown))
}

fn count_events(pending: &[PendingEvent]) {
    for event_type in EventType::ALL {
        let events = pending.iter().filter(|pending| pending.event_type == *event_type).count() as u64;
        if events > 0 {
            Counter::EventsTotal.add(events, [("type", event_type.as_str())]);
        }
    }
}
