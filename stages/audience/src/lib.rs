//! The audience stage: requests in, batches of recipients out.
//!
//! A transactional request becomes one send in a batch of its own, a one-off message a send for each of its recipients. A launch writes its
//! whole audience to `sends` in one set-based insert, cut into batches that wait in Postgres. The sweep `dispatch` announces them, tenants
//! in turn, so the bus holds a few seconds of work and a pause or cancel takes effect at once. Further sweeps announce work again that has
//! not moved, end the sends of cancelled campaigns, complete campaigns, and take the values of removed fields out of contacts.

mod campaign;
pub mod retention;
mod stage;
mod sweeps;

pub use stage::start;
pub use sweeps::{RemoveFields, WarnQuotas};

use std::time::Duration;

use ledger::{confirmations::ConfirmationSettings, quota::QuotaDefaults};

use crate::retention::RetentionSettings;

/// Settings of the audience stage.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Audience")]
#[group(skip)]
pub struct Settings {
    /// Campaigns whose audience is looked up at the same time, per process. Each takes one Postgres connection and a processor
    /// for about six seconds for each million contacts, in turns of 20,000.
    #[arg(long, env = "POSTRIDER_AUDIENCE_LAUNCHES", default_value_t = 1)]
    pub audience_launches: usize,
    /// Campaign sends dispatched and not yet decided, over all tenants: some seconds of work. More keeps more workers busy; fewer let a
    /// pause, a cancel or another tenant's campaign take effect sooner.
    #[arg(long, env = "POSTRIDER_AUDIENCE_BACKLOG", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub audience_backlog: u32,
    /// What `audience-backlog` is for all others, for each tenant with a provider connection of its own: a connection that is slow or
    /// away keeps no other tenant waiting.
    #[arg(long, env = "POSTRIDER_AUDIENCE_CONNECTION_BACKLOG", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub audience_connection_backlog: u32,
    /// First pause before a dispatched batch that is still open is announced again; doubles each time, up to 30 times this.
    /// Hidden: only tests change it.
    #[arg(long, hide = true, env = "POSTRIDER_AUDIENCE_REANNOUNCE", default_value = "60s", value_parser = humantime::parse_duration)]
    pub audience_reannounce: Duration,
    /// How long rows are kept.
    #[command(flatten)]
    pub retention: RetentionSettings,
    /// The send quota, of which tenants are warned. One setting of the process: delivery's fence enforces it.
    #[arg(skip)]
    pub quota: QuotaDefaults,
    /// How often contacts are asked to confirm. One setting of the process: the ingress goes by it, too.
    #[arg(skip)]
    pub confirmations: ConfirmationSettings,
}
