//! Parses the events of providers into our own facts. Pure: nothing is looked up.
//!
//! Delivery sends the id of the send as metadata (`stages/delivery/src/provider/http`), and events carry it back. Otherwise the
//! provider's id of the mail finds the send. Every fact has an id of the provider, so that its repetition, in another request or over
//! another topic, is the same fact.

mod json;
mod mailgun;
mod postmark;
mod reply;
mod resend;
mod sendgrid;
mod ses;

#[cfg(test)]
mod tests;

use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use runtime::{Budget, Limits, Spent};
use schemas::{Address, BounceClass, SignalKind, token::TokenKeys};
use serde_json::Value;
use uuid::Uuid;

use self::reply::InboundMail;
use crate::{
    bounce::{self, BounceReport},
    form,
    report::{self, ReportFinding},
};

/// The metadata key of the send's id.
const SEND: &str = "postrider-send";
/// The most characters stored of a User-Agent, a URL, an id.
const USER_AGENT_MAX: usize = 512;
const URL_MAX: usize = 2_048;
const ID_MAX: usize = 255;
/// The most recipients of an event that are read. Mail of the engine has one.
const RECIPIENTS_MAX: usize = 50;
/// The rule's name if the provider did not try: the address is on its own suppression list.
const SUPPRESSED: &str = "provider_suppressed";
/// The rule's name if the provider accepted the mail and then refused to send it.
const REFUSED: &str = "provider_refused";

/// The budget of one raw event. The ingress keeps a megabyte of it at most.
pub const LIMITS: Limits = Limits {
    input_bytes: 1024 * 1024,
    held_bytes: 32 * 1024 * 1024,
    depth: 64,
    steps: 16 * 1024 * 1024,
    time: Duration::from_secs(5),
};

/// One event of a provider about one mail.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderEvent {
    /// The key of the event, equal in every repetition.
    pub event: String,
    /// The send, from the metadata, or proven by an answer.
    pub send_id: Option<Uuid>,
    /// The provider's id of the mail, from the answer to the send request.
    pub message_id: Option<String>,
    /// When it happened; `None` if the time is missing or implausible.
    pub at: Option<DateTime<Utc>>,
    /// What the event means.
    pub meaning: EventMeaning,
    /// The recipients the event names: for mail that the ledger does not keep any more, and for hard bounces that name no mail.
    pub recipients: Vec<Address>,
    /// The client's address, for opens and clicks.
    pub ip: Option<String>,
    /// The client's name.
    pub user_agent: Option<String>,
}

/// What an event means.
#[derive(Debug, Clone, PartialEq)]
pub enum EventMeaning {
    /// A fact about the mail.
    Fact(SignalKind),
    /// The provider accepted the mail and tries to deliver it.
    Accepted,
    /// Nothing that is recorded.
    Ignored,
}

/// A raw event that cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The code of an event that took too long to parse.
const TOO_SLOW: &str = "took_too_long";

impl Malformed {
    /// True if another attempt may end otherwise.
    pub fn is_transient(self) -> bool {
        self.0 == TOO_SLOW
    }
}

impl From<Spent> for Malformed {
    fn from(spent: Spent) -> Self {
        Self(if spent.is_transient() { TOO_SLOW } else { "too_costly" })
    }
}

/// The inbound mail in a raw event, if the event is one. SES and Resend report inbound mail like all other events.
pub fn inbound_mail(provider: &str, raw: &[u8], budget: &Budget) -> Result<Option<InboundMail>, Malformed> {
    match provider {
        "postmark" => postmark::inbound_mail(raw, budget),
        "sendgrid" if form::is_form(raw) => sendgrid::inbound_mail(raw, budget),
        "mailgun" if form::is_form(raw) => mailgun::inbound_mail(raw, budget),
        _ => Ok(None),
    }
}

/// Parses a raw event. `tokens` check which mail of ours an inbound mail answers.
pub fn read(provider: &str, raw: &[u8], tokens: &TokenKeys, budget: &Budget) -> Result<Vec<ProviderEvent>, Malformed> {
    budget.take_input(raw.len())?;
    if let Some(mail) = inbound_mail(provider, raw, budget)? {
        return mail.read(tokens, budget).map(|provider_event| vec![provider_event]);
    }
    let event = json::read(raw, budget)?;
    let provider_event = match provider {
        "ses" => ses::read(&event, tokens, budget)?,
        "postmark" => postmark::read(&event)?,
        "sendgrid" => return sendgrid::read(&event),
        "mailgun" => mailgun::read(&event)?,
        "resend" => resend::read(&event, tokens, budget)?,
        _ => return Err(Malformed("unknown_provider")),
    };
    Ok(vec![provider_event])
}

/// The mail that an event is about.
#[derive(Debug, Clone, Default)]
struct MailRef {
    send_id: Option<Uuid>,
    message_id: Option<String>,
    recipients: Vec<Address>,
}

impl MailRef {
    /// From the metadata's value and the provider's id.
    fn of(send_id: &Value, message_id: Option<&str>) -> Self {
        Self {
            send_id: send_id.as_str().and_then(|text| schemas::parse_id(text).ok()),
            message_id: message_id
                .map(|text| clean(text.trim_matches(['<', '>']), ID_MAX))
                .filter(|text| !text.is_empty()),
            recipients: Vec::new(),
        }
    }

