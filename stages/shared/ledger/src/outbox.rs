//! The outbox: notes of facts. The transaction that turns the facts into events locks and reads them first and deletes them last.

use std::{collections::BTreeSet, time::Duration};

use chrono::NaiveDate;
use runtime::column;
use sqlx::PgConnection;
use uuid::Uuid;

/// Rows that one transaction writes, about: each fact is a body, and a delivery for each subscription of its tenant.
const ROWS_MAX: i64 = 4_000;
/// Facts that one transaction publishes for feeds, about.
const FACTS_MAX: i64 = 2_000;
/// The most notes taken in one transaction.
const NOTES_MAX: i64 = 256;
/// A note of more facts than this is handled in parts, and so is …
const NOTE_MAX: i64 = 4_000;
/// … one of more rows.
const NOTE_ROWS_MAX: i64 = 40_000;
/// How long a notice or a fact waits that this version does not know …
const UNKNOWN_WAIT: Duration = Duration::from_secs(60);
/// … and how old it gets.
const UNKNOWN_KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// The keys of facts: tenant and id, for facts about sends also the send and its month.
#[derive(Debug, Default)]
pub struct Noted {
    /// Facts about sends.
    pub events: Vec<EventKey>,
    /// Notices of tenants.
    pub notices: Vec<(Uuid, Uuid)>,
    /// Facts about contacts.
    pub contacts: Vec<(Uuid, Uuid)>,
    /// How many rows that was.
    pub taken: Taken,
    /// The notes.
    notes: Vec<i64>,
    /// What is too much for one transaction, to be noted anew.
    rest: Vec<Note>,
}

/// The number of notes one transaction took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// None: there are none, or other transactions have locked them.
    pub notes: usize,
    /// As many as one transaction takes: there may be more. Later notes have a notification of their own.
    pub is_full: bool,
}

impl Taken {
    fn of(notes: &[Note]) -> Self {
        let rows: i64 = notes.iter().map(|note| note.ids.len() as i64 * note.weight).sum();
        Self { notes: notes.len(), is_full: notes.len() as i64 >= NOTES_MAX || rows >= ROWS_MAX }
    }
}

/// The key of a fact about a send.
#[derive(Debug, Clone, Copy)]
pub struct EventKey {
    /// The tenant.
    pub tenant_id: Uuid,
    /// The send.
    pub send_id: Uuid,
    /// The id.
    pub id: Uuid,
    /// The month of the send.
    pub month: NaiveDate,
}

#[derive(Debug)]
struct Note {
    id: i64,
    tenant_id: Uuid,
    source: String,
    month: Option<NaiveDate>,
    /// Of facts about sends.
    sends: Option<Vec<Uuid>>,
    ids: Vec<Uuid>,
    /// How many rows each fact becomes, about.
    weight: i64,
}

/// Locks and reads the oldest notes that no other transaction has locked. [`delete`] ends them.
pub async fn read(db: &mut PgConnection) -> sqlx::Result<Noted> {
    let read = sqlx::query_file_as!(Note, "queries/outbox/take_notes.sql", ROWS_MAX, NOTES_MAX);
    let mut notes = read.fetch_all(db).await?;
    let rest = notes.iter_mut().filter_map(Note::split).collect();
    Ok(Noted { rest, ..Noted::of(notes) })
}

/// Notes these notices and facts about sends again if they are still young, to be taken after a while. They are of a type that this version
/// does not know: a newer one wrote them, and emits them when it takes the note.
pub async fn put_back(db: &mut PgConnection, notices: &[(Uuid, Uuid)], facts: &[EventKey]) -> sqlx::Result<()> {
    sqlx::query_file!(
        "queries/outbox/put_back.sql",
        &column(notices, |(tenant, _)| *tenant),
        &column(notices, |(_, id)| *id),
        UNKNOWN_WAIT.as_secs_f64(),
        UNKNOWN_KEEP.as_secs_f64(),
        &column(facts, |fact| fact.tenant_id),
        &column(facts, |fact| fact.send_id),
        &column(facts, |fact| fact.id),
        &column(facts, |fact| fact.month)
    )
    .execute(db)
    .await
    .map(drop)
}

