//! The addresses in one recipient's mail: tokens behind the public address. Nothing is looked up and nothing is stored.

use schemas::token::{Purpose, TOKEN_MAX_BYTES, TokenKeys};
use uuid::Uuid;

use templates::Links;

/// The longest target a click token can hold: the token is base64 of ids, number and target, with its frame.
const TARGET_MAX_BYTES: usize = TOKEN_MAX_BYTES / 4 * 3 - 128;

/// One send's links.
pub(super) struct SendLinks<'a> {
    pub(super) tokens: &'a TokenKeys,
    /// Where recipients reach the engine, without a slash at its end.
    pub(super) public_url: &'a str,
    /// The same under the sender's own name, if it has one; else `public_url`.
    pub(super) own_url: &'a str,
    pub(super) tenant_id: Uuid,
    pub(super) send_id: Uuid,
    pub(super) contact_id: Uuid,
}

impl SendLinks<'_> {
    /// With the contact: mail is read for longer than the ledger may keep its send.
    fn lasting(&self, url: &str, path: &str, purpose: Purpose) -> String {
        format!("{url}{path}{}", self.tokens.seal(purpose, self.tenant_id, self.send_id, self.contact_id.as_bytes()))
    }
}

impl Links for SendLinks<'_> {
    fn click(&self, link_no: u16, url: &str) -> String {
        if url.len() > TARGET_MAX_BYTES {
            // Too long for a token: better an uncounted click than a broken one.
            return url.to_owned();
        }
        let token = self.tokens.seal_click(self.tenant_id, self.send_id, link_no, url);
        format!("{}/t/c/{token}", self.own_url)
    }

    fn open_pixel(&self) -> String {
        format!("{}/t/o/{}", self.own_url, self.tokens.seal(Purpose::Open, self.tenant_id, self.send_id, &[]))
    }

    fn unsubscribe(&self) -> String {
        self.lasting(self.own_url, "/u/", Purpose::Unsubscribe)
    }

    /// Under the engine's own name: mail programs use it long after the message was sent, and it must work then, whatever became
    /// of the sender's name.
    fn list_unsubscribe(&self) -> String {
        self.lasting(self.public_url, "/u/", Purpose::Unsubscribe)
    }

    fn preferences(&self) -> String {
        self.lasting(self.own_url, "/p/", Purpose::Preferences)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_links_to_leave_and_to_choose_by_name_the_contact() {
        let tokens = TokenKeys::derive(&[[7; 32]]);
        let contact_id = Uuid::from_u128(3);
        let links = SendLinks {
            tokens: &tokens,
            public_url: "https://l.test",
            own_url: "https://l.test",
            tenant_id: Uuid::from_u128(1),
            send_id: Uuid::from_u128(2),
            contact_id,
        };
        for (url, path, purpose) in [
            (links.unsubscribe(), "/u/", Purpose::Unsubscribe),
            (links.list_unsubscribe(), "/u/", Purpose::Unsubscribe),
            (links.preferences(), "/p/", Purpose::Preferences),
        ] {
            let (_, token) = url.split_once(path).unwrap();
            assert_eq!(tokens.open(purpose, token).unwrap().contact(), Some(contact_id), "{url}");
        }
    }

    #[test]
    fn a_click_token_opens_up_to_the_longest_target_and_longer_ones_are_not_tracked() {
        let tokens = TokenKeys::derive(&[[7; 32]]);
        let (tenant_id, send_id) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let links = SendLinks {
            tokens: &tokens,
            public_url: "https://l.test",
            own_url: "https://l.test",
            tenant_id,
            send_id,
            contact_id: Uuid::nil(),
        };
        for (length, tracked) in [(30, true), (TARGET_MAX_BYTES, true), (TARGET_MAX_BYTES + 1, false)] {
            let target = format!("https://x.test/{}", "a".repeat(length - 15));
            let url = links.click(3, &target);
            match url.strip_prefix("https://l.test/t/c/") {
                Some(token) => {
                    let claims = tokens.open(Purpose::Click, token).unwrap();
                    assert_eq!((claims.tenant_id, claims.send_id), (tenant_id, send_id));
                    assert_eq!(claims.click(), Some((3, target.as_str())));
                    assert!(tracked);
                }
                None => assert!(!tracked && url == target),
            }
        }
    }
}
