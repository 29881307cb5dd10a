//! Campaigns: their states, why they pause, how a test is decided.

use serde::{Deserialize, Serialize};

use super::closed_set;

closed_set! {
    /// The life of a campaign.
    CampaignStatus {
        /// Nothing sends.
        Draft = "draft",
        /// Launch accepted, checks running.
        Preflight = "preflight",
        /// Waits for its time.
        Scheduled = "scheduled",
        /// The audience is being mailed.
        Sending = "sending",
        /// No send is queued, fenced or deferred any more.
        Sent = "sent",
        /// Stopped by the caller.
        Cancelled = "cancelled",
    }
}

closed_set! {
    /// Why a campaign is paused.
    PauseReason {
        /// The caller asked for it.
        Requested = "requested",
        /// `not_after` passed, and `on_miss` is `hold`. Resuming sends what is left all the same.
        WindowMissed = "window_missed",
        /// More addresses did not exist than the tripwire allows. Resuming disarms it.
        TripwireBounces = "tripwire_bounces",
        /// More recipients complained than the tripwire allows. Resuming disarms it.
        TripwireComplaints = "tripwire_complaints",
    }
}

closed_set! {
    /// What becomes of sends that `not_after` finds still open.
    OnMiss {
        /// They are skipped, as `window_missed`.
        Skip = "skip",
        /// They are sent late.
        Send = "send",
        /// The campaign is paused.
        Hold = "hold",
    }
}

closed_set! {
    /// By what an A/B test is decided. Machines do not count.
    WinnerMetric {
        /// Recipients who clicked, of those the mail was sent to.
        ClickRate = "click_rate",
        /// Recipients who opened, of those the mail was sent to.
        OpenRate = "open_rate",
    }
}

closed_set! {
    /// How an A/B test was decided.
    WinnerReason {
        /// One variant had the highest rate.
        HighestRate = "highest_rate",
        /// Several had the highest rate: the first of them in the caller's order.
        Tie = "tie",
        /// Too few mails or responses to tell: the first variant.
        TooLittleData = "too_little_data",
    }
}
