//! The context of a request: transaction, tenant, caller.

use std::{future::Future, sync::Arc};

use runtime::{AuditRecord, Publication, audit};
use schemas::{RequestAnnounced, parse_id, subjects};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    auth::keys::Caller, deferred_work::DeferredWork, error::ApiError, handler::PreparationContext, page::ListPage,
    transaction::Tx,
};
use crate::state::Ingress;

/// The context of a request in its handler.
pub struct RequestContext {
    /// The transaction. Confined to the tenant by row security; committed by the framework when the handler succeeds.
    pub(super) tx: Tx,
    /// The tenant. Nil for requests without one (see [`super::provision`]).
    pub tenant: Uuid,
    pub caller: Arc<Caller>,
    pub ingress: Arc<Ingress>,
    /// The page that is asked for, of routes made with [`super::read_page`].
    pub page: ListPage,
    pub(super) announcements: Vec<Publication>,
    pub(super) commits_facts: bool,
    /// The `{id}` of the path, as it is written there.
    pub(super) path_id: Option<String>,
    pub(super) deferred: DeferredWork,
}

/// A notice for the stage that handles a request.
pub(crate) fn request_notice(subject: String, notice: &RequestAnnounced) -> Result<Publication, ApiError> {
    Publication::json(subject, format!("request-{}", notice.request_id.simple()), notice)
        .map_err(|error| ApiError::unexpected(&error))
}

impl std::fmt::Debug for RequestContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestContext")
            .field("tenant", &self.tenant)
            .field("key_id", &self.caller.key_id)
            .finish_non_exhaustive()
    }
}

impl RequestContext {
    /// The context in this transaction, with the first page of a list.
    pub(super) fn new(tx: Tx, request: PreparationContext, path_id: Option<String>) -> Self {
        let PreparationContext { ingress, caller, tenant } = request;
        let (page, announcements, deferred) = (ListPage::first(), Vec::new(), DeferredWork::default());
        Self { tx, tenant, caller, ingress, page, announcements, commits_facts: true, path_id, deferred }
    }

    /// The connection, for queries.
    pub fn db(&mut self) -> &mut PgConnection {
        self.tx.db()
    }

    /// The `{id}` of the path.
    ///
    /// # Errors
    /// 404 `<object>_not_found` for anything but a canonical id: there is no such object.
    pub fn id(&self, object: &str) -> Result<Uuid, ApiError> {
        self.path_id.as_deref().and_then(|id| parse_id(id).ok()).ok_or_else(|| ApiError::not_found(object))
    }

    /// Publishes after the commit, in the background. A notification only: the work must be in the database, where a sweep finds it if
    /// the announcement is lost.
    pub fn announce(&mut self, publication: Publication) {
        self.announcements.push(publication);
    }

    /// Announces a request of the caller that is due, after the commit.
    pub(crate) fn announce_request(&mut self, notice: &RequestAnnounced) -> Result<(), ApiError> {
        let subject = subjects::accepted(&self.caller.product, self.caller.environment, notice.kind);
        self.announce(request_notice(subject, notice)?);
        Ok(())
    }

    /// This write commits no facts: the webhooks stage is not notified.
    pub fn commits_no_facts(&mut self) {
        self.commits_facts = false;
    }

    /// Runs long work on a blocking thread while no connection is held. The first call rolls the transaction back, runs the work and calls
    /// the handler again; the second call returns the result. `label` identifies the work within the request and must not change. Only for routes made
    /// with [`super::write_with_work`].
    ///
    /// # Errors
    /// Before the second call: return it.
    pub(crate) fn run_blocking<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.deferred.run_blocking(&self.caller.product, label, work)
    }

    /// Waits for a network request while no connection is held, with the same two calls as [`RequestContext::run_blocking`]. The future limits
    /// its own time and concurrency.
    ///
    /// # Errors
    /// Before the second call: return it.
    pub(crate) fn wait_without_connection<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        answer: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.deferred.wait(label, answer)
    }

    /// Writes into the audit log, in the transaction of the request. `subject` and `detail` carry ids and codes only.
    pub async fn audit(&mut self, action: &str, subject: &str, detail: Value) -> sqlx::Result<()> {
        self.audit_each(action, vec![(subject.to_owned(), detail)]).await
    }

    /// Writes a change into the audit log with the names of the fields that are marked; nothing if none is.
    pub async fn audit_changed<const N: usize>(
        &mut self,
        action: &str,
        subject: &str,
        fields: [(&str, bool); N],
    ) -> sqlx::Result<()> {
        let changed: Vec<&str> = fields.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect();
        if changed.is_empty() {
            return Ok(());
        }
        self.audit(action, subject, json!({"fields": changed})).await
    }

    /// Writes one kind of action into the audit log, for each subject with its detail.
    pub async fn audit_each(&mut self, action: &str, subjects: Vec<(String, Value)>) -> sqlx::Result<()> {
        if subjects.is_empty() {
            return Ok(());
        }
        let (tenant, actor) = ((!self.tenant.is_nil()).then_some(self.tenant), self.caller.actor());
        write_audit_log(self.db(), tenant, &actor, action, subjects).await
    }
}

/// Writes what an actor did into the audit log, for each subject with its detail.
pub(crate) async fn write_audit_log(
    db: &mut PgConnection,
    tenant: Option<Uuid>,
    actor: &str,
    action: &str,
    subjects: Vec<(String, Value)>,
) -> sqlx::Result<()> {
    let record = |(subject, detail)| AuditRecord { tenant, actor, action, subject, detail, ..AuditRecord::default() };
    let records: Vec<AuditRecord<'_>> = subjects.into_iter().map(record).collect();
    audit::write(db, &records).await
}
