//! TLS and AUTH.

use std::{io::Write as _, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rstest::rstest;
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::{
    super::*,
    deliver,
    server::{Act, Options, Script, Server},
    settings,
};

const STARTTLS: &str = "250-test\r\n250-STARTTLS\r\n250 AUTH PLAIN LOGIN XOAUTH2";
const NAMELESS: &str = "250-\r\n250-STARTTLS\r\n250 AUTH PLAIN LOGIN XOAUTH2";
const NO_STARTTLS: &str = "250-test\r\n250 AUTH PLAIN LOGIN XOAUTH2";

/// A certificate for `name`, an acceptor that shows it, and the PEM file of the authority that signed it.
fn authority(name: &str) -> (TlsAcceptor, tempfile::NamedTempFile) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(issuer.pem().as_bytes()).unwrap();
    (TlsAcceptor::from(Arc::new(config)), file)
}

async fn server(ehlo: &'static str, tls: &TlsAcceptor, implicit_tls: bool, script: Script) -> Server {
    Server::with(Options { ehlo, script, tls: Some(tls.clone()), implicit_tls }).await
}

async fn deliver_by(server: &Server, relay: &str, ca: Option<&tempfile::NamedTempFile>) -> Result<Reply, SmtpFailure> {
    let mut settings = settings(server);
    settings.relay = relay.replace("HOST", &server.addr.to_string()).parse().unwrap();
    settings.ca_file = ca.map(|file| file.path().to_owned());
    deliver(&Pool::new(settings).unwrap()).await
}

#[rstest]
#[case::required("smtp://HOST?tls=required", STARTTLS, false)]
#[case::opportunistic("smtp://HOST?tls=opportunistic", STARTTLS, false)]
#[case::of_a_server_that_does_not_say_its_name("smtp://HOST?tls=opportunistic", NAMELESS, false)]
#[case::implicit("smtps://HOST", NO_STARTTLS, true)]
#[tokio::test]
async fn a_trusted_certificate_encrypts_the_session(
    #[case] relay: &str,
    #[case] ehlo: &'static str,
    #[case] implicit: bool,
) {
    let (tls, ca) = authority("127.0.0.1");
    let server = server(ehlo, &tls, implicit, |_, _, _: &str| Act::Usual).await;
    deliver_by(&server, relay, Some(&ca)).await.unwrap();
    assert_eq!(server.count("STARTTLS"), usize::from(!implicit));
    assert_eq!(server.count("EHLO"), if implicit { 1 } else { 2 });
}

#[rstest]
#[case::unknown_authority("127.0.0.1", false)]
#[case::other_name("other.example.com", true)]
#[tokio::test]
async fn a_certificate_we_do_not_trust_ends_the_connection(#[case] name: &str, #[case] trusted: bool) {
    let (tls, ca) = authority(name);
    let server = server(STARTTLS, &tls, false, |_, _, _: &str| Act::Usual).await;
    let relay = "smtp://HOST?tls=opportunistic";
    let failure = deliver_by(&server, relay, trusted.then_some(&ca)).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::Handshake(_)));
    assert_eq!((failure.phase, failure.certainty), (Phase::Tls, Certainty::NotSent));
    assert_eq!(server.count("MAIL"), 0);
}

#[tokio::test]
async fn required_tls_fails_without_an_offer() {
    let (tls, ca) = authority("127.0.0.1");
    let server = server(NO_STARTTLS, &tls, false, |_, _, _: &str| Act::Usual).await;
    let failure = deliver_by(&server, "smtp://HOST?tls=required", Some(&ca)).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::TlsNotOffered));
}

#[tokio::test]
async fn what_was_injected_behind_the_starttls_answer_is_refused() {
    let (tls, ca) = authority("127.0.0.1");
    let script: Script =
        |_, _, e: &str| if e == "STARTTLS" { Act::Say("220 ready\r\n250 2.0.0 injected") } else { Act::Usual };
    let server = server(STARTTLS, &tls, false, script).await;
    let failure = deliver_by(&server, "smtp://HOST?tls=required", Some(&ca)).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::Unreadable));
}

#[rstest]
#[case::plain("", "AUTH PLAIN AHVzZXIAcGFzcw==")]
#[case::login("&auth=login", "AUTH LOGIN")]
#[case::xoauth2("&auth=xoauth2", "AUTH XOAUTH2 dXNlcj11c2VyAWF1dGg9QmVhcmVyIHBhc3MBAQ==")]
#[tokio::test]
async fn credentials_are_presented_inside_tls(#[case] auth: &str, #[case] line: &str) {
    let (tls, ca) = authority("127.0.0.1");
    let script: Script = |_, _, e: &str| match e {
        "AUTH LOGIN" => Act::Say("334 VXNlcm5hbWU6"),
        "dXNlcg==" => Act::Say("334 UGFzc3dvcmQ6"),
        "cGFzcw==" => Act::Say("235 2.7.0 welcome"),
        _ => Act::Usual,
    };
    let server = server(STARTTLS, &tls, false, script).await;
    let relay = format!("smtp://user:pass@HOST?tls=required{auth}");
    deliver_by(&server, &relay, Some(&ca)).await.unwrap();
    assert_eq!(server.count(line), 1);
    assert_eq!(server.count("STARTTLS"), 1);
}

#[tokio::test]
async fn credentials_leave_in_clear_only_with_tls_none() {
    let (tls, ca) = authority("127.0.0.1");
    let server = server(NO_STARTTLS, &tls, false, |_, _, _: &str| Act::Usual).await;
    let careful = "smtp://user:pass@HOST?tls=opportunistic";
    let failure = deliver_by(&server, careful, Some(&ca)).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::AuthNotOffered));
    assert_eq!(server.count("AUTH"), 0);
    deliver_by(&server, "smtp://user:pass@HOST?tls=none", None).await.unwrap();
    assert_eq!(server.count("AUTH PLAIN"), 1);
}

#[tokio::test]
async fn refused_credentials_are_a_failure_of_ours() {
    let (tls, ca) = authority("127.0.0.1");
    let script: Script =
        |_, _, e: &str| if e.starts_with("AUTH") { Act::Say("535 5.7.8 bad credentials") } else { Act::Usual };
    let server = server(STARTTLS, &tls, false, script).await;
    let failure = deliver_by(&server, "smtp://user:pass@HOST", Some(&ca)).await.unwrap_err();
    assert_eq!((failure.phase, failure.reply().unwrap().code), (Phase::Auth, 535));
}
