//! What a caller may set for one mail beside its content: copies, the due time, From name, Reply-To, header fields, tags,
//! metadata, tracking.

use std::collections::{BTreeMap, HashSet};

use chrono::{TimeDelta, Utc};
use schemars::JsonSchema;
use schemas::{
    Address,
    messages::{MailCopy, MailOptions, RecipientRole},
};
use serde::Deserialize;
use serde_json::json;

use super::messages::draft::ParsedRecipient;
use crate::pipeline::{
    Faults,
    types::{Email, Line, texts},
    validate::{NAME_MAX, is_ascii_name},
};

/// Most header fields of a caller.
pub(crate) const HEADERS_MAX: usize = 20;
/// Longest name of a header field, in characters.
const HEADER_NAME_MAX: usize = 70;
/// Longest value of a header field, in bytes: with its name it stays within a line of 998.
pub(crate) const HEADER_VALUE_MAX_BYTES: usize = 800;
pub(crate) const TAGS_MAX: usize = 10;
/// Longest tag, in characters.
pub(crate) const TAG_MAX: usize = 64;
pub(crate) const METADATA_MAX: usize = 20;
/// Longest key of metadata, in characters.
const METADATA_KEY_MAX: usize = 40;
/// Longest value of metadata, in characters.
pub(crate) const METADATA_VALUE_MAX: usize = 500;

/// How far ahead `scheduled_at` may be.
const AHEAD_MAX: TimeDelta = TimeDelta::days(30);
/// Most recipients of copies.
pub(crate) const COPIES_MAX: usize = 49;

/// Header fields that a caller may set, beside those that begin with `X-`. All others are the engine's.
const ALLOWED_HEADERS: [&str; 6] =
    ["auto-submitted", "importance", "in-reply-to", "organization", "priority", "references"];
/// Fields that hold Message-IDs.
const MESSAGE_ID_HEADERS: [&str; 2] = ["in-reply-to", "references"];
/// Beginnings of `X-` fields that the engine or a provider gives a meaning of its own.
const RESERVED_HEADERS: [&str; 11] = [
    "x-postrider-",
    "x-ses-",
    "x-amz-",
    "x-mailgun-",
    "x-pm-",
    "x-smtpapi",
    "x-sg-",
    "x-mc-",
    "x-mj-",
    "x-msys-",
    "x-original-",
];

texts! {
    /// Header fields of a caller: names that are allowed, each with a value of one line.
    CustomHeaders<MAX> = json!({
        "type": "object", "maxProperties": MAX,
        "propertyNames": {
            "maxLength": HEADER_NAME_MAX,
            "pattern": format!("^([Xx]-[A-Za-z0-9-]+|{})$", ALLOWED_HEADERS.map(in_any_case).join("|")),
        },
        "additionalProperties": {
            "description": format!("At most {HEADER_VALUE_MAX_BYTES} bytes of UTF-8."),
            "type": "string", "minLength": 1, "maxLength": HEADER_VALUE_MAX_BYTES,
            "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$",
        },
    }),
    /// Pairs of texts that come back with what happens to a mail.
    MailMetadata<MAX> = json!({
        "type": "object", "maxProperties": MAX,
        "propertyNames": {"maxLength": METADATA_KEY_MAX, "pattern": "^[A-Za-z0-9_.-]+$"},
        "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_MAX},
    }),
}

/// A pattern for a name that is given in lower case, in upper or lower case.
fn in_any_case(name: &str) -> String {
    let either = |c: char| {
        if c.is_ascii_alphabetic() { format!("[{}{}]", c.to_ascii_uppercase(), c) } else { c.to_string() }
    };
    name.chars().map(either).collect()
}

/// Whether opens and clicks of one mail are tracked.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MailTracking {
    /// Default: true.
    opens: Option<bool>,
    /// Default: true.
    clicks: Option<bool>,
}

