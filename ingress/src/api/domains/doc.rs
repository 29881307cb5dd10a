//! How `/v1/domains` is documented.

use serde_json::{Value, json};

use super::{CreateDomain, DomainAnswer, DomainCreated, DomainPage, DomainRemoved, check::DomainChecked};
use crate::pipeline::{
    Doc, NoFields,
    doc::{AT, ID},
    page::PageQuery,
};

fn record() -> Value {
    json!({
        "type": "TXT", "host": "_postrider.acme.example", "value": "postrider-verification=…", "purpose": "ownership",
        "required": true, "status": "valid", "valid": true, "observed": [], "error": null, "checked_at": AT,
    })
}

fn example() -> Value {
    json!({
        "domain_id": ID, "domain": "acme.example", "status": "verified", "verified_at": AT, "last_checked_at": AT,
        "degraded_since": null, "records": [record()], "created_at": AT,
    })
}

pub(super) fn show() -> Doc {
    Doc::new("getDomain", "Read a sending domain", "With what the last check found.")
        .answer::<DomainAnswer>(200, "The domain", json!({"domain": example()}))
        .refuses(404, &["domain_not_found"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteDomain",
        "Remove a sending domain",
        "Only a domain without senders. Its keys are deleted for good, and other tenants may claim its name.",
    )
    .body::<NoFields>(json!({}))
    .answer::<DomainRemoved>(200, "Removed", json!({"domain_id": ID, "status": "deleted"}))
    .refuses(404, &["domain_not_found"])
    .refuses(409, &["domain_in_use", "domain_suspended"])
}

pub(super) fn list() -> Doc {
    Doc::new("listDomains", "List sending domains", "Newest first, with what the last check found.")
        .query::<PageQuery>()
        .answer::<DomainPage>(200, "A page of domains", json!({"domains": [example()], "next_cursor": null}))
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createDomain",
        "Claim a sending domain",
        "The answer has the DNS records to publish. Idempotent: a domain that exists is answered with its current records. A name that \
         another tenant has verified is refused, and so is every name below it.",
    )
    .body::<CreateDomain>(json!({"domain": "acme.example"}))
    .answer::<DomainCreated>(
        200,
        "Claimed",
        json!({"domain_id": ID, "status": "pending", "dns_records": [record()], "already_existed": false}),
    )
    .leads_to("domain_id", &["getDomain", "verifyDomain", "deleteDomain"])
    .refuses(409, &["domain_claimed_by_another_tenant"])
    .refuses(422, &["platform_domain_not_allowed", "freemail_domain_not_allowed"])
}

pub(super) fn verify() -> Doc {
    Doc::new(
        "verifyDomain",
        "Check a domain's DNS records",
        "Asks the DNS now and stores what it answers for each record. A check that was made a few seconds ago is answered again. One \
         check of a tenant runs at a time; another meanwhile is a 429 with `Retry-After`.",
    )
    .answer::<DomainChecked>(
        200,
        "Checked",
        json!({"domain_id": ID, "status": "verified", "dns_records": [record()]}),
    )
    .refuses(404, &["domain_not_found"])
    .refuses(409, &["domain_missing_provider_record", "domain_claimed_by_another_tenant"])
}
