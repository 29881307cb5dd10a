//! A tenant's profile: what it decides, and who may change it.

use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Timelike, Utc};
use rstest::rstest;
use schemas::Environment;
use serde_json::{Value, json};

use crate::{
    common::{Edge, PRODUCT},
    fixtures::{Ready, domain, sender},
};

#[tokio::test]
async fn a_profile_is_read_as_it_was_changed() {
    let ready = Ready::start().await;
    let (client, pool) = (&ready.client, &ready.edge.pool);
    let before = client.get("/v1/tenant").await.body["tenant"].clone();
    assert_eq!((&before["timezone"], &before["default_sender_id"]), (&json!("UTC"), &json!(ready.sender)));
    let other = sender(pool, client.tenant, "other.test", "verified").await;
    let tracked = domain(pool, client.tenant, "tracked.test", "verified").await;
    let body = json!({
        "timezone": "Europe/Paris", "physical_address": " 1 Main Street\nSpringfield ", "default_sender_id": other,
        "tracking_domain_id": tracked,
    });
    let changed = client.patch("/v1/tenant", body).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    let tenant = client.get("/v1/tenant").await.body["tenant"].clone();
    assert_eq!(tenant, changed.body["tenant"]);
    assert_eq!(
        (&tenant["timezone"], &tenant["physical_address"]),
        (&json!("Europe/Paris"), &json!("1 Main Street\nSpringfield"))
    );
    assert_eq!((&tenant["default_sender_id"], &tenant["tracking_domain_id"]), (&json!(other), &json!(tracked)));
    assert_eq!(ready.edge.count("select count(*) from senders where is_default").await, 1);
    let cleared = client.patch("/v1/tenant", json!({"physical_address": null, "tracking_domain_id": null})).await;
    assert_eq!(cleared.body["tenant"]["physical_address"], Value::Null);
    assert_eq!(cleared.body["tenant"]["timezone"], json!("Europe/Paris"));
    assert_eq!(ready.edge.count("select count(*) from audit_log where action = 'tenant.changed'").await, 2);
}

#[tokio::test]
async fn a_change_of_nothing_only_reads() {
    let ready = Ready::start().await;
    let before = ready.client.get("/v1/tenant").await.body["tenant"].clone();
    let answer = ready.client.patch("/v1/tenant", json!({})).await;
    assert_eq!((answer.status.as_u16(), &answer.body["tenant"]), (200, &before));
    assert_eq!(ready.client.get("/v1/tenant").await.body["tenant"], before);
}

#[rstest]
#[case(json!({"timezone": "Mars/Olympus"}), (400, "validation_failed"))]
#[case(json!({"timezone": "europe/paris"}), (400, "validation_failed"))]
#[case(json!({"physical_address": "a\u{0007}"}), (400, "validation_failed"))]
#[case(json!({"default_sender_id": "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f"}), (404, "sender_not_found"))]
#[case(json!({"tracking_domain_id": "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f"}), (404, "domain_not_found"))]
#[case(json!({"status": "active"}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "attribution": {"click_days": 0}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "attribution": {"delivery_days": 366}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "attribution": {"model": "first"}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "retention": {"requests_days": 6}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "retention": {"imports_days": 0}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "frequency_cap": {"messages": 0, "days": 7}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "frequency_cap": {"messages": 3, "days": 91}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "frequency_cap": {"messages": 3}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "quiet_hours": {"from": "21:00", "to": "21:00"}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "quiet_hours": {"from": "9:00", "to": "24:00"}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "quiet_hours": {"from": "21:00"}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "quiet_hours": {"from": "21:00", "to": "08:00", "time_zone": "UTC"}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "quiet_hours": {"from": "21:00", "to": "08:00", "applies_to": []}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "quiet_hours": {"from": "21:00", "to": "08:00", "applies_to": ["marketing", "marketing"]}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "confirmation": {"days": 0}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "pages": {"button_color": "#ffff00"}}), (400, "validation_failed"))]
#[case(json!({"timezone": "Europe/Paris", "pages": {"logo_url": "http://a.example/x"}}), (400, "validation_failed"))]
#[tokio::test]
async fn a_profile_with_a_fault_is_refused(#[case] change: Value, #[case] expected: (u16, &str)) {
    let edge = Edge::start().await;
    let client = edge.client().await;
    assert_eq!(client.patch("/v1/tenant", change).await.refusal(), expected);
    assert_eq!(edge.count("select count(*) from tenants where timezone <> 'UTC'").await, 0);
}

