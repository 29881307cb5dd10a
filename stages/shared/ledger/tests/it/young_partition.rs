//! A partition without statistics: the first campaign of a month, and of an installation.

use chrono::NaiveDate;
use devtools::servers::TestDatabase;
use runtime::plans::PreparedPool;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use stage_rig::rows_in_vain;
use uuid::Uuid;

const FIND_OWED: &str = include_str!("../../queries/owed/find_owed.sql");
const APPLY: &str = include_str!("../../queries/fence/apply.sql");
const FENCE: &str = include_str!("../../queries/fence/fence.sql");
const ACCEPT: &str = include_str!("../../queries/fence/accept.sql");
const MOVE_COUNTERS: &str = include_str!("../../queries/counters/move_counters.sql");
const LOCK_BATCHES: &str = include_str!("../../queries/counters/lock_batches.sql");
const LOCK_FOR_FENCE: &str = include_str!("../../queries/fence/lock_for_fence.sql");
const READ_FENCES: &str = include_str!("../../queries/fence/read_fences.sql");
const ELIGIBILITY: &str = include_str!("../../queries/gate/eligibility.sql");
const TENANT: Uuid = Uuid::from_u128(1);
/// A tenant with one batch. Its id is also that of its domain, its sender, its content and the batch.
const BATCH: &str = "
    insert into tenants (id, environment, owner_email)
    values ('00000000-0000-0000-0000-000000000001', 'production', 'owner@example.com');
    insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token)
    select id, id, 'example.com', 's', '', '', 't' from tenants;
    insert into senders (tenant_id, id, domain_id, email, name) select id, id, id, 'ann@example.com', 'Ann' from tenants;
    insert into contents (tenant_id, id, kind, subject, body_html) select id, id, 'one_off', 'S', '' from tenants;
    insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, size, queued)
    select id, id, date_trunc('month', now() at time zone 'utc'), 'one_off', 'priority', 'operational', id, id, 500, 500 from tenants;";

#[tokio::test]
async fn a_batch_is_read_by_key_in_a_partition_without_statistics() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let mut db = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql(BATCH).execute(&mut db).await.unwrap();
    sqlx::raw_sql(
        "insert into sends (tenant_id, id, month, campaign_id, contact_id)
         select '00000000-0000-0000-0000-000000000001', gen_random_uuid(), date_trunc('month', now() at time zone 'utc'),
                '00000000-0000-0000-0000-000000000002', gen_random_uuid()
         from generate_series(1, 10000);",
    )
    .execute(&mut db)
    .await
    .unwrap();
    let pool = PgPool::connect_lazy(&database.url()).unwrap();
    let mut db = PreparedPool::new(&pool, 1).begin().await.unwrap();
    let some = "select id, month from sends order by id limit 500";
    let sends: Vec<(Uuid, NaiveDate)> = sqlx::query_as(some).fetch_all(&mut *db).await.unwrap();
    let (ids, months): (Vec<Uuid>, Vec<NaiveDate>) = sends.into_iter().unzip();
    let plan: Value = sqlx::query_scalar(AssertSqlSafe(format!("explain (analyze, format json)\n{FIND_OWED}")))
        .bind(vec![TENANT; ids.len()])
        .bind(vec![TENANT; ids.len()])
        .bind(&ids)
        .bind(months[0])
        .fetch_one(&mut *db)
        .await
        .unwrap();
    let in_vain = rows_in_vain(&plan);
    assert!(in_vain < 500.0, "{in_vain} rows were looked at in vain: {plan:#}");
    assert_eq!(plan[0]["Plan"]["Actual Rows"].as_f64(), Some(1.0), "the batch is found: {plan:#}");
}

/// A statement of the ledger writer: its name, its text, and its arguments for these sends.
struct Prepared {
    name: &'static str,
    sql: &'static str,
    arguments: String,
}

/// `'{…}'::type[]`, the same value for each.
fn column(value: &str, of: &str, count: usize) -> String {
    format!("'{{{}}}'::{of}[]", vec![value; count].join(","))
}

fn uuids(ids: &[Uuid]) -> String {
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    format!("'{{{}}}'::uuid[]", ids.join(","))
}

