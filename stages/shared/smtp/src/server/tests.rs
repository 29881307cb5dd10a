//! A session over a pipe.

use std::sync::{Arc, Mutex};

use hostile::fuzz;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{session::SmtpSession, *};

const HELLO: &str = "EHLO a\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.c>\r\n";

type Mails = Arc<Mutex<Vec<(String, u64)>>>;

/// Takes everything, except recipients whose address begins with `no`.
struct Takes(Mails);

impl MailHandler for Takes {
    type Envelope = ();

    fn sender(&self, (): &mut (), _: &str) -> SmtpAnswer {
        SmtpAnswer::reply("250 ok")
    }

    async fn recipient(&self, (): &mut (), address: &str) -> SmtpAnswer {
        SmtpAnswer::reply(if address.starts_with("no") { "550 no" } else { "250 ok" })
    }

    async fn mail(&self, (): (), mail: ReceivedMail) -> SmtpAnswer {
        self.0.lock().unwrap().push((String::from_utf8_lossy(&mail.content).into_owned(), mail.size));
        SmtpAnswer::reply("250 taken")
    }
}

fn server(protocol: MailProtocol) -> (SmtpServer<Takes>, Mails) {
    let mails = Mails::default();
    let second = Duration::from_secs(1);
    let settings = SmtpServerSettings {
        protocol,
        hostname: "test".to_owned(),
        tls: None,
        credentials: None,
        bare_line_ends: BareLineEnds::Refuse,
        size_max: 50,
        kept_max: 40,
        read_max: 100,
        recipients_max: 3,
        faults_max: 20,
        connections: 1,
        connections_per_client: 0,
        silence_timeout: 20 * second,
        session_timeout: 60 * second,
        data_timeout: 20 * second,
        data_rate_min: 1,
    };
    (SmtpServer { settings, handler: Takes(mails.clone()), shutdown: CancellationToken::new() }, mails)
}

