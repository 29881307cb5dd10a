//! Snippets and layouts: what is put in, where faults are, and what is refused.

use std::collections::HashMap;

use super::super::compose::compose_within;
use super::*;

fn snippets(all: &[(&str, &str)]) -> HashMap<String, Option<String>> {
    all.iter().map(|(name, text)| ((*name).to_owned(), Some((*text).to_owned()))).collect()
}

fn composed(source: &str, all: &[(&str, &str)]) -> Composed {
    compose(Part::BodyHtml, source, None, None, &snippets(all)).unwrap()
}

fn refused(source: &str, all: &[(&str, &str)]) -> Vec<(FaultCode, u32, u32, String)> {
    let faults = compose(Part::BodyHtml, source, None, None, &snippets(all)).unwrap_err();
    faults.into_iter().map(|fault| (fault.code, fault.line, fault.column, fault.detail)).collect()
}

#[test]
fn snippets_are_put_in_and_the_layout_around() {
    let all = snippets(&[("head", "<h1>{% include 'logo' %}</h1>"), ("logo", "Acme"), ("foot", "<hr>")]);
    let layout =
        Layout { name: "page", source: "{% include 'head' %}<main>{{ content }}</main>{% include \"foot\" %}" };
    let found = compose(
        Part::BodyHtml,
        "Hi {%- include 'logo' -%} ! {% raw %}{% include 'no' %}{% endraw %}",
        None,
        Some(layout),
        &all,
    );
    let found = found.unwrap();
    let rendered = render_html(&found.text);
    assert_eq!(rendered, "<h1>Acme</h1><main>HiAcme! {% include 'no' %}</main><hr>");
    assert_eq!(found.used.iter().map(String::as_str).collect::<Vec<_>>(), ["foot", "head", "logo"]);
}

#[test]
fn a_parameter_holds_inside_its_snippet_only() {
    let all =
        [("card", "[{{ title }}|{% include 'inner', title: 'c' %}|{{ title }}]"), ("inner", "{{ title | upcase }}")];
    let source =
        "{% assign title = 'a' %}{{ title }}{% include 'card', title: \"b, 'x'\" %}{{ title }}{% include 'inner' %}";
    assert_eq!(render_html(&composed(source, &all).text), "a[b, 'x'|C|b, 'x']aA".replace('\'', "&#39;"));
    let source = "{% include 'inner', first_name: first_name, title: email %}{{ first_name }}";
    let checked = check(&template(&composed(source, &all).text), &KnownFields::default()).unwrap();
    assert_eq!(checked.variables, ["email", "first_name", "title"]);
    assert_eq!(render_html(&composed(source, &all).text), "ADA@EXAMPLE.ORGAda");
}

#[test]
fn the_values_of_parameters_are_read_before_one_is_set() {
    let all = [("card", "<h2>{{ title }}</h2><p>{{ text }}</p>")];
    let source = "{% include 'card', title: last_name, text: title, text: title %}{{ title }}";
    let mut doctor = data();
    doctor.contact.title = Some("Dr".to_owned());
    assert_eq!(html_of(&composed(source, &all).text, &doctor), "<h2>Lovelace</h2><p>Dr</p>Dr");
    let source = "{% assign text = 'a' %}{% include 'card', text: title, title: text %}{{ title }}{{ text }}";
    assert_eq!(html_of(&composed(source, &all).text, &doctor), "<h2>a</h2><p>Dr</p>Dra");
}

