//! Takes the values of removed fields out of contacts, so that a field of the same key and another type finds none.

use std::time::Duration;

use async_trait::async_trait;
use runner::{StageError, Sweep, SweepSchedule};
use runtime::db::{BEGIN_BRIEFLY, is_lock_timeout};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Contacts that one slice looks at.
pub(super) const SLICE: i64 = 5_000;

/// The sweep that takes the values of removed fields out of contacts. It goes over all contacts of the tenant in slices, in id order, until
/// a look at all of them finds no value. Contacts that another transaction has locked are left to the next pass.
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
        let Some(field) = RemovedField::next(&self.pool).await? else { return Ok(0) };
        if field.begins_pass && !self.writers_are_over(field.tenant_id).await? {
            return Ok(0);
        }
        let mut tx = self.pool.begin().await?;
        let progress = field.take_out_slice(&mut tx, self.slice).await?;
        tx.commit().await?;
        Ok(u64::from(progress))
    }
}

struct RemovedField {
    tenant_id: Uuid,
    id: Uuid,
    key: String,
    begins_pass: bool,
}

impl RemovedField {
    /// The field that was tried longest ago. Noted before it is tried: one that has to wait keeps no other waiting.
    async fn next(pool: &PgPool) -> sqlx::Result<Option<Self>> {
        sqlx::query_as!(
            Self,
            r#"with next as (
                   select tenant_id, key from removed_fields order by tried_at nulls first limit 1 for update skip locked
               )
               update removed_fields r set tried_at = now() from next n
               where r.tenant_id = n.tenant_id and r.key = n.key
               returning r.tenant_id, r.id, r.key, r.swept_to is null as "begins_pass!""#,
        )
        .fetch_optional(pool)
        .await
    }

    /// Takes the values out of the next slice of contacts. After the last slice the field is gone; false if the next pass begins.
    async fn take_out_slice(&self, db: &mut PgConnection, slice: i64) -> sqlx::Result<bool> {
        // One process at a time, and none after the field is gone: the key may be that of a new field then.
        let locked = sqlx::query!(
            "select swept_to from removed_fields where tenant_id = $1 and id = $2 and key = $3 for update skip locked",
            self.tenant_id,
            self.id,
            self.key,
        );
        let Some(field) = locked.fetch_optional(&mut *db).await? else { return Ok(false) };
        let last = sqlx::query_scalar!(
            "with slice as materialized (
                 select id from contacts where tenant_id = $1 and ($3::uuid is null or id > $3) order by id limit $4
             ), held as (
                 select c.id from slice s join contacts c on c.tenant_id = $1 and c.id = s.id
                 where c.fields ? $2 order by c.id for no key update of c skip locked
             ), emptied as (
                 update contacts c set fields = c.fields - $2::text, updated_at = now()
                 from held where c.tenant_id = $1 and c.id = held.id
             )
             select id from slice order by id offset $4 - 1",
            self.tenant_id,
            self.key,
            field.swept_to,
            slice,
        )
        .fetch_optional(&mut *db)
        .await?;
        // A slice that is not full is the last one.
        if last.is_none() && self.end(&mut *db).await? {
            return Ok(true);
        }
        sqlx::query!(
            "update removed_fields set swept_to = $3 where tenant_id = $1 and key = $2",
            self.tenant_id,
            self.key,
            last,
        )
        .execute(db)
        .await?;
        Ok(last.is_some())
    }

    /// Frees the key unless a contact has a value: one that was locked, or that took it over from a contact which was merged into it.
    async fn end(&self, db: &mut PgConnection) -> sqlx::Result<bool> {
        let ended = sqlx::query!(
            "delete from removed_fields
             where tenant_id = $1 and key = $2 and not exists (select from contacts where tenant_id = $1 and fields ? $2)",
            self.tenant_id,
            self.key,
        )
        .execute(db)
        .await?;
        Ok(ended.rows_affected() > 0)
    }
}
