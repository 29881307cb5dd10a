//! What providers tell of mail they took, in each one's own words, read into ours. Pure: a raw event becomes facts, nothing is
//! looked up.
//!
//! Delivery sends the id of the send along as metadata (`stages/delivery/src/provider/http`), and events carry it back; where they
//! do not, the id the mail has with the provider finds it. Every fact has an id of the provider's, so that a repetition, in another
//! request or over another topic, is the same fact.

mod json;
mod mailgun;
mod postmark;
mod reply;
mod resend;
mod sendgrid;
mod ses;

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod inbound_mail;
#[cfg(test)]
mod tests;

use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use runtime::{Budget, Limits, Spent};
use schemas::{BounceClass, SignalKind};
use serde_json::Value;
use uuid::Uuid;

use self::reply::InboundMail;
use crate::{
    bounce::{self, Report},
    form,
};

/// The name under which the send's id travels.
const SEND: &str = "postrider-send";
/// The most characters kept of a server's words, a User-Agent, an address of the web, an id.
const DIAGNOSTIC_MAX: usize = 500;
const USER_AGENT_MAX: usize = 512;
const URL_MAX: usize = 2_048;
const ID_MAX: usize = 255;
/// The rule's name where the provider did not try: the address stands on a list of its own.
const SUPPRESSED: &str = "provider_suppressed";
/// The rule's name where the provider took the mail and would not send it.
const REFUSED: &str = "provider_refused";

/// The providers whose events are read.
pub const PROVIDERS: [&str; 5] = ["ses", "postmark", "sendgrid", "mailgun", "resend"];

/// The budget of one raw event. The ingress keeps a megabyte of it at most.
pub const LIMITS: Limits = Limits {
    input_bytes: 1024 * 1024,
    held_bytes: 32 * 1024 * 1024,
    depth: 64,
    steps: 16 * 1024 * 1024,
    time: Duration::from_secs(5),
};

/// One thing a provider tells of one mail.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// What makes it this fact: the same whenever it is told.
    pub event: String,
    /// The send, from the metadata.
    pub send_id: Option<Uuid>,
    /// The mail's id with the provider, as the answer to the handover gave it.
    pub message_id: Option<String>,
    /// When it happened; `None`: it does not say, or nothing that can be.
    pub at: Option<DateTime<Utc>>,
    /// What happened.
    pub what: What,
    /// The client's address, for opens and clicks.
    pub ip: Option<String>,
    /// The client's name.
    pub user_agent: Option<String>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// A fact.
    Fact(SignalKind),
    /// The provider has the mail, and that is all: it tries, or will.
    Taken,
    /// Nothing that is kept.
    Nothing,
}

/// A raw event that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// The word for a reading that had no time.
const SLOW: &str = "took_too_long";

impl Malformed {
    /// True if another attempt may end otherwise.
    pub fn is_transient(self) -> bool {
        self.0 == SLOW
    }
}

impl From<Spent> for Malformed {
    fn from(spent: Spent) -> Self {
        Self(if spent.is_transient() { SLOW } else { "too_costly" })
    }
}

/// The mail in a raw event, where it is one: what providers took in for a tenant, in their own words. SES and Resend tell of it like
/// of everything else.
///
/// # Errors
/// When the budget is spent.
pub fn inbound_mail(provider: &str, raw: &[u8], budget: &Budget) -> Result<Option<InboundMail>, Malformed> {
    match provider {
        "postmark" => postmark::inbound_mail(raw, budget),
        "sendgrid" if form::is_form(raw) => sendgrid::inbound_mail(raw, budget),
        "mailgun" if form::is_form(raw) => mailgun::inbound_mail(raw, budget),
        _ => Ok(None),
    }
}

/// Reads a raw event.
///
/// # Errors
/// What it lacks; when the budget is spent.
pub fn read(provider: &str, raw: &[u8], budget: &Budget) -> Result<Vec<Told>, Malformed> {
    budget.take_input(raw.len())?;
    if let Some(mail) = inbound_mail(provider, raw, budget)? {
        return mail.read(budget).map(|told| vec![told]);
    }
    let event = json::read(raw, budget)?;
    match provider {
        "ses" => ses::read(&event, budget).map(|told| vec![told]),
        "postmark" => postmark::read(&event).map(|told| vec![told]),
        "sendgrid" => sendgrid::read(&event),
        "mailgun" => mailgun::read(&event).map(|told| vec![told]),
        "resend" => resend::read(&event, budget).map(|told| vec![told]),
        _ => Err(Malformed("unknown_provider")),
    }
}

/// A mail, as an event names it.
#[derive(Debug, Clone, Default)]
struct Mail {
    send_id: Option<Uuid>,
    message_id: Option<String>,
}

