//! How `/v1/tenants` is documented.

use serde_json::json;

use super::NAME_MAX_CHARS;
use crate::openapi::{
    Doc, ID,
    schema::{boolean, email, id, nullable, object, required, success, text_max},
};

pub(super) fn link() -> Doc {
    let product = text_max(255).with("minLength", 1).with("pattern", r"^[^\u0000-\u001f\u007f-\u009f]+$");
    Doc::new(
        "linkTenant",
        "Link a tenant",
        "Finds or creates the engine's tenant for a tenant of the calling product, and brings names and owner up to date. \
         Idempotent on product, environment and `product_tenant_id`.",
    )
    .body(
        object([
            required("product_tenant_id", product.about("The caller's own id for the tenant.")),
            required("email", email().about("Becomes the owner identity.")),
            nullable("org_name", text_max(NAME_MAX_CHARS)),
            nullable("producer_name", text_max(NAME_MAX_CHARS)),
        ]),
        json!({"product_tenant_id": "tenant-1", "email": "owner@acme.example", "org_name": "Acme"}),
    )
    .answer(
        200,
        "Linked",
        success([required("engine_tenant_id", id()), required("already_linked", boolean())]),
        json!({"ok": true, "engine_tenant_id": ID, "already_linked": false}),
    )
}
