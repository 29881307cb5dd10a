use super::*;
use rstest::rstest;
use serde_json::json;

const ID: &str = "0197a1c2-7b1e-7c44-9d3f-2a6b8c0d1e2f";

fn definitions() -> Definitions {
    [
        ("plan", ValueKind::Text),
        ("seats", ValueKind::Number),
        ("vip", ValueKind::Boolean),
        ("renews", ValueKind::Date),
        ("seen", ValueKind::Instant),
        ("langs", ValueKind::TextList),
    ]
    .into_iter()
    .map(|(key, kind)| (key.to_owned(), kind))
    .collect()
}

fn faults(rule: &Value) -> Vec<(String, &'static str)> {
    match Rule::parse(rule, "rule", &definitions()) {
        Ok(_) => Vec::new(),
        Err(faults) => faults.into_iter().map(|fault| (fault.path, fault.code)).collect(),
    }
}

fn fault(rule: &Value) -> Option<(String, &'static str)> {
    faults(rule).into_iter().next()
}

fn plan() -> Value {
    json!({"field": "fields.plan", "op": "eq", "value": "pro"})
}

/// A value that suits an operator on a field of this kind.
fn suitable(kind: &str, op: &str) -> Value {
    let one = match kind {
        "email" => json!("Ann@Example.com"),
        "word" => json!("pending"),
        "number" => json!(1.5),
        "boolean" => json!(true),
        "date" => json!("2026-02-28"),
        "instant" => json!("2026-02-28T10:00:00+01:00"),
        _ => json!("pro"),
    };
    match op {
        "exists" | "not_exists" => Value::Null,
        "in" | "not_in" => json!([one]),
        "between" => json!([one, one]),
        "within_days" | "older_than_days" => json!(30),
        "contains" | "not_contains" | "starts_with" | "ends_with" | "includes" => json!("pro"),
        _ => one,
    }
}

/// Which operators apply to what: every pair that is not here is refused.
#[rstest]
#[case("text", "fields.plan", "eq neq in not_in contains not_contains starts_with ends_with exists not_exists")]
#[case("text", "company", "eq neq in not_in contains not_contains starts_with ends_with exists not_exists")]
#[case("email", "email", "eq neq in not_in contains not_contains starts_with ends_with exists not_exists")]
#[case("word", "marketing_status", "eq neq in not_in exists not_exists")]
#[case("number", "fields.seats", "eq neq in not_in gt gte lt lte between exists not_exists")]
#[case("number", "dot_number", "eq neq in not_in gt gte lt lte between exists not_exists")]
#[case("boolean", "fields.vip", "eq neq exists not_exists")]
#[case(
    "date",
    "fields.renews",
    "eq neq in not_in gt gte lt lte between before after within_days older_than_days exists not_exists"
)]
#[case("instant", "fields.seen", "gt gte lt lte between before after within_days older_than_days exists not_exists")]
#[case("instant", "created_at", "gt gte lt lte between before after within_days older_than_days exists not_exists")]
#[case("list", "fields.langs", "includes exists not_exists")]
fn an_operator_applies_to_what_it_makes_sense_for(#[case] kind: &str, #[case] field: &str, #[case] ops: &str) {
    let ops: Vec<&str> = ops.split(' ').collect();
    for op in OPS.iter().copied() {
        let found = fault(&json!({"field": field, "op": op, "value": suitable(kind, op)}));
        let expected = (!ops.contains(&op)).then(|| ("rule.op".to_owned(), "not_allowed"));
        assert_eq!(found, expected, "{op} on {field}");
    }
}

