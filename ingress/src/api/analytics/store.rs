//! What the reports read: totals and batches, and sends only for that by tags.

use chrono::{DateTime, NaiveDate, Utc};
use runtime::plans;
use schemas::{MessageKind, OutcomeType, WinnerMetric, WinnerReason};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    outcomes::OutcomeTypeSum,
    overview::{SequenceTriggerTotals, TopMessage},
    tags::TagTotals,
    totals::{MessageTotals, Rates},
    window::HourWindow,
};

/// Messages in the list of the best.
pub(super) const TOP: usize = 10;
/// Tags in their report.
pub(super) const TAGS: usize = 100;
/// Campaigns looked at for it, the newest first.
const CAMPAIGNS_LOOKED_AT: i64 = 200;

#[derive(Debug)]
pub(super) struct DayTotal {
    pub(super) day: NaiveDate,
    pub(super) kind: String,
    pub(super) event: String,
    pub(super) count: i64,
}

/// The totals of a row: all queries of reports name them alike.
macro_rules! totals {
    ($row:expr) => {
        MessageTotals {
            total: $row.total,
            sent: $row.sent,
            delivered: $row.delivered,
            delivered_confirmed: $row.confirmed,
            failed: $row.failed,
            unknown: $row.unknown,
            skipped: $row.skipped,
            bounced: $row.bounced,
            complained: $row.complained,
            opened: $row.opened,
            opened_human: $row.opened_human,
            clicked: $row.clicked,
            clicked_human: $row.clicked_human,
            unsubscribed: $row.unsubscribed,
            replied: $row.replied,
        }
    };
}

pub(super) async fn timezone(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<String> {
    sqlx::query_scalar!("select timezone from tenants where id = $1", tenant).fetch_one(db).await
}

pub(super) async fn days(db: &mut PgConnection, tenant: Uuid, window: &HourWindow) -> sqlx::Result<Vec<DayTotal>> {
    sqlx::query_file_as!(DayTotal, "queries/analytics_days.sql", tenant, window.from, window.to, window.timezone.name())
        .fetch_all(db)
        .await
}

/// The messages that were clicked most: campaigns, and templates of transactional mail.
pub(super) async fn top_messages(
    db: &mut PgConnection,
    tenant: Uuid,
    window: &HourWindow,
) -> sqlx::Result<Vec<TopMessage>> {
    let (limit, looked_at) = (i64::try_from(TOP).unwrap_or(i64::MAX), CAMPAIGNS_LOOKED_AT);
    let campaigns =
        sqlx::query_file!("queries/analytics_top_campaigns.sql", tenant, window.from, window.to, looked_at, limit)
            .fetch_all(&mut *db)
            .await?;
    let templates = sqlx::query_file!("queries/analytics_top_templates.sql", tenant, window.from, window.to, limit)
        .fetch_all(db)
        .await?;
    let campaigns = campaigns.into_iter().map(|row| {
        let totals = totals!(row);
        TopMessage {
            kind: "campaign",
            campaign_id: Some(row.id),
            template_id: None,
            sequence_id: None,
            name: row.name,
            launched_at: Some(row.launched_at).into(),
            totals,
            rates: Rates::from(&totals),
        }
    });
    let templates = templates.into_iter().map(|row| {
        let totals = totals!(row);
        TopMessage {
            kind: if row.sequence_id.is_nil() { "template" } else { "sequence" },
            campaign_id: None,
            template_id: Some(row.id),
            sequence_id: Some(row.sequence_id).filter(|sequence| !sequence.is_nil()),
            name: row.name,
            launched_at: None.into(),
            totals,
            // What was not sent of a template is not counted, so there is nothing to be a share of.
            rates: Rates { delivery_rate: None, bounce_rate: None, ..Rates::from(&totals) },
        }
    });
    let mut messages: Vec<TopMessage> = campaigns.chain(templates).collect();
    messages.sort_by_key(|message| {
        let totals = &message.totals;
        std::cmp::Reverse((totals.clicked_human, totals.opened_human, totals.sent))
    });
    messages.truncate(TOP);
    Ok(messages)
}

/// A campaign and its test, if it has one.
#[derive(Debug)]
pub(super) struct AnalysedCampaign {
    /// How much of its audience an A/B test has; `None`: there is no test.
    pub(super) test_percent: Option<i16>,
    pub(super) winner: Option<String>,
    pub(super) winner_reason: Option<WinnerReason>,
    pub(super) metric: Option<WinnerMetric>,
    pub(super) decided_at: Option<DateTime<Utc>>,
    pub(super) launched: bool,
}

pub(super) async fn campaign(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<AnalysedCampaign>> {
    sqlx::query_as!(
        AnalysedCampaign,
        r#"select test_percent, winner, winner_reason as "winner_reason: WinnerReason",
                  winner_metric as "metric: WinnerMetric", decided_at, launched_at is not null as "launched!"
           from campaigns where tenant_id = $1 and id = $2"#,
        tenant,
        id,
    )
    .fetch_optional(db)
    .await
}

/// The names of a campaign's variants, in their order.
pub(super) async fn variant_names(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
) -> sqlx::Result<Vec<(String, String)>> {
    let rows = sqlx::query!(
        "select variant, name from campaign_variants where tenant_id = $1 and campaign_id = $2 order by variant",
        tenant,
        id,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.variant, row.name)).collect())
}

