//! Erasure of a person: what the ledger, reports and logs hold beside the contact's own row, in slices that survive a restart.
//!
//! The ingress empties the contact's row and writes a row of `erasures` in one transaction; the sweep here does the rest. Each slice
//! looks at a bounded number of rows by an index, so an erasure costs other work nothing, however much mail the tenant has sent.
//! Eight days later the person's mail is gone through once more: by then nothing is under way that could still tell of them.
//! Suppressions stay, and so does the keyed hash in the contact's row.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, NaiveDate, Utc};
use runner::{StageError, Sweep};
use runtime::plans;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

/// Rows looked at in one slice.
const SLICE: i64 = 500;
/// Campaigns in which the contact's send is looked for in one slice.
const CAMPAIGNS: i64 = 200;
/// Stored answers looked at in one slice.
const ANSWERS: i64 = 2_000;

/// Asks for the erasure of a contact whose own row the caller empties in this transaction. Harmless to repeat.
///
/// # Errors
/// When Postgres is away.
pub async fn request_erasure(db: &mut PgConnection, tenant: Uuid, contact: Uuid, address: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "insert into erasures (tenant_id, contact_id, address) values ($1, $2, $3) on conflict do nothing",
        tenant,
        contact,
        address,
    )
    .execute(db)
    .await
    .map(drop)
}

/// True if the erasure of this contact is complete, false while it is under way; `None` if nobody asked for one.
///
/// # Errors
/// When Postgres is away.
pub async fn is_erased(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Option<bool>> {
    sqlx::query_scalar!(
        r#"select completed_at is not null as "complete!" from erasures where tenant_id = $1 and contact_id = $2"#,
        tenant,
        contact,
    )
    .fetch_optional(db)
    .await
}

/// The steps, in order. Those after [`Step::Late`] go through the person's mail once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Requests,
    Messages,
    Notifications,
    Enrollments,
    Outcomes,
    Mail,
    Campaigns,
    Imports,
    Answers,
    InboundEvents,
    ParkedFacts,
    /// The erasure is complete; the rest waits for what is under way.
    Late,
    LateNotifications,
    LateMail,
    LateCampaigns,
    LateParkedFacts,
    Finished,
}

impl Step {
    const ALL: [(Self, &'static str); 17] = [
        (Self::Requests, "requests"),
        (Self::Messages, "messages"),
        (Self::Notifications, "notifications"),
        (Self::Enrollments, "enrollments"),
        (Self::Outcomes, "outcomes"),
        (Self::Mail, "mail"),
        (Self::Campaigns, "campaigns"),
        (Self::Imports, "imports"),
        (Self::Answers, "answers"),
        (Self::InboundEvents, "inbound_events"),
        (Self::ParkedFacts, "parked_facts"),
        (Self::Late, "late"),
        (Self::LateNotifications, "late_notifications"),
        (Self::LateMail, "late_mail"),
        (Self::LateCampaigns, "late_campaigns"),
        (Self::LateParkedFacts, "late_parked_facts"),
        (Self::Finished, "finished"),
    ];

    fn parse(text: &str) -> Self {
        // A word of another version: begin again, every step is harmless to repeat.
        Self::ALL.iter().find(|(_, word)| *word == text).map_or(Self::Requests, |(step, _)| *step)
    }

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(step, _)| *step == self).map_or("", |(_, word)| word)
    }

    fn next(self) -> Self {
        let here = Self::ALL.iter().position(|(step, _)| *step == self).unwrap_or(0);
        Self::ALL.get(here + 1).map_or(Self::Finished, |(step, _)| *step)
    }
}

/// An erasure, as it stands.
#[derive(Debug)]
struct Erasure {
    tenant_id: Uuid,
    contact_id: Uuid,
    /// Empty once nothing is searched by it any more.
    address: String,
    cursor_id: Uuid,
    cursor_text: String,
    asked_at: DateTime<Utc>,
}

