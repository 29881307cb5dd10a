//! A rule as it is understood.

use std::convert::Infallible;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{event::EventTest, field::Field};

/// A rule. `Named` is how another segment is named in it: not at all any more, once its rule has taken its place.
#[derive(Debug, Clone, PartialEq)]
pub enum Rule<Named = SegmentRef> {
    /// Each of these.
    All(Vec<Self>),
    /// At least one of these.
    Any(Vec<Self>),
    /// Not this.
    Not(Box<Self>),
    /// A field of the contact passes a test.
    Field(FieldTest),
    /// The contact is on this list, or has this tag.
    Member(Membership),
    /// The contact is in this segment.
    Segment(Named),
    /// What the contact did with mail or in a product, or mail did with it.
    Event(EventTest),
}

/// Another segment, named in a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRef {
    /// Which one.
    pub id: Uuid,
    /// Where in the rule it is named, for faults.
    pub path: String,
}

/// A list or tag, named in a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    pub id: Uuid,
    /// `list` or `tag`.
    pub kind: &'static str,
}

/// A test of one field.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldTest {
    pub field: Field,
    pub test: Test,
    /// The field must not pass: the exact complement, true also of a missing value.
    pub negated: bool,
}

/// What a value must pass. A missing value passes none.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    Exists,
    OneOf(Vec<Scalar>),
    Contains(String),
    StartsWith(String),
    EndsWith(String),
    /// It lies between these.
    Range(Option<Bound>, Option<Bound>),
    /// It lies in the last so many days; in the next, if negative.
    WithinDays(i32),
    /// It lies more than so many days back.
    OlderThanDays(i32),
    /// The list has this item.
    Includes(String),
}

/// One end of a range.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    pub value: Scalar,
    /// Whether it belongs to the range.
    pub inclusive: bool,
}

/// A value a field is compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Text(String),
    /// A number, in decimal.
    Number(String),
    Boolean(bool),
    /// `YYYY-MM-DD`
    Date(String),
    Instant(DateTime<Utc>),
}

/// A rule in which every other segment has been replaced by its rule.
pub type Expanded = Rule<Infallible>;

impl<Named> Rule<Named> {
    /// Calls `visit` for every leaf, in order.
    pub fn each_leaf<'a>(&'a self, visit: &mut dyn FnMut(&'a Self)) {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.each_leaf(visit)),
            Self::Not(part) => part.each_leaf(visit),
            Self::Field(_) | Self::Member(_) | Self::Segment(_) | Self::Event(_) => visit(self),
        }
    }
}

impl Rule {
    /// The other segments it names, each once.
    #[must_use]
    pub fn segments(&self) -> Vec<Uuid> {
        let mut ids = Vec::new();
        self.each_leaf(&mut |leaf| {
            if let Self::Segment(named) = leaf {
                ids.push(named.id);
            }
        });
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}
