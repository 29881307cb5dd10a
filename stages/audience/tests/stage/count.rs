//! The count a launch is answered with.

use std::collections::BTreeMap;

use chrono::{TimeDelta, Utc};
use ledger::audience::{AudienceSelector, CountedCampaign, Split, count, count_for};
use ledger::frequency::{CappedMail, OwedMail, Urgency};
use ledger::gate::{self, Hold, MarketingStatus, RecipientEligibility};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use schemas::{Classification, MessageKind, SkipReason, month_of};
use stage_rig::{Person, Rig, Tenant};
use uuid::Uuid;

use crate::run;

const REASONS: [&str; 6] = ["hard_bounce", "complaint", "unsubscribe", "manual", "invalid", "import"];

/// What is held against one contact: (reason, scope, whether it has run out).
type Held = Vec<(&'static str, &'static str, bool)>;

fn eligibilities() -> impl Strategy<Value = (Held, &'static str)> {
    let bits = (proptest::sample::select(REASONS.to_vec()), prop_oneof![Just("all"), Just("marketing")], any::<bool>());
    let marketing = proptest::sample::select(vec!["subscribed", "unsubscribed", "pending"]);
    (proptest::collection::vec(bits, 0..3), marketing)
}

/// 300 contacts with whatever may be held against them.
async fn random_audience(rig: &Rig, tenant: &Tenant) -> Vec<Person> {
    let people = rig.people(tenant, 300).await;
    let mut random = TestRunner::deterministic();
    for person in &people {
        let (bits, marketing) = eligibilities().new_tree(&mut random).unwrap().current();
        sqlx::query("update contacts set marketing_status = $3 where tenant_id = $1 and id = $2")
            .bind(tenant.id)
            .bind(person.id)
            .bind(marketing)
            .execute(&rig.pool)
            .await
            .unwrap();
        for (reason, scope, over) in bits {
            sqlx::query(
                "insert into suppressions (tenant_id, id, address, reason, scope, source, expires_at)
                 values ($1, $2, $3, $4, $5, 'api', case when $6 then now() - interval '1 day' end)
                 on conflict do nothing",
            )
            .bind(tenant.id)
            .bind(schemas::new_id())
            .bind(&person.address)
            .bind(reason)
            .bind(scope)
            .bind(over)
            .execute(&rig.pool)
            .await
            .unwrap();
        }
    }
    // A cap of two mails in a week: some have had three, some two, some two of which one is too old to count.
    run(rig, "update tenants set frequency_cap_messages = 2, frequency_cap_days = 7").await;
    sqlx::query(
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), contact_id, now() - case when mail = 2 and n % 3 = 1 then '8 days' else '6 days' end::interval
         from (select tenant_id, id as contact_id, row_number() over (order by id) as n from contacts) c
         cross join generate_series(1, 3) mail
         where n % 3 < 2 and (mail < 3 or n % 3 = 0)",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    people
}