/// The recipient of a copy.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CopyRecipient {
    #[schemars(with = "Email")]
    email: Option<String>,
    /// For the Cc header.
    #[schemars(with = "Option<Line<NAME_MAX>>")]
    name: Option<String>,
}

/// The fields of a request that are options of its mail.
#[derive(Debug, Default)]
pub(crate) struct OptionFields {
    pub(crate) from_name: Option<String>,
    pub(crate) reply_to: Option<String>,
    pub(crate) headers: Option<BTreeMap<String, String>>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    pub(crate) tracking: Option<MailTracking>,
    pub(crate) cc: Option<Vec<CopyRecipient>>,
    pub(crate) bcc: Option<Vec<CopyRecipient>>,
    pub(crate) scheduled_at: Option<String>,
}

impl OptionFields {
    /// The options of a mail to this address, after every fault in them was added. `None`: the caller set none.
    pub(crate) fn validate(self, faults: &mut Faults, to: Option<&Address>) -> Option<MailOptions> {
        let from_name = self.from_name.map(|name| faults.name("from_name", Some(name)));
        let reply_to = self.reply_to.and_then(|text| faults.sender_address("reply_to", &text));
        let headers = self.headers.unwrap_or_default();
        check_headers(faults, &headers);
        let tags = tags(faults, self.tags.unwrap_or_default());
        let metadata = self.metadata.unwrap_or_default();
        check_metadata(faults, &metadata);
        let tracking = self.tracking.unwrap_or_default();
        let copies = copies(faults, to, [(RecipientRole::Cc, self.cc), (RecipientRole::Bcc, self.bcc)]);
        let now = Utc::now();
        let due = |text: String| faults.due("scheduled_at", &text, AHEAD_MAX, "is more than 30 days ahead", now);
        // What is due already is sent at once.
        let scheduled_at = self.scheduled_at.and_then(due).filter(|at| *at > now);
        let options = MailOptions {
            from_name,
            reply_to,
            headers,
            tags,
            metadata,
            no_open_tracking: tracking.opens == Some(false),
            no_click_tracking: tracking.clicks == Some(false),
            scheduled_at,
            copies,
            ..MailOptions::default()
        };
        (options != MailOptions::default()).then_some(options)
    }
}

/// The recipients of copies: each address once, and not that of the mail itself.
fn copies(
    faults: &mut Faults,
    to: Option<&Address>,
    given: [(RecipientRole, Option<Vec<CopyRecipient>>); 2],
) -> Vec<MailCopy> {
    let mut seen: HashSet<Address> = to.cloned().into_iter().collect();
    let mut copies = Vec::new();
    let mut count = 0;
    for (role, recipients) in given {
        let recipients = recipients.unwrap_or_default();
        count += recipients.len();
        if count > COPIES_MAX {
            let detail = format!("cc and bcc may name at most {COPIES_MAX} recipients together");
            faults.add(role.as_str(), "too_many", detail);
            return Vec::new();
        }
        for (place, recipient) in recipients.into_iter().enumerate() {
            let named = named_recipient(faults, &format!("{role}[{place}]"), recipient.email, recipient.name);
            let named = named.filter(|named| seen.insert(named.address.clone()));
            copies.extend(named.map(|ParsedRecipient { address, name }| MailCopy { address, name, role }));
        }
    }
    copies
}

/// The recipients in `to`, each address once. `read` reads one of them at its path; `words` is what one and several are called.
pub(crate) fn recipients<T>(
    faults: &mut Faults,
    to: Option<Vec<T>>,
    most: usize,
    words: (&str, &str),
    read: fn(&mut Faults, &str, T) -> Option<ParsedRecipient>,
) -> Vec<ParsedRecipient> {
    let Some(to) = faults.required("to", to) else { return Vec::new() };
    faults.require(!to.is_empty(), "to", "empty", &format!("must name at least one {}", words.0));
    if to.len() > most {
        faults.add("to", "too_many", format!("may name at most {most} {}", words.1));
        return Vec::new();
    }
    let mut seen = HashSet::with_capacity(to.len());
    let read = to.into_iter().enumerate().filter_map(|(place, one)| read(faults, &format!("to[{place}]"), one));
    read.filter(|recipient| seen.insert(recipient.address.clone())).collect()
}

