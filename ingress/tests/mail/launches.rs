use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use ledger::audience::Split;
use ledger::gate::{MarketingStatus, RecipientEligibility, decide_recipient};
use ledger::requeue::{RequeueScope, RequeuedWork, requeue};
use rstest::rstest;
use schemas::{Classification, MessageKind, subjects::stream};
use serde_json::{Value, json};
use sqlx::Row;

use crate::fixtures::{Ready, audience, first_on, open_streams, sender};

async fn launch(ready: &Ready, campaign: &str, body: Value) -> crate::common::Answer {
    ready.client.post(&format!("/v1/campaigns/{campaign}/launch"), body).await
}

#[tokio::test]
async fn a_launch_counts_flips_the_draft_and_leaves_a_request() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let answer = launch(&ready, &id, json!({})).await;
    assert_eq!(answer.status, 202);
    let expected = json!({
        "ok": true, "campaign_id": id, "queued": 3, "skipped": 0, "scheduled_for": null, "scheduled_for_local": null,
        "ab_variants": [], "waiting": [],
    });
    assert_eq!(answer.body, expected);
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"]["status"], json!("sending"));
    let (kind, state, payload, due): (String, String, Value, bool) = sqlx::query_as(
        "select kind, state, payload, announce_after between now() and now() + interval '6 seconds' from requests",
    )
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!((kind.as_str(), state.as_str(), due), ("campaign-launch", "accepted", true));
    assert_eq!(payload, json!({"campaign_id": id}));
    assert_eq!(launch(&ready, &id, json!({})).await.refusal(), (409, "campaign_already_sending"));
}

#[tokio::test]
async fn a_suspended_tenant_launches_and_tests_nothing_and_keeps_its_draft() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    sqlx::query("update tenants set status = 'suspended'").execute(&ready.edge.pool).await.unwrap();
    let test = json!({"to": ["ann@example.com"], "sample": {"first_name": "Ann"}});
    let tested = ready.client.post(&format!("/v1/campaigns/{id}/test"), test).await;
    assert_eq!(tested.refusal(), (403, "tenant_suspended"));
    for body in [json!({"dry_run": true}), json!({})] {
        assert_eq!(launch(&ready, &id, body).await.refusal(), (403, "tenant_suspended"));
    }
    sqlx::query("update tenants set status = 'active'").execute(&ready.edge.pool).await.unwrap();
    let answer = launch(&ready, &id, json!({})).await;
    assert_eq!(answer.status, 202);
    assert_eq!(answer.body["queued"], json!(3));
}

#[tokio::test]
async fn of_twenty_launches_at_once_one_wins_and_the_others_hear_409() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let answers = futures::future::join_all((0..20).map(|_| launch(&ready, &id, json!({})))).await;
    let won = answers.iter().filter(|answer| answer.status == 202).count();
    let lost = answers.iter().filter(|answer| {
        answer.status == 409 && ["campaign_already_sending", "campaign_already_preflight"].contains(&answer.refusal().1)
    });
    assert_eq!((won, lost.count()), (1, 19));
    assert_eq!(ready.edge.count("select count(*) from requests").await, 1);
}

#[tokio::test]
async fn a_launch_and_a_cancel_at_once_leave_one_of_the_two_orders() {
    let ready = Ready::start().await;
    for _ in 0..5 {
        let id = ready.campaign(json!({})).await;
        let path = format!("/v1/campaigns/{id}");
        let (launched, cancelled) =
            tokio::join!(launch(&ready, &id, json!({})), ready.client.patch(&path, json!({"status": "cancelled"})));
        assert_eq!(cancelled.status, 200);
        let refused = ["campaign_already_cancelled", "campaign_already_preflight"].contains(&launched.refusal().1);
        assert!(launched.status == 202 || refused, "{}", launched.body);
        assert_eq!(ready.client.get(&path).await.body["campaign"]["status"], json!("cancelled"));
    }
}

#[tokio::test]
async fn a_scheduled_launch_waits_for_its_time() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let at = Utc::now() + TimeDelta::hours(2);
    let answer = launch(&ready, &id, json!({"schedule_for": at.to_rfc3339()})).await;
    assert_eq!(answer.status, 202);
    assert!(answer.text("scheduled_for").ends_with('Z'));
    let campaign = ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"].clone();
    assert_eq!((&campaign["status"], &campaign["scheduled_for"]), (&json!("scheduled"), &answer.body["scheduled_for"]));
    let due: DateTime<Utc> =
        sqlx::query_scalar("select announce_after from requests").fetch_one(&ready.edge.pool).await.unwrap();
    assert!((due - at).abs() < TimeDelta::milliseconds(1));
    assert_eq!(launch(&ready, &id, json!({})).await.refusal(), (409, "campaign_already_scheduled"));
}

