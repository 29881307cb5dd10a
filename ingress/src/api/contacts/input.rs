//! What callers say about a contact, checked.

use std::collections::BTreeMap;

use chrono::{DateTime, Datelike, SecondsFormat, Utc};
use schemars::JsonSchema;
use schemas::{MarketingStatus, action::CONTACT_TEXT_MAX_CHARS, messages::ContactDetails, parse_id};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::{
    api::{audiences::held::canonical_name, fields::definitions::FieldType},
    pipeline::{
        Faults, GivenTime, Patch,
        error::ApiError,
        types::{Email, Name, Words},
        validate::{AHEAD_MAX, AUDIENCE_NAME_MAX},
    },
};

const LOCALE_MAX_CHARS: usize = 50;
const DESCRIPTION_MAX_CHARS: usize = 1_000;
const AUDIENCES_MAX: usize = 100;
/// Longest id of a contact in the product, in characters.
pub(crate) const EXTERNAL_ID_MAX_CHARS: usize = 200;
const EVIDENCE_MAX_CHARS: usize = 2_000;
/// The longest text of an IPv6 address.
const IP_MAX_CHARS: usize = 45;
/// What [`is_locale`] takes, without its length.
const LOCALE_PATTERN: &str = "^[A-Za-z]{2,3}([_-][A-Za-z0-9]{2,8})*$";
/// The first year in which a contact may have agreed.
const FIRST_YEAR: i32 = 1900;

/// Sources of contacts that the engine makes for mail (`is_known_from_mail` in the migrations). Nothing was said of these yet, so the
/// next marketing mail of a product subscribes them: a product that wrote such a source would make its own `pending` a consent.
const SOURCES_OF_MAIL: [&str; 3] = ["transactional", "message", "campaign_test"];

/// The source of a contact, or of an import's contacts: any but those of the engine.
pub(crate) fn check_source(faults: &mut Faults, path: &str, source: &str) {
    let detail = "transactional, message and campaign_test are the engine's own, for contacts it knows from mail";
    faults.require(!is_source_of_mail(source), path, "not_allowed", detail);
}

/// True for a source that the engine gives to contacts that it makes for mail.
pub(super) fn is_source_of_mail(source: &str) -> bool {
    SOURCES_OF_MAIL.contains(&source)
}

/// Where the agreement comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Consent {
    #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
    pub basis: Option<String>,
    /// Since 1900, and not in the future.
    pub at: Option<GivenTime>,
    #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
    pub source: Option<String>,
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
    pub description: Option<String>,
    pub evidence: Option<SignUpEvidence>,
}

/// What proves an agreement: the sign-up as it happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SignUpEvidence {
    /// The IP address of the person's client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = IP_MAX_CHARS))]
    pub ip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = EVIDENCE_MAX_CHARS))]
    pub user_agent: Option<String>,
    /// The text that was shown and agreed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = EVIDENCE_MAX_CHARS))]
    pub text: Option<String>,
    /// The page with the form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = EVIDENCE_MAX_CHARS))]
    pub url: Option<String>,
}

impl Consent {
    /// The columns of a contact that hold it: what is left out stays.
    pub(super) fn columns(&self) -> Map<String, Value> {
        let at = self.at.map(|at| at.0.to_rfc3339_opts(SecondsFormat::Micros, true));
        let columns = json!({
            "consent_basis": self.basis, "consent_at": at, "consent_source": self.source,
            "consent_description": self.description, "consent_evidence": self.evidence,
        });
        match columns {
            Value::Object(columns) => columns,
            _ => Map::new(),
        }
    }

    fn check(&self, faults: &mut Faults) {
        faults.optional("consent.basis", self.basis.as_deref(), CONTACT_TEXT_MAX_CHARS);
        faults.optional("consent.source", self.source.as_deref(), CONTACT_TEXT_MAX_CHARS);
        faults.optional("consent.description", self.description.as_deref(), DESCRIPTION_MAX_CHARS);
        let fault = self.at.and_then(|at| check_consent_time(at.0).err());
        faults.require(fault.is_none(), "consent.at", "out_of_range", "must be since 1900, and not in the future");
        let Some(evidence) = &self.evidence else { return };
        let good = evidence.ip.as_deref().is_none_or(|ip| ip.parse::<std::net::IpAddr>().is_ok());
        faults.require(good, "consent.evidence.ip", "invalid", "must be an IP address");
        faults.optional("consent.evidence.user_agent", evidence.user_agent.as_deref(), EVIDENCE_MAX_CHARS);
        faults.optional("consent.evidence.text", evidence.text.as_deref(), EVIDENCE_MAX_CHARS);
        faults.optional("consent.evidence.url", evidence.url.as_deref(), EVIDENCE_MAX_CHARS);
    }
}

