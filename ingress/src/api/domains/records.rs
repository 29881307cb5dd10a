//! The DNS records of a domain, as callers see them, with what the last check found.

use chrono::{DateTime, Utc};
use domains::{CheckedRecord, DnsRecord, DomainSettings, PublishedKey, Validity, records};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::store::DomainRow;
use crate::pipeline::time;

/// One record with what the last check found. Also the form of `domains.records`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "DnsRecord", description = "A DNS record to publish, with what the last check found.")]
pub(crate) struct RecordView {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["TXT", "CNAME"]))]
    type_: String,
    host: String,
    value: String,
    #[schemars(extend("enum" = ["ownership", "dkim", "return_path", "spf", "dmarc", "tracking"]))]
    purpose: String,
    required: bool,
    /// `pending`: not checked yet. `undetermined`: the DNS gave no definite answer.
    #[schemars(extend("enum" = ["pending", "valid", "invalid", "undetermined"]))]
    status: String,
    valid: bool,
    /// The values that the check found in the DNS.
    observed: Vec<String>,
    error: Option<String>,
    #[schemars(with = "Option<DateTime<Utc>>")]
    checked_at: Option<String>,
}

impl RecordView {
    fn pending(record: &DnsRecord) -> Self {
        Self {
            type_: record.type_.as_str().to_owned(),
            host: record.host.clone(),
            value: record.value.clone(),
            purpose: record.purpose.as_str().to_owned(),
            required: record.required,
            status: "pending".to_owned(),
            valid: false,
            observed: Vec::new(),
            error: None,
            checked_at: None,
        }
    }

    /// What a check found.
    pub(crate) fn checked(checked: &CheckedRecord, at: DateTime<Utc>) -> Self {
        let status = match checked.validity {
            Validity::Valid => "valid",
            Validity::Invalid => "invalid",
            Validity::Undetermined => "undetermined",
        };
        Self {
            status: status.to_owned(),
            valid: checked.valid(),
            observed: checked.observed.clone(),
            error: checked.error.as_ref().map(ToString::to_string),
            checked_at: Some(time(at)),
            ..Self::pending(&checked.record)
        }
    }

    fn is_for(&self, record: &DnsRecord) -> bool {
        self.purpose == record.purpose.as_str() && self.host == record.host && self.value == record.value
    }
}

/// The records a domain needs now.
pub(crate) fn wanted(row: &DomainRow, settings: &DomainSettings) -> Vec<DnsRecord> {
    let key = PublishedKey { selector: &row.selector, public: &row.dkim_public };
    let second = row.second_selector.as_deref().zip(row.second_public.as_deref());
    let second = second.map(|(selector, public)| PublishedKey { selector, public });
    records(&row.domain, key, second, &row.ownership_token, settings)
}

/// The records a domain needs now, each with what the last check found if that check was for this very record: an installation
/// whose targets moved must not call the old record valid.
pub(crate) fn view(row: &DomainRow, settings: &DomainSettings) -> Vec<RecordView> {
    // What an older version wrote and this one cannot read counts as never checked.
    let found = Vec::<RecordView>::deserialize(&row.records).unwrap_or_default();
    let checked = |record: &DnsRecord| found.iter().find(|view| view.is_for(record)).cloned();
    wanted(row, settings).iter().map(|record| checked(record).unwrap_or_else(|| RecordView::pending(record))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::DomainStatus;
    use serde_json::{Value, json};
    use uuid::Uuid;

    fn settings(tracking: &str) -> DomainSettings {
        DomainSettings {
            return_path_target: "return.test".into(),
            spf_include: "spf.test".into(),
            tracking_target: tracking.into(),
        }
    }

    fn row(records: Value) -> DomainRow {
        DomainRow {
            id: Uuid::nil(),
            domain: "acme.test".into(),
            status: DomainStatus::Pending,
            selector: "s1".into(),
            dkim_public: "AAAA".into(),
            second_selector: None,
            second_public: None,
            dkim_private: Vec::new(),
            ownership_token: "token".into(),
            records,
            verified_at: None,
            last_checked_at: None,
            degraded_since: None,
            checks_from: Utc::now(),
            created_at: Utc::now(),
        }
    }

    #[test]
    fn a_domain_that_was_never_checked_shows_its_records_as_pending() {
        let views = view(&row(json!([])), &settings("link.test"));
        assert_eq!(views.len(), 6);
        assert!(views.iter().all(|view| view.status == "pending" && !view.valid && view.checked_at.is_none()));
        assert_eq!(view(&row(json!({"odd": 1})), &settings("link.test")), views);
    }

    #[test]
    fn a_finding_belongs_to_the_record_it_was_made_for() {
        let fresh = row(json!([]));
        let record =
            wanted(&fresh, &settings("link.test")).into_iter().find(|record| record.host == "link.acme.test").unwrap();
        let checked =
            CheckedRecord { record, validity: Validity::Valid, observed: vec!["link.test".into()], error: None };
        let stored = json!([RecordView::checked(&checked, Utc::now())]);
        let tracking = |target| {
            let views = view(&row(stored.clone()), &settings(target));
            views.into_iter().find(|view| view.host == "link.acme.test").unwrap().status
        };
        assert_eq!(tracking("link.test"), "valid");
        assert_eq!(tracking("moved.test"), "pending");
    }
}
