//! Every table has a limit or a reason to stay, and what is old goes.

use std::collections::BTreeSet;

use audience::retention::{KEPT, MONTHLY, RULES, Retention, RetentionSettings, SWEPT_BY_THEIR_STAGE};
use ledger::end_stopped::{EndStopped, end_old_months};
use runner::Sweep;
use runtime::{Database, Role};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool, Row};
use stage_rig::{Rig, Tenant, rows_in_vain, scans, settings, until};
use uuid::Uuid;

use crate::{blocks_read, run};

fn sweep(rig: &Rig, arguments: &[&str]) -> Retention {
    Retention { pool: rig.pool.clone(), settings: settings::<RetentionSettings>(arguments) }
}

/// Runs until there is nothing more to do.
async fn sweep_all(rig: &Rig, arguments: &[&str]) {
    let sweep = sweep(rig, arguments);
    while sweep.sweep().await.unwrap() > 0 {}
}

/// The owner of the schema.
async fn owner(rig: &Rig) -> PgPool {
    PgPool::connect(&rig.database.url()).await.unwrap()
}

#[tokio::test]
async fn every_table_is_removed_from_or_stays_for_a_reason() {
    let rig = Rig::new().await;
    let tables: BTreeSet<String> = sqlx::query_scalar(
        "select c.relname::text from pg_class c
         where c.relnamespace = (select p.relnamespace from pg_class p where p.oid = 'sends'::regclass)
           and c.relkind in ('r', 'p') and not c.relispartition and c.relname !~ '^_'",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap()
    .into_iter()
    .collect();
    let ruled: BTreeSet<&str> = RULES.iter().map(|rule| rule.table).collect();
    let listed: Vec<&str> = MONTHLY
        .iter()
        .copied()
        .chain(ruled)
        .chain(SWEPT_BY_THEIR_STAGE.iter().chain(KEPT).map(|(table, reason)| {
            assert!(!reason.is_empty(), "{table}");
            *table
        }))
        .collect();
    let once: BTreeSet<String> = listed.iter().map(|table| (*table).to_owned()).collect();
    assert_eq!(once.len(), listed.len(), "a table stands in one list, once");
    assert_eq!(once, tables);
}

#[tokio::test]
async fn each_rule_finds_its_rows_by_an_index() {
    let rig = Rig::new().await;
    let mut tx = rig.pool.begin().await.unwrap();
    sqlx::query("set local enable_seqscan = off").execute(&mut *tx).await.unwrap();
    for rule in RULES {
        let explain =
            format!("explain {}", rule.statement().replace("$1", "'2026-01-01'::timestamptz").replace("$2", "2000"));
        let plan: Vec<String> = sqlx::query(AssertSqlSafe(explain))
            .fetch_all(&mut *tx)
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        let scan = format!("Seq Scan on {} r", rule.table);
        assert!(!plan.iter().any(|line| line.contains(&scan)), "{}: {plan:#?}", rule.table);
    }
}

/// Old and young rows of tables that are kept by different settings.
async fn fill(rig: &Rig, tenant: &Tenant, age: &'static str) {
    for sql in [
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, received_at, handled_at)
         select $1, gen_random_uuid(), 'crm', 'production', 'transactional', '{}', 'handled', now() - $2::interval,
                now() - $2::interval
         from generate_series(1, 30)",
        "insert into notices (tenant_id, id, type, recorded_at)
         select $1, gen_random_uuid(), 'campaign.sent', now() - $2::interval from generate_series(1, 30)",
        "insert into audit_log (id, tenant_id, actor, action, subject, at)
         select gen_random_uuid(), $1, 'cli', 'key.issued', 'x', now() - $2::interval from generate_series(1, 30)",
        "insert into imports (tenant_id, id, operation, status, source_slug, summary, duration_ms, created_at)
         select $1, gen_random_uuid(), 'upsert', 'completed', 'api', '{}', 1, now() - $2::interval from generate_series(1, 30)",
        "insert into contact_facts (tenant_id, send_id, fact, contact_id, occurred_at)
         select $1, (left(first_id_at(now() - $2::interval)::text, 24) || lpad(to_hex(n), 12, '0'))::uuid, 'opened', $1, now()
         from generate_series(1, 30) n",
        "insert into contents (tenant_id, id, kind, subject, body_html)
         select $1, (left(first_id_at(now() - $2::interval)::text, 24) || lpad(to_hex(n), 12, '0'))::uuid, 'one_off', 's', 'b'
         from generate_series(1, 30) n",
    ] {
        sqlx::query(sql).bind(tenant.id).bind(age).execute(&rig.pool).await.unwrap();
    }
}

async fn counts(rig: &Rig) -> [i64; 6] {
    [
        rig.number("select count(*) from requests").await,
        rig.number("select count(*) from notices where type = 'campaign.sent'").await,
        rig.number("select count(*) from audit_log").await,
        rig.number("select count(*) from imports").await,
        rig.number("select count(*) from contact_facts").await,
        rig.number("select count(*) from contents where kind = 'one_off' and body_html <> ''").await,
    ]
}

