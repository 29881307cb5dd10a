//! The client against servers that offer CHUNKING: envelope and message in one write.

use std::sync::atomic::Ordering;

use rstest::rstest;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream},
    net::TcpListener,
};

use super::{
    super::*,
    LONG, SHORT, deliver, deliver_to, envelope,
    server::{Act, CHUNKING, Script, Server},
    settings, soon,
};

async fn chunking(script: Script) -> (Server, Pool) {
    let server = Server::offering(CHUNKING, script).await;
    let mut settings = settings(&server);
    settings.timeouts.last = SHORT;
    (server, Pool::new(settings).unwrap())
}

#[tokio::test]
async fn envelope_and_message_leave_before_any_reply() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = format!("smtp://{}?tls=none", listener.local_addr().unwrap()).parse().unwrap();
    let expected = "MAIL FROM:<bounce@send.example.com> SIZE=29\r\nRCPT TO:<ann@example.net>\r\nBDAT 43 LAST\r\n\
                    X-First: yes\r\nSubject: hello\r\n\r\n.dot\r\nbye\r\n";
    let server = async {
        let mut stream = BufStream::new(listener.accept().await.unwrap().0);
        let mut line = String::new();
        stream.write_all(b"220 test\r\n").await.unwrap();
        stream.flush().await.unwrap();
        stream.read_line(&mut line).await.unwrap();
        stream.write_all(format!("{CHUNKING}\r\n").as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut octets = vec![0; expected.len()];
        stream.read_exact(&mut octets).await.unwrap();
        stream.write_all(b"250 ok\r\n250 ok\r\n250 2.0.0 queued as 7\r\n").await.unwrap();
        stream.flush().await.unwrap();
        (String::from_utf8(octets).unwrap(), stream)
    };
    let pool = Pool::new(SmtpSettings::new(relay, "client.example.com")).unwrap();
    let ((octets, _stream), accepted) = tokio::join!(server, deliver(&pool));
    assert_eq!(octets, expected);
    assert_eq!(accepted.unwrap().text, "queued as 7");
    assert_eq!(pool.counts(), PoolCounts { in_use: 0, idle: 1 });
}

#[rstest]
#[case::mail(|_, _, e: &str| match e { e if e.starts_with("MAIL") => Act::Say("451 4.7.0 later"), e if e.starts_with("RCPT") => Act::Say("503 5.5.1 MAIL first"), _ => Act::Usual }, Phase::Mail, 451)]
#[case::rcpt(|_, _, e: &str| if e.starts_with("RCPT") { Act::Say("550 5.1.1 unknown") } else { Act::Usual }, Phase::Rcpt, 550)]
#[case::chunk(|_, _, e: &str| if e.starts_with("BDAT") { Act::Say("552 5.3.4 too big") } else { Act::Usual }, Phase::Final, 552)]
#[case::mail_421(|_, _, e: &str| if e.starts_with("MAIL") { Act::SayAndClose("421 4.3.2 closing") } else { Act::Usual }, Phase::Mail, 421)]
#[case::rcpt_421(|_, _, e: &str| if e.starts_with("RCPT") { Act::SayAndClose("421 4.3.2 closing") } else { Act::Usual }, Phase::Rcpt, 421)]
#[case::chunk_421(|_, _, e: &str| if e.starts_with("BDAT") { Act::SayAndClose("421 4.3.2 closing") } else { Act::Usual }, Phase::Final, 421)]
#[case::mail_and_lost(|_, _, e: &str| match e { e if e.starts_with("MAIL") => Act::Say("451 4.7.0 later"), e if e.starts_with("RCPT") => Act::Close, _ => Act::Usual }, Phase::Mail, 451)]
#[case::rcpt_and_silent(|_, _, e: &str| match e { e if e.starts_with("RCPT") => Act::Say("550 5.1.1 unknown"), e if e.starts_with("BDAT") => Act::Silence, _ => Act::Usual }, Phase::Rcpt, 550)]
#[case::chunk_taken_for_nobody(|_, _, e: &str| match e { e if e.starts_with("RCPT") => Act::Say("550 5.1.1 unknown"), e if e.starts_with("BDAT") => Act::Say("250 2.0.0 ok"), _ => Act::Usual }, Phase::Rcpt, 550)]
#[tokio::test]
async fn a_refusal_in_one_write_is_certainly_not_sent(#[case] script: Script, #[case] phase: Phase, #[case] code: u16) {
    let (server, pool) = chunking(script).await;
    let failure = deliver(&pool).await.unwrap_err();
    assert_eq!((failure.phase, failure.certainty), (phase, Certainty::NotSent));
    assert_eq!(failure.reply().unwrap().code, code);
    assert!(server.bodies.lock().unwrap().is_empty());
}

