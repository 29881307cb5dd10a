//! The facts the gate decides by, read set-based: one statement for all batches, one for their sends, one per tenant for their
//! recipients.

use std::collections::{HashMap, HashSet};

use crate::frequency::{CappedMail, OwedMail, Urgency};
use crate::gate::{BatchEligibility, RecipientEligibility, SendFacts, batch_eligibility, is_capped};
use crate::recipient_eligibility;
use chrono::{DateTime, Utc};
use runtime::column;
use schemas::{CampaignStatus, Classification, DomainStatus, Lane, MessageKind, OnMiss, Resolved, SendId, month_of};
use sqlx::PgConnection;
use uuid::Uuid;

/// A batch, and the facts that decide about it as a whole.
#[derive(Debug, Clone)]
pub struct BatchFacts {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The id.
    pub batch_id: Uuid,
    /// Its lane.
    pub lane: Lane,
    /// What kind of mail it is.
    pub kind: MessageKind,
    /// Marketing or not.
    pub classification: Classification,
    /// How urgent it is under the frequency cap.
    pub urgency: Urgency,
    /// Its campaign.
    pub campaign_id: Option<Uuid>,
    /// The topic of its campaign: the list it goes to, if that list has a public name.
    pub topic_id: Option<Uuid>,
    /// Its content.
    pub content_id: Uuid,
    /// Its sender.
    pub sender_id: Uuid,
    /// Nothing of it is open.
    pub is_done: bool,
    /// Sends of it are deferred, or with a worker.
    pub is_begun: bool,
    /// The facts that decide about it as a whole.
    pub eligibility: BatchEligibility,
}

/// An owed send: queued, or deferred and due.
#[derive(Debug, Clone, Copy)]
pub struct OwedSend {
    /// The id.
    pub send_id: Uuid,
    /// The recipient.
    pub contact_id: Uuid,
    /// `None`: the contact was erased.
    pub eligibility: Option<RecipientEligibility>,
    /// What else counts.
    pub facts: SendFacts,
}

/// The batches of these messages, from key to key, on a connection for that: looking for the best order of six tables takes the planner
/// 4 ms (measured), looking the rows up 0.2. A batch that is not in the ledger (any more) is left out.
pub async fn load_batches(db: &mut PgConnection, inputs: &[Resolved]) -> sqlx::Result<Vec<BatchFacts>> {
    let rows = sqlx::query!(
        r#"select distinct b.tenant_id as "tenant_id!", b.id as "id!", b.lane as "lane!: Lane", b.kind as "kind!: MessageKind", c.urgency as "urgency?",
                  b.classification as "classification!: Classification", b.campaign_id, b.content_id as "content_id!",
                  b.sender_id as "sender_id!", b.state = 'done' as "is_done!", b.fenced + b.deferred > 0 as "is_begun!",
                  c.status as "campaign_status?: CampaignStatus", coalesce(c.paused, false) as "paused!",
                  case when c.closes_at <= now() then c.on_miss end as "missed?: OnMiss",
                  t.paused_at is not null as "tenant_paused!", t.quiet_from, t.quiet_to, t.quiet_for, t.timezone as "timezone!", a.id as "topic_id?", t.status = 'active' as "tenant_active!",
                  s.status = 'active' as "sender_active!", d.status as "domain_status!: DomainStatus"
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
           join batches b on b.tenant_id = w.tenant_id and b.id = w.id
           join tenants t on t.id = b.tenant_id
           join senders s on s.tenant_id = b.tenant_id and s.id = b.sender_id
           join domains d on d.tenant_id = b.tenant_id and d.id = s.domain_id
           left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
           left join audiences a on a.tenant_id = b.tenant_id and c.audience_mode = 'list' and a.id = c.list_id
                and a.public_name is not null"#,
        &column(inputs, |input| input.tenant_id),
        &column(inputs, |input| input.batch_id)
    )
    .fetch_all(&mut *db)
    .await?;
    let facts = rows.into_iter().map(|row| BatchFacts {
        tenant_id: row.tenant_id,
        batch_id: row.id,
        lane: row.lane,
        kind: row.kind,
        classification: row.classification,
        urgency: Urgency::from_column(row.urgency.as_deref()),
        campaign_id: row.campaign_id,
        topic_id: row.topic_id,
        content_id: row.content_id,
        sender_id: row.sender_id,
        is_done: row.is_done,
        is_begun: row.is_begun,
        eligibility: batch_eligibility!(row),
    });
    Ok(facts.collect())
}

