//! `kill -9` of each process, and of all at once, in the middle of a campaign: nobody lost, nobody twice.

use std::{collections::BTreeSet, time::Duration};

use pipeline::{Rig, eventually, ledger, rig::STAGES};

const RECIPIENTS: usize = 20_000;
/// SMTP connections of the delivery process: at most so many sends are in doubt after it is killed.
const CONNECTIONS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn killing_every_process_in_turn_and_all_at_once_loses_nobody_and_mails_nobody_twice() {
    let mut rig = Rig::private()
        .await
        .with("SMTP_CONNECTIONS", &CONNECTIONS.to_string())
        .with("SMTP_FINAL_TIMEOUT", "5s")
        .with("SMTP_COMMAND_TIMEOUT", "10s")
        .with("AUDIENCE_REANNOUNCE", "5s");
    rig.start_separate().await;
    let (list, addresses) = rig.list_of(RECIPIENTS, "crash", "example.com").await;
    let campaign =
        rig.campaign(list, "Still here, {{ first_name }}", "<p>Hello {{ first_name }} {{ last_name }}</p>").await;
    rig.launch(campaign).await;

    // Early enough that much is left to do when the last is killed.
    let step = RECIPIENTS as u64 / 20;
    for (n, stage) in STAGES.into_iter().enumerate() {
        let reached = rig.sink.wait(step * (n as u64 + 1), 60_000).await;
        assert!(reached < RECIPIENTS as u64, "the campaign was over before {stage} was killed");
        rig.kill9(stage);
        rig.start(stage, &["stage", stage]).await;
    }
    let reached = rig.sink.wait(step * (STAGES.len() as u64 + 1), 60_000).await;
    assert!(reached < RECIPIENTS as u64, "the campaign was over before all were killed at once");
    for name in ["ingress"].into_iter().chain(STAGES) {
        rig.kill9(name);
    }
    rig.start_separate().await;

    rig.status(campaign, "sent", Duration::from_secs(180)).await;
    let counts = rig.sink.counts(&addresses).await;
    assert_eq!(counts.iter().filter(|count| **count > 1).count(), 0, "somebody was mailed twice");
    let mailed: BTreeSet<&String> =
        addresses.iter().zip(&counts).filter(|(_, count)| **count == 1).map(|(address, _)| address).collect();
    let by_address = ledger::by_address(&rig.pool, campaign).await;
    assert_eq!(by_address.len(), RECIPIENTS);
    let in_state = |state: &str| -> Vec<&String> {
        by_address.iter().filter(|(_, (now, _))| now == state).map(|(address, _)| address).collect()
    };
    for address in in_state("sent") {
        assert!(mailed.contains(address), "the ledger says sent, the sink has nothing");
    }
    let doubtful = in_state("unknown").len();
    assert_eq!(in_state("sent").len() + doubtful, RECIPIENTS, "{:?}", ledger::states(&rig.pool, campaign).await);
    // Delivery was killed twice: alone and with all.
    assert!(doubtful <= 2 * CONNECTIONS, "{doubtful} in doubt, with {CONNECTIONS} connections");
    rig.books_balance().await;
}

/// With the lease of production: a fence's is twenty minutes and more.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_delivery_process_held_goes_on_within_seconds_and_the_campaign_ends() {
    const SLOW: usize = 4;
    const QUICK: usize = 6_000;
    let mut rig = Rig::shared().await.with("SMTP_CONNECTIONS", &CONNECTIONS.to_string());
    rig.start_separate().await;
    // They are on the wire, each without an answer, when the process dies.
    let (list, _) = rig.list_of(SLOW, "slow-dot-600s+", "example.com").await;
    let slow = rig.campaign(list, "Slow", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(slow).await;
    eventually("the slow ones to be fenced", Duration::from_secs(60), || async {
        (ledger::states(&rig.pool, slow).await.get("fenced") == Some(&(SLOW as i64))).then_some(())
    })
    .await;
    let (list, addresses) = rig.list_of(QUICK, "quick", "example.com").await;
    let quick = rig.campaign(list, "Quick", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(quick).await;
    eventually("the campaign to be under way", Duration::from_secs(60), || async {
        let states = ledger::states(&rig.pool, quick).await;
        (states.get("sent").is_some_and(|sent| *sent >= 100)).then_some(())
    })
    .await;
    rig.kill9("delivery");
    let owed = ledger::states(&rig.pool, quick).await.get("queued").copied();
    assert!(owed.is_some_and(|owed| owed > 0), "it had nothing in hand: {owed:?}");
    rig.start("delivery", &["stage", "delivery"]).await;

    // Deadlines a lease would miss.
    rig.status(quick, "sent", Duration::from_secs(150)).await;
    rig.status(slow, "sent", Duration::from_secs(150)).await;
    assert_eq!(ledger::states(&rig.pool, slow).await.get("unknown"), Some(&(SLOW as i64)));
    let counts = rig.sink.counts(&addresses).await;
    assert_eq!(counts.iter().filter(|count| **count > 1).count(), 0, "somebody was mailed twice");
    let states = ledger::states(&rig.pool, quick).await;
    let (sent, unknown) = (states.get("sent").copied(), states.get("unknown").copied().unwrap_or(0));
    assert_eq!(sent, Some(QUICK as i64 - unknown), "{states:?}");
    assert!(unknown <= CONNECTIONS as i64, "{states:?}");
    rig.books_balance().await;
}

/// What the documentation of `database-pool` promises.
const CONNECTIONS_OF_ALL: i64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_drains_so_that_nothing_is_in_doubt() {
    let mut rig = Rig::shared().await.with("AUDIENCE_REANNOUNCE", "5s");
    rig.start_all().await;
    let (list, addresses) = rig.list_of(3_000, "drain", "example.com").await;
    let campaign = rig.campaign(list, "Hi", "<p>Hello {{ first_name }}</p>").await;
    rig.launch(campaign).await;
    rig.sink.wait(500, 60_000).await;
    let connections = "select count(*) from pg_stat_activity where datname = current_database() and application_name like 'postrider %'";
    let connections: i64 = sqlx::query_scalar(connections).fetch_one(&rig.pool).await.unwrap();
    assert!((1..=CONNECTIONS_OF_ALL).contains(&connections), "{connections} connections to Postgres");
    let process = rig.processes.remove("all").unwrap();
    assert!(process.terminate().await, "ended well by itself");
    let open: i64 = sqlx::query_scalar("select count(*) from sends where state in ('fenced', 'unknown')")
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    assert_eq!(open, 0, "nothing is held or in doubt after a drain");
    rig.start_all().await;
    rig.status(campaign, "sent", Duration::from_secs(120)).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 3_000]);
    rig.books_balance().await;
}