#[tokio::test]
async fn a_changed_attribution_credits_every_outcome_anew() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let due = "select count(*) from attribution_settings where restate_after is not null";
    let same = client.patch("/v1/tenant", json!({"attribution": {"model": "last_touch", "click_days": 30}})).await;
    assert_eq!(
        same.body["tenant"]["attribution"],
        json!({"model": "last_touch", "click_days": 30, "delivery_days": 7})
    );
    assert_eq!(edge.count(due).await, 0, "nothing has changed");
    let changed = client.patch("/v1/tenant", json!({"attribution": {"model": "linear", "delivery_days": 0}})).await;
    let attribution = json!({"model": "linear", "click_days": 30, "delivery_days": 0});
    assert_eq!(changed.body["tenant"]["attribution"], attribution, "{}", changed.body);
    assert_eq!(client.get("/v1/tenant").await.body["tenant"]["attribution"], attribution);
    assert_eq!(edge.count(due).await, 1);
}

#[tokio::test]
async fn a_tenant_chooses_its_retention_and_takes_it_back() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (change, expected) in [
        (json!({"requests_days": 7}), json!({"requests_days": 7, "imports_days": null})),
        (json!({"imports_days": 1}), json!({"requests_days": 7, "imports_days": 1})),
        (json!({"requests_days": null}), json!({"requests_days": null, "imports_days": 1})),
    ] {
        let changed = client.patch("/v1/tenant", json!({"retention": change})).await;
        assert_eq!(changed.body["tenant"]["retention"], expected, "{}", changed.body);
    }
}

#[tokio::test]
async fn null_takes_each_part_of_a_profile_back() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let parts = ["timezone", "attribution", "retention", "frequency_cap", "quiet_hours", "confirmation", "pages"];
    let before = client.get("/v1/tenant").await.body["tenant"].clone();
    let set = json!({
        "timezone": "Europe/Paris",
        "attribution": {"model": "linear", "click_days": 1, "delivery_days": 0},
        "retention": {"requests_days": 7, "imports_days": 1},
        "frequency_cap": {"messages": 3, "days": 7},
        "quiet_hours": {"from": "21:00", "to": "08:00"},
        "confirmation": {"reminders": 1, "reminder_hours": 48, "days": 14},
        "pages": {"unsubscribe_text": "Bye", "button_color": "#1d4ed8"},
    });
    let inner = json!({
        "attribution": {"model": null, "click_days": null, "delivery_days": null},
        "pages": {"unsubscribe_text": null, "button_color": null},
    });
    let nothing: Value =
        parts.iter().map(|part| ((*part).to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into();
    let changed = client.patch("/v1/tenant", set.clone()).await;
    for part in parts {
        assert_ne!(changed.body["tenant"][part], before[part], "{part}");
    }
    let changed = client.patch("/v1/tenant", inner).await;
    for part in ["attribution", "pages"] {
        assert_eq!(changed.body["tenant"][part], before[part], "{part}");
    }
    client.patch("/v1/tenant", set).await;
    let changed = client.patch("/v1/tenant", nothing).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    for part in parts {
        assert_eq!(changed.body["tenant"][part], before[part], "{part}");
    }
}

#[tokio::test]
async fn the_time_zones_are_read_before_the_tenants_row_is_locked() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    // A look at them fails, and says so.
    sqlx::query("revoke select on pg_timezone_names from public").execute(&edge.pool).await.unwrap();
    let mut fencing = edge.pool.begin().await.unwrap();
    sqlx::query("select from tenants for no key update").execute(&mut *fencing).await.unwrap();
    let changed = client.patch("/v1/tenant", json!({"timezone": "Europe/Paris"}));
    let changed = tokio::time::timeout(Duration::from_secs(20), changed).await.unwrap();
    assert_eq!(changed.refusal(), (500, "internal_error"));
}

