//! The addresses in one recipient's mail: tokens behind an address of ours. Nothing is looked up and nothing is stored.

use schemas::token::{Purpose, TOKEN_MAX_BYTES, TokenKeys};
use schemas::{LinkToken, TokenIds};

use super::merge::Links;

/// The longest target a click token can hold: the token is base64 of ids, number and target, with its frame.
const TARGET_MAX_BYTES: usize = TOKEN_MAX_BYTES / 4 * 3 - 128;

/// Where the addresses in a message begin, without a slash at the end.
#[derive(Debug, Clone, Default)]
pub struct LinkBases {
    /// Of links, pixel and pages in the bodies: the sender's own name, if it has one.
    pub own: String,
    /// Of the `List-Unsubscribe` header: the engine's own name. Mail programs use it long after the message was sent, and it must
    /// work then, whatever became of the sender's name.
    pub public: String,
}

impl LinkBases {
    /// What stands before this token in a body.
    pub(super) fn before(&self, token: &LinkToken) -> String {
        let path = match token {
            LinkToken::Click { .. } => "/t/c/",
            LinkToken::Open => "/t/o/",
            LinkToken::Unsubscribe => "/u/",
            LinkToken::Preferences => "/p/",
        };
        format!("{}{path}", self.own)
    }
}

/// The token of a tracked link. `None`: the target is too long for one, and an uncounted click is better than a broken one.
pub(super) fn click_token(link: u16, url: &str) -> Option<LinkToken> {
    (url.len() <= TARGET_MAX_BYTES).then(|| LinkToken::Click { link, url: url.to_owned() })
}

/// One send's links, made with the newest key.
#[derive(Debug)]
pub struct SendLinks<'a> {
    /// Makes the tokens.
    pub tokens: &'a TokenKeys,
    /// Where the links begin.
    pub bases: &'a LinkBases,
    /// The ids that their tokens carry.
    pub ids: TokenIds,
}

impl SendLinks<'_> {
    /// The address of the page on which the recipient confirms the consent.
    #[must_use]
    pub fn confirmation(&self) -> String {
        let TokenIds { tenant_id, send_id, contact_id } = self.ids;
        let token = self.tokens.seal(Purpose::Confirm, tenant_id, send_id.0, contact_id.as_bytes());
        format!("{}/c/{token}", self.bases.own)
    }

    fn address(&self, token: &LinkToken) -> String {
        format!("{}{}", self.bases.before(token), token.seal(self.tokens, self.tokens.newest(), &self.ids))
    }
}

impl Links for SendLinks<'_> {
    fn click(&self, link_no: u16, url: &str) -> String {
        click_token(link_no, url).map_or_else(|| url.to_owned(), |token| self.address(&token))
    }

    fn open_pixel(&self) -> String {
        self.address(&LinkToken::Open)
    }

    fn unsubscribe(&self) -> String {
        self.address(&LinkToken::Unsubscribe)
    }

    fn preferences(&self) -> String {
        self.address(&LinkToken::Preferences)
    }
}

#[cfg(test)]
mod tests {
    use schemas::SendId;
    use schemas::token::Purpose;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_click_token_opens_up_to_the_longest_target_and_longer_ones_are_not_tracked() {
        let tokens = TokenKeys::derive(&[[7; 32]]);
        let bases = LinkBases { own: "https://l.test".to_owned(), public: String::new() };
        let ids = TokenIds {
            tenant_id: Uuid::from_u128(1),
            send_id: SendId(Uuid::from_u128(2)),
            contact_id: Uuid::from_u128(3),
        };
        let links = SendLinks { tokens: &tokens, bases: &bases, ids };
        for (length, tracked) in [(30, true), (TARGET_MAX_BYTES, true), (TARGET_MAX_BYTES + 1, false)] {
            let target = format!("https://x.test/{}", "a".repeat(length - 15));
            let url = links.click(3, &target);
            match url.strip_prefix("https://l.test/t/c/") {
                Some(token) => {
                    let claims = tokens.open(Purpose::Click, token).unwrap();
                    assert_eq!((claims.tenant_id, claims.send_id), (ids.tenant_id, ids.send_id.0));
                    assert_eq!(claims.click(), Some((3, target.as_str())));
                    assert!(tracked);
                }
                None => assert!(!tracked && url == target),
            }
        }
    }
}
