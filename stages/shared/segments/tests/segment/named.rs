//! What a rule names: lists, tags, campaigns and segments, the tenant's own ones only, and within bounds.

use segments::{Rule, SegmentError};
use serde_json::{Value, json};
use stage_rig::{Rig, Tenant};
use uuid::Uuid;

use crate::{compile, rig, select, store, tenant};

fn verdict<T>(result: Result<T, SegmentError>) -> Result<(), String> {
    match result {
        Ok(_) => Ok(()),
        Err(SegmentError::NotFound(object)) => Err(format!("no {object}")),
        Err(SegmentError::Invalid(faults)) => Err(format!("{} {}", faults[0].path, faults[0].code)),
        Err(SegmentError::Store(error)) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_foreign_names_are_not_found() {
    let rig = Rig::new().await;
    let (ours, theirs) = (tenant(&rig).await, tenant(&rig).await);
    let list = rig.audience(&theirs, "list", &[]).await;
    let tag = rig.audience(&theirs, "tag", &[]).await;
    let campaign = rig.campaign(&theirs, list).await;
    let segment = store(&rig, &theirs, &json!({"in_list": list})).await;
    let cases = [
        (json!({"in_list": list}), "no list"),
        (json!({"has_tag": tag}), "no tag"),
        (json!({"has_tag": list}), "no tag"),
        (json!({"in_segment": segment}), "no segment"),
        (json!({"event": "email.opened", "campaign_id": campaign}), "no campaign"),
        (json!({"not": {"any": [{"in_segment": schemas::new_id()}]}}), "no segment"),
    ];
    for (rule, expected) in &cases {
        assert_eq!(verdict(compile(&rig, &ours, rule).await), Err((*expected).to_owned()), "{rule}");
    }
    for (rule, _) in cases.iter().filter(|(rule, _)| *rule != json!({"has_tag": list})).take(4) {
        assert_eq!(verdict(compile(&rig, &theirs, rule).await), Ok(()), "{rule}");
    }
    sqlx::query("update segments set deleted_at = now()").execute(&rig.pool).await.unwrap();
    assert_eq!(verdict(compile(&rig, &theirs, &json!({"in_segment": segment})).await), Err("no segment".to_owned()));
}

async fn set_rule(rig: &Rig, id: Uuid, rule: &Value) {
    sqlx::query("update segments set rule = $2 where id = $1").bind(id).bind(rule).execute(&rig.pool).await.unwrap();
}

async fn as_rule_of(rig: &Rig, tenant: &Tenant, id: Uuid, rule: &Value) -> Result<(), String> {
    let mut db = rig.pool.acquire().await.unwrap();
    let definitions = segments::definitions(&mut db, tenant.id).await.unwrap();
    let parsed = Rule::parse(rule, "rule", &definitions).unwrap();
    verdict(segments::resolve(&mut db, tenant.id, &parsed, &definitions, Some(id)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_does_not_lead_back_to_itself() {
    let (rig, tenant) = rig().await;
    let plain = json!({"field": "company", "op": "exists"});
    let a = store(&rig, &tenant, &plain).await;
    let b = store(&rig, &tenant, &json!({"any": [plain, {"in_segment": a}]})).await;
    let c = store(&rig, &tenant, &json!({"in_segment": b})).await;
    let cycle = |path: &str| Err(format!("{path} cycle"));
    assert_eq!(as_rule_of(&rig, &tenant, a, &json!({"in_segment": a})).await, cycle("rule.in_segment"));
    assert_eq!(as_rule_of(&rig, &tenant, a, &json!({"not": {"in_segment": b}})).await, cycle("rule.not.in_segment"));
    assert_eq!(
        as_rule_of(&rig, &tenant, a, &json!({"all": [plain, {"in_segment": c}]})).await,
        cycle("rule.all[1].in_segment")
    );
    assert_eq!(as_rule_of(&rig, &tenant, c, &json!({"any": [{"in_segment": a}, {"in_segment": b}]})).await, Ok(()));
    // One that is in the database all the same ends, too.
    set_rule(&rig, a, &json!({"in_segment": c})).await;
    assert_eq!(verdict(compile(&rig, &tenant, &json!({"in_segment": b})).await), cycle("rule.in_segment"));
    let mut db = rig.pool.acquire().await.unwrap();
    assert_eq!(verdict(segments::load(&mut db, tenant.id, b).await), cycle("rule.any[1].in_segment"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_stays_within_its_limits_with_the_segments_it_names() {
    let (rig, tenant) = rig().await;
    let plain = json!({"field": "company", "op": "exists"});
    let fifty = store(&rig, &tenant, &json!({"any": vec![plain.clone(); 50]})).await;
    let several = |count: usize| json!({"any": vec![json!({"in_segment": fifty}); count]});
    assert_eq!(verdict(compile(&rig, &tenant, &several(4)).await), Ok(()));
    assert_eq!(verdict(compile(&rig, &tenant, &several(5)).await), Err("rule.any[4].in_segment too_many".to_owned()));
    let opened = json!({"event": "email.opened"});
    let events = store(&rig, &tenant, &json!({"any": vec![opened.clone(); 10]})).await;
    assert_eq!(verdict(compile(&rig, &tenant, &json!({"in_segment": events})).await), Ok(()));
    let more = json!({"all": [{"in_segment": events}, opened]});
    assert_eq!(verdict(compile(&rig, &tenant, &more).await), Err("rule too_many".to_owned()));
    let mut inner = store(&rig, &tenant, &plain).await;
    for _ in 0..4 {
        inner = store(&rig, &tenant, &json!({"in_segment": inner})).await;
    }
    assert_eq!(verdict(compile(&rig, &tenant, &json!({"in_segment": inner})).await), Ok(()));
    inner = store(&rig, &tenant, &json!({"in_segment": inner})).await;
    let deep = json!({"not": {"in_segment": inner}});
    assert_eq!(verdict(compile(&rig, &tenant, &deep).await), Err("rule.not.in_segment too_deep".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_evaluated_by_the_rules_as_they_stand_now() {
    let (rig, tenant) = rig().await;
    let people = rig.people(&tenant, 3).await;
    let list = rig.audience(&tenant, "list", &people[..1]).await;
    let inner = store(&rig, &tenant, &json!({"in_list": list})).await;
    let rule = json!({"not": {"in_segment": inner}});
    assert_eq!(select(&rig, &tenant, &rule).await, [people[1].id, people[2].id]);
    set_rule(&rig, inner, &json!({"not": {"in_list": list}})).await;
    assert_eq!(select(&rig, &tenant, &rule).await, [people[0].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_rules_are_loaded_than_a_rule_may_name() {
    let (rig, tenant) = rig().await;
    // What is there of the last level would be a fault of its own, if it were loaded.
    let named = |ids: &[Uuid]| json!({"any": ids.iter().map(|id| json!({"in_segment": id})).collect::<Vec<_>>()});
    let mut middle = Vec::new();
    for _ in 0..5 {
        let missing: Vec<Uuid> = (0..50).map(|_| schemas::new_id()).collect();
        middle.push(store(&rig, &tenant, &named(&missing)).await);
    }
    assert_eq!(verdict(compile(&rig, &tenant, &named(&middle[..4])).await), Err("no segment".to_owned()));
    assert_eq!(verdict(compile(&rig, &tenant, &named(&middle)).await), Err("rule too_many".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_segments_the_one_beyond_its_limits_is_found() {
    let (rig, tenant) = rig().await;
    let plain = json!({"field": "company", "op": "exists"});
    let inner = store(&rig, &tenant, &json!({"any": vec![plain.clone(); 40]})).await;
    let mut users = Vec::new();
    for _ in 0..120 {
        users.push(store(&rig, &tenant, &json!({"not": {"in_segment": inner}})).await);
    }
    let large = store(&rig, &tenant, &json!({"any": vec![json!({"in_segment": inner}); 5]})).await;
    users.push(large);
    let mut db = rig.pool.acquire().await.unwrap();
    assert_eq!(segments::find_beyond_limits(&mut db, tenant.id, &users).await.unwrap(), None);
    set_rule(&rig, inner, &json!({"any": vec![plain; 41]})).await;
    let (found, fault) = segments::find_beyond_limits(&mut db, tenant.id, &users).await.unwrap().unwrap();
    assert_eq!((found, fault.code), (large, "too_many"));
}
