//! `/u/<token>`: one click to leave. GET shows a page and never acts, because link checkers follow every link; POST acts, whether a
//! person pressed the button or the mail program did it for them (RFC 8058).

mod page;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    response::Response,
    routing::get,
};
use engagement::OptOut;
use http::HeaderMap;
use schemas::{
    SignalKind,
    token::{Purpose, TokenClaims},
};

use super::tracking::{peer::Peer, signals};
use crate::{Ingress, act::body, error::ApiError};

/// A one-click POST is some 30 bytes, as a form of either kind some 200.
const BODY_MAX_BYTES: usize = 16 * 1024;

/// The routes.
pub(crate) fn routes() -> Router<Arc<Ingress>> {
    // HEAD goes the way of GET, which does nothing.
    Router::new().route("/u/{token}", get(ask).post(leave))
}

async fn ask(State(ingress): State<Arc<Ingress>>, Path(token): Path<String>) -> Response {
    match ingress.tokens.open(Purpose::Unsubscribe, &token) {
        Ok(claims) => page::ask(organisation(&ingress, &claims).await.as_deref()),
        Err(_) => page::no_such_link(),
    }
}

async fn leave(
    State(ingress): State<Arc<Ingress>>,
    Path(token): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Ok(claims) = ingress.tokens.open(Purpose::Unsubscribe, &token) else { return page::no_such_link() };
    let body = match body::read(body, &headers, BODY_MAX_BYTES, ingress.settings.http_body_timeout).await {
        Ok(body) => body,
        Err(error) => return page::try_again(error.status),
    };
    let kind = SignalKind::Unsubscribed { method: method(&body).to_owned() };
    // In a task of its own: a client that hangs up after the POST has left all the same.
    let work = Leaving { ingress: Arc::clone(&ingress), claims: claims.clone(), kind, peer, headers };
    match ingress.tasks.spawn(work.carry_out()).await {
        Ok(Ok(OptOut::Recorded | OptOut::Already)) => page::done(organisation(&ingress, &claims).await.as_deref()),
        Ok(Ok(OptOut::UnknownSend)) => page::no_such_link(),
        Ok(Err(error)) => page::try_again(error.status),
        Err(panicked) => page::try_again(ApiError::unexpected(&panicked).status),
    }
}

/// One opt-out.
struct Leaving {
    ingress: Arc<Ingress>,
    claims: TokenClaims,
    kind: SignalKind,
    peer: Peer,
    headers: HeaderMap,
}

impl Leaving {
    /// Commits before anybody is told: once the answer is out, no fence passes any more. The signal, for the send's timeline,
    /// follows by itself.
    async fn carry_out(self) -> Result<OptOut, ApiError> {
        let Self { ingress, claims, kind, peer, headers } = self;
        let mut tx = runtime::db::begin_for_tenant(&ingress.pool, claims.tenant_id).await?;
        let found = engagement::opt_out(&mut tx, claims.tenant_id, claims.send_id).await?;
        tx.commit().await?;
        if found != OptOut::UnknownSend {
            signals::record(&ingress, &claims, kind, peer, &headers);
        }
        Ok(found)
    }
}

/// Who sends, for people to recognise. The page works without it.
async fn organisation(ingress: &Ingress, claims: &TokenClaims) -> Option<String> {
    let name = sqlx::query_scalar!("select org_name from tenants where id = $1", claims.tenant_id)
        .fetch_optional(&ingress.pool);
    name.await.ok().flatten().flatten().filter(|name| !name.trim().is_empty())
}

/// `one_click` for the body that RFC 8058 §3.2 prescribes, in either form encoding; `page` for our own button.
fn method(body: &[u8]) -> &'static str {
    let has = |words: &[u8]| body.windows(words.len()).any(|window| window.eq_ignore_ascii_case(words));
    if has(b"List-Unsubscribe") && has(b"One-Click") { "one_click" } else { "page" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(b"List-Unsubscribe=One-Click", "one_click")]
    #[case(
        b"--x\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--\r\n",
        "one_click"
    )]
    #[case(b"confirm=yes", "page")]
    #[case(b"", "page")]
    fn a_mail_programs_click_is_told_from_the_pages_button(#[case] body: &[u8], #[case] expected: &str) {
        assert_eq!(method(body), expected);
    }
}
