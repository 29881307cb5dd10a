//! A CSV of a thousand people becomes a campaign in the mailboxes of those who may be mailed, and an answer for all others.

use std::time::Duration;

use pipeline::{Rig, eventually, ledger};
use serde_json::{Value, json};
use uuid::Uuid;

const HTML: &str = r#"<html><body><h1>Hello {{ first_name | default: "friend" }}</h1>
<p>You work at {{ company }}. <a href="https://shop.example/offer?a=1&amp;b=2">The offer</a></p></body></html>"#;

struct People {
    csv: String,
    allowed: Vec<String>,
    suppressed: Vec<String>,
    unsubscribed: Vec<String>,
    bad_rows: usize,
    duplicate_rows: usize,
}

/// 1,000 rows: 880 good people, 40 of them again in other case, 20 bad rows, 30 suppressed before, 30 marked unsubscribed.
fn people() -> People {
    let mut people = People {
        csv: "Email Address,First Name,Last-Name,company,list,unsubscribed\r\n".to_owned(),
        allowed: Vec::new(),
        suppressed: Vec::new(),
        unsubscribed: Vec::new(),
        bad_rows: 20,
        duplicate_rows: 40,
    };
    let mut row = |address: &str, n: usize, unsubscribed: bool| {
        people.csv.push_str(&format!("{address},First{n},Last{n},\"Company, {n}\",thousand,{unsubscribed}\r\n"));
    };
    for n in 0..880 {
        let address = format!("person-{n}@example.com");
        row(&address, n, false);
        people.allowed.push(address);
    }
    for n in 0..40 {
        row(&format!("PERSON-{n}@Example.COM"), n, false);
    }
    for n in 0..20 {
        row(["no-at-sign", "two@@example.com", "spaces in@example.com", "bare@host"][n % 4], n, false);
    }
    for n in 0..30 {
        let address = format!("suppressed-{n}@example.com");
        row(&address, n, false);
        people.suppressed.push(address);
        let address = format!("left-{n}@example.com");
        row(&address, n, true);
        people.unsubscribed.push(address);
    }
    people
}

/// A header's value, unfolded or not as it came.
fn header<'a>(message: &'a str, name: &str) -> Option<&'a str> {
    let head = message.split("\r\n\r\n").next()?;
    let mut from = 0;
    while from < head.len() {
        let rest = &head[from..];
        // A field ends at the first line end that no white space follows.
        let end = rest
            .match_indices("\r\n")
            .find(|(at, _)| !rest[at + 2..].starts_with([' ', '\t']))
            .map_or(rest.len(), |(at, _)| at);
        let (key, value) = rest[..end].split_once(':')?;
        if key.eq_ignore_ascii_case(name) {
            return Some(value.trim());
        }
        from += end + 2;
    }
    None
}

fn url_in<'a>(text: &'a str, marker: &str) -> &'a str {
    let at = text.find(marker).unwrap_or_else(|| panic!("no {marker} in {text}"));
    let start = text[..at].rfind("http").unwrap();
    let end = text[at..].find(['"', '>', '\'', ' ', '<']).map_or(text.len(), |end| at + end);
    &text[start..end]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_csv_of_a_thousand_people_is_mailed_to_exactly_those_who_may_be_mailed() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let people = people();
    for address in &people.suppressed {
        rig.client
            .post("/v1/suppressions", json!({"email": address, "reason": "manual", "scope": "all"}))
            .await
            .expect(201);
    }

    let import = rig.client.post("/v1/imports", json!({"csv": people.csv, "name": "thousand"})).await.expect(200);
    let counts = &import["counts"];
    assert_eq!(counts["total_rows"], 1_000, "{import}");
    assert_eq!(counts["invalid"], people.bad_rows, "{import}");
    assert_eq!(counts["duplicates"], people.duplicate_rows, "{import}");
    assert_eq!(counts["created"], 940, "{import}");
    assert_eq!(import["status"], "completed_with_errors");

    let list = rig.list_id("thousand").await;
    let campaign = rig.campaign(list, "News for {{ first_name }}", HTML).await;
    let path = format!("/v1/campaigns/{campaign}");
    let dry = rig.client.post(&format!("{path}/launch"), json!({"dry_run": true})).await;
    assert!(dry.status.is_success(), "{}", dry.body);
    assert_eq!((&dry.body["queued"], &dry.body["skipped"]), (&json!(880), &json!(60)), "{}", dry.body);
    let launched = rig.launch(campaign).await;
    assert_eq!((&launched["queued"], &launched["skipped"]), (&json!(880), &json!(60)), "{launched}");
    assert_eq!(launched["scheduled_for"], Value::Null);
    assert_eq!(rig.client.post(&format!("{path}/launch"), json!({})).await.status.as_u16(), 409);

    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    assert_eq!(rig.sink.counts(&people.allowed).await, vec![1; 880]);
    assert_eq!(rig.sink.accepted().await, 880);
    let ledger = ledger::by_address(&rig.pool, campaign).await;
    assert_eq!(ledger.len(), 940);
    for address in &people.allowed {
        assert_eq!(ledger[address].0, "sent");
    }
    for address in &people.suppressed {
        assert_eq!(ledger[address], ("skipped".to_owned(), Some("suppressed".to_owned())));
    }
    for address in &people.unsubscribed {
        assert_eq!(ledger[address], ("skipped".to_owned(), Some("unsubscribed".to_owned())));
    }
    rig.books_balance().await;

    the_mail_is_merged_and_its_links_work(&rig, campaign).await;
    the_ledger_answers_over_http(&rig, campaign, &people).await;
}

