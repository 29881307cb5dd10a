mod bodies;
mod checks;
mod compose;
mod footer;
mod growth;
mod hostile;
mod language;
mod links;
mod mjml;
mod warnings;
mod wire;
mod written;

use std::sync::LazyLock;

use runtime::Budget;
use schemas::token::TokenKeys;
use schemas::{PlaceholderValues, RenderedRecipient, SendId, TokenIds};
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

/// Addresses one can tell apart in an assertion.
struct TestLinks;

impl Links for TestLinks {
    fn click(&self, link_no: u16, url: &str) -> String {
        format!("https://t.test/c/{link_no}?to={url}")
    }

    fn open_pixel(&self) -> String {
        "https://t.test/o/1".to_owned()
    }

    fn unsubscribe(&self) -> String {
        "https://t.test/u/1?a=1&b=2".to_owned()
    }

    fn preferences(&self) -> String {
        "https://t.test/p/1".to_owned()
    }
}

static TOKENS: LazyLock<TokenKeys> = LazyLock::new(|| TokenKeys::derive(&[[7; 32]]));
static BASES: LazyLock<LinkBases> =
    LazyLock::new(|| LinkBases { own: "https://own.test/a&b".to_owned(), public: "https://public.test".to_owned() });
const SEND: SendId = SendId(Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0001));

/// Addresses as they are sent.
fn send_links() -> SendLinks<'static> {
    let ids = TokenIds { tenant_id: Uuid::from_u128(1), send_id: SEND, contact_id: Uuid::from_u128(3) };
    SendLinks { tokens: &TOKENS, bases: &BASES, ids }
}

/// The message of a recipient with these texts.
fn spliced(compiled: &CompiledMessage, slots: &[String], attachments: &[Vec<u8>]) -> Vec<u8> {
    let ids = send_links().ids;
    let values = PlaceholderValues {
        tenant_id: ids.tenant_id,
        batch_id: SEND.batch(),
        token_key: TOKENS.newest(),
        recipient: RenderedRecipient::new(SEND.ordinal(), ids.contact_id, "ada@example.org", slots),
        due_at: None,
    };
    compiled.skeleton().splice(&values, &TOKENS, attachments).unwrap()
}

fn template(html: &str) -> TemplateSource {
    TemplateSource {
        subject: "Hello".to_owned(),
        preheader: None,
        body_html: html.to_owned(),
        body_text: None,
        kind: TemplateKind::Transactional,
    }
}

/// Nothing added: what the template prints and no more.
fn bare() -> MessageOptions {
    MessageOptions {
        tenant: Named { id: "t-1".to_owned(), name: "Acme".to_owned() },
        campaign: Some(Named { id: "c-1".to_owned(), name: "Spring".to_owned() }),
        sender: Sender {
            name: "Ann Sender".to_owned(),
            email: "ann@example.com".to_owned(),
            reply_to: Some("reply@example.com".to_owned()),
        },
        sending_domain: "example.com".to_owned(),
        physical_address: Some("1 Main Street\nSpringfield".to_owned()),
        fallbacks: [("plan".to_owned(), "free".to_owned()), ("colour".to_owned(), "blue".to_owned())].into(),
        bases: BASES.clone(),
        ..MessageOptions::default()
    }
}

fn marketing() -> MessageOptions {
    MessageOptions { opt_out: true, track_links: true, track_opens: true, ..bare() }
}

fn contact() -> Contact {
    Contact {
        email: "ada@example.org".to_owned(),
        first_name: Some("Ada".to_owned()),
        last_name: Some("Lovelace".to_owned()),
        company: Some("Analytical & Sons".to_owned()),
        fields: json!({"plan": "pro", "score": 7, "tags": ["a", "b"], "none": null}),
        ..Contact::default()
    }
}

fn data() -> MergeData {
    MergeData {
        contact: contact(),
        data: json!({"order": {"id": 17, "items": [{"name": "Tea", "price": 4.5}, {"name": "Cup"}]}, "url": "https://shop.test/a?b=1&c=2", "blank": ""}),
        event: json!({"name": "trial_started", "properties": {"plan": "pro", "seats": 3}}),
        headers: OwnHeaders::default(),
    }
}

fn named(first_name: &str) -> MergeData {
    let mut data = data();
    data.contact.first_name = Some(first_name.to_owned());
    data
}

fn html_of(html: &str, data: &MergeData) -> String {
    preview(&template(html), &bare(), data, &TestLinks).unwrap().html
}

fn marketing_html(html: &str) -> String {
    preview(&template(html), &marketing(), &data(), &TestLinks).unwrap().html
}

fn render_html(html: &str) -> String {
    html_of(html, &data())
}

/// The message as delivery would send it.
fn message(source: &TemplateSource, options: &MessageOptions, data: &MergeData) -> Vec<u8> {
    let compiled = compile(source, options).unwrap();
    let slots = compiled.render(data, &send_links()).unwrap();
    spliced(&compiled, &slots, &[])
}