#[tokio::test]
async fn what_is_older_than_its_setting_goes_and_the_rest_stays() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    // An installation that is older than all this: the ledger has a month for it.
    month(&rig, "2023-01-01").await;
    for age in ["2 days", "40 days", "100 days", "500 days", "800 days"] {
        fill(&rig, &tenant, age).await;
    }
    sweep_all(&rig, &["--keep-ledger", "0s", "--keep-requests", "0s", "--keep-imports", "0s", "--keep-audit", "0s"])
        .await;
    assert_eq!(counts(&rig).await, [150; 6], "for ever");
    // The times before which rows are old have no ids.
    let millennium =
        ["--keep-ledger", "1000y", "--keep-requests", "1000y", "--keep-imports", "1000y", "--keep-audit", "1000y"];
    sweep_all(&rig, &millennium).await;
    assert_eq!(counts(&rig).await, [150; 6], "for a thousand years");
    sweep_all(&rig, &[]).await;
    // By default: requests and bodies 30 days, the ledger 400, reports of imports 90, the audit log 730.
    assert_eq!(counts(&rig).await, [30, 90, 120, 60, 90, 30]);
    // A request that is not handled is work.
    run(&rig, "update requests set received_at = now() - interval '2 years', announce_after = now()").await;
    sweep_all(&rig, &[]).await;
    assert_eq!(rig.number("select count(*) from requests").await, 30);
}

#[tokio::test]
async fn what_is_old_is_decided_by_the_clock_of_the_database() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    fill(&rig, &tenant, "800 days").await;
    // The clock of this process is 790 days fast: `now()` of its connections is not the one of `pg_catalog`.
    let owner = owner(&rig).await;
    for sql in [
        "create schema behind",
        "create function behind.now() returns timestamptz language sql stable
         as $$ select pg_catalog.now() - interval '790 days' $$",
        "grant usage on schema behind to postrider_stages",
        "grant execute on function behind.now() to postrider_stages",
        "do $$ begin
             execute format('alter database %I set search_path = behind, public, pg_catalog', current_database());
         end $$",
    ] {
        sqlx::query(sql).execute(&owner).await.unwrap();
    }
    let pool = Database::pool(&rig.database.url().into(), Role::Stages, 2).unwrap();
    let sweep = Retention { pool, settings: settings::<RetentionSettings>(&[]) };
    while sweep.sweep().await.unwrap() > 0 {}
    assert_eq!(counts(&rig).await, [30; 6], "ten days old");
}

#[tokio::test]
async fn calls_are_in_the_request_log_for_the_days_of_the_setting() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    sqlx::query(
        "insert into request_log (tenant_id, id, product, environment, key_id, via, operation, status, replayed, duration_ms, at)
         select $1, (left(first_id_at(now() - make_interval(days => age))::text, 24) || lpad(to_hex(n), 12, '0'))::uuid, 'crm',
                'production', $1, 'http', 'createContact', 201, false, 1, now() - make_interval(days => age)
         from unnest(array[1, 6, 8, 40]) age, generate_series(1, 30) n",
    )
    .bind(tenant.id)
    .execute(&owner(&rig).await)
    .await
    .unwrap();
    for (days, kept) in [("0", 120), ("65535", 120), ("7", 60), ("3", 30)] {
        sweep_all(&rig, &["--request-log-days", days]).await;
        assert_eq!(rig.number("select count(*) from request_log").await, kept, "{days} days");
    }
}

#[tokio::test]
async fn members_of_a_removed_list_are_deleted() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 3).await;
    let (kept, removed) = (rig.audience(&tenant, "list", &people).await, rig.audience(&tenant, "list", &people).await);
    stage_rig::run!(&rig.pool, "update audiences set deleted_at = now() - interval '2 days' where id = $1", [removed]);
    sweep_all(&rig, &[]).await;
    let audiences: Vec<Uuid> =
        sqlx::query_scalar("select audience_id from audience_members").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(audiences, [kept; 3]);
}

#[tokio::test]
async fn members_of_lists_that_stay_are_not_read_at_each_run() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    // Of ten lists nine were removed, and emptied long ago.
    for sql in [
        "insert into audiences (tenant_id, id, kind, name, deleted_at)
         select $1, gen_random_uuid(), 'list', n::text, case when n > 1 then now() - interval '9 days' end
         from generate_series(1, 10) n",
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select tenant_id, id, gen_random_uuid() from audiences, generate_series(1, 5000)
         where tenant_id = $1 and deleted_at is null",
    ] {
        sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
    }
    let owner = sqlx::PgPool::connect(&rig.database.url()).await.unwrap();
    sqlx::raw_sql("analyze audiences, audience_members").execute(&owner).await.unwrap();
    assert_reads_few(&rig, "audience_members").await;
    assert_eq!(rig.number("select count(*) from audience_members").await, 5_000);
}

/// How the rule of this table finds what is older than this.
async fn plan_of(rig: &Rig, table: &str, age: &str) -> Value {
    let rule = RULES.iter().find(|rule| rule.table == table).unwrap();
    let statement = rule.statement().replace("$1", &format!("(now() - interval '{age}')")).replace("$2", "2000");
    let explain = AssertSqlSafe(format!("explain (analyze, buffers, format json) {statement}"));
    sqlx::query_scalar(explain).fetch_one(&rig.pool).await.unwrap()
}