#[rstest]
#[case(TimeDelta::minutes(-6), Some("in_the_past"))]
#[case(TimeDelta::minutes(-4), None)]
#[case(TimeDelta::days(365), None)]
#[case(TimeDelta::days(367), Some("too_far_ahead"))]
#[tokio::test]
async fn schedule_for_lies_between_five_minutes_ago_and_a_year_ahead(
    #[case] by: TimeDelta,
    #[case] code: Option<&str>,
) {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let answer = launch(&ready, &id, json!({"schedule_for": (Utc::now() + by).to_rfc3339()})).await;
    let found = answer.faults().first().map(|(path, code)| format!("{path} {code}"));
    assert_eq!(found, code.map(|code| format!("schedule_for {code}")));
    let status = ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"]["status"].clone();
    let expected = if code.is_some() {
        "draft"
    } else if by < TimeDelta::zero() {
        "sending"
    } else {
        "scheduled"
    };
    assert_eq!(status, json!(expected));
}

#[tokio::test]
async fn a_launch_for_now_is_rung_for_at_once_and_a_scheduled_one_is_not() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let (later, now) = (ready.campaign(json!({})).await, ready.campaign(json!({})).await);
    let at = (Utc::now() + TimeDelta::hours(1)).to_rfc3339();
    assert_eq!(launch(&ready, &later, json!({"schedule_for": at})).await.status, 202);
    assert_eq!(launch(&ready, &now, json!({})).await.status, 202);
    // The first message on the stream is for the second launch.
    let (subject, ring) = first_on(&ready.edge, stream::ACCEPTED).await;
    assert!(subject.ends_with("mail.v1.accepted.crm.production.campaign-launch"), "{subject}");
    let campaign: String = sqlx::query_scalar("select payload ->> 'campaign_id' from requests where id = $1::uuid")
        .bind(ring["request_id"].as_str())
        .fetch_one(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!((campaign, &ring["kind"]), (now, &json!("campaign-launch")));
}

#[tokio::test]
async fn the_launches_of_a_tenant_are_announced_one_after_another() {
    let ready = Ready::start().await;
    open_streams(&ready.edge).await;
    let (first, second) = (ready.campaign(json!({})).await, ready.campaign(json!({})).await);
    for campaign in [&first, &second] {
        assert_eq!(launch(&ready, campaign, json!({})).await.status, 202);
    }
    // The second is left to the sweep, which announces it once the first is handled.
    let left: Vec<String> =
        sqlx::query_scalar("select payload ->> 'campaign_id' from requests where announce_after = received_at")
            .fetch_all(&ready.edge.pool)
            .await
            .unwrap();
    assert_eq!(left, [second]);
}

#[rstest]
#[case("scheduled")]
#[case("sending")]
#[case("sent")]
#[case("cancelled")]
#[tokio::test]
async fn only_a_draft_is_launched(#[case] status: &str) {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    ready.set_status(&id, status).await;
    for body in [json!({}), json!({"dry_run": true})] {
        assert_eq!(launch(&ready, &id, body).await.refusal(), (409, format!("campaign_already_{status}").as_str()));
    }
}

#[tokio::test]
async fn an_audience_of_nobody_is_refused_and_so_is_one_that_cannot_be_mailed() {
    let ready = Ready::start().await;
    let (pool, tenant) = (&ready.edge.pool, ready.client.tenant);
    let empty = audience(pool, tenant, "list", "none", 0).await;
    let id = ready.campaign(json!({"list_id": empty})).await;
    for body in [json!({}), json!({"dry_run": true})] {
        assert_eq!(launch(&ready, &id, body).await.refusal(), (422, "audience_resolved_to_zero_contacts"));
    }
    sqlx::query(
        "insert into suppressions (tenant_id, id, address, reason, scope, source)
         select tenant_id, gen_random_uuid(), address, 'hard_bounce', 'all', 'delivery' from contacts",
    )
    .execute(pool)
    .await
    .unwrap();
    let id = ready.campaign(json!({})).await;
    assert_eq!(launch(&ready, &id, json!({})).await.refusal(), (422, "all_contacts_suppressed_or_bounced"));
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"]["status"], json!("draft"));
    assert_eq!(ready.edge.count("select count(*) from requests").await, 0);
}

