//! From facts to events and deliveries, in one transaction: notes are taken out of `outbox`, what they name is read, said in the
//! words of events and written; what goes to the bus is noted for [`feed`]; then it is committed. Whatever ends it in the middle, the notes are still there, and
//! the repeat says the same: ids follow from the facts, bodies that stand are kept.

mod compose;
mod facts;
mod feed;
mod particulars;
mod store;
mod subscribers;

use std::{collections::BTreeSet, time::Instant};

use runner::StageError;
use runtime::{Counter, Histogram, plans::PreparedPool};
use schemas::EventType;
use sqlx::PgConnection;
use uuid::Uuid;

pub(crate) use facts::Told;
pub(crate) use feed::{Feed, FeedDoor, LeftOver};
pub(crate) use ledger::outbox::{EventKeys, Keys, Taken};
pub(crate) use store::Fresh;

use ledger::outbox;
use subscribers::Subscribers;

/// What one transaction did.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub taken: Taken,
    /// Deliveries to try at once.
    pub fresh: Vec<Fresh>,
    /// Events to publish at once.
    pub feed: Option<Feed>,
}

/// Tells a bounded number of facts.
pub(crate) async fn tell(by_key: &PreparedPool) -> Result<Done, StageError> {
    let started = Instant::now();
    let mut tx = by_key.begin().await?;
    let noted = outbox::take(&mut tx).await?;
    if noted.taken.notes == 0 {
        tx.rollback().await?;
        return Ok(Done::default());
    }
    let told = read(&mut tx, &noted.events, &noted.notices, &noted.contacts).await?;
    let tenants: BTreeSet<Uuid> = told.iter().map(|told| told.tenant_id).collect();
    let hearers = Subscribers::load(&mut tx, &tenants).await?;
    let compose::All { composed, publications, published } = compose::compose(&told, &hearers)?;
    let fresh = store::insert(&mut tx, &composed).await?;
    let feed = feed::note(&mut tx, &noted, &published, publications).await?;
    tx.commit().await?;
    Histogram::FanOutSeconds.record(started.elapsed().as_secs_f64(), []);
    count(&told);
    Ok(Done { taken: noted.taken, fresh, feed })
}

/// Has these told again to one subscription. Answers how many deliveries begin because of it.
pub(crate) async fn repeat(
    db: &mut PgConnection,
    tenant: Uuid,
    subscription: Uuid,
    told: &[Told],
) -> Result<i64, StageError> {
    let hearers = Subscribers::load(db, &BTreeSet::from([tenant])).await?;
    let Some(link) = hearers.only(tenant, subscription) else { return Ok(0) };
    let mut composed = Vec::with_capacity(told.len());
    for told in told {
        let is_meant = told.product.as_ref().is_none_or(|only| *only == link.product);
        if !is_meant || told.event_type == EventType::WebhookTest || link.told(told).next().is_none() {
            continue;
        }
        let body = compose::body_of(told, &link)?;
        composed.push(compose::event(told, &link, body, vec![(subscription, true)]));
    }
    Ok(store::repeat(db, &composed).await?)
}

/// What the ledger holds of these facts, ready to be told.
pub(crate) async fn read(
    db: &mut PgConnection,
    events: &EventKeys,
    notices: &Keys,
    contacts: &Keys,
) -> sqlx::Result<Vec<Told>> {
    let mut told = facts::of_sends(db, events).await?;
    told.extend(facts::of_notices(db, notices).await?);
    told.extend(facts::of_contacts(db, contacts).await?);
    Ok(told)
}

fn count(told: &[Told]) {
    for event_type in EventType::ALL {
        let events = told.iter().filter(|told| told.event_type == *event_type).count() as u64;
        if events > 0 {
            Counter::EventsTotal.add(events, [("type", event_type.as_str())]);
        }
    }
}
