//! What an approved assistant can ask, and that it is no more.

use std::collections::BTreeSet;

use rstest::rstest;
use schemas::Environment;
use serde_json::{Value, json};
use sqlx::Row;
use uuid::Uuid;

use crate::{
    common::{Edge, PRODUCT},
    pilot::{Pilot, list_tools},
};

const READS: [&str; 7] = [
    "list_campaigns",
    "audience_counts",
    "campaign_performance",
    "campaign_readiness",
    "deliverability",
    "suppression_summary",
    "reply_outcomes",
];
/// Stands wherever an address could leak from.
const SECRET: &str = "secret-person@private.example";

async fn run(edge: &Edge, tenant: Uuid, statements: &'static [&'static str]) {
    for statement in statements {
        sqlx::query(*statement)
            .bind(tenant)
            .execute(&edge.pool)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

/// A workspace with people, a draft and a launched campaign, and an address in every text a customer can write.
async fn furnish(edge: &Edge, tenant: Uuid, people: i32) -> (Uuid, Uuid) {
    run(
        edge,
        tenant,
        &[
            "insert into domains (tenant_id, id, domain, status, selector, dkim_private, dkim_public, ownership_token)
             values ($1, gen_random_uuid(), 'd' || left($1::text, 8) || '.example', 'verified', 's', '', '', 't')",
            "insert into senders (tenant_id, id, domain_id, email, name, physical_address)
             select $1, gen_random_uuid(), id, 'secret-person@private.example', 'secret-person@private.example', 'Street 1'
             from domains where tenant_id = $1",
            "insert into contents (tenant_id, id, kind, subject, body_html)
             values ($1, gen_random_uuid(), 'marketing', 'To secret-person@private.example', '<p>secret-person@private.example</p>')",
            "insert into audiences (tenant_id, id, kind, name) values ($1, gen_random_uuid(), 'list', 'secret-person@private.example')",
        ],
    )
    .await;
    let sql = "insert into contacts (tenant_id, id, address)
         select $1, gen_random_uuid(), case n when 1 then $3 else 'person-' || n || '@private.example' end
         from generate_series(1, $2) n";
    stage_rig::run!(&edge.pool, sql, [tenant, people, SECRET]);
    run(
        edge,
        tenant,
        &[
            "insert into audience_members (tenant_id, audience_id, contact_id)
             select $1, a.id, c.id from audiences a, contacts c where a.tenant_id = $1 and c.tenant_id = $1",
            "insert into suppressions (tenant_id, id, address, reason, scope, source, note)
             select $1, gen_random_uuid(), address, 'complaint', 'all', 'api', 'secret-person@private.example'
             from contacts where tenant_id = $1 order by address limit 7",
            "insert into campaigns (tenant_id, id, product, environment, name, sender_profile_id, content_id, audience_mode, list_id,
                                    message_purpose, classification, status, subject, body_html, audience_reason)
             select $1, gen_random_uuid(), 'crm', 'production', 'For secret-person@private.example', s.id, c.id, 'list', a.id,
                    'newsletter', 'marketing', 'draft', 'To secret-person@private.example', 'x', 'secret-person@private.example'
             from senders s, contents c, audiences a where s.tenant_id = $1 and c.tenant_id = $1 and a.tenant_id = $1",
            "insert into campaigns (tenant_id, id, product, environment, name, sender_profile_id, content_id, audience_mode, list_id,
                                    message_purpose, classification, status, launched_at, materialized_at)
             select $1, gen_random_uuid(), 'crm', 'production', 'Launched', s.id, c.id, 'list', a.id, 'newsletter', 'marketing',
                    'sent', now(), now()
             from senders s, contents c, audiences a where s.tenant_id = $1 and c.tenant_id = $1 and a.tenant_id = $1",
            "insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, state, size,
                                  sent, failed, skipped, delivered, opened, clicked, bounced, complained)
             select $1, gen_random_uuid(), date_trunc('month', now()), 'campaign', 'bulk', 'marketing', id, content_id,
                    sender_profile_id, 'done', 110, 100, 3, 7, 98, 50, 20, 3, 6
             from campaigns where tenant_id = $1 and status = 'sent'",
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now()), 'campaign', e, 0, n
             from (values ('sent', 100), ('delivered', 90), ('bounced', 6), ('complained', 2)) as v (e, n)",
        ],
    )
    .await;
    let id = |status: &'static str| {
        sqlx::query_scalar::<_, Uuid>("select id from campaigns where tenant_id = $1 and status = $2")
            .bind(tenant)
            .bind(status)
            .fetch_one(&edge.pool)
    };
    (id("draft").await.unwrap(), id("sent").await.unwrap())
}

