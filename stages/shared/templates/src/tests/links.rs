//! Tracked links, the open pixel, the preheader and the footer.

use rstest::rstest;

use super::*;

fn tracked(html: &str) -> String {
    let options = MessageOptions { track_links: true, ..bare() };
    preview(&template(html), &options, &data(), &TestLinks).unwrap().html
}

#[rstest]
#[case("<a href=\"https://x.test/\">x</a>", "<a href=\"https://t.test/c/0?to=https://x.test/\">x</a>")]
#[case("<a href='HTTP://x.test?a=1&amp;b=2'>x</a>", "<a href='https://t.test/c/0?to=HTTP://x.test?a=1&amp;b=2'>x</a>")]
#[case("<a class=b href=https://x.test>x</a>", "<a class=b href=\"https://t.test/c/0?to=https://x.test\">x</a>")]
#[case("<map><area href=\"https://x.test\"></map>", "<map><area href=\"https://t.test/c/0?to=https://x.test\"></map>")]
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
#[case("<a href=\"{{ data.url }}\">x</a>", "<a href=\"https://shop.test/a?b=1&amp;c=2\">x</a>")]
#[case("<a href={{ data.url }}>x</a>", "<a href=\"https://shop.test/a?b=1&amp;c=2\">x</a>")]
#[case("<a href=\"https://{{ first_name }}.x.test/\">x</a>", "<a href=\"https://Ada.x.test/\">x</a>")]
#[case("<a href=\"https://x.test{{ data.blank }}\">x</a>", "<a href=\"https://x.test\">x</a>")]
#[case("<a href=\"mailto:{{ email }}\">x</a>", "<a href=\"mailto:ada@example.org\">x</a>")]
#[case("<a href=\"tel:+1\">x</a>", "<a href=\"tel:+1\">x</a>")]
#[case("<a href=\"#top\">x</a>", "<a href=\"#top\">x</a>")]
#[case("<a href=\"https://x.test\" data-no-track>x</a>", "<a href=\"https://x.test\">x</a>")]
#[case(
    "<a href=\"https://x.test\"{% if first_name %} data-no-track{% endif %}>x</a>",
    "<a href=\"https://x.test\" data-no-track>x</a>"
)]
#[case("<a href=\"{{ unsubscribe_url }}\">x</a>", "<a href=\"https://t.test/u/1?a=1&amp;b=2\">x</a>")]
#[case("<a href=\"{{ preferences_url }}\">x</a>", "<a href=\"https://t.test/p/1\">x</a>")]
#[case("{% assign u = unsubscribe_url %}<a href=\"{{ u }}\">x</a>", "<a href=\"https://t.test/u/1?a=1&amp;b=2\">x</a>")]
#[case("<link href=\"https://x.test/a.css\">", "<link href=\"https://x.test/a.css\">")]
fn what_is_no_web_link_or_leads_where_a_value_says_is_left_alone(#[case] html: &str, #[case] expected: &str) {
    assert_eq!(tracked(html), expected);
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
fn liquid_survives_in_attributes_styles_and_comments() {
    let html = tracked(
        "<style>.a{color:{{ first_name }}}</style><!--[if mso]>{{ last_name }}<![endif]--><p title='{{ email }}' DATA={{ last_name }}>&amp;&nbsp;</p>",
    );
    assert_eq!(
        html,
        "<style>.a{color:Ada}</style><!--[if mso]>Lovelace<![endif]--><p title='ada@example.org' DATA=\"Lovelace\">&amp;&nbsp;</p>"
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
    assert!(html.find("<p>Hi</p>").unwrap() < pixel && pixel < footer && footer < leave && leave < end);
    assert_eq!(html.matches("/u/1").count(), 1);
}

#[test]
fn a_fragment_without_a_body_gets_them_at_its_end() {
    let html = marketing_html("<p>Hi</p>");
    assert!(html.starts_with("<p>Hi</p><img src=") && html.ends_with("Unsubscribe</a></div>"));
}

/// How often the body leads to the unsubscribe page, and how often it shows the postal address.
fn counts(html: &str) -> (usize, usize) {
    (html.matches("/u/1").count(), html.matches("1 Main Street").count())
}

const LEAVE: &str = "<a href=\"{{ unsubscribe_url }}\">leave</a>";

#[rstest]
#[case("<p>x</p>")]
#[case("<p><a href=\"{{ unsubscribe_url }}\">leave</a></p>")]
#[case("<a href=\"{{ unsubscribe_url }}\" data-no-track=\"{{ title }}\">leave</a>")]
#[case("<a href='{{ unsubscribe_url }}' style=\"color:#666;font-size:12px\">leave</a>")]
#[case("<table width=\"600\"><tr><td style=\"padding:10px\"><a href={{ unsubscribe_url }}>leave</a></td></tr></table>")]
#[case("{{ physical_address }}")]
#[case("<body bgcolor=\"#ffffff\"><p>{{ physical_address }}</p></body>")]
#[case("{% if first_name %}<a href=\"{{ unsubscribe_url }}\">leave</a>{% endif %}")]
#[case("{% if title %}<a href=\"{{ unsubscribe_url }}\">leave</a>{% endif %}")]
#[case("{{ physical_address }}{% unless title %}<a href=\"{{ unsubscribe_url }}\">leave</a>{% endunless %}")]
fn what_the_template_shows_itself_is_not_added(#[case] html: &str) {
    let html = marketing_html(html);
    assert_eq!(counts(&html), (1, 1), "{html}");
}

/// Each of these looks as if it showed the link and the address, and does not certainly do so.
#[rstest]
#[case::filters("{{ unsubscribe_url | slice: 0, 0 }}{{ physical_address | slice: 0, 0 }}")]
#[case::no_link("{{ unsubscribe_url }}")]
#[case::no_text("<a href=\"{{ unsubscribe_url }}\"></a>")]
#[case::blank_text("<a href=\"{{ unsubscribe_url }}\">&nbsp;&#8203;\u{3164}</a>")]
#[case::a_value_as_text("<a href=\"{{ unsubscribe_url }}\">{{ title }}</a>")]
#[case::text_in_a_branch("<a href=\"{{ unsubscribe_url }}\">{% if title %}leave{% endif %}</a>")]
#[case::filtered_link("<a href=\"{{ unsubscribe_url | remove: 'u' }}\">leave</a>")]
#[case::longer_link("<a href=\"x{{ unsubscribe_url }}\">leave</a>")]
#[case::comment("<!-- @ -->")]
#[case::title("<title>@</title>")]
#[case::textarea("<textarea>@</textarea>")]
#[case::select("<select><option>@</option></select>")]
#[case::template("<template>@</template>")]
#[case::noscript("<noscript>@</noscript>")]
#[case::details("<details><summary>x</summary>@</details>")]
#[case::object("<object>@</object>")]
#[case::unknown_element("<x-y>@</x-y>")]
#[case::style("<style>a{display:none}</style>@")]
#[case::later_style("@<style>*{color:#fff}</style>")]
#[case::style_sheet("<link rel=stylesheet href='https://fonts.googleapis.com/css?family=Inter'>@")]
#[case::outlook_reads_no_more("<!--[if !mso]><!-->@<!--<![endif]-->")]
#[case::outlook_alone("<!--[if mso]>@<![endif]-->")]
#[case::hidden_in_outlook("<!--[if mso]><div style='display:none'><![endif]-->@<!--[if mso]></div><![endif]-->")]
#[case::hidden("<div hidden>@</div>")]
#[case::display("<div style=\"display:none\">@</div>")]
#[case::display_escaped("<div style=\"d\\69splay:none\">@</div>")]
#[case::display_with_entity("<div style=\"display&#58;none\">@</div>")]
#[case::display_in_capitals("<DIV STYLE='DISPLAY : NONE'>@</DIV>")]
#[case::visibility("<p style=visibility:hidden>@</p>")]
#[case::opacity("<p style='opacity:0.01'>@</p>")]
#[case::font_size("<span style='font-size:0'>@</span>")]
#[case::small_font("<span style='font-size:1px'>@</span>")]
#[case::white_text("<span style='color:#fffffe'>@</span>")]
#[case::font_colour("<font color=white>@</font>")]
#[case::dark_ground("<td style='background:#000;color:#111'>@</td>")]
#[case::black_body("<body bgcolor=black><p>@</p></body>")]
#[case::off_screen("<div style='position:absolute;left:-9999px'>@</div>")]
#[case::margin("<div style='margin-left:-9999px'>@</div>")]
#[case::far_margin("<div style='padding-left:9999px'>@</div>")]
#[case::indent("<div style='text-indent:-9999px'>@</div>")]
#[case::clipped("<div style='height:0;overflow:hidden'>@</div>")]
#[case::narrow("<div style='width:0'>@</div>")]
#[case::mso("<div style='mso-hide:all'>@</div>")]
#[case::a_value_in_the_style("<div style='{{ first_name }}'>@</div>")]
#[case::a_value_in_an_attribute("<div {% if first_name %}style='display:none'{% endif %}>@</div>")]
#[case::unclosed_formatting("<div><font style='display:none'></div>@")]
#[case::captured("{% capture x %}@{% endcapture %}")]
#[case::hidden_earlier("<div style='display:none'><b></b>@")]
fn what_hides_the_footer_s_fields_does_not_replace_the_footer(#[case] html: &str) {
    let html = html.replace('@', &format!("{LEAVE}{{{{ physical_address }}}}"));
    let html = marketing_html(&html);
    assert!(html.contains(FOOTER_LINK) && html.contains("1 Main Street<br>Springfield<br>"), "{html}");
}

/// The engine's own link, which has its own style.
const FOOTER_LINK: &str = "<a href=\"https://t.test/u/1?a=1&amp;b=2\" style=\"all:initial!important;";

/// The end tags between the template and what is added.
#[rstest]
#[case("<p>x</p>", "")]
#[case("<div style='display:none'>x", "</div>")]
#[case("<table><tr><td>x", "</td></tr></table>")]
#[case("<select><option>x", "</option></select>")]
#[case("<div><template>", "</template></div>")]
#[case("<details><div>", "</div></details>")]
#[case("<div><font style='display:none'></div>", "</font>")]
#[case("<b><div style='display:none'></b>", "</div>")]
#[case("<span><div style='display:none'></span>", "</div></span>")]
#[case("<div><table><tr><td style='display:none'></div>", "</td></tr></table></div>")]
#[case("<div style='display:none'>{% if title %}</div>{% endif %}", "</div>")]
#[case("{% if title %}<div>{% else %}<div class=b>{% endif %}x</div>", "")]
#[case("{% if title %}<div>{% endif %}x", "</div>")]
#[case("<svg><foreignObject style='display:none'></svg-x>", "</foreignobject></svg>")]
#[case::more_than_a_browser_remembers(
    "<b style='display:none'><b><b><b><div></b></b></b></b>",
    "</div></b></b></b></b>"
)]
#[case::around_more_than_a_browser_looks_at(
    "<b style='display:none'><p><div><div><div><div><div><div><div><div></b>",
    "</div></b>"
)]
#[case::paragraphs_in_formatting("<b style='display:none'><b><b><b><p>x", "<div></div></b></b></b></b>")]
#[case::text_to_browsers_with_scripts("<b style='display:none'><noscript></b>", "</noscript></b>")]
#[case("<ul><li>a<li>b</ul><table><tr><td>a<td>b<tr><td>c</table>", "")]
#[case::rows_outside_of_a_table("<tr><li style='display:none'></tr>x", "</li></tr>")]
#[case::rows_of_a_table_in_a_branch(
    "{% if title %}<table>{% endif %}<tr><td><span style='display:none'></tr>x",
    "</span></td></tr></table>"
)]
#[case::in_a_select("<select><div><li style='display:none'></div>", "</li></div></select>")]
#[case("<div style='display:none'></body>", "</div>")]
#[case("<div style='display:none'></body></html>\n<!-- x -->", "</div>")]
fn whatever_the_body_leaves_open_is_closed_before_the_footer(#[case] html: &str, #[case] end_tags: &str) {
    let html = marketing_html(html);
    let end = html.find("<img src=\"https://t.test/o/1\"").unwrap();
    assert!(html[..end].ends_with(end_tags), "{html}");
    let rest = html[..end].strip_suffix(end_tags).unwrap();
    assert!(!end_tags.is_empty() || !rest.ends_with("</div></div>"), "{html}");
    assert_eq!(counts(&html), (1, 1), "{html}");
}

