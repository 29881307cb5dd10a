//! The HTML pages for recipients. They have no scripts, so that every browser and screen reader can show them.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, StatusCode, header};
use ledger::preferences::{Recipient, TOPICS_MAX, Topic};
use sha2::{Digest, Sha256};
use url::Url;

use super::texts::{PageText, PageTexts};
use crate::api::tenants::PageBranding;
use crate::pipeline::QUIET;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// Nothing is loaded but the tenant's logo, nothing is framed or run, and forms go back to where they came from. The one style is
/// named by its hash.
fn content_policy(style: &str, logo: Option<&Url>) -> String {
    let hash = STANDARD.encode(Sha256::digest(style.as_bytes()));
    let image = logo.map(|logo| format!("; img-src {}", logo.origin().ascii_serialization())).unwrap_or_default();
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'{image}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
}

/// Writes pages in the recipient's language, with the sender's name if it is known.
#[derive(Debug, Clone)]
pub(super) struct PageWriter {
    pub(super) texts: &'static PageTexts,
    pub(super) organisation: Option<String>,
    pub(super) branding: PageBranding,
}

impl PageWriter {
    /// A text with the sender's name in it.
    fn say(&self, text: &str) -> String {
        let from = match &self.organisation {
            Some(name) => format!("<strong>{}</strong>", escape(name)),
            None => self.texts.sender.to_owned(),
        };
        text.replace("{from}", &from)
    }

    /// The status of a page that asks, and what stands above its question: something if it asks `again`, after a form that is not its own.
    fn asking(&self, again: bool) -> (StatusCode, String) {
        if !again {
            return (StatusCode::OK, String::new());
        }
        let text = self.texts.preferences.not_understood;
        (StatusCode::BAD_REQUEST, format!("<p role=\"alert\" class=\"trouble\">{text}</p>\n"))
    }

    /// Asks whether to leave. `topics` is the token of the page where topics can be chosen instead.
    pub(super) fn ask(&self, again: bool, topics: Option<&str>) -> Response {
        let (status, alert) = self.asking(again);
        let texts = &self.texts.unsubscribe;
        let rather = topics
            .map(|token| format!("\n<section><p><a href=\"../p/{token}\">{}</a></p></section>", texts.rather))
            .unwrap_or_default();
        let body = format!(
            "{alert}<p>{}</p>\n{}<form method=\"post\"><button type=\"submit\" name=\"confirm\" value=\"yes\">{}</button></form>{rather}",
            self.say(texts.question),
            tenants_text(self.branding.unsubscribe_text.as_deref()),
            texts.button,
        );
        self.page(status, texts.title, &body)
    }

    /// Confirms the opt-out. `preferences` is the token of the page to come back on.
    pub(super) fn done(&self, preferences: Option<&str>) -> Response {
        let texts = &self.texts.unsubscribe;
        let back = preferences
            .map(|token| format!("\n<p><a href=\"../p/{token}\">{}</a></p>", texts.changed_mind))
            .unwrap_or_default();
        let body = format!("<p role=\"status\">{}</p>{back}", self.say(texts.done.text));
        self.page(StatusCode::OK, texts.done.title, &body)
    }

    /// Asks whether this address is to get marketing mail.
    pub(super) fn ask_consent(&self, again: bool, address: &str) -> Response {
        let (status, alert) = self.asking(again);
        let texts = &self.texts.confirmation;
        let address = format!("<strong>{}</strong>", escape(&masked(address)));
        let body = format!(
            "{alert}<p>{}</p>\n<form method=\"post\"><button type=\"submit\" name=\"confirm\" value=\"yes\">{}</button></form>",
            self.say(texts.question).replace("{address}", &address),
            texts.button,
        );
        self.page(status, texts.title, &body)
    }

    /// The words that [`Self::ask_consent`] shows, for the proof of a consent.
    pub(super) fn consent_words(&self, address: &str) -> String {
        let texts = &self.texts.confirmation;
        let from = self.organisation.as_deref().unwrap_or(self.texts.sender);
        let question = texts.question.replace("{address}", &masked(address)).replace("{from}", from);
        format!("{question} [{}]", texts.button)
    }

    /// Says that the consent is confirmed.
    pub(super) fn confirmed(&self) -> Response {
        let PageText { title, text } = self.texts.confirmation.done;
        self.page(StatusCode::OK, title, &format!("<p role=\"status\">{}</p>", self.say(text)))
    }

