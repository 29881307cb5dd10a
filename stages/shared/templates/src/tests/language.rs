//! What the Liquid of this engine does.

use rstest::rstest;

use super::*;

#[rstest]
#[case("{{ first_name }}", "Ada")]
#[case("{{ contact.first_name }} {{ contact.fields.plan }}", "Ada pro")]
#[case("{{ contact['first_name'] }}", "Ada")]
#[case("{{ contact.fields.score | plus: 3 }}", "10")]
#[case("{{ contact.fields.tags[1] }}{{ contact.fields.tags.size }}{{ contact.fields.tags.first }}", "b2a")]
#[case("{{ sender.name }} {{ sender.email }} {{ sender.reply_to }}", "Ann Sender ann@example.com reply@example.com")]
#[case("{{ campaign.name }} {{ tenant.name }} {{ campaign.id }}", "Spring Acme c-1")]
#[case("{{ data.order.id }}: {{ data.order.items[0].name }} {{ data.order.items.last.name }}", "17: Tea Cup")]
#[case("{{ unsubscribe_url }}", "https://t.test/u/1?a=1&amp;b=2")]
#[case("{{ physical_address | replace: '\n', ', ' }}", "1 Main Street, Springfield")]
fn a_merge_field_prints_its_value(#[case] source: &str, #[case] printed: &str) {
    assert_eq!(render_html(source), printed);
}

#[test]
fn the_documents_name_every_merge_field_and_filter() {
    let documents = include_str!("../../../../../ingress/README.md");
    let names = crate::names::CONTACT_FIELDS.iter().chain(&crate::names::BARE_OTHERS).chain(&crate::filters::LIQUID);
    for name in names {
        assert!(documents.contains(&format!("`{name}`")), "{name}");
    }
}

#[rstest]
#[case("[{{ title }}]", "[]")]
#[case("{{ title | default: 'friend' }}", "friend")]
#[case("{{ data.blank | default: 'friend' }}", "friend")]
#[case("{{ data.no.such.thing | default: 1 }}", "1")]
#[case("{% if title %}yes{% else %}no{% endif %}", "no")]
#[case("{% if title == '' %}empty{% endif %}", "empty")]
#[case("{% if title != '' %}yes{% else %}no{% endif %}", "no")]
#[case("{% if title == nil %}nil{% endif %}", "nil")]
#[case("{% if title == blank %}blank{% endif %}", "blank")]
#[case("{% unless contact.fields.none %}none{% endunless %}", "none")]
#[case("{% if data.missing contains 'x' %}yes{% else %}no{% endif %}", "no")]
#[case("{% for item in data.missing %}x{% else %}nothing{% endfor %}", "nothing")]
#[case("{% for item in data.order.items %}[{{ item.price | default: '-' }}]{% endfor %}", "[4.5][-]")]
#[case("{{ title | upcase | append: '!' }}", "!")]
#[case("{{ title | plus: 1 }}", "1")]
#[case("{{ title | reverse | join: ', ' }}{{ '' | reverse | join: ', ' }}", "")]
#[case("{{ data.missing | map: 'id' | join: ', ' }}{{ data.missing | first }}{{ data.missing | last }}", "")]
#[case(
    "{{ data.missing | where: 'id', 1 | size }}{{ title | compact | size }}{{ title | compact: 'id' | size }}",
    "000"
)]
fn an_absent_value_is_nothing_and_never_an_error(#[case] source: &str, #[case] printed: &str) {
    assert_eq!(render_html(source), printed);
}