#[test]
fn what_comes_after_the_end_of_the_body_comes_before_the_footer() {
    let html = marketing_html("<body>x</body><div style='display:none'>y");
    assert!(html.find("y</div><img ").is_some(), "{html}");
}

/// Places of the fault: line and column.
#[rstest]
#[case("x\n <!-- y", 2, 2)]
#[case("x <style>y", 1, 3)]
#[case("<title>y", 1, 1)]
#[case("<textarea>", 1, 1)]
#[case("<p title='x", 1, 1)]
#[case("<plaintext>", 1, 1)]
#[case("{{ email }}\n{{ email }}<frameset>", 2, 12)]
#[case("<svg><style><!-- </style>", 1, 6)]
#[case("<!-- {% if title %} --> {% endif %}", 1, 25)]
#[case("<p title='{% if title %}'>{% endif %}", 1, 27)]
#[case("{% for i in (1..3) %}<div style='display:none'>{% endfor %}", 1, 48)]
#[case("{% capture x %}<div style='display:none'>{% endcapture %}", 1, 42)]
#[case("{% for i in (1..3) %}<div>{% break %}</div>{% endfor %}", 1, 27)]
#[case("<body hidden>", 1, 7)]
#[case("<body class=a popover>", 1, 15)]
#[case("<form><span style='display:none'></form>", 1, 34)]
#[case("<form><p><form>", 1, 10)]
#[case("{% for i in (1..3) %}<li style='display:none'><dd>{% endfor %}", 1, 51)]
#[case("{% for i in (1..3) %}<rp style='display:none'>{% endfor %}", 1, 47)]
#[case("<div><template shadowrootmode=open><p>x</p></template></div>", 1, 16)]
#[case("<body style=\"display: none\">", 1, 7)]
#[case("<html style=\"{{ first_name }}\">", 1, 7)]
fn html_that_would_swallow_the_footer_is_refused_at_its_place(
    #[case] html: &str,
    #[case] line: u32,
    #[case] column: u32,
) {
    let faults = check(&template(html), &KnownFields::default()).unwrap_err();
    let fault = &faults[0];
    assert_eq!((fault.code, fault.line, fault.column), (FaultCode::HtmlInvalid, line, column), "{faults:?}");
}