/// Checks when a contact has agreed. A year before 1900 is a mistake; Postgres cannot read all of them.
///
/// # Errors
/// The code of the fault.
pub(crate) fn check_consent_time(at: DateTime<Utc>) -> Result<(), &'static str> {
    if at.year() < FIRST_YEAR {
        return Err("out_of_range");
    }
    if at > Utc::now() + AHEAD_MAX { Err("in_the_future") } else { Ok(()) }
}

/// What a request says of its contact beside the address, checked. A blank text says nothing: stored, it would keep the field from being
/// filled.
pub(crate) fn check_details(details: ContactDetails, faults: &mut Faults) -> ContactDetails {
    for (path, text) in details.fields() {
        faults.one_line(path, text.unwrap_or_default(), CONTACT_TEXT_MAX_CHARS);
    }
    let given = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let ContactDetails { first_name, last_name, title, phone } = details;
    ContactDetails {
        first_name: given(first_name),
        last_name: given(last_name),
        title: given(title),
        phone: given(phone),
    }
}

/// A list or tag, as callers name it.
#[derive(JsonSchema)]
#[schemars(inline, untagged)]
#[expect(dead_code, reason = "only described")]
enum AudienceName {
    Id(Uuid),
    Name(Words<AUDIENCE_NAME_MAX>),
}

/// What happens to a contact that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnExisting {
    /// It keeps its values. An archived contact is active again; one whose consent is pending is subscribed when the caller says so, and
    /// an opt-out always counts.
    Keep,
    /// It gets the values that are given; null clears one; `fields` are merged; lists and tags are added.
    Update,
}

/// Makes a body with the columns of a contact that callers may set, beside its own fields.
macro_rules! contact_body {
    ($(#[$about:meta])* struct $body:ident { $($own:tt)* }) => {
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        $(#[$about])*
        pub(crate) struct $body {
            $($own)*
            #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
            pub first_name: Patch<String>,
            #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
            pub last_name: Patch<String>,
            #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
            pub title: Patch<String>,
            #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
            pub phone: Patch<String>,
            #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
            pub company: Patch<String>,
            #[schemars(range(min = 1, max = i64::MAX))]
            pub dot_number: Patch<i64>,
            /// An IANA time zone, such as Europe/Paris.
            pub timezone: Patch<String>,
            /// A language tag, such as en or pt-BR.
            #[schemars(length(max = LOCALE_MAX_CHARS), regex(pattern = LOCALE_PATTERN))]
            pub locale: Patch<String>,
            #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
            pub lifecycle_stage: Patch<String>,
            /// Not transactional, message or campaign_test: contacts that are known from mail only have these.
            #[schemars(length(max = CONTACT_TEXT_MAX_CHARS))]
            pub source: Patch<String>,
        }

        impl $body {
            fn check_columns(&self, faults: &mut Faults) {
                for (path, patch) in [
                    ("first_name", &self.first_name),
                    ("last_name", &self.last_name),
                    ("title", &self.title),
                    ("phone", &self.phone),
                    ("company", &self.company),
                    ("lifecycle_stage", &self.lifecycle_stage),
                    ("source", &self.source),
                ] {
                    faults.one_line(path, line(patch).unwrap_or_default(), CONTACT_TEXT_MAX_CHARS);
                }
                check_source(faults, "source", line(&self.source).unwrap_or_default());
                let number = self.dot_number.value().copied();
                check_words(faults, line(&self.timezone), line(&self.locale), number);
            }

            /// The columns that a caller names, with their new values.
            fn take_columns(&mut self) -> Map<String, Value> {
                let texts = [
                    ("first_name", &mut self.first_name),
                    ("last_name", &mut self.last_name),
                    ("title", &mut self.title),
                    ("phone", &mut self.phone),
                    ("company", &mut self.company),
                    ("timezone", &mut self.timezone),
                    ("locale", &mut self.locale),
                    ("lifecycle_stage", &mut self.lifecycle_stage),
                    ("source", &mut self.source),
                ];
                let texts = texts.into_iter().map(|(name, patch)| column(name, std::mem::take(patch)));
                texts.chain([column("dot_number", std::mem::take(&mut self.dot_number))]).flatten().collect()
            }
        }
    };
}

contact_body! {
    /// The body of a creation, and a contact of a batch.
    #[schemars(
        description = "A contact by its address, by the product's own id, or by both. A new contact needs an address."
    )]
    struct CreateContact {
        #[schemars(with = "Option<Email>")]
        pub email: Option<String>,
        /// The contact's id in the product, unique for the tenant.
        #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
        pub external_id: Option<String>,
        /// Default: `keep`; in a batch `update`.
        pub on_existing: Option<OnExisting>,
        /// Defined fields by key.
        #[schemars(with = "Option<Map<String, Value>>", extend("default" = null))]
        pub fields: Map<String, Value>,
        /// Ids, or names; a name that is new makes a tag.
        #[serde(deserialize_with = "crate::pipeline::or_default")]
        #[schemars(with = "Option<Vec<AudienceName>>", length(max = AUDIENCES_MAX))]
        pub tags: Vec<String>,
        /// Ids, or names; a name that is new makes a list.
        #[serde(deserialize_with = "crate::pipeline::or_default")]
        #[schemars(with = "Option<Vec<AudienceName>>", length(max = AUDIENCES_MAX))]
        pub lists: Vec<String>,
        pub marketing_status: Option<MarketingStatus>,
        /// Double opt-in: whoever is not subscribed yet is `pending`, and is subscribed by the link in a confirmation mail.
        #[serde(deserialize_with = "crate::pipeline::or_default")]
        #[schemars(with = "Option<bool>")]
        pub require_verification: bool,
        pub consent: Option<Consent>,
    }
}

