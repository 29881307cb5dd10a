use hostile::Shape;
use rstest::rstest;
use runtime::Used;
use schemas::{BounceClass, token::TokenKeys};
use uuid::Uuid;

use super::*;

/// What a mail says.
fn said(mail: &[u8], arrival: Arrival, null_sender: bool) -> ReportFinding {
    read(mail, arrival, null_sender, &Budget::new(LIMITS)).unwrap().finding
}

/// The send that a mail proves to be about.
fn proved(mail: &[u8], tokens: &TokenKeys) -> Option<(Option<Uuid>, Uuid)> {
    read(mail, Arrival::Feedback, true, &Budget::new(LIMITS)).unwrap().proofs.send(tokens)
}

/// A report as RFC 3464 has it: what is written for people, then the groups of fields, then the beginning of the mail.
fn dsn(from: &str, subject: &str, text: &str, fields: &str) -> Vec<u8> {
    let mail = format!(
        "From: {from}\nTo: b-1@send.acme.example\nSubject: {subject}\nAuto-Submitted: auto-replied\nMIME-Version: 1.0\n\
         Content-Type: multipart/report; report-type=delivery-status;\n boundary=\"=_b\"\n\nThis is a MIME-encapsulated message.\n\n\
         --=_b\nContent-Description: Notification\nContent-Type: text/plain; charset=us-ascii\n\n{text}\n\n\
         --=_b\nContent-Description: Delivery report\nContent-Type: message/delivery-status\n\n{fields}\n\n\
         --=_b\nContent-Description: Undelivered Message\nContent-Type: message/rfc822\n\n\
         Return-Path: <b-1@send.acme.example>\nMessage-ID: <1@acme.example>\nSubject: Spring offers\n\nHello\n\n--=_b--\n"
    );
    mail.replace('\n', "\r\n").into_bytes()
}

/// A mail with these lines of header and this text.
fn mail(header: &str, text: &str) -> Vec<u8> {
    format!("{header}\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\n{text}\n")
        .replace('\n', "\r\n")
        .into_bytes()
}

/// A report of a complaint.
fn arf(fields: &str, carried: &str) -> Vec<u8> {
    let mail = format!(
        "From: <fbl@isp.example>\nTo: <fbl@postrider.example>\nSubject: FW: Spring offers\nMIME-Version: 1.0\n\
         Content-Type: multipart/report; report-type=feedback-report;\n boundary=\"part\"\n\n\
         --part\nContent-Type: text/plain; charset=\"US-ASCII\"\n\nThis is an email abuse report.\n\n\
         --part\nContent-Type: message/feedback-report\n\n{fields}\n\n\
         --part\nContent-Type: message/rfc822\nContent-Disposition: inline\n\n{carried}\n\n--part--\n"
    );
    mail.replace('\n', "\r\n").into_bytes()
}

const POSTFIX: &str = "Reporting-MTA: dns; mx.example.net\nX-Postfix-Queue-ID: 4F1\nArrival-Date: Sun, 1 Mar 2026 10:00:00 +0000 (UTC)\n\n\
    Final-Recipient: rfc822; ann@example.org\nOriginal-Recipient: rfc822;ann@example.org\nAction: failed\nStatus: 5.1.1\n\
    Remote-MTA: dns; mail.example.org\nDiagnostic-Code: smtp; 550 5.1.1 <ann@example.org>: Recipient address rejected: User\n    unknown in local recipient table";
const GMAIL: &str = "Reporting-MTA: dns; googlemail.com\nReceived-From-MTA: dns; b-1@send.acme.example\nArrival-Date: Sun, 01 Mar 2026 02:00:00 -0800 (PST)\n\n\
    Final-Recipient: rfc822; ann@gmail.com\nAction: failed\nStatus: 5.2.2\nDiagnostic-Code: smtp; The recipient's inbox is out of storage space.";
const GMAIL_ROUTED: &str = "Reporting-MTA: dns; googlemail.com\n\nFinal-Recipient: rfc822; ann@example.org\nAction: failed\nStatus: 5.7.26\n\
    Remote-MTA: dns; aspmx.example.org. (192.0.2.1, the server for the domain example.org.)\n\
    Diagnostic-Code: smtp; 550-5.7.26 Unauthenticated email from acme.example is not accepted due to domain's\n 550 5.7.26 DMARC policy.";
