//! Takes the values of removed fields out of contacts, so that a field of the same key and another type finds none.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::db::{BEGIN_BRIEFLY, is_lock_timeout};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Contacts that one slice looks at.
pub(super) const SLICE: i64 = 5_000;

/// The sweep that takes the values of removed fields out of contacts, tenants in turn. It goes over all contacts of the tenant in slices, in id
/// order, for all fields at once, until a look at all of them finds no value. Contacts that another transaction has locked are left to the
/// next pass, and so are fields that are removed during one.
#[derive(Debug)]
pub struct RemoveFields {
    /// In the stages' role.
    pub pool: PgPool,
    /// Contacts that one slice looks at.
    pub slice: i64,
}

impl RemoveFields {
    /// Waits for the transactions that still know the removed field: they may store values of it. False if one takes long.
    async fn writers_are_over(&self, tenant: Uuid) -> sqlx::Result<bool> {
        // Writers that begin meanwhile wait, too.
        let mut tx = self.pool.begin_with(BEGIN_BRIEFLY).await?;
        match sqlx::query!("select wait_for_field_writers($1)", tenant).fetch_one(&mut *tx).await {
            Ok(_) => tx.commit().await.map(|()| true),
            Err(error) if is_lock_timeout(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Sweep for RemoveFields {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("remove_fields", Duration::from_secs(2))
            .when("exists (select from removed_fields)")
            .also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let Some(pass) = Pass::next(&self.pool).await? else { return Ok(0) };
        if pass.swept_to.is_none() && !self.writers_are_over(pass.tenant_id).await? {
            return Ok(0);
        }
        let mut tx = self.pool.begin().await?;
        let progress = pass.take_out_slice(&mut tx, self.slice).await?;
        tx.commit().await?;
        Ok(u64::from(progress))
    }
}

/// A pass over the contacts of a tenant, for the removed fields that it began with.
struct Pass {
    tenant_id: Uuid,
    fields: Vec<Uuid>,
    /// The last contact of the slice before; `None`: the pass begins.
    swept_to: Option<Uuid>,
}

impl Pass {
    /// Of the tenant that was tried longest ago, the pass that is under way, or else the next. Noted before it is tried: one that has to wait,
    /// for writers or for another process, keeps no other tenant waiting. A field that is removed now gives its tenant no earlier turn.
    async fn next(pool: &PgPool) -> sqlx::Result<Option<Self>> {
        sqlx::query_as!(
            Self,
            r#"with fields as (
                   select tenant_id, key from removed_fields
                   where tenant_id = (
                       select tenant_id from removed_fields group by tenant_id order by max(tried_at) nulls first limit 1)
                   order by key
                   for update skip locked
               ), noted as (
                   update removed_fields r set tried_at = now() from fields f
                   where r.tenant_id = f.tenant_id and r.key = f.key
                   returning r.tenant_id, r.id, r.swept_to
               )
               select tenant_id as "tenant_id!", array_agg(id) as "fields!", swept_to as "swept_to?"
               from noted
               group by tenant_id, swept_to
               order by swept_to desc nulls last
               limit 1"#,
        )
        .fetch_optional(pool)
        .await
    }

    /// Takes the values out of the next slice of contacts. After the last slice the fields are gone; false if the next pass begins.
    async fn take_out_slice(&self, db: &mut PgConnection, slice: i64) -> sqlx::Result<bool> {
        // One process at a time. The rows are locked at the end only, so that others can note their turns meanwhile.
        let is_ours = sqlx::query_scalar!(
            r#"select pg_try_advisory_xact_lock(hashtextextended('removed fields ' || $1::uuid::text, 0)) as "ours!""#,
            self.tenant_id,
        )
        .fetch_one(&mut *db)
        .await?;
        // None after a field is gone: its key may be that of a new field then. In a statement after that which takes the lock: its snapshot has
        // what the process before committed.
        let keys = sqlx::query_scalar!(
            "select key from removed_fields where tenant_id = $1 and id = any($2) and swept_to is not distinct from $3",
            self.tenant_id,
            &self.fields,
            self.swept_to,
        )
        .fetch_all(&mut *db)
        .await?;
        if !is_ours || keys.len() < self.fields.len() {
            return Ok(false);
        }
        let last = sqlx::query_scalar!(
            "with slice as materialized (
                 select id from contacts where tenant_id = $1 and ($3::uuid is null or id > $3) order by id limit $4
             ), held as (
                 select c.id from slice s join contacts c on c.tenant_id = $1 and c.id = s.id
                 where c.fields ?| $2 order by c.id for no key update of c skip locked
             ), emptied as (
                 update contacts c set fields = c.fields - $2::text[], updated_at = now()
                 from held where c.tenant_id = $1 and c.id = held.id
             )
             select id from slice order by id offset $4 - 1",
            self.tenant_id,
            &keys,
            self.swept_to,
            slice,
        )
        .fetch_optional(&mut *db)
        .await?;
        // A slice that is not full is the last one.
        if last.is_none() && self.end(&mut *db, &keys).await? {
            return Ok(true);
        }
        sqlx::query!(
            "update removed_fields set swept_to = $3 where tenant_id = $1 and key = any($2)",
            self.tenant_id,
            &keys,
            last,
        )
        .execute(db)
        .await?;
        Ok(last.is_some())
    }

    /// Frees the keys of which no contact has a value; true if these are all. A contact has one that was locked, or that took it over from a
    /// contact which was merged into it.
    async fn end(&self, db: &mut PgConnection, keys: &[String]) -> sqlx::Result<bool> {
        let ended = sqlx::query!(
            "with held as materialized (
                 select fields from contacts where tenant_id = $1 and fields ?| $2
             )
             delete from removed_fields r
             where r.tenant_id = $1 and r.key = any($2) and not exists (select from held h where h.fields ? r.key)",
            self.tenant_id,
            keys,
        )
        .execute(db)
        .await?;
        Ok(ended.rows_affected() == keys.len() as u64)
    }
}
