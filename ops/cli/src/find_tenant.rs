//! Finds the tenant of an id. Operators have an id and no tenant, and every index begins with the tenant. So each tenant is tried: a thousand lookups
//! by key take milliseconds.

use schemas::SendId;
use sqlx::PgConnection;
use uuid::Uuid;

/// The tenant of a campaign.
pub async fn of_campaign(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select t.id from tenants t
         cross join lateral (select from campaigns c where c.tenant_id = t.id and c.id = $1 offset 0) c
         limit 1",
        id
    )
    .fetch_optional(db)
    .await
}

/// The tenant of a batch.
pub async fn of_batch(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "select t.id from tenants t
         cross join lateral (select from batches b where b.tenant_id = t.id and b.id = $1 offset 0) b
         limit 1",
        id
    )
    .fetch_optional(db)
    .await
}

/// The tenant of a send, or of the request that a send will come from.
pub async fn of_send(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Uuid>> {
    let found = sqlx::query_scalar!(
        "select t.id from tenants t
         cross join lateral (select from sends s where s.tenant_id = t.id and s.id = $1 and s.month = $2 offset 0) s
         limit 1",
        id,
        SendId(id).month(),
    )
    .fetch_optional(&mut *db)
    .await?;
    if found.is_some() {
        return Ok(found);
    }
    sqlx::query_scalar!(
        "select t.id from tenants t
         cross join lateral (select from requests r where r.tenant_id = t.id and r.id = $1 offset 0) r
         limit 1",
        id
    )
    .fetch_optional(db)
    .await
}
