//! What `dev` prints: addresses, keys, and commands that work when pasted.

use std::path::Path;

use super::Facts;

pub(super) fn print(facts: &Facts, data_dir: &Path, only_servers: bool) {
    let Facts { base_url, admin_url, nats_url, database_url, inbox_url, smtp_url, seeded, .. } = facts;
    let (key, tenant) = (&seeded.live_key, &seeded.product_tenant_id);
    println!("\nPostrider is ready.\n");
    if !only_servers {
        println!("  API        {base_url}");
        println!("  admin      {admin_url}/metrics");
    }
    if !inbox_url.is_empty() {
        println!("  inbox      {inbox_url}");
    }
    println!("  smtp       {smtp_url}");
    println!("  nats       {nats_url}");
    println!("  postgres   {database_url}");
    println!("  logs       {}", data_dir.display());
    println!("\n  product {}   environment {}   product_tenant_id {tenant}", seeded.product, seeded.environment);
    println!("  sender  {}   ({})", seeded.sender_id, seeded.domain);
    println!("  live key   {key}");
    println!("  test key   {}   (sandbox: nothing leaves)", seeded.test_key);
    if only_servers {
        println!("\nNo ingress and no stage is running: start them with the settings of --ready-file.");
    } else {
        println!("\nTry it (paste into another terminal):\n");
        println!("# 1. the first campaign: import three people, create, dry-run, launch");
        println!("{}", campaign(base_url, key, tenant, &seeded.sender_id));
        println!("# 2. one transactional message");
        println!("{}", transactional(base_url, key, tenant));
        println!("# 3. then look at the inbox: {inbox_url}");
    }
    println!("\nCtrl-C drains and stops everything.");
}

fn campaign(base_url: &str, key: &str, tenant: &str, sender: &str) -> String {
    format!(
        r#"cat > /tmp/first-campaign.sh <<'SCRIPT'
set -eu
call() {{ curl -sS --fail-with-body -X "$1" "{base_url}$2" -H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d "$3"; }}
field() {{ sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }}
call POST /v1/imports '{{"product_tenant_id":"{tenant}","name":"first","csv":"email,first_name,list\nann@example.com,Ann,friends\nbob@example.com,Bob,friends\nANN@example.com,Ann,friends\n"}}'; echo
list=$(curl -sS "{base_url}/v1/audiences?product_tenant_id={tenant}&limit=1" -H "Authorization: Bearer {key}" | field audience_id)
campaign=$(call POST /v1/campaigns "{{\"product_tenant_id\":\"{tenant}\",\"name\":\"Hello\",\"sender_profile_id\":\"{sender}\",\"audience_mode\":\"list\",\"list_id\":\"$list\",\"subject\":\"Hello {{{{ first_name | default: 'friend' }}}}\",\"body_html\":\"<h1>Hello {{{{ first_name }}}}</h1><p><a href=\\\"https://example.com/offer\\\">An offer</a></p><p><a href=\\\"{{{{ unsubscribe_url }}}}\\\">Unsubscribe</a></p>\"}}" | field campaign_id)
call POST "/v1/campaigns/$campaign/launch" '{{"product_tenant_id":"{tenant}","dry_run":true}}'; echo
call POST "/v1/campaigns/$campaign/launch" '{{"product_tenant_id":"{tenant}"}}'; echo
curl -sS "{base_url}/v1/campaigns/$campaign?product_tenant_id={tenant}" -H "Authorization: Bearer {key}"; echo
SCRIPT
bash /tmp/first-campaign.sh
"#
    )
}

fn transactional(base_url: &str, key: &str, tenant: &str) -> String {
    format!(
        r#"template=$(curl -sS -X POST {base_url}/v1/templates -H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d '{{"product_tenant_id":"{tenant}","name":"Receipt","template_type":"transactional","subject":"Your receipt","body_html":"<p>Thank you, {{{{ first_name }}}}.</p>"}}' | sed -n 's/.*"template_id":"\([^"]*\)".*/\1/p')
curl -sS -X POST {base_url}/v1/transactional -H "Authorization: Bearer {key}" -H "Content-Type: application/json" -d "{{\"product_tenant_id\":\"{tenant}\",\"template_id\":\"$template\",\"email\":\"carol@example.com\",\"first_name\":\"Carol\"}}"; echo
"#
    )
}