fn statements(ids: &[Uuid]) -> Vec<Prepared> {
    let (many, ids) = (ids.len(), uuids(ids));
    let tenants = column(&TENANT.to_string(), "uuid", many);
    let each = |value: &str, of: &str| column(value, of, many);
    let keys = format!("{tenants}, {ids}");
    let month = "date_trunc('month', now() at time zone 'utc')::date";
    let apply = [
        keys.clone(),
        each(&TENANT.to_string(), "uuid"),
        [each("queued", "text"), each("sent", "text"), each("null", "text"), each("null", "int2")].join(", "),
        [each("null", "text"), each("null", "text"), each("null", "float8"), each("0", "int2")].join(", "),
        [each("0", "int2"), each("f", "bool"), each("null", "text"), ids.clone(), month.to_owned()].join(", "),
        [each("null", "text"), each("null", "text"), each("0", "int2"), each("f", "bool"), each("f", "bool")]
            .join(", "),
    ];
    let fence = [
        [keys.clone(), each(&TENANT.to_string(), "uuid")].join(", "),
        [each("0", "int2"), each("f", "bool"), month.to_owned(), "60".to_owned(), each("null", "uuid")].join(", "),
        each("smtp", "text"),
    ];
    let accept = [
        [keys.clone(), each(&TENANT.to_string(), "uuid"), each("250", "int2")].join(", "),
        [each("null", "text"), each("null", "text"), each("null", "text")].join(", "),
        month.to_owned(),
    ];
    let counts = vec![each("0", "int4"); 10].join(", ");
    let move_counters = [
        [keys.clone(), counts].join(", "),
        [each("null", "float8"), each("f", "bool"), each("0", "float8"), ids.clone(), each("0", "int4")].join(", "),
        "'{}'::uuid[], '{}'::text[], '{}'::text[], '{}'::int8[], 0::int2".to_owned(),
        "'{}'::uuid[], '{}'::date[], '{}'::int2[], '{}'::int8[], '{}'::timestamptz[]".to_owned(),
    ];
    let read_fences = [tenants, each(&TENANT.to_string(), "uuid"), ids].join(", ");
    vec![
        Prepared { name: "apply", sql: APPLY, arguments: apply.join(", ") },
        Prepared { name: "fence", sql: FENCE, arguments: fence.join(", ") },
        Prepared { name: "move_counters", sql: MOVE_COUNTERS, arguments: move_counters.join(", ") },
        Prepared { name: "lock_batches", sql: LOCK_BATCHES, arguments: keys.clone() },
        Prepared { name: "lock_for_fence", sql: LOCK_FOR_FENCE, arguments: [keys.clone(), keys.clone()].join(", ") },
        Prepared { name: "accept", sql: ACCEPT, arguments: accept.join(", ") },
        Prepared { name: "read_fences", sql: READ_FENCES, arguments: read_fences },
        Prepared { name: "eligibility", sql: ELIGIBILITY, arguments: keys },
    ]
}

#[tokio::test]
async fn the_ledger_writers_statements_go_by_key_in_tables_without_statistics() {
    let database = TestDatabase::migrated(&runtime::db::MIGRATIONS).await.unwrap();
    let pool = PgPool::connect_lazy(&database.url()).unwrap();
    // Each of them planned anew here: what is judged is the plan that the rows below call for.
    let by_key = PreparedPool::with_settings(&pool, 1, &[("plan_cache_mode", "force_custom_plan")]);
    let mut db = by_key.take().await.unwrap();
    for statement in statements(&[TENANT]) {
        let Prepared { name, sql, arguments } = statement;
        for sql in [format!("prepare {name} as {sql}"), format!("execute {name}({arguments})")] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *db).await.unwrap();
        }
    }
    // As rows would be after a first import and the launch of a first campaign: nobody has analysed them yet.
    let mut filler = PgConnection::connect(&database.url()).await.unwrap();
    sqlx::raw_sql(BATCH).execute(&mut filler).await.unwrap();
    sqlx::raw_sql(
        "insert into contacts (tenant_id, id, address)
         select '00000000-0000-0000-0000-000000000001', gen_random_uuid(), n || '@example.com' from generate_series(1, 10000) n;
         insert into sends (tenant_id, id, month, campaign_id, contact_id)
         select tenant_id, id, date_trunc('month', now() at time zone 'utc'), '00000000-0000-0000-0000-000000000002', id from contacts;",
    )
    .execute(&mut filler)
    .await
    .unwrap();
    let ids: Vec<Uuid> =
        sqlx::query_scalar("select id from sends order by id limit 100").fetch_all(&mut filler).await.unwrap();
    for Prepared { name, arguments, .. } in statements(&ids) {
        let explain = format!("explain (analyze, format json) execute {name}({arguments})");
        let plan: Value = sqlx::query_scalar(AssertSqlSafe(explain)).fetch_one(&mut *db).await.unwrap();
        let in_vain = rows_in_vain(&plan);
        assert!(in_vain < 1_000.0, "{name}: {in_vain} rows were looked at in vain: {plan:#}");
    }
}
