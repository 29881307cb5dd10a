//! The heartbeats of a process that stops.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use devtools::servers::TestDatabase;
use runtime::{Beat, Database, Heartbeat, PauseSwitches, Role, plans::PreparedPool};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_process_that_stops_says_so_until_its_work_is_finished() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = Database::pool(&SecretString::from(database.url()), Role::Stages, 2).unwrap();
    let (in_hand, shutdown) = (Arc::new(AtomicU32::new(3)), CancellationToken::new());
    let counted = Arc::clone(&in_hand);
    let beats = move || {
        let in_hand = counted.load(Ordering::SeqCst);
        vec![Beat { stage: "delivery", failing_sweeps: Vec::new(), is_paused: false, in_hand }]
    };
    let heartbeat = Heartbeat::new(PreparedPool::new(&pool, 1), "delivery", Vec::new());
    let beating = tokio::spawn(heartbeat.run(beats, PauseSwitches::released(), shutdown.clone()));
    let says = async |number: Option<i32>| {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let found: Option<i32> =
                sqlx::query_scalar("select in_hand from heartbeats").fetch_optional(&pool).await.unwrap();
            if found == number {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{found:?} instead of {number:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    says(Some(3)).await;
    shutdown.cancel();
    in_hand.store(2, Ordering::SeqCst);
    says(Some(2)).await;
    in_hand.store(0, Ordering::SeqCst);
    says(None).await;
    beating.await.unwrap();
}