#[tokio::test]
async fn the_tools_are_these_and_no_others() {
    for (pilot, expected) in [
        (Pilot::start().await, READS.to_vec()),
        (Pilot::drafting().await, [READS.as_slice(), &["save_draft_proposal"]].concat()),
    ] {
        let answer = pilot.post(&pilot.token(), &list_tools()).await;
        let tools = answer.body["result"]["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected);
        for tool in tools {
            assert_eq!(tool["inputSchema"]["additionalProperties"], json!(false), "{tool}");
            assert_eq!(tool["annotations"]["readOnlyHint"], json!(tool["name"] != "save_draft_proposal"));
            assert_eq!(tool["annotations"]["destructiveHint"], json!(false));
        }
    }
}

#[tokio::test]
async fn the_protocol_is_spoken_and_nothing_but_tools_is_there() {
    let pilot = Pilot::start().await;
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"},
    }});
    let answer = pilot.post(&pilot.token(), &initialize).await;
    let result = &answer.body["result"];
    assert_eq!((answer.status.as_u16(), &result["protocolVersion"]), (200, &json!("2025-06-18")), "{}", answer.body);
    let capabilities: BTreeSet<&String> = result["capabilities"].as_object().unwrap().keys().collect();
    assert_eq!(capabilities.into_iter().collect::<Vec<_>>(), ["tools"]);
    assert_eq!(result["serverInfo"]["name"], json!("postrider"));
    assert_eq!(answer.header("cache-control"), "no-store");
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(pilot.post(&pilot.token(), &initialized).await.status, 202);
    for (method, params) in [
        ("resources/read", json!({"uri": "file:///etc/passwd"})),
        ("resources/subscribe", json!({"uri": "x://y"})),
        ("prompts/get", json!({"name": "x"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": "b"}}),
        ),
        ("tasks/get", json!({"taskId": "x"})),
        ("campaigns/launch", json!({})),
    ] {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer = pilot.post(&pilot.token(), &message).await;
        let empty = answer.body["result"]["completion"]["values"] == json!([]);
        assert!(answer.body["error"].is_object() || empty, "{method}: {}", answer.body);
    }
    for (method, list) in [
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
        ("prompts/list", "prompts"),
    ] {
        let answer = pilot.post(&pilot.token(), &json!({"jsonrpc": "2.0", "id": 1, "method": method})).await;
        assert_eq!(answer.body["result"][list], json!([]), "{method}");
    }
    assert_eq!(pilot.call("send_campaign", json!({})).await, Err("unknown tool".to_owned()));
}

#[tokio::test]
async fn no_answer_carries_an_address_or_a_contact() {
    let pilot = Pilot::drafting().await;
    let (draft, launched) = furnish(&pilot.edge, pilot.tenant, 40).await;
    let contacts: Vec<Uuid> = sqlx::query_scalar("select id from contacts").fetch_all(&pilot.edge.pool).await.unwrap();
    let mut answers = Vec::new();
    for tool in READS {
        for arguments in
            [json!({}), json!({"campaign_id": draft}), json!({"campaign_id": launched}), json!({"status": "draft"})]
        {
            if let Ok(answer) = pilot.call(tool, arguments.clone()).await {
                answers.push((tool, answer));
            }
        }
    }
    answers.push(("save_draft_proposal", pilot.call("save_draft_proposal", json!({"title": "x"})).await.unwrap()));
    let asked: BTreeSet<&str> = answers.iter().map(|(tool, _)| *tool).collect();
    assert_eq!(asked.len(), READS.len() + 1, "every tool has answered: {asked:?}");
    for (tool, answer) in answers {
        let text = answer.to_string();
        assert!(!text.contains('@') && !text.contains("secret-person"), "{tool}: {text}");
        assert!(contacts.iter().all(|id| !text.contains(&id.to_string())), "{tool}: {text}");
        assert!(text.len() < 32 * 1024, "{tool}");
    }
}

#[tokio::test]
async fn the_tools_answer_what_stands_in_the_ledger() {
    let pilot = Pilot::start().await;
    let (draft, launched) = furnish(&pilot.edge, pilot.tenant, 40).await;
    let campaigns = pilot.call("list_campaigns", json!({})).await.unwrap();
    let names: BTreeSet<&str> =
        campaigns["campaigns"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["For [address]", "Launched"]);
    let page = pilot.call("list_campaigns", json!({"limit": 1})).await.unwrap();
    let first = page["campaigns"][0]["campaign_id"].clone();
    let next = pilot.call("list_campaigns", json!({"limit": 1, "before": first})).await.unwrap();
    assert_ne!(next["campaigns"][0]["campaign_id"], first);

    let counts = pilot.call("audience_counts", json!({"campaign_id": draft})).await.unwrap();
    assert_eq!(
        (&counts["total"], &counts["would_be_mailed"], &counts["left_out"]),
        (&json!(40), &json!(33), &json!({"complained": 7}))
    );
    let counts = pilot.call("audience_counts", json!({"campaign_id": launched})).await.unwrap();
    assert_eq!(counts["total"], json!(110));

    let performance = pilot.call("campaign_performance", json!({"campaign_id": launched})).await.unwrap();
    let facts = &performance["facts"];
    assert_eq!(facts["opened"], json!({"count": 50, "rate": 0.5}));
    assert_eq!(facts["bounced"], json!({"count": "<5", "rate": null}), "3 of them");
    assert_eq!(facts["delivered"], json!({"count": "withheld", "rate": null}), "98 of 100: the rest is 2");
    assert_eq!(performance["states"]["failed"], json!("<5"));

    let readiness = pilot.call("campaign_readiness", json!({"campaign_id": draft})).await.unwrap();
    assert_eq!(readiness["ready_to_launch"], json!(true), "{readiness}");
    let readiness = pilot.call("campaign_readiness", json!({"campaign_id": launched})).await.unwrap();
    assert_eq!(readiness["ready_to_launch"], json!(false));

    let delivery = pilot.call("deliverability", json!({"days": 7})).await.unwrap();
    assert_eq!((&delivery["counts"]["sent"], &delivery["counts"]["complained"]), (&json!(100), &json!("<5")));
    assert_eq!(delivery["rates"], json!({"bounced": 0.06, "complained": null, "unsubscribed": null}));
    assert_eq!(delivery["domains"][0]["status"], json!("verified"));
    assert!(delivery["counts"].get("deferred").is_none(), "no total counts it");

    let suppressed = pilot.call("suppression_summary", json!({})).await.unwrap();
    assert_eq!(suppressed, json!({"total": 7, "groups": [{"reason": "complaint", "count": 7}]}));
    let replies = pilot.call("reply_outcomes", json!({})).await.unwrap();
    assert_eq!((&replies["replies"], replies["note"].is_string()), (&Value::Null, true));
    sqlx::query("insert into rollups (tenant_id, hour, kind, event, shard, count) values ($1, date_trunc('hour', now()), 'campaign', 'replied', 0, 6)")
        .bind(pilot.tenant)
        .execute(&pilot.edge.pool)
        .await
        .unwrap();
    assert_eq!(pilot.call("reply_outcomes", json!({})).await.unwrap()["by_kind"], json!({"campaign": 6}));
}

#[tokio::test]
async fn a_campaigns_states_are_those_of_its_report() {
    let pilot = Pilot::start().await;
    let (_, launched) = furnish(&pilot.edge, pilot.tenant, 40).await;
    const ALL: &str = "update batches set size = 130, sent = 80, failed = 10, expired = 15, skipped = 7, cancelled = 18 where tenant_id = $1";
    run(&pilot.edge, pilot.tenant, &[ALL]).await;
    let performance = pilot.call("campaign_performance", json!({"campaign_id": launched})).await.unwrap();
    let states = json!({"sent": 80, "failed": 25, "unknown": "<5", "skipped": 25, "open": "<5"});
    assert_eq!(performance["states"], states);
}

#[tokio::test]
async fn bounces_are_rated_of_those_sent_and_those_refused() {
    let pilot = Pilot::start().await;
    let (_, launched) = furnish(&pilot.edge, pilot.tenant, 40).await;
    run(
        &pilot.edge,
        pilot.tenant,
        &[
            // What expired never left.
            "update batches set size = 1010, sent = 10, failed = 100, expired = 900, skipped = 0, bounced = 100 where tenant_id = $1",
            // Beside 100 sent and 6 bounced.
            "insert into rollups (tenant_id, hour, kind, event, shard, count)
             select $1, date_trunc('hour', now()), 'transactional', e, 0, n from (values ('failed', 1000), ('bounced', 144)) as v (e, n)",
        ],
    )
    .await;
    let performance = pilot.call("campaign_performance", json!({"campaign_id": launched})).await.unwrap();
    assert_eq!(performance["facts"]["bounced"], json!({"count": 100, "rate": 0.9091}), "100 of 110");
    let delivery = pilot.call("deliverability", json!({"days": 7})).await.unwrap();
    assert_eq!((&delivery["counts"]["bounced"], &delivery["rates"]["bounced"]), (&json!(150), &json!(0.6)));
}

#[tokio::test]
async fn suppressions_are_summed_from_counters() {
    let pilot = Pilot::start().await;
    run(
        &pilot.edge,
        pilot.tenant,
        &[
            "insert into suppression_totals (tenant_id, reason, count) values ($1, 'unsubscribe', 1000)",
            "insert into suppressions (tenant_id, id, address, reason, scope, source, expires_at)
             select $1, gen_random_uuid(), n || '@example.com', 'invalid', 'marketing', 'delivery',
                    case when n > 6 then now() - interval '1 day' end
             from generate_series(1, 9) n",
        ],
    )
    .await;
    let summary = pilot.call("suppression_summary", json!({})).await.unwrap();
    let groups = json!([{"reason": "invalid", "count": 6}, {"reason": "unsubscribe", "count": 1000}]);
    assert_eq!(summary, json!({"total": 1006, "groups": groups}), "without those that have expired");
}

#[tokio::test]
async fn a_campaign_whose_launch_is_worked_on_is_in_preflight() {
    let pilot = Pilot::start().await;
    let (draft, _) = furnish(&pilot.edge, pilot.tenant, 40).await;
    let mut launch = pilot.edge.pool.begin().await.unwrap();
    sqlx::query("select begin_preflight($1, $2)").bind(pilot.tenant).bind(draft).execute(&mut *launch).await.unwrap();
    let listed = pilot.call("list_campaigns", json!({"status": "preflight"})).await.unwrap();
    assert_eq!(
        (&listed["campaigns"][0]["campaign_id"], &listed["campaigns"][0]["status"]),
        (&json!(draft), &json!("preflight"))
    );
    assert_eq!(pilot.call("list_campaigns", json!({"status": "draft"})).await.unwrap(), json!({"campaigns": []}));
    let readiness = pilot.call("campaign_readiness", json!({"campaign_id": draft})).await.unwrap();
    assert_eq!((&readiness["status"], &readiness["ready_to_launch"]), (&json!("preflight"), &json!(false)));
    launch.rollback().await.unwrap();
}

#[rstest]
#[case::window(
    "window_is_open",
    "update campaigns set not_after = now() - interval '1 minute', on_miss = 'hold' where tenant_id = $1"
)]
#[case::empty("audience_has_someone_to_mail", "delete from audience_members where tenant_id = $1")]
#[case::suppressed(
    "audience_has_someone_to_mail",
    "insert into suppressions (tenant_id, id, address, reason, scope, source)
     select tenant_id, gen_random_uuid(), address, 'manual', 'all', 'api' from contacts where tenant_id = $1"
)]
#[case::quota("send_quota_suffices", "insert into send_limits (tenant_id, monthly) values ($1, 5)")]
#[case::template(
    "template_is_not_archived",
    "with archived as (
         insert into templates (tenant_id, id, name, template_type, status, version, content_id)
         select tenant_id, gen_random_uuid(), 'Old', 'marketing', 'archived', 1, id from contents where tenant_id = $1
         returning id, content_id
     )
     insert into campaign_variants (tenant_id, campaign_id, variant, name, weight, template_id, content_id)
     select $1, c.id, 'B', 'Other', 1, a.id, a.content_id from archived a, campaigns c where c.tenant_id = $1 and c.status = 'draft'"
)]
#[tokio::test]
async fn what_a_launch_would_refuse_is_not_ready(#[case] name: &str, #[case] change: &'static str) {
    let pilot = Pilot::start().await;
    let (draft, _) = furnish(&pilot.edge, pilot.tenant, 40).await;
    sqlx::query(change).bind(pilot.tenant).execute(&pilot.edge.pool).await.unwrap();
    let readiness = pilot.call("campaign_readiness", json!({"campaign_id": draft})).await.unwrap();
    let missing: Vec<&Value> =
        readiness["checks"].as_array().unwrap().iter().filter(|check| check["ready"] == json!(false)).collect();
    assert_eq!(missing, [&json!({"check": name, "ready": false})]);
    assert_eq!(readiness["ready_to_launch"], json!(false));
}