#[rstest]
#[case("fields.plan", "eq", json!(1), "rule.value", "wrong_type")]
#[case("fields.plan", "eq", json!(""), "rule.value", "empty")]
#[case("fields.plan", "eq", json!("x".repeat(501)), "rule.value", "too_long")]
#[case("fields.plan", "contains", json!("a\0b"), "rule.value", "invalid")]
#[case("fields.plan", "eq", Value::Null, "rule.value", "required")]
#[case("fields.plan", "exists", json!(true), "rule.value", "not_allowed")]
#[case("fields.plan", "in", json!("pro"), "rule.value", "wrong_type")]
#[case("fields.plan", "in", json!([]), "rule.value", "empty")]
#[case("fields.plan", "in", json!(vec!["x"; 201]), "rule.value", "too_many")]
#[case("fields.plan", "in", json!(["pro", 1]), "rule.value[1]", "wrong_type")]
#[case("email", "eq", json!("nobody"), "rule.value", "missing_at")]
#[case("marketing_status", "eq", json!("gone"), "rule.value", "not_allowed")]
#[case("fields.seats", "gt", json!("1"), "rule.value", "wrong_type")]
#[case("fields.seats", "between", json!([1]), "rule.value", "wrong_type")]
#[case("fields.seats", "between", json!([1, "2"]), "rule.value[1]", "wrong_type")]
#[case("fields.vip", "eq", json!("true"), "rule.value", "wrong_type")]
#[case("fields.renews", "after", json!("2026-02-30"), "rule.value", "wrong_type")]
#[case("fields.renews", "after", json!("2026-2-3"), "rule.value", "wrong_type")]
#[case("fields.renews", "after", json!("2026- 1- 2"), "rule.value", "wrong_type")]
#[case("fields.renews", "after", json!("+2026-1-02"), "rule.value", "wrong_type")]
#[case("fields.renews", "after", json!("-999-01-01"), "rule.value", "wrong_type")]
#[case("created_at", "after", json!("2026-02-28"), "rule.value", "wrong_type")]
#[case("created_at", "within_days", json!(1.5), "rule.value", "wrong_type")]
#[case("created_at", "within_days", json!(0), "rule.value", "out_of_range")]
#[case("created_at", "within_days", json!(-40_000), "rule.value", "out_of_range")]
#[case("created_at", "older_than_days", json!(-1), "rule.value", "out_of_range")]
#[case("fields.langs", "includes", json!(["en"]), "rule.value", "wrong_type")]
#[case("fields.colour", "eq", json!("red"), "rule.field", "unknown_field")]
#[case("password", "exists", Value::Null, "rule.field", "unknown_field")]
fn a_value_is_of_its_fields_type(
    #[case] field: &str,
    #[case] op: &str,
    #[case] value: Value,
    #[case] path: &str,
    #[case] code: &str,
) {
    let found = fault(&json!({"field": field, "op": op, "value": value})).unwrap();
    assert_eq!((found.0.as_str(), found.1), (path, code));
}

#[rstest]
#[case(json!([]), "rule", "wrong_type")]
#[case(json!("all"), "rule", "wrong_type")]
#[case(json!(null), "rule", "wrong_type")]
#[case(json!({}), "rule", "required")]
#[case(json!({"op": "eq"}), "rule", "required")]
#[case(json!({"all": [plan()], "any": [plan()]}), "rule", "ambiguous")]
#[case(json!({"all": plan()}), "rule.all", "wrong_type")]
#[case(json!({"all": []}), "rule.all", "empty")]
#[case(json!({"all": [plan(), {"field": "company", "op": "eq"}]}), "rule.all[1].value", "required")]
#[case(json!({"not": [plan()]}), "rule.not", "wrong_type")]
#[case(json!({"all": [plan()], "name": "x"}), "rule.name", "unknown_field")]
#[case(json!({"field": "company", "op": "exists", "case": true}), "rule.case", "unknown_field")]
#[case(json!({"field": "company", "value": "x"}), "rule.op", "required")]
#[case(json!({"field": "company", "op": "like", "value": "x"}), "rule.op", "not_allowed")]
#[case(json!({"field": "company", "op": 1, "value": "x"}), "rule.op", "wrong_type")]
#[case(json!({"field": 1, "op": "exists"}), "rule.field", "wrong_type")]
#[case(json!({"in_list": "x"}), "rule.in_list", "invalid")]
#[case(json!({"in_list": null}), "rule.in_list", "wrong_type")]
#[case(json!({"has_tag": ID.to_uppercase()}), "rule.has_tag", "invalid")]
#[case(json!({"in_segment": 1}), "rule.in_segment", "wrong_type")]
#[case(json!({"in_list": ID, "op": "eq"}), "rule.op", "unknown_field")]
#[case(json!({"event": "email.read"}), "rule.event", "not_allowed")]
#[case(json!({"event": "email.opened", "op": "between"}), "rule.op", "not_allowed")]
#[case(json!({"event": "email.opened", "count": 0}), "rule.count", "out_of_range")]
#[case(json!({"event": "email.opened", "op": "at_most", "count": -1}), "rule.count", "out_of_range")]
#[case(json!({"event": "email.opened", "count": 1.5}), "rule.count", "wrong_type")]
#[case(json!({"event": "email.opened", "within_days": -1}), "rule.within_days", "out_of_range")]
#[case(json!({"event": "email.opened", "campaign_id": "x"}), "rule.campaign_id", "invalid")]
#[case(json!({"event": "email.opened", "human_only": "yes"}), "rule.human_only", "wrong_type")]
#[case(json!({"event": "email.sent", "human_only": true}), "rule.human_only", "not_allowed")]
#[case(json!({"event": "email.opened", "value": 1}), "rule.value", "unknown_field")]
#[case(json!({"product_event": 7}), "rule.product_event", "invalid")]
#[case(json!({"product_event": "Paid"}), "rule.product_event", "invalid")]
#[case(json!({"product_event": "paid", "campaign_id": ID}), "rule.campaign_id", "unknown_field")]
#[case(json!({"product_event": "paid", "properties": []}), "rule.properties", "wrong_type")]
#[case(json!({"product_event": "paid", "properties": {"plan": [1]}}), "rule.properties.plan", "wrong_type")]
#[case(json!({"product_event": "paid", "properties": {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}}), "rule.properties", "too_many")]
fn a_fault_says_where_and_what(#[case] rule: Value, #[case] path: &str, #[case] code: &str) {
    let found = fault(&rule).unwrap();
    assert_eq!((found.0.as_str(), found.1), (path, code), "{rule}");
}

