//! Attribution: outcomes are credited to the mails that led to them, under a stated model and window, with evidence.

use runner::{Deps, StageError};

/// Settings of the attribution stage.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Settings {
    /// Groups of outcomes and late facts worked on at the same time.
    #[arg(long, env = "POSTRIDER_ATTRIBUTION_WORKERS", default_value_t = 2)]
    pub attribution_workers: usize,
}

/// Starts the stage's workers.
///
/// # Errors
/// None today; the signature is every stage's.
pub async fn start(_deps: &Deps, _settings: &Settings) -> Result<(), StageError> {
    Ok(())
}
