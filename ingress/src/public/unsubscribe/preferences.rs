//! `/p/<token>`: the preferences of a recipient. GET shows them and changes nothing; POST leaves and joins topics, opts out of everything, or
//! opts in again. Each form sets a state, so that a second submission has no effect.

use std::sync::Arc;

use axum::{body::Body, extract::State};
use http::HeaderMap;
use ledger::{
    OptOut,
    preferences::{self, ConsentEvidence, Recipient, Topic},
};
use schemas::{
    parse_id,
    token::{Purpose, TokenClaims},
};
use uuid::Uuid;

use super::{
    PageAnswer, evidence, finish, open_page, opt_out,
    page::{FormResult, PageWriter},
    read_body, take_turn, take_turn_of_send,
};
use crate::{
    pipeline::{error::ApiError, peer::Peer},
    public::link::FollowedLink,
    state::Ingress,
};

/// The change that a form asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PreferenceChange {
    /// Keep only these of the topics that were on the page.
    Save { shown: Vec<Uuid>, chosen: Vec<Uuid> },
    /// Opt out of everything.
    Leave,
    /// Opt in again.
    Return,
}

/// Reads a form. `None` if it is not one of the page's.
fn read_form(form: &[u8]) -> Option<PreferenceChange> {
    let pairs: Vec<(String, String)> = url::form_urlencoded::parse(form).into_owned().collect();
    let ids = |name: &str| {
        let values = pairs.iter().filter(|(field, _)| field == name);
        values.map(|(_, value)| parse_id(value).ok()).collect::<Option<Vec<Uuid>>>()
    };
    let mut actions = pairs.iter().filter(|(field, _)| field == "action").map(|(_, value)| value.as_str());
    match (actions.next(), actions.next()) {
        (Some("save"), None) => Some(PreferenceChange::Save { shown: ids("shown")?, chosen: ids("topic")? }),
        (Some("leave"), None) => Some(PreferenceChange::Leave),
        (Some("return"), None) => Some(PreferenceChange::Return),
        _ => None,
    }
}

pub(super) async fn show(State(ingress): State<Arc<Ingress>>, link: FollowedLink, headers: HeaderMap) -> PageAnswer {
    let (claims, page) = open_page(&ingress, Purpose::Preferences, &link, &headers).await?;
    answer(&ingress, &claims, &page, None).await
}

pub(super) async fn change(
    State(ingress): State<Arc<Ingress>>,
    link: FollowedLink,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> PageAnswer {
    let (claims, page) = open_page(&ingress, Purpose::Preferences, &link, &headers).await?;
    let not_stored = |error: ApiError| page.not_stored(error.status);
    let form = read_body(&ingress, claims.send_id, body, &headers).await.map_err(not_stored)?;
    let result = match read_form(&form) {
        None => FormResult::NotUnderstood,
        Some(change) => {
            let evidence = evidence(peer, &headers);
            let work = apply(Arc::clone(&ingress), claims.clone(), change, evidence);
            let result = finish(&ingress, work).await.map_err(not_stored)?;
            result.ok_or_else(|| page.no_such_link())?
        }
    };
    answer(&ingress, &claims, &page, Some(result)).await
}

/// The page as it is now, with what came of a form.
async fn answer(ingress: &Ingress, claims: &TokenClaims, page: &PageWriter, result: Option<FormResult>) -> PageAnswer {
    match find_preferences(ingress, claims).await {
        Ok(Some((recipient, topics))) => Ok(page.preferences(&recipient, &topics, result)),
        Ok(None) => Err(page.no_such_link()),
        Err(error) => Err(page.not_stored(error.status)),
    }
}

/// The recipient and the current topics.
pub(super) async fn find_preferences(
    ingress: &Ingress,
    claims: &TokenClaims,
) -> Result<Option<(Recipient, Vec<Topic>)>, ApiError> {
    let _turn = take_turn(&ingress.recipient_turns, claims.send_id).await?;
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, claims.tenant_id).await?;
    let recipient = preferences::recipient(&mut tx, claims.tenant_id, claims.send_id, claims.contact()).await?;
    let Some(recipient) = recipient else { return Ok(None) };
    let topics = preferences::topics(&mut tx, claims.tenant_id, recipient.topics_of).await?;
    tx.rollback().await?;
    Ok(Some((recipient, topics)))
}

/// Applies and commits a submitted change. `None`: there is no such recipient.
async fn apply(
    ingress: Arc<Ingress>,
    claims: TokenClaims,
    change: PreferenceChange,
    evidence: ConsentEvidence,
) -> Result<Option<FormResult>, ApiError> {
    let topics = match change {
        // As on the page to leave by: it waits for an import as long.
        PreferenceChange::Leave => {
            let found = opt_out(ingress, claims, "preferences", evidence).await?;
            return Ok((found != OptOut::UnknownSend).then_some(FormResult::Left));
        }
        PreferenceChange::Save { shown, chosen } => Some((shown, chosen)),
        PreferenceChange::Return => None,
    };
    let (tenant, send) = (claims.tenant_id, claims.send_id);
    let _turn = take_turn_of_send(&ingress, send).await?;
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, tenant).await?;
    let recipient = preferences::recipient(&mut tx, tenant, send, claims.contact()).await?;
    let Some(recipient) = recipient else { return Ok(None) };
    let contact = recipient.contact_id;
    let result = match &topics {
        Some((shown, chosen)) => {
            if !preferences::choose(&mut tx, tenant, contact, send, shown, chosen, &evidence).await? {
                return Ok(None);
            }
            FormResult::Saved
        }
        None => {
            preferences::opt_in(&mut tx, tenant, contact, send, &evidence).await?;
            FormResult::Back
        }
    };
    tx.commit().await?;
    ingress.facts.notify();
    Ok(Some(result))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";
    const B: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e30";

    #[test]
    fn a_form_has_the_shown_and_the_chosen_topics() {
        let change = read_form(format!("shown={A}&shown={B}&topic={B}&action=save").as_bytes());
        let (a, b) = (parse_id(A).unwrap(), parse_id(B).unwrap());
        assert_eq!(change, Some(PreferenceChange::Save { shown: vec![a, b], chosen: vec![b] }));
        assert_eq!(read_form(b"action=leave"), Some(PreferenceChange::Leave));
        assert_eq!(read_form(b"action=return"), Some(PreferenceChange::Return));
    }

    #[test]
    fn a_form_of_another_page_changes_nothing() {
        let forms: [&[u8]; 6] =
            [b"", b"action=", b"action=delete", b"action=leave&action=save", b"shown=x&action=save", b"\xff\x00=1"];
        for form in forms {
            assert_eq!(read_form(form), None, "{form:?}");
        }
    }
}