#[rstest]
#[case::closed_at_mail(|_, _, e: &str| if e.starts_with("MAIL") { Act::Close } else { Act::Usual })]
#[case::silent_at_mail(|_, _, e: &str| if e.starts_with("MAIL") { Act::Silence } else { Act::Usual })]
#[case::closed_at_rcpt(|_, _, e: &str| if e.starts_with("RCPT") { Act::Close } else { Act::Usual })]
#[case::silent_at_rcpt(|_, _, e: &str| if e.starts_with("RCPT") { Act::Silence } else { Act::Usual })]
#[case::closed_at_the_chunk(|_, _, e: &str| if e.starts_with("BDAT") { Act::Close } else { Act::Usual })]
#[case::silent_at_the_chunk(|_, _, e: &str| if e.starts_with("BDAT") { Act::Silence } else { Act::Usual })]
#[case::nonsense(|_, _, e: &str| if e.starts_with("BDAT") { Act::Say("what?") } else { Act::Usual })]
#[case::a_354(|_, _, e: &str| if e.starts_with("BDAT") { Act::Say("354 more") } else { Act::Usual })]
#[case::taken_without_a_sender(|_, _, e: &str| if e.starts_with("MAIL") { Act::Say("503 5.5.1 nested MAIL") } else { Act::Usual })]
#[tokio::test]
async fn a_missing_answer_in_one_write_is_unknown(#[case] script: Script) {
    let (server, pool) = chunking(script).await;
    let failure = deliver(&pool).await.unwrap_err();
    assert_eq!(failure.certainty, Certainty::Unknown);
    assert_eq!((pool.counts().idle, server.connections.load(Ordering::SeqCst)), (0, 1), "it is not tried again here");
}

