//! Erasure of a contact: removes personal data from ledger, reports and logs in slices, and continues after a restart.
//!
//! One transaction of the ingress empties the contact's row, takes back the requests that wait and writes a row of `erasures`; the sweep here
//! does the rest. Each slice reads a bounded number of rows by an index, so an erasure does not slow other work, however much mail the tenant
//! has sent. Stored answers and provider events have no index over addresses: one slice of them serves all erasures that wait for it.
//! Eight days later the contact's mail is erased once more, for what was under way during the erasure. Links and pictures of its mail work for
//! years: a fact about mail of an erased contact is stored without [`PERSONAL_DETAILS`].
//! Suppressions stay, and so does the keyed hash in the contact's row.

mod mail;
mod records;

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use runner::{StageError, Sweep, SweepSchedule};
use runtime::{column, plans::PreparedPool};
use sqlx::PgConnection;
use uuid::Uuid;

pub use records::take_back_requests;

/// Rows read in one slice.
const SLICE: i64 = 500;
/// Campaigns searched for a send to the contact in one slice.
const CAMPAIGNS: i64 = 200;
/// Stored answers or provider events read in one slice. No index finds an address among them.
const UNINDEXED: i64 = 5_000;
/// The most erasures that one slice of stored answers or provider events serves.
const GROUP_MAX: i64 = 100;

/// What the detail of a fact about a send says about the person: erased with the contact.
pub const PERSONAL_DETAILS: [&str; 6] = ["response", "diagnostic", "message_id", "ip", "user_agent", "url"];

/// Requests the erasure of a contact whose own row the caller has locked, and empties in this transaction. Harmless to repeat. It reaches what
/// came in while the transaction waited for that lock: the time is that of the request, and not of the transaction's start.
pub async fn request_erasure(db: &mut PgConnection, tenant: Uuid, contact: Uuid, address: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into erasures (tenant_id, contact_id, address, asked_at) values ($1, $2, $3, clock_timestamp()) on conflict do nothing",
        tenant,
        contact,
        address,
    )
    .execute(db)
    .await
    .map(drop)
}

/// True if the erasure of this contact is complete, false while it is under way; `None` if none was requested.
pub async fn is_erased(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Option<bool>> {
    sqlx::query_scalar!(
        r#"select completed_at is not null as "complete!" from erasures where tenant_id = $1 and contact_id = $2"#,
        tenant,
        contact,
    )
    .fetch_optional(db)
    .await
}

schemas::named_enum! {
    /// The steps, in order. Those after [`ErasureStep::Late`] erase the contact's mail once more.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum ErasureStep {
        Requests = "requests",
        Messages = "messages",
        Notifications = "notifications",
        Enrollments = "enrollments",
        ProductEvents = "product_events",
        Outcomes = "outcomes",
        Mail = "mail",
        Campaigns = "campaigns",
        Imports = "imports",
        Answers = "answers",
        InboundEvents = "inbound_events",
        PendingFacts = "pending_facts",
        WebhookEvents = "webhook_events",
        /// The erasure is complete; the late steps wait for what was under way during it.
        Late = "late",
        LateNotifications = "late_notifications",
        LateMail = "late_mail",
        LateCampaigns = "late_campaigns",
        LateOutcomes = "late_outcomes",
        LatePendingFacts = "late_pending_facts",
        LateWebhookEvents = "late_webhook_events",
        Finished = "finished",
    }
}

impl ErasureStep {
    fn next(self) -> Self {
        Self::ALL.get(self as usize + 1).copied().unwrap_or(Self::Finished)
    }
}

/// An erasure in progress.
#[derive(Debug)]
struct Erasure {
    tenant_id: Uuid,
    contact_id: Uuid,
    /// Empty once the search by address is over.
    address: String,
    step: String,
    cursor_id: Uuid,
    cursor_text: String,
    asked_at: DateTime<Utc>,
}

/// Start of the next slice of the same step; `None`: the step is over.
type Cursor = Option<(Uuid, String)>;

/// The sweep. Any number of processes may run it: each takes another contact.
pub struct Erasures(pub PreparedPool);

