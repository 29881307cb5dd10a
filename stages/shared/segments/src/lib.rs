//! Segments: audiences by rule.
//!
//! A rule is a closed tree: `{"all": […]}`, `{"any": […]}`, `{"not": …}` and leaves about a contact's fields, lists, tags, other
//! segments and what it did with mail. [`Rule::parse`] reads and checks it against the tenant's field definitions, [`resolve`]
//! finds what it names and puts the rules of other segments in their place, and the [`CompiledSegment`] rule is pushed into statements:
//! every value as a bound parameter, so that no value can change a statement.
//!
//! # What a leaf says
//!
//! - Every leaf is true or false of every contact, and `not` and the negative operators (`neq`, `not_in`, `not_contains`,
//!   `not_exists`) are exact complements: a contact without a plan is a contact whose plan is not `pro`. To exclude both, write
//!   `{"all": [{"field": "fields.plan", "op": "exists"}, {"field": "fields.plan", "op": "neq", "value": "pro"}]}`.
//! - A missing value matches no other operator. A text or list that is empty is missing.
//! - Text is compared without regard to case. `email` is compared in its canonical form.
//! - Days are counted from the database's clock, in UTC. `within_days: 30` is the last thirty days up to now, `within_days: -30` the
//!   thirty to come.
//! - An event is counted once for each mail, when it happened first: five opens of one mail count as one.
//! - An event of a product (`product_event`) is counted each time it was recorded, and may be asked for with properties it has.
//! - Archived and erased contacts are in no segment.

mod compile;
mod event;
mod field;
mod parse;
mod preview;
mod resolve;
mod rule;

pub use compile::{CompiledSegment, Newest};
pub use event::{EVENT_OPS, EVENTS, is_event_name};
pub use field::{Definitions, OPS, definitions};
pub use parse::{DEPTH_MAX, LEAVES_MAX, PROPERTIES_MAX, TEXT_MAX_CHARS, parse_date};
pub use preview::{Preview, SAMPLE_MAX, SampledContact, preview};
pub use resolve::{EVENTS_MAX, EXPANDED_LEAVES_MAX, find_beyond_limits, load, resolve};
pub use rule::{Rule, SegmentRef};

/// One thing wrong with a rule, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentFault {
    /// Where, as `rule.all[1].value`.
    pub path: String,
    /// A stable code.
    pub code: &'static str,
    /// In words.
    pub detail: String,
}

impl SegmentFault {
    pub(crate) fn new(path: impl Into<String>, code: &'static str, detail: impl Into<String>) -> Self {
        Self { path: path.into(), code, detail: detail.into() }
    }
}

/// Why a rule cannot be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// It names something the tenant does not have: `list`, `tag`, `segment` or `campaign`.
    #[error("there is no such {0}")]
    NotFound(&'static str),
    /// It breaks rules of its own.
    #[error("the rule is not valid")]
    Invalid(Vec<SegmentFault>),
    /// Postgres is away.
    #[error(transparent)]
    Store(#[from] sqlx::Error),
}

/// For those who evaluate what is stored: a stored rule was checked, and what it names cannot be removed, so one that cannot be
/// evaluated is damage.
impl From<SegmentError> for sqlx::Error {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::Store(error) => error,
            damage @ (SegmentError::NotFound(_) | SegmentError::Invalid(_)) => Self::Decode(Box::new(damage)),
        }
    }
}
