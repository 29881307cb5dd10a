//! A provider tells what became of a mail: over HTTP, past a killed ingress, into the send's facts.

use std::time::Duration;

use pipeline::{
    Rig, eventually,
    process::{self, lines},
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn what_a_provider_was_answered_200_for_is_a_fact_whoever_is_killed_meanwhile() {
    let mut rig = Rig::shared().await;
    let tenant = rig.engine_tenant_id.to_string();
    let mut env = rig.operator_env();
    for name in ["POSTRIDER_MASTER_KEY", "POSTRIDER_PUBLIC_URL"] {
        env.insert(name.to_owned(), rig.env[name].clone());
    }
    env.insert("THE_SECRET".to_owned(), "pm-token".to_owned());
    env.insert("THE_HOOK".to_owned(), "hook:0123456789abcdef".to_owned());
    let add = [
        "provider",
        "--json",
        "add",
        "--tenant",
        &tenant,
        "--provider",
        "postmark",
        "--spare",
        "--secret-env",
        "THE_SECRET",
    ];
    let id = lines(&process::run(&add, &env))[0]["connection_id"].as_str().unwrap().to_owned();
    let set = lines(&process::run(&["hook", "--json", "set", &id, "--secret-env", "THE_HOOK"], &env));
    let url = set[0]["url"].as_str().unwrap().to_owned();
    assert_eq!(url, format!("{}/hooks/postmark/{id}", rig.base_url));

    // A mail, as if it had gone through this account.
    rig.start("stages", &["stage", "audience", "compliance", "rendering", "delivery"]).await;
    rig.start("ingress", &["ingress"]).await;
    let template =
        json!({"name": "Receipt", "template_type": "transactional", "subject": "Receipt", "body_html": "<p>Hi</p>"});
    let template = rig.client.post("/v1/templates", template).await.expect(201);
    let body = json!({"template_id": template["template_id"], "email": "dora@example.com"});
    let send = rig.client.post("/v1/transactional", body).await.expect(202)["send_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sends/{send}");
    eventually("the mail to be sent", Duration::from_secs(60), || async {
        (rig.client.get(&path, &[]).await.expect(200)["send"]["state"] == "sent").then_some(())
    })
    .await;
    sqlx::query(
        "with moved as (
             update sends set provider = 'postmark', provider_message_id = 'pm-1' where id = $1::uuid returning tenant_id, id
         ), booked as (
             update batches b set delivered = 0 from moved m where b.tenant_id = m.tenant_id and b.id = m.id
         )
         delete from rollups where event = 'delivered'",
    )
    .bind(&send)
    .execute(&rig.pool)
    .await
    .unwrap();

    // One event names the send, one only the mail. The ingress dies before anybody reads them.
    let now = chrono::Utc::now().to_rfc3339();
    let delivered = json!({"RecordType": "Delivery", "MessageID": "pm-1", "DeliveredAt": now, "Metadata": {"postrider-send": send}});
    let bounced = json!({
        "RecordType": "Bounce", "ID": 1, "Type": "HardBounce", "MessageID": "pm-1", "BouncedAt": now, "Metadata": {},
        "Details": "smtp;550 5.1.1 The email account that you tried to reach does not exist.",
    });
    let http = reqwest::Client::new();
    for event in [&delivered, &bounced] {
        let post = |password: &'static str| http.post(&url).basic_auth("hook", Some(password)).json(event).send();
        assert_eq!(post("wrong").await.unwrap().status(), 401);
        assert_eq!(post("0123456789abcdef").await.unwrap().status(), 200);
    }
    rig.kill9("ingress");
    rig.start("engagement", &["stage", "engagement"]).await;
    let listed = eventually("both events to be handled", Duration::from_secs(60), || async {
        let listed = lines(&process::run(&["hook", "--json", "events", "--tenant", &tenant], &env));
        listed.iter().all(|event| event["state"] == "handled").then_some(listed)
    })
    .await;
    assert_eq!(listed.len(), 2);
    let facts: (bool, bool) =
        sqlx::query_as("select delivered_at is not null, bounced_at is not null from sends where id = $1::uuid")
            .bind(&send)
            .fetch_one(&rig.pool)
            .await
            .unwrap();
    assert_eq!(facts, (true, true));
    let suppressed: i64 = sqlx::query_scalar(
        "select count(*) from suppressions where address = 'dora@example.com' and reason = 'hard_bounce'",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert_eq!(suppressed, 1);

    // Read once more, nothing changes, and every counter equals its recount.
    process::run(&["hook", "again", listed[0]["id"].as_str().unwrap()], &env);
    eventually("the event to be read once more", Duration::from_secs(60), || async {
        let listed = lines(&process::run(&["hook", "--json", "events", "--tenant", &tenant], &env));
        listed.iter().all(|event| event["state"] == "handled").then_some(())
    })
    .await;
    assert!(process::run(&["hook", "--json", "pending"], &env).is_empty());
    process::run(&["recount", "--tenant", &tenant], &env);
    rig.books_balance().await;
}
