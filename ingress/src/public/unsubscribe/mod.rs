//! What recipients reach without credentials. `/u/<token>`: one click to leave all marketing mail of the tenant. GET shows a page
//! and never acts, because link checkers follow every link; POST acts, whether a person pressed the button or the mail program
//! did it for them (RFC 8058). `/p/<token>`: the preferences page, with topics. `/c/<token>`: the page on
//! which a person confirms the consent.

mod confirmation;
mod language;
mod page;
mod preferences;
mod texts;

use std::sync::Arc;

use axum::{body::Body, extract::State, response::Response};
use bytes::Bytes;
use http::HeaderMap;
use ledger::preferences::ConsentEvidence;
use ledger::{OptOut, PastRecipient};
use runtime::Counter;
use schemas::{
    SendId, SignalKind,
    token::{Purpose, TokenClaims},
};
use uuid::Uuid;

use self::page::PageWriter;
use super::tracking::signals;
use crate::pipeline::peer::Peer;
use crate::{
    api::tenants::PageBranding,
    pipeline::{
        Doc, Routes,
        body::{self, PublicBody},
        error::ApiError,
        open,
        shares::{Share, Shares},
    },
    public::link::{FollowedLink, LinkPath},
    state::Ingress,
};

/// The type of all answers.
pub(crate) const PAGE: &str = "text/html";
/// A one-click POST is some 30 bytes, as a form of either kind some 200.
const BODY_MAX_BYTES: usize = 16 * 1024;

/// Tries of an opt-out while an import holds its contact, of a second each.
const OPT_OUT_TRIES: u32 = 10;

pub(crate) fn routes() -> Routes {
    // HEAD goes the way of GET, which does nothing.
    Routes::new()
        .get(
            "/u/{token}",
            open(ask),
            Doc::new(
                "getUnsubscribePage",
                "The unsubscribe page",
                "Shows a button and never acts: link checkers follow every link.",
            )
            .path_parameters::<LinkPath>()
            .other(200, "The page", PAGE)
            .other(404, "No such link", PAGE),
        )
        .post(
            "/u/{token}",
            open(leave),
            with_a_body(Doc::new(
                "unsubscribe",
                "Unsubscribe",
                "The page's button (`confirm=yes`), or a mail program's one click (`List-Unsubscribe=One-Click`, RFC \
                 8058). Committed before it is answered; sent twice is sent once.",
            ))
            .other(200, "Unsubscribed", PAGE)
            .other(400, "Neither of the two, or it broke off: nothing changed", PAGE),
        )
        .get(
            "/p/{token}",
            open(preferences::show),
            may_fail(Doc::new(
                "getPreferencesPage",
                "The preferences page",
                "Topics the recipient gets, and all of it. Shows and never acts.",
            ))
            .other(200, "The page", PAGE),
        )
        .post(
            "/p/{token}",
            open(preferences::change),
            with_a_body(Doc::new(
                "choosePreferences",
                "Choose topics, leave, or come back",
                "The page's own forms (`application/x-www-form-urlencoded`): `action=save` with `shown` and `topic`, \
                 `action=leave`, `action=return`. Committed before it is answered; sent twice is sent once.",
            ))
            .other(200, "The page, with what came of it", PAGE)
            .other(400, "Not a form of ours, or it broke off", PAGE),
        )
        .get(
            "/c/{token}",
            open(confirmation::show),
            may_fail(Doc::new(
                "getConfirmationPage",
                "The page that asks for consent",
                "Behind the link of a confirmation mail. Shows a button and never acts: link checkers follow every link.",
            ))
            .other(200, "The page, or that the consent is confirmed", PAGE)
            .other(410, "The link confirms nothing any more", PAGE),
        )
        .post(
            "/c/{token}",
            open(confirmation::confirm),
            with_a_body(Doc::new(
                "confirmConsent",
                "Confirm the consent",
                "The page's button (`confirm=yes`). Committed before it is answered; sent twice is sent once. Nobody who \
                 left, was suppressed or erased meanwhile comes back by it.",
            ))
            .other(200, "Confirmed", PAGE)
            .other(400, "Not the page's form, or it broke off: nothing changed", PAGE)
            .other(410, "The link confirms nothing any more", PAGE),
        )
}

/// A page that asks the ledger.
fn may_fail(doc: Doc) -> Doc {
    let doc = doc.path_parameters::<LinkPath>().other(404, "No such link", PAGE);
    doc.other(500, "A fault of ours", PAGE).other(503, "Try again in a moment", PAGE)
}

/// A page that reads a form.
fn with_a_body(doc: Doc) -> Doc {
    may_fail(doc).other(408, "The body did not arrive in time", PAGE).other(413, "The body is too large", PAGE)
}

/// What the handler of a page answers. An error ends it early, with a page that says why.
type PageAnswer = Result<Response, Response>;

