//! Erasure of mail: messages, notifications and the details of sends.

use chrono::NaiveDate;
use runtime::column;
use schemas::{SendId, messages::ERASED_COPY};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{CAMPAIGNS, Cursor, Erasure, PERSONAL_DETAILS, SLICE};

impl Erasure {
    /// One-off messages: the recipient's name, and the body; and tests of campaigns that show the contact's mail to others.
    pub(super) async fn messages(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let messages = sqlx::query_scalar!(
            r#"with found as (
                 select message_id from (
                     (select message_id from message_recipients
                      where tenant_id = $1 and contact_id = $2 and message_id > $3 order by message_id limit $4)
                     union
                     (select id from messages where tenant_id = $1 and rendered_for = $2 and id > $3 order by id limit $4)
                 ) both_kinds
                 order by message_id limit $4
             ), unnamed as (
                 update message_recipients r set name = null from found f
                 where r.tenant_id = $1 and r.contact_id = $2 and r.message_id = f.message_id and r.name is not null
             )
             select message_id as "message_id!" from found order by message_id"#,
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        self.erase_written(&mut *db, &messages).await?;
        let tests = sqlx::query_scalar!(
            "select r.send_id from messages m
             join message_recipients r on r.tenant_id = m.tenant_id and r.message_id = m.id
             where m.tenant_id = $1 and m.id = any ($2) and m.rendered_for = $3",
            self.tenant_id,
            &messages,
            self.contact_id,
        )
        .fetch_all(&mut *db)
        .await?;
        self.erase_send_details(db, &tests).await?;
        Ok(Self::after(&messages, SLICE))
    }

    /// Mails of sequences to the tenant's owner about the contact.
    pub(super) async fn notifications(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
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
        self.erase_send_details(db, &sends).await?;
        Ok(Self::after(&sends, SLICE))
    }

