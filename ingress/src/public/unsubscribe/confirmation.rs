//! `/c/<token>`: the page behind the link of a confirmation mail. GET asks and changes nothing, because scanners and mail programs
//! follow every link; POST is the consent.

use std::sync::Arc;

use axum::{body::Body, extract::State, response::Response};
use http::HeaderMap;
use ledger::{
    confirmations::{self, ConfirmationLink},
    preferences::ConsentEvidence,
};
use schemas::token::{Purpose, TokenClaims};
use uuid::Uuid;

use super::{PageAnswer, evidence, finish, method, open_page, page::PageWriter, read_body, take_turn};
use crate::{
    pipeline::{error::ApiError, peer::Peer},
    public::link::FollowedLink,
    state::Ingress,
};

pub(super) async fn show(State(ingress): State<Arc<Ingress>>, link: FollowedLink, headers: HeaderMap) -> PageAnswer {
    let (claims, page) = open_page(&ingress, Purpose::Confirm, &link, &headers).await?;
    // The send may not be kept any more, so the token names the contact.
    let contact = claims.contact().ok_or_else(|| page.no_such_link())?;
    let address = find_pending(&ingress, &page, claims.tenant_id, contact).await?;
    Ok(page.ask_consent(false, &address))
}

pub(super) async fn confirm(
    State(ingress): State<Arc<Ingress>>,
    link: FollowedLink,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> PageAnswer {
    let (claims, page) = open_page(&ingress, Purpose::Confirm, &link, &headers).await?;
    let contact = claims.contact().ok_or_else(|| page.no_such_link())?;
    let not_stored = |error: ApiError| page.not_stored(error.status);
    let body = read_body(&ingress, claims.send_id, body, &headers).await.map_err(not_stored)?;
    let address = find_pending(&ingress, &page, claims.tenant_id, contact).await?;
    // A mail program's one click is for leaving.
    if method(&body) != Some("page") {
        return Ok(page.ask_consent(true, &address));
    }
    let words = page.consent_words(&address);
    let evidence = evidence(peer, &headers);
    let work = record_consent(Arc::clone(&ingress), claims, contact, words, evidence);
    Ok(answer(&page, finish(&ingress, work).await.map_err(not_stored)?))
}

/// The address whose consent is to be confirmed. The error is the page of a link that is confirmed, closed or unknown.
async fn find_pending(ingress: &Ingress, page: &PageWriter, tenant: Uuid, contact: Uuid) -> Result<String, Response> {
    match find_link(ingress, tenant, contact).await {
        Ok(Some((ConfirmationLink::Pending, address))) => Ok(address),
        Ok(found) => Err(answer(page, found.map(|(link, _)| link))),
        Err(error) => Err(page.not_stored(error.status)),
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
    let _turn = take_turn(&ingress.recipient_turns, contact).await?;
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, tenant).await?;
    let found = confirmations::find_link(&mut tx, tenant, contact).await?;
    tx.rollback().await?;
    Ok(found)
}

/// Commits the consent and its proof before the answer; `words` are what the page showed. `None`: there is no such contact.
async fn record_consent(
    ingress: Arc<Ingress>,
    claims: TokenClaims,
    contact: Uuid,
    words: String,
    evidence: ConsentEvidence,
) -> Result<Option<ConfirmationLink>, ApiError> {
    let _turn = take_turn(&ingress.recipient_turns, contact).await?;
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, claims.tenant_id).await?;
    let link = confirmations::confirm(&mut tx, claims.tenant_id, contact, claims.send_id, &evidence, &words).await?;
    tx.commit().await?;
    ingress.facts.notify();
    Ok(link)
}