#[tokio::test]
async fn a_workspace_of_few_tells_nothing() {
    let pilot = Pilot::start().await;
    let (draft, _) = furnish(&pilot.edge, pilot.tenant, 4).await;
    let counts = pilot.call("audience_counts", json!({"campaign_id": draft})).await.unwrap();
    assert_eq!(counts["total"], json!("<5"));
    assert!(
        !counts["would_be_mailed"].is_number() && !counts["left_out"].to_string().contains(char::is_numeric)
            || counts["left_out"] == json!({"complained": "<5"})
    );
    assert_eq!(pilot.call("suppression_summary", json!({})).await.unwrap()["total"], json!("<5"));
}

#[tokio::test]
async fn what_is_hidden_follows_from_no_other_answer() {
    let pilot = Pilot::start().await;
    let (_, launched) = furnish(&pilot.edge, pilot.tenant, 40).await;
    // Of 62, two failed: with 40 shown, the 20 that were sent would say so.
    const FEW: &str =
        "update batches set size = 62, sent = 20, failed = 2, skipped = 40, delivered = 20, opened = 10, clicked = 5
               where tenant_id = $1";
    run(&pilot.edge, pilot.tenant, &[FEW]).await;
    let performance = pilot.call("campaign_performance", json!({"campaign_id": launched})).await.unwrap();
    assert_eq!((&performance["total"], &performance["states"]["sent"]), (&json!(62), &json!("withheld")));
    for fact in ["delivered", "opened"] {
        assert_eq!(performance["facts"][fact], json!({"count": "withheld", "rate": null}));
    }
    let counts = pilot.call("audience_counts", json!({"campaign_id": launched})).await.unwrap();
    assert_eq!(counts["counts"], performance["states"]);
    // Of 50 opens, three were of machines.
    const MACHINES: &str =
        "update batches set size = 110, sent = 100, failed = 0, skipped = 10, delivered = 100, opened = 50, opened_human = 47,
                                               clicked = 20, clicked_human = 20 where tenant_id = $1";
    run(&pilot.edge, pilot.tenant, &[MACHINES]).await;
    let facts = pilot.call("campaign_performance", json!({"campaign_id": launched})).await.unwrap()["facts"].clone();
    assert_eq!(facts["opened"], json!({"count": 50, "rate": 0.5}));
    assert_eq!(facts["opened_human"], json!({"count": "withheld", "rate": null}));
    assert_eq!(facts["clicked_human"], json!({"count": 20, "rate": 0.2}));
    // Of 93 delivered, three are not confirmed.
    const CONFIRMED: &str = "update batches set delivered = 93, confirmed = 90 where tenant_id = $1";
    run(&pilot.edge, pilot.tenant, &[CONFIRMED]).await;
    let facts = pilot.call("campaign_performance", json!({"campaign_id": launched})).await.unwrap()["facts"].clone();
    assert_eq!(facts["delivered"], json!({"count": 93, "rate": 0.93}));
    assert_eq!(facts["delivered_confirmed"], json!({"count": "withheld", "rate": null}));
}

