//! The cost of reading and of rendering grows with what is read, and not with its square; and nothing that is read panics.

use std::time::Duration;

use ::hostile::{Shape, check_growth, fuzz};
use runtime::{Budget, Limits, Used};

use super::super::compose::compose_within;
use super::super::limits::{READING, RENDERING, SOURCE_BYTES};
use super::super::markup::{self, MarkupReader};
use super::super::parts::{Scanned, prepare};
use super::super::placeholder::Placeholders;
use super::super::scan::{Item, scan};
use super::super::{html, plain};
use super::*;

/// Size of the smaller input: beyond every limit on tags, attributes and open elements.
const N: usize = 6_000;
/// Size of an input whose tags are fewer than are allowed, doubled too.
const FEW: usize = 900;
const HOUR: Duration = Duration::from_secs(3_600);
/// Constant cost of a reading: what is put in, and rounding.
const SLACK: usize = 4_000;

fn budget() -> Budget {
    Budget::new(Limits { time: HOUR, ..READING })
}

/// What a reading takes that nothing ends early.
fn used_by(read: impl FnOnce(&Budget)) -> Used {
    let budget = budget();
    read(&budget);
    budget.used()
}

/// What a rendering takes that nothing ends early.
fn used(compiled: &CompiledMessage, data: &MergeData) -> Used {
    compiled.render_within(Limits { time: HOUR, steps: u64::MAX, ..RENDERING }, data, &TestLinks).1
}

fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

const LIQUID: &[Shape] = &[
    ("openings after raw", |n| [b"{% raw %}".as_slice(), &b"{%".repeat(n), b"%}"].concat()),
    ("openings after comment", |n| [b"{% comment %}".as_slice(), &b"{%".repeat(n)].concat()),
    ("openings and white space after raw", |n| {
        [b"{% raw %}".as_slice(), &b"{% ".repeat(n), &b" ".repeat(n), b"%}"].concat()
    }),
    ("outputs", |n| b"{{ email }}".repeat(n)),
    ("open outputs", |n| b"{{ '".repeat(n)),
    ("braces", |n| b"{".repeat(n)),
    ("nested blocks", |n| b"{% if email %}".repeat(n)),
    ("trimmed white space", |n| [b"{{- email -}}".repeat(20), b" \n".repeat(n)].concat()),
    ("a long tag", |n| [b"{{ ".as_slice(), &b"email | ".repeat(n), b"}}"].concat()),
    ("alternatives", |n| [b"{% case email %}{% when 1".as_slice(), &b",1".repeat(n), b" %}{% endcase %}"].concat()),
    ("lines", |n| [b"\n".repeat(n), b"{{ nope | nope }}".repeat(40)].concat()),
];

const HTML: &[Shape] = &[
    ("words like placeholders", |n| (0..n).flat_map(|number| format!("qz{number:06}x").into_bytes()).collect()),
    ("open elements", |n| b"<b>".repeat(n)),
    ("open and other end tags", |n| [b"<i>".repeat(n), b"</b>".repeat(n)].concat()),
    ("end tags of an outer element", |n| [b"<div><p>".to_vec(), b"<i>".repeat(900), b"</div>".repeat(n)].concat()),
    ("elements that overlap", |n| b"<b><div></b>".repeat(n)),
    ("nested links", |n| [b"<a href='tel:1'>x".repeat(n), b"</a>".repeat(n)].concat()),
    ("attributes", |n| [b"<p ".as_slice(), &b"a=1 ".repeat(n), b">"].concat()),
    ("a long attribute", |n| [b"<p title='".as_slice(), &b"&amp;".repeat(n), b"'>"].concat()),
    ("references", |n| b"&amp;&lt;&x;&".repeat(n)),
    ("open comments", |n| b"<!-- ".repeat(n)),
    ("comments", |n| b"<!-- x -->".repeat(n)),
    ("raw text with other end tags", |n| [b"<style>".as_slice(), &b"</styl".repeat(n), b"</style>"].concat()),
    ("open raw text", |n| b"<style>".repeat(n)),
    ("open quotes", |n| b"<p a='".repeat(n)),
    ("less-than signs", |n| b"<".repeat(n)),
    ("paragraphs", |n| b"<p>x</p>".repeat(n)),
    ("rows", |n| b"<tr><td>x<td>y".repeat(n)),
    ("conditional comments", |n| b"<!--[if mso]><p>x<![endif]-->".repeat(n)),
    ("open conditional comments", |n| b"<!--[if mso]>".repeat(n)),
    ("many conditions", |n| {
        (0..n).flat_map(|number| format!("<!--[if {number:06}]>x<![endif]-->").into_bytes()).collect()
    }),
    ("what Outlook leaves out", |n| b"<![if !mso]>x<![endif]>".repeat(n)),
    ("elements under many conditions", |n| b"<!--[if mso]><i><![endif]--><b>".repeat(n)),
    ("overlapping formatting", |n| [b"<b><div></b>".repeat(900), b"</b></i>".repeat(n)].concat()),
    ("rules", |n| [b"<style>".as_slice(), &b"a,b c{color:red}".repeat(n), b"</style>"].concat()),
    ("selectors", |n| [b"<style>".as_slice(), &b".a>*,".repeat(n), b"{overflow:hidden}</style>"].concat()),
    ("rules for the classes of the body", |n| {
        let class = [b"<body class='".as_slice(), &b"a ".repeat(n), b"'>"].concat();
        [b"<style>".as_slice(), &b".b{overflow:hidden}".repeat(n), b"</style>", &class].concat()
    }),
    ("comments in sheets", |n| [b"<style>".as_slice(), &b"/* x */".repeat(n), b"</style>"].concat()),
    ("open brackets in sheets", |n| [b"<style>".as_slice(), &b"(".repeat(n), b"</style>"].concat()),
    ("open addresses in sheets", |n| [b"<style>".as_slice(), &b"a{b:url(".repeat(n), b"</style>"].concat()),
    ("blocks in sheets", |n| [b"<style>".as_slice(), &b"@media{".repeat(n), b"</style>"].concat()),
    ("declarations", |n| [b"<p style='".as_slice(), &b"margin:0;".repeat(n), b"'>"].concat()),
    ("style sheets", |n| b"<style>a{}</style>".repeat(n)),
    ("selects in noscript", |n| [b"<noscript>".as_slice(), &b"<select></noscript>".repeat(n)].concat()),
];

