//! How a campaign is to be sent: variants, window, pace, tripwire; from the draft to the launch.

use chrono::{TimeDelta, Utc};
use rstest::rstest;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixtures::Ready;

pub fn two_variants() -> Value {
    json!([
        {"name": "Control", "weight": 1},
        {"name": "Short", "weight": 3, "subject": "Short {{ first_name }}", "body_html": "<p>Short</p>"},
    ])
}

#[tokio::test]
async fn the_rules_of_a_campaign_are_read_back_as_written() {
    let ready = Ready::start().await;
    let not_after = (Utc::now() + TimeDelta::days(3)).format("%Y-%m-%dT%H:%M:%S.000Z").to_string();
    let id = ready
        .campaign(json!({
            "variants": two_variants(), "ab_test": {"test_percent": 20, "winner_metric": "open_rate", "decide_after_minutes": 90},
            "not_after": not_after, "on_miss": "hold", "max_per_minute": 600, "tripwire": {"bounce_percent": 2.5},
        }))
        .await;
    let campaign = ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"].clone();
    assert_eq!(
        campaign["variants"],
        json!([
            {"variant": "A", "name": "Control", "weight": 1, "subject": null, "preheader": null, "template_id": null, "body_html": null,
             "mjml": null, "body_text": null, "layout": null},
            {"variant": "B", "name": "Short", "weight": 3, "subject": "Short {{ first_name }}", "preheader": null, "template_id": null,
             "body_html": "<p>Short</p>", "mjml": null, "body_text": null, "layout": null},
        ])
    );
    assert_eq!(
        campaign["ab_test"],
        json!({"test_percent": 20, "winner_metric": "open_rate", "decide_after_minutes": 90, "tested_at": null, "decided_at": null,
               "winner": null, "winner_reason": null})
    );
    assert_eq!((&campaign["not_after"], &campaign["on_miss"]), (&json!(not_after), &json!("hold")));
    assert_eq!(campaign["max_per_minute"], json!(600));
    assert_eq!(campaign["tripwire"], json!({"bounce_percent": 2.5, "complaint_percent": 0.3, "state": "armed"}));
    let listed = ready.client.get("/v1/campaigns").await.body["campaigns"][0].clone();
    assert_eq!((&listed["variants"][1]["name"], listed["variants"][1].get("body_html")), (&json!("Short"), None));
}

#[rstest]
#[case(json!({"variants": [{"name": "A", "weight": 1}]}), "variants", "too_few")]
#[case(json!({"variants": (0..9).map(|n| json!({"name": n.to_string(), "weight": 1})).collect::<Vec<_>>()}), "variants", "too_many")]
#[case(json!({"variants": [{"name": "A", "weight": 1}, {"name": "A", "weight": 1}]}), "variants[1].name", "duplicate")]
#[case(json!({"variants": [{"name": "A", "weight": 0}, {"name": "B", "weight": 1}]}), "variants[0].weight", "out_of_range")]
#[case(json!({"variants": [{"name": "A"}, {"name": "B", "weight": 1}]}), "variants[0].weight", "required")]
#[case(json!({"variants": [{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "subject": "{{ nobody }}"}]}), "variants[1].subject", "unknown_variable")]
#[case(json!({"ab_test": {"test_percent": 10}}), "ab_test", "variants_required")]
#[case(json!({"variants": two_variants(), "ab_test": {"test_percent": 101}}), "ab_test.test_percent", "out_of_range")]
#[case(json!({"variants": two_variants(), "ab_test": {}}), "ab_test.test_percent", "required")]
#[case(json!({"variants": two_variants(), "ab_test": {"test_percent": 9, "winner_metric": "luck"}}), "ab_test.winner_metric", "not_allowed")]
#[case(json!({"not_after": "tomorrow"}), "not_after", "invalid")]
#[case(json!({"not_after": "2020-01-01T00:00:00Z"}), "not_after", "in_the_past")]
#[case(json!({"not_after": "2999-01-01T00:00:00Z"}), "not_after", "too_far_ahead")]
#[case(json!({"on_miss": "cry"}), "on_miss", "not_allowed")]
#[case(json!({"max_per_minute": 0}), "max_per_minute", "out_of_range")]
#[case(json!({"tripwire": {"bounce_percent": 101}}), "tripwire.bounce_percent", "out_of_range")]
#[tokio::test]
async fn rules_that_cannot_work_are_refused(#[case] change: Value, #[case] path: &str, #[case] code: &str) {
    let ready = Ready::start().await;
    ready.refuses(change, path, code).await;
}

