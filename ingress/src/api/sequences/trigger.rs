//! `/v1/sequences/{id}/trigger`: what starts a sequence that exists, and which event ends its enrollments.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use schemas::SequenceStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    input::{WORD_MAX, is_word},
    start::{GAP_MAX_MINUTES, Reentry, StartRules, TRIGGER_CONFIG, read_trigger},
    store,
};
use crate::{
    api::{events::ProductEventTerms, fields, segments},
    pipeline::{ApiReply, Faults, RequestContext, error::ApiError},
};

/// The body of a change: all of it, what is left out takes its default.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeTrigger {
    #[schemars(required, length(max = WORD_MAX))]
    trigger_type: Option<String>,
    #[schemars(description = TRIGGER_CONFIG)]
    trigger_config: Option<Map<String, Value>>,
    /// How often one contact starts it by the trigger. Default: once.
    reentry: Option<Reentry>,
    /// The least time between two starts of a contact by the trigger. Default: 0; `every_time` needs one.
    #[schemars(range(min = 0, max = GAP_MAX_MINUTES))]
    reentry_gap_minutes: Option<i32>,
    /// The trigger starts nothing before.
    enroll_from: Option<DateTime<Utc>>,
    /// The trigger starts nothing from then on.
    enroll_until: Option<DateTime<Utc>>,
    /// An event of `POST /v1/events` that ends enrollments which are under way.
    exit_on_event: Option<ProductEventTerms>,
}

/// The sequence with its new trigger.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TriggerChanged {
    sequence: store::SequenceRow,
}

/// Replaces the trigger. Occurrences that are noted already are decided by the new re-entry rule.
pub(super) async fn change(ctx: &mut RequestContext, body: ChangeTrigger) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("sequence")?);
    let mut faults = Faults::default();
    let trigger_type = faults.required("trigger_type", body.trigger_type).unwrap_or_default();
    let named = trigger_type.is_empty() || is_word(&trigger_type);
    faults.require(named, "trigger_type", "invalid", "must match [a-z][a-z0-9_]{0,49}");
    let fields = fields::defined(ctx.db(), tenant).await?;
    let rules = StartRules {
        trigger_config: body
            .trigger_config
            .and_then(|config| read_trigger(&trigger_type, config, &fields, &mut faults)),
        reentry: body.reentry.unwrap_or_default(),
        reentry_gap_minutes: body.reentry_gap_minutes.unwrap_or(0),
        enroll_from: body.enroll_from,
        enroll_until: body.enroll_until,
        exit_on_event: body.exit_on_event,
    };
    rules.check(&mut faults);
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
    let found = store::audiences(ctx.db(), tenant, &[id]).await?;
    if found.iter().any(|(found, _)| found == kind) { Ok(()) } else { Err(ApiError::not_found(kind)) }
}
