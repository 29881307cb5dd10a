//! Decides which mails an outcome is credited to. Pure, and independent of the order of the touches.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use schemas::{AttributionModel, MessageKind};
use serde_json::Value;
use uuid::Uuid;

use ledger::{attribution::Policy, outcomes::SHARE_WHOLE};

schemas::named_enum! {
    /// Why a mail is credited.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub(crate) enum CreditRule {
        /// A human clicked.
        HumanClick = "human_click",
        /// The mail was delivered, and there is no click at all.
        Delivered = "delivered",
    }
}

/// A touch that may have led to an outcome: a human click or a delivery.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MailTouch {
    pub(crate) rule: CreditRule,
    pub(crate) send_id: Uuid,
    pub(crate) contact_id: Uuid,
    pub(crate) campaign_id: Option<Uuid>,
    pub(crate) kind: MessageKind,
    pub(crate) at: DateTime<Utc>,
    /// The click's event; nil for a delivery.
    pub(crate) event_id: Uuid,
    pub(crate) evidence: Value,
}

/// The outcome to divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WeighedOutcome {
    pub(crate) occurred_at: DateTime<Utc>,
    pub(crate) premium: Option<i64>,
    pub(crate) value_cents: Option<i64>,
}

/// A credited mail as the ledger stores it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CreditLine {
    pub(crate) send_id: Uuid,
    pub(crate) campaign_id: Option<Uuid>,
    pub(crate) kind: MessageKind,
    pub(crate) contact_id: Uuid,
    pub(crate) share: i32,
    pub(crate) premium: Option<i64>,
    pub(crate) value_cents: Option<i64>,
    pub(crate) touched_at: DateTime<Utc>,
    pub(crate) evidence: Value,
}

/// Divides an outcome between the mails before it: those with a human click within the click window, or else those delivered within
/// the delivery window. The model chooses among them. Shares and amounts add up to exactly the outcome's; the remainder of a
/// division goes to the latest mail. Returns why the mails are credited, if any is, and the latest mail first.
pub(crate) fn credit(
    policy: &Policy,
    touches: &[MailTouch],
    outcome: &WeighedOutcome,
) -> (Option<CreditRule>, Vec<CreditLine>) {
    let mut counted = within(policy.model, touches, CreditRule::HumanClick, outcome.occurred_at, policy.click_days);
    if counted.is_empty() {
        counted = within(policy.model, touches, CreditRule::Delivered, outcome.occurred_at, policy.delivery_days);
    }
    counted.sort_by_key(|touch| std::cmp::Reverse(order(touch)));
    let chosen = match policy.model {
        AttributionModel::LastTouch => counted.get(..1),
        AttributionModel::FirstTouch => counted.len().checked_sub(1).and_then(|last| counted.get(last..)),
        AttributionModel::Linear => Some(counted.as_slice()),
    }
    .unwrap_or_default();
    let parts = |whole: i64| divide(whole, chosen.len());
    let (shares, premiums, values) = (parts(SHARE_WHOLE), outcome.premium.map(parts), outcome.value_cents.map(parts));
    let lines = chosen.iter().enumerate().map(|(place, touch)| CreditLine {
        send_id: touch.send_id,
        campaign_id: touch.campaign_id,
        kind: touch.kind,
        contact_id: touch.contact_id,
        share: i32::try_from(shares[place]).unwrap_or(0),
        premium: premiums.as_ref().map(|premiums| premiums[place]),
        value_cents: values.as_ref().map(|values| values[place]),
        touched_at: touch.at,
        evidence: touch.evidence.clone(),
    });
    (chosen.first().map(|touch| touch.rule), lines.collect())
}

/// One touch for each mail: its last, or its first where the first takes all.
fn within(
    model: AttributionModel,
    touches: &[MailTouch],
    rule: CreditRule,
    outcome_at: DateTime<Utc>,
    days: i32,
) -> Vec<&MailTouch> {
    let since = outcome_at - TimeDelta::days(days.into());
    let mut of_mail: BTreeMap<Uuid, &MailTouch> = BTreeMap::new();
    for touch in touches.iter().filter(|touch| touch.rule == rule && touch.at > since && touch.at <= outcome_at) {
        of_mail
            .entry(touch.send_id)
            .and_modify(|known| {
                let earlier = order(touch) < order(known);
                if earlier == (model == AttributionModel::FirstTouch) {
                    *known = touch;
                }
            })
            .or_insert(touch);
    }
    of_mail.into_values().collect()
}

