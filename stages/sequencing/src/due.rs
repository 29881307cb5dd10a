//! Which enrollments are due, and who they are.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use ledger::{gate::RecipientEligibility, recipient_eligibility};
use runtime::column;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::sequence::Sequences;

/// A due enrollment, locked by the transaction that found it.
#[derive(Debug, Clone)]
pub(crate) struct Due {
    pub(crate) tenant_id: Uuid,
    pub(crate) id: Uuid,
    pub(crate) sequence_id: Uuid,
    /// Of the sequence's steps.
    pub(crate) version: i32,
    pub(crate) contact_id: Uuid,
    pub(crate) product: String,
    pub(crate) next_step: i16,
    pub(crate) due_at: DateTime<Utc>,
    pub(crate) attempts: i16,
    pub(crate) opted_out_by_step: bool,
}

/// The due enrollments of a group.
#[derive(Debug, Default)]
pub(crate) struct LockedDue {
    /// One of each contact: one statement cannot change a contact twice.
    pub(crate) due: Vec<Due>,
    /// Others of these contacts, and how many of its contact's are ahead of each. They have to be put off, or they would keep other contacts
    /// out of the next group, too.
    pub(crate) behind: Vec<(Due, u32)>,
}

/// The contact of a due enrollment.
#[derive(Debug, Clone)]
pub(crate) struct EnrolledContact {
    pub(crate) address: String,
    pub(crate) first_name: Option<String>,
    pub(crate) last_name: Option<String>,
    pub(crate) timezone: Option<String>,
    pub(crate) eligibility: RecipientEligibility,
    /// A link to confirm its consent is with the contact, or on its way.
    pub(crate) is_asked_to_confirm: bool,
    /// The contact answered a mail of this enrollment.
    pub(crate) replied: bool,
    /// The event that ends this enrollment was recorded since it began.
    pub(crate) ended_by_event: bool,
    /// Steps that it took today in this sequence, over all its enrollments.
    pub(crate) steps_today: i64,
}

/// Locks due enrollments, at most `limit`. While all that is due fits into a group, others of a contact keep nobody out: they stay due.
pub(crate) async fn lock(db: &mut PgConnection, limit: i64) -> sqlx::Result<LockedDue> {
    let waiting = sqlx::query_scalar!(
        r#"select count(*) as "waiting!"
           from (select from enrollments where status = 'active' and next_action_at <= now() limit $1) w"#,
        limit + 1,
    )
    .fetch_one(&mut *db)
    .await?;
    let found = match waiting {
        0 => return Ok(LockedDue::default()),
        waiting if waiting <= limit => sqlx::query_file_as!(Due, "queries/due.sql", limit).fetch_all(db).await?,
        _ => sqlx::query_file_as!(Due, "queries/due_in_turn.sql", limit).fetch_all(db).await?,
    };
    let mut locked = LockedDue::default();
    let mut contacts: HashMap<(Uuid, Uuid), u32> = HashMap::with_capacity(found.len());
    for due in found {
        let ahead = contacts.entry((due.tenant_id, due.contact_id)).or_default();
        if *ahead == 0 {
            locked.due.push(due);
        } else if waiting > limit {
            locked.behind.push((due, *ahead));
        }
        *ahead += 1;
    }
    Ok(locked)
}

/// The contacts of these enrollments, in their order. A statement of its own, so that it sees every fact committed before.
pub(crate) async fn people(
    db: &mut PgConnection,
    due: &[Due],
    sequences: &Sequences,
) -> sqlx::Result<Vec<Option<EnrolledContact>>> {
    let exits = due.iter().map(|due| sequences.get(&(due.tenant_id, due.sequence_id))?.exit_event.as_ref());
    let (exit_names, exit_properties): (Vec<Option<&str>>, Vec<Option<&Value>>) =
        exits.map(|exit| exit.map(|exit| (exit.event.as_str(), &exit.properties)).unzip()).unzip();
    let rows = sqlx::query_file!(
        "queries/people.sql",
        &column(due, |due| due.tenant_id),
        &column(due, |due| due.contact_id),
        &column(due, |due| due.id),
        &exit_names as &[Option<&str>],
        &exit_properties as &[Option<&Value>],
        &column(due, |due| due.sequence_id),
    )
    .fetch_all(db)
    .await?;
    let mut people = vec![None; due.len()];
    for row in rows {
        let eligibility = recipient_eligibility!(row, quiet_zone);
        let place = usize::try_from(row.place - 1).ok().and_then(|place| people.get_mut(place));
        if let Some(place) = place {
            *place = Some(EnrolledContact {
                address: row.address,
                first_name: row.first_name,
                last_name: row.last_name,
                timezone: row.timezone,
                eligibility,
                is_asked_to_confirm: row.is_asked_to_confirm,
                replied: row.replied,
                ended_by_event: row.ended_by_event,
                steps_today: row.steps_today,
            });
        }
    }
    Ok(people)
}
