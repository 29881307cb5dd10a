//! What a template may cost, before and while it runs. Every bound is checked before the work it bounds.

use std::time::Duration;

use runtime::Limits;

/// Longest name of a snippet or a layout, in characters.
pub const SNIPPET_NAME_MAX: usize = 64;

/// Longest source of one part, in bytes. Gmail clips messages at 102 KB of HTML.
pub(crate) const SOURCE_BYTES: usize = 512 * 1024;
/// Deepest nesting of blocks (`if` in `for` in `if` …).
pub(crate) const BLOCK_DEPTH: usize = 20;
/// How deep `for` loops may nest.
pub(crate) const LOOP_DEPTH: usize = 2;
/// Most Liquid tags and outputs in one part.
pub(crate) const TAGS: usize = 2_000;
/// Longest markup of a single tag or output, in bytes.
pub(crate) const MARKUP_BYTES: usize = 4 * 1024;
/// Most items a literal range such as `(1..10)` may have.
pub(crate) const RANGE_ITEMS: i64 = 1_000;

/// What rendering one message may take.
pub(crate) const RENDERING: Limits = Limits {
    input_bytes: usize::MAX,
    // Captured text and assigned values included.
    held_bytes: 1024 * 1024,
    depth: VALUE_DEPTH,
    // Values visited, pieces of text touched.
    steps: 2_000_000,
    time: Duration::from_millis(200),
};
/// What reading the parts of one template may take: subject, preheader and both bodies.
pub(crate) const READING: Limits = Limits {
    input_bytes: 4 * SOURCE_BYTES,
    held_bytes: 64 * 1024 * 1024,
    depth: BLOCK_DEPTH as u32,
    // A template of the greatest length that is not hostile takes a twentieth.
    steps: 10_000_000,
    // The steps end it long before; this is for a machine that stands still.
    time: Duration::from_secs(30),
};

/// Deepest value. Merge data that is accepted is not as deep ([`super::DataLimits`]).
pub(crate) const VALUE_DEPTH: u32 = 64;
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
pub(crate) const INCLUDE_DEPTH: usize = 5;
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