/// What a session answers to these octets, in writes of at most `piece` octets, and the mails it took.
async fn session(protocol: MailProtocol, octets: &[u8], piece: usize) -> (String, Vec<(String, u64)>) {
    let (server, mails) = server(protocol);
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    let mut session = SmtpSession::new(&server, stream, false);
    let said = async {
        for piece in octets.chunks(piece) {
            if client.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let _ = client.shutdown().await;
        let mut answers = Vec::new();
        let _ = client.read_to_end(&mut answers).await;
        String::from_utf8(answers).unwrap()
    };
    let served = async {
        let _ = session.serve().await;
        drop(session);
    };
    let (answers, ()) = tokio::join!(said, served);
    let mails = mails.lock().unwrap().clone();
    (answers, mails)
}

/// The codes of all replies after the greeting of EHLO.
fn codes(answers: &str) -> Vec<&str> {
    let last = answers.lines().filter(|line| line.as_bytes().get(3) == Some(&b' '));
    last.skip(1).map(|line| &line[..3]).collect()
}

#[rstest]
#[case::one("BDAT 7 LAST\r\n.\r\nab\r\nQUIT\r\n", &["250", "221"], Some(".\r\nab\r\n"))]
#[case::two("BDAT 3\r\na\r\nBDAT 4 LAST\r\nb\r\n.QUIT\r\n", &["250", "250", "221"], Some("a\r\nb\r\n."))]
#[case::an_empty_last("BDAT 3\r\na\r\nBDAT 0 LAST\r\nQUIT\r\n", &["250", "250", "221"], Some("a\r\n"))]
#[case::an_empty_mail("BDAT 0 LAST\r\nQUIT\r\n", &["250", "221"], Some(""))]
#[case::commands_inside("BDAT 6 LAST\r\nQUIT\r\nNOOP\r\n", &["250", "250"], Some("QUIT\r\n"))]
#[case::bare_line_feeds("BDAT 4 LAST\r\na\n.\nNOOP\r\n", &["250", "250"], Some("a\n.\n"))]
#[case::more_than_is_kept("BDAT 45 LAST\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxNOOP\r\n", &["250", "250"], Some("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"))]
#[case::too_large("BDAT 40\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxBDAT 20 LAST\r\nxxxxxxxxxxxxxxxxxxxxNOOP\r\n", &["250", "552", "250"], None)]
#[case::far_too_large("BDAT 101 LAST\r\nNOOP\r\n", &["552"], None)]
#[case::far_too_large_in_all("BDAT 40\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxBDAT 18446744073709551615\r\nNOOP\r\n", &["250", "552"], None)]
#[case::no_size("BDAT LAST\r\nNOOP\r\n", &["501"], None)]
#[case::then_data("BDAT 3\r\na\r\nDATA\r\nNOOP\r\n", &["250", "503", "250"], None)]
#[case::cut_off("BDAT 30 LAST\r\nab", &[], None)]
#[case::nobody("RSET\r\nMAIL FROM:<>\r\nRCPT TO:<no@b.c>\r\nBDAT 6 LAST\r\nQUIT\r\nNOOP\r\n", &["250", "250", "550", "554", "250"], None)]
#[case::no_mail("RSET\r\nBDAT 6\r\nQUIT\r\nBDAT 6 LAST\r\nQUIT\r\nNOOP\r\n", &["250", "503", "503", "250"], None)]
#[tokio::test]
async fn a_chunk_has_its_length_and_the_limits_of_a_mail(
    #[case] octets: &str,
    #[case] expected: &[&str],
    #[case] mail: Option<&str>,
) {
    for piece in [1, 7, 1 << 20] {
        let (answers, mails) = session(MailProtocol::Smtp, format!("{HELLO}{octets}").as_bytes(), piece).await;
        assert!(answers.contains("250-CHUNKING\r\n"));
        assert_eq!(codes(&answers)[2..], *expected, "in pieces of {piece}");
        assert_eq!(mails.first().map(|(content, _)| content.as_str()), mail);
    }
}

#[rstest]
#[case::chunks("BDAT 3\r\na\r\nBDAT 3 LAST\r\nb\r\n".to_owned(), &["250", "250", "250"], true)]
#[case::data("DATA\r\na\r\nb\r\n.\r\n".to_owned(), &["354", "250", "250"], true)]
#[case::too_large(format!("DATA\r\n{}\r\n.\r\n", "x".repeat(60)), &["354", "552", "552"], false)]
#[case::too_large_in_the_last_chunk(format!("BDAT 60 LAST\r\n{}", "x".repeat(60)), &["552", "552"], false)]
#[case::too_large_before_it(format!("BDAT 60\r\n{}", "x".repeat(60)), &["552"], false)]
#[tokio::test]
async fn an_lmtp_server_answers_a_mail_for_each_recipient(
    #[case] mail: String,
    #[case] expected: &[&str],
    #[case] is_taken: bool,
) {
    let octets = format!("LHLO a\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.c>\r\nRCPT TO:<d@b.c>\r\n{mail}QUIT\r\n");
    let (answers, mails) = session(MailProtocol::Lmtp, octets.as_bytes(), 1 << 20).await;
    assert_eq!(codes(&answers), [&["250"; 3], expected, &["221"]].concat());
    assert_eq!(mails, [("a\r\nb\r\n".to_owned(), 6)][..usize::from(is_taken)]);
}

#[test]
fn fuzz_smtp_session() {
    const TOKENS: &[&[u8]] = &[
        b"EHLO a\r\nMAIL FROM:<>\r\nRCPT TO:<a@b.c>\r\n",
        b"MAIL FROM:<a@b.c> SIZE=10\r\n",
        b"RCPT TO:<no@b.c>\r\n",
        b"RCPT TO:<a@b.c>\r\n",
        b"BDAT 3\r\na\r\n",
        b"BDAT 0 LAST\r\n",
        b"BDAT 5 LAST\r\n",
        b"BDAT 18446744073709551615\r\n",
        b"BDAT 18446744073709551616 LAST\r\n",
        b"BDAT 100\r\n",
        b"BDAT -1\r\n",
        b"BDAT ",
        b" LAST\r\n",
        b"DATA\r\n",
        b".\r\n",
        b"..a\r\n",
        b"a\r\n",
        b"\r",
        b"\n",
        b"\r\n",
        b"RSET\r\n",
        b"NOOP\r\n",
        b"STARTTLS\r\n",
        b"AUTH PLAIN\r\n",
        b"\0",
        b"\xff",
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    fuzz(TOKENS, |octets| {
        let (_, mails) = runtime.block_on(session(MailProtocol::Smtp, octets, 1 << 20));
        assert!(mails.iter().all(|(content, size)| *size <= 50 && content.len() <= 3 * 40));
    });
}
