//! The legal footer is seen: by Outlook, which reads conditional comments, and whatever a style sheet says.

use rstest::rstest;

use super::*;

const MJML: &str = include_str!("mails/mjml.html");
const NEWSLETTER: &str = include_str!("mails/newsletter.html");
const FOOTER: &str = "<div style=\"all:initial!important;";
/// Stands before the footer.
const PIXEL: &str = "<img src=\"https://t.test/o/1\"";

/// What stands between the template's last text, `|`, and what is added.
fn between(html: &str) -> String {
    let html = marketing_html(html);
    let (before, _) = html.split_once(PIXEL).unwrap();
    before.rsplit_once('|').unwrap().1.to_owned()
}

/// A marketing mail of this template with this value for the first name.
fn of_value(html: &str, value: &str) -> Result<String, RenderFault> {
    match preview(&template(html), &marketing(), &named(value), &TestLinks) {
        Ok(preview) => Ok(preview.html),
        Err(PreviewFault::Render(fault)) => Err(fault),
        Err(PreviewFault::Template(faults)) => panic!("{faults:?}"),
    }
}

fn refused_at(html: &str) -> (u32, u32) {
    let faults = check(&template(html), &KnownFields::default()).unwrap_err();
    assert_eq!(faults[0].code, FaultCode::HtmlInvalid, "{faults:?}");
    // What a template may not contain no value may contain.
    if !html.contains("{{") && !html.contains("{%") {
        assert!(matches!(of_value("{{ first_name | raw }}", html), Err(RenderFault::HtmlUnclosed)), "{html}");
    }
    (faults[0].line, faults[0].column)
}

#[rstest]
#[case::mjml(MJML)]
#[case::newsletter(NEWSLETTER)]
fn a_mail_for_outlook_is_changed_only_by_what_is_added(#[case] html: &str) {
    check(&template(html), &KnownFields::default()).unwrap();
    assert_eq!(html_of(html, &data()).matches("<![endif]").count(), html.matches("<![endif]").count());
    let marketing = marketing_html(html);
    let (before, after) = marketing.split_once(PIXEL).unwrap();
    assert!(before.trim_end().ends_with("</div>") || before.trim_end().ends_with("</center>"), "{before}");
    assert!(after.contains("1 Main Street") && after.contains("/u/1"), "{after}");
    assert!(after.trim_end().ends_with("</body>\n</html>"), "{after}");
}

#[rstest]
#[case::opened_in_a_comment("<!--[if mso]><div hidden><![endif]-->|", "</div>")]
#[case::closed_elsewhere("<!--[if mso]><div hidden><![endif]--></div>|", "</div>")]
#[case::closed_under_another_condition(
    "<!--[if gte mso 9]><div hidden><![endif]--><!--[if lt mso 9]></div><![endif]-->|",
    "</div>"
)]
#[case::closed_inside_another_element(
    "<!--[if mso]><div hidden><![endif]--><table><tr><td><!--[if mso]></div><![endif]--></td></tr></table>|",
    "</div>"
)]
#[case::closed_where_outlook_does_not_see_it("<div hidden><!--[if !mso]><!--></div><!--<![endif]-->|", "</div>")]
#[case::closed_where_browsers_do_not_see_it("<div hidden><!--[if mso]></div><![endif]-->|", "</div>")]
#[case::an_old_form("<div hidden><![if !mso]></div><![endif]>|", "</div>")]
#[case::formatting("<!--[if mso]><div><b hidden></div><![endif]-->|", "</b>")]
#[case::in_one_branch("{% if title %}<!--[if mso]><div hidden><![endif]-->{% else %}<div>{% endif %}</div>|", "</div>")]
#[case::balanced("<!--[if mso]><table><tr><td><![endif]-->x<!--[if mso]></td></tr></table><![endif]-->|", "")]
#[case::written_otherwise("<!--[if mso | IE]><div><![endif]-->x<!--[IF mso|ie]></div><![endif]-->|", "")]
fn what_outlook_may_have_open_is_closed_before_the_footer(#[case] html: &str, #[case] end_tags: &str) {
    let found = between(html);
    assert!(if end_tags.is_empty() { found.is_empty() } else { found.contains(end_tags) }, "{found}");
}