#[test]
fn a_value_printed_as_html_is_closed_where_it_is_printed() {
    let html = |name: &str| preview(&template("{{ first_name | raw }}!"), &marketing(), &named(name), &TestLinks);
    assert!(html("<b>x<i>").unwrap().html.starts_with("<b>x<i></i></b>!"));
    for open in ["<!-- x", "<style>", "<p title='"] {
        assert!(matches!(html(open), Err(PreviewFault::Render(RenderFault::HtmlUnclosed))), "{open}");
    }
}

#[test]
fn the_text_part_has_the_footer_unless_it_shows_the_fields_unfiltered() {
    for (text, leaves) in [
        ("x", 1),
        ("{{ unsubscribe_url }}", 1),
        ("{{ unsubscribe_url | slice: 0, 0 }}", 1),
        ("{% capture x %}{{ unsubscribe_url }}{% endcapture %}", 1),
        ("{% capture x %}{{ unsubscribe_url }}{% endcapture %}{% if title %}{{ unsubscribe_url }}{% endif %}", 1),
    ] {
        let source = TemplateSource { body_text: Some(text.to_owned()), ..template("x") };
        let text = preview(&source, &marketing(), &data(), &TestLinks).unwrap().text;
        assert_eq!(text.matches("https://t.test/u/1").count(), leaves, "{text}");
    }
}

