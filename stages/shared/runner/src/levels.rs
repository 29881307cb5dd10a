//! Gauges of the whole installation: the backlog of the ledger, and the contents of the streams. Every process exports them, whatever it
//! runs, so that the backlog of a stage is visible when the stage is gone. Look-ups by index, every ten seconds.

use std::time::Duration;

use async_nats::jetstream::stream::Info;
use futures::TryStreamExt;
use runtime::{Bus, Gauge, db, streams::STREAMS};
use schemas::{Lane, RequestKind, subjects::stream};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

const EVERY: Duration = Duration::from_secs(10);
/// Time limit of one measurement; the gauges keep their last values until the next one.
const MEASURE_MAX: Duration = Duration::from_secs(5);

/// Exports the gauges until shut down.
pub(crate) async fn export(pool: PgPool, bus: Bus, shutdown: CancellationToken) {
    loop {
        let measured = async {
            let (ledger, streams) =
                tokio::join!(db::within(MEASURE_MAX, ledger(&pool)), tokio::time::timeout(MEASURE_MAX, streams(&bus)));
            if let Err(error) = ledger {
                tracing::debug!(error = db::describe(&error), "the ledger's levels are not known");
            }
            if !matches!(streams, Ok(Some(()))) {
                tracing::debug!("the streams' levels are not known");
            }
            tokio::time::sleep(EVERY).await;
        };
        if shutdown.run_until_cancelled(Box::pin(measured)).await.is_none() {
            return;
        }
    }
}

async fn ledger(pool: &PgPool) -> sqlx::Result<()> {
    let mut db = pool.acquire().await?;
    let batches = sqlx::query!(
        r#"select lane as "lane!: Lane", state as "state!", batches as "batches!", announcements as "announcements!", oldest
           from platform_batches()"#
    )
    .fetch_all(&mut *db)
    .await?;
    for row in &batches {
        let lane = row.lane.as_str();
        Gauge::BacklogBatches.set_owned(row.batches as f64, [("lane", lane.to_owned()), ("state", row.state.clone())]);
        if row.state == "announced" {
            Gauge::BacklogAnnouncementsMax.set(f64::from(row.announcements), [("lane", lane)]);
        }
    }
    for lane in Lane::ALL {
        let open = batches.iter().filter(|row| row.lane == *lane && !matches!(row.state.as_str(), "resting" | "timed"));
        let oldest = open.filter_map(|row| row.oldest).fold(0.0, f64::max);
        Gauge::BacklogOldestSeconds.set(oldest, [("stage", "delivery"), ("lane", lane.as_str())]);
    }
    let owed = sqlx::query!(r#"select stage as "stage!", lane as "lane!", oldest from platform_owed()"#)
        .fetch_all(&mut *db)
        .await?;
    for row in owed {
        let age = row.oldest.unwrap_or(0.0).max(0.0);
        Gauge::BacklogOldestSeconds.set_owned(age, [("stage", row.stage), ("lane", row.lane)]);
    }
    let requests =
        sqlx::query!(r#"select kind as "kind!: RequestKind", requests as "requests!" from platform_requests()"#)
            .fetch_all(&mut *db)
            .await?;
    for kind in RequestKind::ALL {
        let waiting = requests.iter().find(|row| row.kind == *kind).map_or(0, |row| row.requests);
        Gauge::BacklogRequests.set(waiting as f64, [("kind", kind.as_str())]);
    }
    let unknown = sqlx::query!(r#"select lane as "lane!: Lane", sends as "sends!", oldest from platform_unknown()"#)
        .fetch_all(&mut *db)
        .await?;
    for row in unknown {
        let lane = [("lane", row.lane.as_str())];
        Gauge::UnknownSends.set(row.sends as f64, lane);
        Gauge::UnknownOldestSeconds.set(row.oldest.unwrap_or(0.0).max(0.0), lane);
    }
    let others = sqlx::query!(
        r#"select held_at is not null as "is_held!", platform_pending_facts() as "pending_facts!",
                  platform_confirmations() as "oldest_confirmation!"
           from ledger"#
    )
    .fetch_one(&mut *db)
    .await?;
    Gauge::LedgerPaused.set(f64::from(u8::from(others.is_held)), []);
    Gauge::PendingFacts.set(others.pending_facts as f64, []);
    Gauge::ConfirmationsOldestSeconds.set(others.oldest_confirmation, []);
    Ok(())
}

/// `None` while JetStream is away.
async fn streams(bus: &Bus) -> Option<()> {
    for spec in STREAMS {
        let found = bus.jetstream().get_stream_no_info(bus.prefixed(spec.name)).await.ok()?;
        let info = found.get_info().await.ok()?;
        export_stream(spec.name, &info);
        if spec.name == stream::DEAD {
            let kept: Vec<(String, usize)> =
                found.info_with_subjects(bus.prefixed("mail.v1.dead.*")).await.ok()?.try_collect().await.ok()?;
            export_dead_letters(&kept);
        }
    }
    Some(())
}

fn export_stream(name: &'static str, info: &Info) {
    let stream = [("stream", name)];
    Gauge::StreamBytes.set(info.state.bytes as f64, stream);
    Gauge::StreamBytesMax.set(info.config.max_bytes.max(0) as f64, stream);
    Gauge::StreamMessages.set(info.state.messages as f64, stream);
    let oldest = match info.state.messages {
        0 => 0,
        _ => (chrono::Utc::now().timestamp() - info.state.first_timestamp.unix_timestamp()).max(0),
    };
    Gauge::StreamOldestSeconds.set(oldest as f64, stream);
}

/// A stage without a subject has no dead letter.
fn export_dead_letters(kept: &[(String, usize)]) {
    let stages = Gauge::DeadLetters.metric().labels.iter().flat_map(|label| label.values.known());
    for stage in stages {
        let of_stage = kept.iter().filter(|(subject, _)| subject.rsplit('.').next() == Some(stage));
        let count: usize = of_stage.map(|(_, messages)| messages).sum();
        Gauge::DeadLetters.set(count as f64, [("stage", stage)]);
    }
}
