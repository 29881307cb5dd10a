//! The outcome request: one validation for HTTP and for the bus.

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use schemars::JsonSchema;
use schemas::{Address, OutcomeType, address::ADDRESS_MAX_BYTES};
use serde::Deserialize;
use serde_json::Number;

use super::{PREMIUM_MAX, PREMIUM_UNITS, Premium, VALUE_CENTS_MAX};

/// Longest source event id, in characters.
pub const EVENT_ID_MAX: usize = 255;
/// Longest `external_id`, in characters.
const EXTERNAL_ID_MAX: usize = 200;
/// One line that is not blank, in contracts.
const EVENT_ID_PATTERN: &str =
    r"^[^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$";
/// How far ahead of our clock something may have happened.
const AHEAD_MAX: TimeDelta = TimeDelta::minutes(5);
/// The earliest year in which something may have happened.
const FIRST_YEAR: i32 = 2000;

/// An outcome as a product reports it.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RecordOutcome")]
pub struct OutcomeRequest {
    /// The contact's address. This or `dot_number` is required.
    #[schemars(length(max = ADDRESS_MAX_BYTES), extend("format" = "email"))]
    pub contact_email: Option<String>,
    /// Instead of `contact_email`: the contact's id in the product. The contact must be known.
    #[schemars(length(min = 1, max = EXTERNAL_ID_MAX), extend("pattern" = EVENT_ID_PATTERN))]
    pub external_id: Option<String>,
    /// The contact's number.
    #[schemars(range(min = 1))]
    pub dot_number: Option<i64>,
    /// What happened.
    #[schemars(with = "OutcomeType")]
    pub outcome_type: Option<String>,
    /// The premium in cents.
    #[schemars(range(min = 0, max = VALUE_CENTS_MAX))]
    pub premium_cents: Option<i64>,
    /// In dollars, with at most four decimals, kept exactly. Goes before `premium_cents`.
    #[schemars(range(min = 0, max = PREMIUM_MAX.0 / PREMIUM_UNITS))]
    pub premium_amount: Option<Number>,
    /// What it is worth, in cents.
    #[schemars(range(min = 0, max = VALUE_CENTS_MAX))]
    pub value_cents: Option<i64>,
    /// Default: now; of an outcome that is reported again, the time it was first reported with.
    #[schemars(extend("format" = "date-time"))]
    pub occurred_at: Option<String>,
    /// The caller's own id of the event. Reporting it again changes the same outcome to what is said now. Without it every call is
    /// another outcome, except repeats with the same `Idempotency-Key`.
    #[schemars(length(min = 1, max = EVENT_ID_MAX), extend("pattern" = EVENT_ID_PATTERN))]
    pub source_event_id: Option<String>,
}

/// One fault of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeFault {
    /// The field.
    pub path: &'static str,
    /// A stable code.
    pub code: &'static str,
    /// The explanation for the caller.
    pub detail: String,
}

/// An outcome that may be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOutcome {
    /// The address, canonical.
    pub contact_email: Option<Address>,
    /// The number.
    pub dot_number: Option<i64>,
    /// Its type.
    pub outcome_type: OutcomeType,
    /// The premium.
    pub premium: Option<Premium>,
    /// The value.
    pub value_cents: Option<i64>,
    /// When it happened; `None`: now, or, in a later report, the time of the first report.
    pub occurred_at: Option<DateTime<Utc>>,
    /// The product's own id of the event.
    pub source_event_id: Option<String>,
}

/// The faults found so far.
#[derive(Debug, Default)]
struct OutcomeFaults(Vec<OutcomeFault>);

impl OutcomeFaults {
    fn add(&mut self, path: &'static str, code: &'static str, detail: impl Into<String>) {
        self.0.push(OutcomeFault { path, code, detail: detail.into() });
    }
}

impl OutcomeRequest {
    /// The valid outcome.
    ///
    /// # Errors
    /// Every fault.
    pub fn validate(self, now: DateTime<Utc>) -> Result<NewOutcome, Vec<OutcomeFault>> {
        let mut faults = OutcomeFaults::default();
        if self.contact_email.is_none() && self.dot_number.is_none() {
            faults.add("contact_email", "required", "contact_email or dot_number is required");
        }
        let contact_email = self.contact_email.and_then(|text| {
            Address::parse(&text).map_err(|error| faults.add("contact_email", error.code(), error.to_string())).ok()
        });
        if self.dot_number.is_some_and(|number| number <= 0) {
            faults.add("dot_number", "out_of_range", "must be positive");
        }
        let outcome_type = outcome_type(self.outcome_type.as_deref(), &mut faults);
        let premium = premium(self.premium_amount.as_ref(), self.premium_cents, &mut faults);
        if self.value_cents.is_some_and(|cents| !(0..=VALUE_CENTS_MAX).contains(&cents)) {
            faults.add("value_cents", "out_of_range", format!("must be from 0 to {VALUE_CENTS_MAX}"));
        }
        let occurred_at = self.occurred_at.and_then(|text| moment(&text, now, &mut faults));
        if let Some(id) = &self.source_event_id {
            event_id(id, &mut faults);
        }
        match outcome_type {
            Some(outcome_type) if faults.0.is_empty() => Ok(NewOutcome {
                contact_email,
                dot_number: self.dot_number,
                outcome_type,
                premium,
                value_cents: self.value_cents,
                occurred_at,
                source_event_id: self.source_event_id,
            }),
            _ => Err(faults.0),
        }
    }
}