/// The owed sends of these batches with their recipients' eligibility, by tenant and batch.
pub async fn load_owed_sends(
    db: &mut PgConnection,
    batches: &[&BatchFacts],
) -> sqlx::Result<HashMap<(Uuid, Uuid), Vec<OwedSend>>> {
    let mut owed: HashMap<(Uuid, Uuid), Vec<OwedSend>> = HashMap::with_capacity(batches.len());
    if batches.is_empty() {
        return Ok(owed);
    }
    let first: Vec<Uuid> = batches.iter().map(|batch| batch.batch_id).collect();
    let sends = sqlx::query_file!(
        "queries/gate/owed_sends.sql",
        &column(batches, |batch| batch.tenant_id),
        &first,
        &column(&first, |batch| SendId::last_of(*batch)),
        &column(&first, |batch| month_of(*batch))
    )
    .fetch_all(&mut *db)
    .await?;
    let mut contacts: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    for send in &sends {
        contacts.entry(send.tenant_id).or_default().push(send.contact_id);
    }
    let mut known = HashMap::with_capacity(sends.len());
    for (tenant, contacts) in contacts {
        known.extend(load_eligibility(db, tenant, &contacts).await?);
    }
    let capped: HashMap<(Uuid, Uuid), Urgency> = batches
        .iter()
        .filter(|batch| is_capped(batch.kind, batch.classification))
        .map(|batch| ((batch.tenant_id, batch.batch_id), batch.urgency))
        .collect();
    let capped_mails = sends.iter().filter_map(|send| {
        Some(CappedMail {
            tenant_id: send.tenant_id,
            contact_id: send.contact_id,
            urgency: *capped.get(&(send.tenant_id, SendId(send.id).batch()))?,
            cap_left: known.get(&(send.tenant_id, send.contact_id))?.cap_left,
        })
    });
    let owed_mail = OwedMail::load(db, capped_mails).await?;
    let topics: HashMap<(Uuid, Uuid), Uuid> =
        batches.iter().filter_map(|batch| Some(((batch.tenant_id, batch.batch_id), batch.topic_id?))).collect();
    let on_topics = sends.iter().filter_map(|send| {
        let topic = topics.get(&(send.tenant_id, SendId(send.id).batch()))?;
        Some((send.tenant_id, *topic, send.contact_id))
    });
    let opted_out = find_opted_out(db, &on_topics.collect::<Vec<_>>()).await?;
    let of_sequences: HashSet<(Uuid, Uuid)> = batches
        .iter()
        .filter(|batch| batch.kind == MessageKind::Sequence)
        .map(|batch| (batch.tenant_id, batch.batch_id))
        .collect();
    let enrolled = sends.iter().map(|send| (send.tenant_id, send.id));
    let enrolled = enrolled.filter(|(tenant, send)| of_sequences.contains(&(*tenant, SendId(*send).batch())));
    let exited = find_exited(db, &enrolled.collect::<Vec<_>>()).await?;
    for send in sends {
        let mut eligibility = known.get(&(send.tenant_id, send.contact_id)).copied();
        // A contact that has left the topic since the launch has left this campaign as well.
        let topic = topics.get(&(send.tenant_id, SendId(send.id).batch()));
        if let (Some(eligibility), Some(topic)) = (&mut eligibility, topic) {
            eligibility.unsubscribed |= opted_out.contains(&(send.tenant_id, *topic, send.contact_id));
        }
        let batch = (send.tenant_id, SendId(send.id).batch());
        let more_urgent = capped.get(&batch).map_or(0, |urgency| owed_mail.more_urgent(send.contact_id, *urgency));
        owed.entry(batch).or_default().push(OwedSend {
            send_id: send.id,
            contact_id: send.contact_id,
            eligibility,
            facts: SendFacts { more_urgent, has_exited: exited.contains(&send.id) },
        });
    }
    Ok(owed)
}

