//! Mail that comes back: over SMTP and LMTP into the ledger.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use engagement::inbound_smtp;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use schemas::{
    SendId, new_batch_id,
    token::{Purpose, TokenKeys},
};
use stage_rig::{Rig, Tenant, settings, until};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use uuid::Uuid;

use super::{all_sent, batch_to, rows, run};

const FEEDBACK: &str = "fbl@postrider.example";

/// Starts the stage, and the server beside it; answers where it listens.
async fn start(rig: &Rig, arguments: &[&str]) -> SocketAddr {
    super::start(rig).await;
    listen(rig, arguments).await
}

async fn listen(rig: &Rig, arguments: &[&str]) -> SocketAddr {
    let arguments = [&["--inbound-addr", "127.0.0.1:0", "--inbound-feedback-address", FEEDBACK], arguments].concat();
    inbound_smtp::listen(&rig.process(), &settings::<inbound_smtp::InboundSmtpSettings>(&arguments))
        .await
        .unwrap()
        .unwrap()
}

fn tokens() -> TokenKeys {
    TokenKeys::derive(&[[7; 32]])
}

async fn rig_with_mail(count: usize) -> (Rig, Tenant, Uuid) {
    let rig = Rig::new().await;
    let (tenant, batch) = mailed(&rig, count).await;
    (rig, tenant, batch)
}

/// A tenant and a batch of sends that went out.
async fn mailed(rig: &Rig, count: usize) -> (Tenant, Uuid) {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, count).await;
    let batch = batch_to(rig, &tenant, &people).await;
    all_sent(rig, "now()").await;
    (tenant, batch)
}

fn path(send: SendId) -> String {
    format!("{}@send.acme.example", tokens().return_path_local(send.0))
}

fn bounce(status: &str, said: &str) -> String {
    format!(
        "From: MAILER-DAEMON@mx.example\r\nSubject: Undelivered Mail Returned to Sender\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain\r\n\r\nSorry.\r\n\
         --b\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; mx.example\r\n\r\nFinal-Recipient: rfc822; a@example.org\r\n\
         Action: failed\r\nStatus: {status}\r\nDiagnostic-Code: smtp; {said}\r\n\r\n--b--\r\n"
    )
}

fn report(carried: &str) -> String {
    format!(
        "From: fbl@isp.example\r\nSubject: complaint\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/report; report-type=feedback-report; boundary=b\r\n\r\n--b\r\nContent-Type: message/feedback-report\r\n\r\n\
         Feedback-Type: abuse\r\nVersion: 1\r\n\r\n--b\r\nContent-Type: message/rfc822\r\n\r\n{carried}\r\n\r\n--b--\r\n"
    )
}

/// One side of a conversation.
struct Client<S>(BufReader<S>);

impl Client<TcpStream> {
    async fn connect(address: SocketAddr) -> Self {
        let mut client = Self(BufReader::new(TcpStream::connect(address).await.unwrap()));
        assert!(client.reply().await.starts_with("220 "));
        client
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// The last line of a reply.
    async fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).await.unwrap();
            if line.is_empty() || line.as_bytes().get(3) == Some(&b' ') {
                return line.trim_end().to_owned();
            }
        }
    }

    async fn write(&mut self, wire: &str) {
        self.0.get_mut().write_all(wire.as_bytes()).await.unwrap();
    }

    async fn say(&mut self, line: &str) -> String {
        self.write(&format!("{line}\r\n")).await;
        self.reply().await
    }

    /// Hands a mail over, and answers the last reply.
    async fn hand_over(&mut self, sender: &str, recipient: &str, mail: &str) -> String {
        assert!(self.say("EHLO mx.example").await.starts_with("250 "));
        assert!(self.say(&format!("MAIL FROM:<{sender}>")).await.starts_with("250 "));
        let taken = self.say(&format!("RCPT TO:<{recipient}>")).await;
        if !taken.starts_with("250 ") {
            return taken;
        }
        assert!(self.say("DATA").await.starts_with("354 "));
        self.write(&mail.replace("\r\n.", "\r\n..")).await;
        self.say(".").await
    }
}

