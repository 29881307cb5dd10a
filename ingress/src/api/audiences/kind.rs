//! Lists and tags, told apart.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

schemas::named_enum! {
    /// A list or a tag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub wire enum AudienceKind {
        /// Named in `list_id`.
        List = "list",
        /// Named in `tag_ids`.
        Tag = "tag",
    }
}