/// By time; what happened at the same moment by ids, so that the answer does not hang on who is read first.
fn order(touch: &MailTouch) -> (DateTime<Utc>, Uuid, Uuid) {
    (touch.at, touch.send_id, touch.event_id)
}

/// Equal whole parts that add up to the whole; the first get what does not divide.
fn divide(whole: i64, parts: usize) -> Vec<i64> {
    let Ok(count @ 1..) = i64::try_from(parts) else { return Vec::new() };
    (0..count).map(|place| whole / count + i64::from(place < whole % count)).collect()
}

/// Whole parts of an amount by these shares; those of a whole outcome add up to exactly the amount.
pub(crate) fn divide_by_shares(whole: Option<i64>, shares: &[i32]) -> Vec<Option<i64>> {
    let up_to = |share: i64| whole.map(|whole| i128::from(whole) * i128::from(share) / i128::from(SHARE_WHOLE));
    let mut before = 0;
    shares
        .iter()
        .map(|share| {
            let after = before + i64::from(*share);
            let part = up_to(after).zip(up_to(before)).and_then(|(to, from)| i64::try_from(to - from).ok());
            before = after;
            part
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const DAY: i64 = 24 * 60;

    fn at(minute: i64) -> DateTime<Utc> {
        "2026-03-31T12:00:00Z".parse::<DateTime<Utc>>().unwrap() + TimeDelta::minutes(minute)
    }

    /// A touch of mail `send`, so many minutes before the outcome.
    fn touch(rule: CreditRule, send: u128, minutes_before: i64) -> MailTouch {
        MailTouch {
            rule,
            send_id: Uuid::from_u128(send),
            contact_id: Uuid::nil(),
            campaign_id: None,
            kind: MessageKind::Campaign,
            at: at(-minutes_before),
            event_id: Uuid::from_u128(minutes_before.unsigned_abs().into()),
            evidence: Value::Null,
        }
    }

    fn outcome() -> WeighedOutcome {
        WeighedOutcome { occurred_at: at(0), premium: Some(1_000_000), value_cents: Some(100) }
    }

    fn policy(model: AttributionModel) -> Policy {
        Policy { model, ..Policy::default() }
    }

    fn parts(model: AttributionModel, touches: &[MailTouch]) -> Vec<(u128, i64)> {
        let (_, lines) = credit(&policy(model), touches, &outcome());
        lines.iter().map(|line| (line.send_id.as_u128(), line.share.into())).collect()
    }

    use AttributionModel::{FirstTouch, LastTouch, Linear};
    use CreditRule::{Delivered, HumanClick};

    #[rstest]
    #[case::nothing_before_it(LastTouch, vec![], vec![])]
    #[case::the_last_click_takes_all(LastTouch, vec![(HumanClick, 1, 90), (HumanClick, 2, 30), (HumanClick, 3, 60)], vec![(2, SHARE_WHOLE)])]
    #[case::the_first_click_takes_all(FirstTouch, vec![(HumanClick, 1, 60), (HumanClick, 2, 30), (HumanClick, 3, 90)], vec![(3, SHARE_WHOLE)])]
    #[case::a_click_goes_before_a_later_delivery(LastTouch, vec![(HumanClick, 1, 20 * DAY), (Delivered, 2, 1)], vec![(1, SHARE_WHOLE)])]
    #[case::without_a_click_the_last_delivery(LastTouch, vec![(Delivered, 1, 60), (Delivered, 2, 30)], vec![(2, SHARE_WHOLE)])]
    #[case::without_a_click_the_first_delivery(FirstTouch, vec![(Delivered, 1, 60), (Delivered, 2, 30)], vec![(1, SHARE_WHOLE)])]
    #[case::a_click_of_today_and_one_of_30_days_ago(LastTouch, vec![(HumanClick, 1, 30 * DAY)], vec![])]
    #[case::just_within_the_window(LastTouch, vec![(HumanClick, 1, 30 * DAY - 1)], vec![(1, SHARE_WHOLE)])]
    #[case::a_delivery_counts_for_seven_days(LastTouch, vec![(Delivered, 1, 7 * DAY)], vec![])]
    #[case::what_comes_after_it_did_not_lead_to_it(LastTouch, vec![(HumanClick, 1, -1), (Delivered, 2, -1)], vec![])]
    #[case::at_the_same_moment_counts(LastTouch, vec![(HumanClick, 1, 0)], vec![(1, SHARE_WHOLE)])]
    #[case::an_old_first_click_and_a_new_one(LastTouch, vec![(HumanClick, 1, 40 * DAY), (HumanClick, 2, 60), (HumanClick, 1, 30)], vec![(1, SHARE_WHOLE)])]
    #[case::equal_parts_for_mails_not_for_clicks(Linear, vec![(HumanClick, 1, 60), (HumanClick, 1, 50), (HumanClick, 2, 30)], vec![(2, 500_000), (1, 500_000)])]
    #[case::thirds_add_up(Linear, vec![(Delivered, 1, 60), (Delivered, 2, 30), (Delivered, 3, 10)], vec![(3, 333_334), (2, 333_333), (1, 333_333)])]
    fn the_model_decides_which_mail_is_credited(
        #[case] model: AttributionModel,
        #[case] touches: Vec<(CreditRule, u128, i64)>,
        #[case] expected: Vec<(u128, i64)>,
    ) {
        let touches: Vec<MailTouch> =
            touches.into_iter().map(|(rule, send, before)| touch(rule, send, before)).collect();
        assert_eq!(parts(model, &touches), expected);
    }

    #[test]
    fn a_window_of_no_days_never_counts() {
        let policy = Policy { delivery_days: 0, ..Policy::default() };
        assert_eq!(credit(&policy, &[touch(Delivered, 1, 0)], &outcome()), (None, vec![]));
    }

    #[rstest]
    #[case(Some(100), &[333_334, 333_333, 333_333], &[Some(33), Some(33), Some(34)])]
    #[case(Some(ledger::outcomes::PREMIUM_MAX.0), &[1_000_000], &[Some(ledger::outcomes::PREMIUM_MAX.0)])]
    #[case(None, &[500_000, 500_000], &[None, None])]
    fn an_amount_is_divided_by_the_shares_it_has(
        #[case] whole: Option<i64>,
        #[case] shares: &[i32],
        #[case] expected: &[Option<i64>],
    ) {
        assert_eq!(divide_by_shares(whole, shares), expected);
    }

    fn touches() -> impl Strategy<Value = Vec<MailTouch>> {
        let one = (any::<bool>(), 1_u128..8, -100_i64..40 * DAY)
            .prop_map(|(click, send, before)| touch(if click { HumanClick } else { Delivered }, send, before));
        proptest::collection::vec(one, 0..24)
    }

    proptest! {
        #[test]
        fn shares_and_amounts_add_up_to_the_outcome(
            touches in touches(),
            model in proptest::sample::select(AttributionModel::ALL),
            premium in 0..=ledger::outcomes::PREMIUM_MAX.0,
            value in 0..=ledger::outcomes::VALUE_CENTS_MAX,
        ) {
            let outcome = WeighedOutcome { occurred_at: at(0), premium: Some(premium), value_cents: Some(value) };
            let (rule, lines) = credit(&policy(model), &touches, &outcome);
            if !lines.is_empty() {
                prop_assert_eq!(lines.iter().map(|line| i64::from(line.share)).sum::<i64>(), SHARE_WHOLE);
                prop_assert_eq!(lines.iter().map(|line| line.premium.unwrap()).sum::<i64>(), premium);
                prop_assert_eq!(lines.iter().map(|line| line.value_cents.unwrap()).sum::<i64>(), value);
            }
            let mails: std::collections::BTreeSet<Uuid> = lines.iter().map(|line| line.send_id).collect();
            prop_assert_eq!(mails.len(), lines.len(), "a mail is credited once");
            let has_touch = |line: &CreditLine| {
                let is_its_touch = |touch: &MailTouch| touch.send_id == line.send_id && touch.at == line.touched_at;
                touches.iter().any(|touch| is_its_touch(touch) && Some(touch.rule) == rule)
            };
            prop_assert!(lines.iter().all(has_touch), "all by one rule");
        }

        #[test]
        fn the_order_in_which_touches_are_known_changes_nothing(
            touches in touches().prop_flat_map(|touches| (Just(touches.clone()), Just(touches).prop_shuffle())),
            model in proptest::sample::select(AttributionModel::ALL),
        ) {
            let (given, shuffled) = touches;
            prop_assert_eq!(credit(&policy(model), &given, &outcome()), credit(&policy(model), &shuffled, &outcome()));
        }
    }
}
