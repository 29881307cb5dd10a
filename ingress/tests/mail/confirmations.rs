//! Double opt-in: who is asked, what confirms, and what does not.

use http::Method;
use ledger::confirmations::{ConfirmationSettings, SendConfirmations};
use rstest::rstest;
use runner::{PauseGate, Sweep};
use runtime::{Database, PauseSwitches, Role};
use schemas::token::Purpose;
use secrecy::SecretString;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{common::Answer, fixtures::Ready};

/// A person who signed up and got the mail.
struct SignedUp {
    ready: Ready,
    contact: Uuid,
    send: Uuid,
}

impl SignedUp {
    async fn start() -> Self {
        let ready = Ready::start().await;
        sqlx::query("update tenants set org_name = 'Acme <b>'").execute(&ready.edge.pool).await.unwrap();
        let evidence = json!({"ip": "192.0.2.7", "text": "Send me the news"});
        let body = json!({"email": "ann@example.com", "first_name": "Ann", "require_verification": true,
                          "consent": {"basis": "sign_up_form", "evidence": evidence}});
        let made = ready.client.post("/v1/contacts", body).await;
        assert_eq!(made.status, 201, "{}", made.body);
        assert_eq!(sweep(&ready).await, 1);
        let contact: Uuid = made.text("contact_id").parse().unwrap();
        let send = sqlx::query_scalar("select send_id from confirmations").fetch_one(&ready.edge.pool).await.unwrap();
        Self { ready, contact, send }
    }

    fn path(&self) -> String {
        self.path_of(self.ready.client.tenant, Purpose::Confirm)
    }

    fn path_of(&self, tenant: Uuid, purpose: Purpose) -> String {
        let token = self.ready.edge.ingress.tokens.seal(purpose, tenant, self.send, self.contact.as_bytes());
        format!("/c/{token}")
    }

    async fn contact(&self) -> Value {
        self.ready.client.get(&format!("/v1/contacts/{}", self.contact)).await.body["contact"].clone()
    }

    async fn status(&self) -> String {
        sqlx::query_scalar("select marketing_status from contacts where id = $1")
            .bind(self.contact)
            .fetch_one(&self.ready.edge.pool)
            .await
            .unwrap()
    }

    async fn confirmed(&self) -> i64 {
        self.ready.edge.count("select count(*) from notices where type = 'contact.confirmed'").await
    }
}

/// Has the audience stage's sweep ask whom it may. Answers how many confirmations it looked at.
async fn sweep(ready: &Ready) -> u64 {
    let url = SecretString::from(ready.edge.database.url());
    let pool = Database::pool(&url, Role::Stages, 1).unwrap();
    let running = PauseGate::new(PauseSwitches::released());
    SendConfirmations::new(pool, running, ConfirmationSettings::default()).sweep().await.unwrap()
}

fn html(answer: &Answer) -> String {
    String::from_utf8(answer.bytes.clone()).unwrap()
}

#[tokio::test]
async fn a_person_confirms_once_and_the_proof_is_kept() {
    let person = SignedUp::start().await;
    let before = person.contact().await;
    assert_eq!((&before["marketing_status"], &before["confirmation"]["state"]), (&json!("pending"), &json!("pending")));
    assert_eq!(before["confirmation"]["send_id"], json!(person.send));
    assert!(before["confirmation"]["expires_at"].is_string(), "{before}");
    let page = person.ready.client.ask(Method::GET, &person.path(), "").await;
    assert_eq!(page.status, 200);
    let shown = html(&page);
    assert!(shown.contains("Acme &lt;b&gt;") && shown.contains("a…@example.com") && !shown.contains("ann@"), "{shown}");
    for _ in 0..2 {
        let answer = person.ready.client.ask(Method::POST, &person.path(), "confirm=yes").await;
        assert_eq!(answer.status, 200);
        assert!(html(&answer).contains("You are subscribed"));
    }
    assert_eq!(person.confirmed().await, 1);
    let after = person.contact().await;
    assert_eq!(
        (&after["marketing_status"], &after["confirmation"]["state"]),
        (&json!("subscribed"), &json!("confirmed"))
    );
    let consent = &after["consent"];
    assert_eq!((&consent["basis"], &consent["source"]), (&json!("double_opt_in"), &json!("confirmation_page")));
    assert_eq!(consent["evidence"]["user_agent"], json!("Test/1.0"));
    let text = consent["evidence"]["text"].as_str().unwrap();
    assert!(text.contains("from Acme <b> at a…@example.com") && text.contains("[Yes, subscribe me]"), "{text}");
    let data = person.ready.client.post(&format!("/v1/contacts/{}/data", person.contact), json!({})).await;
    let records = data.body["records"].as_array().unwrap();
    let kept = &records.iter().find(|record| record["kind"] == "confirmation").unwrap()["data"];
    assert_eq!((&kept["proof"]["text"], &kept["sign_up"]["basis"]), (&json!(text), &json!("sign_up_form")));
    assert_eq!(kept["sign_up"]["evidence"], json!({"ip": "192.0.2.7", "text": "Send me the news"}));
}

