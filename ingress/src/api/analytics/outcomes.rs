//! What outcomes add to reports: how many, what they are worth, and how much of that is credited to mails.

use ledger::outcomes::{Premium, SHARE_WHOLE};
use schemars::JsonSchema;
use schemas::{MessageKind, OutcomeType};
use serde::Serialize;
use serde_json::Number;

use crate::pipeline::types::counts;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OutcomeTypeSum {
    /// The kind of mail that they are credited to; `None`: all outcomes, credited or not.
    pub(super) kind: Option<MessageKind>,
    pub(super) outcome_type: OutcomeType,
    pub(super) outcomes: i64,
    /// In millionths.
    pub(super) share: i64,
    pub(super) premium: i64,
    pub(super) value_cents: i64,
}

/// Outcomes of a type that a campaign is credited with.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct CreditedOutcomes {
    outcome_type: OutcomeType,
    /// Credited to the campaign, in whole or in part.
    outcomes: i64,
    /// The parts added up.
    credited: f64,
    /// The credited part, in dollars, exactly.
    premium_amount: Number,
    value_cents: i64,
}

/// A campaign's, every type in order.
pub(super) fn of_campaign(sums: &[OutcomeTypeSum]) -> Vec<CreditedOutcomes> {
    let credited = |outcome_type: &OutcomeType| {
        let of = |pick: fn(&OutcomeTypeSum) -> i64| total(sums, |sum| sum.outcome_type == *outcome_type, pick);
        CreditedOutcomes {
            outcome_type: *outcome_type,
            outcomes: of(|sum| sum.outcomes),
            credited: share(of(|sum| sum.share)),
            premium_amount: Premium(of(|sum| sum.premium)).dollars(),
            value_cents: of(|sum| sum.value_cents),
        }
    };
    OutcomeType::ALL.iter().map(credited).collect()
}

/// Outcomes of a type within a window.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(transform = counts)]
#[schemars(rename = "OutcomeTotals")]
pub(super) struct OutcomeTypeTotals {
    outcome_type: OutcomeType,
    recorded: i64,
    recorded_premium_amount: Number,
    recorded_value_cents: i64,
    /// How many of them are credited to mails, parts added up.
    credited: f64,
    credited_premium_amount: Number,
    credited_value_cents: i64,
}

/// A window's, every type in order.
pub(super) fn of_window(sums: &[OutcomeTypeSum]) -> Vec<OutcomeTypeTotals> {
    let totals = |outcome_type: &OutcomeType| {
        let of = |credited: bool, pick: fn(&OutcomeTypeSum) -> i64| {
            total(sums, |sum| sum.outcome_type == *outcome_type && sum.kind.is_some() == credited, pick)
        };
        OutcomeTypeTotals {
            outcome_type: *outcome_type,
            recorded: of(false, |sum| sum.outcomes),
            recorded_premium_amount: Premium(of(false, |sum| sum.premium)).dollars(),
            recorded_value_cents: of(false, |sum| sum.value_cents),
            credited: share(of(true, |sum| sum.share)),
            credited_premium_amount: Premium(of(true, |sum| sum.premium)).dollars(),
            credited_value_cents: of(true, |sum| sum.value_cents),
        }
    };
    OutcomeType::ALL.iter().map(totals).collect()
}

/// Premiums that were paid.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct Revenue {
    /// The premium of outcomes of type `premium`.
    recorded_amount: Number,
    /// What of it is credited to mails.
    credited_amount: Number,
    by_trigger: Vec<TriggerRevenue>,
}

/// The part of one kind of mail.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(transform = counts)]
struct TriggerRevenue {
    trigger: MessageKind,
    amount: Number,
}

/// A window's.
pub(super) fn revenue(sums: &[OutcomeTypeSum]) -> Revenue {
    let amount = |is_meant: &dyn Fn(&OutcomeTypeSum) -> bool| {
        let is_paid = |sum: &OutcomeTypeSum| sum.outcome_type == OutcomeType::Premium && is_meant(sum);
        Premium(total(sums, is_paid, |sum| sum.premium)).dollars()
    };
    Revenue {
        recorded_amount: amount(&|sum| sum.kind.is_none()),
        credited_amount: amount(&|sum| sum.kind.is_some()),
        by_trigger: MessageKind::reported()
            .map(|kind| TriggerRevenue { trigger: kind, amount: amount(&|sum| sum.kind == Some(kind)) })
            .collect(),
    }
}

/// A campaign's.
pub(super) fn campaign_revenue(sums: &[OutcomeTypeSum]) -> Number {
    Premium(total(sums, |sum| sum.outcome_type == OutcomeType::Premium, |sum| sum.premium)).dollars()
}

fn total(sums: &[OutcomeTypeSum], is_meant: impl Fn(&OutcomeTypeSum) -> bool, pick: fn(&OutcomeTypeSum) -> i64) -> i64 {
    sums.iter().filter(|sum| is_meant(sum)).map(pick).sum()
}

fn share(millionths: i64) -> f64 {
    millionths as f64 / SHARE_WHOLE as f64
}

/// What it means, for every report with outcomes.
pub(super) const OUTCOMES_NOTE: &str = "Outcomes are credited to mails by the tenant's attribution model and windows, which \
     GET /v1/outcomes/{id} shows for each; credited adds up the parts. Amounts are exact, in dollars. revenue is the premium of \
     outcomes of type premium; quotes, submissions and binds show theirs by type and are not added to it.";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sum(kind: Option<MessageKind>, outcome_type: OutcomeType, share: i64, premium: i64) -> OutcomeTypeSum {
        OutcomeTypeSum { kind, outcome_type, outcomes: 1, share, premium, value_cents: 5 }
    }

    #[test]
    fn recorded_and_credited_are_counted_separately() {
        let sums = [
            sum(None, OutcomeType::Premium, 1_000_000, 12_505_000),
            sum(Some(MessageKind::Campaign), OutcomeType::Premium, 333_334, 4_168_334),
            sum(Some(MessageKind::Sequence), OutcomeType::Premium, 666_666, 8_336_666),
            sum(None, OutcomeType::Quote, 1_000_000, 90_000_000),
        ];
        let window = serde_json::to_value(of_window(&sums)).unwrap();
        assert_eq!(window[3]["recorded_premium_amount"], json!(1250.5));
        assert_eq!((&window[3]["credited"], &window[3]["credited_premium_amount"]), (&json!(1.0), &json!(1250.5)));
        assert_eq!((&window[0]["recorded"], &window[0]["credited"]), (&json!(1), &json!(0.0)));
        let revenue = serde_json::to_value(revenue(&sums)).unwrap();
        assert_eq!((&revenue["recorded_amount"], &revenue["credited_amount"]), (&json!(1250.5), &json!(1250.5)));
        assert_eq!(revenue["by_trigger"][1], json!({"trigger": "sequence", "amount": 833.6666}));
    }
}
