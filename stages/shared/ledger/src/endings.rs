//! Sends that end without an attempt: withheld, not renderable, too old, or of a campaign that was stopped.

use std::collections::BTreeMap;

use runtime::column;
use schemas::{MessageKind, SendId, SendState};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    counters::{self, CounterDelta, Totals, UsageTotals},
    fence::IN_DOUBT,
    hours::{BatchKey, shard_of},
};

/// The end of one send, or of all open sends of a batch.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub batch: BatchKey,
    pub kind: MessageKind,
    /// `None`: all that are open.
    pub send: Option<Uuid>,
    /// The contact that the send must be to. `None`: any.
    pub contact: Option<Uuid>,
    /// `Skipped`, `Failed`, `Cancelled` or `Expired`.
    pub to: SendState,
    pub reason: &'static str,
    /// What failed, of a failure.
    pub code: Option<&'static str>,
}

impl Ending {
    /// The end, which is no failure, of one send of a batch, or of all its open sends.
    pub(crate) fn new(
        (batch, kind): (BatchKey, MessageKind),
        send: Option<Uuid>,
        to: SendState,
        reason: &'static str,
    ) -> Self {
        Self { batch, kind, send, contact: None, to, reason, code: None }
    }

    fn first(&self) -> Uuid {
        self.send.unwrap_or(self.batch.1)
    }

    fn last(&self) -> Uuid {
        self.send.unwrap_or_else(|| SendId::last_of(self.batch.1))
    }
}

/// How many sends of one ending got one state.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub ending: &'a Ending,
    /// `Unknown` of mail that was in doubt, else as planned.
    pub to: SendState,
    pub sends: u64,
}

/// Ends sends that are queued or deferred, with their batches' counters and the totals. Others are left as they are, so a repeat changes nothing.
pub(crate) async fn end_sends<'a>(db: &mut PgConnection, endings: &'a [Ending]) -> sqlx::Result<Vec<Ended<'a>>> {
    let mut deltas: BTreeMap<BatchKey, CounterDelta> = BTreeMap::new();
    for ending in endings {
        deltas.entry(ending.batch).or_default();
    }
    counters::lock_batches(&mut *db, &deltas.keys().copied().collect::<Vec<_>>()).await?;
    let rows = sqlx::query_file!(
        "queries/endings/end_sends.sql",
        &column(endings, |ending| ending.batch.0),
        &column(endings, Ending::first),
        &column(endings, Ending::last),
        &column(endings, |ending| schemas::month_of(ending.batch.1)),
        &column(endings, |ending| ending.to) as &[SendState],
        &column(endings, |ending| ending.reason) as &[&str],
        &column(endings, |ending| ending.code) as &[Option<&str>],
        IN_DOUBT.0 as SendState,
        IN_DOUBT.1,
        &column(endings, |ending| ending.contact) as &[Option<Uuid>]
    )
    .fetch_all(&mut *db)
    .await?;
    let (mut ended, mut totals) = (Vec::with_capacity(rows.len()), Totals::new());
    for row in rows {
        let Some(ending) = counters::index_of(row.position).and_then(|index| endings.get(index)) else { continue };
        deltas.entry(ending.batch).or_default().all_moved(row.was, row.state, row.sends);
        for (kind, event) in totals_of(ending, row.state) {
            *totals.entry((ending.batch.0, None, kind, event)).or_default() += i64::from(row.sends);
        }
        ended.push(Ended { ending, to: row.state, sends: u64::try_from(row.sends).unwrap_or(0) });
    }
    if let Some(shard) = ended.first().map(|ended| shard_of(ended.ending.batch.1)) {
        counters::move_counters(db, &deltas, (&totals, shard), &UsageTotals::new()).await?;
    }
    Ok(ended)
}

/// The kinds and events whose totals count this end.
fn totals_of(ending: &Ending, to: SendState) -> impl Iterator<Item = (&'static str, &'static str)> {
    let (in_doubt, no_answer) = IN_DOUBT;
    let failure = match to {
        SendState::Failed | SendState::Expired => Some(ending.reason),
        _ => (to == in_doubt).then_some(no_answer),
    };
    let failure = failure.filter(|_| ending.kind != MessageKind::Test).map(|reason| ("failure", reason));
    counters::total_of(to).map(|event| (ending.kind.as_str(), event)).into_iter().chain(failure)
}
