//! The facts the gate decides by, read set-based: one statement for all batches, one for their sends, one for their recipients.

use std::collections::{HashMap, HashSet};

use crate::frequency::{CappedMail, OwedMail, Urgency};
use crate::gate::{BatchEligibility, RecipientEligibility, SendFacts, batch_eligibility, is_capped};
use crate::hours::{BatchKey, batch_of};
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
    /// The topic of its campaign: the list it goes to, if that list has a public name or had one.
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
    /// Its tenant's quiet hours go by the time zones of contacts.
    pub quiet_by_contact: bool,
    /// When these facts were read, by the database's clock: by it what waits becomes due.
    pub read_at: DateTime<Utc>,
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
                  coalesce(t.quiet_by_contact, false) as "quiet_by_contact!", now() as "read_at!",
                  s.status = 'active' as "sender_active!", d.status as "domain_status!: DomainStatus"
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
           join batches b on b.tenant_id = w.tenant_id and b.id = w.id
           join tenants t on t.id = b.tenant_id
           join senders s on s.tenant_id = b.tenant_id and s.id = b.sender_id
           join domains d on d.tenant_id = b.tenant_id and d.id = s.domain_id
           left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
           left join audiences a on a.tenant_id = b.tenant_id and c.audience_mode = 'list' and a.id = c.list_id
                and (a.public_name is not null or a.was_topic)"#,
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
        quiet_by_contact: row.quiet_by_contact,
        read_at: row.read_at,
    });
    Ok(facts.collect())
}

/// A send that the gate is asked about, with what its batch says of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskedSend {
    pub(crate) tenant_id: Uuid,
    pub(crate) send_id: Uuid,
    pub(crate) contact_id: Uuid,
    /// The topic of its campaign.
    pub(crate) topic: Option<Uuid>,
    /// How urgent it is, if it may wait under a frequency cap.
    pub(crate) capped: Option<Urgency>,
    pub(crate) is_of_sequence: bool,
}

/// The facts about sends beside their batches and recipients.
#[derive(Debug)]
pub(crate) struct SendLookups {
    owed: OwedMail,
    left_topics: HashSet<(Uuid, Uuid, Uuid)>,
    exited: HashSet<Uuid>,
}

impl SendLookups {
    /// Reads the facts about these sends, whose recipients are known by tenant and contact.
    pub(crate) async fn load(
        db: &mut PgConnection,
        sends: &[AskedSend],
        recipients: &HashMap<(Uuid, Uuid), RecipientEligibility>,
    ) -> sqlx::Result<Self> {
        let on_topics: Vec<(Uuid, Uuid, Uuid)> =
            sends.iter().filter_map(|send| Some((send.tenant_id, send.topic?, send.contact_id))).collect();
        let of_sequences = sends.iter().filter(|send| send.is_of_sequence);
        let of_sequences: Vec<(Uuid, Uuid)> = of_sequences.map(|send| (send.tenant_id, send.send_id)).collect();
        let capped = sends.iter().filter_map(|send| {
            Some(CappedMail {
                tenant_id: send.tenant_id,
                contact_id: send.contact_id,
                urgency: send.capped?,
                cap_left: recipients.get(&(send.tenant_id, send.contact_id))?.cap_left,
            })
        });
        let owed = OwedMail::load(db, capped).await?;
        let left_topics = find_opted_out(db, &on_topics).await?;
        let exited = find_exited(db, &of_sequences).await?;
        Ok(Self { owed, left_topics, exited })
    }

    /// The facts about one of these sends.
    pub(crate) fn facts(&self, send: &AskedSend) -> SendFacts {
        let has_left = |topic| self.left_topics.contains(&(send.tenant_id, topic, send.contact_id));
        SendFacts {
            more_urgent: send.capped.map_or(0, |urgency| self.owed.more_urgent(send.contact_id, urgency)),
            has_left_topic: send.topic.is_some_and(has_left),
            has_exited: self.exited.contains(&send.send_id),
        }
    }

    /// A send is decided, and not owed any more.
    pub(crate) fn decided(&mut self, send: &AskedSend) {
        self.owed.decided(send.contact_id, send.send_id);
    }
}