#[rstest]
#[case::never_closed("x\n<!--[if !mso]><!-->y", 2, 1)]
#[case::with_a_comment("<!--[if mso]><p> <!-- x -->", 1, 1)]
#[case::open_style("<!--[if mso]><style><![endif]-->", 1, 14)]
#[case::open_tag("<!--[if mso]><p title='<![endif]-->", 1, 14)]
#[case::nested("<![if a]><![if b]><![endif]><![endif]>", 1, 10)]
#[case::ended_in_a_branch("<!--[if !mso]><!-->x{% if title %}<!--<![endif]-->{% endif %}", 1, 35)]
#[case::begun_in_a_branch("{% if title %}<!--[if !mso]><!-->{% endif %}x<!--<![endif]-->", 1, 46)]
#[case::left_in_a_loop("{% for i in (1..2) %}<!--[if !mso]><!-->{% break %}<!--<![endif]-->{% endfor %}", 1, 41)]
#[case::a_value("<!--{{ first_name }}-->", 1, 1)]
#[case::a_condition_from_a_value("<!--[if {{ first_name }}]><p><![endif]-->", 1, 1)]
#[case::a_start_from_a_value("<!--[if {{ first_name }}]><!--><!--<![endif]-->", 1, 1)]
#[case::hidden_body("<!--[if mso]><body style='display:none'><![endif]-->", 1, 20)]
#[case::hiding_rule("<!--[if mso]><style>body{mso-hide:all}</style><![endif]-->", 1, 26)]
fn a_conditional_comment_that_could_hide_the_footer_is_refused(
    #[case] html: &str,
    #[case] line: u32,
    #[case] column: u32,
) {
    assert_eq!(refused_at(html), (line, column));
}

#[test]
fn the_end_of_the_body_is_not_where_outlook_reads_no_more() {
    let html = marketing_html("<body>x<!--[if !mso]><!--></body></html><!--<![endif]-->");
    assert!(html.find("<![endif]").unwrap() < html.find(FOOTER).unwrap(), "{html}");
}

#[test]
fn a_value_in_a_conditional_comment_stays_in_its_attribute() {
    let hostile = named("\"><div hidden> <![endif]-->");
    for html in [
        "<!--[if mso]><td title=\"{{ first_name }}\"><![endif]-->",
        "<!--[if mso]><td title={{ first_name }}><![endif]-->",
        "<!--[if mso]>{{ first_name }}<![endif]-->",
    ] {
        let html = html_of(html, &hostile);
        assert!(!html.contains("<div") && html.matches("<![endif]-->").count() == 1, "{html}");
    }
}

/// The column of the fault in the sheet.
#[rstest]
#[case("body{height:600px;overflow:hidden}", 19)]
#[case("html,body{overflow-y:clip}", 11)]
#[case("BODY { OVERFLOW : HIDDEN !important }", 8)]
#[case("*{overflow:hidden}", 3)]
#[case(":root{display:none}", 7)]
#[case("html>body{opacity:0}", 11)]
#[case("html *{display:none}", 8)]
#[case("head+*{display:none}", 8)]
#[case(":not(p){overflow:hidden}", 9)]
#[case(":is(body){overflow:hidden}", 11)]
#[case("b\\6f dy{overflow:hidden}", 9)]
#[case("body{over\\66low:hidden}", 6)]
#[case("body{overflow:hi\\64 den}", 6)]
#[case("body/**/.k{overflow:hidden}", 12)]
#[case(".k{overflow:hidden}", 4)]
#[case("html.top body#b{overflow:hidden}", 17)]
#[case("[class~=k]{overflow:hidden}", 12)]
#[case("body[class^=\"K\" i]{overflow:hidden}", 20)]
#[case("body:not([x=\"::\"]){overflow:hidden}", 20)]
#[case("@media screen{p{color:red}body{overflow:hidden}}", 32)]
#[case("@supports (color:red){@media print{body{clip:rect(0,0,0,0)}}}", 41)]
#[case("@import url(https://x.test;a);", 1)]
#[case("@import 'https://fonts.googleapis.com.x.test/';", 1)]
#[case("@\\69mport 'https://x.test/';", 1)]
#[case("<!-- body{display:none} -->", 11)]
#[case("p{color:red;}body{position:fixed}", 19)]
#[case("body{position:relative;left:-9999px}", 24)]
#[case("body{margin-left:-9999px}", 6)]
#[case("body{display:flex;flex-direction:row-reverse}", 6)]
#[case("body{-webkit-transform:scale(0)}", 6)]
#[case("body{animation:x 1s}", 6)]
#[case("body{filter:brightness(3)}", 6)]
#[case("body{zoom:.01}", 6)]
#[case("body{content:url(https://x.test/a.png)}", 6)]
#[case("body{writing-mode:vertical-rl}", 6)]
#[case("body{column-width:10px}", 6)]
#[case("body{float:right;width:9000px}", 6)]
#[case("body{interactivity:inert}", 6)]
#[case("body::after{content:'';position:fixed}", 13)]
#[case("*::before{content:'x'}", 11)]
#[case(":hover:after{content:'x'}", 14)]
#[case("p, div > a[href]::after{content:'x'}", 25)]
#[case("span:before{content:'x'}", 13)]
#[case("[style]::before{content:'x'}", 17)]
#[case(".k::before{content:'x'}", 12)]
#[case("div{margin:0 0 -5000px}", 5)]
#[case("div{margin-top:calc(0px - 500px)}", 5)]
#[case("div{margin-block-end:-.5em}", 5)]
#[case("@keyframes x{to{margin-bottom:-500px}}", 17)]
#[case("p{color:red}body{background:url(a", 32)]
#[case("p{content:'x\n'}", 13)]
#[case("/* body{} ", 1)]
#[case("p{color:(};}", 10)]
#[case("p{a{overflow:hidden}}", 3)]
#[case("{% if title %}/*{% endif %}body{overflow:hidden}", 15)]
#[case("{% if title %}/*{% endif %}body{overflow:hidden}/**/", 15)]
#[case("body{ {% if title %}} .a{ {% endif %}overflow:hidden}", 21)]
#[case("{% if title %}p{ {% endif %}color:red}", 18)]
#[case("body{overflow:{{ first_name }}}", 6)]
#[case("body{overflow:{% if title %}visible;color:{% endif %}hidden}", 6)]
#[case("p{ {{ first_name }}:hidden}", 3)]
#[case(".{{ first_name }}{overflow:hidden}", 19)]
#[case("body{% if title %}{}div{% endif %}{overflow:hidden}", 36)]
fn a_rule_that_could_hide_the_footer_is_refused(#[case] sheet: &str, #[case] column: u32) {
    let before = "<html class='top'><style>";
    let html = format!("{before}\n{sheet}</style><body class='x K' id=b>y");
    assert_eq!(refused_at(&html), (2, column), "{sheet}");
}

