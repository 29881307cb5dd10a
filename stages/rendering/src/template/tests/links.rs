//! Tracked links, the open pixel, the preheader and the footer.

use rstest::rstest;

use super::*;

fn marketing_html(html: &str) -> String {
    preview(&template(html), &marketing(), &data(), &TestLinks).unwrap().html
}

fn tracked(html: &str) -> String {
    let options = MessageOptions { track_links: true, ..bare() };
    preview(&template(html), &options, &data(), &TestLinks).unwrap().html
}

#[rstest]
#[case("<a href=\"https://x.test/\">x</a>", "<a href=\"https://t.test/c/0?to=https://x.test/\">x</a>")]
#[case(
    "<a href='HTTP://x.test?a=1&amp;b=2'>x</a>",
    "<a href=\"https://t.test/c/0?to=HTTP://x.test?a=1&amp;b=2\">x</a>"
)]
#[case("<a class=b href=https://x.test>x</a>", "<a class=b href=\"https://t.test/c/0?to=https://x.test\">x</a>")]
#[case("<map><area href=\"https://x.test\"></map>", "<map><area href=\"https://t.test/c/0?to=https://x.test\"></map>")]
#[case("<a href=\"{{ data.url }}\">x</a>", "<a href=\"https://t.test/c/0?to=https://shop.test/a?b=1&amp;c=2\">x</a>")]
#[case("<a href={{ data.url }}>x</a>", "<a href=\"https://t.test/c/0?to=https://shop.test/a?b=1&amp;c=2\">x</a>")]
#[case(
    "<a href=\"https://x.test/{{ first_name }}?p={{ company | url_encode }}\">x</a>",
    "<a href=\"https://t.test/c/0?to=https://x.test/Ada?p=Analytical%20%26%20Sons\">x</a>"
)]
#[case(
    "{% if true %}<a href=\"https://x.test\">x</a>{% endif %}",
    "<a href=\"https://t.test/c/0?to=https://x.test\">x</a>"
)]
#[case(
    "<a href=\"{% if first_name %}https://a.test{% else %}https://b.test{% endif %}\">x</a>",
    "<a href=\"https://t.test/c/0?to=https://a.test\">x</a>"
)]
fn a_web_link_is_tracked(#[case] html: &str, #[case] expected: &str) {
    assert_eq!(tracked(html), expected);
}

#[rstest]
#[case("<a href=\"mailto:{{ email }}\">x</a>", "<a href=\"mailto:ada@example.org\">x</a>")]
#[case("<a href=\"tel:+1\">x</a>", "<a href=\"tel:+1\">x</a>")]
#[case("<a href=\"#top\">x</a>", "<a href=\"#top\">x</a>")]
#[case("<a href=\"https://x.test\" data-no-track>x</a>", "<a href=\"https://x.test\">x</a>")]
#[case("<a href=\"{{ unsubscribe_url }}\">x</a>", "<a href=\"https://t.test/u/1?a=1&amp;b=2\">x</a>")]
#[case("<a href=\"{{ preferences_url }}\">x</a>", "<a href=\"https://t.test/p/1\">x</a>")]
#[case("{% assign u = unsubscribe_url %}<a href=\"{{ u }}\">x</a>", "<a href=\"https://t.test/u/1?a=1&amp;b=2\">x</a>")]
#[case("<link href=\"https://x.test/a.css\">", "<link href=\"https://x.test/a.css\">")]
fn what_is_no_web_link_is_left_alone(#[case] html: &str, #[case] expected: &str) {
    assert_eq!(tracked(html), expected);
}

#[test]
fn a_link_that_would_run_something_leads_nowhere() {
    for hostile in ["javascript:alert(1)", " JaVa\tScript:alert(1)", "data:text/html,x", "vbscript:x"] {
        assert_eq!(html_of("x", &data()), "x");
        let options = MessageOptions { track_links: true, ..bare() };
        let html = preview(&template("<a href=\"{{ first_name }}\">x</a>"), &options, &named(hostile), &TestLinks)
            .unwrap()
            .html;
        assert_eq!(html, "<a href=\"#\">x</a>");
    }
}

#[test]
fn links_are_numbered_in_order_and_loops_share_a_number() {
    let html = tracked(
        "<a href=\"https://a.test\">a</a>{% for i in data.order.items %}<a href=\"https://b.test/{{ i.name }}\">b</a>{% endfor %}<a href=\"https://c.test\">c</a>",
    );
    let numbers: Vec<_> = html.match_indices("/c/").map(|(at, _)| &html[at + 3..at + 4]).collect();
    assert_eq!(numbers, ["0", "1", "1", "2"]);
}

