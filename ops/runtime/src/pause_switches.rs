//! Pause switches: which stages an operator has paused. They are stored in Postgres, so they survive restarts and work without NATS.
//! A notification on the bus makes a change known at once; without it, every process reads the switches every second.
//!
//! A paused stage starts nothing: it fetches no work and finishes what it has begun. The pauses of tenants and campaigns are not
//! here: the ledger's last gate reads them itself.

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Bus, Gauge, Notifier, StageName,
    causes::chain,
    db,
    plans::PreparedPool,
    restore_detector::{self, EpochError},
};

/// How often the switches are read without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The stages that send data out of the platform, which cannot be undone. They do not start while the ledger is paused.
pub const OUTBOUND: [&str; 3] = ["delivery", "webhooks", "sequencing"];

/// The pause switches as this process knows them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PauseSwitches(watch::Receiver<PauseState>);

/// The state of the switches at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PauseState {
    /// True if the switches were read. Until then every stage waits, because a pause survives a restart.
    is_read: bool,
    /// True if the ledger was checked since it was last away, and is not a restored one.
    is_verified: bool,
    is_ledger_paused: bool,
    /// How often a check has found the ledger paused while the switches did not say so yet.
    holds: u32,
    stages: BTreeSet<String>,
}

impl PauseState {
    fn must_wait(&self, stage: &str) -> bool {
        !self.is_read || self.is_paused(stage) || OUTBOUND.contains(&stage) && self.is_ledger_held()
    }

    /// True if the ledger is a restored one, or may be.
    fn is_ledger_held(&self) -> bool {
        self.is_ledger_paused || !self.is_verified
    }

    /// True if an operator or the restore detector paused the stage.
    fn is_paused(&self, stage: &str) -> bool {
        self.stages.contains(stage) || self.is_ledger_paused && OUTBOUND.contains(&stage)
    }
}

impl PauseSwitches {
    /// Switches that pause nothing, for processes without an operator.
    #[must_use]
    pub fn released() -> Self {
        Self(watch::channel(PauseState { is_read: true, is_verified: true, ..PauseState::default() }).1)
    }

    /// Follows the switches until shutdown. `by_key` must use the stages' role. Processes that send mail increment the ledger's epoch
    /// (`advances_epoch`), the others only compare it.
    #[must_use]
    pub fn follow(
        by_key: &PreparedPool,
        bus: Bus,
        changes: Notifier,
        advances_epoch: bool,
        shutdown: CancellationToken,
    ) -> Self {
        let (known, receiver) = watch::channel(PauseState::default());
        let by_key = by_key.priority("switches");
        let detector = restore_detector::RestoreDetector::new(by_key.clone(), bus, advances_epoch);
        tokio::spawn(detect_restores(detector, known.clone(), shutdown.clone()));
        tokio::spawn(poll_switches(by_key, known, changes, shutdown));
        Self(receiver)
    }

    /// True if a stage must start nothing.
    #[must_use]
    pub fn is_paused(&self, stage: &str) -> bool {
        self.0.borrow().must_wait(stage)
    }

    /// True if the ledger is a restored one, or may be: it may have mailed already what is due in it. Mail under new ids must not be written
    /// then, for no log of what was sent could tell it from mail of before.
    #[must_use]
    pub fn is_ledger_held(&self) -> bool {
        let state = self.0.borrow();
        !state.is_read || state.is_ledger_held()
    }

    /// Returns when the stage may start work; at once if it may now. Cancel safe.
    pub async fn until_running(&self, stage: &str) {
        let mut known = self.0.clone();
        if known.wait_for(|state| !state.must_wait(stage)).await.is_err() {
            // The sender is gone: the process is stopping.
            std::future::pending::<()>().await;
        }
    }

