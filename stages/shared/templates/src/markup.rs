//! Reads HTML as a browser's tokenizer does (WHATWG HTML §13.2.5), once and in order, charging for each piece.
//!
//! A [strict](MarkupReader::strict) reader refuses what browsers could read in more than one way, or to the end of the document: then what
//! is put into a document later stands where it was put. A lenient one reads on, for text that only has to be readable.

mod tags;

use std::collections::HashMap;
use std::ops::Range;

use runtime::{Budget, Spent};

use super::conditional::{self, Conditional, HIDDEN_END};
use super::escape::has_prefix;
use super::limits::text_steps;

/// Elements that have no end tag.
const VOID: [&str; 19] = [
    "area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "image", "img", "input", "keygen",
    "link", "meta", "param", "source", "track", "wbr",
];

/// A text of a document, and the byte at which it begins there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DocumentSpan<'d> {
    pub(super) text: &'d str,
    pub(super) start: usize,
}

impl DocumentSpan<'_> {
    pub(super) fn end(self) -> usize {
        self.start + self.text.len()
    }
}

/// A piece of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HtmlToken<'d> {
    /// Text; `is_raw` in elements such as `style` and `title`.
    Text { span: DocumentSpan<'d>, is_raw: bool },
    /// A comment, a document type, anything a browser drops.
    Comment { span: DocumentSpan<'d> },
    /// A start tag.
    Start(HtmlTag<'d>),
    /// An end tag.
    End { name: &'d str, span: DocumentSpan<'d> },
}

impl<'d> HtmlToken<'d> {
    /// All of it.
    pub(super) fn span(&self) -> DocumentSpan<'d> {
        match self {
            Self::Text { span, .. } | Self::Comment { span } | Self::End { span, .. } => *span,
            Self::Start(tag) => tag.span,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HtmlTag<'d> {
    /// As written: in any case.
    pub(super) name: &'d str,
    pub(super) span: DocumentSpan<'d>,
    pub(super) attributes: Vec<Attribute<'d>>,
    pub(super) is_self_closing: bool,
}

impl<'d> HtmlTag<'d> {
    /// The value of the first attribute with this name.
    pub(super) fn attribute(&self, name: &str) -> Option<&'d str> {
        let found = self.attributes.iter().find(|attribute| attribute.name.text.eq_ignore_ascii_case(name));
        found.map(|attribute| attribute.value.text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attribute<'d> {
    pub(super) name: DocumentSpan<'d>,
    /// Without its quotes. Empty where there is none.
    pub(super) value: DocumentSpan<'d>,
    /// The byte around the value, if it is quoted.
    pub(super) quote: Option<u8>,
}

/// What a strict reader refuses, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) at: usize,
    pub(super) why: MarkupFaultReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MarkupFaultReason {
    #[error("a comment is never closed by `-->`")]
    Comment,
    #[error("a tag is never closed by `>`")]
    Tag,
    #[error("an element such as `style`, `title` or `textarea` is never closed")]
    RawText,
    #[error("`plaintext` and `frameset` are not available in mail")]
    Element,
    #[error("browsers read this in different ways; write it without markup inside markup")]
    Ambiguous,
    #[error("a conditional comment must end with `<![endif]-->` and hold no other comment")]
    Condition,
    #[error("a tag has too many attributes")]
    Attributes,
    #[error(transparent)]
    Spent(#[from] Spent),
}

pub(super) struct MarkupReader<'d, 'b> {
    document: &'d str,
    budget: &'b Budget,
    is_strict: bool,
    is_fragment: bool,
    at: usize,
    /// The element whose content is text, and where its tag stands.
    raw: Option<(&'static str, usize)>,
    /// Open elements inside which browsers disagree, or do not read elements of raw text as such.
    svg_or_select: u32,
    noscript: u32,
    /// The conditional comment whose markup is being read.
    hidden: Option<Hidden<'d>>,
    /// What is left out where a condition does not hold: the condition, its label, and where it stands.
    region: Option<(String, u32, usize)>,
    labels: HashMap<String, u32>,
}

/// The reader as it was before a conditional comment.
struct Hidden<'d> {
    document: &'d str,
    svg_or_select: u32,
    noscript: u32,
    label: u32,
}

impl<'d, 'b> MarkupReader<'d, 'b> {
    pub(super) fn strict(document: &'d str, budget: &'b Budget) -> Self {
        Self {
            document,
            budget,
            is_strict: true,
            is_fragment: false,
            at: 0,
            raw: None,
            svg_or_select: 0,
            noscript: 0,
            hidden: None,
            region: None,
            labels: HashMap::new(),
        }
    }

    /// A strict reader of a value that is put into a document: it ends no conditional comment of that document.
    pub(super) fn fragment(document: &'d str, budget: &'b Budget) -> Self {
        Self { is_fragment: true, ..Self::strict(document, budget) }
    }

    pub(super) fn lenient(document: &'d str, budget: &'b Budget) -> Self {
        Self { is_strict: false, ..Self::strict(document, budget) }
    }

    /// The next piece; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<HtmlToken<'d>>, Broken> {
        let start = self.at;
        if start >= self.document.len() && self.raw.is_none() {
            if let Some(hidden) = self.hidden.take() {
                (self.document, self.svg_or_select, self.noscript) =
                    (hidden.document, hidden.svg_or_select, hidden.noscript);
                self.at = start + HIDDEN_END.len();
                return Ok(Some(HtmlToken::Comment { span: self.span(start..self.at) }));
            }
            return match &self.region {
                Some((.., at)) => Err(Broken { at: *at, why: MarkupFaultReason::Condition }),
                None => Ok(None),
            };
        }
        let raw = self.raw.take().map(|(name, tag)| self.raw_text(name, tag)).transpose()?.flatten();
        let token = match raw {
            Some(token) => token,
            None if start >= self.document.len() => return Ok(None),
            None => self.piece()?,
        };
        self.budget.take_steps(text_steps(self.at - start)).map_err(|spent| Broken { at: start, why: spent.into() })?;
        Ok(Some(token))
    }

    /// Tells apart under which condition the last piece is read; 0 is none. A conditional comment's own piece, `<!--[if mso]>`,
    /// counts as read under it.
    pub(super) fn label(&self) -> u32 {
        match (&self.hidden, &self.region) {
            (Some(hidden), _) => hidden.label,
            (None, Some((_, label, _))) => *label,
            (None, None) => 0,
        }
    }

    /// Whether the last piece stands in a conditional comment: browsers do not see it.
    pub(super) fn is_hidden(&self) -> bool {
        self.hidden.is_some()
    }

    fn span(&self, range: Range<usize>) -> DocumentSpan<'d> {
        DocumentSpan { start: range.start, text: self.document.get(range).unwrap_or_default() }
    }

    fn rest(&self, from: usize) -> &'d str {
        self.document.get(from..).unwrap_or_default()
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.document.as_bytes().get(at).copied()
    }

    /// A fault for a strict reader; for a lenient one, the document ends here.
    fn broken(&mut self, at: usize, why: MarkupFaultReason) -> Result<(), Broken> {
        self.refuse(at, why)?;
        self.at = self.document.len();
        Ok(())
    }

    fn refuse(&self, at: usize, why: MarkupFaultReason) -> Result<(), Broken> {
        if self.is_strict { Err(Broken { at, why }) } else { Ok(()) }
    }

    fn piece(&mut self) -> Result<HtmlToken<'d>, Broken> {
        let start = self.at;
        let is_markup = |open: &usize| match self.byte(open + 1) {
            Some(b'!' | b'?') => true,
            Some(b'/') => self.byte(open + 2).is_some(),
            Some(letter) => letter.is_ascii_alphabetic(),
            None => false,
        };
        let open = self.rest(start).match_indices('<').map(|(at, _)| start + at).find(is_markup);
        if open != Some(start) {
            self.at = open.unwrap_or(self.document.len());
            return Ok(HtmlToken::Text { span: self.span(start..self.at), is_raw: false });
        }
        match (self.byte(start + 1), self.byte(start + 2)) {
            (Some(b'/'), Some(letter)) if letter.is_ascii_alphabetic() => self.end_tag(start),
            (Some(letter), _) if letter.is_ascii_alphabetic() => self.start_tag(start),
            _ => self.comment(start),
        }
    }

    /// The text up to the end tag of an element of raw text. `None`: there is none.
    fn raw_text(&mut self, name: &'static str, tag: usize) -> Result<Option<HtmlToken<'d>>, Broken> {
        let start = self.at;
        let is_end = |open: &usize| {
            let after = open + 2 + name.len();
            let is_named = self.document.get(open + 2..after).is_some_and(|word| word.eq_ignore_ascii_case(name));
            is_named && self.byte(after).is_some_and(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>'))
        };
        let end = self.rest(start).match_indices("</").map(|(at, _)| start + at).find(is_end);
        let Some(end) = end else {
            self.broken(tag, MarkupFaultReason::RawText)?;
            let span = self.span(start..self.at);
            return Ok((!span.text.is_empty()).then_some(HtmlToken::Text { span, is_raw: true }));
        };
        self.at = end;
        let span = self.span(start..end);
        if (self.svg_or_select > 0 && span.text.contains(['<', '&']))
            || (name == "script" && span.text.contains("<!--"))
        {
            self.refuse(tag, MarkupFaultReason::Ambiguous)?;
        }
        self.check_noscript(span)?;
        Ok((end > start).then_some(HtmlToken::Text { span, is_raw: true }))
    }

    /// With scripts, `noscript` is an element of raw text; without, it is not. Its end must be the same either way.
    fn check_noscript(&self, DocumentSpan { text, start }: DocumentSpan<'_>) -> Result<(), Broken> {
        let is_ended = self.noscript > 0 && text.split("</").skip(1).any(|rest| has_prefix(rest, "noscript"));
        if is_ended { self.refuse(start, MarkupFaultReason::Ambiguous) } else { Ok(()) }
    }

    /// `<!-- -->`, `<!doctype>`, `<![if]>`, `<?x>`, `</ >`.
    fn comment(&mut self, open: usize) -> Result<HtmlToken<'d>, Broken> {
        let rest = self.rest(open);
        let end = if let Some(inner) = rest.strip_prefix("<!--") {
            let ends = |at: &usize| {
                let before = inner.get(..*at).unwrap_or_default();
                // `<!-->` and `<!--->` are whole.
                matches!(before, "" | "-") || before.ends_with("--") || before.ends_with("--!")
            };
            inner.match_indices('>').map(|(at, _)| at).find(ends).map(|at| at + 5)
        } else {
            let end = rest.find('>').map(|end| end + 1);
            // In SVG, a CDATA section ends at `]]>`; elsewhere at the first `>`.
            if rest.starts_with("<![CDATA[")
                && end.is_some_and(|end| !rest.get(..end).unwrap_or_default().ends_with("]]>"))
            {
                self.refuse(open, MarkupFaultReason::Ambiguous)?;
            }
            end
        };
        match end {
            Some(end) => self.at = open + end,
            None => self.broken(open, MarkupFaultReason::Comment)?,
        }
        self.check_noscript(self.span(open..self.at))?;
        if self.is_strict {
            self.condition(open)?;
        }
        Ok(HtmlToken::Comment { span: self.span(open..self.at) })
    }

    /// Takes note of a conditional comment that was just read. What Outlook reads of it is read next.
    fn condition(&mut self, open: usize) -> Result<(), Broken> {
        let unclear = Broken { at: open, why: MarkupFaultReason::Condition };
        match conditional::read(self.span(open..self.at).text).map_err(|_| unclear)? {
            None => {}
            Some(_) if self.hidden.is_some() => return Err(unclear),
            Some(Conditional::End) if self.is_fragment && self.region.is_none() => return Err(unclear),
            Some(Conditional::End) => self.region = None,
            Some(Conditional::Start { .. }) if self.region.is_some() => return Err(unclear),
            Some(Conditional::Start { condition }) => {
                let condition = conditional::normal(condition);
                let label = self.new_label(condition.clone());
                self.region = Some((condition, label, open));
            }
            Some(Conditional::Hidden { condition, content }) => {
                let mut condition = conditional::normal(condition);
                if let Some((around, ..)) = &self.region {
                    condition = format!("{around}\n{condition}");
                }
                let label = self.new_label(condition);
                let (svg_or_select, noscript) = (self.svg_or_select, self.noscript);
                self.hidden = Some(Hidden { document: self.document, svg_or_select, noscript, label });
                self.document = self.document.get(..open + content.end).unwrap_or_default();
                (self.at, self.svg_or_select, self.noscript) = (open + content.start, 0, 0);
            }
        }
        Ok(())
    }

    fn new_label(&mut self, condition: String) -> u32 {
        let next = u32::try_from(self.labels.len()).unwrap_or(u32::MAX).saturating_add(1);
        *self.labels.entry(condition).or_insert(next)
    }
}

/// Whether an element with this name (in lower case) has no content.
pub(super) fn is_void(name: &str) -> bool {
    VOID.contains(&name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;

    fn budget() -> Budget {
        Budget::new(runtime::Limits {
            input_bytes: usize::MAX,
            held_bytes: usize::MAX,
            depth: u32::MAX,
            steps: u64::MAX,
            time: Duration::from_secs(3_600),
        })
    }

    /// The pieces, a line each.
    fn read(html: &str, strict: bool) -> Result<Vec<String>, MarkupFaultReason> {
        let budget = budget();
        let mut reader =
            if strict { MarkupReader::strict(html, &budget) } else { MarkupReader::lenient(html, &budget) };
        let mut pieces = Vec::new();
        while let Some(token) = reader.next().map_err(|broken| broken.why)? {
            pieces.push(match token {
                HtmlToken::Text { span, is_raw } => format!("{}:{}", if is_raw { "raw" } else { "text" }, span.text),
                HtmlToken::Comment { span } => format!("comment:{}", span.text),
                HtmlToken::End { name, .. } => format!("end:{name}"),
                HtmlToken::Start(tag) => {
                    let attributes: Vec<String> = tag
                        .attributes
                        .into_iter()
                        .map(|attribute| format!(" {}={}", attribute.name.text, attribute.value.text))
                        .collect();
                    format!("start:{}{}", tag.name, attributes.concat())
                }
            });
        }
        Ok(pieces)
    }

    #[rstest]
    #[case("a < b <3 <", &["text:a < b <3 <"])]
    #[case("<p class=a id='b c' x = \"y>z\" w>t</p >", &["start:p class=a id=b c x=y>z w=", "text:t", "end:p"])]
    #[case("<br/><img src=a/>", &["start:br", "start:img src=a/"])]
    #[case("<!-- a > b --><!--><!---->x", &["comment:<!-- a > b -->", "comment:<!-->", "comment:<!---->", "text:x"])]
    #[case("<!-- a --!>b", &["comment:<!-- a --!>", "text:b"])]
    #[case("<!doctype html><?x y?></ z>", &["comment:<!doctype html>", "comment:<?x y?>", "comment:</ z>"])]
    #[case("<STYLE>a</b></style x>c", &["start:STYLE", "raw:a</b>", "end:style", "text:c"])]
    #[case("<title></titles></title>", &["start:title", "raw:</titles>", "end:title"])]
    #[case("<a =b=c></a title='>'>", &["start:a =b=c", "end:a"])]
    fn html_is_read_as_browsers_read_it(#[case] html: &str, #[case] pieces: &[&str]) {
        assert_eq!(read(html, true).unwrap(), pieces);
        assert_eq!(read(html, false).unwrap(), pieces);
    }

    #[test]
    fn a_conditional_comment_is_read_as_outlook_reads_it() {
        let html = "<!--[if mso]><p a=b>x<![endif]--><![if !mso]><b><![endif]>y";
        let pieces = [
            "comment:<!--[if mso]>",
            "start:p a=b",
            "text:x",
            "comment:<![endif]-->",
            "comment:<![if !mso]>",
            "start:b",
            "comment:<![endif]>",
            "text:y",
        ];
        assert_eq!(read(html, true).unwrap(), pieces);
        assert_eq!(read(html, false).unwrap()[0], "comment:<!--[if mso]><p a=b>x<![endif]-->");
        let budget = budget();
        let mut reader = MarkupReader::strict(html, &budget);
        let mut labels = Vec::new();
        while let Ok(Some(_)) = reader.next() {
            labels.push((reader.label(), reader.is_hidden()));
        }
        assert_eq!(
            labels,
            [(1, true), (1, true), (1, true), (0, false), (2, false), (2, false), (0, false), (0, false)]
        );
    }

    #[rstest]
    #[case("a<!-- b", MarkupFaultReason::Comment)]
    #[case("a<!doctype", MarkupFaultReason::Comment)]
    #[case("<p class='a>", MarkupFaultReason::Tag)]
    #[case("<p", MarkupFaultReason::Tag)]
    #[case("</p", MarkupFaultReason::Tag)]
    #[case("<style>a", MarkupFaultReason::RawText)]
    #[case("<textarea>", MarkupFaultReason::RawText)]
    #[case("<plaintext>", MarkupFaultReason::Element)]
    #[case("<frameset>", MarkupFaultReason::Element)]
    #[case("<svg><style><a title=\"</style>", MarkupFaultReason::Ambiguous)]
    #[case("<select><title><b></title>", MarkupFaultReason::Ambiguous)]
    #[case("<script><!--<script></script>", MarkupFaultReason::Ambiguous)]
    #[case("<noscript><!-- </noscript> --></noscript>", MarkupFaultReason::Ambiguous)]
    #[case("<noscript><p title='</noscript>'></noscript>", MarkupFaultReason::Ambiguous)]
    #[case("<![CDATA[ <a> ]]>", MarkupFaultReason::Ambiguous)]
    #[case("<svg><style>b&#111;dy{}</style></svg>", MarkupFaultReason::Ambiguous)]
    #[case("<!--[if mso]><p><![endif]", MarkupFaultReason::Comment)]
    #[case("<!--[if mso]><p> <!-- x -->", MarkupFaultReason::Condition)]
    #[case("<!--[if mso]><style><![endif]-->", MarkupFaultReason::RawText)]
    #[case("<!--[if mso]><p title='<![endif]-->", MarkupFaultReason::Tag)]
    #[case("<!--[if mso]><![if x]><p><![endif]-->", MarkupFaultReason::Condition)]
    #[case("<!--[if !mso]><!-->x", MarkupFaultReason::Condition)]
    #[case("<![if !mso]>x", MarkupFaultReason::Condition)]
    #[case("<![if a]><![if b]><![endif]><![endif]>", MarkupFaultReason::Condition)]
    fn what_is_open_or_ambiguous_is_refused(#[case] html: &str, #[case] why: MarkupFaultReason) {
        assert_eq!(read(html, true), Err(why));
        assert!(read(html, false).is_ok());
    }
}