#[rstest]
#[case("{% if first_name == 'Ada' and last_name == 'X' or company %}yes{% endif %}", "yes")]
#[case("{% if contact.fields.score >= 7 %}a{% elsif true %}b{% else %}c{% endif %}", "a")]
#[case("{% if contact.fields.score > 7 %}a{% elsif contact.fields.score < 7 %}b{% else %}c{% endif %}", "c")]
#[case("{% if contact.fields.tags contains 'b' %}yes{% endif %}", "yes")]
#[case("{% if first_name contains 'da' %}yes{% endif %}", "yes")]
#[case("{% case contact.fields.plan %}{% when 'free' %}f{% when 'basic', 'pro' %}p{% else %}e{% endcase %}", "p")]
#[case("{% case contact.fields.plan %} never {% when 'x' %}f{% else %}e{% endcase %}", "e")]
#[case("{% for i in (1..3) %}{{ i }}{% unless forloop.last %},{% endunless %}{% endfor %}", "1,2,3")]
#[case("{% for i in (1..9) reversed limit: 2 offset: 1 %}{{ i }}{% endfor %}", "32")]
#[case(
    "{% for i in (1..9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "13"
)]
#[case(
    "{% for i in (1..2) %}{% for j in (1..2) %}{{ forloop.parentloop.index }}{{ j }} {% endfor %}{% endfor %}",
    "11 12 21 22 "
)]
#[case("{% assign n = first_name | upcase %}{{ n }} {{ n | size }}", "ADA 3")]
#[case("{% assign n = 'Zoë' %}{{ n | size }} {{ n.size }} {{ first_name.size }}", "3 3 3")]
#[case("{% assign first_name = title | default: 'friend' %}{{ first_name }}", "friend")]
#[case("{% assign list = 'a,b,c' | split: ',' %}{{ list | join: '-' }} {{ list | last }}", "a-b-c c")]
#[case("{% assign key = 'plan' %}{{ data.order[key] }}{{ data.order['id'] }}", "17")]
#[case("{% comment %} {{ unread | nonsense }} {% if %} {% endcomment %}x", "x")]
#[case("{% raw %}{{ first_name }}{% if %}{% endraw %}", "{{ first_name }}{% if %}")]
#[case("a {{- first_name -}} b", "aAdab")]
#[case("a\n  {%- if true -%}\n b \n{%- endif -%}\n c", "abc")]
#[case("{% # a note %}x", "x")]
#[case("{{ '}}' }}{{ \"%}\" }}", "}}%}")]
#[case("{{ \"now\" | date: '%Y' | size }}", "4")]
#[case("{{ '2016-06-13 02:30:00 +0300' | date: '%B %d, %Y' }}", "June 13, 2016")]
#[case("{{ 'soon' | date: '%Y' }} {{ '2026-02-30' | date: '%Y' }}", "soon 2026-02-30")]
#[case("{{ 'abcdef' | slice: 1, 3 }}{{ 'abc' | slice: -2, 9 }}", "bcdbc")]
#[case("{{ 7 | divided_by: 2 }} {{ -7 | divided_by: 2 }} {{ 7.0 | divided_by: 2 }} {{ 7 | modulo: 3 }}", "3 -4 3.5 1")]
#[case("{{ 1.345 | round: 2 }} {{ 1.5 | round }} {{ 1.2 | ceil }} {{ '3' | times: 4 }}", "1.35 2 2 12")]
fn tags_and_filters_do_what_liquid_says(#[case] source: &str, #[case] printed: &str) {
    assert_eq!(render_html(source), printed);
}

#[rstest]
#[case("{{ contact.fields.renewal | date: '%d.%m.%Y %H:%M' }}", "24.12.2026 00:00")]
#[case("{{ contact.fields.seen | date: '%d.%m.%Y %H:%M %z' }}", "24.12.2026 18:30 +0100")]
#[case("{{ event.occurred_at | date: '%d.%m.%Y %H:%M:%S' }}", "28.11.2026 18:14:27")]
#[case("{{ event.properties.due | date: '%d.%m.%Y %H:%M' }}", "24.12.2026 18:30")]
#[case("{{ data.unix | date: '%d.%m.%Y %H:%M' }}{{ '1798137000' | date: ' %Y' }}", "24.12.2026 18:30 2026")]
#[case("{{ '2026-02-28' | date: '%B %d, %Y' }}", "February 28, 2026")]
fn every_date_of_merge_data_is_formatted(#[case] source: &str, #[case] printed: &str) {
    let fields = json!({"renewal": "2026-12-24", "seen": "2026-12-24T18:30:00+01:00"});
    let properties = json!({"due": "2026-12-24t18:30:00z"});
    let merge = MergeData {
        contact: Contact { fields, ..contact() },
        data: json!({"unix": 1_798_137_000}),
        event: json!({"name": "n", "occurred_at": "2026-11-28T18:14:27.786610Z", "properties": properties}),
        ..data()
    };
    assert_eq!(html_of(source, &merge), printed);
}

