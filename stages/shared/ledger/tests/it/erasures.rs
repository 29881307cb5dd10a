//! Erasures that wait together.

use ledger::erasure::{Erasures, request_erasure};
use runner::Sweep;
use runtime::plans::PreparedPool;
use stage_rig::Rig;

/// Steps of an erasure that look at the contact's own rows, before it is complete.
const OWN_STEPS: u64 = 11;

#[tokio::test]
async fn erasures_that_wait_together_look_through_stored_answers_once() {
    let rig = Rig::new().await;
    let tenants = [rig.tenant().await, rig.tenant().await];
    // Two slices of others' answers, and a part of a third.
    sqlx::query(
        "insert into idempotency_keys (key_id, idempotency_key, fingerprint, status, body, locked_until)
         select gen_random_uuid(), n::text, sha256(''), 200, convert_to('{\"email\": \"other@example.com\"}', 'UTF8'), now()
         from generate_series(1, 10100) n",
    )
    .execute(&rig.pool)
    .await
    .unwrap();
    let mut people = Vec::new();
    for (tenant, count) in [(&tenants[0], 3), (&tenants[1], 2)] {
        people.extend(rig.people(tenant, count).await.into_iter().map(|person| (tenant.id, person)));
    }
    for (tenant, person) in &people {
        sqlx::query(
            "with answer as (
                 insert into idempotency_keys (key_id, idempotency_key, tenant_id, fingerprint, status, body, locked_until)
                 values ($2, 'k', $1, sha256(''), 200, convert_to(format('{\"email\": \"%s\"}', upper($3)), 'UTF8'), now()),
                        ($2, 'of another tenant', $2, sha256(''), 201, convert_to(format('{\"email\": \"%s\"}', $3), 'UTF8'), now())
             )
             insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw, due_at, state)
             values ($1, $2, $1, 'mailgun', $3, '', convert_to('recipient=' || replace($3, '@', '%40'), 'UTF8'), null, 'handled')",
        )
        .bind(tenant)
        .bind(person.id)
        .bind(&person.address)
        .execute(&rig.pool)
        .await
        .unwrap();
        let mut db = rig.pool.acquire().await.unwrap();
        request_erasure(&mut db, *tenant, person.id, &person.address).await.unwrap();
    }
    let sweep = Erasures(PreparedPool::new(&rig.pool, 1));
    let mut slices = 0;
    while sweep.sweep().await.unwrap() > 0 {
        slices += 1;
    }
    assert_eq!(slices, 5 * OWN_STEPS + 3 + 2, "three slices of answers, one of each tenant's provider events");
    assert_eq!(rig.number("select count(*) from idempotency_keys where status = 422").await, 5);
    let of_other_tenants = "select count(*) from idempotency_keys where status = 201";
    assert_eq!(rig.number(of_other_tenants).await, 5, "under the same key");
    assert_eq!(rig.number("select count(*) from inbound_events where raw = ''").await, 5);
    assert_eq!(rig.number("select count(*) from erasures where completed_at is not null").await, 5);
}

#[tokio::test]
async fn an_erasure_begins_no_pass_while_another_is_in_the_middle_of_one() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    // With those of the people, two slices and a part of a third.
    sqlx::query(
        "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw, due_at, state)
         select $1, gen_random_uuid(), $1, 'mailgun', n::text, '', '{}', null, 'handled' from generate_series(1, 10100) n",
    )
    .bind(tenant.id)
    .execute(&rig.pool)
    .await
    .unwrap();
    let people = rig.people(&tenant, 3).await;
    for person in &people {
        sqlx::query(
            "insert into inbound_events (tenant_id, id, connection_id, provider, dedupe_key, nonce, raw, due_at, state)
             values ($1, $2, $1, 'mailgun', $3, '', convert_to(format('{\"recipient\": \"%s\"}', $3), 'UTF8'), null, 'handled')",
        )
        .bind(tenant.id)
        .bind(person.id)
        .bind(&person.address)
        .execute(&rig.pool)
        .await
        .unwrap();
    }
    let sweep = Erasures(PreparedPool::new(&rig.pool, 1));
    let mut slices = 0;
    // The first is in the middle when the second comes, and has ended its pass when the third does.
    for (person, sweeps) in people.iter().zip([1, 2, 0]) {
        let mut db = rig.pool.acquire().await.unwrap();
        request_erasure(&mut db, tenant.id, person.id, &person.address).await.unwrap();
        sqlx::query("update erasures set step = 'inbound_events' where contact_id = $1")
            .bind(person.id)
            .execute(&mut *db)
            .await
            .unwrap();
        drop(db);
        for _ in 0..sweeps {
            slices += sweep.sweep().await.unwrap();
        }
    }
    while sweep.sweep().await.unwrap() > 0 {
        slices += 1;
    }
    assert_eq!(slices, 2 * 3 + 3 * 2, "a pass of the first, one of both others, and two steps after it for each");
    assert_eq!(rig.number("select count(*) from inbound_events where raw = ''").await, 3);
}

#[tokio::test]
async fn a_request_that_was_stored_during_an_erasure_is_rejected() {
    let rig = Rig::new().await;
    let tenant = rig.tenant().await;
    let person = rig.people(&tenant, 1).await.remove(0);
    let mut db = rig.pool.acquire().await.unwrap();
    request_erasure(&mut db, tenant.id, person.id, &person.address).await.unwrap();
    // By transactions that had begun before, and were not committed.
    sqlx::query(
        "insert into requests (tenant_id, id, product, environment, kind, payload, state, outcome, announce_after, received_at)
         select $1, gen_random_uuid(), 'shop', 'production', 'transactional', jsonb_build_object('address', $2::text), state, outcome,
                case when state = 'accepted' then now() end, now() - interval '1 minute'
         from (values ('accepted', null), ('handled', 'resolved'), ('rejected', 'cancelled')) as r (state, outcome)",
    )
    .bind(tenant.id)
    .bind(&person.address)
    .execute(&rig.pool)
    .await
    .unwrap();
    drop(db);
    let sweep = Erasures(PreparedPool::new(&rig.pool, 1));
    while sweep.sweep().await.unwrap() > 0 {}
    let found: Vec<(String, String)> = sqlx::query_as(
        "select state, outcome from requests
         where payload = '{\"erased\": true}' and announce_after is null order by state, outcome",
    )
    .fetch_all(&rig.pool)
    .await
    .unwrap();
    let expected = [("handled", "resolved"), ("rejected", "cancelled"), ("rejected", "contact_erased")];
    assert_eq!(found, expected.map(|(state, outcome)| (state.to_owned(), outcome.to_owned())));
}
