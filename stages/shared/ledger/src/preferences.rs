//! The preferences page: topics, opting out of all marketing mail, and opting in again.
//!
//! A topic is a list with a public name. A contact that leaves one is removed from the list and recorded in `topic_opt_outs`: only the
//! contact can join it again, imports and API calls cannot.

use runtime::column;
use schemas::SendId;
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{facts::STORED_MAX, people};

/// The recipient of a mail.
#[derive(Debug, Clone)]
pub struct Recipient {
    /// The contact.
    pub contact_id: Uuid,
    /// The contact that has the topics: the one that this contact was merged into, if it was.
    pub topics_of: Uuid,
    /// The address, in canonical form.
    pub address: String,
    /// The contact's language, as the tenant knows it.
    pub locale: Option<String>,
    /// True if the contact, or the one that it was merged into, has opted out of all marketing mail.
    pub left: bool,
    /// True if a suppression is in force that the contact cannot lift: a bounce, a complaint, the tenant's own decision.
    pub held: bool,
}

/// A topic that a contact is in, or has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The list.
    pub id: Uuid,
    /// Its public name.
    pub name: String,
    /// Its public description.
    pub description: Option<String>,
    /// True if the contact is in it.
    pub joined: bool,
}

/// The client of a choice, kept as evidence.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ConsentEvidence {
    /// The client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The client's User-Agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
}

impl ConsentEvidence {
    /// As it is stored, with one more field.
    pub(crate) fn with(&self, name: &str, value: &str) -> Value {
        let mut stored = json!(self);
        stored[name] = json!(value);
        stored
    }
}

/// Most topics on one page. Its form has a limit too.
pub const TOPICS_MAX: usize = 100;

/// Finds the recipient of a send, or `named`, the contact its link names, where the ledger does not keep the send any more. `None` for an
/// unknown send without a named contact, and for an erased contact.
pub async fn recipient(
    db: &mut PgConnection,
    tenant: Uuid,
    send_id: Uuid,
    named: Option<Uuid>,
) -> sqlx::Result<Option<Recipient>> {
    // The id is chosen in a select of its own: row security keeps a `coalesce` out of the condition of an index.
    sqlx::query_as!(
        Recipient,
        r#"select c.id as contact_id, coalesce(c.merged_into, c.id) as "topics_of!", c.address, c.locale,
                  g."left" as "left!", g.held as "held!"
           from contacts c
           cross join lateral (
               select bool_or(e.marketing_status = 'unsubscribed' or e.unsubscribed) as "left",
                      bool_or(e.hard_bounced or e.complained or e.invalid or e.suppressed_all or e.suppressed_marketing) as held
               from recipient_eligibility($1, array[c.id, c.merged_into]) e
           ) g
           where c.tenant_id = $1 and c.status <> 'erased' and c.id = (
               select coalesce((select s.contact_id from sends s where s.tenant_id = $1 and s.id = $2 and s.month = $3), $4))"#,
        tenant,
        send_id,
        SendId(send_id).month(),
        named,
    )
    .fetch_optional(db)
    .await
}