#[test]
fn scanning_costs_what_the_source_is_long() {
    let read = |input: &[u8]| used_by(|budget| drop(scan(Part::BodyHtml, &text(input), budget)));
    check_growth(LIQUID, FEW, SLACK, read);
    check_growth(LIQUID, N, SLACK, read);
    check_growth(HTML, N, SLACK, read);
}

const INCLUDED: &[Shape] = &[
    ("includes", |n| b"{% include 'a' %}".repeat(n)),
    ("parameters", |n| [b"{% include 'a'".as_slice(), &b", b: 'c'".repeat(n), b" %}"].concat()),
    ("open quotes in parameters", |n| b"{% include 'a', b: ' %}".repeat(n)),
];

#[test]
fn putting_snippets_in_costs_what_the_source_is_long() {
    let all = std::collections::HashMap::from([("a".to_owned(), Some("<b>".to_owned()))]);
    let put_in =
        |input: &[u8]| used_by(|budget| drop(compose_within(Part::BodyHtml, &text(input), None, None, &all, budget)));
    check_growth(LIQUID, N, SLACK, put_in);
    check_growth(INCLUDED, N, SLACK, put_in);
}

fn of_text(input: &[u8], read: impl Fn(&[Item], &Budget)) -> Used {
    used_by(|budget| read(&[Item::text(text(input))], budget))
}

#[test]
fn finding_placeholders_costs_what_the_source_is_long() {
    check_growth(HTML, N, SLACK, |input| of_text(input, |items, budget| drop(Placeholders::document(items, budget))));
}

#[test]
fn rewriting_html_costs_what_it_is_long() {
    let inserts = || html::Inserts { start: vec![Item::text("a")], end: vec![Item::text("z")], track_links: true };
    check_growth(HTML, N, SLACK, |input| of_text(input, |items, budget| drop(html::rewrite(items, inserts(), budget))));
}

#[test]
fn deriving_text_costs_what_the_html_is_long() {
    check_growth(HTML, N, SLACK, |input| of_text(input, |items, budget| drop(plain::derive(items, budget))));
}

#[test]
fn reading_a_whole_template_costs_what_it_is_long() {
    let read = |input: &[u8]| {
        let source = template(&text(input));
        used_by(|budget| drop(Scanned::of(&source, budget).and_then(|scanned| prepare(scanned, &marketing(), budget))))
    };
    check_growth(LIQUID, FEW, SLACK, read);
    check_growth(LIQUID, N, SLACK, read);
    check_growth(HTML, N, SLACK, read);
}

