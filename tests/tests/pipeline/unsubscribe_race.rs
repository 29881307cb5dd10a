//! An unsubscribe that was answered always wins: no mail to that address is fenced after it.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures::{StreamExt, stream};
use pipeline::{Rig, eventually};
use runtime::MasterKeys;
use schemas::token::Purpose;
use sqlx::Row;
use uuid::Uuid;

const RACERS: usize = 1_000;
const WITHIN: Duration = Duration::from_secs(60);

struct Raced {
    contact: Uuid,
    answered_at: DateTime<Utc>,
    state_after: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn no_mail_is_fenced_after_an_unsubscribe_was_answered_in_a_thousand_races() {
    let mut rig = Rig::shared().await.with("SMTP_CONNECTIONS", "8");
    rig.start_all().await;
    let (list, _) = rig.list_of(RACERS, "race", "example.com").await;
    let html = "<p>Hello {{ first_name }}</p>";
    let first = rig.campaign(list, "One", html).await;
    rig.launch(first).await;
    rig.status(first, "sent", WITHIN).await;
    let tokens = MasterKeys::parse(&rig.env["POSTRIDER_MASTER_KEY"]).unwrap().tokens();
    let links: Vec<(Uuid, String)> = sqlx::query("select id, contact_id from sends where campaign_id = $1")
        .bind(first)
        .fetch_all(&rig.pool)
        .await
        .unwrap()
        .iter()
        .map(|row| {
            let token = tokens.seal(Purpose::Unsubscribe, rig.engine_tenant_id, row.get(0), b"");
            (row.get(1), format!("{}/u/{token}", rig.base_url))
        })
        .collect();
    assert_eq!(links.len(), RACERS);

    let second = rig.campaign(list, "Two", html).await;
    rig.launch(second).await;
    let rig = Arc::new(rig);
    let raced: Vec<Raced> = stream::iter(links)
        .map(|(contact, link)| {
            let rig = rig.clone();
            async move {
                // Opt-outs of one batch take turns; on a busy machine one may be asked to come again.
                let answered_at = eventually("an opt-out to be answered", WITHIN, || {
                    let opt_out = rig.client.http().post(&link).body("List-Unsubscribe=One-Click");
                    async move {
                        let answer = opt_out.send().await.unwrap();
                        let (status, repeat) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
                        assert!(status == 200 || (status == 503 && repeat), "{status}");
                        (status == 200).then(Utc::now)
                    }
                })
                .await;
                let state: Option<String> =
                    sqlx::query_scalar("select state from sends where campaign_id = $1 and contact_id = $2")
                        .bind(second)
                        .bind(contact)
                        .fetch_optional(&rig.pool)
                        .await
                        .unwrap();
                Raced { contact, answered_at, state_after: state.unwrap_or_else(|| "absent".to_owned()) }
            }
        })
        .buffer_unordered(16)
        .collect()
        .await;
    // Signals of opt-outs are recorded beside the campaign, and hold its contacts locked for milliseconds.
    rig.status(second, "sent", WITHIN).await;

    let mut withheld = 0;
    for race in &raced {
        let row = sqlx::query("select state, reason, fenced_at from sends where campaign_id = $1 and contact_id = $2")
            .bind(second)
            .bind(race.contact)
            .fetch_one(&rig.pool)
            .await
            .unwrap();
        let (state, reason, fenced_at): (String, Option<String>, Option<DateTime<Utc>>) =
            (row.get(0), row.get(1), row.get(2));
        assert!(fenced_at.is_none_or(|fenced| fenced <= race.answered_at), "fenced after the answer");
        if matches!(race.state_after.as_str(), "absent" | "queued" | "skipped") {
            assert_eq!(
                (state.as_str(), reason.as_deref()),
                ("skipped", Some("unsubscribed")),
                "mailed after the answer"
            );
            withheld += 1;
        }
    }
    let sent: i64 = sqlx::query_scalar("select count(*) from sends where campaign_id = $1 and state = 'sent'")
        .bind(second)
        .fetch_one(&rig.pool)
        .await
        .unwrap();
    assert_eq!(rig.sink.accepted().await, RACERS as u64 + sent as u64);
    assert!(withheld > 0, "no unsubscribe came in time to race");
    rig.books_balance().await;
}
