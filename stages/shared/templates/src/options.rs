//! What a caller says of a message beside its template.

use std::collections::HashMap;

use super::links::LinkBases;

/// An id and a name, as `campaign.id` and `campaign.name`.
#[derive(Debug, Clone, Default)]
pub struct Named {
    /// The id, in its canonical form.
    pub id: String,
    /// The name.
    pub name: String,
}

impl Named {
    pub(super) fn get(&self, field: &str) -> Option<&String> {
        match field {
            "id" => Some(&self.id),
            "name" => Some(&self.name),
            _ => None,
        }
    }
}

/// The sender of the mail.
#[derive(Debug, Clone, Default)]
pub struct Sender {
    /// Display name.
    pub name: String,
    /// Address.
    pub email: String,
    /// Where replies go, if elsewhere.
    pub reply_to: Option<String>,
}

/// What is known of an attachment when its message is compiled.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct Attached {
    /// The file name, checked when the message was accepted.
    pub filename: String,
    /// The media type with its parameters, such as `text/csv; charset=utf-8`.
    pub media_type: String,
    /// The id by which the HTML shows it, for an inline image.
    #[serde(default)]
    pub content_id: Option<String>,
    /// How many bytes its base64 lines take.
    pub bytes: u32,
}

impl Attached {
    /// Whether it is a calendar invite.
    pub(super) fn is_calendar(&self) -> bool {
        self.media_type.starts_with("text/calendar")
    }
}

/// What is the same for all recipients of a message and does not come from the template.
#[derive(Debug, Clone, Default)]
pub struct MessageOptions {
    /// The tenant.
    pub tenant: Named,
    /// The campaign, if it is one.
    pub campaign: Option<Named>,
    /// The From and Reply-To.
    pub sender: Sender,
    /// The domain of the Message-ID.
    pub sending_domain: String,
    /// The postal address for the footer; lines as given.
    pub physical_address: Option<String>,
    /// What `contact.fields.<key>` prints for contacts without a value, by key.
    pub fallbacks: HashMap<String, String>,
    /// Whether recipients can opt out of this mail: adds the footer and the RFC 8058 headers. True for marketing.
    pub opt_out: bool,
    /// Where the addresses of the engine begin.
    pub bases: LinkBases,
    /// Whether the mails have From names, Reply-To addresses and further header fields of their own ([`super::OwnHeaders`]).
    pub own_headers: bool,
    /// Whether links are replaced by tracked ones.
    pub track_links: bool,
    /// Whether the open pixel is added.
    pub track_opens: bool,
    /// What is attached, in order; the content itself is spliced in when it is sent.
    pub attachments: Vec<Attached>,
}