/// A contact as a caller wants it, checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct WantedContact {
    /// Canonical. One of address and `external_id` is there.
    pub address: Option<String>,
    pub external_id: Option<String>,
    pub on_existing: Option<OnExisting>,
    /// The columns that the caller names, with their new values; null clears one.
    pub columns: Map<String, Value>,
    /// Merged into the contact's; null deletes a key.
    pub fields: Map<String, Value>,
    /// Ids, or names as they are stored.
    pub tags: Vec<String>,
    /// Likewise.
    pub lists: Vec<String>,
    pub marketing_status: Option<MarketingStatus>,
    /// Whether consent that is pending is to be confirmed by the link in a mail.
    pub require_verification: bool,
    pub consent: Option<Consent>,
}

impl CreateContact {
    /// Checks it.
    ///
    /// # Errors
    /// 400 with every fault.
    pub(crate) fn validate(mut self, defined: &BTreeMap<String, FieldType>) -> Result<WantedContact, ApiError> {
        let mut faults = Faults::default();
        let address = self.email.as_deref().and_then(|text| faults.address("email", text));
        if self.email.is_none() && self.external_id.is_none() {
            faults.add("email", "required", "email or external_id is required");
        }
        check_external_id(&mut faults, self.external_id.as_deref());
        self.check_columns(&mut faults);
        check_fields(&self.fields, defined, &mut faults);
        check_audiences("tags", &self.tags, &mut faults);
        check_audiences("lists", &self.lists, &mut faults);
        let leaves = self.marketing_status == Some(MarketingStatus::Unsubscribed);
        let detail = "cannot be true for a contact that is unsubscribed";
        faults.require(!(self.require_verification && leaves), "require_verification", "invalid", detail);
        if let Some(consent) = &self.consent {
            consent.check(&mut faults);
        }
        faults.finish()?;
        let columns = self.take_columns();
        Ok(WantedContact {
            address: address.map(schemas::Address::into_string),
            external_id: self.external_id,
            on_existing: self.on_existing,
            columns,
            fields: self.fields,
            tags: self.tags.iter().map(|name| canonical_name(name)).collect(),
            lists: self.lists.iter().map(|name| canonical_name(name)).collect(),
            marketing_status: self.marketing_status,
            require_verification: self.require_verification,
            consent: self.consent,
        })
    }
}

/// A column with its new value, if the caller names it.
fn column<T: Serialize>(name: &str, patch: Patch<T>) -> Option<(String, Value)> {
    Some((name.to_owned(), json!(patch.into_option()?)))
}

fn check_external_id(faults: &mut Faults, id: Option<&str>) {
    if let Some(id) = id {
        faults.title("external_id", id, EXTERNAL_ID_MAX_CHARS);
    }
}