#[test]
fn every_fault_is_named_at_once() {
    let rule = json!({"all": [
        {"field": "colour", "op": "eq", "value": "red"},
        {"any": [{"in_list": "x"}, {"field": "company", "op": "gt", "value": "x"}]},
    ]});
    let expected = [
        ("rule.all[0].field", "unknown_field"),
        ("rule.all[1].any[0].in_list", "invalid"),
        ("rule.all[1].any[1].op", "not_allowed"),
    ];
    assert_eq!(faults(&rule), expected.map(|(path, code)| (path.to_owned(), code)));
}

#[test]
fn an_event_happens_at_least_once_where_nothing_else_is_said() {
    let parse = |rule| Rule::parse(&rule, "rule", &definitions()).unwrap();
    let plain = parse(json!({"event": "email.clicked"}));
    let whole = json!({
        "event": "email.clicked", "op": "at_least", "count": 1, "within_days": null, "campaign_id": null, "human_only": false,
    });
    assert_eq!(plain, parse(whole));
    let Rule::Event(test) = plain else { panic!("an event") };
    assert_eq!(test.times, Times::AtLeast(1));
}

fn nested(depth: usize) -> Value {
    (1..depth).fold(plan(), |rule, _| json!({ "not": rule }))
}

#[test]
fn a_rule_is_at_most_five_deep() {
    assert_eq!(fault(&nested(DEPTH_MAX)), None);
    let (path, code) = fault(&nested(DEPTH_MAX + 1)).unwrap();
    assert_eq!((path.as_str(), code), ("rule.not.not.not.not.not", "too_deep"));
}

#[test]
fn a_rule_has_at_most_fifty_leaves_however_they_are_spread() {
    let any = |leaves: usize| json!({"any": vec![plan(); leaves]});
    assert_eq!(fault(&any(LEAVES_MAX)), None);
    assert_eq!(fault(&any(LEAVES_MAX + 1)), Some(("rule.any".to_owned(), "too_many")));
    assert_eq!(fault(&json!({"all": [any(25), any(25)]})), None);
    assert_eq!(fault(&json!({"all": [any(25), any(26)]})), Some(("rule".to_owned(), "too_many")));
}

#[test]
fn a_rules_size_and_faults_are_limited() {
    let long = json!({"all": vec![json!({"field": "company", "op": "in", "value": vec!["x".repeat(400); 10]}); 20]});
    assert_eq!(fault(&long), Some(("rule".to_owned(), "too_long")));
    let bad = json!({"any": vec![json!({"any": vec![json!({"x": 1}); 49]}); 49]});
    assert_eq!(faults(&bad).len(), 50);
}

#[test]
fn values_are_read_into_one_form() {
    let parse = |field: &str, op: &str, value: Value| {
        let rule = Rule::parse(&json!({"field": field, "op": op, "value": value}), "rule", &definitions()).unwrap();
        let Rule::Field(test) = rule else { panic!("a field") };
        (test.test, test.negated)
    };
    let address = vec![Scalar::Text("ann@xn--bcher-kva.example".to_owned())];
    assert_eq!(parse("email", "neq", json!(" Ann@Bücher.Example ")), (Test::OneOf(address), true));
    let at = DateTime::parse_from_rfc3339("2026-01-02T02:04:05Z").unwrap().to_utc();
    let after = Bound { value: Scalar::Instant(at), inclusive: false };
    assert_eq!(
        parse("created_at", "after", json!("2026-01-02T03:04:05+01:00")),
        (Test::Range(Some(after), None), false)
    );
    assert_eq!(parse("fields.vip", "not_exists", Value::Null), (Test::Exists, true));
}