    /// Bodies and attachments of messages with no other recipient, or about the contact. A message to several keeps its body.
    async fn erase_written(&self, db: &mut PgConnection, messages: &[Uuid]) -> sqlx::Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let erased = sqlx::query_scalar!(
            r#"with own as materialized (
                 select m.id, m.content_id from messages m
                 where m.tenant_id = $1 and m.id = any ($2)
                   and (m.rendered_for = $3
                        or exists (select from sequence_sends q where q.tenant_id = m.tenant_id and q.send_id = m.id)
                        or not exists (select from message_recipients r
                                       where r.tenant_id = m.tenant_id and r.message_id = m.id and r.contact_id <> $3))
             ), request as (
                 update requests r set options = null
                 from own where r.tenant_id = $1 and r.id = own.id and r.options is not null
             ), attachment as (
                 delete from message_attachments a using own where a.tenant_id = $1 and a.message_id = own.id
             ), emptied as materialized (
                 select empty_contents($1, array(select content_id from own))
             )
             select id as "id!" from own where (select count(*) from emptied) >= 0"#,
            self.tenant_id,
            messages,
            self.contact_id,
        )
        .fetch_all(&mut *db)
        .await?;
        // Later than the contents: a worker that stores what it compiled from one holds its row, and this statement sees what it stored.
        sqlx::query!(
            "delete from skeletons s using unnest($2::uuid[]) as w (id)
             where s.tenant_id = $1 and s.id = 'message-' || replace(w.id::text, '-', '')",
            self.tenant_id,
            &erased,
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// Mail that belongs to no campaign. Served by `sends_by_contact`.
    pub(super) async fn mail(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let sends = sqlx::query_scalar!(
            "select id from sends
             where tenant_id = $1 and contact_id = $2 and campaign_id is null and id > $3 order by id limit $4",
            self.tenant_id,
            self.contact_id,
            self.cursor_id,
            SLICE,
        )
        .fetch_all(&mut *db)
        .await?;
        self.erase_copies(&mut *db, &sends).await?;
        self.erase_send_details(db, &sends).await?;
        Ok(Self::after(&sends, SLICE))
    }

    /// The address among the recipients of copies. The place stays: it says which send a copy is.
    async fn erase_copies(&self, db: &mut PgConnection, sends: &[Uuid]) -> sqlx::Result<()> {
        sqlx::query!(
            r#"update requests r set options = without_copy(r.options, $4, $5)
               from unnest($2::uuid[], $3::date[]) as w (id, month)
               join sends s on s.tenant_id = $1 and s.id = w.id and s.month = w.month
               where r.tenant_id = $1 and r.id = s.request_id and r.options ? 'copies'"#,
            self.tenant_id,
            sends,
            &months_of(sends),
            self.address,
            ERASED_COPY,
        )
        .execute(db)
        .await
        .map(drop)
    }

    /// Mail of campaigns. In each campaign, the unique index that ends in the contact finds the send.
    pub(super) async fn campaigns(&self, db: &mut PgConnection) -> sqlx::Result<Cursor> {
        let rows = sqlx::query!(
            r#"select c.id as "campaign_id!", s.id as "send_id?"
               from (
                   select id, month from campaigns where tenant_id = $1 and id > $3 order by id limit $4
               ) c
               left join lateral (
                   select s.id from sends s
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
        let sends: Vec<Uuid> = rows.iter().filter_map(|row| row.send_id).collect();
        self.erase_send_details(db, &sends).await?;
        Ok(Self::after(&column(&rows, |row| row.campaign_id), CAMPAIGNS))
    }

    /// Answers of servers and details of clients for these sends, mail that came back and could not be read, and stored copies of the
    /// mails: with those of a request's own recipient, the copies that others get, for they have the same data.
    async fn erase_send_details(&self, db: &mut PgConnection, sends: &[Uuid]) -> sqlx::Result<()> {
        if sends.is_empty() {
            return Ok(());
        }
        let months = months_of(sends);
        sqlx::query!(
            "update sends s set response = null from unnest($2::uuid[], $3::date[]) as known (id, month)
             where s.tenant_id = $1 and s.id = known.id and s.month = known.month and s.month = any ($3::date[])
               and s.response is not null",
            self.tenant_id,
            sends,
            &months,
        )
        .execute(&mut *db)
        .await?;
        sqlx::query!(
            "update events e set detail = e.detail - $4::text[]
             from unnest($2::uuid[], $3::date[]) as known (id, month)
             where e.tenant_id = $1 and e.send_id = known.id and e.month = known.month and e.month = any ($3::date[])
               and e.detail ?| $4",
            self.tenant_id,
            sends,
            &months,
            &PERSONAL_DETAILS as &[&str],
        )
        .execute(&mut *db)
        .await?;
        sqlx::query!(
            "with captured as (
                 delete from captured_mails where tenant_id = $1 and send_id = any ($2)
             ), given_up as (
                 update inbound_mails set head = null
                 where tenant_id = $1 and send_id = any ($2) and due_at is null and head is not null
             )
             delete from renditions r
             using (
                 select r.send_id
                 from unnest($2::uuid[], $3::date[], $4::uuid[]) as known (id, month, last)
                 left join sends s on s.tenant_id = $1 and s.id = known.id and s.month = known.month and s.request_id = s.id
                 cross join lateral (
                     select r.send_id from renditions r
                     where r.tenant_id = $1 and r.send_id between known.id and case when s.id is null then known.id else known.last end
                     offset 0
                 ) r
             ) k
             where r.tenant_id = $1 and r.send_id = k.send_id",
            self.tenant_id,
            sends,
            &months,
            &column(sends, |send| SendId::last_of(SendId(*send).batch())),
        )
        .execute(db)
        .await
        .map(drop)
    }
}

fn months_of(sends: &[Uuid]) -> Vec<NaiveDate> {
    column(sends, |send| SendId(*send).month())
}
