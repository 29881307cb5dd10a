//! `save_draft_proposal`: a row for a person to read. Nothing executes it.

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

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Proposal {
    title: String,
    campaign_goal: Option<String>,
    subject: Option<String>,
    preheader: Option<String>,
    body: Option<String>,
    audience: Option<String>,
    notes: Option<String>,
}

pub(super) fn schema() -> Value {
    let text = |max: usize, description: &str| json!({"type": "string", "maxLength": max, "description": description});
    json!({
        "type": "object",
        "properties": {
            "title": text(TITLE_MAX_CHARS, "What it is, in a few words."),
            "campaign_goal": text(LINE_MAX_CHARS, "What it is for."),
            "subject": text(LINE_MAX_CHARS, "The proposed subject."),
            "preheader": text(LINE_MAX_CHARS, "The proposed preheader."),
            "body": text(BODY_MAX_CHARS, "The proposed text."),
            "audience": text(TEXT_MAX_CHARS, "Whom it is meant for, in words."),
            "notes": text(TEXT_MAX_CHARS, "What the reader should know."),
        },
        "required": ["title"],
        "additionalProperties": false,
    })
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