/// Where the next slice of the same step begins; `None`: the step is over.
type Cursor = Option<(Uuid, String)>;

/// Erases what is left of people. Any number of processes may: each takes another person.
pub struct Erasures(pub PgPool);

#[async_trait]
impl Sweep for Erasures {
    fn name(&self) -> &'static str {
        "erasures"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn rests(&self) -> bool {
        false
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let mut tx = self.0.begin_with(plans::BEGIN_BY_KEY).await?;
        let Some(row) = sqlx::query!(
            "select tenant_id, contact_id, address, step, cursor_id, cursor_text, asked_at from erasures
             where finished_at is null and due_at <= now() order by due_at limit 1 for update skip locked"
        )
        .fetch_optional(&mut *tx)
        .await?
        else {
            return Ok(0);
        };
        let step = Step::parse(&row.step);
        let erasure = Erasure {
            tenant_id: row.tenant_id,
            contact_id: row.contact_id,
            address: row.address.unwrap_or_default(),
            cursor_id: row.cursor_id,
            cursor_text: row.cursor_text,
            asked_at: row.asked_at,
        };
        let cursor = erasure.slice(&mut tx, step).await?;
        erasure.go_on(&mut tx, step, cursor).await?;
        tx.commit().await?;
        Ok(1)
    }
}

impl Erasure {
    async fn slice(&self, db: &mut PgConnection, step: Step) -> sqlx::Result<Cursor> {
        match step {
            Step::Requests => self.requests(db).await,
            Step::Messages => self.messages(db).await,
            Step::Notifications | Step::LateNotifications => self.notifications(db).await,
            Step::Enrollments => self.enrollments(db).await,
            Step::Outcomes => self.outcomes(db).await,
            Step::Mail | Step::LateMail => self.mail(db).await,
            Step::Campaigns | Step::LateCampaigns => self.campaigns(db).await,
            Step::Imports => self.imports(db).await,
            Step::Answers => self.answers(db).await,
            Step::InboundEvents => self.inbound_events(db).await,
            Step::ParkedFacts | Step::LateParkedFacts => self.parked_facts(db).await,
            Step::Late | Step::Finished => Ok(None),
        }
    }

