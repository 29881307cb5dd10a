//! Inbound mail that a provider received for a tenant's own address. It is a reply if it names a mail of ours.
//!
//! `In-Reply-To` names the mail, or else `References`, the last one first (RFC 5322 §3.6.4). Our own Message-ID begins with the
//! send's id. SES and Postmark may replace it by their own id, which is the one in the answer to the send request. Mail to one of our
//! return paths names the send by its address. Mail that names none of our mails is ignored.
//!
//! Any sender may write any of this: the connection proves the tenant, and the send must belong to the tenant. Send ids follow from one
//! another, so Message-IDs and return paths hold a MAC, which only readers of the mail, or of an answer to it, know. The ids of SES and
//! Postmark are random.

use chrono::{DateTime, Utc};
use runtime::{Budget, Spent};
use schemas::token::TokenKeys;

use super::{EventMeaning, ID_MAX, MailRef, Malformed, ProviderEvent, RECIPIENTS_MAX, clean};
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
    pub(super) fn read(self, tokens: &TokenKeys, budget: &Budget) -> Result<ProviderEvent, Malformed> {
        let id =
            if self.id.is_empty() { self.header("Message-ID").unwrap_or_default().to_owned() } else { self.id.clone() };
        // A few fields are searched by name.
        budget.take_steps(self.headers.len() as u64 * 8)?;
        let named = self.answered_mail(tokens);
        let meaning = match &named {
            _ if id.is_empty() => EventMeaning::Ignored,
            Some(_) => EventMeaning::Fact(report::answer(&self.headers, budget)?),
            None => EventMeaning::Ignored,
        };
        named.unwrap_or_default().event(format!("reply {}", clean(&id, ID_MAX)), self.at, meaning)
    }

    /// The mail that it replies to.
    fn answered_mail(&self, tokens: &TokenKeys) -> Option<MailRef> {
        let mut recipients = self.recipients.iter().take(RECIPIENTS_MAX);
        let returned = recipients.find_map(|address| crate::returned_send(address, tokens));
        if let Some(send) = returned {
            return Some(MailRef { send_id: Some(send), ..MailRef::default() });
        }
        let ids = |name: &str| self.header(name).map(message_ids).unwrap_or_default();
        let referred = ids("References").into_iter().rev();
        ids("In-Reply-To").into_iter().chain(referred).take(NAMED_MAX).find_map(|id| own_mail_ref(id, tokens))
    }
}

/// The ids in a field, without their brackets.
fn message_ids(field: &str) -> Vec<&str> {
    field.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(id, _)| id.trim()).collect()
}

/// The mail of a Message-ID that we or a provider of ours generated.
fn own_mail_ref(id: &str, tokens: &TokenKeys) -> Option<MailRef> {
    let (local, domain) = id.rsplit_once('@')?;
    if let Some(send) = tokens.identified_send(local) {
        return Some(MailRef { send_id: Some(send), ..MailRef::default() });
    }
    let domain = domain.to_ascii_lowercase();
    let is_a_providers = domain.ends_with("amazonses.com") || domain == "mtasv.net";
    is_a_providers.then(|| MailRef { message_id: Some(clean(local, ID_MAX)), ..MailRef::default() })
}

/// The fields of a header as text, unfolded (RFC 5322 §2.2.3).
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
