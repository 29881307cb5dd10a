//! The sink as senders see it.

use std::time::{Duration, Instant};

use crate::smtp_client::{Client, connected, http, start};
use devtools::sink::{Sink, SinkOptions, SinkRule};
use rstest::rstest;
use smtp::SmtpCredentials;

const SOURCE: &str = "Subject: Hello\r\n\r\nHi";

#[rstest]
#[case("ann", "accepted", 1)]
#[case("defer-451", "rcpt: 451 4.3.0", 0)]
#[case("reject-550-5.1.1-0007", "rcpt: 550 5.1.1", 0)]
#[case("reject-554-at-data", "data: 554 5.7.1", 0)]
#[case("defer-452-at-dot+tag", "dot: 452 4.2.2", 0)]
#[case("drop-at-rcpt", "rcpt: lost", 0)]
#[case("drop-at-data", "data: lost", 0)]
#[case("drop-before-dot", "dot: lost", 0)]
#[case("drop-at-dot", "dot: lost", 0)]
#[case("drop-after-dot", "dot: lost", 1)]
#[tokio::test]
async fn an_address_gets_the_answer_it_asks_for(
    #[case] local_part: &str,
    #[case] outcome: &str,
    #[case] accepted: u64,
) {
    let (sink, mut client) = connected().await;
    let to = format!("{local_part}@example.com");

    let answer = client.mail("me@example.org", &to, SOURCE).await;

    assert!(answer.starts_with(outcome), "{answer}");
    let stats = sink.inbox().stats();
    assert_eq!(stats.accepted, accepted);
    assert_eq!(u64::from(sink.inbox().count(&to).count), accepted);
    let scripted = stats.rejected + stats.deferred + stats.dropped;
    assert_eq!(scripted, u64::from(local_part != "ann"));
}

#[tokio::test]
async fn a_script_in_the_sender_acts_at_mail() {
    let (_sink, mut client) = connected().await;
    let answer = client.mail("reject-550-at-mail@example.org", "ann@example.com", SOURCE).await;
    assert!(answer.starts_with("mail: 550"), "{answer}");
}

#[tokio::test]
async fn a_greylisted_address_is_deferred_once_and_each_for_itself() {
    let (_sink, mut client) = connected().await;
    for (to, outcome) in [
        ("greylist-1@example.com", "rcpt: 450 4.7.1"),
        ("greylist-2@example.com", "rcpt: 450 4.7.1"),
        ("greylist-1@example.com", "accepted"),
        ("defer-twice@example.com", "rcpt: 451"),
        ("defer-twice@example.com", "rcpt: 451"),
        ("defer-twice@example.com", "accepted"),
        ("greylist-2@example.com", "accepted"),
        ("greylist-2@example.com", "accepted"),
    ] {
        let answer = client.mail("me@example.org", to, SOURCE).await;
        assert!(answer.starts_with(outcome), "{to}: {answer}");
    }
}

#[tokio::test]
async fn slow_answers_are_slow_where_asked() {
    let (_sink, mut client) = connected().await;
    let mut times = Vec::new();
    for to in ["tarpit-100ms@example.com", "slow-dot-100ms@example.com"] {
        for line in ["MAIL FROM:<me@example.org>", &format!("RCPT TO:<{to}>"), "DATA", "Subject: x\r\n\r\nx\r\n."] {
            let begin = Instant::now();
            assert!(client.say(line).await.unwrap().starts_with(['2', '3']));
            times.push(begin.elapsed() >= Duration::from_millis(100));
        }
    }
    let (tarpit, slow_dot) = times.split_at(4);
    assert_eq!(tarpit[1..], [true, true, true]);
    assert!(slow_dot[3]);
}

#[tokio::test]
async fn a_pipeline_is_answered_in_order() {
    let (sink, mut client) = connected().await;
    let one =
        |to: &str| format!("MAIL FROM:<me@example.org>\r\nRCPT TO:<{to}@example.com>\r\nDATA\r\n{SOURCE}\r\n.\r\n");
    client.send(&format!("{}{}{}QUIT\r\n", one("ann"), one("bob"), one("cid"))).await;
    let mut codes = Vec::new();
    while let Some(reply) = client.reply().await {
        codes.push(reply[..3].to_owned());
    }
    let each = ["250", "250", "354", "250"];
    assert_eq!(codes, [&each[..], &each, &each, &["221"]].concat());
    assert_eq!(sink.inbox().stats().distinct, 3);
}