/// The rule of this table looks at few rows in vain.
async fn assert_reads_few(rig: &Rig, table: &str) {
    let plan = plan_of(rig, table, "1 day").await;
    let in_vain = rows_in_vain(&plan);
    assert!(in_vain < 1_000.0, "{table}: {in_vain} rows were looked at in vain: {plan:#}");
}

#[tokio::test]
async fn entries_of_live_sequences_are_not_read_at_each_run() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    // Of ten sequences nine were archived, and their rows deleted long ago.
    for sql in [
        "insert into sequences (tenant_id, id, product, environment, name, status, trigger_type, trigger_config, archived_at, updated_at)
         select $1, gen_random_uuid(), 'shop', 'production', n::text, case n when 1 then 'active' else 'archived' end, 'segment_entered',
                '{}', case when n > 1 then now() - interval '9 days' end, now() - interval '9 days'
         from generate_series(1, 10) n",
        "insert into past_enrollments (tenant_id, sequence_id, contact_id, last_at)
         select tenant_id, id, gen_random_uuid(), now() from sequences, generate_series(1, 5000)
         where tenant_id = $1 and status = 'active'",
        "insert into segment_entries (tenant_id, sequence_id, contact_id)
         select tenant_id, sequence_id, contact_id from past_enrollments where tenant_id = $1",
    ] {
        sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
    }
    sqlx::raw_sql("analyze sequences, past_enrollments, segment_entries").execute(&owner(&rig).await).await.unwrap();
    for table in ["past_enrollments", "segment_entries"] {
        assert_reads_few(&rig, table).await;
    }
    assert_eq!(rig.number("select count(*) from past_enrollments").await, 5_000);
    assert_eq!(rig.number("select count(*) from segment_entries").await, 5_000);
}

#[tokio::test]
async fn scheduled_mail_is_kept_from_when_it_was_due() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    rig.transactional_request(&tenant, "ann@example.com", |_| {}).await;
    // Both were asked for 40 days ago, and fell due yesterday.
    for sql in [
        "update requests set received_at = now() - interval '40 days', state = 'handled', announce_after = null,
             handled_at = now() - interval '1 day'
         where tenant_id = $1 and $2::uuid is not null",
        "with content as (
             insert into contents (tenant_id, id, kind, subject, body_html)
             values ($1, first_id_at(now() - interval '40 days'), 'one_off', 's', 'b') returning id
         )
         insert into messages (tenant_id, id, sender_id, content_id, due_at)
         select $1, id, $2, id, now() - interval '1 day' from content",
    ] {
        sqlx::query(sql).bind(tenant.id).bind(tenant.sender).execute(&rig.pool).await.unwrap();
    }
    let counted = async || {
        sweep_all(&rig, &[]).await;
        let bodies = "select count(*) from contents where kind = 'one_off' and body_html <> ''";
        [rig.number("select count(*) from requests").await, rig.number(bodies).await]
    };
    assert_eq!(counted().await, [1, 1]);
    for column in ["requests set handled_at", "messages set due_at"] {
        run(&rig, &format!("update {column} = now() - interval '31 days'")).await;
    }
    assert_eq!(counted().await, [0, 0]);
}

#[tokio::test]
async fn open_mail_keeps_its_request_and_its_body_however_old_they_are() {
    let rig = Rig::new().await;
    let (tenant, other) = (rig.tenant().await, rig.tenant().await);
    fill(&rig, &other, "40 days").await;
    // Asked for 60 days ago, due 40 days ago, and its tenant paused since.
    for sql in [
        "insert into contents (tenant_id, id, kind, subject, body_html)
         values ($1, first_id_at(now() - interval '40 days'), 'one_off', 's', 'b')",
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, received_at, handled_at)
         values ($1, first_id_at(now() - interval '40 days'), 'crm', 'production', 'transactional', '{}', 'handled',
                 now() - interval '60 days', now() - interval '40 days')",
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, size, queued)
         select $1, id, date_trunc('month', now())::date, 'transactional', 'bulk', 'transactional', id, $2, 1, 1
         from contents where tenant_id = $1 and kind = 'one_off'",
    ] {
        let sql = format!("{sql}{}", if sql.contains("$2") { "" } else { " returning $2::uuid" });
        sqlx::query(AssertSqlSafe(sql)).bind(tenant.id).bind(tenant.sender).execute(&rig.pool).await.unwrap();
    }
    let left = async || {
        sweep_all(&rig, &[]).await;
        [rig.number("select count(*) from requests").await, counts(&rig).await[5]]
    };
    assert_eq!(left().await, [1, 1], "the other tenant's goes");
    let done = "update batches set state = 'done', queued = 0, sent = 1, done_at = now()";
    run(&rig, done).await;
    assert_eq!(left().await, [0, 0]);
}