const M365: &str = "Reporting-MTA: dns;AM0PR01MB1234.eurprd01.prod.exchangelabs.com\nReceived-From-MTA: dns;mail.acme.example\n\n\
    Final-Recipient: rfc822;ann@contoso.example\nAction: failed\nStatus: 5.1.10\n\
    Diagnostic-Code: smtp;550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient ann@contoso.example not found by SMTP address lookup\nX-Display-Name: ann";
const M365_FULL: &str = "Reporting-MTA: dns;exchange.contoso.example\n\nFinal-recipient: RFC822; ann@contoso.example\nAction: failed\nStatus: 5.2.2\n\
    X-Supplementary-Info: <exchange.contoso.example #5.2.2 smtp;554 5.2.2 mailbox full>";
const EXCHANGE_EXPIRED: &str = "Reporting-MTA: dns;edge.contoso.example\n\nFinal-Recipient: rfc822;ann@contoso.example\nAction: failed\nStatus: 4.4.7\n\
    Diagnostic-Code: smtp;400 4.4.7 Message delayed";
const EXIM: &str = "Reporting-MTA: dns; exim.example.net\n\nAction: failed\nFinal-Recipient: rfc822;ann@example.org\nStatus: 5.0.0\n\
    Remote-MTA: dns; mail.example.org\nDiagnostic-Code: smtp; 550 No Such User Here";
const SENDMAIL_DELAY: &str = "Reporting-MTA: dns; sendmail.example.net\nArrival-Date: Sun, 1 Mar 2026 10:00:00 GMT\n\n\
    Final-Recipient: RFC822; ann@example.org\nAction: delayed\nStatus: 4.4.1\nDiagnostic-Code: SMTP; 451 4.4.1 reply: read error\nWill-Retry-Until: Fri, 6 Mar 2026 10:00:00 GMT";
const DELIVERED: &str = "Reporting-MTA: dns; mx.example.net\n\nFinal-Recipient: rfc822; ann@example.org\nAction: delivered\nStatus: 2.0.0\n\
    Diagnostic-Code: smtp; 250 2.0.0 saved";
const RELAYED: &str =
    "Reporting-MTA: dns; mx.example.net\n\nFinal-Recipient: rfc822; ann@example.org\nAction: relayed\nStatus: 2.0.0";
const NO_ACTION: &str =
    "Reporting-MTA: dns; old.example.net\n\nFinal-Recipient: rfc822; ann@example.org\nStatus: 5.1.1";
const DNS_FAILED: &str = "Reporting-MTA: dns; mx.example.net\n\nFinal-Recipient: rfc822; ann@nowhere.example\nAction: failed\nStatus: 5.4.4\n\
    Diagnostic-Code: X-Postfix; Host or domain name not found. Name service error for name=nowhere.example type=AAAA: Host not found";
const PROOFPOINT: &str = "Reporting-MTA: dns; mx0a.pphosted.example\n\nFinal-Recipient: RFC822; ann@example.org\nAction: failed\nStatus: 5.7.0\n\
    Diagnostic-Code: SMTP; 554 5.7.0 Blocked - see https://ipcheck.proofpoint.com/?ip=192.0.2.1";
const NOTHING_SAID: &str =
    "Reporting-MTA: dns; odd.example.net\n\nFinal-Recipient: rfc822; ann@example.org\nAction: failed\nStatus: 5.0.0";
const TWO: &str = "Reporting-MTA: dns; mx.example.net\n\nFinal-Recipient: rfc822; list@example.org\nAction: expanded\nStatus: 2.0.0\n\n\
    Final-Recipient: rfc822; ann@example.org\nAction: failed\nStatus: 5.1.1";

const DAEMON: &str = "MAILER-DAEMON@mx.example.net (Mail Delivery System)";
const FAILED: &str = "Undelivered Mail Returned to Sender";

