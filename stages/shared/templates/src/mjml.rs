//! MJML to HTML, when a version of a template is made. The compiler is mrml's. Liquid goes through as words that mean nothing to it, and
//! comes out as it was written; what mrml would do without bounds is refused before.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use htmlparser::{ElementEnd, StrSpan, Token, Tokenizer};
use mrml::prelude::parser::Error as MjmlError;
use mrml::prelude::render::RenderOptions;
use runtime::Budget;

use super::compose::{offset_of, position_of};
use super::fault::{FaultCode, Part, Position, Problem, TemplateFault};
use super::lexer::brief;
use super::limits::{MJML_COPIED_BYTES, MJML_DEPTH, MJML_ELEMENTS, READING, SOURCE_BYTES};
use super::placeholder::unused_prefix;
use super::scan::{SourceKind, plain_lines, scan_source};

/// HTML elements without an end tag.
const VOID: [&str; 14] =
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"];

/// Compiles MJML to HTML. The Liquid in it stands in the HTML as it was written.
///
/// # Errors
/// Faults of the Liquid markup, or the first of the MJML, with its place in the source.
pub fn compile_mjml(source: &str) -> Result<String, Vec<TemplateFault>> {
    let source = plain_lines(source);
    let budget = Budget::new(READING);
    let scanned = scan_source(Part::BodyHtml, SourceKind::Whole, &source, &budget)?;
    let liquid: Vec<_> = scanned.markups.into_iter().map(|(span, at)| (span, Some(at))).collect();
    // htmlparser 0.2 panics on a malformed conditional comment.
    catch_unwind(AssertUnwindSafe(|| {
        let escaped = MjmlDocument::new(&source, &liquid).escaped_characters();
        let mut spans = [liquid, escaped.into_iter().map(|span| (span, None)).collect()].concat();
        spans.sort_unstable_by_key(|(span, _)| span.start);
        MjmlDocument::new(&source, &spans).compile()
    }))
    .unwrap_or_else(|_| {
        Err(Problem::new(FaultCode::HtmlInvalid, "markup that cannot be read").at(Part::BodyHtml, Position::START))
    })
    .map_err(|fault| vec![fault])
}

/// A source with words in the place of its Liquid, and of the characters that mrml would not write as they are.
struct MjmlDocument<'s> {
    source: &'s str,
    /// How every word begins; nothing in the source does.
    prefix: String,
    text: String,
    /// What has a word: its place in the source, and its word's offset in the text. Liquid has a position.
    words: Vec<(Range<usize>, Option<Position>, usize)>,
    /// Where the MJML begins: Liquid may stand before it.
    start: usize,
}

impl<'s> MjmlDocument<'s> {
    /// The document with a word for each of these spans, which are in order. Liquid has a position.
    fn new(source: &'s str, spans: &[(Range<usize>, Option<Position>)]) -> Self {
        let mut document =
            Self { source, prefix: unused_prefix(source), text: String::new(), words: Vec::new(), start: 0 };
        let mut from = 0;
        for (span, at) in spans {
            document.copy(from..span.start);
            from = span.end;
            document.replace(span.clone(), *at);
        }
        document.copy(from..source.len());
        let before = document.text.find('<').unwrap_or(0);
        let is_only_liquid = document.text.get(..before).is_some_and(|text| {
            text.split_whitespace().all(|word| word.starts_with(&document.prefix) && word.ends_with('x'))
        });
        document.start = if is_only_liquid { before } else { 0 };
        document
    }

    /// Copies a stretch of the source. htmlparser 0.2 panics on a text whose first `>` has another character than ASCII's in the two bytes
    /// before it, so that one goes as a word.
    fn copy(&mut self, span: Range<usize>) {
        let source = self.source;
        let text = source.get(span.clone()).unwrap_or_default();
        let mut from = 0;
        for (at, character) in text.char_indices().filter(|(_, character)| !character.is_ascii()) {
            let end = at + character.len_utf8();
            if source.as_bytes().iter().skip(span.start + end).take(2).any(|byte| *byte == b'>') {
                self.text.push_str(text.get(from..at).unwrap_or_default());
                self.replace(span.start + at..span.start + end, None);
                from = end;
            }
        }
        self.text.push_str(text.get(from..).unwrap_or_default());
    }