impl Mail {
    /// Of the metadata's value and the provider's id.
    fn of(send_id: &Value, message_id: Option<&str>) -> Self {
        Self {
            send_id: send_id.as_str().and_then(|text| schemas::parse_id(text).ok()),
            message_id: message_id
                .map(|text| clean(text.trim_matches(['<', '>']), ID_MAX))
                .filter(|text| !text.is_empty()),
        }
    }

    /// Something that happened to it. `event` beside the mail's own id makes it unique.
    fn told(self, event: String, at: Option<DateTime<Utc>>, what: What) -> Result<Told, Malformed> {
        if self.send_id.is_none() && self.message_id.is_none() && what != What::Nothing {
            return Err(Malformed("names_no_mail"));
        }
        Ok(Told { event, send_id: self.send_id, message_id: self.message_id, at, what, ip: None, user_agent: None })
    }
}

impl Told {
    fn by(self, ip: &Value, user_agent: &Value) -> Self {
        Self {
            // What is no address does not get into the columns of one.
            ip: text(ip).and_then(|text| text.parse::<std::net::IpAddr>().ok()).map(|ip| ip.to_string()),
            user_agent: text(user_agent).map(|text| clean(text, USER_AGENT_MAX)),
            ..self
        }
    }
}

/// A click. Providers do not number links: the number is made from the address, above those we give ourselves, so that several
/// links at once can be told from one link several times.
fn clicked(url: &Value) -> What {
    let url = clean(text(url).unwrap_or_default(), URL_MAX);
    let digest = Uuid::new_v5(&Uuid::NAMESPACE_URL, url.as_bytes());
    let [high, low, ..] = *digest.as_bytes();
    What::Fact(SignalKind::Clicked { url, link: 0x8000 | u16::from_be_bytes([high, low]) })
}

fn complained(feedback_type: &str) -> What {
    let known = ["abuse", "auth-failure", "fraud", "not-spam", "other", "virus"];
    let feedback_type = known.into_iter().find(|known| *known == feedback_type).unwrap_or("abuse");
    What::Fact(SignalKind::Complained { feedback_type: feedback_type.to_owned() })
}

fn unsubscribed() -> What {
    What::Fact(SignalKind::Unsubscribed { method: "provider".to_owned() })
}

/// A mail that came back, classified by the server's own words before the provider's opinion.
fn bounced(smtp_code: Option<u16>, enhanced_code: Option<&str>, words: &str, hint: BounceClass) -> What {
    let report = Report { smtp_code, enhanced_code, text: words, hint: Some(hint) };
    let (class, rule) = bounce::classify(&report);
    came_back(class, rule, smtp_code, enhanced_code, words)
}

/// A mail the provider did not try, or would not send: whatever it quotes, no server has spoken.
fn withheld(rule: &'static str, words: &str) -> What {
    came_back(BounceClass::Block, rule, None, None, words)
}

fn came_back(class: BounceClass, rule: &str, code: Option<u16>, enhanced: Option<&str>, words: &str) -> What {
    let kept = |text: &str, max| Some(clean(text, max)).filter(|text| !text.is_empty());
    What::Fact(SignalKind::Bounced {
        class,
        smtp_code: code.and_then(|code| i16::try_from(code).ok()),
        enhanced_code: enhanced.and_then(|code| kept(code, 16)),
        diagnostic: kept(words, DIAGNOSTIC_MAX),
        rule: rule.to_owned(),
    })
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().map(str::trim).filter(|text| !text.is_empty())
}

/// What Postgres can keep, and no more of it than `max` characters.
fn clean(text: &str, max: usize) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(max).collect()
}

/// A time as text, in any of the forms providers write.
fn time(value: &Value) -> Option<DateTime<Utc>> {
    let text = text(value)?;
    let forms = ["%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f%#z"];
    let parsed = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_str(text, forms[0]))
        .or_else(|_| DateTime::parse_from_str(text, forms[1]));
    parsed.ok().map(|at| at.to_utc()).and_then(sane)
}

/// A time in seconds since 1970, whole or not.
fn seconds(value: &Value) -> Option<DateTime<Utc>> {
    let seconds = value.as_f64().or_else(|| text(value)?.parse().ok())?;
    if !(0.0..1e11).contains(&seconds) {
        return None;
    }
    // Exact to the microsecond, and in range by the check above.
    DateTime::from_timestamp_micros((seconds * 1e6).round() as i64).and_then(sane)
}

/// Mail of this engine is not older, and nothing that happened lies ahead.
fn sane(at: DateTime<Utc>) -> Option<DateTime<Utc>> {
    (at.year() >= 2000 && at <= Utc::now() + TimeDelta::days(1)).then_some(at)
}

/// A reply code; codes above are a provider's own.
fn reply_code(value: &Value) -> Option<u16> {
    let code = value.as_u64().or_else(|| text(value)?.parse().ok())?;
    u16::try_from(code).ok().filter(|code| (200..=599).contains(code))
}
