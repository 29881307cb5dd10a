//! Approvals: one user, one client, one workspace. Looked up with every request, so that a revocation bites at once.

use uuid::Uuid;

use crate::{Assistant, NotCounted, refusal::AssistantRefusal, token::Bearer};

/// What a request may do, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    pub id: Uuid,
    /// The workspace.
    pub tenant_id: Uuid,
    /// Whether it may save draft proposals: approved by the operator and consented to by the user.
    pub may_draft: bool,
}

impl Assistant {
    /// Finds the approval behind a token and counts the request, over all ingress processes.
    pub(crate) async fn admit(&self, bearer: &Bearer) -> Result<Approval, AssistantRefusal> {
        let row = sqlx::query!(
            "select a.id, a.tenant_id, a.may_draft
             from assistant_approvals a
             join tenants t on t.id = a.tenant_id and t.environment = a.environment
             where a.issuer = $1 and a.subject = $2 and a.client_id = $3 and a.revoked_at is null
               and (a.expires_at is null or a.expires_at > now())",
            self.terms.issuer,
            bearer.subject,
            bearer.client_id,
        )
        .fetch_optional(&self.deps.pool)
        .await?
        .ok_or(AssistantRefusal::NotApproved)?;
        match self.deps.rate.count(row.id, self.terms.rate_per_minute).await {
            Ok(None) => {}
            Ok(Some(seconds)) => return Err(AssistantRefusal::Rate(u64::from(seconds))),
            Err(NotCounted) => return Err(AssistantRefusal::Unavailable),
        }
        Ok(Approval { id: row.id, tenant_id: row.tenant_id, may_draft: row.may_draft && bearer.drafts })
    }
}
