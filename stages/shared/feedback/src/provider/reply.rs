//! Inbound mail that a provider received for a tenant's own address. It is a reply if it names a mail of ours.
//!
//! `In-Reply-To` names the mail, or else `References`, the last one first (RFC 5322 §3.6.4). Our own Message-ID begins with the
//! send's id. SES and Postmark may replace it by their own id, which is the one in the answer to the send request. Mail to one of our
//! return paths names the send by its address. Mail that names none of our mails is ignored.
//!
//! None of this is authenticated, and it needs little trust: the connection proves the tenant, the send must belong to the tenant, and
//! a sender who knows the send's id has seen the mail.

use chrono::{DateTime, Utc};
use runtime::{Budget, Spent};
use uuid::Uuid;

use super::{EventMeaning, ID_MAX, MailRef, Malformed, ProviderEvent, clean};
use crate::report;

/// The most ids that are tried.
const NAMED_MAX: usize = 50;

/// Inbound mail as a provider reports it.
#[derive(Debug, Default)]
pub struct InboundMail {
    /// The provider's id of the mail, or else its Message-ID.
    pub id: String,
    pub at: Option<DateTime<Utc>>,
    pub headers: Vec<(String, String)>,
    /// The recipients of the envelope.
    pub recipients: Vec<String>,
}

impl InboundMail {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The event for this mail.
    pub(super) fn read(self, budget: &Budget) -> Result<ProviderEvent, Malformed> {
        let id =
            if self.id.is_empty() { self.header("Message-ID").unwrap_or_default().to_owned() } else { self.id.clone() };
        // A few fields are searched by name.
        budget.take_steps(self.headers.len() as u64 * 8)?;
        let named = self.answered_mail();
        let meaning = match &named {
            _ if id.is_empty() => EventMeaning::Ignored,
            Some(_) => EventMeaning::Fact(report::answer(&self.headers, budget)?),
            None => EventMeaning::Ignored,
        };
        named.unwrap_or_default().event(format!("reply {}", clean(&id, ID_MAX)), self.at, meaning)
    }

    /// The mail that it replies to.
    fn answered_mail(&self) -> Option<MailRef> {
        let returned = self.recipients.iter().find_map(|address| returned_send(address));
        if let Some(send) = returned {
            return Some(MailRef { send_id: Some(send), ..MailRef::default() });
        }
        let ids = |name: &str| self.header(name).map(message_ids).unwrap_or_default();
        let referred = ids("References").into_iter().rev();
        ids("In-Reply-To").into_iter().chain(referred).take(NAMED_MAX).find_map(own_mail_ref)
    }
}

/// The ids in a field, without their brackets.
fn message_ids(field: &str) -> Vec<&str> {
    field.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(id, _)| id.trim()).collect()
}

/// The mail of a Message-ID that we or a provider of ours generated.
fn own_mail_ref(id: &str) -> Option<MailRef> {
    let (local, domain) = id.rsplit_once('@')?;
    if let Ok(send) = schemas::parse_id(local)
        && send.get_version_num() == 7
    {
        return Some(MailRef { send_id: Some(send), ..MailRef::default() });
    }
    let domain = domain.to_ascii_lowercase();
    let is_a_providers = domain.ends_with("amazonses.com") || domain == "mtasv.net";
    is_a_providers.then(|| MailRef { message_id: Some(clean(local, ID_MAX)), ..MailRef::default() })
}

/// The send of one of our return paths. Its tag is not checked here, see the module.
fn returned_send(address: &str) -> Option<Uuid> {
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