#[test]
fn a_parameter_is_no_name_outside_its_snippet() {
    let all = [("card", "[{{ title }}{{ text }}]"), ("two", "{% include 'card', text: 'a' %}{% include 'card' %}")];
    for (source, column) in [
        ("{% include 'card', title: text, text: 'x' %}", 1),
        ("{% include 'card', text: 'x' %}{{ text }}", 32),
        ("{{ text }}{% include 'card', text: 'x' %}", 1),
        ("{% include 'two' %}", 1),
    ] {
        let found = composed(source, &all);
        let faults = check(&template(&found.text), &KnownFields::default()).unwrap_err();
        let [fault] = faults.as_slice() else { panic!("{source}: {faults:?}") };
        let fault = found.place(fault.clone());
        assert_eq!((fault.code, fault.column), (FaultCode::UnknownVariable, column), "{source}: {}", fault.detail);
        assert!(fault.detail.contains("`text` "), "{source}: {}", fault.detail);
    }
    let source = "{% include 'two', text: 'x' %}{% include 'card', text: title, title: 'y' %}";
    check(&template(&composed(source, &all).text), &KnownFields::default()).unwrap();
    // What is captured is printed as markup, and what a parameter is set to is not.
    let source = "{% capture text %}<b>{% endcapture %}{% include 'card', text: title %}";
    let faults = check(&template(&composed(source, &all).text), &KnownFields::default()).unwrap_err();
    assert_eq!(faults[0].code, FaultCode::NameConflict);
}

#[test]
fn a_parameter_named_as_the_loop_around_it_is_refused() {
    let all = [("card", "[{{ item }}]"), ("list", "{% include 'card', item: 'b' %}")];
    for (source, column) in [
        ("{% for item in (1..2) %}{% include 'card', item: 'b' %}{% endfor %}", 25),
        ("{% for item in (1..2) %}{% for x in (1..2) %}{% include 'list' %}{% endfor %}{% endfor %}", 46),
    ] {
        let found = composed(source, &all);
        let fault = check(&template(&found.text), &KnownFields::default()).unwrap_err().remove(0);
        let fault = found.place(fault);
        assert_eq!((fault.code, fault.line, fault.column), (FaultCode::NameConflict, 1, column), "{}", fault.detail);
    }
    let source = "{% for x in (1..2) %}{% include 'card', item: x %}{% endfor %}{% for item in (1..2) %}{% endfor %}";
    assert_eq!(render_html(&composed(source, &all).text), "[1][2]");
}

#[test]
fn every_unknown_snippet_is_named_with_its_place() {
    let mut all = snippets(&[("a", "x\n  {% include 'gone' %}")]);
    all.insert("mute".to_owned(), None);
    let faults =
        compose(Part::BodyText, "{% include 'no' %}\n{% include 'a' %} {% include 'mute' %}", None, None, &all)
            .unwrap_err();
    let found: Vec<_> =
        faults.iter().map(|fault| (fault.code.as_str(), fault.line, fault.column, fault.detail.as_str())).collect();
    assert_eq!(
        found,
        [
            ("unknown_snippet", 1, 1, "there is no snippet `no`"),
            ("unknown_snippet", 2, 1, "in the snippet `a`, line 2 column 3: there is no snippet `gone`"),
            ("unknown_snippet", 2, 19, "the snippet `mute` has no text for this part"),
        ]
    );
}

#[test]
fn a_fault_in_a_snippet_has_the_place_of_its_tag() {
    let all = [("price", "<b>\n {{ prise }}</b>"), ("two", "{% include 'price' %}")];
    let found = composed("<p>\n{% include 'two' %}{{ nope }}", &all);
    let faults = check(&template(&found.text), &KnownFields::default()).unwrap_err();
    let placed: Vec<_> = faults
        .into_iter()
        .map(|fault| found.place(fault))
        .map(|fault| (fault.line, fault.column, fault.detail))
        .collect();
    assert_eq!((placed[0].0, placed[0].1), (2, 1));
    assert!(placed[0].2.starts_with("in the snippet `price`, line 2 column 2: `prise` "), "{}", placed[0].2);
    assert_eq!((placed[1].0, placed[1].1), (2, 20));
    assert!(placed[1].2.starts_with("`nope` "), "{}", placed[1].2);
}

#[test]
fn a_snippet_that_includes_itself_is_refused() {
    let (code, line, column, detail) =
        refused("\n{% include 'a' %}", &[("a", "{% include 'b' %}"), ("b", "{% include 'a' %}")]).remove(0);
    assert_eq!((code, line, column), (FaultCode::IncludeCycle, 2, 1));
    assert!(detail.ends_with("`a` > `b` > `a`"), "{detail}");
    let own = compose(Part::BodyHtml, "{% include 'me' %}", Some("me"), None, &snippets(&[("me", "x")])).unwrap_err();
    assert_eq!(own[0].code, FaultCode::IncludeCycle);
}

