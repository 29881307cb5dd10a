//! A campaign: from launch to the last acceptance at the sink, by an engine that has sent a small one before.

use std::time::{Duration, Instant};

use pipeline::{Rig, eventually};

use super::common::{Setup, Watch, fill_list, newsletter, warm_up};

pub(super) async fn run(recipients: usize, setup: Setup) {
    let rig = setup.start().await;
    let list = fill_list(&rig, recipients).await;
    let campaign = rig.campaign(list, "News for {{ first_name }}", &newsletter()).await;
    let before = warm_up(&rig).await;
    let watch = Watch::start(&rig);
    // A thousand mails a second would take as long.
    let longest = Duration::from_secs(300 + recipients as u64 / 1_000);
    let started = Instant::now();
    rig.launch(campaign).await;
    let launched = started.elapsed();
    let mut reached = rig.sink.wait(before + 1, 60_000).await - before;
    let first = started.elapsed();
    assert!(reached > 0, "nothing arrives; {:?}", pipeline::ledger::states(&rig.pool, campaign).await);
    while reached < recipients as u64 {
        let next = (reached + 1).max(recipients as u64 / 20 * (reached * 20 / recipients as u64 + 1));
        let now = rig.sink.wait(before + next, 2_000).await - before;
        eprint!("\r{now} of {recipients} in {:.1} s   ", started.elapsed().as_secs_f64());
        reached = now;
        if started.elapsed() > longest {
            panic!("stuck: {:?}", pipeline::ledger::states(&rig.pool, campaign).await);
        }
    }
    let wall = started.elapsed();
    eprintln!();
    if setup.feed {
        rig.status(campaign, "sent", Duration::from_secs(60)).await;
        events_are_published(&rig).await;
    }
    let report = watch.report(recipients);
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    let stats = rig.sink.stats().await;
    println!(
        "campaign recipients {recipients} {}: {:.0} mails/s ({:.1} s; launch answered in {:.2} s, first mail after {:.2} s, completed {:.1} s)  duplicates {}  hot_updates {:.1} %  {report}",
        setup.words(),
        recipients as f64 / wall.as_secs_f64(),
        wall.as_secs_f64(),
        launched.as_secs_f64(),
        first.as_secs_f64(),
        started.elapsed().as_secs_f64(),
        stats["duplicates"],
        hot_updates(&rig).await,
    );
}

/// How many per cent of the sends' updates touched no index.
async fn hot_updates(rig: &Rig) -> f64 {
    sqlx::query_scalar(
        "select coalesce(100 * sum(n_tup_hot_upd)::float8 / nullif(sum(n_tup_upd)::float8, 0), 0)
         from pg_stat_user_tables where relname like 'sends\\_2%'",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap_or_default()
}

/// Waits until every noted fact has become an event on the bus: an event's cost counts, also where it comes after the last mail.
async fn events_are_published(rig: &Rig) {
    eventually("events to be published", Duration::from_secs(120), || async {
        sqlx::query_scalar("select not exists (select from outbox) and not exists (select from feed_notes)")
            .fetch_one(&rig.pool)
            .await
            .unwrap_or(false)
            .then_some(())
    })
    .await;
}
