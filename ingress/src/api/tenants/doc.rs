//! How `/v1/tenants` is documented.

use serde_json::json;

use super::{
    LinkTenant, TenantLinked,
    profile::{ProfileChange, TenantAnswer},
};
use crate::pipeline::{
    Doc,
    doc::{AT, ID},
};

fn one(doc: Doc) -> Doc {
    let example = json!({
        "engine_tenant_id": ID, "environment": "production", "org_name": "Acme", "owner_email": "owner@acme.example",
        "status": "active", "timezone": "Europe/Paris", "physical_address": "1 Main Street", "default_sender_id": ID,
        "tracking_domain_id": null, "created_at": AT, "updated_at": AT,
    });
    doc.answer::<TenantAnswer>(200, "The tenant", json!({"tenant": example}))
}

pub(super) fn show() -> Doc {
    one(Doc::new("getTenant", "Read the tenant's profile", ""))
}

pub(super) fn update() -> Doc {
    one(Doc::new(
        "updateTenant",
        "Change the tenant's profile",
        "What is left out stays; null clears. Products that share the engine's tenant share its profile.",
    ))
    .body::<ProfileChange>(json!({"timezone": "Europe/Paris", "physical_address": "1 Main Street"}))
    .refuses(404, &["sender_not_found", "domain_not_found"])
    .refuses(409, &["sender_disabled"])
    .refuses(422, &["physical_address_required"])
}

pub(super) fn link() -> Doc {
    Doc::new(
        "linkTenant",
        "Link a tenant",
        "Finds or creates the engine's tenant for a tenant of the calling product, and brings names and owner up to date. \
         Idempotent on product, environment and `product_tenant_id`.",
    )
    .body::<LinkTenant>(json!({"product_tenant_id": "tenant-1", "email": "owner@acme.example", "org_name": "Acme"}))
    .answer::<TenantLinked>(200, "Linked", json!({"engine_tenant_id": ID, "already_linked": false}))
}
