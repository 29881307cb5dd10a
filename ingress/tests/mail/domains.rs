use ingress::api::domains::recheck;
use schemas::Environment;
use serde_json::{Value, json};
use stage_rig::dns::Dns;

use crate::{
    common::{Client, Edge, PRODUCT, settings},
    fixtures::domain,
};

/// Publishes a record as our API describes it.
fn publish(dns: &Dns, record: &Value) {
    let text = |field: &str| record[field].as_str().unwrap();
    dns.set(text("host"), &format!("{} {}", text("type"), text("value")));
}

/// An ingress that asks this DNS.
async fn asking(dns: &Dns) -> (Edge, Client) {
    let mut settings = settings();
    settings.outbound.dns_servers = vec![dns.addr];
    let edge = Edge::with(settings).await;
    let client = edge.client().await;
    (edge, client)
}

async fn claim(client: &Client, name: &str) -> Value {
    let answer = client.post("/v1/domains", json!({"domain": name})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

async fn verify(client: &Client, claimed: &Value) -> Value {
    let answer = client.post(&verify_path(claimed), json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body
}

fn verify_path(claimed: &Value) -> String {
    format!("/v1/domains/{}/verify", claimed["domain_id"].as_str().unwrap())
}

fn publish_all(dns: &Dns, claimed: &Value) {
    claimed["dns_records"].as_array().unwrap().iter().for_each(|record| publish(dns, record));
}

#[tokio::test]
async fn a_domain_is_claimed_once_with_a_key_of_its_own() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let first = claim(&client, "Mail.Acme.TEST.").await;
    assert_eq!((&first["status"], &first["already_existed"]), (&json!("pending"), &json!(false)));
    let records = first["dns_records"].as_array().unwrap();
    let record = |purpose: &str| records.iter().find(|record| record["purpose"] == purpose).unwrap().clone();
    assert_eq!(record("ownership")["host"], json!("_postrider.mail.acme.test"));
    assert_eq!(
        (record("return_path")["type"].clone(), record("return_path")["value"].clone()),
        (json!("CNAME"), json!("return.postrider.dev"))
    );
    assert!(record("dkim")["value"].as_str().unwrap().starts_with("v=DKIM1; k=rsa; p=MII"));
    assert!(records.iter().all(|record| record["status"] == "pending" && record["valid"] == json!(false)));
    let again = claim(&client, "mail.acme.test").await;
    assert_eq!((&again["dns_records"], &again["already_existed"]), (&first["dns_records"], &json!(true)));
    // The private key is stored sealed: no PKCS#8 header in the clear.
    assert_eq!(
        edge.count(r"select count(*) from domains where position('\x308204'::bytea in dkim_private) > 0").await,
        0
    );
}

#[tokio::test]
async fn claims_made_at_the_same_time_are_one_domain() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let claims = futures::future::join_all((0..4).map(|_| claim(&client, "acme.test"))).await;
    assert!(claims.iter().all(|claim| claim["dns_records"] == claims[0]["dns_records"]));
    assert_eq!(claims.iter().filter(|claim| claim["already_existed"] == json!(false)).count(), 1);
}

#[tokio::test]
async fn names_no_tenant_can_own_are_refused() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    for (name, status, code) in [
        ("gmail.com", 422, "freemail_domain_not_allowed"),
        ("x.postrider.dev", 422, "platform_domain_not_allowed"),
        ("co.uk", 400, "validation_failed"),
        ("localhost", 400, "validation_failed"),
        ("10.0.0.1", 400, "validation_failed"),
        ("", 400, "validation_failed"),
    ] {
        assert_eq!(client.post("/v1/domains", json!({"domain": name})).await.refusal(), (status, code), "{name}");
    }
    assert_eq!(client.post("/v1/domains", json!({})).await.faults(), [("domain".to_owned(), "required".to_owned())]);
}