/// Templates that touch all of `data.big` in each way there is.
const EVALUATED: [&str; 16] = [
    "{{ data.big }}",
    "{{ data.big.size }}{{ data.big[0] }}{{ data.big.last }}",
    "{% for item in data.big %}{{ item }}{% endfor %}",
    "{% for item in data.big reversed limit: 3 %}{{ item }}{% endfor %}",
    "{% case data.big %}{% when 1, 2, 3 %}a{% when data.big %}b{% when data.other %}c{% endcase %}",
    "{% if data.big == data.other %}a{% elsif data.big contains 'x' %}b{% elsif data.other == data.big %}c{% endif %}",
    "{% assign x = data.big %}{{ x | size }}",
    "{% capture x %}{{ data.big }}{% endcapture %}{{ x }}",
    "{{ data.big | uniq }}",
    "{{ data.big | join: '-' | upcase | strip_html | url_encode }}",
    "{{ data.big | reverse | first }}",
    "{{ data.big | slice: 1, 2 }}",
    "{{ data.big | map: 'a' | compact }}{{ data.big | where: 'a', data.other }}",
    "{{ 'x' | append: data.big | replace: 'a', 'bb' | remove: data.other | split: 'b' | size }}",
    "{{ data.big | strip | lstrip | truncate: 10 | truncatewords: 3 | escape | escape_once }}",
    "<a href=\"{{ data.big }}\">x</a>{{ data.big | raw }}",
];

const DATA: &[Shape] = &[
    ("numbers", |n| serde_json::to_vec(&vec![1; n]).unwrap()),
    ("texts", |n| serde_json::to_vec(&vec!["ab"; n]).unwrap()),
    ("one text", |n| serde_json::to_vec(&"a ".repeat(n)).unwrap()),
    ("markup", |n| serde_json::to_vec(&"<b>&".repeat(n)).unwrap()),
    ("objects", |n| serde_json::to_vec(&vec![json!({"a": "x"}); n]).unwrap()),
    ("an object", |n| {
        let object: serde_json::Map<_, _> = (0..n).map(|key| (format!("k{key:06}"), json!(1))).collect();
        serde_json::to_vec(&object).unwrap()
    }),
    ("lists of lists", |n| serde_json::to_vec(&vec![vec![1, 2]; n]).unwrap()),
];

#[test]
fn rendering_costs_what_the_merge_data_is_long() {
    for html in EVALUATED {
        let compiled = compile(&template(html), &bare()).unwrap();
        check_growth(DATA, 400, SLACK, |input| {
            let big: Value = serde_json::from_slice(input).unwrap();
            let merge = MergeData { data: json!({"big": big, "other": big}), ..data() };
            used(&compiled, &merge)
        });
    }
}

#[test]
fn merge_data_is_converted_once() {
    let steps = |times: usize| {
        let html = "{% if data.big.size == 9 %}{% endif %}{{ email }}".repeat(times);
        let merge = MergeData { data: json!({"big": vec![1; 5_000]}), ..data() };
        used(&compile(&template(&html), &bare()).unwrap(), &merge).steps
    };
    let (once, often) = (steps(1), steps(100));
    assert!(once > 5_000 && often < once + 5_000, "{once} {often}");
}

/// The attack of a `case` on a long list, with as many alternatives as a template may have.
#[test]
fn a_case_over_a_long_list_ends_at_the_steps() {
    let branch = format!("{{% when {} %}}", vec!["data.other"; 20].join(", "));
    let html = format!("{{% case data.big %}}{}{{% endcase %}}", branch.repeat(100));
    let merge = MergeData {
        data: json!({"big": vec![1; 9_000], "other": vec![1; 9_000].into_iter().chain([2]).collect::<Vec<_>>()}),
        ..data()
    };
    let compiled = compile(&template(&html), &bare()).unwrap();
    let (slots, _) = compiled.render_within(Limits { time: HOUR, ..RENDERING }, &merge, &TestLinks);
    assert_eq!(slots, Err(RenderFault::StepsExceeded));
}

