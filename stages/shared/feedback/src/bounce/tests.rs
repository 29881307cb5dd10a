use proptest::prelude::*;
use rstest::rstest;

use super::*;

const HARD: BounceClass = BounceClass::Hard;
const SOFT: BounceClass = BounceClass::Soft;
const BLOCK: BounceClass = BounceClass::Block;

#[rstest]
// Gmail
#[case::gmail_unknown(
    "550-5.1.1 The email account that you tried to reach does not exist. Please try double-checking the recipient's email address for typos or unnecessary spaces. For more information, go to https://support.google.com/mail/?p=NoSuchUser",
    HARD
)]
#[case::gmail_disabled(
    "550 5.2.1 The email account that you tried to reach is disabled. For more information, go to https://support.google.com/mail/?p=DisabledUser",
    SOFT
)]
#[case::gmail_inactive("550-5.2.1 The email account that you tried to reach is inactive.", SOFT)]
#[case::gmail_full(
    "452-4.2.2 The recipient's inbox is out of storage space. https://support.google.com/mail/?p=OverQuotaTemp",
    SOFT
)]
#[case::gmail_full_for_good(
    "552-5.2.2 The recipient's inbox is out of storage space and inactive. p=OverQuotaPerm",
    SOFT
)]
#[case::gmail_spam(
    "550-5.7.1 [192.0.2.1 12] Our system has detected that this message is likely unsolicited mail. To reduce the amount of spam sent to Gmail, this message has been blocked.",
    BLOCK
)]
#[case::gmail_unauthenticated("550-5.7.26 This mail has been blocked because the sender is unauthenticated.", BLOCK)]
#[case::gmail_dmarc(
    "550-5.7.26 Unauthenticated email from example.com is not accepted due to domain's DMARC policy.",
    BLOCK
)]
#[case::gmail_reputation(
    "550-5.7.1 Gmail has detected that this message is likely suspicious due to the very low reputation of the sending domain.",
    BLOCK
)]
#[case::gmail_rate(
    "421-4.7.28 Gmail has detected an unusual rate of unsolicited mail originating from your IP address.",
    BLOCK
)]
#[case::gmail_attachment(
    "552-5.7.0 This message was blocked because its content presents a potential security issue.",
    BLOCK
)]
#[case::gmail_size("552-5.3.4 Your message exceeded Google's message size limits.", BLOCK)]
#[case::workspace_suspended("550-5.1.2 We weren't able to find the recipient domain.", HARD)]
// Outlook.com, Exchange, Microsoft 365
#[case::m365_not_found(
    "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient ann@example.com not found by SMTP address lookup",
    HARD
)]
#[case::m365_unknown("550 5.1.1 RESOLVER.ADR.ExRecipNotFound; not found", HARD)]
#[case::m365_access_denied(
    "550 5.4.1 Recipient address rejected: Access denied. [DB5EUR01FT003.eop-EUR01.prod.protection.outlook.com]",
    SOFT
)]
#[case::outlook_unavailable(
    "550 5.5.0 Requested action not taken: mailbox unavailable (S2017062302). [SN1NAM02FT0014.eop-nam02.prod.protection.outlook.com]",
    SOFT
)]
#[case::outlook_blocked(
    "550 5.7.1 Unfortunately, messages from [192.0.2.1] weren't sent. Please contact your Internet service provider since part of their network is on our block list (S3140).",
    BLOCK
)]
#[case::m365_restricted(
    "550 5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup; authentication required; Delivery restriction check failed because the sender was not authenticated",
    BLOCK
)]
#[case::m365_full(
    "554 5.2.2 mailbox full; STOREDRV.Deliver.Exception:QuotaExceededException.MapiExceptionShutoffQuotaExceeded; Failed to process message",
    SOFT
)]
#[case::m365_dmarc(
    "550 5.7.509 Access denied, sending domain EXAMPLE.COM does not pass DMARC verification and has a DMARC policy of reject",
    BLOCK
)]
#[case::m365_banned("550 5.7.606 Access denied, banned sending IP [192.0.2.1]", BLOCK)]
#[case::m365_spam("550 5.7.350 Remote server returned message detected as spam -> 554 5.7.1 Spam", BLOCK)]
#[case::exchange_loop("554 5.4.14 Hop count exceeded - possible mail loop ATTR34", SOFT)]
#[case::exchange_expired("550 4.4.7 QUEUE.Expired; message expired", SOFT)]
#[case::exchange_relay("550 5.7.54 SMTP; Unable to relay recipient in non-accepted domain", BLOCK)]
// Yahoo, AOL
#[case::yahoo_unknown(
    "554 delivery error: dd This user doesn't have a yahoo.com account (ann@yahoo.com) [0] - mta1001.mail.bf1.yahoo.com",
    HARD
)]
#[case::yahoo_inactive(
    "554 30 Sorry, your message to ann@yahoo.com cannot be delivered. This mailbox is disabled (554.30).",
    SOFT
)]
#[case::yahoo_full("552 1 Requested mail action aborted, mailbox is full", SOFT)]
#[case::yahoo_policy("554 Message not allowed - [PH01] Email not accepted for policy reasons.", BLOCK)]
#[case::yahoo_deferred(
    "421 4.7.0 [TSS04] Messages from 192.0.2.1 temporarily deferred due to unexpected volume or user complaints - 4.16.55.1",
    BLOCK
)]
#[case::yahoo_mailbox("550 5.1.1 <ann@aol.com>: Recipient address rejected: aol.com", HARD)]
// Apple
#[case::icloud_unknown("550 5.1.1 <ann@icloud.com>: user does not exist", HARD)]
#[case::icloud_full("552 5.2.2 <ann@icloud.com>: user is over quota", SOFT)]
#[case::icloud_policy(
    "554 5.7.1 [HM08] Message rejected due to local policy. Please visit https://support.apple.com/en-us/HT204137",
    BLOCK
)]
// Proofpoint, Mimecast, Barracuda, Cisco, Cloudmark
#[case::proofpoint_blocked("554 5.7.0 Blocked - see https://ipcheck.proofpoint.com/?ip=192.0.2.1", BLOCK)]
#[case::proofpoint_unknown("550 5.1.1 <ann@example.com>... User unknown", HARD)]
#[case::proofpoint_invalid("550 5.1.1 User Unknown - invalid recipient", HARD)]
#[case::mimecast_invalid("550 Invalid Recipient - https://community.mimecast.com/docs/DOC-1369#550 [abc.us105]", HARD)]
#[case::mimecast_spoof(
    "550 Rejected by header based Anti-Spoofing policy: b@example.com - https://community.mimecast.com/docs/DOC-1369#550",
    BLOCK
)]
#[case::mimecast_security(
    "554 Email rejected due to security policies - https://community.mimecast.com/docs/DOC-1369#554",
    BLOCK
)]
#[case::mimecast_relay(
    "550 Administrative prohibition - envelope blocked - https://community.mimecast.com/docs/DOC-1369#550",
    BLOCK
)]
#[case::barracuda_blocked("550 permanent failure for one or more recipients (ann@example.com:blocked)", BLOCK)]
#[case::barracuda_unknown(
    "550 permanent failure for one or more recipients (ann@example.com:550 5.1.1 User unknown)",
    HARD
)]
#[case::barracuda_list(
    "554 Service unavailable; Client host [mail.example.com] blocked using Barracuda Reputation; http://www.barracudanetworks.com/reputation/?r=1&ip=192.0.2.1",
    BLOCK
)]
#[case::cisco_reputation(
    "554 Your access to this mail system has been rejected due to the sending MTA's poor reputation.",
    BLOCK
)]
#[case::cloudmark("550 5.7.1 Message rejected due to content restrictions; CSI", BLOCK)]
// Postfix
#[case::postfix_local(
    "550 5.1.1 <ann@example.com>: Recipient address rejected: User unknown in local recipient table",
    HARD
)]
#[case::postfix_virtual(
    "550 5.1.1 <ann@example.com>: Recipient address rejected: User unknown in virtual mailbox table",
    HARD
)]
#[case::postfix_null_mx(
    "556 5.1.10 <ann@example.com>: Recipient address rejected: Domain example.com does not accept mail (nullMX)",
    HARD
)]
#[case::postfix_no_host(
    "Host or domain name not found. Name service error for name=nowhere.example type=AAAA: Host not found",
    SOFT
)]
#[case::postfix_timeout("connect to mx.example.com[192.0.2.9]:25: Connection timed out", SOFT)]
#[case::postfix_relay("554 5.7.1 <ann@example.com>: Relay access denied", BLOCK)]
#[case::postfix_sender(
    "550 5.1.0 <b@send.example.com>: Sender address rejected: User unknown in relay recipient table",
    BLOCK
)]
#[case::postfix_sender_unknown(
    "550 5.1.1 <b@send.example.com>: Sender address rejected: User unknown in virtual mailbox table",
    BLOCK
)]
#[case::postfix_sender_without_a_code("550 <b@send.example.com>: Sender address rejected: Domain not found", BLOCK)]
#[case::postfix_quota("552 5.2.2 <ann@example.com>: Recipient address rejected: Mailbox full / Postfach voll", SOFT)]
#[case::postfix_greylist_at_last("450 4.2.0 <ann@example.com>: Recipient address rejected: Greylisted", SOFT)]
#[case::dovecot_quota("552 5.2.2 <ann@example.com> Quota exceeded (mailbox for user is full)", SOFT)]
// Exim, cPanel, qmail, Sendmail, Zimbra, Lotus
#[case::exim_no_user("550 No Such User Here", HARD)]
#[case::exim_unrouteable("Unrouteable address", HARD)]
#[case::exim_retry("retry timeout exceeded", SOFT)]
#[case::exim_prohibited("550 Administrative prohibition", BLOCK)]
#[case::cpanel_suspended("550 The account has been suspended for inactivity", SOFT)]
#[case::cpanel_quota("552 5.2.2 Mailbox is full / Blocks limit exceeded / Inode limit exceeded", SOFT)]
#[case::qmail_unknown("Remote host said: 550 sorry, no mailbox here by that name (#5.1.1 - chkuser)", HARD)]
#[case::qmail_too_long("I'm not going to try again; this message has been in the queue too long. (#4.4.7)", SOFT)]
#[case::sendmail_unknown("550 5.1.1 <ann@example.com>... User unknown", HARD)]
#[case::sendmail_expired("451 4.4.7 Message could not be delivered for 5 days", SOFT)]
#[case::zimbra_unknown("550 5.1.1 <ann@example.com>: Recipient address rejected: example.com", HARD)]
#[case::lotus_unknown("550 5.1.1 User ann (ann@example.com) not listed in Domino Directory", HARD)]
// GMX, web.de, T-Online, Orange, Free, mail.ru, Yandex, QQ, NetEase
#[case::gmx_policy(
    "554 Transaction failed Reject due to policy restrictions. For explanation visit https://postmaster.gmx.net/en/case?c=r0103",
    BLOCK
)]
#[case::gmx_unavailable(
    "550 Requested action not taken: mailbox unavailable For explanation visit https://postmaster.gmx.net/en/case?c=r0501",
    SOFT
)]
#[case::web_de_full(
    "552 Requested mail action aborted: exceeded storage allocation Quota exceeded. The recipients mailbox is full.",
    SOFT
)]
#[case::tonline_unknown("550 5.1.1 unknown user", HARD)]
#[case::orange_unknown("550 5.1.1 Adresse d au moins un destinataire invalide. Invalid recipient. OFR_416 [416]", HARD)]
#[case::orange_spam("550 5.2.0 Mail rejetee. Mail rejected. ofr_506 [506]", BLOCK)]
#[case::orange_later(
    "421 Service refuse. Veuillez essayer plus tard. service refused, please try later. OFR_104",
    SOFT
)]
#[case::free_spam("550 spam detected, see http://postmaster.free.fr/#spam_detected", BLOCK)]
#[case::mail_ru(
    "550 Message was not accepted -- invalid mailbox. Local mailbox ann@mail.ru is unavailable: user not found",
    HARD
)]
#[case::yandex_policy("554 5.7.1 [2] Message rejected under suspicion of SPAM; https://ya.cc/1IrBc", BLOCK)]
#[case::yandex_unknown("550 5.7.1 No such user!", BLOCK)]
#[case::qq_unknown(
    "550 Mailbox not found. http://service.mail.qq.com/cgi-bin/help?subtype=1&&id=20022&&no=1000728",
    HARD
)]
#[case::qq_content(
    "550 Mail content denied. http://service.mail.qq.com/cgi-bin/help?subtype=1&&id=20022&&no=1000726",
    BLOCK
)]
#[case::qq_rate(
    "550 Connection frequency limited. http://service.mail.qq.com/cgi-bin/help?subtype=1&&id=20022&&no=1000722",
    SOFT
)]
#[case::netease_spam("554 DT:SPM 163 smtp12,EMCowAD3, please see http://mail.163.com/help/help_spam_16.htm", BLOCK)]
#[case::netease_unknown("550 User not found: ann@163.com", HARD)]
// Bare codes
#[case::bare_550("550", BLOCK)]
#[case::bare_552("552", SOFT)]
#[case::bare_4xx("450", SOFT)]
#[case::silence("", BLOCK)]
fn an_answer_that_came_back_means(#[case] text: &str, #[case] expected: BounceClass) {
    let (class, rule) = classify(&BounceReport { text, ..BounceReport::default() });
    assert_eq!(class, expected, "{rule}");
}

