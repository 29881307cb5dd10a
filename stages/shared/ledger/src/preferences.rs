//! What a recipient chooses on his preferences page: topics, none at all, and coming back.
//!
//! A topic is a list with a public name. Who leaves one is taken off the list and remembered as departed: only he comes back by
//! himself, whatever imports and callers do.

use schemas::SendId;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

/// A recipient, found by a mail he got.
#[derive(Debug, Clone)]
pub struct Recipient {
    /// The contact.
    pub contact_id: Uuid,
    /// His address, in canonical form.
    pub address: String,
    /// His language, as the tenant knows it.
    pub locale: Option<String>,
    /// Whether he has left all marketing mail.
    pub left: bool,
    /// Whether something holds that he cannot lift himself: a bounce, a complaint, the tenant's own decision.
    pub held: bool,
}

/// A topic he is in, or has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// The list.
    pub id: Uuid,
    /// Its public name.
    pub name: String,
    /// Its public description.
    pub description: Option<String>,
    /// Whether he gets it.
    pub joined: bool,
}

/// From where somebody chose: kept as evidence.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// The client's address.
    pub ip: Option<&'a str>,
    /// The client's User-Agent.
    pub user_agent: Option<&'a str>,
}

/// Topics one page shows at most.
const TOPICS_MAX: i64 = 100;

/// Finds the recipient of a send, or `named`, the contact its link names, where the ledger does not keep the send any more. `None` for a
/// send there is not and that names nobody, and for a contact that was erased.
///
/// # Errors
/// When Postgres is away.
pub async fn recipient(
    db: &mut PgConnection,
    tenant: Uuid,
    send_id: Uuid,
    named: Option<Uuid>,
) -> sqlx::Result<Option<Recipient>> {
    sqlx::query_as!(
        Recipient,
        r#"select c.id as contact_id, c.address, c.locale,
                  c.marketing_status = 'unsubscribed' or g.unsubscribed as "left!",
                  g.hard_bounced or g.complained or g.invalid or g.suppressed_all or g.suppressed_marketing as "held!"
           from contacts c
           cross join lateral standings($1, array[c.id]) g
           where c.tenant_id = $1 and c.status <> 'erased' and c.id = coalesce(
               (select s.contact_id from sends s where s.tenant_id = $1 and s.id = $2 and s.month = $3), $4)"#,
        tenant,
        send_id,
        SendId(send_id).month(),
        named,
    )
    .fetch_optional(db)
    .await
}

/// The topics a contact is in or has left, by name. Lists he was never on are the tenant's business, not his.
///
/// # Errors
/// When Postgres is away.
pub async fn topics(db: &mut PgConnection, tenant: Uuid, contact: Uuid) -> sqlx::Result<Vec<Topic>> {
    sqlx::query_as!(
        Topic,
        r#"select a.id, a.public_name as "name!", a.public_description as description, m.contact_id is not null as "joined!"
           from audiences a
           left join audience_members m on m.tenant_id = $1 and m.audience_id = a.id and m.contact_id = $2
           left join topic_departures d on d.tenant_id = $1 and d.audience_id = a.id and d.contact_id = $2
           where a.tenant_id = $1 and a.public_name is not null and (m.contact_id is not null or d.contact_id is not null)
           order by lower(a.public_name), a.id limit $3"#,
        tenant,
        contact,
        TOPICS_MAX,
    )
    .fetch_all(db)
    .await
}

