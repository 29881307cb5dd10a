//! How many a segment is, and a few of them.

use chrono::{DateTime, Utc};
use runtime::plans;
use schemars::JsonSchema;
use serde::Serialize;
use sqlx::{PgConnection, QueryBuilder};
use uuid::Uuid;

use super::compile::{CompiledSegment, Newest};

/// Contacts a preview shows at most.
pub const SAMPLE_MAX: i64 = 10;

/// A segment at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// Contacts in it.
    pub count: i64,
    /// The newest of them.
    pub sample: Vec<SampledContact>,
    /// When.
    pub evaluated_at: DateTime<Utc>,
}

/// One contact of a segment.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow, Serialize, JsonSchema)]
pub struct SampledContact {
    /// Which one.
    pub contact_id: Uuid,
    /// Its address.
    #[schemars(email)]
    pub email: String,
    /// Its first name.
    pub first_name: Option<String>,
    /// Its last name.
    pub last_name: Option<String>,
}

/// Counts a segment, and shows a few of its contacts. Call it inside a transaction: it sets planner options for itself.
pub async fn preview(db: &mut PgConnection, tenant: Uuid, segment: &CompiledSegment) -> sqlx::Result<Preview> {
    plans::many_rows(&mut *db).await?;
    let mut query = QueryBuilder::new("select count(*), now() from ");
    segment.push(&mut query, tenant);
    let (count, evaluated_at): (i64, DateTime<Utc>) = query.build_query_as().fetch_one(&mut *db).await?;
    plans::few_rows(&mut *db).await?;
    let mut sample = self::sample(&mut *db, tenant, segment, Some(Newest { before: None })).await?;
    if i64::try_from(sample.len()).unwrap_or(SAMPLE_MAX) < count.min(SAMPLE_MAX) {
        plans::many_rows(&mut *db).await?;
        sample = self::sample(&mut *db, tenant, segment, None).await?;
        plans::few_rows(db).await?;
    }
    Ok(Preview { count, sample, evaluated_at })
}

async fn sample(
    db: &mut PgConnection,
    tenant: Uuid,
    segment: &CompiledSegment,
    newest: Option<Newest>,
) -> sqlx::Result<Vec<SampledContact>> {
    let mut query = QueryBuilder::new("select c.id as contact_id, c.address as email, c.first_name, c.last_name from ");
    match newest {
        Some(newest) => segment.push_newest(&mut query, tenant, &newest),
        None => segment.push(&mut query, tenant),
    }
    query.push(" order by c.created_at desc, c.id desc limit ").push_bind(SAMPLE_MAX);
    query.build_query_as().fetch_all(db).await
}