    /// The characters of attributes that mrml writes as Rust does in a debug print (`\"`, `\u{a0}`): their places in the source.
    fn escaped_characters(&self) -> Vec<Range<usize>> {
        let text = self.text.get(self.start..).unwrap_or_default();
        let values = Tokenizer::from(text).map_while(Result::ok).filter_map(|token| match token {
            Token::Attribute { value, .. } => value,
            _ => None,
        });
        values
            .flat_map(|value| {
                let escaped = value.as_str().char_indices().filter(|(_, character)| {
                    // The debug print of a text leaves `'` alone.
                    *character != '\'' && !character.escape_debug().eq([*character])
                });
                escaped.map(move |(at, character)| {
                    let at = self.in_source(self.start + value.start() + at);
                    at..at + character.len_utf8()
                })
            })
            .collect()
    }

    fn replace(&mut self, span: Range<usize>, at: Option<Position>) {
        // White space in an attribute is a space, as in XML, so that mrml still finds the parts of a `padding`.
        if at.is_none() && self.source.as_bytes().get(span.start).is_some_and(u8::is_ascii_whitespace) {
            self.text.push(' ');
            return;
        }
        let word = self.word(self.words.len());
        self.words.push((span, at, self.text.len()));
        self.text.push_str(&word);
    }

    fn word(&self, number: usize) -> String {
        format!("{}{number}x", self.prefix)
    }

    fn compile(&self) -> Result<String, TemplateFault> {
        let text = self.text.get(self.start..).unwrap_or_default();
        MjmlShape { document: self, open: Vec::new(), elements: 0, head_bytes: 0, copied_bytes: 0 }.check(text)?;
        let parsed = mrml::parse(text).map_err(|error| self.refusal(&error))?;
        // No fonts but those the author names: a recipient's mail program loads no others.
        let options = RenderOptions { fonts: std::collections::HashMap::new(), ..RenderOptions::default() };
        let html = parsed
            .element
            .render(&options)
            .map_err(|error| self.fault(self.start, format!("the MJML cannot be compiled: {error}")))?;
        self.restore(&html)
    }

    /// Puts the Liquid and the characters back.
    fn restore(&self, html: &str) -> Result<String, TemplateFault> {
        let mut restored = self.source.get(..self.in_source(self.start)).unwrap_or_default().to_owned();
        let mut seen: Vec<bool> =
            self.words.iter().map(|(_, at, offset)| at.is_none() || *offset < self.start).collect();
        let mut pieces = html.split(self.prefix.as_str());
        restored.push_str(pieces.next().unwrap_or_default());
        for piece in pieces {
            let (number, rest) = piece.split_once('x').unwrap_or((piece, ""));
            let number = number.parse::<usize>().ok();
            let Some((number, (span, ..))) = number.and_then(|number| Some((number, self.words.get(number)?))) else {
                return Err(self.fault(self.start, "Liquid stands where MJML changes it"));
            };
            if let Some(seen) = seen.get_mut(number) {
                *seen = true;
            }
            match self.source.get(span.clone()).unwrap_or_default() {
                "\"" => restored.push_str("&quot;"),
                written => restored.push_str(written),
            }
            restored.push_str(rest);
            // A word may stand for much, and MJML may repeat it.
            if restored.len() > SOURCE_BYTES {
                break;
            }
        }
        if restored.len() > SOURCE_BYTES {
            let detail = format!("the HTML has more than {SOURCE_BYTES} bytes; at most {SOURCE_BYTES} are allowed");
            return Err(Problem::new(FaultCode::SourceTooLarge, detail).at(Part::BodyHtml, Position::START));
        }
        let mut words = self.words.iter().zip(&seen);
        let dropped = words.find_map(|((span, at, _), seen)| at.filter(|_| !seen).map(|at| (span, at)));
        let Some((span, at)) = dropped else { return Ok(restored) };
        let written = brief(self.source.get(span.clone()).unwrap_or_default());
        let detail =
            format!("`{written}` stands where MJML drops it; put it into text, an attribute or between blocks");
        Err(Problem::new(FaultCode::HtmlInvalid, detail).at(Part::BodyHtml, at))
    }

