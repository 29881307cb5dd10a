//! What a handler works with: its transaction, its tenant, its caller.

use std::{future::Future, sync::Arc};

use runtime::Publication;
use schemas::parse_id;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{auth::keys::Caller, error::ApiError, outside::Outside, transaction::Tx};
use crate::state::Ingress;

/// One request being carried out.
pub struct RequestContext {
    /// The transaction. Confined to the tenant by row security; committed by the framework when the handler succeeds.
    pub(super) tx: Tx,
    /// The tenant. Nil for acts that stand above tenants (see [`super::provision`]).
    pub tenant: Uuid,
    /// Who calls.
    pub caller: Arc<Caller>,
    /// The shared state.
    pub ingress: Arc<Ingress>,
    pub(super) announcements: Vec<Publication>,
    pub(super) path: Vec<(String, String)>,
    pub(super) outside: Outside,
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
    /// The connection, for queries.
    pub fn db(&mut self) -> &mut PgConnection {
        self.tx.db()
    }

    /// The `{id}` of the path.
    ///
    /// # Errors
    /// 404 `<object>_not_found` for anything but a canonical id: there is no such object.
    pub fn id(&self, object: &str) -> Result<Uuid, ApiError> {
        self.path
            .iter()
            .find(|(name, _)| name == "id")
            .and_then(|(_, text)| parse_id(text).ok())
            .ok_or_else(|| ApiError::not_found(object))
    }

    /// Publishes after the commit, in the background. Only a doorbell: what it announces must stand in the database, where a sweep
    /// finds it if this is lost.
    pub fn announce(&mut self, publication: Publication) {
        self.announcements.push(publication);
    }

    /// Does long work, on a thread for it, while no connection is held. Call it before the transaction has written anything that is
    /// not undone and done again: the request is rolled back, the work is done, and the handler is called anew; then this answers what
    /// the work made. `label` tells the pieces of work of one request apart and must be the same each time. Only for routes made
    /// with [`super::write_with_work`].
    ///
    /// # Errors
    /// Until the work is done: pass it on.
    pub(crate) fn outside<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.outside.answer(label, work)
    }

    /// Waits for somebody outside while no connection is held: as [`RequestContext::outside`], for what is asked over the network. The future
    /// bounds itself in time and number.
    ///
    /// # Errors
    /// Until the answer is there: pass it on.
    pub(crate) fn outside_wait<T: Clone + Send + Sync + 'static>(
        &mut self,
        label: String,
        answer: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.outside.wait(label, answer)
    }

    /// Writes into the audit log, in the transaction of the act. `subject` and `detail` carry ids and codes only.
    ///
    /// # Errors
    /// When Postgres is away.
    pub async fn audit(&mut self, action: &str, subject: &str, detail: Value) -> sqlx::Result<()> {
        let tenant = (!self.tenant.is_nil()).then_some(self.tenant);
        sqlx::query!(
            "insert into audit_log (id, tenant_id, actor, action, subject, detail) values ($1, $2, $3, $4, $5, $6)",
            schemas::new_id(),
            tenant,
            self.caller.actor(),
            action,
            subject,
            detail,
        )
        .execute(self.db())
        .await
        .map(drop)
    }
}
