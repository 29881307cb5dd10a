//! What callers say about a contact, checked.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use schemas::{Address, parse_id};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    act::{Faults, Patch},
    error::ApiError,
    routes::{audiences, fields::FieldType},
};

pub(super) const NAME_MAX_CHARS: usize = 100;
pub(super) const COMPANY_MAX_CHARS: usize = 200;
pub(super) const PHONE_MAX_CHARS: usize = 50;
pub(super) const WORD_MAX_CHARS: usize = 50;
pub(super) const DESCRIPTION_MAX_CHARS: usize = 1_000;
pub(super) const AUDIENCES_MAX: usize = 100;
/// How far ahead of us a caller's clock may be.
pub(crate) const AHEAD_MAX: TimeDelta = TimeDelta::minutes(5);

/// Whether a contact has agreed to marketing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MarketingStatus {
    Subscribed,
    Unsubscribed,
    Pending,
}

impl MarketingStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Subscribed => "subscribed",
            Self::Unsubscribed => "unsubscribed",
            Self::Pending => "pending",
        }
    }
}

/// Where the agreement comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Consent {
    #[serde(default)]
    pub basis: Option<String>,
    #[serde(default)]
    pub at: Option<DateTime<Utc>>,
    #[serde(default)]
    pub source: Option<String>,
    #[serde(default)]
    pub description: Option<String>,
}

impl Consent {
    fn check(&self, faults: &mut Faults) {
        faults.optional("consent.basis", self.basis.as_deref(), NAME_MAX_CHARS);
        faults.optional("consent.source", self.source.as_deref(), COMPANY_MAX_CHARS);
        faults.optional("consent.description", self.description.as_deref(), DESCRIPTION_MAX_CHARS);
        let ahead = self.at.is_some_and(|at| at > Utc::now() + AHEAD_MAX);
        faults.require(!ahead, "consent.at", "out_of_range", "must not be in the future");
    }
}

/// The body of a creation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Create {
    email: String,
    #[serde(default)]
    first_name: Option<String>,
    #[serde(default)]
    last_name: Option<String>,
    #[serde(default)]
    title: Option<String>,
    #[serde(default)]
    phone: Option<String>,
    #[serde(default)]
    company: Option<String>,
    #[serde(default)]
    dot_number: Option<i64>,
    #[serde(default)]
    fields: Map<String, Value>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    lists: Vec<String>,
    #[serde(default)]
    timezone: Option<String>,
    #[serde(default)]
    locale: Option<String>,
    #[serde(default)]
    lifecycle_stage: Option<String>,
    #[serde(default)]
    marketing_status: Option<MarketingStatus>,
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    consent: Option<Consent>,
}

/// A contact to be.
#[derive(Debug)]
pub(crate) struct NewContact {
    pub address: Address,
    pub first_name: Option<String>,
    pub last_name: Option<String>,
    pub title: Option<String>,
    pub phone: Option<String>,
    pub company: Option<String>,
    pub dot_number: Option<i64>,
    pub fields: Value,
    pub tags: Vec<String>,
    pub lists: Vec<String>,
    pub timezone: Option<String>,
    pub locale: Option<String>,
    pub lifecycle_stage: Option<String>,
    /// As the caller says; a new contact of which nothing is said is subscribed.
    pub marketing_status: Option<MarketingStatus>,
    pub source: Option<String>,
    pub consent: Consent,
}