/// A recipient with an address and perhaps a name.
pub(crate) fn named_recipient(
    faults: &mut Faults,
    path: &str,
    email: Option<String>,
    name: Option<String>,
) -> Option<ParsedRecipient> {
    let at = format!("{path}.email");
    let address = faults.required(&at, email).and_then(|text| faults.address(&at, &text));
    let name = name.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    faults.one_line(&format!("{path}.name"), name.as_deref().unwrap_or_default(), NAME_MAX);
    Some(ParsedRecipient { address: address?, name })
}

fn check_headers(faults: &mut Faults, headers: &BTreeMap<String, String>) {
    if headers.len() > HEADERS_MAX {
        faults.add("headers", "too_many", format!("may have at most {HEADERS_MAX} fields"));
        return;
    }
    let mut names = HashSet::with_capacity(headers.len());
    for (name, value) in headers {
        let lower = name.to_ascii_lowercase();
        // A name is shown only when it is known to be harmless.
        if !is_ascii_name(name, HEADER_NAME_MAX, b"-") {
            let detail = format!("names have letters, digits and dashes, at most {HEADER_NAME_MAX}");
            faults.add("headers", "invalid", detail);
            continue;
        }
        let path = format!("headers.{name}");
        let is_allowed = ALLOWED_HEADERS.contains(&lower.as_str()) || (lower.len() > 2 && lower.starts_with("x-"));
        if !is_allowed || RESERVED_HEADERS.iter().any(|reserved| lower.starts_with(reserved)) {
            let allowed = "only X- fields, Auto-Submitted, Importance, In-Reply-To, Organization, Priority and References \
                           may be set, and no X- field of the engine or a provider";
            faults.add(&path, "not_allowed", allowed);
        }
        faults.bytes(&path, value, HEADER_VALUE_MAX_BYTES);
        faults.title(&path, value, usize::MAX);
        let is_id = |word: &str| word.starts_with('<') && word.ends_with('>') && word.contains('@') && word.is_ascii();
        if MESSAGE_ID_HEADERS.contains(&lower.as_str()) && !value.split_whitespace().all(is_id) {
            faults.add(&path, "invalid", "must be Message-IDs, each in angle brackets");
        }
        if !names.insert(lower) {
            faults.add(&path, "duplicate", "is given twice");
        }
    }
}

/// The tags, each once.
fn tags(faults: &mut Faults, tags: Vec<String>) -> Vec<String> {
    if tags.len() > TAGS_MAX {
        faults.add("tags", "too_many", format!("may have at most {TAGS_MAX} tags"));
        return Vec::new();
    }
    let mut seen = HashSet::new();
    for (place, tag) in tags.iter().enumerate() {
        faults.title(&format!("tags[{place}]"), tag, TAG_MAX);
    }
    tags.into_iter().filter(|tag| seen.insert(tag.clone())).collect()
}

