//! `save_draft_proposal`: a row for a person to read. Nothing executes it.

use schemars::JsonSchema;
use serde_json::{Value, json};
use sqlx::PgPool;

use super::{Tool, ToolFault, arguments, audit, confine};
use crate::{Approval, clean_text};

/// Most open proposals of a workspace; above it, new ones are refused.
const OPEN_MAX: i64 = 100;

const TITLE_MAX_CHARS: usize = 200;
const LINE_MAX_CHARS: usize = 500;
const TEXT_MAX_CHARS: usize = 5_000;
const BODY_MAX_CHARS: usize = 100_000;

#[derive(Debug, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Proposal {
    /// What it is, in a few words.
    #[schemars(length(max = TITLE_MAX_CHARS))]
    title: String,
    /// What it is for.
    #[schemars(length(max = LINE_MAX_CHARS))]
    campaign_goal: Option<String>,
    /// The proposed subject.
    #[schemars(length(max = LINE_MAX_CHARS))]
    subject: Option<String>,
    /// The proposed preheader.
    #[schemars(length(max = LINE_MAX_CHARS))]
    preheader: Option<String>,
    /// The proposed text.
    #[schemars(length(max = BODY_MAX_CHARS))]
    body: Option<String>,
    /// Whom it is meant for, in words.
    #[schemars(length(max = TEXT_MAX_CHARS))]
    audience: Option<String>,
    /// What the reader should know.
    #[schemars(length(max = TEXT_MAX_CHARS))]
    notes: Option<String>,
}

impl Proposal {
    fn check(&self) -> Result<(), ToolFault> {
        let texts = [
            ("title", Some(&self.title), TITLE_MAX_CHARS),
            ("campaign_goal", self.campaign_goal.as_ref(), LINE_MAX_CHARS),
            ("subject", self.subject.as_ref(), LINE_MAX_CHARS),
            ("preheader", self.preheader.as_ref(), LINE_MAX_CHARS),
            ("body", self.body.as_ref(), BODY_MAX_CHARS),
            ("audience", self.audience.as_ref(), TEXT_MAX_CHARS),
            ("notes", self.notes.as_ref(), TEXT_MAX_CHARS),
        ];
        for (name, text, max) in texts {
            let Some(text) = text else { continue };
            if text.chars().count() > max {
                return Err(ToolFault::Arguments(format!("{name}: may have at most {max} characters")));
            }
            if !clean_text::is_plain_text(text) {
                return Err(ToolFault::Arguments(format!("{name}: contains control characters")));
            }
        }
        if self.title.trim().is_empty() {
            return Err(ToolFault::Arguments("title: must not be empty".to_owned()));
        }
        Ok(())
    }
}

/// Saves a proposal and its audit row together.
pub(super) async fn save(pool: &PgPool, approval: &Approval, given: Value) -> Result<Value, ToolFault> {
    let tool = Tool::SaveDraftProposal;
    let proposal = arguments::<Proposal>(given).and_then(|proposal| proposal.check().map(|()| proposal));
    let mut tx = pool.begin().await?;
    confine(&mut tx, approval.tenant_id).await?;
    let fault = match proposal {
        Ok(proposal) => {
            let id = schemas::new_id();
            // Of several at once one may be too many: a bound for the reader's sake, not a promise.
            let open = sqlx::query_scalar!(
                r#"select count(status) as "count!" from draft_proposals where tenant_id = $1 and status = 'open'"#,
                approval.tenant_id,
            )
            .fetch_one(&mut *tx)
            .await?;
            if open < OPEN_MAX {
                sqlx::query!(
                    "insert into draft_proposals (tenant_id, id, approval_id, title, campaign_goal, subject, preheader, body,
                                                  audience, notes)
                     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                    approval.tenant_id,
                    id,
                    approval.id,
                    proposal.title,
                    proposal.campaign_goal,
                    proposal.subject,
                    proposal.preheader,
                    proposal.body,
                    proposal.audience,
                    proposal.notes,
                )
                .execute(&mut *tx)
                .await?;
                audit(&mut tx, approval, tool, "answered", Some(id)).await?;
                tx.commit().await?;
                return Ok(json!({
                    "proposal_id": id, "status": "open", "note": "saved for a person to read; nothing was created or sent",
                }));
            }
            ToolFault::TooManyOpen
        }
        Err(fault) => fault,
    };
    audit(&mut tx, approval, tool, fault.code(), None).await?;
    tx.commit().await?;
    Err(fault)
}
