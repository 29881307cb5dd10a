//! How `/v1/tenants` is documented.

use serde_json::json;

use super::NAME_MAX_CHARS;
use crate::{
    openapi::{
        AT, Doc, ID,
        schema::{
            Schema, boolean, email, id, nullable, object, one_of, postal_address, required, success, text, text_max,
            time,
        },
    },
    routes::input::POSTAL_ADDRESS_MAX,
};

fn tenant() -> Schema {
    object([
        required("engine_tenant_id", id()),
        required("environment", one_of(["production", "sandbox"])),
        required("org_name", text().or_null()),
        required("owner_email", text()),
        required("status", one_of(["active", "suspended"])),
        required("timezone", text().about("An IANA time zone: business days and the days of reports are its days.")),
        required("physical_address", text().or_null().about("On marketing mail whose sender has no address of its own.")),
        required("default_sender_id", id().or_null().about("The sender of mail that names none.")),
        required(
            "tracking_domain_id",
            id().or_null().about(
                "The domain whose tracking host carries links and pixel, while its CNAME is verified. Null: that of the sending \
                 domain.",
            ),
        ),
        required("created_at", time()),
        required("updated_at", time()),
    ])
    .named("Tenant")
}

fn one(doc: Doc) -> Doc {
    let example = json!({
        "engine_tenant_id": ID, "environment": "production", "org_name": "Acme", "owner_email": "owner@acme.example",
        "status": "active", "timezone": "Europe/Paris", "physical_address": "1 Main Street", "default_sender_id": ID,
        "tracking_domain_id": null, "created_at": AT, "updated_at": AT,
    });
    doc.answer_schema(
        200,
        "The tenant",
        success([required("tenant", tenant())]),
        json!({"ok": true, "tenant": example}),
    )
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
    .body_schema(
        object([
            nullable("timezone", text().about("An IANA time zone, such as Europe/Paris.")),
            nullable("physical_address", postal_address(POSTAL_ADDRESS_MAX)),
            nullable("default_sender_id", id().about("An active sender.")),
            nullable("tracking_domain_id", id()),
        ]),
        json!({"timezone": "Europe/Paris", "physical_address": "1 Main Street"}),
    )
    .refuses(404, &["sender_not_found", "domain_not_found"])
    .refuses(409, &["sender_disabled"])
    .refuses(422, &["physical_address_required"])
}

pub(super) fn link() -> Doc {
    let product = text_max(255).with("minLength", 1).with("pattern", r"^[^\u0000-\u001f\u007f-\u009f]+$");
    Doc::new(
        "linkTenant",
        "Link a tenant",
        "Finds or creates the engine's tenant for a tenant of the calling product, and brings names and owner up to date. \
         Idempotent on product, environment and `product_tenant_id`.",
    )
  .body_schema(
        object([
            required("product_tenant_id", product.about("The caller's own id for the tenant.")),
            required("email", email().about("Becomes the owner identity.")),
            nullable("org_name", text_max(NAME_MAX_CHARS)),
            nullable("producer_name", text_max(NAME_MAX_CHARS)),
        ]),
        json!({"product_tenant_id": "tenant-1", "email": "owner@acme.example", "org_name": "Acme"}),
    )
    .answer_schema(
        200,
        "Linked",
        success([required("engine_tenant_id", id()), required("already_linked", boolean())]),
        json!({"ok": true, "engine_tenant_id": ID, "already_linked": false}),
    )
}