#[test]
fn a_loop_around_table_rows_stays_where_it_is() {
    let html = tracked(
        "<table>{% for i in data.order.items %}<tr {% if forloop.first %}class=\"first\"{% endif %}><td>{{ i.name }}</td></tr>{% endfor %}</table>",
    );
    assert_eq!(html, "<table><tr class=\"first\"><td>Tea</td></tr><tr ><td>Cup</td></tr></table>");
}

#[test]
fn liquid_survives_in_attributes_styles_comments_and_tag_names() {
    let html = tracked(
        "<style>.a{color:{{ first_name }}}</style><!--[if mso]>{{ last_name }}<![endif]--><{{ first_name }} title='{{ email }}' DATA={{ last_name }}>&amp;&nbsp;</{{ first_name }}>",
    );
    assert_eq!(
        html,
        "<style>.a{color:Ada}</style><!--[if mso]>Lovelace<![endif]--><Ada title=\"ada@example.org\" DATA=\"Lovelace\">&amp;&nbsp;</Ada>"
    );
}

#[test]
fn an_unquoted_attribute_cannot_be_left_by_a_value() {
    assert_eq!(html_of("<p title={{ first_name }}>x</p>", &named("a onclick=b")), "<p title=\"a onclick=b\">x</p>");
}

#[test]
fn the_footer_and_the_pixel_stand_before_the_end_of_the_body() {
    let html = marketing_html("<html><body><p>Hi</p></body></html>");
    let footer = html.find("1 Main Street<br>Springfield").unwrap();
    let leave = html.find("<a href=\"https://t.test/u/1?a=1&amp;b=2\"").unwrap();
    let pixel = html.find("<img src=\"https://t.test/o/1\" width=\"1\"").unwrap();
    let end = html.find("</body>").unwrap();
    assert!(html.find("<p>Hi</p>").unwrap() < footer && footer < leave && leave < pixel && pixel < end);
    assert_eq!(html.matches("/u/1").count(), 1);
}

#[test]
fn a_fragment_without_a_body_gets_them_at_its_end() {
    let html = marketing_html("<p>Hi</p>");
    assert!(html.starts_with("<p>Hi</p><div style=") && html.ends_with("border:0\">"));
}

#[rstest]
#[case("<p>x</p>", 1, 1)]
#[case("<a href=\"{{ unsubscribe_url }}\">leave</a>", 1, 1)]
#[case("{{ physical_address }}", 1, 1)]
#[case("{% if first_name %}{{ unsubscribe_url }}{% endif %}", 1, 1)]
#[case("{% if title %}{{ unsubscribe_url }}{% endif %}", 1, 1)]
#[case("{{ physical_address }}{% unless title %}{{ unsubscribe_url }}{% endunless %}", 1, 1)]
#[case("<!-- {{ unsubscribe_url }} -->", 2, 1)]
fn each_message_shows_a_way_to_leave_and_the_address(
    #[case] html: &str,
    #[case] leaves: usize,
    #[case] addresses: usize,
) {
    let html = marketing_html(html);
    assert_eq!((html.matches("/u/1").count(), html.matches("1 Main Street").count()), (leaves, addresses), "{html}");
}

#[test]
fn mail_without_opt_out_has_no_footer() {
    assert_eq!(render_html("<body>x</body>"), "<body>x</body>");
}

#[rstest]
#[case(
    "<html><head><title>t</title></head><body class=a><p>x</p></body></html>",
    "<body class=a><div style=\"display:none"
)]
#[case("<html><head></head><p>x</p></html>", "</head><div style=\"display:none")]
#[case("<!DOCTYPE html><html lang=en><p>x</p></html>", "<html lang=en><div style=\"display:none")]
#[case("<p>x</p>", "<div style=\"display:none")]
fn the_preheader_is_the_first_text_of_the_body(#[case] html: &str, #[case] start: &str) {
    let source = TemplateSource { preheader: Some("5 < 6 & {{ first_name }}".to_owned()), ..template(html) };
    let html = preview(&source, &bare(), &named("<b>"), &TestLinks).unwrap().html;
    assert!(html.contains(start), "{html}");
    assert!(html.contains(">5 &lt; 6 &amp; &lt;b&gt;&#847;"), "{html}");
}