#[tokio::test]
async fn a_domain_is_verified_when_the_required_records_stand() {
    let dns = Dns::start(&[]).await;
    let (_edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    let before = verify(&client, &claimed).await;
    assert_eq!(before["status"], json!("pending"));
    assert!(before["dns_records"].as_array().unwrap().iter().all(|record| record["status"] == "invalid"));
    for record in claimed["dns_records"].as_array().unwrap().iter().filter(|record| record["required"] == json!(true)) {
        publish(&dns, record);
    }
    let after = verify(&client, &claimed).await;
    assert_eq!(after["status"], json!("verified"));
    for record in after["dns_records"].as_array().unwrap() {
        assert_eq!(record["valid"], record["required"], "{record}");
        assert!(record["checked_at"].is_string());
    }
    let listed = client.get("/v1/domains").await.body["domains"][0].clone();
    assert_eq!((&listed["status"], &listed["records"]), (&json!("verified"), &after["dns_records"]));
    assert!(listed["verified_at"].is_string() && listed["last_checked_at"].is_string());
}

#[tokio::test]
async fn a_required_record_that_vanishes_degrades_and_a_silent_dns_changes_nothing() {
    let dns = Dns::start(&[]).await;
    let (_edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    publish_all(&dns, &claimed);
    assert_eq!(verify(&client, &claimed).await["status"], json!("verified"));
    dns.set("_postrider.acme.test", "SERVFAIL");
    let doubtful = verify(&client, &claimed).await;
    assert_eq!(doubtful["status"], json!("verified"));
    assert_eq!(doubtful["dns_records"][0]["status"], json!("undetermined"));
    dns.remove("_postrider.acme.test");
    assert_eq!(verify(&client, &claimed).await["status"], json!("degraded"));
    assert!(client.get("/v1/domains").await.body["domains"][0]["degraded_since"].is_string());
    publish_all(&dns, &claimed);
    assert_eq!(verify(&client, &claimed).await["status"], json!("verified"));
    assert_eq!(client.get("/v1/domains").await.body["domains"][0]["degraded_since"], Value::Null);
}

#[tokio::test]
async fn a_domain_is_looked_at_again_by_itself_and_fails_after_its_grace() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    publish_all(&dns, &claimed);
    let status = async || client.get("/v1/domains").await.body["domains"][0]["status"].clone();
    let due = async |more: &str| {
        let sql = format!("update domains set next_check_at = now(){more}");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&edge.pool).await.unwrap();
        recheck::sweep(&edge.ingress).await.unwrap()
    };
    assert_eq!(recheck::sweep(&edge.ingress).await.unwrap(), 0, "nothing is due yet");
    assert_eq!((due("").await, status().await), (1, json!("verified")), "nobody has to press verify");
    assert_eq!(recheck::sweep(&edge.ingress).await.unwrap(), 0, "the next look is tomorrow");
    dns.remove("_postrider.acme.test");
    assert_eq!((due("").await, status().await), (1, json!("degraded")));
    due(", degraded_since = now() - interval '71 hours'").await;
    assert_eq!(status().await, json!("degraded"));
    due(", degraded_since = now() - interval '73 hours'").await;
    assert_eq!(status().await, json!("failed"));
    let changes = "select count(*) from audit_log where action = 'domain.status_changed' and actor = 'recheck'";
    assert_eq!(edge.count(changes).await, 3);
}

#[tokio::test]
async fn an_older_look_at_the_dns_overwrites_no_newer_one() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    // The newer one is recorded while the older one waits for the domain.
    let mut newer = edge.pool.begin().await.unwrap();
    sqlx::query("select from domains for no key update").execute(&mut *newer).await.unwrap();
    let record_newer = async {
        edge.until_waiting(1).await;
        let verified =
            "update domains set status = 'verified', verified_at = now(), last_checked_at = clock_timestamp(),
                    records = jsonb_build_array(jsonb_build_object('checked_at', clock_timestamp()))";
        sqlx::query(verified).execute(&mut *newer).await.unwrap();
        newer.commit().await.unwrap();
    };
    let (older, ()) = tokio::join!(verify(&client, &claimed), record_newer);
    assert_eq!(older["status"], json!("verified"), "as the newer one found it");
    assert_eq!(client.get("/v1/domains").await.body["domains"][0]["status"], json!("verified"));
    assert_eq!(edge.count("select count(*) from audit_log where action = 'domain.status_changed'").await, 0);
    assert_eq!(verify(&client, &claimed).await["status"], json!("degraded"), "what is found now counts");
}

