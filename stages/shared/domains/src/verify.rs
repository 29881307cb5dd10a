//! Verifies a domain's DNS records.

use runtime::{Budget, Spent};

use super::{DnsRecord, DnsResolver, RecordPurpose, RecordType, answer, resolver::LookupError};

/// The result of verifying a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// The record exists and is correct.
    Valid,
    /// The record certainly does not exist, or is a different one.
    Invalid,
    /// The DNS gave no definite answer: the previous result stays.
    Undetermined,
}

/// Why a record is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// Nothing of this type at this name.
    #[error("no {type_} record found at {host}", type_ = .type_.as_str())]
    Missing {
        /// The type that was looked for.
        type_: RecordType,
        /// Where.
        host: String,
    },
    /// There is another record.
    #[error("the {type_} record at {host} has another value", type_ = .type_.as_str())]
    Different {
        /// The type that was looked for.
        type_: RecordType,
        /// Where.
        host: String,
    },
    /// The DNS provider appended the zone to a full name.
    #[error("the record was found at {found}: the DNS provider adds the domain itself, so enter the host as {enter}")]
    DoubledZone {
        /// Where the record is.
        found: String,
        /// What to enter instead of the full name.
        enter: String,
    },
    /// RFC 7208 §4.5: two SPF records are an error, none is used.
    #[error("{host} has more than one SPF record: merge them into one")]
    SeveralSpf {
        /// Where.
        host: String,
    },
    /// There are more or longer records than are examined.
    #[error("{host} has more or longer records than are read: remove those that are not needed")]
    TooLong {
        /// Where.
        host: String,
    },
    /// No definite answer.
    #[error("the DNS gave no definite answer: this check will be repeated")]
    NoAnswer,
    /// What the record publishes has no private half any more.
    #[error("its private key is lost: once the domain has failed, claim it again for a new one")]
    KeyLost,
}

/// Most records at one name that are shown.
const OBSERVED_MAX: usize = 10;
/// Most characters of each.
const OBSERVED_CHARS_MAX: usize = 1_024;

/// A record, and the result of verifying it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedRecord {
    /// The expected record.
    pub record: DnsRecord,
    /// The result.
    pub validity: Validity,
    /// The records found at its name: all of the type, at most [`OBSERVED_MAX`], each cut to [`OBSERVED_CHARS_MAX`].
    pub observed: Vec<String>,
    /// The error, if the record is not valid.
    pub error: Option<CheckError>,
}

impl CheckedRecord {
    /// True if the record was found and is correct.
    #[must_use]
    pub fn valid(&self) -> bool {
        self.validity == Validity::Valid
    }
}

/// Looks up each record, all at the same time. Never fails as a whole.
pub async fn verify(domain: &str, records: Vec<DnsRecord>, dns: &DnsResolver) -> Vec<CheckedRecord> {
    futures::future::join_all(records.into_iter().map(|record| check(domain, record, dns))).await
}

