//! `POST /v1/campaigns/{id}/launch`: the draft is in preflight while the audience is counted; then it becomes scheduled or sending, and
//! the audience stage is notified. One of many launches at the same time wins; the others are answered 409.

use std::{collections::BTreeMap, sync::Arc};

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use ledger::audience::{AudienceCount, AudienceSelector, CountedCampaign, WaitFacts};
use ledger::frequency::Urgency;
use ledger::requests::{self, RequestRow};
use schemars::JsonSchema;
use schemas::{
    CampaignStatus, Environment, MessageKind, OnMiss, RequestAnnounced, RequestKind, SkipReason,
    messages::CampaignLaunchPayload, subjects,
};
use segments::SegmentError;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{
    already, content, find, quota,
    rows::{CampaignRow, LOCAL_TIME_PATTERN, as_local_time},
    sample::{self, RecipientRenderFault, Sample},
    schedule::{ContactTimes, Schedule, ScheduleText, WaitingContacts},
    store,
};
use crate::{
    api::senders::store as senders,
    pipeline::{
        ApiReply, RequestContext,
        error::{ApiError, counts_by_reason},
        page::{OptionalTime, Time},
        request_notice,
        types::counts,
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LaunchCampaign {
    /// Not more than 5 minutes past nor a year ahead.
    #[schemars(extend("format" = "date-time"))]
    schedule_for: Option<String>,
    /// A time of the day in each recipient's time zone, that of the tenant for contacts without one. Where it has passed for more than an
    /// hour, the mail is due at the next day's.
    #[schemars(regex(pattern = LOCAL_TIME_PATTERN))]
    schedule_for_local: Option<String>,
    dry_run: Option<bool>,
    digest: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct CampaignLaunched {
    campaign_id: Uuid,
    /// Will be attempted.
    queued: i64,
    /// Would be withheld when the mail is due: suppressed, opted out, invalid, without room under the frequency cap, or past `not_after`.
    skipped: i64,
    scheduled_for: OptionalTime,
    #[serde(serialize_with = "as_local_time")]
    #[schemars(with = "Option<String>")]
    scheduled_for_local: Option<NaiveDateTime>,
    ab_variants: Vec<LaunchedVariant>,
    /// Of those that are queued: who gets the mail later than the others, why, and when.
    waiting: Vec<WaitingContacts>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
struct LaunchedVariant {
    #[schemars(extend("enum" = ledger::audience::VARIANT_NAMES))]
    variant: String,
    name: String,
    /// Will be attempted in the test.
    count: i64,
}

/// What a launch would do.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LaunchPreview {
    #[serde(flatten)]
    launch: CampaignLaunched,
    #[schemars(extend("const" = true))]
    dry_run: bool,
    #[schemars(with = "BTreeMap<String, u64>", extend("propertyNames" = json!({"enum": SkipReason::ALL})))]
    skipped_by_reason: BTreeMap<SkipReason, i64>,
    /// Give it to the launch with the same schedule, and it sends to exactly this audience or answers 409.
    digest: String,
    sampled: usize,
    render_faults: Vec<RecipientRenderFault>,
    send_quota: QuotaPreview,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
struct QuotaPreview {
    /// When the launch is due, should nothing be sent before. Null: no limit.
    remaining: Option<i64>,
    resets_at: Time,
    /// The launch would be answered 429.
    exceeded: bool,
}

/// A launch that nothing speaks against.
struct Launch {
    row: CampaignRow,
    selector: AudienceSelector,
    schedule: Schedule,
    digest: Option<String>,
    count: AudienceCount,
    times: ContactTimes,
    content_id: Uuid,
    /// What each variant says, in their order.
    variant_contents: Vec<Uuid>,
    /// What a dry run rendered.
    sample: Option<Sample>,
}

pub(super) async fn launch(ctx: &mut RequestContext, body: LaunchCampaign) -> Result<ApiReply, ApiError> {
    let id = ctx.id("campaign")?;
    let schedule = ScheduleText { at: body.schedule_for, local: body.schedule_for_local };
    let dry_run = body.dry_run.unwrap_or(false);
    let row = if dry_run { find(ctx).await? } else { begin(ctx, id).await? };
    let launch = prepare(ctx, row, schedule, body.digest, dry_run).await?;
    let left = quota::remaining_at(ctx, launch.schedule.due.unwrap_or_else(Utc::now)).await?;
    let answer = launch.answer();
    if let Some(sample) = launch.sample {
        return ApiReply::ok(&LaunchPreview {
            launch: answer,
            dry_run: true,
            skipped_by_reason: launch.count.skipped.into_iter().collect(),
            digest: launch.count.digest,
            sampled: sample.size,
            render_faults: sample.faults,
            send_quota: QuotaPreview {
                remaining: left.remaining,
                resets_at: left.resets_at.into(),
                exceeded: !left.fits(launch.count.queued),
            },
        });
    }
    quota::check(&left, launch.count.queued)?;
    commit_to_it(ctx, launch).await?;
    ApiReply::accepted(&answer)
}

/// Checks everything a launch needs, and counts.
async fn prepare(
    ctx: &mut RequestContext,
    row: CampaignRow,
    schedule: ScheduleText,
    digest: Option<String>,
    dry_run: bool,
) -> Result<Launch, ApiError> {
    let tenant = ctx.tenant;
    if row.status != CampaignStatus::Draft {
        return Err(already(row.status));
    }
    let now = Utc::now();
    let schedule = schedule.read(&row, now)?;
    senders::require_ready(ctx.db(), tenant, row.sender_profile_id).await?;
    // A draft only names audiences that exist; a missing one is empty.
    let selector = row.selector().ok_or_else(|| ApiError::unprocessable("audience_resolved_to_zero_contacts"))?;
    // Before the audience is counted: what is rendered or checked is done without this transaction, and the handler begins anew.
    let (content_id, variant_contents) = refresh_contents(ctx, &row).await?;
    let mailed = match variant_contents.as_slice() {
        [] => std::slice::from_ref(&content_id),
        variants => variants,
    };
    let sample = if dry_run { Some(sample::render(ctx, &row, mailed).await?) } else { None };
    let (count, times) = count_audience(ctx, &row, &selector, &schedule, now).await?;
    check(&count, digest.as_deref())?;
    Ok(Launch { row, selector, schedule, digest, count, times, content_id, variant_contents, sample })
}

/// Counts the audience as the gate would decide about it when the mail is due, up to the end of the campaign's window.
async fn count_audience(
    ctx: &mut RequestContext,
    row: &CampaignRow,
    selector: &AudienceSelector,
    schedule: &Schedule,
    now: DateTime<Utc>,
) -> Result<(AudienceCount, ContactTimes), ApiError> {
    let tenant = ctx.tenant;
    let mail = (MessageKind::Campaign, row.classification);
    let times = ContactTimes {
        classification: row.classification,
        quiet: ledger::gate::load_rule(ctx.db(), tenant, mail).await?,
        tenant_zone: store::tenant_zone(ctx.db(), tenant).await?,
    };
    let due = schedule.due.unwrap_or(now);
    let campaign = CountedCampaign {
        id: row.id,
        classification: row.classification,
        urgency: Urgency::from_column(Some(&row.urgency)),
        split: &row.split(),
        by_zone: schedule.local.is_some() || times.quiet.is_some_and(|(_, by_contact)| by_contact),
        due,
        rest_due: row.remainder_due(due),
        local: schedule.local.map(|local| (local, times.tenant_zone)),
    };
    let mut count = ledger::audience::count_for(ctx.db(), tenant, selector, campaign).await.map_err(count_fault)?;
    let mut delay = row.remainder_delay();
    let is_untested = count.mailed.keys().all(|facts| facts.part >= campaign.split.variants());
    if delay.is_some() && count.queued > 0 && is_untested {
        // A test of which no mail is sent is decided at once.
        delay = Some(TimeDelta::zero());
        let at_once = CountedCampaign { rest_due: None, ..campaign };
        count = ledger::audience::count_for(ctx.db(), tenant, selector, at_once).await.map_err(count_fault)?;
    }
    apply_window(row, &mut count, &times, schedule, now, delay)?;
    Ok((count, times))
}

/// An audience whose count ran into the time limit may do so each time: the bus does not repeat it without end.
fn count_fault(error: sqlx::Error) -> ApiError {
    let is_timeout = runtime::db::is_timeout(&error);
    let answer = ApiError::from(error);
    if is_timeout {
        let detail = "the audience could not be counted in time; a segment with fewer conditions is quicker";
        return ApiError { code: "audience_too_slow".into(), ..answer }.detail(detail);
    }
    answer
}

impl Launch {
    fn answer(&self) -> CampaignLaunched {
        let variants = self.row.variants.iter().enumerate().map(|(part, row)| {
            let mailed = self.count.mailed.iter().filter(|(facts, _)| facts.part == part);
            LaunchedVariant {
                variant: row.variant.clone(),
                name: row.name.clone(),
                count: mailed.map(|(_, count)| count).sum(),
            }
        });
        CampaignLaunched {
            campaign_id: self.row.id,
            queued: self.count.queued,
            skipped: self.count.total - self.count.queued,
            scheduled_for: self.schedule.due.into(),
            scheduled_for_local: self.schedule.local,
            ab_variants: variants.collect(),
            waiting: self.times.waiting(&self.count.mailed, &self.schedule, Utc::now()),
        }
    }
}

/// When the window of a campaign closes, unless its mail is sent all the same.
fn window_end(row: &CampaignRow) -> Option<DateTime<Utc>> {
    row.not_after.filter(|_| row.on_miss != OnMiss::Send)
}

/// Refuses another time for a launch if the launch or the decision of its A/B test would not come before the window closes. Request and
/// campaign are locked, so the audience is not counted: mail that quiet hours or a local time keep beyond the window is not found here.
pub(super) fn check_window(row: &CampaignRow, starts_at: DateTime<Utc>) -> Result<(), ApiError> {
    let Some(closes_at) = window_end(row) else { return Ok(()) };
    refuse_missed(closes_at, starts_at, row.remainder_due(starts_at))
}

/// Refuses a launch whose first mail, or the first that waits for the decision of its A/B test, would not leave before the window closes.
fn refuse_missed(closes_at: DateTime<Utc>, first: DateTime<Utc>, rest: Option<DateTime<Utc>>) -> Result<(), ApiError> {
    let missed = |detail: &'static str| Err(ApiError::unprocessable("window_missed").detail(detail));
    if closes_at <= first {
        return missed("no mail would leave before not_after");
    }
    if rest.is_some_and(|rest| closes_at <= rest) {
        return missed("not_after is not after the time at which the A/B test is decided");
    }
    Ok(())
}

/// Refuses a launch whose mails, or those that wait for the decision of an A/B test, would all be skipped or paused when the window closes.
/// Otherwise counts as skipped those that would be. `delay`: how long after the test the others wait.
fn apply_window(
    row: &CampaignRow,
    count: &mut AudienceCount,
    times: &ContactTimes,
    schedule: &Schedule,
    now: DateTime<Utc>,
    delay: Option<TimeDelta>,
) -> Result<(), ApiError> {
    let Some(closes_at) = window_end(row) else { return Ok(()) };
    let (split, start) = (row.split(), schedule.due.unwrap_or(now));
    let is_rest = |facts: &WaitFacts| delay.is_some() && facts.part >= split.variants();
    let leave = |is_of_rest: bool, schedule: &Schedule| -> Vec<DateTime<Utc>> {
        let of_these = count.mailed.keys().filter(|facts| is_rest(facts) == is_of_rest);
        of_these.map(|facts| times.leaves(facts, schedule, now).0).collect()
    };
    let at_once = leave(false, schedule);
    let first = at_once.iter().copied().min().unwrap_or(start);
    // The rest of a test's audience gets its mail when the test is decided: a while after the last mail of the test.
    let tested_at = at_once.into_iter().max().unwrap_or(start);
    let decided_at = delay.map(|delay| tested_at + delay);
    let rest_schedule = Schedule { due: decided_at, local: None };
    let rest = decided_at.map(|at| leave(true, &rest_schedule).into_iter().min().unwrap_or(at));
    refuse_missed(closes_at, first, rest)?;
    if row.on_miss == OnMiss::Skip {
        count.mailed.retain(|facts, _| {
            let schedule = if is_rest(facts) { &rest_schedule } else { schedule };
            times.leaves(facts, schedule, now).0 < closes_at
        });
        let queued: i64 = count.mailed.values().sum();
        let skipped = count.queued - queued;
        if skipped > 0 {
            count.skipped.push((SkipReason::WindowMissed, skipped));
        }
        count.queued = queued;
    }
    Ok(())
}

/// The contents of campaign and variants, with the current versions of their templates and snippets.
async fn refresh_contents(ctx: &mut RequestContext, row: &CampaignRow) -> Result<(Uuid, Vec<Uuid>), ApiError> {
    let campaign = &row.content.0;
    let content_id = content::refresh_content(ctx, campaign, row.content_id).await?;
    let mut variant_contents = Vec::with_capacity(row.variants.len());
    for (at, variant) in row.variants.iter().enumerate() {
        let own = variant.content.or_campaign(campaign);
        variant_contents.push(match own == *campaign {
            true => content_id,
            false => content::refresh_content(ctx, &own, variant.content_id)
                .await
                .map_err(|error| content::within_variant(error, at))?,
        });
    }
    Ok((content_id, variant_contents))
}

/// Puts the campaign into preflight, then waits for its row: a change of the draft takes a moment, and this launch is the only one
/// that waits.
async fn begin(ctx: &mut RequestContext, id: Uuid) -> Result<CampaignRow, ApiError> {
    let tenant = ctx.tenant;
    if !store::begin_preflight(ctx.db(), tenant, id).await? {
        let row = find(ctx).await?;
        // A draft by now: the other launch has just ended.
        return Err(already(if row.status == CampaignStatus::Draft { CampaignStatus::Preflight } else { row.status }));
    }
    store::lock(ctx.db(), tenant, id).await?.ok_or_else(|| ApiError::not_found("campaign"))
}

fn check(count: &AudienceCount, digest: Option<&str>) -> Result<(), ApiError> {
    if count.total == 0 {
        return Err(ApiError::unprocessable("audience_resolved_to_zero_contacts"));
    }
    if count.queued == 0 {
        let counts = counts_by_reason(count.skipped.iter().map(|(reason, count)| (reason.as_str(), *count)));
        return Err(ApiError::unprocessable("all_contacts_suppressed_or_bounced")
            .detail(format!("every contact would be skipped ({counts})")));
    }
    if digest.is_some_and(|digest| digest != count.digest) {
        return Err(audience_changed());
    }
    Ok(())
}

fn audience_changed() -> ApiError {
    ApiError::conflict("audience_changed").detail("the audience is not the one the digest was made for")
}

/// Changes the draft's status, stores the request and announces it. The sweep announces a scheduled one when it is due. With a
/// digest the audience is written down: what was answered for is mailed, whatever joins or leaves until it is looked up.
async fn commit_to_it(ctx: &mut RequestContext, launch: Launch) -> Result<(), ApiError> {
    let (tenant, id, caller) = (ctx.tenant, launch.row.id, Arc::clone(&ctx.caller));
    if launch.digest.is_some() {
        let pinned = ledger::audience::pin(ctx.db(), tenant, &launch.selector, id).await;
        let pinned = pinned.map_err(|error| match error {
            SegmentError::Store(error) => count_fault(error),
            error => error.into(),
        })?;
        // Counted and pinned in two statements: the audience may have changed in between.
        if pinned != launch.count.members {
            return Err(audience_changed());
        }
    }
    if !store::launch(ctx.db(), tenant, id, launch.content_id, &launch.schedule).await? {
        let status = store::get(ctx.db(), tenant, id).await?.map_or(CampaignStatus::Sending, |row| row.status);
        return Err(already(status));
    }
    for (variant, content_id) in launch.row.variants.iter().zip(&launch.variant_contents) {
        store::set_variant_content(ctx.db(), tenant, id, &variant.variant, *content_id).await?;
    }
    store::empty_replaced_contents(ctx.db(), tenant, id, &store::contents_of(&launch.row)).await?;
    let payload = CampaignLaunchPayload { campaign_id: id, digest: launch.digest };
    let (request_id, kind, due_at) = (schemas::new_id(), RequestKind::CampaignLaunch, launch.schedule.due);
    let row = RequestRow { id: request_id, payload: &payload, options: None, due_at };
    requests::insert(ctx.db(), &caller.requester(tenant), kind, &[row], false).await?;
    runtime::trace::keep(ctx.db(), tenant, request_id).await?;
    ctx.audit("campaign.launch", &id.to_string(), json!({"request_id": request_id})).await?;
    if due_at.is_none() {
        announce(ctx, &caller.product, caller.environment, request_id).await?;
    }
    Ok(())
}

/// Announces a launch that is due to the audience stage, after the commit; unless an older one of the tenant comes first.
pub(super) async fn announce(
    ctx: &mut RequestContext,
    product: &str,
    environment: Environment,
    request_id: Uuid,
) -> Result<(), ApiError> {
    let tenant = ctx.tenant;
    if store::leave_to_sweep(ctx.db(), tenant, request_id).await? {
        return Ok(());
    }
    let kind = RequestKind::CampaignLaunch;
    let notice = RequestAnnounced::of(tenant, request_id, kind);
    ctx.announce(request_notice(subjects::accepted(product, environment, kind), &notice)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::audience::AudienceMembers;
    use rstest::rstest;

    fn counted(total: i64, queued: i64, skipped: Vec<(SkipReason, i64)>) -> AudienceCount {
        AudienceCount {
            total,
            queued,
            skipped,
            digest: "d".to_owned(),
            members: AudienceMembers::default(),
            mailed: BTreeMap::new(),
        }
    }

    #[rstest]
    #[case(0, 0, None, Some("audience_resolved_to_zero_contacts"))]
    #[case(3, 0, None, Some("all_contacts_suppressed_or_bounced"))]
    #[case(3, 1, None, None)]
    #[case(3, 1, Some("d"), None)]
    #[case(3, 1, Some("other"), Some("audience_changed"))]
    fn an_audience_must_be_there_and_be_the_one_that_was_seen(
        #[case] total: i64,
        #[case] queued: i64,
        #[case] digest: Option<&str>,
        #[case] code: Option<&str>,
    ) {
        let count = counted(total, queued, Vec::new());
        assert_eq!(check(&count, digest).err().map(|error| error.code.into_owned()).as_deref(), code);
    }

    #[test]
    fn an_audience_that_nobody_is_left_of_says_why() {
        let count = counted(3, 0, vec![(SkipReason::FrequencyCap, 2), (SkipReason::NoConsent, 1)]);
        let detail = check(&count, None).unwrap_err().detail.unwrap();
        assert!(detail.contains("frequency_cap: 2") && detail.contains("no_consent: 1"), "{detail}");
    }
}
