//! Templates and data made to hurt: refused or cut short, in bounded time and memory.

use std::time::{Duration, Instant};

use super::super::html::close;
use super::super::limits::{READING, RENDERING, SOURCE_BYTES};
use super::super::parts::Scanned;
use super::*;

fn render_fault(html: &str) -> RenderFault {
    compile(&template(html), &bare()).unwrap().render(&data(), &TestLinks).unwrap_err()
}

#[test]
fn a_thousand_nested_blocks_are_refused_without_recursion() {
    for (open, close) in [
        ("{% if email %}", "{% endif %}"),
        ("{% for i in (1..2) %}", "{% endfor %}"),
        ("{% capture x %}", "{% endcapture %}"),
    ] {
        let html = format!("{}x{}", open.repeat(1_000), close.repeat(1_000));
        let faults = check(&template(&html), &KnownFields::default()).unwrap_err();
        assert_eq!(faults.len(), 1 + faults.iter().filter(|fault| fault.code == FaultCode::TooManyTags).count());
        assert_eq!(faults[0].code, FaultCode::NestingTooDeep);
    }
}

#[test]
fn a_thousand_nested_indexes_are_refused() {
    let html = format!("{{{{ data{}.x{} }}}}", "[data".repeat(500), "]".repeat(500));
    assert_eq!(check(&template(&html), &KnownFields::default()).unwrap_err()[0].code, FaultCode::NestingTooDeep);
}

#[test]
fn a_thousand_elsif_are_refused() {
    let html = format!("{{% if email %}}{}{{% endif %}}", "{% elsif email %}".repeat(1_000));
    assert_eq!(check(&template(&html), &KnownFields::default()).unwrap_err()[0].code, FaultCode::NestingTooDeep);
}

#[test]
fn a_machine_that_stands_still_is_no_fault_of_the_template() {
    let late = || Budget::new(runtime::Limits { time: Duration::ZERO, ..READING });
    let html = "x".repeat(64 * 1024);
    let faults = Scanned::of(&template(&html), &late()).err().unwrap();
    assert_eq!(faults[0].code, FaultCode::TimedOut);
    assert_eq!(close(&html, None, &late()).err(), Some(RenderFault::DeadlineExceeded));
    assert_eq!(close(&"<b>x</b>".repeat(1_600), None, &late()).err(), Some(RenderFault::DeadlineExceeded));
}

#[test]
fn more_tags_than_allowed_are_refused() {
    let faults = check(&template(&"{{ email }}".repeat(3_000)), &KnownFields::default()).unwrap_err();
    assert_eq!(faults[0].code, FaultCode::TooManyTags);
}

#[test]
fn a_source_over_its_size_is_refused_and_one_of_that_size_is_quick() {
    let limit = SOURCE_BYTES;
    let faults = check(&template(&"x".repeat(limit + 1)), &KnownFields::default()).unwrap_err();
    assert_eq!(faults[0].code, FaultCode::SourceTooLarge);
    let started = Instant::now();
    for filler in ["x", " ", "<p>", "&", "{", "<!--", "' }} "] {
        let html = format!("{}{{{{ email }}}}", filler.repeat((limit - 11) / filler.len()));
        // Refused or not: what matters is that it comes to an end.
        let _ = check(&template(&html), &KnownFields::default());
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn doubling_append_ends_at_the_value_limit() {
    let html =
        format!("{{% assign x = 'aaaaaaaaaaaaaaaa' %}}{}{{{{ x }}}}", "{% assign x = x | append: x %}".repeat(40));
    assert_eq!(render_fault(&html), RenderFault::Filter);
}

#[test]
fn doubling_capture_ends_at_the_output_limit() {
    let html = format!(
        "{{% capture x %}}aaaaaaaaaaaaaaaa{{% endcapture %}}{}",
        "{% capture x %}{{ x }}{{ x }}{% endcapture %}".repeat(40)
    );
    assert_eq!(render_fault(&format!("{html}{{{{ x }}}}")), RenderFault::OutputTooLarge);
}

#[test]
fn replacing_every_letter_by_a_long_text_ends_at_the_value_limit() {
    let html = "{% assign x = 'aaaaaaaaaaaaaaaa' %}{% for i in (1..11) %}{% assign x = x | append: x %}{% endfor %}{{ x | replace: 'a', x }}";
    assert_eq!(render_fault(html), RenderFault::Filter);
}

#[test]
fn endless_padding_in_a_date_is_refused() {
    assert_eq!(render_fault("{{ 'now' | date: '%999999999d' }}"), RenderFault::Filter);
}

#[test]
fn a_million_rounds_without_output_come_to_an_end() {
    let html =
        "{% for i in (1..1000) %}{% for j in (1..1000) %}{% if i == j %}{% endif %}{% endfor %}{% endfor %}{{ email }}";
    let started = Instant::now();
    let fault = render_fault(html);
    assert!(matches!(fault, RenderFault::DeadlineExceeded | RenderFault::StepsExceeded), "{fault}");
    assert!(started.elapsed() < Duration::from_secs(30));
    let late = runtime::Limits { time: Duration::ZERO, steps: u64::MAX, ..RENDERING };
    let (slots, _) = compile(&template(html), &bare()).unwrap().render_within(late, &data(), &TestLinks);
    assert_eq!(slots, Err(RenderFault::DeadlineExceeded));
}

#[test]
fn output_ends_at_its_limit() {
    let html = format!("{{% for i in (1..1000) %}}{}{{% endfor %}}", "x".repeat(2_000));
    assert_eq!(render_fault(&html), RenderFault::OutputTooLarge);
}

#[test]
fn arithmetic_that_overflows_is_a_fault_and_no_panic() {
    for html in [
        "{{ 9223372036854775807 | plus: 1 }}",
        "{{ -9223372036854775808 | abs }}",
        "{{ 1 | divided_by: 0 }}",
        "{{ -9223372036854775808 | divided_by: -1 }}",
        "{{ 1 | modulo: 0 }}",
    ] {
        assert_eq!(render_fault(html), RenderFault::Filter, "{html}");
    }
    assert_eq!(render_html("[{{ 'abc' | slice: 9223372036854775807, 9223372036854775807 }}]"), "[]");
}

#[test]
fn one_recipient_s_fault_leaves_the_next_unharmed() {
    let compiled = compile(&template("{{ 10 | divided_by: contact.fields.score }}"), &bare()).unwrap();
    let mut zero = data();
    zero.contact.fields["score"] = json!(0);
    assert!(compiled.render(&zero, &TestLinks).is_err());
    assert!(compiled.render(&data(), &TestLinks).is_ok());
}

#[test]
fn faults_carry_nothing_of_the_recipient() {
    let mut secret = data();
    secret.contact.email = "secret@example.org".to_owned();
    let compiled = compile(&template("{{ email | slice: email }}"), &bare()).unwrap();
    let fault = compiled.render(&secret, &TestLinks).unwrap_err();
    assert!(!format!("{fault} {fault:?} {}", fault.code()).contains("secret"));
}
