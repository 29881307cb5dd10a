use std::time::Duration;

use rstest::rstest;

use super::super::{DnsResolver, DnsSettings, DomainSettings, PublishedKey, records};
use super::*;
use stage_rig::dns::Dns;

const KEY: &str = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAwIDAQAB";

fn expected() -> Vec<DnsRecord> {
    let settings = DomainSettings {
        return_path_target: "return.postrider.example".into(),
        spf_include: "spf.postrider.example".into(),
        tracking_target: "link.postrider.example".into(),
    };
    records("example.com", PublishedKey { selector: "s1", public: KEY }, None, "tok", &settings)
}

/// Longer than any answer takes that comes at all.
const LONG: Duration = Duration::from_secs(20);
/// For an answer that never comes.
const SHORT: Duration = Duration::from_millis(200);

async fn check_all(entries: &[(&str, &str)]) -> Vec<CheckedRecord> {
    check_all_within(LONG, entries).await
}

async fn check_all_within(timeout: Duration, entries: &[(&str, &str)]) -> Vec<CheckedRecord> {
    let dns = Dns::start(entries).await;
    let settings = DnsSettings { servers: vec![dns.addr], timeout, attempts: 1 };
    verify("example.com", expected(), &DnsResolver::new(&settings).unwrap()).await
}

fn of(purpose: RecordPurpose, all: Vec<CheckedRecord>) -> CheckedRecord {
    all.into_iter().find(|checked| checked.record.purpose == purpose).unwrap()
}

async fn check_one(purpose: RecordPurpose, name: &str, value: &str) -> CheckedRecord {
    of(purpose, check_all(&[(name, value)]).await)
}

#[tokio::test]
async fn a_fully_published_domain_is_valid_in_every_record() {
    let dkim = format!("TXT v=DKIM1; k=rsa; p={KEY}");
    let all = check_all(&[
        ("_postrider.example.com", "TXT postrider-verification=tok"),
        ("s1._domainkey.example.com", &dkim),
        ("send.example.com", "CNAME return.postrider.example."),
        ("example.com", "TXT v=spf1 include:spf.postrider.example ~all"),
        ("example.com", "TXT some-other-service=1"),
        ("_dmarc.example.com", "TXT v=DMARC1; p=reject; rua=mailto:a@example.com"),
        ("link.example.com", "CNAME Link.Postrider.Example."),
    ])
    .await;
    assert!(all.iter().all(CheckedRecord::valid), "{all:?}");
}

#[rstest]
#[case::split_strings(&format!("TXT v=DKIM1; k=rsa; p={}|{}", &KEY[..20], &KEY[20..]))]
#[case::spaces_in_the_key(&format!("TXT v=DKIM1; k=rsa; p={} {}", &KEY[..20], &KEY[20..]))]
#[case::other_tags(&format!("TXT k=rsa; t=s; p={KEY}; n=note"))]
#[case::default_type(&format!("TXT v=DKIM1;p={KEY}"))]
#[tokio::test]
async fn a_dkim_record_is_compared_by_its_key(#[case] value: &str) {
    assert!(check_one(RecordPurpose::Dkim, "s1._domainkey.example.com", value).await.valid());
}

#[rstest]
#[case::other_key(RecordPurpose::Dkim, "s1._domainkey.example.com", "TXT v=DKIM1; k=rsa; p=AAAA")]
#[case::revoked(RecordPurpose::Dkim, "s1._domainkey.example.com", "TXT v=DKIM1; p=")]
#[case::other_type(
    RecordPurpose::Dkim,
    "s1._domainkey.example.com",
    "TXT v=DKIM1; k=ed25519; p=MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAwIDAQAB"
)]
#[case::other_token(RecordPurpose::Ownership, "_postrider.example.com", "TXT postrider-verification=other")]
#[case::other_target(RecordPurpose::ReturnPath, "send.example.com", "CNAME mail.example.org")]
#[case::spf_without_us(RecordPurpose::Spf, "example.com", "TXT v=spf1 include:other.example -all")]
#[tokio::test]
async fn a_different_value_is_said_and_shown(#[case] purpose: RecordPurpose, #[case] name: &str, #[case] value: &str) {
    let checked = check_one(purpose, name, value).await;
    assert_eq!(checked.validity, Validity::Invalid);
    assert!(matches!(checked.error, Some(CheckError::Different { .. })), "{checked:?}");
    assert_eq!(checked.observed, [value.split_once(' ').unwrap().1]);
}

