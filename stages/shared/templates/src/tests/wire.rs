//! The message on the wire: what was spliced decodes to what was rendered, whatever the data.

use mail_parser::{MessageParser, MimeHeaders};
use proptest::prelude::*;
use rstest::rstest;
use schemas::token::Purpose;

use super::*;

/// Every line at most 998 octets, body lines at most 76; CR and LF only together; no bare controls.
fn assert_well_formed(message: &[u8]) {
    let text = std::str::from_utf8(message).expect("skeletons are ASCII");
    assert!(text.is_ascii());
    assert_eq!(text.replace("\r\n", "").find(['\r', '\n', '\0']), None);
    let body = text.find("\r\n\r\n").unwrap();
    for (at, line) in text.split("\r\n").enumerate() {
        assert!(line.len() <= 998, "line {at}");
    }
    for line in text[body..].split("\r\n") {
        assert!(line.len() <= 76, "{line}");
        assert!(!line.starts_with('.') && !line.starts_with("From "), "{line}");
    }
}

fn decoded(message: &[u8]) -> MessagePreview {
    let parsed = MessageParser::default().parse(message).unwrap();
    let part = |at: usize| {
        let part = &parsed.parts[at];
        part.text_contents().unwrap().replace("\r\n", "\n")
    };
    assert_eq!(parsed.parts.len(), 3);
    assert_eq!(parsed.parts[1].content_type().unwrap().subtype(), Some("plain"));
    assert_eq!(parsed.parts[2].content_type().unwrap().subtype(), Some("html"));
    MessagePreview { subject: parsed.subject().unwrap_or_default().to_owned(), text: part(1), html: part(2) }
}

#[test]
fn own_headers_are_in_their_mail_and_end_no_line_early() {
    let options = MessageOptions { own_headers: true, ..marketing() };
    let sent = |headers: OwnHeaders| message(&template("<p>x</p>"), &options, &MergeData { headers, ..data() });
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let own = sent(OwnHeaders {
        to_name: Some("Everybody".to_owned()),
        from_name: Some("Größe, Billing".to_owned()),
        reply_to: Some("desk@example.com".to_owned()),
        cc: (0..40).map(|n| (format!("Größe, {n}\r\nBcc: x"), format!("copy-{n}@example.org"))).collect(),
        custom: vec![
            pair("X-Order", "ä".repeat(300).as_str()),
            pair("X-Word", &"w".repeat(800)),
            pair("X-Two", "1\r\nBcc: all@example.com"),
            pair("X-Name\r\nBcc", "all@example.com"),
        ],
    });
    assert_well_formed(&own);
    let parsed = MessageParser::new()
        .with_minimal_headers()
        .with_mime_headers()
        .with_address_headers()
        .with_message_ids()
        .header_text("X-Order")
        .header_text("X-Two")
        .parse(&own)
        .unwrap();
    assert_eq!(parsed.from().unwrap().first().unwrap().name(), Some("Größe, Billing"));
    assert_eq!(parsed.from().unwrap().first().unwrap().address(), Some("ann@example.com"));
    assert_eq!(parsed.reply_to().unwrap().first().unwrap().address(), Some("desk@example.com"));
    assert_eq!(parsed.header("X-Order").unwrap().as_text().map(str::len), Some(600));
    assert_eq!(parsed.header("X-Two").unwrap().as_text(), Some("1 Bcc: all@example.com"), "one field");
    assert_eq!(parsed.to().unwrap().first().unwrap().name(), Some("Everybody"));
    assert!(parsed.bcc().is_none());
    assert_eq!(parsed.cc().unwrap().iter().count(), 40);
    assert_eq!(parsed.cc().unwrap().first().unwrap().address(), Some("copy-0@example.org"));
    let none = sent(OwnHeaders::default());
    assert_well_formed(&none);
    let parsed = MessageParser::default().parse(&none).unwrap();
    assert_eq!(parsed.from().unwrap().first().unwrap().name(), Some("Ann Sender"));
    assert_eq!(parsed.reply_to().unwrap().first().unwrap().address(), Some("reply@example.com"));
}

