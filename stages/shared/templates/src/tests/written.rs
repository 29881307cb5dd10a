//! Messages as their callers wrote them.

use mail_parser::{MessageParser, MimeHeaders};
use rstest::rstest;

use super::*;

fn written(subject: &str, html: &str) -> Written {
    Written { subject: subject.to_owned(), html: html.to_owned(), text: None, is_test: false }
}

fn sent(written: &Written, contents: &[Vec<u8>]) -> Vec<u8> {
    sent_with(Vec::new(), written, contents)
}

fn sent_with(attachments: Vec<Attached>, written: &Written, contents: &[Vec<u8>]) -> Vec<u8> {
    let compiled = compile_written(written, &MessageOptions { attachments, ..bare() }).unwrap();
    let slots = compiled.render(&named("Ada \"the\" Countess"), &TestLinks).unwrap();
    spliced(&compiled, &slots, contents)
}

/// An attachment with these base64 lines.
fn attached(filename: &str, media_type: &str, encoded: &[u8]) -> Attached {
    Attached {
        filename: filename.to_owned(),
        media_type: media_type.to_owned(),
        content_id: None,
        bytes: u32::try_from(encoded.len()).unwrap(),
    }
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
#[case::without_a_space("0".repeat(998))]
#[case::in_another_script("ж".repeat(998))]
#[case::of_words("offer ".repeat(166).trim_end().to_owned())]
fn a_long_subject_fits_the_lines_of_a_message(#[case] subject: String) {
    let message = sent(&written(&subject, "x"), &[]);
    assert_eq!(MessageParser::default().parse(&message).unwrap().subject(), Some(subject.as_str()));
    assert!(message.is_ascii() && message.split(|byte| *byte == b'\n').all(|line| line.len() < 999));
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
    let attachments =
        vec![attached(name, "application/pdf", &encoded[0]), attached("b.csv", "text/csv; charset=utf-8", &encoded[1])];
    let message = sent_with(attachments, &written("Hi", "<p>See</p>"), &encoded);
    let parsed = MessageParser::default().parse(&message).unwrap();
    assert_eq!(parsed.body_html(0).unwrap(), "<p>See</p>");
    let found: Vec<(&str, &[u8])> =
        parsed.attachments().map(|part| (part.attachment_name().unwrap(), part.contents())).collect();
    assert_eq!(found, [(name, contents[0].as_slice()), ("b.csv", contents[1].as_slice())]);
    assert!(message.split(|byte| *byte == b'\n').all(|line| line.len() < 300));
}

#[test]
fn an_inline_image_stands_beside_the_html_that_shows_it() {
    let encoded = vec![b"AAAA\r\n".to_vec(), b"BBBB\r\n".to_vec()];
    let logo = Attached { content_id: Some("logo".to_owned()), ..attached("logo.png", "image/png", &encoded[1]) };
    let attachments = vec![attached("a.pdf", "application/pdf", &encoded[0]), logo];
    let message = sent_with(attachments, &written("Hi", "<img src=\"cid:logo\">"), &encoded);
    let parsed = MessageParser::default().parse(&message).unwrap();
    let kinds: Vec<String> = parsed
        .parts
        .iter()
        .map(|part| part.content_type().map_or_else(String::new, |kind| kind.subtype().unwrap_or_default().to_owned()))
        .collect();
    assert_eq!(kinds, ["mixed", "alternative", "plain", "related", "html", "png", "pdf"]);
    let image = &parsed.parts[5];
    assert_eq!((image.content_id(), image.attachment_name()), (Some("logo"), Some("logo.png")));
    assert!(image.content_disposition().unwrap().is_inline());
    assert_eq!((image.contents(), parsed.parts[6].contents()), (&[4, 16, 65][..], &[0, 0, 0][..]));
}

#[test]
fn an_invite_is_an_alternative_and_a_file() {
    let encoded = vec![b"QkVHSU4=\r\n".to_vec(), b"BBBB\r\n".to_vec()];
    let calendar = "text/calendar; method=REQUEST; charset=utf-8";
    let attachments =
        vec![attached("invite.ics", calendar, &encoded[0]), attached("a.pdf", "application/pdf", &encoded[1])];
    let options = MessageOptions { attachments: attachments.clone(), ..bare() };
    let compiled = compile(&template("<p>Hi</p>"), &options).unwrap();
    let slots = compiled.render(&data(), &send_links()).unwrap();
    let of_template = spliced(&compiled, &slots, &encoded);
    for message in [sent_with(attachments, &written("Hi", "<p>Hi</p>"), &encoded), of_template] {
        let parsed = MessageParser::default().parse(&message).unwrap();
        let kinds: Vec<&str> =
            parsed.parts.iter().map(|part| part.content_type().unwrap().subtype().unwrap_or_default()).collect();
        assert_eq!(kinds, ["mixed", "alternative", "plain", "html", "calendar", "ics", "pdf"]);
        let invite = &parsed.parts[4];
        assert_eq!(invite.content_type().unwrap().attribute("method"), Some("REQUEST"));
        assert!(invite.content_disposition().is_none());
        assert_eq!((invite.contents(), parsed.parts[5].contents()), (&b"BEGIN"[..], &b"BEGIN"[..]));
        assert_eq!(parsed.parts[5].attachment_name(), Some("invite.ics"));
    }
}