#[tokio::test]
async fn a_period_begins_with_a_whole_day() {
    let pilot = Pilot::start().await;
    const MORNING: &str = "insert into rollups (tenant_id, hour, kind, event, shard, count)
                           values ($1, date_trunc('day', now(), 'UTC') - interval '7 days', 'campaign', 'sent', 0, 9),
                                  ($1, date_trunc('day', now(), 'UTC') - interval '7 days 1 hour', 'campaign', 'sent', 0, 20)";
    run(&pilot.edge, pilot.tenant, &[MORNING]).await;
    for (days, sent) in [(7, 9), (30, 29)] {
        let answer = pilot.call("deliverability", json!({"days": days})).await.unwrap();
        assert_eq!(answer["counts"]["sent"], json!(sent), "{days}");
    }
}

#[tokio::test]
async fn another_workspace_is_out_of_reach() {
    let pilot = Pilot::start().await;
    let other = pilot.edge.link(PRODUCT, Environment::Production, "tenant-2").await;
    let (draft, launched) = furnish(&pilot.edge, other, 40).await;
    for tool in ["audience_counts", "campaign_performance", "campaign_readiness"] {
        for campaign in [draft, launched] {
            assert_eq!(
                pilot.call(tool, json!({"campaign_id": campaign})).await,
                Err("campaign_not_found".to_owned()),
                "{tool}"
            );
        }
    }
    assert_eq!(pilot.call("list_campaigns", json!({})).await.unwrap(), json!({"campaigns": []}));
    assert_eq!(pilot.call("list_campaigns", json!({"before": draft})).await.unwrap(), json!({"campaigns": []}));
    assert_eq!(pilot.call("suppression_summary", json!({})).await.unwrap()["groups"], json!([]));
    assert_eq!(pilot.call("deliverability", json!({})).await.unwrap()["domains"], json!([]));
    // There is no argument to name another one with.
    for arguments in
        [json!({"tenant_id": other}), json!({"workspace": other}), json!({"product_tenant_id": "tenant-2"})]
    {
        assert_eq!(pilot.call("list_campaigns", arguments).await, Err("invalid_arguments".to_owned()));
    }
}

