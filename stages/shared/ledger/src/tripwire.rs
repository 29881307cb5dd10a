//! The tripwire: pauses a campaign with too many bounces or complaints, before it harms its sender's reputation.
//!
//! Rates are of what is decided so far, but at least of [`BOUNCES_OF`] and [`COMPLAINTS_OF`] mails: six dead addresses among
//! the first ten are enough to know that a hundred will have more than five; one complaint among the first hundred says nothing.
//! So the rates are checked over the first thousand, and then over all mails until the campaign is over.

use schemas::PauseReason;

/// Bounces are counted of at least this many mails.
pub const BOUNCES_OF: i64 = 100;
/// Complaints are counted of at least this many mails.
pub const COMPLAINTS_OF: i64 = 1_000;

/// The results of a campaign so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Sends that were tried and have an outcome.
    pub decided: i64,
    /// Bounces among them: refused at once because the mailbox does not exist, or come back later, whatever the class.
    pub bounced: i64,
    /// Complaints about them.
    pub complained: i64,
}

/// The limits of the caller, in percent.
#[derive(Debug, Clone, Copy)]
pub struct TripwireLimits {
    /// Bounces, of the sends with an outcome.
    pub bounce_percent: f64,
    /// Complaints, of the sends with an outcome.
    pub complaint_percent: f64,
}

/// The reason to pause the campaign, if there is one.
#[must_use]
pub fn decide(tally: &Tally, limits: TripwireLimits) -> Option<PauseReason> {
    let above = |count: i64, of: i64, percent: f64| count as f64 * 100.0 > percent * tally.decided.max(of) as f64;
    if above(tally.complained, COMPLAINTS_OF, limits.complaint_percent) {
        return Some(PauseReason::TripwireComplaints);
    }
    above(tally.bounced, BOUNCES_OF, limits.bounce_percent).then_some(PauseReason::TripwireBounces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const DEFAULTS: TripwireLimits = TripwireLimits { bounce_percent: 5.0, complaint_percent: 0.3 };

    #[rstest]
    #[case::nothing(0, 0, 0, None)]
    #[case::five_of_ten(10, 5, 0, None)]
    #[case::six_of_ten(10, 6, 0, Some(PauseReason::TripwireBounces))]
    #[case::five_percent(1_000, 50, 0, None)]
    #[case::above_five_percent(1_000, 51, 0, Some(PauseReason::TripwireBounces))]
    #[case::three_complaints(500, 0, 3, None)]
    #[case::four_complaints(500, 0, 4, Some(PauseReason::TripwireComplaints))]
    #[case::four_of_many(2_000, 0, 4, None)]
    #[case::the_graver_first(1_000, 500, 500, Some(PauseReason::TripwireComplaints))]
    fn a_campaign_trips_above_its_limits(
        #[case] decided: i64,
        #[case] bounced: i64,
        #[case] complained: i64,
        #[case] expected: Option<PauseReason>,
    ) {
        assert_eq!(decide(&Tally { decided, bounced, complained }, DEFAULTS), expected);
    }

    #[test]
    fn a_hundred_percent_never_trips() {
        let limits = TripwireLimits { bounce_percent: 100.0, complaint_percent: 100.0 };
        assert_eq!(decide(&Tally { decided: 500, bounced: 500, complained: 500 }, limits), None);
    }
}
