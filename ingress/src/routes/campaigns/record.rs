//! A campaign as callers see it.

use serde_json::{Value, json};

use super::store::{CampaignRow, VariantRow};
use crate::act::time;

/// One campaign, with its bodies.
pub(super) fn record(row: &CampaignRow) -> Value {
    let mut record = list_record(row);
    record["body_html"] = json!(row.body_html);
    for (shown, variant) in record["variants"].as_array_mut().into_iter().flatten().zip(row.variants.iter()) {
        shown["body_html"] = json!(variant.body_html);
    }
    record
}

/// A campaign in a list: without its bodies, which may have half a megabyte each.
pub(super) fn list_record(row: &CampaignRow) -> Value {
    json!({
        "campaign_id": row.id,
        "name": row.name,
        "status": row.status,
        "paused": row.paused,
        "pause_reason": row.pause_reason,
        "email_type": row.classification,
        "sender_profile_id": row.sender_profile_id,
        "template_id": row.template_id,
        "subject": row.subject,
        "preheader": row.preheader,
        "campaign_goal": row.campaign_goal,
        "audience_mode": row.audience_mode,
        "list_id": row.list_id,
        "segment_id": row.segment_id,
        "tag_ids": row.tag_ids,
        "message_purpose": row.message_purpose,
        "urgency": row.urgency,
        "audience_reason": row.audience_reason,
        "variants": row.variants.iter().map(variant).collect::<Vec<_>>(),
        "ab_test": test(row),
        "not_after": row.not_after.map(time),
        "on_miss": row.on_miss,
        "max_per_minute": row.max_per_minute,
        "tripwire": {
            "bounce_percent": row.bounce_percent,
            "complaint_percent": row.complaint_percent,
            "state": row.tripwire,
        },
        "scheduled_for": row.scheduled_for.map(time),
        "launched_at": row.launched_at.map(time),
        "completed_at": row.completed_at.map(time),
        "created_at": time(row.created_at),
        "updated_at": time(row.updated_at),
    })
}

fn variant(row: &VariantRow) -> Value {
    json!({
        "variant": row.variant,
        "name": row.name,
        "weight": row.weight,
        "subject": row.subject,
        "preheader": row.preheader,
        "template_id": row.template_id,
    })
}

/// The test and what became of it; null without one.
fn test(row: &CampaignRow) -> Value {
    let Some(percent) = row.test_percent else { return Value::Null };
    json!({
        "test_percent": percent,
        "winner_metric": row.winner_metric,
        "decide_after_minutes": row.decide_after_minutes,
        "tested_at": row.tested_at.map(time),
        "decided_at": row.decided_at.map(time),
        "winner": row.winner,
        "winner_reason": row.winner_reason,
    })
}
