//! The totals that reports read. A new credit is added, and the credit it replaces is subtracted.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use runtime::column;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::model::CreditLine;
use ledger::outcomes::SHARE_WHOLE;

/// The kind under which all outcomes are counted, with or without a credit.
const RECORDED: &str = "recorded";

/// The quantities an outcome, or a part of one, adds to a total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutcomeSum {
    pub(crate) outcomes: i64,
    pub(crate) share: i64,
    pub(crate) premium: i64,
    pub(crate) value_cents: i64,
}

impl OutcomeSum {
    fn add(&mut self, other: Self, sign: i64) {
        self.outcomes += sign * other.outcomes;
        self.share += sign * other.share;
        self.premium += sign * other.premium;
        self.value_cents += sign * other.value_cents;
    }
}

/// An outcome as it is counted in the totals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedOutcome<'a> {
    pub(crate) outcome_type: &'a str,
    pub(crate) hour: DateTime<Utc>,
    pub(crate) premium: i64,
    pub(crate) value_cents: i64,
    pub(crate) parts: &'a [CreditLine],
}

/// The amounts to add to the totals.
#[derive(Debug, Default)]
pub(crate) struct OutcomeTotals {
    campaigns: BTreeMap<(Uuid, Uuid, String), OutcomeSum>,
    hours: BTreeMap<(Uuid, DateTime<Utc>, String, String), OutcomeSum>,
}

impl OutcomeTotals {
    /// Replaces an outcome in the totals: subtracts `before` and adds `after`.
    pub(crate) fn replace(&mut self, tenant: Uuid, before: Option<CountedOutcome<'_>>, after: CountedOutcome<'_>) {
        if let Some(before) = before {
            self.add_outcome(tenant, before, -1);
        }
        self.add_outcome(tenant, after, 1);
    }

    fn add_outcome(&mut self, tenant: Uuid, counted: CountedOutcome<'_>, sign: i64) {
        let whole =
            OutcomeSum { outcomes: 1, share: SHARE_WHOLE, premium: counted.premium, value_cents: counted.value_cents };
        self.hour(tenant, counted, RECORDED).add(whole, sign);
        let mut campaigns: BTreeMap<Uuid, OutcomeSum> = BTreeMap::new();
        let mut kinds: BTreeMap<&str, OutcomeSum> = BTreeMap::new();
        for part in counted.parts {
            let sum = OutcomeSum {
                outcomes: 0,
                share: part.share.into(),
                premium: part.premium.unwrap_or(0),
                value_cents: part.value_cents.unwrap_or(0),
            };
            if let Some(campaign) = part.campaign_id {
                campaigns.entry(campaign).or_default().add(sum, 1);
            }
            kinds.entry(part.kind.as_str()).or_default().add(sum, 1);
        }
        // An outcome counts once for a campaign or a kind, however many of its mails are credited.
        for (campaign, sum) in campaigns {
            let key = (tenant, campaign, counted.outcome_type.to_owned());
            self.campaigns.entry(key).or_default().add(OutcomeSum { outcomes: 1, ..sum }, sign);
        }
        for (kind, sum) in kinds {
            self.hour(tenant, counted, kind).add(OutcomeSum { outcomes: 1, ..sum }, sign);
        }
    }

    fn hour(&mut self, tenant: Uuid, counted: CountedOutcome<'_>, kind: &str) -> &mut OutcomeSum {
        self.hours.entry((tenant, counted.hour, kind.to_owned(), counted.outcome_type.to_owned())).or_default()
    }

    /// Writes the totals in key order, so that two transactions cannot deadlock.
    pub(crate) async fn write(mut self, db: &mut PgConnection) -> sqlx::Result<()> {
        self.campaigns.retain(|_, sum| *sum != OutcomeSum::default());
        self.hours.retain(|_, sum| *sum != OutcomeSum::default());
        if !self.campaigns.is_empty() {
            self.write_campaigns(&mut *db).await?;
        }
        if !self.hours.is_empty() {
            self.write_hours(db).await?;
        }
        Ok(())
    }

