//! MJML: what comes out of it, with the Liquid in it, and what is refused.

use ::hostile::fuzz;

use super::*;

fn body(inner: &str) -> String {
    format!("<mjml><mj-body>{inner}</mj-body></mjml>")
}

fn column(inner: &str) -> String {
    body(&format!("<mj-section><mj-column>{inner}</mj-column></mj-section>"))
}

fn refused(source: &str) -> (FaultCode, u32, u32, String) {
    let fault = compile_mjml(source).unwrap_err().remove(0);
    (fault.code, fault.line, fault.column, fault.detail)
}

/// What a recipient sees, as text.
fn seen(source: &str) -> String {
    let source = template(&compile_mjml(source).unwrap());
    check(&source, &KnownFields::default()).unwrap();
    preview(&source, &bare(), &data(), &TestLinks).unwrap().text.trim_end().to_owned()
}

#[test]
fn mjml_becomes_html_that_is_a_template() {
    let html =
        compile_mjml(&column("<mj-text>Hi</mj-text><mj-button href=\"https://a.test/?a=1&amp;b=2\">Go</mj-button>"))
            .unwrap();
    assert!(html.starts_with("<!doctype html>") && html.contains("<!--[if mso"), "{html}");
    assert!(html.contains("href=\"https://a.test/?a=1&amp;b=2\""), "{html}");
    // A recipient's mail program is not sent to a third party for a font that no author named.
    assert!(!html.contains("googleapis"), "{html}");
    let source = template(&html);
    check(&source, &KnownFields::default()).unwrap();
    let message = message(&source, &marketing(), &data());
    assert!(message.iter().all(u8::is_ascii));
}

#[test]
fn liquid_stands_in_the_html_as_it_was_written() {
    let output = "{{ data.url | default: \"x > y & z\" }}";
    let condition = "{% if data.order.id < 18 and email != \"<b>\" %}#00ff00{% else %}#ff0000{% endif %}";
    let source = column(&format!(
        "<mj-text color='{condition}'>a {output} {{%- # note -%}} b</mj-text><mj-button href=\"{output}\">c</mj-button>\
         {{% raw %}}<mj-nothing>{{% endraw %}}{{% comment %}}<mj-nothing>{{% endcomment %}}"
    ));
    let html = compile_mjml(&source).unwrap();
    assert!(html.contains(&format!("color:{condition};")), "{html}");
    assert!(html.contains(&format!("<a href=\"{output}\"")), "{html}");
    assert!(html.contains(&format!(">a {output} {{%- # note -%}} b</div>")), "{html}");
    assert!(html.contains("{% raw %}<mj-nothing>{% endraw %}"), "{html}");
}

#[test]
fn a_letter_before_an_angle_is_kept() {
    assert_eq!(seen(&column("<mj-text>é> \u{20ac}'> <b title=\"é\">ü</b></mj-text>")), "é> \u{20ac}'> ü");
}

#[test]
fn conditions_and_loops_may_stand_between_blocks_of_mjml() {
    let row = "{% for item in data.order.items %}<mj-text>{{ item.name }}</mj-text>{% endfor %}";
    assert_eq!(seen(&column(row)), "Tea\nCup");
    let columns = "<mj-section>{% if email %}<mj-column><mj-text>a</mj-text></mj-column>{% else %}<mj-column><mj-text>b</mj-text></mj-column>{% endif %}</mj-section>";
    assert_eq!(seen(&body(columns)), "a");
    let sections = "{% for item in data.order.items %}<mj-section><mj-column><mj-text>{{ item.name }}</mj-text></mj-column></mj-section>{% endfor %}";
    assert_eq!(seen(&body(sections)), "Tea\n\nCup");
    let rows = "<mj-table>{% for item in data.order.items %}<tr><td>{{ item.name }}</td></tr>{% endfor %}</mj-table>";
    assert_eq!(seen(&column(rows)), "Tea\nCup");
    assert_eq!(seen(&format!("{{% assign who = first_name %}}\n{}", column("<mj-text>{{ who }}</mj-text>"))), "Ada");
}