/// Those of these members, by tenant, topic and contact, that have left the topic themselves.
pub async fn find_opted_out(
    db: &mut PgConnection,
    members: &[(Uuid, Uuid, Uuid)],
) -> sqlx::Result<HashSet<(Uuid, Uuid, Uuid)>> {
    if members.is_empty() {
        return Ok(HashSet::new());
    }
    let rows = sqlx::query!(
        "select d.tenant_id, d.audience_id, d.contact_id
         from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as w (tenant_id, topic_id, contact_id)
         join topic_opt_outs d
           on d.tenant_id = w.tenant_id and d.contact_id = w.contact_id and d.audience_id = w.topic_id",
        &column(members, |(tenant, ..)| *tenant),
        &column(members, |(_, topic, _)| *topic),
        &column(members, |(.., contact)| *contact)
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant_id, row.audience_id, row.contact_id)).collect())
}

/// Those of these sends of sequences, by tenant and id, whose enrollments have ended early: also with their archived sequence, before that is
/// written to them. An `end_sequence` step is no early end.
pub async fn find_exited(db: &mut PgConnection, sends: &[(Uuid, Uuid)]) -> sqlx::Result<HashSet<Uuid>> {
    if sends.is_empty() {
        return Ok(HashSet::new());
    }
    let exited = sqlx::query_scalar!(
        "select q.send_id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, send_id)
         join sequence_sends q on q.tenant_id = w.tenant_id and q.send_id = w.send_id
         join enrollments e on e.tenant_id = q.tenant_id and e.id = q.enrollment_id
         cross join lateral (
             select s.status from sequences s where s.tenant_id = e.tenant_id and s.id = e.sequence_id offset 0
         ) s
         where shown_status(e.status, s.status) = 'exited' and e.exit_reason is distinct from 'end_step'",
        &column(sends, |(tenant, _)| *tenant),
        &column(sends, |(_, send)| *send)
    )
    .fetch_all(db)
    .await?;
    Ok(exited.into_iter().collect())
}

/// The topic of this campaign, if the contact has left it, and when.
pub async fn left_topic(
    db: &mut PgConnection,
    tenant: Uuid,
    campaign: Uuid,
    contact: Uuid,
) -> sqlx::Result<Option<(Uuid, DateTime<Utc>)>> {
    let row = sqlx::query!(
        "select d.audience_id, d.left_at
         from campaigns c
         join audiences a on a.tenant_id = c.tenant_id and c.audience_mode = 'list' and a.id = c.list_id and a.public_name is not null
         join topic_opt_outs d on d.tenant_id = c.tenant_id and d.audience_id = a.id and d.contact_id = $3
         where c.tenant_id = $1 and c.id = $2",
        tenant,
        campaign,
        contact
    );
    Ok(row.fetch_optional(db).await?.map(|row| (row.audience_id, row.left_at)))
}

/// The eligibility of these contacts, by tenant and contact.
pub async fn load_eligibility(
    db: &mut PgConnection,
    tenant: Uuid,
    contacts: &[Uuid],
) -> sqlx::Result<Vec<((Uuid, Uuid), RecipientEligibility)>> {
    let rows = sqlx::query!(
        r#"select contact_id as "contact_id!", contact_active as "contact_active!", marketing_status as "marketing_status!",
                  hard_bounced as "hard_bounced!", complained as "complained!", unsubscribed as "unsubscribed!",
                  invalid as "invalid!", suppressed_all as "suppressed_all!", suppressed_marketing as "suppressed_marketing!",
                  cap_left, timezone
           from recipient_eligibility($1, $2)"#,
        tenant,
        contacts
    )
    .fetch_all(&mut *db)
    .await?;
    let recipients = rows.into_iter().map(|row| ((tenant, row.contact_id), recipient_eligibility!(row, timezone)));
    Ok(recipients.collect())
}
