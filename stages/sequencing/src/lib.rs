//! Sequencing: due enrollments take their next step, each exactly once.
//!
//! The sweep `due_enrollments` locks a group of due enrollments (`skip locked`: any number of processes), decides about each contact,
//! takes the steps of each type together, and moves the cursors in the same transaction. Mail of a step passes the whole pipeline. Calls
//! to products are made between two transactions, under a claim. Two more sweeps cover the time between steps: `check_exits` ends
//! enrollments of contacts that opted out, bounced, complained or answered, or of which a product reported the event that ends them;
//! `apply_status_changes` resumes or ends the enrollments of a sequence that was resumed or archived. `start_sequences` enrolls contacts
//! for the occurrences of triggers, and `find_occurrences` finds those that no writer notes: dates that have come, and contacts that
//! are new in a segment.

mod calls;
mod checks;
mod decide;
mod due;
mod group;
mod moves;
mod occurrences;
mod sequence;
mod starts;
mod status_changes;
mod steps;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::join_all;
use runner::{Deps, StageError, Sweep, SweepSchedule};

use calls::Calls;
use checks::Checks;
use group::Groups;
use occurrences::Occurrences;
use starts::SequenceStarts;
use status_changes::StatusChanges;

const NAME: &str = "sequencing";
/// Groups of due enrollments worked on at the same time.
const WORKERS: usize = 2;
/// Due enrollments of one group.
const GROUP_MAX: u16 = 500;
/// The longest statement of a look at a trigger: a segment of a million contacts takes seconds. Shorter than the time that an import has,
/// which waits for it.
const LOOK_MAX: Duration = Duration::from_secs(40);
/// Pause after a sweep that found no due enrollments.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Settings of the sequencing stage.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sequencing")]
#[group(skip)]
pub struct Settings {
    /// Steps that a contact may take in one sequence within a day, over all its enrollments; with one more the enrollment ends
    /// as `loop_detected`.
    #[arg(long, env = "POSTRIDER_SEQUENCING_STEPS_PER_DAY", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub sequencing_steps_per_day: u16,
    /// Mails that the `notify_owner` steps of a tenant may send in an hour, over all processes; enrollments beyond it wait. 0 switches
    /// the limit off.
    #[arg(long, env = "POSTRIDER_SEQUENCING_OWNER_MAILS_PER_HOUR", default_value_t = 120)]
    pub sequencing_owner_mails_per_hour: u32,
    /// Due enrollments of one group: one transaction. Tests take fewer.
    #[arg(skip = GROUP_MAX)]
    pub group_max: u16,
    /// How long a statement that looks for the occurrences of a trigger may take. Tests take less.
    #[arg(skip = LOOK_MAX)]
    pub look_max: Duration,
}

/// Starts the stage's sweeps.
pub fn start(deps: &Deps, settings: &Settings) {
    let groups = Groups {
        by_key: deps.by_key.bulk(NAME),
        bus: deps.bus.clone(),
        calls: Calls::new(deps),
        group_max: i64::from(settings.group_max),
        steps_per_day: i64::from(settings.sequencing_steps_per_day),
        owner_mails_per_hour: settings.sequencing_owner_mails_per_hour,
    };
    deps.runner.start_sweep(NAME, Arc::new(groups));
    deps.runner.start_sweep(NAME, Arc::new(Checks(deps.by_key.bulk(NAME))));
    deps.runner.start_sweep(NAME, Arc::new(SequenceStarts(deps.by_key.bulk(NAME))));
    deps.runner.start_sweep(NAME, Arc::new(Occurrences { pool: deps.pool.clone(), look_max: settings.look_max }));
    deps.runner.start_sweep(NAME, Arc::new(StatusChanges(deps.pool.clone())));
}

/// Takes the steps of due enrollments, several groups at a time.
#[async_trait]
impl Sweep for Groups {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("due_enrollments", POLL_INTERVAL)
            .when("exists (select from enrollments where status = 'active' and next_action_at <= now())")
    }

    async fn sweep(&self) -> Result<u64, StageError> {
        let first = self.work().await?;
        // One group took everything that was due.
        if first < u64::try_from(self.group_max).unwrap_or(u64::MAX) / 2 {
            return Ok(first);
        }
        // Each to its end: a failed one must not cut another off between its commit and its announcements.
        let others = join_all((0..WORKERS).map(|_| self.work())).await;
        others.into_iter().try_fold(first, |sum, found| Ok(sum + found?))
    }
}
