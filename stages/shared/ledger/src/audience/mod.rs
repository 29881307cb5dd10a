//! The contacts of an audience: selected, counted, looked up, pinned for a launch, split for an A/B test.

mod count;
mod lookup;
mod pin;
mod split;

pub use count::{AudienceCount, AudienceMembers, CountedCampaign, WaitFacts, count, count_for};
pub use lookup::{includes, some};
pub use pin::{pin, pin_list, pin_locked, pinned_includes, unpin};
pub use split::{Split, VARIANT_NAMES};

use uuid::Uuid;

/// The audience a campaign selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AudienceSelector {
    /// The members of one list.
    List(Uuid),
    /// Contacts with at least one of these tags.
    Tags(Vec<Uuid>),
    /// Contacts that match a segment's rule when it is evaluated.
    Segment(Uuid),
}

impl AudienceSelector {
    /// From a campaign's columns. `None` when they name no audience that can be looked up: an unknown mode, a list mode
    /// without a list, no tags.
    #[must_use]
    pub fn from_columns(
        audience_mode: &str,
        list_id: Option<Uuid>,
        segment_id: Option<Uuid>,
        tag_ids: &[Uuid],
    ) -> Option<Self> {
        match audience_mode {
            "list" => list_id.map(Self::List),
            "segment" => segment_id.map(Self::Segment),
            "tags" if !tag_ids.is_empty() => Some(Self::Tags(tag_ids.to_vec())),
            _ => None,
        }
    }

    /// The rows of `audiences` whose members make up the audience; none for a segment.
    pub(crate) fn audiences(&self) -> &[Uuid] {
        match self {
            Self::List(list) => std::slice::from_ref(list),
            Self::Tags(tags) => tags,
            Self::Segment(_) => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const LIST: Uuid = Uuid::from_u128(1);
    const TAG: Uuid = Uuid::from_u128(2);
    const SEGMENT: Uuid = Uuid::from_u128(3);

    #[rstest]
    #[case("list", Some(LIST), Some(SEGMENT), &[TAG], Some(AudienceSelector::List(LIST)))]
    #[case("tags", Some(LIST), Some(SEGMENT), &[TAG], Some(AudienceSelector::Tags(vec![TAG])))]
    #[case("list", None, Some(SEGMENT), &[TAG], None)]
    #[case("tags", Some(LIST), Some(SEGMENT), &[], None)]
    #[case("segment", Some(LIST), Some(SEGMENT), &[TAG], Some(AudienceSelector::Segment(SEGMENT)))]
    #[case("segment", Some(LIST), None, &[TAG], None)]
    #[case("", None, None, &[], None)]
    fn the_mode_says_which_column_counts(
        #[case] mode: &str,
        #[case] list: Option<Uuid>,
        #[case] segment: Option<Uuid>,
        #[case] tags: &[Uuid],
        #[case] selector: Option<AudienceSelector>,
    ) {
        assert_eq!(AudienceSelector::from_columns(mode, list, segment, tags), selector);
    }
}