#[tokio::test]
async fn a_variant_that_names_a_template_that_is_not_there_is_a_404() {
    let ready = Ready::start().await;
    let variants =
        json!([{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "template_id": Uuid::max().to_string()}]);
    let answer = ready.client.post("/v1/campaigns", ready.campaign_body(json!({"variants": variants}))).await;
    assert_eq!(answer.refusal(), (404, "template_not_found"));
}

#[tokio::test]
async fn the_rules_of_a_draft_may_change_and_go() {
    let ready = Ready::start().await;
    let id = ready
        .campaign(json!({"variants": two_variants(), "ab_test": {"test_percent": 20}, "max_per_minute": 60}))
        .await;
    let path = format!("/v1/campaigns/{id}");
    let changed = ready
        .client
        .patch(&path, json!({"subject": "New", "max_per_minute": null, "tripwire": {"complaint_percent": 1}}))
        .await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let said: Vec<(String, String)> = sqlx::query_as(
        "select v.variant, c.subject from campaign_variants v join contents c on c.id = v.content_id order by v.variant",
    )
    .fetch_all(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(
        said,
        [("A".into(), "New".into()), ("B".into(), "Short {{ first_name }}".into())],
        "variants follow the campaign"
    );
    let campaign = ready.client.get(&path).await.body["campaign"].clone();
    assert_eq!((&campaign["max_per_minute"], &campaign["tripwire"]["complaint_percent"]), (&Value::Null, &json!(1.0)));
    let alone = ready.client.patch(&path, json!({"variants": null})).await;
    assert_eq!(alone.faults(), [("ab_test".to_owned(), "variants_required".to_owned())]);
    assert_eq!(
        ready.client.patch(&path, json!({"variants": null, "ab_test": null, "not_after": null})).await.status,
        200
    );
    assert_eq!(ready.edge.count("select count(*) from campaign_variants").await, 0);
}

#[tokio::test]
async fn a_launch_tells_how_many_get_each_variant_in_the_test() {
    let ready = Ready::start().await;
    let list = crate::fixtures::audience(&ready.edge.pool, ready.client.tenant, "list", "many", 400).await;
    let id =
        ready.campaign(json!({"list_id": list, "variants": two_variants(), "ab_test": {"test_percent": 50}})).await;
    let path = format!("/v1/campaigns/{id}/launch");
    let dry = ready.client.post(&path, json!({"dry_run": true})).await.body;
    let launched = ready.client.post(&path, json!({"digest": dry["digest"]})).await;
    assert_eq!(launched.status, 202, "{}", launched.body);
    let variants = launched.body["ab_variants"].clone();
    assert_eq!(dry["ab_variants"], variants, "the dry run draws the same");
    let names: Vec<_> = variants
        .as_array()
        .unwrap()
        .iter()
        .map(|variant| (variant["variant"].clone(), variant["name"].clone()))
        .collect();
    assert_eq!(names, [(json!("A"), json!("Control")), (json!("B"), json!("Short"))]);
    let count = |at: usize| variants[at]["count"].as_i64().unwrap();
    // 50 and 150 of 400 are expected; four standard deviations are left for chance.
    assert!((count(0) - 50).abs() < 27 && (count(1) - 150).abs() < 39, "{variants}");
    assert_eq!(
        ready.edge.count("select coalesce(sum(cardinality(contacts)), 0)::bigint from launch_audiences").await,
        400
    );
}

#[tokio::test]
async fn a_launch_sends_the_newest_version_of_a_variants_template() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"subject": "Old"})).await;
    let variants = json!([{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "template_id": template}]);
    let id = ready.campaign(json!({"variants": variants})).await;
    ready.client.patch(&format!("/v1/templates/{template}"), json!({"subject": "New"})).await;
    let launched = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({})).await;
    assert_eq!(launched.status, 202, "{}", launched.body);
    let said: String = sqlx::query_scalar(
        "select c.subject from campaign_variants v join contents c on c.id = v.content_id where v.variant = 'B'",
    )
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap();
    assert_eq!(said, "New");
}

