//! What is refused when a template is saved, and where the fault is said to be.

use rstest::rstest;

use super::*;

fn known() -> KnownFields {
    KnownFields { custom: ["plan".to_owned()].into() }
}

fn faults_of(html: &str, kind: TemplateKind) -> Vec<TemplateFault> {
    check(&TemplateSource { kind, ..template(html) }, &known()).unwrap_err()
}

#[rstest]
#[case("{% include 'x' %}", FaultCode::UnknownTag)]
#[case("{% render 'x' %}", FaultCode::UnknownTag)]
#[case("{% cycle 'a', 'b' %}", FaultCode::UnknownTag)]
#[case("{% tablerow x in data.y %}{% endtablerow %}", FaultCode::UnknownTag)]
#[case("{% increment x %}", FaultCode::UnknownTag)]
#[case("{{ first_name | concat: data.x }}", FaultCode::UnknownFilter)]
#[case("{{ first_nam }}", FaultCode::UnknownVariable)]
#[case("{{ contact.fields.secret }}", FaultCode::UnknownVariable)]
#[case("{{ contact }}", FaultCode::UnknownVariable)]
#[case("{{ sender.password }}", FaultCode::UnknownVariable)]
#[case("{{ forloop.index }}", FaultCode::UnknownVariable)]
#[case("{% for x in data.y %}{% endfor %}{{ x }}", FaultCode::UnknownVariable)]
#[case("{{ first_name", FaultCode::UnclosedTag)]
#[case("{% raw %} {{ x }}", FaultCode::UnclosedTag)]
#[case("{% if email %}", FaultCode::UnclosedBlock)]
#[case("{% if email %}{% endfor %}{% endif %}", FaultCode::UnexpectedTag)]
#[case("{% else %}", FaultCode::UnexpectedTag)]
#[case("{% break %}", FaultCode::UnexpectedTag)]
#[case("{% when 1 %}", FaultCode::UnexpectedTag)]
#[case("{{ }}", FaultCode::SyntaxError)]
#[case("{{ first_name last_name }}", FaultCode::SyntaxError)]
#[case("{{ first_name | }}", FaultCode::SyntaxError)]
#[case("{{ first_name | truncate: 99999999999999999999 }}", FaultCode::SyntaxError)]
#[case("{{ first_name | append }}", FaultCode::SyntaxError)]
#[case("{{ first_name | raw | upcase }}", FaultCode::SyntaxError)]
#[case("{% assign data = 1 %}", FaultCode::SyntaxError)]
#[case("{% assign __x = 1 %}", FaultCode::SyntaxError)]
#[case("{% assign unsubscribe_url = '' %}", FaultCode::SyntaxError)]
#[case("{% for physical_address in data.x %}{% endfor %}", FaultCode::SyntaxError)]
#[case(
    "{% case email %}{% when 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21 %}{% endcase %}",
    FaultCode::SyntaxError
)]
#[case("{% if email | size %}{% endif %}", FaultCode::SyntaxError)]
#[case("{% for i in (1..3000000) %}{% endfor %}", FaultCode::RangeTooLarge)]
#[case("{% for i in (1..data.n) %}{% endfor %}", FaultCode::RangeTooLarge)]
#[case("{% capture x %}a{% endcapture %}{% assign x = 1 %}", FaultCode::NameConflict)]
#[case("{% capture email %}a{% endcapture %}", FaultCode::NameConflict)]
fn a_faulty_template_is_refused_with_its_code(#[case] html: &str, #[case] code: FaultCode) {
    let faults = faults_of(html, TemplateKind::Transactional);
    assert_eq!(faults.first().unwrap().code, code, "{faults:?}");
}

#[rstest]
#[case("{% if %}{% endif %}", "a value expected, but nothing stands there")]
#[case("{% %}", "the name of a tag expected, but nothing stands there")]
#[case("{% if email ==  %}{% endif %}", "a value expected in `email ==`")]
fn a_fault_quotes_what_is_there_or_says_that_nothing_is(#[case] html: &str, #[case] detail: &str) {
    let faults = faults_of(html, TemplateKind::Transactional);
    assert_eq!(faults.first().unwrap().detail, detail, "{faults:?}");
}

