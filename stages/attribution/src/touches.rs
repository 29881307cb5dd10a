//! What may have led to outcomes: clicks by persons, and, where there are none, deliveries.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use schemas::{MessageKind, SendId, month_of};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::model::{Rule, Touch};

/// How long before its delivery a mail that is no campaign's can have been asked for.
const UNDER_WAY_MAX: TimeDelta = TimeDelta::days(4);

/// What is asked for: the touches of these contacts before an outcome.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) tenant: Uuid,
    pub(crate) contacts: Vec<Uuid>,
    pub(crate) clicks_since: DateTime<Utc>,
    pub(crate) deliveries_since: DateTime<Utc>,
    pub(crate) occurred_at: DateTime<Utc>,
}

/// One contact of one question.
type Line = (usize, Uuid);

/// Answers each question, in their order. Deliveries are looked for only where no person clicked within the window: they would
/// not count.
pub(crate) async fn load(db: &mut PgConnection, asked: &[Asked]) -> sqlx::Result<Vec<Vec<Touch>>> {
    let mut touches = clicks(&mut *db, asked).await?;
    let unclicked: Vec<usize> = (0..asked.len()).filter(|place| touches[*place].is_empty()).collect();
    for (place, touch) in deliveries(db, asked, &unclicked).await? {
        touches[place].push(touch);
    }
    Ok(touches)
}

fn lines(asked: &[Asked], places: impl IntoIterator<Item = usize>) -> Vec<Line> {
    places.into_iter().flat_map(|place| asked[place].contacts.iter().map(move |contact| (place, *contact))).collect()
}

/// Three columns of lines: places, tenants, contacts.
fn columns(asked: &[Asked], lines: &[Line]) -> (Vec<i32>, Vec<Uuid>, Vec<Uuid>) {
    let place = |line: &Line| i32::try_from(line.0).unwrap_or(i32::MAX);
    (
        lines.iter().map(place).collect(),
        lines.iter().map(|line| asked[line.0].tenant).collect(),
        lines.iter().map(|line| line.1).collect(),
    )
}

async fn clicks(db: &mut PgConnection, asked: &[Asked]) -> sqlx::Result<Vec<Vec<Touch>>> {
    let mut touches = vec![Vec::new(); asked.len()];
    let lines = lines(asked, 0..asked.len());
    let (places, tenants, contacts) = columns(asked, &lines);
    let until: Vec<DateTime<Utc>> = lines.iter().map(|line| asked[line.0].occurred_at).collect();
    let mails = sqlx::query_file!("queries/clicked_sends.sql", &places, &tenants, &contacts, &until)
        .fetch_all(&mut *db)
        .await?;
    // Several outcomes may ask for the same mail: it is read once, from the earliest time asked for.
    let mut of_mail: BTreeMap<(Uuid, Uuid), (DateTime<Utc>, Vec<Line>)> = BTreeMap::new();
    for mail in &mails {
        let Some(place) = usize::try_from(mail.place).ok().filter(|place| *place < asked.len()) else { continue };
        let since = asked[place].clicks_since;
        let entry = of_mail.entry((mail.tenant_id, mail.send_id)).or_insert((since, Vec::new()));
        entry.0 = entry.0.min(since);
        entry.1.push((place, mail.contact_id));
    }
    if of_mail.is_empty() {
        return Ok(touches);
    }
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = of_mail.keys().copied().unzip();
    let months: Vec<NaiveDate> = sends.iter().map(|send| SendId(*send).month()).collect();
    let batches: Vec<Uuid> = sends.iter().map(|send| SendId(*send).batch()).collect();
    let since: Vec<DateTime<Utc>> = of_mail.values().map(|(since, _)| *since).collect();
    let rows =
        sqlx::query_file!("queries/clicks.sql", &tenants, &sends, &months, &batches, &since).fetch_all(db).await?;
    for row in rows {
        let Some((_, lines)) = of_mail.get(&(row.tenant_id, row.send_id)) else { continue };
        for (place, contact_id) in lines {
            let question = &asked[*place];
            if row.at <= question.clicks_since || row.at > question.occurred_at {
                continue;
            }
            touches[*place].push(Touch {
                rule: Rule::HumanClick,
                send_id: row.send_id,
                contact_id: *contact_id,
                campaign_id: row.campaign_id,
                kind: row.kind,
                at: row.at,
                event_id: row.event_id,
                evidence: json!({"event_id": row.event_id, "url": row.url, "link_id": row.link_id}),
            });
        }
    }
    Ok(touches)
}