#[tokio::test]
async fn a_refused_recipient_does_not_hold_up_the_others() {
    let (sink, mut client) = connected().await;
    client.say("MAIL FROM:<me@example.org>").await;
    let refused = client.say("RCPT TO:<reject-550@example.com>").await;
    assert!(refused.unwrap().starts_with("550"));
    client.say("RCPT TO:<ann@example.com>").await;
    client.say("RCPT TO:<bob@example.com>").await;
    client.say("DATA").await;
    client.say(&format!("{SOURCE}\r\n.")).await;
    let stats = sink.inbox().stats();
    assert_eq!((stats.accepted, stats.recipients), (1, 2));
}

/// However the bytes are cut, the mail is the same.
#[tokio::test]
async fn a_body_comes_out_as_it_was_meant() {
    let sink = start().await;
    let body = "Subject: x\r\n\r\n.dot\r\n.\r\nnot the end:\n.\nnor here\r\n..\r\n";
    let stuffed = "Subject: x\r\n\r\n..dot\r\n..\r\nnot the end:\n.\nnor here\r\n...\r\n.\r\n";
    for piece in [1, 2, 3, 5, stuffed.len()] {
        let mut client = Client::connect(&sink).await;
        client.say("MAIL FROM:<>").await;
        client.say("RCPT TO:<ann@example.com>").await;
        client.say("DATA").await;
        for bytes in stuffed.as_bytes().chunks(piece) {
            client.send(std::str::from_utf8(bytes).unwrap()).await;
            tokio::task::yield_now().await;
        }
        assert!(client.reply().await.unwrap().starts_with("250"));
        let newest = &sink.inbox().messages(1, None)[0];
        assert_eq!(newest.source, body.as_bytes(), "in pieces of {piece}");
    }
}

#[tokio::test]
async fn an_empty_body_is_a_mail() {
    let (sink, mut client) = connected().await;
    client.say("MAIL FROM:<>").await;
    client.say("RCPT TO:<ann@example.com>").await;
    client.say("DATA").await;
    assert!(client.say(".").await.unwrap().starts_with("250"));
    assert!(sink.inbox().messages(1, None)[0].source.is_empty());
}

#[tokio::test]
async fn a_mail_over_the_limit_is_refused_and_the_connection_goes_on() {
    let options = SinkOptions { max_message_bytes: 1_000, ..SinkOptions::default() };
    let sink = Sink::start(options).await.unwrap();
    let mut client = Client::connect(&sink).await;

    let declared = client.say("MAIL FROM:<me@example.org> SIZE=1001").await;
    assert!(declared.unwrap().starts_with("552"));
    let large = format!("Subject: x\r\n\r\n{}", "x\r\n".repeat(100_000));
    let answer = client.mail("", "ann@example.com", &large).await;
    assert!(answer.starts_with("dot: 552"), "{answer}");

    let answer = client.mail("", "ann@example.com", SOURCE).await;
    assert_eq!(answer, "accepted");
    assert_eq!(sink.inbox().stats().accepted, 1);
}

#[tokio::test]
async fn commands_out_of_order_are_refused() {
    let (_sink, mut client) = connected().await;
    for (line, code) in [
        ("RCPT TO:<ann@example.com>", "503"),
        ("DATA", "503"),
        ("MAIL FROM:<me@example.org>", "250"),
        ("MAIL FROM:<me@example.org>", "503"),
        ("DATA", "554"),
        ("RSET", "250"),
        ("RCPT TO:<ann@example.com>", "503"),
        ("MAIL FROM:me", "501"),
        ("JUMP", "500"),
        ("AUTH PLAIN AGEAYg==", "502"),
        ("NOOP", "250"),
    ] {
        let reply = client.say(line).await.unwrap();
        assert!(reply.starts_with(code), "{line}: {reply}");
    }
}

#[tokio::test]
async fn a_line_without_end_closes_the_connection() {
    let (_sink, mut client) = connected().await;
    client.send(&"x".repeat(5_000)).await;
    assert!(client.reply().await.unwrap().starts_with("500"));
    assert_eq!(client.reply().await, None);
}

