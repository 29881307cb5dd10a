//! What the checks make of a domain.

use std::time::Duration;

use chrono::{DateTime, Utc};
use schemas::DomainStatus;

use super::{CheckedRecord, Validity};

/// How long a degraded domain may still send.
const DEGRADED_GRACE: Duration = Duration::from_secs(72 * 3600);

/// The next status. `degraded_since` is when the domain became degraded, if it is. Only a definite answer moves it:
/// while a required record could not be looked up and none is certainly wrong, everything stays.
#[must_use]
pub fn status(
    previous: DomainStatus,
    results: &[CheckedRecord],
    degraded_since: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> DomainStatus {
    let required = || results.iter().filter(|checked| checked.record.required).map(|checked| checked.validity);
    let any_invalid = required().any(|validity| validity == Validity::Invalid);
    let all_valid = required().all(|validity| validity == Validity::Valid) && required().next().is_some();
    match previous {
        DomainStatus::Suspended => DomainStatus::Suspended,
        _ if all_valid => DomainStatus::Verified,
        _ if !any_invalid => previous,
        DomainStatus::Pending => DomainStatus::Pending,
        DomainStatus::Verified => DomainStatus::Degraded,
        DomainStatus::Degraded if grace_is_over(degraded_since, now) => DomainStatus::Failed,
        DomainStatus::Degraded => DomainStatus::Degraded,
        DomainStatus::Failed => DomainStatus::Failed,
    }
}

fn grace_is_over(since: Option<DateTime<Utc>>, now: DateTime<Utc>) -> bool {
    since.is_some_and(|since| (now - since).to_std().is_ok_and(|age| age >= DEGRADED_GRACE))
}

#[cfg(test)]
mod tests {
    use super::{Validity::*, *};
    use crate::{DnsRecord, RecordPurpose, RecordType};
    use rstest::rstest;
    use schemas::DomainStatus::*;

    fn checked(validity: Validity, required: bool) -> CheckedRecord {
        let record = DnsRecord {
            type_: RecordType::Txt,
            host: "a".into(),
            value: "b".into(),
            purpose: RecordPurpose::Dkim,
            required,
        };
        CheckedRecord { record, validity, observed: Vec::new(), error: None }
    }

    #[rstest]
    #[case::published(Pending, Valid, 0, Verified)]
    #[case::not_yet(Pending, Invalid, 0, Pending)]
    #[case::no_answer_yet(Pending, Undetermined, 0, Pending)]
    #[case::still_there(Verified, Valid, 0, Verified)]
    #[case::vanished(Verified, Invalid, 0, Degraded)]
    #[case::dns_down(Verified, Undetermined, 0, Verified)]
    #[case::in_grace(Degraded, Invalid, 71, Degraded)]
    #[case::grace_over(Degraded, Invalid, 72, Failed)]
    #[case::grace_over_but_dns_down(Degraded, Undetermined, 100, Degraded)]
    #[case::back(Degraded, Valid, 71, Verified)]
    #[case::back_after_failing(Failed, Valid, 100, Verified)]
    #[case::stays_failed(Failed, Invalid, 100, Failed)]
    #[case::failed_and_dns_down(Failed, Undetermined, 100, Failed)]
    #[case::suspended_and_right(Suspended, Valid, 0, Suspended)]
    #[case::suspended_and_wrong(Suspended, Invalid, 0, Suspended)]
    fn the_required_records_move_the_status(
        #[case] previous: DomainStatus,
        #[case] worst: Validity,
        #[case] hours_degraded: i64,
        #[case] next: DomainStatus,
    ) {
        let now = Utc::now();
        let since = now - chrono::TimeDelta::hours(hours_degraded);
        let results = [checked(Valid, true), checked(worst, true), checked(Invalid, false)];
        assert_eq!(status(previous, &results, Some(since), now), next);
    }

    #[test]
    fn a_certain_fault_counts_although_another_lookup_failed() {
        let results = [checked(Undetermined, true), checked(Invalid, true)];
        assert_eq!(status(Verified, &results, None, Utc::now()), Degraded);
    }

    #[test]
    fn no_results_change_nothing() {
        assert_eq!(status(Pending, &[], None, Utc::now()), Pending);
        assert_eq!(status(Verified, &[], None, Utc::now()), Verified);
    }
}