#[tokio::test]
async fn scanners_that_follow_the_link_confirm_nobody() {
    let person = SignedUp::start().await;
    let asked = [
        (Method::GET, "", 200),
        (Method::HEAD, "", 200),
        (Method::GET, "confirm=yes", 200),
        (Method::POST, "", 400),
        (Method::POST, "confirm=no", 400),
        (Method::POST, "List-Unsubscribe=One-Click", 400),
    ];
    for (method, body, status) in asked {
        let answer = person.ready.client.ask(method.clone(), &person.path(), body).await;
        assert_eq!(answer.status, status, "{method} {body}");
        assert_eq!((person.status().await.as_str(), person.confirmed().await), ("pending", 0), "{method} {body}");
    }
    let query = format!("{}?confirm=yes", person.path());
    assert_eq!(person.ready.client.ask(Method::GET, &query, "").await.status, 200);
    assert_eq!(person.status().await, "pending");
}

#[rstest]
#[case::expired("update confirmations set expires_at = now()", 410)]
#[case::left("update contacts set marketing_status = 'unsubscribed'", 410)]
#[case::archived("update contacts set status = 'archived'", 410)]
#[case::suppressed(
    "insert into suppressions (tenant_id, id, address, reason, scope, source)
     select tenant_id, id, address, 'manual', 'marketing', 'api' from contacts",
    410
)]
#[case::bounced(
    "insert into suppressions (tenant_id, id, address, reason, scope, source)
     select tenant_id, id, address, 'hard_bounce', 'all', 'delivery' from contacts",
    410
)]
#[case::never_asked("delete from confirmations", 410)]
#[case::confirmed_and_left_since(
    "update contacts set marketing_status = 'unsubscribed';
     update confirmations set state = 'confirmed', confirmed_at = now(), proof = '{}'",
    410
)]
#[tokio::test]
async fn a_link_brings_nobody_back(#[case] change: &'static str, #[case] status: u16) {
    let person = SignedUp::start().await;
    sqlx::raw_sql(change).execute(&person.ready.edge.pool).await.unwrap();
    let before = person.status().await;
    for method in [Method::GET, Method::POST] {
        let answer = person.ready.client.ask(method.clone(), &person.path(), "confirm=yes").await;
        assert_eq!(answer.status, status, "{method}");
        assert!(html(&answer).contains("not valid any more"));
    }
    assert_eq!((person.status().await, person.confirmed().await), (before, 0));
}

#[tokio::test]
async fn a_link_of_another_kind_or_tenant_confirms_nobody() {
    let person = SignedUp::start().await;
    let other = person.ready.edge.client_for("crm", person.ready.client.environment, "tenant-2").await;
    let own = person.ready.client.tenant;
    let forged = [
        person.path_of(other.tenant, Purpose::Confirm),
        person.path_of(own, Purpose::Unsubscribe),
        person.path_of(own, Purpose::Preferences),
        "/c/v1.000000.AAAA.AAAA".to_owned(),
        person.path().replace("/c/", "/c/x"),
    ];
    for path in forged {
        for method in [Method::GET, Method::POST] {
            assert_eq!(person.ready.client.ask(method, &path, "confirm=yes").await.status, 404, "{path}");
        }
    }
    let as_unsubscribe = person.path().replace("/c/", "/u/");
    assert_eq!(person.ready.client.ask(Method::POST, &as_unsubscribe, "confirm=yes").await.status, 404);
    assert_eq!((person.status().await.as_str(), person.confirmed().await), ("pending", 0));
}