#[tokio::test]
async fn a_tenant_may_choose_a_shorter_retention_and_no_longer_one() {
    let rig = Rig::new().await;
    let (short, long) = (rig.tenant().await, rig.tenant().await);
    for tenant in [&short, &long] {
        for age in ["2 days", "10 days", "40 days", "100 days"] {
            fill(&rig, tenant, age).await;
        }
    }
    let choose = async |tenant: &Tenant, days: i32| {
        sqlx::query("update tenants set keep_requests_days = $2, keep_imports_days = $2 where id = $1")
            .bind(tenant.id)
            .bind(days)
            .execute(&rig.pool)
            .await
            .unwrap();
    };
    choose(&short, 7).await;
    choose(&long, 3_650).await;
    let kept = async || {
        let mut kept = Vec::new();
        for tenant in [&short, &long] {
            for table in ["requests", "imports"] {
                let sql = format!("select count(*) from {table} where tenant_id = $1");
                let rows: i64 =
                    sqlx::query_scalar(AssertSqlSafe(sql)).bind(tenant.id).fetch_one(&rig.pool).await.unwrap();
                kept.push(rows);
            }
        }
        kept
    };
    sweep_all(&rig, &["--keep-requests", "0s", "--keep-imports", "0s"]).await;
    assert_eq!(kept().await, [30, 30, 120, 120], "also where the installation keeps all for ever");
    sweep_all(&rig, &[]).await;
    assert_eq!(kept().await, [30, 30, 60, 90]);
    assert_eq!(rig.number("select count(*) from contents where kind = 'one_off' and body_html <> ''").await, 90);
}

/// A row of each table that is kept for a fixed time, or by `inbound-keep`: of this `tenant`, written `at` this time.
const USED_UP: [(&str, &str); 11] = [
    (
        "message_starts",
        "(stream, consumer, sequence, published_at, starts, started_at) select 's', 'c', number, now(), 1, at",
    ),
    (
        "captured_mails",
        "(tenant_id, send_id, source, is_cut, captured_at) select tenant, gen_random_uuid(), '', false, at",
    ),
    (
        "paces",
        "(tenant_id, sending_domain, receiver, rate, threshold, cut_at, throttled_since, updated_at) select tenant, 'd', number::text, 1, 1, now(), now(), at",
    ),
    (
        "provider_messages",
        "(tenant_id, provider, message_id, send_id, noted_at) select tenant, 'ses', number::text, tenant, at",
    ),
    (
        "inbound_events",
        "(tenant_id, id, connection_id, provider, dedupe_key, nonce, raw, due_at, received_at) select tenant, gen_random_uuid(), tenant, 'ses', number::text, '', '', null, at",
    ),
    (
        "inbound_mails",
        "(tenant_id, id, send_id, address_kind, null_sender, size, due_at, received_at) select tenant, gen_random_uuid(), tenant, 'feedback', true, number, null, at",
    ),
    (
        "pending_facts",
        "(tenant_id, id, reason, send_id, occurred_at, dropped_at) select tenant, gen_random_uuid(), 'unknown_send', tenant, now(), at",
    ),
    ("renditions", "(tenant_id, send_id, rendered, created_at) select tenant, gen_random_uuid(), '', at"),
    ("webhook_totals", "(hour, outcome, shard, count) select at, 'delivered', number, 1"),
    ("webhook_leases", "(subscription_id, holder, lease_until) select gen_random_uuid(), tenant, at"),
    (
        "suppressions",
        "(tenant_id, id, address, reason, scope, source, expires_at) select tenant, gen_random_uuid(), number || '@example.com', 'manual', 'all', 'api', at",
    ),
];

#[tokio::test]
async fn what_is_used_up_is_kept_for_its_time_and_not_longer() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    for (days, number) in [(0.5, 1), (1.5, 2), (6.0, 3), (8.0, 4), (100.0, 5)] {
        for (table, row) in USED_UP {
            // Postgres wants each parameter used.
            let given =
                "given as (select $1::uuid as tenant, now() - $2::float8 * interval '1 day' as at, $3::int as number)";
            let insert = format!("with {given} insert into {table} {row} from given");
            sqlx::query(AssertSqlSafe(insert))
                .bind(tenant.id)
                .bind(days)
                .bind(number)
                .execute(&rig.pool)
                .await
                .unwrap();
        }
    }
    // What is not handled is work, however old.
    for table in ["inbound_events", "inbound_mails"] {
        run(&rig, &format!("update {table} set due_at = now() where received_at < now() - interval '99 days'")).await;
    }
    sweep_all(&rig, &[]).await;
    let mut left = Vec::new();
    for (table, _) in USED_UP {
        let count = AssertSqlSafe(format!("select count(*) from {table}"));
        left.push(sqlx::query_scalar::<_, i64>(count).fetch_one(&rig.pool).await.unwrap());
    }
    // 2 days, 7 days, a day, 90 days; 7 days by setting, with the one that waits; 4 days, 7 days, a day, 30 days.
    assert_eq!(left, [2, 3, 1, 4, 4, 4, 3, 2, 3, 1, 4]);
    assert_eq!(rig.number("select count(*) from notices where type = 'suppression.lifted'").await, 0, "it had expired");
}

