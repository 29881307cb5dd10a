use std::io;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const SOFT: Scope = Scope::Recipient;

fn fail(class: Class) -> ReplyDecision {
    ReplyDecision::fail(class)
}

fn defer(class: Class, scope: Scope) -> ReplyDecision {
    ReplyDecision::defer(class, scope)
}

#[rstest]
// Gmail
#[case::gmail_unknown(
    Phase::Rcpt,
    550,
    "5.1.1 The email account that you tried to reach does not exist. Please try double-checking the recipient's email address for typos or unnecessary spaces. NoSuchUser",
    fail(Class::Hard)
)]
#[case::gmail_disabled(
    Phase::Rcpt,
    550,
    "5.2.1 The email account that you tried to reach is disabled.",
    fail(Class::Inactive)
)]
#[case::gmail_inactive(
    Phase::Rcpt,
    550,
    "5.2.1 The email account that you tried to reach is inactive.",
    fail(Class::Inactive)
)]
#[case::gmail_full_4(
    Phase::Rcpt,
    452,
    "4.2.2 The recipient's inbox is out of storage space and inactive.",
    defer(Class::MailboxFull, SOFT)
)]
#[case::gmail_full_5(
    Phase::Rcpt,
    552,
    "5.2.2 The recipient's inbox is out of storage space.",
    defer(Class::MailboxFull, SOFT)
)]
#[case::gmail_over_quota(
    Phase::Rcpt,
    452,
    "4.2.2 The email account that you tried to reach is over quota.",
    defer(Class::MailboxFull, SOFT)
)]
#[case::gmail_user_rate(
    Phase::Rcpt,
    450,
    "4.2.1 The user you are trying to contact is receiving mail at a rate that prevents additional messages from being delivered.",
    defer(Class::Throttled, SOFT)
)]
#[case::gmail_ip_rate(
    Phase::Final,
    421,
    "4.7.28 Our system has detected an unusual rate of unsolicited mail originating from your IP address.",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::gmail_unsolicited(
    Phase::Final,
    550,
    "5.7.1 Our system has detected that this message is likely unsolicited mail. To reduce the amount of spam sent to Gmail, this message has been blocked.",
    fail(Class::Block)
)]
#[case::gmail_low_reputation(
    Phase::Final,
    550,
    "5.7.1 this message is likely suspicious due to the very low reputation of the sending domain.",
    fail(Class::Block)
)]
#[case::gmail_dmarc(
    Phase::Final,
    550,
    "5.7.26 Unauthenticated email from example.com is not accepted due to domain's DMARC policy.",
    fail(Class::Block)
)]
#[case::gmail_no_auth(
    Phase::Final,
    550,
    "5.7.26 This mail has been blocked because the sender is unauthenticated.",
    fail(Class::Block)
)]
#[case::gmail_attachment(
    Phase::Final,
    552,
    "5.7.0 This message was blocked because its content presents a potential security issue (attachment).",
    fail(Class::Content)
)]
#[case::gmail_size(
    Phase::Final,
    552,
    "5.3.4 Your message exceeded Google's message size limits.",
    fail(Class::Content)
)]
#[case::gmail_try_again(
    Phase::Final,
    451,
    "4.3.0 Multiple destination domains per transaction is unsupported. Please try again.",
    defer(Class::Temporary, SOFT)
)]
// Outlook, Exchange
#[case::outlook_unknown(
    Phase::Rcpt,
    550,
    "5.5.0 Requested action not taken: mailbox unavailable (S2017062302).",
    fail(Class::Inactive)
)]
#[case::exchange_not_found(
    Phase::Rcpt,
    550,
    "5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup",
    fail(Class::Hard)
)]
#[case::exchange_access_denied(
    Phase::Rcpt,
    550,
    "5.4.1 Recipient address rejected: Access denied.",
    fail(Class::Routing)
)]
#[case::outlook_blocklist(
    Phase::Mail,
    550,
    "5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent. Please contact your Internet service provider since part of their network is on our block list (S3140).",
    fail(Class::Block)
)]
#[case::outlook_rate(
    Phase::Mail,
    451,
    "4.7.650 The mail server [192.0.2.1] has been temporarily rate limited due to IP reputation.",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::outlook_rp(
    Phase::Mail,
    421,
    "RP-001 The mail server IP connecting to Outlook.com server has exceeded the rate limit allowed.",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::outlook_busy(
    Phase::Rcpt,
    451,
    "4.7.500 Server busy. Please try again later.",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::outlook_dmarc(
    Phase::Final,
    550,
    "5.7.509 Access denied, sending domain EXAMPLE.COM does not pass DMARC verification",
    fail(Class::Block)
)]
#[case::outlook_spam(Phase::Final, 550, "5.7.1 Message rejected as spam by Content Filtering.", fail(Class::Block))]
#[case::exchange_full(
    Phase::Rcpt,
    554,
    "5.2.2 mailbox full; STOREDRV.Deliver.Exception:QuotaExceededException",
    defer(Class::MailboxFull, SOFT)
)]
#[case::exchange_restricted(
    Phase::Final,
    550,
    "5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup",
    fail(Class::Block)
)]
#[case::exchange_loop(Phase::Final, 554, "5.4.14 Hop count exceeded - possible mail loop", fail(Class::Routing))]
#[case::exchange_size(Phase::Mail, 552, "5.3.4 Message size exceeds fixed maximum message size", fail(Class::Content))]
#[case::exchange_relay(
    Phase::Rcpt,
    550,
    "5.7.54 SMTP; Unable to relay recipient in non-accepted domain",
    defer(Class::Configuration, SOFT)
)]
#[case::exchange_pressure(Phase::Mail, 452, "4.3.1 Insufficient system resources", defer(Class::Temporary, SOFT))]
// Yahoo
#[case::yahoo_unknown(
    Phase::Final,
    554,
    "delivery error: dd This user doesn't have a yahoo.com account (ann@yahoo.com) [0] - mta1001",
    fail(Class::Hard)
)]
#[case::yahoo_not_accepted(
    Phase::Final,
    554,
    "Message not allowed - [PH01] Email not accepted for policy reasons.",
    fail(Class::Policy)
)]
#[case::yahoo_deferred(
    Phase::Mail,
    421,
    "4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::yahoo_deferred_ts01(
    Phase::Mail,
    421,
    "4.7.0 [TS01] Messages from 192.0.2.1 temporarily deferred due to user complaints",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::yahoo_full(
    Phase::Final,
    552,
    "1 Requested mail action aborted, mailbox is full",
    defer(Class::MailboxFull, SOFT)
)]
// Apple
#[case::icloud_unknown(Phase::Rcpt, 550, "5.1.1 <ann@icloud.com>: user does not exist", fail(Class::Hard))]
#[case::icloud_full(Phase::Rcpt, 552, "5.2.2 <ann@icloud.com>: user is over quota", defer(Class::MailboxFull, SOFT))]
#[case::icloud_policy(Phase::Final, 554, "5.7.1 [HM08] Message rejected due to local policy.", fail(Class::Block))]
// Postfix
#[case::postfix_local(
    Phase::Rcpt,
    550,
    "5.1.1 <ann@example.com>: Recipient address rejected: User unknown in local recipient table",
    fail(Class::Hard)
)]
#[case::postfix_virtual(
    Phase::Rcpt,
    550,
    "5.1.1 <ann@example.com>: Recipient address rejected: User unknown in virtual mailbox table",
    fail(Class::Hard)
)]
#[case::postfix_virtual_0(
    Phase::Rcpt,
    550,
    "5.0.0 <ann@example.com>: Recipient address rejected: User unknown in virtual alias table",
    fail(Class::Hard)
)]
#[case::postfix_unverified_450(
    Phase::Rcpt,
    450,
    "4.1.1 <ann@example.com>: Recipient address rejected: unverified address: connection timed out",
    defer(Class::Temporary, SOFT)
)]
#[case::postfix_no_domain(
    Phase::Rcpt,
    450,
    "4.1.2 <ann@example.com>: Recipient address rejected: Domain not found",
    defer(Class::Temporary, SOFT)
)]
#[case::postfix_no_domain_5(
    Phase::Rcpt,
    550,
    "5.1.2 <ann@nowhere.example>: Recipient address rejected: Domain not found",
    fail(Class::Hard)
)]
#[case::postfix_null_mx(
    Phase::Rcpt,
    556,
    "5.1.10 <ann@example.com>: Recipient address rejected: Domain example.com does not accept mail (nullMX)",
    fail(Class::Hard)
)]
#[case::postfix_relay(
    Phase::Rcpt,
    554,
    "5.7.1 <ann@example.com>: Relay access denied",
    defer(Class::Configuration, SOFT)
)]
#[case::postfix_relay_4(
    Phase::Rcpt,
    454,
    "4.7.1 <ann@example.com>: Relay access denied",
    defer(Class::Configuration, SOFT)
)]
#[case::behind_the_relay(Phase::Final, 554, "5.7.1 <ann@example.com>: Relay access denied", fail(Class::Policy))]
#[case::postfix_client(
    Phase::Rcpt,
    554,
    "5.7.1 <app.example.com[192.0.2.1]>: Client host rejected: Access denied",
    defer(Class::Configuration, SOFT)
)]
#[case::postfix_rbl(
    Phase::Rcpt,
    554,
    "5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org",
    fail(Class::Block)
)]
#[case::postfix_greylist(
    Phase::Rcpt,
    450,
    "4.2.0 <ann@example.com>: Recipient address rejected: Greylisted, see http://postgrey.example/help",
    defer(Class::Temporary, SOFT)
)]
#[case::postfix_greylist_451(
    Phase::Rcpt,
    451,
    "4.7.1 Greylisting in action, please come back later",
    defer(Class::Temporary, SOFT)
)]
#[case::postfix_sender(
    Phase::Mail,
    450,
    "4.1.8 <b@send.example.com>: Sender address rejected: Domain not found",
    defer(Class::Temporary, SOFT)
)]
#[case::postfix_sender_5(
    Phase::Rcpt,
    550,
    "5.1.8 <b@send.example.com>: Sender address rejected: Domain not found",
    fail(Class::Policy)
)]
#[case::postfix_sender_without_a_detail(
    Phase::Rcpt,
    550,
    "5.1.0 <b@send.example.com>: Sender address rejected: User unknown in relay recipient table",
    fail(Class::Policy)
)]
#[case::postfix_sender_unknown(
    Phase::Rcpt,
    550,
    "5.1.1 <b@send.example.com>: Sender address rejected: User unknown in virtual mailbox table",
    fail(Class::Policy)
)]
#[case::postfix_sender_without_a_code(
    Phase::Rcpt,
    550,
    "<b@send.example.com>: Sender address rejected: Domain not found",
    fail(Class::Policy)
)]
#[case::postfix_sender_probe(
    Phase::Rcpt,
    550,
    "5.1.7 <b@send.example.com>: Sender address rejected: undeliverable address: host mx.example.com[192.0.2.2] said: 550 5.1.1 User unknown in local recipient table (in reply to RCPT TO command)",
    fail(Class::Policy)
)]
#[case::postfix_sender_later(
    Phase::Rcpt,
    450,
    "4.1.0 <b@send.example.com>: Sender address rejected: User unknown in relay recipient table",
    defer(Class::Temporary, SOFT)
)]
#[case::postfix_queue_full(Phase::Mail, 452, "4.3.1 Insufficient system storage", defer(Class::Temporary, SOFT))]
#[case::postfix_too_many_errors(
    Phase::Rcpt,
    421,
    "4.7.0 mx.example.com Error: too many errors",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::postfix_lookup(
    Phase::Rcpt,
    451,
    "4.3.0 <ann@example.com>: Temporary lookup failure",
    defer(Class::Temporary, SOFT)
)]
#[case::postfix_shutdown(
    Phase::Final,
    421,
    "4.3.0 mx.example.com shutting down",
    defer(Class::Temporary, Scope::Connection)
)]
#[case::postfix_helo(
    Phase::Rcpt,
    504,
    "5.5.2 <localhost>: Helo command rejected: need fully-qualified hostname",
    defer(Class::Configuration, SOFT)
)]
// Exim, cPanel, qmail, Sendmail
#[case::exim_no_user(Phase::Rcpt, 550, "No Such User Here", fail(Class::Hard))]
#[case::exim_unrouteable(Phase::Rcpt, 550, "Unrouteable address", fail(Class::Hard))]
#[case::exim_prohibited(Phase::Rcpt, 550, "Administrative prohibition", fail(Class::Policy))]
#[case::exim_callout(Phase::Rcpt, 550, "Sender verify failed", fail(Class::Policy))]
#[case::exim_callout_with_its_reason(
    Phase::Rcpt,
    550,
    "Callback to mx.example.com said: 550 5.1.1 User unknown in virtual mailbox table; Sender verify failed",
    fail(Class::Policy)
)]
#[case::exim_greylist(
    Phase::Rcpt,
    451,
    "Temporary local problem - please try later: greylisted",
    defer(Class::Temporary, SOFT)
)]
#[case::exim_full(Phase::Final, 552, "Mailbox quota exceeded", defer(Class::MailboxFull, SOFT))]
#[case::cpanel_suspended(Phase::Rcpt, 550, "The account has been suspended", fail(Class::Inactive))]
#[case::qmail_unknown(Phase::Rcpt, 550, "sorry, no mailbox here by that name (#5.1.1 - chkuser)", fail(Class::Hard))]
#[case::sendmail_unknown(Phase::Rcpt, 550, "5.1.1 <ann@example.com>... User unknown", fail(Class::Hard))]
#[case::sendmail_relay(
    Phase::Rcpt,
    550,
    "5.7.1 <ann@example.com>... Relaying denied",
    defer(Class::Configuration, SOFT)
)]
#[case::sendmail_busy(Phase::Mail, 452, "4.4.5 Insufficient disk space; try again later", defer(Class::Routing, SOFT))]
// Filters and others
#[case::proofpoint(
    Phase::Mail,
    554,
    "5.7.0 Blocked - see https://ipcheck.proofpoint.com/?ip=192.0.2.1 (poor reputation)",
    fail(Class::Block)
)]
#[case::mimecast_greylist(
    Phase::Rcpt,
    451,
    "Internal resources are temporarily unavailable - https://community.mimecast.com/docs/DOC-1369#451",
    defer(Class::Temporary, SOFT)
)]
#[case::mimecast_reject(
    Phase::Rcpt,
    550,
    "Invalid Recipient - https://community.mimecast.com/docs/DOC-1369#550",
    fail(Class::Hard)
)]
#[case::barracuda(
    Phase::Final,
    554,
    "rejected due to spam content, see barracudacentral.org/reputation",
    fail(Class::Block)
)]
#[case::gmx_policy(Phase::Mail, 554, "Transaction failed. Reject due to policy restrictions.", fail(Class::Policy))]
#[case::tonline_full(Phase::Rcpt, 452, "mailbox full", defer(Class::MailboxFull, SOFT))]
#[case::moved(Phase::Rcpt, 551, "5.1.6 User has moved and left no address", fail(Class::Hard))]
#[case::virus(Phase::Final, 554, "5.7.1 Virus found in message", fail(Class::Content))]
#[case::line_length(Phase::Final, 500, "5.6.11 Line too long", fail(Class::Content))]
// Bare codes
#[case::bare_550(Phase::Rcpt, 550, "", fail(Class::Policy))]
#[case::bare_554(Phase::Final, 554, "Transaction failed", fail(Class::Policy))]
#[case::bare_552(Phase::Final, 552, "", defer(Class::MailboxFull, SOFT))]
#[case::bare_450(Phase::Rcpt, 450, "", defer(Class::Temporary, SOFT))]
#[case::bare_421(Phase::Rcpt, 421, "", defer(Class::Temporary, Scope::Connection))]
#[case::unknown_user_as_4xx(Phase::Rcpt, 450, "4.1.1 user unknown", defer(Class::Temporary, SOFT))]
#[case::unknown_user_at_mail(Phase::Mail, 550, "5.1.1 user unknown", fail(Class::Policy))]
// The relay and we
#[case::auth_required(Phase::Mail, 530, "5.7.0 Authentication Required", defer(Class::Configuration, Scope::Relay))]
#[case::auth_failed(
    Phase::Auth,
    535,
    "5.7.8 Authentication credentials invalid",
    defer(Class::Configuration, Scope::Relay)
)]
#[case::auth_later(Phase::Auth, 454, "4.7.0 Temporary authentication failure", defer(Class::Unreachable, Scope::Relay))]
#[case::greeting_busy(Phase::Greeting, 421, "4.3.2 too many connections", defer(Class::Throttled, Scope::Relay))]
#[case::greeting_refused(Phase::Greeting, 554, "5.7.1 no service for you", defer(Class::Configuration, Scope::Relay))]
#[case::relay_quota(
    Phase::Mail,
    550,
    "5.4.5 Daily user sending limit exceeded",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::relay_quota_in_other_words(
    Phase::Rcpt,
    550,
    "5.4.5 Daily user sending quota exceeded",
    defer(Class::Throttled, Scope::Domain)
)]
#[case::ses_daily_quota(
    Phase::Final,
    454,
    "Throttling failure: Daily message quota exceeded",
    defer(Class::Throttled, Scope::Relay)
)]
#[case::ses_rate(
    Phase::Final,
    454,
    "Throttling failure: Maximum sending rate exceeded",
    defer(Class::Throttled, Scope::Relay)
)]
fn an_answer_means(#[case] phase: Phase, #[case] code: u16, #[case] text: &str, #[case] expected: ReplyDecision) {
    assert_eq!(classify_reply(phase, &Reply::new(code, text)), expected);
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
#[case::relay_away(
    SmtpFailure::not_sent(Phase::Connect, Cause::Unreachable(io_error())),
    ReplyOutcome::Defer(Class::Unreachable),
    Scope::Relay
)]
#[case::silent_greeting(
    SmtpFailure::not_sent(Phase::Greeting, Cause::Timeout),
    ReplyOutcome::Defer(Class::Unreachable),
    Scope::Relay
)]
#[case::certificate(
    SmtpFailure::not_sent(Phase::Tls, Cause::Handshake(io_error())),
    ReplyOutcome::Defer(Class::Configuration),
    Scope::Relay
)]
#[case::no_starttls(
    SmtpFailure::not_sent(Phase::Tls, Cause::TlsNotOffered),
    ReplyOutcome::Defer(Class::Configuration),
    Scope::Relay
)]
#[case::no_auth(
    SmtpFailure::not_sent(Phase::Auth, Cause::AuthNotOffered),
    ReplyOutcome::Defer(Class::Configuration),
    Scope::Relay
)]
#[case::lost_at_rcpt(
    SmtpFailure::not_sent(Phase::Rcpt, Cause::Closed),
    ReplyOutcome::Defer(Class::Temporary),
    Scope::Connection
)]
#[case::old_fence(
    SmtpFailure::not_sent(Phase::Body, Cause::FenceTooOld),
    ReplyOutcome::Defer(Class::Temporary),
    Scope::Connection
)]
#[case::lost_in_body(
    SmtpFailure::unknown(Phase::Body, Cause::Io(io_error())),
    ReplyOutcome::Unknown,
    Scope::Connection
)]
#[case::lost_after_dot(SmtpFailure::unknown(Phase::Final, Cause::Timeout), ReplyOutcome::Unknown, Scope::Connection)]
#[case::international(SmtpFailure::not_sent(Phase::Mail, Cause::InternationalNotOffered), ReplyOutcome::Fail { class: Class::Policy, suppress: false }, Scope::Recipient)]
#[case::too_large(SmtpFailure::not_sent(Phase::Mail, Cause::TooLarge), ReplyOutcome::Fail { class: Class::Content, suppress: false }, Scope::Recipient)]
fn a_failure_without_an_answer_means(
    #[case] failure: SmtpFailure,
    #[case] outcome: ReplyOutcome,
    #[case] scope: Scope,
) {
    assert_eq!(classify(&failure), ReplyDecision { outcome, scope });
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
