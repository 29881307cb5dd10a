//! Outcomes as they are read. They are written by [`ledger::outcomes::record`], their credits by the attribution stage.

use ledger::outcomes::Premium;
use schemas::{MessageKind, OutcomeType};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{
    CreditPart, CreditPolicy, ListOutcomes, OutcomeAttribution, OutcomeCredit, OutcomeRestatement, OutcomeView,
    StoredPart,
};
use crate::pipeline::ListPage;

/// A page of outcomes, or the one with an id.
pub(super) async fn list(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Option<Uuid>,
    query: &ListOutcomes,
    page: &ListPage,
) -> sqlx::Result<Vec<OutcomeView>> {
    let rows = sqlx::query_file!(
        "queries/outcomes.sql",
        tenant,
        id,
        query.contact_id.map(|id| id.0),
        query.campaign_id.map(|id| id.0),
        query.outcome_type.map(OutcomeType::as_str),
        query.since.map(|at| at.0),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(db)
    .await?;
    let outcomes = rows.into_iter().map(|row| {
        let premium = row.premium.map(Premium);
        let status = match (row.is_pending, row.rule.is_some()) {
            (true, _) => "pending",
            (false, true) => "credited",
            (false, false) => "uncredited",
        };
        OutcomeView {
            outcome_id: row.id,
            source_system: row.source_system,
            source_event_id: row.source_event_id,
            outcome_type: row.outcome_type,
            contact_email: row.contact_email,
            dot_number: row.dot_number,
            contact_id: row.contact_id,
            contact_matched: row.contact_id.is_some(),
            matched_by: row.contact_key,
            premium_amount: premium.map(Premium::dollars),
            premium_cents: premium.and_then(Premium::cents),
            value_cents: row.value_cents,
            occurred_at: row.occurred_at.into(),
            attribution: OutcomeAttribution {
                policy: CreditPolicy {
                    rule: row.rule,
                    model: row.model,
                    click_window_days: row.click_days,
                    delivery_window_days: row.delivery_days,
                },
                status,
                revision: row.revision,
                credited_at: row.credited_at.into(),
            },
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        }
    });
    Ok(outcomes.collect())
}

pub(super) async fn get(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Option<OutcomeView>> {
    Ok(list(db, tenant, Some(id), &ListOutcomes::default(), &ListPage::ONE).await?.pop())
}

/// The mails that an outcome is credited to, the latest touch first.
pub(super) async fn credits(db: &mut PgConnection, tenant: Uuid, outcome: Uuid) -> sqlx::Result<Vec<OutcomeCredit>> {
    let rows = sqlx::query!(
        r#"select c.send_id, c.kind as "kind: MessageKind", c.campaign_id, s.sequence_id as "sequence_id?", c.contact_id, c.share,
                  c.premium, c.value_cents, o.rule, c.touched_at, c.evidence
           from outcomes o
           join outcome_credits c on c.tenant_id = o.tenant_id and c.outcome_id = o.id
           left join sequence_sends s on s.tenant_id = c.tenant_id and s.send_id = c.send_id
           where o.tenant_id = $1 and o.id = $2
           order by c.touched_at desc, c.send_id desc"#,
        tenant,
        outcome,
    )
    .fetch_all(db)
    .await?;
    let credits = rows.into_iter().map(|row| OutcomeCredit {
        part: CreditPart::of(StoredPart {
            send_id: row.send_id,
            campaign_id: row.campaign_id,
            share: row.share.into(),
            premium: row.premium,
            value_cents: row.value_cents,
        }),
        message_kind: row.kind,
        sequence_id: row.sequence_id,
        contact_id: row.contact_id,
        rule: row.rule,
        touched_at: row.touched_at.into(),
        evidence: row.evidence,
    });
    Ok(credits.collect())
}

/// How often a credit is shown to have been set: the newest.
pub(super) const RESTATEMENTS_MAX: i64 = 100;

/// The credits that an outcome had, the present one first.
pub(super) async fn restatements(
    db: &mut PgConnection,
    tenant: Uuid,
    outcome: Uuid,
) -> sqlx::Result<Vec<OutcomeRestatement>> {
    let rows = sqlx::query!(
        r#"select revision, restated_at, reason, rule, model, click_days, delivery_days, credits as "credits: Json<Vec<StoredPart>>"
           from outcome_restatements where tenant_id = $1 and outcome_id = $2 order by revision desc limit $3"#,
        tenant,
        outcome,
        RESTATEMENTS_MAX,
    )
    .fetch_all(db)
    .await?;
    let restatements = rows.into_iter().map(|row| OutcomeRestatement {
        policy: CreditPolicy {
            rule: row.rule,
            model: Some(row.model),
            click_window_days: Some(row.click_days),
            delivery_window_days: Some(row.delivery_days),
        },
        revision: row.revision,
        restated_at: row.restated_at.into(),
        reason: row.reason,
        credits: row.credits.0.into_iter().map(CreditPart::of).collect(),
    });
    Ok(restatements.collect())
}