contact_body! {
    /// The body of a change. The address is not among it: what is known of an address (suppressions, sends on their way) would
    /// stay behind.
    #[schemars(description = "A change of a contact, without the address.")]
    struct ChangeContact {
        /// The contact's id in the product, unique for the tenant.
        #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
        pub external_id: Patch<String>,
        /// Defined fields by key; null deletes one.
        #[schemars(with = "Option<Map<String, Value>>", extend("default" = null))]
        pub fields: Map<String, Value>,
        pub status: Option<super::store::ContactStatus>,
        pub marketing_status: Option<MarketingStatus>,
        pub consent: Option<Consent>,
    }
}

impl ChangeContact {
    pub(crate) fn validate(mut self, defined: &BTreeMap<String, FieldType>) -> Result<ContactChange, ApiError> {
        let mut faults = Faults::default();
        check_external_id(&mut faults, line(&self.external_id));
        self.check_columns(&mut faults);
        check_fields(&self.fields, defined, &mut faults);
        if let Some(consent) = &self.consent {
            consent.check(&mut faults);
        }
        faults.finish()?;
        let mut columns = self.take_columns();
        columns.extend(column("external_id", self.external_id));
        if let Some(status) = self.status {
            columns.insert("status".to_owned(), json!(status.as_str()));
        }
        if let Some(status) = self.marketing_status {
            columns.insert("marketing_status".to_owned(), json!(status.as_str()));
        }
        // Stated anew, it is what is known from now on.
        columns.extend(self.consent.iter().flat_map(Consent::columns));
        Ok(ContactChange { columns, fields: self.fields, marketing_status: self.marketing_status })
    }
}

/// A change of one contact, checked.
#[derive(Debug)]
pub(crate) struct ContactChange {
    /// The columns that the caller names, with their new values; null clears one.
    pub columns: Map<String, Value>,
    /// Merged into the contact's; null deletes a key.
    pub fields: Map<String, Value>,
    pub marketing_status: Option<MarketingStatus>,
}

fn line(patch: &Patch<String>) -> Option<&str> {
    patch.value().map(String::as_str)
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
        && text.len() <= LOCALE_MAX_CHARS
}

fn check_fields(values: &Map<String, Value>, defined: &BTreeMap<String, FieldType>, faults: &mut Faults) {
    for (key, value) in values {
        let at = || format!("fields.{key}");
        match defined.get(key).map(|kind| kind.check(value)) {
            None => faults.add(at(), "unknown_field", "is not a defined field; define it with POST /v1/fields"),
            Some(Err(wanted)) if !value.is_null() => faults.add(at(), "wrong_type", wanted),
            Some(_) => {}
        }
    }
}

fn check_audiences(path: &str, names: &[String], faults: &mut Faults) {
    faults.require(names.len() <= AUDIENCES_MAX, path, "too_many", "may have at most 100 items");
    for (position, name) in names.iter().enumerate() {
        if parse_id(name).is_err() {
            faults.title(&format!("{path}[{position}]"), name, AUDIENCE_NAME_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn create(body: Value) -> Result<WantedContact, ApiError> {
        let defined = BTreeMap::from([("plan".to_owned(), FieldType::String), ("seats".to_owned(), FieldType::Number)]);
        serde_json::from_value::<CreateContact>(body).unwrap().validate(&defined)
    }

    #[test]
    fn every_fault_of_a_contact_is_named() {
        let error = create(json!({
            "email": "nobody",
            "first_name": "x".repeat(201),
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
    fn only_the_columns_that_are_named_are_written() {
        let body = json!({"email": "Ann@Example.com", "first_name": "Ann", "phone": null, "dot_number": 7});
        let contact = create(body).unwrap();
        assert_eq!(contact.address.as_deref(), Some("ann@example.com"));
        assert_eq!(Value::Object(contact.columns), json!({"first_name": "Ann", "phone": null, "dot_number": 7}));
    }

    #[rstest]
    #[case(json!({}), &["email"])]
    #[case(json!({"external_id": " "}), &["external_id"])]
    #[case(json!({"external_id": "x".repeat(201)}), &["external_id"])]
    #[case(json!({"email": "a@example.com", "consent": {"evidence": {"ip": "here"}}}), &["consent.evidence.ip"])]
    fn a_contact_has_an_address_or_an_external_id(#[case] body: Value, #[case] expected: &[&str]) {
        let error = create(body).unwrap_err();
        let paths: Vec<_> = error.fields.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, expected);
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
