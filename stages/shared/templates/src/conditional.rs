//! Conditional comments: markup for Outlook that is a comment to browsers, and markup for browsers that Outlook leaves out.
//! Which conditions hold differs by program and version, so two pieces count as read together only if their conditions are
//! written alike.

use std::ops::Range;

use super::escape::has_prefix;

/// What a comment means to programs that know conditional comments.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Conditional<'d> {
    /// `<!--[if mso]> content <![endif]-->`: markup, if the condition holds. `content` is bytes of the comment.
    Hidden { condition: &'d str, content: Range<usize> },
    /// `<!--[if !mso]><!-->` or `<![if !mso]>`: what follows is left out unless the condition holds.
    Start { condition: &'d str },
    /// `<!--<![endif]-->`: ends what was left out.
    End,
}

/// A comment that looks like a conditional one and that programs could read in different ways.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unclear;

/// What ends a hidden piece of markup.
pub(super) const HIDDEN_END: &str = "<![endif]-->";

/// Reads a whole comment. `None`: an ordinary one.
pub(super) fn read(comment: &str) -> Result<Option<Conditional<'_>>, Unclear> {
    let lower = comment.to_ascii_lowercase();
    if !lower.contains("[if") && !lower.contains("[endif") {
        return Ok(None);
    }
    let is_comment = comment.starts_with("<!--");
    let start = if is_comment { 4 } else { 2 };
    let end = comment.len() - if is_comment { 3 } else { 1 };
    let inner = comment.get(start..end).ok_or(Unclear)?;
    let bare = inner.trim_ascii().trim_start_matches("<!").trim_end_matches("--");
    if bare.eq_ignore_ascii_case("[endif]") {
        return Ok(Some(Conditional::End));
    }
    if !has_prefix(inner.trim_ascii_start(), "[if") {
        return if lower.contains("[endif") { Err(Unclear) } else { Ok(None) };
    }
    let from = start + inner.len() - inner.trim_ascii_start().len() + 3;
    let close = from + comment.get(from..end).and_then(|rest| rest.find(']')).ok_or(Unclear)?;
    let condition = comment.get(from..close).unwrap_or_default();
    let after = comment.get(close + 1..end).unwrap_or_default();
    if after.is_empty() {
        return Ok(Some(Conditional::Start { condition }));
    }
    let content = after.strip_prefix('>').filter(|_| is_comment && comment.ends_with("-->")).ok_or(Unclear)?;
    if matches!(content.trim_ascii(), "" | "<!" | "<!--") {
        return Ok(Some(Conditional::Start { condition }));
    }
    let content = close + 2..comment.len().saturating_sub(HIDDEN_END.len());
    let is_whole = lower.get(content.start..).is_some_and(|rest| rest.find("<![endif]") == Some(content.len()));
    if is_whole && lower.ends_with(HIDDEN_END) {
        Ok(Some(Conditional::Hidden { condition, content }))
    } else {
        Err(Unclear)
    }
}

/// The form in which conditions are compared.
pub(super) fn normal(condition: &str) -> String {
    condition.chars().filter(|character| !character.is_whitespace()).collect::<String>().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("<!--[if mso]><p><![endif]-->", " if mso ", "<p>")]
    #[case("<!--[IF (gte mso 9)|(IE)]>\n<p>\n<![ENDIF]-->", " IF (gte mso 9)|(IE) ", "\n<p>\n")]
    #[case("<!-- [if mso]><![endif]-->", " if mso ", "")]
    fn hidden_markup_is_found(#[case] comment: &str, #[case] condition: &str, #[case] markup: &str) {
        let Some(Conditional::Hidden { condition: found, content }) = read(comment).unwrap() else {
            panic!("{comment}");
        };
        assert_eq!(normal(&format!("if{found}")), normal(condition));
        assert_eq!(&comment[content], markup);
    }

    #[rstest]
    #[case("<!--[if !mso]><!-->", "!mso")]
    #[case("<!--[if !mso]><!-- -->", "!mso")]
    #[case("<!--[if !mso]> -->", "!mso")]
    #[case("<!--[if ! mso | IE]-->", "!mso|ie")]
    #[case("<![if !mso]>", "!mso")]
    fn the_start_of_what_outlook_leaves_out_is_found(#[case] comment: &str, #[case] condition: &str) {
        let Some(Conditional::Start { condition: found }) = read(comment).unwrap() else { panic!("{comment}") };
        assert_eq!(normal(found), condition);
    }

    #[rstest]
    #[case("<!--<![endif]-->")]
    #[case("<!-- <![endif]-->")]
    #[case("<!--[endif]-->")]
    #[case("<![endif]-->")]
    #[case("<![endif]>")]
    fn the_end_of_what_outlook_leaves_out_is_found(#[case] comment: &str) {
        assert_eq!(read(comment), Ok(Some(Conditional::End)));
    }

    #[rstest]
    #[case("<!-- a -->")]
    #[case("<!-->")]
    #[case("<!-- the button [if any] -->")]
    #[case("<!doctype html>")]
    fn an_ordinary_comment_is_none(#[case] comment: &str) {
        assert_eq!(read(comment), Ok(None));
    }

    #[rstest]
    #[case("<!--[if mso]><p> <!-- x -->")]
    #[case("<!--[if mso]><p><![endif]> -->")]
    #[case("<!--[if mso]><p><![endif]><p><![endif]-->")]
    #[case("<!--[if mso><p>-->")]
    #[case("<!--[if mso]><p><![endif]--!>")]
    #[case("<!-- x <![endif]-->")]
    #[case("<![if mso] x>")]
    fn an_ambiguous_comment_is_unclear(#[case] comment: &str) {
        assert_eq!(read(comment), Err(Unclear));
    }
}
