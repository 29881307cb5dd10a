//! Messages as their callers wrote them.

use mail_parser::{MessageParser, MimeHeaders};
use rstest::rstest;

use super::*;

fn written(subject: &str, html: &str) -> Written {
    Written { subject: subject.to_owned(), html: html.to_owned(), text: None, attachments: Vec::new() }
}

fn sent(written: &Written, contents: &[Vec<u8>]) -> Vec<u8> {
    let compiled = compile_written(written, &bare()).unwrap();
    let slots = compiled.render(&named("Ada \"the\" Countess"), &TestLinks).unwrap();
    spliced(&compiled, &slots, contents)
}

#[test]
fn nothing_a_caller_wrote_is_read_changed_or_added_to() {
    let html = "<p>{{ first_name }} {% if %} <a href=\"https://x.test/?a=1&b=2\">go</a> Zoë\r\n.\r\nFrom here</p>";
    let message =
        sent(&Written { text: Some("Text {{ x }}".into()), ..written("{{ subject }} = 100 % für Zoë", html) }, &[]);
    let parsed = MessageParser::default().parse(&message).unwrap();
    assert_eq!(parsed.subject(), Some("{{ subject }} = 100 % für Zoë"));
    assert_eq!(parsed.body_html(0).unwrap(), html);
    assert_eq!(parsed.body_text(0).unwrap(), "Text {{ x }}");
    assert_eq!(parsed.attachment_count(), 0);
    for absent in ["List-Unsubscribe", "List-Id"] {
        assert!(parsed.header(absent).is_none(), "{absent}");
    }
    assert!(message.is_ascii() && message.split(|byte| *byte == b'\n').all(|line| line.len() < 999));
}

#[test]
fn a_missing_text_is_derived() {
    let message =
        sent(&written("Hi", "<h1>Hello</h1><p>See <a href=\"https://x.test/a\">this</a> &amp; that</p>"), &[]);
    let text = MessageParser::default().parse(&message).unwrap().body_text(0).unwrap().into_owned();
    assert!(text.contains("Hello") && text.contains("https://x.test/a") && text.contains("& that"), "{text}");
}

#[test]
fn a_subject_cannot_start_a_header() {
    let message = sent(&written("Hi\r\nBcc: eve@example.com", "x"), &[]);
    let parsed = MessageParser::default().parse(&message).unwrap();
    assert_eq!((parsed.subject(), parsed.bcc().is_none()), (Some("Hi Bcc: eve@example.com"), true));
}

#[rstest]
#[case("certificate.pdf")]
#[case("Übersicht 2026 (endgültig).pdf")]
#[case("100% sure; maybe=no.pdf")]
#[case("写真.pdf")]
#[case(
    "a very long name that goes on and on und wird ganz schön lang, weil es länger als eine Zeile sein soll, ja wirklich.pdf"
)]
fn attachments_arrive_whole_and_under_their_names(#[case] name: &str) {
    use base64::Engine as _;
    let contents: Vec<Vec<u8>> = vec![(0..=255).cycle().take(5_000).collect(), b"a,b\n".to_vec()];
    let encoded: Vec<Vec<u8>> = contents
        .iter()
        .map(|content| {
            let text = base64::engine::general_purpose::STANDARD.encode(content);
            text.as_bytes().chunks(76).flat_map(|line| [line, b"\r\n"].concat()).collect()
        })
        .collect();
    let attached = |filename: &str, media_type: &str, encoded: &[u8]| Attached {
        filename: filename.to_owned(),
        media_type: media_type.to_owned(),
        bytes: u32::try_from(encoded.len()).unwrap(),
    };
    let attachments =
        vec![attached(name, "application/pdf", &encoded[0]), attached("b.csv", "text/csv; charset=utf-8", &encoded[1])];
    let message = sent(&Written { attachments, ..written("Hi", "<p>See</p>") }, &encoded);
    let parsed = MessageParser::default().parse(&message).unwrap();
    assert_eq!(parsed.body_html(0).unwrap(), "<p>See</p>");
    let found: Vec<(&str, &[u8])> =
        parsed.attachments().map(|part| (part.attachment_name().unwrap(), part.contents())).collect();
    assert_eq!(found, [(name, contents[0].as_slice()), ("b.csv", contents[1].as_slice())]);
    assert!(message.split(|byte| *byte == b'\n').all(|line| line.len() < 300));
}
