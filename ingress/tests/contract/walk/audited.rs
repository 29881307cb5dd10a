//! Every write leaves an entry in the audit log, or stands in a list with its reason. What each leaves is committed in `audit.txt`.

use std::fmt::Write as _;

use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Route, Walk};

const READS: &str = "changes nothing";
const DATA: &str = "a product's data, in volume; changes of the marketing status are audited";
const MAIL: &str = "in volume; the request is stored with its product and time, and the request log has the call";
/// Writes that leave no entry, each with its reason.
const NOT_AUDITED: [(&str, &str); 12] = [
    ("POST /v1/campaigns/{id}/preview", READS),
    ("POST /v1/segments/preview", READS),
    ("POST /v1/templates/{id}/render", READS),
    ("POST /v1/domains/{id}/verify", "asks the DNS; a change of the domain's status is audited"),
    ("POST /v1/contacts", DATA),
    ("PATCH /v1/contacts/{id}", DATA),
    ("POST /v1/enrollments", "in volume; the enrollment has its product and time"),
    ("POST /v1/events", "in volume; the event has its product and time"),
    ("POST /v1/outcomes", "in volume; the outcome has its product and time"),
    ("POST /v1/messages", MAIL),
    ("POST /v1/transactional", MAIL),
    ("POST /v1/transactional/batch", MAIL),
];

impl Walk {
    /// A body that changes something, after what is needed for that beside the walk's own objects.
    async fn arranged(&self, route: &Route) -> Value {
        let client = &self.ready.client;
        let mut body = self.fill(&route.body);
        match route.place().as_str() {
            "POST /v1/tenants/link" => body["product_tenant_id"] = json!("tenant-2"),
            "POST /v1/fields" => body["key"] = json!("tier"),
            "POST /v1/senders" => body["email"] = json!("hello@acme.test"),
            "POST /v1/audiences/{id}/members" => body["add"] = json!(["bob@example.com"]),
            // The walk's is a tag, which has no public name.
            "PATCH /v1/audiences/{id}" => body = json!({"product_tenant_id": client.product_tenant_id, "name": "vips"}),
            "PATCH /v1/templates/{id}" => body["subject"] = json!("Your invoice"),
            "POST /v1/campaigns/{id}/test" => body["to"] = json!(["me@example.org"]),
            "POST /v1/campaigns/{id}/retry_failed" => self.finish_campaign_with_a_failure().await,
            "POST /v1/contacts/{id}/merge" => {
                let other = client.post("/v1/contacts", json!({"email": "ann@example.org"})).await;
                body["contact_id"] = json!(other.text("contact_id"));
            }
            "POST /v1/templates/{id}/refresh" => {
                let (template, snippet) = (&self.objects["templates"], &self.objects["snippets"]);
                let with_foot = json!({"body_html": "<p>Thank you</p>{% include 'foot' %}"});
                assert_eq!(client.patch(&format!("/v1/templates/{template}"), with_foot).await.status, 200);
                let other_foot = json!({"body_html": "<br>"});
                assert_eq!(client.patch(&format!("/v1/snippets/{snippet}"), other_foot).await.status, 200);
            }
            // A draft has no mail.
            "DELETE /v1/campaigns/{id}" => self.execute(&["delete from sends", "delete from batches"]).await,
            "DELETE /v1/suppressions" => {
                let held = json!({"email": "ann@example.com", "reason": "manual"});
                assert_eq!(client.post("/v1/suppressions", held).await.status, 201);
            }
            _ => {}
        }
        body
    }

    /// A mail of the walk's campaign failed in a way that may be mended, and the campaign is over.
    async fn finish_campaign_with_a_failure(&self) {
        let campaign = &self.objects["campaigns"];
        self.ready.batch(campaign, &["failed"]).await;
        self.execute(&[
            // What may not be mailed is not tried again.
            "delete from suppressions",
            "update sends set reason = 'block' where state = 'failed'",
            "update batches set state = 'done', done_at = now()",
            "update campaigns set status = 'sent', completed_at = now(), counts = '{}' where status = 'sending'",
        ])
        .await;
    }

    async fn execute(&self, statements: &[&'static str]) {
        for statement in statements {
            sqlx::query(*statement).execute(&self.ready.edge.pool).await.unwrap();
        }
    }

    /// The actions that a request leaves in the audit log, or why it is refused.
    async fn audited(&self, route: &Route) -> String {
        let body = self.arranged(route).await;
        let pool = &self.ready.edge.pool;
        let before: Vec<Uuid> = sqlx::query_scalar("select id from audit_log").fetch_all(pool).await.unwrap();
        let answer = self.with_body(route, body.to_string().as_bytes()).await;
        let actions: Vec<String> =
            sqlx::query_scalar("select distinct action from audit_log where id <> all ($1) order by action")
                .bind(&before)
                .fetch_all(pool)
                .await
                .unwrap();
        let (status, code) = answer.refusal();
        assert!(status >= 300 || !actions.is_empty(), "{}: {status} without an entry: {}", route.place(), answer.body);
        if actions.is_empty() { format!("refused here: {status} {code}") } else { actions.join(", ") }
    }
}

#[tokio::test]
async fn every_write_is_audited_or_has_a_reason_not_to_be() {
    let writes: Vec<Route> = Route::all().into_iter().filter(|route| !route.is_read()).collect();
    for (place, _) in NOT_AUDITED {
        assert!(writes.iter().any(|route| route.place() == place), "{place} is no operation");
    }
    let mut lines = Vec::new();
    // A walk for each method: nothing is changed that was deleted before.
    for method in [Method::POST, Method::PATCH, Method::DELETE] {
        let walk = Walk::start().await;
        for route in writes.iter().filter(|route| route.method == method) {
            let what = match NOT_AUDITED.iter().find(|(place, _)| *place == route.place()) {
                Some((_, reason)) => format!("not audited: {reason}"),
                None => walk.audited(route).await,
            };
            lines.push(format!("{:6} {:44} {what}", route.method.as_str(), route.path));
        }
    }
    assert_eq!(lines.len(), writes.len(), "a method that is not walked");
    lines.sort();
    let mut text = String::new();
    for line in lines {
        writeln!(text, "{line}").unwrap();
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/contract/audit.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(file).unwrap_or_default(), text, "run with UPDATE=1, look at it, commit it");
}
