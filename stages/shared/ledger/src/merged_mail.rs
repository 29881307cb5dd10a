//! Mail of campaigns and sequences that is owed to a contact as it is merged into another one: the contact that is left gets it.
//!
//! It is a new send in a batch of its own, so that nothing that was cleared or rendered for the merged contact leaves as the survivor's. The
//! merged contact's send stays, and the gate skips it.

use runtime::column;
use schemas::{SendId, month_of, new_batch_id};
use sqlx::PgConnection;
use uuid::Uuid;

/// Locks the campaigns that may owe the contact mail, also those that have yet to write it, and answers which they are. Their audiences are not
/// written meanwhile. A launch with a digest that pins its audience at this moment is waited for. To be called before the contact is locked, as
/// everywhere.
pub async fn lock_owing_campaigns(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('pinned audiences ' || $1::uuid::text, 0))", tenant)
        .fetch_one(&mut *db)
        .await?;
    // Found first: what a lock waited for, as a launch that is written, shows its sends only to the statements after it.
    sqlx::query_scalar!(
        "with owing as materialized (
             select c.id from campaigns c
             where c.tenant_id = $1 and c.status in ('scheduled', 'sending')
               and (c.materialized_at is null
                    or (select s.state in ('queued', 'fenced', 'deferred') from sends s
                        where s.tenant_id = $1 and s.campaign_id = c.id and s.contact_id = $2 and s.month = c.month))
         )
         select c.id from owing o join campaigns c on c.tenant_id = $1 and c.id = o.id
         order by c.id for no key update of c",
        tenant,
        contact,
    )
    .fetch_all(db)
    .await
}

/// Whether mail of these campaigns or of a sequence to the contact is under way at this moment: what comes of it is known within seconds, and
/// if it is put off, it is owed. The contact is locked, so that no other mail leaves.
pub async fn is_being_sent(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    campaigns: &[Uuid],
) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select exists (
               select from campaigns c
               cross join lateral (
                   select s.state from sends s
                   where s.tenant_id = $1 and s.campaign_id = c.id and s.contact_id = $2 and s.month = c.month
                   offset 0
               ) s
               where c.tenant_id = $1 and c.id = any ($3) and s.state = 'fenced')
           or exists (
               select from sends s
               join sequence_sends q on q.tenant_id = $1 and q.send_id = s.id
               where s.tenant_id = $1 and s.contact_id = $2 and s.campaign_id is null and s.state = 'fenced') as "is_being_sent!""#,
        tenant,
        contact,
        campaigns,
    )
    .fetch_one(db)
    .await
}

/// Gives the survivor the mail that sequences owe the merged contact, and the mail that these campaigns do, unless the survivor is in their
/// audiences itself, or one that was merged into it before had the mail. Mail in doubt is left: it may have arrived. The campaigns, which
/// [`lock_owing_campaigns`] answered, and both contacts are locked, and the enrollments have not moved yet.
pub async fn transfer_owed(
    db: &mut PgConnection,
    tenant: Uuid,
    (merged, survivor): (Uuid, Uuid),
    campaigns: &[Uuid],
) -> sqlx::Result<()> {
    transfer_steps(&mut *db, tenant, (merged, survivor)).await?;
    if campaigns.is_empty() {
        return Ok(());
    }
    let people = sqlx::query_scalar!(
        "select id from contacts where tenant_id = $1 and (id = $2 or merged_into in ($2, $3))",
        tenant,
        survivor,
        merged,
    )
    .fetch_all(&mut *db)
    .await?;
    // From key to key, as in `sends_once_per_campaign`: a query in the condition is asked for each campaign.
    let open = sqlx::query!(
        r#"select c.id as "campaign_id!", s.id as "send_id?",
                  (select b.id from batches b where b.tenant_id = $1 and b.campaign_id = c.id order by b.id desc limit 1) as "last_batch?"
           from campaigns c
           left join lateral (
               select s.id from sends s
               where s.tenant_id = $1 and s.campaign_id = c.id and s.contact_id = $2 and s.month = c.month
                 and s.state in ('queued', 'deferred') and s.doubtful = 0
               offset 0
           ) s on true
           where c.tenant_id = $1 and c.id = any ($4) and c.status in ('scheduled', 'sending')
             and (select count(*) from sends o
                  where o.tenant_id = $1 and o.campaign_id = c.id and o.contact_id = any ($5) and o.month = c.month
                    and (o.contact_id = $3 or o.state in ('fenced', 'sent', 'unknown') or o.doubtful > 0)) = 0
             and (select bool_or($3 = any (l.contacts)) from launch_audiences l
                  where l.tenant_id = $1 and l.campaign_id = c.id) is not true"#,
        tenant,
        merged,
        survivor,
        campaigns,
        &people,
    )
    .fetch_all(&mut *db)
    .await?;
    // What is pinned and not yet written.
    sqlx::query!(
        "update launch_audiences set contacts = array_replace(contacts, $2::uuid, $3::uuid)
         where tenant_id = $1 and campaign_id = any ($4) and $2 = any (contacts)",
        tenant,
        merged,
        survivor,
        &column(&open, |row| row.campaign_id),
    )
    .execute(&mut *db)
    .await?;
    // The batch after the launch's last one: its ids are a range.
    let next = |last: Uuid| Uuid::from_u128(SendId::last_of(last).as_u128() + 1);
    let owed = open.iter().filter_map(|row| Some((SendId(row.send_id?).batch(), next(row.last_batch?))));
    let (batches, new): (Vec<Uuid>, Vec<Uuid>) = owed.unzip();
    sqlx::query!(
        "with batch as (
             insert into batches (tenant_id, id, month, kind, lane, classification, campaign_id, content_id, sender_id, variant, state,
                                  announce_after, due_at, size, queued)
             select b.tenant_id, w.new_id, b.month, b.kind, b.lane, b.classification, b.campaign_id, b.content_id, b.sender_id, b.variant,
                    case when b.state in ('held', 'timed') then b.state else 'waiting' end,
                    case when b.state = 'timed' then b.announce_after end, b.due_at, 1, 1
             from unnest($2::uuid[], $3::uuid[]) as w (id, new_id)
             join batches b on b.tenant_id = $1 and b.id = w.id
             returning id, month, campaign_id
         )
         insert into sends (tenant_id, id, month, campaign_id, contact_id)
         select $1, id, month, campaign_id, $4::uuid from batch",
        tenant,
        &batches,
        &new,
        survivor,
    )
    .execute(db)
    .await
    .map(drop)
}