#[tokio::test]
async fn the_second_key_signs_only_while_its_record_stands() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    let records = claimed["dns_records"].as_array().unwrap();
    let second = records.iter().find(|record| record["host"] == "pr1e._domainkey.acme.test").unwrap();
    assert_eq!((&second["purpose"], &second["required"]), (&json!("dkim"), &json!(false)));
    assert!(second["value"].as_str().unwrap().starts_with("v=DKIM1; k=ed25519; p="));
    let signs = async || edge.count("select count(*) from domains where second_published").await;
    for record in records.iter().filter(|record| record["required"] == json!(true)) {
        publish(&dns, record);
    }
    assert_eq!((verify(&client, &claimed).await["status"].clone(), signs().await), (json!("verified"), 0));
    publish(&dns, second);
    verify(&client, &claimed).await;
    assert_eq!(signs().await, 1);
    dns.set("pr1e._domainkey.acme.test", "SERVFAIL");
    verify(&client, &claimed).await;
    assert_eq!(signs().await, 1, "a silent DNS changes nothing");
    dns.remove("pr1e._domainkey.acme.test");
    assert_eq!((verify(&client, &claimed).await["status"].clone(), signs().await), (json!("verified"), 0));
}

#[tokio::test]
async fn a_domain_is_looked_at_by_one_process_at_a_time() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    for name in ["a.test", "b.test", "c.test"] {
        claim(&client, name).await;
    }
    sqlx::query("update domains set next_check_at = now()").execute(&edge.pool).await.unwrap();
    let another = edge.another().await;
    let (mine, theirs) = tokio::join!(recheck::sweep(&edge.ingress), recheck::sweep(&another));
    assert_eq!(mine.unwrap() + theirs.unwrap(), 3);
}

/// So many claims, like the one that is there.
async fn more_claims(edge: &Edge, count: i32) {
    let sql = "insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token, next_check_at)
         select tenant_id, gen_random_uuid(), n || '.dead.test', selector, dkim_private, dkim_public, ownership_token,
                now() - interval '1 day'
         from domains, generate_series(1, $1) n";
    stage_rig::run!(&edge.pool, sql, [count]);
}

#[tokio::test]
async fn proven_domains_are_looked_at_before_claims() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    more_claims(&edge, 60).await;
    publish_all(&dns, &claimed);
    verify(&client, &claimed).await;
    let due = "update domains set next_check_at = now(), last_checked_at = null where status = 'verified'";
    sqlx::query(due).execute(&edge.pool).await.unwrap();
    recheck::sweep(&edge.ingress).await.unwrap();
    let checked = "select count(*) from domains where status = 'verified' and last_checked_at is not null";
    assert_eq!(edge.count(checked).await, 1);
    assert!(edge.count("select count(*) from domains where last_checked_at is null").await > 0, "more than one round");
}

#[tokio::test]
async fn a_tenant_has_a_hundred_claims_at_most() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    claim(&client, "acme.test").await;
    more_claims(&edge, 99).await;
    let one_more = async || client.post("/v1/domains", json!({"domain": "more.test"})).await;
    assert_eq!(one_more().await.refusal(), (409, "domain_limit_reached"));
    assert_eq!(claim(&client, "acme.test").await["already_existed"], json!(true));
    let proven = "update domains set status = 'verified' where domain = '1.dead.test'";
    sqlx::query(proven).execute(&edge.pool).await.unwrap();
    assert_eq!(one_more().await.status, 200);
}

#[tokio::test]
async fn a_tenant_has_a_thousand_domains_at_most() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    claim(&client, "acme.test").await;
    more_claims(&edge, 999).await;
    let proven = "update domains set status = 'verified' where domain like '%.dead.test'";
    sqlx::query(proven).execute(&edge.pool).await.unwrap();
    let one_more = async || client.post("/v1/domains", json!({"domain": "more.test"})).await;
    assert_eq!(one_more().await.refusal(), (409, "domain_limit_reached"));
    assert_eq!(claim(&client, "acme.test").await["already_existed"], json!(true));
    sqlx::query("delete from domains where domain = '1.dead.test'").execute(&edge.pool).await.unwrap();
    assert_eq!(one_more().await.status, 200);
}