#[tokio::test]
async fn a_tenant_sets_a_frequency_cap_and_takes_it_back() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    assert_eq!(client.get("/v1/tenant").await.body["tenant"]["frequency_cap"], Value::Null);
    for cap in [json!({"messages": 3, "days": 7}), json!({"messages": 1, "days": 30}), Value::Null] {
        let changed = client.patch("/v1/tenant", json!({"frequency_cap": cap})).await;
        assert_eq!(changed.body["tenant"]["frequency_cap"], cap, "{}", changed.body);
        let other = client.patch("/v1/tenant", json!({"timezone": "Europe/Paris"})).await;
        assert_eq!(other.body["tenant"]["frequency_cap"], cap);
    }
}

#[tokio::test]
async fn a_tenant_sets_quiet_hours_and_takes_them_back() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    assert_eq!(client.get("/v1/tenant").await.body["tenant"]["quiet_hours"], Value::Null);
    let short = json!({"from": "21:00", "to": "08:00"});
    let night = json!({"from": "21:00", "to": "08:00", "time_zone": "recipient", "applies_to": ["marketing"]});
    let noon =
        json!({"from": "12:00", "to": "13:30", "time_zone": "tenant", "applies_to": ["marketing", "transactional"]});
    for (set, expected) in [(&short, &night), (&noon, &noon), (&Value::Null, &Value::Null)] {
        let changed = client.patch("/v1/tenant", json!({"quiet_hours": set})).await;
        assert_eq!(&changed.body["tenant"]["quiet_hours"], expected, "{}", changed.body);
        let other = client.patch("/v1/tenant", json!({"timezone": "Europe/Paris"})).await;
        assert_eq!(&other.body["tenant"]["quiet_hours"], expected);
    }
}

#[tokio::test]
async fn changed_quiet_hours_wake_the_mail_that_waits_for_their_end() {
    let ready = Ready::start().await;
    let (quiet, by_clock) = (ready.campaign(json!({})).await, ready.campaign(json!({})).await);
    for campaign in [&quiet, &by_clock] {
        ready.batch(campaign, &["queued"]).await;
    }
    let pool = &ready.edge.pool;
    sqlx::query("update batches set state = 'timed', announce_after = now() + interval '1 hour', due_at = now() + interval '1 hour'")
        .execute(pool)
        .await
        .unwrap();
    sqlx::query("update campaigns set scheduled_for_local = now()::timestamp where id = $1::uuid")
        .bind(&by_clock)
        .execute(pool)
        .await
        .unwrap();
    let woken = async || -> Vec<String> {
        sqlx::query_scalar("select campaign_id::text from batches where announce_after <= now() and due_at <= now()")
            .fetch_all(pool)
            .await
            .unwrap()
    };
    ready.client.patch("/v1/tenant", json!({"frequency_cap": {"messages": 1, "days": 1}})).await;
    assert!(woken().await.is_empty());
    let changed = ready.client.patch("/v1/tenant", json!({"quiet_hours": {"from": "21:00", "to": "08:00"}})).await;
    assert_eq!(woken().await, [quiet], "{}", changed.body);
}

#[tokio::test]
async fn quota_and_usage_are_read_with_the_tenant() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let quota = client.get("/v1/tenant").await.body["tenant"]["quota"].clone();
    assert_eq!((&quota["month"]["limit"], &quota["day"]["remaining"]), (&Value::Null, &Value::Null));
    sqlx::query("insert into send_limits (tenant_id, monthly) values ($1, 100)")
        .bind(client.tenant)
        .execute(&edge.pool)
        .await
        .unwrap();
    sqlx::query(
        "insert into send_usage (tenant_id, day, shard, used) values ($1, (now() at time zone 'utc')::date, 0, 40)",
    )
    .bind(client.tenant)
    .execute(&edge.pool)
    .await
    .unwrap();
    let quota = client.get("/v1/tenant").await.body["tenant"]["quota"].clone();
    assert_eq!((&quota["month"]["used"], &quota["month"]["remaining"]), (&json!(40), &json!(60)), "{quota}");
    assert_eq!((&quota["day"]["used"], &quota["day"]["limit"]), (&json!(40), &Value::Null));
}

