use std::io;

use proptest::prelude::*;
use rstest::rstest;

use super::{
    Class::{
        Block, Configuration, Content, Hard, Inactive, MailboxFull, Policy, Routing, Temporary, Throttled, Unreachable,
    },
    Phase::{Auth, Body, Connect, Final, Greeting, Mail, Rcpt, Tls},
    Scope::{Connection, Domain, Relay},
    *,
};

const SOFT: Scope = Scope::Recipient;
const UNKNOWN: ReplyDecision = ReplyDecision { outcome: ReplyOutcome::Unknown, scope: Scope::Connection };

fn fail(class: Class) -> ReplyDecision {
    ReplyDecision { outcome: ReplyOutcome::Fail { class, suppress: class == Hard }, scope: Scope::Recipient }
}

fn defer(class: Class, scope: Scope) -> ReplyDecision {
    ReplyDecision::defer(class, scope)
}

#[rstest]
// Gmail
#[case::gmail_unknown(
    Rcpt,
    "550 5.1.1 The email account that you tried to reach does not exist. Please try double-checking the recipient's email address for typos or unnecessary spaces. NoSuchUser",
    fail(Hard)
)]
#[case::gmail_disabled(Rcpt, "550 5.2.1 The email account that you tried to reach is disabled.", fail(Inactive))]
#[case::gmail_inactive(Rcpt, "550 5.2.1 The email account that you tried to reach is inactive.", fail(Inactive))]
#[case::gmail_full_4(
    Rcpt,
    "452 4.2.2 The recipient's inbox is out of storage space and inactive.",
    defer(MailboxFull, SOFT)
)]
#[case::gmail_full_5(Rcpt, "552 5.2.2 The recipient's inbox is out of storage space.", defer(MailboxFull, SOFT))]
#[case::gmail_over_quota(
    Rcpt,
    "452 4.2.2 The email account that you tried to reach is over quota.",
    defer(MailboxFull, SOFT)
)]
#[case::gmail_user_rate(
    Rcpt,
    "450 4.2.1 The user you are trying to contact is receiving mail at a rate that prevents additional messages from being delivered.",
    defer(Throttled, SOFT)
)]
#[case::gmail_ip_rate(
    Final,
    "421 4.7.28 Our system has detected an unusual rate of unsolicited mail originating from your IP address.",
    defer(Throttled, Domain)
)]
#[case::gmail_unsolicited(
    Final,
    "550 5.7.1 Our system has detected that this message is likely unsolicited mail. To reduce the amount of spam sent to Gmail, this message has been blocked.",
    fail(Block)
)]
#[case::gmail_low_reputation(
    Final,
    "550 5.7.1 this message is likely suspicious due to the very low reputation of the sending domain.",
    fail(Block)
)]
#[case::gmail_dmarc(
    Final,
    "550 5.7.26 Unauthenticated email from example.com is not accepted due to domain's DMARC policy.",
    fail(Block)
)]
#[case::gmail_no_auth(
    Final,
    "550 5.7.26 This mail has been blocked because the sender is unauthenticated.",
    fail(Block)
)]
#[case::gmail_attachment(
    Final,
    "552 5.7.0 This message was blocked because its content presents a potential security issue (attachment).",
    fail(Content)
)]
#[case::gmail_size(Final, "552 5.3.4 Your message exceeded Google's message size limits.", fail(Content))]
#[case::gmail_try_again(
    Final,
    "451 4.3.0 Multiple destination domains per transaction is unsupported. Please try again.",
    defer(Temporary, SOFT)
)]
// Outlook, Exchange
#[case::outlook_unknown(
    Rcpt,
    "550 5.5.0 Requested action not taken: mailbox unavailable (S2017062302).",
    fail(Inactive)
)]
#[case::exchange_not_found(
    Rcpt,
    "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup",
    fail(Hard)
)]
#[case::exchange_access_denied(Rcpt, "550 5.4.1 Recipient address rejected: Access denied.", fail(Routing))]
#[case::outlook_blocklist(
    Mail,
    "550 5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent. Please contact your Internet service provider since part of their network is on our block list (S3140).",
    fail(Block)
)]
#[case::outlook_rate(
    Mail,
    "451 4.7.650 The mail server [192.0.2.1] has been temporarily rate limited due to IP reputation.",
    defer(Throttled, Domain)
)]
#[case::outlook_rp(
    Mail,
    "421 RP-001 The mail server IP connecting to Outlook.com server has exceeded the rate limit allowed.",
    defer(Throttled, Domain)
)]
#[case::outlook_busy(Rcpt, "451 4.7.500 Server busy. Please try again later.", defer(Throttled, Domain))]
#[case::outlook_dmarc(
    Final,
    "550 5.7.509 Access denied, sending domain EXAMPLE.COM does not pass DMARC verification",
    fail(Block)
)]
#[case::outlook_spam(Final, "550 5.7.1 Message rejected as spam by Content Filtering.", fail(Block))]
#[case::exchange_full(
    Rcpt,
    "554 5.2.2 mailbox full; STOREDRV.Deliver.Exception:QuotaExceededException",
    defer(MailboxFull, SOFT)
)]
#[case::exchange_restricted(Final, "550 5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup", fail(Block))]
#[case::exchange_loop(Final, "554 5.4.14 Hop count exceeded - possible mail loop", fail(Routing))]
#[case::exchange_size(Mail, "552 5.3.4 Message size exceeds fixed maximum message size", fail(Content))]
#[case::exchange_relay(
    Rcpt,
    "550 5.7.54 SMTP; Unable to relay recipient in non-accepted domain",
    defer(Configuration, SOFT)
)]
#[case::exchange_pressure(Mail, "452 4.3.1 Insufficient system resources", defer(Temporary, SOFT))]
// Yahoo
#[case::yahoo_unknown(
    Final,
    "554 delivery error: dd This user doesn't have a yahoo.com account (ann@yahoo.com) [0] - mta1001",
    fail(Hard)
)]
#[case::yahoo_not_accepted(
    Final,
    "554 Message not allowed - [PH01] Email not accepted for policy reasons.",
    fail(Policy)
)]
#[case::yahoo_deferred(
    Mail,
    "421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints",
    defer(Throttled, Domain)
)]
#[case::yahoo_deferred_ts01(
    Mail,
    "421 4.7.0 [TS01] Messages from 192.0.2.1 temporarily deferred due to user complaints",
    defer(Throttled, Domain)
)]
#[case::yahoo_full(Final, "552 1 Requested mail action aborted, mailbox is full", defer(MailboxFull, SOFT))]
// Apple
#[case::icloud_unknown(Rcpt, "550 5.1.1 <ann@icloud.com>: user does not exist", fail(Hard))]
#[case::icloud_full(Rcpt, "552 5.2.2 <ann@icloud.com>: user is over quota", defer(MailboxFull, SOFT))]
#[case::icloud_policy(Final, "554 5.7.1 [HM08] Message rejected due to local policy.", fail(Block))]
// Postfix
#[case::postfix_local(
    Rcpt,
    "550 5.1.1 <ann@example.com>: Recipient address rejected: User unknown in local recipient table",
    fail(Hard)
)]
#[case::postfix_virtual(
    Rcpt,
    "550 5.1.1 <ann@example.com>: Recipient address rejected: User unknown in virtual mailbox table",
    fail(Hard)
)]
#[case::postfix_virtual_0(
    Rcpt,
    "550 5.0.0 <ann@example.com>: Recipient address rejected: User unknown in virtual alias table",
    fail(Hard)
)]
#[case::postfix_unverified_450(
    Rcpt,
    "450 4.1.1 <ann@example.com>: Recipient address rejected: unverified address: connection timed out",
    defer(Temporary, SOFT)
)]
#[case::postfix_no_domain(
    Rcpt,
    "450 4.1.2 <ann@example.com>: Recipient address rejected: Domain not found",
    defer(Temporary, SOFT)
)]
#[case::postfix_no_domain_5(
    Rcpt,
    "550 5.1.2 <ann@nowhere.example>: Recipient address rejected: Domain not found",
    fail(Hard)
)]
#[case::postfix_null_mx(
    Rcpt,
    "556 5.1.10 <ann@example.com>: Recipient address rejected: Domain example.com does not accept mail (nullMX)",
    fail(Hard)
)]
#[case::postfix_relay(Rcpt, "554 5.7.1 <ann@example.com>: Relay access denied", defer(Configuration, SOFT))]
#[case::postfix_relay_4(Rcpt, "454 4.7.1 <ann@example.com>: Relay access denied", defer(Configuration, SOFT))]
#[case::behind_the_relay(Final, "554 5.7.1 <ann@example.com>: Relay access denied", fail(Policy))]
#[case::postfix_client(
    Rcpt,
    "554 5.7.1 <app.example.com[192.0.2.1]>: Client host rejected: Access denied",
    defer(Configuration, SOFT)
)]
#[case::postfix_rbl(
    Rcpt,
    "554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org",
    fail(Block)
)]
#[case::postfix_greylist(
    Rcpt,
    "450 4.2.0 <ann@example.com>: Recipient address rejected: Greylisted, see http://postgrey.example/help",
    defer(Temporary, SOFT)
)]
#[case::postfix_greylist_451(Rcpt, "451 4.7.1 Greylisting in action, please come back later", defer(Temporary, SOFT))]
#[case::postfix_sender(
    Mail,
    "450 4.1.8 <b@send.example.com>: Sender address rejected: Domain not found",
    defer(Temporary, SOFT)
)]
#[case::postfix_sender_5(
    Rcpt,
    "550 5.1.8 <b@send.example.com>: Sender address rejected: Domain not found",
    fail(Policy)
)]
#[case::postfix_sender_without_a_detail(
    Rcpt,
    "550 5.1.0 <b@send.example.com>: Sender address rejected: User unknown in relay recipient table",
    fail(Policy)
)]
#[case::postfix_sender_unknown(
    Rcpt,
    "550 5.1.1 <b@send.example.com>: Sender address rejected: User unknown in virtual mailbox table",
    fail(Policy)
)]
#[case::postfix_sender_without_a_code(
    Rcpt,
    "550 <b@send.example.com>: Sender address rejected: Domain not found",
    fail(Policy)
)]
#[case::postfix_sender_probe(
    Rcpt,
    "550 5.1.7 <b@send.example.com>: Sender address rejected: undeliverable address: host mx.example.com[192.0.2.2] said: 550 5.1.1 User unknown in local recipient table (in reply to RCPT TO command)",
    fail(Policy)
)]
#[case::postfix_sender_later(
    Rcpt,
    "450 4.1.0 <b@send.example.com>: Sender address rejected: User unknown in relay recipient table",
    defer(Temporary, SOFT)
)]
#[case::postfix_queue_full(Mail, "452 4.3.1 Insufficient system storage", defer(Temporary, SOFT))]
#[case::postfix_too_many_errors(Rcpt, "421 4.7.0 mx.example.com Error: too many errors", defer(Throttled, Domain))]
#[case::postfix_lookup(Rcpt, "451 4.3.0 <ann@example.com>: Temporary lookup failure", defer(Temporary, SOFT))]
#[case::postfix_shutdown(Final, "421 4.3.0 mx.example.com shutting down", defer(Temporary, Connection))]
#[case::postfix_helo(
    Rcpt,
    "504 5.5.2 <localhost>: Helo command rejected: need fully-qualified hostname",
    defer(Configuration, SOFT)
)]
// Exim, cPanel, qmail, Sendmail
#[case::exim_no_user(Rcpt, "550 No Such User Here", fail(Hard))]
#[case::exim_unrouteable(Rcpt, "550 Unrouteable address", fail(Hard))]
#[case::exim_prohibited(Rcpt, "550 Administrative prohibition", fail(Policy))]
#[case::exim_callout(Rcpt, "550 Sender verify failed", fail(Policy))]
#[case::exim_callout_with_its_reason(
    Rcpt,
    "550 Callback to mx.example.com said: 550 5.1.1 User unknown in virtual mailbox table; Sender verify failed",
    fail(Policy)
)]
#[case::exim_greylist(Rcpt, "451 Temporary local problem - please try later: greylisted", defer(Temporary, SOFT))]
#[case::exim_full(Final, "552 Mailbox quota exceeded", defer(MailboxFull, SOFT))]
#[case::cpanel_suspended(Rcpt, "550 The account has been suspended", fail(Inactive))]
#[case::qmail_unknown(Rcpt, "550 sorry, no mailbox here by that name (#5.1.1 - chkuser)", fail(Hard))]
#[case::sendmail_unknown(Rcpt, "550 5.1.1 <ann@example.com>... User unknown", fail(Hard))]
#[case::sendmail_relay(Rcpt, "550 5.7.1 <ann@example.com>... Relaying denied", defer(Configuration, SOFT))]
#[case::sendmail_busy(Mail, "452 4.4.5 Insufficient disk space; try again later", defer(Routing, SOFT))]
// Filters and others
#[case::proofpoint(
    Mail,
    "554 5.7.0 Blocked - see https://ipcheck.proofpoint.com/?ip=192.0.2.1 (poor reputation)",
    fail(Block)
)]
#[case::mimecast_greylist(
    Rcpt,
    "451 Internal resources are temporarily unavailable - https://community.mimecast.com/docs/DOC-1369#451",
    defer(Temporary, SOFT)
)]
#[case::mimecast_reject(Rcpt, "550 Invalid Recipient - https://community.mimecast.com/docs/DOC-1369#550", fail(Hard))]
#[case::barracuda(Final, "554 rejected due to spam content, see barracudacentral.org/reputation", fail(Block))]
#[case::gmx_policy(Mail, "554 Transaction failed. Reject due to policy restrictions.", fail(Policy))]
#[case::tonline_full(Rcpt, "452 mailbox full", defer(MailboxFull, SOFT))]
#[case::moved(Rcpt, "551 5.1.6 User has moved and left no address", fail(Hard))]
#[case::virus(Final, "554 5.7.1 Virus found in message", fail(Content))]
#[case::line_length(Final, "500 5.6.11 Line too long", fail(Content))]
// Bare codes
#[case::bare_550(Rcpt, "550", fail(Policy))]
#[case::bare_554(Final, "554 Transaction failed", fail(Policy))]
#[case::bare_552(Final, "552", defer(MailboxFull, SOFT))]
#[case::bare_450(Rcpt, "450", defer(Temporary, SOFT))]
#[case::bare_421(Rcpt, "421", defer(Temporary, Connection))]
#[case::unknown_user_as_4xx(Rcpt, "450 4.1.1 user unknown", defer(Temporary, SOFT))]
#[case::unknown_user_at_mail(Mail, "550 5.1.1 user unknown", fail(Policy))]
// The relay and we
#[case::auth_required(Mail, "530 5.7.0 Authentication Required", defer(Configuration, Relay))]
#[case::auth_failed(Auth, "535 5.7.8 Authentication credentials invalid", defer(Configuration, Relay))]
#[case::auth_later(Auth, "454 4.7.0 Temporary authentication failure", defer(Unreachable, Relay))]
#[case::greeting_busy(Greeting, "421 4.3.2 too many connections", defer(Throttled, Relay))]
#[case::greeting_refused(Greeting, "554 5.7.1 no service for you", defer(Configuration, Relay))]
#[case::relay_quota(Mail, "550 5.4.5 Daily user sending limit exceeded", defer(Throttled, Domain))]
#[case::relay_quota_in_other_words(Rcpt, "550 5.4.5 Daily user sending quota exceeded", defer(Throttled, Domain))]
#[case::ses_daily_quota(Final, "454 Throttling failure: Daily message quota exceeded", defer(Throttled, Relay))]
#[case::ses_rate(Final, "454 Throttling failure: Maximum sending rate exceeded", defer(Throttled, Relay))]
fn an_answer_means(#[case] phase: Phase, #[case] answer: &str, #[case] expected: ReplyDecision) {
    let (code, text) = answer.split_once(' ').unwrap_or((answer, ""));
    assert_eq!(classify_reply(phase, &Reply::new(code.parse().unwrap(), text)), expected);
}

