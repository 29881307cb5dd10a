//! `/v1/domains`: a tenant sends from domains it owns and has proven, and from nothing else.

mod check;
pub mod recheck;
pub(crate) mod records;
pub(crate) mod store;

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use dkim::{DkimKey, GeneratedKey, KeyError};
use domains::DomainSettings;
use schemars::JsonSchema;
use schemas::{DomainStatus, Environment, address::canonical_domain, freemail};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::{records::RecordView, store::DomainRow};
use super::references;
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, NoParameters, RequestContext, Routes,
    error::ApiError,
    page::{OptionalTime, Time},
    read, read_page, resource, status_answer, tenant, write, write_with_work,
};

/// The vault's purpose for private DKIM keys.
const DKIM_PURPOSE: &str = "dkim";
/// The selector of a domain's first key. Another key gets another selector, so that old mail still verifies.
const FIRST_SELECTOR: &str = "pr1";
/// The selector of its Ed25519 key.
const SECOND_SELECTOR: &str = "pr1e";
/// Domains of a tenant that wait for their proof: each is looked up in the DNS again and again.
const PENDING_MAX: i64 = 100;
/// All domains of a tenant, proven ones too.
const DOMAINS_MAX: i64 = 1_000;
/// Randomness in an ownership token, in bytes.
const TOKEN_BYTES: usize = 24;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/domains",
            read_page("domains:manage", list),
            Doc::new("listDomains", "List sending domains", "Newest first, with what the last check found.")
                .page::<DomainView>("A page of domains"),
        )
        .post(
            "/v1/domains",
            write_with_work("domains:manage", create),
            Doc::new(
                "createDomain",
                "Claim a sending domain",
                "The answer has the DNS records to publish. Idempotent: a domain that exists is answered with its \
                 current records. If its private key is lost and it is pending or failed, it gets new keys, and its \
                 DKIM records are new. A name that another tenant has verified is refused, and so is every name below \
                 it. A tenant has at most 1,000 domains, and at most 100 of them pending.",
            )
            .example(json!({"domain": "acme.example"}))
            .answer::<DomainCreated>(200, "Claimed")
            .leads_to("domain_id", &["getDomain", "verifyDomain", "deleteDomain"])
            .refuses(409, &["domain_claimed_by_another_tenant", "domain_limit_reached"])
            .refuses(422, &["platform_domain_not_allowed", "freemail_domain_not_allowed"]),
        )
        .get(
            "/v1/domains/{id}",
            read("domains:manage", one),
            Doc::new("getDomain", "Read a sending domain", "With what the last check found.")
                .single::<DomainView>("The domain"),
        )
        .delete(
            "/v1/domains/{id}",
            write("domains:manage", remove),
            Doc::new(
                "deleteDomain",
                "Remove a sending domain",
                "Only a domain without senders. Its keys are deleted for good, and other tenants may claim its name.",
            )
            .answer::<DomainRemoved>(200, "Removed")
            .refuses(404, &["domain_not_found"])
            .refuses(409, &["domain_in_use", "domain_suspended"]),
        )
        .post(
            "/v1/domains/{id}/verify",
            write_with_work("domains:manage", check::verify),
            Doc::new(
                "verifyDomain",
                "Check a domain's DNS records",
                "Asks the DNS now and stores what it answers for each record. A check that was made a few seconds \
                 ago is answered again. One check of a tenant runs at a time; another meanwhile is a 429 with \
                 `Retry-After`.",
            )
            .answer::<check::DomainChecked>(200, "Checked")
            .refuses(404, &["domain_not_found"])
            .refuses(409, &["domain_missing_provider_record", "domain_claimed_by_another_tenant"]),
        )
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateDomain {
    #[schemars(required, length(min = 1, max = 253))]
    domain: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DomainCreated {
    domain_id: Uuid,
    status: DomainStatus,
    dns_records: Vec<RecordView>,
    already_existed: bool,
}

/// Reads the name in its canonical form, and refuses names no tenant can own.
fn own_name(text: Option<String>, platform_domains: &[String]) -> Result<String, ApiError> {
    let mut faults = Faults::default();
    let text = faults.required("domain", text);
    let name = text.as_deref().and_then(canonical_domain);
    let good = text.is_none() || name.is_some();
    faults.require(good, "domain", "invalid", "must be a domain name with a dot, not an address");
    let public_suffix = name.as_deref().is_some_and(|name| freemail::registrable(name).is_none());
    let detail = "is a public suffix, under which others register domains";
    faults.require(!public_suffix, "domain", "public_suffix", detail);
    faults.finish()?;
    let name = name.ok_or_else(ApiError::internal)?;
    if freemail::is_platform(&name, platform_domains) {
        return Err(ApiError::unprocessable("platform_domain_not_allowed"));
    }
    if freemail::is_freemail(&name) {
        return Err(ApiError::unprocessable("freemail_domain_not_allowed"));
    }
    Ok(name)
}

/// Idempotent on (tenant, domain): a domain that is there is answered with its records.
async fn create(ctx: &mut RequestContext, body: CreateDomain) -> Result<ApiReply, ApiError> {
    let name = own_name(body.domain, &ctx.ingress.settings.outbound.platform_domains)?;
    let tenant = ctx.tenant;
    if let Some(row) = store::by_name(ctx.db(), tenant, &name).await? {
        // One that may send keeps its keys: perhaps only this process has not been told the master key. In the sandbox nothing is checked
        // again, so nothing fails.
        let gets_keys = match ctx.caller.environment {
            Environment::Sandbox => row.status != DomainStatus::Suspended,
            Environment::Production => matches!(row.status, DomainStatus::Pending | DomainStatus::Failed),
        };
        if gets_keys && !check::can_sign(&ctx.ingress, tenant, &row) {
            return replace_keys(ctx, &row).await;
        }
        return created(ctx, &row, true);
    }
    if store::proven_elsewhere(ctx.db(), tenant, &name).await? {
        return Err(ApiError::conflict("domain_claimed_by_another_tenant"));
    }
    // The tenant's row is locked, so that domains are counted and claimed one after the other.
    tenant::lock_row(ctx.db(), tenant).await?;
    let count = sqlx::query!(
        r#"select count(*) as "domains!", count(*) filter (where status = 'pending') as "pending!"
           from domains where tenant_id = $1"#,
        tenant
    )
    .fetch_one(ctx.db())
    .await?;
    if count.domains >= DOMAINS_MAX {
        return Err(ApiError::conflict("domain_limit_reached")
            .detail(format!("a tenant has at most {DOMAINS_MAX} domains: remove some")));
    }
    if count.pending >= PENDING_MAX {
        return Err(ApiError::conflict("domain_limit_reached")
            .detail(format!("at most {PENDING_MAX} domains may be pending: verify or remove some")));
    }
    let [(private, public), (second_private, second_public)] = new_keys(ctx)?;
    let inserted = sqlx::query!(
        "insert into domains (tenant_id, id, domain, selector, dkim_private, dkim_public, ownership_token,
                              second_selector, second_private, second_public)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         on conflict (tenant_id, domain) do nothing",
        tenant,
        schemas::new_id(),
        name,
        FIRST_SELECTOR,
        private,
        public,
        URL_SAFE_NO_PAD.encode(rand::random::<[u8; TOKEN_BYTES]>()),
        SECOND_SELECTOR,
        second_private,
        second_public,
    )
    .execute(ctx.db())
    .await?;
    // Another request may have been first.
    let already_existed = inserted.rows_affected() == 0;
    let row = store::by_name(ctx.db(), tenant, &name).await?.ok_or_else(ApiError::internal)?;
    if !already_existed {
        ctx.audit("domain.created", &row.id.to_string(), json!({})).await?;
    }
    if ctx.ingress.settings.warmup_new_domains && !already_existed {
        ledger::warmup::begin(ctx.db(), tenant, row.id).await?;
    }
    created(ctx, &row, already_existed)
}

