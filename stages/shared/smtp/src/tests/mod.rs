//! The client against a scripted server.

mod chunking;
mod secure;
mod server;

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use rstest::rstest;
use stage_rig::until;

use self::server::{Act, PIPELINING, PLAIN, Script, Server};
use super::*;

/// Longer than any answer takes that comes at all.
const LONG: Duration = Duration::from_secs(20);
/// For an answer that never comes.
const SHORT: Duration = Duration::from_millis(500);

fn settings(server: &Server) -> SmtpSettings {
    let relay = format!("smtp://{}?tls=none", server.addr).parse().unwrap();
    let mut settings = SmtpSettings::new(relay, "client.example.com");
    settings.max_connections = 4;
    settings.timeouts = SmtpTimeouts { connect: LONG, command: LONG, body: LONG, last: LONG, quit: LONG };
    settings
}

/// A server that offers this and plays a script, and a pool for it.
async fn serving(ehlo: &'static str, script: Script) -> (Server, Pool) {
    let server = Server::offering(ehlo, script).await;
    let pool = Pool::new(settings(&server)).unwrap();
    (server, pool)
}

fn message() -> SmtpMessage {
    SmtpMessage::new(b"Subject: hello\r\n\r\n.dot\r\nbye\r\n".to_vec()).unwrap()
}

fn envelope() -> Envelope {
    Envelope {
        from: Some(EnvelopeAddress::parse("bounce@send.example.com").unwrap()),
        to: EnvelopeAddress::parse("ann@example.net").unwrap(),
        size: message().as_bytes().len(),
        eight_bit: false,
        international: false,
    }
}

fn soon() -> Instant {
    Instant::now() + LONG
}

async fn deliver(pool: &Pool) -> Result<Reply, SmtpFailure> {
    deliver_to(pool, &envelope()).await
}

async fn deliver_to(pool: &Pool, envelope: &Envelope) -> Result<Reply, SmtpFailure> {
    pool.take(envelope).await?.send(envelope, "X-First: yes\r\n", &message(), soon()).await
}

#[rstest]
#[case::pipelining(PIPELINING)]
#[case::one_at_a_time(PLAIN)]
#[tokio::test]
async fn a_message_arrives_dot_stuffed_behind_its_extra_header(#[case] ehlo: &'static str) {
    let (server, pool) = serving(ehlo, |_, _, _: &str| Act::Usual).await;
    let reply = deliver(&pool).await.unwrap();
    assert_eq!(reply.text, "queued as 42");
    assert_eq!(*server.bodies.lock().unwrap(), ["X-First: yes\r\nSubject: hello\r\n\r\n..dot\r\nbye\r\n"]);
    assert_eq!(server.count("RCPT TO:<ann@example.net>"), 1);
    assert_eq!(server.count("NOOP"), 0);
}