async fn the_mail_is_merged_and_its_links_work(rig: &Rig, campaign: Uuid) {
    let address = "person-7@example.com";
    let messages = rig.sink.messages_to(address).await;
    assert_eq!(messages.len(), 1);
    let source = rig.sink.source(messages[0]["id"].as_u64().unwrap()).await;
    assert_eq!(header(&source, "Subject"), Some("News for First7"));
    assert!(header(&source, "DKIM-Signature").is_some_and(|value| value.contains("d=acme.example")), "{source}");
    assert_eq!(header(&source, "List-Unsubscribe-Post"), Some("List-Unsubscribe=One-Click"));
    let html = messages[0]["html"].as_str().unwrap();
    assert!(html.contains("Hello First7") && html.contains("You work at Company, 7."), "{html}");
    assert!(html.contains("1 Example Street"), "the postal address stands in the footer: {html}");
    let text = messages[0]["text"].as_str().unwrap();
    assert!(text.contains("Hello First7") && text.contains("https://shop.example/offer"), "{text}");

    let http = rig.client.http();
    let pixel = http.get(url_in(html, "/t/o/")).send().await.unwrap();
    assert_eq!((pixel.status().as_u16(), &pixel.headers()["content-type"]), (200, &"image/gif".parse().unwrap()));
    let click = http.get(url_in(html, "/t/c/")).send().await.unwrap();
    assert_eq!(click.status().as_u16(), 302);
    assert_eq!(click.headers()["location"], "https://shop.example/offer?a=1&b=2");
    let unsubscribe = url_in(header(&source, "List-Unsubscribe").unwrap(), "/u/").to_owned();
    let page = http.get(&unsubscribe).send().await.unwrap();
    assert_eq!(page.status().as_u16(), 200);
    assert!(page.text().await.unwrap().contains("<button"), "a page with a button");
    let marketing = "select marketing_status from contacts where address = $1";
    let status: String = sqlx::query_scalar(marketing).bind(address).fetch_one(&rig.pool).await.unwrap();
    assert_eq!(status, "subscribed", "looking at the page does not unsubscribe");
    let one_click = http
        .post(&unsubscribe)
        .header("content-type", "application/x-www-form-urlencoded")
        .body("List-Unsubscribe=One-Click")
        .send()
        .await
        .unwrap();
    assert_eq!(one_click.status().as_u16(), 200);
    let status: String = sqlx::query_scalar(marketing).bind(address).fetch_one(&rig.pool).await.unwrap();
    assert_eq!(status, "unsubscribed", "committed before the answer");

    eventually("open, click and unsubscribe to be counted once each", Duration::from_secs(60), || async {
        let answer = rig.client.get(&format!("/v1/campaigns/{campaign}"), &[]).await.expect(200);
        let counts = &answer["send_counts"];
        (counts["opened"] == 1 && counts["clicked"] == 1 && counts["unsubscribed"] == 1).then_some(())
    })
    .await;
    rig.books_balance().await;
}

