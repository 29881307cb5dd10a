//! Segments and filters over many contacts.

use std::time::Instant;

use pipeline::Rig;
use serde_json::json;
use uuid::Uuid;

use super::common::{fill_list, vacuum};

/// Fields of all types, a tag for a few, and a campaign of the past: a third opened it, a twentieth followed a link.
async fn furnish(rig: &Rig, tag: Uuid, campaign: Uuid) {
    let launch = schemas::LaunchId::fresh();
    // Every statement has all parameters.
    let used = "and $2::uuid is not null and $3::uuid is not null and $4::text is not null and $5::date is not null";
    for sql in [
        "insert into fields (tenant_id, id, key, label, type) select $1, gen_random_uuid(), key, key, type
         from (values ('plan', 'string'), ('seats', 'number'), ('vip', 'boolean'), ('renews', 'date'), ('seen', 'datetime'),
                      ('langs', 'string_list')) f (key, type)
         where true",
        "with numbered as (select id, row_number() over (order by id) as n from contacts where tenant_id = $1)
         update contacts c
         set fields = jsonb_build_object(
                 'plan', (array['pro', 'Free', 'team'])[n % 3 + 1], 'seats', n % 100, 'vip', n % 10 = 0,
                 'renews', to_char(current_date + (n % 700)::int - 350, 'YYYY-MM-DD'),
                 'seen', to_char(now() at time zone 'utc' - (n % 300) * interval '1 day', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'),
                 'langs', jsonb_build_array('en', (array['de', 'fr'])[n % 2 + 1])),
             created_at = now() - n * interval '1 second'
         from numbered
         where c.tenant_id = $1 and c.id = numbered.id",
        "insert into audiences (tenant_id, id, kind, name) select $1, $2, 'tag', 'few' where true",
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select $1, $2, id from contacts where tenant_id = $1 and address like '%000@%'",
        "update campaigns set launch_prefix = $4, month = $5, status = 'sent', completed_at = now()
         where tenant_id = $1 and id = $3",
        "insert into sends (tenant_id, id, month, campaign_id, contact_id, state, decided_at)
         select $1, ($4 || lpad(to_hex(((n - 1) / 500) << 9 | (n - 1) % 500), 9, '0'))::uuid, $5, $3, id, 'sent', now() - interval '3 days'
         from (select id, row_number() over (order by id) as n from contacts where tenant_id = $1) c where true",
        "update sends set opened_at = now() - interval '2 days',
                human_opened_at = case when hashtext(contact_id::text) % 2 = 0 then now() - interval '1 day' end,
                clicked_at = case when hashtext(contact_id::text) % 20 = 0 then now() - interval '1 day' end
         where tenant_id = $1 and hashtext(contact_id::text) % 3 = 0",
    ] {
        sqlx::query(sqlx::AssertSqlSafe(format!("{sql} {used}")))
            .bind(rig.engine_tenant_id)
            .bind(tag)
            .bind(campaign)
            .bind(launch.prefix())
            .bind(launch.month())
            .execute(&rig.pool)
            .await
            .unwrap();
    }
    vacuum(rig, "contacts, audience_members, sends, contact_facts").await;
}

pub(super) async fn run(contacts: usize) {
    let mut rig = Rig::measured().await.with("LOG", "warn");
    rig.start("ingress", &["ingress"]).await;
    let list = fill_list(&rig, contacts).await;
    let campaign = rig.campaign(list, "Hello", "<p>Hello</p>").await;
    let tag = schemas::new_id();
    furnish(&rig, tag, campaign).await;
    let field = |field: &str, op: &str, value: serde_json::Value| json!({"field": field, "op": op, "value": value});
    let rules = [
        ("email eq", field("email", "eq", json!("bench-7@example-7.com"))),
        ("lifecycle_stage eq", field("lifecycle_stage", "eq", json!("lead"))),
        ("company contains", field("company", "contains", json!("y 77"))),
        ("created_at within_days", field("created_at", "within_days", json!(3))),
        ("in_list and has_tag", json!({"all": [{"in_list": list}, {"has_tag": tag}]})),
        ("in_list, not has_tag", json!({"all": [{"in_list": list}, {"not": {"has_tag": tag}}]})),
        ("fields: string eq", field("fields.plan", "eq", json!("pro"))),
        ("fields: number gt", field("fields.seats", "gt", json!(50))),
        ("fields: date within_days", field("fields.renews", "within_days", json!(-30))),
        ("fields: datetime older_than_days", field("fields.seen", "older_than_days", json!(90))),
        ("fields: list includes", field("fields.langs", "includes", json!("de"))),
        ("opened in 30 days", json!({"event": "email.opened", "within_days": 30})),
        ("clicked the campaign", json!({"event": "email.clicked", "campaign_id": campaign})),
        (
            "no person opened in 90 days",
            json!({"not": {"event": "email.opened", "within_days": 90, "human_only": true}}),
        ),
        ("sent in 30 days", json!({"event": "email.sent", "within_days": 30})),
        (
            "five leaves",
            json!({"all": [
                {"in_list": list}, field("fields.plan", "in", json!(["pro", "team"])), field("lifecycle_stage", "neq", json!("customer")),
                {"event": "email.opened", "within_days": 30, "human_only": true}, {"not": {"event": "email.clicked", "within_days": 7}},
            ]}),
        ),
    ];
    for (name, rule) in rules {
        let started = Instant::now();
        let answer = rig.client.post("/v1/segments/preview", json!({ "rule": rule })).await.expect(200);
        println!("preview {name}: {} ms, {} of {contacts}", started.elapsed().as_millis(), answer["count"]);
    }
    let (tag, list) = (tag.to_string(), list.to_string());
    let rule = field("fields.plan", "eq", json!("pro"));
    let segment = rig.client.post("/v1/segments", json!({"name": "Pro", "rule": rule})).await.expect(201);
    for (name, value) in [
        ("email", "bench-7@example-7.com"),
        ("q", "bench-7@example"),
        ("q", "nobody at all"),
        ("q", "n\u{e9}ant"),
        ("list_id", list.as_str()),
        ("tag_id", tag.as_str()),
        ("status", "archived"),
        ("updated_since", "2999-01-01T00:00:00Z"),
        ("segment_id", segment["segment_id"].as_str().unwrap()),
    ] {
        let started = Instant::now();
        let answer = rig.client.get("/v1/contacts", &[(name, value)]).await.expect(200);
        let found = answer["contacts"].as_array().unwrap().len();
        println!("contacts {name}={value}: {} ms, {found} on the page", started.elapsed().as_millis());
    }
}
