//! What comes back, read with bounds: providers' events, bounce and complaint reports, forms. Pure: no database, no bus.

pub mod bounce;
pub mod form;
pub mod provider;
pub mod report;

use runtime::Budget;
use schemas::{SignalKind, token::TokenKeys};
use uuid::Uuid;

/// The source of raw provider events in a signal's subject.
pub const SOURCE: &str = "inbound";

/// The fact of an opt-out that a provider or a report names.
#[must_use]
pub fn opt_out() -> SignalKind {
    SignalKind::Unsubscribed { method: "provider".to_owned() }
}

/// The send of an address that is one of our return paths, in angle brackets or not.
fn returned_send(address: &str, tokens: &TokenKeys) -> Option<Uuid> {
    let address = address.rsplit_once('<').map_or(address, |(_, rest)| rest);
    tokens.returned_send(address.split('@').next()?.trim())
}

/// Whether a raw event is a mail that the provider took in. It may have broken off in the middle of what it carries.
#[must_use]
pub fn is_inbound_mail(provider: &str, raw: &[u8]) -> bool {
    let budget = Budget::new(provider::LIMITS);
    budget.take_input(raw.len()).is_ok()
        && provider::inbound_mail(provider, raw, &budget).is_ok_and(|mail| mail.is_some())
}