/// The topics a contact is in or has left, by name, as many as a page shows. Lists the contact was never on are not shown.
pub async fn topics(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Vec<Topic>> {
    sqlx::query_as!(
        Topic,
        r#"select a.id, a.public_name as "name!", a.public_description as description, m.contact_id is not null as "joined!"
           from audiences a
           left join audience_members m on m.tenant_id = $1 and m.audience_id = a.id and m.contact_id = $2
           left join topic_opt_outs d on d.tenant_id = $1 and d.audience_id = a.id and d.contact_id = $2
           where a.tenant_id = $1 and a.public_name is not null and a.deleted_at is null and (m.contact_id is not null or d.contact_id is not null)
           order by lower(a.public_name), a.id limit $3"#,
        tenant,
        contact,
        TOPICS_MAX as i64,
    )
    .fetch_all(db)
    .await
}

/// Leaves those of the `shown` topics that are not `chosen`, and joins those of them that are and that the contact had left. Other lists are
/// ignored. A topic is also left where the contact is no member any more: it may have been removed since the page was shown, and be added again.
/// Each topic left is a fact of the mail, with the event `email.unsubscribed` and the topic as its scope, as many as are stored of a kind; a
/// mail that the ledger does not keep any more has no facts. Harmless to repeat. The topics are those of the contact that is left, if this one
/// was merged. `false`: there is no such contact.
pub async fn choose(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    send_id: Uuid,
    shown: &[Uuid],
    chosen: &[Uuid],
    evidence: &ConsentEvidence,
) -> sqlx::Result<bool> {
    // Lock the row first: two forms of one contact, sent at once, are executed one after the other. A merge that this waited for has taken
    // the topics along.
    let Some(person) = people::lock_person(&mut *db, tenant, contact).await? else { return Ok(false) };
    let contact = person.survivor().id;
    let (joining, leaving): (Vec<Uuid>, Vec<Uuid>) = shown.iter().copied().partition(|topic| chosen.contains(topic));
    let left = sqlx::query_scalar!(
        "with topics as (
             select id from audiences
             where tenant_id = $1 and id = any ($3) and public_name is not null and deleted_at is null
         ), gone as (
             delete from audience_members m using topics t
             where m.tenant_id = $1 and m.contact_id = $2 and m.audience_id = t.id
         )
         insert into topic_opt_outs (tenant_id, audience_id, contact_id, send_id)
         select $1, id, $2, $4 from topics
         on conflict do nothing
         returning audience_id",
        tenant,
        contact,
        &leaving,
        send_id,
    )
    .fetch_all(&mut *db)
    .await?;
    let details = column(left, |topic| {
        let mut detail = evidence.with("method", "preferences");
        detail["topic"] = json!(topic);
        detail
    });
    store_facts(&mut *db, tenant, send_id, "topic_left", &details).await?;
    // In two statements: a trigger removes members that have opted out of the topic.
    let joined = sqlx::query_scalar!(
        r#"delete from topic_opt_outs d using audiences a
         where d.tenant_id = $1 and d.contact_id = $2 and d.audience_id = any ($3)
           and a.tenant_id = $1 and a.id = d.audience_id and a.public_name is not null and a.deleted_at is null
         returning d.audience_id as "audience_id!""#,
        tenant,
        contact,
        &joining,
    )
    .fetch_all(&mut *db)
    .await?;
    sqlx::query!(
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select $1, audience_id, $2 from unnest($3::uuid[]) audience_id on conflict do nothing",
        tenant,
        contact,
        &joined,
    )
    .execute(db)
    .await?;
    Ok(true)
}

/// Opts the recipient in again: lifts the recipient's own opt-out, and no other suppression. It was written for the contact and for the one
/// that it was merged into, and is lifted for both; a consent that is pending still is. The act is the consent, stored with its time and
/// client, and a fact of the mail, as many as are stored of a kind, as long as the ledger keeps the mail. `false`: the recipient had not opted
/// out, and nothing changed.
pub async fn opt_in(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    send_id: Uuid,
    evidence: &ConsentEvidence,
) -> sqlx::Result<bool> {
    let Some(person) = people::lock_person(&mut *db, tenant, contact).await? else { return Ok(false) };
    let contacts = person.contacts();
    let lifted = sqlx::query!(
        "delete from suppressions where tenant_id = $1 and address = any ($2) and reason = 'unsubscribe'",
        tenant,
        &column(&contacts, |contact| contact.address.as_str()) as &[&str],
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    if lifted == 0 && contacts.iter().all(|contact| contact.marketing_status != "unsubscribed") {
        return Ok(false);
    }
    sqlx::query!(
        "update contacts
         set marketing_status = 'subscribed', opted_in_at = clock_timestamp(), consent_basis = 'express', consent_at = now(),
             consent_source = 'preferences_page', consent_description = $4,
             consent_evidence = nullif(jsonb_strip_nulls($5::jsonb), '{}'), updated_at = now()
         where tenant_id = $1 and (id = $2 or id = $3 and marketing_status <> 'pending')",
        tenant,
        contact,
        person.survivor().id,
        format!("opted in again from the mail of send {send_id}"),
        json!(evidence),
    )
    .execute(&mut *db)
    .await?;
    store_facts(db, tenant, send_id, "resubscribed", &[evidence.with("method", "preferences")]).await?;
    Ok(true)
}

/// Stores facts of the mail: as many of a type as are stored at all, and none of a mail that the ledger does not keep any more.
async fn store_facts(
    db: &mut PgConnection,
    tenant: Uuid,
    send_id: Uuid,
    event_type: &str,
    details: &[Value],
) -> sqlx::Result<()> {
    if details.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select $1::uuid, $2::uuid, n.id, $3::date, $4::text, now(), n.detail
         from unnest($5::uuid[], $6::jsonb[]) as n (id, detail)
         where exists (select from sends s where s.tenant_id = $1 and s.id = $2 and s.month = $3)
         limit greatest(0, $7::bigint - (
             select count(*) from events e where e.tenant_id = $1 and e.send_id = $2 and e.month = $3 and e.type = $4))",
        tenant,
        send_id,
        SendId(send_id).month(),
        event_type,
        &column(details, |_| schemas::new_id()),
        details,
        STORED_MAX,
    )
    .execute(db)
    .await
    .map(drop)
}