#[rstest]
#[case("list_campaigns", json!({"limit": 26}))]
#[case("list_campaigns", json!({"limit": 0}))]
#[case("list_campaigns", json!({"status": "gone"}))]
#[case("list_campaigns", json!({"q": "ann@example.com"}))]
#[case("campaign_performance", json!({}))]
#[case("campaign_performance", json!({"campaign_id": "x"}))]
#[case("campaign_performance", json!({"campaign_id": "00000000000000000000000000000000"}))]
#[case("deliverability", json!({"days": 91}))]
#[case("deliverability", json!({"days": 8}))]
#[case("reply_outcomes", json!({"days": 29}))]
#[case("suppression_summary", json!({"email": "ann@example.com"}))]
#[case("save_draft_proposal", json!({}))]
#[case("save_draft_proposal", json!({"title": " "}))]
#[case("save_draft_proposal", json!({"title": "x", "body": "a\u{0}b"}))]
#[case("save_draft_proposal", json!({"title": "x", "campaign_id": "x"}))]
#[tokio::test]
async fn arguments_that_are_not_a_tools_are_refused(#[case] tool: &str, #[case] arguments: Value) {
    let pilot = Pilot::drafting().await;
    assert_eq!(pilot.call(tool, arguments).await, Err("invalid_arguments".to_owned()));
}

