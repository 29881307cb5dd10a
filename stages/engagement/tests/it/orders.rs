//! Whatever the order, the grouping and the repetition, the ledger says the same: what a recount of the raw events says.

use chrono::{DateTime, TimeDelta, TimeZone, Utc};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use runtime::Publication;
use schemas::{SendId, Signal, SignalKind, new_id, subjects, subjects::stream};
use stage_rig::{Rig, Tenant, until};
use uuid::Uuid;

use super::{all_sent, batch_to, start};

const SENDS: u16 = 5;
const HISTORIES: usize = 6;
const BROWSER: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Firefox/128.0";

/// One signal to be: which send, when, of which kind, by which client.
type Seed = (u16, i64, u8, u8);

fn history() -> impl Strategy<Value = Vec<(Seed, bool)>> {
    // Times close together, so that bursts happen; some hours apart, so that totals move.
    let time = prop_oneof![0_i64..8_000, 3_600_000_i64..3_608_000];
    proptest::collection::vec(((0..SENDS, time, 0_u8..6, 0_u8..4), any::<bool>()), 1..60)
}

fn signal(tenant: &Tenant, batch: Uuid, (ordinal, ms, kind, client): Seed) -> Signal {
    let accepted: DateTime<Utc> = Utc.with_ymd_and_hms(2026, 3, 1, 10, 0, 0).unwrap();
    let kind = match kind {
        0 | 1 => SignalKind::Opened,
        2..=4 => SignalKind::Clicked { url: "https://example.com/".to_owned(), link: u16::from(kind) },
        _ => SignalKind::Complained { feedback_type: "abuse".to_owned() },
    };
    let user_agent = if client == 0 { "GoogleImageProxy" } else { BROWSER };
    Signal {
        signal_id: new_id(),
        tenant_id: tenant.id,
        send_id: SendId::of(batch, ordinal).0,
        occurred_at: accepted + TimeDelta::milliseconds(ms),
        kind,
        ip: Some("203.0.113.9".to_owned()),
        user_agent: Some(user_agent.to_owned()),
    }
}

/// Sends whose times differ from the events', and events whose marks differ from the definition.
const FAULTS: &str = "
    with clicks as (
        select e.*, detail->>'machine_reason' as reason, exists (
            select from events o where o.send_id = e.send_id and o.type = 'clicked' and o.detail->>'link' <> e.detail->>'link'
              and abs(extract(epoch from o.occurred_at - e.occurred_at)) <= 2) as burst,
            e.detail->>'user_agent' = 'GoogleImageProxy' as proxy, e.occurred_at < s.decided_at + interval '3 s' as instant
        from events e join sends s on s.id = e.send_id where e.type = 'clicked'
    )
    select (select count(*) from sends s where (s.opened_at, s.human_opened_at, s.clicked_at, s.human_clicked_at, s.complained_at)
            is distinct from (select (min(occurred_at) filter (where type = 'opened'),
                min(occurred_at) filter (where type = 'opened' and not (detail->>'is_machine')::boolean),
                min(occurred_at) filter (where type = 'clicked'),
                min(occurred_at) filter (where type = 'clicked' and not (detail->>'is_machine')::boolean),
                min(occurred_at) filter (where type = 'complained')) from events e where e.send_id = s.id))
         + (select count(*) from clicks where (detail->>'is_machine')::boolean <> (burst or proxy or instant))
         + (select count(*) from (
                select hour, event, sum(count) from rollups where kind = 'campaign' group by 1, 2 having sum(count) <> 0
                except select date_trunc('hour', at), event, count(*) from (
                    select opened_at as at, 'opened' as event from sends union all select clicked_at, 'clicked' from sends
                    union all select human_opened_at, 'opened_human' from sends
                    union all select human_clicked_at, 'clicked_human' from sends
                    union all select complained_at, 'complained' from sends
                    union all select occurred_at, type || '_total' from events where type in ('opened', 'clicked')) t
                where at is not null group by 1, 2) d)";

#[tokio::test(flavor = "multi_thread")]
async fn in_any_order_and_repetition_the_ledger_equals_a_recount_of_the_events() {
    let rig = Rig::new().await;
    start(&rig).await;
    let mut runner = TestRunner::default();
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, usize::from(SENDS)).await;
    for turn in 0..HISTORIES {
        let batch = batch_to(&rig, &tenant, &people).await;
        all_sent(&rig, "'2026-03-01 10:00Z'").await;
        let seeds = history().new_tree(&mut runner).unwrap().current();
        println!("history {turn}: {seeds:?}");
        let signals: Vec<(Signal, bool)> =
            seeds.into_iter().map(|(seed, repeat)| (signal(&tenant, batch, seed), repeat)).collect();
        let repeats = signals.iter().filter(|(_, repeat)| *repeat).map(|(signal, _)| signal).rev();
        for (at, signal) in signals.iter().map(|(signal, _)| signal).chain(repeats).enumerate() {
            let id = format!("{}-{at}", signal.signal_id);
            rig.publish(vec![Publication::json(subjects::signal("tracking"), id, signal).unwrap()]).await;
        }
        until("every signal is taken", async || rig.held(stream::SIGNALS).await == 0).await;
        assert_eq!(rig.number(FAULTS).await, 0, "history {turn}");
        rig.assert_books().await;
    }
    assert!(rig.dead().await.is_empty());
}
