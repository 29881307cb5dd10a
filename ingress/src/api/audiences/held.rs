//! Lists and tags that others name, held until the transaction ends.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use unicode_normalization::UnicodeNormalization;
use uuid::Uuid;

use crate::pipeline::error::ApiError;

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

/// The name of a list or tag, as it is stored and compared: an accent is written in one way only (NFC).
pub(crate) fn canonical_name(name: &str) -> String {
    name.trim().nfc().collect()
}

/// The lists and tags that were found.
pub(crate) struct HeldAudiences(HashMap<Uuid, AudienceKind>);

/// Those of these lists and tags that there are. None of them is removed before the transaction ends.
pub(crate) async fn hold_audiences(db: &mut PgConnection, tenant: Uuid, ids: &[Uuid]) -> sqlx::Result<HeldAudiences> {
    let rows = sqlx::query!(
        "select id, kind from audiences where tenant_id = $1 and id = any ($2) and deleted_at is null
         order by id for key share",
        tenant,
        ids,
    )
    .fetch_all(db)
    .await?;
    let kinds = rows.into_iter().filter_map(|row| Some((row.id, AudienceKind::parse(&row.kind)?)));
    Ok(HeldAudiences(kinds.collect()))
}

impl HeldAudiences {
    /// Whether this one is among them.
    pub(crate) fn has(&self, kind: AudienceKind, id: Uuid) -> bool {
        self.0.get(&id) == Some(&kind)
    }

    /// 404 `list_not_found` or `tag_not_found` unless it is.
    pub(crate) fn require(&self, kind: AudienceKind, id: Uuid) -> Result<(), ApiError> {
        if self.has(kind, id) { Ok(()) } else { Err(ApiError::not_found(kind.as_str())) }
    }
}
