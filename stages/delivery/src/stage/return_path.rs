//! The return path's local part: which send a bounce belongs to, and that we made it.
//!
//! Short and lower-case only: a local part has 64 octets, and some hosts change its case.

use schemas::token::TokenKeys;
use uuid::Uuid;

use crate::smtp::{AddressError, EnvelopeAddress};

/// The return path of a send: `b-<32 hex digits of the send>-<8 of a MAC>@<domain>`.
///
/// # Errors
/// [`AddressError`] when the domain is none.
pub fn return_path(tokens: &TokenKeys, send_id: Uuid, domain: &str) -> Result<EnvelopeAddress, AddressError> {
    let tag = hex::encode(tokens.return_path_tag(send_id));
    EnvelopeAddress::parse(&format!("b-{}-{tag}@{domain}", send_id.simple()))
}

/// The send a return path belongs to; `None` when it is not one of ours. Any case.
#[must_use]
pub fn bounced_send(tokens: &TokenKeys, local_part: &str) -> Option<Uuid> {
    let local_part = local_part.to_ascii_lowercase();
    let (id, tag) = local_part.strip_prefix("b-")?.split_once('-')?;
    if id.len() != 32 {
        return None;
    }
    let send_id = Uuid::try_parse(id).ok()?;
    let mut given = [0; 4];
    hex::decode_to_slice(tag, &mut given).ok()?;
    tokens.checks_return_path_tag(send_id, given).then_some(send_id)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_return_path_leads_back_to_its_send_in_any_case() {
        let (tokens, send) = (TokenKeys::derive(&[[7; 32]]), Uuid::now_v7());
        let address = return_path(&tokens, send, "send.example.com").unwrap();
        let (local, domain) = address.as_str().split_once('@').unwrap();
        assert!(local.len() <= 64 && domain == "send.example.com");
        assert_eq!(bounced_send(&tokens, local), Some(send));
        assert_eq!(bounced_send(&tokens, &local.to_ascii_uppercase()), Some(send));
    }

    #[test]
    fn a_forged_return_path_leads_nowhere() {
        let (tokens, send) = (TokenKeys::derive(&[[7; 32]]), Uuid::now_v7());
        let other = return_path(&TokenKeys::derive(&[[8; 32]]), send, "send.example.com").unwrap();
        let local = other.as_str().split_once('@').unwrap().0.to_owned();
        assert_eq!(bounced_send(&tokens, &local), None);
        assert_eq!(bounced_send(&tokens, "b-1-2"), None);
        assert_eq!(bounced_send(&tokens, "postmaster"), None);
    }

    #[test]
    fn a_return_path_made_with_an_older_key_still_leads_back() {
        let send = Uuid::now_v7();
        let old = return_path(&TokenKeys::derive(&[[7; 32]]), send, "send.example.com").unwrap();
        let local = old.as_str().split_once('@').unwrap().0.to_owned();
        assert_eq!(bounced_send(&TokenKeys::derive(&[[8; 32], [7; 32]]), &local), Some(send));
    }
}