async fn ask(State(ingress): State<Arc<Ingress>>, link: FollowedLink, headers: HeaderMap) -> PageAnswer {
    let (claims, page) = open_page(&ingress, Purpose::Unsubscribe, &link, &headers).await?;
    question(&ingress, &link, &claims, &page, false).await
}

async fn leave(
    State(ingress): State<Arc<Ingress>>,
    link: FollowedLink,
    peer: Peer,
    headers: HeaderMap,
    body: Body,
) -> PageAnswer {
    let (claims, page) = open_page(&ingress, Purpose::Unsubscribe, &link, &headers).await?;
    let not_left = |error: ApiError| page.not_left(error.status);
    let body = read_body(&ingress, claims.send_id, body, &headers).await.map_err(not_left)?;
    let Some(method) = method(&body) else {
        return question(&ingress, &link, &claims, &page, true).await;
    };
    let evidence = evidence(peer, &headers);
    let work = opt_out(Arc::clone(&ingress), claims.clone(), method, evidence);
    match finish(&ingress, work).await.map_err(not_left)? {
        OptOut::Recorded | OptOut::Already => {
            Ok(page.done(preferences_token(&ingress, &link, &claims).await.as_deref()))
        }
        OptOut::UnknownSend => Err(page.no_such_link()),
    }
}

/// The claims of a good token, and the page in the recipient's language. On another tenant's host, one can leave on a page without words of
/// the sender's; other pages are not there.
async fn open_page(
    ingress: &Ingress,
    purpose: Purpose,
    link: &FollowedLink,
    headers: &HeaderMap,
) -> Result<(TokenClaims, PageWriter), Response> {
    let claims = link.claims(ingress, purpose).ok_or_else(|| no_such_link(headers))?;
    if link.is_on_foreign_host(ingress, &claims).await {
        let page = plain_page(headers);
        return if purpose == Purpose::Unsubscribe { Ok((claims, page)) } else { Err(page.no_such_link()) };
    }
    // A page that cannot know whose it is still opens.
    let page = tenants_page(ingress, &claims, headers).await.ok().flatten();
    Ok((claims, page.unwrap_or_else(|| plain_page(headers))))
}

async fn read_body(ingress: &Ingress, send: Uuid, body: Body, headers: &HeaderMap) -> Result<Bytes, ApiError> {
    let mut form = PublicBody::form(send);
    let body_timeout = ingress.settings.http_body_timeout;
    body::read_pieces(body, headers, BODY_MAX_BYTES, body_timeout, |piece| form.push(piece)).await?;
    Ok(form.into())
}

/// Does the work of a POST in a task of its own: it is done even if the client disconnects.
async fn finish<T: Send + 'static>(
    ingress: &Ingress,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    ingress.tasks.spawn(work).await?
}

/// The token of the same recipient's preferences page. `None` on another tenant's host, where that page is not there.
async fn preferences_token(ingress: &Ingress, link: &FollowedLink, claims: &TokenClaims) -> Option<String> {
    let seal = || ingress.tokens.seal(Purpose::Preferences, claims.tenant_id, claims.send_id, &claims.rest);
    (!link.is_on_foreign_host(ingress, claims).await).then(seal)
}

/// The page with the button, which leads to the preferences page if that has topics to choose from. A page that cannot know it still opens.
/// `again`: a form said nothing.
async fn question(
    ingress: &Ingress,
    link: &FollowedLink,
    claims: &TokenClaims,
    page: &PageWriter,
    again: bool,
) -> PageAnswer {
    let found = preferences::find_preferences(ingress, claims).await;
    if matches!(found, Ok(None)) {
        // Its recipient is erased or not known: the button would change nothing.
        return Err(page.no_such_link());
    }
    let has_topics = found.ok().flatten().is_some_and(|(_, topics)| !topics.is_empty());
    let token = if has_topics { preferences_token(ingress, link, claims).await } else { None };
    Ok(page.ask(again, token.as_deref()))
}

/// The client of a choice.
fn evidence(peer: Peer, headers: &HeaderMap) -> ConsentEvidence {
    ConsentEvidence { ip: peer.ip().map(|ip| ip.to_string()), user_agent: signals::user_agent(headers) }
}

/// Commits an opt-out and its fact before the answer: after it, no fence passes for this recipient. The webhooks stage is notified.
async fn opt_out(
    ingress: Arc<Ingress>,
    claims: TokenClaims,
    method: &'static str,
    evidence: ConsentEvidence,
) -> Result<OptOut, ApiError> {
    let _turn = take_turn_of_send(&ingress, claims.send_id).await?;
    let mut tries = 1;
    let found = loop {
        match commit_opt_out(&ingress, &claims, method, &evidence).await {
            Err(error) if runtime::db::is_lock_timeout(&error) && tries < OPT_OUT_TRIES => tries += 1,
            committed => break committed?,
        }
    };
    if found == OptOut::Recorded {
        Counter::SignalsTotal.add(1, [("kind", "unsubscribed"), ("outcome", "recorded")]);
    }
    ingress.facts.notify();
    Ok(found)
}

