//! The plans of the gate's statements.

use sqlx::AssertSqlSafe;
use stage_rig::Rig;
use uuid::Uuid;

/// The statement of the gate.
const ELIGIBILITY: &str = include_str!("../../../shared/ledger/queries/gate/eligibility.sql");

async fn plan_of(rig: &Rig, tenant: Uuid, asked: &[Uuid]) -> String {
    let plan: Vec<String> = sqlx::query_scalar(AssertSqlSafe(format!("explain {ELIGIBILITY}")))
        .bind(vec![tenant; asked.len()])
        .bind(asked)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    plan.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_looks_contacts_up_by_key_even_before_there_are_statistics() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 20_000).await;
    let asked: Vec<Uuid> = people.iter().step_by(40).map(|person| person.id).collect();
    let plan = plan_of(&rig, tenant.id, &asked).await;
    assert!(plan.contains("id = w.id") && plan.contains("address = c.address"), "{plan}");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Hash Cond"), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_frequency_cap_is_counted_by_contact_over_many_rows() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let people = rig.people(&tenant, 500).await;
    sqlx::query("update tenants set frequency_cap_messages = 300, frequency_cap_days = 7")
        .execute(&rig.pool)
        .await
        .unwrap();
    sqlx::query(
        "insert into capped_sends (tenant_id, send_id, contact_id, fenced_at)
         select tenant_id, gen_random_uuid(), id, now() - make_interval(hours => n) from contacts, generate_series(1, 200) n",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let asked: Vec<Uuid> = people.iter().map(|person| person.id).collect();
    let plan = plan_of(&rig, tenant.id, &asked).await;
    assert!(plan.contains("capped_sends_by_contact") && !plan.contains("Seq Scan on capped_sends"), "{plan}");
    let left: Vec<i64> = sqlx::query_scalar("select distinct cap_left from recipient_eligibility($1, $2)")
        .bind(tenant.id)
        .bind(&asked)
        .fetch_all(&rig.pool)
        .await
        .unwrap();
    assert_eq!(left, [300 - 167], "the hours of a week, without the one that is over");
}
