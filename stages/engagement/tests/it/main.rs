//! The engagement stage on its own database and streams.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod inbound;
mod inbound_smtp;
mod mailboxes;
mod orders;
mod rescore;
mod stage;

use engagement::Settings;
use schemas::Classification;
use sqlx::{AssertSqlSafe, FromRow, postgres::PgRow};
use stage_rig::{Person, Rig, Tenant, settings};
use uuid::Uuid;

pub(crate) use stage_rig::run;

async fn rows<T: for<'r> FromRow<'r, PgRow> + Send + Unpin>(rig: &Rig, sql: &'static str) -> Vec<T> {
    sqlx::query_as(sql).fetch_all(&rig.pool).await.unwrap()
}

async fn start(rig: &Rig) {
    start_with(rig, &[]).await;
}

async fn start_with(rig: &Rig, arguments: &[&str]) {
    engagement::start(&rig.process(), &settings::<Settings>(arguments)).await.unwrap();
}

/// A campaign's batch of sends to these people.
async fn batch_to(rig: &Rig, tenant: &Tenant, people: &[Person]) -> Uuid {
    let list = rig.audience(tenant, "list", &[]).await;
    let campaign = rig.campaign(tenant, list).await;
    rig.batch(tenant, campaign, Classification::Marketing, people).await.batch_id
}

/// All sends went out, at this time (SQL).
async fn all_sent(rig: &Rig, decided_at: &str) {
    let sends = format!("update sends set state = 'sent', decided_at = {decided_at}");
    sqlx::query(AssertSqlSafe(sends)).execute(&rig.pool).await.unwrap();
    sqlx::query("update batches set state = 'done', announce_after = null, done_at = now(), sent = size, queued = 0")
        .execute(&rig.pool)
        .await
        .unwrap();
}