#[tokio::test]
async fn a_sandbox_tenant_locks_nobody_out_of_a_name() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    for tenant in ["sandbox-1", "sandbox-2"] {
        let sandbox = edge.client_for(PRODUCT, Environment::Sandbox, tenant).await;
        let claimed = claim(&sandbox, "acme.test").await;
        assert_eq!(verify(&sandbox, &claimed).await["status"], json!("verified"));
    }
    let claimed = claim(&client, "acme.test").await;
    publish_all(&dns, &claimed);
    assert_eq!(verify(&client, &claimed).await["status"], json!("verified"));
}

#[tokio::test]
async fn a_sandbox_domain_is_never_looked_up() {
    let edge = Edge::start().await;
    let client = edge.client_for(PRODUCT, Environment::Sandbox, "sandbox-1").await;
    let claimed = claim(&client, "acme.test").await;
    assert_eq!(edge.count("select count(*) from domains where next_check_at is not null").await, 0);
    verify(&client, &claimed).await;
    assert_eq!(edge.count("select count(*) from domains where next_check_at is not null").await, 0);
}

#[tokio::test]
async fn a_pending_claim_does_not_lock_a_name_and_a_proven_one_does() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let other = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let (mine, theirs) = (claim(&client, "acme.test").await, claim(&other, "acme.test").await);
    assert_ne!(mine["dns_records"], theirs["dns_records"]);
    publish_all(&dns, &theirs);
    assert_eq!(verify(&other, &theirs).await["status"], json!("verified"));
    publish_all(&dns, &mine);
    let refused = client.post(&verify_path(&mine), json!({})).await;
    assert_eq!(refused.refusal(), (409, "domain_claimed_by_another_tenant"));
    let third = edge.client_for(PRODUCT, Environment::Production, "tenant-3").await;
    let refused = third.post("/v1/domains", json!({"domain": "acme.test"})).await;
    assert_eq!(refused.refusal(), (409, "domain_claimed_by_another_tenant"));
}

#[tokio::test]
async fn a_suspended_claim_locks_a_name_only_if_it_was_proven() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let other = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    let suspend = async |claimed: &Value| {
        sqlx::query("update domains set suspended_from = status, status = 'suspended' where id::text = $1")
            .bind(claimed["domain_id"].as_str().unwrap())
            .execute(&edge.pool)
            .await
            .unwrap();
    };
    suspend(&claim(&client, "acme.test").await).await;
    let theirs = claim(&other, "acme.test").await;
    publish_all(&dns, &theirs);
    assert_eq!(verify(&other, &theirs).await["status"], json!("verified"));
    suspend(&theirs).await;
    let third = edge.client_for(PRODUCT, Environment::Production, "tenant-3").await;
    for name in ["acme.test", "mail.acme.test"] {
        let refused = third.post("/v1/domains", json!({"domain": name})).await;
        assert_eq!(refused.refusal(), (409, "domain_claimed_by_another_tenant"), "{name}");
    }
}

#[tokio::test]
async fn the_sandbox_verifies_without_dns_unless_the_name_says_not() {
    let edge = Edge::start().await;
    let client = edge.client_for(PRODUCT, Environment::Sandbox, "sandbox-1").await;
    let claimed = claim(&client, "acme.test").await;
    let verified = verify(&client, &claimed).await;
    assert_eq!(verified["status"], json!("verified"));
    assert!(verified["dns_records"].as_array().unwrap().iter().all(|record| record["valid"] == json!(true)));
    let claimed = claim(&client, "unverified.acme.test").await;
    assert_eq!(verify(&client, &claimed).await["status"], json!("pending"));
}

#[tokio::test]
async fn a_domain_whose_key_cannot_be_opened_does_not_verify() {
    let edge = Edge::start().await;
    let client = edge.client_for(PRODUCT, Environment::Sandbox, "sandbox-1").await;
    let id = domain(&edge.pool, client.tenant, "acme.test", "pending").await;
    let answer = client.post(&format!("/v1/domains/{id}/verify"), json!({})).await;
    assert_eq!(answer.refusal(), (409, "domain_missing_provider_record"));
}

