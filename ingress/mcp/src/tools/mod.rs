//! The tools: a closed set, each with its arguments, its statements and its answer.

mod campaign;
mod campaigns;
mod drafts;
mod workspace;

use std::time::Duration;

use runtime::{AuditRecord, Counter, audit};
use schemars::{JsonSchema, schema_for};
use schemas::fault::describe_fault;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Approval, Assistant};

/// Longest statement of a call.
const STATEMENT_MAX: Duration = Duration::from_secs(15);
/// The longest answer, in bytes. An assistant pays for every one of them.
const ANSWER_MAX_BYTES: usize = 32 * 1024;

macro_rules! tools {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal, $arguments:ty;)+) => {
        schemas::named_enum! {
            /// What an assistant may ask.
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub enum Tool { $($(#[doc = $doc])+ $variant = $name,)+ }
        }

        impl Tool {
            /// What it answers, for the assistant.
            pub fn description(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// The JSON Schema of its arguments.
            pub fn input_schema(self) -> Value { match self { $(Self::$variant => schema_of::<$arguments>(),)+ } }
        }
    };
}

tools! {
    /// Lists campaigns, newest first: name, status, kind, audience mode, times. No recipients and no content.
    ListCampaigns = "list_campaigns", campaigns::ListArguments;
    /// How many people a campaign's audience has, how many would be or were mailed, and how many were left out, by reason.
    AudienceCounts = "audience_counts", campaign::CampaignArguments;
    /// The statistics of a campaign: confirmed deliveries, bounced, opened, clicked, complained, unsubscribed. Opens are inflated by mail
    /// programs.
    CampaignPerformance = "campaign_performance", campaign::CampaignArguments;
    /// What a campaign still needs for its launch: templates, sender, domain, postal address, audience, sending window, send quota.
    CampaignReadiness = "campaign_readiness", campaign::CampaignArguments;
    /// Sending over the last days in numbers, and the state of the sending domains.
    Deliverability = "deliverability", workspace::DaysArguments;
    /// How many addresses are suppressed, by reason. Never which.
    SuppressionSummary = "suppression_summary", workspace::SuppressionArguments;
    /// How many replies came in over the last days, by kind of message. Never from whom or what they say.
    ReplyOutcomes = "reply_outcomes", workspace::DaysArguments;
    /// Saves a proposal for a campaign, for a person to read. It is not a campaign: nothing is created, scheduled or sent.
    SaveDraftProposal = "save_draft_proposal", drafts::Proposal;
}

impl Tool {
    /// Whether it changes nothing.
    pub fn is_read_only(self) -> bool {
        self != Self::SaveDraftProposal
    }
}

/// Why a tool has no answer. `Display` is for the assistant.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolFault {
    /// Arguments that are not the tool's.
    #[error("{0}")]
    Arguments(String),
    /// No such campaign in this workspace.
    #[error("there is no such campaign in this workspace")]
    NoCampaign,
    /// Saving drafts needs a consent of its own.
    #[error("saving draft proposals was not consented to")]
    NoConsent,
    /// Too many proposals are not read yet.
    #[error("too many proposals wait for a person to read them")]
    TooManyOpen,
    /// Longer than an answer may be.
    #[error("the answer is too long: ask for less")]
    TooLong,
    /// Postgres is away or took too long.
    #[error("the numbers are not to be had at the moment")]
    Unavailable,
}

impl ToolFault {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Arguments(_) => "invalid_arguments",
            Self::NoCampaign => "campaign_not_found",
            Self::NoConsent => "consent_missing",
            Self::TooManyOpen => "too_many_open_proposals",
            Self::TooLong => "answer_too_long",
            Self::Unavailable => "unavailable",
        }
    }
}

impl From<sqlx::Error> for ToolFault {
    fn from(error: sqlx::Error) -> Self {
        // Callers get the same answer for both; the log distinguishes an internal error from an unavailable Postgres.
        if runtime::db::is_transient(&error) {
            tracing::warn!(error = runtime::db::describe(&error), "database unavailable to a call of the assistant");
        } else {
            tracing::error!(error = runtime::db::describe(&error), "database refused a call of the assistant");
        }
        Self::Unavailable
    }
}

/// Reads a tool's arguments; unknown ones are refused.
fn arguments<T: DeserializeOwned>(value: Value) -> Result<T, ToolFault> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let fault = describe_fault(&error.inner().to_string());
        // A fault of the arguments as a whole says the name itself.
        let path = error.path().to_string();
        ToolFault::Arguments(if path == "." { fault } else { format!("{path}: {fault}") })
    })
}

/// An id among the arguments, in its canonical form.
fn id(name: &str, text: &str) -> Result<Uuid, ToolFault> {
    schemas::parse_id(text).map_err(|error| ToolFault::Arguments(format!("{name}: {error}")))
}