#[tokio::test]
async fn size_and_the_null_sender_are_written_as_the_rfcs_say() {
    let (server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    let envelope = Envelope { from: None, ..envelope() };
    deliver_to(&pool, &envelope).await.unwrap();
    assert_eq!(server.count(&format!("MAIL FROM:<> SIZE={}", envelope.size)), 1);
}

#[tokio::test]
async fn connections_are_reused_last_in_first_out() {
    let (server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    for _ in 0..20 {
        deliver(&pool).await.unwrap();
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    assert_eq!(pool.counts(), PoolCounts { in_use: 0, idle: 1 });
}

#[tokio::test]
async fn the_pool_never_exceeds_its_connection_limit() {
    let (server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    let sends = (0..64).map(|_| deliver(&pool));
    assert!(futures::future::join_all(sends).await.iter().all(Result::is_ok));
    assert!(server.connections.load(Ordering::SeqCst) <= 4);
}

#[tokio::test]
async fn a_connection_is_retired_with_quit_after_its_last_message() {
    let server = Server::start(|_, _, _: &str| Act::Usual).await;
    let mut settings = settings(&server);
    settings.max_messages_per_connection = 2;
    settings.max_connections = 1;
    let pool = Pool::new(settings).unwrap();
    for _ in 0..5 {
        deliver(&pool).await.unwrap();
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 3);
    assert_eq!(server.count("QUIT"), 2);
}

#[tokio::test]
async fn an_idle_connection_is_closed_with_quit() {
    let server = Server::start(|_, _, _: &str| Act::Usual).await;
    let mut settings = settings(&server);
    settings.idle_timeout = Duration::from_millis(100);
    let pool = Pool::new(settings).unwrap();
    deliver(&pool).await.unwrap();
    until("the connection to be closed", async || server.count("QUIT") > 0).await;
    assert_eq!((server.count("QUIT"), pool.counts().idle), (1, 0));
}

fn closes_between_messages(connection: usize, messages: usize, event: &str) -> Act {
    if connection == 0 && messages == 1 && event.starts_with("MAIL") { Act::Close } else { Act::Usual }
}

fn says_421_between_messages(connection: usize, messages: usize, event: &str) -> Act {
    if connection == 0 && messages == 1 && event.starts_with("MAIL") {
        Act::SayAndClose("421 4.4.2 idle too long")
    } else {
        Act::Usual
    }
}

#[rstest]
#[case::gone(closes_between_messages)]
#[case::told(says_421_between_messages)]
#[tokio::test]
async fn a_stale_connection_is_replaced_once(#[case] script: Script) {
    let (server, pool) = serving(PIPELINING, script).await;
    deliver(&pool).await.unwrap();
    deliver(&pool).await.unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
    assert_eq!(server.bodies.lock().unwrap().len(), 2);
}

#[rstest]
#[case::greeting(|_, _, e: &str| if e == "<greet>" { Act::SayAndClose("554 5.7.1 go away") } else { Act::Usual }, Phase::Greeting, 554)]
#[case::mail(|_, _, e: &str| if e.starts_with("MAIL") { Act::Say("451 4.7.0 later") } else { Act::Usual }, Phase::Mail, 451)]
#[case::rcpt(|_, _, e: &str| if e.starts_with("RCPT") { Act::Say("550 5.1.1 unknown") } else { Act::Usual }, Phase::Rcpt, 550)]
#[case::data(|_, _, e: &str| if e == "DATA" { Act::Say("554 5.5.1 no") } else { Act::Usual }, Phase::Data, 554)]
#[case::dot(|_, _, e: &str| if e == "<dot>" { Act::Say("552 5.3.4 too big") } else { Act::Usual }, Phase::Final, 552)]
#[case::dot_421(|_, _, e: &str| if e == "<dot>" { Act::SayAndClose("421 4.3.0 shutting down") } else { Act::Usual }, Phase::Final, 421)]
#[tokio::test]
async fn a_negative_answer_is_certainly_not_sent(#[case] script: Script, #[case] phase: Phase, #[case] code: u16) {
    for ehlo in [PIPELINING, PLAIN] {
        let server = Server::offering(ehlo, script).await;
        let failure = deliver(&Pool::new(settings(&server)).unwrap()).await.unwrap_err();
        assert_eq!((failure.phase, failure.certainty), (phase, Certainty::NotSent));
        assert_eq!(failure.reply().unwrap().code, code);
    }
}

#[rstest]
#[case::closed_after_the_dot(|_, _, e: &str| if e == "<dot>" { Act::Close } else { Act::Usual })]
#[case::silent_after_the_dot(|_, _, e: &str| if e == "<dot>" { Act::Silence } else { Act::Usual })]
#[case::nonsense_after_the_dot(|_, _, e: &str| if e == "<dot>" { Act::Say("what?") } else { Act::Usual })]
#[case::a_second_354(|_, _, e: &str| if e == "<dot>" { Act::Say("354 more") } else { Act::Usual })]
#[case::closed_in_the_body(|_, _, e: &str| if e == "<body>" { Act::Close } else { Act::Usual })]
#[tokio::test]
async fn a_missing_final_answer_is_unknown(#[case] script: Script) {
    let server = Server::start(script).await;
    let mut settings = settings(&server);
    settings.timeouts.last = SHORT;
    let pool = Pool::new(settings).unwrap();
    let failure = deliver(&pool).await.unwrap_err();
    assert_eq!(failure.certainty, Certainty::Unknown);
    assert_eq!(pool.counts().idle, 0);
}

#[rstest]
#[case::silent_greeting("<greet>", Phase::Greeting)]
#[case::silent_mail("MAIL", Phase::Mail)]
#[case::silent_data("DATA", Phase::Data)]
#[tokio::test]
async fn silence_before_the_body_is_a_timeout_and_certainly_not_sent(#[case] event: &str, #[case] phase: Phase) {
    let script: Script = match event {
        "<greet>" => |_, _, e: &str| if e == "<greet>" { Act::Silence } else { Act::Usual },
        "MAIL" => |_, _, e: &str| if e.starts_with("MAIL") { Act::Silence } else { Act::Usual },
        _ => |_, _, e: &str| if e == "DATA" { Act::Silence } else { Act::Usual },
    };
    let server = Server::start(script).await;
    let mut settings = settings(&server);
    // The commands before MAIL are answered within this time.
    settings.timeouts.command = 4 * SHORT;
    let failure = deliver(&Pool::new(settings).unwrap()).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::Timeout));
    assert_eq!((failure.phase, failure.certainty), (phase, Certainty::NotSent));
}

#[tokio::test]
async fn a_connection_is_reused_after_a_refused_recipient() {
    let script: Script =
        |_, messages, e| if messages == 0 && e.contains("<gone@") { Act::Say("550 5.1.1 no") } else { Act::Usual };
    let (server, pool) = serving(PIPELINING, script).await;
    let gone = Envelope { to: EnvelopeAddress::parse("gone@example.net").unwrap(), ..envelope() };
    assert_eq!(deliver_to(&pool, &gone).await.unwrap_err().phase, Phase::Rcpt);
    deliver(&pool).await.unwrap();
    assert_eq!((server.connections.load(Ordering::SeqCst), server.count("RSET")), (1, 1));
}

#[tokio::test]
async fn a_server_that_wants_a_body_for_a_refused_recipient_gets_none() {
    let script: Script = |_, _, e: &str| match e {
        "DATA" => Act::Say("354 go on anyway"),
        e if e.starts_with("RCPT") => Act::Say("550 5.1.1 no"),
        _ => Act::Usual,
    };
    let (server, pool) = serving(PIPELINING, script).await;
    let failure = deliver(&pool).await.unwrap_err();
    assert_eq!((failure.phase, failure.certainty), (Phase::Rcpt, Certainty::NotSent));
    assert_eq!(pool.counts().idle, 0);
    assert!(server.bodies.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_connection_on_which_nothing_was_said_is_reused() {
    let (server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    drop(pool.take(&envelope()).await.unwrap());
    assert_eq!(pool.counts(), PoolCounts { in_use: 0, idle: 1 });
    deliver(&pool).await.unwrap();
    assert_eq!((server.connections.load(Ordering::SeqCst), server.count("RSET")), (1, 0));
}

#[tokio::test]
async fn a_connection_is_not_free_before_its_result_is_noted() {
    let (_server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    let mut connection = pool.take(&envelope()).await.unwrap();
    connection.send(&envelope(), "", &message(), soon()).await.unwrap();
    assert_eq!(pool.counts(), PoolCounts { in_use: 1, idle: 0 });
    drop(connection);
    assert_eq!(pool.counts(), PoolCounts { in_use: 0, idle: 1 });
}

#[tokio::test]
async fn a_fence_that_is_too_old_sends_nothing() {
    let (server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    let mut taken = pool.take(&envelope()).await.unwrap();
    let past = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
    let failure = taken.send(&envelope(), "", &message(), past).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::FenceTooOld));
    assert_eq!(failure.certainty, Certainty::NotSent);
    assert_eq!(server.count("MAIL"), 0);
}

#[tokio::test]
async fn a_relay_that_is_away_is_unreachable() {
    let server = Server::start(|_, _, _: &str| Act::Usual).await;
    let settings = settings(&server);
    drop(server);
    tokio::task::yield_now().await;
    let failure = deliver(&Pool::new(settings).unwrap()).await.unwrap_err();
    assert_eq!((failure.phase, failure.certainty), (Phase::Connect, Certainty::NotSent));
}

#[rstest]
#[case::recipient("jürgen@example.net", false)]
#[case::in_the_header("ann@example.net", true)]
#[tokio::test]
async fn an_international_address_needs_a_server_that_takes_it(#[case] to: &str, #[case] international: bool) {
    let to = EnvelopeAddress::parse(to).unwrap();
    let (server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    deliver_to(&pool, &Envelope { to: to.clone(), international, ..envelope() }).await.unwrap();
    assert!(server.log.lock().unwrap().iter().any(|line| line.starts_with("MAIL") && line.ends_with(" SMTPUTF8")));

    let (server, pool) = serving(PLAIN, |_, _, _: &str| Act::Usual).await;
    let failure = pool.take(&Envelope { to, international, ..envelope() }).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::InternationalNotOffered));
    deliver(&pool).await.unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_message_beyond_the_servers_size_is_not_offered_to_it() {
    let (server, pool) = serving(PIPELINING, |_, _, _: &str| Act::Usual).await;
    let failure = pool.take(&Envelope { size: 10_001, ..envelope() }).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::TooLarge));
    assert_eq!(server.count("MAIL"), 0);
}

#[tokio::test]
async fn an_extension_behind_many_others_counts() {
    let others = "250-X-EXTENSION of no use\r\n".repeat(100);
    let ehlo = Box::leak(format!("250-test\r\n{others}250 SIZE 10000").into_boxed_str());
    let (_server, pool) = serving(ehlo, |_, _, _: &str| Act::Usual).await;
    let failure = pool.take(&Envelope { size: 10_001, ..envelope() }).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::TooLarge));
}

#[tokio::test]
async fn a_server_without_ehlo_is_greeted_with_helo() {
    let server =
        Server::start(|_, _, e: &str| if e.starts_with("EHLO") { Act::Say("502 5.5.1 what") } else { Act::Usual })
            .await;
    deliver(&Pool::new(settings(&server)).unwrap()).await.unwrap();
    assert_eq!(server.count("HELO client.example.com"), 1);
}
