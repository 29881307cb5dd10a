//! Bounces that are written for people only: qmail, older Exim and Exchange, Lotus, and whatever calls itself a mail system.

use super::{NoFactReason, ReportFinding, header::MailHeader, parts::MailParts};
use crate::bounce::{BounceReport, Codes, bounce_fact};

/// Subjects of reports of failure, in lower case, anywhere in them.
const FAILED: &[&str] = &[
    "undeliver",
    "non-deliver",
    "nondeliver",
    "failure notice",
    "delivery failure",
    "delivery failed",
    "delivery has failed",
    "delivery error",
    "delivery status notification (failure)",
    "mail system error",
    "returned mail",
    "returned to sender",
    "could not be delivered",
    "message rejected",
    "unzustellbar",
    "nicht zustellbar",
    "fehlgeschlagen",
    "non remis",
    "non distribu",
    "no entregado",
    "no se puede entregar",
    "mancata consegna",
];
/// Words of reports of a delay, in lower case, in the subject or at the beginning.
const DELAYED: &[&str] = &[
    "delivery status notification (delay)",
    "warning: message",
    "warning: could not send",
    "delivery delayed",
    "delivery is delayed",
    "message delayed",
    "delayed mail",
    "delivery attempts will continue",
    "this is a warning message only",
    "will be retried",
    "not yet been delivered",
    "zustellung verz",
];
/// Where the report ends and what it reports begins, in lower case.
const QUOTED: &[&str] = &[
    "below this line is a copy",
    "this is a copy of the message",
    "original message follows",
    "----- original message",
    "-----original message",
    "original message headers",
    "unsent message below",
    "return-path:",
    "received: from",
];
/// What a report of failure is at most looked at.
const REASON_CHARS: usize = 2_000;

/// Reads a report of failure or delay; `None` when the mail is none.
pub(super) fn read(mail: &MailParts, null_sender: bool) -> Option<ReportFinding> {
    let text = &mail.text;
    let lower = text.to_lowercase();
    // Exim names the recipients that failed, qmail itself, whatever the subject.
    let named = mail.header.get("x-failed-recipients").is_some() || lower.contains("this is the qmail-send program");
    if !(named || null_sender || is_from_a_mail_system(&mail.header)) {
        return None;
    }
    let subject = mail.header.subject().to_lowercase();
    let opening: String = lower.chars().take(1_000).collect();
    if DELAYED.iter().any(|word| subject.contains(word) || opening.contains(word)) {
        return Some(ReportFinding::NoFact(NoFactReason::Delayed));
    }
    if !named && !FAILED.iter().any(|word| subject.contains(word)) {
        return None;
    }
    Some(ReportFinding::Fact(bounce_fact(&BounceReport { text: &reason(text), ..BounceReport::default() })))
}

fn is_from_a_mail_system(header: &MailHeader) -> bool {
    let local = header.sender_local();
    matches!(local.as_str(), "mailer-daemon" | "postmaster" | "mail-daemon" | "maildaemon" | "mdaemon")
        || local.starts_with("microsoftexchange")
}

/// The lines that say why: those with a code and what follows it, else all of the report's own.
pub(super) fn reason(text: &str) -> String {
    let own: Vec<&str> = text
        .lines()
        .map(|line| line.trim().trim_start_matches('>').trim())
        .take_while(|line| {
            let lower = line.to_lowercase();
            !QUOTED.iter().any(|mark| lower.contains(mark))
        })
        .filter(|line| !line.is_empty())
        .collect();
    let coded = own.iter().position(|line| {
        let codes = Codes::of(&BounceReport { text: line, ..BounceReport::default() });
        codes.enhanced.is_some()
            || line.split(' ').next().is_some_and(is_failure_code)
            || codes.reply.is_some() && line.contains("said")
    });
    let lines = match coded {
        Some(at) => own[at..own.len().min(at + 3)].join(" "),
        None => own.join(" "),
    };
    lines.chars().take(REASON_CHARS).collect()
}

fn is_failure_code(word: &str) -> bool {
    let digits = word.get(..3).unwrap_or_default();
    digits.parse::<u16>().is_ok_and(|code| (400..600).contains(&code))
        && !word[3..].starts_with(|c: char| c.is_ascii_digit())
}
