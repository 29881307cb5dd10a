//! How many objects of a kind a tenant may have, of those that it makes one by one: what lists them or looks them up never meets a million.

use sqlx::PgConnection;
use uuid::Uuid;

use super::audiences::held::AudienceKind;
use crate::pipeline::error::ApiError;

/// A kind of object, and how many of it a tenant may have. What is removed or archived does not count.
#[derive(Debug, Clone, Copy)]
pub(super) struct TenantLimit {
    kind: &'static str,
    most: i64,
}

const LISTS: TenantLimit = TenantLimit { kind: "list", most: 10_000 };
const TAGS: TenantLimit = TenantLimit { kind: "tag", most: 10_000 };
pub(super) const SEGMENTS: TenantLimit = TenantLimit { kind: "segment", most: 1_000 };
pub(super) const SEQUENCES: TenantLimit = TenantLimit { kind: "sequence", most: 1_000 };
pub(super) const SNIPPETS: TenantLimit = TenantLimit { kind: "snippet", most: 1_000 };
pub(super) const TEMPLATES: TenantLimit = TenantLimit { kind: "template", most: 10_000 };

/// The limit of lists or tags.
pub(super) fn of_audiences(kind: AudienceKind) -> TenantLimit {
    match kind {
        AudienceKind::List => LISTS,
        AudienceKind::Tag => TAGS,
    }
}

impl TenantLimit {
    /// Checks what this transaction has made. Not exact: of transactions at the same moment none waits for another, so a few may be too many.
    ///
    /// # Errors
    /// 409 `<kind>_limit_reached`.
    pub(super) async fn check(self, db: &mut PgConnection, tenant: Uuid) -> Result<(), ApiError> {
        let Self { kind, most } = self;
        let count = sqlx::query_file_scalar!("queries/count_limited.sql", tenant, kind, most + 1).fetch_one(db).await?;
        if count <= most {
            return Ok(());
        }
        Err(ApiError::conflict(format!("{kind}_limit_reached")).detail(format!("a tenant has at most {most} {kind}s")))
    }
}