/// What a value may be where it stands: `V` is the value. Tracking makes no difference.
#[rstest]
#[case("<a href=\"{{ first_name }}\">x</a>", "<a href=\"V\">x</a>", "<a href=\"#\">x</a>")]
#[case("<a href={{ first_name }}>x</a>", "<a href=\"V\">x</a>", "<a href=\"#\">x</a>")]
#[case("<a href=\"{{ first_name }}\" data-no-track>x</a>", "<a href=\"V\">x</a>", "<a href=\"#\">x</a>")]
#[case("<area href='{{ first_name }}'>", "<area href='V'>", "<area href='#'>")]
#[case("<img src='{{ first_name }}'>", "<img src='V'>", "<img src=''>")]
#[case("<form action=\"{{ first_name }}\"></form>", "<form action=\"V\"></form>", "<form action=\"\"></form>")]
#[case("<button formaction=\"{{ first_name }}\">", "<button formaction=\"V\">", "<button formaction=\"\">")]
#[case("<td background=\"{{ first_name }}\">", "<td background=\"V\">", "<td background=\"\">")]
#[case("<video poster=\"{{ first_name }}\">", "<video poster=\"V\">", "<video poster=\"\">")]
#[case(
    "<img srcset=\"https://x.test 1x, {{ first_name }} 2x\">",
    "<img srcset=\"https://x.test 1x, V 2x\">",
    "<img srcset=\"\">"
)]
#[case("<p style=\"background:url({{ first_name }})\">", "<p style=\"background:url(V)\">", "<p style=\"\">")]
#[case("<iframe src=\"{{ first_name }}\"></iframe>", "<iframe src=\"V\"></iframe>", "<iframe src=\"\"></iframe>")]
#[case("<{% if true %}a{% endif %}>", "", "")]
fn an_address_from_a_value_is_one_of_few_kinds(#[case] html: &str, #[case] good: &str, #[case] bad: &str) {
    if good.is_empty() {
        assert_eq!(check(&template(html), &KnownFields::default()).unwrap_err()[0].code, FaultCode::HtmlInvalid);
        return;
    }
    let of = |track_links, value: &str| {
        let options = MessageOptions { track_links, ..bare() };
        preview(&template(html), &options, &named(value), &TestLinks).unwrap().html
    };
    for track_links in [true, false] {
        for value in ["https://y.test/a", "mailto:a@y.test", "tel:+1"] {
            assert_eq!(of(track_links, value), good.replace('V', value));
        }
        for hostile in ["javascript:alert(1)", " JaVa\tScript:alert(1)", "data:text/html,x", "vbscript:x"] {
            assert_eq!(of(track_links, hostile), bad, "{hostile}");
        }
    }
}