    /// The offset in the source of an offset in the text.
    fn in_source(&self, offset: usize) -> usize {
        let before = self.words.partition_point(|(_, _, word)| *word < offset);
        match before.checked_sub(1).and_then(|last| Some((last, self.words.get(last)?))) {
            None => offset,
            Some((last, (span, _, word))) => span.end + offset.saturating_sub(word + self.word(last).len()),
        }
    }

    fn fault(&self, offset: usize, detail: impl Into<String>) -> TemplateFault {
        let at = position_of(self.source, self.in_source(offset));
        Problem::new(FaultCode::HtmlInvalid, detail).at(Part::BodyHtml, at)
    }

    fn refusal(&self, error: &MjmlError) -> TemplateFault {
        let (offset, detail) = match error {
            MjmlError::UnexpectedElement { position, .. } => {
                (position.start, "an element that MJML does not have here")
            }
            MjmlError::UnexpectedToken { position, .. } => {
                (position.start, "text, or Liquid, that MJML does not have here")
            }
            MjmlError::MissingAttribute { position, name, .. } => {
                return self.fault(self.start + position.start, format!("the attribute `{name}` is missing"));
            }
            MjmlError::InvalidAttribute { position, .. } => (position.start, "an attribute that cannot be read"),
            MjmlError::InvalidFormat { position, .. } | MjmlError::IncludeLoaderError { position, .. } => {
                (position.start, "an element that cannot be read")
            }
            MjmlError::ParserError { source, .. } => (self.offset_in_text(source.pos()), "markup that cannot be read"),
            MjmlError::EndOfStream { .. } | MjmlError::SizeLimit { .. } | MjmlError::NoRootNode => {
                (0, "there is no whole `<mjml>` element")
            }
        };
        // A text begins with the white space before it.
        let rest = self.text.get(self.start + offset..).unwrap_or_default();
        self.fault(self.start + offset + (rest.len() - rest.trim_start().len()), detail)
    }

    fn offset_in_text(&self, at: htmlparser::TextPos) -> usize {
        let text = self.text.get(self.start..).unwrap_or_default();
        offset_of(text, Position { line: at.row, column: at.col })
    }
}

/// What there is of a document: how deep it is, and how much its compiler makes of it.
struct MjmlShape<'d> {
    document: &'d MjmlDocument<'d>,
    open: Vec<OpenElement<'d>>,
    /// Elements of MJML, and comments: blocks make HTML around them, too.
    elements: usize,
    /// Attributes in `mj-head`, which every element may repeat.
    head_bytes: usize,
    /// Attributes of elements that are open where another begins, which may repeat them (`mj-social`, `mj-accordion`).
    copied_bytes: usize,
}

struct OpenElement<'d> {
    name: &'d str,
    at: usize,
    attribute_bytes: usize,
}