/// What the compliance gate says of each, over the facts it reads.
async fn decided(
    rig: &Rig,
    tenant: &Tenant,
    people: &[Person],
    class: Classification,
) -> BTreeMap<Option<SkipReason>, i64> {
    type Row = (bool, String, bool, bool, bool, bool, bool, bool, Option<i64>);
    let ids: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    let rows: Vec<Row> = sqlx::query_as(
        "select contact_active, marketing_status, hard_bounced, complained, unsubscribed, invalid, suppressed_all,
                suppressed_marketing, cap_left from recipient_eligibility($1, $2)",
    )
    .bind(tenant.id)
    .bind(&ids)
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    let mut decisions = BTreeMap::new();
    for row in rows {
        let standing = RecipientEligibility {
            contact_active: row.0,
            marketing: MarketingStatus::from_column(&row.1),
            hard_bounced: row.2,
            complained: row.3,
            unsubscribed: row.4,
            invalid: row.5,
            suppressed_all: row.6,
            suppressed_marketing: row.7,
            cap_left: row.8,
            zone: None,
        };
        *decisions.entry(gate::decide_recipient(&standing, MessageKind::Campaign, class)).or_default() += 1;
    }
    decisions
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_is_what_the_gate_will_decide() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = random_audience(&rig, &tenant).await;
    let selector = AudienceSelector::List(rig.audience(&tenant, "list", &people).await);
    for class in Classification::ALL {
        let decisions = decided(&rig, &tenant, &people, *class).await;
        let counted = count(&mut rig.pool.begin().await.unwrap(), tenant.id, &selector, *class).await.unwrap();
        assert_eq!(counted.total, 300);
        assert_eq!(counted.queued, decisions.get(&None).copied().unwrap_or(0), "{class}");
        let skipped: Vec<_> = decisions.iter().filter_map(|(verdict, count)| Some(((*verdict)?, *count))).collect();
        assert_eq!(counted.skipped, skipped, "{class}");
        assert!(counted.skipped.len() > 2, "the audience tries several reasons");
        let is_capped = counted.skipped.iter().any(|(reason, _)| *reason == SkipReason::FrequencyCap);
        assert_eq!(is_capped, *class == Classification::Marketing);
    }
}

