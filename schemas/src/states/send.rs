//! Sends and the domains they come from: states, and why a mail was not sent or came back.

use serde::{Deserialize, Serialize};

use super::closed_set;

closed_set! {
    /// The life of a send. Facts that come later (delivered, opened …) are times on the row, never states.
    SendState {
        /// Owed: nothing has left.
        Queued = "queued",
        /// The last gate is passed and committed; the body may have left.
        Fenced = "fenced",
        /// The server said "later"; `next_attempt_at` says when.
        Deferred = "deferred",
        /// The server accepted it.
        Sent = "sent",
        /// Permanently refused, or not renderable.
        Failed = "failed",
        /// The body may have left and no answer came.
        Unknown = "unknown",
        /// Withheld on purpose; `skip_reason` says why.
        Skipped = "skipped",
        /// The campaign was cancelled first.
        Cancelled = "cancelled",
        /// Its time ran out before a server took it.
        Expired = "expired",
    }
}

impl SendState {
    /// Whether work is still owed on the send. A campaign is `sent` only when no send of it is open.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Queued | Self::Fenced | Self::Deferred)
    }
}

closed_set! {
    /// Why a recipient was withheld. Every skipped send has one.
    SkipReason {
        /// The address does not exist.
        HardBounced = "hard_bounced",
        /// The recipient reported a message as spam.
        Complained = "complained",
        /// The recipient left.
        Unsubscribed = "unsubscribed",
        /// Suppressed by the tenant.
        Suppressed = "suppressed",
        /// Marketing without consent.
        NoConsent = "no_consent",
        /// Not an address.
        InvalidAddress = "invalid_address",
        /// The contact was archived: no marketing. Or it was erased.
        ContactArchived = "contact_archived",
        /// The sender's domain is not verified (any more).
        DomainUnverified = "domain_unverified",
        /// The tenant has disabled the sender.
        SenderDisabled = "sender_disabled",
        /// An operator has suspended the tenant.
        TenantSuspended = "tenant_suspended",
        /// The tenant's quota is used up. Of campaigns and one-off messages only.
        QuotaExceeded = "quota_exceeded",
        /// The contact has had as many marketing mails as the tenant's frequency cap allows.
        FrequencyCap = "frequency_cap",
        /// `not_after` passed.
        WindowMissed = "window_missed",
        /// The enrollment that it is of ended before its last step.
        EnrollmentExited = "enrollment_exited",
        /// The campaign was cancelled.
        CampaignCancelled = "campaign_cancelled",
    }
}

closed_set! {
    /// What a bounce says (RFC 3463): the enhanced status code decides, then the reply code, then the words.
    BounceClass {
        /// The address does not exist: suppressed for good.
        Hard = "hard",
        /// The mailbox cannot take mail for now (full, over a limit): suppressed for a while when it repeats.
        Soft = "soft",
        /// The sender was refused (policy, reputation, content): says nothing about the person.
        Block = "block",
    }
}

closed_set! {
    /// The life of a sending domain.
    DomainStatus {
        /// Not yet proven.
        Pending = "pending",
        /// All required records stand.
        Verified = "verified",
        /// A required record vanished; still sends for 72 hours.
        Degraded = "degraded",
        /// Stayed degraded too long.
        Failed = "failed",
        /// Stopped by the operator.
        Suspended = "suspended",
    }
}

impl DomainStatus {
    /// Whether mail may be sent from the domain.
    #[must_use]
    pub fn may_send(self) -> bool {
        matches!(self, Self::Verified | Self::Degraded)
    }
}
