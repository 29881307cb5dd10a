//! Reports of complaints (ARF, RFC 5965), and the mails that providers without ARF send back as they were.

use mail_parser::{Message, MessageParser, PartType};
use schemas::{
    SignalKind,
    token::{Purpose, TokenKeys},
};
use uuid::Uuid;

use super::{Reading, Road, dsn::STATUS, fields::groups, header, parts_of};

const REPORT: &[(&str, &str)] = &[("message", "feedback-report")];
const HEADERS: &[(&str, &str)] = &[("text", "rfc822-headers"), ("message", "rfc822-headers")];
/// What is kept of a type nobody registered.
const TYPE_CHARS: usize = 32;

/// Reads a report; `None` when the mail is none.
pub(super) fn read(message: &Message<'_>, road: Road) -> Option<Reading> {
    let Some(part) = parts_of(message, REPORT).next() else {
        // Outlook's programme and others: the mail itself, attached to nothing.
        let bare = road == Road::Feedback && carried(message).is_some() && parts_of(message, STATUS).next().is_none();
        return bare.then(|| complaint("abuse"));
    };
    let fields = groups(&String::from_utf8_lossy(part.contents()));
    let kind = fields.iter().find_map(|group| group.get("feedback-type")).unwrap_or("other").to_ascii_lowercase();
    Some(match kind.as_str() {
        // RFC 6591: a signature or a policy failed, which nobody complained of.
        "auth-failure" | "dmarc" => Reading::Noted("auth_failure"),
        "opt-out" | "opt-out-list" => Reading::Told(SignalKind::Unsubscribed { method: "provider".to_owned() }),
        "abuse" | "fraud" | "virus" | "other" | "not-spam" => complaint(&kind),
        unknown => complaint(&unknown.chars().filter(char::is_ascii_graphic).take(TYPE_CHARS).collect::<String>()),
    })
}

fn complaint(kind: &str) -> Reading {
    Reading::Told(SignalKind::Complained { feedback_type: kind.to_owned() })
}

/// The send, by a part that only we can have written.
pub(super) fn evidence(message: &Message<'_>, tokens: &TokenKeys) -> Option<(Option<Uuid>, Uuid)> {
    let reported = parts_of(message, REPORT)
        .next()
        .map(|part| groups(&String::from_utf8_lossy(part.contents())))
        .unwrap_or_default();
    let path = reported.iter().find_map(|group| group.get("original-mail-from"));
    if let Some(send) = path.and_then(|path| returned(path, tokens)) {
        return Some((None, send));
    }
    let carried = carried(message)?;
    let path = header(&carried, "Return-Path").and_then(|path| returned(path, tokens));
    path.map(|send| (None, send)).or_else(|| {
        let claims = tokens.open(Purpose::Unsubscribe, leaving_token(header(&carried, "List-Unsubscribe")?)?).ok()?;
        Some((Some(claims.tenant_id), claims.send_id))
    })
}

/// The send of a return path, in angle brackets or not.
fn returned(path: &str, tokens: &TokenKeys) -> Option<Uuid> {
    let path = path.trim().trim_start_matches('<');
    tokens.returned_send(path.split('@').next()?)
}

/// The token in `<https://link.example/u/<token>>`.
fn leaving_token(field: &str) -> Option<&str> {
    let (_, rest) = field.split_once("/u/")?;
    rest.split(['>', '?', ',', ' ', '\r', '\n']).next()
}

/// The mail a report carries, whole or its header.
fn carried<'a>(message: &'a Message<'a>) -> Option<Message<'a>> {
    let whole = message.parts.iter().find_map(|part| match &part.body {
        PartType::Message(carried) => Some(carried.clone()),
        _ => None,
    });
    whole.or_else(|| MessageParser::default().parse(parts_of(message, HEADERS).next()?.contents()))
}