#[test]
fn a_block_that_begins_in_data_no_track_ends_in_it() {
    let html = "<a data-no-track=\"{% if title %}\">a</a>b<a data-no-track=\"{% endif %}\">c</a>";
    assert_eq!(check(&template(html), &KnownFields::default()).unwrap_err()[0].code, FaultCode::HtmlInvalid);
}

#[rstest]
#[case("<p {{ first_name }}>")]
#[case("<p {{ first_name }}=\"x\">")]
#[case("<p a{{ first_name }}>")]
#[case("<{{ first_name }}>")]
#[case("<p></{{ first_name }}>")]
#[case("<p onclick=\"x('{{ first_name }}')\">")]
#[case("<iframe srcdoc=\"{{ first_name }}\"></iframe>")]
fn a_value_cannot_stand_where_it_would_be_markup(#[case] html: &str) {
    assert_eq!(check(&template(html), &KnownFields::default()).unwrap_err()[0].code, FaultCode::HtmlInvalid);
}

#[test]
fn a_value_does_not_end_the_attribute_or_the_style_sheet_it_stands_in() {
    let hostile = named("\" onload='x' </style><!-- ");
    for html in [
        "<p title=\"{{ first_name | raw }}\">",
        "<p title={{ first_name | raw }}>",
        "<p title='{{ first_name }}'>",
        "{% capture x %}\"'< {{ first_name }}{% endcapture %}<p title=\"{{ x }}\">",
        "<style>{{ first_name | raw }}</style>",
        "<!-- {{ first_name | raw }} -->",
    ] {
        let html = html_of(html, &hostile);
        let quotes = html.matches('"').count() + html.matches('\'').count();
        assert!(quotes <= 4 && !html.contains("</style><!--"), "{html}");
        assert_eq!(html.matches('<').count(), html.matches('>').count(), "{html}");
    }
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