/// Gives the survivor the mail of sequences that is owed to the merged contact, if the survivor is and was not in the sequence, by the rule by
/// which enrollments move; and shows it at the step. Not if the enrollment has ended early: its mail is not owed any more. Nor while the
/// ledger is paused after a restore: it may have been sent before.
async fn transfer_steps(db: &mut PgConnection, tenant: Uuid, (merged, survivor): (Uuid, Uuid)) -> sqlx::Result<()> {
    let owed = sqlx::query_scalar!(
        "select s.id from sends s
         join sequence_sends q on q.tenant_id = $1 and q.send_id = s.id
         join enrollments e on e.tenant_id = $1 and e.id = q.enrollment_id
         join sequences n on n.tenant_id = $1 and n.id = e.sequence_id
         where s.tenant_id = $1 and s.contact_id = $2 and s.campaign_id is null and s.request_id is null
           and s.state in ('queued', 'deferred') and s.doubtful = 0
           and (select held_at from ledger) is null
           and not has_ended_early(e, n.status, n.archived_at)
           and not exists (
               select from (select sequence_id, contact_id from enrollments where tenant_id = $1
                            union all select sequence_id, contact_id from past_enrollments where tenant_id = $1) o
               where o.sequence_id = e.sequence_id
                 and o.contact_id in (select $3::uuid union all select id from contacts where tenant_id = $1 and merged_into = $3))",
        tenant,
        merged,
        survivor,
    )
    .fetch_all(&mut *db)
    .await?;
    if owed.is_empty() {
        return Ok(());
    }
    let new = column(&owed, |_| new_batch_id());
    // In the bulk lane: it waits for dispatch, which announces it.
    sqlx::query!(
        "with wanted as (
             select * from unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::date[]) as w (send_id, batch_id, new_id, month)
         ), batch as (
             insert into batches (tenant_id, id, month, kind, lane, classification, content_id, sender_id, state, size, queued)
             select $1::uuid, w.new_id, w.month, b.kind, 'bulk', b.classification, b.content_id, b.sender_id, 'waiting', 1, 1
             from wanted w
             join batches b on b.tenant_id = $1 and b.id = w.batch_id
         ), step as (
             insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id, merges)
             select $1::uuid, w.new_id, q.sequence_id, q.enrollment_id, q.step_id, q.merges + 1
             from wanted w
             join sequence_sends q on q.tenant_id = $1 and q.send_id = w.send_id
         ), shown as (
             update enrollment_steps p set send_id = w.new_id
             from wanted w
             join sequence_sends q on q.tenant_id = $1 and q.send_id = w.send_id
             where p.tenant_id = $1 and p.enrollment_id = q.enrollment_id and p.send_id = w.send_id
         )
         insert into sends (tenant_id, id, month, contact_id)
         select $1::uuid, new_id, month, $6::uuid from wanted",
        tenant,
        &owed,
        &column(&owed, |send| SendId(*send).batch()),
        &new,
        &column(&new, |batch| month_of(*batch)),
        survivor,
    )
    .execute(db)
    .await
    .map(drop)
}
