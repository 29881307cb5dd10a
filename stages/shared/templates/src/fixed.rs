//! What is the same for all recipients of a message.

use std::collections::HashMap;

use super::options::{MessageOptions, Named};
use super::sheet::RootStyles;

/// What names can mean that is the same for all recipients.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) sender_name: String,
    pub(super) sender_email: String,
    pub(super) reply_to: Option<String>,
    pub(super) tenant: Named,
    pub(super) campaign: Option<Named>,
    pub(super) physical_address: Option<String>,
    pub(super) fallbacks: HashMap<String, String>,
    /// The styles of the template that values printed as HTML are checked with.
    pub(super) styles: Option<RootStyles>,
}

impl Fixed {
    pub(super) fn of(options: &MessageOptions, styles: Option<RootStyles>) -> Self {
        Self {
            sender_name: options.sender.name.clone(),
            sender_email: options.sender.email.clone(),
            reply_to: options.sender.reply_to.clone(),
            tenant: options.tenant.clone(),
            campaign: options.campaign.clone(),
            physical_address: options.physical_address.clone(),
            fallbacks: options.fallbacks.clone(),
            styles,
        }
    }
}