/// Deletes the notes that were read. Facts beyond the limit of one transaction become notes of their own.
pub async fn delete(db: &mut PgConnection, noted: &Noted) -> sqlx::Result<()> {
    sqlx::query!("delete from outbox where id = any($1)", &noted.notes).execute(&mut *db).await?;
    for note in &noted.rest {
        sqlx::query!(
            "insert into outbox (tenant_id, source, month, sends, ids) values ($1, $2, $3, $4, $5)",
            note.tenant_id,
            note.source,
            note.month,
            note.sends.as_deref(),
            &note.ids
        )
        .execute(&mut *db)
        .await?;
    }
    Ok(())
}

impl Note {
    /// Takes off the facts that are too many for one transaction.
    fn split(&mut self) -> Option<Self> {
        let most = usize::try_from((NOTE_ROWS_MAX / self.weight.max(1)).clamp(1, NOTE_MAX)).unwrap_or(1);
        if self.ids.len() <= most {
            return None;
        }
        let ids = self.ids.split_off(most);
        let sends = self.sends.as_mut().filter(|sends| !sends.is_empty()).map(|sends| sends.split_off(most));
        Some(Self { source: self.source.clone(), sends, ids, ..*self })
    }
}

/// Copies the notes of these tenants, for their feeds: one for each tenant, source and month.
pub async fn copy_for_feed(db: &mut PgConnection, noted: &Noted, tenants: &BTreeSet<Uuid>) -> sqlx::Result<()> {
    let Noted { events, notices, contacts, .. } = noted;
    let tenants: Vec<Uuid> = tenants.iter().copied().collect();
    sqlx::query_file!(
        "queries/outbox/copy_notes.sql",
        &tenants,
        &column(events, |fact| fact.tenant_id),
        &column(events, |fact| fact.month),
        &column(events, |fact| fact.send_id),
        &column(events, |fact| fact.id),
        &column(notices, |(tenant, _)| *tenant),
        &column(notices, |(_, id)| *id),
        &column(contacts, |(tenant, _)| *tenant),
        &column(contacts, |(_, id)| *id)
    )
    .execute(db)
    .await
    .map(drop)
}

/// Locks and reads the oldest notes of feeds that no other transaction has locked. [`delete_for_feed`] ends them.
pub async fn read_for_feed(db: &mut PgConnection) -> sqlx::Result<Noted> {
    let notes =
        sqlx::query_file_as!(Note, "queries/outbox/take_feed_notes.sql", FACTS_MAX, NOTES_MAX).fetch_all(db).await?;
    Ok(Noted::of(notes))
}

/// Deletes the notes of feeds that were read.
pub async fn delete_for_feed(db: &mut PgConnection, noted: &Noted) -> sqlx::Result<()> {
    sqlx::query!("delete from feed_notes where id = any($1)", &noted.notes).execute(db).await.map(drop)
}

impl Noted {
    fn of(notes: Vec<Note>) -> Self {
        let mut noted = Self { taken: Taken::of(&notes), ..Self::default() };
        for note in notes {
            noted.notes.push(note.id);
            match (note.source.as_str(), note.month) {
                ("events", Some(month)) => {
                    for (send_id, id) in note.sends.into_iter().flatten().zip(note.ids) {
                        noted.events.push(EventKey { tenant_id: note.tenant_id, send_id, id, month });
                    }
                }
                ("notices", _) => noted.notices.extend(note.ids.into_iter().map(|id| (note.tenant_id, id))),
                ("contacts", _) => noted.contacts.extend(note.ids.into_iter().map(|id| (note.tenant_id, id))),
                // The table's check allows no other; a fact of a send always has its month.
                _ => {}
            }
        }
        noted
    }
}