/// Makes the partitions of a month.
async fn month(rig: &Rig, first: &str) {
    let owner = owner(rig).await;
    let suffix = first[..7].replace('-', "_");
    for table in MONTHLY {
        let sql = format!(
            "create table {table}_{suffix} partition of {table} for values from ('{first}') to (('{first}'::date + interval '1 month')::date)"
        );
        sqlx::query(AssertSqlSafe(sql)).execute(&owner).await.unwrap();
    }
}

#[tokio::test]
async fn an_old_month_is_dropped_and_the_counters_of_its_campaigns_stay() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    month(&rig, "2023-02-01").await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let campaign = rig.campaign(&tenant, list).await;
    // A campaign's batch and a single mail's of January, and one of February that a worker sends.
    for (id, first, campaign, state) in [
        ("01856aa0-c800-7000-8000-000000000000", "2023-01-01", Some(campaign), "done"),
        ("01856aa0-c800-7000-8000-000000000200", "2023-01-01", None, "done"),
        ("01860a46-1000-7000-8000-000000000000", "2023-02-01", None, "announced"),
    ] {
        sqlx::query(
            "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, size, sent,
                                  fenced, delivered, done_at, announce_after)
             select $1, $2, $3::date, case when $4::uuid is null then 'transactional' else 'campaign' end, 'bulk', 'marketing', $4,
                    c.content_id, c.sender_profile_id, $5, 1, ($5 = 'done')::int, ($5 <> 'done')::int, 0,
                    case $5 when 'done' then now() end, case $5 when 'done' then null else now() + interval '1 hour' end
             from campaigns c where c.tenant_id = $1 and c.id = $6",
        )
        .bind(tenant.id)
        .bind(id.parse::<Uuid>().unwrap())
        .bind(first)
        .bind(campaign)
        .bind(state)
        .bind(rig_campaign(&rig).await)
        .execute(&rig.pool)
        .await
        .unwrap();
        sqlx::query(
            "insert into sends (tenant_id, id, month, campaign_id, contact_id, state, decided_at)
             values ($1, $2, $3::date, $4, gen_random_uuid(), case $5 when 'done' then 'sent' else 'fenced' end, now())",
        )
        .bind(tenant.id)
        .bind(id.parse::<Uuid>().unwrap())
        .bind(first)
        .bind(campaign)
        .bind(state)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    sqlx::query("insert into events (tenant_id, send_id, id, month, type, occurred_at) select tenant_id, id, id, month, 'sent', now() from sends")
        .execute(&rig.pool)
        .await
        .unwrap();
    sweep_all(&rig, &[]).await;
    let partitions = "select count(*) from pg_class where relname in ('sends_2023_01', 'events_2023_01')";
    assert_eq!(rig.number(partitions).await, 0, "detached and dropped");
    let open = "select count(*) from sends where month = '2023-02-01'";
    assert_eq!(rig.number(open).await, 1, "a month with mail in a worker's hands stays");
    assert_eq!(rig.number("select count(*) from dropped_months where month = '2023-01-01'").await, 1);
    assert_eq!(
        rig.number("select count(*) from batches where month = '2023-01-01'").await,
        1,
        "single mail's batch goes"
    );
    assert_eq!(rig.number("select sum(sent)::bigint from batches where campaign_id is not null").await, 1);
    // A late signal finds nothing, and breaks nothing.
    assert_eq!(rig.number("select count(*) from events where month = '2023-01-01'").await, 0);

    sqlx::query("update batches set state = 'done', done_at = now(), announce_after = null, fenced = 0, sent = 1 where state <> 'done'")
        .execute(&rig.pool)
        .await
        .unwrap();
    sweep_all(&rig, &[]).await;
    assert_eq!(rig.number("select count(*) from dropped_months").await, 2);
    assert_eq!(rig.number("select count(*) from batches where month = '2023-02-01'").await, 0);
}

#[tokio::test]
async fn of_a_campaign_whose_sends_are_gone_one_batch_of_each_variant_holds_the_counters() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let (old, young) = (rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await);
    // Of the old campaign three batches of one variant and two of the other; of the young one two, of this month.
    let batches = "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, variant, state, size, sent,
                                        failed, opened, done_at)
         select c.tenant_id, (case when c.id = $2 then '01856aa0-c800-7000-8000-' else left(c.id::text, 24) end || lpad(to_hex(n * 512), 12, '0'))::uuid,
                case when c.id = $2 then '2023-01-01' else date_trunc('month', now()) end, 'campaign', 'bulk', 'marketing', c.id, c.content_id,
                c.sender_profile_id, case when c.id = $2 then substr('aabab', n, 1) end, 'done', 10 + n, 10, n, n, now()
         from campaigns c cross join generate_series(1, case when c.id = $2 then 5 else 2 end) n
         where c.tenant_id = $1";
    sqlx::query(batches).bind(tenant.id).bind(old).execute(&rig.pool).await.unwrap();
    sweep_all(&rig, &[]).await;
    sweep_all(&rig, &[]).await;
    let left: Vec<(Option<String>, i32, i32, i32, i32)> = sqlx::query_as(
        "select variant, size, sent, failed, opened from batches where campaign_id = $1 order by variant",
    )
    .bind(old)
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    assert_eq!(left, [(Some("a".to_owned()), 37, 30, 7, 7), (Some("b".to_owned()), 28, 20, 8, 8)]);
    let of_young = sqlx::query_scalar::<_, i64>("select count(*) from batches where campaign_id = $1").bind(young);
    assert_eq!(of_young.fetch_one(&rig.pool).await.unwrap(), 2, "whose sends are there");
}

