//! `/p/<token>`: what a recipient gets. GET shows and never acts; POST leaves and joins topics, leaves everything, or comes back.
//! Each form sets a state, so sending it twice is sending it once.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    response::Response,
};
use bytes::Bytes;
use http::HeaderMap;
use ledger::preferences::{self, ConsentEvidence, Recipient, Topic};
use schemas::{
    parse_id,
    token::{Purpose, TokenClaims},
};
use uuid::Uuid;

use super::{BODY_MAX_BYTES, opt_out, opted_out, page::Told, reader};
use crate::{
    pipeline::{body, error::ApiError, peer::Peer},
    public::tracking::signals,
    state::Ingress,
};

/// What a form asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    /// Of the topics that were on the page, these.
    Save { shown: Vec<Uuid>, chosen: Vec<Uuid> },
    /// None of it any more.
    Leave,
    /// All of it again.
    Return,
}

/// `None` for a form that is none of ours.
fn read_form(form: &[u8]) -> Option<Wish> {
    let pairs: Vec<(String, String)> = url::form_urlencoded::parse(form).into_owned().collect();
    let ids = |name: &str| {
        let values = pairs.iter().filter(|(field, _)| field == name);
        values.map(|(_, value)| parse_id(value).ok()).collect::<Option<Vec<Uuid>>>()
    };
    let mut actions = pairs.iter().filter(|(field, _)| field == "action").map(|(_, value)| value.as_str());
    match (actions.next(), actions.next()) {
        (Some("save"), None) => Some(Wish::Save { shown: ids("shown")?, chosen: ids("topic")? }),
        (Some("leave"), None) => Some(Wish::Leave),
        (Some("return"), None) => Some(Wish::Return),
        _ => None,
    }
}

pub(super) async fn show(
    State(ingress): State<Arc<Ingress>>,
    Path(token): Path<String>,
    headers: HeaderMap,
) -> Response {
    let claims = ingress.tokens.open(Purpose::Preferences, &token).ok();
    let reader = reader(&ingress, claims.as_ref(), &headers).await;
    let Some(claims) = claims else { return reader.no_such_link() };
    match standing(&ingress, &claims).await {
        Ok(Some((recipient, topics))) => reader.preferences(&recipient, &topics, None),
        Ok(None) => reader.no_such_link(),
        Err(error) => reader.not_stored(error.status),
    }
}

pub(super) async fn change(
    State(ingress): State<Arc<Ingress>>,
    Path(token): Path<String>,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let claims = ingress.tokens.open(Purpose::Preferences, &token).ok();
    let reader = reader(&ingress, claims.as_ref(), &headers).await;
    let Some(claims) = claims else { return reader.no_such_link() };
    let form: Bytes = match body::read(body, &headers, BODY_MAX_BYTES, ingress.settings.http_body_timeout).await {
        Ok(form) => form,
        Err(error) => return reader.not_stored(error.status),
    };
    let told = match read_form(&form) {
        None => Told::NotUnderstood,
        Some(wish) => {
            // In a task of its own: a client that hangs up after the POST has chosen all the same.
            let choosing = Choosing { ingress: Arc::clone(&ingress), claims: claims.clone(), wish, peer, headers };
            match ingress.tasks.spawn(choosing.carry_out()).await {
                Ok(Ok(Some(told))) => told,
                Ok(Ok(None)) => return reader.no_such_link(),
                Ok(Err(error)) => return reader.not_stored(error.status),
                Err(panicked) => return reader.not_stored(ApiError::from(panicked).status),
            }
        }
    };
    match standing(&ingress, &claims).await {
        Ok(Some((recipient, topics))) => reader.preferences(&recipient, &topics, Some(told)),
        Ok(None) => reader.no_such_link(),
        Err(error) => reader.not_stored(error.status),
    }
}

/// The recipient and his topics, as they are now.
async fn standing(ingress: &Ingress, claims: &TokenClaims) -> Result<Option<(Recipient, Vec<Topic>)>, ApiError> {
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, claims.tenant_id).await?;
    let recipient = preferences::recipient(&mut tx, claims.tenant_id, claims.send_id, claims.contact()).await?;
    let Some(recipient) = recipient else { return Ok(None) };
    let topics = preferences::topics(&mut tx, claims.tenant_id, recipient.contact_id).await?;
    tx.rollback().await?;
    Ok(Some((recipient, topics)))
}

/// One choice.
struct Choosing {
    ingress: Arc<Ingress>,
    claims: TokenClaims,
    wish: Wish,
    peer: Peer,
    headers: HeaderMap,
}

impl Choosing {
    /// Commits before anybody is told. `None`: there is no such recipient.
    async fn carry_out(self) -> Result<Option<Told>, ApiError> {
        let Self { ingress, claims, wish, peer, headers } = self;
        let (tenant, send) = (claims.tenant_id, claims.send_id);
        let mut tx = runtime::db::begin_for_tenant(&ingress.pool, tenant).await?;
        let recipient = preferences::recipient(&mut tx, tenant, send, claims.contact()).await?;
        let Some(recipient) = recipient else { return Ok(None) };
        let contact = recipient.contact_id;
        let ip = peer.ip().map(|ip| ip.to_string());
        let agent = signals::user_agent(&headers);
        let evidence = ConsentEvidence { ip: ip.as_deref(), user_agent: agent.as_deref() };
        let mut left = None;
        let told = match &wish {
            Wish::Save { shown, chosen } => {
                preferences::choose(&mut tx, tenant, contact, send, shown, chosen, evidence).await?;
                Told::Saved
            }
            Wish::Leave => {
                left = Some(opt_out(&mut tx, &claims, "preferences", evidence).await?);
                Told::Left
            }
            Wish::Return => {
                preferences::opt_in(&mut tx, tenant, contact, send, evidence).await?;
                Told::Back
            }
        };
        tx.commit().await?;
        match left {
            Some(found) => opted_out(&ingress, found),
            None => ingress.facts.notify(),
        }
        Ok(Some(told))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const A: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";
    const B: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e30";

    #[test]
    fn a_form_says_what_was_shown_and_what_is_chosen() {
        let wish = read_form(format!("shown={A}&shown={B}&topic={B}&action=save").as_bytes());
        let (a, b) = (parse_id(A).unwrap(), parse_id(B).unwrap());
        assert_eq!(wish, Some(Wish::Save { shown: vec![a, b], chosen: vec![b] }));
        assert_eq!(read_form(b"action=leave"), Some(Wish::Leave));
        assert_eq!(read_form(b"action=return"), Some(Wish::Return));
    }

    #[test]
    fn what_is_no_form_of_ours_asks_for_nothing() {
        let forms: [&[u8]; 6] =
            [b"", b"action=", b"action=delete", b"action=leave&action=save", b"shown=x&action=save", b"\xff\x00=1"];
        for form in forms {
            assert_eq!(read_form(form), None, "{form:?}");
        }
    }
}
