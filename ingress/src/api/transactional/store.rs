//! What a transactional request looks up, and the row it becomes.

use schemas::{DomainStatus, RequestKind};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{NewRequest, ValidRequest};
use crate::{
    api::{
        requests::{self, store::RequestRow},
        senders::store::Readiness,
    },
    pipeline::auth::keys::Caller,
};

/// The content that the template has now, unless there is no such template or it is archived; and the sender, or without an id the tenant's
/// default, if there is one. The sender is not removed before this transaction ends.
pub(super) async fn find_content_and_sender(
    db: &mut PgConnection,
    tenant: Uuid,
    request: &ValidRequest,
) -> sqlx::Result<(Option<Uuid>, Option<Readiness>)> {
    // The sender's id is chosen in a select of its own: row security keeps a `coalesce` out of the condition of an index.
    let row = sqlx::query!(
        r#"select t.content_id as "content_id?", s.id as "sender_id?", s.active as "active?",
                  s.domain_status as "domain_status?: DomainStatus"
           from (select) one
           left join templates t on t.tenant_id = $1 and t.id = $2 and t.status <> 'archived'
           left join (
               select s.id, s.status = 'active' as active, d.status as domain_status
               from senders s
               join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
               where s.tenant_id = $1
                 and s.id = (select coalesce($3::uuid, (select n.id from senders n where n.tenant_id = $1 and n.is_default)))
               for key share of s
           ) s on true"#,
        tenant,
        request.template_id,
        request.sender_id,
    )
    .fetch_one(db)
    .await?;
    let sender = match (row.sender_id, row.active, row.domain_status) {
        (Some(id), Some(active), Some(domain_status)) => Some(Readiness { id, active, domain_status }),
        _ => None,
    };
    Ok((row.content_id, sender))
}

/// Stores the request under the id of its send, so that a caller finds it by this id before the send exists.
pub(super) async fn insert_request(
    db: &mut PgConnection,
    tenant: Uuid,
    caller: &Caller,
    request: &NewRequest,
) -> sqlx::Result<()> {
    let row = RequestRow {
        id: request.payload.send_id,
        kind: RequestKind::Transactional,
        payload: &request.payload,
        options: request.options.as_ref(),
        due_at: request.due_at(),
    };
    requests::store::insert(db, tenant, caller, row).await
}