#[tokio::test]
async fn a_refused_chunk_is_followed_by_a_reset() {
    let script: Script = |_, _, e| if e.contains("<gone@") { Act::Say("550 5.1.1 no") } else { Act::Usual };
    let (server, pool) = chunking(script).await;
    let gone = Envelope { to: EnvelopeAddress::parse("gone@example.net").unwrap(), ..envelope() };
    for _ in 0..2 {
        assert_eq!(deliver_to(&pool, &gone).await.unwrap_err().phase, Phase::Rcpt);
        deliver(&pool).await.unwrap();
        deliver(&pool).await.unwrap();
    }
    assert_eq!((server.connections.load(Ordering::SeqCst), server.count("RSET")), (1, 2));
    assert_eq!(server.bodies.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn an_idle_connection_that_is_lost_is_replaced_without_doubt() {
    let script: Script = |connection, messages, e| {
        if connection == 0 && messages == 1 && e.starts_with("MAIL") { Act::Close } else { Act::Usual }
    };
    let (server, pool) = chunking(script).await;
    deliver(&pool).await.unwrap();
    pool.age_idle();
    deliver(&pool).await.unwrap();
    assert_eq!((server.connections.load(Ordering::SeqCst), server.bodies.lock().unwrap().len()), (2, 2));
    // One that was used a moment ago is believed to be there.
    let (_server, pool) = chunking(script).await;
    deliver(&pool).await.unwrap();
    assert_eq!(deliver(&pool).await.unwrap_err().certainty, Certainty::Unknown);
}

#[tokio::test]
async fn a_server_that_says_421_between_mails_is_connected_to_again() {
    let script: Script = |connection, messages, e| {
        if connection == 0 && messages == 1 && e.starts_with("MAIL") {
            Act::SayAndClose("421 4.4.2 enough")
        } else {
            Act::Usual
        }
    };
    let (server, pool) = chunking(script).await;
    deliver(&pool).await.unwrap();
    deliver(&pool).await.unwrap();
    assert_eq!((server.connections.load(Ordering::SeqCst), server.bodies.lock().unwrap().len()), (2, 2));
}

#[rstest]
#[case(|_, _, e: &str| if e.starts_with("BDAT") { Act::Say("500 5.5.2 what") } else { Act::Usual })]
#[case(|_, _, e: &str| if e.starts_with("BDAT") { Act::Say("502 5.5.1 not implemented") } else { Act::Usual })]
#[case(|_, _, e: &str| if e.starts_with("BDAT") { Act::Say("503 5.5.1 bad sequence") } else { Act::Usual })]
#[tokio::test]
async fn a_server_that_does_not_know_bdat_gets_data_from_then_on(#[case] script: Script) {
    let (server, pool) = chunking(script).await;
    let failure = deliver(&pool).await.unwrap_err();
    assert!(matches!(failure.cause, Cause::ChunkingRefused));
    assert_eq!((failure.certainty, pool.counts().idle), (Certainty::NotSent, 0));
    deliver(&pool).await.unwrap();
    deliver(&pool).await.unwrap();
    assert_eq!((server.count("BDAT"), server.count("DATA"), server.bodies.lock().unwrap().len()), (1, 2, 2));
}

#[tokio::test]
async fn a_refusal_in_the_middle_of_a_chunk_ends_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let relay = format!("smtp://{}?tls=none", listener.local_addr().unwrap()).parse().unwrap();
    // Reads no more than the commands: the rest of the chunk would be read as the next mail's commands.
    let server = async {
        let mut stream = BufStream::new(listener.accept().await.unwrap().0);
        stream.write_all(b"220 test\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        stream.write_all(b"250-test\r\n250-PIPELINING\r\n250 CHUNKING\r\n").await.unwrap();
        stream.flush().await.unwrap();
        stream.read_line(&mut line).await.unwrap();
        stream.write_all(b"250 ok\r\n250 ok\r\n552 5.3.4 too big\r\n").await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    let mut settings = SmtpSettings::new(relay, "client.example.com");
    settings.timeouts.body = SHORT;
    let pool = Pool::new(settings).unwrap();
    let large = SmtpMessage::new(format!("Subject: a\r\n\r\n{}", "line\r\n".repeat(5_000_000)).into_bytes()).unwrap();
    let send = async { pool.take(&envelope()).await?.send(&envelope(), "", &large, soon()).await };
    let (_stream, sent) = tokio::join!(server, send);
    let failure = sent.unwrap_err();
    assert_eq!((failure.phase, failure.certainty), (Phase::Final, Certainty::NotSent));
    assert_eq!(pool.counts().idle, 0);
}

#[tokio::test]
async fn a_large_message_is_written_whole() {
    let server = Server::offering("250-test\r\n250-PIPELINING\r\n250 CHUNKING", |_, _, _: &str| Act::Usual).await;
    let mut settings = settings(&server);
    settings.timeouts.last = LONG;
    let pool = Pool::new(settings).unwrap();
    let text = format!("Subject: hello\r\n\r\n{}", ".line\r\n".repeat(2_000_000));
    let message = SmtpMessage::new(text.clone().into_bytes()).unwrap();
    let mut taken = pool.take(&envelope()).await.unwrap();
    taken.send(&envelope(), "", &message, soon()).await.unwrap();
    assert!(server.bodies.lock().unwrap()[0] == text, "the message is another");
}