#[tokio::test]
async fn a_draft_keeps_its_archived_template_until_its_words_change() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"subject": "Old"})).await;
    let variants = json!([{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "template_id": template}]);
    let id = ready.campaign(json!({"variants": variants})).await;
    ready.client.delete(&format!("/v1/templates/{template}"), json!({})).await;
    let path = format!("/v1/campaigns/{id}");
    let contents = "select count(*) from contents";
    let before = ready.edge.count(contents).await;
    assert_eq!(ready.client.patch(&path, json!({"name": "Renamed"})).await.status, 200);
    assert_eq!(ready.edge.count(contents).await, before, "nothing is stored again");
    let anew = ready.client.patch(&path, json!({"variants": variants})).await;
    assert_eq!(anew.refusal(), (404, "template_not_found"));
    let launched = ready.client.post(&format!("{path}/launch"), json!({})).await;
    assert_eq!(launched.refusal(), (422, "template_archived"));
    ready.client.patch(&format!("/v1/templates/{template}"), json!({"status": "active"})).await;
    let launched = ready.client.post(&format!("{path}/launch"), json!({})).await;
    assert!(launched.body["error"] != "template_archived", "{}", launched.body);
}

#[tokio::test]
async fn a_campaign_has_one_body_and_names_each_tag_once() {
    let ready = Ready::start().await;
    let template = ready.template(json!({})).await;
    let post = async |with: serde_json::Value| {
        let body = ready.campaign_body(with);
        let answer = ready.client.post("/v1/campaigns", body).await;
        (answer.status.as_u16(), answer.faults().first().cloned().unwrap_or_default())
    };
    let fault = |path: &str, code: &str| (400, (path.to_owned(), code.to_owned()));
    assert_eq!(post(json!({"template_id": template})).await, fault("body_html", "conflict"));
    let own_subject = json!({"template_id": template, "subject": "Own", "body_html": null});
    assert_eq!(post(own_subject).await.0, 201, "a subject may replace the template's");
    let variants = json!([
        {"name": "A", "weight": 1}, {"name": "B", "weight": 1, "template_id": template, "body_html": "<p>B</p>"},
    ]);
    assert_eq!(post(json!({"variants": variants})).await, fault("variants[1].body_html", "conflict"));
    let tag = schemas::new_id();
    let tags = |ids: Vec<uuid::Uuid>| json!({"audience_mode": "tags", "list_id": null, "tag_ids": ids});
    assert_eq!(post(tags(vec![tag, tag])).await, fault("tag_ids", "duplicate"));
    assert_eq!(post(tags(vec![tag; 5_000])).await, fault("tag_ids", "too_many"));
}

#[tokio::test]
async fn a_campaign_is_not_launched_into_a_closed_window() {
    let ready = Ready::start().await;
    let at = Utc::now() + TimeDelta::hours(1);
    let later = (at + TimeDelta::hours(1)).to_rfc3339();
    for (on_miss, refused) in [("skip", true), ("hold", true), ("send", false)] {
        let id = ready.campaign(json!({"not_after": at.to_rfc3339(), "on_miss": on_miss})).await;
        let launched = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({"schedule_for": later})).await;
        if refused {
            assert_eq!(launched.refusal(), (422, "window_missed"));
        } else {
            assert_eq!(launched.status, 202, "{}", launched.body);
        }
    }
}

#[tokio::test]
async fn a_test_is_not_launched_into_a_window_that_closes_before_it_is_decided() {
    let ready = Ready::start().await;
    let variants = json!([{"name": "A", "weight": 1}, {"name": "B", "weight": 1, "subject": "Other"}]);
    // Of a test with everybody nothing waits for the decision.
    let cases = [(99, 1, "skip", true), (99, 1, "send", false), (99, 3, "skip", false), (100, 1, "skip", false)];
    for (percent, hours, on_miss, refused) in cases {
        let test = json!({"test_percent": percent, "winner_metric": "click_rate", "decide_after_minutes": 120});
        let not_after = (Utc::now() + TimeDelta::hours(hours)).to_rfc3339();
        let rules = json!({"ab_test": test, "variants": variants, "not_after": not_after, "on_miss": on_miss});
        let id = ready.campaign(rules).await;
        let launched = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({"dry_run": true})).await;
        if refused {
            assert_eq!(launched.refusal(), (422, "window_missed"));
        } else {
            assert_eq!(launched.status, 200, "{}", launched.body);
        }
    }
}

/// It is quiet where the tenant is, for two hours from now.
async fn begin_quiet_hours(ready: &Ready) {
    let sql = "update tenants
         set quiet_from = (now() at time zone 'utc')::time - interval '1 hour', quiet_by_contact = false,
             quiet_to = (now() at time zone 'utc')::time + interval '2 hours', quiet_for = array['marketing'], timezone = 'UTC'";
    sqlx::query(sql).execute(&ready.edge.pool).await.unwrap();
}

