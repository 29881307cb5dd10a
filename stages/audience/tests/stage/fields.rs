//! The values of a removed field are taken out of contacts, all of them and no others.

use runner::Sweep;
use sqlx::{Postgres, Transaction};
use stage_rig::{Person, Rig, Tenant};

use crate::run;

const SLICE: i64 = 3;

/// The sweep of a process of its own.
async fn sweep(rig: &Rig) -> u64 {
    audience::RemoveFields { pool: rig.process().pool, slice: SLICE }.sweep().await.unwrap()
}

async fn sweep_all(rig: &Rig) {
    while sweep(rig).await > 0 {}
}

/// A tenant whose field `plan` was removed, and contacts that have a value of it and of another field.
async fn removed(rig: &Rig, count: usize) -> (Tenant, Vec<Person>) {
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, count).await;
    run(rig, r#"update contacts set fields = '{"plan": "pro", "seats": 3}' where fields = '{}'"#).await;
    let sql = "insert into removed_fields (tenant_id, id, key) values ($1, gen_random_uuid(), 'plan')";
    sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
    (tenant, people)
}

/// A process in the middle of a slice of this tenant; it is killed when this is dropped or rolled back.
async fn process_in_a_slice(rig: &Rig, tenant: &Tenant) -> Transaction<'static, Postgres> {
    let mut process = rig.process().pool.begin().await.unwrap();
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('removed fields ' || $1::uuid::text, 0))")
        .bind(tenant.id)
        .execute(&mut *process)
        .await
        .unwrap();
    process
}

async fn values(rig: &Rig) -> i64 {
    rig.number("select count(*) from contacts where fields ? 'plan'").await
}

async fn being_removed(rig: &Rig) -> i64 {
    rig.number("select count(*) from removed_fields").await
}

#[tokio::test]
async fn a_removed_field_goes_in_slices_that_any_process_continues() {
    let rig = Rig::new().await;
    let other = rig.tenant().await;
    rig.people(&other, 2).await;
    let (tenant, _) = removed(&rig, 7).await;
    for left in [4, 1] {
        assert_eq!((sweep(&rig).await, values(&rig).await - 2), (1, left));
    }
    // A process is killed in its last slice: it is as if that had not begun.
    let mut killed = process_in_a_slice(&rig, &tenant).await;
    sqlx::query("update contacts set fields = fields - 'plan'").execute(&mut *killed).await.unwrap();
    assert_eq!(sweep(&rig).await, 0, "the slice has its process");
    killed.rollback().await.unwrap();
    assert_eq!((values(&rig).await - 2, being_removed(&rig).await), (1, 1));
    sweep_all(&rig).await;
    assert_eq!((values(&rig).await - 2, being_removed(&rig).await), (0, 0), "the other tenant's field is not removed");
    assert_eq!(rig.number("select count(*) from contacts where fields -> 'seats' = '3'").await, 9);
}

#[tokio::test]
async fn a_locked_contact_keeps_the_key_reserved_until_its_turn() {
    let rig = Rig::new().await;
    let (_, people) = removed(&rig, 7).await;
    let mut import = rig.pool.begin().await.unwrap();
    let lock = "select from contacts where id = $1 for no key update";
    sqlx::query(lock).bind(people[1].id).execute(&mut *import).await.unwrap();
    sweep_all(&rig).await;
    assert_eq!((values(&rig).await, being_removed(&rig).await), (1, 1), "it waits for no lock");
    import.rollback().await.unwrap();
    sweep_all(&rig).await;
    assert_eq!((values(&rig).await, being_removed(&rig).await), (0, 0));
}

#[tokio::test]
async fn a_writer_that_knows_the_field_leaves_no_value_behind() {
    let rig = Rig::new().await;
    let (tenant, people) = removed(&rig, 4).await;
    let mut writer = rig.process().pool.begin().await.unwrap();
    sqlx::query("select hold_fields($1)").bind(tenant.id).execute(&mut *writer).await.unwrap();
    sweep_all(&rig).await;
    assert_eq!((values(&rig).await, being_removed(&rig).await), (4, 1), "the writer is waited for");
    // Other tenants' fields do not wait.
    removed(&rig, 2).await;
    sweep(&rig).await;
    assert_eq!((values(&rig).await, being_removed(&rig).await), (4, 1));
    let store = r#"update contacts set fields = fields || '{"plan": "late"}' where id = $1"#;
    sqlx::query(store).bind(people[0].id).execute(&mut *writer).await.unwrap();
    writer.commit().await.unwrap();
    sweep_all(&rig).await;
    assert_eq!((values(&rig).await, being_removed(&rig).await), (0, 0));
}

#[tokio::test]
async fn tenants_take_turns_however_many_fields_each_removes() {
    let rig = Rig::new().await;
    let (many, _) = removed(&rig, 7).await;
    let more = "insert into removed_fields (tenant_id, id, key)
                select $1, gen_random_uuid(), 'f' || n from generate_series(1, 150) n";
    sqlx::query(more).bind(many.id).execute(&rig.pool).await.unwrap();
    assert_eq!((sweep(&rig).await, values(&rig).await), (1, 4));
    removed(&rig, 2).await;
    assert_eq!((sweep(&rig).await, values(&rig).await, being_removed(&rig).await), (1, 4, 151));
    // All fields of the tenant in one pass.
    assert_eq!((sweep(&rig).await, sweep(&rig).await), (1, 1));
    assert_eq!((values(&rig).await, being_removed(&rig).await), (0, 0));
}

#[tokio::test]
async fn a_tenant_that_another_process_sweeps_keeps_no_other_waiting() {
    let rig = Rig::new().await;
    let (busy, _) = removed(&rig, 7).await;
    let process = process_in_a_slice(&rig, &busy).await;
    // Two slices.
    removed(&rig, 4).await;
    for _ in 0..5 {
        sweep(&rig).await;
    }
    assert_eq!((values(&rig).await, being_removed(&rig).await), (7, 1), "that tenant's are left to its process");
    process.rollback().await.unwrap();
    sweep_all(&rig).await;
    assert_eq!((values(&rig).await, being_removed(&rig).await), (0, 0));
}

#[tokio::test]
async fn a_field_that_is_removed_during_a_pass_goes_in_the_next() {
    let rig = Rig::new().await;
    let (tenant, _) = removed(&rig, 7).await;
    assert_eq!((sweep(&rig).await, values(&rig).await), (1, 4));
    let sql = "insert into removed_fields (tenant_id, id, key) values ($1, gen_random_uuid(), 'seats')";
    sqlx::query(sql).bind(tenant.id).execute(&rig.pool).await.unwrap();
    assert_eq!((sweep(&rig).await, sweep(&rig).await), (1, 1));
    assert_eq!((values(&rig).await, being_removed(&rig).await), (0, 1));
    sweep_all(&rig).await;
    assert_eq!(rig.number("select count(*) from contacts where fields <> '{}'").await, 0);
    assert_eq!(being_removed(&rig).await, 0);
}
