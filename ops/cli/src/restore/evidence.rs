//! What a relay's log shows was sent: ids anywhere in its lines. Our Message-ID begins with the send's id, so most logs have it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use anyhow::{Context, ensure};
use schemas::SendId;
use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    invocation::{audit_begun, audit_record},
    operator,
};
use ledger::decide::{self, OperatorDecision, OperatorOutcome};

/// All undecided sends. After a restore no process has the sends that the ledger shows as fenced.
const UNDECIDED: [&str; 4] = ["queued", "fenced", "deferred", "unknown"];
/// An id's length in its canonical form.
const ID_LENGTH: usize = 36;

/// Marks what the log shows as sent.
pub(super) async fn reconcile(pool: &PgPool, path: &Path, dry_run: bool) -> anyhow::Result<()> {
    // Fenced sends are decided, too: so no process may be sending one.
    let is_held = sqlx::query_scalar!(r#"select held_at is not null as "held!" from ledger"#).fetch_one(pool).await?;
    ensure!(is_held || dry_run, "the ledger is not held: `postrider restore begin` first");
    // Sends that the audience stage has yet to write would not be found now; it writes them later, under the very ids that the log has.
    let is_writing = sqlx::query_scalar!(
        r#"select exists (
               select from campaigns where status = 'sending' and launch_prefix is not null and materialized_at is null
           ) as "writing!""#
    )
    .fetch_one(pool)
    .await?;
    ensure!(
        !is_writing || dry_run,
        "a launch is still being written, and its mail would not be found: try again when that is done"
    );
    let ids = read(path)?;
    // Before the open batches are read: a request that is written between the two is among them.
    let unwritten = unwritten_requests(pool).await?;
    let early: Vec<&Uuid> = ids.iter().filter(|id| unwritten.contains(&SendId(**id).batch())).collect();
    if let Some(first) = early.first() {
        ensure!(
            dry_run,
            "{} id(s) are of accepted mail whose sends are not written yet, such as {first}: try again when that is done",
            early.len()
        );
    }
    let open = open_batches(pool).await?;
    let shown: Vec<(Uuid, Uuid)> = ids.iter().filter_map(|id| Some((*open.get(&SendId(*id).batch())?, *id))).collect();
    let bar = operator::progress_bar(shown.len() as u64, "reconciling");
    let decision = OperatorDecision { outcome: OperatorOutcome::Sent, from: &UNDECIDED, evidence: "relay_log" };
    if !dry_run {
        let asked = json!({"read": ids.len(), "in_open_batches": shown.len()});
        audit_begun(pool, None, "restore.reconcile", "ledger", asked).await?;
    }
    let marked = match dry_run {
        true => 0,
        false => decide::decide(pool, &shown, decision, |count| bar.inc(count as u64)).await?,
    };
    bar.finish_and_clear();
    let elsewhere = ids.len() - shown.len();
    let words = format!(
        "{} id(s) read; {} in open batches, {elsewhere} not; {}",
        ids.len(),
        shown.len(),
        if dry_run { "nothing was marked".to_owned() } else { format!("{marked} marked as sent") }
    );
    if !dry_run {
        let detail = json!({"read": ids.len(), "marked": marked});
        audit_record(pool, None, "restore.reconcile", "ledger", Some(&words), detail).await?;
    }
    let record = json!({
        "read": ids.len(), "in_open_batches": shown.len(), "elsewhere": elsewhere, "marked": marked, "dry_run": dry_run,
    });
    operator::print_result(&record, &words);
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<BTreeSet<Uuid>> {
    match path.as_os_str() == "-" {
        true => ids_of(BufReader::new(std::io::stdin())),
        false => ids_of(BufReader::new(File::open(path).with_context(|| format!("{}", path.display()))?)),
    }
}

fn ids_of(log: impl BufRead) -> anyhow::Result<BTreeSet<Uuid>> {
    let mut ids = BTreeSet::new();
    for line in log.split(b'\n') {
        // A log may hold anything; what is not text holds no ids.
        ids.extend(ids_in(&String::from_utf8_lossy(&line?)));
    }
    // Lines without ids mark nothing: the release would mail again what they show.
    ensure!(!ids.is_empty(), "no line has the id of a send: give the lines with our Message-IDs");
    Ok(ids)
}

/// The ids in a line, wherever they stand.
fn ids_in(line: &str) -> impl Iterator<Item = Uuid> + '_ {
    let is_edge = |at: Option<&u8>| at.is_none_or(|byte| !byte.is_ascii_hexdigit() && *byte != b'-');
    let bytes = line.as_bytes();
    (0..bytes.len().saturating_sub(ID_LENGTH - 1)).filter_map(move |start| {
        let end = start + ID_LENGTH;
        let stands_alone =
            is_edge(start.checked_sub(1).and_then(|before| bytes.get(before))) && is_edge(bytes.get(end));
        let text = stands_alone.then(|| line.get(start..end)).flatten()?;
        schemas::parse_id(&text.to_ascii_lowercase()).ok()
    })
}

/// The batches of requests whose mail has its ids already, and no rows: scheduled mail, and what was accepted a moment ago.
async fn unwritten_requests(pool: &PgPool) -> sqlx::Result<HashSet<Uuid>> {
    let ids = sqlx::query_scalar!(
        "select id from requests
         where announce_after is not null and state = 'accepted' and kind in ('transactional', 'message')"
    )
    .fetch_all(pool)
    .await?;
    Ok(ids.into_iter().map(|id| SendId(id).batch()).collect())
}

/// The batches with something undecided, and whose they are.
async fn open_batches(pool: &PgPool) -> sqlx::Result<HashMap<Uuid, Uuid>> {
    let rows =
        sqlx::query!("select tenant_id, id from batches where state <> 'done' or unknown > 0").fetch_all(pool).await?;
    Ok(rows.into_iter().map(|row| (row.id, row.tenant_id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const ID: &str = "0198c0de-0000-7000-8000-000000000001";

    #[rstest]
    #[case::alone(ID, 1)]
    #[case::a_message_id(
        "postfix/cleanup[1]: 4F: message-id=<0198c0de-0000-7000-8000-000000000001.0a1b2c3d4e5f6071@acme.example>",
        1
    )]
    #[case::upper_case("0198C0DE-0000-7000-8000-000000000001", 1)]
    #[case::twice("<0198c0de-0000-7000-8000-000000000001@a> (0198c0de-0000-7000-8000-000000000002)", 2)]
    #[case::part_of_something("x0198c0de-0000-7000-8000-000000000001a", 0)]
    #[case::none("status=sent (250 2.0.0 Ok: queued as 4F7A)", 0)]
    #[case::not_ascii("é 0198c0de-0000-7000-8000-000000000001 ü", 1)]
    #[case::empty("", 0)]
    fn ids_are_found_anywhere_in_a_line(#[case] line: &str, #[case] expected: usize) {
        assert_eq!(ids_in(line).count(), expected, "{line}");
    }

    #[rstest]
    #[case::nothing("", false)]
    #[case::lines_without_our_message_id("postfix/smtp[1]: 4F7A: status=sent (250 Ok)\n", false)]
    #[case::one_line_with_it("postfix/smtp[1]: 4F7A: status=sent\n0198c0de-0000-7000-8000-000000000001\n", true)]
    fn a_log_without_ids_is_an_error(#[case] log: &str, #[case] is_evidence: bool) {
        assert_eq!(ids_of(log.as_bytes()).is_ok(), is_evidence, "{log}");
    }
}