#[rstest]
#[case::postfix(dsn(DAEMON, FAILED, "I'm sorry.", POSTFIX), "hard 5.1.1 550")]
#[case::gmail_full(
    dsn(
        "Mail Delivery Subsystem <mailer-daemon@googlemail.com>",
        "Delivery Status Notification (Failure)",
        "** Message blocked **",
        GMAIL
    ),
    "soft 5.2.2 -"
)]
#[case::gmail_dmarc(
    dsn("mailer-daemon@googlemail.com", "Delivery Status Notification (Failure)", "", GMAIL_ROUTED),
    "block 5.7.26 550"
)]
#[case::m365(
    dsn("postmaster@contoso.example", "Undeliverable: Spring offers", "Your message couldn't be delivered.", M365),
    "hard 5.1.10 550"
)]
#[case::m365_full(dsn("postmaster@contoso.example", "Undeliverable: Spring offers", "", M365_FULL), "soft 5.2.2 -")]
#[case::exchange_expired(dsn("postmaster@contoso.example", "Undeliverable", "", EXCHANGE_EXPIRED), "soft 4.4.7 400")]
#[case::exim(dsn(DAEMON, "Mail delivery failed: returning message to sender", "", EXIM), "hard 5.0.0 550")]
#[case::proofpoint(dsn(DAEMON, "failure", "", PROOFPOINT), "block 5.7.0 554")]
#[case::no_action(dsn(DAEMON, "Returned mail", "", NO_ACTION), "hard 5.1.1 -")]
#[case::dns(dsn(DAEMON, FAILED, "", DNS_FAILED), "soft 5.4.4 -")]
#[case::words_only(dsn(DAEMON, FAILED, "<ann@example.org>: 550 5.1.1 unknown user", NOTHING_SAID), "hard 5.1.1 550")]
#[case::two_recipients(dsn(DAEMON, FAILED, "", TWO), "hard 5.1.1 -")]
#[case::sendmail_delay(dsn(DAEMON, "Warning: could not send message for past 4 hours", "", SENDMAIL_DELAY), "delayed")]
#[case::delivered(dsn(DAEMON, "Successful Mail Delivery Report", "", DELIVERED), "delivered")]
#[case::relayed(dsn(DAEMON, "Relayed", "", RELAYED), "relayed")]
#[case::qmail(
    mail(
        "From: MAILER-DAEMON@qmail.example\nSubject: failure notice",
        "Hi. This is the qmail-send program at qmail.example.\nI'm afraid I wasn't able to deliver your message to the following addresses.\nThis is a permanent error; I've given up. Sorry it didn't work out.\n\n<ann@example.org>:\nSorry, no mailbox here by that name. (#5.1.1)\n\n--- Below this line is a copy of the message.\n\nReturn-Path: <b-1@send.acme.example>\nSubject: Spring offers"
    ),
    "hard 5.1.1 -"
)]
#[case::qmail_remote(
    mail(
        "From: MAILER-DAEMON@qmail.example\nSubject: failure notice",
        "Hi. This is the qmail-send program at qmail.example.\n\n<ann@example.org>:\n192.0.2.9 does not like recipient.\nRemote host said: 552 mailbox full\nGiving up on 192.0.2.9.\n\n--- Below this line is a copy of the message.\n"
    ),
    "soft - 552"
)]
#[case::exim_plain(
    mail(
        "From: Mail Delivery System <Mailer-Daemon@exim.example>\nX-Failed-Recipients: ann@example.org\nAuto-Submitted: auto-replied\nSubject: Mail delivery failed: returning message to sender",
        "This message was created automatically by mail delivery software.\n\nA message that you sent could not be delivered to one or more of its\nrecipients. This is a permanent error. The following address(es) failed:\n\n  ann@example.org\n    Unrouteable address\n\n------ This is a copy of the message, including all the headers. ------\n\nReturn-path: <b-1@send.acme.example>\nSubject: you are over quota"
    ),
    "hard - -"
)]
#[case::exim_delay(
    mail(
        "From: Mail Delivery System <Mailer-Daemon@exim.example>\nX-Failed-Recipients: ann@example.org\nSubject: Warning: message 1kX delayed 24 hours",
        "This message was created automatically by mail delivery software.\nNo action is required on your part. Delivery attempts will continue for some time."
    ),
    "delayed"
)]
#[case::exchange_2003(
    mail(
        "From: System Administrator <postmaster@old.example>\nSubject: Undeliverable: Spring offers",
        "Your message did not reach some or all of the intended recipients.\n\n      Subject:  Spring offers\n\nThe following recipient(s) could not be reached:\n\n      ann@old.example on 3/1/2026 10:00 AM\n            The e-mail account does not exist at the organization this message was sent to.\n            <old.example #5.1.1>"
    ),
    "hard 5.1.1 -"
)]
#[case::lotus(
    mail(
        "From: postmaster@notes.example\nSubject: DELIVERY FAILURE: User ann (ann@notes.example) not listed in Domino Directory",
        "Your message\n\n  Subject: Spring offers\n\nwas not delivered to:\n\n  ann@notes.example\n\nbecause:\n\n  550 5.1.1 User ann (ann@notes.example) not listed in Domino Directory"
    ),
    "hard 5.1.1 550"
)]
#[case::gmx_german(
    mail(
        "From: Mailer-Daemon@gmx.example\nSubject: Mail delivery failed: returning message to sender",
        "Nachricht konnte nicht zugestellt werden.\n\nann@example.org:\n552 Requested mail action aborted: exceeded storage allocation"
    ),
    "soft - 552"
)]
#[case::read_receipt(
    b"From: ann@example.org\r\nMIME-Version: 1.0\r\nContent-Type: multipart/report; report-type=disposition-notification; boundary=r\r\n\r\n--r\r\nContent-Type: text/plain\r\n\r\nRead.\r\n--r\r\nContent-Type: message/disposition-notification\r\n\r\nDisposition: manual-action/MDN-sent-manually; displayed\r\n--r--\r\n".to_vec(),
    "receipt"
)]
#[case::arf_to_the_return_path(
    arf("Feedback-Type: abuse\nUser-Agent: Yahoo!-Mail-Feedback/2.0\nVersion: 0.1", "Subject: Spring offers\n\nHello"),
    "complained abuse"
)]
#[case::arf_not_spam(
    arf("Feedback-Type: not-spam\nUser-Agent: x\nVersion: 1", "Subject: a\n\nb"),
    "complained not-spam"
)]
#[case::arf_fraud(arf("User-Agent: x\nFeedback-Type: Fraud\nVersion: 1", "Subject: a\n\nb"), "complained fraud")]
#[case::arf_auth_failure(
    arf("Feedback-Type: auth-failure\nAuth-Failure: dmarc\nVersion: 1", "Subject: a\n\nb"),
    "auth_failure"
)]
#[case::arf_opt_out(arf("Feedback-Type: opt-out\nVersion: 0.1", "Subject: a\n\nb"), "unsubscribed provider")]
#[case::absence(
    mail(
        "From: Ann <ann@example.org>\nSubject: Automatic reply: Spring offers\nAuto-Submitted: auto-replied\nX-Auto-Response-Suppress: All",
        "I am away."
    ),
    "auto_replied"
)]
#[case::absence_without_marks(
    mail("From: Ann <ann@example.org>\nSubject: Abwesenheitsnotiz: Frühling", "Ich bin nicht da."),
    "auto_replied"
)]
#[case::old_absence(
    mail("From: Ann <ann@example.org>\nSubject: Re: Spring offers\nPrecedence: bulk", "I am away."),
    "auto_replied"
)]
#[case::ticket_system(
    mail("From: Help <noreply@desk.example>\nSubject: [#12] Spring offers", "We have your request."),
    "auto_replied"
)]
#[case::a_person(
    mail(
        "From: Ann <ann@example.org>\nSubject: Re: Spring offers\nMessage-ID: <2@example.org>\nAuto-Submitted: no",
        "Yes, please."
    ),
    "replied"
)]
#[case::a_person_who_quotes(
    mail(
        "From: Ann <ann@example.org>\nSubject: Re: Undeliverable plans",
        "550 5.1.1 is what I got when I wrote to you."
    ),
    "replied"
)]
fn a_mail_that_comes_back_says(#[case] raw: Vec<u8>, #[case] expected: &str) {
    let said = match said(&raw, Arrival::ReturnPath, false) {
        ReportFinding::Fact(SignalKind::Bounced { class, smtp_code, enhanced_code, diagnostic, rule }) => {
            assert!(!rule.is_empty() && diagnostic.is_none_or(|text| text.chars().count() <= 500));
            let code = smtp_code.map_or("-".to_owned(), |code| code.to_string());
            format!("{class} {} {code}", enhanced_code.as_deref().unwrap_or("-"))
        }
        ReportFinding::Fact(SignalKind::Complained { feedback_type }) => format!("complained {feedback_type}"),
        ReportFinding::Fact(SignalKind::Unsubscribed { method }) => format!("unsubscribed {method}"),
        other => other.label().to_owned(),
    };
    assert_eq!(said, expected);
}

