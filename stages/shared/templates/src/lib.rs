//! Templates: Liquid source checked when it is saved, compiled once into a [`schemas::Skeleton`], and rendered into slot
//! values per recipient. Pure: no clock but the deadline's, no I/O.
//!
//! ```text
//! source ─scan─► items ─structure, names─► checked
//!                  └─html (links, pixel, preheader, footer)─► items ─segment─► static text  ─► skeleton
//!                                                                         └─► programs ─run─► slots
//! ```
//!
//! **Invariant:** nothing a stranger writes reaches a recursive parser before its size and depth are known, and nothing
//! a contact's data contains is ever read as Liquid, as HTML (unless the template says `raw`) or as a header.
//!
//! Values and the filters from text to text are liquid's, header fields are lettre's, entities htmlize's. Scanner, parser and
//! evaluator are our own, since templates and merge data are strangers'. liquid's parser recurses without limit: `{{ a[a[a[…` of
//! 4,000 levels, 8 KB of source, overflows a stack of 2 MB, which ends the process. Its evaluator counts neither steps nor bytes:
//! three nested loops, 120 bytes, keep a core for 1.9 s for every ten million turns, and no deadline ends them. Here both are
//! charged to a budget where the work is done, and a whole mail of six fields and a loop takes 4 µs with its headers.

mod address;
mod arithmetic;
mod attachment;
mod check;
mod compose;
mod conditional;
mod elements;
mod engine;
mod escape;
mod fault;
mod filters;
mod footer;
mod header;
mod html;
mod lexer;
mod limits;
mod links;
mod markup;
mod merge;
mod message;
mod mjml;
mod names;
mod options;
mod parts;
mod placeholder;
mod plain;
mod program;
mod qp;
mod scan;
mod scope;
mod segment;
mod sheet;
mod structure;
mod syntax;
#[cfg(test)]
mod tests;
mod warnings;
mod written;

pub use check::{CheckedTemplate, check, check_liquid};
pub use compose::{Composed, Layout, check_snippet, compose, mentioned_snippets};
pub use fault::{FaultCode, Part, Position, RenderFault, TemplateFault};
pub use limits::{INCLUDES, SNIPPET_NAME_MAX};
pub use links::{LinkBases, SendLinks};
pub use merge::{Contact, DataFault, DataLimits, Links, MergeData, OwnHeaders};
pub use message::{CompiledMessage, MessagePreview, PreviewFault, compile, preview};
pub use mjml::compile_mjml;
pub use names::KnownFields;
pub use options::{Attached, MessageOptions, Named, Sender};
pub use syntax::is_snippet_name;
pub use warnings::{GMAIL_CLIPS_BYTES, TemplateWarning, WarningCode, clipped, warnings};
pub use written::{Written, compile_written};

/// What a template is for; decides which merge fields it may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateKind {
    /// Campaigns.
    Marketing,
    /// Mail about one transaction; may use `data.*`.
    Transactional,
    /// Steps of a sequence.
    Sequence,
}

/// A template as its author wrote it.
#[derive(Debug, Clone)]
pub struct TemplateSource {
    /// The subject line; Liquid.
    pub subject: String,
    /// Preview text, without HTML; Liquid.
    pub preheader: Option<String>,
    /// The HTML body; Liquid.
    pub body_html: String,
    /// The text body; Liquid. Derived from the HTML when there is none.
    pub body_text: Option<String>,
    /// What it is for.
    pub kind: TemplateKind,
}
