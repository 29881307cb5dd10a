//! The statement is the rule's shape; what callers wrote is beside it.

use serde_json::{Value, json};
use sqlx::QueryBuilder;
use stage_rig::{Rig, Tenant};

use crate::{compile, rig, select};

const HOSTILE: [&str; 9] =
    ["' or 1 = 1 --", "'; drop table contacts; --", "%", "_", "\\", "\\'", "$1", "\u{202e}\u{0}abc", ") or true or ("];

async fn sql(rig: &Rig, tenant: &Tenant, rule: &Value) -> String {
    let mut query = QueryBuilder::new("select c.id from ");
    compile(rig, tenant, rule).await.unwrap().push(&mut query, tenant.id);
    query.sql().as_str().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_value_changes_the_statement() {
    let (rig, tenant) = rig().await;
    rig.people(&tenant, 5).await;
    let long = "x".repeat(500);
    let values = HOSTILE.iter().copied().filter(|text| !text.contains('\0')).chain([long.as_str()]);
    let ops = ["eq", "neq", "contains", "not_contains", "starts_with", "ends_with"];
    let rule = |field: &str, op: &str, value: Value| json!({"field": field, "op": op, "value": value});
    for value in values {
        for field in ["company", "fields.plan"] {
            for op in ops {
                let hostile = rule(field, op, json!(value));
                assert_eq!(sql(&rig, &tenant, &hostile).await, sql(&rig, &tenant, &rule(field, op, json!("a"))).await);
                let found = select(&rig, &tenant, &hostile).await.len();
                assert_eq!(found, if op == "neq" || op == "not_contains" { 5 } else { 0 }, "{hostile}");
            }
        }
        assert_eq!(select(&rig, &tenant, &rule("company", "in", json!([value, "b"]))).await.len(), 0);
        assert_eq!(select(&rig, &tenant, &rule("fields.langs", "includes", json!(value))).await.len(), 0);
    }
    for number in ["1e308", "-1e308", "1e-300", "18446744073709551615", "0.1"] {
        let number: Value = serde_json::from_str(number).unwrap();
        for field in ["dot_number", "fields.seats"] {
            assert_eq!(select(&rig, &tenant, &rule(field, "gte", number.clone())).await.len(), 0);
        }
    }
    assert_eq!(rig.number("select count(*) from contacts").await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_postgres_cannot_cast_counts_as_missing() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 6).await;
    // What a contact's field may hold by RFC 3339, or held before its check was made.
    let held = [
        "0000-01-01T00:00:00Z",
        "2026-01-01T00:00:00+23:59",
        "2016-12-31T23:59:60Z",
        "2026-01-01t00:00:00.123456789z",
        "soon",
    ];
    for (person, seen) in people.iter().zip(held) {
        sqlx::query("update contacts set fields = $2 where id = $1")
            .bind(person.id)
            .bind(json!({"seen": seen, "seats": "three", "vip": "yes", "langs": "en", "renews": "2026"}))
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    let rule = |op: &str| json!({"field": "fields.seen", "op": op, "value": "2001-01-01T00:00:00Z"});
    assert_eq!(select(&rig, &tenant, &rule("after")).await, [people[2].id, people[3].id]);
    assert_eq!(select(&rig, &tenant, &rule("before")).await.len(), 0);
    for rule in [
        json!({"field": "fields.seats", "op": "gt", "value": 0}),
        json!({"field": "fields.vip", "op": "eq", "value": true}),
        json!({"field": "fields.langs", "op": "includes", "value": "en"}),
        json!({"field": "fields.langs", "op": "exists"}),
    ] {
        assert_eq!(select(&rig, &tenant, &rule).await.len(), 0, "{rule}");
    }
}

/// Missing values: what matches somebody of whom nothing is known, and what matches an empty text, is the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_value_matches_negative_operators_only() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 2).await;
    sqlx::query("update contacts set company = '', fields = '{\"plan\": \"\"}' where id = $1")
        .bind(people[1].id)
        .execute(&rig.pool)
        .await
        .unwrap();
    let everybody = [people[0].id, people[1].id];
    for (op, value, matches) in [
        ("exists", Value::Null, false),
        ("not_exists", Value::Null, true),
        ("eq", json!("pro"), false),
        ("neq", json!("pro"), true),
        ("in", json!(["pro"]), false),
        ("not_in", json!(["pro"]), true),
        ("contains", json!("p"), false),
        ("not_contains", json!("p"), true),
        ("starts_with", json!("p"), false),
        ("ends_with", json!("p"), false),
    ] {
        for field in ["company", "fields.plan"] {
            let rule = json!({"field": field, "op": op, "value": value});
            let opposite = json!({ "not": rule });
            let (found, others) = (select(&rig, &tenant, &rule).await, select(&rig, &tenant, &opposite).await);
            let (expected, rest): (&[_], &[_]) = if matches { (&everybody, &[]) } else { (&[], &everybody) };
            assert_eq!((found.as_slice(), others.as_slice()), (expected, rest), "{rule}");
        }
    }
}
