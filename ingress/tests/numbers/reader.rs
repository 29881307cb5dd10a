//! A recipient with a mail, and what he sees of us.

use axum::body::Body;
use http::{Method, Request};
use schemas::{SendId, token::Purpose};
use serde_json::json;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{
    common::{Answer, send},
    fixtures::{Ready, open_streams},
};

/// Somebody who got a mail of a campaign.
pub struct Reader {
    pub ready: Ready,
    pub send: Uuid,
    pub contact: Uuid,
}

impl Reader {
    pub async fn start() -> Self {
        let ready = Ready::start().await;
        open_streams(&ready.edge).await;
        sqlx::query("update tenants set org_name = 'Acme & Söhne'").execute(&ready.edge.pool).await.unwrap();
        let campaign = ready.campaign(json!({})).await;
        let send = ready.batch(&campaign, &["sent"]).await[0];
        let contact: Uuid = sqlx::query_scalar("select contact_id from sends where id = $1")
            .bind(send)
            .fetch_one(&ready.edge.pool)
            .await
            .unwrap();
        Self { ready, send, contact }
    }

    /// A topic; the recipient is in it, or not.
    pub async fn topic(&self, name: &str, joined: bool) -> Uuid {
        let body = json!({"kind": "list", "name": name, "public_name": name, "public_description": format!("All about {name}")});
        let answer = self.ready.client.post("/v1/audiences", body).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
        let id: Uuid = answer.text("audience_id").parse().unwrap();
        if joined {
            self.add(id).await;
        }
        id
    }

    /// The tenant puts him on a list.
    pub async fn add(&self, list: Uuid) -> Answer {
        let answer =
            self.ready.client.post(&format!("/v1/audiences/{list}/members"), json!({"add": [self.contact]})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer
    }

    /// He is asked to confirm his consent.
    pub async fn is_asked(&self) {
        let pool = &self.ready.edge.pool;
        let asked =
            "insert into confirmations (tenant_id, contact_id) select tenant_id, id from contacts where id = $1";
        for sql in ["update contacts set marketing_status = 'pending' where id = $1", asked] {
            sqlx::query(sql).bind(self.contact).execute(pool).await.unwrap();
        }
    }

    pub fn path(&self, purpose: Purpose) -> String {
        let tokens = &self.ready.edge.ingress.tokens;
        let token = tokens.seal(purpose, self.ready.client.tenant, self.send, self.contact.as_bytes());
        match purpose {
            Purpose::Preferences => format!("/p/{token}"),
            Purpose::Confirm => format!("/c/{token}"),
            _ => format!("/u/{token}"),
        }
    }

    pub async fn ask(&self, method: Method, path: &str, language: &str, form: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("accept-language", language)
            .header("user-agent", "Test/1.0")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Body::from(form.to_owned()))
            .unwrap();
        send(&self.ready.client.router, request).await
    }

    /// The preferences page.
    pub async fn look(&self) -> String {
        let answer = self.ask(Method::GET, &self.path(Purpose::Preferences), "en", "").await;
        assert_eq!(answer.status, 200);
        html(&answer)
    }

    /// A form of it.
    pub async fn submit(&self, form: &str) -> Answer {
        self.ask(Method::POST, &self.path(Purpose::Preferences), "en", form).await
    }

    /// Retention drops the month of the mail.
    pub async fn drop_month(&self) {
        let month = SendId(self.send).month().format("%Y_%m");
        for table in ["sends", "events"] {
            let drop = AssertSqlSafe(format!("drop table {table}_{month}"));
            sqlx::query(drop).execute(&self.ready.edge.pool).await.unwrap();
        }
    }

    pub async fn count(&self, sql: &'static str) -> i64 {
        self.ready.edge.count(sql).await
    }

    pub async fn is_in(&self, list: Uuid) -> bool {
        sqlx::query_scalar("select exists (select from audience_members where audience_id = $1 and contact_id = $2)")
            .bind(list)
            .bind(self.contact)
            .fetch_one(&self.ready.edge.pool)
            .await
            .unwrap()
    }

    pub async fn marketing_status(&self) -> String {
        sqlx::query_scalar("select marketing_status from contacts where id = $1")
            .bind(self.contact)
            .fetch_one(&self.ready.edge.pool)
            .await
            .unwrap()
    }
}

pub fn html(answer: &Answer) -> String {
    String::from_utf8(answer.bytes.clone()).unwrap()
}
