//! Writes calls in groups, one statement for each.

use std::{collections::HashSet, time::Duration};

use runtime::{Backoff, Commit, Gathering, GroupCommitter, NotCommitted, column, commit_each, plans::PreparedPool};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{LoggedCall, LoggedTenant, count, names::FieldNames};

/// A group is written when it has so many calls, or has gathered for so long.
const GATHERING: Gathering = Gathering { most: 500, busy: 0, window: Duration::from_secs(1) };

/// Writes until nothing more can come.
pub(super) async fn run(by_key: PreparedPool, waiting: mpsc::Receiver<LoggedCall>) {
    let (mut writer, mut groups) =
        (Writer { by_key, names: FieldNames::default() }, GroupCommitter::new(waiting, GATHERING));
    while let Some(mut group) = groups.next().await {
        thin_out(&mut group);
        let rows: Vec<LogRow> = group.into_iter().map(|call| writer.row(call)).collect();
        let committed = commit_each(&mut writer, &rows).await;
        let lost = committed.iter().filter(|row| **row == Err(NotCommitted::Refused)).count();
        count((rows.len() - lost) as u64, "written");
        count(lost as u64, "lost");
    }
}

/// Leaves one call over the rate limit for each key and operation: the limit bounds all calls but these.
fn thin_out(group: &mut Vec<LoggedCall>) {
    let mut seen = HashSet::new();
    group.retain(|call| {
        let is_over_limit = call.refusal.as_ref().is_some_and(|refusal| refusal.code == "rate_limit_exceeded");
        !is_over_limit || seen.insert((call.caller.key_id, call.operation.doc.id))
    });
}

/// A call, and the id of its row: a group that is written again writes the same rows.
struct LogRow {
    id: Uuid,
    call: LoggedCall,
}

struct Writer {
    by_key: PreparedPool,
    names: FieldNames,
}

impl Writer {
    fn row(&mut self, mut call: LoggedCall) -> LogRow {
        if let Some(refusal) = &mut call.refusal {
            refusal.field = refusal.field.take().and_then(|path| self.names.known_part(call.operation, &path));
        }
        LogRow { id: schemas::new_id(), call }
    }
}

impl Commit for Writer {
    type Entry = LogRow;
    type Answer = ();
    const TASK: (&'static str, &'static str) = ("ingress", "task");
    const RETRY: Option<Backoff> = Some(Backoff::new(Duration::from_millis(100), Duration::from_secs(5)));

    async fn commit(&mut self, rows: &[LogRow]) -> sqlx::Result<Vec<()>> {
        let calls = || rows.iter().map(|row| &row.call);
        let mut db = self.by_key.take().await?;
        sqlx::query_file!(
            "queries/log_requests.sql",
            &column(calls(), |call| match &call.tenant {
                LoggedTenant::Id(tenant) => Some(*tenant),
                LoggedTenant::Name(_) => None,
            }) as &[Option<Uuid>],
            &column(calls(), |call| match &call.tenant {
                LoggedTenant::Id(_) => None,
                LoggedTenant::Name(name) => Some(name.clone()),
            }) as &[Option<String>],
            &column(rows, |row| row.id),
            &column(calls(), |call| call.caller.product.clone()),
            &column(calls(), |call| call.caller.environment.as_str().to_owned()),
            &column(calls(), |call| call.caller.key_id),
            &column(calls(), |call| call.via.to_owned()),
            &column(calls(), |call| call.operation.doc.id.to_owned()),
            &column(calls(), |call| i16::try_from(call.status.as_u16()).unwrap_or(i16::MAX)),
            &column(calls(), |call| call.refusal.as_ref().map(|refusal| refusal.code.clone().into_owned()))
                as &[Option<String>],
            &column(calls(), |call| call.refusal.as_ref().and_then(|refusal| refusal.field.clone()))
                as &[Option<String>],
            &column(calls(), |call| call.replayed),
            &column(calls(), |call| call.request_id.clone()) as &[Option<String>],
            &column(calls(), |call| i32::try_from(call.duration.as_millis()).unwrap_or(i32::MAX)),
            &column(calls(), |call| call.at),
        )
        .execute(&mut *db)
        .await?;
        db.put_back();
        Ok(vec![(); rows.len()])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::StatusCode;

    use super::{super::tests::call, *};
    use crate::pipeline::request_log::RefusalReason;

    #[test]
    fn of_calls_over_the_rate_limit_a_group_has_one() {
        let over = |code: &'static str, of: &LoggedCall| LoggedCall {
            status: StatusCode::TOO_MANY_REQUESTS,
            refusal: Some(RefusalReason { code: code.into(), field: None }),
            ..of.clone()
        };
        let (one, other) = (call(), call());
        let mut group = vec![one.clone(), one.clone()];
        group.extend((0..100).map(|_| over("rate_limit_exceeded", &one)));
        group.extend((0..100).map(|_| over("rate_limit_exceeded", &other)));
        group.extend((0..2).map(|_| over("message_rate_exceeded", &one)));
        thin_out(&mut group);
        assert_eq!(group.len(), 2 + 1 + 1 + 2);
    }
}