impl Create {
    pub(crate) fn validate(self, defined: &BTreeMap<String, FieldType>) -> Result<NewContact, ApiError> {
        let mut faults = Faults::default();
        let address = faults.address("email", &self.email);
        let texts = Texts {
            first_name: self.first_name.as_deref(),
            last_name: self.last_name.as_deref(),
            title: self.title.as_deref(),
            phone: self.phone.as_deref(),
            company: self.company.as_deref(),
            timezone: self.timezone.as_deref(),
            locale: self.locale.as_deref(),
            lifecycle_stage: self.lifecycle_stage.as_deref(),
            source: self.source.as_deref(),
            dot_number: self.dot_number,
        };
        texts.check(&mut faults);
        check_fields(&self.fields, defined, &mut faults);
        check_audiences("tags", &self.tags, &mut faults);
        check_audiences("lists", &self.lists, &mut faults);
        let consent = self.consent.unwrap_or_default();
        consent.check(&mut faults);
        let Some(address) = address else { return Err(faults.finish().err().unwrap_or_else(ApiError::internal)) };
        faults.finish()?;
        // Null deletes a key; a new contact has none to delete.
        let fields = self.fields.into_iter().filter(|(_, value)| !value.is_null()).collect();
        Ok(NewContact {
            address,
            first_name: self.first_name,
            last_name: self.last_name,
            title: self.title,
            phone: self.phone,
            company: self.company,
            dot_number: self.dot_number,
            fields: Value::Object(fields),
            tags: self.tags,
            lists: self.lists,
            timezone: self.timezone,
            locale: self.locale,
            lifecycle_stage: self.lifecycle_stage,
            marketing_status: self.marketing_status,
            source: self.source,
            consent,
        })
    }
}

/// The body of a change. The address is not among it: what is known of an address (suppressions, sends on their way) would
/// stay behind.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Change {
    pub first_name: Patch<String>,
    pub last_name: Patch<String>,
    pub title: Patch<String>,
    pub phone: Patch<String>,
    pub company: Patch<String>,
    pub dot_number: Patch<i64>,
    pub fields: Map<String, Value>,
    pub timezone: Patch<String>,
    pub locale: Patch<String>,
    pub lifecycle_stage: Patch<String>,
    pub source: Patch<String>,
    pub status: Option<super::ListedStatus>,
    pub marketing_status: Option<MarketingStatus>,
    pub consent: Option<Consent>,
}

impl Change {
    pub(crate) fn validate(self, defined: &BTreeMap<String, FieldType>) -> Result<Self, ApiError> {
        let mut faults = Faults::default();
        let text = |patch: &'_ Patch<String>| patch.value().cloned();
        let (first_name, last_name, title) = (text(&self.first_name), text(&self.last_name), text(&self.title));
        let (phone, company, timezone) = (text(&self.phone), text(&self.company), text(&self.timezone));
        let (locale, stage, source) = (text(&self.locale), text(&self.lifecycle_stage), text(&self.source));
        Texts {
            first_name: first_name.as_deref(),
            last_name: last_name.as_deref(),
            title: title.as_deref(),
            phone: phone.as_deref(),
            company: company.as_deref(),
            timezone: timezone.as_deref(),
            locale: locale.as_deref(),
            lifecycle_stage: stage.as_deref(),
            source: source.as_deref(),
            dot_number: self.dot_number.value().copied(),
        }
        .check(&mut faults);
        check_fields(&self.fields, defined, &mut faults);
        if let Some(consent) = &self.consent {
            consent.check(&mut faults);
        }
        faults.finish()?;
        Ok(self)
    }

    /// Whether it would make the contact a subscriber.
    pub(crate) fn subscribes(&self) -> bool {
        self.marketing_status == Some(MarketingStatus::Subscribed)
    }
}

/// The plain fields, wherever they come from.
struct Texts<'a> {
    first_name: Option<&'a str>,
    last_name: Option<&'a str>,
    title: Option<&'a str>,
    phone: Option<&'a str>,
    company: Option<&'a str>,
    timezone: Option<&'a str>,
    locale: Option<&'a str>,
    lifecycle_stage: Option<&'a str>,
    source: Option<&'a str>,
    dot_number: Option<i64>,
}