/// Leaves those of the `shown` topics that are not `chosen`, and joins those that are. Topics that are not his to choose are
/// passed over. Each topic left is a fact of the mail, told as `email.unsubscribed` with the topic as its scope; of a mail that the
/// ledger does not keep any more there are no facts. Harmless to repeat.
///
/// # Errors
/// When Postgres is away.
pub async fn choose(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    send_id: Uuid,
    shown: &[Uuid],
    chosen: &[Uuid],
    evidence: Evidence<'_>,
) -> sqlx::Result<()> {
    // The row first: two forms of one person sent at once are carried out one after the other.
    sqlx::query!("select 1 as one from contacts where tenant_id = $1 and id = $2 for no key update", tenant, contact)
        .fetch_optional(&mut *db)
        .await?;
    let topics = topics(&mut *db, tenant, contact).await?;
    let of = |joined: bool, wanted: bool| -> Vec<Uuid> {
        let asked = |id: &Uuid| shown.contains(id) && chosen.contains(id) == wanted;
        topics.iter().filter(|topic| topic.joined == joined && asked(&topic.id)).map(|topic| topic.id).collect()
    };
    let (leaving, joining) = (of(true, false), of(false, true));
    let detail = json!({"method": "preferences", "ip": evidence.ip, "user_agent": evidence.user_agent});
    sqlx::query!(
        "with gone as (
             delete from audience_members where tenant_id = $1 and contact_id = $2 and audience_id = any ($3)
         ),
         gone_now as (
             insert into topic_departures (tenant_id, audience_id, contact_id, send_id)
             select $1, audience_id, $2, $4 from unnest($3::uuid[]) audience_id
             on conflict do nothing
             returning audience_id
         )
         insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select $1, $4, n.event_id, $6, 'topic_left', now(),
                jsonb_strip_nulls($7::jsonb || jsonb_build_object('topic', g.audience_id))
         from gone_now g
         join unnest($3::uuid[], $5::uuid[]) as n (audience_id, event_id) on n.audience_id = g.audience_id
         where exists (select from sends s where s.tenant_id = $1 and s.id = $4 and s.month = $6)",
        tenant,
        contact,
        &leaving,
        send_id,
        &leaving.iter().map(|_| schemas::new_id()).collect::<Vec<_>>(),
        SendId(send_id).month(),
        detail,
    )
    .execute(&mut *db)
    .await?;
    // In two statements: the departed are kept out by the table itself.
    sqlx::query!(
        "delete from topic_departures where tenant_id = $1 and contact_id = $2 and audience_id = any ($3)",
        tenant,
        contact,
        &joining,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select $1, audience_id, $2 from unnest($3::uuid[]) audience_id on conflict do nothing",
        tenant,
        contact,
        &joining,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The recipient opts in again: lifts his own opt-out, and nothing else that holds. His act is the consent, kept with when and
/// from where, and a fact of the mail as long as the ledger keeps that. `false`: he had not left, and nothing changed.
///
/// # Errors
/// When Postgres is away.
pub async fn opt_in(
    db: &mut PgConnection,
    tenant: Uuid,
    contact: Uuid,
    send_id: Uuid,
    evidence: Evidence<'_>,
) -> sqlx::Result<bool> {
    let Some(row) = sqlx::query!(
        "select address, marketing_status from contacts where tenant_id = $1 and id = $2 and status <> 'erased' for no key update",
        tenant,
        contact,
    )
    .fetch_optional(&mut *db)
    .await?
    else {
        return Ok(false);
    };
    let lifted = sqlx::query!(
        "delete from suppressions where tenant_id = $1 and address = $2 and reason = 'unsubscribe'",
        tenant,
        row.address,
    )
    .execute(&mut *db)
    .await?
    .rows_affected();
    if lifted == 0 && row.marketing_status != "unsubscribed" {
        return Ok(false);
    }
    sqlx::query!(
        "update contacts
         set marketing_status = 'subscribed', opted_in_at = clock_timestamp(), consent_basis = 'express', consent_at = now(),
             consent_source = 'preferences_page', consent_description = $3, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        contact,
        format!("opted in again from the mail of send {send_id}"),
    )
    .execute(&mut *db)
    .await?;
    let detail = json!({"method": "preferences", "ip": evidence.ip, "user_agent": evidence.user_agent});
    sqlx::query!(
        "insert into events (tenant_id, send_id, id, month, type, occurred_at, detail)
         select $1::uuid, $2::uuid, $3::uuid, $4::date, 'resubscribed', now(), jsonb_strip_nulls($5::jsonb)
         where exists (select from sends s where s.tenant_id = $1 and s.id = $2 and s.month = $4)",
        tenant,
        send_id,
        schemas::new_id(),
        SendId(send_id).month(),
        detail,
    )
    .execute(db)
    .await?;
    Ok(true)
}