#[tokio::test]
async fn a_domain_whose_key_is_lost_fails_and_is_given_another() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    publish_all(&dns, &claimed);
    assert_eq!(verify(&client, &claimed).await["status"], json!("verified"));
    // As if sealed under a master key that is not set any more: its id is the beginning.
    let lose = "update domains set dkim_private = set_byte(dkim_private, 0, get_byte(dkim_private, 0) # 255),
                                   next_check_at = now()";
    sqlx::query(lose).execute(&edge.pool).await.unwrap();
    assert_eq!(recheck::sweep(&edge.ingress).await.unwrap(), 1);
    let shown = async || client.get("/v1/domains").await.body["domains"][0].clone();
    assert_eq!(shown().await["status"], json!("degraded"));
    assert!(claim(&client, "acme.test").await.to_string().contains("pr1._domainkey"), "its keys stay");
    let grace_is_over = "update domains set degraded_since = now() - interval '4 days', next_check_at = now()";
    sqlx::query(grace_is_over).execute(&edge.pool).await.unwrap();
    assert_eq!(recheck::sweep(&edge.ingress).await.unwrap(), 1);
    assert_eq!(shown().await["status"], json!("failed"));
    let changes = "select count(*) from audit_log where action = 'domain.status_changed' and actor = 'recheck'";
    assert_eq!(edge.count(changes).await, 2);
    assert_eq!(client.post(&verify_path(&claimed), json!({})).await.refusal(), (409, "domain_missing_provider_record"));

    let renewed = claim(&client, "acme.test").await;
    assert_eq!((&renewed["domain_id"], &renewed["already_existed"]), (&claimed["domain_id"], &json!(true)));
    let hosts: Vec<&Value> = renewed["dns_records"].as_array().unwrap().iter().map(|record| &record["host"]).collect();
    for host in ["pr2._domainkey.acme.test", "pr2e._domainkey.acme.test"] {
        assert!(hosts.contains(&&json!(host)), "{host}");
    }
    assert_eq!(claim(&client, "acme.test").await, renewed, "once");
    assert_eq!(verify(&client, &claimed).await["status"], json!("failed"), "the new key is not published");
    publish_all(&dns, &renewed);
    assert_eq!(verify(&client, &claimed).await["status"], json!("verified"));
}

#[tokio::test]
async fn verify_starts_the_checks_of_an_old_claim_again() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let claimed = claim(&client, "acme.test").await;
    let age = "update domains set created_at = now() - interval '40 days', checks_from = now() - interval '40 days',
                                  next_check_at = now()";
    sqlx::query(age).execute(&edge.pool).await.unwrap();
    assert_eq!(recheck::sweep(&edge.ingress).await.unwrap(), 1);
    assert_eq!(edge.count("select count(*) from domains where next_check_at is null").await, 1, "it is given up");
    assert_eq!(verify(&client, &claimed).await["status"], json!("pending"));
    publish_all(&dns, &claimed);
    let due = "update domains set next_check_at = now() where next_check_at is not null";
    sqlx::query(due).execute(&edge.pool).await.unwrap();
    assert_eq!(recheck::sweep(&edge.ingress).await.unwrap(), 1);
    assert_eq!(client.get("/v1/domains").await.body["domains"][0]["status"], json!("verified"));
}

#[tokio::test]
async fn a_fresh_check_is_answered_again_without_asking_the_dns() {
    let dns = Dns::start(&[]).await;
    let mut settings = settings();
    settings.outbound.dns_servers = vec![dns.addr];
    settings.rechecks.domain_check_fresh = std::time::Duration::from_secs(3_600);
    let edge = Edge::with(settings).await;
    let client = edge.client().await;
    let claimed = claim(&client, "acme.test").await;
    let first = verify(&client, &claimed).await;
    publish_all(&dns, &claimed);
    assert_eq!(verify(&client, &claimed).await, first, "as it was found, with its time");
    sqlx::query("update domains set last_checked_at = now() - interval '2 hours'").execute(&edge.pool).await.unwrap();
    assert_eq!(verify(&client, &claimed).await["status"], json!("verified"));
}

