//! Well-known texts, as data. All patterns are lower-case and matched anywhere in the answer's text.

use super::Class;
use crate::smtp::Reply;

/// A text that is known to mean something, and where it is known from.
struct Rule {
    pattern: &'static str,
    class: Class,
    /// Who says so, and why the code alone is not enough. Read by people, and by the test that every rule has one.
    #[cfg_attr(not(test), allow(dead_code, reason = "documentation kept as data"))]
    reason: &'static str,
}

const fn rule(pattern: &'static str, class: Class, reason: &'static str) -> Rule {
    Rule { pattern, class, reason }
}

/// Texts that are stronger than the code beside them, because their authors are known to use the code loosely.
const OVERRIDING: &[Rule] = &[
    // Reputation and spam first: a block list's page may well contain the words "user unknown".
    rule("spamhaus", Class::Block, "names the block list; comes with 5.7.1, 5.7.0 and bare 550 alike"),
    rule("barracudacentral", Class::Block, "names the block list"),
    rule("spamcop", Class::Block, "names the block list"),
    rule("sorbs", Class::Block, "names the block list"),
    rule("blacklist", Class::Block, "every site's own list"),
    rule("blocklist", Class::Block, "every site's own list; Outlook's S3140 among them"),
    rule("blocked using", Class::Block, "Postfix reject_rbl_client, whose code is 554 5.7.1 or whatever is configured"),
    rule("poor reputation", Class::Block, "Cisco, Proofpoint; also as 4xx"),
    rule("bad reputation", Class::Block, "as above"),
    rule("low reputation", Class::Block, "Gmail 421-4.7.0 and 550-5.7.1"),
    rule("has been temporarily rate limited due to ip reputation", Class::Throttled, "Outlook 451 4.7.650"),
    rule("unsolicited mail", Class::Block, "Gmail 421-4.7.28 and 550-5.7.1"),
    rule("looks like spam", Class::Block, "many filters, some with 5.1.1"),
    rule("considered spam", Class::Block, "many filters"),
    rule("spam message", Class::Block, "many filters"),
    rule("rejected as spam", Class::Block, "many filters"),
    rule("[ts0", Class::Throttled, "Yahoo: temporarily deferred due to volume or complaints, 421 4.7.0"),
    rule("rp-001", Class::Throttled, "Outlook 421: too many connections for our reputation"),
    rule("rp-003", Class::Throttled, "Outlook 421: as above"),
    // Full mailboxes: sites use 5.2.2, 4.2.2, 5.7.1 and bare 552 or 550 for them.
    rule("over quota", Class::MailboxFull, "Gmail 4.2.2 and 5.2.2, Dovecot, Zimbra with 5.1.1 in old releases"),
    rule("overquota", Class::MailboxFull, "as above"),
    rule("quota exceeded", Class::MailboxFull, "Exim, cPanel"),
    rule("exceeded storage allocation", Class::MailboxFull, "RFC 5321's words for 552"),
    rule("out of storage space", Class::MailboxFull, "Gmail 4.2.2 and 5.2.2"),
    rule("inbox is full", Class::MailboxFull, "Gmail 5.2.2"),
    rule("mailbox is full", Class::MailboxFull, "Exchange, Yahoo"),
    rule("mailbox full", Class::MailboxFull, "Postfix, Exim"),
    rule("user is over the quota", Class::MailboxFull, "Yahoo"),
    // Unknown users under other codes.
    rule("recipientnotfound", Class::Hard, "Exchange: 5.1.10 RESOLVER.ADR.RecipientNotFound, also as 5.1.1"),
    rule(
        "this user doesn't have a",
        Class::Hard,
        "Yahoo: 554 delivery error: dd This user doesn't have a yahoo.com account",
    ),
    rule("mailbox unavailable or not local", Class::Hard, "MailEnable: 550 with 5.7.1"),
    rule("user unknown in virtual", Class::Hard, "Postfix virtual tables, sometimes with 5.0.0"),
    rule("user unknown in local recipient table", Class::Hard, "Postfix"),
    rule("user unknown in relay recipient table", Class::Hard, "Postfix"),
    rule("email account that you tried to reach does not exist", Class::Hard, "Gmail 5.1.1"),
    rule("nosuchuser", Class::Hard, "Gmail's page for 5.1.1"),
    // Switched-off mailboxes are not unknown: the person may come back.
    rule("account that you tried to reach is disabled", Class::Inactive, "Gmail 5.2.1"),
    rule("account that you tried to reach is inactive", Class::Inactive, "Gmail 5.2.1"),
    // Greylisting comes with every 4xx code and 4.7.1.
    rule("greylist", Class::Temporary, "Postgrey, Exim, rspamd: 450 4.2.0, 4.7.1, 451"),
    rule("graylist", Class::Temporary, "as above"),
    rule("grey-list", Class::Temporary, "as above"),
    // Rate limits under other codes.
    rule("receiving mail at a rate", Class::Throttled, "Gmail 450-4.2.1: the user is receiving mail at a rate that …"),
    rule("too many connections", Class::Throttled, "421 4.7.0, 4.3.2, 4.4.5"),
    rule("too many messages", Class::Throttled, "as above"),
    rule("too many errors", Class::Throttled, "Postfix 421 4.7.0: unknown users from one connection"),
    rule("server busy", Class::Throttled, "Outlook 451 4.7.500"),
    rule("rate limit", Class::Throttled, "421, 450, 451 with 4.7.1, 4.2.1, 4.3.2"),
    rule("ratelimit", Class::Throttled, "as above"),
    rule("sending limit", Class::Throttled, "relays: the account's limit; 550 5.4.5 and 5.7.x"),
    rule("try again later and slow down", Class::Throttled, "several"),
    // Authentication of the sender's domain.
    rule("dmarc", Class::Block, "5.7.1, 5.7.26, 5.7.509 (Outlook); never about the person"),
    rule("spf check", Class::Block, "as above, also with 5.1.8"),
    rule("sender verify failed", Class::Policy, "Exim callout: our return path does not answer; 550 without a code"),
    rule("relay access denied", Class::Policy, "Postfix 554 5.7.1: this server does not handle the recipient's domain"),
    rule("relaying denied", Class::Policy, "Sendmail 550 5.7.1"),
    rule("unable to relay", Class::Policy, "Exchange 550 5.7.1"),
    rule("line too long", Class::Content, "554 and 500 with 5.6.11 or none"),
    rule("message too large", Class::Content, "552 and 554 with 5.3.4 or none"),
    rule("message size exceeds", Class::Content, "552 5.3.4 (Postfix), 5.2.3 (Exchange)"),
    rule("attachment", Class::Content, "552 5.7.0 (Gmail: blocked for security), 550 5.7.1"),
    rule("virus", Class::Content, "554 5.7.1 and bare"),
];

