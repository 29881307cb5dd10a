//! The closed sets: states, kinds, lanes, purposes, reasons. One word each, the same in Rust, SQL, JSON and metrics.

mod product;
mod sequence;

use serde::{Deserialize, Serialize};

pub use product::{AttributionModel, DeliveryStatus, OutcomeType, SubscriptionStatus};
pub use sequence::{DelayUnit, EnrollmentStatus, ExitReason, SequenceStatus, StepType};

/// Makes closed sets that read the same in Rust, JSON and Postgres text.
macro_rules! closed_set {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $text:literal,)+ }) => {
        $crate::named_enum! {
            $(#[$meta])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
            pub wire enum $name { $($(#[doc = $doc])+ $variant = $text,)+ }
        }

        impl $name {
            /// The member's docstring, for the documents of the API.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let words: Vec<&str> = Self::ALL.iter().map(|member| member.as_str()).collect();
                schemars::json_schema!({"type": "string", "enum": words})
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl sqlx::Type<sqlx::Postgres> for $name {
            fn type_info() -> sqlx::postgres::PgTypeInfo {
                <str as sqlx::Type<sqlx::Postgres>>::type_info()
            }
            fn compatible(ty: &sqlx::postgres::PgTypeInfo) -> bool {
                <str as sqlx::Type<sqlx::Postgres>>::compatible(ty)
            }
        }

        impl sqlx::postgres::PgHasArrayType for $name {
            fn array_type_info() -> sqlx::postgres::PgTypeInfo {
                <String as sqlx::postgres::PgHasArrayType>::array_type_info()
            }
        }

        impl<'q> sqlx::Encode<'q, sqlx::Postgres> for $name {
            fn encode_by_ref(
                &self,
                buffer: &mut sqlx::postgres::PgArgumentBuffer,
            ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
                <&str as sqlx::Encode<'q, sqlx::Postgres>>::encode_by_ref(&self.as_str(), buffer)
            }
        }

        impl<'r> sqlx::Decode<'r, sqlx::Postgres> for $name {
            fn decode(value: sqlx::postgres::PgValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
                let text = <&str as sqlx::Decode<'r, sqlx::Postgres>>::decode(value)?;
                Self::parse(text).ok_or_else(|| format!("{text:?} is not a {}", stringify!($name)).into())
            }
        }
    };
    ($($(#[$meta:meta])* $name:ident { $($members:tt)+ })+) => {
        $($crate::states::closed_set! { $(#[$meta])* $name { $($members)+ } })+
    };
}
pub(crate) use closed_set;

closed_set! {
    /// Where a request belongs. A tenant link, and the engine tenant behind it, belongs to one environment.
    Environment {
        /// Mail goes out.
        Production = "production",
        /// Mail is captured, never out.
        Sandbox = "sandbox",
    }

    /// What sort of message a send is.
    MessageKind {
        /// One of a campaign.
        Campaign = "campaign",
        /// One step of a sequence.
        Sequence = "sequence",
        /// One template to one person, at once.
        Transactional = "transactional",
        /// A one-off message with its own body.
        OneOff = "one_off",
        /// A test of a campaign: counts in no report, and suppresses nobody.
        Test = "test",
    }
}

impl MessageKind {
    /// True for mail whose subject and bodies stand as they were written: nothing in them is Liquid.
    #[must_use]
    pub fn is_written(self) -> bool {
        matches!(self, Self::OneOff | Self::Test)
    }

    /// The kinds that reports are about.
    pub fn reported() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|kind| *kind != Self::Test)
    }
}

closed_set! {
    /// The two queues of every stage, with their own consumers and workers: a campaign never stands before a password reset.
    Lane {
        /// One-off, transactional, sequence.
        Priority = "priority",
        /// Campaigns.
        Bulk = "bulk",
    }

    /// What the law and the recipient see in a message; decides which opt-outs apply.
    Classification {
        /// Needs consent; opt-outs apply.
        Marketing = "marketing",
        /// About a running relationship; passes marketing opt-outs.
        Operational = "operational",
        /// Asked for by an act of the recipient; passes marketing opt-outs.
        Transactional = "transactional",
    }

    /// Whether a contact has agreed to marketing.
    MarketingStatus {
        /// Consented, or imported with a stated basis.
        Subscribed = "subscribed",
        /// Opted out.
        Unsubscribed = "unsubscribed",
        /// Has not consented (yet).
        Pending = "pending",
    }
}

impl MarketingStatus {
    /// From the column; an unknown value counts as no consent (the gate fails closed).
    #[must_use]
    pub fn from_column(text: &str) -> Self {
        Self::parse(text).unwrap_or(Self::Pending)
    }
}

closed_set! {
    /// Why a campaign is sent. The classification follows from it.
    MessagePurpose {
        /// The default.
        MarketingCampaign = "marketing_campaign",
        /// Marketing.
        Newsletter = "newsletter",
        /// Marketing.
        Promotion = "promotion",
        /// Marketing.
        EventInvitation = "event_invitation",
        /// Marketing.
        Reengagement = "reengagement",
        /// Operational.
        ServiceNotice = "service_notice",
        /// Operational.
        PolicyUpdate = "policy_update",
        /// Operational.
        AccountNotice = "account_notice",
        /// Operational.
        AppointmentNotice = "appointment_notice",
        /// Operational.
        SafetyNotice = "safety_notice",
        /// Transactional.
        Receipt = "receipt",
        /// Transactional.
        SecurityAlert = "security_alert",
        /// Transactional.
        DocumentDelivery = "document_delivery",
    }
}

impl MessagePurpose {
    /// The classification that follows from the purpose.
    #[must_use]
    pub fn classification(self) -> Classification {
        match self {
            Self::MarketingCampaign
            | Self::Newsletter
            | Self::Promotion
            | Self::EventInvitation
            | Self::Reengagement => Classification::Marketing,
            Self::ServiceNotice
            | Self::PolicyUpdate
            | Self::AccountNotice
            | Self::AppointmentNotice
            | Self::SafetyNotice => Classification::Operational,
            Self::Receipt | Self::SecurityAlert | Self::DocumentDelivery => Classification::Transactional,
        }
    }
}

closed_set! {
    /// The kinds of accepted command in `requests`; also the last token of the request subject.
    RequestKind {
        /// Materialise and start a campaign.
        CampaignLaunch = "campaign-launch",
        /// One template to one person.
        Transactional = "transactional",
        /// A one-off message to up to 50 people, with its own body.
        Message = "message",
        /// Enroll a contact in a sequence.
        Enrollment = "enrollment",
        /// Something a mail may be credited for.
        Outcome = "outcome",
    }

    /// What internal systems may ask for on the bus: the last token of `mail.v1.request.…`.
    DirectKind {
        /// Launch a campaign.
        CampaignLaunch = "campaign-launch",
        /// One template to one person; or an array of up to 500 such requests.
        Transactional = "transactional",
        /// A one-off message to up to 50 people, with its own body.
        Message = "message",
        /// Enroll a contact in a sequence.
        Enrollment = "enrollment",
        /// Record an outcome.
        Outcome = "outcome",
        /// Find or create a contact.
        Contact = "contact",
        /// Suppress one address or many.
        Suppression = "suppression",
        /// Record an event of the product, or up to 500.
        Event = "event",
    }

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
        /// Stopped by the caller; or still open, as after a pause, when its month of the ledger was dropped.
        Cancelled = "cancelled",
    }

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

    /// What becomes of sends that `not_after` finds still open.
    OnMiss {
        /// They are skipped, as `window_missed`.
        Skip = "skip",
        /// They are sent late.
        Send = "send",
        /// The campaign is paused.
        Hold = "hold",
    }

    /// By what an A/B test is decided. Machines do not count.
    WinnerMetric {
        /// Recipients who clicked, of those the mail was sent to.
        ClickRate = "click_rate",
        /// Recipients who opened, of those the mail was sent to.
        OpenRate = "open_rate",
    }

    /// How an A/B test was decided.
    WinnerReason {
        /// One variant had the highest rate.
        HighestRate = "highest_rate",
        /// Several had the highest rate: the first of them in the caller's order.
        Tie = "tie",
        /// Too few mails or responses to tell: the first variant.
        TooLittleData = "too_little_data",
    }

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

    /// What a bounce says (RFC 3463): the enhanced status code decides, then the reply code, then the words.
    BounceClass {
        /// The address does not exist: suppressed for good.
        Hard = "hard",
        /// The mailbox cannot take mail for now (full, over a limit): suppressed for a while when it repeats.
        Soft = "soft",
        /// The sender was refused (policy, reputation, content): says nothing about the person.
        Block = "block",
    }

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

crate::named_enum! {
    /// The kinds of providers. The ledger, settings and metrics use the same word for each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum ProviderKind {
        /// An SMTP relay.
        Smtp = "smtp",
        /// Amazon SES, API v2, raw messages.
        Ses = "ses",
        /// Postmark.
        Postmark = "postmark",
        /// SendGrid, v3.
        Sendgrid = "sendgrid",
        /// Mailgun, MIME messages.
        Mailgun = "mailgun",
        /// Resend.
        Resend = "resend",
    }
}

impl ProviderKind {
    /// The providers that take mail and report what became of it by HTTP: all but relays.
    pub const HTTP: [&'static str; 5] = [
        Self::Ses.as_str(),
        Self::Postmark.as_str(),
        Self::Sendgrid.as_str(),
        Self::Mailgun.as_str(),
        Self::Resend.as_str(),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_parses_back_to_its_member() {
        for state in SendState::ALL {
            assert_eq!(SendState::parse(state.as_str()), Some(*state));
        }
        assert_eq!(SendState::parse("gone"), None);
    }

    #[test]
    fn five_purposes_are_marketing_five_operational_three_transactional() {
        let count = |class| MessagePurpose::ALL.iter().filter(|purpose| purpose.classification() == class).count();
        assert_eq!(count(Classification::Marketing), 5);
        assert_eq!(count(Classification::Operational), 5);
        assert_eq!(count(Classification::Transactional), 3);
    }
}