#[rstest]
#[case::sent_to_it("Original-Recipient: rfc822; <Ann@Example.org>", BounceClass::Hard)]
#[case::forwarded_to_it("Original-Recipient: rfc822;bob@example.net", BounceClass::Soft)]
#[case::a_report_that_names_no_other("X-Display-Name: Ann", BounceClass::Hard)]
fn a_forwarding_target_that_is_gone_says_nothing_about_our_recipient(
    #[case] original: &str,
    #[case] expected: BounceClass,
) {
    let report = String::from_utf8(dsn(DAEMON, FAILED, "", POSTFIX)).unwrap();
    // The mail is a copy: its `To` is the main recipient.
    let report = report.replace("Message-ID: <1", "To: bob@example.net\r\nMessage-ID: <1");
    let report = report.replace("Original-Recipient: rfc822;ann@example.org", original);
    let ReportFinding::Fact(SignalKind::Bounced { class, .. }) = said(report.as_bytes(), Arrival::ReturnPath, true)
    else {
        panic!("no bounce")
    };
    assert_eq!(class, expected);
}

#[test]
fn mail_with_a_null_sender_is_never_a_human_reply() {
    let answer = mail("From: Ann <ann@example.org>\nSubject: Re: Spring offers", "Yes.");
    assert_eq!(said(&answer, Arrival::ReturnPath, true).label(), "auto_replied");
    let report =
        mail("From: Robot <relay@example.org>\nSubject: Undeliverable: Spring offers", "550 5.1.1 unknown user");
    assert_eq!(said(&report, Arrival::ReturnPath, true).label(), "bounced");
    assert_eq!(said(&report, Arrival::ReturnPath, false).label(), "replied");
}

