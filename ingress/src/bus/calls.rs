//! What can be called and published, and by which names.

use schemars::JsonSchema;
use schemas::DirectKind;
use serde::Serialize;
use uuid::Uuid;

use crate::pipeline::{Access, Operation};

/// Short names beside the operations' own, which are those of the OpenAPI document.
pub(crate) const ALIASES: [(&str, &str); 7] = [
    ("message", "sendMessage"),
    ("transactional", "sendTransactional"),
    ("send.status", "getSend"),
    ("campaign.launch", "launchCampaign"),
    ("enrollment", "enroll"),
    ("outcome", "recordOutcome"),
    ("explain", "explain"),
];

/// A product's operations: what needs a key, but not the operator's own.
pub(crate) fn is_offered(operation: &Operation) -> bool {
    matches!(operation.access, Access::Key { scope, .. } if schemas::scope::ALL.contains(&scope))
}

/// The operation of the HTTP API that a kind of direct request stands for, by its name.
pub(crate) fn operation_of(kind: DirectKind) -> &'static str {
    match kind {
        DirectKind::CampaignLaunch => "launchCampaign",
        DirectKind::Transactional => "sendTransactional",
        DirectKind::Message => "sendMessage",
        DirectKind::Enrollment => "enroll",
        DirectKind::Outcome => "recordOutcome",
        DirectKind::Contact => "createContact",
        DirectKind::Suppression => "createSuppressions",
    }
}

/// The answer to `tenant.resolve`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TenantResolved {
    pub engine_tenant_id: Uuid,
}
