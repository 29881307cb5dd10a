//! From a campaign to its revenue: clicks that become known late, a stage killed under load, another model, and the books.

use std::time::Duration;

use pipeline::{Rig, eventually, process};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::recount::recount;

const PEOPLE: usize = 40;
/// Outcomes of each of them.
const EACH: usize = 5;
/// How many of them click.
const CLICKERS: usize = 6;
const HTML: &str = r#"<p>Hello {{ first_name }}, <a href="https://shop.example/quote">your quote</a></p>"#;

async fn outcome(rig: &Rig, address: &str, event: &str) -> Uuid {
    let body = json!({
        "contact_email": address, "outcome_type": "premium", "premium_amount": 100.01, "source_event_id": event,
    });
    let answer = rig.client.post("/v1/outcomes", body).await.expect(200);
    assert_eq!(answer["contact_matched"], true);
    answer["outcome_id"].as_str().unwrap().parse().unwrap()
}

async fn all_credited_by(rig: &Rig, rule: &'static str, count: i64) {
    eventually(&format!("{count} outcomes to be credited by {rule}"), Duration::from_secs(60), || async {
        let credited: i64 =
            sqlx::query_scalar("select count(*) from outcomes where rule = $1 and booked_type is not null")
                .bind(rule)
                .fetch_one(&rig.pool)
                .await
                .ok()?;
        (credited == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_is_credited_with_what_came_of_it_whoever_is_killed_and_however_late_a_click_is_known() {
    let mut rig = Rig::shared().await;
    rig.start_separate().await;
    let (list, addresses) = rig.list_of(PEOPLE, "revenue", "example.com").await;
    let campaign = rig.campaign(list, "Your quote", HTML).await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", Duration::from_secs(60)).await;

    // Nobody records what recipients do, for now. A click within three seconds of the mail would be a scanner's.
    rig.kill9("engagement");
    eventually("a person's time to pass", Duration::from_secs(60), || async {
        (rig.number("select count(*) from sends where decided_at > now() - interval '4 seconds'").await == 0)
            .then_some(())
    })
    .await;
    for address in &addresses[..CLICKERS] {
        rig.click(address).await;
    }

    // Outcomes come in while their stage is killed, twice.
    for round in 0..EACH {
        if round % 2 == 1 {
            rig.kill9("attribution");
        }
        let calls = addresses.iter().enumerate().map(|(n, address)| {
            let rig = &rig;
            async move { outcome(rig, address, &format!("event-{n}-{round}")).await }
        });
        futures::future::join_all(calls).await;
        if round % 2 == 1 {
            rig.start("attribution", &["stage", "attribution"]).await;
        }
    }
    let all = i64::try_from(PEOPLE * EACH).unwrap();
    all_credited_by(&rig, "delivered", all).await;
    assert_eq!(rig.number("select count(*) from outcomes where revision <> 1").await, 0, "each exactly once");
    assert_eq!(recount(&rig).0, Vec::<Value>::new());

    // The clicks are made known: those outcomes are restated, and nobody else's.
    let clicked = i64::try_from(CLICKERS * EACH).unwrap();
    rig.start("engagement", &["stage", "engagement"]).await;
    all_credited_by(&rig, "human_click", clicked).await;
    assert_eq!(rig.number("select count(*) from outcomes where rule = 'delivered'").await, all - clicked);

    let report = rig.client.get(&format!("/v1/analytics/campaigns/{campaign}"), &[]).await.expect(200);
    assert_eq!(report["revenue_amount"].to_string(), "20002", "two hundred times 100.01, to the cent");
    assert_eq!(report["outcomes"][3]["outcomes"], all);
    let first = outcome(&rig, &addresses[0], "event-0-0").await;
    let shown = rig.client.get(&format!("/v1/outcomes/{first}"), &[]).await.expect(200);
    let credit = &shown["outcome"]["credits"][0];
    assert_eq!(credit["evidence"]["url"], "https://shop.example/quote", "{shown}");
    assert_eq!((&credit["campaign_id"], &credit["share"]), (&json!(campaign), &json!(1.0)));
    another_model_restates_and_a_broken_total_is_found(&rig, first).await;
}

async fn another_model_restates_and_a_broken_total_is_found(rig: &Rig, outcome: Uuid) {
    let tenant: Uuid = sqlx::query_scalar("select tenant_id from outcomes where id = $1")
        .bind(outcome)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    let tenant = tenant.to_string();
    // Deliveries do not count any more: those outcomes lose their credit.
    let arguments = ["tenant", "set", &tenant, r#"attribution:={"model":"linear","delivery_days":0}"#];
    process::run(&arguments, &rig.operator_env());
    eventually("all to be restated", Duration::from_secs(60), || async {
        (rig.number("select count(*) from outcomes where model <> 'linear' or rule = 'delivered'").await == 0)
            .then_some(())
    })
    .await;
    assert_eq!(recount(rig).0, Vec::<Value>::new());
    sqlx::query("update campaign_outcomes set premium = premium + 1").execute(&rig.pool).await.unwrap();
    sqlx::query("update outcome_hours set outcomes = outcomes - 1 where kind = 'campaign'")
        .execute(&rig.pool)
        .await
        .unwrap();
    let mut named: Vec<String> =
        recount(rig).0.iter().map(|difference| difference["counter"].as_str().unwrap().to_owned()).collect();
    named.sort_unstable();
    // The test may have gone over an hour's end.
    named.dedup();
    assert_eq!(named, ["premium outcomes", "premium premium"]);
}