async fn the_ledger_answers_over_http(rig: &Rig, campaign: Uuid, people: &People) {
    let answer = rig
        .client
        .get(&format!("/v1/campaigns/{campaign}/sends"), &[("email", people.suppressed[3].as_str())])
        .await
        .expect(200);
    let sends = answer["sends"].as_array().unwrap();
    assert_eq!(sends.len(), 1, "{answer}");
    assert_eq!((&sends[0]["state"], &sends[0]["skip_reason"]), (&json!("skipped"), &json!("suppressed")));
    let send = sends[0]["send_id"].as_str().unwrap();
    let one = rig.client.get(&format!("/v1/sends/{send}"), &[]).await.expect(200);
    assert_eq!(one["send"]["skip_reason"], "suppressed", "{one}");
    let campaign = rig.client.get(&format!("/v1/campaigns/{campaign}"), &[]).await.expect(200);
    assert_eq!((&campaign["send_counts"]["sent"], &campaign["send_counts"]["skipped"]), (&json!(880), &json!(60)));
    assert_eq!(campaign["campaign"]["status"], "sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_campaign_waits_a_paused_one_rests_and_a_cancelled_one_stops() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let (list, addresses) = rig.list_of(50, "timed", "example.com").await;

    let at = (chrono::Utc::now() + chrono::Duration::hours(1)).to_rfc3339();
    let [scheduled, paused, cancelled] = [
        rig.campaign(list, "Later", HTML).await,
        rig.campaign(list, "Rest", HTML).await,
        rig.campaign(list, "Never", HTML).await,
    ];
    for campaign in [scheduled, paused, cancelled] {
        let path = format!("/v1/campaigns/{campaign}/launch");
        let answer = rig.client.post(&path, json!({"schedule_for": at})).await.expect(202);
        assert!(answer["scheduled_for"].is_string(), "{answer}");
        rig.status(campaign, "scheduled", Duration::from_secs(60)).await;
    }
    rig.client.patch(&format!("/v1/campaigns/{paused}"), json!({"paused": true})).await.expect(200);
    rig.client.patch(&format!("/v1/campaigns/{cancelled}"), json!({"status": "cancelled"})).await.expect(200);
    assert_eq!(rig.sink.accepted().await, 0);

    come_due(&rig, &[scheduled, paused, cancelled]).await;
    rig.status(scheduled, "sent", Duration::from_secs(120)).await;
    let early =
        "select count(*) from sends s join campaigns c on c.id = s.campaign_id where s.fenced_at < c.scheduled_for";
    assert_eq!(sqlx::query_scalar::<_, i64>(early).fetch_one(&rig.pool).await.unwrap(), 0, "not before its time");
    rig.status(paused, "sending", Duration::from_secs(120)).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![1; 50], "of the one that is not held back");

    rig.client.patch(&format!("/v1/campaigns/{paused}"), json!({"paused": false})).await.expect(200);
    rig.status(paused, "sent", Duration::from_secs(120)).await;
    rig.status(cancelled, "cancelled", Duration::from_secs(60)).await;
    assert_eq!(rig.sink.counts(&addresses).await, vec![2; 50]);
    rig.books_balance().await;
}

/// The hour for which these were launched has come; their launches are looked at.
async fn come_due(rig: &Rig, campaigns: &[Uuid]) {
    let mut tx = rig.pool.begin().await.unwrap();
    for due in [
        "update campaigns set scheduled_for = now() where id = any($1)",
        "update requests set announce_after = now() where (payload ->> 'campaign_id')::uuid = any($1)",
    ] {
        let changed = sqlx::query(due).bind(campaigns).execute(&mut *tx).await.unwrap().rows_affected();
        assert_eq!(changed, campaigns.len() as u64);
    }
    tx.commit().await.unwrap();
    eventually("the launches to be looked at", Duration::from_secs(120), || async {
        let waiting =
            "select count(*) from requests where (payload ->> 'campaign_id')::uuid = any($1) and state <> 'handled'";
        let waiting: i64 = sqlx::query_scalar(waiting).bind(campaigns).fetch_one(&rig.pool).await.ok()?;
        (waiting == 0).then_some(())
    })
    .await;
}