#[test]
fn a_fault_of_mjml_has_its_place() {
    for (source, line, column, detail) in [
        ("<p>Hi</p>", 1, 1, "text, or Liquid, that MJML does not have here"),
        ("Hi", 1, 1, "markup that cannot be read"),
        ("", 1, 1, "there is no whole `<mjml>` element"),
        (
            "<mjml>\n <mj-body>\n  <mj-text>{{ email }} x</mj-body></mjml>",
            3,
            25,
            "`</mj-body>` found where `</mj-text>` is expected",
        ),
        ("<mjml>\n<mj-body>{{ email }}<mj-text>x", 2, 21, "`<mj-text>` is never closed"),
        ("<mjml><mj-body>\n{{ email }} <mj-button2/></mj-body></mjml>", 2, 13, "MJML has no element `<mj-button2>`"),
        (
            "<mjml><mj-body><mj-include path=\"/etc/passwd\"/></mj-body></mjml>",
            1,
            16,
            "MJML has no element `<mj-include>`",
        ),
        (
            "<mjml><mj-head>\n{{ email }}</mj-head><mj-body/></mjml>",
            2,
            1,
            "text, or Liquid, that MJML does not have here",
        ),
        (
            "<mjml><mj-body>\n<mj-section css-class=\"a\" {{ email }}=\"b\"/></mj-body></mjml>",
            2,
            27,
            "`{{ email }}` stands where MJML drops it; put it into text, an attribute or between blocks",
        ),
    ] {
        assert_eq!(refused(source), (FaultCode::HtmlInvalid, line, column, detail.to_owned()), "{source}");
    }
    assert_eq!(refused(&column("<mj-text>{% if %}</mj-text>")).0, FaultCode::SyntaxError);
}

#[test]
fn mjml_that_its_compiler_would_not_survive_is_refused_before() {
    for open in ["<mj-wrapper>", "<a>", "<mj-text><div>"] {
        assert_eq!(refused(&column(&open.repeat(5_000))).0, FaultCode::NestingTooDeep, "{open}");
    }
    assert_eq!(refused(&column(&"<mj-spacer/>".repeat(1_001))).3, "more than 1000 elements of MJML and comments");
    let repeated = format!("{{% raw %}}{}{{% endraw %}}", "a".repeat(200_000));
    assert_eq!(refused(&body(&format!("<mj-section background-color=\"{repeated}\"/>"))).0, FaultCode::SourceTooLarge);
    // The deepest that is taken, on the stack of a thread.
    let nested = column(&format!("<mj-text>{}{}</mj-text>", "<b>".repeat(35), "</b>".repeat(35)));
    compile_mjml(&nested).unwrap();
    let nested = body(&format!("{}{}", "<mj-wrapper>".repeat(38), "</mj-wrapper>".repeat(38)));
    let deepest = std::thread::Builder::new().stack_size(1 << 20).spawn(move || compile_mjml(&nested).is_ok());
    assert!(deepest.unwrap().join().unwrap());
}