async fn all_read(rig: &Rig, mails: i64) {
    until("every mail is read", async || {
        rig.number("select count(*) from inbound_mails where outcome is not null and head is null").await == mails
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounce_to_a_return_path_is_a_fact_about_its_send_and_counts_once() {
    let (rig, _, batch) = rig_with_mail(3).await;
    let address = start(&rig, &[]).await;
    let mut client = Client::connect(address).await;
    let (gone, full) = (path(SendId::of(batch, 0)), path(SendId::of(batch, 1)).to_ascii_uppercase());
    let mail = bounce("5.1.1", "550 5.1.1 user unknown");
    for _ in 0..2 {
        assert!(client.hand_over("", &gone, &mail).await.starts_with("250 "));
    }
    assert!(client.hand_over("", &full, &bounce("5.2.2", "552 5.2.2 mailbox full")).await.starts_with("250 "));
    all_read(&rig, 2).await;
    assert_eq!(rig.number("select count(*) from sends where bounced_at is not null").await, 2);
    assert_eq!(rig.number("select count(*) from events where type = 'bounced' and detail->>'class' = 'hard'").await, 1);
    assert_eq!(
        rig.number("select count(*) from suppressions where reason = 'hard_bounce' and expires_at is null").await,
        1
    );
    assert_eq!(rig.number("select count(*) from suppressions").await, 1, "a full mailbox suppresses nobody");
    assert_eq!(rig.number("select count(*) from soft_bounces").await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bounce_of_mail_whose_process_died_is_kept_until_it_decides() {
    let (rig, _, batch) = rig_with_mail(1).await;
    let run = async |statement: &'static str| sqlx::raw_sql(statement).execute(&rig.pool).await.unwrap();
    run("update sends set state = 'fenced', decided_at = null; update batches set sent = 0, fenced = 1, state = 'announced', done_at = null, announce_after = now() + interval '1 hour'").await;
    let mut client = Client::connect(start(&rig, &[]).await).await;
    let mail = bounce("5.2.2", "552 5.2.2 mailbox full");
    assert!(client.hand_over("", &path(SendId::of(batch, 0)), &mail).await.starts_with("250 "));
    until("the bounce is known", async || rig.number("select count(bounced_at) from sends").await == 1).await;
    assert_eq!(rig.number("select count(*) from inbound_mails where outcome is null and due_at is not null").await, 1);
    // What the sweep makes of it when the process is gone for good.
    run("update sends set state = 'unknown', decided_at = now(), fence_token = null; update batches set fenced = 0, unknown = 1, state = 'done', done_at = now(), announce_after = null;
         insert into rollups (tenant_id, hour, kind, event, shard, count)
         select tenant_id, date_trunc('hour', decided_at, 'UTC'), 'campaign', 'unknown', 0, 1 from sends").await;
    until("the bounce proves that it left", async || {
        rig.number("select count(*) from sends where state = 'sent'").await == 1
    })
    .await;
    all_read(&rig, 1).await;
    assert_eq!(rig.number("select count(*) from events where type = 'bounced'").await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_taken_by_a_process_that_died_is_read_by_the_next() {
    let (rig, _, batch) = rig_with_mail(1).await;
    // Listens and reads nothing.
    let mut client = Client::connect(listen(&rig, &[]).await).await;
    let mail = bounce("5.1.1", "550 5.1.1 user unknown");
    assert!(client.hand_over("", &path(SendId::of(batch, 0)), &mail).await.starts_with("250 "));
    assert_eq!(rig.number("select count(*) from inbound_mails where outcome is null and head is not null").await, 1);
    // As one leaves it that took it and died over it, a minute ago.
    sqlx::query("update inbound_mails set attempts = 1, due_at = now()").execute(&rig.pool).await.unwrap();
    super::start(&rig).await;
    all_read(&rig, 1).await;
    assert_eq!(rig.number("select count(*) from sends where bounced_at is not null").await, 1);
}

/// What was started and not finished costs no other mail, and is not tried for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_mail_started_too_often_is_set_aside_with_its_head() {
    let (rig, _, batch) = rig_with_mail(3).await;
    let mut client = Client::connect(listen(&rig, &[]).await).await;
    for ordinal in 0..3 {
        let mail = bounce("5.1.1", "550 5.1.1 user unknown");
        assert!(client.hand_over("", &path(SendId::of(batch, ordinal)), &mail).await.starts_with("250 "));
    }
    run!(&rig.pool, "update inbound_mails set attempts = 4 where send_id = $1", [SendId::of(batch, 1).0]);
    super::start(&rig).await;
    until("each mail has its outcome", async || {
        rig.number("select count(*) from inbound_mails where outcome is not null").await == 3
    })
    .await;
    assert_eq!(rig.number("select count(*) from sends where bounced_at is not null").await, 2);
    let set_aside =
        "select count(*) from inbound_mails where outcome = 'given_up' and head is not null and due_at is null";
    assert_eq!(rig.number(set_aside).await, 1);
}

/// Mails in mails, encoded or not, and parameters without end: read, and the process goes on.
#[tokio::test(flavor = "multi_thread")]
async fn mails_in_mails_are_read_at_both_addresses() {
    let (rig, _, batch) = rig_with_mail(2).await;
    let address = start(&rig, &[]).await;
    let nested = "Content-Type: message/rfc822\r\n\r\n".repeat(6_000);
    let parameters = format!("Content-Type: multipart/mixed; {}\r\n\r\n", "a1*1=x;".repeat(30_000));
    for mail in [&nested, &parameters] {
        for to in [path(SendId::of(batch, 0)), FEEDBACK.to_owned()] {
            let mut client = Client::connect(address).await;
            assert!(
                client.hand_over("", &to, &format!("{mail}Subject: x\r\n\r\nx\r\n")).await.starts_with("250 "),
                "{to}"
            );
        }
    }
    let mut client = Client::connect(address).await;
    let bounced = bounce("5.1.1", "550 5.1.1 user unknown");
    assert!(client.hand_over("", &path(SendId::of(batch, 1)), &bounced).await.starts_with("250 "));
    all_read(&rig, 3).await;
    assert_eq!(rig.number("select count(*) from sends where bounced_at is not null").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_cannot_take_all_connections() {
    let rig = Rig::new().await;
    let address = listen(&rig, &["--inbound-connections-per-address", "2"]).await;
    let (_first, second) = (Client::connect(address).await, Client::connect(address).await);
    let mut third = Client(BufReader::new(TcpStream::connect(address).await.unwrap()));
    assert!(third.reply().await.starts_with("421 4.7.0 "));
    drop(second);
    until("there is room again", async || {
        Client(BufReader::new(TcpStream::connect(address).await.unwrap())).reply().await.starts_with("220 ")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_proves_nothing_is_refused_and_nothing_is_stored() {
    let (rig, _, batch) = rig_with_mail(1).await;
    let address = start(&rig, &[]).await;
    let send = SendId::of(batch, 0);
    let forged = format!("{}@send.acme.example", TokenKeys::derive(&[[8; 32]]).return_path_local(send.0));
    let unknown = path(SendId::of(new_batch_id(), 0));
    for recipient in [forged.as_str(), unknown.as_str(), "postmaster@send.acme.example", "b-1-2@send.acme.example"] {
        let mut client = Client::connect(address).await;
        let refusal = client.hand_over("", recipient, "").await;
        assert!(refusal.starts_with("550 5.1.1 "), "{refusal}");
    }
    let mut client = Client::connect(address).await;
    client.say("EHLO guesser.example").await;
    client.say("MAIL FROM:<>").await;
    let mut replies = Vec::new();
    while replies.len() < 30
        && !replies.last().is_some_and(|reply: &String| reply.starts_with("421 ") || reply.is_empty())
    {
        replies.push(client.say("RCPT TO:<b-1-2@send.acme.example>").await);
    }
    assert!(replies.len() <= 21, "who guesses is hung up on");
    assert_eq!(rig.number("select count(*) from inbound_mails").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_end_otherwise_than_others_read_them_end_the_connection() {
    let (rig, _, batch) = rig_with_mail(1).await;
    let address = start(&rig, &[]).await;
    let path = path(SendId::of(batch, 0));
    for smuggled in ["Subject: a\r\n\r\nb\n.\nMAIL FROM:<>\r\n", "Subject: a\r\n\r\nb\r.\r\n", "a\r\n.\rMAIL\r\n"] {
        let mut client = Client::connect(address).await;
        client.write(&format!("EHLO a\r\nMAIL FROM:<>\r\nRCPT TO:<{path}>\r\nDATA\r\n")).await;
        for expected in ["220", "250", "250", "250", "354"].into_iter().skip(1) {
            assert!(client.reply().await.starts_with(expected));
        }
        client.write(smuggled).await;
        assert!(client.reply().await.starts_with("521 "));
        assert_eq!(client.reply().await, "", "the connection is closed");
    }
    let mut client = Client::connect(address).await;
    client.write("EHLO a\n").await;
    assert!(client.reply().await.starts_with("521 "));
    assert_eq!(rig.number("select count(*) from inbound_mails").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_come_in_order_and_within_bounds() {
    let rig = Rig::new().await;
    let address = listen(&rig, &[]).await;
    let mut client = Client::connect(address).await;
    for (line, expected) in [
        ("MAIL FROM:<>", "503 "),
        ("LHLO a", "500 "),
        ("EHLO a", "250 "),
        ("DATA", "503 "),
        ("RCPT TO:<a@b>", "503 "),
        ("MAIL FROM:<> SIZE=30000000", "552 "),
        ("MAIL FROM:<> SIZE=3000 BODY=8BITMIME", "250 "),
        ("MAIL FROM:<>", "503 "),
        ("DATA", "554 "),
        ("RSET", "250 "),
        ("VRFY ann", "252 "),
        ("STARTTLS", "503 "),
        ("BDAT 0", "503 "),
        ("QUIT", "221 "),
    ] {
        let reply = client.say(line).await;
        assert!(reply.starts_with(expected), "{line}: {reply}");
    }
    let mut client = Client::connect(address).await;
    client.write(&"x".repeat(5_000)).await;
    assert!(client.reply().await.starts_with("500 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persons_answer_is_counted_and_a_programs_is_kept() {
    let (rig, _, batch) = rig_with_mail(2).await;
    let address = start(&rig, &["--inbound-protocol", "lmtp"]).await;
    let mut client = Client::connect(address).await;
    assert!(client.say("LHLO mx.example").await.starts_with("250 "));
    assert!(client.say("MAIL FROM:<ann@example.org>").await.starts_with("250 "));
    for ordinal in 0..2 {
        assert!(client.say(&format!("RCPT TO:<{}>", path(SendId::of(batch, ordinal)))).await.starts_with("250 "));
    }
    client.say("DATA").await;
    let answer = "From: Ann <ann@example.org>\r\nSubject: Re: hello\r\nMessage-ID: <7@example.org>\r\n\r\nYes!\r\n";
    assert!(client.say(&format!("{answer}.")).await.starts_with("250 "), "a reply for each recipient");
    assert!(client.reply().await.starts_with("250 "));
    assert!(client.say("MAIL FROM:<>").await.starts_with("250 "));
    client.say(&format!("RCPT TO:<{}>", path(SendId::of(batch, 1)))).await;
    client.say("DATA").await;
    client.say("From: Ann <ann@example.org>\r\nSubject: Out of office\r\n\r\nI am away.\r\n.").await;
    all_read(&rig, 3).await;
    assert_eq!(rig.number("select replied::bigint from batches").await, 2);
    assert_eq!(rig.number("select sum(count)::bigint from rollups where event = 'replied'").await, 2);
    assert_eq!(
        rig.number("select count(*) from events where type = 'replied' and (detail->>'automatic')::bool").await,
        1
    );
    assert_eq!(rig.number("select count(*) from contact_facts where fact = 'replied'").await, 2);
    assert_eq!(rig.number("select count(*) from events where detail->>'message_id' = '7@example.org'").await, 2);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complaint_counts_for_the_send_it_proves_to_be_about() {
    let (rig, _, batch) = rig_with_mail(2).await;
    let address = start(&rig, &[]).await;
    let mut client = Client::connect(address).await;
    let proven = report(&format!("Return-Path: <{}>\r\nSubject: a\r\n\r\nb", path(SendId::of(batch, 0))));
    assert!(client.hand_over("fbl@isp.example", FEEDBACK, &proven).await.starts_with("250 "));
    let claimed = report(&format!("X-Postrider-Send: {}\r\n\r\nb", SendId::of(batch, 1).0));
    assert!(client.hand_over("fbl@isp.example", FEEDBACK, &claimed).await.starts_with("250 "));
    all_read(&rig, 1).await;
    assert_eq!(rig.number("select count(*) from sends where complained_at is not null").await, 1);
    assert_eq!(rig.number("select count(*) from suppressions where reason = 'complaint'").await, 1);
    assert_eq!(rig.number("select count(*) from inbound_mails").await, 1, "what proves nothing is not stored");
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complaint_that_has_only_the_link_to_leave_by_is_an_opt_out() {
    let (rig, tenant, batch) = rig_with_mail(3).await;
    let mut client = Client::connect(start(&rig, &[]).await).await;
    let link = |ordinal: u16| {
        let token = tokens().seal(Purpose::Unsubscribe, tenant.id, SendId::of(batch, ordinal).0, b"");
        format!("List-Unsubscribe: <https://link.acme.example/u/{token}>")
    };
    // As the recipient of a forward writes it, who has nothing else that we signed.
    let forwarded = report(&format!("Subject: a\r\n{}\r\n\r\nb", link(0)));
    let bare = format!("Subject: a\r\nContent-Type: message/rfc822\r\n\r\n{}\r\n\r\nb\r\n", link(1));
    // As a feedback loop does.
    let whole = report(&format!("Subject: a\r\n{}\r\n\r\nb", link(2)))
        .replace("abuse", &format!("abuse\r\nOriginal-Mail-From: <{}>", path(SendId::of(batch, 2))));
    for mail in [&forwarded, &bare, &whole] {
        assert!(client.hand_over("ann@example.org", FEEDBACK, mail).await.starts_with("250 "));
    }
    all_read(&rig, 3).await;
    let facts: Vec<(bool, bool)> =
        rows(&rig, "select unsubscribed_at is not null, complained_at is not null from sends order by id").await;
    assert_eq!(facts, [(true, false), (true, false), (false, true)]);
    assert_eq!(rig.number("select count(*) from suppressions where scope = 'marketing'").await, 2);
    assert_eq!(rig.number("select count(*) from suppressions where reason = 'complaint'").await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_is_heeded_longer_than_the_ledger_keeps_its_send() {
    let (rig, tenant, batch) = rig_with_mail(4).await;
    let contacts: Vec<Uuid> =
        sqlx::query_scalar("select contact_id from sends order by id").fetch_all(&rig.pool).await.unwrap();
    sqlx::query("delete from sends").execute(&rig.pool).await.unwrap();
    let address = start(&rig, &[]).await;
    let mut client = Client::connect(address).await;
    let about = |ordinal: u16, contact: &[u8]| {
        let token = tokens().seal(Purpose::Unsubscribe, tenant.id, SendId::of(batch, ordinal).0, contact);
        report(&format!("Subject: a\r\nList-Unsubscribe:\r\n <https://link.acme.example/u/{token}>\r\n\r\nb"))
    };
    let returned = |mail: String, ordinal: u16| {
        mail.replace("Subject: a", &format!("Return-Path: <{}>\r\nSubject: a", path(SendId::of(batch, ordinal))))
    };
    let opt_out = about(0, contacts[0].as_bytes()).replace("abuse", "opt-out");
    let complaint = returned(about(1, contacts[1].as_bytes()), 1);
    // The sender of the last one has a return path of its own, and a link of another recipient.
    let forged = returned(about(3, contacts[3].as_bytes()), 2);
    for mail in [&opt_out, &opt_out, &complaint, &about(2, b""), &forged] {
        assert!(client.hand_over("fbl@isp.example", FEEDBACK, mail).await.starts_with("250 "));
    }
    let left: Vec<(Uuid, String, String)> = rows(
        &rig,
        "select c.id, c.marketing_status, s.reason || ' ' || s.scope || ' ' || s.source
         from suppressions s join contacts c on c.tenant_id = s.tenant_id and c.address = s.address order by s.reason desc",
    )
    .await;
    let expected = [
        (contacts[0], "unsubscribed".to_owned(), "unsubscribe marketing recipient".to_owned()),
        (contacts[1], "subscribed".to_owned(), "complaint all recipient".to_owned()),
    ];
    assert_eq!(left, expected, "before it is answered, once, and not for a link that names nobody");
}

/// A bounce that carries the header of the mail it is about.
fn bounce_of(header: &str) -> String {
    let carried = format!("--b\r\nContent-Type: text/rfc822-headers\r\n\r\n{header}\r\n\r\n--b--\r\n");
    bounce("5.1.1", "550 5.1.1 user unknown").replace("--b--\r\n", &carried)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_return_path_of_a_dropped_month_needs_proof_in_the_mail() {
    let (rig, tenant, batch) = rig_with_mail(2).await;
    let (contact, address): (Uuid, String) = sqlx::query_as(
        "select c.id, c.address from sends s join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id order by s.id limit 1",
    )
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    crate::inbound::drop_months(&rig).await;
    let mut client = Client::connect(start(&rig, &[]).await).await;
    let of = |tokens: &TokenKeys| {
        let token = tokens.seal(Purpose::Unsubscribe, tenant.id, SendId::of(batch, 0).0, contact.as_bytes());
        bounce_of(&format!("List-Unsubscribe: <https://link.acme.example/u/{token}>"))
    };
    // Who writes a report may name anybody in it.
    let claimed = bounce("5.1.1", "550 5.1.1 user unknown").replace("a@example.org", &address);
    for mail in [&claimed, &of(&TokenKeys::derive(&[[8; 32]])), &of(&tokens())] {
        assert!(client.hand_over("", &path(SendId::of(batch, 1)), mail).await.starts_with("250 "));
    }
    assert_eq!(rig.number("select count(*) from suppressions").await, 0);
    assert!(client.hand_over("", &path(SendId::of(batch, 0)), &of(&tokens())).await.starts_with("250 "));
    let suppressed: Vec<(String, String)> = rows(&rig, "select address, reason from suppressions").await;
    assert_eq!(suppressed, [(address, "hard_bounce".to_owned())], "before it is answered");
    assert_eq!(rig.number("select count(*) from inbound_mails").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_gives_a_mail_back_had_it() {
    let (rig, _, batch) = rig_with_mail(1).await;
    sqlx::query("update sends set state = 'unknown', fenced_at = now(), doubtful = 1")
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query("update batches set sent = 0, unknown = 1").execute(&rig.pool).await.unwrap();
    let address = start(&rig, &[]).await;
    let mut client = Client::connect(address).await;
    let mail = bounce("5.2.2", "552 5.2.2 mailbox full");
    assert!(client.hand_over("", &path(SendId::of(batch, 0)), &mail).await.starts_with("250 "));
    all_read(&rig, 1).await;
    assert_eq!(rig.number("select count(*) from sends where state = 'sent' and bounced_at is not null").await, 1);
    rig.assert_books().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_before_tls_does_not_count_after_it() {
    let (rig, _, batch) = rig_with_mail(1).await;
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["mx.postrider.example".to_owned()]).unwrap();
    let directory = std::env::temp_dir().join(format!("postrider-{}", Uuid::new_v4()));
    std::fs::create_dir_all(&directory).unwrap();
    let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    std::fs::write(&certificate, cert.pem()).unwrap();
    std::fs::write(&key, signing_key.serialize_pem()).unwrap();
    let arguments = ["--inbound-tls-cert", certificate.to_str().unwrap(), "--inbound-tls-key", key.to_str().unwrap()];
    let address = start(&rig, &arguments).await;
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let connector =
        TlsConnector::from(Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()));
    let mut client = Client::connect(address).await;
    assert!(client.say("EHLO mx.example").await.starts_with("250 "));
    assert!(client.say("MAIL FROM:<>").await.starts_with("250 "));
    assert!(client.say("STARTTLS").await.starts_with("220 "));
    let name = ServerName::try_from("mx.postrider.example").unwrap();
    let mut secure = Client(BufReader::new(connector.connect(name, client.0.into_inner()).await.unwrap()));
    assert!(secure.say("MAIL FROM:<>").await.starts_with("503 "), "it must say hello again");
    let mail = bounce("5.1.1", "550 5.1.1 user unknown");
    assert!(secure.hand_over("", &path(SendId::of(batch, 0)), &mail).await.starts_with("250 "));
    let mut injected = Client::connect(address).await;
    assert!(injected.say("EHLO mx.example").await.starts_with("250 "));
    injected.write("STARTTLS\r\nMAIL FROM:<>\r\n").await;
    assert!(injected.reply().await.starts_with("220 "));
    let mut rest = String::new();
    let _ = injected.0.read_line(&mut rest).await;
    assert_eq!(rest, "", "what came along is not carried out, and the connection is closed");
    all_read(&rig, 1).await;
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_to_one_return_path_waits_until_its_mails_are_read() {
    let (rig, _, batch) = rig_with_mail(2).await;
    // Listens and reads nothing.
    let mut client = Client::connect(listen(&rig, &[]).await).await;
    let mail = |n: usize| bounce("5.2.2", &format!("552 5.2.2 mailbox full {n}"));
    let (busy, quiet) = (path(SendId::of(batch, 0)), path(SendId::of(batch, 1)));
    for n in 0..20 {
        assert!(client.hand_over("", &busy, &mail(n)).await.starts_with("250 "));
    }
    assert!(client.hand_over("", &busy, &mail(20)).await.starts_with("452 4.2.2 "));
    assert!(client.hand_over("", &quiet, &mail(0)).await.starts_with("250 "));
    assert_eq!(rig.number("select count(*) from inbound_mails").await, 21);
    super::start(&rig).await;
    all_read(&rig, 21).await;
    assert!(client.hand_over("", &busy, &mail(20)).await.starts_with("250 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tenant_waits_for_the_mails_of_another() {
    let (rig, tenant, batch) = rig_with_mail(1).await;
    let other = rig.tenant().await;
    run!(
        &rig.pool,
        "insert into inbound_mails (tenant_id, id, send_id, address_kind, null_sender, size, head, due_at)
         select t, gen_random_uuid(), $2, 'return_path', true, 1, 'x', at
         from (select $1::uuid as t, now() - interval '1 hour' as at from generate_series(1, 60)
               union all select $3, now()) m",
        [tenant.id, SendId::of(batch, 0).0, other.id]
    );
    // The mails of one group are marked by one transaction, and its id is theirs.
    super::start(&rig).await;
    all_read(&rig, 61).await;
    let before: i64 = sqlx::query_scalar(
        "select count(*) from inbound_mails m, inbound_mails o
         where o.tenant_id = $1 and m.xmin::text::bigint < o.xmin::text::bigint",
    )
    .bind(other.id)
    .fetch_one(&rig.pool)
    .await
    .unwrap();
    assert_eq!(before, 0, "it is in the first group");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_contact_delays_the_mails_of_its_tenant_only() {
    let (rig, _, batch) = rig_with_mail(1).await;
    let (_, other) = mailed(&rig, 1).await;
    // Listens and reads nothing.
    let mut client = Client::connect(listen(&rig, &[]).await).await;
    let mail = bounce("5.1.1", "550 5.1.1 user unknown");
    for batch in [batch, other] {
        assert!(client.hand_over("", &path(SendId::of(batch, 0)), &mail).await.starts_with("250 "));
    }
    // As an import holds it.
    let mut importing = rig.pool.begin().await.unwrap();
    let lock = "select 1 from contacts where id = (select contact_id from sends where id = $1) for update";
    sqlx::query(lock).bind(SendId::of(batch, 0).0).execute(&mut *importing).await.unwrap();
    super::start(&rig).await;
    tokio::time::timeout(Duration::from_secs(20), all_read(&rig, 1)).await.unwrap();
    importing.rollback().await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), all_read(&rig, 2)).await.unwrap();
    assert_eq!(rig.number("select count(*) from suppressions where reason = 'hard_bounce'").await, 2);
    assert_eq!(rig.number("select max(attempts)::bigint from inbound_mails").await, 1, "its start did not count");
    rig.assert_books().await;
}
