//! Opens and clicks judged anew.

use chrono::{DateTime, TimeDelta, TimeZone, Utc};
use ledger::{
    erasure::PERSONAL_DETAILS,
    facts::rescore::{RescoreScope, RescoreTotals, rescore},
};
use runtime::Publication;
use schemas::{SendId, Signal, SignalKind, new_id, subjects, subjects::stream};
use stage_rig::{Rig, Tenant, until};
use uuid::Uuid;

use super::{batch_to, rows, run, start};

const BROWSER: &str = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Firefox/128.0";

fn at(seconds: i64) -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 3, 1, 10, 0, 0).unwrap() + TimeDelta::seconds(seconds)
}

fn signal(tenant: &Tenant, batch: Uuid, ordinal: u16, seconds: i64, link: Option<u16>, user_agent: &str) -> Signal {
    Signal {
        signal_id: new_id(),
        tenant_id: tenant.id,
        send_id: SendId::of(batch, ordinal).0,
        occurred_at: at(seconds),
        kind: link
            .map_or(SignalKind::Opened, |link| SignalKind::Clicked { url: "https://example.com/".to_owned(), link }),
        ip: Some("203.0.113.9".to_owned()),
        user_agent: Some(user_agent.to_owned()),
    }
}

/// A tenant whose mail was opened and clicked by people, a proxy and a scanner, all recorded by the stage.
async fn told(rig: &Rig) -> Tenant {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 4).await;
    let batch = batch_to(rig, &tenant, &people).await;
    run!(&rig.pool, "update sends set state = 'sent', decided_at = $1 where tenant_id = $2", [at(0), tenant.id]);
    run!(
        &rig.pool,
        "update batches set state = 'done', announce_after = null, done_at = now(), sent = size, queued = 0 where tenant_id = $1",
        [tenant.id]
    );
    let signals = [
        signal(&tenant, batch, 0, 60, None, BROWSER),
        signal(&tenant, batch, 0, 4_000, None, BROWSER),
        signal(&tenant, batch, 0, 90, Some(1), BROWSER),
        signal(&tenant, batch, 1, 30, None, "GoogleImageProxy"),
        signal(&tenant, batch, 1, 4_000, Some(1), BROWSER),
        signal(&tenant, batch, 2, 100, Some(1), BROWSER),
        signal(&tenant, batch, 2, 101, Some(2), BROWSER),
        signal(&tenant, batch, 2, 8_000, Some(2), BROWSER),
    ];
    let publications = signals
        .iter()
        .map(|signal| Publication::json(subjects::signal("tracking"), signal.signal_id.to_string(), signal).unwrap());
    rig.publish(publications.collect()).await;
    until("every signal is taken", async || rig.held(stream::SIGNALS).await == 0).await;
    tenant
}

