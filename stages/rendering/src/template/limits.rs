//! What a template may cost, before and while it runs. Every bound is checked before the work it bounds.

use std::time::Duration;

/// Bounds on a template. The defaults suit mail: Gmail clips messages at 102 KB of HTML.
#[derive(Debug, Clone)]
pub struct Limits {
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
    /// Longest one message may render.
    pub deadline: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source_bytes: 512 * 1024,
            depth: 20,
            tags: 2_000,
            markup_bytes: 4 * 1024,
            range_items: 1_000,
            loop_depth: 2,
            output_bytes: 1024 * 1024,
            deadline: Duration::from_millis(200),
        }
    }
}

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
/// Longest rendered subject, in bytes (RFC 5322 §2.1.1 allows 998 in a line).
pub(crate) const SUBJECT_BYTES: usize = 900;