    /// Adds the recipients. What is no address is left out.
    fn to<'a>(self, addresses: impl IntoIterator<Item = &'a Value>) -> Self {
        let parsed = addresses.into_iter().take(RECIPIENTS_MAX).filter_map(|address| address.as_str());
        Self { recipients: parsed.filter_map(|address| Address::parse(address).ok()).collect(), ..self }
    }

    /// True if this is enough to act on what the event means: a hard bounce is about the address, whatever the mail.
    fn is_named_for(&self, meaning: &EventMeaning) -> bool {
        let is_hard = matches!(meaning, EventMeaning::Fact(SignalKind::Bounced { class: BounceClass::Hard, .. }));
        self.send_id.is_some() || self.message_id.is_some() || is_hard && !self.recipients.is_empty()
    }

    /// An event about this mail. `event` and the mail's id make it unique.
    fn event(
        self,
        event: String,
        at: Option<DateTime<Utc>>,
        meaning: EventMeaning,
    ) -> Result<ProviderEvent, Malformed> {
        if meaning != EventMeaning::Ignored && !self.is_named_for(&meaning) {
            return Err(Malformed("names_no_mail"));
        }
        Ok(ProviderEvent {
            event,
            send_id: self.send_id,
            message_id: self.message_id,
            at,
            meaning,
            recipients: self.recipients,
            ip: None,
            user_agent: None,
        })
    }
}

impl ProviderEvent {
    /// Adds the client, to opens and clicks: other events come from servers.
    fn with_client(self, ip: &Value, user_agent: &Value) -> Self {
        if !matches!(self.meaning, EventMeaning::Fact(SignalKind::Opened | SignalKind::Clicked { .. })) {
            return self;
        }
        Self {
            // Only valid IP addresses are stored.
            ip: text(ip).and_then(|text| text.parse::<std::net::IpAddr>().ok()).map(|ip| ip.to_string()),
            user_agent: text(user_agent).map(|text| clean(text, USER_AGENT_MAX)),
            ..self
        }
    }
}

/// A click. Providers do not number links. The number is derived from the URL, above our own numbers, so that clicks on several
/// links differ from repeated clicks on one link.
fn clicked(url: &Value) -> EventMeaning {
    let url = clean(text(url).unwrap_or_default(), URL_MAX);
    let digest = Uuid::new_v5(&Uuid::NAMESPACE_URL, url.as_bytes());
    let [high, low, ..] = *digest.as_bytes();
    EventMeaning::Fact(SignalKind::Clicked { url, link: 0x8000 | u16::from_be_bytes([high, low]) })
}

fn complained(feedback_type: &str) -> EventMeaning {
    match report::of_type(feedback_type) {
        ReportFinding::Fact(kind) => EventMeaning::Fact(kind),
        ReportFinding::NoFact(_) => EventMeaning::Ignored,
    }
}

fn unsubscribed() -> EventMeaning {
    EventMeaning::Fact(crate::opt_out())
}

/// A bounce, classified by the receiving server's text first and the provider's hint second. Codes that the provider does not name are read
/// from the text.
fn server_bounce(
    smtp_code: Option<u16>,
    enhanced_code: Option<&str>,
    reason_text: &str,
    hint: BounceClass,
) -> EventMeaning {
    let report = BounceReport { smtp_code, enhanced_code, text: reason_text, hint: Some(hint) };
    EventMeaning::Fact(bounce::bounce_fact(&report))
}

/// A mail that the provider did not send. The text is the provider's own, whatever it quotes.
fn withheld(rule: &'static str, reason_text: &str) -> EventMeaning {
    EventMeaning::Fact(SignalKind::Bounced {
        class: BounceClass::Block,
        smtp_code: None,
        enhanced_code: None,
        diagnostic: Some(clean(reason_text, bounce::DIAGNOSTIC_CHARS)).filter(|text| !text.is_empty()),
        rule: rule.to_owned(),
    })
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// The texts of an array.
fn texts(array: &Value) -> impl Iterator<Item = String> {
    array.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned()))
}

/// The text without control characters, at most `max` characters.
fn clean(text: &str, max: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(max).collect()
}

/// Parses a time in any of the providers' formats.
fn time(value: &Value) -> Option<DateTime<Utc>> {
    let text = text(value)?;
    let forms = ["%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f%#z"];
    let parsed = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_str(text, forms[0]))
        .or_else(|_| DateTime::parse_from_str(text, forms[1]));
    parsed.ok().map(|at| at.to_utc()).and_then(plausible_time)
}

/// Parses a time in seconds since 1970, with or without a fraction.
fn seconds(value: &Value) -> Option<DateTime<Utc>> {
    let seconds = value.as_f64().or_else(|| text(value)?.parse().ok())?;
    if !(0.0..1e11).contains(&seconds) {
        return None;
    }
    // Exact to the microsecond, and in range by the check above.
    DateTime::from_timestamp_micros((seconds * 1e6).round() as i64).and_then(plausible_time)
}

/// Refuses times before 2000 and in the future.
fn plausible_time(at: DateTime<Utc>) -> Option<DateTime<Utc>> {
    (at.year() >= 2000 && at <= Utc::now() + TimeDelta::days(1)).then_some(at)
}

/// An SMTP reply code; higher codes are a provider's own.
fn reply_code(value: &Value) -> Option<u16> {
    let code = value.as_u64().or_else(|| text(value)?.parse().ok())?;
    u16::try_from(code).ok().filter(|code| (200..=599).contains(code))
}
