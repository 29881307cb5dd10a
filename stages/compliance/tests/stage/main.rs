//! The compliance stage on its own database and streams.
#![allow(clippy::unwrap_used, missing_docs)]

mod batches;
mod plans;
mod waiting;
mod withheld;

use runtime::Publication;
use schemas::{Cleared, Resolved, SendId, subjects, subjects::stream};
use stage_rig::{Person, Rig, Tenant, until};
use uuid::Uuid;

async fn start(rig: &Rig) {
    compliance::start(&rig.process());
}

/// A tenant with a running campaign.
async fn campaign(rig: &Rig) -> (Tenant, Uuid) {
    let tenant = rig.tenant().await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    (tenant, campaign)
}

/// Announces batches; an announcement of another name is not dropped as a repeat.
async fn announce(rig: &Rig, batches: &[&Resolved], name: &str) {
    let publications = batches.iter().map(|batch| {
        let id = format!("{}-{name}", batch.batch_id);
        Publication::json(subjects::resolved(batch.lane), id, *batch).unwrap()
    });
    rig.publish(publications.collect()).await;
}

async fn all_taken(rig: &Rig) {
    until("every announcement is taken", async || rig.held(stream::RESOLVED).await == 0).await;
}

/// State and reason of each send of a batch, in order.
async fn sends(rig: &Rig, batch: Uuid) -> Vec<(String, Option<String>)> {
    sqlx::query_as("select state, reason from sends where id between $1 and $2 order by id")
        .bind(batch)
        .bind(SendId::last_of(batch))
        .fetch_all(&rig.pool)
        .await
        .unwrap()
}

fn skipped(reason: &str) -> (String, Option<String>) {
    ("skipped".to_owned(), Some(reason.to_owned()))
}

fn queued() -> (String, Option<String>) {
    ("queued".to_owned(), None)
}

async fn state_of(rig: &Rig, batch: Uuid) -> String {
    sqlx::query_scalar("select state from batches where id = $1").bind(batch).fetch_one(&rig.pool).await.unwrap()
}

async fn cleared(rig: &Rig) -> Vec<Cleared> {
    rig.messages(stream::CLEARED).await
}

/// Announces batches, starts the stage, and waits until it has decided them.
async fn decide(rig: &Rig, batches: &[&Resolved]) {
    announce(rig, batches, "1").await;
    start(rig).await;
    all_taken(rig).await;
}

/// Ten people: nine with something against them in their own way, and Ann.
async fn ten_people(rig: &Rig, tenant: &Tenant) -> Vec<Person> {
    let people = rig.people(tenant, 10).await;
    let held =
        [("hard_bounce", "all"), ("complaint", "all"), ("invalid", "all"), ("manual", "all"), ("manual", "marketing")];
    for (person, (reason, scope)) in people[1..].iter().zip(held) {
        rig.suppress(tenant, person, reason, scope).await;
    }
    rig.suppress(tenant, &people[6], "unsubscribe", "marketing").await;
    let changes = [
        (7, "update contacts set marketing_status = 'unsubscribed' where id = $1"),
        (8, "update contacts set marketing_status = 'pending' where id = $1"),
        (9, "update contacts set status = 'archived' where id = $1"),
    ];
    for (at, change) in changes {
        sqlx::query(change).bind(people[at].id).execute(&rig.pool).await.unwrap();
    }
    people
}
