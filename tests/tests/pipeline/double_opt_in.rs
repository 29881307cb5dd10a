//! Double opt-in from the sign-up to the first campaign.

use std::time::Duration;

use pipeline::{Rig, eventually};
use serde_json::json;

use crate::webhooks::receiver::Receiver;

const WITHIN: Duration = Duration::from_secs(60);

/// The link of a confirmation mail, as a mail program decodes it.
fn link(source: &str) -> String {
    let text = source.replace("=\r\n", "").replace("=\n", "").replace("=3D", "=");
    let start = text.find("/c/v1.").unwrap_or_else(|| panic!("no link in {text}"));
    text[start..].chars().take_while(|c| c.is_ascii_alphanumeric() || "/._-".contains(*c)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_confirms_by_the_mails_link_gets_the_campaign() {
    let mut rig = Rig::shared().await.with("WEBHOOK_ALLOW_NETWORKS", "127.0.0.0/8");
    rig.start_all().await;
    let receiver = Receiver::start().await;
    let subscription = json!({"url": receiver.url(), "events": ["contact.confirmed"]});
    rig.client.post("/v1/webhooks", subscription).await.expect(201);
    let (confirms, ignores) = ("confirms@example.com", "ignores@example.com");
    for address in [confirms, ignores] {
        let body = json!({"email": address, "first_name": "Gewinn!", "locale": "de", "lists": ["Confirmed readers"], "require_verification": true});
        rig.client.post("/v1/contacts", body).await.expect(201);
    }
    let mut mails = Vec::new();
    for address in [confirms, ignores] {
        let first = || async { rig.sink.messages_to(address).await.first().cloned() };
        mails.push(eventually(&format!("the mail to {address}"), WITHIN, first).await);
    }
    let mail = &mails[0];
    let source = rig.sink.source(mail["id"].as_u64().unwrap()).await;
    assert!(!source.contains("/t/c/") && !source.contains("/t/o/"), "it is not tracked: {source}");
    assert!(!source.contains("\nList-Unsubscribe:"), "{source}");
    assert!(!source.contains("Gewinn!"), "it prints nothing that a form took: {source}");
    let page = format!("{}{}", rig.base_url, link(&source));
    let shown = rig.client.http().get(&page).header("accept-language", "de").send().await.unwrap();
    assert_eq!(shown.status().as_u16(), 200);
    assert!(shown.text().await.unwrap().contains("Anmeldung bestätigen"));
    let post = rig.client.http().post(&page).header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(post.body("confirm=yes").send().await.unwrap().status().as_u16(), 200);
    let told = receiver.wait_for("contact.confirmed", WITHIN).await;
    assert_eq!(told["data"]["email"], confirms, "{told}");
    let campaign = rig.campaign(rig.list_id("Confirmed readers").await, "News", "<p>Hello</p>").await;
    rig.launch(campaign).await;
    rig.status(campaign, "sent", WITHIN).await;
    let counts = rig.sink.counts(&[confirms.to_owned(), ignores.to_owned()]).await;
    assert_eq!(counts, [2, 1], "the confirmation mail, and the campaign for one");
    rig.books_balance().await;
}
