use std::time::SystemTime;

use hickory_resolver::config::ResolverOpts;
use mail_auth::{AuthenticatedMessage, DkimResult, MessageAuthenticator};
use rstest::rstest;
use secrecy::ExposeSecret;

use super::*;
use crate::GeneratedKey;
use stage_rig::dns::Dns;

const MAIL: &str = "From: Ann <ann@example.com>\r\nTo: bob@example.net\r\nSubject:  Hello \r\n there\r\n\
    Date: Fri, 20 Nov 2026 12:00:00 +0000\r\nMessage-ID: <1@example.com>\r\nMIME-Version: 1.0\r\n\
    Content-Type: text/plain; charset=utf-8\r\nList-Unsubscribe: <https://example.com/u>\r\n\
    List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\nReceived: by a\r\nReceived: by b\r\n\r\n\
    Hello  Bob, \t\r\n\r\n.a line with a dot\r\n\r\n\r\n";

fn message(text: &str) -> SmtpMessage {
    SmtpMessage::new(text.as_bytes().to_vec()).unwrap()
}

fn signer(generated: &GeneratedKey) -> DkimSigner {
    DkimSigner::new("example.com", "s1", DkimKey::from_pkcs8(generated.private_pkcs8.expose_secret()).unwrap())
}

/// What an independent verifier says of the signed message, after `change`.
async fn verdict(generated: &GeneratedKey, kind: &str, change: impl Fn(String) -> String) -> DkimResult {
    let dns =
        Dns::start(&[("s1._domainkey.example.com", &format!("TXT v=DKIM1; k={kind}; p={}", generated.public))]).await;
    let header = signer(generated).sign(&message(MAIL), SystemTime::now()).unwrap();
    let signed = change(format!("{header}{MAIL}"));
    let authenticator = MessageAuthenticator::new(dns.config(), ResolverOpts::default()).unwrap();
    let parsed = AuthenticatedMessage::parse(signed.as_bytes()).unwrap();
    let outputs = authenticator.verify_dkim(&parsed).await;
    assert_eq!(outputs.len(), 1);
    outputs[0].result().clone()
}

#[rstest]
#[case::rsa(DkimKey::generate_rsa().unwrap(), "rsa")]
#[case::ed25519(DkimKey::generate_ed25519().unwrap(), "ed25519")]
#[tokio::test]
async fn an_independent_verifier_accepts_the_signature(#[case] key: GeneratedKey, #[case] kind: &str) {
    assert_eq!(verdict(&key, kind, |mail| mail).await, DkimResult::Pass);
}

#[rstest]
#[case::body("Bob", "Eve")]
#[case::subject("Hello \r\n there", "Goodbye")]
#[case::second_from("From: Ann", "From: Eve <eve@example.org>\r\nFrom: Ann")]
#[case::second_subject("Subject:  Hello", "Subject: Win\r\nSubject:  Hello")]
#[case::added_reply_to("MIME-Version: 1.0", "Reply-To: eve@example.org\r\nMIME-Version: 1.0")]
#[case::other_unsubscribe("example.com/u", "example.org/u")]
#[tokio::test]
async fn a_changed_or_added_field_breaks_the_signature(#[case] from: &str, #[case] to: &str) {
    let key = DkimKey::generate_ed25519().unwrap();
    let result = verdict(&key, "ed25519", |mail| mail.replacen(from, to, 1)).await;
    assert_ne!(result, DkimResult::Pass);
}

#[rstest]
#[case::trailing_space("Hello  Bob, \t\r\n", "Hello Bob,\r\n")]
#[case::refolded("Subject:  Hello \r\n there", "Subject: Hello there")]
#[case::new_received("Received: by a", "Received: by c\r\nReceived: by a")]
#[tokio::test]
async fn what_a_relay_may_change_leaves_the_signature_whole(#[case] from: &str, #[case] to: &str) {
    let key = DkimKey::generate_ed25519().unwrap();
    assert_eq!(verdict(&key, "ed25519", |mail| mail.replacen(from, to, 1)).await, DkimResult::Pass);
}

#[tokio::test]
async fn two_keys_make_two_signatures_and_each_stands_alone() {
    let (rsa, ed25519) = (DkimKey::generate_rsa().unwrap(), DkimKey::generate_ed25519().unwrap());
    let second = DkimKey::from_pkcs8(ed25519.private_pkcs8.expose_secret()).unwrap();
    let header = signer(&rsa).and("s1e", second).sign(&message(MAIL), SystemTime::now()).unwrap();
    let both = [
        ("s1._domainkey.example.com", format!("TXT v=DKIM1; k=rsa; p={}", rsa.public)),
        ("s1e._domainkey.example.com", format!("TXT v=DKIM1; k=ed25519; p={}", ed25519.public)),
    ];
    let dns = Dns::start(&both.each_ref().map(|(name, record)| (*name, record.as_str()))).await;
    let verify = async |mail: String| {
        let authenticator = MessageAuthenticator::new(dns.config(), ResolverOpts::default()).unwrap();
        let parsed = AuthenticatedMessage::parse(mail.as_bytes()).unwrap();
        let outputs = authenticator.verify_dkim(&parsed).await;
        outputs.iter().map(|output| output.result().clone()).collect::<Vec<_>>()
    };
    assert_eq!(verify(format!("{header}{MAIL}")).await, [DkimResult::Pass, DkimResult::Pass]);
    // A relay that drops one of them leaves the other whole.
    let (first, second) = header.split_at(header.rfind("DKIM-Signature:").unwrap());
    assert_eq!(verify(format!("{first}{MAIL}")).await, [DkimResult::Pass]);
    assert_eq!(verify(format!("{second}{MAIL}")).await, [DkimResult::Pass]);
}

#[test]
fn a_message_without_from_is_not_signed() {
    let key = DkimKey::generate_ed25519().unwrap();
    assert_eq!(signer(&key).sign(&message("To: a@example.com\r\n\r\nx"), SystemTime::now()), None);
}

#[test]
fn the_field_is_folded_into_short_lines_and_oversigns() {
    let key = DkimKey::generate_rsa().unwrap();
    let field = signer(&key).sign(&message(MAIL), SystemTime::now()).unwrap();
    assert!(field.ends_with("\r\n") && field.lines().all(|line| line.len() <= 78), "{field}");
    for name in ["From:From:", "List-Unsubscribe:List-Unsubscribe:"] {
        let unfolded: String = field.split_whitespace().collect();
        assert!(unfolded.contains(name), "{unfolded}");
    }
}
