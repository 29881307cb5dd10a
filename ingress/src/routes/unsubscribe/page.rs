//! The page a recipient sees. Plain HTML without scripts: it works in every mail program's browser and with every screen reader.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};

use crate::routes::tracking::QUIET;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// Nothing is loaded, framed or run; the form goes back to where it came from. The one style is named by its hash.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(STYLE.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
});

/// Asks for confirmation. `organisation` is who sends, where that is known.
pub(super) fn ask(organisation: Option<&str>) -> Response {
    let from = organisation.map_or_else(|| "this sender".to_owned(), escape);
    let body = format!(
        "<p>Do you want to stop marketing e-mail from <strong>{from}</strong>? It takes effect at once.</p>\n\
         <form method=\"post\"><button type=\"submit\" name=\"confirm\" value=\"yes\">Unsubscribe</button></form>"
    );
    page(StatusCode::OK, "Unsubscribe", &body)
}

/// Says that it is done.
pub(super) fn done(organisation: Option<&str>) -> Response {
    let from = organisation.map_or_else(|| "this sender".to_owned(), escape);
    let body = format!(
        "<p role=\"status\">You will get no more marketing e-mail from <strong>{from}</strong>. \
         Messages about your orders or your account may still reach you.</p>"
    );
    page(StatusCode::OK, "You are unsubscribed", &body)
}

/// For a link that names nothing.
pub(super) fn no_such_link() -> Response {
    let body = "<p>It may have been cut in two by a mail program. Open it once more from the message itself.</p>";
    page(StatusCode::NOT_FOUND, "This link does not work", body)
}

/// For an opt-out that could not be stored. Mail programs and people may try again.
pub(super) fn try_again(status: StatusCode) -> Response {
    let body = "<p role=\"alert\">You are <strong>not yet</strong> unsubscribed. Please try again in a minute.</p>";
    let mut response = page(status, "Something went wrong", body);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("60"));
    response
}

fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let html = PAGE.replace("{title}", title).replace("{style}", STYLE).replace("{body}", body);
    let mut response =
        (status, QUIET, [(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))], html)
            .into_response();
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(POLICY.as_str()) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    response
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '{' => escaped.push_str("&#123;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn html(response: Response) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_name_cannot_put_markup_into_the_page() {
        let html = html(ask(Some("<script>alert('x')</script> & {style}"))).await;
        assert!(!html.contains("<script>"), "{html}");
        assert!(html.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#123;style}"), "{html}");
    }

    #[tokio::test]
    async fn the_page_asks_by_post_to_its_own_address_and_loads_nothing() {
        let response = ask(None);
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        assert!(policy.starts_with("default-src 'none'") && policy.contains("form-action 'self'"), "{policy}");
        assert!(!response.headers().contains_key(header::SET_COOKIE));
        let html = html(response).await;
        assert!(html.contains("<form method=\"post\">") && !html.contains("action="), "{html}");
        assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("<script"), "{html}");
    }
}