    /// Keeps where the erasure is. Before the late steps it rests until nothing of the time before can come in any more.
    async fn go_on(&self, db: &mut PgConnection, step: Step, cursor: Cursor) -> sqlx::Result<()> {
        let step = if cursor.is_some() { step } else { step.next() };
        let (cursor_id, cursor_text) = cursor.unwrap_or_default();
        sqlx::query!(
            "update erasures
             set step = $3, cursor_id = $4, cursor_text = $5,
                 completed_at = case when $6 then now() else completed_at end,
                 address = case when $6 then null else address end,
                 finished_at = case when $7 then now() end,
                 due_at = case when $6 then now() + interval '8 days' else clock_timestamp() end
             where tenant_id = $1 and contact_id = $2",
            self.tenant_id,
            self.contact_id,
            step.as_str(),
            cursor_id,
            cursor_text,
            step == Step::Late,
            step == Step::Finished,
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// The cursor after a slice that ended with this id, unless it was the last.
    fn after(last: Option<Uuid>, found: usize, slice: i64) -> Cursor {
        last.filter(|_| found as i64 >= slice).map(|last| (last, String::new()))
    }

    /// Accepted requests name the address: their payload goes, and with it their place in the index that finds them.
    async fn requests(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let erased = sqlx::query!(
            "update requests set
                 payload = '{\"erased\": true}',
                 state = case when state = 'accepted' then 'rejected' else state end,
                 outcome = case when state = 'accepted' then 'contact_erased' else outcome end,
                 handled_at = coalesce(handled_at, now()),
                 announce_after = null
             where tenant_id = $1 and id in (
                 select id from requests
                 where tenant_id = $1 and kind = 'transactional' and payload ->> 'address' = $2 and received_at <= $3
                 limit $4 for update)",
            self.tenant_id,
            self.address,
            self.asked_at,
            SLICE,
        )
        .execute(db)
        .await?
        .rows_affected();
        Ok((erased >= SLICE.unsigned_abs()).then(|| (Uuid::nil(), String::new())))
    }

    /// One-off messages carry the name, and what was written to somebody is about them.
    async fn messages(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let messages = sqlx::query_scalar!(
            "with found as (
                 select message_id from message_recipients
                 where tenant_id = $1 and contact_id = $2 and message_id > $3 order by message_id limit $4
             ), unnamed as (
                 update message_recipients r set name = null from found f
                 where r.tenant_id = $1 and r.contact_id = $2 and r.message_id = f.message_id and r.name is not null
             )
             select message_id from found order by message_id",
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        self.erase_written(db, &messages).await?;
        Ok(Self::after(messages.last().copied(), messages.len(), SLICE))
    }

    /// What sequences wrote to the tenant's owner about the contact.
    async fn notifications(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let sends = sqlx::query_scalar!(
            "select q.send_id from enrollments e
             join sequence_sends q on q.tenant_id = e.tenant_id and q.enrollment_id = e.id
             where e.tenant_id = $1 and e.contact_id = $2 and q.send_id > $3 order by q.send_id limit $4",
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        self.erase_written(&mut *db, &sends).await?;
        let months: Vec<NaiveDate> = sends.iter().map(|send| schemas::SendId(*send).month()).collect();
        self.erase_told(db, &sends, &months).await?;
        Ok(Self::after(sends.last().copied(), sends.len(), SLICE))
    }

    /// Bodies and attachments of messages to nobody else. A message to several keeps its body, which is the others' too.
    async fn erase_written(&self, db: &mut PgConnection, messages: &[Uuid]) -> sqlx::Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "with own as (
                 select m.id, m.content_id from messages m
                 where m.tenant_id = $1 and m.id = any ($2)
                   and (exists (select from sequence_sends q where q.tenant_id = m.tenant_id and q.send_id = m.id)
                        or not exists (select from message_recipients r
                                       where r.tenant_id = m.tenant_id and r.message_id = m.id and r.contact_id <> $3))
             ), attachment as (
                 delete from message_attachments a using own where a.tenant_id = $1 and a.message_id = own.id
             ), skeleton as (
                 delete from skeletons s using own where s.tenant_id = $1 and s.id = 'message-' || replace(own.id::text, '-', '')
             )
             update contents c set subject = '', preheader = null, body_html = '', body_text = null
             from own where c.tenant_id = $1 and c.id = own.content_id",
            self.tenant_id,
            messages,
            self.contact_id,
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// What the steps of the contact's enrollments noted.
    async fn enrollments(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let enrollments = sqlx::query_scalar!(
            "select id from enrollments where tenant_id = $1 and contact_id = $2 and id > $3 order by id limit $4",
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        sqlx::query!(
            "with steps as (
                 update enrollment_steps set detail = '{}' where tenant_id = $1 and enrollment_id = any ($2) and detail <> '{}'
             )
             update enrollments set last_error = null where tenant_id = $1 and id = any ($2) and last_error is not null",
            self.tenant_id,
            &enrollments,
        )
        .execute(db)
        .await?;
        Ok(Self::after(enrollments.last().copied(), enrollments.len(), SLICE))
    }

    /// Outcomes keep whom they were about as an id, and what they were worth; the keys they were told with go, and the pages that
    /// were clicked.
    async fn outcomes(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let outcomes = sqlx::query_scalar!(
            "select id from outcomes
             where tenant_id = $1 and (contact_id = $2 or contact_email = $3) and created_at <= $4 and id > $5
             order by id limit $6 for no key update",
            self.tenant_id,
            self.contact_id,
            self.address,
            self.asked_at,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        sqlx::query!(
            "with unclicked as (
                 update outcome_credits set evidence = evidence - 'url'
                 where tenant_id = $1 and outcome_id = any ($2) and contact_id = $3 and evidence ? 'url'
             )
             update outcomes set contact_email = null, dot_number = null where tenant_id = $1 and id = any ($2)",
            self.tenant_id,
            &outcomes,
            self.contact_id,
        )
        .execute(db)
        .await?;
        Ok(Self::after(outcomes.last().copied(), outcomes.len(), SLICE))
    }

    /// Mail other than campaigns'. Served by `sends_by_contact`.
    async fn mail(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let rows = sqlx::query!(
            "select id, month from sends
             where tenant_id = $1 and contact_id = $2 and campaign_id is null and id > $3 order by id limit $4",
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        let (sends, months): (Vec<Uuid>, Vec<NaiveDate>) = rows.into_iter().map(|row| (row.id, row.month)).unzip();
        self.erase_told(db, &sends, &months).await?;
        Ok(Self::after(sends.last().copied(), sends.len(), SLICE))
    }

    /// Campaigns' mail: each campaign is looked into by the unique index that ends in the contact.
    async fn campaigns(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let rows = sqlx::query!(
            r#"select c.id as "campaign_id!", s.id as "send_id?", s.month as "month?"
               from (
                   select id, month from campaigns where tenant_id = $1 and id > $3 order by id limit $4
               ) c
               left join lateral (
                   select s.id, s.month from sends s
                   where s.tenant_id = $1 and s.campaign_id = c.id and s.contact_id = $2 and s.month = c.month
                   offset 0
               ) s on true
               order by c.id"#,
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            CAMPAIGNS,
        )
        .fetch_all(&mut *db)
        .await?;
        let (sends, months): (Vec<Uuid>, Vec<NaiveDate>) =
            rows.iter().filter_map(|row| Some((row.send_id?, row.month?))).unzip();
        self.erase_told(db, &sends, &months).await?;
        Ok(Self::after(rows.last().map(|row| row.campaign_id), rows.len(), CAMPAIGNS))
    }

    /// What servers and clients told of these sends, and what was kept of the mails themselves.
    async fn erase_told(&self, db: &mut PgConnection, sends: &[Uuid], months: &[NaiveDate]) -> sqlx::Result<()> {
        if sends.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "update sends s set response = null from unnest($2::uuid[], $3::date[]) as known (id, month)
             where s.tenant_id = $1 and s.id = known.id and s.month = known.month and s.month = any ($3::date[])
               and s.response is not null",
            self.tenant_id,
            sends,
            months,
        )
        .execute(&mut *db)
        .await?;
        sqlx::query!(
            "update events e set detail = e.detail - '{response,diagnostic,message_id,ip,user_agent,url}'::text[]
             from unnest($2::uuid[], $3::date[]) as known (id, month)
             where e.tenant_id = $1 and e.send_id = known.id and e.month = known.month and e.month = any ($3::date[])
               and e.detail ?| array['response', 'diagnostic', 'message_id', 'ip', 'user_agent', 'url']",
            self.tenant_id,
            sends,
            months,
        )
        .execute(&mut *db)
        .await?;
        sqlx::query!(
            "with captured as (
                 delete from captured_mails where tenant_id = $1 and send_id = any ($2)
             )
             delete from renditions where tenant_id = $1 and send_id = any ($2)",
            self.tenant_id,
            sends,
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// Reports of imports show the bad cells of rows, and one of them may be the address in another form.
    async fn imports(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let imports = sqlx::query_scalar!(
            "select id from imports where tenant_id = $1 and id > $2 order by id limit $3",
            self.tenant_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        sqlx::query!(
            r#"update imports set summary = jsonb_set(summary, '{errors}', (
                   select coalesce(jsonb_agg(case
                       when strpos(lower(fault ->> 'value'), $3) > 0 then fault || '{"value": ""}' else fault
                   end order by place), '[]')
                   from jsonb_array_elements(summary -> 'errors') with ordinality as faults (fault, place)
               ))
               where tenant_id = $1 and id = any ($2) and strpos(lower((summary -> 'errors')::text), $3) > 0"#,
            self.tenant_id,
            &imports,
            self.address,
        )
        .execute(db)
        .await?;
        Ok(Self::after(imports.last().copied(), imports.len(), SLICE))
    }

    /// Stored answers that name the address, of this contact or by a key of this tenant alone: a key may serve several tenants, and
    /// another one's answer is not ours. The row stays, as a refusal: a repeated request must not be carried out again.
    async fn answers(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let row = sqlx::query!(
            r#"with looked as materialized (
                   select key_id, idempotency_key, body from idempotency_keys
                   where (key_id, idempotency_key) > ($1, $2) order by key_id, idempotency_key limit $3
               ), emptied as (
                   update idempotency_keys i
                   set status = 422,
                       body = convert_to('{"ok":false,"error":"contact_erased","detail":"the stored answer named a contact that was erased"}', 'UTF8')
                   from looked l
                   where i.key_id = l.key_id and i.idempotency_key = l.idempotency_key and i.created_at <= $5
                     and strpos(lower(encode(l.body, 'escape')), encode(convert_to($4, 'UTF8'), 'escape')) > 0
                     and (strpos(encode(l.body, 'escape'), $6::uuid::text) > 0
                          or exists (select from api_keys k where k.id = l.key_id and k.tenant_id = $7))
               )
               select key_id, idempotency_key, (select count(*) from looked) as "found!"
               from looked order by key_id desc, idempotency_key desc limit 1"#,
            self.cursor_id,
            self.cursor_text,
            ANSWERS,
            self.address,
            self.asked_at,
            self.contact_id,
            self.tenant_id,
        )
        .fetch_optional(db)
        .await?;
        Ok(row.filter(|row| row.found >= ANSWERS).map(|row| (row.key_id, row.idempotency_key)))
    }

    /// Raw events of providers that were read. One that was not is read first: it may be an opt-out.
    async fn inbound_events(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let events = sqlx::query_scalar!(
            "with looked as materialized (
                 select id, raw, due_at from inbound_events where tenant_id = $1 and id > $2 order by id limit $3
             ), emptied as (
                 update inbound_events i set raw = '' from looked l
                 where i.tenant_id = $1 and i.id = l.id and l.due_at is null
                   and strpos(lower(encode(l.raw, 'escape')), encode(convert_to($4, 'UTF8'), 'escape')) > 0
             )
             select id from looked order by id",
            self.tenant_id,
            self.cursor_id,
            SLICE,
            self.address,
        )
        .fetch_all(db)
        .await?;
        Ok(Self::after(events.last().copied(), events.len(), SLICE))
    }

    /// Facts that wait for their send: what clients and servers said goes, the fact stays.
    async fn parked_facts(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let facts = sqlx::query_scalar!(
            r#"with looked as materialized (
                   select id, reason, send_id, signal from parked_facts where tenant_id = $1 and id > $2 order by id limit $3
               ), emptied as (
                   update parked_facts p
                   set signal = (p.signal - '{ip,user_agent,diagnostic}'::text[])
                       || case when p.signal ? 'url' then '{"url": ""}'::jsonb else '{}' end
                       || '{"ip": null, "user_agent": null}'
                   from looked l
                   where p.tenant_id = $1 and p.id = l.id and p.reason = l.reason and l.signal is not null
                     and exists (select from sends s where s.tenant_id = $1 and s.id = l.send_id and s.contact_id = $4)
               )
               select id from looked order by id"#,
            self.tenant_id,
            self.cursor_id,
            SLICE,
            self.contact_id,
        )
        .fetch_all(db)
        .await?;
        Ok(Self::after(facts.last().copied(), facts.len(), SLICE))
    }
}