#[test]
fn only_reports_of_complaints_count_at_the_address_for_them() {
    let bounce = dsn(DAEMON, FAILED, "", POSTFIX);
    assert_eq!(said(&bounce, Arrival::Feedback, true), ReportFinding::NoFact(NoFactReason::NoReport));
    let answer = mail("From: Ann <ann@example.org>\nSubject: Re: Spring offers", "Yes.");
    assert_eq!(said(&answer, Arrival::Feedback, false), ReportFinding::NoFact(NoFactReason::NoReport));
}

#[test]
fn a_report_counts_for_the_send_whose_signed_part_it_carries() {
    let (tokens, send, tenant) = (TokenKeys::derive(&[[7; 32]]), Uuid::now_v7(), Uuid::now_v7());
    let path = format!("{}@send.acme.example", tokens.return_path_local(send));
    let leave = tokens.seal(schemas::token::Purpose::Unsubscribe, tenant, send, b"");
    let by_field = arf(&format!("Feedback-Type: abuse\nOriginal-Mail-From: <{path}>"), "Subject: a\n\nb");
    assert_eq!(proved(&by_field, &tokens), Some((None, send)));
    let by_path = arf("Feedback-Type: abuse", &format!("Return-Path: <{path}>\nSubject: a\n\nb"));
    assert_eq!(proved(&by_path, &tokens), Some((None, send)));
    let link = format!(
        "Subject: a\nList-Unsubscribe:\n <https://link.acme.example/u/{leave}>\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\n\nb"
    );
    let by_link = arf("Feedback-Type: abuse", &link);
    assert_eq!(proved(&by_link, &tokens), Some((Some(tenant), send)));
    for (mail, is_returned) in [(&by_field, true), (&by_path, true), (&by_link, false)] {
        let proofs = read(mail, Arrival::Feedback, true, &Budget::new(LIMITS)).unwrap().proofs;
        assert_eq!(proofs.is_returned(send, &tokens), is_returned, "a link goes along with every forward");
    }
    let claimed =
        arf("Feedback-Type: abuse", &format!("X-Postrider-Send: {send}\nMessage-ID: <{send}@acme.example>\n\nb"));
    assert_eq!(proved(&claimed, &tokens), None, "a send's id alone proves nothing");
    assert_eq!(proved(&by_field, &TokenKeys::derive(&[[8; 32]])), None);
}

