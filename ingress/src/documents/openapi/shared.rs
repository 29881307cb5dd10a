//! What all operations have in common: headers, credentials, the fields that name the tenant.

use serde_json::{Map, Value, json};

use crate::pipeline::{
    PRODUCT_TENANT_ID_PATTERN,
    schema::{Schema, SchemaField},
};

pub(super) fn headers() -> Value {
    let header = |description: &str, schema: Value| json!({"description": description, "schema": schema});
    json!({
        "X-Request-Id": header("The caller's, if it is sane; else ours.", json!({"type": "string"})),
        "RateLimit-Policy": header("As `\"key\";q=120;w=60`. Left out when there is no limit.", json!({"type": "string"})),
        "RateLimit": header("As `\"key\";r=119;t=42`: requests left, seconds until the minute is over.", json!({"type": "string"})),
        "X-RateLimit-Limit": header("Requests a minute.", json!({"type": "integer"})),
        "X-RateLimit-Remaining": header("Requests left.", json!({"type": "integer"})),
        "X-RateLimit-Reset": header("When the minute is over, in Unix seconds.", json!({"type": "integer"})),
        "Retry-After": header("Seconds to wait.", json!({"type": "integer"})),
        "Idempotency-Replayed": header("`true` when this is the answer to an earlier request.", json!({"type": "string"})),
    })
}

pub(super) fn headers_of(status: u16, is_write: bool, keyed: bool) -> Value {
    let mut names = vec!["X-Request-Id"];
    if keyed {
        names.extend([
            "RateLimit-Policy",
            "RateLimit",
            "X-RateLimit-Limit",
            "X-RateLimit-Remaining",
            "X-RateLimit-Reset",
        ]);
    }
    if matches!(status, 409 | 429 | 503 | 504) {
        names.push("Retry-After");
    }
    if keyed && is_write && status < 500 {
        names.push("Idempotency-Replayed");
    }
    let reference = |name: &str| (name.to_owned(), json!({"$ref": format!("#/components/headers/{name}")}));
    Value::Object(names.into_iter().map(reference).collect())
}

pub(super) fn idempotency_key() -> Value {
    json!({
        "name": "Idempotency-Key", "in": "header", "required": false,
        "description": "The same key with the same request answers what was answered first; with another request 422 \
                        `idempotency_key_reused`. Kept for 24 hours. An answer that named a contact who was erased since \
                        is answered with 422 `contact_erased`; nothing is done again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    })
}

/// The headers of signed mode, in the order they are read.
pub(super) const SIGNED: [(&str, &str, &str); 6] = [
    ("signedProduct", "X-Service-Product", "The caller's product slug."),
    ("signedEnvironment", "X-Service-Environment", "`production` or `sandbox`."),
    ("signedKey", "X-Service-Api-Key", "`svc_live_<slug>_…` or `svc_test_<slug>_…`."),
    ("signedTimestamp", "X-Service-Timestamp", "RFC 3339, within 5 minutes of server time."),
    ("signedNonce", "X-Service-Nonce", "1 to 128 visible ASCII characters, used once."),
    (
        "signedSignature",
        "X-Service-Signature",
        "`sha256=<hex>`: HMAC-SHA256, keyed by the API key, over METHOD, PATH, TIMESTAMP, NONCE and the SHA-256 of the body in hex, \
         joined by line feeds.",
    ),
];

pub(super) fn security_schemes() -> Value {
    let mut schemes = Map::new();
    schemes.insert(
        "bearer".to_owned(),
        json!({"type": "http", "scheme": "bearer", "description": "The API key; it says product and environment."}),
    );
    for (name, header, description) in SIGNED {
        schemes.insert(
            name.to_owned(),
            json!({"type": "apiKey", "in": "header", "name": header, "description": description}),
        );
    }
    Value::Object(schemes)
}

/// The fields that name the tenant: in a body, and in a query, where nothing is null.
pub(super) fn tenant_fields(is_body: bool) -> [SchemaField; 2] {
    let field = |name: &str, component: &str, required: bool, schema: Value| {
        let schema = Schema::raw(schema);
        SchemaField { name: name.to_owned(), schema: if is_body { schema.named(component) } else { schema }, required }
    };
    let product = json!({
        "type": "string", "minLength": 1, "maxLength": 255, "pattern": PRODUCT_TENANT_ID_PATTERN,
        "description": "The caller's own id for the tenant.",
    });
    let mut engine = json!({
        "type": "string", "format": "uuid",
        "description": "The engine's id for it: only a check against impersonation.",
    });
    if is_body {
        engine["type"] = json!(["string", "null"]);
    }
    [
        field("product_tenant_id", "ProductTenantId", true, product),
        field("engine_tenant_id", "EngineTenantId", false, engine),
    ]
}
