//! `PATCH /v1/campaigns/{id}`: the fields of a draft, its status, a pause, or its time.

use chrono::{NaiveDateTime, Utc};
use schemars::JsonSchema;
use schemas::{CampaignStatus, Classification};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    already,
    draft::{CampaignBody, CampaignRequest, ChangeCampaign},
    find, launch,
    rows::as_local_time,
    schedule::ScheduleText,
    store,
};
use crate::{
    api::templates::content::ContentWarning,
    pipeline::{ApiReply, Faults, RequestContext, error::ApiError, page::OptionalTime, time},
};

/// The change of a PATCH: one at a time, so that none is applied in part.
#[derive(Debug, PartialEq, Eq)]
enum CampaignChange {
    Nothing,
    Fields,
    Cancel,
    Pause(bool),
    Reschedule(ScheduleText),
    BackToDraft,
}

fn kind_of_change(body: &CampaignBody) -> Result<CampaignChange, ApiError> {
    let mut faults = Faults::default();
    let status = body.status.clone().into_option();
    let paused = body.paused.into_option();
    let schedule = body.schedule_for.clone().into_option();
    let local = body.schedule_for_local.clone().into_option();
    let given = [status.is_some(), paused.is_some(), schedule.is_some(), local.is_some(), body.has_fields()];
    let given = given.into_iter().filter(|given| *given).count();
    let detail = "change fields, status, paused, schedule_for or schedule_for_local: one at a time";
    faults.require(given <= 1, "", "ambiguous", detail);
    if let Some(status) = &status {
        faults.one_of("status", status.as_deref().unwrap_or_default(), &["cancelled", "draft"]);
    }
    faults.require(paused != Some(None), "paused", "wrong_type", "must be true or false");
    faults.require(schedule != Some(None), "schedule_for", "wrong_type", "must be a time");
    faults.require(local != Some(None), "schedule_for_local", "wrong_type", "must be a time");
    faults.finish()?;
    let schedule = ScheduleText { at: schedule.flatten(), local: local.flatten() };
    let schedule = Some(schedule).filter(|schedule| *schedule != ScheduleText::default());
    Ok(match (status.flatten().as_deref(), paused.flatten(), schedule) {
        (Some("draft"), ..) => CampaignChange::BackToDraft,
        (Some(_), ..) => CampaignChange::Cancel,
        (None, Some(paused), _) => CampaignChange::Pause(paused),
        (None, None, Some(at)) => CampaignChange::Reschedule(at),
        (None, None, None) if body.has_fields() => CampaignChange::Fields,
        (None, None, None) => CampaignChange::Nothing,
    })
}

/// Whether a campaign may be changed like this.
fn allows(status: CampaignStatus, change: &CampaignChange) -> bool {
    use CampaignStatus::{Draft, Preflight, Scheduled, Sending};
    match change {
        CampaignChange::Nothing => true,
        CampaignChange::Fields => status == Draft,
        CampaignChange::Cancel => matches!(status, Draft | Preflight | Scheduled | Sending),
        CampaignChange::Pause(_) => matches!(status, Scheduled | Sending),
        CampaignChange::Reschedule(_) => status == Scheduled,
        CampaignChange::BackToDraft => matches!(status, Draft | Scheduled),
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct CampaignChanged {
    campaign_id: Uuid,
    status: CampaignStatus,
    paused: bool,
    email_type: Classification,
    scheduled_for: OptionalTime,
    #[serde(serialize_with = "as_local_time")]
    #[schemars(with = "Option<String>")]
    scheduled_for_local: Option<NaiveDateTime>,
    /// About bodies of the campaign that were given now, as those of a template.
    warnings: Vec<ContentWarning>,
}

pub(super) async fn change(
    ctx: &mut RequestContext,
    ChangeCampaign(body): ChangeCampaign,
) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("campaign")?);
    let change = kind_of_change(&body)?;
    // A launch holds the row for as long as it counts; only a cancel or a pause is worth waiting for its end.
    let before = find(ctx).await?;
    if before.status == CampaignStatus::Preflight
        && !matches!(change, CampaignChange::Cancel | CampaignChange::Pause(_))
    {
        return Err(already(before.status));
    }
    let waiting = match change {
        CampaignChange::Reschedule(_) | CampaignChange::BackToDraft => {
            store::lock_waiting_launch(ctx.db(), tenant, id).await?
        }
        _ => None,
    };
    let row = store::lock(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))?;
    if !allows(row.status, &change) {
        return Err(already(row.status));
    }
    let mut warnings = Vec::new();
    match change {
        CampaignChange::Nothing => {}
        CampaignChange::Fields => {
            let contents = store::contents_of(&row);
            let draft = CampaignRequest::of(row, body).resolve(ctx).await?;
            store::write(ctx, id, &draft).await?;
            store::empty_replaced_contents(ctx.db(), tenant, id, &contents).await?;
            ctx.audit("campaign.changed", &id.to_string(), json!({})).await?;
            warnings = draft.warnings;
        }
        CampaignChange::Cancel => {
            store::cancel(ctx.db(), tenant, id).await?;
            ctx.audit("campaign.cancel", &id.to_string(), json!({"from": row.status})).await?;
        }
        CampaignChange::Pause(paused) => {
            store::pause(ctx.db(), tenant, id, paused).await?;
            ctx.audit("campaign.pause", &id.to_string(), json!({"paused": paused, "was": row.pause_reason})).await?;
        }
        CampaignChange::Reschedule(at) => {
            // Its launch was rejected: it goes back to draft, and is launched anew.
            let waiting = waiting.ok_or_else(|| already(row.status))?;
            let now = Utc::now();
            let schedule = at.read(&row, now)?;
            let starts_at = schedule.due.unwrap_or(now);
            launch::check_window(&row, starts_at)?;
            store::reschedule(ctx.db(), tenant, id, waiting.request_id, (starts_at, schedule.local)).await?;
            if schedule.due.is_none() {
                launch::announce(ctx, &waiting.product, waiting.environment, waiting.request_id).await?;
            }
            ctx.audit("campaign.reschedule", &id.to_string(), json!({"was": row.scheduled_for.map(time)})).await?;
        }
        CampaignChange::BackToDraft if row.status == CampaignStatus::Draft => {}
        CampaignChange::BackToDraft => {
            store::back_to_draft(ctx.db(), tenant, id).await?;
            ctx.audit("campaign.back_to_draft", &id.to_string(), json!({"was": row.scheduled_for.map(time)})).await?;
        }
    }
    let row = find(ctx).await?;
    ApiReply::ok(&CampaignChanged {
        campaign_id: id,
        status: row.status,
        paused: row.paused,
        email_type: row.classification,
        scheduled_for: row.scheduled_for,
        scheduled_for_local: row.scheduled_for_local,
        warnings,
    })
}

