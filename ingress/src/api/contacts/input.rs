//! What callers say about a contact, checked.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use schemas::parse_id;
use serde::Deserialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::{
    api::{audiences, fields::FieldType},
    pipeline::{
        Faults, Patch,
        error::ApiError,
        types::{Email, Words},
    },
};

const NAME_MAX_CHARS: usize = 100;
const COMPANY_MAX_CHARS: usize = 200;
const PHONE_MAX_CHARS: usize = 50;
const WORD_MAX_CHARS: usize = 50;
const DESCRIPTION_MAX_CHARS: usize = 1_000;
const AUDIENCES_MAX: usize = 100;
/// What [`is_locale`] takes, without its length.
const LOCALE_PATTERN: &str = "^[A-Za-z]{2,3}([_-][A-Za-z0-9]{2,8})*$";
/// How far ahead of us a caller's clock may be.
pub(crate) const AHEAD_MAX: TimeDelta = TimeDelta::minutes(5);

/// Whether a contact has agreed to marketing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MarketingStatus")]
pub(crate) enum ContactMarketingStatus {
    Subscribed,
    Unsubscribed,
    Pending,
}

impl ContactMarketingStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Subscribed => "subscribed",
            Self::Unsubscribed => "unsubscribed",
            Self::Pending => "pending",
        }
    }
}

/// Where the agreement comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Consent {
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub basis: Option<String>,
    /// Not in the future.
    pub at: Option<DateTime<Utc>>,
    #[schemars(length(max = COMPANY_MAX_CHARS))]
    pub source: Option<String>,
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
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

/// A list or tag, as callers name it.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[expect(dead_code, reason = "only described")]
enum AudienceName {
    Id(Uuid),
    Name(Words<{ audiences::NAME_MAX_CHARS }>),
}

/// The body of a creation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateContact {
    #[schemars(with = "Email")]
    pub email: String,
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub first_name: Option<String>,
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub last_name: Option<String>,
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub title: Option<String>,
    #[schemars(length(max = PHONE_MAX_CHARS))]
    pub phone: Option<String>,
    #[schemars(length(max = COMPANY_MAX_CHARS))]
    pub company: Option<String>,
    #[schemars(range(min = 1, max = i64::MAX))]
    pub dot_number: Option<i64>,
    /// Defined fields by key.
    #[serde(default)]
    #[schemars(with = "Option<Map<String, Value>>", extend("default" = null))]
    pub fields: Map<String, Value>,
    /// Ids, or names; a name that is new makes a tag.
    #[serde(default)]
    #[schemars(with = "Vec<AudienceName>", length(max = AUDIENCES_MAX))]
    pub tags: Vec<String>,
    /// Ids, or names; a name that is new makes a list.
    #[serde(default)]
    #[schemars(with = "Vec<AudienceName>", length(max = AUDIENCES_MAX))]
    pub lists: Vec<String>,
    /// An IANA time zone, such as Europe/Paris.
    pub timezone: Option<String>,
    /// A language tag, such as en or pt-BR.
    #[schemars(length(max = WORD_MAX_CHARS), regex(pattern = LOCALE_PATTERN))]
    pub locale: Option<String>,
    #[schemars(length(max = WORD_MAX_CHARS))]
    pub lifecycle_stage: Option<String>,
    pub marketing_status: Option<ContactMarketingStatus>,
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub source: Option<String>,
    pub consent: Option<Consent>,
}

impl CreateContact {
    /// Checks it. The address is canonical then, and no field is null.
    pub(crate) fn validate(mut self, defined: &BTreeMap<String, FieldType>) -> Result<Self, ApiError> {
        let mut faults = Faults::default();
        let address = faults.address("email", &self.email);
        let texts = [
            &self.first_name,
            &self.last_name,
            &self.title,
            &self.phone,
            &self.company,
            &self.lifecycle_stage,
            &self.source,
        ];
        check_texts(&mut faults, texts.map(Option::as_deref));
        check_words(&mut faults, self.timezone.as_deref(), self.locale.as_deref(), self.dot_number);
        check_fields(&self.fields, defined, &mut faults);
        check_audiences("tags", &self.tags, &mut faults);
        check_audiences("lists", &self.lists, &mut faults);
        if let Some(consent) = &self.consent {
            consent.check(&mut faults);
        }
        faults.finish()?;
        self.email = address.ok_or_else(ApiError::internal)?.into_string();
        // Null deletes a key; a new contact has none to delete.
        self.fields.retain(|_, value| !value.is_null());
        Ok(self)
    }
}

