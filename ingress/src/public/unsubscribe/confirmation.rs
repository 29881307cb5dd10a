//! `/c/<token>`: the page behind the link of a confirmation mail. GET asks and changes nothing, because scanners and mail programs
//! follow every link; POST is the consent.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    response::Response,
};
use http::HeaderMap;
use ledger::{
    confirmations::{self, ConfirmationLink},
    preferences::ConsentEvidence,
};
use schemas::token::{Purpose, TokenClaims};
use uuid::Uuid;

use super::{BODY_MAX_BYTES, method, page::PageWriter, page_writer, take_turn};
use crate::{
    pipeline::{body, error::ApiError, peer::Peer},
    public::tracking::signals,
    state::Ingress,
};

/// Of a good token: the claims and the contact. The send may not be kept any more, so the token names the contact.
fn open_token(ingress: &Ingress, token: &str) -> Option<(TokenClaims, Uuid)> {
    let claims = ingress.tokens.open(Purpose::Confirm, token).ok()?;
    let contact = claims.contact()?;
    Some((claims, contact))
}

pub(super) async fn show(
    State(ingress): State<Arc<Ingress>>,
    Path(token): Path<String>,
    headers: HeaderMap,
) -> Response {
    let opened = open_token(&ingress, &token);
    let page = page_writer(&ingress, opened.as_ref().map(|(claims, _)| claims), &headers).await;
    let Some((claims, contact)) = opened else { return page.no_such_link() };
    match find_link(&ingress, claims.tenant_id, contact).await {
        Ok(Some((ConfirmationLink::Pending, address))) => page.ask_consent(&address),
        Ok(found) => answer(&page, found.map(|(link, _)| link)),
        Err(error) => page.not_stored(error.status),
    }
}

pub(super) async fn confirm(
    State(ingress): State<Arc<Ingress>>,
    Path(token): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let opened = open_token(&ingress, &token);
    let page = page_writer(&ingress, opened.as_ref().map(|(claims, _)| claims), &headers).await;
    let Some((claims, contact)) = opened else { return page.no_such_link() };
    let body = match body::read(body, body::PUBLIC, &headers, BODY_MAX_BYTES, ingress.settings.http_body_timeout).await
    {
        Ok(body) => body,
        Err(error) => return page.not_stored(error.status),
    };
    let address = match find_link(&ingress, claims.tenant_id, contact).await {
        Ok(Some((ConfirmationLink::Pending, address))) => address,
        Ok(found) => return answer(&page, found.map(|(link, _)| link)),
        Err(error) => return page.not_stored(error.status),
    };
    // A mail program's one click is for leaving.
    if method(&body) != Some("page") {
        return page.ask_consent_again(&address);
    }
    // In a task of its own: a client that hangs up after the POST has confirmed all the same.
    let words = page.consent_words(&address);
    let request = ConsentRequest { ingress: Arc::clone(&ingress), claims, contact, words, peer, headers };
    match ingress.tasks.spawn(request.apply()).await {
        Ok(Ok(link)) => answer(&page, link),
        Ok(Err(error)) => page.not_stored(error.status),
        Err(panicked) => page.not_stored(ApiError::from(panicked).status),
    }
}

fn answer(page: &PageWriter, link: Option<ConfirmationLink>) -> Response {
    match link {
        Some(ConfirmationLink::Confirmed) => page.confirmed(),
        Some(ConfirmationLink::Pending | ConfirmationLink::Closed) => page.link_closed(),
        None => page.no_such_link(),
    }
}

async fn find_link(
    ingress: &Ingress,
    tenant: Uuid,
    contact: Uuid,
) -> Result<Option<(ConfirmationLink, String)>, ApiError> {
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, tenant).await?;
    let found = confirmations::find_link(&mut tx, tenant, contact).await?;
    tx.rollback().await?;
    Ok(found)
}

/// A consent that is being confirmed.
struct ConsentRequest {
    ingress: Arc<Ingress>,
    claims: TokenClaims,
    contact: Uuid,
    /// What the page showed.
    words: String,
    peer: Peer,
    headers: HeaderMap,
}

impl ConsentRequest {
    /// Commits the consent and its proof before the answer. `None`: there is no such contact.
    async fn apply(self) -> Result<Option<ConfirmationLink>, ApiError> {
        let Self { ingress, claims, contact, words, peer, headers } = self;
        let (ip, agent) = (peer.ip().map(|ip| ip.to_string()), signals::user_agent(&headers));
        let evidence = ConsentEvidence { ip: ip.as_deref(), user_agent: agent.as_deref() };
        let _turn = take_turn(&ingress.recipient_writes, contact).await?;
        let mut tx = runtime::db::begin_for_tenant(&ingress.pool, claims.tenant_id).await?;
        let link = confirmations::confirm(&mut tx, claims.tenant_id, contact, claims.send_id, evidence, &words).await?;
        tx.commit().await?;
        ingress.facts.notify();
        Ok(link)
    }
}