    async fn write_campaigns(&self, db: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query!(
            "insert into campaign_outcomes as t (tenant_id, campaign_id, outcome_type, outcomes, share, premium, value_cents)
             select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
             on conflict (tenant_id, campaign_id, outcome_type) do update
             set outcomes = t.outcomes + excluded.outcomes, share = t.share + excluded.share,
                 premium = t.premium + excluded.premium, value_cents = t.value_cents + excluded.value_cents",
            &column(self.campaigns.keys(), |(tenant, ..)| *tenant),
            &column(self.campaigns.keys(), |(_, campaign, _)| *campaign),
            &column(self.campaigns.keys(), |(.., outcome_type)| outcome_type.clone()),
            &column(self.campaigns.values(), |sum| sum.outcomes),
            &column(self.campaigns.values(), |sum| sum.share),
            &column(self.campaigns.values(), |sum| sum.premium),
            &column(self.campaigns.values(), |sum| sum.value_cents),
        )
        .execute(db)
        .await
        .map(drop)
    }

    async fn write_hours(&self, db: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query!(
            "insert into outcome_hours as t (tenant_id, hour, kind, outcome_type, outcomes, share, premium, value_cents)
             select * from unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
                                  $8::bigint[])
             on conflict (tenant_id, hour, kind, outcome_type) do update
             set outcomes = t.outcomes + excluded.outcomes, share = t.share + excluded.share,
                 premium = t.premium + excluded.premium, value_cents = t.value_cents + excluded.value_cents",
            &column(self.hours.keys(), |(tenant, ..)| *tenant),
            &column(self.hours.keys(), |(_, hour, ..)| *hour),
            &column(self.hours.keys(), |(_, _, kind, _)| kind.clone()),
            &column(self.hours.keys(), |(.., outcome_type)| outcome_type.clone()),
            &column(self.hours.values(), |sum| sum.outcomes),
            &column(self.hours.values(), |sum| sum.share),
            &column(self.hours.values(), |sum| sum.premium),
            &column(self.hours.values(), |sum| sum.value_cents),
        )
        .execute(db)
        .await
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::MessageKind;
    use serde_json::Value;

    fn part(campaign: u128, share: i32) -> CreditLine {
        CreditLine {
            send_id: Uuid::nil(),
            campaign_id: Some(Uuid::from_u128(campaign)),
            kind: MessageKind::Campaign,
            contact_id: Uuid::nil(),
            share,
            premium: Some(share.into()),
            value_cents: None,
            touched_at: DateTime::UNIX_EPOCH,
            evidence: Value::Null,
        }
    }

    fn counted(parts: &[CreditLine]) -> CountedOutcome<'_> {
        CountedOutcome { outcome_type: "bind", hour: DateTime::UNIX_EPOCH, premium: SHARE_WHOLE, value_cents: 0, parts }
    }

    #[test]
    fn two_mails_of_a_campaign_are_one_outcome_of_it() {
        let mut totals = OutcomeTotals::default();
        totals.replace(Uuid::nil(), None, counted(&[part(1, 600_000), part(1, 400_000)]));
        let sums: Vec<OutcomeSum> = totals.campaigns.values().copied().collect();
        assert_eq!(sums, [OutcomeSum { outcomes: 1, share: SHARE_WHOLE, premium: SHARE_WHOLE, value_cents: 0 }]);
        assert!(totals.hours.values().all(|sum| *sum == sums[0]), "{:?}", totals.hours);
    }

    #[test]
    fn a_credit_that_moves_leaves_nothing_behind() {
        let mut totals = OutcomeTotals::default();
        let (first, second) = ([part(1, 1_000_000)], [part(2, 1_000_000)]);
        totals.replace(Uuid::nil(), None, counted(&first));
        totals.replace(Uuid::nil(), Some(counted(&first)), counted(&second));
        totals.replace(Uuid::nil(), Some(counted(&second)), counted(&first));
        totals.campaigns.retain(|_, sum| *sum != OutcomeSum::default());
        assert_eq!(totals.campaigns.keys().map(|key| key.1.as_u128()).collect::<Vec<_>>(), [1]);
        assert_eq!(totals.hours.values().map(|sum| sum.outcomes).collect::<Vec<_>>(), [1, 1]);
    }
}