/// The body of a change. The address is not among it: what is known of an address (suppressions, sends on their way) would
/// stay behind.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(description = "A change of a contact, without the address.")]
pub(crate) struct ChangeContact {
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub first_name: Patch<String>,
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub last_name: Patch<String>,
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub title: Patch<String>,
    #[schemars(length(max = PHONE_MAX_CHARS))]
    pub phone: Patch<String>,
    #[schemars(length(max = COMPANY_MAX_CHARS))]
    pub company: Patch<String>,
    #[schemars(range(min = 1, max = i64::MAX))]
    pub dot_number: Patch<i64>,
    /// Defined fields by key; null deletes one.
    #[schemars(with = "Option<Map<String, Value>>", extend("default" = null))]
    pub fields: Map<String, Value>,
    /// An IANA time zone, such as Europe/Paris.
    pub timezone: Patch<String>,
    /// A language tag, such as en or pt-BR.
    #[schemars(length(max = WORD_MAX_CHARS), regex(pattern = LOCALE_PATTERN))]
    pub locale: Patch<String>,
    #[schemars(length(max = WORD_MAX_CHARS))]
    pub lifecycle_stage: Patch<String>,
    #[schemars(length(max = NAME_MAX_CHARS))]
    pub source: Patch<String>,
    pub status: Option<super::ContactStatus>,
    pub marketing_status: Option<ContactMarketingStatus>,
    pub consent: Option<Consent>,
}

impl ChangeContact {
    pub(crate) fn validate(self, defined: &BTreeMap<String, FieldType>) -> Result<Self, ApiError> {
        let mut faults = Faults::default();
        let texts = [
            &self.first_name,
            &self.last_name,
            &self.title,
            &self.phone,
            &self.company,
            &self.lifecycle_stage,
            &self.source,
        ];
        check_texts(&mut faults, texts.map(line));
        let number = self.dot_number.value().copied();
        check_words(&mut faults, line(&self.timezone), line(&self.locale), number);
        check_fields(&self.fields, defined, &mut faults);
        if let Some(consent) = &self.consent {
            consent.check(&mut faults);
        }
        faults.finish()?;
        Ok(self)
    }

    /// Whether it would make the contact a subscriber.
    pub(crate) fn subscribes(&self) -> bool {
        self.marketing_status == Some(ContactMarketingStatus::Subscribed)
    }
}

fn line(patch: &Patch<String>) -> Option<&str> {
    patch.value().map(String::as_str)
}

/// The texts of one line, with their longest lengths.
const TEXTS: [(&str, usize); 7] = [
    ("first_name", NAME_MAX_CHARS),
    ("last_name", NAME_MAX_CHARS),
    ("title", NAME_MAX_CHARS),
    ("phone", PHONE_MAX_CHARS),
    ("company", COMPANY_MAX_CHARS),
    ("lifecycle_stage", WORD_MAX_CHARS),
    ("source", NAME_MAX_CHARS),
];

/// Checks texts in the order of [`TEXTS`].
fn check_texts(faults: &mut Faults, texts: [Option<&str>; 7]) {
    for ((path, max_chars), text) in TEXTS.into_iter().zip(texts) {
        faults.one_line(path, text.unwrap_or_default(), max_chars);
    }
}

fn check_words(faults: &mut Faults, timezone: Option<&str>, locale: Option<&str>, dot_number: Option<i64>) {
    let detail = "must be an IANA time zone such as Europe/Paris";
    faults.require(timezone.is_none_or(is_timezone), "timezone", "unknown", detail);
    faults.require(locale.is_none_or(is_locale), "locale", "invalid", "must be a language tag such as en or pt-BR");
    let good = dot_number.is_none_or(|number| number > 0);
    faults.require(good, "dot_number", "out_of_range", "must be a positive integer");
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

    fn create(body: Value) -> Result<CreateContact, ApiError> {
        let defined = BTreeMap::from([("plan".to_owned(), FieldType::String), ("seats".to_owned(), FieldType::Number)]);
        serde_json::from_value::<CreateContact>(body).unwrap().validate(&defined)
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
        assert_eq!(contact.email, "ann@example.com");
        assert_eq!(Value::Object(contact.fields), json!({"plan": "pro"}));
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