#[rstest]
#[case("deliverability", json!({"days": "7"}), "days: must be a whole number")]
#[case("list_campaigns", json!({"limit": [1]}), "limit: must be a whole number")]
#[tokio::test]
async fn an_argument_of_another_type_is_named(#[case] tool: &str, #[case] arguments: Value, #[case] detail: &str) {
    let pilot = Pilot::start().await;
    let message =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let answer = pilot.post(&pilot.token(), &message).await;
    assert_eq!(answer.body["result"]["structuredContent"]["detail"], json!(detail), "{}", answer.body);
}

#[rstest]
#[case::no_name(json!({"arguments": {}}))]
#[case::a_list(json!({"name": "list_campaigns", "arguments": []}))]
#[tokio::test]
async fn a_call_that_cannot_be_read_has_invalid_parameters(#[case] params: Value) {
    let pilot = Pilot::start().await;
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let answer = pilot.post(&pilot.token(), &message).await;
    assert_eq!(answer.body["error"]["code"], json!(-32602), "{}", answer.body);
}

#[tokio::test]
async fn a_draft_proposal_needs_its_own_consent_and_is_only_a_row_to_read() {
    let pilot = Pilot::start().await;
    let proposal = json!({"title": "Spring", "subject": "Hello", "body": "Text\nmore", "audience": "our readers"});
    assert_eq!(pilot.call("save_draft_proposal", proposal.clone()).await, Err("consent_missing".to_owned()));
    assert_eq!(pilot.edge.count("select count(*) from draft_proposals").await, 0);

    let pilot = Pilot::drafting().await;
    let saved = pilot.call("save_draft_proposal", proposal.clone()).await.unwrap();
    assert_eq!(saved["status"], json!("open"));
    let row = sqlx::query("select tenant_id, approval_id, title, subject, body from draft_proposals")
        .fetch_one(&pilot.edge.pool)
        .await
        .unwrap();
    assert_eq!((row.get::<Uuid, _>(0), row.get::<Uuid, _>(1)), (pilot.tenant, pilot.approval));
    assert_eq!((row.get::<&str, _>(2), row.get::<&str, _>(4)), ("Spring", "Text\nmore"));
    for table in ["campaigns", "templates", "contents", "requests", "batches", "sends"] {
        let sql = format!("select count(*) from {table}");
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&pilot.edge.pool).await.unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    // The user's own consent counts as much as the operator's.
    let token = pilot.key.sign(&pilot.claims(json!({"scope": "mail:read"})));
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "save_draft_proposal", "arguments": proposal}});
    let answer = pilot.post(&token, &message).await;
    assert_eq!(answer.body["result"]["structuredContent"]["error"], json!("consent_missing"), "{}", answer.body);
    assert_eq!(pilot.edge.count("select count(*) from draft_proposals").await, 1);
}

