//! The totals that reports read. A new credit is added, and the credit it replaces is subtracted.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use runtime::column;
use sqlx::PgConnection;
use uuid::Uuid;

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

/// A credited mail, with the columns that totals need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CreditedMail {
    pub(crate) campaign_id: Option<Uuid>,
    pub(crate) kind: String,
    pub(crate) share: i64,
    pub(crate) premium: i64,
    pub(crate) value_cents: i64,
}

/// An outcome as it is counted in the totals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CountedOutcome {
    pub(crate) outcome_type: String,
    pub(crate) hour: DateTime<Utc>,
    pub(crate) premium: i64,
    pub(crate) value_cents: i64,
    pub(crate) parts: Vec<CreditedMail>,
}

/// The amounts to add to the totals.
#[derive(Debug, Default)]
pub(crate) struct OutcomeTotals {
    campaigns: BTreeMap<(Uuid, Uuid, String), OutcomeSum>,
    hours: BTreeMap<(Uuid, DateTime<Utc>, String, String), OutcomeSum>,
}

impl OutcomeTotals {
    /// Replaces an outcome in the totals: subtracts `before` and adds `after`.
    pub(crate) fn replace(&mut self, tenant: Uuid, before: Option<&CountedOutcome>, after: &CountedOutcome) {
        if let Some(before) = before {
            self.add_outcome(tenant, before, -1);
        }
        self.add_outcome(tenant, after, 1);
    }

    fn add_outcome(&mut self, tenant: Uuid, counted: &CountedOutcome, sign: i64) {
        let whole =
            OutcomeSum { outcomes: 1, share: SHARE_WHOLE, premium: counted.premium, value_cents: counted.value_cents };
        self.hour(tenant, counted, RECORDED).add(whole, sign);
        let mut campaigns: BTreeMap<Uuid, OutcomeSum> = BTreeMap::new();
        let mut kinds: BTreeMap<&str, OutcomeSum> = BTreeMap::new();
        for part in &counted.parts {
            let sum =
                OutcomeSum { outcomes: 0, share: part.share, premium: part.premium, value_cents: part.value_cents };
            if let Some(campaign) = part.campaign_id {
                campaigns.entry(campaign).or_default().add(sum, 1);
            }
            kinds.entry(&part.kind).or_default().add(sum, 1);
        }
        // An outcome counts once for a campaign or a kind, however many of its mails are credited.
        for (campaign, sum) in campaigns {
            let key = (tenant, campaign, counted.outcome_type.clone());
            self.campaigns.entry(key).or_default().add(OutcomeSum { outcomes: 1, ..sum }, sign);
        }
        for (kind, sum) in kinds {
            self.hour(tenant, counted, kind).add(OutcomeSum { outcomes: 1, ..sum }, sign);
        }
    }

    fn hour(&mut self, tenant: Uuid, counted: &CountedOutcome, kind: &str) -> &mut OutcomeSum {
        self.hours.entry((tenant, counted.hour, kind.to_owned(), counted.outcome_type.clone())).or_default()
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
        let [outcomes, shares, premiums, values] = columns(self.campaigns.values());
        sqlx::query!(
            "insert into campaign_outcomes as t (tenant_id, campaign_id, outcome_type, outcomes, share, premium, value_cents)
             select * from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
             on conflict (tenant_id, campaign_id, outcome_type) do update
             set outcomes = t.outcomes + excluded.outcomes, share = t.share + excluded.share,
                 premium = t.premium + excluded.premium, value_cents = t.value_cents + excluded.value_cents",
            &column(self.campaigns.keys(), |(tenant, ..)| *tenant),
            &column(self.campaigns.keys(), |(_, campaign, _)| *campaign),
            &column(self.campaigns.keys(), |(.., outcome_type)| outcome_type.clone()),
            &outcomes,
            &shares,
            &premiums,
            &values,
        )
        .execute(db)
        .await
        .map(drop)
    }

    async fn write_hours(&self, db: &mut PgConnection) -> sqlx::Result<()> {
        let [outcomes, shares, premiums, values] = columns(self.hours.values());
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
            &outcomes,
            &shares,
            &premiums,
            &values,
        )
        .execute(db)
        .await
        .map(drop)
    }
}

fn columns<'a>(sums: impl Iterator<Item = &'a OutcomeSum> + Clone) -> [Vec<i64>; 4] {
    [
        sums.clone().map(|sum| sum.outcomes).collect(),
        sums.clone().map(|sum| sum.share).collect(),
        sums.clone().map(|sum| sum.premium).collect(),
        sums.map(|sum| sum.value_cents).collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(campaign: u128, share: i64) -> CreditedMail {
        CreditedMail {
            campaign_id: Some(Uuid::from_u128(campaign)),
            kind: "campaign".to_owned(),
            share,
            premium: share,
            value_cents: 0,
        }
    }

    fn counted(parts: Vec<CreditedMail>) -> CountedOutcome {
        CountedOutcome {
            outcome_type: "bind".to_owned(),
            hour: DateTime::UNIX_EPOCH,
            premium: SHARE_WHOLE,
            value_cents: 0,
            parts,
        }
    }

    #[test]
    fn two_mails_of_a_campaign_are_one_outcome_of_it() {
        let mut totals = OutcomeTotals::default();
        totals.replace(Uuid::nil(), None, &counted(vec![part(1, 600_000), part(1, 400_000)]));
        let sums: Vec<OutcomeSum> = totals.campaigns.values().copied().collect();
        assert_eq!(sums, [OutcomeSum { outcomes: 1, share: SHARE_WHOLE, premium: SHARE_WHOLE, value_cents: 0 }]);
        assert!(totals.hours.values().all(|sum| *sum == sums[0]), "{:?}", totals.hours);
    }

    #[test]
    fn a_credit_that_moves_leaves_nothing_behind() {
        let mut totals = OutcomeTotals::default();
        let (first, second) = (counted(vec![part(1, SHARE_WHOLE)]), counted(vec![part(2, SHARE_WHOLE)]));
        totals.replace(Uuid::nil(), None, &first);
        totals.replace(Uuid::nil(), Some(&first), &second);
        totals.replace(Uuid::nil(), Some(&second), &first);
        totals.campaigns.retain(|_, sum| *sum != OutcomeSum::default());
        assert_eq!(totals.campaigns.keys().map(|key| key.1.as_u128()).collect::<Vec<_>>(), [1]);
        assert_eq!(totals.hours.values().map(|sum| sum.outcomes).collect::<Vec<_>>(), [1, 1]);
    }
}