#[tokio::test]
async fn a_month_is_not_dropped_under_a_retry() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    let people = rig.people(&tenant, 1).await;
    let list = rig.audience(&tenant, "list", &people).await;
    let campaign = rig.campaign(&tenant, list).await;
    for sql in [
        "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, size, failed, done_at)
         select tenant_id, '01856aa0-c800-7000-8000-000000000000', '2023-01-01', 'campaign', 'bulk', 'marketing', id, content_id,
                sender_profile_id, 'done', 1, 1, now()
         from campaigns where tenant_id = $1",
        "insert into sends (tenant_id, id, month, campaign_id, contact_id, state, reason, decided_at)
         select b.tenant_id, b.id, b.month, b.campaign_id, c.id, 'failed', 'temporary', now()
         from batches b join contacts c on c.tenant_id = b.tenant_id where b.tenant_id = $1",
    ] {
        sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
    }
    let mut retry = rig.pool.begin().await.unwrap();
    let retried = ledger::retry::retry_failed(&mut retry, tenant.id, campaign, &["temporary"]).await.unwrap();
    assert_eq!(retried.queued, 1);
    let pool = rig.pool.clone();
    let drop = tokio::spawn(async move {
        let drop = "select drop_ledger_month('2024-01-01')";
        sqlx::query_scalar::<_, Option<chrono::NaiveDate>>(drop).fetch_one(&pool).await
    });
    until("the drop waits", async || rig.statements_waiting().await == 1).await;
    retry.commit().await.unwrap();
    // It may have waited too long.
    let dropped = drop.await.unwrap();
    assert!(!matches!(dropped, Ok(Some(_))), "{dropped:?}");
    assert_eq!(rig.number("select count(*) from sends where state = 'queued'").await, 1);
    rig.assert_books().await;
}

#[tokio::test]
async fn mail_that_is_still_open_keeps_no_month_in_the_ledger() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    month(&rig, "2023-02-01").await;
    let list = rig.audience(&tenant, "list", &[]).await;
    let (paused, young) = (rig.campaign(&tenant, list).await, rig.campaign(&tenant, list).await);
    for (campaign, month) in [(paused, "2023-01-01"), (young, "now")] {
        sqlx::query(
            "update campaigns set paused = true, pause_reason = 'requested', month = date_trunc('month', $2::timestamptz),
                 launch_prefix = case when $2 <> 'now' then '01856aa0c80070008000000' end, materialized_at = now() where id = $1",
        )
        .bind(campaign)
        .bind(month)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    for (id, campaign) in
        [("01856aa0-c800-7000-8000-000000000000", Some(paused)), ("01856aa0-c800-7000-8000-000000000200", None)]
    {
        let id: Uuid = id.parse().unwrap();
        for sql in [
            "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, size, queued)
             select $1, $2, '2023-01-01', case when $3::uuid is null then 'sequence' else 'campaign' end, 'bulk', 'marketing', $3, $4, $5, 1, 1",
            "insert into sends (tenant_id, id, month, campaign_id, contact_id)
             select $1, $2, '2023-01-01', $3, gen_random_uuid() where $4::uuid <> $5::uuid",
        ] {
            sqlx::query(sql)
                .bind(tenant.id)
                .bind(id)
                .bind(campaign)
                .bind(tenant.content)
                .bind(tenant.sender)
                .execute(&rig.pool)
                .await
                .unwrap();
        }
    }
    sweep_all(&rig, &[]).await;
    assert_eq!(rig.number("select count(*) from sends where state = 'expired' and reason = 'expired'").await, 1);
    let cancelled: Vec<Uuid> =
        sqlx::query_scalar("select id from campaigns where status = 'cancelled'").fetch_all(&rig.pool).await.unwrap();
    assert_eq!(cancelled, [paused], "a paused campaign of this month stays");
    assert_eq!(rig.number("select count(*) from audit_log where action = 'campaign.cancel'").await, 1);
    assert_eq!(EndStopped(rig.pool.clone()).sweep().await.unwrap(), 1);
    rig.assert_books().await;
    sweep_all(&rig, &[]).await;
    assert_eq!(rig.number("select count(*) from dropped_months").await, 2);
}