fn check_metadata(faults: &mut Faults, metadata: &BTreeMap<String, String>) {
    if metadata.len() > METADATA_MAX {
        faults.add("metadata", "too_many", format!("may have at most {METADATA_MAX} pairs"));
        return;
    }
    for (key, value) in metadata {
        if !is_ascii_name(key, METADATA_KEY_MAX, b"_-.") {
            let detail = format!("keys have letters, digits, dots, dashes and underscores, at most {METADATA_KEY_MAX}");
            faults.add("metadata", "invalid", detail);
            continue;
        }
        faults.optional(&format!("metadata.{key}"), Some(value), METADATA_VALUE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn codes(fields: OptionFields) -> Vec<String> {
        let mut faults = Faults::default();
        fields.validate(&mut faults, None);
        let Err(error) = faults.finish() else { return Vec::new() };
        error.fields.iter().map(|fault| format!("{} {}", fault.path, fault.code)).collect()
    }

    fn header(name: &str, value: &str) -> OptionFields {
        OptionFields { headers: Some([(name.to_owned(), value.to_owned())].into()), ..OptionFields::default() }
    }

    #[rstest]
    #[case::own("X-Order", "17", None)]
    #[case::in_any_script("x-name", "Jürgen", None)]
    #[case::thread("References", "<a@b.test> <c@d.test>", None)]
    #[case::sender("From", "ceo@bank.test", Some("headers.From not_allowed"))]
    #[case::recipients("bcc", "all@bank.test", Some("headers.bcc not_allowed"))]
    #[case::signature("DKIM-Signature", "v=1", Some("headers.DKIM-Signature not_allowed"))]
    #[case::leaving("List-Unsubscribe", "<https://x.test>", Some("headers.List-Unsubscribe not_allowed"))]
    #[case::type_of_the_body("Content-Type", "text/html", Some("headers.Content-Type not_allowed"))]
    #[case::send_of_the_engine("X-Postrider-Send", "1", Some("headers.X-Postrider-Send not_allowed"))]
    #[case::order_to_a_provider("X-SES-Configuration-Set", "c", Some("headers.X-SES-Configuration-Set not_allowed"))]
    #[case::template_of_a_provider("X-SMTPAPI", "{}", Some("headers.X-SMTPAPI not_allowed"))]
    #[case::second_line("X-A", "1\r\nBcc: all@bank.test", Some("headers.X-A control_character"))]
    #[case::second_line_in_the_name("X-A: 1\r\nBcc", "all@bank.test", Some("headers invalid"))]
    #[case::no_id("In-Reply-To", "yesterday", Some("headers.In-Reply-To invalid"))]
    #[case::empty("X-A", " ", Some("headers.X-A empty"))]
    fn only_allowed_headers_of_one_line_are_taken(
        #[case] name: &str,
        #[case] value: &str,
        #[case] fault: Option<&str>,
    ) {
        assert_eq!(codes(header(name, value)), fault.into_iter().collect::<Vec<_>>());
    }

    #[rstest]
    #[case("References", "<a@b.test>")]
    #[case("references", "<a@b.test>")]
    #[case("IN-REPLY-TO", "<a@b.test>")]
    #[case("x-order", "17")]
    #[case("From", "ceo@bank.test")]
    #[case("X-A", "1\r\nBcc: all@bank.test")]
    #[case("X-A", "")]
    fn the_contract_takes_the_headers_that_are_taken(#[case] name: &str, #[case] value: &str) {
        let schema = CustomHeaders::<HEADERS_MAX>::json_schema(&mut schemars::SchemaGenerator::default()).to_value();
        assert_eq!(jsonschema::is_valid(&schema, &json!({name: value})), codes(header(name, value)).is_empty());
    }

    #[test]
    fn options_are_bounded_and_every_fault_is_named() {
        let many = |count: usize, value: &str| (0..count).map(|n| (format!("X-{n}"), value.to_owned())).collect();
        let fields = OptionFields {
            from_name: Some("A\nB".to_owned()),
            reply_to: Some("nobody".to_owned()),
            headers: Some(many(HEADERS_MAX + 1, "1")),
            tags: Some(vec!["t".to_owned(); TAGS_MAX + 1]),
            metadata: Some(many(METADATA_MAX + 1, "1")),
            cc: Some((0..=COPIES_MAX).map(|n| copy(&format!("c{n}@example.com"))).collect()),
            ..OptionFields::default()
        };
        let expected = [
            "from_name control_character",
            "reply_to missing_at",
            "headers too_many",
            "tags too_many",
            "metadata too_many",
            "cc too_many",
        ];
        assert_eq!(codes(fields), expected);
        let long = OptionFields {
            headers: Some(many(1, &"x".repeat(HEADER_VALUE_MAX_BYTES + 1))),
            tags: Some(vec!["x".repeat(TAG_MAX + 1), String::new()]),
            metadata: Some(
                [("a b".to_owned(), String::new()), ("k".to_owned(), "x".repeat(METADATA_VALUE_MAX + 1))].into(),
            ),
            ..OptionFields::default()
        };
        let expected =
            ["headers.X-0 too_long", "tags[0] too_long", "tags[1] empty", "metadata invalid", "metadata.k too_long"];
        assert_eq!(codes(long), expected);
    }

    #[test]
    fn a_tag_given_twice_is_one_and_no_options_are_none() {
        let mut faults = Faults::default();
        let twice = OptionFields { tags: Some(vec!["a".to_owned(), "a".to_owned()]), ..OptionFields::default() };
        assert_eq!(twice.validate(&mut faults, None).unwrap().tags, ["a"]);
        let on = MailTracking { opens: Some(true), clicks: None };
        let none = OptionFields { tags: Some(Vec::new()), tracking: Some(on), ..OptionFields::default() };
        assert_eq!(none.validate(&mut faults, None), None);
    }

    fn copy(email: &str) -> CopyRecipient {
        CopyRecipient { email: Some(email.to_owned()), name: None }
    }

    #[rstest]
    #[case::later(60, None, true)]
    #[case::clocks_differ(-60, None, false)]
    #[case::past(-600, Some("scheduled_at in_the_past"), false)]
    #[case::too_far(31 * 86_400, Some("scheduled_at too_far_ahead"), false)]
    fn a_mail_is_due_within_thirty_days(#[case] seconds: i64, #[case] fault: Option<&str>, #[case] is_later: bool) {
        let at = (Utc::now() + TimeDelta::seconds(seconds)).to_rfc3339();
        let fields = || OptionFields { scheduled_at: Some(at.clone()), ..OptionFields::default() };
        assert_eq!(codes(fields()), fault.into_iter().collect::<Vec<_>>());
        let options = fields().validate(&mut Faults::default(), None);
        assert_eq!(fault.is_none() && options.is_some_and(|options| options.scheduled_at.is_some()), is_later);
        assert_eq!(
            codes(OptionFields { scheduled_at: Some("tomorrow".to_owned()), ..OptionFields::default() }),
            ["scheduled_at invalid"]
        );
    }

    #[test]
    fn an_address_gets_one_mail_whatever_its_roles() {
        let to = Address::parse("ann@example.com").unwrap();
        let fields = OptionFields {
            cc: Some(vec![copy("ANN@example.com"), copy("bob@example.com"), copy("bob@example.com")]),
            bcc: Some(vec![copy("bob@example.com"), copy("eve@example.com")]),
            ..OptionFields::default()
        };
        let options = fields.validate(&mut Faults::default(), Some(&to)).unwrap();
        let copies: Vec<_> = options.copies.iter().map(|copy| (copy.address.as_str(), copy.role.as_str())).collect();
        assert_eq!(copies, [("bob@example.com", "cc"), ("eve@example.com", "bcc")]);
        // More than there may be are refused, not cut off, though some are named twice.
        let many = || Some(vec![copy("bob@example.com"); COPIES_MAX + 1]);
        assert_eq!(codes(OptionFields { cc: many(), ..OptionFields::default() }), ["cc too_many"]);
        let both = OptionFields { cc: Some(vec![copy("al@example.com")]), bcc: many(), ..OptionFields::default() };
        assert_eq!(codes(both), ["bcc too_many"]);
        let bad = OptionFields { bcc: Some(vec![copy("nobody")]), ..OptionFields::default() };
        assert_eq!(codes(bad), ["bcc[0].email missing_at"]);
    }
}