/// How many of these contacts a campaign's mail would wait for now, because more urgent mail needs their room: as compliance decides.
async fn yielding(rig: &Rig, tenant: &Tenant, people: &[Person], urgency: Urgency) -> i64 {
    let mut db = rig.pool.acquire().await.unwrap();
    let ids: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    let known = gate::load_eligibility(&mut db, &vec![tenant.id; ids.len()], &ids).await.unwrap();
    let mail = |(tenant_id, contact_id), cap_left| CappedMail { tenant_id, contact_id, urgency, cap_left };
    let owed = OwedMail::load(&mut db, known.iter().map(|(key, known)| mail(*key, known.cap_left))).await.unwrap();
    let mail = (MessageKind::Campaign, Classification::Marketing);
    let waits = known.iter().filter(|((_, contact), known)| {
        gate::decide_recipient(known, mail.0, mail.1).is_none()
            && matches!(
                gate::decide_hold(known, None, mail, owed.more_urgent(*contact, urgency), Utc::now()),
                Some(Hold::MoreUrgent { .. })
            )
    });
    waits.count() as i64
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_knows_whose_room_more_urgent_mail_needs() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = random_audience(&rig, &tenant).await;
    let list = rig.audience(&tenant, "list", &people).await;
    for (urgency, to) in [("urgent", 0..200), ("important", 100..300), ("important", 50..80)] {
        let campaign = rig.campaign(&tenant, list).await;
        let batch = rig.batch(&tenant, campaign, Classification::Marketing, &people[to]).await.batch_id;
        sqlx::query("update campaigns set urgency = $2, month = $3, launched_at = now() where id = $1")
            .bind(campaign)
            .bind(urgency)
            .bind(month_of(batch))
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    // The last one's mail waits for tomorrow, and so does a part of the first one's.
    for put_off in [
        "update batches set state = 'timed', announce_after = now() + interval '1 day' where size = 30",
        "update sends set state = 'deferred', next_attempt_at = now() + interval '1 day'
         where id in (select id from sends order by id limit 20)",
    ] {
        run(&rig, put_off).await;
    }
    let selector = AudienceSelector::List(list);
    for urgency in Urgency::ALL {
        let mut tx = rig.pool.begin().await.unwrap();
        let campaign = CountedCampaign {
            id: Uuid::nil(),
            classification: Classification::Marketing,
            urgency: *urgency,
            split: &Split::default(),
            by_zone: false,
            due: Utc::now(),
            rest_due: None,
            local: None,
        };
        let counted = count_for(&mut tx, tenant.id, &selector, campaign).await.unwrap();
        let mail = (MessageKind::Campaign, Classification::Marketing);
        let waits = counted.mailed.iter().filter(|(facts, _)| {
            let contact = RecipientEligibility { cap_left: facts.cap_left, ..RecipientEligibility::CLEAN };
            gate::decide_hold(&contact, None, mail, facts.more_urgent, Utc::now()).is_some()
        });
        let expected = yielding(&rig, &tenant, &people, *urgency).await;
        assert_eq!(waits.map(|(_, contacts)| contacts).sum::<i64>(), expected, "{urgency:?}");
        assert_eq!(expected > 0, *urgency > Urgency::Urgent, "{urgency:?}");
    }
}

/// Fills the cap of some, a mail a day, and suppresses others: both for another twenty hours.
async fn withhold_for_twenty_hours(rig: &Rig, tenant: &Tenant, capped: &[Person], suppressed: &[Person]) {
    run(rig, "update tenants set frequency_cap_messages = 1, frequency_cap_days = 1").await;
    let sql = "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         values ($1, $2, $2, now() - interval '4 hours')";
    for person in capped {
        stage_rig::run!(&rig.pool, sql, [tenant.id, person.id]);
    }
    let sql = "insert into suppressions (tenant_id, id, address, reason, scope, source, expires_at)
         values ($1, $2, $3, 'manual', 'all', 'api', now() + interval '20 hours')";
    for person in suppressed {
        stage_rig::run!(&rig.pool, sql, [tenant.id, person.id, &person.address]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contacts_are_counted_as_they_are_when_their_mail_is_due() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 6).await;
    let selector = AudienceSelector::List(rig.audience(&tenant, "list", &people).await);
    // Three have had their mail of the day, three are suppressed: all for another twenty hours.
    let (capped, suppressed) = people.split_at(3);
    withhold_for_twenty_hours(&rig, &tenant, capped, suppressed).await;
    for (person, zone) in people.iter().zip(["Asia/Tokyo", "America/Los_Angeles", "UTC"].into_iter().cycle()) {
        stage_rig::run!(&rig.pool, "update contacts set timezone = $2 where id = $1", [person.id, zone]);
    }
    let now = Utc::now();
    // It is this time in 24 hours in UTC, and in 15 in Tokyo.
    let local = ((now + TimeDelta::hours(24)).naive_utc(), schemas::delay::zone(None, "UTC"));
    let cases = [(0, None, 0, 3), (19, None, 0, 3), (21, None, 6, 0), (10, Some(local), 4, 1)];
    for (hours, local, queued, withheld) in cases {
        let campaign = CountedCampaign {
            id: Uuid::nil(),
            classification: Classification::Marketing,
            urgency: Urgency::Normal,
            split: &Split::default(),
            by_zone: false,
            due: now + TimeDelta::hours(hours),
            rest_due: None,
            local,
        };
        let mut tx = rig.pool.begin().await.unwrap();
        let counted = count_for(&mut tx, tenant.id, &selector, campaign).await.unwrap();
        let skipped: BTreeMap<SkipReason, i64> = counted.skipped.into_iter().collect();
        let mut expected = BTreeMap::from([(SkipReason::FrequencyCap, withheld), (SkipReason::Suppressed, withheld)]);
        expected.retain(|_, contacts| *contacts > 0);
        assert_eq!((counted.queued, skipped), (queued, expected), "{hours} {local:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_remainder_of_a_test_is_counted_when_the_test_is_decided() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 60).await;
    let selector = AudienceSelector::List(rig.audience(&tenant, "list", &people).await);
    // All have had their mail of the day, and half are suppressed: for another twenty hours.
    withhold_for_twenty_hours(&rig, &tenant, &people, &people[..30]).await;
    let split = Split::new(20, &[1, 1]);
    let remainder: i64 = sqlx::query_scalar("select count(*) from contacts where ab_draw($1, id) >= $2")
        .bind(Uuid::nil())
        .bind(split.thresholds()[1])
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    let now = Utc::now();
    for (rest_in, queued) in [(None, 0), (Some(19), 0), (Some(21), remainder)] {
        let campaign = CountedCampaign {
            id: Uuid::nil(),
            classification: Classification::Marketing,
            urgency: Urgency::Normal,
            split: &split,
            by_zone: false,
            due: now,
            rest_due: rest_in.map(|hours| now + TimeDelta::hours(hours)),
            local: None,
        };
        let mut tx = rig.pool.begin().await.unwrap();
        let counted = count_for(&mut tx, tenant.id, &selector, campaign).await.unwrap();
        assert_eq!((counted.total, counted.queued), (60, queued), "{rest_in:?}");
        assert!(counted.mailed.keys().all(|facts| facts.part == split.variants()), "{rest_in:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_active_members_are_the_audience_and_each_is_counted_once() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 10).await;
    let tags =
        vec![rig.audience(&tenant, "tag", &people[..6]).await, rig.audience(&tenant, "tag", &people[4..8]).await];
    stage_rig::run!(&rig.pool, "update contacts set status = 'archived' where id = $1", [people[0].id]);
    let selector = AudienceSelector::Tags(tags);
    let mut db = rig.pool.begin().await.unwrap();
    let counted = count(&mut db, tenant.id, &selector, Classification::Marketing).await.unwrap();
    assert_eq!((counted.total, counted.queued), (7, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_changes_when_somebody_joins_or_is_suppressed_and_not_otherwise() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 5).await;
    let list = rig.audience(&tenant, "list", &people[..4]).await;
    let selector = AudienceSelector::List(list);
    let digest = async || {
        let mut db = rig.pool.begin().await.unwrap();
        count(&mut db, tenant.id, &selector, Classification::Marketing).await.unwrap().digest
    };
    let first = digest().await;
    assert_eq!(digest().await, first);
    // Another verdict, and as many people as before.
    rig.suppress(&tenant, &people[0], "complaint", "all").await;
    let suppressed = digest().await;
    assert_ne!(suppressed, first);
    sqlx::query("insert into audience_members (tenant_id, audience_id, contact_id) values ($1, $2, $3)")
        .bind(tenant.id)
        .bind(list)
        .bind(people[4].id)
        .execute(&rig.pool)
        .await
        .unwrap();
    assert_ne!(digest().await, suppressed);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ingress_role_counts_its_tenant_and_no_other() {
    let rig = Rig::new().await;
    let (ours, theirs) = (rig.tenant().await, rig.tenant().await);
    let people = rig.people(&ours, 3).await;
    let selector = AudienceSelector::List(rig.audience(&ours, "list", &people).await);
    let pool = rig.ingress_pool();
    for (confined_to, asked, expected) in [(ours, ours, 3), (theirs, ours, 0), (theirs, theirs, 0)] {
        let mut tx = runtime::db::begin_for_tenant(&pool, confined_to.id).await.unwrap();
        let counted = count(&mut tx, asked.id, &selector, Classification::Marketing).await.unwrap();
        assert_eq!(counted.total, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_audience_is_counted_at_once_even_before_there_are_statistics() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 30_000).await;
    let selector = AudienceSelector::List(rig.audience(&tenant, "list", &people).await);
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         select tenant_id, gen_random_uuid(), address, 'complaint', 'all', 'api' from contacts order by id limit 10000",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let mut tx = rig.pool.begin().await.unwrap();
    // Row by row it is 30,000 times 10,000 comparisons: half a minute and more.
    sqlx::query("set local statement_timeout = '10s'").execute(&mut *tx).await.unwrap();
    let counted = count(&mut tx, tenant.id, &selector, Classification::Marketing).await.unwrap();
    assert_eq!((counted.queued, counted.skipped), (20_000, vec![(SkipReason::Complained, 10_000)]));
    let options: (String, String) =
        sqlx::query_as("select current_setting('work_mem'), current_setting('enable_nestloop')")
            .fetch_one(&mut *tx)
            .await
            .unwrap();
    let session: (String, String) =
        sqlx::query_as("select current_setting('work_mem'), current_setting('enable_nestloop')")
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!(options, session, "and the transaction goes on as it was");
}
