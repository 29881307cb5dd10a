//! Access tokens (RFC 9068, RFC 8725): who asks, through which client, with which scopes.

use http::{HeaderMap, header};
use jsonwebtoken::{Validation, decode, decode_header};
use serde::Deserialize;

use crate::{Assistant, keys, refusal::AssistantRefusal, settings::Terms};

/// The scope that lets an assistant read.
pub const SCOPE_READ: &str = "mail:read";
/// The scope that lets an assistant save draft proposals.
pub const SCOPE_DRAFTS: &str = "mail:drafts";

const TOKEN_MAX_BYTES: usize = 8 * 1024;
const NAME_MAX_CHARS: usize = 255;
/// What the clocks of the issuer and of us may differ.
const LEEWAY_SECONDS: u64 = 30;
/// What access tokens call themselves; ID tokens and logout tokens are not for us.
const TYPES: [&str; 3] = ["at+jwt", "application/at+jwt", "jwt"];

/// The user and the program of a valid access token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bearer {
    pub(crate) subject: String,
    /// The program that the user asks with.
    pub(crate) client_id: String,
    /// Whether the user let it save draft proposals.
    pub(crate) drafts: bool,
}

#[derive(Debug, Deserialize)]
struct Claims {
    // Text, not a list of issuers as some libraries take it.
    #[allow(dead_code, reason = "compared by the library; read here so that it is one text")]
    iss: String,
    sub: String,
    client_id: Option<String>,
    azp: Option<String>,
    scope: Option<Scopes>,
    scp: Option<Scopes>,
}

/// Scopes as one text, or as a list.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scopes {
    Text(String),
    List(Vec<String>),
}

impl Scopes {
    fn has(&self, scope: &str) -> bool {
        match self {
            Self::Text(text) => text.split(' ').any(|held| held == scope),
            Self::List(list) => list.iter().any(|held| held == scope),
        }
    }
}

/// The bearer token of a request: one header, nothing else. Never in the query, where logs keep it.
fn bearer(headers: &HeaderMap) -> Result<&str, AssistantRefusal> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next().ok_or(AssistantRefusal::NoToken)?;
    if values.next().is_some() {
        return Err(AssistantRefusal::BadToken);
    }
    let text = value.to_str().map_err(|_| AssistantRefusal::BadToken)?;
    let (scheme, token) = text.split_once(' ').ok_or(AssistantRefusal::NoToken)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(AssistantRefusal::NoToken);
    }
    let token = token.trim();
    if token.len() > TOKEN_MAX_BYTES { Err(AssistantRefusal::BadToken) } else { Ok(token) }
}

impl Assistant {
    /// Checks a request's token: signature by one of the issuer's keys, issuer, audience, times, client, scope.
    pub(crate) async fn identify(&self, headers: &HeaderMap) -> Result<Bearer, AssistantRefusal> {
        let token = bearer(headers)?;
        let header = decode_header(token).map_err(|_| AssistantRefusal::BadToken)?;
        let typed = header.typ.as_ref().is_none_or(|typ| TYPES.contains(&typ.to_ascii_lowercase().as_str()));
        // The algorithm is ours to choose, and extensions that must be understood are not (RFC 8725 §3.1, RFC 7515 §4.1.11).
        if !typed || header.crit.is_some() || !keys::is_allowed(header.alg) {
            return Err(AssistantRefusal::BadToken);
        }
        let id = header.kid.as_deref().ok_or(AssistantRefusal::BadToken)?;
        let key = self.keys.find(&self.terms, id).await?.ok_or(AssistantRefusal::BadToken)?;
        let decoding = key.for_algorithm(header.alg).ok_or(AssistantRefusal::BadToken)?;
        let claims: Claims = decode(token, decoding, &validation(&self.terms, header.alg))
            .map_err(|_| AssistantRefusal::BadToken)?
            .claims;
        read(claims, &self.terms)
    }
}

fn validation(terms: &Terms, algorithm: jsonwebtoken::Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.set_issuer(&[&terms.issuer]);
    validation.set_audience(&[&terms.resource]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.validate_nbf = true;
    validation.leeway = LEEWAY_SECONDS;
    validation
}

fn read(claims: Claims, terms: &Terms) -> Result<Bearer, AssistantRefusal> {
    let client_id = match (claims.client_id, claims.azp) {
        (Some(client), Some(party)) if client != party => return Err(AssistantRefusal::BadToken),
        (Some(client), _) | (None, Some(client)) => client,
        (None, None) => return Err(AssistantRefusal::BadToken),
    };
    let sane = |text: &str| (1..=NAME_MAX_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if !sane(&claims.sub) || !sane(&client_id) {
        return Err(AssistantRefusal::BadToken);
    }
    if !terms.clients.contains(&client_id) {
        return Err(AssistantRefusal::Client);
    }
    let has = |scope| [&claims.scope, &claims.scp].into_iter().flatten().any(|held| held.has(scope));
    if !has(SCOPE_READ) {
        return Err(AssistantRefusal::Scope);
    }
    Ok(Bearer { subject: claims.sub, client_id, drafts: has(SCOPE_DRAFTS) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[rstest]
    #[case(&[], Err(AssistantRefusal::NoToken))]
    #[case(&["Basic eDp5"], Err(AssistantRefusal::NoToken))]
    #[case(&["Bearer"], Err(AssistantRefusal::NoToken))]
    #[case(&["Bearer a", "Bearer b"], Err(AssistantRefusal::BadToken))]
    #[case(&["bearer  a "], Ok("a"))]
    fn a_token_comes_in_one_header(#[case] values: &[&str], #[case] token: Result<&str, AssistantRefusal>) {
        assert_eq!(bearer(&headers(values)), token);
        assert_eq!(bearer(&headers(&[&format!("Bearer {}", "a".repeat(8_193))])), Err(AssistantRefusal::BadToken));
    }
}
