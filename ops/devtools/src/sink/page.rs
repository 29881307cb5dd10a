//! The inbox for people: plain pages without scripts.

use std::fmt::Write as _;
use std::sync::Arc;

use htmlize::escape_all_quotes as escape;

use crate::sink::inbox::{Stats, now_us};
use crate::sink::message::{HeaderField, Parsed, StoredMessage};

const STYLE: &str = include_str!("page.css");

/// The newest mails. It loads itself again every few seconds.
pub(crate) fn list(stats: &Stats, messages: &[Arc<StoredMessage>], to: Option<&str>) -> String {
    let mut page = begin("Inbox", Some(3));
    let filter = escape(to.unwrap_or_default());
    let _ = write!(
        page,
        r#"<header><h1><a href="/">Inbox</a></h1>
<form method="get" action="/"><input type="search" name="to" value="{filter}" placeholder="Recipient’s whole address" aria-label="Recipient"><button>Show</button></form></header>
<main><dl class="stats">"#
    );
    for (name, value) in [
        ("accepted", stats.accepted),
        ("addresses", stats.distinct),
        ("mailed again", stats.duplicates),
        ("deferred", stats.deferred),
        ("rejected", stats.rejected),
        ("dropped", stats.dropped),
        ("last second", stats.last_second),
    ] {
        let _ = write!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", grouped(value));
    }
    page.push_str("</dl>");
    if messages.is_empty() {
        let text = match to {
            Some(_) => "No kept mail for this address.",
            None => "No mail yet. This page looks again by itself.",
        };
        let _ = write!(page, r#"<p class="empty">{text}</p>"#);
    } else {
        page.push_str(r#"<ol class="mails">"#);
        for message in messages {
            list_entry(&mut page, message);
        }
        page.push_str("</ol>");
    }
    page.push_str("</main>");
    page
}

fn list_entry(page: &mut String, message: &StoredMessage) {
    let parsed = message.parse();
    let subject = if parsed.subject.is_empty() { "(no subject)" } else { &parsed.subject };
    let words: Vec<&str> = parsed.text.as_deref().unwrap_or_default().split_whitespace().collect();
    let preview: String = words.join(" ").chars().take(140).collect();
    let _ = write!(
        page,
        r#"<li><a href="/inbox/{id}"><span class="to">{to}</span><span class="what"><b>{subject}</b> <span class="preview">{preview}</span></span><span class="when">{when}</span></a></li>"#,
        id = message.id,
        to = escape(message.to.join(", ")),
        subject = escape(subject),
        preview = escape(&preview),
        when = ago(message.accepted_at_us),
    );
}

/// One mail: rendered, as text, its header, its source.
pub(crate) fn message(message: &StoredMessage, parsed: &Parsed) -> String {
    let mut page = begin(&parsed.subject, None);
    let id = message.id;
    let _ = write!(
        page,
        r#"<header><h1><a href="/">Inbox</a></h1><nav><a href="/messages/{id}/source">Source</a> <a href="/messages/{id}">JSON</a></nav></header><main class="mail"><h2>{subject}</h2>
<p class="envelope">{from} → {to} <span class="when">{when} · {size} bytes · number {id}</span></p>"#,
        subject = escape(&parsed.subject),
        from = escape(if message.from.is_empty() { "<>" } else { &message.from }),
        to = escape(message.to.join(", ")),
        when = ago(message.accepted_at_us),
        size = grouped(message.source.len() as u64),
    );
    unsubscribe(&mut page, parsed);
    if parsed.html.is_some() {
        let _ = write!(
            page,
            r#"<section><h3>HTML</h3><iframe title="The mail" src="/messages/{id}/html" sandbox="allow-popups allow-popups-to-escape-sandbox"></iframe></section>"#
        );
    }
    if let Some(text) = &parsed.text {
        let open = if parsed.html.is_some() { "" } else { " open" };
        let _ = write!(page, "<details{open}><summary>Text</summary><pre>{}</pre></details>", escape(text));
    }
    if !parsed.attachments.is_empty() {
        page.push_str("<details open><summary>Attachments</summary><ul>");
        for attachment in &parsed.attachments {
            let _ = write!(
                page,
                "<li>{} <span class=\"when\">{} · {} bytes</span></li>",
                escape(attachment.name.as_deref().unwrap_or("(no name)")),
                escape(&attachment.content_type),
                grouped(attachment.bytes as u64),
            );
        }
        page.push_str("</ul></details>");
    }
    page.push_str("<details open><summary>Header</summary><table>");
    for HeaderField { name, value } in &parsed.headers {
        let _ = write!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), linked(value));
    }
    let source = String::from_utf8_lossy(&message.source);
    let source = escape(&*source);
    let _ = write!(page, "</table></details><details><summary>Source</summary><pre>{source}</pre></details></main>");
    page
}

