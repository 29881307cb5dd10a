//! Mail that a provider took in for a tenant's own address: an answer, where it names a mail of ours.
//!
//! Which one says `In-Reply-To`, else `References`, the last first (RFC 5322 §3.6.4): our own Message-ID begins with the send's id; SES
//! and Postmark may have put their own id in its place, which is the one the handover was answered with. Mail that came to a return
//! path of ours names the send by its address. What names no mail of ours is a mail like any other, and none of our business.
//!
//! All of that is a stranger's word. It is believed as far as it goes: the connection proves the tenant, the send must be his, and
//! who knows its id has seen the mail.

use chrono::{DateTime, Utc};
use runtime::{Budget, Spent};
use uuid::Uuid;

use super::{ID_MAX, Mail, Malformed, Told, What, clean};
use crate::report;

/// Mails named that are looked at.
const NAMED_MAX: usize = 50;

/// Mail as a provider tells of it.
#[derive(Debug, Default)]
pub struct InboundMail {
    /// The provider's own id of it, else its Message-ID.
    pub id: String,
    pub at: Option<DateTime<Utc>>,
    pub headers: Vec<(String, String)>,
    /// Whom the envelope names.
    pub recipients: Vec<String>,
}

impl InboundMail {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The fact it is.
    pub(super) fn read(self, budget: &Budget) -> Result<Told, Malformed> {
        let id =
            if self.id.is_empty() { self.header("Message-ID").unwrap_or_default().to_owned() } else { self.id.clone() };
        // Some fields are looked for by name, among all.
        budget.take_steps(self.headers.len() as u64 * 8)?;
        let named = self.answered();
        let what = match &named {
            _ if id.is_empty() => What::Nothing,
            Some(_) => What::Fact(report::answer(&self.headers, budget)?),
            None => What::Nothing,
        };
        named.unwrap_or_default().told(format!("reply {}", clean(&id, ID_MAX)), self.at, what)
    }

    /// The mail it answers.
    fn answered(&self) -> Option<Mail> {
        let returned = self.recipients.iter().find_map(|address| returned(address));
        if let Some(send) = returned {
            return Some(Mail { send_id: Some(send), message_id: None });
        }
        let ids = |name: &str| self.header(name).map(message_ids).unwrap_or_default();
        let referred = ids("References").into_iter().rev();
        ids("In-Reply-To").into_iter().chain(referred).take(NAMED_MAX).find_map(ours)
    }
}

/// The ids in a field, without their brackets.
fn message_ids(field: &str) -> Vec<&str> {
    field.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(id, _)| id.trim()).collect()
}

/// The mail of an id that we made, or a provider in our name.
fn ours(id: &str) -> Option<Mail> {
    let (local, domain) = id.rsplit_once('@')?;
    if let Ok(send) = schemas::parse_id(local)
        && send.get_version_num() == 7
    {
        return Some(Mail { send_id: Some(send), message_id: None });
    }
    let domain = domain.to_ascii_lowercase();
    let is_a_providers = domain.ends_with("amazonses.com") || domain == "mtasv.net";
    is_a_providers.then(|| Mail { send_id: None, message_id: Some(clean(local, ID_MAX)) })
}

/// The send of a return path of ours; whether its tag is right does not matter here, see above.
fn returned(address: &str) -> Option<Uuid> {
    let address = address.rsplit_once('<').map_or(address, |(_, rest)| rest);
    let local = address.split('@').next()?.trim().to_ascii_lowercase();
    let (id, tag) = local.strip_prefix("b-")?.split_once('-')?;
    let is_ours = id.len() == 32 && tag.len() == 16;
    Uuid::try_parse(id).ok().filter(|send| is_ours && send.get_version_num() == 7)
}

/// The fields of a header as text, unfolded (RFC 5322 §2.2.3).
///
/// # Errors
/// When the budget is spent.
pub(super) fn header_fields(text: &str, budget: &Budget) -> Result<Vec<(String, String)>, Spent> {
    const FIELD_BYTES: usize = 48;
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        budget.take_steps(line.len() as u64 + 1)?;
        budget.hold(line.len() + FIELD_BYTES)?;
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push(' ');
                value.push_str(line.trim());
            }
        } else if line.is_empty() {
            break;
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    Ok(fields)
}