#[tokio::test]
async fn proposals_that_nobody_reads_come_to_an_end() {
    let pilot = Pilot::with(1_000, true).await;
    sqlx::query(
        "insert into draft_proposals (tenant_id, id, approval_id, title)
         select $1, gen_random_uuid(), $2, 'x' from generate_series(1, 100)",
    )
    .bind(pilot.tenant)
    .bind(pilot.approval)
    .execute(&pilot.edge.pool)
    .await
    .unwrap();
    let refused = pilot.call("save_draft_proposal", json!({"title": "x"})).await;
    assert_eq!(refused, Err("too_many_open_proposals".to_owned()));
}

#[tokio::test]
async fn every_call_is_audited_with_ids_only() {
    let pilot = Pilot::drafting().await;
    let _ = pilot.call("list_campaigns", json!({})).await;
    let _ = pilot.call("campaign_performance", json!({"campaign_id": schemas::new_id()})).await;
    let _ = pilot.call("suppression_summary", json!({"email": SECRET})).await;
    let saved = pilot.call("save_draft_proposal", json!({"title": SECRET, "notes": SECRET})).await.unwrap();
    let rows = sqlx::query("select action, subject, detail, actor, tenant_id from audit_log order by id")
        .fetch_all(&pilot.edge.pool)
        .await
        .unwrap();
    let seen: Vec<(String, String)> =
        rows.iter().map(|row| (row.get(0), row.get::<Value, _>(2)["outcome"].as_str().unwrap().to_owned())).collect();
    let expected = [
        ("assistant.list_campaigns", "answered"),
        ("assistant.campaign_performance", "campaign_not_found"),
        ("assistant.suppression_summary", "invalid_arguments"),
        ("assistant.save_draft_proposal", "answered"),
    ];
    assert_eq!(seen, expected.map(|(action, outcome)| (action.to_owned(), outcome.to_owned())));
    assert_eq!(rows[3].get::<&str, _>(1), saved["proposal_id"].as_str().unwrap());
    for row in &rows {
        assert_eq!(row.get::<&str, _>(3), format!("assistant:{}", pilot.approval));
        assert_eq!(row.get::<Uuid, _>(4), pilot.tenant);
        assert!(!row.get::<Value, _>(2).to_string().contains("secret"));
    }
}

#[tokio::test]
async fn the_database_itself_keeps_the_ingress_from_reading_proposals() {
    let pilot = Pilot::drafting().await;
    pilot.call("save_draft_proposal", json!({"title": "x"})).await.unwrap();
    let mut tx = runtime::db::begin_for_tenant(&pilot.edge.ingress.pool, pilot.tenant).await.unwrap();
    let read = sqlx::query("select title from draft_proposals").fetch_all(&mut *tx).await;
    assert!(read.unwrap_err().to_string().contains("permission denied"));
    let mut tx = runtime::db::begin_for_tenant(&pilot.edge.ingress.pool, pilot.tenant).await.unwrap();
    let approved = sqlx::query("update assistant_approvals set may_draft = true").execute(&mut *tx).await;
    assert!(approved.unwrap_err().to_string().contains("permission denied"));
}