const TOKENS: &[&[u8]] = &[
    b"{{ email }}",
    b"{{ first_name | raw }}",
    b"{{ data.url }}",
    b"{{",
    b"}}",
    b"{%",
    b"%}",
    b"{% if email %}",
    b"{% else %}",
    b"{% elsif title %}",
    b"{% endif %}",
    b"{% for i in data.order.items %}",
    b"{% endfor %}",
    b"{% break %}",
    b"{% case email %}",
    b"{% when 1, 'a' %}",
    b"{% endcase %}",
    b"{% capture x %}",
    b"{% endcapture %}",
    b"{{ x }}",
    b"{% assign y = data.order %}",
    b"{{ y | join: ',' | split: 'a' | uniq }}",
    b"{% raw %}",
    b"{% endraw %}",
    b"{% comment %}",
    b"{% endcomment %}",
    b"{{- ",
    b" -}}",
    b"{% include 'a' %}",
    b"{%- include \"b\", x: y, email: 'c' -%}",
    b"{% include 'c' %}",
    b"{{ unsubscribe_url }}",
    b"{{ physical_address }}",
    b"<a href=\"",
    b"<a href=",
    b"\">",
    b"'",
    b"\"",
    b">",
    b"</a>",
    b"<p>",
    b"</p>",
    b"<div style=\"display:none\">",
    b"</div>",
    b"<b>",
    b"</b>",
    b"<table><tr><td>",
    b"</td></tr></table>",
    b"<style>",
    b"</style>",
    b"body{overflow:hidden}",
    b"p{",
    b"margin-top:-9px",
    b"}",
    b"/*",
    b"*/",
    b"url(",
    b"<p style='",
    b"<!--[if mso]>",
    b"<![endif]-->",
    b"<!--[if !mso]><!-->",
    b"<!--<![endif]-->",
    b"<![if !mso]>",
    b"<title>",
    b"</title>",
    b"<!--",
    b"-->",
    b"<body>",
    b"</body>",
    b"</html>",
    b"<head>",
    b"</head>",
    b"<svg>",
    b"</svg>",
    b"<select>",
    b"</select>",
    b"<noscript>",
    b"</noscript>",
    b"<img src='{{ first_name }}'>",
    b"<br/>",
    b"&amp;",
    b"&#",
    b"qz0x0e",
    b"qz1x",
    b" ",
    b"\n",
    b"leave",
    b"\xc3\xa9",
];

#[test]
fn fuzz_template() {
    fuzz(TOKENS, |input| {
        let source = template(&text(input));
        if check(&source, &KnownFields::default()).is_err() {
            return;
        }
        let compiled = compile(&source, &marketing()).unwrap();
        if let Ok(slots) = compiled.render(&data(), &TestLinks) {
            let message = spliced(&compiled, &slots, &[]);
            assert!(message.iter().all(u8::is_ascii), "the message is encoded");
        }
        if let Ok(shown) = preview(&source, &marketing(), &data(), &TestLinks) {
            for body in [shown.html, shown.text] {
                assert!(body.contains("/u/1") && body.contains("1 Main Street"), "{body}");
            }
        }
    });
}

/// What is put together keeps within its limits, and each place in it is one of the template.
#[test]
fn fuzz_snippets() {
    let all = ["a", "b"].map(|name| (name.to_owned(), Some("{%- include 'b' -%}\n\u{e9}{{ x }}".to_owned())));
    let all = std::collections::HashMap::from(all);
    fuzz(TOKENS, |input| {
        let source = text(input);
        let lines = source.replace("\r\n", "\n").replace('\r', "\n").lines().count().max(1);
        let layout = Layout { name: "page", source: "<p>{{ content }}</p>\n" };
        let faults = match compose(Part::BodyHtml, &source, None, Some(layout), &all) {
            Err(faults) => faults,
            Ok(composed) => {
                assert!(composed.text.len() <= SOURCE_BYTES);
                let checked = check(&template(&composed.text), &KnownFields::default());
                checked.err().unwrap_or_default().into_iter().map(|fault| composed.place(fault)).collect()
            }
        };
        assert!(faults.iter().all(|fault| (1..=lines + 1).contains(&(fault.line as usize))), "{faults:?}");
    });
}

/// Whatever a value printed as HTML is, a reader finds the link of the footer as a tag.
#[test]
fn fuzz_raw_value() {
    fuzz(TOKENS, |input| {
        let source = template("<p>{{ first_name | raw }}</p>");
        let Ok(shown) = preview(&source, &marketing(), &named(&text(input)), &TestLinks) else { return };
        let budget = budget();
        let mut reader = MarkupReader::strict(&shown.html, &budget);
        let mut is_seen = false;
        while let Some(token) = reader.next().unwrap() {
            if let markup::HtmlToken::Start(tag) = token {
                is_seen |= tag.name == "a" && tag.span.text.contains("https://t.test/u/1");
            }
        }
        assert!(is_seen, "{}", shown.html);
    });
}

#[test]
fn fuzz_html() {
    fuzz(TOKENS, |input| {
        let html = text(input);
        let budget = budget();
        for mut reader in [MarkupReader::strict(&html, &budget), MarkupReader::lenient(&html, &budget)] {
            let mut end = 0;
            while let Ok(Some(token)) = reader.next() {
                let span = token.span();
                assert!(
                    span.start == end && span.end() > end && html.get(span.start..span.end()) == Some(span.text),
                    "{span:?} after {end}"
                );
                end = span.end();
            }
        }
        let _ = html::close(&html, Some(Default::default()), &budget);
    });
}
