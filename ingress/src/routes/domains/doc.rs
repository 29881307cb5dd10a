//! How `/v1/domains` is documented.

use schemas::DomainStatus;
use serde_json::{Value, json};

use crate::openapi::{
    AT, Doc, ID,
    schema::{Schema, array, boolean, id, object, one_of, only, page_of, required, success, text, text_max, time},
};

fn status() -> Schema {
    one_of(DomainStatus::ALL.iter().map(|status| status.as_str()))
}

fn record() -> Schema {
    object([
        required("type", one_of(["TXT", "CNAME"])),
        required("host", text()),
        required("value", text()),
        required("purpose", one_of(["ownership", "dkim", "return_path", "spf", "dmarc", "tracking"])),
        required("required", boolean()),
        required("status", one_of(["pending", "valid", "invalid", "undetermined"])),
        required("valid", boolean()),
        required("observed", array(text()).about("What the DNS said instead.")),
        required("error", text().or_null()),
        required("checked_at", time().or_null()),
    ])
    .named("DnsRecord")
}

fn record_example() -> Value {
    json!({
        "type": "TXT", "host": "_postrider.acme.example", "value": "postrider-verification=…", "purpose": "ownership",
        "required": true, "status": "valid", "valid": true, "observed": [], "error": null, "checked_at": AT,
    })
}

fn domain() -> Schema {
    object([
        required("domain_id", id()),
        required("domain", text()),
        required("status", status()),
        required("verified_at", time().or_null()),
        required("last_checked_at", time().or_null()),
        required("degraded_since", time().or_null()),
        required("records", array(record())),
        required("created_at", time()),
    ])
    .named("Domain")
}

fn example() -> Value {
    json!({
        "domain_id": ID, "domain": "acme.example", "status": "verified", "verified_at": AT, "last_checked_at": AT,
        "degraded_since": null, "records": [record_example()], "created_at": AT,
    })
}

pub(super) fn show() -> Doc {
    Doc::new("getDomain", "Read a sending domain", "With what the last check found.")
        .answer_schema(
            200,
            "The domain",
            success([required("domain", domain())]),
            json!({"ok": true, "domain": example()}),
        )
        .refuses(404, &["domain_not_found"])
}

pub(super) fn remove() -> Doc {
    Doc::new(
        "deleteDomain",
        "Remove a sending domain",
        "One without senders. Its keys are gone for good, and its name is free for others to claim.",
    )
    .body_schema(object([]), json!({}))
    .answer_schema(
        200,
        "Removed",
        success([required("domain_id", id()), required("status", only("deleted"))]),
        json!({"ok": true, "domain_id": ID, "status": "deleted"}),
    )
    .refuses(404, &["domain_not_found"])
    .refuses(409, &["domain_in_use", "domain_suspended"])
}

pub(super) fn list() -> Doc {
    Doc::new("listDomains", "List sending domains", "Newest first, with what the last check found.")
        .paged()
        .answer_schema(
            200,
            "A page of domains",
            page_of("domains", domain()),
            json!({"ok": true, "domains": [example()], "next_cursor": null}),
        )
}

pub(super) fn create() -> Doc {
    Doc::new(
        "createDomain",
        "Claim a sending domain",
        "Answers the DNS records to publish. Idempotent: a domain that is there is answered with its current records. A name that another \
         tenant has proven is refused, and so is every name below it.",
    )
  .body_schema(object([required("domain", text_max(253).with("minLength", 1))]), json!({"domain": "acme.example"}))
    .answer_schema(
        200,
        "Claimed",
        success([
            required("domain_id", id()),
            required("status", status()),
            required("dns_records", array(record())),
            required("already_existed", boolean()),
        ]),
        json!({
            "ok": true, "domain_id": ID, "status": "pending", "dns_records": [record_example()], "already_existed": false,
        }),
    )
    .leads_to("domain_id", &["getDomain", "verifyDomain", "deleteDomain"])
    .refuses(409, &["domain_claimed_by_another_tenant"])
    .refuses(422, &["platform_domain_not_allowed", "freemail_domain_not_allowed"])
}

pub(super) fn verify() -> Doc {
    Doc::new(
        "verifyDomain",
        "Check a domain's DNS records",
        "Asks the DNS now and stores what it says for each record. A check that was made a few seconds ago is answered again. One check \
         of a tenant runs at a time; another meanwhile is a 429 with `Retry-After`.",
    )
    .answer_schema(
        200,
        "Checked",
        success([required("domain_id", id()), required("status", status()), required("dns_records", array(record()))]),
        json!({"ok": true, "domain_id": ID, "status": "verified", "dns_records": [record_example()]}),
    )
    .refuses(404, &["domain_not_found"])
    .refuses(409, &["domain_missing_provider_record", "domain_claimed_by_another_tenant"])
}