#[rstest]
#[case("pending", 422)]
#[case("failed", 422)]
#[case("suspended", 422)]
#[case("degraded", 202)]
#[tokio::test]
async fn a_launch_needs_a_sender_whose_domain_may_send(#[case] domain_status: &str, #[case] status: u16) {
    let ready = Ready::start().await;
    let sender = sender(&ready.edge.pool, ready.client.tenant, "other.test", domain_status).await;
    let id = ready.campaign(json!({"sender_profile_id": sender})).await;
    let answer = launch(&ready, &id, json!({})).await;
    assert_eq!(answer.status, status);
    if status == 422 {
        assert_eq!(answer.text("error"), "sender_missing_verified_domain");
    }
}

#[tokio::test]
async fn a_disabled_sender_launches_nothing() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    sqlx::query("update senders set status = 'disabled'").execute(&ready.edge.pool).await.unwrap();
    let refused = launch(&ready, &id, json!({})).await;
    assert_eq!(refused.refusal(), (422, "sender_missing_verified_domain"));
    assert!(refused.text("detail").contains("disabled"), "{}", refused.body);
}

#[tokio::test]
async fn a_dry_run_answers_the_same_counts_and_writes_nothing() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    sqlx::query("update contacts set marketing_status = 'unsubscribed' where address = 'reader1@example.com'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let snapshot = "select md5(string_agg(t, '|' order by t)) from (
        select c::text as t from campaigns c union all select c::text from contents c union all select r::text from requests r
        union all select a::text from audit_log a union all select b::text from batches b) all_rows";
    let before: String = sqlx::query_scalar(snapshot).fetch_one(&ready.edge.pool).await.unwrap();
    let dry = launch(&ready, &id, json!({"dry_run": true})).await;
    let after: String = sqlx::query_scalar(snapshot).fetch_one(&ready.edge.pool).await.unwrap();
    assert_eq!((dry.status.as_u16(), before), (200, after));
    assert_eq!((&dry.body["queued"], &dry.body["skipped"]), (&json!(2), &json!(1)));
    assert_eq!((&dry.body["dry_run"], &dry.body["skipped_by_reason"]), (&json!(true), &json!({"unsubscribed": 1})));
    assert_eq!((&dry.body["sampled"], &dry.body["render_faults"]), (&json!(3), &json!([])));
    let wet = launch(&ready, &id, json!({"digest": dry.body["digest"]})).await;
    assert_eq!((wet.status.as_u16(), &wet.body["queued"], &wet.body["skipped"]), (202, &json!(2), &json!(1)));
}

#[tokio::test]
async fn a_dry_run_shows_recipients_that_cannot_be_rendered() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({"subject": "{{ first_name }}"})).await;
    sqlx::query("update contacts set first_name = repeat('x', 2000) where address = 'reader2@example.com'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let faults = launch(&ready, &id, json!({"dry_run": true})).await.body["render_faults"].clone();
    assert_eq!((faults.as_array().unwrap().len(), &faults[0]["code"]), (1, &json!("render_subject_too_long")));
    assert_eq!(faults[0]["variant"], Value::Null);
}

#[rstest]
#[case::variants_of_the_whole_audience(100)]
#[case::a_test_whose_remainder_may_get_any(50)]
#[tokio::test]
async fn a_dry_run_renders_the_variants_that_contacts_get(#[case] test_percent: u8) {
    let ready = Ready::start().await;
    let pool = &ready.edge.pool;
    let list = audience(pool, ready.client.tenant, "list", "many", 20).await;
    sqlx::query("update contacts set first_name = repeat('x', 2000)").execute(pool).await.unwrap();
    let test = json!({"test_percent": test_percent, "winner_metric": "click_rate", "decide_after_minutes": 60});
    let draft = |first: &str| {
        let variants = json!([
            {"name": "A", "weight": 1, "subject": first}, {"name": "B", "weight": 1, "subject": "Other"},
        ]);
        ready.campaign(json!({"list_id": list, "ab_test": test, "variants": variants}))
    };
    let id = draft("{{ first_name }}").await;
    let dry = launch(&ready, &id, json!({"dry_run": true})).await;
    assert_eq!(dry.body["sampled"], json!(20), "{}", dry.body);
    let faults = dry.body["render_faults"].as_array().unwrap();
    assert!(faults.iter().all(|fault| fault["variant"] == "A" && fault["code"] == "render_subject_too_long"));
    let mut failed: Vec<&str> = faults.iter().filter_map(|fault| fault["contact_id"].as_str()).collect();
    failed.sort_unstable();
    let thresholds = Split::new(test_percent, &[1, 1]);
    let mut drawn: Vec<String> = sqlx::query_scalar(
        "select contact_id::text from audience_members
         where audience_id = $1 and (ab_draw($2::uuid, contact_id) < $3 or ab_draw($2::uuid, contact_id) >= $4)",
    )
    .bind(list)
    .bind(&id)
    .bind(thresholds.thresholds()[0])
    .bind(thresholds.thresholds()[1])
    .fetch_all(pool)
    .await
    .unwrap();
    drawn.sort_unstable();
    assert_eq!(failed, drawn);
    // Nobody gets what the campaign itself says.
    let replaced = draft("Some").await;
    let dry = launch(&ready, &replaced, json!({"dry_run": true})).await;
    assert_eq!((&dry.body["sampled"], &dry.body["render_faults"]), (&json!(20), &json!([])), "{}", dry.body);
}

