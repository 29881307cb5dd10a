//! `postrider recount` over a campaign that went out.

use std::{process::Command, time::Duration};

use pipeline::{Rig, eventually, process};
use serde_json::Value;

/// What differs, by the command, and whether it ended well.
pub(crate) fn recount(rig: &Rig) -> (Vec<Value>, bool) {
    let url = "POSTRIDER_DATABASE_URL";
    let output = Command::new(process::binary()).args(["recount", "--json"]).env(url, &rig.env[url]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), output.status.success())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_counter_equals_its_recount_and_one_that_does_not_is_named() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(5, "recount", "example.com").await;
    let refused = "reject-550@example.com";
    rig.client.post("/v1/suppressions", serde_json::json!({"email": addresses[0], "reason": "manual"})).await;
    let member = serde_json::json!({"email": refused, "lists": [list]});
    rig.client.post("/v1/contacts", member).await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello <a href=\"https://example.com/\">you</a></p>").await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    assert_eq!(recount(&rig), (Vec::new(), true));

    sqlx::query("update batches set opened = opened + 1 where campaign_id = $1")
        .bind(campaign)
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query("update rollups set count = count + 2 where event = 'sent'").execute(&rig.pool).await.unwrap();
    sqlx::query(
        "insert into audience_member_changes (tenant_id, audience_id, change) select tenant_id, id, 1 from audiences where id = $1",
    )
    .bind(list)
    .execute(&rig.pool)
    .await
    .unwrap();
    let (found, well) = recount(&rig);
    let mut named: Vec<&str> = found.iter().map(|difference| difference["counter"].as_str().unwrap()).collect();
    named.sort_unstable();
    assert_eq!((named, well), (vec!["members", "opened", "sent"], false), "{found:?}");

    // What is folded in the background is folded right, too.
    eventually("the log of suppressions to be folded", Duration::from_secs(60), || async {
        let left: i64 =
            sqlx::query_scalar("select count(*) from suppression_changes").fetch_one(&rig.pool).await.ok()?;
        (left == 0).then_some(())
    })
    .await;
    assert!(recount(&rig).0.iter().all(|difference| difference["of"] != "suppressions"));
}