fn outcome_type(word: Option<&str>, faults: &mut OutcomeFaults) -> Option<OutcomeType> {
    let Some(word) = word else {
        faults.add("outcome_type", "required", "is required");
        return None;
    };
    let known = OutcomeType::parse(word);
    if known.is_none() {
        let words: Vec<&str> = OutcomeType::ALL.iter().map(|outcome_type| outcome_type.as_str()).collect();
        faults.add("outcome_type", "not_allowed", format!("must be one of {}", words.join(", ")));
    }
    known
}

/// `premium_amount`, in dollars, takes precedence over `premium_cents`. Both must be sound.
fn premium(amount: Option<&Number>, cents: Option<i64>, faults: &mut OutcomeFaults) -> Option<Premium> {
    let of_amount = amount.and_then(|amount| {
        let premium = Premium::of_dollars(amount);
        if premium.is_none() {
            let most = PREMIUM_MAX.0 / PREMIUM_UNITS;
            faults.add("premium_amount", "out_of_range", format!("must be from 0 to {most} with at most 4 decimals"));
        }
        premium
    });
    let of_cents = cents.and_then(|cents| {
        let premium = Premium::of_cents(cents);
        if premium.is_none() {
            faults.add("premium_cents", "out_of_range", format!("must be from 0 to {VALUE_CENTS_MAX}"));
        }
        premium
    });
    of_amount.or(of_cents)
}

fn moment(text: &str, now: DateTime<Utc>, faults: &mut OutcomeFaults) -> Option<DateTime<Utc>> {
    let Ok(at) = DateTime::parse_from_rfc3339(text).map(|at| at.to_utc()) else {
        faults.add("occurred_at", "invalid", "must be a time with a zone, as 2026-03-01T09:00:00Z");
        return None;
    };
    if at > now + AHEAD_MAX || at.year() < FIRST_YEAR {
        faults.add("occurred_at", "out_of_range", "must not be in the future nor before the year 2000");
        return None;
    }
    Some(at)
}

fn event_id(id: &str, faults: &mut OutcomeFaults) {
    if id.trim().is_empty() {
        faults.add("source_event_id", "empty", "must not be empty");
    }
    if id.chars().nth(EVENT_ID_MAX).is_some() {
        faults.add("source_event_id", "too_long", format!("may have at most {EVENT_ID_MAX} characters"));
    }
    if id.chars().any(char::is_control) {
        faults.add("source_event_id", "control_character", "must not contain control characters");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn now() -> DateTime<Utc> {
        "2026-03-31T10:20:00Z".parse().unwrap()
    }

    fn read(change: &Value) -> Result<NewOutcome, Vec<OutcomeFault>> {
        let mut body = json!({"contact_email": "Ann@Example.com", "outcome_type": "bind"});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        serde_json::from_value::<OutcomeRequest>(body).unwrap().validate(now())
    }

    #[rstest]
    #[case(json!({"contact_email": null}), "contact_email", "required")]
    #[case(json!({"contact_email": "nobody"}), "contact_email", "missing_at")]
    #[case(json!({"dot_number": 0}), "dot_number", "out_of_range")]
    #[case(json!({"outcome_type": null}), "outcome_type", "required")]
    #[case(json!({"outcome_type": "sale"}), "outcome_type", "not_allowed")]
    #[case(json!({"premium_amount": 0.12345}), "premium_amount", "out_of_range")]
    #[case(json!({"premium_amount": -1}), "premium_amount", "out_of_range")]
    #[case(json!({"premium_cents": -1}), "premium_cents", "out_of_range")]
    #[case(json!({"premium_amount": 1, "premium_cents": -1}), "premium_cents", "out_of_range")]
    #[case(json!({"value_cents": 1_000_000_000_001_i64}), "value_cents", "out_of_range")]
    #[case(json!({"occurred_at": "yesterday"}), "occurred_at", "invalid")]
    #[case(json!({"occurred_at": "2026-03-31T10:20:00"}), "occurred_at", "invalid")]
    #[case(json!({"occurred_at": "2026-03-31T10:25:01Z"}), "occurred_at", "out_of_range")]
    #[case(json!({"occurred_at": "1999-12-31T23:59:59Z"}), "occurred_at", "out_of_range")]
    #[case(json!({"source_event_id": " "}), "source_event_id", "empty")]
    #[case(json!({"source_event_id": "a\nb"}), "source_event_id", "control_character")]
    #[case(json!({"source_event_id": "x".repeat(256)}), "source_event_id", "too_long")]
    fn what_cannot_be_recorded_is_refused_with_its_field(
        #[case] change: Value,
        #[case] path: &str,
        #[case] code: &str,
    ) {
        let faults = read(&change).unwrap_err();
        assert_eq!((faults[0].path, faults[0].code, faults.len()), (path, code, 1), "{faults:?}");
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let faults = OutcomeRequest { value_cents: Some(-1), ..OutcomeRequest::default() }.validate(now()).unwrap_err();
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path).collect();
        assert_eq!(paths, ["contact_email", "outcome_type", "value_cents"]);
    }

    #[test]
    fn dollars_go_before_cents_and_either_key_is_enough() {
        let both = read(&json!({"premium_amount": 12.5, "premium_cents": 99})).unwrap();
        assert_eq!(both.premium, Some(Premium(125_000)));
        assert_eq!(both.contact_email.unwrap().as_str(), "ann@example.com");
        let number = read(&json!({"contact_email": null, "dot_number": 7, "premium_cents": 99})).unwrap();
        assert_eq!((number.contact_email, number.dot_number, number.premium), (None, Some(7), Some(Premium(9_900))));
        assert_eq!(number.occurred_at, None);
    }
}
