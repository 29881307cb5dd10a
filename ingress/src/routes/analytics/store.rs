//! What the reports read: totals and batches, never sends.

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{totals::Totals, window::Window};

/// Messages in the list of the best.
pub(super) const TOP: usize = 10;
/// Campaigns looked at for it, the newest first.
pub(super) const CAMPAIGNS_LOOKED_AT: i64 = 200;

/// A total of a day.
#[derive(Debug)]
pub(super) struct DayTotal {
    pub(super) day: NaiveDate,
    pub(super) kind: String,
    pub(super) event: String,
    pub(super) count: i64,
}

/// A number by reason.
#[derive(Debug)]
pub(super) struct ByReason {
    pub(super) reason: String,
    pub(super) count: i64,
}

/// A campaign or template, and what became of it.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) campaign_id: Option<Uuid>,
    pub(super) template_id: Option<Uuid>,
    pub(super) name: String,
    pub(super) launched_at: Option<DateTime<Utc>>,
    pub(super) totals: Totals,
}

pub(super) async fn timezone(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<String> {
    sqlx::query_scalar!("select timezone from tenants where id = $1", tenant).fetch_one(db).await
}

pub(super) async fn days(db: &mut PgConnection, tenant: Uuid, window: &Window) -> sqlx::Result<Vec<DayTotal>> {
    sqlx::query_file_as!(DayTotal, "queries/analytics_days.sql", tenant, window.from, window.to, window.timezone.name())
        .fetch_all(db)
        .await
}

pub(super) async fn suppressions(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<Vec<ByReason>> {
    sqlx::query_file_as!(ByReason, "queries/analytics_suppressions.sql", tenant).fetch_all(db).await
}

pub(super) async fn new_suppressions(
    db: &mut PgConnection,
    tenant: Uuid,
    window: &Window,
) -> sqlx::Result<Vec<ByReason>> {
    sqlx::query_file_as!(ByReason, "queries/analytics_new_suppressions.sql", tenant, window.from, window.to)
        .fetch_all(db)
        .await
}

/// The messages that were clicked most: campaigns, and templates of transactional mail.
pub(super) async fn top_messages(db: &mut PgConnection, tenant: Uuid, window: &Window) -> sqlx::Result<Vec<Message>> {
    let (limit, looked_at) = (i64::try_from(TOP).unwrap_or(i64::MAX), CAMPAIGNS_LOOKED_AT);
    let campaigns =
        sqlx::query_file!("queries/analytics_top_campaigns.sql", tenant, window.from, window.to, looked_at, limit)
            .fetch_all(&mut *db)
            .await?;
    let templates = sqlx::query_file!("queries/analytics_top_templates.sql", tenant, window.from, window.to, limit)
        .fetch_all(db)
        .await?;
    let campaigns = campaigns.into_iter().map(|row| Message {
        campaign_id: Some(row.id),
        template_id: None,
        name: row.name,
        launched_at: Some(row.launched_at),
        totals: Totals {
            total: row.total,
            sent: row.sent,
            delivered: row.sent,
            delivered_confirmed: row.delivered,
            failed: row.failed,
            unknown: row.unknown,
            skipped: row.skipped,
            bounced: row.bounced,
            complained: row.complained,
            opened: row.opened,
            opened_human: row.opened_human,
            clicked: row.clicked,
            clicked_human: row.clicked_human,
            unsubscribed: row.unsubscribed,
        },
    });
    let templates = templates.into_iter().map(|row| Message {
        campaign_id: None,
        template_id: Some(row.id),
        name: row.name,
        launched_at: None,
        totals: Totals {
            total: row.sent,
            sent: row.sent,
            delivered: row.sent,
            bounced: row.bounced,
            complained: row.complained,
            opened: row.opened,
            opened_human: row.opened_human,
            clicked: row.clicked,
            clicked_human: row.clicked_human,
            unsubscribed: row.unsubscribed,
            ..Totals::default()
        },
    });
    let mut messages: Vec<Message> = campaigns.chain(templates).collect();
    messages.sort_by_key(|message| {
        let totals = &message.totals;
        std::cmp::Reverse((totals.clicked_human, totals.opened_human, totals.sent))
    });
    messages.truncate(TOP);
    Ok(messages)
}

/// A campaign and its test, if it has one.
#[derive(Debug)]
pub(super) struct Campaign {
    pub(super) tested: bool,
    pub(super) winner: Option<String>,
    pub(super) winner_reason: Option<String>,
    pub(super) decided_at: Option<DateTime<Utc>>,
    pub(super) launched: bool,
}

pub(super) async fn campaign(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<Campaign>> {
    sqlx::query_as!(
        Campaign,
        r#"select test_percent is not null as "tested!", winner, winner_reason, decided_at, launched_at is not null as "launched!"
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

/// What became of a campaign, by variant.
pub(super) async fn by_variant(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
) -> sqlx::Result<Vec<(Option<String>, Totals)>> {
    let rows = sqlx::query_file!("queries/analytics_campaign.sql", tenant, id).fetch_all(db).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let totals = Totals {
                total: row.total,
                sent: row.sent,
                delivered: row.sent,
                delivered_confirmed: row.delivered,
                failed: row.failed,
                unknown: row.unknown,
                skipped: row.skipped,
                bounced: row.bounced,
                complained: row.complained,
                opened: row.opened,
                opened_human: row.opened_human,
                clicked: row.clicked,
                clicked_human: row.clicked_human,
                unsubscribed: row.unsubscribed,
            };
            (row.variant, totals)
        })
        .collect())
}