#[tokio::test]
async fn a_launch_whose_mail_all_misses_its_window_is_refused() {
    let ready = Ready::start().await;
    begin_quiet_hours(&ready).await;
    for (hours, on_miss, refused) in [(1, "skip", true), (1, "hold", true), (1, "send", false), (3, "skip", false)] {
        let not_after = (Utc::now() + TimeDelta::hours(hours)).to_rfc3339();
        let id = ready.campaign(json!({"not_after": not_after, "on_miss": on_miss})).await;
        for dry_run in [true, false] {
            let launched = ready.client.post(&format!("/v1/campaigns/{id}/launch"), json!({"dry_run": dry_run})).await;
            if refused {
                assert_eq!(launched.refusal(), (422, "window_missed"));
            } else {
                assert_eq!((&launched.body["queued"], &launched.body["skipped"]), (&json!(3), &json!(0)));
                assert_eq!(launched.body["waiting"][0]["reason"], json!("quiet_hours"), "{}", launched.body);
            }
        }
    }
}

#[tokio::test]
async fn mail_that_misses_its_window_by_local_time_is_skipped() {
    let ready = Ready::start().await;
    let day = (Utc::now() + TimeDelta::days(3)).date_naive();
    let local = json!(format!("{day}T09:00:00"));
    let not_after = format!("{day}T02:00:00Z");
    let draft = async |on_miss: &str| ready.campaign(json!({"not_after": not_after, "on_miss": on_miss})).await;
    for on_miss in ["skip", "hold"] {
        let path = format!("/v1/campaigns/{}/launch", draft(on_miss).await);
        let refused = ready.client.post(&path, json!({"schedule_for_local": local})).await;
        assert_eq!(refused.refusal(), (422, "window_missed"));
    }
    // Nine o'clock comes there fourteen hours before it comes in UTC.
    sqlx::query("update contacts set timezone = 'Pacific/Kiritimati' where address = 'reader1@example.com'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    for (on_miss, queued, skipped) in [("skip", 1, json!({"window_missed": 2})), ("hold", 3, json!({}))] {
        let body = json!({"schedule_for_local": local, "dry_run": true});
        let dry = ready.client.post(&format!("/v1/campaigns/{}/launch", draft(on_miss).await), body).await.body;
        assert_eq!((&dry["queued"], &dry["skipped_by_reason"]), (&json!(queued), &skipped), "{dry}");
    }
}

#[tokio::test]
async fn another_time_is_compared_with_the_window_without_a_count() {
    let ready = Ready::start().await;
    let at = |hours: i64| (Utc::now() + TimeDelta::hours(hours)).to_rfc3339();
    let test = json!({"test_percent": 20, "winner_metric": "click_rate", "decide_after_minutes": 120});
    let tested = json!({"not_after": at(4), "on_miss": "skip", "ab_test": test, "variants": two_variants()});
    for (rules, in_time, too_late) in [(json!({"not_after": at(4), "on_miss": "hold"}), 3, 5), (tested, 1, 3)] {
        let path = format!("/v1/campaigns/{}", ready.campaign(rules).await);
        let launched = ready.client.post(&format!("{path}/launch"), json!({"schedule_for": at(1)})).await;
        assert_eq!(launched.status, 202, "{}", launched.body);
        // A count would wait for this.
        let mut holder = ready.edge.pool.begin().await.unwrap();
        sqlx::query("lock table contacts").execute(&mut *holder).await.unwrap();
        let moved = ready.client.patch(&path, json!({"schedule_for": at(in_time)})).await;
        assert_eq!(moved.status, 200, "{}", moved.body);
        let late = json!({"schedule_for": at(too_late)});
        let refused = ready.client.patch(&path, late.clone()).await;
        assert_eq!(refused.refusal(), (422, "window_missed"));
        holder.rollback().await.unwrap();
        sqlx::query("update requests set state = 'rejected', outcome = 'ledger', announce_after = null")
            .execute(&ready.edge.pool)
            .await
            .unwrap();
        assert_eq!(ready.client.patch(&path, late).await.refusal(), (409, "campaign_already_scheduled"));
    }
}

