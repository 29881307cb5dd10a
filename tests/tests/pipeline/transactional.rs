//! One template to one person, at once.

use std::time::Duration;

use pipeline::{Rig, eventually};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_message_is_sent_once_and_its_ledger_row_can_be_followed() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let template = rig
        .client
        .post(
            "/v1/templates",
            json!({"name": "Receipt", "template_type": "transactional", "subject": "Receipt {{ data.number }}",
                   "body_html": "<p>Thank you, {{ first_name }}: {{ data.total }}</p>"}),
        )
        .await
        .expect(201);
    let accepted = rig
        .client
        .post(
            "/v1/transactional",
            json!({"template_id": template["template_id"], "email": "Dora@Example.com", "first_name": "Dora <b>",
                   "data": {"number": "A-17", "total": "12 €"}}),
        )
        .await
        .expect(202);
    assert_eq!(accepted["status"], "scheduled");
    let send = accepted["send_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sends/{send}");
    assert_eq!(rig.client.get(&path, &[]).await.status.as_u16(), 200, "the send can be followed at once");
    rig.sink.wait(1, 60_000).await;
    let sent = eventually("the send to be sent", Duration::from_secs(60), || async {
        let answer = rig.client.get(&path, &[]).await.expect(200);
        (answer["send"]["state"] == "sent").then_some(answer)
    })
    .await;
    assert!(sent["send"]["attempts"].as_array().is_some_and(|attempts| attempts.len() == 1), "{sent}");
    let messages = rig.sink.messages_to("dora@example.com").await;
    assert_eq!(messages.len(), 1);
    let html = messages[0]["html"].as_str().unwrap();
    assert!(html.contains("Thank you, Dora &lt;b&gt;: 12 €"), "{html}");
    assert!(!html.contains("Unsubscribe"), "transactional mail carries no marketing footer");
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_answers_stop_no_other_transactional_mail() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let template = rig.transactional_template().await;
    // One by one, so that each keeps a worker of its own until it is answered.
    for number in 1..=6_i64 {
        let email = format!("slow-dot-600s+{number}@example.com");
        rig.client.post("/v1/transactional", json!({"template_id": template, "email": email})).await.expect(202);
        eventually("the slow one to be fenced", Duration::from_secs(60), || async {
            let fenced: i64 = sqlx::query_scalar("select count(*) from sends where state = 'fenced'")
                .fetch_one(&rig.pool)
                .await
                .unwrap();
            (fenced == number).then_some(())
        })
        .await;
    }
    rig.client
        .post("/v1/transactional", json!({"template_id": template, "email": "ann@example.com"}))
        .await
        .expect(202);
    eventually("the quick one to arrive", Duration::from_secs(60), || async {
        (rig.sink.messages_to("ann@example.com").await.len() == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounced_address_gets_no_transactional_mail_and_an_opted_out_one_does() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    for (address, reason, scope) in
        [("bounced@example.com", "hard_bounce", "all"), ("left@example.com", "manual", "marketing")]
    {
        rig.client
            .post("/v1/suppressions", json!({"email": address, "reason": reason, "scope": scope}))
            .await
            .expect(201);
    }
    let template = rig.transactional_template().await;
    let mut sends = Vec::new();
    for address in ["bounced@example.com", "left@example.com"] {
        let answer =
            rig.client.post("/v1/transactional", json!({"template_id": template, "email": address})).await.expect(202);
        sends.push(answer["send_id"].as_str().unwrap().to_owned());
    }
    for (send, state) in sends.iter().zip(["skipped", "sent"]) {
        eventually(&format!("the send to be {state}"), Duration::from_secs(60), || async {
            let answer = rig.client.get(&format!("/v1/sends/{send}"), &[]).await.expect(200);
            (answer["send"]["state"] == state).then_some(())
        })
        .await;
    }
    assert_eq!(rig.sink.accepted().await, 1);
}