#[test]
fn includes_have_a_depth() {
    let names: Vec<(String, String)> =
        (0..9).map(|n| (format!("s{n}"), format!("{{% include 's{}' %}}", n + 1))).collect();
    let names: Vec<(&str, &str)> =
        names.iter().map(|(name, text)| (name.as_str(), text.as_str())).chain([("s9", "end")]).collect();
    assert_eq!(refused("{% include 's0' %}", &names)[0].0, FaultCode::NestingTooDeep);
    assert_eq!(composed("{% include 's5' %}", &names).text, "end");
}

#[test]
fn a_billion_laughs_are_refused_before_they_are_written() {
    let tenfold = |name: &str| format!("{{% include '{name}' %}}").repeat(10);
    let (a, b, c, d) = (tenfold("b"), tenfold("c"), tenfold("d"), tenfold("e"));
    let all = [("a", a.as_str()), ("b", &b), ("c", &c), ("d", &d), ("e", "ha")];
    assert_eq!(refused(&tenfold("a"), &all)[0].0, FaultCode::TooManyIncludes);
    let long = "ha".repeat(50_000);
    assert_eq!(refused(&tenfold("long"), &[("long", &long)])[0].0, FaultCode::SourceTooLarge);
    let budget = Budget::new(super::super::limits::READING);
    assert!(compose_within(Part::BodyHtml, &tenfold("a"), None, None, &snippets(&all), &budget).is_err());
    assert!(budget.used().steps < 10_000, "{:?}", budget.used());
}

#[test]
fn a_layout_has_one_place_for_its_content() {
    let code = |source: &str| check_snippet(Part::BodyHtml, true, source).err().map(|faults| faults[0].code);
    assert_eq!(code("<body>{{content}}</body>"), None);
    assert_eq!(code("<body></body>"), Some(FaultCode::ContentPlace));
    assert_eq!(code("{{ content }}{{ content }}"), Some(FaultCode::ContentPlace));
    assert_eq!(check_snippet(Part::BodyHtml, false, "{{ anything }}"), Ok(()));
}

#[test]
fn a_snippet_is_whole_for_itself() {
    for (source, code) in [
        ("{% if a %}x", FaultCode::UnclosedBlock),
        ("{% endif %}", FaultCode::UnexpectedTag),
        ("{{ a | nope }}", FaultCode::UnknownFilter),
        ("{% include x %}", FaultCode::SyntaxError),
        ("{% include 'X Y' %}", FaultCode::SyntaxError),
        ("{% include 'x', 3 %}", FaultCode::SyntaxError),
        ("{% include 'x', forloop: 3 %}", FaultCode::SyntaxError),
        ("{% layout 'x' %}", FaultCode::UnknownTag),
    ] {
        assert_eq!(check_snippet(Part::BodyHtml, false, source).unwrap_err()[0].code, code, "{source}");
    }
}

#[rstest::rstest]
#[case("{% include 'x' href: 'a, b', c: 'd' %}", "a comma after the name expected in `'x' href: 'a, b', c: 'd'`")]
#[case("{% include 'x', href: 'a' label: 'b' %}", "a comma after the value expected in `href: 'a' label: 'b'`")]
#[case("{% include 'x', href 'a' %}", "`name: value` expected in `href 'a'`")]
#[case("{% include X %}", "a snippet's name in quotes expected in `X`")]
fn a_fault_of_an_include_says_what_it_lacks(#[case] source: &str, #[case] detail: &str) {
    assert_eq!(check_snippet(Part::BodyHtml, false, source).unwrap_err()[0].detail, detail);
}

#[test]
fn includes_are_for_bodies_that_are_composed() {
    let faults = check(&template("{% include 'x' %}"), &KnownFields::default()).unwrap_err();
    assert_eq!(faults[0].code, FaultCode::UnknownTag);
}

#[test]
fn mentioned_names_hold_all_that_can_be_included() {
    let source = "{%include'a'%}{%- include \"b-1\" -%}{% include c %}{% include 'D' %}{# include 'e' #} include";
    assert_eq!(mentioned_snippets(source).into_iter().collect::<Vec<_>>(), ["a", "b-1", "e"]);
}
