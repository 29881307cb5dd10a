//! The sends of a batch are one range of the primary key, also where the partition is large and analysed.

use chrono::NaiveDate;
use devtools::servers::TestDatabase;
use runtime::plans::PreparedPool;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use stage_rig::rows_in_vain;
use uuid::Uuid;

const OWED_SENDS: &str = include_str!("../../queries/gate/owed_sends.sql");
const DOUBT_FENCED: &str = include_str!("../../queries/leases/doubt_fenced.sql");
const RETRY_FAILED: &str = include_str!("../../queries/retry/retry_failed.sql");
const END_SENDS: &str = include_str!("../../queries/endings/end_sends.sql");
/// A hundred batches of a tenant, of 500 sends each. Most of them are done.
const SENDS: &str = "
    insert into tenants (id, environment, owner_email)
    values ('00000000-0000-0000-0000-000000000001', 'production', 'owner@example.com');
    insert into sends (tenant_id, id, month, campaign_id, contact_id, state)
    select '00000000-0000-0000-0000-000000000001', (left(batch_id(b)::text, 28) || lpad(to_hex(b * 512 + n), 8, '0'))::uuid,
           date_trunc('month', now() at time zone 'utc'), '00000000-0000-0000-0000-000000000002', gen_random_uuid(),
           case when b > 70 then 'queued' else 'sent' end
    from generate_series(1, 100) b, generate_series(0, 499) n;
    analyze sends;";
const TENANTS: &str = "array_fill('00000000-0000-0000-0000-000000000001'::uuid, '{4}')";
const FIRST: &str = "array[batch_id(81), batch_id(82), batch_id(83), batch_id(84)]";
const LAST: &str =
    "array[last_id_of(batch_id(81)), last_id_of(batch_id(82)), last_id_of(batch_id(83)), last_id_of(batch_id(84))]";
const MONTH: &str = "date_trunc('month', now() at time zone 'utc')::date";

/// How many rows the statement looks at in vain, on this connection.
async fn wasted(db: &mut PgConnection, name: &str, statement: &str, arguments: &[&str]) -> f64 {
    let prepare = format!("prepare {name} as {statement}");
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *db).await.unwrap();
    let explain = format!("explain (analyze, format json) execute {name}({})", arguments.join(", "));
    let plan: Value = sqlx::query_scalar(AssertSqlSafe(explain)).persistent(false).fetch_one(db).await.unwrap();
    rows_in_vain(&plan)
}

/// A database with [`SENDS`].
async fn filled() -> TestDatabase {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let mut filler = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql(
        "create function batch_id(n integer) returns uuid language sql immutable
         return ('01a21c80-eb26-7c6f-879d-f610' || lpad(to_hex(n * 512), 8, '0'))::uuid",
    )
    .execute(&mut filler)
    .await
    .unwrap();
    sqlx::raw_sql(SENDS).execute(&mut filler).await.unwrap();
    database
}

#[tokio::test]
async fn four_batches_are_found_by_key_among_a_hundred() {
    let database = filled().await;
    let pool = PgPool::connect(&database.url()).await.unwrap();
    assert_found_by_key("by key", &mut PreparedPool::new(&pool, 1).begin().await.unwrap()).await;
    assert_found_by_key("scan", &mut pool.begin().await.unwrap()).await;
}

async fn assert_found_by_key(access: &str, db: &mut PgConnection) {
    let months = format!("array_fill({MONTH}, '{{4}}')");
    let each = |text: &str| format!("array_fill('{text}'::text, '{{4}}')");
    let (yes, state, reason) = (String::from("array_fill(true, '{4}')"), each("skipped"), each("opted_out"));
    let doubt = [TENANTS, FIRST, &months, &yes, "'{}'::uuid[]", "'{}'::uuid[]", "'lease_over'"];
    let any = "array_fill(null::uuid, '{4}')";
    let end = [TENANTS, FIRST, LAST, &months, &state, &reason, &reason, "'unknown'", "'still_unknown'", any];
    let retry = ["'00000000-0000-0000-0000-000000000001'", FIRST, LAST, &months, "'{temporary}'", "'{}'::uuid[]"];
    let found = [
        wasted(db, "doubt_fenced", DOUBT_FENCED, &doubt).await,
        wasted(db, "retry_failed", RETRY_FAILED, &retry).await,
        wasted(db, "owed_sends", OWED_SENDS, &[TENANTS, FIRST, LAST, &months]).await,
        wasted(db, "end_sends", END_SENDS, &end).await,
    ];
    // The first two look at the 2,000 sends of the batches, which have another state.
    for (found, own) in found.into_iter().zip([2_000.0, 2_000.0, 0.0, 0.0]) {
        assert!(found <= own + 100.0, "{access}: {found} rows were looked at in vain");
    }
}

#[tokio::test]
async fn a_retry_leaves_most_sends_of_a_campaign_alone_at_once() {
    let database = filled().await;
    let mut db = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql("update sends set state = 'failed', reason = 'temporary'").execute(&mut db).await.unwrap();
    let (first, last, months, withheld): (Vec<Uuid>, Vec<Uuid>, Vec<NaiveDate>, Vec<Uuid>) = sqlx::query_as(
        "select array_agg(batch_id(b)), array_agg(last_id_of(batch_id(b))),
                array_agg(date_trunc('month', now() at time zone 'utc')::date),
                (select array_agg(gen_random_uuid()) from generate_series(1, 400000)) || (select array_agg(id) from sends)
         from generate_series(1, 100) b",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    // One by one it is 50,000 times 400,000 comparisons: minutes.
    sqlx::raw_sql("set statement_timeout = '20s'").execute(&mut db).await.unwrap();
    let retried: (i64, i64, i64) = sqlx::query_as(RETRY_FAILED)
        .bind(Uuid::from_u128(1))
        .bind(first)
        .bind(last)
        .bind(months)
        .bind(vec!["temporary"])
        .bind(withheld)
        .fetch_one(&mut db)
        .await
        .unwrap();
    assert_eq!(retried, (0, 0, 50_000), "queued, unmetered, skipped");
}
