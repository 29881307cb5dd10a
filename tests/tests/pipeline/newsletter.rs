//! A newsletter of MJML, in a layout, with snippets, from HTTP to the mail sink.

use std::time::Duration;

use pipeline::Rig;
use serde_json::{Value, json};

const LAYOUT: &str = r##"<mjml>
  <mj-head>
    <mj-preview>{{ first_name | default: "Dear reader" }}, three things from the workshop</mj-preview>
    <mj-attributes><mj-all font-family="Georgia, serif" /><mj-text font-size="16px" line-height="24px" /></mj-attributes>
  </mj-head>
  <mj-body background-color="#f4f1ea">
    <mj-section background-color="#ffffff"><mj-column>
      <mj-image src="https://workshop.test/logo.png" alt="The Workshop" width="120px" href="https://workshop.test/" />
    </mj-column></mj-section>
    {{ content }}
    {% include 'address' %}
  </mj-body>
</mjml>"##;
const BODY: &str = r##"<mj-section background-color="#ffffff">
  <mj-column>
    <mj-text><h1>Hello {{ first_name | default: "there" }}</h1><p>Three things we made this week:</p>
      <ul>{% for number in (1..3) %}<li>Thing {{ number }}</li>{% endfor %}</ul></mj-text>
    {% include 'button', href: "https://workshop.test/new?a=1&b=2", label: "See them" %}
  </mj-column>
</mj-section>
{% if contact.company %}<mj-section background-color="{% if email contains '@' %}#e8f0e4{% else %}#ffffff{% endif %}">
  <mj-column><mj-text>For {{ contact.company }}: 10 % off.</mj-text></mj-column>
</mj-section>{% endif %}"##;
const BUTTON: &str = r##"<mj-button href="{{ href }}" background-color="#2f5d50">{{ label | upcase }}</mj-button>"##;
const ADDRESS: &str = r##"<mj-section><mj-column><mj-text align="center" font-size="12px">The Workshop, 1 Main Street</mj-text></mj-column></mj-section>"##;

async fn snippet(rig: &Rig, body: Value) -> String {
    rig.client.post("/v1/snippets", body).await.expect(201)["snippet_id"].as_str().unwrap().to_owned()
}

/// The layout and its snippets. Answers the path of the button.
async fn workshop(rig: &Rig) -> String {
    let button = snippet(rig, json!({"name": "button", "mjml": BUTTON})).await;
    snippet(rig, json!({"name": "address", "mjml": ADDRESS})).await;
    snippet(rig, json!({"name": "newsletter", "kind": "layout", "mjml": LAYOUT})).await;
    format!("/v1/snippets/{button}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newsletter_arrives_as_its_snippets_were_when_it_was_made() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let path = workshop(&rig).await;
    let body = json!({"name": "News", "subject": "News for {{ first_name }}", "mjml": BODY, "layout": "newsletter"});
    let made = rig.client.post("/v1/templates", body).await.expect(201);
    assert_eq!(made["warnings"], json!([]), "{made}");
    // A new button is none for a template that holds the old one.
    let change = json!({"mjml": "<mj-text>NO BUTTON</mj-text>"});
    assert_eq!(rig.client.patch(&path, change).await.expect(200)["outdated_templates"], 1);

    let (list, addresses) = rig.list_of(2, "news", "example.com").await;
    let ann = json!({"email": addresses[0], "first_name": "Ann <3", "company": "Acme & Sons", "on_existing": "update"});
    rig.client.post("/v1/contacts", ann).await.expect(200);
    let private = json!({"email": addresses[1], "company": null, "on_existing": "update"});
    rig.client.post("/v1/contacts", private).await.expect(200);
    let campaign = json!({
        "name": "News", "sender_profile_id": rig.sender_id, "audience_mode": "list", "list_id": list,
        "template_id": made["template_id"],
    });
    let campaign = rig.client.post("/v1/campaigns", campaign).await.expect(201)["campaign_id"].clone();
    rig.launch(campaign.as_str().unwrap().parse().unwrap()).await;
    rig.sink.wait(2, 60_000).await;

    let messages = rig.sink.messages_to(&addresses[0]).await;
    assert_eq!(messages.len(), 1);
    let (html, text) = (messages[0]["html"].as_str().unwrap(), messages[0]["text"].as_str().unwrap());
    if let Some(place) = std::env::var_os("POSTRIDER_TEST_NEWSLETTER") {
        std::fs::write(place, format!("{html}<pre>{}</pre>", text.replace('<', "&lt;"))).unwrap();
    }
    for part in [
        "Hello Ann &lt;3</h1>",
        "<li>Thing 3</li>",
        "SEE THEM</a>",
        "For Acme &amp; Sons: 10 % off.",
        "background-color:#e8f0e4",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(!html.contains("NO BUTTON") && !html.contains("{%") && !html.contains("<mj-"), "{html}");
    // The logo is tracked. The button's address is a parameter: one whose host Liquid prints is left alone.
    assert_eq!(html.matches("/t/c/").count(), 1, "{html}");
    assert!(html.contains("href=\"https://workshop.test/new?a=1&amp;b=2\""), "{html}");
    assert!(html.contains("/t/o/") && html.contains("/u/"), "{html}");
    assert!(text.replace("\r\n", "\n").contains("- Thing 1\n- Thing 2\n- Thing 3"), "{text}");
    let other = rig.sink.messages_to(&addresses[1]).await;
    let html = other[0]["html"].as_str().unwrap();
    assert!(!html.contains("% off") && html.contains("Thing 3"), "{html}");
    rig.status(campaign.as_str().unwrap().parse().unwrap(), "sent", Duration::from_secs(60)).await;
    rig.books_balance().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_campaigns_own_newsletter_arrives_as_its_snippets_were_at_the_launch() {
    let mut rig = Rig::shared().await;
    rig.start_all().await;
    let button = workshop(&rig).await;
    let (list, addresses) = rig.list_of(1, "own-news", "example.com").await;
    let campaign = json!({
        "name": "News", "sender_profile_id": rig.sender_id, "audience_mode": "list", "list_id": list,
        "subject": "News", "mjml": BODY, "layout": "newsletter",
    });
    let made = rig.client.post("/v1/campaigns", campaign).await.expect(201);
    assert_eq!(made["warnings"], json!([]), "{made}");
    let newer = json!({"mjml": r#"<mj-button href="{{ href }}">{{ label }}: newest</mj-button>"#});
    rig.client.patch(&button, newer).await.expect(200);
    let campaign = made["campaign_id"].as_str().unwrap().parse().unwrap();
    rig.launch(campaign).await;
    rig.sink.wait(1, 60_000).await;
    let messages = rig.sink.messages_to(&addresses[0]).await;
    let html = messages[0]["html"].as_str().unwrap();
    for part in ["See them: newest</a>", "The Workshop, 1 Main Street", "<li>Thing 3</li>", "/t/o/", "/u/"] {
        assert!(html.contains(part), "{part}: {html}");
    }
    assert!(!html.contains("{%") && !html.contains("<mj-"), "{html}");
    rig.status(campaign, "sent", Duration::from_secs(60)).await;
    rig.books_balance().await;
}
