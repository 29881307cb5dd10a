//! The records a sending domain needs.

use schemas::token::TRACKING_LABEL;

schemas::named_enum! {
    /// A DNS record type.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum RecordType {
        /// TXT.
        Txt = "TXT",
        /// CNAME.
        Cname = "CNAME",
    }
}

schemas::named_enum! {
    /// What a record is for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum RecordPurpose {
        /// Proves that the tenant controls the domain.
        Ownership = "ownership",
        /// The key that verifies signatures (RFC 6376).
        Dkim = "dkim",
        /// The domain bounces come back to; SPF is checked there, so the target carries the SPF record.
        ReturnPath = "return_path",
        /// Names our servers for receivers that check the domain itself.
        Spf = "spf",
        /// What receivers do with mail that fails (RFC 7489).
        Dmarc = "dmarc",
        /// The host of rewritten links and the open pixel.
        Tracking = "tracking",
    }
}

/// A record to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsRecord {
    /// Its type.
    pub type_: RecordType,
    /// The full name, without a dot at the end.
    pub host: String,
    /// The value: text of a TXT record, target of a CNAME.
    pub value: String,
    /// What it is for.
    pub purpose: RecordPurpose,
    /// Whether the domain needs it to be verified. The others are advised.
    pub required: bool,
}

/// Where this installation's own names are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainSettings {
    /// What `send.<domain>` points to: a name with an MX for bounces and an SPF record.
    pub return_path_target: String,
    /// What the SPF record includes.
    pub spf_include: String,
    /// What `link.<domain>` points to: the ingress.
    pub tracking_target: String,
}

/// A key as it is published: what [`dkim::DkimKey::public`] gives, under its selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedKey<'a> {
    /// The label before `_domainkey`.
    pub selector: &'a str,
    /// For the TXT record's `p=`.
    pub public: &'a str,
}

/// The records of a domain, required ones first. Mail is signed with `key`, and with `second` (Ed25519, RFC 8463) as soon as
/// its record stands.
///
/// SPF is checked at the return path (RFC 7208 §2.4), where a CNAME stands and nothing else may (RFC 1034 §3.6.2): the
/// CNAME's target answers for it. The SPF record of the domain itself is therefore advised and not required.
#[must_use]
pub fn records(
    domain: &str,
    key: PublishedKey<'_>,
    second: Option<PublishedKey<'_>>,
    token: &str,
    settings: &DomainSettings,
) -> Vec<DnsRecord> {
    let record = |purpose, required, host: String, value: String| {
        let is_alias = matches!(purpose, RecordPurpose::ReturnPath | RecordPurpose::Tracking);
        let type_ = if is_alias { RecordType::Cname } else { RecordType::Txt };
        DnsRecord { type_, host, value, purpose, required }
    };
    let at = |label: &str| format!("{label}.{domain}");
    let dkim = |key: PublishedKey<'_>, required| {
        let value = format!("v=DKIM1; k={}; p={}", key_type(key.public), key.public);
        record(RecordPurpose::Dkim, required, format!("{}._domainkey.{domain}", key.selector), value)
    };
    let ownership = format!("postrider-verification={token}");
    let spf = format!("v=spf1 include:{} ~all", settings.spf_include);
    let mut records = vec![
        record(RecordPurpose::Ownership, true, at("_postrider"), ownership),
        dkim(key, true),
        record(RecordPurpose::ReturnPath, true, at("send"), settings.return_path_target.clone()),
        record(RecordPurpose::Spf, false, domain.to_owned(), spf),
        record(RecordPurpose::Dmarc, false, at("_dmarc"), "v=DMARC1; p=none;".to_owned()),
        record(RecordPurpose::Tracking, false, at(TRACKING_LABEL), settings.tracking_target.clone()),
    ];
    records.extend(second.map(|second| dkim(second, false)));
    records
}

/// An Ed25519 public key is 32 octets, 44 characters of base64 (RFC 8463 §4.2); no RSA key is that short.
fn key_type(public: &str) -> &'static str {
    if public.len() == 44 { "ed25519" } else { "rsa" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> DomainSettings {
        DomainSettings {
            return_path_target: "return.postrider.example".into(),
            spf_include: "spf.postrider.example".into(),
            tracking_target: "link.postrider.example".into(),
        }
    }

    const KEY: PublishedKey<'_> = PublishedKey { selector: "s1", public: "AAAA" };

    #[test]
    fn a_domain_has_three_required_and_three_advised_records() {
        let all = records("example.com", KEY, None, "tok", &settings());
        let lines: Vec<_> = all
            .iter()
            .map(|r| format!("{} {} {} {} {}", r.purpose.as_str(), r.required, r.type_.as_str(), r.host, r.value))
            .collect();
        assert_eq!(
            lines,
            [
                "ownership true TXT _postrider.example.com postrider-verification=tok",
                "dkim true TXT s1._domainkey.example.com v=DKIM1; k=rsa; p=AAAA",
                "return_path true CNAME send.example.com return.postrider.example",
                "spf false TXT example.com v=spf1 include:spf.postrider.example ~all",
                "dmarc false TXT _dmarc.example.com v=DMARC1; p=none;",
                "tracking false CNAME link.example.com link.postrider.example",
            ]
        );
    }

    #[test]
    fn no_name_has_a_cname_beside_another_record() {
        let all = records("example.com", KEY, None, "tok", &settings());
        for cname in all.iter().filter(|record| record.type_ == RecordType::Cname) {
            assert_eq!(all.iter().filter(|record| record.host == cname.host).count(), 1);
        }
    }

    #[test]
    fn a_second_key_is_advised_under_its_own_selector_and_type() {
        let key = dkim::DkimKey::generate_ed25519().unwrap();
        let second = PublishedKey { selector: "s1e", public: &key.public };
        let all = records("example.com", KEY, Some(second), "tok", &settings());
        let record = all.last().unwrap();
        assert!(record.value.starts_with("v=DKIM1; k=ed25519; p="));
        assert_eq!((record.host.as_str(), record.required), ("s1e._domainkey.example.com", false));
    }
}
