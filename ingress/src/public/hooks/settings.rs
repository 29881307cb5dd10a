//! What an operator can set about providers' events.

use clap::Args;

/// Settings of `/hooks`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Provider events")]
#[group(skip)]
pub struct HookSettings {
    /// Requests a second that each ingress process takes for one provider connection; more are answered 429 and come again.
    #[arg(long, env = "POSTRIDER_HOOK_RATE_PER_SECOND", default_value_t = 1_000)]
    pub hook_rate_per_second: u32,
    /// Hosts, as `host:port`, that SNS certificates and confirmations may come from beside Amazon's own, also by plain http; for
    /// stand-ins.
    #[arg(long, env = "POSTRIDER_HOOK_SNS_HOSTS", value_delimiter = ',')]
    pub hook_sns_hosts: Vec<String>,
}