/// Waits until no other recipient's read or write for the same key is under way: what waits here holds no connection, and all together leave
/// some to other requests.
///
/// # Errors
/// 503 `unavailable` when its turn does not come.
async fn take_turn(turns: &Shares, key: Uuid) -> Result<Share, ApiError> {
    turns.take_turn(&key.to_string()).await
}

/// Waits for the turn of a mail. Writes of one batch lock the same row, and a holder of the link can post to it as often as they like: of one
/// mail's requests only one waits for its batch.
async fn take_turn_of_send(ingress: &Ingress, send: Uuid) -> Result<[Share; 2], ApiError> {
    let own = take_turn(&ingress.mail_turns, send).await?;
    Ok([own, take_turn(&ingress.recipient_turns, SendId(send).batch()).await?])
}

/// Opts the recipient of a mail out. Fails when an import holds the contact for longer than a second: then the batch is free for a moment,
/// which all other mail of its lane waits for.
async fn commit_opt_out(
    ingress: &Ingress,
    claims: &TokenClaims,
    method: &str,
    evidence: &ConsentEvidence,
) -> sqlx::Result<OptOut> {
    let mut tx = ingress.by_key.begin_for_tenant(claims.tenant_id).await?;
    let mut found = ledger::opt_out(&mut tx, claims.tenant_id, claims.send_id, method, evidence).await?;
    // The ledger may not keep the send any more; the token names the contact.
    if let (OptOut::UnknownSend, Some(contact)) = (found, claims.contact()) {
        let left = SignalKind::Unsubscribed { method: method.to_owned() };
        let recipient = PastRecipient::Contact(contact);
        found = ledger::apply_to_past_recipient(&mut tx, claims.tenant_id, &recipient, &left, None).await?;
    }
    tx.commit().await?;
    Ok(found)
}

/// A page in the language that the browser asks for, of a sender that is not known.
fn plain_page(headers: &HeaderMap) -> PageWriter {
    PageWriter { texts: language::choose(headers, None), organisation: None, branding: PageBranding::default() }
}

/// The page for a link that leads nowhere.
pub(crate) fn no_such_link(headers: &HeaderMap) -> Response {
    plain_page(headers).no_such_link()
}

/// A page in the recipient's language, with the tenant's name and branding. `None`: there is no such tenant.
async fn tenants_page(
    ingress: &Ingress,
    claims: &TokenClaims,
    headers: &HeaderMap,
) -> Result<Option<PageWriter>, ApiError> {
    let _turn = take_turn(&ingress.recipient_turns, claims.send_id).await?;
    let mut tx = runtime::db::begin_for_tenant(&ingress.pool, claims.tenant_id).await?;
    // The id is chosen in a select of its own: row security keeps a `coalesce` out of the condition of an index.
    let row = sqlx::query!(
        r#"select t.org_name, c.locale as "locale?", t.unsubscribe_text, t.preferences_text, t.logo_url, t.button_color,
                  t.background_color
           from tenants t
           left join contacts c on c.tenant_id = $1 and c.id = (
               select coalesce((select s.contact_id from sends s where s.tenant_id = $1 and s.id = $2 and s.month = $3), $4))
           where t.id = $1"#,
        claims.tenant_id,
        claims.send_id,
        SendId(claims.send_id).month(),
        claims.contact(),
    )
    .fetch_optional(&mut *tx)
    .await?;
    tx.rollback().await?;
    Ok(row.map(|row| PageWriter {
        texts: language::choose(headers, row.locale.as_deref()),
        organisation: row.org_name.filter(|name| !name.trim().is_empty()),
        branding: PageBranding {
            unsubscribe_text: row.unsubscribe_text,
            preferences_text: row.preferences_text,
            logo_url: row.logo_url,
            button_color: row.button_color,
            background_color: row.background_color,
        },
    }))
}

/// `one_click` for the body that RFC 8058 §3.2 prescribes, in either form encoding; `page` for our own button; `None` for anything
/// else, which asks for nothing.
fn method(body: &[u8]) -> Option<&'static str> {
    let has = |words: &[u8]| body.windows(words.len()).any(|window| window.eq_ignore_ascii_case(words));
    if has(b"List-Unsubscribe") && has(b"One-Click") {
        return Some("one_click");
    }
    url::form_urlencoded::parse(body).any(|(name, value)| name == "confirm" && value == "yes").then_some("page")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(b"List-Unsubscribe=One-Click", Some("one_click"))]
    #[case(
        b"--x\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--\r\n",
        Some("one_click")
    )]
    #[case(b"confirm=yes", Some("page"))]
    #[case(b"confirm=no", None)]
    #[case(b"List-Unsubscribe=", None)]
    #[case(b"", None)]
    fn one_click_and_the_pages_button_are_told_apart(#[case] body: &[u8], #[case] expected: Option<&str>) {
        assert_eq!(method(body), expected);
    }
}