/// The schema of a tool's arguments, without what only documents need: an assistant pays for every byte.
fn schema_of<T: JsonSchema>() -> Value {
    let mut schema = schema_for!(T);
    for keyword in ["$schema", "title", "description"] {
        schema.remove(keyword);
    }
    // Some clients refuse an object without any.
    schema.ensure_object().entry("properties").or_insert_with(|| json!({}));
    schemas::catalog::normalized(schema.to_value())
}

/// Carries a call out: audited, bounded, in a transaction confined to the approval's workspace.
pub(crate) async fn call(
    assistant: &Assistant,
    approval: &Approval,
    tool: Tool,
    arguments: Value,
) -> Result<Value, ToolFault> {
    let result = if tool.is_read_only() {
        let answered = read(assistant, approval.tenant_id, tool, arguments).await;
        let outcome = answered.as_ref().map_or_else(ToolFault::code, |_| "answered");
        // What is not in the audit log is not answered.
        let mut db = assistant.deps.pool.acquire().await?;
        audit(&mut db, approval, tool, outcome, None).await?;
        answered
    } else if approval.may_draft {
        drafts::save(&assistant.deps.pool, approval, arguments).await
    } else {
        let mut db = assistant.deps.pool.acquire().await?;
        audit(&mut db, approval, tool, ToolFault::NoConsent.code(), None).await?;
        Err(ToolFault::NoConsent)
    };
    note(Some(tool), result.as_ref().map_or_else(ToolFault::code, |_| "answered"));
    result
}

async fn read(assistant: &Assistant, tenant: Uuid, tool: Tool, arguments: Value) -> Result<Value, ToolFault> {
    let mut tx = assistant.deps.pool.begin_with("begin read only").await?;
    confine(&mut tx, tenant).await?;
    let answer = match tool {
        Tool::ListCampaigns => campaigns::answer(&mut tx, tenant, arguments).await,
        Tool::AudienceCounts => campaign::audience_counts(&mut tx, tenant, arguments).await,
        Tool::CampaignPerformance => campaign::performance(&mut tx, tenant, arguments).await,
        Tool::CampaignReadiness => campaign::readiness(&mut tx, tenant, arguments, &assistant.deps.quota).await,
        Tool::Deliverability => workspace::deliverability(&mut tx, tenant, arguments).await,
        Tool::SuppressionSummary => workspace::suppressions(&mut tx, tenant, arguments).await,
        Tool::ReplyOutcomes => workspace::replies(&mut tx, tenant, arguments).await,
        Tool::SaveDraftProposal => Err(ToolFault::NoConsent),
    };
    tx.rollback().await?;
    let answer = answer?;
    if answer.to_string().len() > ANSWER_MAX_BYTES { Err(ToolFault::TooLong) } else { Ok(answer) }
}

/// Row security: from here on the transaction sees this tenant's rows only, and no statement runs long.
async fn confine(db: &mut PgConnection, tenant: Uuid) -> Result<(), ToolFault> {
    sqlx::query!(
        "select set_config('app.tenant', $1, true) as row_security, set_config('statement_timeout', $2, true) as timeout",
        tenant.to_string(),
        STATEMENT_MAX.as_millis().to_string(),
    )
    .fetch_one(db)
    .await?;
    Ok(())
}

/// Writes a call into the audit log: ids and codes only.
async fn audit(
    db: &mut PgConnection,
    approval: &Approval,
    tool: Tool,
    outcome: &str,
    draft: Option<Uuid>,
) -> Result<(), ToolFault> {
    let record = AuditRecord {
        tenant: Some(approval.tenant_id),
        actor: &format!("assistant:{}", approval.id),
        action: &format!("assistant.{}", tool.as_str()),
        subject: draft.unwrap_or(approval.id).to_string(),
        detail: json!({"outcome": outcome}),
        ..AuditRecord::default()
    };
    audit::write(db, &[record]).await?;
    Ok(())
}

pub(crate) fn note(tool: Option<Tool>, outcome: &'static str) {
    Counter::AssistantCallsTotal.add(1, [("tool", tool.map_or("unknown", Tool::as_str)), ("outcome", outcome)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_says_what_a_tool_takes() {
        let campaign = json!({
            "type": "object",
            "properties": {"campaign_id": {"type": "string", "format": "uuid", "description": "As list_campaigns shows it."}},
            "required": ["campaign_id"],
            "additionalProperties": false,
        });
        assert_eq!(Tool::CampaignReadiness.input_schema(), campaign);
        let nothing = json!({"type": "object", "properties": {}, "additionalProperties": false});
        assert_eq!(Tool::SuppressionSummary.input_schema(), nothing);
        let days = &Tool::Deliverability.input_schema()["properties"]["days"];
        assert_eq!((&days["enum"], &days["default"]), (&json!([7, 30, 90]), &json!(30)));
    }
}