#[tokio::test]
async fn another_tenants_sender_and_domain_are_not_found() {
    let ready = Ready::start().await;
    let stranger = ready.edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let theirs = domain(&ready.edge.pool, ready.client.tenant, "theirs.test", "verified").await;
    let body = json!({"default_sender_id": ready.sender});
    assert_eq!(stranger.patch("/v1/tenant", body).await.refusal(), (404, "sender_not_found"));
    let body = json!({"tracking_domain_id": theirs});
    assert_eq!(stranger.patch("/v1/tenant", body).await.refusal(), (404, "domain_not_found"));
}

#[tokio::test]
async fn the_address_stays_while_a_sender_relies_on_it() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    domain(&edge.pool, client.tenant, "acme.test", "verified").await;
    client.patch("/v1/tenant", json!({"physical_address": "1 Main Street"})).await;
    assert_eq!(client.post("/v1/senders", json!({"email": "ann@acme.test", "name": "Ann"})).await.status, 200);
    let cleared = client.patch("/v1/tenant", json!({"physical_address": " "})).await;
    assert_eq!(cleared.refusal(), (422, "physical_address_required"));
}

#[tokio::test]
async fn business_days_and_reports_follow_the_tenants_time_zone() {
    let ready = Ready::start().await;
    ready.client.patch("/v1/tenant", json!({"timezone": "Pacific/Auckland"})).await;
    let overview = ready.client.get("/v1/analytics/overview").await.body;
    assert_eq!(overview["window"]["timezone"], json!("Pacific/Auckland"));
    let steps = json!([{"step_type": "wait", "delay_amount": 1, "delay_unit": "business_days"}]);
    let body = json!({"name": "S", "activate": true, "steps": steps});
    let sequence = ready.client.post("/v1/sequences", body).await.text("sequence_id");
    let body = json!({"sequence_id": sequence, "email": "ann@example.com"});
    let due: DateTime<Utc> = ready.client.post("/v1/enrollments", body).await.text("next_action_at").parse().unwrap();
    let (now, due) =
        (Utc::now().with_timezone(&chrono_tz::Pacific::Auckland), due.with_timezone(&chrono_tz::Pacific::Auckland));
    assert!(due.weekday().num_days_from_monday() < 5, "{due}");
    assert_eq!(due.hour(), now.hour(), "the same time of day there");
    assert!(due - now > TimeDelta::hours(22));
}

#[tokio::test]
async fn products_that_share_a_tenant_share_its_profile_and_keep_their_own_links() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    edge.share(client.tenant, "shop", Environment::Production, "shop-1").await;
    let shop = edge.client_for("shop", Environment::Production, "shop-1").await;
    shop.patch("/v1/tenant", json!({"timezone": "Europe/Paris"})).await;
    let seen = client.get("/v1/tenant").await.body["tenant"].clone();
    assert_eq!((&seen["engine_tenant_id"], &seen["timezone"]), (&json!(shop.tenant), &json!("Europe/Paris")));
    // A repeated link brings the product's own link up to date, and leaves what the other product shares.
    let body = json!({"product_tenant_id": "shop-1", "email": "new@example.com", "org_name": "Shop"});
    let linked = shop.send(shop.signed(http::Method::POST, "/v1/tenants/link", body.to_string().as_bytes())).await;
    assert_eq!((linked.status.as_u16(), &linked.body["already_linked"]), (200, &json!(true)), "{}", linked.body);
    let seen = client.get("/v1/tenant").await.body["tenant"].clone();
    assert_eq!((&seen["owner_email"], &seen["org_name"]), (&json!("owner@example.com"), &Value::Null));
    assert_eq!(edge.count("select count(*) from tenant_links where owner_email = 'new@example.com'").await, 1);
}
