//! What products receive and report: webhook subscriptions, deliveries, outcomes.

use serde::{Deserialize, Serialize};

use super::closed_set;

closed_set! {
    /// The life of a webhook subscription.
    SubscriptionStatus {
        /// Told at once.
        Active = "active",
        /// Held, not dropped.
        Paused = "paused",
        /// Over: deleted, answered 410, or failing for days.
        Disabled = "disabled",
    }

    /// The life of one webhook delivery.
    DeliveryStatus {
        /// To be tried, or tried again at `next_attempt_at`.
        Pending = "pending",
        /// Answered 2xx.
        Delivered = "delivered",
        /// As many attempts failed as `webhook-backoff` has pauses, or its subscription is disabled.
        Dead = "dead",
    }

    /// What a mail may be credited for.
    OutcomeType {
        /// A quote was given.
        Quote = "quote",
        /// A submission came in.
        Submission = "submission",
        /// A policy was bound.
        Bind = "bind",
        /// A premium was paid.
        Premium = "premium",
    }

    /// How an outcome is divided between the mails before it. One per tenant.
    AttributionModel {
        /// The last human click takes all; without one the last mail delivered.
        LastTouch = "last_touch",
        /// The first human click takes all; without one the first mail delivered.
        FirstTouch = "first_touch",
        /// All mails a person clicked share equally; without one all mails delivered.
        Linear = "linear",
    }
}