#[tokio::test]
async fn a_launch_with_the_digest_of_another_audience_is_refused() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let digest = launch(&ready, &id, json!({"dry_run": true})).await.text("digest");
    sqlx::query("update contacts set marketing_status = 'unsubscribed' where address = 'reader1@example.com'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(launch(&ready, &id, json!({"digest": digest})).await.refusal(), (409, "audience_changed"));
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"]["status"], json!("draft"));
}

#[tokio::test]
async fn a_launch_sends_the_templates_newest_version() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"subject": "Old"})).await;
    let plain = ready.campaign(json!({"template_id": template, "subject": null, "body_html": null})).await;
    let own = ready.campaign(json!({"template_id": template, "subject": "Own", "body_html": null})).await;
    ready
        .client
        .patch(&format!("/v1/templates/{template}"), json!({"subject": "New", "body_html": "<p>New</p>"}))
        .await;
    for (id, subject) in [(plain, "New"), (own, "Own")] {
        assert_eq!(launch(&ready, &id, json!({})).await.status, 202);
        let said: (String, String) = sqlx::query_as(
            "select c.subject, c.body_html from campaigns k join contents c on c.id = k.content_id where k.id = $1::uuid",
        )
        .bind(&id)
        .fetch_one(&ready.edge.pool)
        .await
        .unwrap();
        assert_eq!(said, (subject.to_owned(), "<p>New</p>".to_owned()));
    }
}

#[tokio::test]
async fn a_repeated_launch_with_its_idempotency_key_hears_the_same_answer() {
    let ready = Ready::start().await;
    let path = format!("/v1/campaigns/{}/launch", ready.campaign(json!({})).await);
    let first = ready.client.post_once("launch-1", &path, json!({})).await;
    let again = ready.client.post_once("launch-1", &path, json!({})).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (202, 202));
    assert_eq!((first.bytes, again.headers["idempotency-replayed"].to_str().unwrap()), (again.bytes, "true"));
    assert_eq!(ready.edge.count("select count(*) from requests").await, 1);
}

/// Contacts in every combination of consent, suppressions (live and run out) and status.
async fn people_of_every_standing(ready: &Ready) {
    let sql = "with suppressions_of as (
             select * from (values ('none', null, null, false), ('hb', 'hard_bounce', 'all', false), ('co', 'complaint', 'all', false),
                 ('un', 'unsubscribe', 'marketing', false), ('iv', 'invalid', 'all', false), ('ma', 'manual', 'all', false),
                 ('mm', 'manual', 'marketing', false), ('ia', 'import', 'all', false), ('old', 'hard_bounce', 'all', true))
                 as s (label, reason, scope, over)
         ), people as (
             select gen_random_uuid() as id, m || '-' || c || '-' || a.label || '-' || b.label || '@example.net' as address, m, c,
                    a.reason as reason1, a.scope as scope1, a.over as over1, b.reason as reason2, b.scope as scope2, b.over as over2
             from unnest(array['subscribed', 'unsubscribed', 'pending']) m, unnest(array['active', 'archived']) c,
                  suppressions_of a, suppressions_of b
             union all
             select gen_random_uuid(), name || '@sandbox.test', 'subscribed', 'active', null, null, false, null, null, false
             from unnest(array['suppressed', 'suppressed+1', 'suppressedly']) name
         ), inserted as (
             insert into contacts (tenant_id, id, address, marketing_status, status) select $1, id, address, m, c from people
         ), suppressed as (
             insert into suppressions (tenant_id, id, address, reason, scope, source, expires_at)
             select distinct on (address, reason) $1, gen_random_uuid(), address, reason, scope, 'test',
                    case when over then now() - interval '1 day' end
             from (select address, reason1 as reason, scope1 as scope, over1 as over from people
                   union all select address, reason2, scope2, over2 from people) s
             where reason is not null
         )
         insert into audience_members (tenant_id, audience_id, contact_id) select $1, $2, id from people";
    stage_rig::run!(&ready.edge.pool, sql, [ready.client.tenant, ready.list]);
}