    /// 410 for a link that confirms nothing any more.
    pub(super) fn link_closed(&self) -> Response {
        let PageText { title, text } = self.texts.confirmation.closed;
        self.page(StatusCode::GONE, title, &format!("<p>{}</p>", self.say(text)))
    }

    /// 404 for a link without a valid token.
    pub(super) fn no_such_link(&self) -> Response {
        let PageText { title, text } = self.texts.no_link;
        self.page(StatusCode::NOT_FOUND, title, &format!("<p>{text}</p>"))
    }

    /// For an opt-out that could not be stored. Mail programs and people may try again.
    pub(super) fn not_left(&self, status: StatusCode) -> Response {
        self.try_again(status, &self.texts.not_left)
    }

    /// For a choice that could not be stored.
    pub(super) fn not_stored(&self, status: StatusCode) -> Response {
        self.try_again(status, &self.texts.not_stored)
    }

    fn try_again(&self, status: StatusCode, message: &PageText) -> Response {
        let body = format!("<p role=\"alert\" class=\"trouble\">{}</p>", message.text);
        let mut response = self.page(status, message.title, &body);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
        response
    }

    /// The preferences form, and the result of the last submission.
    pub(super) fn preferences(&self, recipient: &Recipient, topics: &[Topic], result: Option<FormResult>) -> Response {
        let texts = &self.texts.preferences;
        let (status, result) = match result {
            None | Some(FormResult::NotUnderstood) => self.asking(result.is_some()),
            Some(FormResult::Back) if !recipient.held => (StatusCode::OK, status_line(texts.is_back)),
            // A suppression that is left still holds the mail back: the page says it below.
            Some(FormResult::Saved | FormResult::Back) => (StatusCode::OK, status_line(texts.saved)),
            Some(FormResult::Left) => (StatusCode::OK, status_line(&self.say(texts.has_left))),
        };
        let about = self
            .say(texts.about)
            .replace("{address}", &format!("<strong>{}</strong>", escape(&masked(&recipient.address))));
        let held =
            if recipient.held { format!("<p class=\"trouble\">{}</p>\n", self.say(texts.held)) } else { String::new() };
        let own = tenants_text(self.branding.preferences_text.as_deref());
        let forms = if recipient.left { self.return_form(result.is_empty()) } else { self.choices(topics) };
        self.page(status, texts.title, &format!("{result}<p>{about}</p>\n{own}{held}{forms}"))
    }

    fn choices(&self, topics: &[Topic]) -> String {
        let texts = &self.texts.preferences;
        let chosen = if topics.is_empty() { format!("<p>{}</p>", texts.no_topics) } else { self.topics_form(topics) };
        format!(
            "{chosen}\n<section aria-labelledby=\"everything\"><h2 id=\"everything\">{}</h2><p>{}</p>\n\
             <form method=\"post\"><button type=\"submit\" class=\"quiet\" name=\"action\" value=\"leave\">{}</button></form></section>",
            texts.everything, texts.leave_about, texts.leave,
        )
    }

    fn topics_form(&self, topics: &[Topic]) -> String {
        let texts = &self.texts.preferences;
        let items: Vec<String> = topics.iter().map(topic).collect();
        let more = if topics.len() < TOPICS_MAX { String::new() } else { format!("<p>{}</p>\n", texts.more_topics) };
        format!(
            "<form method=\"post\"><fieldset aria-describedby=\"choose\"><legend>{}</legend><p id=\"choose\">{}</p>\n\
             <ul>\n{}\n</ul>\n{more}</fieldset>\n<button type=\"submit\" name=\"action\" value=\"save\">{}</button></form>",
            texts.topics,
            texts.choose,
            items.join("\n"),
            texts.save,
        )
    }

    fn return_form(&self, say_so: bool) -> String {
        let texts = &self.texts.preferences;
        let left = if say_so { format!("<p>{}</p>\n", self.say(texts.has_left)) } else { String::new() };
        format!(
            "{left}<p>{}</p>\n<form method=\"post\"><button type=\"submit\" name=\"action\" value=\"return\">{}</button></form>",
            texts.return_about, texts.come_back,
        )
    }