/// Why a campaign is not paused or resumed.
#[derive(Debug, thiserror::Error)]
pub enum PauseRefused {
    /// There is no campaign with this id.
    #[error("no such campaign")]
    NotFound,
    /// Its status allows no pause.
    #[error("the campaign is {0}")]
    Already(CampaignStatus),
    /// Postgres was away.
    #[error("the ledger")]
    Store(#[from] sqlx::Error),
}

/// Pauses or resumes a campaign for an operator, under the lock and the conditions of the API. Returns true if it was paused before.
///
/// # Errors
/// [`PauseRefused`]
pub async fn set_paused(db: &mut PgConnection, tenant: Uuid, id: Uuid, paused: bool) -> Result<bool, PauseRefused> {
    let row = store::lock(&mut *db, tenant, id).await?.ok_or(PauseRefused::NotFound)?;
    if !allows(row.status, &CampaignChange::Pause(paused)) {
        return Err(PauseRefused::Already(row.status));
    }
    store::pause(db, tenant, id, paused).await?;
    Ok(row.paused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::Value;

    #[rstest]
    #[case(json!({}), Ok(CampaignChange::Nothing))]
    #[case(json!({"name": "x"}), Ok(CampaignChange::Fields))]
    #[case(json!({"preheader": null}), Ok(CampaignChange::Fields))]
    #[case(json!({"status": "cancelled"}), Ok(CampaignChange::Cancel))]
    #[case(json!({"paused": true}), Ok(CampaignChange::Pause(true)))]
    #[case(json!({"paused": false}), Ok(CampaignChange::Pause(false)))]
    #[case(json!({"paused": null}), Err("wrong_type"))]
    #[case(json!({"status": "draft"}), Ok(CampaignChange::BackToDraft))]
    #[case(json!({"schedule_for": "x"}), Ok(CampaignChange::Reschedule(ScheduleText { at: Some("x".to_owned()), local: None })))]
    #[case(json!({"schedule_for_local": "x"}), Ok(CampaignChange::Reschedule(ScheduleText { at: None, local: Some("x".to_owned()) })))]
    #[case(json!({"schedule_for_local": "x", "schedule_for": "x"}), Err("ambiguous"))]
    #[case(json!({"schedule_for": null}), Err("wrong_type"))]
    #[case(json!({"schedule_for": "x", "name": "x"}), Err("ambiguous"))]
    #[case(json!({"status": "sending"}), Err("not_allowed"))]
    #[case(json!({"status": null}), Err("not_allowed"))]
    #[case(json!({"status": "cancelled", "paused": true}), Err("ambiguous"))]
    #[case(json!({"status": "cancelled", "name": "x"}), Err("ambiguous"))]
    fn a_patch_asks_for_one_thing(#[case] body: Value, #[case] expected: Result<CampaignChange, &str>) {
        let found = kind_of_change(&serde_json::from_value(body).unwrap());
        assert_eq!(
            found.as_ref().map_err(|error| error.fields[0].code.as_ref()),
            expected.as_ref().map_err(|code| *code)
        );
    }

    /// Which statuses allow what: fields, cancel, pause, another time, back to draft.
    #[rstest]
    #[case(CampaignStatus::Draft, [true, true, false, false, true])]
    #[case(CampaignStatus::Preflight, [false, true, false, false, false])]
    #[case(CampaignStatus::Scheduled, [false, true, true, true, true])]
    #[case(CampaignStatus::Sending, [false, true, true, false, false])]
    #[case(CampaignStatus::Sent, [false, false, false, false, false])]
    #[case(CampaignStatus::Cancelled, [false, false, false, false, false])]
    fn the_status_decides_what_may_change(#[case] status: CampaignStatus, #[case] expected: [bool; 5]) {
        let changes = [
            CampaignChange::Fields,
            CampaignChange::Cancel,
            CampaignChange::Pause(true),
            CampaignChange::Reschedule(ScheduleText::default()),
            CampaignChange::BackToDraft,
        ];
        let found = changes.map(|change| allows(status, &change));
        assert_eq!(found, expected);
    }
}