#[tokio::test]
async fn open_mail_of_old_months_expires_in_short_transactions() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    for sql in [
        "insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, size, queued)
         select $1, ('01856aa0-c800-7000-8000-' || lpad(to_hex(n * 512), 12, '0'))::uuid, '2023-01-01', 'sequence', 'bulk', 'marketing',
                $2, $3, 1, 1
         from generate_series(1, 45) n",
        "insert into sends (tenant_id, id, month, contact_id)
         select tenant_id, id, month, gen_random_uuid() from batches where tenant_id = $1 and $2::uuid <> $3::uuid",
    ] {
        sqlx::query(sql)
            .bind(tenant.id)
            .bind(tenant.content)
            .bind(tenant.sender)
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    let before = chrono::NaiveDate::from_ymd_opt(2024, 1, 1).unwrap();
    assert_eq!(end_old_months(&rig.pool, before).await.unwrap(), 45, "all, in one run");
    // A full batch has 500 sends.
    let largest =
        "select max(batches) from (select count(*) as batches from batches group by xmin::text) of_a_transaction";
    assert_eq!(rig.number(largest).await, 20);
    rig.assert_books().await;
}

#[tokio::test]
async fn a_campaign_that_cannot_be_ended_keeps_no_other_month() {
    let rig = Rig::new().await;
    month(&rig, "2023-01-01").await;
    sqlx::query("revoke update on campaigns from postrider_stages").execute(&owner(&rig).await).await.unwrap();
    assert!(sweep(&rig, &[]).sweep().await.is_err());
    assert_eq!(rig.number("select count(*) from dropped_months").await, 1);
}

async fn rig_campaign(rig: &Rig) -> Uuid {
    sqlx::query_scalar("select id from campaigns").fetch_one(&rig.pool).await.unwrap()
}

/// Enrollments of 500 days ago that are over, one for each of so many contacts, with a step each: of a sequence with this status.
async fn old_enrollments(rig: &Rig, tenant: &Tenant, status: &str, people: usize) {
    let contacts: Vec<Uuid> = rig.people(tenant, people).await.iter().map(|person| person.id).collect();
    let sequence = Uuid::now_v7();
    sqlx::query(
        "insert into sequences (tenant_id, id, product, environment, name, status, archived_at)
         values ($1, $2, 'shop', 'production', 'S', $3, case $3 when 'archived' then now() - interval '2 days' end)",
    )
    .bind(tenant.id)
    .bind(sequence)
    .bind(status)
    .execute(&rig.pool)
    .await
    .unwrap();
    sqlx::query(
        "with steps as (
             insert into enrollment_steps (tenant_id, enrollment_id, step_order, step_id, step_type, outcome, due_at)
             select $1, w, 1, $1, 'wait', 'done', now() from unnest($3::uuid[]) w
         )
         insert into enrollments (tenant_id, id, sequence_id, contact_id, product, status, created_at, ended_at)
         select $1, w, $2, w, 'shop', 'completed', now() - interval '500 days', now() - interval '500 days'
         from unnest($3::uuid[]) w",
    )
    .bind(tenant.id)
    .bind(sequence)
    .bind(&contacts)
    .execute(&rig.pool)
    .await
    .unwrap();
}

#[tokio::test]
async fn of_old_enrollments_it_is_kept_when_the_last_one_was() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    old_enrollments(&rig, &tenant, "active", 3).await;
    old_enrollments(&rig, &tenant, "archived", 2).await;
    sweep_all(&rig, &[]).await;
    assert_eq!(rig.number("select count(*) from enrollments").await, 0);
    assert_eq!(rig.number("select count(*) from enrollment_steps").await, 0);
    let past = "select count(*) from past_enrollments where last_at < now() - interval '499 days'";
    assert_eq!(rig.number(past).await, 3, "nothing enters an archived sequence again");
    run(&rig, "update sequences set status = 'archived', archived_at = now() - interval '2 days'").await;
    sweep_all(&rig, &[]).await;
    assert_eq!(rig.number("select count(*) from past_enrollments").await, 0);
}

#[tokio::test]
async fn old_enrollments_that_have_their_steps_are_not_read_at_each_run() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    old_enrollments(&rig, &tenant, "active", 5_000).await;
    let plan = plan_of(&rig, "enrollments", "400 days").await;
    let (in_vain, steps) = (rows_in_vain(&plan), scans(&plan, "enrollment_steps"));
    assert!(in_vain < 2_000.0, "{in_vain} rows were looked at in vain: {plan:#}");
    assert!(steps <= 1_000, "the steps of {steps} enrollments were looked for: {plan:#}");
    assert_eq!(rig.number("select count(*) from enrollments").await, 5_000);
}

#[tokio::test]
async fn a_warm_up_that_is_over_does_not_begin_again() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    for sql in [
        "insert into domain_warmups (tenant_id, domain_id) values ($1, $2)",
        "insert into warmup_usage (tenant_id, domain_id, day, used)
         select $1, $2, '2022-12-01'::date + day, 50 from generate_series(1, 16) day",
    ] {
        sqlx::query(sql).bind(tenant.id).bind(tenant.domain).execute(&rig.pool).await.unwrap();
    }
    sweep_all(&rig, &[]).await;
    let mut db = rig.pool.acquire().await.unwrap();
    let state = ledger::warmup::load_state(&mut db, tenant.id, tenant.domain).await.unwrap().unwrap();
    assert_eq!((state.days_before, state.cap()), (16, None));
}

