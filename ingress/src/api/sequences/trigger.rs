//! `/v1/sequences/{id}/trigger`: what starts a sequence that exists, and which event ends its enrollments.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use schemas::SequenceStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    start::{GAP_MAX_MINUTES, Reentry, StartRules, TRIGGER_CONFIG, read_trigger, start_body},
    store,
};
use crate::{
    api::{
        audiences::held,
        events::ProductEventTerms,
        fields::{self, FieldType},
        segments,
    },
    pipeline::{ApiReply, Faults, RequestContext, error::ApiError, validate::WORD_MAX},
};

start_body! {
    /// The body of a change: all of it, what is left out takes its default.
    struct ChangeTrigger {
        #[schemars(required, length(max = WORD_MAX))]
        trigger_type: Option<String>,
    }
}

/// The sequence with its new trigger.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TriggerChanged {
    sequence: store::SequenceRow,
}

/// Replaces the trigger. Occurrences that are noted already are decided by the new re-entry rule.
pub(super) async fn change(ctx: &mut RequestContext, mut body: ChangeTrigger) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sequence")?);
    let mut faults = Faults::default();
    let given = faults.required("trigger_type", body.trigger_type.take());
    if let Some(word) = &given {
        faults.key_word("trigger_type", word);
    }
    let trigger_type = given.unwrap_or_default();
    let fields = fields::defined_for_naming(ctx.db(), tenant).await?;
    let rules = body.take_rules(&trigger_type, &fields, &mut faults);
    faults.finish()?;
    let before = store::lock(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sequence"))?;
    if before.status == SequenceStatus::Archived {
        return Err(ApiError::conflict("sequence_archived").detail("an archived sequence is started by nothing"));
    }
    require_named(ctx, &rules).await?;
    store::set_start(ctx.db(), tenant, id, &trigger_type, &rules).await?;
    ctx.audit("sequence.trigger_changed", &format!("sequence:{id}"), json!({"trigger_type": trigger_type})).await?;
    let sequence = store::get(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("sequence"))?;
    ApiReply::ok(&TriggerChanged { sequence })
}

/// 404 for a segment, list or tag that the trigger names and the tenant does not have.
pub(super) async fn require_named(ctx: &mut RequestContext, rules: &StartRules) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    if let Some(segment) = rules.segment() {
        segments::lock_for_use(ctx.db(), tenant, segment).await?;
    }
    let Some((kind, id)) = rules.audience() else { return Ok(()) };
    held::hold(ctx.db(), tenant, &[id]).await?.require(kind, id)
}