#[test]
fn a_class_is_that_of_the_table() {
    let full = dsn(DAEMON, FAILED, "", M365_FULL);
    let ReportFinding::Fact(SignalKind::Bounced { class, .. }) = said(&full, Arrival::ReturnPath, true) else {
        panic!("no bounce")
    };
    assert_eq!(class, BounceClass::Soft);
}

/// A mail that carries what is `inner`, encoded or not.
fn carrying(encoding: &str, inner: &[u8]) -> Vec<u8> {
    let body = if encoding == "base64" { base64(inner) } else { inner.to_vec() };
    let header = format!("Content-Type: message/rfc822\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n");
    [header.into_bytes(), body].concat()
}

fn base64(octets: &[u8]) -> Vec<u8> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(octets).into_bytes().chunks(76).flat_map(|line| [line, b"\r\n"].concat()).collect()
}

/// A multipart of `n` times the same text behind its header.
fn multipart(n: usize, text: &str) -> Vec<u8> {
    [b"Content-Type: multipart/mixed; boundary=b\r\n\r\n".to_vec(), text.as_bytes().repeat(n)].concat()
}

const LEVEL: &[u8] = b"Content-Type: message/rfc822\r\n\r\n";

/// What took the process down, or its time: each doubles with `n`.
const HOSTILE: &[Shape] = &[
    ("mails in mails", |n| LEVEL.repeat(n)),
    ("mails in a mail in base64", |n| carrying("base64", &LEVEL.repeat(n))),
    ("mails in a mail in quoted-printable", |n| carrying("quoted-printable", &LEVEL.repeat(n))),
    ("mails in mails behind 100 KB", |n| [LEVEL.repeat(n), vec![b'x'; 100 * n]].concat()),
    ("short levels", |n| b"Content-Type:message/rfc822\n\n".repeat(n)),
    ("multiparts whose boundary never comes", |n| multipart(n, "--b\r\nContent-Type: multipart/x; boundary=z\r\n\r\n")),
    ("multiparts in multiparts", |n| {
        (0..n)
            .flat_map(|at| format!("Content-Type: multipart/x; boundary=b{at}\r\n\r\n--b{at}\r\n").into_bytes())
            .collect()
    }),
    ("parts without an end", |n| multipart(n, "--b\r\n")),
    ("delimiters that are none", |n| multipart(n, "--bb\r\n--\r\n")),
    ("closed again and again", |n| multipart(n, "--b--\r\n")),
    ("parameters in pieces", |n| {
        let pieces: String = (0..n).map(|at| format!("a{at}*1=x;")).collect();
        format!("Content-Type: multipart/mixed; {pieces}\r\n\r\n").into_bytes()
    }),
    ("pieces of a boundary", |n| {
        format!("Content-Type: multipart/mixed; {}\r\n\r\n", "boundary*1=x;".repeat(n)).into_bytes()
    }),
    ("a huge line of a header", |n| [b"Subject: ".to_vec(), b"=?utf-8?q?a?= ".repeat(n)].concat()),
    ("a huge sender", |n| [b"From: ".to_vec(), b"(\"a\" <".repeat(n)].concat()),
    ("endless continuation lines", |n| [b"Subject: a\r\n".to_vec(), b" b\r\n".repeat(n)].concat()),
    ("endless fields", |n| b"Received: x\r\n".repeat(n)),
    ("endless groups of a report", |n| {
        dsn(DAEMON, FAILED, "", &"Final-Recipient: rfc822; a@b\nAction: failed\n\n".repeat(n))
    }),
    ("an endless field of a report", |n| {
        dsn(DAEMON, FAILED, "", &format!("Diagnostic-Code: smtp; {}", "550 \n ".repeat(n)))
    }),
    ("an endless text", |n| dsn(DAEMON, FAILED, &"> 550 5.1.1 said\n".repeat(n), NOTHING_SAID)),
    ("an endless HTML", |n| [b"Content-Type: text/html\r\n\r\n".to_vec(), b"<!--<p>&amp;".repeat(n)].concat()),
    ("an endless complaint", |n| {
        arf(&"Feedback-Type: abuse\n".repeat(n), &"List-Unsubscribe: <https://x/u/\n".repeat(n))
    }),
];

fn used(mail: &[u8], arrival: Arrival) -> Used {
    let budget = Budget::new(LIMITS);
    let _ = read(mail, arrival, true, &budget);
    budget.used()
}