#[tokio::test]
async fn credentials_are_required_when_set() {
    let options = SinkOptions {
        credentials: Some(SmtpCredentials { user: "a".to_owned(), password: "b".to_owned().into(), mechanism: None }),
        ..SinkOptions::default()
    };
    let sink = Sink::start(options).await.unwrap();

    let mut client = Client::connect(&sink).await;
    let answer = client.mail("", "ann@example.com", SOURCE).await;
    assert!(answer.starts_with("mail: 530"), "{answer}");
    let wrong = client.say("AUTH PLAIN AGEAYw==").await.unwrap();
    assert!(wrong.starts_with("535"), "{wrong}");
    let right = client.say("AUTH PLAIN AGEAYg==").await.unwrap();
    assert!(right.starts_with("235"), "{right}");
    assert_eq!(client.mail("", "ann@example.com", SOURCE).await, "accepted");

    let mut client = Client::connect(&sink).await;
    assert!(client.say("AUTH LOGIN").await.unwrap().starts_with("334"));
    assert!(client.say("YQ==").await.unwrap().starts_with("334"));
    assert!(client.say("Yg==").await.unwrap().starts_with("235"));
}

#[tokio::test]
async fn rules_come_before_scripts_and_can_be_limited() {
    let sink = start().await;
    let rules = r#"[{"match": {"domain": "rules.example"}, "stage": "dot", "reply": "451 4.7.0 Later", "times": 1}]"#;
    sink.inbox().set_rules(SinkRule::parse_list(rules).unwrap());

    let mut client = Client::connect(&sink).await;
    for (to, outcome) in [
        ("ann@rules.example", "dot: 451 4.7.0 Later"),
        ("bob@Rules.Example", "dot: 451 4.7.0 Later"),
        ("ann@rules.example", "accepted"),
        ("ann@other.example", "accepted"),
        ("reject-550@rules.example", "rcpt: 550"),
    ] {
        let answer = client.mail("", to, SOURCE).await;
        assert!(answer.starts_with(outcome), "{to}: {answer}");
    }
}

#[tokio::test]
async fn rules_can_be_put_while_it_runs() {
    let sink = start().await;
    let rules = r#"[{"match":"all","stage":"data","reply":"421 4.3.2 Going down"}]"#;
    assert_eq!(http(&sink, "PUT", "/rules", rules).await.0, 204);
    assert_eq!(http(&sink, "GET", "/rules", "").await.1, rules);

    let mut client = Client::connect(&sink).await;
    client.say("MAIL FROM:<>").await;
    client.say("RCPT TO:<ann@example.com>").await;
    assert!(client.say("DATA").await.unwrap().starts_with("421"));
    assert_eq!(client.reply().await, None, "421 ends the connection");

    let (status, reason) = http(&sink, "PUT", "/rules", r#"[{"match":"all","stage":"dot"}]"#).await;
    assert_eq!(status, 400, "{reason}");
    assert_eq!(http(&sink, "PUT", "/rules", "[]").await.0, 204);
    let mut client = Client::connect(&sink).await;
    assert_eq!(client.mail("", "ann@example.com", SOURCE).await, "accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counts_are_right_under_fifty_connections() {
    const EACH: usize = 100;
    let sink = start().await;
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..50 {
        let mut client = Client::connect(&sink).await;
        senders.spawn(async move {
            for number in 0..EACH {
                // Every address of the even senders is mailed by the next sender too.
                let to = format!("user-{}-{number}@example.com", sender / 2 * 2);
                let source = format!("Message-ID: <{sender}-{number}@x>\r\n\r\nHi");
                assert_eq!(client.mail("", &to, &source).await, "accepted");
            }
        });
    }
    assert!(sink.inbox().wait_for_accepted(5_000, Duration::from_secs(30)).await);
    while let Some(sender) = senders.join_next().await {
        sender.unwrap();
    }
    let stats = sink.inbox().stats();
    assert_eq!((stats.accepted, stats.recipients), (5_000, 5_000));
    assert_eq!((stats.distinct, stats.duplicates), (2_500, 2_500));
    assert_eq!((stats.max_per_address, stats.duplicate_message_ids), (2, 0));
    assert_eq!(stats.connections, 50);
    assert_eq!(sink.inbox().messages(10_000, None).len(), 2_000);
}
