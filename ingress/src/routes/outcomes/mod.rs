//! `/v1/outcomes`: what mails may be credited for, told by products, and the mails that are credited (API.md §7).

mod doc;
mod store;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use ledger::outcomes::OutcomeFault;
use ledger::outcomes::OutcomeRefusal;
use ledger::outcomes::OutcomeRequest;
use ledger::outcomes::Premium;
use ledger::outcomes::SHARE_WHOLE;
use runtime::Publication;
use schemas::{OutcomeType, RequestAnnounced, RequestKind, new_id, subjects};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use self::store::{CreditRow, OutcomeRow, RestatementRow};
use crate::{
    act::{Act, Id, NoParameters, Page, Reply, Routes, read, time, write},
    error::{ApiError, FieldFault},
};

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get("/v1/outcomes", read("outcomes:read", list), doc::list)
        .post("/v1/outcomes", write("outcomes:write", record), doc::record)
        .get("/v1/outcomes/{id}", read("outcomes:read", one), doc::show)
}

async fn record(act: &mut Act, body: OutcomeRequest) -> Result<Reply, ApiError> {
    let new = body.validate(Utc::now()).map_err(refused)?;
    let (tenant, caller) = (act.tenant, Arc::clone(&act.caller));
    let recorded =
        ledger::outcomes::record(act.db(), tenant, &caller.product, &new).await.map_err(|refusal| match refusal {
            OutcomeRefusal::ContactConflict => ApiError::unprocessable("contact_conflict")
                .detail("contact_email and dot_number belong to different contacts"),
            OutcomeRefusal::Ledger(error) => error.into(),
        })?;
    if recorded.changed {
        let ring = RequestAnnounced::of(tenant, recorded.outcome_id, RequestKind::Outcome);
        let subject = subjects::accepted(&caller.product, caller.environment, RequestKind::Outcome);
        // The same outcome may be told anew within the duplicate window, and is to be credited anew.
        let ring = Publication::json(subject, format!("outcome-{}", new_id().simple()), &ring);
        act.announce(ring.map_err(|error| ApiError::unexpected(&error))?);
    }
    Reply::untyped_ok(
        &json!({"ok": true, "outcome_id": recorded.outcome_id, "contact_matched": recorded.contact_matched}),
    )
}

fn refused(faults: Vec<OutcomeFault>) -> ApiError {
    ApiError::validation(
        faults.into_iter().map(|fault| FieldFault::new(fault.path, fault.code, fault.detail)).collect(),
    )
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    contact_id: Option<Id>,
    campaign_id: Option<Id>,
    #[serde(rename = "type")]
    outcome_type: Option<OutcomeType>,
    since: Option<DateTime<Utc>>,
    limit: Option<i64>,
    cursor: Option<String>,
}

async fn list(act: &mut Act, query: ListQuery) -> Result<Reply, ApiError> {
    let page = Page::new(query.limit, query.cursor.as_deref())?;
    let tenant = act.tenant;
    let filter = store::Filter {
        contact: query.contact_id.map(|id| id.0),
        campaign: query.campaign_id.map(|id| id.0),
        outcome_type: query.outcome_type,
        since: query.since,
    };
    let mut rows = store::list(act.db(), tenant, &filter, &page).await?;
    let next_cursor = page.cut(&mut rows, |row| (row.created_at, row.id));
    let outcomes: Vec<Value> = rows.iter().map(outcome).collect();
    Reply::untyped_ok(&json!({"ok": true, "outcomes": outcomes, "next_cursor": next_cursor}))
}

async fn one(act: &mut Act, _: NoParameters) -> Result<Reply, ApiError> {
    let (tenant, id) = (act.tenant, act.id("outcome")?);
    let row = store::get(act.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("outcome"))?;
    let credits = store::credits(act.db(), tenant, id).await?;
    let restatements = store::restatements(act.db(), tenant, id).await?;
    let mut record = outcome(&row);
    record["credits"] = credits.iter().map(credit).collect();
    record["restatements"] = restatements.iter().map(restatement).collect();
    Reply::untyped_ok(&json!({"ok": true, "outcome": record}))
}

fn outcome(row: &OutcomeRow) -> Value {
    let premium = row.premium.map(Premium);
    json!({
        "outcome_id": row.id,
        "source_system": row.source_system,
        "source_event_id": row.source_event_id,
        "outcome_type": row.outcome_type,
        "contact_email": row.contact_email,
        "dot_number": row.dot_number,
        "contact_id": row.contact_id,
        "contact_matched": row.contact_id.is_some(),
        "matched_by": row.contact_key,
        "premium_amount": premium.map(Premium::dollars),
        "premium_cents": premium.and_then(Premium::cents),
        "value_cents": row.value_cents,
        "occurred_at": time(row.occurred_at),
        "attribution": {
            "status": status(row),
            "rule": row.rule,
            "model": row.model,
            "click_window_days": row.click_days,
            "delivery_window_days": row.delivery_days,
            "revision": row.revision,
            "credited_at": row.credited_at.map(time),
        },
        "created_at": time(row.created_at),
        "updated_at": time(row.updated_at),
    })
}

/// How far crediting is: `pending` until somebody has looked at it as it was told last.
fn status(row: &OutcomeRow) -> &'static str {
    match (row.is_pending, row.rule.is_some()) {
        (true, _) => "pending",
        (false, true) => "credited",
        (false, false) => "uncredited",
    }
}

/// A share of an outcome, from millionths.
fn share(millionths: i64) -> f64 {
    millionths as f64 / SHARE_WHOLE as f64
}

fn credit(row: &CreditRow) -> Value {
    json!({
        "send_id": row.send_id,
        "message_kind": row.kind,
        "campaign_id": row.campaign_id,
        "sequence_id": row.sequence_id,
        "contact_id": row.contact_id,
        "share": share(row.share.into()),
        "premium_amount": row.premium.map(|premium| Premium(premium).dollars()),
        "value_cents": row.value_cents,
        "rule": row.rule,
        "touched_at": time(row.touched_at),
        "evidence": row.evidence,
    })
}

fn restatement(row: &RestatementRow) -> Value {
    let credit = |stored: &Value| {
        json!({
            "send_id": id_in(stored, "send_id"),
            "campaign_id": id_in(stored, "campaign_id"),
            "share": share(stored["share"].as_i64().unwrap_or(0)),
            "premium_amount": stored["premium"].as_i64().map(|premium| Premium(premium).dollars()),
            "value_cents": stored["value_cents"],
        })
    };
    json!({
        "revision": row.revision,
        "restated_at": time(row.restated_at),
        "reason": row.reason,
        "rule": row.rule,
        "model": row.model,
        "click_window_days": row.click_days,
        "delivery_window_days": row.delivery_days,
        "credits": row.credits.as_array().into_iter().flatten().map(credit).collect::<Value>(),
    })
}

fn id_in(stored: &Value, name: &str) -> Option<Uuid> {
    stored[name].as_str().and_then(|text| schemas::parse_id(text).ok())
}