#[rstest]
#[case("{{ 19.90 | times: 3 }} {{ 1.1 | times: 3 }} {{ 0.1 | plus: 0.2 }}", "59.7 3.3 0.3")]
#[case("{{ 100.1 | minus: 100 }} {{ 0.3 | minus: 0.1 | minus: 0.2 }} {{ -0.3 | plus: 0.3 }}", "0.1 0 0")]
#[case("{{ 0.3 | modulo: 0.1 }} {{ 10.0 | divided_by: 3 }}", "0 3.33333333333333")]
#[case("{{ -0.004 | round: 2 }}", "0")]
#[case("{{ 1.005 | round: 2 }} {{ 4.6 | times: 100 | floor }} {{ 0.0001 | times: 0.0001 }}", "1.01 460 0.00000001")]
fn calculated_fractions_are_decimal(#[case] source: &str, #[case] printed: &str) {
    assert_eq!(render_html(source), printed);
}

#[rstest]
#[case("{{ first_name | reverse | join: ', ' }}", "Ada")]
#[case("{{ first_name | compact | size }}{{ 7 | where: 'id' | size }}{{ first_name | map: 'id' | size }}", "100")]
#[case("{{ data.order | map: 'id' | join: ', ' }}", "17")]
fn a_single_value_is_a_list_of_one(#[case] source: &str, #[case] printed: &str) {
    assert_eq!(render_html(source), printed);
}

#[rstest]
#[case("{{ first_name }}", "&lt;b&gt;O&#39;Neil &amp; &quot;Co&quot;&lt;/b&gt;")]
#[case("{{ first_name | upcase }}", "&lt;B&gt;O&#39;NEIL &amp; &quot;CO&quot;&lt;/B&gt;")]
#[case("{{ first_name | raw }}", "<b>O'Neil & \"Co\"</b>")]
#[case("{{ first_name | escape }}", "&lt;b&gt;O&#39;Neil &amp; &quot;Co&quot;&lt;/b&gt;")]
#[case("{% if true %}{% for i in (1..1) %}{{ first_name | slice: 0, 3 }}{% endfor %}{% endif %}", "&lt;b&gt;")]
#[case("{% capture x %}<i>{{ first_name | slice: 0, 3 }}</i>{% endcapture %}{{ x }}", "<i>&lt;b&gt;</i>")]
#[case("{% assign x = first_name | slice: 0, 3 %}{{ x }}", "&lt;b&gt;")]
#[case("{{ \"a<\nb\" | newline_to_br }}", "a&lt;<br />\nb")]
fn values_are_escaped_for_html_once_unless_raw(#[case] source: &str, #[case] printed: &str) {
    assert_eq!(html_of(source, &named("<b>O'Neil & \"Co\"</b>")), printed);
}

#[test]
fn a_name_captured_and_assigned_is_escaped_rather_than_trusted() {
    let source = "{% capture x %}<i></i>{% endcapture %}{% assign x = first_name %}{{ x }}";
    assert_eq!(html_of(source, &named("<script>")), "&lt;script&gt;");
}

#[test]
fn liquid_in_a_value_is_text() {
    assert_eq!(html_of("{{ first_name }}", &named("{{ email }}{% if %}")), "{{ email }}{% if %}");
}

#[test]
fn the_text_part_prints_values_as_they_are() {
    let source = TemplateSource { body_text: Some("Hi {{ first_name }}".to_owned()), ..template("x") };
    assert_eq!(preview(&source, &bare(), &named("<O'Neil>"), &TestLinks).unwrap().text, "Hi <O'Neil>");
}

#[test]
fn names_set_in_one_part_are_unknown_in_the_next() {
    let source = TemplateSource {
        body_text: Some("{% assign x = 'text' %}{{ x }}".to_owned()),
        ..template("{% if false %}{% assign x = 'html' %}{% endif %}[{{ x }}]")
    };
    let shown = preview(&source, &bare(), &data(), &TestLinks).unwrap();
    assert_eq!((shown.text.as_str(), shown.html.as_str()), ("text", "[]"));
}

#[test]
fn a_custom_field_without_a_value_prints_its_fallback() {
    assert_eq!(render_html("{{ contact.fields.plan }} {{ contact.fields.colour | upcase }}"), "pro BLUE");
}
