//! Webhooks: facts become events, for subscribed endpoints and for the bus.

use runner::{Deps, StageError};

/// Settings of the webhooks stage.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Settings {
    /// Groups of facts made into events at the same time.
    #[arg(long, env = "POSTRIDER_WEBHOOKS_WORKERS", default_value_t = 2)]
    pub webhooks_workers: usize,
}

/// Starts the stage's workers.
///
/// # Errors
/// None today; the signature is every stage's.
pub async fn start(_deps: &Deps, _settings: &Settings) -> Result<(), StageError> {
    Ok(())
}