    /// The style with the tenant's colours. The button's colour is readable with white, so links have it on a light panel only.
    fn style(&self) -> Cow<'static, str> {
        let mut style = Cow::Borrowed(STYLE);
        if let Some(color) = &self.branding.button_color {
            style.to_mut().push_str(&format!(
                "button:not(.quiet), button:not(.quiet):hover {{ background: {color}; }}\n\
                 @media not (prefers-color-scheme: dark) {{ a {{ color: {color}; }} input {{ accent-color: {color}; }} }}\n"
            ));
        }
        if let Some(color) = &self.branding.background_color {
            let rule = format!("@media not (prefers-color-scheme: dark) {{ body {{ background: {color}; }} }}\n");
            style.to_mut().push_str(&rule);
        }
        style
    }

    fn page(&self, status: StatusCode, title: &str, body: &str) -> Response {
        let style = self.style();
        let logo = self.branding.logo_url.as_deref().and_then(|address| Url::parse(address).ok());
        let image = logo.as_ref().map(|address| {
            let name = escape(self.organisation.as_deref().unwrap_or_default());
            format!("<img class=\"logo\" src=\"{}\" alt=\"{name}\">\n", escape(address.as_str()))
        });
        let html = PAGE
            .replace("{lang}", self.texts.lang)
            .replace("{title}", title)
            .replace("{style}", &style)
            .replace("{body}", &format!("{}<h1>{title}</h1>\n{body}", image.unwrap_or_default()));
        let mut response =
            (status, QUIET, [(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))], html)
                .into_response();
        let headers = response.headers_mut();
        if let Ok(policy) = HeaderValue::try_from(content_policy(&style, logo.as_ref())) {
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        }
        headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static(self.texts.lang));
        headers.insert(header::VARY, HeaderValue::from_static("accept-language"));
        response
    }
}

/// The result of a submitted form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormResult {
    Saved,
    Left,
    Back,
    NotUnderstood,
}

/// The tenant's own sentence.
fn tenants_text(text: Option<&str>) -> String {
    text.map(|text| format!("<p class=\"own\">{}</p>\n", escape(text))).unwrap_or_default()
}

fn status_line(text: &str) -> String {
    format!("<p role=\"status\" class=\"told\">{text}</p>\n")
}

/// One topic: whether it was on the page travels along, so that a topic made since is not taken for one left.
fn topic(topic: &Topic) -> String {
    let Topic { id, name, description, joined } = topic;
    let checked = if *joined { " checked" } else { "" };
    let (described, description) = match description {
        Some(text) => (format!(" aria-describedby=\"d-{id}\""), format!("<span id=\"d-{id}\">{}</span>", escape(text))),
        None => (String::new(), String::new()),
    };
    format!(
        "<li><input type=\"hidden\" name=\"shown\" value=\"{id}\"><input type=\"checkbox\" id=\"t-{id}\" name=\"topic\" \
         value=\"{id}\"{checked}{described}><div><label for=\"t-{id}\">{}</label>{description}</div></li>",
        escape(name),
    )
}

/// Masks an address so that only its owner recognises it.
fn masked(address: &str) -> String {
    let (local, domain) = address.split_once('@').unwrap_or((address, ""));
    let first: String = local.chars().take(1).collect();
    if domain.is_empty() { format!("{first}…") } else { format!("{first}…@{domain}") }
}