#[rstest]
#[case("newsletter", Classification::Marketing)]
#[case("service_notice", Classification::Operational)]
#[case("receipt", Classification::Transactional)]
#[tokio::test]
async fn a_launch_counts_what_the_compliance_gate_would_decide(
    #[case] purpose: &str,
    #[case] classification: Classification,
) {
    let ready = Ready::start().await;
    people_of_every_standing(&ready).await;
    sqlx::query("update tenants set frequency_cap_messages = 1, frequency_cap_days = 7")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    sqlx::query(
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), id, now() - interval '6 days' from contacts
         where address like 'subscribed-active-none-%' or address like 'suppressedly%'",
    )
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    // A magic recipient is suppressed without a row; in the sandbox only.
    sqlx::query("update tenants set environment = 'sandbox'").execute(&ready.edge.pool).await.unwrap();
    let rows = sqlx::query(
        "select s.* from recipient_eligibility($1, (select array_agg(contact_id) from audience_members where audience_id = $2)) s
         where s.contact_active",
    )
    .bind(ready.client.tenant)
    .bind(ready.list)
    .fetch_all(&ready.edge.pool)
    .await
    .unwrap();
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for row in &rows {
        let standing = RecipientEligibility {
            contact_active: true,
            marketing: MarketingStatus::from_column(row.get("marketing_status")),
            hard_bounced: row.get("hard_bounced"),
            complained: row.get("complained"),
            unsubscribed: row.get("unsubscribed"),
            invalid: row.get("invalid"),
            suppressed_all: row.get("suppressed_all"),
            suppressed_marketing: row.get("suppressed_marketing"),
            cap_left: row.get("cap_left"),
            zone: None,
        };
        let verdict = decide_recipient(&standing, MessageKind::Campaign, classification)
            .map_or("queued", |reason| reason.as_str());
        *expected.entry(verdict.to_owned()).or_default() += 1;
    }
    let id = ready.campaign(json!({"message_purpose": purpose, "audience_reason": "They asked"})).await;
    let dry = launch(&ready, &id, json!({"dry_run": true})).await.body;
    let queued = expected.remove("queued").unwrap();
    assert!(queued > 3 && expected.len() >= 4, "{queued} {expected:?}");
    assert_eq!((&dry["queued"], &dry["skipped"]), (&json!(queued), &json!(expected.values().sum::<i64>())));
    assert_eq!(dry["skipped_by_reason"], json!(expected));
}

#[tokio::test]
async fn a_later_launch_is_counted_when_its_mail_is_due() {
    let ready = Ready::start().await;
    for sql in [
        "update tenants set frequency_cap_messages = 1, frequency_cap_days = 1",
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), id, now() from contacts",
        "insert into suppressions (tenant_id, id, address, reason, scope, source, expires_at)
         select tenant_id, gen_random_uuid(), address, 'manual', 'all', 'api', now() + interval '1 day'
         from contacts where address = 'reader1@example.com'",
    ] {
        sqlx::query(sql).execute(&ready.edge.pool).await.unwrap();
    }
    let id = ready.campaign(json!({})).await;
    assert_eq!(launch(&ready, &id, json!({})).await.refusal(), (422, "all_contacts_suppressed_or_bounced"));
    let at = Utc::now() + TimeDelta::days(3);
    let local = at.format("%Y-%m-%dT09:00:00").to_string();
    let dry = launch(&ready, &id, json!({"dry_run": true, "schedule_for_local": local})).await.body;
    assert_eq!((&dry["queued"], &dry["skipped_by_reason"]), (&json!(3), &json!({})), "{dry}");
    let launched = launch(&ready, &id, json!({"schedule_for": at.to_rfc3339()})).await;
    assert_eq!(launched.status, 202, "{}", launched.body);
    assert_eq!((&launched.body["queued"], &launched.body["skipped"]), (&json!(3), &json!(0)));
}