#[test]
fn reading_a_hostile_mail_costs_no_more_than_its_length() {
    for arrival in [Arrival::ReturnPath, Arrival::Feedback] {
        for n in [50, 1_500] {
            // What is kept of each kind of part is bounded; below those bounds it grows with the mail.
            hostile::check_growth(HOSTILE, n, 5_000, |mail| used(mail, arrival));
        }
    }
}

#[test]
fn the_longest_hostile_mail_is_read_within_its_budget() {
    for (name, shape) in HOSTILE {
        let mail = shape(40_000);
        let budget = Budget::new(Limits { time: Duration::from_secs(3_600), ..LIMITS });
        let read = read(&mail, Arrival::ReturnPath, true, &budget);
        assert!(matches!(read, Ok(_) | Err(Spent::Depth)), "{name}: {read:?}");
    }
}

#[test]
fn a_report_inside_other_multiparts_and_encodings_is_read() {
    let report = dsn(DAEMON, FAILED, "I'm sorry.", POSTFIX);
    let wrapped = [
        b"From: gateway@example.org\r\nContent-Type: multipart/mixed; boundary=outer\r\n\r\n--outer\r\n".to_vec(),
        report,
        b"\r\n--outer\r\nContent-Type: text/plain\r\n\r\nChecked.\r\n--outer--\r\n".to_vec(),
    ]
    .concat();
    assert_eq!(said(&wrapped, Arrival::ReturnPath, true).label(), "bounced");
    let encoded = [
        b"Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\nContent-Type: message/global-delivery-status\r\n\
          Content-Transfer-Encoding: base64\r\n\r\n"
            .to_vec(),
        base64(POSTFIX.as_bytes()),
        b"\r\n--b--\r\n".to_vec(),
    ]
    .concat();
    assert_eq!(said(&encoded, Arrival::ReturnPath, true).label(), "bounced");
}

#[test]
fn fuzz_mails() {
    const TOKENS: &[&[u8]] = &[
        b"\r\n",
        b"\r\n\r\n",
        b"\n",
        b"--b\r\n",
        b"--b--\r\n",
        b"--",
        b" ",
        b"\t",
        b";",
        b"=",
        b"\"",
        b"\\",
        b"\xff\xfe",
        b"\0",
        b"Content-Type: multipart/report; boundary=b\r\n\r\n",
        b"Content-Type: multipart/mixed; boundary=\"c\"\r\n\r\n",
        b"Content-Type: message/rfc822\r\n\r\n",
        b"Content-Type: message/delivery-status\r\n\r\n",
        b"Content-Type: message/feedback-report\r\n\r\n",
        b"Content-Type: text/rfc822-headers\r\n\r\n",
        b"Content-Type: text/html; charset=utf-7\r\n\r\n",
        b"Content-Type: text/plain; charset=iso-2022-jp\r\n",
        b"Content-Transfer-Encoding: base64\r\n",
        b"Content-Transfer-Encoding: quoted-printable\r\n",
        b"=3D",
        b"=\r\n",
        b"QUJD",
        b"Subject: =?utf-8?b?Pz8=?= ",
        b"From: \"a\" (b) <c@d>, e:",
        b"Message-ID: <",
        b"Action: failed\r\n",
        b"Status: 5.1.1\r\n",
        b"Diagnostic-Code: smtp; 550 5.1.1 no\r\n",
        b"Feedback-Type: abuse\r\n",
        b"Original-Mail-From: <b-1-2@x>\r\n",
        b"Return-Path: <b-1-2@x>\r\n",
        b"List-Unsubscribe: <https://x/u/",
        b"boundary*1=",
        b"a*1=x;",
        b"Undelivered",
        b"<!-- <p>",
    ];
    let tokens = TokenKeys::derive(&[[7; 32]]);
    hostile::fuzz(TOKENS, |mail| {
        for arrival in [Arrival::ReturnPath, Arrival::Feedback] {
            let budget = Budget::new(LIMITS);
            if let Ok(report) = read(mail, arrival, false, &budget) {
                let _ = report.proofs.send(&tokens);
                let bounce_fact = serde_json::to_vec(&report).unwrap();
                assert_eq!(
                    serde_json::from_slice::<MailReport>(&bounce_fact).unwrap(),
                    report,
                    "it goes between processes"
                );
            }
        }
    });
}