/// The owed sends of these batches with their recipients' eligibility, by tenant and batch.
pub async fn load_owed_sends(
    db: &mut PgConnection,
    batches: &[&BatchFacts],
) -> sqlx::Result<HashMap<BatchKey, Vec<OwedSend>>> {
    let mut owed: HashMap<BatchKey, Vec<OwedSend>> = HashMap::with_capacity(batches.len());
    if batches.is_empty() {
        return Ok(owed);
    }
    let sends = sqlx::query_file!(
        "queries/gate/owed_sends.sql",
        &column(batches, |batch| batch.tenant_id),
        &column(batches, |batch| batch.batch_id),
        &column(batches, |batch| SendId::last_of(batch.batch_id)),
        &column(batches, |batch| month_of(batch.batch_id))
    )
    .fetch_all(&mut *db)
    .await?;
    let (tenants, contacts) = (column(&sends, |send| send.tenant_id), column(&sends, |send| send.contact_id));
    let recipients = load_eligibility(db, &tenants, &contacts).await?;
    let by_key: HashMap<BatchKey, &BatchFacts> =
        batches.iter().map(|batch| ((batch.tenant_id, batch.batch_id), *batch)).collect();
    let asked = sends.iter().filter_map(|send| {
        let batch = by_key.get(&batch_of((send.tenant_id, send.id)))?;
        Some(AskedSend {
            tenant_id: send.tenant_id,
            send_id: send.id,
            contact_id: send.contact_id,
            topic: batch.topic_id,
            capped: is_capped(batch.kind, batch.classification).then_some(batch.urgency),
            is_of_sequence: batch.kind == MessageKind::Sequence,
        })
    });
    let asked: Vec<AskedSend> = asked.collect();
    let lookups = SendLookups::load(db, &asked, &recipients).await?;
    for send in &asked {
        owed.entry(batch_of((send.tenant_id, send.send_id))).or_default().push(OwedSend {
            send_id: send.send_id,
            contact_id: send.contact_id,
            eligibility: recipients.get(&(send.tenant_id, send.contact_id)).copied(),
            facts: lookups.facts(send),
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

/// Those of these sends of sequences, by tenant and id, whose enrollments have ended early.
async fn find_exited(db: &mut PgConnection, sends: &[(Uuid, Uuid)]) -> sqlx::Result<HashSet<Uuid>> {
    if sends.is_empty() {
        return Ok(HashSet::new());
    }
    let exited = sqlx::query_scalar!(
        "select q.send_id
         from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, send_id)
         join sequence_sends q on q.tenant_id = w.tenant_id and q.send_id = w.send_id
         join enrollments e on e.tenant_id = q.tenant_id and e.id = q.enrollment_id
         cross join lateral (
             select s.status, s.archived_at from sequences s where s.tenant_id = e.tenant_id and s.id = e.sequence_id offset 0
         ) s
         where has_ended_early(e, s.status, s.archived_at)",
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
         join topic_opt_outs d
           on d.tenant_id = c.tenant_id and c.audience_mode = 'list' and d.audience_id = c.list_id and d.contact_id = $3
         where c.tenant_id = $1 and c.id = $2",
        tenant,
        campaign,
        contact
    );
    Ok(row.fetch_optional(db).await?.map(|row| (row.audience_id, row.left_at)))
}

/// The eligibility of these contacts of these tenants, in parallel columns; by tenant and contact. An erased contact is left out.
pub async fn load_eligibility(
    db: &mut PgConnection,
    tenants: &[Uuid],
    contacts: &[Uuid],
) -> sqlx::Result<HashMap<(Uuid, Uuid), RecipientEligibility>> {
    let rows = sqlx::query_file!("queries/gate/eligibility.sql", tenants, contacts).fetch_all(db).await?;
    let recipients =
        rows.into_iter().map(|row| ((row.tenant_id, row.contact_id), recipient_eligibility!(row, timezone)));
    Ok(recipients.collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use stage_rig::Rig;

    use super::*;

    #[rstest]
    #[case::by_the_group_under_way(1.0, true)]
    #[case::an_hour_before(3_600.0, false)]
    #[tokio::test]
    async fn an_enrollment_completed_as_its_sequence_was_archived_has_exited(
        #[case] seconds_before: f64,
        #[case] is_exited: bool,
    ) {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        let id = rig.people(&tenant, 1).await[0].id;
        sqlx::query(
            "insert into sequences (tenant_id, id, product, environment, name, status, archived_at)
             values ($1, $2, 'shop', 'production', 'Welcome', 'archived', now() + make_interval(secs => $3))",
        )
        .bind(tenant.id)
        .bind(id)
        .bind(seconds_before)
        .execute(&rig.pool)
        .await
        .unwrap();
        for sql in [
            "insert into enrollments (tenant_id, id, sequence_id, contact_id, product, status, ended_at)
             values ($1, $2, $2, $2, 'shop', 'completed', now())",
            "insert into sequence_sends (tenant_id, send_id, sequence_id, enrollment_id, step_id) values ($1, $2, $2, $2, $2)",
        ] {
            sqlx::query(sql).bind(tenant.id).bind(id).execute(&rig.pool).await.unwrap();
        }
        let exited = find_exited(&mut rig.pool.acquire().await.unwrap(), &[(tenant.id, id)]).await.unwrap();
        assert_eq!(exited.contains(&id), is_exited);
    }
}
