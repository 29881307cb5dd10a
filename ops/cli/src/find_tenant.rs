//! Finds the tenant of an id. Operators have an id and no tenant, and every index begins with the tenant. So each tenant is tried: a thousand lookups
//! by key take milliseconds.

use anyhow::ensure;
use schemas::SendId;
use sqlx::PgConnection;
use uuid::Uuid;

/// The tenant of the row with this id in a table (`x`), and what else must hold for the row.
macro_rules! tenant_of {
    ($db:expr, $table:tt, $id:expr $(, $and:tt, $value:expr)?) => {
        sqlx::query_scalar!(
            "select t.id from tenants t
             cross join lateral (select from " + $table + " x where x.tenant_id = t.id and x.id = $1 " $(+ $and)? + " offset 0) x
             limit 1",
            $id $(, $value)?
        )
        .fetch_optional($db)
        .await
    };
}

pub(crate) use tenant_of;

/// Refuses a tenant that there is not: a list of what it has would look as if it had nothing.
pub async fn require(db: &mut PgConnection, tenant: Option<Uuid>) -> anyhow::Result<()> {
    if let Some(tenant) = tenant {
        let is_known = sqlx::query_scalar!(r#"select exists (select from tenants where id = $1) as "known!""#, tenant);
        ensure!(is_known.fetch_one(db).await?, "no such tenant");
    }
    Ok(())
}

/// The tenant of a send, or of the request that a send will come from. That of a one-off message, or of a mail with copies, has the id of
/// the batch.
pub async fn of_send(db: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<Uuid>> {
    let found = tenant_of!(&mut *db, "sends", id, "and x.month = $2", SendId(id).month())?;
    if found.is_some() {
        return Ok(found);
    }
    let found = tenant_of!(&mut *db, "requests", id)?;
    if found.is_some() {
        return Ok(found);
    }
    tenant_of!(db, "requests", SendId(id).batch())
}