impl Texts<'_> {
    fn check(&self, faults: &mut Faults) {
        for (path, text, max_chars) in [
            ("first_name", self.first_name, NAME_MAX_CHARS),
            ("last_name", self.last_name, NAME_MAX_CHARS),
            ("title", self.title, NAME_MAX_CHARS),
            ("phone", self.phone, PHONE_MAX_CHARS),
            ("company", self.company, COMPANY_MAX_CHARS),
            ("lifecycle_stage", self.lifecycle_stage, WORD_MAX_CHARS),
            ("source", self.source, NAME_MAX_CHARS),
        ] {
            faults.one_line(path, text.unwrap_or_default(), max_chars);
        }
        faults.require(
            self.timezone.is_none_or(is_timezone),
            "timezone",
            "unknown",
            "must be an IANA time zone such as Europe/Paris",
        );
        faults.require(
            self.locale.is_none_or(is_locale),
            "locale",
            "invalid",
            "must be a language tag such as en or pt-BR",
        );
        faults.require(
            self.dot_number.is_none_or(|number| number > 0),
            "dot_number",
            "out_of_range",
            "must be a positive integer",
        );
    }
}

/// An IANA time zone.
pub(crate) fn is_timezone(text: &str) -> bool {
    text.parse::<chrono_tz::Tz>().is_ok()
}

/// A language tag of RFC 5646's usual shapes: two or three letters, then subtags.
pub(crate) fn is_locale(text: &str) -> bool {
    let mut parts = text.split(['-', '_']);
    let language = parts.next().unwrap_or_default();
    (2..=3).contains(&language.len())
        && language.bytes().all(|byte| byte.is_ascii_alphabetic())
        && parts.all(|part| (2..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        && text.len() <= WORD_MAX_CHARS
}

fn check_fields(values: &Map<String, Value>, defined: &BTreeMap<String, FieldType>, faults: &mut Faults) {
    for (key, value) in values {
        match defined.get(key) {
            None => faults.add(
                format!("fields.{key}"),
                "unknown_field",
                "is not a defined field; define it with POST /v1/fields",
            ),
            Some(_) if value.is_null() => {}
            Some(kind) => {
                if let Err(wanted) = kind.check(value) {
                    faults.add(format!("fields.{key}"), "wrong_type", wanted);
                }
            }
        }
    }
}

fn check_audiences(path: &str, names: &[String], faults: &mut Faults) {
    faults.require(names.len() <= AUDIENCES_MAX, path, "too_many", "may have at most 100 items");
    for (position, name) in names.iter().enumerate() {
        if parse_id(name).is_err() {
            faults.title(&format!("{path}[{position}]"), name, audiences::NAME_MAX_CHARS);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn create(body: Value) -> Result<NewContact, ApiError> {
        let defined = BTreeMap::from([("plan".to_owned(), FieldType::String), ("seats".to_owned(), FieldType::Number)]);
        serde_json::from_value::<Create>(body).unwrap().validate(&defined)
    }

    #[test]
    fn every_fault_of_a_contact_is_named() {
        let error = create(json!({
            "email": "nobody",
            "first_name": "x".repeat(101),
            "timezone": "Mars/Olympus",
            "locale": "e",
            "dot_number": 0,
            "fields": {"plan": 3, "colour": "red", "seats": null},
            "tags": [" "],
            "consent": {"at": "2999-01-01T00:00:00Z"},
        }))
        .unwrap_err();
        let paths: Vec<_> = error.fields.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "email",
                "first_name",
                "timezone",
                "locale",
                "dot_number",
                "fields.colour",
                "fields.plan",
                "tags[0]",
                "consent.at"
            ]
        );
    }

    #[test]
    fn a_new_contact_has_no_null_fields() {
        let contact = create(json!({"email": "Ann@Example.com", "fields": {"plan": "pro", "seats": null}})).unwrap();
        assert_eq!(contact.address.as_str(), "ann@example.com");
        assert_eq!(contact.fields, json!({"plan": "pro"}));
    }

    #[rstest]
    #[case("en", true)]
    #[case("pt-BR", true)]
    #[case("zh-Hant-TW", true)]
    #[case("english!", false)]
    #[case("", false)]
    fn locales_are_language_tags(#[case] text: &str, #[case] good: bool) {
        assert_eq!(is_locale(text), good);
    }
}