#[rstest]
#[case::nameless("")]
#[case::plain("Ann")]
fn any_number_of_copies_fits_the_lines_of_a_header(#[case] name: &str) {
    let options = MessageOptions { own_headers: true, ..bare() };
    let cc: Vec<_> =
        (0..49).map(|n| (name.to_owned(), format!("{}{n:02}@copies.example.org", "c".repeat(39)))).collect();
    let headers = OwnHeaders { cc: cc.clone(), ..OwnHeaders::default() };
    let message = message(&template("<p>x</p>"), &options, &MergeData { headers, ..data() });
    assert_well_formed(&message);
    let parsed = MessageParser::default().parse(&message).unwrap();
    let found: Vec<_> = parsed.cc().unwrap().iter().map(|copy| copy.address().unwrap().to_owned()).collect();
    assert_eq!(found, cc.into_iter().map(|(_, address)| address).collect::<Vec<_>>());
}

#[test]
fn a_message_carries_the_headers_it_should() {
    let source = TemplateSource { subject: "Hi {{ first_name }}".to_owned(), ..template("<p>x</p>") };
    let message = message(&source, &marketing(), &data());
    assert_well_formed(&message);
    let parsed = MessageParser::default().parse(&message).unwrap();
    let raw = |name: &str| parsed.header_raw(name).map(str::trim).unwrap_or_default().to_owned();
    assert_eq!(parsed.from().unwrap().first().unwrap().name(), Some("Ann Sender"));
    assert_eq!(parsed.from().unwrap().first().unwrap().address(), Some("ann@example.com"));
    assert_eq!(parsed.reply_to().unwrap().first().unwrap().address(), Some("reply@example.com"));
    assert_eq!(parsed.to().unwrap().first().unwrap().name(), Some("Ada Lovelace"));
    assert_eq!(parsed.to().unwrap().first().unwrap().address(), Some("ada@example.org"));
    assert_eq!(parsed.subject(), Some("Hi Ada"));
    assert_eq!(raw("Date"), "Tue, 19 Aug 2025 05:47:11 +0000");
    let (local, domain) = parsed.message_id().unwrap().split_once('@').unwrap();
    assert_eq!((TOKENS.identified_send(local), domain), (Some(SEND.0), "example.com"));
    assert_eq!(raw("X-Postrider-Send"), "0198c0de-0000-7000-8000-000000000001");
    let leave = raw("List-Unsubscribe");
    let token = leave.strip_prefix("<https://public.test/u/").and_then(|rest| rest.strip_suffix('>')).unwrap();
    let claims = TOKENS.open(Purpose::Unsubscribe, token).unwrap();
    assert_eq!((claims.send_id, claims.contact()), (SEND.0, Some(send_links().ids.contact_id)));
    assert_eq!(raw("List-Unsubscribe-Post"), "List-Unsubscribe=One-Click");
    assert_eq!(raw("List-Id"), "<t-1.example.com>");
    assert_eq!(raw("Feedback-ID"), "c-1:t-1:marketing:postrider");
    assert_eq!(raw("MIME-Version"), "1.0");
}

#[test]
fn mail_without_opt_out_has_no_list_headers() {
    let message = message(&template("x"), &bare(), &data());
    let parsed = MessageParser::default().parse(&message).unwrap();
    assert!(parsed.header_raw("List-Unsubscribe").is_none() && parsed.header_raw("List-Id").is_none());
}

#[test]
fn a_static_template_needs_only_the_envelope_slots() {
    let compiled = compile(&template("<p>x</p>"), &bare()).unwrap();
    assert_eq!(compiled.skeleton().slots, 1);
    assert_eq!(compile(&template("<p>x</p>"), &bare()).unwrap().skeleton().id(), compiled.skeleton().id());
}

#[test]
fn addresses_of_ours_take_no_slot() {
    let html =
        "<a href=\"https://x.test\">{{ first_name }}</a> {{ unsubscribe_url }} <a href=\"{{ preferences_url }}\">x</a>";
    let compiled = compile(&template(html), &marketing()).unwrap();
    // To, the name in both bodies, and the word of the footer's link.
    assert_eq!(compiled.skeleton().slots, 4);
    let slots = compiled.render(&data(), &send_links()).unwrap();
    assert!(slots.iter().all(|slot| !slot.contains("v1.")), "{slots:?}");
}

#[test]
fn assignments_take_no_slot_of_their_own() {
    let one = compile(&template("{% assign x = email %}<p>lots of static text</p>{{ x }}"), &bare()).unwrap();
    let none = compile(&template("<p>lots of static text</p>{{ email }}"), &bare()).unwrap();
    assert_eq!(one.skeleton().slots, none.skeleton().slots);
}

