//! The return path: a signed token that names the send a bounce belongs to.

use schemas::token::TokenKeys;
use uuid::Uuid;

use smtp::{EnvelopeAddress, EnvelopeAddressError};

/// The return path of a send on this domain.
///
/// # Errors
/// [`EnvelopeAddressError`] if the domain is not valid.
pub fn return_path(tokens: &TokenKeys, send_id: Uuid, domain: &str) -> Result<EnvelopeAddress, EnvelopeAddressError> {
    EnvelopeAddress::parse(&format!("{}@{domain}", tokens.return_path_local(send_id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_path_leads_back_to_its_send_in_any_case() {
        let (tokens, send) = (TokenKeys::derive(&[[7; 32]]), Uuid::now_v7());
        let address = return_path(&tokens, send, "send.example.com").unwrap();
        let (local, domain) = address.as_str().split_once('@').unwrap();
        assert!(local.len() <= 64 && domain == "send.example.com");
        assert_eq!(tokens.returned_send(local), Some(send));
        assert_eq!(tokens.returned_send(&local.to_ascii_uppercase()), Some(send));
    }

    #[test]
    fn a_forged_return_path_leads_nowhere() {
        let (tokens, send) = (TokenKeys::derive(&[[7; 32]]), Uuid::now_v7());
        let other = return_path(&TokenKeys::derive(&[[8; 32]]), send, "send.example.com").unwrap();
        let local = other.as_str().split_once('@').unwrap().0.to_owned();
        assert_eq!(tokens.returned_send(&local), None);
        assert_eq!(tokens.returned_send("b-1-2"), None);
        assert_eq!(tokens.returned_send("postmaster"), None);
    }

    #[test]
    fn a_return_path_made_with_an_older_key_still_leads_back() {
        let send = Uuid::now_v7();
        let old = return_path(&TokenKeys::derive(&[[7; 32]]), send, "send.example.com").unwrap();
        let local = old.as_str().split_once('@').unwrap().0.to_owned();
        assert_eq!(TokenKeys::derive(&[[8; 32], [7; 32]]).returned_send(&local), Some(send));
    }
}
