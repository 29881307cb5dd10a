//! The numbers every report is made of, and the rates that follow from them.

use schemars::JsonSchema;
use serde::Serialize;

use crate::pipeline::types::counts;

/// Makes [`MessageTotals`] of its fields, each with the event that it counts.
macro_rules! message_totals {
    ($($(#[$about:meta])* $field:ident = $event:literal,)+) => {
        /// Totals of messages. Unique facts count a message once, however often it was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
        #[schemars(transform = counts)]
        pub(super) struct MessageTotals {
            /// Every recipient who was meant to get one.
            pub(super) total: i64,
            $($(#[$about])* pub(super) $field: i64,)+
        }

        impl MessageTotals {
            /// Both together.
            pub(super) fn plus(&self, other: &Self) -> Self {
                Self { total: self.total + other.total, $($field: self.$field + other.$field,)+ }
            }

            /// The number that counts this event.
            fn counter(&mut self, event: &str) -> Option<&mut i64> {
                match event { $($event => Some(&mut self.$field),)+ _ => None }
            }
        }
    };
}

message_totals! {
    /// Accepted by a receiving server or the relay.
    sent = "sent",
    /// Confirmed by the provider where it can, otherwise accepted by the receiving server; not bounced since. As
    /// `email.delivered` events.
    delivered = "delivered",
    /// Of these, those that a provider has confirmed.
    delivered_confirmed = "confirmed",
    /// Refused for good, not renderable, or out of time.
    failed = "failed",
    /// May have left; no answer came.
    unknown = "unknown",
    /// Withheld on purpose, or cancelled.
    skipped = "skipped",
    /// Refused at once because the mailbox does not exist, or come back later, whatever the class.
    bounced = "bounced",
    /// Reported as spam.
    complained = "complained",
    /// Unique, by people and machines.
    opened = "opened",
    /// Unique, by a person as far as can be told.
    opened_human = "opened_human",
    /// Unique, by people and machines.
    clicked = "clicked",
    /// Unique, by a person as far as can be told.
    clicked_human = "clicked_human",
    /// Unique.
    unsubscribed = "unsubscribed",
    /// Unique, answered by a person.
    replied = "replied",
}

impl MessageTotals {
    /// What `delivered` rests on; `None` while nothing was delivered.
    pub(super) fn delivered_basis(&self) -> Option<DeliveredBasis> {
        match (self.delivered - self.delivered_confirmed, self.delivered_confirmed) {
            (..=0, ..=0) => None,
            (..=0, _) => Some(DeliveredBasis::Confirmed),
            (_, ..=0) => Some(DeliveredBasis::Accepted),
            _ => Some(DeliveredBasis::Mixed),
        }
    }

    /// Adds a total of an hour, if its event is one of these.
    pub(super) fn add(&mut self, event: &str, count: i64) {
        let Some(counter) = self.counter(event) else { return };
        *counter += count;
        if matches!(event, "sent" | "failed" | "unknown" | "skipped") {
            self.total += count;
        }
    }
}

/// What the number of delivered messages rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum DeliveredBasis {
    /// Providers have confirmed all of them.
    Confirmed,
    /// Receiving servers have accepted all of them; no provider confirms more.
    Accepted,
    /// Some are confirmed, some accepted.
    Mixed,
}

/// Shares between 0 and 1; null where there is nothing to be a share of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "MessageRates", transform = counts)]
pub(super) struct Rates {
    /// Delivered, of sent and failed.
    pub(super) delivery_rate: Option<f64>,
    /// Of sent and of the failed that bounced.
    pub(super) bounce_rate: Option<f64>,
    /// Of delivered, as all that follow.
    pub(super) complaint_rate: Option<f64>,
    pub(super) open_rate: Option<f64>,
    pub(super) open_rate_human: Option<f64>,
    pub(super) click_rate: Option<f64>,
    pub(super) click_rate_human: Option<f64>,
    pub(super) unsubscribe_rate: Option<f64>,
    pub(super) reply_rate: Option<f64>,
}

impl From<&MessageTotals> for Rates {
    fn from(totals: &MessageTotals) -> Self {
        // Of the failed, those that a server refused are among the bounced. The others never left: not rendered, or out of time.
        let attempted = totals.sent + totals.failed.min(totals.bounced);
        let delivered = |count| share(count, totals.delivered);
        Self {
            delivery_rate: share(totals.delivered, totals.sent + totals.failed),
            bounce_rate: share(totals.bounced, attempted),
            complaint_rate: delivered(totals.complained),
            open_rate: delivered(totals.opened),
            open_rate_human: delivered(totals.opened_human),
            click_rate: delivered(totals.clicked),
            click_rate_human: delivered(totals.clicked_human),
            unsubscribe_rate: delivered(totals.unsubscribed),
            reply_rate: delivered(totals.replied),
        }
    }
}

/// To four places: more would claim to know more than there is.
fn share(part: i64, whole: i64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64 * 10_000.0).round() / 10_000.0)
}

/// What the numbers mean, for every report.
pub(super) const OPENS_NOTE: &str = "Opens are inflated by mail programs that fetch pictures by themselves; opened_human leaves \
     out what is known to be a machine's, and with it most opens in Gmail and Apple Mail. Clicks are the reliable signal.";
pub(super) const DELIVERED_NOTE: &str = "delivered counts messages as email.delivered events do: of an HTTP provider, those whose \
     delivery it has confirmed; over SMTP, those that the receiving server or the relay accepted. A message that bounces later is \
     taken off again. delivered_confirmed counts the confirmed ones, and delivered_basis says which kind there is.";
pub(super) const UNTRACKED_NOTE: &str = "One-off messages carry no pixel and no tracked links: their opens and clicks are not \
     counted.";
pub(super) const RATES_NOTE: &str = "delivery_rate is a share of sent and failed. bounce_rate is a share of sent and of failed, but \
     of no more failed ones than bounced: messages that were not rendered or ran out of time never left. All other rates are shares of \
     delivered.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shares_of_what_they_say_and_null_of_nothing() {
        let none = Rates::from(&MessageTotals::default());
        assert_eq!((none.delivery_rate, none.open_rate), (None, None));
        let totals = MessageTotals {
            sent: 3,
            delivered: 3,
            failed: 1,
            bounced: 1,
            opened: 2,
            clicked_human: 1,
            ..MessageTotals::default()
        };
        let rates = Rates::from(&totals);
        assert_eq!((rates.delivery_rate, rates.bounce_rate), (Some(0.75), Some(0.25)));
        let with_expired = Rates::from(&MessageTotals { failed: 997, ..totals });
        assert_eq!((with_expired.delivery_rate, with_expired.bounce_rate), (Some(0.003), Some(0.25)));
        assert_eq!(
            (rates.open_rate, rates.click_rate_human, rates.click_rate),
            (Some(0.6667), Some(0.3333), Some(0.0))
        );
    }

    #[test]
    fn what_is_decided_is_the_total_and_what_is_sent_is_not_yet_delivered() {
        let mut totals = MessageTotals::default();
        for (event, count) in
            [("sent", 5), ("skipped", 2), ("failed", 1), ("opened", 4), ("delivered", 4), ("confirmed", 3)]
        {
            totals.add(event, count);
        }
        totals.add("opened_total", 9);
        let expected = MessageTotals {
            total: 8,
            sent: 5,
            delivered: 4,
            delivered_confirmed: 3,
            skipped: 2,
            failed: 1,
            opened: 4,
            ..MessageTotals::default()
        };
        assert_eq!(totals, expected);
    }

    #[rstest::rstest]
    #[case(0, 0, None)]
    #[case(4, 0, Some(DeliveredBasis::Accepted))]
    #[case(4, 3, Some(DeliveredBasis::Mixed))]
    #[case(4, 4, Some(DeliveredBasis::Confirmed))]
    fn delivered_has_its_basis(
        #[case] delivered: i64,
        #[case] delivered_confirmed: i64,
        #[case] expected: Option<DeliveredBasis>,
    ) {
        assert_eq!(
            MessageTotals { delivered, delivered_confirmed, ..MessageTotals::default() }.delivered_basis(),
            expected
        );
    }
}