#[rstest]
#[case("Bob\r\nBcc: evil@example.org")]
#[case("Bob\nSubject: x\n\nbody")]
#[case("Bob\0\r")]
#[case("Bob\u{2028}Bcc: x\u{85}y")]
#[case("\"><x@y>\\\"")]
#[case("a, b <c@d.test>; e: f;")]
#[case("=?utf-8?q?=0D=0ABcc:_x?=")]
fn a_name_cannot_inject_a_header(#[case] name: &str) {
    let source = TemplateSource { subject: "Hi {{ first_name }}".to_owned(), ..template("x") };
    let harmless = message(&source, &marketing(), &named("Bob"));
    let hostile = message(&source, &marketing(), &named(name));
    assert_well_formed(&hostile);
    let names = |message: &[u8]| -> Vec<String> {
        let parsed = MessageParser::default().parse(message).unwrap();
        parsed.headers().iter().map(|header| header.name().to_owned()).collect()
    };
    assert_eq!(names(&hostile), names(&harmless));
    let parsed = MessageParser::default().parse(&hostile).unwrap();
    assert_eq!(parsed.to().unwrap().first().unwrap().address(), Some("ada@example.org"));
    assert_eq!(parsed.to().unwrap().iter().count(), 1);
}

#[test]
fn a_subject_that_fits_no_header_is_the_recipient_s_fault() {
    let source = TemplateSource { subject: "{{ first_name }}".to_owned(), ..template("x") };
    let compiled = compile(&source, &bare()).unwrap();
    assert_eq!(compiled.render(&named(&"x".repeat(901)), &TestLinks).unwrap_err(), RenderFault::SubjectTooLong);
    let longest = compiled.render(&named(&"é".repeat(450)), &TestLinks).unwrap();
    assert_eq!(decoded(&spliced(&compiled, &longest, &[])).subject, "é".repeat(450));
}

/// Bits of templates, to be put together in any order.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{{ first_name }}".to_owned()),
        Just("{{ last_name | upcase }}".to_owned()),
        Just("{% if company %}{{ company }} ok{% else %}none{% endif %}".to_owned()),
        Just("{% for i in data.order.items %}<li>{{ i.name }}.\n</li>{% endfor %}".to_owned()),
        Just("{% assign n = first_name %}".to_owned()),
        Just("{{ n }}{{ n | raw }}".to_owned()),
        Just("{% capture c %}.{{ first_name }}={% endcapture %}{{ c }}".to_owned()),
        Just("<a href=\"https://x.test/{{ first_name }}\">go</a>".to_owned()),
        Just("<a href=\"https://y.test/?a=1&amp;b=2\">go</a>".to_owned()),
        Just("<a href=\"https://z.test\">{{ first_name }}</a>".to_owned()),
        Just("{{ unsubscribe_url }}".to_owned()),
        Just("<a href=\"{{ preferences_url }}\">choose</a>".to_owned()),
        Just("<p>".to_owned()),
        Just("</p>\n".to_owned()),
        Just(". \t\n.From \nFrom =3D= \n".to_owned()),
        "[ -~é€😀\n]{0,90}".prop_map(|text| text.replace(['{', '<'], "")),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just(". From =\n.\n \t".to_owned()), "[ -~é€😀\n\t]{0,200}", "[a-z]{0,12}",]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_spliced_decodes_to_what_is_rendered(
        subject in proptest::collection::vec(prop_oneof![Just("{{ first_name }}".to_owned()), "[ -~é]{0,60}".prop_map(|text| text.replace('{', ""))], 0..4),
        html in proptest::collection::vec(fragment(), 0..12),
        text in proptest::option::of(proptest::collection::vec(fragment(), 1..8)),
        first_name in value(),
        last_name in value(),
        company in value(),
        opt_out in any::<bool>(),
    ) {
        let source = TemplateSource {
            subject: subject.concat(),
            preheader: Some("{{ last_name }} &".to_owned()),
            body_html: html.concat(),
            body_text: text.map(|text| text.concat()),
            kind: TemplateKind::Transactional,
        };
        let options = if opt_out { marketing() } else { bare() };
        let mut data = named(&first_name);
        data.contact.last_name = Some(last_name);
        data.contact.company = Some(company);
        let compiled = compile(&source, &options).unwrap();
        let shown = preview(&source, &options, &data, &send_links());
        match (compiled.render(&data, &send_links()), shown) {
            (Ok(slots), Ok(shown)) => {
                let message = spliced(&compiled, &slots, &[]);
                assert_well_formed(&message);
                prop_assert_eq!(decoded(&message), shown);
            }
            (Err(fault), Err(PreviewFault::Render(same))) => prop_assert_eq!(fault, same),
            (slots, shown) => prop_assert!(false, "{:?} {:?}", slots.is_ok(), shown.is_ok()),
        }
    }
}
