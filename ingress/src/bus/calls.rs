//! The names of calls and direct requests on the bus, and the operations that they stand for.

use schemars::JsonSchema;
use schemas::DirectKind;
use serde::Serialize;
use uuid::Uuid;

use crate::pipeline::{Access, Operation, doc::AnswerContent};

/// Short names beside the operations' own, which are those of the OpenAPI document.
pub(crate) const ALIASES: [(&str, &str); 8] = [
    ("message", "sendMessage"),
    ("transactional", "sendTransactional"),
    ("send.status", "getSend"),
    ("campaign.launch", "launchCampaign"),
    ("enrollment", "enroll"),
    ("outcome", "recordOutcome"),
    ("event", "recordEvents"),
    ("explain", "explain"),
];

/// The operation that a call's name stands for: its own name, or a short one.
pub(crate) fn operation_of_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, operation)| operation)
}

/// A call that HTTP does not have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnCall {
    /// The last part of its subject.
    pub(crate) name: &'static str,
    /// What it does, in a line.
    pub(crate) summary: &'static str,
}

/// A dry run of a write.
pub(crate) const VALIDATE: OwnCall =
    OwnCall { name: "validate", summary: "Check whether a write would succeed; nothing is kept" };
/// The engine's id of a tenant.
pub(crate) const RESOLVE_TENANT: OwnCall =
    OwnCall { name: "tenant.resolve", summary: "Find the engine's id of a tenant" };
/// A durable consumer of the product's events.
pub(crate) const FIND_CONSUMER: OwnCall = OwnCall {
    name: "events.consumer",
    summary: "Find or create a durable consumer of the product's events, to pull from",
};
/// The contract of the bus.
pub(crate) const CONTRACT: OwnCall = OwnCall { name: "asyncapi", summary: "This document" };

/// True for the operations of products: those with a key, except the operator's, and exports, which are longer than a message.
pub(crate) fn is_offered(operation: &Operation) -> bool {
    let is_export = operation.doc.answers.iter().any(|answer| matches!(answer.content, AnswerContent::Files(_)));
    !is_export && matches!(operation.access, Access::Key { scope, .. } if schemas::scope::ALL.contains(&scope))
}

/// The name of the HTTP operation that a kind of direct request stands for.
pub(crate) fn operation_of_kind(kind: DirectKind) -> &'static str {
    match kind {
        DirectKind::CampaignLaunch => "launchCampaign",
        DirectKind::Transactional => "sendTransactional",
        DirectKind::Message => "sendMessage",
        DirectKind::Enrollment => "enroll",
        DirectKind::Outcome => "recordOutcome",
        DirectKind::Contact => "createContact",
        DirectKind::Suppression => "createSuppressions",
        DirectKind::Event => "recordEvents",
    }
}

/// The answer to `tenant.resolve`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TenantResolved {
    pub engine_tenant_id: Uuid,
}