#[tokio::test]
async fn a_launch_counts_the_remainder_of_a_test_as_of_its_decision() {
    let ready = Ready::start().await;
    let list = audience(&ready.edge.pool, ready.client.tenant, "list", "many", 50).await;
    sqlx::query("update tenants set frequency_cap_messages = 1, frequency_cap_days = 1")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let id = ready
        .campaign(json!({
            "list_id": list,
            "ab_test": {"test_percent": 20, "winner_metric": "click_rate", "decide_after_minutes": 1_440},
            "variants": [{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "subject": "Other"}],
        }))
        .await;
    let remainder_from = Split::new(20, &[1, 1]).thresholds()[1];
    for (sql, refused) in [
        ("ab_draw($1::uuid, id) >= $2", false),
        // A test of which no mail is sent is decided at once, when no contact has room.
        ("ab_draw($1::uuid, id) < $2", true),
    ] {
        let sql = format!(
            "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
             select tenant_id, gen_random_uuid(), id, now() - interval '1 hour' from contacts where {sql}"
        );
        stage_rig::run!(&ready.edge.pool, sqlx::AssertSqlSafe(sql), [&id, remainder_from]);
        let dry = launch(&ready, &id, json!({"dry_run": true})).await;
        if refused {
            assert_eq!(dry.refusal(), (422, "all_contacts_suppressed_or_bounced"));
        } else {
            assert_eq!((&dry.body["queued"], &dry.body["skipped_by_reason"]), (&json!(50), &json!({})), "{}", dry.body);
        }
    }
}

#[tokio::test]
async fn a_contact_with_several_of_the_tags_is_counted_once() {
    let ready = Ready::start().await;
    let (pool, tenant) = (&ready.edge.pool, ready.client.tenant);
    let (a, b) = (audience(pool, tenant, "tag", "a", 2).await, audience(pool, tenant, "tag", "b", 1).await);
    sqlx::query("insert into audience_members (tenant_id, audience_id, contact_id) select tenant_id, $2, contact_id from audience_members where audience_id = $1")
        .bind(a)
        .bind(b)
        .execute(pool)
        .await
        .unwrap();
    let id = ready.campaign(json!({"audience_mode": "tags", "list_id": null, "tag_ids": [a, b]})).await;
    assert_eq!(launch(&ready, &id, json!({})).await.body["queued"], json!(3));
}

/// A campaign's status, as callers see it.
async fn status(ready: &Ready, campaign: &str) -> String {
    ready.client.get(&format!("/v1/campaigns/{campaign}")).await.body["campaign"]["status"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_launch_that_is_being_worked_on_is_seen_as_preflight() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    // Somebody changes the draft: the launch waits for the row, and is not refused for it.
    let mut change = ready.edge.pool.begin().await.unwrap();
    sqlx::query("select from campaigns where id = $1::uuid for no key update")
        .bind(&id)
        .execute(&mut *change)
        .await
        .unwrap();
    let launched = {
        let (client, path) = (ready.client.clone(), format!("/v1/campaigns/{id}/launch"));
        tokio::spawn(async move { client.post_once("once", &path, json!({})).await })
    };
    stage_rig::until("preflight", async || status(&ready, &id).await == "preflight").await;
    let listed = async |status: &str| {
        let body = ready.client.get(&format!("/v1/campaigns?status={status}")).await.body;
        body["campaigns"].as_array().unwrap().len()
    };
    assert_eq!((listed("preflight").await, listed("draft").await), (1, 0));
    let path = format!("/v1/campaigns/{id}");
    for refused in [
        ready.client.patch(&path, json!({"name": "Other"})).await,
        ready.client.patch(&path, json!({"status": "draft"})).await,
        launch(&ready, &id, json!({})).await,
    ] {
        assert_eq!(refused.refusal(), (409, "campaign_already_preflight"));
        assert_eq!(refused.header("retry-after"), "2");
    }
    change.commit().await.unwrap();
    assert_eq!(launched.await.unwrap().status, 202);
    assert_eq!(status(&ready, &id).await, "sending");
}

#[tokio::test]
async fn a_launch_that_is_refused_or_dies_leaves_a_draft() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let mut dies = ready.edge.pool.begin().await.unwrap();
    sqlx::query("select begin_preflight($1, $2::uuid)")
        .bind(ready.client.tenant)
        .bind(&id)
        .execute(&mut *dies)
        .await
        .unwrap();
    assert_eq!(status(&ready, &id).await, "preflight");
    dies.rollback().await.unwrap();
    assert_eq!(status(&ready, &id).await, "draft");
    sqlx::query("update domains set status = 'failed'").execute(&ready.edge.pool).await.unwrap();
    assert_eq!(launch(&ready, &id, json!({})).await.refusal(), (422, "sender_missing_verified_domain"));
    assert_eq!(status(&ready, &id).await, "draft");
}