#[tokio::test]
async fn an_erased_person_is_not_confirmed_and_leaves_the_number_of_mails() {
    let person = SignedUp::start().await;
    let erased = person.ready.client.delete(&format!("/v1/contacts/{}", person.contact), json!({"erase": true})).await;
    assert_eq!(erased.status, 200, "{}", erased.body);
    for method in [Method::GET, Method::POST] {
        assert_eq!(person.ready.client.ask(method, &person.path(), "confirm=yes").await.status, 404);
    }
    let edge = &person.ready.edge;
    let left: Value = sqlx::query_scalar("select jsonb_strip_nulls(to_jsonb(f)) from confirmations f")
        .fetch_one(&edge.pool)
        .await
        .unwrap();
    assert_eq!((&left["mails"], &left["state"], &left["due_at"]), (&json!(1), &json!("withdrawn"), &Value::Null));
    assert!(left["send_id"].is_null() && left["sign_up"].is_null() && left["proof"].is_null(), "{left}");
    assert_eq!(edge.count("select count(*) from requests where state = 'accepted'").await, 0, "nor a mail on its way");
}

#[tokio::test]
async fn an_erasure_gives_an_address_no_more_confirmation_mails() {
    let person = SignedUp::start().await;
    let (client, edge) = (&person.ready.client, &person.ready.edge);
    let (mut contact, mails) = (person.contact.to_string(), "select count(*) from requests");
    for round in 1..=2 {
        let erased = client.delete(&format!("/v1/contacts/{contact}"), json!({"erase": true})).await;
        assert_eq!(erased.status, 200, "{}", erased.body);
        let made = client.post("/v1/contacts", json!({"email": "ann@example.com", "require_verification": true})).await;
        assert_eq!(made.status, 201, "{}", made.body);
        contact = made.text("contact_id");
        sweep(&person.ready).await;
        assert_eq!(edge.count(mails).await, 1, "round {round}: a mail within the gap");
        let again = client.post(&format!("/v1/contacts/{contact}/confirmation"), json!({})).await;
        assert_eq!(again.refusal(), (429, "confirmation_rate_exceeded"));
        let shown = client.get(&format!("/v1/contacts/{contact}")).await.body["contact"]["confirmation"].clone();
        assert_eq!((&shown["state"], &shown["sent_at"]), (&json!("pending"), &Value::Null), "no mail was to this one");
    }
    let pass = "update confirmations set last_mail_at = last_mail_at - interval '13 hours', due_at = due_at - interval '13 hours'";
    sqlx::query(pass).execute(&edge.pool).await.unwrap();
    assert_eq!(
        (sweep(&person.ready).await, edge.count(mails).await),
        (1, 2),
        "the sign-up is mailed when the gap is over"
    );
    let total = "select max(mails)::bigint from confirmations";
    assert_eq!(edge.count(total).await, 2);
}

#[tokio::test]
async fn a_merged_contacts_link_confirms_no_other_address() {
    let person = SignedUp::start().await;
    let client = &person.ready.client;
    let body = json!({"email": "ann@work.example", "marketing_status": "subscribed"});
    let kept = client.post("/v1/contacts", body).await.text("contact_id");
    let merge = client.post(&format!("/v1/contacts/{kept}/merge"), json!({"contact_id": person.contact})).await;
    assert_eq!(merge.body["contact"]["marketing_status"], json!("pending"), "{}", merge.body);
    assert_eq!(merge.body["contact"]["confirmation"]["state"], json!("pending"), "the address that is left is asked");
    assert_eq!(person.ready.client.ask(Method::POST, &person.path(), "confirm=yes").await.status, 410);
    assert_eq!(sweep(&person.ready).await, 1);
    let to = "select count(*) from requests where payload ->> 'address' = 'ann@work.example'";
    assert_eq!((person.ready.edge.count(to).await, person.confirmed().await), (1, 0));
}

