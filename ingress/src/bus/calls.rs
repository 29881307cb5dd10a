//! The names of calls and direct requests on the bus, and the operations that they stand for.

use schemars::JsonSchema;
use schemas::DirectKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::pipeline::{Operation, doc::AnswerContent};

/// Short names beside the operations' own, which are those of the OpenAPI document.
pub(crate) const ALIASES: [(&str, &str); 7] = [
    ("message", "sendMessage"),
    ("transactional", "sendTransactional"),
    ("send.status", "getSend"),
    ("campaign.launch", "launchCampaign"),
    ("enrollment", "enroll"),
    ("outcome", "recordOutcome"),
    ("event", "recordEvents"),
];

/// The operation that a call's name stands for: its own name, or a short one.
pub(crate) fn operation_of_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, operation)| operation)
}

schemas::named_enum! {
    /// A call that HTTP does not have. Its name is the last part of its subject.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum OwnCall {
        /// A dry run of a write: says whether it would be accepted.
        Validate = "validate",
        /// The engine's id of a tenant.
        ResolveTenant = "tenant.resolve",
        /// A durable consumer of the product's events.
        FindConsumer = "events.consumer",
        /// The contract of the bus.
        Contract = "asyncapi",
    }
}

impl OwnCall {
    /// What it does, in a line.
    pub(crate) fn summary(self) -> &'static str {
        match self {
            Self::Validate => "Check whether a write would succeed; nothing is kept",
            Self::ResolveTenant => "Find the engine's id of a tenant",
            Self::FindConsumer => "Find or create a durable consumer of the product's events, to pull from",
            Self::Contract => "This document",
        }
    }
}

/// True for the operations of products: those with a key, except the operator's, and exports, which are longer than a message.
pub(crate) fn is_offered(operation: &Operation) -> bool {
    let is_export = operation.doc.answers.iter().any(|answer| matches!(answer.content, AnswerContent::Files(_)));
    !is_export && operation.access.is_some_and(|access| schemas::scope::ALL.contains(&access.scope))
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

/// The body of `validate`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ValidateWrite {
    pub operation: String,
    /// What would be sent to it.
    #[serde(default)]
    pub request: Map<String, Value>,
}

/// The answer to `tenant.resolve`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TenantResolved {
    pub engine_tenant_id: Uuid,
}
