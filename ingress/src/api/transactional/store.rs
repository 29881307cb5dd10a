//! What a transactional request looks up, and the row it becomes.

use schemas::{Environment, RequestKind};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::NewRequest;

/// The content a template has now. `None`: there is no such template, or it is archived.
pub(crate) async fn template_content(
    db: &mut PgConnection,
    tenant: Uuid,
    template: Uuid,
) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select content_id from templates where tenant_id = $1 and id = $2 and status <> 'archived'",
        tenant,
        template
    )
    .fetch_optional(db)
    .await
}

/// Stores the request under the id of its send, so that a caller finds it by this id before the send exists.
pub(super) async fn insert_request(
    db: &mut PgConnection,
    tenant: Uuid,
    product: &str,
    environment: Environment,
    request: &NewRequest,
) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into requests (tenant_id, id, product, environment, kind, payload, options, announce_after, due_at)
         values ($1, $2, $3, $4, $5, $6, $7, coalesce($8, now() + interval '5 seconds'), coalesce($8, now()))",
        tenant,
        request.payload.send_id,
        product,
        environment.as_str(),
        RequestKind::Transactional.as_str(),
        Json(&request.payload) as _,
        request.options.as_ref().map(Json) as _,
        request.due_at(),
    )
    .execute(db)
    .await
    .map(drop)
}
