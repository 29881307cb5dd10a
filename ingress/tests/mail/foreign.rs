//! Another tenant's object is a 404, everywhere, and the same 404 as one that never was.

use http::Method;
use schemas::Environment;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{common::PRODUCT, fixtures::Ready};

#[tokio::test]
async fn another_tenants_object_looks_like_one_that_never_was() {
    let ready = Ready::start().await;
    let stranger = ready.edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let template = ready.template(json!({})).await;
    let campaign = ready.campaign(json!({})).await;
    let send = ready.batch(&campaign, &["sent"]).await[0].to_string();
    let domain: Uuid = sqlx::query_scalar("select id from domains").fetch_one(&ready.edge.pool).await.unwrap();
    let body = json!({"template_id": template, "email": "ann@example.com"});
    let pending = ready.client.post("/v1/transactional", body).await.text("send_id");
    let before = ledger(&ready).await;

    let requests = |template: &str,
                    campaign: &str,
                    send: &str,
                    domain: &str|
     -> Vec<(Method, String, Value, &'static str)> {
        vec![
            (Method::GET, format!("/v1/templates/{template}"), Value::Null, "template_not_found"),
            (Method::PATCH, format!("/v1/templates/{template}"), json!({"name": "x"}), "template_not_found"),
            (Method::DELETE, format!("/v1/templates/{template}"), json!({}), "template_not_found"),
            (Method::POST, format!("/v1/domains/{domain}/verify"), json!({}), "domain_not_found"),
            (Method::GET, format!("/v1/campaigns/{campaign}"), Value::Null, "campaign_not_found"),
            (Method::PATCH, format!("/v1/campaigns/{campaign}"), json!({"name": "x"}), "campaign_not_found"),
            (Method::PATCH, format!("/v1/campaigns/{campaign}"), json!({"status": "cancelled"}), "campaign_not_found"),
            (Method::POST, format!("/v1/campaigns/{campaign}/launch"), json!({}), "campaign_not_found"),
            (Method::POST, format!("/v1/campaigns/{campaign}/launch"), json!({"dry_run": true}), "campaign_not_found"),
            (Method::GET, format!("/v1/campaigns/{campaign}/sends"), Value::Null, "campaign_not_found"),
            (Method::GET, format!("/v1/sends/{send}"), Value::Null, "send_not_found"),
        ]
    };
    let nobody = schemas::new_id().to_string();
    let upper = campaign.to_uppercase();
    let all = [
        requests(&template, &campaign, &send, &domain.to_string()),
        requests(&nobody, &nobody, &nobody, &nobody),
        requests(&upper, &upper, &upper, &upper),
        requests("1", "1", "1", "1"),
        vec![(Method::GET, format!("/v1/sends/{pending}"), Value::Null, "send_not_found")],
    ];
    for (method, path, body, code) in all.into_iter().flatten() {
        let answer = match method {
            Method::GET => stranger.get(&path).await,
            _ => stranger.write(method.clone(), &path, body, &[]).await,
        };
        assert_eq!(answer.refusal(), (404, code), "{method} {path}");
    }
    assert_eq!(ledger(&ready).await, before);
}

#[tokio::test]
async fn another_tenants_object_cannot_be_named_in_a_body() {
    let ready = Ready::start().await;
    let stranger = ready.edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let own_sender = crate::fixtures::sender(&ready.edge.pool, stranger.tenant, "stranger.test", "verified").await;
    let own_list = crate::fixtures::audience(&ready.edge.pool, stranger.tenant, "list", "own", 1).await;
    let tag = crate::fixtures::audience(&ready.edge.pool, ready.client.tenant, "tag", "tagged", 1).await;
    let template = ready.template(json!({})).await;
    let own = json!({"sender_profile_id": own_sender, "list_id": own_list});
    for (change, code) in [
        (json!({"sender_profile_id": ready.sender}), "sender_profile_not_found"),
        (json!({"list_id": ready.list}), "list_not_found"),
        (json!({"audience_mode": "tags", "list_id": null, "tag_ids": [tag]}), "tag_not_found"),
        (json!({"template_id": template}), "template_not_found"),
    ] {
        let mut body = ready.campaign_body(own.clone());
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_eq!(stranger.post("/v1/campaigns", body).await.refusal(), (404, code));
    }
    let body = json!({"template_id": template, "email": "ann@example.com"});
    assert_eq!(stranger.post("/v1/transactional", body).await.refusal(), (404, "template_not_found"));
    for path in ["/v1/templates", "/v1/campaigns"] {
        let list = stranger.get(path).await.body;
        assert_eq!(list[path.trim_start_matches("/v1/")], json!([]), "{list}");
    }
}

async fn ledger(ready: &Ready) -> String {
    sqlx::query_scalar(
        "select md5(string_agg(t, '|' order by t)) from (select c::text as t from campaigns c union all select t::text from templates t
         union all select d::text from domains d union all select r::text from requests r) all_rows",
    )
    .fetch_one(&ready.edge.pool)
    .await
    .unwrap()
}