/// Escaped for HTML, and for the page's own gaps, which begin with a brace.
fn escape(text: &str) -> String {
    htmlize::escape_all_quotes(text).replace('{', "&#123;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::public::unsubscribe::texts::ALL;
    use http_body_util::BodyExt;
    use uuid::Uuid;

    async fn html(response: Response) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    fn reader(texts: &'static PageTexts, organisation: Option<&str>) -> PageWriter {
        PageWriter { texts, organisation: organisation.map(str::to_owned), branding: PageBranding::default() }
    }

    fn recipient(left: bool) -> Recipient {
        let (contact_id, topics_of, address) = (Uuid::nil(), Uuid::nil(), "ann@example.com".to_owned());
        Recipient { contact_id, topics_of, address, locale: None, left, held: false }
    }

    #[tokio::test]
    async fn a_name_cannot_put_markup_into_a_page() {
        let html_of = html(reader(ALL[0], Some("<script>alert('x')</script> & {style}")).ask(false, Some("t"))).await;
        assert!(!html_of.contains("<script>"), "{html_of}");
        assert!(html_of.contains("&lt;script&gt;alert(&apos;x&apos;)&lt;/script&gt; &amp; &#123;style}"), "{html_of}");
        let topic = Topic {
            id: Uuid::nil(),
            name: "\"><script>1</script>".to_owned(),
            description: Some("<img src=x> {body}".to_owned()),
            joined: true,
        };
        let html = html(reader(ALL[0], None).preferences(&recipient(false), &[topic], None)).await;
        assert!(!html.contains("<script>") && !html.contains("<img") && html.contains("&#123;body}"), "{html}");
    }

    #[tokio::test]
    async fn a_page_asks_by_post_to_its_own_address_and_loads_nothing() {
        for texts in ALL {
            let reader = reader(texts, None);
            for response in [
                reader.ask(false, Some("t")),
                reader.done(Some("t")),
                reader.no_such_link(),
                reader.ask_consent(false, "ann@example.com"),
                reader.ask_consent(true, "ann@example.com"),
                reader.confirmed(),
                reader.link_closed(),
                reader.not_left(StatusCode::SERVICE_UNAVAILABLE),
                reader.not_stored(StatusCode::SERVICE_UNAVAILABLE),
                reader.preferences(&recipient(false), &[], None),
                reader.preferences(&recipient(true), &[], Some(FormResult::Left)),
                reader.preferences(&recipient(false), &[], Some(FormResult::NotUnderstood)),
            ] {
                let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
                assert!(policy.starts_with("default-src 'none'") && policy.contains("form-action 'self'"), "{policy}");
                assert!(!response.headers().contains_key(header::SET_COOKIE));
                let html = html(response).await;
                assert!(html.contains(&format!("<html lang=\"{}\">", texts.lang)) && html.contains("<main>"), "{html}");
                assert!(!html.contains("action=\"") && !html.contains("<script"), "{html}");
                assert!(!html.contains("http://") && !html.contains("https://"), "{html}");
                let body = html.split("<body>").nth(1).unwrap();
                assert!(!body.contains('{') && !body.contains('}'), "a placeholder is left: {body}");
            }
        }
    }

    #[tokio::test]
    async fn a_recipient_still_held_back_is_not_said_to_be_subscribed() {
        for texts in ALL {
            for held in [false, true] {
                let recipient = Recipient { held, ..recipient(false) };
                let html = html(reader(texts, None).preferences(&recipient, &[], Some(FormResult::Back))).await;
                let said = [texts.preferences.is_back, texts.preferences.saved].map(|text| html.contains(text));
                assert_eq!(said, [!held, held], "{html}");
            }
        }
    }

    #[tokio::test]
    async fn a_branded_page_loads_the_logo_alone_and_shows_plain_text() {
        let text = "<b>Rare</b> & short\nmails {style}".to_owned();
        let branding = PageBranding {
            unsubscribe_text: Some(text.clone()),
            preferences_text: Some(text),
            logo_url: Some("https://cdn.acme.example:8443/logo.png?a=1&b=\"{body}".to_owned()),
            button_color: Some("#0a5c36".to_owned()),
            background_color: Some("#eef7f1".to_owned()),
        };
        let writer = PageWriter { branding, ..reader(ALL[0], Some("Acme \"& Co")) };
        for response in [writer.ask(false, Some("t")), writer.preferences(&recipient(false), &[], None)] {
            let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
            let html = html(response).await;
            assert!(policy.contains("; img-src https://cdn.acme.example:8443; form-action"), "{policy}");
            let style = html.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
            let hash = STANDARD.encode(Sha256::digest(style.as_bytes()));
            assert!(policy.contains(&format!("style-src 'sha256-{hash}'")), "{policy}");
            assert!(style.contains("background: #0a5c36") && style.contains("background: #eef7f1"), "{style}");
            assert!(html.contains("&lt;b&gt;Rare&lt;/b&gt; &amp; short\nmails &#123;style}"), "{html}");
            assert!(html.contains("logo.png?a=1&amp;b=%22&#123;body}\" alt=\"Acme &quot;&amp; Co\">"), "{html}");
        }
        let plain = reader(ALL[0], None).ask(false, Some("t"));
        assert!(!plain.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().contains("img-src"));
    }

    #[test]
    fn an_address_is_half_hidden() {
        assert_eq!(masked("ann@example.com"), "a…@example.com");
        assert_eq!(masked("erased"), "e…");
    }
}