#[tokio::test]
async fn a_missing_record_is_invalid() {
    for checked in check_all(&[]).await {
        assert_eq!(checked.validity, Validity::Invalid);
        assert!(matches!(checked.error, Some(CheckError::Missing { .. })));
    }
}

#[tokio::test]
async fn another_services_txt_record_does_not_stand_for_ours() {
    let checked = check_one(RecordPurpose::Spf, "example.com", "TXT v=spf10 include:spf.postrider.example").await;
    assert!(matches!(checked.error, Some(CheckError::Missing { .. })));
}

#[tokio::test]
async fn two_spf_records_are_an_error() {
    let all = check_all(&[
        ("example.com", "TXT v=spf1 include:spf.postrider.example ~all"),
        ("example.com", "TXT v=spf1 -all"),
    ])
    .await;
    let spf = of(RecordPurpose::Spf, all);
    assert_eq!(spf.error, Some(CheckError::SeveralSpf { host: "example.com".into() }));
}

#[rstest]
#[case::ownership(
    RecordPurpose::Ownership,
    "_postrider.example.com.example.com",
    "TXT postrider-verification=tok",
    "_postrider"
)]
#[case::return_path(
    RecordPurpose::ReturnPath,
    "send.example.com.example.com",
    "CNAME return.postrider.example",
    "send"
)]
#[tokio::test]
async fn a_doubled_zone_is_recognised_and_said(
    #[case] purpose: RecordPurpose,
    #[case] name: &str,
    #[case] value: &str,
    #[case] enter: &str,
) {
    let checked = check_one(purpose, name, value).await;
    assert_eq!(checked.validity, Validity::Invalid);
    assert_eq!(checked.error, Some(CheckError::DoubledZone { found: name.into(), enter: enter.into() }));
    assert!(checked.error.unwrap().to_string().contains(name));
}

#[rstest]
#[case::servfail("SERVFAIL")]
#[case::refused("REFUSED")]
#[case::no_answer("SILENCE")]
#[tokio::test]
async fn a_transient_dns_error_determines_nothing(#[case] fault: &str) {
    let all = check_all_within(SHORT, &[("_postrider.example.com", fault)]).await;
    let checked = of(RecordPurpose::Ownership, all);
    assert_eq!((checked.validity, checked.error), (Validity::Undetermined, Some(CheckError::NoAnswer)));
}

/// Reads an answer: records apart by line breaks, their strings by bars. Every kind of record is compared with it.
fn read(input: &[u8]) -> runtime::Used {
    let budget = Budget::new(answer::LIMITS);
    let records = input.split(|byte| *byte == b'\n').map(|record| record.split(|byte| *byte == b'|'));
    if let Ok(texts) = answer::texts(records, &budget) {
        for record in expected() {
            // Refused or not: it returns.
            let _ = compare_record(&record, &texts, &budget);
        }
    }
    budget.used()
}

#[test]
fn fuzz_dns_answers() {
    let tokens: &[&[u8]] = &[
        b"v=spf1",
        b" include:spf.postrider.example",
        b"v=DKIM1;",
        b" k=rsa;",
        b" p=",
        b"MII",
        b"v=DMARC1; p=none",
        b"\n",
        b"|",
        b";",
        b"=",
        b" ",
        b"+",
        b"\xff",
        b"postrider-verification=",
        b"tok",
    ];
    hostile::fuzz(tokens, |input| {
        read(input);
    });
}

#[test]
fn reading_an_answer_costs_as_much_as_it_is_long() {
    let shapes: &[hostile::Shape] = &[
        ("many records", |n| b"v=spf1\n".repeat(n / 8)),
        ("many strings", |n| b"a|".repeat(n)),
        ("many tags", |n| [b"v=DKIM1;".as_slice(), &b"p=;".repeat(n)].concat()),
        ("many terms", |n| [b"v=spf1".as_slice(), &b" +include:x".repeat(n / 4)].concat()),
        ("no text", |n| vec![0xff; n]),
        ("white space", |n| b" ".repeat(n)),
    ];
    hostile::check_growth(shapes, 400, 1_000, read);
}

#[test]
fn an_answer_has_bounds() {
    let refused = |records: Vec<Vec<u8>>| {
        answer::texts(records.iter().map(|record| [record.as_slice()]), &Budget::new(answer::LIMITS)).unwrap_err()
    };
    assert_eq!(refused(vec![vec![b'a'; 20_000]]), Spent::Input);
    assert_eq!(refused(vec![b"a".to_vec(); 101]), Spent::Steps);
}
