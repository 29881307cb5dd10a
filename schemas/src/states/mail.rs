//! What a mail is and how it goes: environments, lanes, kinds and purposes.

use serde::{Deserialize, Serialize};

use super::closed_set;

closed_set! {
    /// Where a request belongs. A tenant link, and the engine tenant behind it, belongs to one environment.
    Environment {
        /// Mail goes out.
        Production = "production",
        /// Mail is captured, never out.
        Sandbox = "sandbox",
    }
}

closed_set! {
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
    /// The two roads through every stage, with their own consumers and workers: a campaign never stands before a password reset.
    Lane {
        /// One-off, transactional, sequence.
        Priority = "priority",
        /// Campaigns.
        Bulk = "bulk",
    }
}

closed_set! {
    /// What the law and the recipient see in a message; decides which opt-outs apply.
    Classification {
        /// Needs consent; opt-outs apply.
        Marketing = "marketing",
        /// About a running relationship; passes marketing opt-outs.
        Operational = "operational",
        /// Asked for by an act of the recipient; passes marketing opt-outs.
        Transactional = "transactional",
    }
}

closed_set! {
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
}

closed_set! {
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
}
