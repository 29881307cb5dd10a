//! The text part derived from HTML.

use rstest::rstest;

use super::*;

fn text_of(html: &str) -> String {
    preview(&template(html), &bare(), &data(), &TestLinks).unwrap().text
}

#[rstest]
#[case("<h1>Title</h1><p>One  two\n three</p><p>Four</p>", "Title\n\nOne two three\n\nFour")]
#[case("<div>a</div><div>b</div>c<br>d<br><br>e", "a\nb\nc\nd\n\ne")]
#[case("<ul><li>one</li><li>two</li></ul>after", "- one\n- two\n\nafter")]
#[case("<p>Caf&eacute; &amp; bar&nbsp;&#8212; &#x20AC;5 &unknown; &lt;b&gt;</p>", "Café & bar — €5 &unknown; <b>")]
#[case("<style>p{}</style><script>alert(1)</script><head><title>t</title></head><p>x</p><!-- no -->", "x")]
#[case("<a href=\"https://x.test/a?b=1&amp;c=2\">See</a> it", "See (https://x.test/a?b=1&c=2) it")]
#[case("<a href=\"https://x.test/\">x.test</a>", "x.test")]
#[case("<a href=\"https://x.test/\"><img src=i></a>", "https://x.test/")]
#[case("<a href=\"https://x.test/\"><img src=i alt=\"Go  on\"></a>", "Go on (https://x.test/)")]
#[case(
    "<a href=\"mailto:a@b.test\">a@b.test</a> <a href=\"mailto:a@b.test\">write</a> <a href=\"#x\">top</a>",
    "a@b.test write (a@b.test) top"
)]
#[case("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>", "a b\nc d")]
#[case("<p>Hi {{ first_name }},</p><p>{{ company }}</p>", "Hi Ada,\n\nAnalytical & Sons")]
#[case("<p>Hi{% if first_name %} {{ first_name }}{% endif %}!</p>", "Hi Ada!")]
#[case("<p>a</p>{% if title %}<p>no</p>{% endif %}<p>b</p>", "a\n\nb")]
#[case("<table>{% for i in data.order.items %}<tr><td>{{ i.name }}</td></tr>{% endfor %}</table>", "Tea\nCup\n")]
#[case("<p {% if first_name %}class=\"{{ email }}\"{% endif %}>x</p>", "x")]
#[case("<style>{% if first_name %}p{}{% endif %}</style>{{ last_name | escape }}", "Lovelace")]
#[case(
    "<a href=\"{% if first_name %}https://a.test{% else %}https://b.test{% endif %}\">go</a>.",
    "go (https://a.test)."
)]
#[case(
    "<ol><li>one</li><li>two<ul><li>a</li><li>b</li></ul></li><li>three</li></ol>x",
    "1. one\n2. two\n  - a\n  - b\n3. three\n\nx"
)]
#[case("<ol>{% for i in data.order.items %}<li>{{ i.name }}</li>{% endfor %}</ol>", "- Tea\n- Cup\n")]
#[case("<div style=\"color:red; DISPLAY: none !important;\">a<div>b</div>c</div><p>x</p>", "x")]
#[case(
    "<span style='display:none'>{% if first_name %}a</span>x{% endif %}<img alt=\"y\" style=\"display:none\">",
    "xy"
)]
#[case("<!--[if mso]><p>Outlook {{ email }}</p><![endif]--><p>x</p><![if !mso]><p>y</p><![endif]>", "x\n\ny")]
#[case("<a href=\"{{ data.url }}\">go</a>", "go (https://shop.test/a?b=1&c=2)")]
fn html_reads_well_as_text(#[case] html: &str, #[case] text: &str) {
    assert_eq!(text_of(html), text);
}

#[test]
fn the_text_part_has_the_footer_too() {
    let text = preview(&template("<p>Hi</p>"), &marketing(), &data(), &TestLinks).unwrap().text;
    assert_eq!(text, "Hi\n\n1 Main Street\nSpringfield\n\nUnsubscribe: https://t.test/u/1?a=1&b=2");
}
