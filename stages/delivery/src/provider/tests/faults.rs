//! No answer, half an answer, far too much answer.

use std::time::Duration;

use rstest::rstest;
use tokio::net::TcpListener;

use super::{
    HTTP, LONG, SHORT, provider, provider_within, reach, secret, send, send_within, settings,
    stand_in::{Act, StandIn},
};
use crate::provider::{Connection, ConnectionFault, ConnectionSettings, HostPolicy, ProviderKind, SendResult, open};
use smtp::classify::{Class, ReplyOutcome, Scope};

#[tokio::test]
async fn an_unreachable_provider_fails_no_recipient() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for kind in HTTP {
        let base_url = Some(format!("http://{address}/").parse().unwrap());
        let connection =
            Connection { kind, settings: ConnectionSettings { base_url, ..settings(kind) }, secret: secret(kind) };
        let provider = open(&connection, &reach(LONG), &HostPolicy::allowing(&[address.to_string()])).unwrap();
        let refused = send(provider.as_ref()).await.unwrap_err();
        assert_eq!(refused.decision.outcome, ReplyOutcome::Defer(Class::Unreachable), "{kind:?}");
        assert_eq!(refused.decision.scope, Scope::Relay);
        assert!(provider.ping().await.is_err());
    }
}

/// Only silence is to be waited out.
fn patience(act: &Act) -> Duration {
    if matches!(act, Act::Hang) { SHORT } else { LONG }
}

#[rstest]
#[case::silence(Act::Hang)]
#[case::closed(Act::Drop)]
#[case::no_http(Act::Garbage)]
#[case::accepted_and_unreadable(Act::Endless(200))]
#[tokio::test]
async fn an_unreadable_answer_is_unknown_and_not_repeated(#[case] act: Act) {
    for kind in HTTP.into_iter().filter(|kind| *kind != ProviderKind::Resend) {
        let stand_in = StandIn::playing(vec![act.clone()]).await;
        let provider = provider_within(kind, &stand_in, patience(&act));
        let refused = send(provider.as_ref()).await.unwrap_err();
        assert_eq!(refused.decision.outcome, ReplyOutcome::Unknown, "{kind:?}");
        assert_eq!(stand_in.seen().len(), 1, "{kind:?}");
    }
}

#[tokio::test]
async fn a_refusal_counts_whatever_its_body() {
    for kind in HTTP {
        let stand_in = StandIn::playing(vec![Act::Endless(401)]).await;
        let refused = send(provider(kind, &stand_in).as_ref()).await.unwrap_err();
        assert_eq!(refused.decision.outcome, ReplyOutcome::Defer(Class::Configuration), "{kind:?}");
    }
}

#[rstest]
#[case::silence(Act::Hang)]
#[case::closed(Act::Drop)]
#[case::in_progress(Act::Answer(409, "", r#"{"name":"concurrent_idempotent_requests"}"#.to_owned()))]
#[tokio::test]
async fn where_repeats_are_safe_an_unclear_outcome_is_asked_for_again(#[case] act: Act) {
    let taken = Act::Answer(200, "", r#"{"id":"id-1"}"#.to_owned());
    let patience = patience(&act);
    let stand_in = StandIn::playing(vec![act, taken]).await;
    let provider = provider_within(ProviderKind::Resend, &stand_in, patience);
    let handover = send(provider.as_ref()).await.unwrap();
    assert!(matches!(handover, SendResult::Accepted { provider_message_id: Some(id), .. } if id == "id-1"));
    let seen = stand_in.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].header("idempotency-key"), seen[1].header("idempotency-key"));
    assert_eq!(seen[0].body, seen[1].body);
}

#[tokio::test]
async fn an_unknown_outcome_stays_unknown_if_the_repeat_must_wait() {
    let rate = Act::Answer(429, "", r#"{"name":"rate_limit_exceeded"}"#.to_owned());
    let stand_in = StandIn::playing(vec![Act::Drop, rate]).await;
    let refused = send(provider(ProviderKind::Resend, &stand_in).as_ref()).await.unwrap_err();
    assert_eq!(refused.decision.outcome, ReplyOutcome::Unknown);
}

#[tokio::test]
async fn an_old_fence_begins_nothing() {
    for kind in HTTP {
        let stand_in = StandIn::answering(200, "", "{}").await;
        let provider = provider(kind, &stand_in);
        let handover = send_within(provider.as_ref(), Duration::ZERO).await.unwrap();
        assert_eq!(handover, SendResult::NotBegun);
        assert!(stand_in.seen().is_empty());
    }
}

#[tokio::test]
async fn only_permitted_hosts_are_connected_to() {
    let stand_in = StandIn::answering(200, "", "{}").await;
    for kind in HTTP {
        let mut settings = settings(kind);
        settings.base_url = Some(stand_in.url());
        let connection = Connection { kind, settings, secret: secret(kind) };
        assert_eq!(
            open(&connection, &reach(LONG), &HostPolicy::default()).err(),
            Some(ConnectionFault::BaseUrl),
            "{kind:?}"
        );
    }
}

#[rstest]
#[case::no_region(ProviderKind::Ses, ConnectionSettings::default(), "a:b", ConnectionFault::Missing("region"))]
#[case::odd_region(ProviderKind::Ses, ConnectionSettings { region: Some("evil.example/".into()), ..Default::default() }, "a:b", ConnectionFault::Invalid("region"))]
#[case::half_a_secret(ProviderKind::Ses, ConnectionSettings { region: Some("us-east-1".into()), ..Default::default() }, "a", ConnectionFault::Invalid("secret"))]
#[case::no_domain(ProviderKind::Mailgun, ConnectionSettings::default(), "k", ConnectionFault::Missing("domain"))]
#[case::path_in_domain(ProviderKind::Mailgun, ConnectionSettings { domain: Some("a.example/../x".into()), ..Default::default() }, "k", ConnectionFault::Invalid("domain"))]
#[case::foreign(ProviderKind::Resend, ConnectionSettings { stream: Some("x".into()), ..Default::default() }, "k", ConnectionFault::Foreign("stream"))]
#[case::injected(ProviderKind::Resend, ConnectionSettings::default(), "k\r\nX: y", ConnectionFault::Invalid("secret"))]
#[case::relay(
    ProviderKind::Smtp,
    ConnectionSettings::default(),
    "http://relay.example",
    ConnectionFault::Invalid("secret")
)]
#[tokio::test]
async fn settings_that_cannot_work_open_nothing(
    #[case] kind: ProviderKind,
    #[case] settings: ConnectionSettings,
    #[case] secret: &str,
    #[case] fault: ConnectionFault,
) {
    let connection = Connection { kind, settings, secret: secret.into() };
    assert_eq!(open(&connection, &reach(LONG), &HostPolicy::default()).err(), Some(fault));
}