#[rstest]
#[case::the_servers_code_over_the_relays(Some("5.0.0"), "smtp; 550 5.1.1 <ann@example.com>: no", HARD)]
#[case::the_relays_own("5.1.1".into(), "", HARD)]
#[case::temporary_unknown(Some("4.1.1"), "450 4.1.1 user unknown", SOFT)]
#[case::policy_for_good(Some("5.7.1"), "550 5.7.1 rejected", BLOCK)]
#[case::full(Some("5.2.2"), "", SOFT)]
#[case::full_for_now(Some("4.2.2"), "", SOFT)]
#[case::nonsense(Some("five"), "", BLOCK)]
fn the_enhanced_code_decides_where_it_says_something(
    #[case] enhanced_code: Option<&str>,
    #[case] text: &str,
    #[case] expected: BounceClass,
) {
    assert_eq!(classify(&BounceReport { enhanced_code, text, ..BounceReport::default() }).0, expected);
}

#[test]
fn the_reporters_hint_counts_last() {
    let hint = Some(HARD);
    assert_eq!(classify(&BounceReport { hint, ..BounceReport::default() }), (HARD, HINT));
    assert_eq!(classify(&BounceReport { hint, enhanced_code: Some("5.7.1"), ..BounceReport::default() }).0, BLOCK);
    // A temporary answer is no fact about the address, whoever says so.
    assert_eq!(classify(&BounceReport { hint, enhanced_code: Some("4.0.0"), ..BounceReport::default() }), (SOFT, HINT));
    assert_eq!(classify(&BounceReport { hint, text: "450 not now", ..BounceReport::default() }), (SOFT, HINT));
}

#[test]
fn codes_are_found_in_text_and_versions_are_not() {
    let of = |text| Codes::of(&BounceReport { text, ..BounceReport::default() });
    assert_eq!(of("smtp; 550-5.1.1 no").enhanced, Some(EnhancedCode::new(5, 1, 1)));
    assert_eq!(of("said: 550 (#5.1.1)").reply, Some(550));
    assert_eq!(of("by Exim 4.94.2 from 192.0.2.4").enhanced, None);
}

proptest! {
    #[test]
    fn no_text_panics_and_policy_is_never_a_hard_bounce(text in "\\PC{0,80}") {
        let _ = classify(&BounceReport { text: &text, ..BounceReport::default() });
        let plain = text.chars().filter(|c| !c.is_alphanumeric()).collect::<String>();
        let text = format!("550 5.7.1 {plain}");
        prop_assert_ne!(classify(&BounceReport { text: &text, ..BounceReport::default() }).0, HARD);
    }
}
