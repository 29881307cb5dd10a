//! Writes calls in groups, one statement for each.

use std::{collections::HashSet, time::Duration};

use http::StatusCode;
use runtime::{Backoff, Commit, Gathering, GroupCommitter, NotCommitted, column, commit_each, plans::PreparedPool};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{LoggedCall, LoggedTenant, count, known_part};

/// A group is written when it has so many calls, or has gathered for so long.
const GATHERING: Gathering = Gathering { most: 500, busy: 0, window: Duration::from_secs(1) };

/// Writes until nothing more can come.
pub(super) async fn run(by_key: PreparedPool, waiting: mpsc::Receiver<LoggedCall>) {
    let (mut writer, mut groups) = (Writer { by_key }, GroupCommitter::new(waiting, GATHERING));
    while let Some(mut group) = groups.next().await {
        thin_out(&mut group);
        let rows: Vec<LogRow> = group.into_iter().map(row).collect();
        let committed = commit_each(&mut writer, &rows).await;
        let lost = committed.iter().filter(|row| **row == Err(NotCommitted::Refused)).count();
        count((rows.len() - lost) as u64, "written");
        count(lost as u64, "lost");
    }
}

/// Of calls that the rate limit does not bound, leaves one for each key, operation and code.
fn thin_out(group: &mut Vec<LoggedCall>) {
    let mut seen = HashSet::new();
    group.retain(|call| match &call.refusal {
        Some(refusal) if is_uncounted(call.status, &refusal.code) => {
            seen.insert((call.caller.key_id, call.operation.doc.id, refusal.code.clone()))
        }
        _ => true,
    });
}

/// True if a call is refused without being counted against the rate limit: by the limit itself, or before it for its body, its signature
/// or its nonce.
fn is_uncounted(status: StatusCode, code: &str) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::REQUEST_TIMEOUT | StatusCode::PAYLOAD_TOO_LARGE)
        || matches!(code, "rate_limit_exceeded" | "incomplete_body")
}

/// A call, and the id of its row: a group that is written again writes the same rows.
struct LogRow {
    id: Uuid,
    call: LoggedCall,
}

struct Writer {
    by_key: PreparedPool,
}

fn row(mut call: LoggedCall) -> LogRow {
    if let Some(refusal) = &mut call.refusal {
        refusal.field = refusal.field.take().and_then(|path| known_part(call.operation, &path));
    }
    LogRow { id: schemas::new_id(), call }
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
mod tests {
    use super::{super::tests::call, *};
    use crate::pipeline::request_log::RefusalReason;

    #[test]
    fn of_calls_that_the_rate_limit_does_not_bound_a_group_has_one() {
        let refused = |status: u16, code: &'static str, of: &LoggedCall| LoggedCall {
            status: StatusCode::from_u16(status).unwrap(),
            refusal: Some(RefusalReason { code: code.into(), field: None }),
            ..of.clone()
        };
        let (one, other) = (call(), call());
        let mut group = vec![one.clone(), one.clone()];
        let unbounded = [
            (429, "rate_limit_exceeded"),
            (401, "stale_timestamp"),
            (401, "invalid_signature"),
            (401, "replayed_nonce"),
            (400, "incomplete_body"),
            (408, "request_timeout"),
            (413, "body_too_large"),
        ];
        for (status, code) in unbounded {
            group.extend((0..100).map(|_| refused(status, code, &one)));
            group.extend((0..100).map(|_| refused(status, code, &other)));
        }
        group.extend((0..2).map(|_| refused(429, "message_rate_exceeded", &one)));
        group.extend((0..2).map(|_| refused(400, "validation_failed", &one)));
        thin_out(&mut group);
        assert_eq!(group.len(), 2 + 2 * unbounded.len() + 2 + 2);
    }
}