#[tokio::test]
async fn a_test_is_decided_after_the_quiet_hours_it_waits_for() {
    let ready = Ready::start().await;
    begin_quiet_hours(&ready).await;
    let list = crate::fixtures::audience(&ready.edge.pool, ready.client.tenant, "list", "many", 50).await;
    let test = json!({"test_percent": 50, "winner_metric": "click_rate", "decide_after_minutes": 120});
    for (hours, status) in [(3, 422_u16), (5, 200)] {
        let not_after = (Utc::now() + TimeDelta::hours(hours)).to_rfc3339();
        let rules = json!({"list_id": list, "ab_test": test, "variants": two_variants(), "not_after": not_after});
        let path = format!("/v1/campaigns/{}/launch", ready.campaign(rules).await);
        let dry = ready.client.post(&path, json!({"dry_run": true})).await;
        assert_eq!(dry.status, status, "{}", dry.body);
    }
}

#[tokio::test]
async fn resuming_disarms_the_tripwire_and_waives_the_window() {
    let ready = Ready::start().await;
    for (reason, tripwire) in [("tripwire_bounces", "tripped"), ("window_missed", "armed"), ("requested", "armed")] {
        let id = ready.campaign(json!({})).await;
        sqlx::query(
            "update campaigns set status = 'sending', paused = true, pause_reason = $2, tripwire = $3, not_after = now(), closes_at = now()
             where id = $1::uuid",
        )
        .bind(&id)
        .bind(reason)
        .bind(tripwire)
        .execute(&ready.edge.pool)
        .await
        .unwrap();
        let path = format!("/v1/campaigns/{id}");
        assert_eq!(ready.client.get(&path).await.body["campaign"]["pause_reason"], json!(reason));
        assert_eq!(ready.client.patch(&path, json!({"paused": false})).await.body["paused"], json!(false));
        let (state, closes): (String, bool) =
            sqlx::query_as("select tripwire, closes_at is not null from campaigns where id = $1::uuid")
                .bind(&id)
                .fetch_one(&ready.edge.pool)
                .await
                .unwrap();
        let expected = match reason {
            "tripwire_bounces" => ("disarmed", true),
            "window_missed" => ("armed", false),
            _ => ("armed", true),
        };
        assert_eq!((state.as_str(), closes), expected, "{reason}");
    }
}

#[tokio::test]
async fn a_launch_beyond_the_quota_is_refused_and_a_dry_run_shows_it() {
    let ready = Ready::start().await;
    sqlx::query("insert into send_limits (tenant_id, monthly) values ($1, 2)")
        .bind(ready.client.tenant)
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let id = ready.campaign(json!({})).await;
    let path = format!("/v1/campaigns/{id}/launch");
    let dry = ready.client.post(&path, json!({"dry_run": true})).await;
    assert_eq!(
        (dry.status.as_u16(), &dry.body["send_quota"]["remaining"], &dry.body["send_quota"]["exceeded"]),
        (200, &json!(2), &json!(true))
    );
    let refused = ready.client.post(&path, json!({})).await;
    assert_eq!(refused.refusal(), (429, "send_quota_exceeded"));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(ready.client.get(&format!("/v1/campaigns/{id}")).await.body["campaign"]["status"], json!("draft"));
}

#[rstest]
#[case::fits_into_that_day(3, 202)]
#[case::exceeds_that_day_too(2, 429)]
#[tokio::test]
async fn a_scheduled_launch_counts_against_the_quota_of_its_day(#[case] daily: i64, #[case] status: u16) {
    let ready = Ready::start().await;
    for statement in [
        "insert into send_limits (tenant_id, daily) values ($1, $2)",
        "insert into send_usage (tenant_id, day, shard, used) values ($1, (now() at time zone 'utc')::date, 0, $2)",
    ] {
        sqlx::query(statement).bind(ready.client.tenant).bind(daily).execute(&ready.edge.pool).await.unwrap();
    }
    let path = format!("/v1/campaigns/{}/launch", ready.campaign(json!({})).await);
    let at = (Utc::now() + TimeDelta::days(1)).to_rfc3339();
    let dry = ready.client.post(&path, json!({"schedule_for": at, "dry_run": true})).await;
    assert_eq!(
        (&dry.body["send_quota"]["remaining"], &dry.body["send_quota"]["exceeded"]),
        (&json!(daily), &json!(status == 429))
    );
    assert_eq!(ready.client.post(&path, json!({})).await.refusal(), (429, "send_quota_exceeded"), "today is used up");
    assert_eq!(ready.client.post(&path, json!({"schedule_for": at})).await.status, status);
}
