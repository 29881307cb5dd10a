//! The rendering stage: cleared batches in, rendered batches out.
//!
//! [`templates`] is its pure part: what a template may contain, how it is compiled and rendered. The HTTP API uses it to
//! check templates when they are saved. The rest loads the data of a batch, renders it, and passes the rendered parts on.

mod stage;

use std::sync::Arc;

use runner::{Deps, Intake, StageError};
use schemas::{Lane, subjects, subjects::stream};

use stage::Rendering;

/// Settings of the rendering stage.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Rendering")]
#[group(skip)]
pub struct Settings {
    /// Where recipients reach us, for the links and the pixel in mail: `https://link.example.com`. Mail that was sent keeps the
    /// address it was sent with.
    #[arg(long, env = "POSTRIDER_PUBLIC_URL", default_value = "http://localhost:8080")]
    pub public_url: url::Url,
    /// Links of senders whose `link.<domain>` points to us and was verified: `{host}` is that name. It must be served with a
    /// certificate for each such name, or the links do not open; `http://{host}` or a port where it is not.
    #[arg(long, env = "POSTRIDER_TRACKING_ORIGIN", default_value = "https://{host}")]
    pub tracking_origin: String,
    /// Campaign batches rendered at the same time.
    #[arg(long, env = "POSTRIDER_RENDERING_WORKERS", default_value_t = 2)]
    pub rendering_workers: usize,
    /// Memory for compiled templates, in megabytes. Too little shows as higher processing times, nothing else.
    #[arg(long, env = "POSTRIDER_RENDERING_CACHE_MB", default_value_t = 128)]
    pub rendering_cache_mb: u64,
}

/// Workers for transactional mail.
const PRIORITY_WORKERS: usize = 2;
/// Messages that one of them takes at once.
const PRIORITY_COALESCE: usize = 64;

/// Starts the stage's workers.
///
/// # Errors
/// When the settings make no sense.
pub async fn start(deps: &Deps, settings: &Settings) -> Result<(), StageError> {
    let stage = Rendering::new(deps.pool.clone(), deps.by_key.clone(), deps.tokens.clone(), settings)?;
    let stage = Arc::new(stage.notifying(deps.bus.clone(), deps.facts.clone()));
    let intake = |lane: Lane, workers, coalesce| Intake {
        lane,
        stream: stream::CLEARED,
        durable: format!("rendering-{lane}"),
        subjects: vec![subjects::cleared(lane)],
        workers,
        coalesce,
    };
    deps.runner.start(
        stage,
        vec![
            intake(Lane::Priority, PRIORITY_WORKERS, PRIORITY_COALESCE),
            intake(Lane::Bulk, settings.rendering_workers, 1),
        ],
    );
    deps.runner.start_sweep("rendering", Arc::new(stage::PurgeMessages(deps.pool.clone())));
    Ok(())
}