async fn check(domain: &str, record: DnsRecord, dns: &DnsResolver) -> CheckedRecord {
    let (observed, error) = match dns.lookup(record.type_, &record.host).await {
        Ok(observed) => {
            let mut error = compare_record(&record, &observed, &Budget::new(answer::LIMITS)).err();
            if error.is_some() && observed.is_empty() {
                error = doubled_zone(domain, &record, dns).await.or(error);
            }
            (observed, error)
        }
        Err(LookupError::TooLong) => (Vec::new(), Some(CheckError::TooLong { host: record.host.clone() })),
        Err(LookupError::Undetermined) => (Vec::new(), Some(CheckError::NoAnswer)),
    };
    let validity = match error {
        None => Validity::Valid,
        Some(CheckError::NoAnswer) => Validity::Undetermined,
        Some(_) => Validity::Invalid,
    };
    let observed = observed.into_iter().take(OBSERVED_MAX).map(shortened).collect();
    CheckedRecord { record, validity, observed, error }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(OBSERVED_CHARS_MAX) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// Many DNS consoles append the zone to whatever is entered, so that `_postrider.example.com` becomes
/// `_postrider.example.com.example.com`. Saying so saves a support case.
async fn doubled_zone(domain: &str, record: &DnsRecord, dns: &DnsResolver) -> Option<CheckError> {
    let found = format!("{}.{domain}", record.host);
    let observed = dns.lookup(record.type_, &found).await.ok()?;
    compare_record(record, &observed, &Budget::new(answer::LIMITS)).ok()?;
    let enter = record.host.strip_suffix(domain)?.trim_end_matches('.');
    Some(CheckError::DoubledZone { found, enter: if enter.is_empty() { "@".to_owned() } else { enter.to_owned() } })
}

/// Compares the observed values with the expected record. Each value is read a few times: for its purpose, and for its tags or terms.
fn compare_record(record: &DnsRecord, observed: &[String], budget: &Budget) -> Result<(), CheckError> {
    let (type_, host) = (record.type_, record.host.clone());
    let too_long = |_: Spent| CheckError::TooLong { host: record.host.clone() };
    for value in observed {
        budget.take_steps(4 * (1 + value.len() as u64)).map_err(too_long)?;
        budget.hold(2 * value.len()).map_err(too_long)?;
    }
    let relevant: Vec<&str> =
        observed.iter().map(|value| value.trim()).filter(|value| is_for_record(record, value)).collect();
    if relevant.is_empty() {
        return Err(CheckError::Missing { type_, host });
    }
    let matches = match record.purpose {
        RecordPurpose::Ownership => relevant.contains(&record.value.as_str()),
        RecordPurpose::Dkim => relevant.iter().any(|value| same_dkim_key(&record.value, value)),
        RecordPurpose::ReturnPath | RecordPurpose::Tracking => relevant
            .iter()
            .any(|value| value.trim_end_matches('.').eq_ignore_ascii_case(record.value.trim_end_matches('.'))),
        RecordPurpose::Spf if relevant.len() > 1 => return Err(CheckError::SeveralSpf { host }),
        RecordPurpose::Spf => has_our_include(&record.value, relevant[0]),
        // Any policy is valid: the advice is to have one.
        RecordPurpose::Dmarc => relevant.len() == 1,
    };
    if matches { Ok(()) } else { Err(CheckError::Different { type_, host }) }
}

/// True for a value of the record's own kind: other TXT records at the same name are ignored.
fn is_for_record(record: &DnsRecord, value: &str) -> bool {
    let begins = |prefix: &str| value.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    match record.purpose {
        RecordPurpose::Spf => begins("v=spf1") && matches!(value.as_bytes().get(6), None | Some(b' ')),
        RecordPurpose::Dmarc => begins("v=DMARC1"),
        RecordPurpose::Ownership => begins("postrider-verification="),
        RecordPurpose::Dkim | RecordPurpose::ReturnPath | RecordPurpose::Tracking => true,
    }
}

/// Compares key and key type of two DKIM records; the other tags and all white space are free (RFC 6376 §3.6.1).
fn same_dkim_key(expected: &str, observed: &str) -> bool {
    let key = |record: &str| {
        let tag = |name: &str| {
            record.split(';').find_map(|part| {
                let (tag, value) = part.split_once('=')?;
                (tag.trim() == name).then(|| value.split_ascii_whitespace().collect::<String>())
            })
        };
        let version_fits = tag("v").is_none_or(|version| version == "DKIM1");
        (tag("k").unwrap_or_else(|| "rsa".to_owned()), tag("p").filter(|key| !key.is_empty() && version_fits))
    };
    let (expected, observed) = (key(expected), key(observed));
    expected.1.is_some() && expected == observed
}

fn has_our_include(expected: &str, observed: &str) -> bool {
    let Some(include) = expected.split(' ').find(|term| term.starts_with("include:")) else {
        return false;
    };
    observed.split_ascii_whitespace().any(|term| term.trim_start_matches('+').eq_ignore_ascii_case(include))
}

#[cfg(test)]
mod tests;
