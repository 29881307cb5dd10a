//! What a template may cost, before and while it runs. Every bound is checked before the work it bounds.

use std::time::Duration;

/// Longest name of a snippet or a layout, in characters.
pub const SNIPPET_NAME_MAX: usize = 64;

/// Bounds on a template. The defaults suit mail: Gmail clips messages at 102 KB of HTML.
#[derive(Debug, Clone)]
pub struct TemplateLimits {
    /// Longest source of one part, in bytes.
    pub source_bytes: usize,
    /// Deepest nesting of blocks (`if` in `for` in `if` …).
    pub depth: usize,
    /// Most Liquid tags and outputs in one part.
    pub tags: usize,
    /// Longest markup of a single tag or output, in bytes.
    pub markup_bytes: usize,
    /// Most items a literal range such as `(1..10)` may have.
    pub range_items: i64,
    /// How deep `for` loops may nest.
    pub loop_depth: usize,
    /// Most bytes one message may produce, captured text and assigned values included.
    pub output_bytes: usize,
    /// Most steps one message may take to render: values visited, pieces of text touched.
    pub steps: u64,
    /// Longest one message may render.
    pub deadline: Duration,
}

impl TemplateLimits {
    /// The budget for rendering one message.
    pub(super) fn rendering(&self) -> runtime::Limits {
        runtime::Limits {
            input_bytes: usize::MAX,
            held_bytes: self.output_bytes,
            depth: VALUE_DEPTH,
            steps: self.steps,
            time: self.deadline,
        }
    }

    /// The budget for reading the parts of one template.
    pub(super) fn reading(&self) -> runtime::Limits {
        runtime::Limits {
            input_bytes: self.source_bytes.saturating_mul(PARTS),
            held_bytes: READING_BYTES,
            depth: u32::try_from(self.depth).unwrap_or(u32::MAX),
            steps: READING_STEPS,
            time: READING_TIME,
        }
    }
}

impl Default for TemplateLimits {
    fn default() -> Self {
        Self {
            source_bytes: 512 * 1024,
            depth: 20,
            tags: 2_000,
            markup_bytes: 4 * 1024,
            range_items: 1_000,
            loop_depth: 2,
            output_bytes: 1024 * 1024,
            steps: 2_000_000,
            deadline: Duration::from_millis(200),
        }
    }
}

/// Deepest value. Merge data that is accepted is not as deep ([`super::DataLimits`]).
pub(crate) const VALUE_DEPTH: u32 = 64;
/// Parts of a template: subject, preheader and both bodies.
const PARTS: usize = 4;
/// Most bytes that are held while a template is read.
const READING_BYTES: usize = 64 * 1024 * 1024;
/// Most steps for reading a template. A template of the greatest length that is not hostile takes a twentieth.
const READING_STEPS: u64 = 10_000_000;
/// Longest reading of a template. The steps end it long before; this is for a machine that stands still.
const READING_TIME: Duration = Duration::from_secs(30);
/// Bytes of text that one step touches.
pub(crate) const STEP_BYTES: usize = 16;
/// Most alternatives of one `when`.
pub(crate) const ALTERNATIVES: usize = 20;
/// Longest `endraw` or `endcomment`, with its white space, in bytes.
pub(crate) const END_TAG_BYTES: usize = 256;
/// Most attributes of one HTML tag.
pub(crate) const ATTRIBUTES: usize = 256;
/// Most HTML elements that are open at one place, or are never closed.
pub(crate) const OPEN_ELEMENTS: usize = 1_000;
/// Largest single value a filter may produce, in bytes: filters are parsed once for all templates, so this one is fixed.
pub(crate) const VALUE_BYTES: usize = 64 * 1024;
/// Most elements a filter such as `split` may produce.
pub(crate) const VALUE_ITEMS: usize = 1_000;
/// Most comparisons in one condition.
pub(crate) const CONDITION_TERMS: usize = 20;
/// Most `elsif` or `when` branches of one block.
pub(crate) const BRANCHES: usize = 100;
/// Most filters in one chain.
pub(crate) const CHAIN_FILTERS: usize = 20;
/// Most parts of a dotted path.
pub(crate) const PATH_PARTS: usize = 12;
/// Deepest nesting of `a[b[c]]`.
pub(crate) const INDEX_DEPTH: usize = 3;
/// Most faults a check reports; more would not help anyone.
pub(crate) const FAULTS: usize = 50;
/// How deep snippets may include snippets.
pub const INCLUDE_DEPTH: usize = 5;
/// Most snippets in one part, each counted as often as it is put in.
pub const INCLUDES: usize = 100;
/// How deep elements of MJML may nest: its compiler calls itself for each.
pub(crate) const MJML_DEPTH: usize = 40;
/// Most `mj-` elements and comments of one template: each makes some kilobytes of HTML.
pub(crate) const MJML_ELEMENTS: usize = 1_000;
/// Most bytes of attributes that elements may repeat: those in `mj-head` for each element, those of an open element for each within it.
pub(crate) const MJML_COPIED_BYTES: usize = 8 * 1024 * 1024;
/// Longest rendered subject, in bytes (RFC 5322 §2.1.1 allows 998 in a line).
pub(crate) const SUBJECT_BYTES: usize = 900;

/// Steps for touching a text of this length.
pub(crate) fn text_steps(bytes: usize) -> u64 {
    1 + (bytes / STEP_BYTES) as u64
}
