//! The lease sweep among batches that wait for dispatch.

use devtools::servers::TestDatabase;
use runtime::plans::PreparedPool;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use stage_rig::rows_in_vain;

const EXPIRED_LEASES: &str = include_str!("../../queries/leases/expired_leases.sql");
/// A slow campaign: ten thousand batches of it wait, and in the one that was dispatched a lease is over.
const BATCHES: &str = "
    insert into tenants (id, environment, owner_email)
    values ('00000000-0000-0000-0000-000000000001', 'production', 'owner@example.com');
    insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token)
    select id, id, 'example.com', 's', '', '', 't' from tenants;
    insert into senders (tenant_id, id, domain_id, email, name) select id, id, id, 'ann@example.com', 'Ann' from tenants;
    insert into contents (tenant_id, id, kind, subject, body_html) select id, id, 'one_off', 'S', '' from tenants;
    insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, size, queued, fenced, lease_until)
    select t.id, gen_random_uuid(), date_trunc('month', now() at time zone 'utc'), 'sequence', 'bulk', 'marketing', t.id, t.id,
           case n when 0 then 'announced' else 'waiting' end, 1, case n when 0 then 0 else 1 end, case n when 0 then 1 else 0 end,
           case n when 0 then now() - interval '1 second' end
    from tenants t, generate_series(0, 10000) n;
    analyze batches;";

#[tokio::test]
async fn a_lease_is_found_among_ten_thousand_waiting_batches() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let mut filler = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql(BATCHES).execute(&mut filler).await.unwrap();
    let pool = PgPool::connect_lazy(&database.url()).unwrap();
    let mut db = PreparedPool::new(&pool, 1).begin().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("prepare expired as {EXPIRED_LEASES}"))).execute(&mut *db).await.unwrap();
    let explain = "explain (analyze, format json) execute expired('{announced}')";
    let plan: Value = sqlx::query_scalar(explain).persistent(false).fetch_one(&mut *db).await.unwrap();
    let in_vain = rows_in_vain(&plan);
    assert!(in_vain < 100.0, "{in_vain} rows were looked at in vain: {plan:#}");
    assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(1.0), "the batch is found: {plan:#}");
}