    /// Returns when a switch has changed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Reads the switches periodically. While Postgres is unavailable the last state stays in force.
async fn poll_switches(
    by_key: PreparedPool,
    known: watch::Sender<PauseState>,
    changes: Notifier,
    shutdown: CancellationToken,
) {
    loop {
        let holds = known.borrow().holds;
        match tokio::time::timeout(READ_TIMEOUT, read_switches(&by_key)).await {
            Ok(Ok(row)) => apply_switches(&known, &row, holds),
            Ok(Err(error)) => {
                let error = db::describe(&error);
                tracing::debug!(error, "the pause switches could not be read; the last state stays in force");
            }
            Err(_) => tracing::debug!("reading the pause switches timed out; the last state stays in force"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            () = changes.notified() => {}
        }
    }
}

struct SwitchRow {
    stages: BTreeSet<String>,
    is_ledger_paused: bool,
    tenants: i64,
}

async fn read_switches(by_key: &PreparedPool) -> sqlx::Result<SwitchRow> {
    let mut db = by_key.take().await?;
    let row = sqlx::query!(
        r#"select coalesce(array(select p.stage from stage_pauses p), '{}') as "stages!", l.held_at is not null as "is_held!",
                  (select count(*) from tenants t where t.paused_at is not null) as "tenants!"
           from ledger l"#
    )
    .fetch_one(&mut *db)
    .await?;
    db.put_back();
    Ok(SwitchRow { stages: row.stages.into_iter().collect(), is_ledger_paused: row.is_held, tenants: row.tenants })
}

/// Puts the switches in force. `holds` is from before they were read: a check that has found the ledger paused since then knows better.
fn apply_switches(known: &watch::Sender<PauseState>, row: &SwitchRow, holds: u32) {
    Gauge::TenantsPaused.set(row.tenants as f64, []);
    let was_read = known.borrow().is_read;
    let is_changed = change_state(known, |state| {
        state.is_read = true;
        state.is_ledger_paused = row.is_ledger_paused || state.holds != holds;
        state.stages.clone_from(&row.stages);
    });
    let state = known.borrow();
    if is_changed && was_read {
        tracing::info!(paused = ?state.stages, ledger_paused = state.is_ledger_paused, "pause switches changed");
    }
    for stage in StageName::NAMES.iter().copied() {
        Gauge::Paused.set(f64::from(u8::from(state.is_paused(stage))), [("stage", stage)]);
    }
}

/// Changes the state. Those who follow it are notified if it is another one then.
fn change_state(known: &watch::Sender<PauseState>, change: impl FnOnce(&mut PauseState)) -> bool {
    known.send_if_modified(|state| {
        let before = state.clone();
        change(state);
        *state != before
    })
}

/// Checks periodically that the ledger was not restored, and increments its epoch.
async fn detect_restores(
    mut detector: restore_detector::RestoreDetector,
    known: watch::Sender<PauseState>,
    shutdown: CancellationToken,
) {
    loop {
        match tokio::time::timeout(restore_detector::CHECK_TIMEOUT, detector.check_epoch()).await {
            Ok(Ok(is_paused)) => apply_check(&known, is_paused),
            Ok(Err(error)) => {
                doubt_what_is_away(&known, &error);
                warn_unchecked(known.borrow().is_verified, &chain(&error));
            }
            Err(_) => warn_unchecked(known.borrow().is_verified, "checking the ledger timed out"),
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(restore_detector::CHECK_INTERVAL)).await.is_none() {
            return;
        }
    }
}

fn apply_check(known: &watch::Sender<PauseState>, is_paused: bool) {
    change_state(known, |state| {
        state.is_verified = true;
        if is_paused && !state.is_ledger_paused {
            state.is_ledger_paused = true;
            state.holds = state.holds.wrapping_add(1);
        }
    });
}

/// A Postgres that was away may come back with an older ledger: what sends mail waits until that was checked. A process whose own
/// connections are all in use knows nothing of Postgres.
fn doubt_what_is_away(known: &watch::Sender<PauseState>, error: &EpochError) {
    let EpochError::Ledger(error) = error else { return };
    if db::is_unavailable(error) && !matches!(error, sqlx::Error::PoolTimedOut) {
        known.send_if_modified(|state| std::mem::take(&mut state.is_verified));
    }
}

/// Says why the ledger could not be checked: until it is, what sends mail waits.
fn warn_unchecked(is_verified: bool, error: &str) {
    if is_verified {
        tracing::debug!(error, "the ledger could not be checked");
    } else {
        tracing::warn!(error, "nothing is sent until the ledger is checked for a restore");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(stages: &[&str], is_ledger_paused: bool) -> PauseState {
        let stages = stages.iter().map(|stage| (*stage).to_owned()).collect();
        PauseState { is_read: true, is_verified: true, is_ledger_paused, holds: 0, stages }
    }

    #[test]
    fn every_stage_waits_until_the_switches_are_read() {
        let unread = PauseState::default();
        assert!(["audience", "delivery", "engagement"].iter().all(|stage| unread.must_wait(stage)));
    }

    #[test]
    fn a_pause_stops_its_stage_and_no_other() {
        let state = state(&["compliance"], false);
        assert!(state.must_wait("compliance") && !state.must_wait("delivery") && !state.must_wait("audience"));
    }

    #[test]
    fn what_sends_mail_waits_when_the_ledger_was_away_and_for_nothing_less() {
        let away = EpochError::Ledger(sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into()));
        let others = [
            EpochError::Ledger(sqlx::Error::PoolTimedOut),
            EpochError::Ledger(sqlx::Error::RowNotFound),
            EpochError::Undecided,
        ];
        let (known, _receiver) = watch::channel(state(&[], false));
        for other in others {
            doubt_what_is_away(&known, &other);
            assert!(!known.borrow().must_wait("delivery"), "{other:?}");
        }
        doubt_what_is_away(&known, &away);
        let state = known.borrow();
        assert!(state.must_wait("delivery") && !state.is_paused("delivery") && !state.must_wait("rendering"));
    }

    #[test]
    fn switches_read_before_a_restore_was_detected_release_nothing() {
        let (known, _receiver) = watch::channel(state(&[], false));
        let read_before = SwitchRow { stages: BTreeSet::new(), is_ledger_paused: false, tenants: 0 };
        let holds = known.borrow().holds;
        apply_check(&known, true);
        apply_switches(&known, &read_before, holds);
        assert!(known.borrow().must_wait("delivery"));
        let holds = known.borrow().holds;
        apply_switches(&known, &read_before, holds);
        assert!(!known.borrow().must_wait("delivery"), "read afterwards: an operator has released it");
    }

    #[test]
    fn outbound_stages_wait_for_a_checked_and_running_ledger() {
        let unverified = PauseState { is_verified: false, ..state(&[], false) };
        for state in [state(&[], true), unverified] {
            assert!(OUTBOUND.iter().all(|stage| state.must_wait(stage)) && state.is_ledger_held(), "{state:?}");
            assert!(
                ["audience", "compliance", "rendering", "engagement", "attribution"]
                    .iter()
                    .all(|stage| !state.must_wait(stage))
            );
        }
    }
}