#[tokio::test]
async fn who_was_passed_over_is_kept_until_every_trigger_was_looked_at() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    for (status, looked_days_ago) in [("paused", 4), ("archived", 9)] {
        sqlx::query(
            "insert into sequences (tenant_id, id, product, environment, name, status, trigger_type, trigger_config, triggers_swept_at)
             values ($1, gen_random_uuid(), 'shop', 'production', 'S', $2, 'segment_entered', '{}', now() - make_interval(days => $3))",
        )
        .bind(tenant.id)
        .bind(status)
        .bind(looked_days_ago)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    sqlx::query(
        "insert into segments_passed (tenant_id, contact_id, passed_at)
         select $1, gen_random_uuid(), now() - make_interval(days => days) from unnest('{0,3,5}'::int[]) days",
    )
    .bind(tenant.id)
    .execute(&rig.pool)
    .await
    .unwrap();
    sweep_all(&rig, &[]).await;
    let young = "select count(*) from segments_passed where passed_at > now() - interval '4 days'";
    assert_eq!((rig.number("select count(*) from segments_passed").await, rig.number(young).await), (2, 2));
}

#[tokio::test]
async fn who_is_kept_for_a_trigger_is_not_read_at_each_run() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    for sql in [
        "insert into sequences (tenant_id, id, product, environment, name, status, trigger_type, trigger_config, triggers_swept_at)
         values ($1, $1, 'shop', 'production', 'S', 'paused', 'segment_entered', '{}', now() - interval '3 days')",
        "insert into segments_passed (tenant_id, contact_id, passed_at)
         select $1, gen_random_uuid(), now() - interval '2 days' from generate_series(1, 5000)",
    ] {
        sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
    }
    assert_reads_few(&rig, "segments_passed").await;
    assert_eq!(rig.number("select count(*) from segments_passed").await, 5_000);
}

#[tokio::test]
async fn segment_entries_of_a_trigger_that_is_gone_are_deleted() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    for (status, trigger, days) in [
        ("active", "segment_entered", 9),
        ("paused", "segment_entered", 9),
        ("archived", "segment_entered", 9),
        ("active", "event", 9),
        ("active", "event", 0),
    ] {
        sqlx::query(
            "with sequence as (
                 insert into sequences (tenant_id, id, product, environment, name, status, trigger_type, trigger_config, updated_at)
                 values ($1, gen_random_uuid(), 'shop', 'production', 'S', $2, $3, '{}', now() - make_interval(days => $4))
                 returning tenant_id, id
             )
             insert into segment_entries (tenant_id, sequence_id, contact_id) select tenant_id, id, gen_random_uuid() from sequence",
        )
        .bind(tenant.id)
        .bind(status)
        .bind(trigger)
        .bind(days)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    sweep_all(&rig, &[]).await;
    let left = "select count(*) from segment_entries e join sequences s on s.id = e.sequence_id
                where s.status <> 'archived' and (s.trigger_type = 'segment_entered' or s.updated_at > now() - interval '1 day')";
    assert_eq!((rig.number("select count(*) from segment_entries").await, rig.number(left).await), (3, 3));
}

#[tokio::test]
async fn a_table_that_somebody_holds_keeps_no_other_from_its_retention() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    month(&rig, "2023-01-01").await;
    let owner = owner(&rig).await;
    sqlx::query(
        "insert into request_log (tenant_id, id, product, environment, key_id, via, operation, status, replayed, duration_ms, at)
         values ($1, first_id_at(now() - interval '40 days'), 'crm', 'production', $1, 'http', 'createContact', 201, false, 1,
                 now() - interval '40 days')",
    )
    .bind(tenant.id)
    .execute(&owner)
    .await
    .unwrap();
    let mut backup = owner.begin().await.unwrap();
    sqlx::query("lock table sends in access share mode").execute(&mut *backup).await.unwrap();
    let failed = sweep(&rig, &[]).sweep().await.unwrap_err();
    assert!(failed.is_infrastructure(), "{failed:?}");
    assert_eq!(rig.number("select count(*) from request_log").await, 0);
    assert_eq!(rig.number("select count(*) from dropped_months").await, 0);
    backup.rollback().await.unwrap();
    sweep_all(&rig, &[]).await;
    assert_eq!(rig.number("select count(*) from dropped_months").await, 1);
}

#[tokio::test]
async fn rows_in_pages_that_are_used_again_are_not_read_at_each_run() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let owner = owner(&rig).await;
    for (name, days) in [("old", 91), ("young", 1)] {
        sqlx::query(
            "insert into provider_messages (tenant_id, provider, message_id, send_id, noted_at)
             select $1, 'ses', $2 || n, gen_random_uuid(), now() - make_interval(days => $3) from generate_series(1, 10000) n",
        )
        .bind(tenant.id)
        .bind(name)
        .bind(days)
        .execute(&rig.pool)
        .await
        .unwrap();
        sweep_all(&rig, &[]).await;
        sqlx::raw_sql("vacuum analyze provider_messages").execute(&owner).await.unwrap();
    }
    let plan = plan_of(&rig, "provider_messages", "90 days").await;
    let blocks = blocks_read(&plan);
    assert!(blocks < 50, "{blocks} blocks were read: {plan:#}");
    assert_eq!(rig.number("select count(*) from provider_messages").await, 10_000);
}
