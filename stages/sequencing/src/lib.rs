//! Sequencing: due enrollments take their next step, each exactly once.

use runner::{Deps, StageError};

/// Settings of the sequencing stage.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Settings {
    /// Groups of due enrollments worked on at the same time.
    #[arg(long, env = "POSTRIDER_SEQUENCING_WORKERS", default_value_t = 2)]
    pub sequencing_workers: usize,
}

/// Starts the stage's workers.
///
/// # Errors
/// None today; the signature is every stage's.
pub async fn start(_deps: &Deps, _settings: &Settings) -> Result<(), StageError> {
    Ok(())
}
