//! The capture provider of sandbox tenants: it accepts every mail, stores it for a while, and sends nothing. Magic recipients
//! get other answers, or cause the facts that a real recipient would cause.

use chrono::Utc;
use mail_parser::{MessageParser, PartType};
use runtime::Publication;
use schemas::{
    Signal, SignalKind, subjects,
    token::{Purpose, TokenKeys},
};
use uuid::Uuid;

use crate::provider::smtp_answer;
use ledger::fence::{Answer, SendAttempt};
use smtp::classify::{ReplyDecision, classify_reply};
use smtp::{Phase, Reply, SmtpMessage};

/// The capture provider's name in the ledger.
pub(super) const PROVIDER: &str = "capture";
/// The domain of the magic recipients.
const MAGIC_DOMAIN: &str = "sandbox.test";
/// The source of the sandbox's signals: the last token of their subject.
const SOURCE: &str = "sandbox";

/// The part before the `@` of a magic recipient, without plus-tag.
fn magic(address: &str) -> Option<&str> {
    let (local, _) = address.split_once('@').filter(|(_, domain)| *domain == MAGIC_DOMAIN)?;
    local.split('+').next()
}

/// What the capture provider answers for this recipient at this attempt. `bounced@sandbox.test` does not exist,
/// `deferred@sandbox.test` is ready at the second attempt, each with any plus-tag; every other address is captured.
/// (`suppressed@sandbox.test` does not come here: the gate withholds it.)
pub(super) fn answer(address: &str, attempt: i16) -> (ReplyDecision, Answer) {
    let reply = match magic(address) {
        Some("bounced") => Reply::new(550, "5.1.1 sandbox: no such user"),
        Some("deferred") if attempt <= 1 => Reply::new(450, "4.2.0 sandbox: not now"),
        _ => return (ReplyDecision::SENT, Answer::text("captured")),
    };
    (classify_reply(Phase::Rcpt, &reply), smtp_answer(Some(&reply)))
}

/// The facts that the recipient of a captured mail causes. Their ids are the send's: those of a repeat are the same facts.
pub(super) fn facts(
    send: &SendAttempt,
    address: &str,
    message: &SmtpMessage,
    tokens: &TokenKeys,
) -> Result<Vec<Publication>, serde_json::Error> {
    let publication = |kind: SignalKind| {
        let signal = Signal {
            signal_id: Uuid::new_v5(&send.id, kind.label().as_bytes()),
            tenant_id: send.batch.tenant_id,
            send_id: send.id,
            occurred_at: Utc::now(),
            kind,
            ip: None,
            user_agent: None,
        };
        Publication::json(subjects::signal(SOURCE), signal.signal_id.to_string(), &signal)
    };
    let link = || first_link(message, tokens).unwrap_or_else(|| (format!("https://{MAGIC_DOMAIN}/"), 0));
    magic_signals(address, link).into_iter().map(publication).collect()
}

/// The signals a recipient causes. A click includes an open.
fn magic_signals(address: &str, link: impl FnOnce() -> (String, u16)) -> Vec<SignalKind> {
    match magic(address) {
        Some("delivered") => vec![SignalKind::Delivered],
        Some("opened") => vec![SignalKind::Delivered, SignalKind::Opened],
        Some("clicked") => {
            let (url, link) = link();
            vec![SignalKind::Delivered, SignalKind::Opened, SignalKind::Clicked { url, link }]
        }
        Some("complained") => {
            vec![SignalKind::Delivered, SignalKind::Complained { feedback_type: "abuse".to_owned() }]
        }
        _ => Vec::new(),
    }
}

/// The target and the number of a message's first tracked link.
fn first_link(message: &SmtpMessage, tokens: &TokenKeys) -> Option<(String, u16)> {
    let parsed = MessageParser::default().parse(message.as_bytes())?;
    let html = parsed.parts.iter().find_map(|part| match &part.body {
        PartType::Html(html) => Some(html),
        _ => None,
    })?;
    html.split("/t/c/").skip(1).find_map(|rest| {
        let token = rest.split(|c: char| !(c.is_ascii_alphanumeric() || "-_.~".contains(c))).next()?;
        let claims = tokens.open(Purpose::Click, token).ok()?;
        claims.click().map(|(link, url)| (url.to_owned(), link))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use smtp::classify::{Class, ReplyOutcome};

    #[rstest]
    #[case::anybody("ann@example.com", 1, ReplyOutcome::Sent)]
    #[case::delivered("delivered@sandbox.test", 1, ReplyOutcome::Sent)]
    #[case::bounced("bounced+7@sandbox.test", 1, ReplyOutcome::Fail { class: Class::Hard, suppress: true })]
    #[case::deferred("deferred@sandbox.test", 1, ReplyOutcome::Defer(Class::Temporary))]
    #[case::deferred_again("deferred+x@sandbox.test", 2, ReplyOutcome::Sent)]
    #[case::other_domain("bounced@example.com", 1, ReplyOutcome::Sent)]
    fn magic_recipients_get_their_answer(#[case] address: &str, #[case] attempt: i16, #[case] outcome: ReplyOutcome) {
        assert_eq!(answer(address, attempt).0.outcome, outcome);
    }

    #[rstest]
    #[case("ann@example.com", &[])]
    #[case("opened@example.com", &[])]
    #[case("delivered@sandbox.test", &["delivered"])]
    #[case("opened+a@sandbox.test", &["delivered", "opened"])]
    #[case("clicked@sandbox.test", &["delivered", "opened", "clicked"])]
    #[case("complained@sandbox.test", &["delivered", "complained"])]
    fn magic_recipients_make_their_facts(#[case] address: &str, #[case] expected: &[&str]) {
        let made = magic_signals(address, || ("https://shop.example/".to_owned(), 0));
        assert_eq!(made.iter().map(SignalKind::label).collect::<Vec<_>>(), expected);
    }
}