/// Gives a domain whose private key does not open new keys under the next selectors, for its owner to publish.
async fn replace_keys(ctx: &mut RequestContext, lost: &DomainRow) -> Result<ApiReply, ApiError> {
    let [(private, public), (second_private, second_public)] = new_keys(ctx)?;
    let tenant = ctx.tenant;
    let selector = selector_after(&lost.selector);
    let replaced = sqlx::query!(
        "update domains
         set selector = $4, dkim_private = $5, dkim_public = $6,
             second_selector = $4::text || 'e', second_private = $7, second_public = $8, second_published = false,
             checks_from = now(), updated_at = now(),
             next_check_at = case when environment = 'production' then now() + interval '1 hour' end
         where tenant_id = $1 and id = $2 and dkim_private = $3 and status = $9",
        tenant,
        lost.id,
        lost.dkim_private.as_slice(),
        selector,
        private,
        public,
        second_private,
        second_public,
        lost.status.as_str(),
    )
    .execute(ctx.db())
    .await?;
    // Another request or a check may have been first.
    if replaced.rows_affected() == 1 {
        ctx.audit("domain.keys_replaced", &lost.id.to_string(), json!({"selector": selector})).await?;
    }
    let row = store::by_id(ctx.db(), tenant, lost.id).await?.ok_or_else(|| ApiError::not_found("domain"))?;
    created(ctx, &row, true)
}

/// The selector after this one: `pr2` after `pr1`.
fn selector_after(selector: &str) -> String {
    let number = selector.strip_prefix("pr").and_then(|number| number.parse::<u32>().ok()).unwrap_or(1);
    format!("pr{}", number.saturating_add(1))
}

