//! A partition without statistics: the first campaign of a month, and of an installation.
#![allow(clippy::unwrap_used)]

use chrono::NaiveDate;
use serde_json::Value;
use servers::TestDatabase;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

const CLAIM: &str = include_str!("../queries/claim.sql");
const TENANT: Uuid = Uuid::from_u128(1);

/// How many rows a plan's nodes looked at in vain.
fn rows_in_vain(plan: &Value) -> f64 {
    let own: f64 = ["Rows Removed by Join Filter", "Rows Removed by Filter"]
        .iter()
        .filter_map(|name| plan.get(name).and_then(Value::as_f64))
        .sum();
    let below = plan.get("Plans").and_then(Value::as_array).map_or(0.0, |plans| plans.iter().map(rows_in_vain).sum());
    own + below
}

#[tokio::test]
async fn a_batch_is_claimed_by_key_in_a_partition_without_statistics() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let mut db = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql(
        "insert into sends (tenant_id, id, month, campaign_id, contact_id)
         select '00000000-0000-0000-0000-000000000001', gen_random_uuid(), date_trunc('month', now() at time zone 'utc'),
                '00000000-0000-0000-0000-000000000002', gen_random_uuid()
         from generate_series(1, 10000);
         begin; set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off;",
    )
    .execute(&mut db)
    .await
    .unwrap();
    let some = "select id, month from sends order by id limit 500";
    let sends: Vec<(Uuid, NaiveDate)> = sqlx::query_as(some).fetch_all(&mut db).await.unwrap();
    let (ids, months): (Vec<Uuid>, Vec<NaiveDate>) = sends.into_iter().unzip();
    let plan: Value = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("explain (analyze, format json)\n{CLAIM}")))
        .bind(vec![TENANT; ids.len()])
        .bind(&ids)
        .bind(months[0])
        .bind(Uuid::from_u128(3))
        .bind(300_f64)
        .fetch_one(&mut db)
        .await
        .unwrap();
    let in_vain = rows_in_vain(&plan[0]["Plan"]);
    assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain: {plan:#}");
}