#[test]
fn the_fault_of_an_unknown_tag_lists_those_there_are() {
    let detail = faults_of("{% elseif email %}", TemplateKind::Marketing).remove(0).detail;
    let (_, listed) = detail.split_once("; use ").unwrap();
    let listed: Vec<_> = listed.split(|letter: char| !letter.is_ascii_lowercase()).collect();
    let tags = "if elsif else unless case when for break continue assign capture comment raw include";
    assert!(tags.split(' ').all(|tag| listed.contains(&tag)), "{detail}");
}

#[rstest]
#[case("{{ event.name }}", TemplateKind::Sequence, true)]
#[case("{{ event.occurred_at | date: '%Y' }}", TemplateKind::Sequence, true)]
#[case("{% for item in event.properties.items %}{{ item.name }}{% endfor %}", TemplateKind::Sequence, true)]
#[case("{{ event.properties }}", TemplateKind::Sequence, false)]
#[case("{{ event.secret }}", TemplateKind::Sequence, false)]
#[case("{{ event.name }}", TemplateKind::Marketing, false)]
#[case("{{ event.name }}", TemplateKind::Transactional, false)]
#[case("{% for event in data.events %}{{ event.name }}{% endfor %}", TemplateKind::Transactional, true)]
#[case("{% capture event %}x{% endcapture %}{{ event }}", TemplateKind::Sequence, false)]
fn events_exist_in_templates_of_sequences_only(#[case] html: &str, #[case] kind: TemplateKind, #[case] allowed: bool) {
    assert_eq!(check(&TemplateSource { kind, ..template(html) }, &known()).is_ok(), allowed);
}

#[test]
fn a_fault_is_placed_by_line_and_column_in_characters() {
    let faults = faults_of("<p>é\r\n  ü {{ nonsense }}</p>\n{{ first_name | nope }}", TemplateKind::Marketing);
    let places: Vec<_> = faults.iter().map(|fault| (fault.part, fault.line, fault.column, fault.code)).collect();
    assert_eq!(
        places,
        [(Part::BodyHtml, 2, 5, FaultCode::UnknownVariable), (Part::BodyHtml, 3, 1, FaultCode::UnknownFilter)]
    );
}

#[test]
fn faults_of_all_parts_are_reported_together() {
    let source = TemplateSource {
        subject: "{{ a }}".to_owned(),
        preheader: Some("{{ b }}".to_owned()),
        body_text: Some("{{ d }}".to_owned()),
        ..template("{{ c }}")
    };
    let parts: Vec<_> = check(&source, &known()).unwrap_err().iter().map(|fault| fault.part).collect();
    assert_eq!(parts, [Part::Subject, Part::Preheader, Part::BodyHtml, Part::BodyText]);
}

#[rstest]
#[case(TemplateKind::Marketing, false)]
#[case(TemplateKind::Sequence, false)]
#[case(TemplateKind::Transactional, true)]
fn data_exists_in_transactional_templates_only(#[case] kind: TemplateKind, #[case] allowed: bool) {
    assert_eq!(check(&TemplateSource { kind, ..template("{{ data.order.id }}") }, &known()).is_ok(), allowed);
}

#[rstest]
#[case("件".repeat(300), None)]
#[case("件".repeat(301), Some(FaultCode::TooLong))]
#[case(format!("{}{{{{ first_name }}}}{}", "x".repeat(450), "x".repeat(451)), Some(FaultCode::TooLong))]
fn the_text_of_a_subject_fits_into_its_line(#[case] subject: String, #[case] code: Option<FaultCode>) {
    let checked = check(&TemplateSource { subject, ..template("<p>Hi</p>") }, &known());
    let fault = checked.err().map(|faults| (faults[0].part, faults[0].code));
    assert_eq!(fault, code.map(|code| (Part::Subject, code)));
}

#[test]
fn the_variables_of_a_template_are_listed_once_and_sorted() {
    let source = TemplateSource {
        subject: "{{ first_name }}".to_owned(),
        ..template(
            "{% assign x = company %}{{ x }}{% for i in data.items %}{{ i.a }}{{ first_name | append: last_name }}{% endfor %}{{ contact.fields.plan }}",
        )
    };
    assert_eq!(
        check(&source, &known()).unwrap().variables,
        ["company", "contact.fields.plan", "data.items", "first_name", "last_name"]
    );
}