impl<'d> MjmlShape<'d> {
    fn check(mut self, text: &'d str) -> Result<(), TemplateFault> {
        let start = self.document.start;
        for token in Tokenizer::from(text) {
            let token = token.map_err(|error| {
                let offset = self.document.offset_in_text(error.pos());
                self.document.fault(start + offset, "markup that cannot be read")
            })?;
            match token {
                Token::ElementStart { prefix, local, span } => {
                    self.begin(named(text, prefix, local), local.as_str(), start + span.start())?;
                }
                Token::Attribute { span, .. } => {
                    let bytes = span.as_str().len();
                    if self.open.iter().any(|element| element.name == "mj-head") {
                        self.head_bytes += bytes;
                    }
                    if let Some(element) = self.open.last_mut() {
                        element.attribute_bytes += bytes;
                    }
                }
                Token::Comment { span, .. }
                | Token::ConditionalCommentStart { span, .. }
                | Token::ConditionalCommentEnd { span } => self.count(start + span.start())?,
                Token::ElementEnd { end: ElementEnd::Empty, .. } => drop(self.open.pop()),
                Token::ElementEnd { end: ElementEnd::Open, .. } => {
                    self.open.pop_if(|open| VOID.contains(&open.name));
                }
                Token::ElementEnd { end: ElementEnd::Close(prefix, local), span } => {
                    self.end(named(text, prefix, local), start + span.start())?;
                }
                _ => {}
            }
        }
        self.check_copies(start)?;
        let Some(OpenElement { name, at, .. }) = self.open.last() else { return Ok(()) };
        Err(self.document.fault(*at, format!("`<{}>` is never closed", brief(name))))
    }

    fn begin(&mut self, name: &'d str, local: &str, at: usize) -> Result<(), TemplateFault> {
        // mrml goes by the local name.
        if name.starts_with("mj") || local.starts_with("mj") {
            match name.strip_prefix("mj-").unwrap_or_default() {
                // The elements there are. `mj-include`, which would read a file, is none of them.
                "accordion" | "accordion-element" | "accordion-text" | "accordion-title" | "all" | "attributes"
                | "body" | "breakpoint" | "button" | "carousel" | "carousel-image" | "class" | "column" | "divider"
                | "font" | "group" | "head" | "hero" | "image" | "navbar" | "navbar-link" | "preview" | "raw"
                | "section" | "social" | "social-element" | "spacer" | "style" | "table" | "text" | "title"
                | "wrapper" => {}
                _ if name == "mjml" => {}
                _ => return Err(self.document.fault(at, format!("MJML has no element `<{}>`", brief(name)))),
            }
            self.count(at)?;
        }
        self.open.push(OpenElement { name, at, attribute_bytes: 0 });
        if self.open.len() > MJML_DEPTH {
            let fault = self.document.fault(at, format!("elements are nested more than {MJML_DEPTH} deep"));
            return Err(TemplateFault { code: FaultCode::NestingTooDeep, ..fault });
        }
        Ok(())
    }

    /// Counts an element, or a comment, and what it may repeat.
    fn count(&mut self, at: usize) -> Result<(), TemplateFault> {
        self.elements += 1;
        self.copied_bytes += self.open.iter().map(|element| element.attribute_bytes).sum::<usize>();
        if self.elements > MJML_ELEMENTS {
            return Err(self.document.fault(at, format!("more than {MJML_ELEMENTS} elements of MJML and comments")));
        }
        self.check_copies(at)
    }

    fn check_copies(&self, at: usize) -> Result<(), TemplateFault> {
        if self.copied_bytes + self.elements * self.head_bytes <= MJML_COPIED_BYTES {
            return Ok(());
        }
        let detail = "the attributes in `mj-head`, or around many elements, are too long for so many elements";
        Err(self.document.fault(at, detail))
    }

    fn end(&mut self, name: &'d str, at: usize) -> Result<(), TemplateFault> {
        if self.open.pop_if(|open| open.name == name).is_some() {
            return Ok(());
        }
        let detail = match self.open.last() {
            Some(open) => format!("`</{}>` found where `</{}>` is expected", brief(name), brief(open.name)),
            None => format!("`</{}>` closes nothing", brief(name)),
        };
        Err(self.document.fault(at, detail))
    }
}

/// The whole name of an element.
fn named<'t>(text: &'t str, prefix: StrSpan<'t>, local: StrSpan<'t>) -> &'t str {
    let start = if prefix.as_str().is_empty() { local.start() } else { prefix.start() };
    text.get(start..local.end()).unwrap_or_default()
}