#[tokio::test]
async fn a_scheduled_campaign_gets_another_time() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}");
    let later = |hours: i64| (Utc::now() + TimeDelta::hours(hours)).to_rfc3339();
    let body = json!({"schedule_for": later(3)});
    assert_eq!(ready.client.patch(&path, body.clone()).await.refusal(), (409, "campaign_already_draft"));
    launch(&ready, &id, json!({"schedule_for": later(2)})).await;
    let moved = ready.client.patch(&path, body).await;
    assert_eq!((moved.status.as_u16(), &moved.body["status"]), (200, &json!("scheduled")), "{}", moved.body);
    let campaign = ready.client.get(&path).await.body["campaign"].clone();
    assert_eq!(campaign["scheduled_for"], moved.body["scheduled_for"]);
    let same = "select count(*) from requests r join campaigns c on c.tenant_id = r.tenant_id
                where r.announce_after = c.scheduled_for and c.scheduled_for > now() + interval '170 minutes'";
    assert_eq!(ready.edge.count(same).await, 1);
    // A time that has just passed is now.
    let now = ready.client.patch(&path, json!({"schedule_for": Utc::now().to_rfc3339()})).await;
    assert_eq!(now.status, 200);
    assert_eq!(ready.edge.count("select count(*) from requests where announce_after <= now()").await, 1);
    let past = ready.client.patch(&path, json!({"schedule_for": later(-1)})).await;
    assert_eq!(past.faults(), [("schedule_for".to_owned(), "in_the_past".to_owned())]);
    ready.set_status(&id, "sending").await;
    let refused = ready.client.patch(&path, json!({"schedule_for": later(3)})).await;
    assert_eq!(refused.refusal(), (409, "campaign_already_sending"));
}

#[tokio::test]
async fn a_campaign_is_scheduled_for_a_time_of_the_day_in_each_zone() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}");
    let local = |days: i64| (Utc::now() + TimeDelta::days(days)).format("%Y-%m-%dT09:00:00").to_string();
    let first_anywhere = |text: &str| {
        let local: chrono::NaiveDateTime = text.parse().unwrap();
        json!((local - TimeDelta::hours(14)).and_utc().to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
    };
    let dry = launch(&ready, &id, json!({"dry_run": true, "schedule_for_local": local(3)})).await.body;
    let due = format!("{}.000Z", local(3));
    assert_eq!(dry["waiting"], json!([{"reason": "time_zone", "until": due, "count": dry["queued"]}]), "{dry}");
    let launched = launch(&ready, &id, json!({"schedule_for_local": local(3)})).await.body;
    let at = json!(local(3));
    assert_eq!((&launched["scheduled_for_local"], &launched["scheduled_for"]), (&at, &first_anywhere(&local(3))));
    let campaign = ready.client.get(&path).await.body;
    assert_eq!(
        (&campaign["campaign"]["status"], &campaign["campaign"]["scheduled_for_local"]),
        (&json!("scheduled"), &at)
    );
    assert_eq!(campaign["waiting"], json!([]), "nothing is written yet");
    let moved = ready.client.patch(&path, json!({"schedule_for_local": local(5)})).await.body;
    assert_eq!(
        (&moved["scheduled_for_local"], &moved["scheduled_for"]),
        (&json!(local(5)), &first_anywhere(&local(5)))
    );
    let at_one_time = (Utc::now() + TimeDelta::hours(2)).to_rfc3339();
    let moved = ready.client.patch(&path, json!({"schedule_for": at_one_time})).await.body;
    assert_eq!(moved["scheduled_for_local"], Value::Null, "{moved}");
    ready.client.patch(&path, json!({"schedule_for_local": local(5)})).await;
    let back = ready.client.patch(&path, json!({"status": "draft"})).await.body;
    assert_eq!((&back["scheduled_for_local"], &back["scheduled_for"]), (&Value::Null, &Value::Null));
}