#[tokio::test]
async fn a_mail_is_asked_for_again_within_limits() {
    let person = SignedUp::start().await;
    let (client, pool) = (&person.ready.client, &person.ready.edge.pool);
    let path = format!("/v1/contacts/{}/confirmation", person.contact);
    let refused = client.post(&path, json!({})).await;
    assert_eq!(refused.refusal(), (429, "confirmation_rate_exceeded"));
    assert!(refused.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds > 11 * 3_600));
    sqlx::query("update confirmations set last_mail_at = now() - interval '13 hours'").execute(pool).await.unwrap();
    for _ in 0..2 {
        let accepted = client.post(&path, json!({})).await;
        assert_eq!((accepted.status.as_u16(), &accepted.body["confirmation"]["state"]), (202, &json!("pending")));
    }
    assert_eq!((sweep(&person.ready).await, person.ready.edge.count("select count(*) from requests").await), (1, 2));
    assert_eq!(
        person.ready.edge.count("select count(*) from audit_log where action = 'contact.confirmation_requested'").await,
        1
    );
    let unknown = client.post(&format!("/v1/contacts/{}/confirmation", schemas::new_id()), json!({})).await;
    assert_eq!(unknown.refusal(), (404, "contact_not_found"));
    person.ready.client.ask(Method::POST, &person.path(), "confirm=yes").await;
    assert_eq!(client.post(&path, json!({})).await.refusal(), (409, "consent_not_pending"));
}

#[tokio::test]
async fn a_suppressed_contact_is_refused_while_a_mail_is_due() {
    let person = SignedUp::start().await;
    let client = &person.ready.client;
    let due = "update confirmations set due_at = now(), last_mail_at = now() - interval '13 hours'";
    sqlx::query(due).execute(&person.ready.edge.pool).await.unwrap();
    client.post("/v1/suppressions", json!({"email": "ann@example.com", "reason": "manual"})).await;
    let refused = client.post(&format!("/v1/contacts/{}/confirmation", person.contact), json!({})).await;
    assert_eq!(refused.refusal(), (409, "contact_suppressed"));
}

/// What `POST /v1/contacts` says of a contact with `require_verification`, the contact's status afterwards, and the mails.
#[rstest]
#[case::new(None, json!({}), 201, "pending", 1)]
#[case::new_and_agreed(None, json!({"marketing_status": "subscribed"}), 201, "pending", 1)]
#[case::new_and_left(None, json!({"marketing_status": "unsubscribed"}), 400, "", 0)]
#[case::subscribed(Some("subscribed"), json!({}), 200, "subscribed", 0)]
#[case::pending(Some("pending"), json!({"marketing_status": "subscribed"}), 200, "pending", 1)]
#[case::left(Some("unsubscribed"), json!({}), 200, "unsubscribed", 0)]
#[case::left_and_updated(Some("unsubscribed"), json!({"on_existing": "update", "marketing_status": "subscribed"}), 409, "unsubscribed", 0)]
#[tokio::test]
async fn whoever_is_not_subscribed_is_asked(
    #[case] known: Option<&str>,
    #[case] change: Value,
    #[case] answered: u16,
    #[case] status: &str,
    #[case] mails: i64,
) {
    let ready = Ready::start().await;
    if let Some(known) = known {
        ready.client.post("/v1/contacts", json!({"email": "ann@example.com", "marketing_status": known})).await;
    }
    let mut body = json!({"email": "ann@example.com", "require_verification": true});
    body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    assert_eq!(ready.client.post("/v1/contacts", body).await.status, answered);
    while sweep(&ready).await > 0 {}
    assert_eq!(ready.edge.count("select count(*) from requests").await, mails);
    let found: Option<String> =
        sqlx::query_scalar("select marketing_status from contacts where address = 'ann@example.com'")
            .fetch_optional(&ready.edge.pool)
            .await
            .unwrap();
    assert_eq!(found.unwrap_or_default(), status);
}