/// Everything that follows from the marks, and the marks.
async fn ledger(rig: &Rig) -> Vec<String> {
    sqlx::query_scalar(
        "select concat(id, human_opened_at, human_clicked_at) as row from sends
         union all select concat(id, opened_human, ' ', clicked_human) from batches
         union all select concat(tenant_id, hour, event, sum(count)) from rollups where kind = 'campaign' group by tenant_id, hour, event having sum(count) <> 0
         union all select concat(id, detail) from events
         union all select concat(send_id, fact, occurred_at, human_at) from contact_facts order by 1",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap()
}

/// Marks as other rules would have set them, with all that follows: the second send's proxy and the third's scanner were people,
/// and the first send's person was none.
const OTHER_RULES: &str = "
    update events set detail = case when detail->>'is_machine' = 'true' then (detail - 'machine_reason') || '{\"is_machine\": false, \"rules\": 0}'
        else detail || '{\"is_machine\": true, \"machine_reason\": \"old\", \"rules\": 0}' end;
    update sends s set human_opened_at = t.opened, human_clicked_at = t.clicked from (
        select send_id, min(occurred_at) filter (where type = 'opened' and detail->>'is_machine' = 'false') as opened,
               min(occurred_at) filter (where type = 'clicked' and detail->>'is_machine' = 'false') as clicked
        from events group by send_id) t where t.send_id = s.id;
    update batches b set opened_human = (select count(human_opened_at) from sends s where s.tenant_id = b.tenant_id),
        clicked_human = (select count(human_clicked_at) from sends s where s.tenant_id = b.tenant_id);
    delete from rollups where event in ('opened_human', 'clicked_human');
    insert into rollups (tenant_id, hour, kind, event, shard, count)
    select tenant_id, date_trunc('hour', at, 'UTC'), 'campaign', event, 0, count(*) from (
        select tenant_id, human_opened_at as at, 'opened_human' as event from sends
        union all select tenant_id, human_clicked_at, 'clicked_human' from sends) t where at is not null group by 1, 2, 4;";

#[tokio::test(flavor = "multi_thread")]
async fn a_rescore_equals_marks_made_by_the_current_rules() {
    let rig = Rig::new().await;
    start(&rig).await;
    told(&rig).await;
    let right = ledger(&rig).await;
    sqlx::raw_sql(OTHER_RULES).execute(&rig.pool).await.unwrap();
    rig.assert_books().await;
    let wrong = ledger(&rig).await;
    assert_ne!(wrong, right);

    let dry = rescore(&rig.pool, RescoreScope::default(), true, |_| {}).await.unwrap();
    assert_eq!(ledger(&rig).await, wrong, "a dry run changes nothing");
    let mut slices = 0;
    let done = rescore(&rig.pool, RescoreScope::default(), false, |_| slices += 1).await.unwrap();
    assert_eq!((done, slices), (dry, 1));
    assert_eq!(done, RescoreTotals { sends: 3, events: 8, marked: 3, cleared: 5, relabelled: 0 });
    assert_eq!(ledger(&rig).await, right);
    rig.assert_books().await;

    let again = rescore(&rig.pool, RescoreScope::default(), false, |_| {}).await.unwrap();
    assert_eq!(again.changed(), 0, "a second run finds nothing to do");
    assert_eq!(ledger(&rig).await, right);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_marks_of_an_erased_contact_stay() {
    let rig = Rig::new().await;
    start(&rig).await;
    told(&rig).await;
    run!(&rig.pool, "update events set detail = detail - $1::text[]", [PERSONAL_DETAILS.as_slice()]);
    let machines = rig.number("select count(*) from events where detail->>'is_machine' = 'true'").await;
    let done = rescore(&rig.pool, RescoreScope::default(), true, |_| {}).await.unwrap();
    assert_eq!((machines, done.events, done.changed()), (3, 8, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_credits_outcomes_by_clicks_hears_which_count_and_which_do_not() {
    let rig = Rig::new().await;
    start(&rig).await;
    let (one, _without_outcomes) = (told(&rig).await, told(&rig).await);
    run!(
        &rig.pool,
        "insert into outcomes (tenant_id, id, source_system, outcome_type, occurred_at) values ($1, $1, 'shop', 'bind', now())",
        [one.id]
    );
    sqlx::query("delete from late_facts").execute(&rig.pool).await.unwrap();
    sqlx::raw_sql(OTHER_RULES).execute(&rig.pool).await.unwrap();
    rescore(&rig.pool, RescoreScope::default(), true, |_| {}).await.unwrap();
    assert_eq!(rig.number("select count(*) from late_facts").await, 0, "a dry run tells nobody");
    rescore(&rig.pool, RescoreScope::default(), false, |_| {}).await.unwrap();
    let noted: Vec<(Uuid, String, i64)> =
        rows(&rig, "select tenant_id, source, cardinality(ids)::bigint from late_facts").await;
    // Clicks of three mails, of the tenant who has outcomes; opens earn nothing.
    assert_eq!(noted, [(one.id, "rescored".to_owned(), 3)]);
    rescore(&rig.pool, RescoreScope::default(), false, |_| {}).await.unwrap();
    assert_eq!(rig.number("select count(*) from late_facts").await, 1, "and nothing twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_tenants_and_older_mail_are_left_alone() {
    let rig = Rig::new().await;
    start(&rig).await;
    let (one, _other) = (told(&rig).await, told(&rig).await);
    sqlx::raw_sql(OTHER_RULES).execute(&rig.pool).await.unwrap();
    let later = RescoreScope { since: Some(Utc::now() + TimeDelta::hours(1)), tenant: None };
    assert_eq!(rescore(&rig.pool, later, false, |_| {}).await.unwrap(), RescoreTotals::default());
    let own = RescoreScope { tenant: Some(one.id), since: Some(Utc::now() - TimeDelta::hours(1)) };
    assert_eq!(rescore(&rig.pool, own, false, |_| {}).await.unwrap().sends, 3);
    let rest = rescore(&rig.pool, RescoreScope::default(), true, |_| {}).await.unwrap();
    assert_eq!((rest.sends, rest.changed()), (6, 8), "the other tenant's");
    rig.assert_books().await;
}
