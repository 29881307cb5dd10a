//! A property: the compiled statement and a plain reading of the rule select the same contacts.

use chrono::{DateTime, TimeDelta, Utc};
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use schemas::{LaunchId, SendId, new_batch_id, new_id};
use serde_json::{Value, json};
use stage_rig::{Rig, Tenant};
use uuid::Uuid;

use crate::{
    FIELDS, insert_sent,
    model::{ADDRESSES, Fact, Person, SENT_HOURS_AGO, World, person, rule},
    select, store, tenant,
};

const PEOPLE: usize = 150;
const RULES: usize = 400;

/// Writes a contact.
async fn write(rig: &Rig, tenant: &Tenant, person: &Person) {
    let value = |name: &str| person.values.get(name);
    let text = |name: &str| value(name).and_then(Value::as_str);
    let time = |name: &str| text(name).map(|text| DateTime::parse_from_rfc3339(text).unwrap().to_utc());
    let mut fields = serde_json::Map::new();
    for (key, _) in FIELDS {
        if let Some(value) = value(&format!("fields.{key}")) {
            fields.insert(key.to_owned(), value.clone());
        }
    }
    sqlx::query(
        "insert into contacts (tenant_id, id, address, first_name, company, lifecycle_stage, fields, marketing_status, status,
                               dot_number, consent_at, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(tenant.id)
    .bind(person.id)
    .bind(text("email"))
    .bind(text("first_name"))
    .bind(text("company"))
    .bind(text("lifecycle_stage"))
    .bind(Value::Object(fields))
    .bind(text("marketing_status"))
    .bind(if person.active { "active" } else { "archived" })
    .bind(value("dot_number").and_then(Value::as_i64))
    .bind(time("consent.at"))
    .bind(time("created_at"))
    .execute(&rig.pool)
    .await
    .unwrap();
}

/// One mail for each fact, and then the fact, as engagement writes it.
async fn happen(rig: &Rig, tenant: &Tenant, launches: &[LaunchId], people: &[Person]) {
    let mut number = 0_u32;
    for person in people {
        for fact in &person.facts {
            number += 1;
            let send = match fact.campaign {
                Some(at) => SendId::of(launches[at].batch(number / 500), u16::try_from(number % 500).unwrap()).0,
                None => new_batch_id(),
            };
            write_fact(rig, tenant, person.id, send, fact).await;
        }
    }
}

async fn write_fact(rig: &Rig, tenant: &Tenant, contact: Uuid, send: Uuid, fact: &Fact) {
    let ago = |hours: i64| Utc::now() - TimeDelta::hours(hours);
    insert_sent(rig, tenant, send, contact, ago(SENT_HOURS_AGO)).await;
    let sql = match fact.event {
        "email.opened" => "update sends set opened_at = $3, human_opened_at = $4 where tenant_id = $1 and id = $2",
        "email.clicked" => "update sends set clicked_at = $3, human_clicked_at = $4 where tenant_id = $1 and id = $2",
        "email.bounced" => {
            "update sends set bounced_at = $3 where tenant_id = $1 and id = $2 and $4::timestamptz is null"
        }
        "email.complained" => {
            "update sends set complained_at = $3 where tenant_id = $1 and id = $2 and $4::timestamptz is null"
        }
        "email.unsubscribed" => {
            "update sends set unsubscribed_at = $3 where tenant_id = $1 and id = $2 and $4::timestamptz is null"
        }
        "email.replied" => {
            "update sends set replied_at = $3 where tenant_id = $1 and id = $2 and $4::timestamptz is null"
        }
        _ => return,
    };
    let human = fact.human_hours_ago.map(ago);
    sqlx::query(sql).bind(tenant.id).bind(send).bind(ago(fact.hours_ago)).bind(human).execute(&rig.pool).await.unwrap();
}

async fn launched(rig: &Rig, tenant: &Tenant, list: Uuid) -> (Uuid, LaunchId) {
    let (campaign, launch) = (rig.campaign(tenant, list).await, LaunchId::fresh());
    sqlx::query("update campaigns set launch_prefix = $2, month = $3 where id = $1")
        .bind(campaign)
        .bind(launch.prefix())
        .bind(launch.month())
        .execute(&rig.pool)
        .await
        .unwrap();
    (campaign, launch)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_statement_selects_the_contacts_of_the_rule() {
    let rig = Rig::new().await;
    let (ours, theirs) = (tenant(&rig).await, tenant(&rig).await);
    let mut random = TestRunner::deterministic();
    let mut people: Vec<Person> = (0..PEOPLE).map(|_| person().new_tree(&mut random).unwrap().current()).collect();
    for (at, person) in people.iter_mut().enumerate() {
        let address = ADDRESSES.get(at).map_or_else(|| format!("p{at}@example.com"), |address| (*address).to_owned());
        person.values.insert("email", json!(address));
    }
    people.sort_by_key(|person| person.id);
    let mut audiences = Vec::new();
    for kind in ["list", "list", "tag"] {
        audiences.push(rig.audience(&ours, kind, &[]).await);
    }
    for person in &people {
        write(&rig, &ours, person).await;
        // Somebody else's contacts, with the same addresses and names, who are on nobody's lists.
        write(&rig, &theirs, &Person { id: new_id(), ..person.clone() }).await;
        for at in &person.audiences {
            sqlx::query("insert into audience_members (tenant_id, audience_id, contact_id) values ($1, $2, $3)")
                .bind(ours.id)
                .bind(audiences[*at])
                .bind(person.id)
                .execute(&rig.pool)
                .await
                .unwrap();
        }
    }
    let launches = [launched(&rig, &ours, audiences[0]).await, launched(&rig, &ours, audiences[0]).await];
    let campaigns = launches.map(|(campaign, _)| campaign);
    happen(&rig, &ours, &launches.map(|(_, launch)| launch), &people).await;
    let mut segments = Vec::new();
    for rule in [
        json!({"any": [{"field": "fields.plan", "op": "eq", "value": "pro"}, {"has_tag": audiences[2]}]}),
        json!({"not": {"event": "email.opened", "human_only": true}}),
    ] {
        segments.push((store(&rig, &ours, &rule).await, rule));
    }
    let nested = json!({"all": [{"in_segment": segments[0].0}, {"not": {"in_segment": segments[1].0}}]});
    segments.push((store(&rig, &ours, &nested).await, nested));

    let names = segments.iter().map(|(id, _)| *id).collect();
    let rules = rule(audiences[..2].to_vec(), audiences[2], campaigns.to_vec(), names);
    let (mut matching, mut selective) = (0, 0);
    for _ in 0..RULES {
        let rule = rules.new_tree(&mut random).unwrap().current();
        let world = World { now: Utc::now(), audiences: &audiences, campaigns: &campaigns, segments: &segments };
        let expected: Vec<Uuid> = people
            .iter()
            .filter(|person| person.active && world.holds(&rule, person))
            .map(|person| person.id)
            .collect();
        let found = select(&rig, &ours, &rule).await;
        let differing: Vec<&Person> = people
            .iter()
            .filter(|person| found.contains(&person.id) != expected.contains(&person.id))
            .take(2)
            .collect();
        assert!(found == expected, "{rule}\n{differing:?}");
        matching += usize::from(!expected.is_empty());
        selective += usize::from(!expected.is_empty() && expected.len() < PEOPLE / 2);
    }
    assert!(matching > RULES / 2 && selective > RULES / 5, "the rules tell contacts apart: {matching}, {selective}");
}