/// One attribute that every element repeats would make gigabytes of half a megabyte.
#[test]
fn attributes_that_elements_repeat_are_bounded_in_all() {
    let long = "a".repeat(400_000);
    let all = format!("<mj-head><mj-attributes><mj-all font-family=\"{long}\"/></mj-attributes></mj-head>");
    let texts = column(&"<mj-text/>".repeat(900)).replace("<mjml>", "");
    let mut sources = vec![
        format!("<mjml>{all}{texts}"),
        format!("<mjml>{}{all}</mjml>", texts.replace("</mjml>", "")),
        column(&format!("<mj-social align=\"{long}\">{}</mj-social>", "<!---->".repeat(900))),
    ];
    for (container, child) in [
        ("mj-social", "<mj-social-element/>"),
        ("mj-carousel", "<mj-carousel-image/>"),
        ("mj-accordion", "<mj-accordion-element/>"),
        ("mj-navbar", "<mj-navbar-link/>"),
    ] {
        sources.push(column(&format!("<{container} font-family=\"{long}\">{}</{container}>", child.repeat(900))));
    }
    for source in &sources {
        assert!(refused(source).3.contains("too long for so many elements"), "{}", refused(source).3);
    }
    // mrml takes a name without its prefix.
    let prefixed = column(&format!("<mj-social color=\"{long}\">{}</mj-social>", "<x:mj-social-element/>".repeat(900)));
    assert_eq!(refused(&prefixed).3, "MJML has no element `<x:mj-social-element>`");
    // A carousel has a rule of style for each pair of its children, comments too.
    let started = std::time::Instant::now();
    for child in ["<mj-carousel-image src=\"a\"/>", "<!---->"] {
        let carousel = column(&format!("<mj-carousel>{}</mj-carousel>", child.repeat(990)));
        assert!(compile_mjml(&carousel).is_err(), "{child}");
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn characters_of_attributes_come_out_as_they_were_written() {
    for (attribute, html) in [
        ("alt='a \"b\" c'", "alt=\"a &quot;b&quot; c\""),
        (
            "alt='a\u{a0}b \u{2764}\u{fe0f} e\u{301} \\ don&#39;t'",
            "alt=\"a\u{a0}b \u{2764}\u{fe0f} e\u{301} \\ don&#39;t\"",
        ),
        ("alt=\"it's\nhere\"", "alt=\"it's here\""),
        ("padding='1px\n\t2px'", "padding:1px  2px;"),
        ("alt='{{ email | default: \"x\" }} \u{a0}'", "alt=\"{{ email | default: \"x\" }} \u{a0}\""),
    ] {
        let compiled = compile_mjml(&column(&format!("<mj-image src='s' {attribute}/>"))).unwrap();
        assert!(compiled.contains(html), "{attribute}: {compiled}");
    }
    let compiled =
        compile_mjml(&column("<mj-text font-family='\"Open Sans\"'><a title='\"\u{a0}\"'>a</a></mj-text>")).unwrap();
    assert!(compiled.contains("font-family:&quot;Open Sans&quot;;"), "{compiled}");
    assert!(compiled.contains("<a title=\"&quot;\u{a0}&quot;\">"), "{compiled}");
    // A fault after such characters is where it is.
    let (_, line, at, _) = refused("<mjml><mj-body css-class='\u{a0}\n\"'>\n <mj-none/></mj-body></mjml>");
    assert_eq!((line, at), (3, 2));
}

#[test]
fn a_malformed_conditional_comment_is_a_fault_and_no_panic() {
    for comment in ["<!--[if mso]x>", "<!--[if mso", "<![if mso]", "<![endif", "<!--<![endif] -->", "<![endif]x"] {
        for source in [comment.to_owned(), body(comment), column(&format!("<mj-text>{comment}</mj-text>"))] {
            assert_eq!(refused(&source).0, FaultCode::HtmlInvalid, "{source}");
        }
    }
}

const TOKENS: &[&[u8]] = &[
    b"<mjml>",
    b"</mjml>",
    b"<mj-head>",
    b"</mj-head>",
    b"<mj-attributes>",
    b"<mj-all font-family='a'/>",
    b"<mj-class name='x' color='{{ email }}'/>",
    b"</mj-attributes>",
    b"<mj-style>",
    b"</mj-style>",
    b"<mj-body>",
    b"</mj-body>",
    b"<mj-wrapper>",
    b"</mj-wrapper>",
    b"<mj-section mj-class='x' padding='",
    b"<mj-section>",
    b"</mj-section>",
    b"<mj-column width='",
    b"<mj-column>",
    b"</mj-column>",
    b"<mj-group>",
    b"</mj-group>",
    b"<mj-text>",
    b"</mj-text>",
    b"<mj-image src='",
    b"<mj-button href='{{ data.url }}'>",
    b"</mj-button>",
    b"<mj-hero mode='fixed-height' height='1px' background-height='",
    b"</mj-hero>",
    b"<mj-carousel>",
    b"<mj-carousel-image src='a'/>",
    b"</mj-carousel>",
    b"<mj-raw>",
    b"</mj-raw>",
    b"<mj-table>",
    b"</mj-table>",
    b"<mj-spacer/>",
    b"{{ email }}",
    b"{% if email %}",
    b"{% endif %}",
    b"{% raw %}",
    b"{% endraw %}",
    b"'>",
    b"'/>",
    b"0px",
    b"\xc3\xa9'>",
    b"-1%",
    b"<b>",
    b"</b>",
    b"<br>",
    b"<!--",
    b"-->",
    b"<!--[if mso]>",
    b"<!--[if",
    b"<![endif",
    b"<![endif]-->",
    b"<![CDATA[",
    b"]]>",
    b"&",
    b"q",
    b"0x",
    b"\n",
    b"\xc3\xa9",
    b"\"",
    b"\\",
    b"\xc2\xa0",
];

/// Nothing makes the compiler panic; a fault is in the source; and what comes out is taken, or refused with a place, as any HTML is.
#[test]
fn fuzz_mjml() {
    fuzz(TOKENS, |input| {
        let inner = String::from_utf8_lossy(input);
        for source in [inner.clone().into_owned(), body(&inner), column(&inner)] {
            let lines = crate::scan::plain_lines(&source).lines().count().max(1) + 1;
            match compile_mjml(&source) {
                Ok(html) => drop(check(&template(&html), &KnownFields::default())),
                Err(faults) => {
                    assert!(faults.iter().all(|fault| (1..=lines).contains(&(fault.line as usize))), "{faults:?}")
                }
            }
        }
    });
}