async fn deliveries(db: &mut PgConnection, asked: &[Asked], places: &[usize]) -> sqlx::Result<Vec<(usize, Touch)>> {
    let lines = lines(asked, places.iter().copied());
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    let (places, tenants, contacts) = columns(asked, &lines);
    let since: Vec<DateTime<Utc>> = lines.iter().map(|line| asked[line.0].deliveries_since).collect();
    let until: Vec<DateTime<Utc>> = lines.iter().map(|line| asked[line.0].occurred_at).collect();
    let first: Vec<Uuid> = since.iter().map(|at| first_id(*at - UNDER_WAY_MAX)).collect();
    let last: Vec<Uuid> = until.iter().map(|at| first_id(*at + TimeDelta::milliseconds(1))).collect();
    let months = |ids: &[Uuid]| ids.iter().map(|id| month_of(*id)).collect::<Vec<NaiveDate>>();
    let rows = sqlx::query_file!(
        "queries/deliveries.sql",
        &places,
        &tenants,
        &contacts,
        &since,
        &until,
        &first,
        &last,
        &months(&first),
        &months(&last),
    )
    .fetch_all(&mut *db)
    .await?;
    let kinds = kinds(db, rows.iter().map(|row| (tenant_at(asked, row.place), SendId(row.send_id).batch()))).await?;
    Ok(rows
        .into_iter()
        .filter_map(|row| {
            let place = usize::try_from(row.place).ok()?;
            let kind = kinds.get(&(tenant_at(asked, row.place), SendId(row.send_id).batch()))?;
            let touch = Touch {
                rule: Rule::Delivered,
                send_id: row.send_id,
                contact_id: row.contact_id,
                campaign_id: row.campaign_id,
                kind: *kind,
                at: row.at,
                event_id: Uuid::nil(),
                evidence: json!({"confirmed": row.confirmed}),
            };
            Some((place, touch))
        })
        .collect())
}

fn tenant_at(asked: &[Asked], place: i32) -> Uuid {
    usize::try_from(place).ok().and_then(|place| asked.get(place)).map_or(Uuid::nil(), |asked| asked.tenant)
}

/// What sort of mail batches are.
async fn kinds(
    db: &mut PgConnection,
    batches: impl Iterator<Item = (Uuid, Uuid)>,
) -> sqlx::Result<BTreeMap<(Uuid, Uuid), MessageKind>> {
    let batches: BTreeSet<(Uuid, Uuid)> = batches.collect();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = batches.into_iter().unzip();
    let rows = sqlx::query!(
        r#"select b.tenant_id, b.id, b.kind as "kind: MessageKind"
           from unnest($1::uuid[], $2::uuid[]) as w (tenant_id, id)
           cross join lateral (
               select b.tenant_id, b.id, b.kind from batches b where b.tenant_id = w.tenant_id and b.id = w.id offset 0
           ) b"#,
        &tenants,
        &ids,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| ((row.tenant_id, row.id), row.kind)).collect())
}

/// The smallest id that was made at a time: ids begin with their millisecond.
fn first_id(at: DateTime<Utc>) -> Uuid {
    Uuid::from_u128(u128::from(at.timestamp_millis().max(0).unsigned_abs()) << 80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_made_later_are_greater() {
        let now = Utc::now();
        let id = schemas::new_id();
        assert!(first_id(now - TimeDelta::milliseconds(1)) < id && id < first_id(now + TimeDelta::minutes(1)));
    }
}
