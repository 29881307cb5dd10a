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
