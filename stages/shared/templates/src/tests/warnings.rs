//! Warnings about templates that can be sent.

use rstest::rstest;

use super::*;

fn codes(html: &str) -> Vec<String> {
    let found = warnings(&template(html));
    found.iter().map(|one| format!("{} {}:{}", one.code.as_str(), one.position.line, one.position.column)).collect()
}

#[rstest]
#[case::web(r#"<a href="https://shop.test/a?b=1&amp;c=2">x</a>"#, None)]
#[case::mail(r#"<a href="mailto:a@shop.test">x</a>"#, None)]
#[case::telephone(r#"<a href="tel://+1 555 0100">x</a>"#, None)]
#[case::place_in_the_mail(r##"<a href="#top">x</a>"##, None)]
#[case::target_of_one(r#"<a name="top"></a>"#, None)]
#[case::printed(r#"<a href="{{ data.url }}">x</a>"#, None)]
#[case::partly_printed(r#"<a href="https://shop.test/{{ data.path }}">x</a>"#, None)]
#[case::hash(r##"<a href="#">x</a>"##, Some("dead_link 1:1"))]
#[case::empty(r#"<a href="">x</a>"#, Some("dead_link 1:1"))]
#[case::no_address("<a>x</a>", Some("dead_link 1:1"))]
#[case::relative(r#"<a href="/basket">x</a>"#, Some("dead_link 1:1"))]
#[case::malformed(r#"<a href="https://">x</a>"#, Some("dead_link 1:1"))]
#[case::of_an_example(r#"<a href="https://www.example.com/x">x</a>"#, Some("dead_link 1:1"))]
#[case::picture(r#"<img src="https://cdn.shop.test/a.png" alt="A cup">"#, None)]
#[case::decoration(r#"<img src="https://cdn.shop.test/a.png" alt="">"#, None)]
#[case::attached(r#"<img src="cid:logo" alt="Logo">"#, None)]
#[case::no_text(r#"<img src="https://cdn.shop.test/a.png">"#, Some("missing_alt 1:1"))]
#[case::relative_picture(r#"<img src="a.png" alt="A cup">"#, Some("dead_image 1:1"))]
#[case::in_a_comment(r##"<!-- <a href="#">x</a> -->"##, None)]
fn what_goes_wrong_in_a_mailbox_is_a_warning(#[case] html: &str, #[case] warning: Option<&str>) {
    assert_eq!(codes(html), warning.into_iter().collect::<Vec<_>>());
}

#[test]
fn a_warning_says_where_and_none_hides_another() {
    let html = "<p>{{ first_name }}</p>\n  <a href=\"#\"><img src=\"x.png\"></a>";
    assert_eq!(codes(html), ["dead_link 2:3", "dead_image 2:15", "missing_alt 2:15"]);
}

#[test]
fn html_that_gmail_clips_is_a_warning() {
    let fits = "x".repeat(GMAIL_CLIPS_BYTES);
    assert_eq!(codes(&fits), Vec::<String>::new());
    assert_eq!(codes(&format!("{fits}y")), ["html_clipped 1:1"]);
}

#[test]
fn warnings_are_bounded() {
    let found = warnings(&template(&"<a href=\"#\">x</a>".repeat(2_000))).len();
    assert!((1..=super::limits::FAULTS + 2).contains(&found), "{found}");
}
