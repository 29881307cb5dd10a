//! The body of an outcome.

use chrono::{DateTime, Utc};
use ledger::outcomes::{NewOutcome, Premium, VALUE_CENTS_MAX};
use schemars::JsonSchema;
use schemas::OutcomeType;
use serde::Deserialize;
use serde_json::Number;

use super::DOLLARS_MAX;
use crate::{
    api::contacts::{EXTERNAL_ID_MAX_CHARS, named::NamedContact},
    pipeline::{
        Faults, GivenTime,
        error::ApiError,
        types::{Email, Name},
        validate::SOURCE_EVENT_ID_MAX,
    },
};

/// An outcome as a product reports it.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordOutcome {
    /// The contact's address. This or `dot_number` is required.
    #[schemars(with = "Option<Email>")]
    pub(super) contact_email: Option<String>,
    /// Instead of `contact_email`: the contact's id in the product. The contact must be known.
    #[schemars(with = "Option<Name<EXTERNAL_ID_MAX_CHARS>>")]
    pub(super) external_id: Option<String>,
    /// The contact's number.
    #[schemars(range(min = 1))]
    dot_number: Option<i64>,
    /// What happened.
    #[schemars(with = "OutcomeType")]
    outcome_type: Option<String>,
    /// The premium in cents.
    #[schemars(range(min = 0, max = VALUE_CENTS_MAX))]
    premium_cents: Option<i64>,
    /// In dollars, with at most four decimals, kept exactly. Goes before `premium_cents`.
    #[schemars(range(min = 0, max = DOLLARS_MAX))]
    premium_amount: Option<Number>,
    /// What it is worth, in cents.
    #[schemars(range(min = 0, max = VALUE_CENTS_MAX))]
    value_cents: Option<i64>,
    /// Default: now; of an outcome that is reported again, the time it was first reported with.
    #[schemars(with = "Option<GivenTime>")]
    occurred_at: Option<String>,
    /// The caller's own id of the event. Reporting it again changes the same outcome to what is said now. Without it every call is
    /// another outcome, except repeats with the same `Idempotency-Key`.
    #[schemars(with = "Option<Name<SOURCE_EVENT_ID_MAX>>")]
    source_event_id: Option<String>,
}

impl RecordOutcome {
    /// The valid outcome, and the `external_id` that names its contact, whose address it lacks.
    ///
    /// # Errors
    /// 400 with every fault.
    pub(super) fn validate(self, now: DateTime<Utc>) -> Result<(NewOutcome, Option<NamedContact>), ApiError> {
        let mut faults = Faults::default();
        let is_named = self.contact_email.is_some() || self.external_id.is_some() || self.dot_number.is_some();
        faults.require(is_named, "contact_email", "required", "contact_email, external_id or dot_number is required");
        let is_ambiguous = self.contact_email.is_some() && self.external_id.is_some();
        let detail = "name the contact by one of contact_email and external_id";
        faults.require(!is_ambiguous, "contact_email", "ambiguous", detail);
        let contact_email = self.contact_email.and_then(|text| faults.address("contact_email", &text));
        if let Some(id) = &self.external_id {
            faults.title("external_id", id, EXTERNAL_ID_MAX_CHARS);
        }
        let positive = self.dot_number.is_none_or(|number| number > 0);
        faults.require(positive, "dot_number", "out_of_range", "must be positive");
        let outcome_type = faults
            .required("outcome_type", self.outcome_type)
            .and_then(|word| faults.word("outcome_type", &word, OutcomeType::ALL, OutcomeType::as_str));
        let premium = premium(self.premium_amount.as_ref(), self.premium_cents, &mut faults);
        if let Some(cents) = self.value_cents {
            faults.within("value_cents", cents, 0..=VALUE_CENTS_MAX);
        }
        let occurred_at = self.occurred_at.and_then(|text| faults.time("occurred_at", &text));
        if let Some(at) = occurred_at {
            faults.happened("occurred_at", at, now);
        }
        if let Some(id) = &self.source_event_id {
            faults.title("source_event_id", id, SOURCE_EVENT_ID_MAX);
        }
        faults.finish()?;
        let new = NewOutcome {
            contact_email,
            dot_number: self.dot_number,
            outcome_type: outcome_type.ok_or_else(ApiError::internal)?,
            premium,
            value_cents: self.value_cents,
            occurred_at,
            source_event_id: self.source_event_id,
        };
        Ok((new, self.external_id.map(NamedContact::ExternalId)))
    }
}

/// `premium_amount`, in dollars, takes precedence over `premium_cents`. Both must be sound.
fn premium(amount: Option<&Number>, cents: Option<i64>, faults: &mut Faults) -> Option<Premium> {
    let of_amount = amount.and_then(|amount| {
        let premium = Premium::of_dollars(amount);
        if premium.is_none() {
            let detail = format!("must be from 0 to {DOLLARS_MAX} with at most 4 decimals");
            faults.add("premium_amount", "out_of_range", detail);
        }
        premium
    });
    if let Some(cents) = cents {
        faults.within("premium_cents", cents, 0..=VALUE_CENTS_MAX);
    }
    of_amount.or_else(|| cents.and_then(Premium::of_cents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn now() -> DateTime<Utc> {
        "2026-03-31T10:20:00Z".parse().unwrap()
    }

    fn read(change: &Value) -> Result<NewOutcome, ApiError> {
        let mut body = json!({"contact_email": "Ann@Example.com", "outcome_type": "bind"});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        serde_json::from_value::<RecordOutcome>(body).unwrap().validate(now()).map(|(new, _)| new)
    }

    #[rstest]
    #[case(json!({"contact_email": null}), "contact_email", "required")]
    #[case(json!({"contact_email": "nobody"}), "contact_email", "missing_at")]
    #[case(json!({"external_id": "7"}), "contact_email", "ambiguous")]
    #[case(json!({"contact_email": null, "external_id": ""}), "external_id", "empty")]
    #[case(json!({"contact_email": null, "external_id": "7", "outcome_type": null}), "outcome_type", "required")]
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
    #[case(json!({"source_event_id": "a\u{202e}b"}), "source_event_id", "invisible_character")]
    #[case(json!({"source_event_id": "x".repeat(256)}), "source_event_id", "too_long")]
    fn what_cannot_be_recorded_is_refused_with_its_field(
        #[case] change: Value,
        #[case] path: &str,
        #[case] code: &str,
    ) {
        let error = read(&change).unwrap_err();
        let found: Vec<_> = error.fields.iter().map(|fault| (fault.path.as_str(), fault.code.as_ref())).collect();
        assert_eq!(found, [(path, code)]);
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let error = RecordOutcome { value_cents: Some(-1), ..RecordOutcome::default() }.validate(now()).unwrap_err();
        let paths: Vec<&str> = error.fields.iter().map(|fault| fault.path.as_str()).collect();
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