/// What a mailbox shows beside the sender: the unsubscribe link, and the one-click button of RFC 8058.
fn unsubscribe(page: &mut String, parsed: &Parsed) {
    let Some(url) = parsed
        .header("List-Unsubscribe")
        .and_then(|value| value.split([',', '<', '>', ' ']).find(|part| is_web_address(part)))
    else {
        return;
    };
    let url = escape(url);
    let _ = write!(
        page,
        r#"<div class="unsubscribe"><a href="{url}" target="_blank" rel="noreferrer">Unsubscribe page</a>"#
    );
    if parsed.header("List-Unsubscribe-Post").is_some() {
        let _ = write!(
            page,
            r#"<form method="post" action="{url}" target="_blank"><input type="hidden" name="List-Unsubscribe" value="One-Click"><button>One-click unsubscribe</button></form>"#
        );
    }
    page.push_str("</div>");
}

/// The mail's HTML, with links that open beside the inbox instead of inside the frame.
pub(crate) fn with_links_in_new_tabs(html: &str) -> String {
    const BASE: &str = r#"<base target="_blank">"#;
    // Behind <head>, so that a document type before it keeps its meaning.
    let head = html
        .as_bytes()
        .windows(5)
        .position(|window| window.eq_ignore_ascii_case(b"<head"))
        .filter(|place| !html[place + 5..].starts_with("er"))
        .and_then(|place| Some(place + html[place..].find('>')? + 1))
        .unwrap_or(0);
    format!("{}{BASE}{}", &html[..head], &html[head..])
}

fn begin(title: &str, refresh_seconds: Option<u32>) -> String {
    let refresh = refresh_seconds
        .map(|seconds| format!(r#"<meta http-equiv="refresh" content="{seconds}">"#))
        .unwrap_or_default();
    format!(
        r#"<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">{refresh}<title>{}</title><style>{STYLE}</style></head>"#,
        escape(title)
    )
}

fn is_web_address(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Escaped text in which web addresses are links.
fn linked(text: &str) -> String {
    let mut html = String::new();
    for part in text.split_inclusive([' ', ',', '<', '>']) {
        let url = part.trim_end_matches([' ', ',', '<', '>']);
        if is_web_address(url) {
            let (url, rest) = (escape(url), escape(&part[url.len()..]));
            let _ = write!(html, r#"<a href="{url}" target="_blank" rel="noreferrer">{url}</a>{rest}"#);
        } else {
            html.push_str(&escape(part));
        }
    }
    html
}

/// `12 345`
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            // A narrow space that does not break.
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

fn ago(at_us: u64) -> String {
    match now_us().saturating_sub(at_us) / 1_000_000 {
        0..5 => "now".to_owned(),
        seconds @ 5..120 => format!("{seconds} s ago"),
        seconds @ 120..7_200 => format!("{} min ago", seconds / 60),
        seconds => format!("{} h ago", seconds / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("<p>Hi</p>", "<base target=\"_blank\"><p>Hi</p>")]
    #[case("<html><HEAD lang=x><title>", "<html><HEAD lang=x><base target=\"_blank\"><title>")]
    #[case("<header>Hi</header>", "<base target=\"_blank\"><header>Hi</header>")]
    #[case("<head", "<base target=\"_blank\"><head")]
    fn links_of_a_mail_open_beside_the_inbox(#[case] html: &str, #[case] shown: &str) {
        assert_eq!(with_links_in_new_tabs(html), shown);
    }

    #[test]
    fn only_web_addresses_become_links() {
        let html = linked("<https://a.example/?x=1&y=2>, <javascript:alert(1)>");
        assert!(html.contains(r#"<a href="https://a.example/?x=1&amp;y=2""#), "{html}");
        assert!(!html.contains(r#"href="javascript"#), "{html}");
        assert!(html.contains("&lt;javascript:alert(1)&gt;"), "{html}");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
    }
}