#[rstest]
#[case("p{overflow:hidden;display:none}")]
#[case("body{margin:0 auto!important;height:100%;overflow:visible;position:relative;min-width:100%;display:block}")]
#[case("body p, body>*, .x *, .other, #other, div:first-child, body::after, *:before{overflow:hidden}")]
#[case("*::before{content:none;box-sizing:border-box} .c::after,p::before,.x a::after,a.x::after{content:''}")]
#[case("a::first-line,a::selection{content:'x';color:red}")]
#[case("[class=other], *[lang], u+.x .y{display:none}")]
#[case("div{margin:0 -10px;margin-left:-4px} p{margin:10px auto}")]
#[case("@font-face{font-family:x;src:url(https://x.test/a.woff2) format('woff2')}")]
#[case("@import url('https://fonts.googleapis.com/css2?family=Inter:wght@400;700');")]
#[case("@import \"https://fonts.bunny.net/css?family=inter\" screen;")]
#[case("@charset \"utf-8\"; a[href$='}']{color:red} p:after{content:\"{;\"}")]
#[case("p{color:{{ first_name }};background:url({{ company }})} {% if title %}p{color:red}{% endif %}")]
#[case(".x{ {% if title %}color:red;{% endif %} }")]
fn a_style_sheet_that_leaves_the_body_alone_is_accepted(#[case] sheet: &str) {
    let html = format!("<style>{sheet}</style><body class=body id=top>y");
    check(&template(&html), &KnownFields::default()).unwrap();
    if !html.contains("{{") && !html.contains("{%") {
        of_value("{{ first_name | raw }}", &html).unwrap();
    }
}

#[rstest]
#[case("<link rel=stylesheet href=https://x.test/a.css>", 1)]
#[case("<link rel='alternate StyleSheet' href='https://fonts.googleapis.com@x.test/'>", 1)]
#[case("<meta http-equiv=Content-Security-Policy content=\"style-src 'none'\">", 1)]
#[case("<div style=\"margin-bottom:-5000px\">", 6)]
#[case("<div style=\"margin&#45;top: -5000px\">", 6)]
#[case("<div style=\"margin&#45top: -5000px\">", 6)]
#[case("<body style=\"overflow:hidden\">", 7)]
#[case("<html style='position:absolute'>", 7)]
fn markup_that_could_hide_the_footer_is_refused(#[case] html: &str, #[case] column: u32) {
    assert_eq!(refused_at(html), (1, column));
}

#[test]
fn a_value_in_a_style_cannot_hide_the_footer() {
    let of = |html: &str, value: &str| html_of(html, &named(value));
    let sheet = "<style>p{color:{{ first_name }}}</style>";
    for hostile in ["red}body{overflow:hidden", "red;x:y", "(", "'", "a */", "a/", "*"] {
        assert_eq!(of(sheet, hostile), "<style>p{color:}</style>", "{hostile}");
    }
    assert_eq!(of(sheet, "rgb(1, 2, 3)"), "<style>p{color:rgb(1, 2, 3)}</style>");
    let style = "<p style=\"margin-top:{{ first_name }}\">x</p>";
    assert_eq!(of(style, "-5000px"), "<p style=\"\">x</p>");
    assert_eq!(of(style, "5px"), "<p style=\"margin-top:5px\">x</p>");
    let branch = "<p style=\"margin-top:{% if first_name %}-{% endif %}9px\">x</p>";
    assert_eq!(of(branch, "a"), "<p style=\"\">x</p>");
}

