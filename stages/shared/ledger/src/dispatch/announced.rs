//! Announcements that are committed, and have still to be published.

use runner::StageError;
use runtime::Publication;
use schemas::{Environment, Lane, RequestKind, Resolved, subjects};
use uuid::Uuid;

/// A batch whose announcement is committed.
#[derive(Debug, Clone)]
pub struct AnnouncedBatch {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The batch.
    pub batch_id: Uuid,
    /// Its lane.
    pub lane: Lane,
    /// How often it was announced, this time included.
    pub announcement: i32,
}

impl AnnouncedBatch {
    /// The message that announces it.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn publication(&self) -> Result<Publication, StageError> {
        self.publication_notifying(None)
    }

    /// The message that announces it; `notify` is the subject of a caller that waits for the outcome.
    pub fn publication_notifying(&self, notify: Option<String>) -> Result<Publication, StageError> {
        let message = Resolved {
            tenant_id: self.tenant_id,
            batch_id: self.batch_id,
            lane: self.lane,
            announcement: self.announcement,
            notify,
        };
        Ok(Publication::json(subjects::resolved(self.lane), message.message_id(), &message)?)
    }
}

/// A request whose announcement is committed.
#[derive(Debug, Clone)]
pub struct AnnouncedRequest {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The request.
    pub request_id: Uuid,
    /// The product that made the request.
    pub product: String,
    /// Its environment.
    pub environment: Environment,
    /// The kind of request.
    pub kind: RequestKind,
    /// How often it was announced, this time included.
    pub announcements: i32,
    /// How many sends it becomes, as far as it says so itself: the mail and its copies.
    pub sends: i32,
    /// Whether it says that it came in an array of many, however few of them are in its batch.
    pub is_bulk: bool,
    /// Whether it was to be announced before: by who accepted it, or by an announcement that did not help. Otherwise it waited for its time,
    /// or as a launch for another one.
    pub is_late: bool,
}
