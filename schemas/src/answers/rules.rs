//! The rules, as data: each with its name, which is kept with the fact it decided, and its reason.

use super::{
    Class::{self, Block, Configuration, Content, Hard, Inactive, MailboxFull, Policy, Routing, Temporary, Throttled},
    Meaning,
};

/// What answers of a pattern mean.
pub(super) struct AnswerRule<P> {
    pub(super) pattern: P,
    pub(super) meaning: Meaning,
    /// The source of the rule, and why the code alone is not enough. Read by people, and by the test that every rule has one.
    #[cfg_attr(not(test), allow(dead_code, reason = "documentation kept as data"))]
    pub(super) reason: &'static str,
}

/// Well-known words, lower-case, matched anywhere in an answer's text.
pub(super) type TextRule = AnswerRule<&'static str>;
/// An enhanced status code `X.subject.detail`; no details: all of the subject's that stand in no earlier rule.
pub(super) type CodeRule = AnswerRule<(u16, &'static [u16])>;
/// The first and the last of a range of reply codes.
pub(super) type ReplyRule = AnswerRule<(u16, u16)>;

const fn rule(name: &'static str, pattern: &'static str, class: Class, reason: &'static str) -> TextRule {
    AnswerRule { pattern, meaning: Meaning { class, rule: name }, reason }
}

const fn code(
    name: &'static str,
    subject: u16,
    details: &'static [u16],
    class: Class,
    reason: &'static str,
) -> CodeRule {
    AnswerRule { pattern: (subject, details), meaning: Meaning { class, rule: name }, reason }
}

const fn reply(name: &'static str, from: u16, to: u16, class: Class, reason: &'static str) -> ReplyRule {
    AnswerRule { pattern: (from, to), meaning: Meaning { class, rule: name }, reason }
}

/// Words that are stronger than the code beside them, because their authors are known to use the code loosely.
pub(super) const OVERRIDING: &[TextRule] = &[
    // Reputation and spam first: a block list's page may well contain the words "user unknown".
    rule("spamhaus", "spamhaus", Block, "names the block list; comes with 5.7.1, 5.7.0 and bare 550 alike"),
    rule("barracudacentral", "barracudacentral", Block, "names the block list"),
    rule("spamcop", "spamcop", Block, "names the block list"),
    rule("sorbs", "sorbs", Block, "names the block list"),
    rule("blacklist", "blacklist", Block, "every site's own list"),
    rule("blocklist", "blocklist", Block, "every site's own list; Outlook's S3140 among them"),
    rule(
        "blocked_using",
        "blocked using",
        Block,
        "Postfix reject_rbl_client, whose code is 554 5.7.1 or whatever is configured",
    ),
    rule("poor_reputation", "poor reputation", Block, "Cisco, Proofpoint; also as 4xx"),
    rule("bad_reputation", "bad reputation", Block, "as above"),
    rule("low_reputation", "low reputation", Block, "Gmail 421-4.7.0 and 550-5.7.1"),
    rule(
        "outlook_rate_limited",
        "has been temporarily rate limited due to ip reputation",
        Throttled,
        "Outlook 451 4.7.650",
    ),
    rule("unsolicited_mail", "unsolicited mail", Block, "Gmail 421-4.7.28 and 550-5.7.1"),
    rule("looks_like_spam", "looks like spam", Block, "many filters, some with 5.1.1"),
    rule("considered_spam", "considered spam", Block, "many filters"),
    rule("spam_message", "spam message", Block, "many filters"),
    rule("rejected_as_spam", "rejected as spam", Block, "many filters"),
    rule("yahoo_deferred", "[ts0", Throttled, "Yahoo: temporarily deferred due to volume or complaints, 421 4.7.0"),
    rule("outlook_rp_001", "rp-001", Throttled, "Outlook 421: too many connections for our reputation"),
    rule("outlook_rp_003", "rp-003", Throttled, "Outlook 421: as above"),
    // The quota of the account we send through, before the words for a full mailbox.
    rule("ses_throttling", "throttling failure", Throttled, "SES: 454 Throttling failure, by the second or the day"),
    rule("sending_quota", "sending quota", Throttled, "Google's relay: 550 5.4.5 Daily user sending quota exceeded"),
    // Full mailboxes: sites use 5.2.2, 4.2.2, 5.7.1 and bare 552 or 550 for them.
    rule("over_quota", "over quota", MailboxFull, "Gmail 4.2.2 and 5.2.2, Dovecot, Zimbra with 5.1.1 in old releases"),
    rule("overquota", "overquota", MailboxFull, "as above"),
    rule("quota_exceeded", "quota exceeded", MailboxFull, "Exim, cPanel"),
    rule("exceeded_storage_allocation", "exceeded storage allocation", MailboxFull, "RFC 5321's words for 552"),
    rule("out_of_storage_space", "out of storage space", MailboxFull, "Gmail 4.2.2 and 5.2.2"),
    rule("inbox_is_full", "inbox is full", MailboxFull, "Gmail 5.2.2"),
    rule("mailbox_is_full", "mailbox is full", MailboxFull, "Exchange, Yahoo"),
    rule("mailbox_full", "mailbox full", MailboxFull, "Postfix, Exim"),
    rule("user_is_over_the_quota", "user is over the quota", MailboxFull, "Yahoo"),
    // Our return path, before the words for unknown users, which follow in the same answer.
    rule(
        "sender_address_rejected",
        "sender address rejected",
        Policy,
        "Postfix: about our return path, whatever words follow; 5.1.0, 5.1.8 and bare",
    ),
    rule(
        "sender_verify_failed",
        "sender verify failed",
        Policy,
        "Exim callout: our return path does not answer; 550 without a code",
    ),
    // Unknown users under other codes.
    rule(
        "exchange_recipient_not_found",
        "recipientnotfound",
        Hard,
        "Exchange: 5.1.10 RESOLVER.ADR.RecipientNotFound, also as 5.1.1",
    ),
    rule(
        "yahoo_no_such_user",
        "this user doesn't have a",
        Hard,
        "Yahoo: 554 delivery error: dd This user doesn't have a yahoo.com account",
    ),
    rule("mailbox_unavailable_or_not_local", "mailbox unavailable or not local", Hard, "MailEnable: 550 with 5.7.1"),
    rule("postfix_virtual_unknown", "user unknown in virtual", Hard, "Postfix virtual tables, sometimes with 5.0.0"),
    rule("postfix_local_unknown", "user unknown in local recipient table", Hard, "Postfix"),
    rule("postfix_relay_unknown", "user unknown in relay recipient table", Hard, "Postfix"),
    rule("gmail_account_does_not_exist", "email account that you tried to reach does not exist", Hard, "Gmail 5.1.1"),
    rule("gmail_no_such_user", "nosuchuser", Hard, "Gmail's page for 5.1.1"),
    // Switched-off mailboxes are not unknown: the person may come back.
    rule("gmail_account_is_disabled", "account that you tried to reach is disabled", Inactive, "Gmail 5.2.1"),
    rule("gmail_account_is_inactive", "account that you tried to reach is inactive", Inactive, "Gmail 5.2.1"),
    // Greylisting comes with every 4xx code and 4.7.1.
    rule("greylist", "greylist", Temporary, "Postgrey, Exim, rspamd: 450 4.2.0, 4.7.1, 451"),
    rule("graylist", "graylist", Temporary, "as above"),
    rule("grey_list_dash", "grey-list", Temporary, "as above"),
    // Rate limits under other codes.
    rule(
        "gmail_user_rate",
        "receiving mail at a rate",
        Throttled,
        "Gmail 450-4.2.1: the user is receiving mail at a rate that …",
    ),
    rule("too_many_connections", "too many connections", Throttled, "421 4.7.0, 4.3.2, 4.4.5"),
    rule("too_many_messages", "too many messages", Throttled, "as above"),
    rule("too_many_errors", "too many errors", Throttled, "Postfix 421 4.7.0: unknown users from one connection"),
    rule("server_busy", "server busy", Throttled, "Outlook 451 4.7.500"),
    rule("rate_limit", "rate limit", Throttled, "421, 450, 451 with 4.7.1, 4.2.1, 4.3.2"),
    rule("ratelimit", "ratelimit", Throttled, "as above"),
    rule("sending_limit", "sending limit", Throttled, "relays: the account's limit; 550 5.4.5 and 5.7.x"),
    rule("slow_down", "try again later and slow down", Throttled, "several"),
    // Authentication of the sender's domain.
    rule("dmarc", "dmarc", Block, "5.7.1, 5.7.26, 5.7.509 (Outlook); never about the person"),
    rule("spf_check", "spf check", Block, "as above, also with 5.1.8"),
    // What the server thinks of us, not of the recipient or the mail.
    rule(
        "relay_access_denied",
        "relay access denied",
        Configuration,
        "Postfix 554 5.7.1: this server does not relay for us, or does not handle the recipient's domain",
    ),
    rule("relaying_denied", "relaying denied", Configuration, "Sendmail 550 5.7.1"),
    rule("unable_to_relay", "unable to relay", Configuration, "Exchange 550 5.7.1 and 5.7.54"),
    rule(
        "helo_command_rejected",
        "helo command rejected",
        Configuration,
        "Postfix 504 5.5.2, 450 4.7.1 and 550 5.7.1: our name in EHLO",
    ),
    rule(
        "client_host_access_denied",
        "client host rejected: access denied",
        Configuration,
        "Postfix 554 5.7.1: its own table does not let our address in; a block list is named by other words",
    ),
    rule("line_too_long", "line too long", Content, "554 and 500 with 5.6.11 or none"),
    rule("message_too_large", "message too large", Content, "552 and 554 with 5.3.4 or none"),
    rule("message_size_exceeds", "message size exceeds", Content, "552 5.3.4 (Postfix), 5.2.3 (Exchange)"),
    rule("attachment", "attachment", Content, "552 5.7.0 (Gmail: blocked for security), 550 5.7.1"),
    rule("virus", "virus", Content, "554 5.7.1 and bare"),
];

/// RFC 3463 and the IANA registry of enhanced status codes. What stands nowhere here says too little.
pub(super) const CODES: &[CodeRule] = &[
    // X.1: addressing.
    code(
        "no_such_address",
        1,
        &[1, 2, 3, 6, 10],
        Hard,
        "bad mailbox, bad system, bad syntax, moved away, null MX (RFC 7505)",
    ),
    code("sender_address", 1, &[7, 8], Policy, "the sender's address is at fault"),
    // X.2: mailbox.
    code("mailbox_disabled_code", 2, &[1], Inactive, "switched off, or takes no mail from outside"),
    code("mailbox_full_code", 2, &[2], MailboxFull, "empties again"),
    code("too_long_for_mailbox", 2, &[3], Content, "this message is too long for it"),
    code("list_expansion", 2, &[4], Policy, "a list behind the address"),
    // X.3: system.
    code("message_too_big", 3, &[4], Content, "the message is too big for the system"),
    code("system_busy", 3, &[0, 1, 2], Temporary, "full, or taking nothing now"),
    code("system_incapable", 3, &[3], Policy, "the system cannot do what the message needs"),
    // X.4: network and routing.
    code("delivery_expired", 4, &[7], Routing, "X.4.7: given up after days of trying"),
    code("routing", 4, &[], Routing, "their DNS or routing"),
    // X.5: protocol. X.5.0 says nothing at all: Outlook's for unknown users.
    code("too_many_recipients", 5, &[3], Throttled, "X.5.3"),
    code("protocol", 5, &[1, 2, 4, 5, 6], Policy, "one side does not like the other's commands"),
    // X.6: content or media; 7 is "needs SMTPUTF8".
    code("content", 6, &[], Content, "what the message is made of"),
    // X.7: security and policy. 1 is what everybody uses for everything, also Gmail's 7.26 for failed authentication of the
    // sender, 7.27 to 7.30, 7.32, 7.33. None is about the person.
    code("gmail_rate", 7, &[28], Throttled, "Gmail's rate limit"),
    code("policy_code", 7, &[], Block, "policy, reputation, authentication of the sender: never about the person"),
];

/// Words for answers whose enhanced code is missing or says too little.
pub(super) const SUPPORTING: &[TextRule] = &[
    rule("user_unknown", "user unknown", Hard, "Sendmail, Exim, Lotus"),
    rule("unknown_user", "unknown user", Hard, "Exim, qmail"),
    rule("no_such_user", "no such user", Hard, "Exim: No Such User Here; many"),
    rule("no_such_mailbox", "no such mailbox", Hard, "CommuniGate, MailStore"),
    rule("no_such_recipient", "no such recipient", Hard, "several"),
    rule("unknown_recipient", "unknown recipient", Hard, "several"),
    rule("recipient_unknown", "recipient unknown", Hard, "several"),
    rule("recipient_not_found", "recipient not found", Hard, "Exchange front ends"),
    rule("user_not_found", "user not found", Hard, "several"),
    rule("mailbox_not_found", "mailbox not found", Hard, "several"),
    rule("unrouteable_address", "unrouteable address", Hard, "Exim: the domain or user has no router"),
    rule("unroutable_address", "unroutable address", Hard, "as above"),
    rule(
        "no_mailbox_here_by_that_name",
        "no mailbox here by that name",
        Hard,
        "qmail: sorry, no mailbox here by that name (#5.1.1)",
    ),
    rule("mailbox_does_not_exist", "mailbox does not exist", Hard, "several"),
    rule("user_does_not_exist", "user does not exist", Hard, "several"),
    rule("address_does_not_exist", "address does not exist", Hard, "several"),
    rule("recipient_does_not_exist", "recipient does not exist", Hard, "several"),
    rule("account_does_not_exist", "account does not exist", Hard, "several"),
    rule("domain_not_found", "domain not found", Hard, "relays: 550 and 512"),
    rule("not_a_valid_mailbox", "not a valid mailbox", Hard, "several"),
    rule("invalid_recipient", "invalid recipient", Hard, "several"),
    rule(
        "exchange_access_denied",
        "recipient address rejected: access denied",
        Policy,
        "Exchange Online with recipient filtering by list",
    ),
    rule("account_disabled", "account disabled", Inactive, "several"),
    rule("account_is_disabled", "account is disabled", Inactive, "several"),
    rule("mailbox_is_disabled", "mailbox is disabled", Inactive, "Yahoo 554.30"),
    rule("mailbox_disabled", "mailbox disabled", Inactive, "several"),
    rule("account_inactive", "account inactive", Inactive, "several"),
    rule("account_has_been_suspended", "account has been suspended", Inactive, "cPanel"),
    rule("spam", "spam", Block, "any word about spam without a code is about our mail, not the person"),
    rule("blocked", "blocked", Block, "as above"),
    rule("denied_by_policy", "denied by policy", Policy, "several"),
    rule("administrative_prohibition", "administrative prohibition", Policy, "Exim's default words for an ACL"),
    rule("not_authenticated", "not authenticated", Block, "sender authentication"),
    rule("try_again_later", "try again later", Temporary, "several"),
    rule("temporarily", "temporarily", Temporary, "several"),
    rule("no_mx", "no mx", Routing, "relays"),
    rule("host_not_found", "host not found", Routing, "relays; may be their DNS, so nobody is suppressed"),
    rule("frequency_limited", "frequency limited", Throttled, "QQ: 550 Connection frequency limited, without a code"),
    rule("dt_spm", "dt:spm", Block, "163 and 126: 554 DT:SPM, their filter"),
    rule("mi_spb", "mi:spb", Block, "163 and 126: 554 MI:SPB, their filter"),
    rule("mail_content_denied", "mail content denied", Content, "QQ: 550 Mail content denied"),
    rule("ofr_506", "ofr_506", Block, "Orange: 550 5.2.0 Mail rejetée, their filter"),
    rule("policy_restrictions", "policy restrictions", Policy, "GMX and web.de: Reject due to policy restrictions"),
    rule(
        "adresse_invalide",
        "destinataire invalide",
        Hard,
        "Orange: Adresse d au moins un destinataire invalide, OFR_416",
    ),
    rule("no_longer_available", "no longer available", Inactive, "several: the address is no longer available"),
    rule("no_longer_valid", "no longer valid", Hard, "several"),
    rule("not_our_customer", "not our customer", Hard, "mail.ru hosters: not our customer"),
    rule("invalid_mailbox", "invalid mailbox", Hard, "mail.ru: 550 Message was not accepted -- invalid mailbox"),
    rule(
        "delivery_time_expired",
        "delivery time expired",
        Temporary,
        "Postfix, Sendmail: given up after days of temporary answers",
    ),
    rule("retry_timeout_exceeded", "retry timeout exceeded", Temporary, "Exim: the same"),
    rule("had_been_queued_too_long", "had not been delivered", Temporary, "qmail: I am giving up; the same"),
    rule("connection_refused", "connection refused", Routing, "their server is away"),
    rule("connection_timed_out", "connection timed out", Routing, "as above"),
    rule(
        "mailbox_unavailable",
        "mailbox unavailable",
        Inactive,
        "RFC 5321's own words for 550: GMX, Outlook and web.de use them for unknown and closed accounts and for policy alike, so nobody is suppressed for good",
    ),
];

/// RFC 5321 §4.2.3, where nothing better is known.
pub(super) const REPLIES: &[ReplyRule] = &[
    reply("reply_421", 421, 421, Temporary, "the server closes the connection"),
    reply("reply_452", 452, 452, MailboxFull, "insufficient storage"),
    reply("reply_552", 552, 552, MailboxFull, "exceeded storage allocation"),
    reply("reply_556", 556, 556, Hard, "the domain takes no mail (RFC 7504)"),
    reply("reply_4xx", 400, 499, Temporary, "temporary by definition"),
    // Without words or an enhanced code, 550 may be policy as well as an unknown user: nobody is suppressed for it.
    reply("reply_5xx", 500, 599, Policy, "may be anything"),
];
