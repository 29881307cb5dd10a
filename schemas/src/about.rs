//! The work that a message is about, for traces: ids only.

use uuid::Uuid;

/// The piece of work that a message is about, for traces: ids only. The id of a transactional or one-off request is also that of its batch,
/// and of a batch's first send: so one id leads from the request to the mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A row in `requests`.
    Request(Uuid),
    /// A row in `batches`.
    Batch(Uuid),
    /// A signal of a recipient or provider.
    Signal(Uuid),
}

impl Work {
    /// Its id.
    #[must_use]
    pub fn id(self) -> Uuid {
        match self {
            Self::Request(id) | Self::Batch(id) | Self::Signal(id) => id,
        }
    }
}

/// What a message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The work.
    pub work: Work,
    /// The campaign it belongs to, where the message says so.
    pub campaign_id: Option<Uuid>,
}

impl About {
    /// About a piece of work.
    #[must_use]
    pub fn new(tenant_id: Uuid, work: Work) -> Self {
        Self { tenant_id, work, campaign_id: None }
    }
}