#[rstest]
#[case::with_a_zone(json!({"schedule_for_local": "2099-03-01T09:00:00Z"}), "invalid")]
#[case::far_beyond(json!({"schedule_for_local": "+262142-12-31T23:59:59"}), "invalid")]
#[case::past_everywhere(json!({"schedule_for_local": "2026-03-01T09:00:00"}), "in_the_past")]
#[case::too_far(json!({"schedule_for_local": "2099-03-01T09:00:00"}), "too_far_ahead")]
#[case::both(json!({"schedule_for_local": "2099-03-01T09:00:00", "schedule_for": "2099-03-01T09:00:00Z"}), "ambiguous")]
#[tokio::test]
async fn a_local_time_with_a_fault_is_refused(#[case] body: Value, #[case] code: &str) {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let refused = launch(&ready, &id, body).await;
    assert_eq!(refused.faults(), [("schedule_for_local".to_owned(), code.to_owned())], "{}", refused.body);
    assert_eq!(status(&ready, &id).await, "draft");
}

#[tokio::test]
async fn an_ab_test_goes_out_at_one_time() {
    let ready = Ready::start().await;
    let test = json!({"test_percent": 20, "winner_metric": "click_rate", "decide_after_minutes": 60});
    let variants = json!([{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "subject": "Other"}]);
    let id = ready.campaign(json!({"ab_test": test, "variants": variants})).await;
    let local = (Utc::now() + TimeDelta::days(3)).format("%Y-%m-%dT09:00:00").to_string();
    let refused = launch(&ready, &id, json!({"schedule_for_local": local})).await;
    assert_eq!(refused.faults(), [("schedule_for_local".to_owned(), "not_allowed".to_owned())], "{}", refused.body);
}

#[tokio::test]
async fn a_scheduled_campaign_goes_back_to_draft_and_is_launched_anew() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}");
    let at = (Utc::now() + TimeDelta::hours(2)).to_rfc3339();
    let digest = launch(&ready, &id, json!({"dry_run": true})).await.text("digest");
    launch(&ready, &id, json!({"schedule_for": at, "digest": digest})).await;
    ready.client.patch(&path, json!({"paused": true})).await;
    let back = ready.client.patch(&path, json!({"status": "draft"})).await;
    assert_eq!((back.status.as_u16(), &back.body["status"]), (200, &json!("draft")), "{}", back.body);
    assert_eq!((&back.body["scheduled_for"], &back.body["paused"]), (&Value::Null, &json!(false)));
    assert_eq!(ready.edge.count("select count(*) from requests where state = 'accepted'").await, 0);
    assert_eq!(ready.edge.count("select count(*) from launch_audiences").await, 0);
    assert_eq!(ready.client.patch(&path, json!({"name": "Other"})).await.status, 200);
    assert_eq!(launch(&ready, &id, json!({})).await.status, 202);
    let refused = ready.client.patch(&path, json!({"status": "draft"})).await;
    assert_eq!(refused.refusal(), (409, "campaign_already_sending"));
}

#[tokio::test]
async fn a_scheduled_campaign_whose_launch_was_rejected_is_launched_anew() {
    let ready = Ready::start().await;
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}");
    let at = (Utc::now() + TimeDelta::hours(2)).to_rfc3339();
    let digest = launch(&ready, &id, json!({"dry_run": true})).await.text("digest");
    launch(&ready, &id, json!({"schedule_for": at, "digest": digest})).await;
    sqlx::query("update requests set state = 'rejected', outcome = 'ledger', announce_after = null")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let later = (Utc::now() + TimeDelta::hours(3)).to_rfc3339();
    let moved = ready.client.patch(&path, json!({"schedule_for": later})).await;
    assert_eq!(moved.refusal(), (409, "campaign_already_scheduled"));
    let back = ready.client.patch(&path, json!({"status": "draft"})).await;
    assert_eq!((back.status.as_u16(), &back.body["status"]), (200, &json!("draft")), "{}", back.body);
    assert_eq!(launch(&ready, &id, json!({"schedule_for": later})).await.status, 202);
    let accepted = "select count(*) from requests where state = 'accepted'";
    assert_eq!(ready.edge.count(accepted).await, 1);
    // A requeue does not take up the launch that was withdrawn: its audience is gone.
    let work = RequeuedWork::Campaign(id.parse().unwrap());
    requeue(&ready.edge.pool, &RequeueScope { tenant: ready.client.tenant, work }, false).await.unwrap();
    assert_eq!(ready.edge.count(accepted).await, 1);
}