/// Texts for answers without a useful enhanced code.
const SUPPORTING: &[Rule] = &[
    rule("user unknown", Class::Hard, "Sendmail, Exim, Lotus"),
    rule("unknown user", Class::Hard, "Exim, qmail"),
    rule("no such user", Class::Hard, "Exim: No Such User Here; many"),
    rule("no such mailbox", Class::Hard, "CommuniGate, MailStore"),
    rule("no such recipient", Class::Hard, "several"),
    rule("unknown recipient", Class::Hard, "several"),
    rule("recipient unknown", Class::Hard, "several"),
    rule("recipient not found", Class::Hard, "Exchange front ends"),
    rule("user not found", Class::Hard, "several"),
    rule("mailbox not found", Class::Hard, "several"),
    rule("unrouteable address", Class::Hard, "Exim: the domain or user has no router"),
    rule("unroutable address", Class::Hard, "as above"),
    rule("no mailbox here by that name", Class::Hard, "qmail: sorry, no mailbox here by that name (#5.1.1)"),
    rule("mailbox does not exist", Class::Hard, "several"),
    rule("user does not exist", Class::Hard, "several"),
    rule("address does not exist", Class::Hard, "several"),
    rule("recipient does not exist", Class::Hard, "several"),
    rule("account does not exist", Class::Hard, "several"),
    rule("domain not found", Class::Hard, "relays: 550 and 512"),
    rule("not a valid mailbox", Class::Hard, "several"),
    rule("invalid recipient", Class::Hard, "several"),
    rule(
        "recipient address rejected: access denied",
        Class::Policy,
        "Exchange Online with recipient filtering by list",
    ),
    rule("account disabled", Class::Inactive, "several"),
    rule("account is disabled", Class::Inactive, "several"),
    rule("mailbox disabled", Class::Inactive, "several"),
    rule("account inactive", Class::Inactive, "several"),
    rule("account has been suspended", Class::Inactive, "cPanel"),
    rule("spam", Class::Block, "any word about spam without a code is about our mail, not the person"),
    rule("blocked", Class::Block, "as above"),
    rule("denied by policy", Class::Policy, "several"),
    rule("administrative prohibition", Class::Policy, "Exim's default words for an ACL"),
    rule("not authenticated", Class::Block, "sender authentication"),
    rule("try again later", Class::Temporary, "several"),
    rule("temporarily", Class::Temporary, "several"),
    rule("no mx", Class::Routing, "relays"),
    rule("host not found", Class::Routing, "relays; may be their DNS, so nobody is suppressed"),
];

/// A text stronger than the enhanced code.
pub(super) fn overriding(reply: &Reply, text: &str) -> Option<Class> {
    // Answers of one word or none have no text to judge.
    if reply.text.is_empty() { None } else { find(OVERRIDING, text) }
}

/// A text for answers whose enhanced code is missing or says too little.
pub(super) fn supporting(text: &str) -> Option<Class> {
    find(SUPPORTING, text)
}

fn find(rules: &[Rule], text: &str) -> Option<Class> {
    rules.iter().find(|rule| text.contains(rule.pattern)).map(|rule| rule.class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_lower_case_reachable_and_has_its_reason() {
        for rules in [OVERRIDING, SUPPORTING] {
            for (number, rule) in rules.iter().enumerate() {
                assert_eq!(rule.pattern, rule.pattern.to_lowercase());
                assert!(!rule.reason.is_empty());
                let earlier = rules[..number].iter().find(|earlier| rule.pattern.contains(earlier.pattern));
                assert!(earlier.is_none_or(|earlier| earlier.class != rule.class), "{} never decides", rule.pattern);
            }
        }
    }
}