#[tokio::test]
async fn one_check_of_a_tenant_runs_at_a_time_and_the_others_hear_429() {
    // Nobody answers there: a check takes as long as it may.
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings();
    settings.outbound.dns_servers = vec![silent.local_addr().unwrap()];
    let edge = Edge::with(settings).await;
    let client = edge.client().await;
    let claimed = claim(&client, "acme.test").await;
    let path = verify_path(&claimed);
    let answers = futures::future::join_all((0..6).map(|_| client.post(&path, json!({})))).await;
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 429, 429, 429, 429, 429]);
    for answer in answers.iter().filter(|answer| answer.status == 429) {
        assert_eq!((answer.refusal(), answer.header("retry-after")), ((429, "rate_limit_exceeded"), "5"));
    }
}

#[tokio::test]
async fn others_are_served_on_the_only_connection_while_the_dns_is_asked() {
    let silent = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings();
    settings.outbound.dns_servers = vec![silent.local_addr().unwrap()];
    let edge = Edge::with_connections(settings, 1).await;
    let client = edge.client().await;
    let path = verify_path(&claim(&client, "acme.test").await);
    let other = async {
        silent.recv_from(&mut [0; 512]).await.unwrap();
        client.post("/v1/contacts", json!({"email": "ann@example.com"})).await
    };
    tokio::select! {
        biased;
        _ = client.post(&path, json!({})) => panic!("the check held the connection"),
        answer = other => assert_eq!(answer.status, 201, "{}", answer.body),
    }
}

#[tokio::test]
async fn a_name_below_another_tenants_proven_domain_is_refused() {
    let dns = Dns::start(&[]).await;
    let (edge, client) = asking(&dns).await;
    let other = edge.client_for(PRODUCT, Environment::Production, "tenant-2").await;
    // Claimed before the domain above it was proven: it can be claimed, and not be verified.
    let early = claim(&other, "early.acme.test").await;
    let sooner = claim(&other, "sooner.acme.test").await;
    publish_all(&dns, &sooner);
    assert_eq!(verify(&other, &sooner).await["status"], json!("verified"));
    let above = claim(&client, "acme.test").await;
    publish_all(&dns, &above);
    assert_eq!(verify(&client, &above).await["status"], json!("verified"));

    let refused = other.post("/v1/domains", json!({"domain": "deep.mail.acme.test"})).await;
    assert_eq!(refused.refusal(), (409, "domain_claimed_by_another_tenant"));
    publish_all(&dns, &early);
    let refused = other.post(&verify_path(&early), json!({})).await;
    assert_eq!(refused.refusal(), (409, "domain_claimed_by_another_tenant"));
    // One that was proven first stays so; the owner's own names below are free, and so are names beside.
    assert_eq!(verify(&other, &sooner).await["status"], json!("verified"));
    claim(&client, "mail.acme.test").await;
    claim(&other, "notacme.test").await;
}

#[tokio::test]
async fn a_domain_is_removed_unless_senders_refer_to_it_or_it_is_suspended() {
    let edge = Edge::start().await;
    let client = edge.client().await;
    let used = crate::fixtures::sender(&edge.pool, client.tenant, "used.test", "verified").await;
    let spare = domain(&edge.pool, client.tenant, "spare.test", "verified").await;
    let held = domain(&edge.pool, client.tenant, "held.test", "suspended").await;
    let used: uuid::Uuid = sqlx::query_scalar("select domain_id from senders where id = $1")
        .bind(used)
        .fetch_one(&edge.pool)
        .await
        .unwrap();
    sqlx::query("insert into domain_warmups (tenant_id, domain_id) values ($1, $2)")
        .bind(client.tenant)
        .bind(spare)
        .execute(&edge.pool)
        .await
        .unwrap();
    let remove = async |id: uuid::Uuid| client.delete(&format!("/v1/domains/{id}"), json!({})).await;
    assert_eq!(remove(used).await.refusal(), (409, "domain_in_use"));
    assert_eq!(remove(held).await.refusal(), (409, "domain_suspended"));
    assert_eq!(client.get(&format!("/v1/domains/{spare}")).await.body["domain"]["domain"], json!("spare.test"));
    assert_eq!(remove(spare).await.body["status"], json!("deleted"));
    assert_eq!(remove(spare).await.refusal(), (404, "domain_not_found"));
    assert_eq!(claim(&client, "spare.test").await["already_existed"], json!(false));
}
