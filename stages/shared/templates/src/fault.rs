//! What can be wrong with a template (when it is saved) and with one rendering of it (when it is sent).

use std::fmt;

use runtime::Spent;

schemas::named_enum! {
    /// Which part of a message a fault stands in.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Part {
        /// The subject line.
        Subject = "subject",
        /// The preview text mail programs show beside the subject.
        Preheader = "preheader",
        /// The HTML body.
        BodyHtml = "body_html",
        /// The plain text body.
        BodyText = "body_text",
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A place in a source text: both from 1, the column in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
}

impl Position {
    /// The start of a source.
    pub(super) const START: Self = Self { line: 1, column: 1 };

    /// The place behind this text, which begins here.
    pub(super) fn after(self, text: &str) -> Self {
        text.chars().fold(self, |at, character| match character {
            '\n' => Self { line: at.line + 1, column: 1 },
            _ => Self { column: at.column + 1, ..at },
        })
    }
}

schemas::named_enum! {
    /// What sort of fault it is. The text form is part of the API.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FaultCode {
        /// The source is longer than allowed.
        SourceTooLarge = "source_too_large",
        /// More tags than allowed.
        TooManyTags = "too_many_tags",
        /// `{{` or `{%` without its end, or a `raw` or `comment` that is never closed.
        UnclosedTag = "unclosed_tag",
        /// A block that is never closed.
        UnclosedBlock = "unclosed_block",
        /// `else`, `when`, `endif` … where none is expected.
        UnexpectedTag = "unexpected_tag",
        /// A tag this engine does not have, or refuses.
        UnknownTag = "unknown_tag",
        /// A filter this engine does not have.
        UnknownFilter = "unknown_filter",
        /// A name that is no merge field and is not set in the template.
        UnknownVariable = "unknown_variable",
        /// Markup that cannot be read.
        SyntaxError = "syntax_error",
        /// Blocks or loops nested too deeply.
        NestingTooDeep = "nesting_too_deep",
        /// A range with too many items, or with bounds that are not literal.
        RangeTooLarge = "range_too_large",
        /// A name set in two ways that cannot be distinguished when it is printed.
        NameConflict = "name_conflict",
        /// HTML that cannot be processed, or that a browser would read in more than one way.
        HtmlInvalid = "html_invalid",
        /// Reading the template takes more steps or memory than allowed.
        TooComplex = "too_complex",
        /// Reading the template took too long: only a busy machine explains it, so the same template may be read another time.
        TimedOut = "timed_out",
        /// A snippet that does not exist, or does not have what the part needs.
        UnknownSnippet = "unknown_snippet",
        /// A snippet that includes itself, directly or through others.
        IncludeCycle = "include_cycle",
        /// More snippets in one part than allowed.
        TooManyIncludes = "too_many_includes",
        /// A layout without a `{{ content }}`, or with more than one.
        ContentPlace = "content_place",
        /// A subject whose text does not fit into a header line, whatever its tags print.
        TooLong = "too_long",
    }
}

/// One fault of a template, with its place in the source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part} line {line} column {column}: {detail}")]
pub struct TemplateFault {
    /// The part it stands in.
    pub part: Part,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
    /// What sort of fault it is.
    pub code: FaultCode,
    /// What is wrong, in words for the author. Quotes the template, never a contact.
    pub detail: String,
}

/// A fault found while reading markup, before its place is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) code: FaultCode,
    pub(super) detail: String,
}

impl Problem {
    pub(super) fn new(code: FaultCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    pub(super) fn syntax(detail: impl Into<String>) -> Self {
        Self::new(FaultCode::SyntaxError, detail)
    }

    pub(super) fn at(self, part: Part, at: Position) -> TemplateFault {
        TemplateFault { part, line: at.line, column: at.column, code: self.code, detail: self.detail }
    }
}

impl From<Spent> for Problem {
    fn from(spent: Spent) -> Self {
        let code = if spent.is_transient() { FaultCode::TimedOut } else { FaultCode::TooComplex };
        Self::new(code, spent.to_string())
    }
}

/// Why one recipient's message could not be rendered. It is this recipient's alone, and final: the same data gives the
/// same fault. Carries no merge data, so it may be logged and stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RenderFault {
    /// It took longer than the deadline.
    #[error("rendering took longer than allowed")]
    DeadlineExceeded,
    /// It took more steps than allowed.
    #[error("rendering took more steps than allowed")]
    StepsExceeded,
    /// The message is larger than allowed.
    #[error("the rendered message is larger than allowed")]
    OutputTooLarge,
    /// A filter produced a value larger than allowed, or was given one it cannot work with.
    #[error("a filter failed on this recipient's data")]
    Filter,
    /// A value that is printed as HTML leaves a comment, a tag or a style sheet open, or could hide the footer.
    #[error("a value printed as HTML is not closed or could hide the footer")]
    HtmlUnclosed,
    /// The subject does not fit into a header line.
    #[error("the rendered subject is too long")]
    SubjectTooLong,
    /// The template engine failed in a way that is its own fault.
    #[error("the template engine failed")]
    Engine,
}

impl RenderFault {
    /// The failure reason as stored and shown.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            // One code: which of the two is reached first depends on the machine.
            Self::DeadlineExceeded | Self::StepsExceeded => "render_deadline_exceeded",
            Self::HtmlUnclosed => "render_html_unclosed",
            Self::OutputTooLarge => "render_output_too_large",
            Self::Filter => "render_filter_failed",
            Self::SubjectTooLong => "render_subject_too_long",
            Self::Engine => "render_engine_failed",
        }
    }
}

impl From<Spent> for RenderFault {
    fn from(spent: Spent) -> Self {
        match spent {
            Spent::Time => Self::DeadlineExceeded,
            Spent::Held => Self::OutputTooLarge,
            Spent::Steps | Spent::Depth | Spent::Input => Self::StepsExceeded,
        }
    }
}
