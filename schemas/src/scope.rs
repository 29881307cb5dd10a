//! Scopes: what a key may do. A write scope does not imply the read scope.

/// Every scope there is.
pub const ALL: &[&str] = &[
    "analytics:read",
    "audiences:read",
    "audiences:write",
    "audit:read",
    "campaigns:launch",
    "campaigns:read",
    "campaigns:write",
    "connections:read",
    "connections:write",
    "contacts:data",
    "contacts:read",
    "contacts:write",
    "domains:manage",
    "email:send_one:create",
    "events:write",
    "fields:read",
    "fields:write",
    "imports:write",
    "keys:read",
    "keys:write",
    "messages:send",
    "outcomes:read",
    "outcomes:write",
    "requests:read",
    "segments:read",
    "segments:write",
    "senders:manage",
    "sends:cancel",
    "sends:read",
    "sequences:enroll",
    "sequences:read",
    "sequences:write",
    "suppressions:read",
    "suppressions:write",
    "templates:read",
    "templates:write",
    "tenant:manage",
    "tenant:read",
    "tenants:provision",
    "webhooks:read",
    "webhooks:write",
];

/// For the operations integration only: never part of "all" for a product's key.
pub const PLATFORM_HEALTH_READ: &str = "platform:health:read";

/// Whether a text is a scope.
#[must_use]
pub fn is_scope(text: &str) -> bool {
    text == PLATFORM_HEALTH_READ || ALL.contains(&text)
}