#[tokio::test]
async fn a_batch_and_an_import_ask_those_who_are_pending() {
    let ready = Ready::start().await;
    let people = json!([
        {"email": "new@example.com", "require_verification": true},
        {"email": "trusted@example.com"},
        {"email": "bad", "require_verification": true},
    ]);
    assert_eq!(ready.client.post("/v1/contacts/batch", json!({"contacts": people})).await.status, 200);
    let csv = "email,unsubscribed\nfirst@example.com,\ntrusted@example.com,\nleaves@example.com,yes\n";
    for (allowed, csv) in [(Some(true), csv), (Some(false), "email\nnot-allowed@example.com\n")] {
        let compliance = json!({"marketing_allowed": allowed, "require_verification": true, "consent_basis": "opt_in"});
        let import = ready.client.post("/v1/imports", json!({"csv": csv, "compliance": compliance})).await;
        assert_eq!(import.body["status"], json!("completed"), "{}", import.body);
    }
    while sweep(&ready).await > 0 {}
    let asked: Vec<String> = sqlx::query_scalar("select payload ->> 'address' from requests order by 1")
        .fetch_all(&ready.edge.pool)
        .await
        .unwrap();
    assert_eq!(asked, ["first@example.com", "new@example.com"]);
}

#[tokio::test]
async fn an_unconfirmed_contact_is_in_no_campaign_and_explain_says_why() {
    let person = SignedUp::start().await;
    let client = &person.ready.client;
    let body = json!({"add": [person.contact]});
    client.post(&format!("/v1/audiences/{}/members", person.ready.list), body).await;
    // Nor by way of mail that it asked for.
    sqlx::query("update contacts set source = 'transactional' where id = $1")
        .bind(person.contact)
        .execute(&person.ready.edge.pool)
        .await
        .unwrap();
    let campaign = person.ready.campaign(json!({})).await;
    let dry = client.post(&format!("/v1/campaigns/{campaign}/launch"), json!({"dry_run": true})).await;
    assert_eq!(dry.body["skipped_by_reason"], json!({"no_consent": 1}), "{}", dry.body);
    let path = format!("/v1/explain?campaign_id={campaign}&email=ann@example.com");
    for (change, detail) in [
        ("select 1", "waits_for_confirmation"),
        ("update confirmations set expires_at = now()", "confirmation_expired"),
    ] {
        sqlx::query(change).execute(&person.ready.edge.pool).await.unwrap();
        let told = client.get(&path).await.body["explanation"].clone();
        let consent = told["gates"].as_array().unwrap().iter().find(|gate| gate["gate"] == "consent").unwrap();
        assert_eq!((&consent["verdict"], &consent["detail"]), (&json!("stop"), &json!(detail)), "{told}");
    }
}

#[tokio::test]
async fn a_tenants_confirmation_mail_has_the_link() {
    let ready = Ready::start().await;
    let client = &ready.client;
    let link = "<p><a href=\"{{ data.confirmation_url }}\">Yes</a></p>";
    let good = ready.template(json!({"template_type": "transactional", "body_html": link})).await;
    let bare = ready.template(json!({"template_type": "transactional"})).await;
    let of = |id: &str| json!({"confirmation": {"template_id": id}});
    assert_eq!(client.patch("/v1/tenant", of(&bare)).await.refusal(), (422, "confirmation_link_required"));
    let unknown = schemas::new_id().to_string();
    assert_eq!(client.patch("/v1/tenant", of(&unknown)).await.refusal(), (404, "template_not_found"));
    let changed =
        client.patch("/v1/tenant", json!({"confirmation": {"template_id": good, "reminders": 2, "days": 7}})).await;
    let expected = json!({"template_id": good, "reminders": 2, "reminder_hours": null, "days": 7});
    assert_eq!(changed.body["tenant"]["confirmation"], expected, "{}", changed.body);
    let cleared = client.patch("/v1/tenant", json!({"confirmation": {"template_id": null}})).await;
    assert_eq!(cleared.body["tenant"]["confirmation"]["template_id"], Value::Null);
    for (field, value) in [("reminders", 4), ("reminder_hours", 0), ("days", 91)] {
        let refused = client.patch("/v1/tenant", json!({"confirmation": {field: value}})).await;
        assert_eq!(refused.faults(), [(format!("confirmation.{field}"), "out_of_range".to_owned())]);
    }
}