fn created(ctx: &RequestContext, row: &DomainRow, already_existed: bool) -> Result<ApiReply, ApiError> {
    let dns_records = records::view(row, &ctx.ingress.settings.domain_targets.settings());
    ApiReply::ok(&DomainCreated { domain_id: row.id, status: row.status, dns_records, already_existed })
}

/// An RSA and an Ed25519 key: the private half, sealed, and the public one.
fn new_keys(ctx: &mut RequestContext) -> Result<[(Vec<u8>, String); 2], ApiError> {
    let keys = ctx.run_blocking("keys".to_owned(), generate_keys)??;
    let [key, second] = &*keys;
    let seal = |key: &GeneratedKey| {
        let sealed = ctx.ingress.vault.seal(ctx.tenant, DKIM_PURPOSE, key.private_pkcs8.expose_secret());
        sealed.map(|sealed| (sealed, key.public.clone())).map_err(|error| ApiError::unexpected(&error))
    };
    Ok([seal(key)?, seal(second)?])
}

/// An RSA key takes tens of milliseconds of a core, sometimes far more: run it [without a connection](RequestContext::run_blocking).
fn generate_keys() -> Result<Arc<[GeneratedKey; 2]>, ApiError> {
    let generate = || Ok::<_, KeyError>([DkimKey::generate_rsa()?, DkimKey::generate_ed25519()?]);
    generate().map(Arc::new).map_err(|error| ApiError::unexpected(&error))
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Domain")]
struct DomainView {
    domain_id: Uuid,
    domain: String,
    status: DomainStatus,
    verified_at: OptionalTime,
    last_checked_at: OptionalTime,
    degraded_since: OptionalTime,
    records: Vec<RecordView>,
    created_at: Time,
}

resource!(DomainView, "domain", "domains", domain_id);

impl DomainView {
    fn of(row: DomainRow, settings: &DomainSettings) -> Self {
        Self {
            domain_id: row.id,
            records: records::view(&row, settings),
            domain: row.domain,
            status: row.status,
            verified_at: row.verified_at.into(),
            last_checked_at: row.last_checked_at.into(),
            degraded_since: row.degraded_since.into(),
            created_at: row.created_at.into(),
        }
    }
}

async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let rows = store::list(ctx.db(), tenant, &page).await?;
    let settings = ctx.ingress.settings.domain_targets.settings();
    ApiReply::page(page, rows.into_iter().map(|row| DomainView::of(row, &settings)).collect())
}

async fn one(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("domain")?);
    let row = store::by_id(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("domain"))?;
    ApiReply::single(DomainView::of(row, &ctx.ingress.settings.domain_targets.settings()))
}

status_answer!(DomainRemoved, domain_id, "deleted");

/// A domain without senders is removed, with its keys; its name is free again.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("domain")?);
    let status = store::lock(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("domain"))?.status;
    // Removed and claimed anew it would be free of the suspension.
    if status == DomainStatus::Suspended {
        return Err(ApiError::conflict("domain_suspended").detail("the operator suspended it"));
    }
    let references = references::to_domain(ctx.db(), tenant, id).await?;
    let detail =
        "remove its senders, and choose another tracking domain; while a sender has sent mail, the domain stays";
    references::refuse("domain", references, detail)?;
    match sqlx::query!("delete from domains where tenant_id = $1 and id = $2", tenant, id).execute(ctx.db()).await {
        Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => {
            return Err(ApiError::busy("domain_in_use").detail("something has begun to refer to it"));
        }
        removed => removed?,
    };
    ctx.audit("domain.removed", &id.to_string(), json!({"was": status})).await?;
    DomainRemoved::reply(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("Mail.Acme.com.", Ok("mail.acme.com"))]
    #[case("bücher.de", Ok("xn--bcher-kva.de"))]
    #[case("acme", Err("validation_failed"))]
    #[case("127.0.0.1", Err("validation_failed"))]
    #[case("ann@acme.com", Err("validation_failed"))]
    #[case("https://acme.com", Err("validation_failed"))]
    #[case("co.uk", Err("validation_failed"))]
    #[case("gmail.com", Err("freemail_domain_not_allowed"))]
    #[case("mail.gmail.com", Err("freemail_domain_not_allowed"))]
    #[case("postrider.dev", Err("platform_domain_not_allowed"))]
    #[case("a.b.POSTRIDER.dev", Err("platform_domain_not_allowed"))]
    fn a_tenant_names_a_domain_it_could_own(#[case] text: &str, #[case] expected: Result<&str, &str>) {
        let found = own_name(Some(text.to_owned()), &["postrider.dev".to_owned()]);
        assert_eq!(found.as_deref().map_err(|error| error.code.as_ref()), expected);
    }
}