#[test]
fn policy_never_suppresses_a_person_and_an_unknown_user_does() {
    let suppresses = |code, text| {
        matches!(
            classify_reply(Phase::Rcpt, &Reply::new(code, text)).outcome,
            ReplyOutcome::Fail { suppress: true, .. }
        )
    };
    assert!(!suppresses(550, "5.7.1 rejected"));
    assert!(suppresses(550, "5.1.1 rejected"));
    assert!(!suppresses(550, "rejected"));
}

fn io_error() -> io::Error {
    io::Error::from(io::ErrorKind::ConnectionReset)
}

#[rstest]
#[case::relay_away(SmtpFailure::not_sent(Connect, Cause::Unreachable(io_error())), defer(Unreachable, Relay))]
#[case::silent_greeting(SmtpFailure::not_sent(Greeting, Cause::Timeout), defer(Unreachable, Relay))]
#[case::certificate(SmtpFailure::not_sent(Tls, Cause::Handshake(io_error())), defer(Configuration, Relay))]
#[case::no_starttls(SmtpFailure::not_sent(Tls, Cause::TlsNotOffered), defer(Configuration, Relay))]
#[case::no_auth(SmtpFailure::not_sent(Auth, Cause::AuthNotOffered), defer(Configuration, Relay))]
#[case::lost_at_rcpt(SmtpFailure::not_sent(Rcpt, Cause::Closed), defer(Temporary, Connection))]
#[case::old_fence(SmtpFailure::not_sent(Body, Cause::FenceTooOld), defer(Temporary, Connection))]
#[case::lost_in_body(SmtpFailure::unknown(Body, Cause::Io(io_error())), UNKNOWN)]
#[case::lost_after_dot(SmtpFailure::unknown(Final, Cause::Timeout), UNKNOWN)]
#[case::international(SmtpFailure::not_sent(Mail, Cause::InternationalNotOffered), fail(Policy))]
#[case::too_large(SmtpFailure::not_sent(Mail, Cause::TooLarge), fail(Content))]
fn a_failure_without_an_answer_means(#[case] failure: SmtpFailure, #[case] expected: ReplyDecision) {
    assert_eq!(classify(&failure), expected);
}

proptest! {
    #[test]
    fn temporary_answers_never_fail_a_send(code in 400u16..600, text in "[ -~]{0,60}") {
        for phase in [Phase::Mail, Phase::Rcpt, Phase::Data, Phase::Final] {
            let decision = classify_reply(phase, &Reply::new(code, &text));
            match decision.outcome {
                ReplyOutcome::Defer(_) => {}
                ReplyOutcome::Fail { class, suppress } => {
                    prop_assert!(code >= 500);
                    prop_assert_eq!(suppress, class == Class::Hard);
                }
                ReplyOutcome::Sent | ReplyOutcome::Unknown => prop_assert!(false, "a negative answer is neither"),
            }
        }
    }
}