/// The totals of a campaign, by variant.
pub(super) async fn by_variant(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
) -> sqlx::Result<Vec<(Option<String>, MessageTotals)>> {
    let rows = sqlx::query_file!("queries/analytics_campaign.sql", tenant, id).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| (row.variant, totals!(row))).collect())
}

/// The totals of sequence mail, by enrollment trigger.
pub(super) async fn sequence_triggers(
    db: &mut PgConnection,
    tenant: Uuid,
    window: &HourWindow,
) -> sqlx::Result<Vec<SequenceTriggerTotals>> {
    let rows = sqlx::query_file!("queries/analytics_sequence_triggers.sql", tenant, window.from, window.to)
        .fetch_all(db)
        .await?;
    let found =
        rows.into_iter().map(|row| SequenceTriggerTotals { totals: totals!(row), trigger_type: row.trigger_type });
    Ok(found.collect())
}

/// How many tags the mail has that was due within a window, and the most used ones: at most [`TAGS`], or the one that is asked for.
pub(super) async fn tags(
    db: &mut PgConnection,
    tenant: Uuid,
    window: &HourWindow,
    tag: Option<&str>,
) -> sqlx::Result<(i64, Vec<TagTotals>)> {
    // Sends are kept for longer than requests: those before the first request have no tags any more, and are not read.
    let first = sqlx::query_scalar!(
        "select id from requests
         where tenant_id = $1 and id >= first_id_at($2) and id < first_id_at($3)
         order by id limit 1",
        tenant,
        window.from,
        window.to,
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(first) = first else { return Ok((0, Vec::new())) };
    let limit = i64::try_from(TAGS).unwrap_or(i64::MAX);
    // The planner takes a range of ids for few rows, and would compare each of its requests with each of its sends.
    plans::many_rows(&mut *db).await?;
    let rows = sqlx::query_file!("queries/analytics_tags.sql", tenant, first, window.from, window.to, tag, limit)
        .fetch_all(&mut *db)
        .await?;
    plans::few_rows(db).await?;
    let count = rows.first().map_or(0, |row| row.tag_count);
    let tags = rows.into_iter().map(|row| {
        let totals = totals!(row);
        TagTotals { tag: row.tag, totals, rates: Rates::from(&totals) }
    });
    Ok((count, tags.collect()))
}

/// Outcomes that happened within a window.
pub(super) async fn outcomes(
    db: &mut PgConnection,
    tenant: Uuid,
    window: &HourWindow,
) -> sqlx::Result<Vec<OutcomeTypeSum>> {
    sqlx::query_file_as!(OutcomeTypeSum, "queries/analytics_outcomes.sql", tenant, window.from, window.to)
        .fetch_all(db)
        .await
}

/// Outcomes that a campaign is credited with.
pub(super) async fn campaign_outcomes(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
) -> sqlx::Result<Vec<OutcomeTypeSum>> {
    sqlx::query_as!(
        OutcomeTypeSum,
        r#"select 'campaign' as "kind: MessageKind", outcome_type as "outcome_type: OutcomeType", outcomes, share, premium, value_cents
           from campaign_outcomes where tenant_id = $1 and campaign_id = $2"#,
        tenant,
        campaign,
    )
    .fetch_all(db)
    .await
}
