//! How many objects of a kind a tenant may have.

use rstest::rstest;
use serde_json::{Value, json};

use crate::fixtures::Ready;

/// `fill` makes as many as a tenant may have, whatever it has already; `remove` takes one away.
#[rstest]
#[case::lists(
    "list",
    "/v1/audiences",
    json!({"kind": "list", "name": "One more"}),
    "insert into audiences (tenant_id, id, kind, name) select $1, gen_random_uuid(), 'list', n::text
     from generate_series(1, 10000 - (select count(*) from audiences where kind = 'list')) n",
    "update audiences set deleted_at = now() where kind = 'list' and name = '1'"
)]
#[case::tags_of_contacts(
    "tag",
    "/v1/contacts",
    json!({"email": "ann@example.com", "tags": ["One more"]}),
    "insert into audiences (tenant_id, id, kind, name) select $1, gen_random_uuid(), 'tag', n::text from generate_series(1, 10000) n",
    "update audiences set deleted_at = now() where kind = 'tag' and name = '1'"
)]
#[case::segments(
    "segment",
    "/v1/segments",
    json!({"name": "One more", "rule": {"field": "company", "op": "eq", "value": "Acme"}}),
    r#"insert into segments (tenant_id, id, name, rule)
       select $1, gen_random_uuid(), n::text, '{"field": "company", "op": "eq", "value": "Acme"}' from generate_series(1, 1000) n"#,
    "update segments set deleted_at = now() where name = '1'"
)]
#[case::sequences(
    "sequence",
    "/v1/sequences",
    json!({"name": "One more", "steps": [
        {"step_type": "wait", "delay_amount": 1, "delay_unit": "days", "action_config": {}}]}),
    "insert into sequences (tenant_id, id, product, environment, name, status)
     select $1, gen_random_uuid(), 'crm', 'production', n::text, 'draft' from generate_series(1, 1000) n",
    "update sequences set status = 'archived', archived_at = now() where name = '1'"
)]
#[case::snippets(
    "snippet",
    "/v1/snippets",
    json!({"name": "more", "body_html": "<p>More</p>"}),
    "insert into snippets (tenant_id, id, kind, name, version)
     select $1, gen_random_uuid(), 'snippet', 's' || n, 1 from generate_series(1, 1000) n",
    "update snippets set deleted_at = now() where name = 's1'"
)]
#[case::templates(
    "template",
    "/v1/templates",
    json!({"name": "One more", "subject": "S", "body_html": "<p>More</p>"}),
    "insert into templates (tenant_id, id, name, template_type, status, version, content_id)
     select $1, gen_random_uuid(), n::text, template_type, status, 1, content_id
     from templates cross join generate_series(2, 10000) n",
    "update templates set status = 'archived' where name = '2'"
)]
#[tokio::test]
async fn a_tenant_has_so_many_of_a_kind_and_no_more(
    #[case] kind: &str,
    #[case] path: &str,
    #[case] body: Value,
    #[case] fill: &'static str,
    #[case] remove: &'static str,
) {
    let ready = Ready::start().await;
    let pool = &ready.edge.pool;
    ready.template(json!({})).await;
    sqlx::query(fill).bind(ready.client.tenant).execute(pool).await.unwrap();
    let refused = ready.client.post(path, body.clone()).await;
    assert_eq!(refused.refusal(), (409, format!("{kind}_limit_reached").as_str()));
    sqlx::query(remove).execute(pool).await.unwrap();
    assert_eq!(ready.client.post(path, body).await.status, 201);
}