#[rstest]
#[case::of_the_template("<body class=k>{{ first_name | raw }}", "<style>.k{overflow:hidden}</style>")]
#[case::in_the_template("<style>.k{overflow:hidden}</style>{{ first_name | raw }}", "<body class=k>")]
#[case::of_another_value(
    "{{ first_name | slice: 0, 14 | raw }}{{ first_name | slice: 14, 99 | raw }}",
    "<body class=k><style>.k{overflow:hidden}</style>"
)]
#[case::hidden("{{ first_name | raw }}", "<body hidden>")]
#[case::end_of_a_condition("<!--[if !mso]><!-->{{ first_name | raw }}<!--<![endif]-->", "<!--<![endif]-->")]
fn a_value_printed_as_html_cannot_hide_the_footer(#[case] html: &str, #[case] value: &str) {
    assert_eq!(of_value(html, value), Err(RenderFault::HtmlUnclosed));
}

#[rstest]
#[case::style("<style>a{display:none}</style>", 2)]
#[case::cover("<img style='position:fixed;width:100%'>", 2)]
#[case::plain("<b style='text-align:left'>x</b>", 1)]
fn a_value_that_may_hide_the_own_link_adds_the_footer(#[case] value: &str, #[case] links: usize) {
    let html = "{{ physical_address }}<a href='{{ unsubscribe_url }}'>leave</a>{{ first_name | raw }}";
    let html = of_value(html, value).unwrap();
    assert_eq!(html.matches("/u/1").count(), links, "{html}");
}

#[rstest]
#[case("svg")]
#[case("select")]
#[case("noscript")]
fn a_value_is_no_markup_where_browsers_differ(#[case] element: &str) {
    let html = of_value(&format!("<{element}>{{{{ first_name | raw }}}}</{element}>"), "<style><!--</style>").unwrap();
    assert!(html.contains("&lt;style&gt;&lt;!--&lt;/style&gt;"), "{html}");
}

#[test]
fn a_value_may_style_what_is_not_the_body() {
    let html = "<body class=k><style>.k{color:red}</style>{{ first_name | raw }}";
    assert!(of_value(html, "<style>.other{overflow:hidden}</style>").unwrap().contains("/u/1"));
}

#[rstest]
#[case::printed("{{ unsubscribe_url }}{{ physical_address }}")]
#[case::in_a_branch("{% if true %}{{ unsubscribe_url }}{{ physical_address }}{% endif %}")]
fn a_field_in_the_preheader_is_hidden_and_leaves_the_footer(#[case] preheader: &str) {
    let source = TemplateSource { preheader: Some(preheader.to_owned()), ..template("<p>x</p>") };
    let html = preview(&source, &marketing(), &data(), &TestLinks).unwrap().html;
    let (hidden, added) = html.split_once(PIXEL).unwrap();
    assert!(hidden.contains("/u/1") && hidden.contains("1 Main Street"), "{hidden}");
    assert!(added.contains(FOOTER) && added.contains("/u/1") && added.contains("1 Main Street"), "{added}");
}

#[test]
fn without_a_footer_a_value_may_style_the_body() {
    let value = "<style>body{overflow:hidden}</style><link rel=stylesheet href=https://x.test/a.css><b>x";
    assert_eq!(html_of("{{ first_name | raw }}", &named(value)), format!("{value}</b>"));
}

#[rstest]
#[case(None, "Unsubscribe")]
#[case(Some("en-GB"), "Unsubscribe")]
#[case(Some("de_AT"), "Abmelden")]
#[case(Some("FR"), "Se désabonner")]
#[case(Some("es-MX"), "Darse de baja")]
#[case(Some("pt"), "Unsubscribe")]
#[case(Some("den"), "Unsubscribe")]
fn the_footer_speaks_the_recipients_language(#[case] locale: Option<&str>, #[case] word: &str) {
    let mut data = data();
    data.contact.locale = locale.map(str::to_owned);
    let seen = preview(&template("<p>x</p>"), &marketing(), &data, &TestLinks).unwrap();
    assert!(seen.html.contains(&format!(">{word}</a>")), "{}", seen.html);
    assert!(seen.text.contains(&format!("{word}: https://")), "{}", seen.text);
}
