//! Notes of facts to tell: taken out of `outbox` in the transaction that makes events of them.

use chrono::NaiveDate;
use sqlx::PgConnection;
use uuid::Uuid;

/// About so many facts are told in one transaction.
const FACTS_MAX: i64 = 2_000;
/// A note of more facts than this is told in parts.
const NOTE_MAX: usize = 4_000;

/// Where a fact stands: tenant and id, for facts about sends also the send and its month.
#[derive(Debug, Default)]
pub(super) struct Noted {
    pub events: EventKeys,
    pub notices: Keys,
    pub contacts: Keys,
    /// How many notes were taken.
    pub notes: usize,
}

/// Rows by tenant and id, as parallel arrays.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub tenants: Vec<Uuid>,
    pub ids: Vec<Uuid>,
}

/// Facts about sends, as parallel arrays.
#[derive(Debug, Default)]
pub(crate) struct EventKeys {
    pub tenants: Vec<Uuid>,
    pub sends: Vec<Uuid>,
    pub ids: Vec<Uuid>,
    pub months: Vec<NaiveDate>,
}

impl Keys {
    pub fn push(&mut self, tenant: Uuid, id: Uuid) {
        self.tenants.push(tenant);
        self.ids.push(id);
    }
}

impl EventKeys {
    pub fn push(&mut self, tenant: Uuid, send: Uuid, id: Uuid, month: NaiveDate) {
        self.tenants.push(tenant);
        self.sends.push(send);
        self.ids.push(id);
        self.months.push(month);
    }
}

struct Note {
    tenant_id: Uuid,
    source: String,
    month: Option<NaiveDate>,
    sends: Vec<Uuid>,
    ids: Vec<Uuid>,
}

/// Takes the oldest notes that nobody else has in hand.
pub(super) async fn take(db: &mut PgConnection) -> sqlx::Result<Noted> {
    let rows = sqlx::query_file!("queries/take_notes.sql", FACTS_MAX).fetch_all(&mut *db).await?;
    let mut noted = Noted { notes: rows.len(), ..Noted::default() };
    for row in rows {
        let note = Note {
            tenant_id: row.tenant_id,
            source: row.source,
            month: row.month,
            sends: row.sends.unwrap_or_default(),
            ids: row.ids,
        };
        noted.add(split(db, note).await?);
    }
    Ok(noted)
}

/// Puts what is too much for one transaction back, as a note of its own.
async fn split(db: &mut PgConnection, mut note: Note) -> sqlx::Result<Note> {
    if note.ids.len() <= NOTE_MAX {
        return Ok(note);
    }
    let ids = note.ids.split_off(NOTE_MAX);
    let sends = (!note.sends.is_empty()).then(|| note.sends.split_off(NOTE_MAX));
    sqlx::query!(
        "insert into outbox (tenant_id, source, month, sends, ids) values ($1, $2, $3, $4, $5)",
        note.tenant_id,
        note.source,
        note.month,
        sends.as_deref(),
        &ids
    )
    .execute(db)
    .await?;
    Ok(note)
}

impl Noted {
    fn add(&mut self, note: Note) {
        match (note.source.as_str(), note.month) {
            ("events", Some(month)) => {
                for (send, id) in note.sends.into_iter().zip(note.ids) {
                    self.events.push(note.tenant_id, send, id, month);
                }
            }
            ("notices", _) => note.ids.into_iter().for_each(|id| self.notices.push(note.tenant_id, id)),
            ("contacts", _) => note.ids.into_iter().for_each(|id| self.contacts.push(note.tenant_id, id)),
            // The table's check allows no other; a fact of a send always has its month.
            _ => {}
        }
    }
}
