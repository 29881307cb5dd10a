//! Reports, from totals and batches; by tags from requests and their sends.

use schemas::{SendId, messages::MailOptions};
use serde_json::{Value, json};
use sqlx::{PgPool, types::Json};
use uuid::Uuid;

use crate::{common::Client, fixtures::Ready};

async fn total(pool: &PgPool, tenant: Uuid, hour: &str, kind: &str, event: &str, count: i64) {
    let sql =
        "insert into rollups (tenant_id, hour, kind, event, shard, count) values ($1, $2::timestamptz, $3, $4, 0, $5)
         on conflict (tenant_id, hour, kind, event, shard) do update set count = rollups.count + excluded.count";
    stage_rig::run!(pool, sql, [tenant, hour, kind, event, count]);
}

async fn report(client: &Client, query: &str) -> Value {
    let answer = client.get(&format!("/v1/analytics/overview{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn a_day_is_one_of_the_tenants_time_zone() {
    let ready = Ready::start().await;
    let (pool, tenant) = (&ready.edge.pool, ready.client.tenant);
    sqlx::query("update tenants set timezone = 'America/New_York'").execute(pool).await.unwrap();
    // Two in the morning of the 3rd in UTC is the evening of the 2nd, a Monday, in New York.
    total(pool, tenant, "2026-03-03T02:00:00Z", "campaign", "sent", 90).await;
    total(pool, tenant, "2026-03-03T02:00:00Z", "campaign", "failed", 10).await;
    total(pool, tenant, "2026-03-03T02:00:00Z", "campaign", "bounced", 5).await;
    total(pool, tenant, "2026-03-03T02:00:00Z", "campaign", "delivered", 80).await;
    total(pool, tenant, "2026-03-03T02:00:00Z", "campaign", "confirmed", 80).await;
    total(pool, tenant, "2026-03-03T05:00:00Z", "campaign", "opened", 30).await;
    total(pool, tenant, "2026-03-03T05:00:00Z", "campaign", "opened_human", 9).await;
    total(pool, tenant, "2026-03-03T05:00:00Z", "campaign", "opened_total", 77).await;
    total(pool, tenant, "2026-03-03T12:00:00Z", "transactional", "sent", 10).await;
    total(pool, tenant, "2026-03-03T12:00:00Z", "transactional", "delivered", 10).await;
    total(pool, tenant, "2026-03-03T12:00:00Z", "failure", "hard", 10).await;
    total(pool, tenant, "2026-03-03T12:00:00Z", "campaign", "bounced_soft", 4).await;
    total(pool, tenant, "2026-03-03T12:00:00Z", "campaign", "bounced_hard", 1).await;
    total(pool, tenant, "2026-03-03T12:00:00Z", "campaign", "replied", 6).await;
    total(pool, tenant, "2026-03-03T12:00:00Z", "suppression", "unsubscribe", 2).await;
    total(pool, tenant, "2026-04-03T12:00:00Z", "campaign", "sent", 1_000).await;
    let body = report(&ready.client, "?from=2026-03-02T05:00:00Z&to=2026-03-04T05:00:00Z").await;
    assert_eq!(
        body["window"],
        json!({"from": "2026-03-02T05:00:00.000Z", "to": "2026-03-04T05:00:00.000Z", "timezone": "America/New_York"})
    );
    let report = &body["report"];
    let days: Vec<(&str, i64, i64)> = report["daily"]
        .as_array()
        .unwrap()
        .iter()
        .map(|day| (day["date"].as_str().unwrap(), day["sent"].as_i64().unwrap(), day["opened"].as_i64().unwrap()))
        .collect();
    assert_eq!(days, [("2026-03-02", 90, 0), ("2026-03-03", 10, 30)]);
    let week = &report["day_of_week"];
    assert_eq!(
        (&week[0]["day"], &week[0]["sent"], &week[1]["opened_human"], &week[6]["sent"]),
        (&json!("monday"), &json!(90), &json!(9), &json!(0))
    );
    let triggers: Vec<(&str, i64)> = report["triggers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|trigger| (trigger["trigger"].as_str().unwrap(), trigger["sent"].as_i64().unwrap()))
        .collect();
    assert_eq!(triggers, [("campaign", 90), ("sequence", 0), ("transactional", 10), ("one_off", 0)]);
    let totals = &report["totals"];
    assert_eq!(
        (&totals["total"], &totals["sent"], &totals["delivered"], &totals["opened_total"]),
        (&json!(110), &json!(100), &json!(90), &json!(77))
    );
    assert_eq!((&totals["delivered_confirmed"], &report["delivered_basis"]), (&json!(80), &json!("mixed")));
    assert_eq!((&report["rates"]["bounce_rate"], &report["rates"]["open_rate_human"]), (&json!(0.0476), &json!(0.1)));
    assert_eq!(report["rates"]["delivery_rate"], json!(0.8182));
    assert_eq!(report["suppressions"], json!([{"reason": "unsubscribe", "total": 0, "added": 2}]));
    let bounces =
        json!([{"class": "hard", "count": 11}, {"class": "soft", "count": 4}, {"class": "block", "count": 0}]);
    assert_eq!((&report["bounces"], &totals["replied"]), (&bounces, &json!(6)));
    assert!(body["notes"].as_array().unwrap().len() >= 3);
}

#[tokio::test]
async fn days_on_which_clocks_change_have_23_and_25_hours() {
    let ready = Ready::start().await;
    let (pool, tenant) = (&ready.edge.pool, ready.client.tenant);
    sqlx::query("update tenants set timezone = 'Europe/Berlin'").execute(pool).await.unwrap();
    // One mail in every hour of UTC around both changes of 2026: 29 March, a Sunday, and 25 October, one too.
    for (first, hours, expected) in [
        ("2026-03-27T23:00:00Z", 71, [("2026-03-28", 24), ("2026-03-29", 23), ("2026-03-30", 24)]),
        ("2026-10-23T22:00:00Z", 73, [("2026-10-24", 24), ("2026-10-25", 25), ("2026-10-26", 24)]),
    ] {
        let first: chrono::DateTime<chrono::Utc> = first.parse().unwrap();
        for hour in 0..hours {
            let at = first + chrono::TimeDelta::hours(hour);
            total(pool, tenant, &at.to_rfc3339(), "campaign", "sent", 1).await;
        }
        let to = first + chrono::TimeDelta::hours(hours);
        let window = format!("?from={}&to={}", first.format("%FT%TZ"), to.format("%FT%TZ"));
        let body = report(&ready.client, &window).await;
        let daily = body["report"]["daily"].as_array().unwrap();
        let days: Vec<(&str, i64)> =
            daily.iter().map(|day| (day["date"].as_str().unwrap(), day["sent"].as_i64().unwrap())).collect();
        assert_eq!(days, expected);
        let sunday = &body["report"]["day_of_week"][6];
        assert_eq!((&sunday["day"], &sunday["sent"]), (&json!("sunday"), &json!(expected[1].1)));
    }
}

#[tokio::test]
async fn the_default_is_the_trailing_30_days_of_this_tenant_only() {
    let ready = Ready::start().await;
    let other = ready.edge.client_for("crm", ready.client.environment, "tenant-2").await;
    let now = chrono::Utc::now();
    for (tenant, days, count) in [(ready.client.tenant, 1, 3), (ready.client.tenant, 40, 100), (other.tenant, 1, 1_000)]
    {
        let hour = (now - chrono::TimeDelta::days(days)).format("%Y-%m-%dT%H:00:00Z").to_string();
        total(&ready.edge.pool, tenant, &hour, "campaign", "sent", count).await;
    }
    let body = report(&ready.client, "").await;
    assert_eq!(body["report"]["totals"]["sent"], 3);
    assert!((30..=32).contains(&body["report"]["daily"].as_array().unwrap().len()));
}

#[tokio::test]
async fn suppressions_are_counted_whether_or_not_the_log_is_folded() {
    let ready = Ready::start().await;
    let items: Vec<Value> = (0..5).map(|n| json!({"email": format!("s{n}@example.com"), "reason": "manual"})).collect();
    let answer = ready.client.post("/v1/suppressions", json!({"suppressions": items})).await;
    assert!(answer.status.is_success(), "{}", answer.body);
    sqlx::query("update suppressions set expires_at = now() - interval '1 minute' where address = 's0@example.com'")
        .execute(&ready.edge.pool)
        .await
        .unwrap();
    let body = report(&ready.client, "").await;
    assert_eq!(body["report"]["suppressions"], json!([{"reason": "manual", "total": 4, "added": 5}]));
}

#[tokio::test]
async fn a_window_that_is_none_is_refused_with_its_parameter() {
    let ready = Ready::start().await;
    for (query, path, code) in [
        ("?from=yesterday", "from", "invalid"),
        ("?to=2026-03-01", "to", "invalid"),
        ("?from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z", "from", "out_of_range"),
        ("?colour=red", "colour", "unknown_field"),
    ] {
        let answer = ready.client.get(&format!("/v1/analytics/overview{query}")).await;
        assert_eq!(
            (answer.refusal(), answer.faults()),
            ((400, "validation_failed"), vec![(path.to_owned(), code.to_owned())]),
            "{query}"
        );
    }
}

/// Sets counters of a campaign's only batch.
async fn book(pool: &PgPool, campaign: &str, sql: &str) {
    let statement = format!("update batches set {sql} where campaign_id = $1::uuid");
    sqlx::query(sqlx::AssertSqlSafe(statement)).bind(campaign).execute(pool).await.unwrap();
}

#[tokio::test]
async fn a_campaign_is_reported_from_its_batches() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    let path = format!("/v1/analytics/campaigns/{campaign}");
    let draft = ready.client.get(&path).await;
    assert_eq!((draft.status.as_u16(), &draft.body["totals"]["total"]), (200, &json!(0)), "{}", draft.body);
    ready.batch(&campaign, &["sent", "sent", "skipped"]).await;
    book(&ready.edge.pool, &campaign, "opened = 2, opened_human = 1, clicked = 1, clicked_human = 1, unsubscribed = 1")
        .await;
    let body = ready.client.get(&path).await.body;
    let totals = &body["totals"];
    assert_eq!((&totals["total"], &totals["delivered"], &totals["skipped"]), (&json!(3), &json!(2), &json!(1)));
    assert_eq!(
        (&totals["opened"], &totals["opened_human"], &body["rates"]["click_rate"]),
        (&json!(2), &json!(1), &json!(0.5))
    );
    assert_eq!(body["delivered_basis"], json!("accepted"));
    assert!(body.get("variants").is_none() && body.get("winner").is_none(), "{body}");
    // A provider's mail counts when the provider has confirmed it, and one that bounced does not.
    book(&ready.edge.pool, &campaign, "delivered = 1, confirmed = 1, bounced = 1").await;
    let body = ready.client.get(&path).await.body;
    let totals = &body["totals"];
    assert_eq!(
        (&totals["sent"], &totals["delivered"], &totals["delivered_confirmed"]),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!((&body["delivered_basis"], &body["rates"]["delivery_rate"]), (&json!("confirmed"), &json!(0.5)));
    let counts = &ready.client.get(&format!("/v1/campaigns/{campaign}")).await.body["send_counts"];
    assert_eq!((&counts["delivered"], &counts["delivered_confirmed"]), (&json!(1), &json!(1)));
    let other = ready.edge.client_for("crm", ready.client.environment, "tenant-2").await;
    assert_eq!(other.get(&path).await.refusal(), (404, "campaign_not_found"));
    assert_eq!(ready.client.get("/v1/analytics/campaigns/none").await.refusal(), (404, "campaign_not_found"));
}

#[tokio::test]
async fn variants_and_winner_appear_when_a_test_ran() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    ready.batch(&campaign, &["sent", "sent"]).await;
    book(&ready.edge.pool, &campaign, "variant = 'A', clicked = 1, clicked_human = 1").await;
    sqlx::query(
        "insert into campaign_variants (tenant_id, campaign_id, variant, name, weight, content_id)
         select tenant_id, id, v, 'Subject ' || v, 1, content_id from campaigns cross join unnest(array['A', 'B']) v
         where id = $1::uuid",
    )
    .bind(&campaign)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let set = |sql: &'static str| sqlx::query(sql).bind(campaign.clone()).execute(&ready.edge.pool);
    set("update campaigns set launched_at = now() where id = $1::uuid").await.unwrap();
    let split = ready.client.get(&format!("/v1/analytics/campaigns/{campaign}")).await.body;
    assert_eq!(
        (split["variants"].as_array().map(Vec::len), &split["winner"]),
        (Some(2), &json!(null)),
        "nobody decides a mere split"
    );
    assert!(split["notes"].to_string().contains("without ab_test"), "{split}");
    set("update campaigns set test_percent = 20, winner_metric = 'click_rate', decide_after_minutes = 60, launched_at = now() where id = $1::uuid").await.unwrap();
    let path = format!("/v1/analytics/campaigns/{campaign}");
    let body = ready.client.get(&path).await.body;
    let variants: Vec<(&str, &str, i64)> = body["variants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| (v["variant"].as_str().unwrap(), v["name"].as_str().unwrap(), v["clicked_human"].as_i64().unwrap()))
        .collect();
    assert_eq!(variants, [("A", "Subject A", 1), ("B", "Subject B", 0)]);
    assert_eq!(body["winner"], json!(null));
    assert!(body["notes"].to_string().contains("not decided yet"));
    set("update campaigns set winner = 'A', decided_at = now(), winner_reason = 'highest_rate' where id = $1::uuid")
        .await
        .unwrap();
    let body = ready.client.get(&path).await.body;
    assert_eq!((&body["winner"]["variant"], &body["winner"]["name"]), (&json!("A"), &json!("Subject A")));
    assert!(body["notes"].to_string().contains("decided by clicks by people per message sent: variant A had most"));
    for (reason, said) in
        [("tie", "as many clicks"), ("too_little_data", "needs 20 messages sent of each variant and 5 responses")]
    {
        sqlx::query("update campaigns set winner_reason = $2 where id = $1::uuid")
            .bind(&campaign)
            .bind(reason)
            .execute(&ready.edge.pool)
            .await
            .unwrap();
        let body = ready.client.get(&path).await.body;
        assert_eq!(body["winner"], json!(null), "{reason}");
        let notes = body["notes"].to_string();
        assert!(notes.contains(said) && notes.contains("was sent variant A"), "{reason}: {notes}");
    }
    // A test of the whole audience leaves no rest.
    let campaign_path = format!("/v1/campaigns/{campaign}");
    assert_eq!(ready.client.get(&campaign_path).await.body["campaign"]["ab_test"]["winner"], json!("A"));
    set("update campaigns set test_percent = 100 where id = $1::uuid").await.unwrap();
    let notes = ready.client.get(&path).await.body["notes"].to_string();
    assert!(notes.contains("needs 20 messages") && !notes.contains("was sent variant"), "{notes}");
    assert_eq!(ready.client.get(&campaign_path).await.body["campaign"]["ab_test"]["winner"], json!(null));
}

/// Transactional mail that was made so many days ago. A message is a batch of one; the table itself tells of what becomes of it.
async fn transactional_mail(ready: &Ready, template: &str, days_ago: &[i32]) {
    let sql =
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, size, queued, created_at)
         select $1, gen_random_uuid(), date_trunc('month', now()), 'transactional', 'priority', 'transactional', t.content_id, $3, 1, 1,
                now() - make_interval(days => d)
         from templates t cross join unnest($4::int[]) d where t.id = $2::uuid";
    stage_rig::run!(&ready.edge.pool, sql, [ready.client.tenant, template, ready.sender, days_ago]);
}

#[tokio::test]
async fn a_late_bounce_counts_with_the_hour_of_its_mail() {
    let ready = Ready::start().await;
    let template = ready.template(json!({"name": "Receipt", "template_type": "transactional"})).await;
    transactional_mail(&ready, &template, &[1, 1, 0]).await;
    for sql in [
        "update batches set queued = 0, sent = 1, delivered = 1",
        "update batches set delivered = 0, bounced = 1 where created_at < now() - interval '12 hours'",
    ] {
        sqlx::query(sql).execute(&ready.edge.pool).await.unwrap();
    }
    let today = (chrono::Utc::now() - chrono::TimeDelta::hours(1)).format("?from=%FT%TZ").to_string();
    for (query, expected) in [(today.as_str(), [1, 1, 0]), ("", [3, 1, 2])] {
        let body = report(&ready.client, query).await;
        let totals = &body["report"]["top_messages"][0]["totals"];
        assert_eq!(["sent", "delivered", "bounced"].map(|name| totals[name].clone()), expected, "{query}: {totals}");
    }
}

#[tokio::test]
async fn top_messages_are_campaigns_and_templates_by_human_clicks() {
    let ready = Ready::start().await;
    let pool = &ready.edge.pool;
    let campaign = ready.campaign(json!({"name": "Spring"})).await;
    ready.batch(&campaign, &["sent", "sent"]).await;
    book(pool, &campaign, "clicked_human = 1").await;
    sqlx::query("update campaigns set launched_at = now()").execute(pool).await.unwrap();
    let template = ready.template(json!({"name": "Receipt", "template_type": "transactional"})).await;
    transactional_mail(&ready, &template, &[0, 0, 0]).await;
    for change in ["queued = 0, sent = 1", "opened = 1, clicked = 1, clicked_human = 1"] {
        let statement = format!("update batches set {change} where kind = 'transactional'");
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(pool).await.unwrap();
    }
    let body = report(&ready.client, "").await;
    let top: Vec<(&str, &str, i64, i64)> = body["report"]["top_messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let totals = &message["totals"];
            (
                message["kind"].as_str().unwrap(),
                message["name"].as_str().unwrap(),
                totals["sent"].as_i64().unwrap(),
                totals["clicked_human"].as_i64().unwrap(),
            )
        })
        .collect();
    assert_eq!(top, [("template", "Receipt", 3, 3), ("campaign", "Spring", 2, 1)]);
}

/// A mail with these tags, with a send in each of these states: the first is the recipient's, the others are copies'. Answers its id.
async fn tagged(pool: &PgPool, tenant: Uuid, id: Uuid, tags: &[&str], states: &[&str]) -> Uuid {
    let options = MailOptions { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..MailOptions::default() };
    let sql = "insert into requests (tenant_id, id, product, environment, kind, payload, options, state)
         values ($1, $2, 'crm', 'production', 'transactional', '{}', $3, 'handled')";
    stage_rig::run!(pool, sql, [tenant, id, Json(options)]);
    for (ordinal, state) in (0..).zip(states) {
        let sql = "insert into sends (tenant_id, id, month, request_id, contact_id, state, decided_at, provider)
             values ($1, $2, $3, $4, gen_random_uuid(), $5, now(), 'smtp')";
        stage_rig::run!(pool, sql, [tenant, SendId::of(id, ordinal).0, schemas::month_of(id), id, state]);
    }
    id
}

/// The report by tags, and of each tag what the caller picks.
async fn tag_report(client: &Client, query: &str, pick: &[&str]) -> (i64, Vec<(String, Vec<Value>)>) {
    let answer = client.get(&format!("/v1/analytics/tags{query}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let tags = answer.body["tags"].as_array().unwrap().iter();
    let picked = |tag: &Value| pick.iter().map(|name| tag[*name].clone()).collect::<Vec<Value>>();
    let tags = tags.map(|tag| (tag["tag"].as_str().unwrap().to_owned(), picked(tag))).collect();
    (answer.body["tag_count"].as_i64().unwrap(), tags)
}

#[tokio::test]
async fn tags_are_reported_with_what_became_of_their_mail() {
    let ready = Ready::start().await;
    let (pool, tenant) = (&ready.edge.pool, ready.client.tenant);
    let other = ready.edge.client_for("crm", ready.client.environment, "tenant-2").await;
    let now = schemas::new_batch_id;
    let opened = tagged(pool, tenant, now(), &["receipt", "shop 1"], &["sent", "sent"]).await;
    let bounced = tagged(pool, tenant, now(), &["receipt"], &["sent"]).await;
    let confirmed = tagged(pool, tenant, now(), &["receipt"], &["sent"]).await;
    tagged(pool, tenant, now(), &["reset"], &["failed", "expired", "skipped", "cancelled", "unknown", "queued"]).await;
    tagged(pool, tenant, now(), &[], &["sent"]).await;
    tagged(pool, other.tenant, now(), &["theirs", "receipt"], &["sent"]).await;
    let later = chrono::Utc::now() + chrono::TimeDelta::days(2);
    tagged(pool, tenant, schemas::ids::batch_id_due(later), &["later"], &["queued"]).await;
    for (id, change) in [
        (opened, "opened_at = now(), clicked_at = now(), human_clicked_at = now(), unsubscribed_at = now()"),
        (bounced, "bounced_at = now(), complained_at = now()"),
        (
            confirmed,
            "provider = 'ses', delivered_at = now(), opened_at = now(), human_opened_at = now(), replied_at = now()",
        ),
    ] {
        let statement = format!("update sends set {change} where id = $1");
        sqlx::query(sqlx::AssertSqlSafe(statement)).bind(id).execute(pool).await.unwrap();
    }
    let decided = ["total", "sent", "delivered", "delivered_confirmed", "failed", "unknown", "skipped", "bounced"];
    let numbers = |numbers: &[i64]| numbers.iter().map(|number| json!(number)).collect::<Vec<_>>();
    let reset = ("reset".to_owned(), numbers(&[6, 0, 0, 0, 2, 1, 2, 0]));
    let expected = vec![
        reset.clone(),
        ("receipt".to_owned(), numbers(&[4, 4, 3, 1, 0, 0, 0, 1])),
        ("shop 1".to_owned(), numbers(&[2, 2, 2, 0, 0, 0, 0, 0])),
    ];
    assert_eq!(tag_report(&ready.client, "", &decided).await, (3, expected), "the most used first");
    let facts = ["complained", "opened", "opened_human", "clicked", "clicked_human", "unsubscribed", "replied"];
    let facts = &facts;
    let expected = |facts: &[i64]| (1, vec![("receipt".to_owned(), numbers(facts))]);
    assert_eq!(tag_report(&ready.client, "?tag=receipt", facts).await, expected(&[1, 2, 1, 1, 1, 1, 1]));
    assert_eq!(tag_report(&ready.client, "?tag=shop%201", &["sent"]).await.1[0].1, [json!(2)]);
    assert_eq!(tag_report(&ready.client, "?tag=theirs", &[]).await, (0, Vec::new()));
    assert_eq!(tag_report(&other, "?tag=receipt", facts).await, expected(&[0; 7]));
    // Scheduled mail counts at the time when it is due.
    let to = (later + chrono::TimeDelta::hours(1)).format("%FT%TZ");
    let from = (later - chrono::TimeDelta::hours(1)).format("%FT%TZ");
    assert_eq!(
        tag_report(&ready.client, &format!("?from={from}&to={to}"), &["total", "sent"]).await,
        (1, vec![("later".to_owned(), numbers(&[1, 0]))])
    );
    // A mail is in the report as long as its request is kept.
    sqlx::query("delete from requests where not options @> '{\"tags\": [\"reset\"]}'").execute(pool).await.unwrap();
    let year = format!("?from={}", (chrono::Utc::now() - chrono::TimeDelta::days(365)).format("%FT%TZ"));
    assert_eq!(tag_report(&ready.client, &year, &decided).await, (1, vec![reset]));
}

#[tokio::test]
async fn more_tags_than_a_report_holds_are_counted() {
    let ready = Ready::start().await;
    let tags: Vec<String> = (0..101).map(|n| format!("order-{n:03}")).collect();
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    tagged(&ready.edge.pool, ready.client.tenant, schemas::new_batch_id(), &tags, &["sent"]).await;
    tagged(&ready.edge.pool, ready.client.tenant, schemas::new_batch_id(), &tags[100..], &["sent"]).await;
    let (count, found) = tag_report(&ready.client, "", &["sent"]).await;
    assert_eq!((count, found.len()), (101, 100));
    assert_eq!(found[0], ("order-100".to_owned(), vec![json!(2)]));
    assert_eq!(found[99], ("order-098".to_owned(), vec![json!(1)]));
}

#[tokio::test]
async fn a_tag_that_is_none_is_refused_with_the_windows_faults() {
    let ready = Ready::start().await;
    let long = format!("?tag={}", "x".repeat(65));
    for (query, faults) in [
        ("?tag=", vec![("tag", "empty")]),
        (long.as_str(), vec![("tag", "too_long")]),
        ("?tag=&from=yesterday", vec![("from", "invalid"), ("tag", "empty")]),
        ("?from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z", vec![("from", "out_of_range")]),
        ("?tags=receipt", vec![("tags", "unknown_field")]),
    ] {
        let answer = ready.client.get(&format!("/v1/analytics/tags{query}")).await;
        let faults: Vec<_> = faults.into_iter().map(|(path, code)| (path.to_owned(), code.to_owned())).collect();
        assert_eq!((answer.refusal(), answer.faults()), ((400, "validation_failed"), faults), "{query}");
    }
}

/// A report of a year costs what its totals cost, however many sends they count.
#[tokio::test]
async fn a_report_reads_no_send_and_no_event() {
    let ready = Ready::start().await;
    let campaign = ready.campaign(json!({})).await;
    sqlx::query(
        "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, size, sent,
                              opened, opened_human, clicked, clicked_human, done_at)
         select c.tenant_id, gen_random_uuid(), date_trunc('month', now()), 'campaign', 'bulk', classification, c.id, content_id,
                sender_profile_id, 'done', 500, 500, 200, 90, 40, 30, now()
         from campaigns c cross join generate_series(1, 2000) where c.id = $1::uuid",
    )
    .bind(&campaign)
    .execute(&ready.edge.pool)
    .await
    .unwrap();
    let owner = sqlx::PgPool::connect(&ready.edge.database.url()).await.unwrap();
    sqlx::query("revoke select on sends, events from postrider_ingress").execute(&owner).await.unwrap();
    let answer = ready.client.get("/v1/analytics/overview").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = ready.client.get(&format!("/v1/analytics/campaigns/{campaign}")).await;
    assert_eq!(answer.body["totals"]["sent"], json!(1_000_000), "{}", answer.body);
}
