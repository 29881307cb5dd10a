//! Approvals: one user, one client, one workspace. Looked up with every request, so that a revocation bites at once.

use uuid::Uuid;

use crate::{Assistant, refusal::Refusal, token::Bearer};

/// What a request may do, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    /// The approval.
    pub id: Uuid,
    /// The workspace.
    pub tenant_id: Uuid,
    /// Whether it may save draft proposals: approved by the operator and consented to by the user.
    pub may_draft: bool,
}

impl Assistant {
    /// Finds the approval behind a token and counts the request: one round trip, exact over all ingress processes.
    pub(crate) async fn admit(&self, bearer: &Bearer) -> Result<Approval, Refusal> {
        let row = sqlx::query!(
            r#"with quick as materialized (select set_config('synchronous_commit', 'off', true)),
               approval as (
                   select a.id, a.tenant_id, a.may_draft
                   from quick, assistant_approvals a
                   join tenants t on t.id = a.tenant_id and t.environment = a.environment
                   where a.issuer = $1 and a.subject = $2 and a.client_id = $3 and a.revoked_at is null
                     and (a.expires_at is null or a.expires_at > now())
               ),
               counted as (
                   insert into rate_windows as w (key_id, window_start, used)
                   select id, date_trunc('minute', now()), 1 from approval
                   on conflict (key_id, window_start) do update set used = w.used + 1
                   returning used
               )
               select id, tenant_id, may_draft, (select used from counted) as "used!",
                      ceil(extract(epoch from date_trunc('minute', now()) + interval '1 minute' - now()))::bigint as "resets_in!"
               from approval"#,
            self.terms.issuer,
            bearer.subject,
            bearer.client_id,
        )
        .fetch_optional(&self.pool)
        .await?
        .ok_or(Refusal::NotApproved)?;
        if u32::try_from(row.used).unwrap_or(u32::MAX) > self.terms.rate_per_minute {
            return Err(Refusal::Rate(u64::try_from(row.resets_in).unwrap_or(60).clamp(1, 60)));
        }
        Ok(Approval { id: row.id, tenant_id: row.tenant_id, may_draft: row.may_draft && bearer.drafts })
    }
}
