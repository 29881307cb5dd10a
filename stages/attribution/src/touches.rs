//! Loads the touches before an outcome: human clicks, and deliveries if there are no clicks.

use std::collections::BTreeMap;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use ledger::frequency::DAYS_MAX;
use schemas::{MessageKind, SendId, ids::first_id, month_of};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::model::{CreditRule, MailTouch};

/// The longest time between the request of a mail outside campaigns and its delivery, without a pause of its tenant: that of a sequence may
/// wait as long for room under the frequency cap as a cap can have days.
const SEND_TIME_MAX: TimeDelta = TimeDelta::days(4 + DAYS_MAX as i64);

/// The query for the touches of an outcome's contacts before it.
#[derive(Debug, Clone)]
pub(crate) struct TouchQuery {
    pub(crate) tenant: Uuid,
    pub(crate) contacts: Vec<Uuid>,
    pub(crate) clicks_since: DateTime<Utc>,
    pub(crate) deliveries_since: DateTime<Utc>,
    pub(crate) occurred_at: DateTime<Utc>,
}

/// The index of a query, and one of its contacts.
type QueryContact = (usize, Uuid);

/// Loads the touches of each query, in order. Deliveries are read only if there is no human click within the window: they would
/// not count.
pub(crate) async fn load_touches(db: &mut PgConnection, queries: &[TouchQuery]) -> sqlx::Result<Vec<Vec<MailTouch>>> {
    let mut touches = clicks(&mut *db, queries).await?;
    let unclicked: Vec<usize> = (0..queries.len()).filter(|index| touches[*index].is_empty()).collect();
    for (index, touch) in deliveries(db, queries, &unclicked).await? {
        touches[index].push(touch);
    }
    Ok(touches)
}

fn lines(queries: &[TouchQuery], indexes: impl IntoIterator<Item = usize>) -> Vec<QueryContact> {
    indexes.into_iter().flat_map(|index| queries[index].contacts.iter().map(move |contact| (index, *contact))).collect()
}

/// Three columns of lines: query indexes, tenants, contacts.
fn columns(queries: &[TouchQuery], lines: &[QueryContact]) -> (Vec<i32>, Vec<Uuid>, Vec<Uuid>) {
    let index = |line: &QueryContact| i32::try_from(line.0).unwrap_or(i32::MAX);
    (
        lines.iter().map(index).collect(),
        lines.iter().map(|line| queries[line.0].tenant).collect(),
        lines.iter().map(|line| line.1).collect(),
    )
}

async fn clicks(db: &mut PgConnection, queries: &[TouchQuery]) -> sqlx::Result<Vec<Vec<MailTouch>>> {
    let mut touches = vec![Vec::new(); queries.len()];
    let lines = lines(queries, 0..queries.len());
    let (indexes, tenants, contacts) = columns(queries, &lines);
    let until: Vec<DateTime<Utc>> = lines.iter().map(|line| queries[line.0].occurred_at).collect();
    let mails = sqlx::query_file!("queries/clicked_sends.sql", &indexes, &tenants, &contacts, &until)
        .fetch_all(&mut *db)
        .await?;
    // Several outcomes may have touches of the same mail. It is read once, from the earliest time of the queries.
    let mut of_mail: BTreeMap<(Uuid, Uuid), (DateTime<Utc>, Vec<QueryContact>)> = BTreeMap::new();
    for mail in &mails {
        let Some(index) = usize::try_from(mail.place).ok().filter(|index| *index < queries.len()) else { continue };
        let since = queries[index].clicks_since;
        let entry = of_mail.entry((mail.tenant_id, mail.send_id)).or_insert((since, Vec::new()));
        entry.0 = entry.0.min(since);
        entry.1.push((index, mail.contact_id));
    }
    if of_mail.is_empty() {
        return Ok(touches);
    }
    let (tenants, sends): (Vec<Uuid>, Vec<Uuid>) = of_mail.keys().copied().unzip();
    let months: Vec<NaiveDate> = sends.iter().map(|send| SendId(*send).month()).collect();
    let since: Vec<DateTime<Utc>> = of_mail.values().map(|(since, _)| *since).collect();
    let rows = sqlx::query_file!("queries/clicks.sql", &tenants, &sends, &months, &since).fetch_all(db).await?;
    for row in rows {
        let Some((_, lines)) = of_mail.get(&(row.tenant_id, row.send_id)) else { continue };
        for (index, contact_id) in lines {
            let query = &queries[*index];
            if row.at <= query.clicks_since || row.at > query.occurred_at {
                continue;
            }
            touches[*index].push(MailTouch {
                rule: CreditRule::HumanClick,
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

async fn deliveries(
    db: &mut PgConnection,
    queries: &[TouchQuery],
    indexes: &[usize],
) -> sqlx::Result<Vec<(usize, MailTouch)>> {
    let lines = lines(queries, indexes.iter().copied());
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    let (indexes, tenants, contacts) = columns(queries, &lines);
    let since: Vec<DateTime<Utc>> = lines.iter().map(|line| queries[line.0].deliveries_since).collect();
    let until: Vec<DateTime<Utc>> = lines.iter().map(|line| queries[line.0].occurred_at).collect();
    let first: Vec<Uuid> = launched_since(&mut *db, &tenants, &since).await?.into_iter().map(first_id).collect();
    let last: Vec<Uuid> = until.iter().map(|at| first_id(*at + TimeDelta::milliseconds(1))).collect();
    let months = |ids: &[Uuid]| ids.iter().map(|id| month_of(*id)).collect::<Vec<NaiveDate>>();
    let rows = sqlx::query_file!(
        "queries/deliveries.sql",
        &indexes,
        &tenants,
        &contacts,
        &since,
        &until,
        &first,
        &last,
        &months(&first),
        &months(&last),
    )
    .fetch_all(db)
    .await?;
    let touches = rows.into_iter().filter_map(|row| {
        let touch = MailTouch {
            rule: CreditRule::Delivered,
            send_id: row.send_id,
            contact_id: row.contact_id,
            campaign_id: row.campaign_id,
            kind: row.kind,
            at: row.at,
            event_id: Uuid::nil(),
            evidence: json!({"confirmed": row.confirmed}),
        };
        Some((usize::try_from(row.place).ok()?, touch))
    });
    Ok(touches.collect())
}

/// Since when mail of each tenant may have been requested that was delivered since each time: it may have waited in a pause.
async fn launched_since(
    db: &mut PgConnection,
    tenants: &[Uuid],
    since: &[DateTime<Utc>],
) -> sqlx::Result<Vec<DateTime<Utc>>> {
    let since: Vec<DateTime<Utc>> = since.iter().map(|at| *at - SEND_TIME_MAX).collect();
    sqlx::query_scalar!(
        r#"select coalesce(launched_since(t.pauses, w.since), w.since) as "since!"
           from unnest($1::uuid[], $2::timestamptz[]) with ordinality as w (tenant_id, since, place)
           left join tenants t on t.id = w.tenant_id
           order by w.place"#,
        tenants,
        &since
    )
    .fetch_all(db)
    .await
}
