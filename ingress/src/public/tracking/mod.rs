//! `/t/o/<token>` and `/t/c/<token>`: the pixel and the links in mail. The recipient never waits for what we note down.
//!
//! A HEAD request (link checkers, mail gateways) is answered like a GET and noted as nothing.

pub(crate) mod signals;

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use schemas::{SignalKind, token::Purpose};

use crate::{
    pipeline::{Doc, QUIET, Routes, error::ApiError, open, peer::Peer},
    public::{
        link::{FollowedLink, LinkPath},
        unsubscribe,
    },
    state::Ingress,
};

/// A transparent GIF of one pixel.
const PIXEL: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x01D\x00;";

pub(crate) fn routes() -> Routes {
    let pixel =
        |id, summary| describe(id, summary).other(200, "A transparent GIF", "image/gif").refuses(404, &["not_found"]);
    let link = |id, summary| {
        let link = describe(id, summary).empty(302, "To the address the sender wrote, in `Location`");
        link.other(404, "No such link", unsubscribe::PAGE)
    };
    Routes::new()
        .get("/t/o/{token}", open(opened), pixel("getOpenPixel", "The open pixel"))
        .head("/t/o/{token}", open(opened), pixel("headOpenPixel", "The open pixel, headers only"))
        .get("/t/c/{token}", open(clicked), link("followLink", "A tracked link"))
        .head("/t/c/{token}", open(clicked), link("headLink", "A tracked link, headers only"))
}

fn describe(id: &'static str, summary: &'static str) -> Doc {
    Doc::new(id, summary, "Called by mail programs. A HEAD is answered like a GET and noted as nothing.")
        .path_parameters::<LinkPath>()
}

/// The pixel. A HEAD is noted as nothing.
async fn opened(
    State(ingress): State<Arc<Ingress>>,
    link: FollowedLink,
    method: Method,
    peer: Peer,
    headers: HeaderMap,
) -> Response {
    // A token that is forged, cut or made for something else names nothing.
    let Some(claims) = link.claims(&ingress, Purpose::Open) else {
        return (QUIET, ApiError::new(StatusCode::NOT_FOUND, "not_found")).into_response();
    };
    if method != Method::HEAD {
        signals::record(&ingress, &claims, SignalKind::Opened, peer, &headers).await;
    }
    (StatusCode::OK, QUIET, [(header::CONTENT_TYPE, HeaderValue::from_static("image/gif"))], PIXEL).into_response()
}

/// A link. A HEAD is noted as nothing. On another tenant's host it leads nowhere: a redirect speaks in the host's name.
async fn clicked(
    State(ingress): State<Arc<Ingress>>,
    link: FollowedLink,
    method: Method,
    peer: Peer,
    headers: HeaderMap,
) -> Response {
    let Some((claims, number, url, target)) = link.claims(&ingress, Purpose::Click).and_then(|claims| {
        let (number, url) = claims.click().map(|(number, url)| (number, url.to_owned()))?;
        let target = location(&url)?;
        Some((claims, number, url, target))
    }) else {
        return unsubscribe::no_such_link(&headers);
    };
    if link.is_on_foreign_host(&ingress, &claims).await {
        return unsubscribe::no_such_link(&headers);
    }
    if method != Method::HEAD {
        signals::record(&ingress, &claims, SignalKind::Clicked { url, link: number }, peer, &headers).await;
    }
    (StatusCode::FOUND, QUIET, [(header::LOCATION, target)]).into_response()
}

/// A signed target as a header value. Only web addresses are followed: `javascript:` and the like must not be in a redirect, signed or
/// not. Other characters than ASCII are percent-encoded.
fn location(url: &str) -> Option<HeaderValue> {
    let parsed = url::Url::parse(url).ok().filter(|parsed| matches!(parsed.scheme(), "http" | "https"))?;
    let plain = url.bytes().all(|byte| byte.is_ascii_graphic());
    HeaderValue::try_from(if plain { url } else { parsed.as_str() }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://example.com/a?b=c&d=%20#e", Some("https://example.com/a?b=c&d=%20#e"))]
    #[case("http://example.com", Some("http://example.com"))]
    #[case("https://bücher.example/ä", Some("https://xn--bcher-kva.example/%C3%A4"))]
    #[case("https://example.com/a b", Some("https://example.com/a%20b"))]
    #[case("javascript:alert(1)", None)]
    #[case("//example.com/", None)]
    #[case("mailto:ann@example.com", None)]
    #[case("", None)]
    fn a_redirect_leads_to_a_web_address_as_it_was_signed(#[case] url: &str, #[case] expected: Option<&str>) {
        assert_eq!(location(url).as_ref().map(|value| value.to_str().unwrap()), expected);
    }
}