#[async_trait]
impl Sweep for Erasures {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("erase_contacts", Duration::from_secs(2))
            .when("exists (select from erasures where finished_at is null and due_at <= now())")
            .also_when_paused()
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin().await?;
        // While others are in the middle of what all of them look through, an erasure waits, and begins with all that have come meanwhile:
        // each alone, they would never meet. Those that wait for the late steps are left out by the time. The inner queries name
        // no column of the outer one: they are read once, not for each erasure.
        let first = sqlx::query_as!(
            Erasure,
            r#"select e.tenant_id, e.contact_id, coalesce(e.address, '') as "address!", e.step, e.cursor_id, e.cursor_text, e.asked_at
               from erasures e
               where e.finished_at is null and e.due_at <= now()
                 and (e.step not in ($1, $2) or e.cursor_id <> $3
                      or e.step = $1
                         and not exists (select from erasures o
                                         where o.finished_at is null and o.due_at <= now() + interval '1 hour'
                                           and o.step = $1 and o.cursor_id <> $3)
                      or e.step = $2
                         and e.tenant_id not in (select o.tenant_id from erasures o
                                                 where o.finished_at is null and o.due_at <= now() + interval '1 hour'
                                                   and o.step = $2 and o.cursor_id <> $3))
               order by e.due_at limit 1 for update of e skip locked"#,
            ErasureStep::Answers.as_str(),
            ErasureStep::InboundEvents.as_str(),
            Uuid::nil(),
        );
        let Some(first) = first.fetch_optional(&mut *tx).await? else { return Ok(0) };
        // A step of another version: begin again, every step is harmless to repeat.
        let step = ErasureStep::parse(&first.step).unwrap_or(ErasureStep::Requests);
        let others = first.others(&mut tx, step).await?;
        let group: Vec<&Erasure> = [&first].into_iter().chain(&others).collect();
        let cursor = first.slice(&mut tx, step, &group).await?;
        save_progress(&mut tx, &group, step, cursor).await?;
        tx.commit().await?;
        Ok(1)
    }
}

impl Erasure {
    /// In the steps that look through what has no index over addresses, the erasures in the same place, which read the same slice: of all
    /// tenants, or of its own. Mostly none. Those that came while others looked through it begin together.
    async fn others(&self, db: &mut PgConnection, step: ErasureStep) -> sqlx::Result<Vec<Self>> {
        let of_tenant = match step {
            ErasureStep::Answers => None,
            ErasureStep::InboundEvents => Some(self.tenant_id),
            _ => return Ok(Vec::new()),
        };
        sqlx::query_as!(
            Erasure,
            r#"select tenant_id, contact_id, coalesce(address, '') as "address!", step, cursor_id, cursor_text, asked_at
               from erasures
               where finished_at is null and due_at <= now() and step = $1 and cursor_id = $2 and cursor_text = $3
                 and tenant_id = coalesce($4, tenant_id) and (tenant_id, contact_id) <> ($5, $6)
               order by due_at limit $7 for update skip locked"#,
            step.as_str(),
            self.cursor_id,
            self.cursor_text,
            of_tenant,
            self.tenant_id,
            self.contact_id,
            GROUP_MAX - 1,
        )
        .fetch_all(db)
        .await
    }

    async fn slice(&self, db: &mut PgConnection, step: ErasureStep, group: &[&Self]) -> sqlx::Result<Cursor> {
        match step {
            ErasureStep::Requests => self.requests(db).await,
            ErasureStep::Messages => self.messages(db).await,
            ErasureStep::Notifications | ErasureStep::LateNotifications => self.notifications(db).await,
            ErasureStep::Enrollments => self.enrollments(db).await,
            ErasureStep::ProductEvents => self.product_events(db).await,
            ErasureStep::Outcomes | ErasureStep::LateOutcomes => self.outcomes(db).await,
            ErasureStep::Mail | ErasureStep::LateMail => self.mail(db).await,
            ErasureStep::Campaigns | ErasureStep::LateCampaigns => self.campaigns(db).await,
            ErasureStep::Imports => self.imports(db).await,
            ErasureStep::Answers => self.answers(db, group).await,
            ErasureStep::InboundEvents => self.inbound_events(db, group).await,
            ErasureStep::PendingFacts | ErasureStep::LatePendingFacts => self.pending_facts(db).await,
            ErasureStep::WebhookEvents | ErasureStep::LateWebhookEvents => self.webhook_events(db).await,
            ErasureStep::Late | ErasureStep::Finished => Ok(None),
        }
    }

    /// The cursor after a slice that found these ids, unless it was the last.
    fn after(ids: &[Uuid], slice: i64) -> Cursor {
        ids.last().filter(|_| ids.len() as i64 >= slice).map(|last| (*last, String::new()))
    }
}

/// Saves the progress of the erasures. Before the late steps they wait until nothing of before is under way.
async fn save_progress(
    db: &mut PgConnection,
    group: &[&Erasure],
    step: ErasureStep,
    cursor: Cursor,
) -> sqlx::Result<()> {
    let step = if cursor.is_some() { step } else { step.next() };
    let (cursor_id, cursor_text) = cursor.unwrap_or_default();
    sqlx::query!(
        "update erasures e
         set step = $3, cursor_id = $4, cursor_text = $5,
             completed_at = case when $6 then now() else completed_at end,
             address = case when $6 then null else address end,
             finished_at = case when $7 then now() end,
             due_at = case when $6 then now() + interval '8 days' else clock_timestamp() end
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, contact_id)
         where e.tenant_id = w.tenant_id and e.contact_id = w.contact_id",
        &column(group, |erasure| erasure.tenant_id),
        &column(group, |erasure| erasure.contact_id),
        step.as_str(),
        cursor_id,
        cursor_text,
        step == ErasureStep::Late,
        step == ErasureStep::Finished,
    )
    .execute(db)
    .await
    .map(drop)
}
