//! Benchmarks: `cargo run --release -p pipeline --bin bench -- campaign|import|launch|segment|transactional|messages|direct|http|webhooks|fairness|deferring`.
//!
//! Each starts its own servers, sink and processes on this machine, does the work once, and prints one line of figures: rate,
//! CPU-seconds per 1,000 mails by process, peak memory per process. Machines differ and are shared: compare CPU and ratios.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark talks, and fails loudly")]

mod against;
mod campaign;
mod common;
mod deferring;
mod direct;
mod fairness;
mod http;
mod import;
mod messages;
mod segment;
mod transactional;
mod webhooks;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Cli {
    /// Runs it in turn with another version, whose `bench` and `postrider` are in this folder, and prints the ratios. Before the
    /// benchmark's name.
    #[arg(long, value_name = "FOLDER")]
    against: Option<PathBuf>,
    /// How often each version runs.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// N recipients, a 10 KB HTML template with ten merge fields, from launch to the last acceptance at the sink.
    Campaign {
        #[arg(long, default_value_t = 100_000)]
        recipients: usize,
        #[command(flatten)]
        setup: common::Setup,
    },
    /// One import of N rows.
    Import {
        #[arg(long, default_value_t = 50_000)]
        rows: usize,
    },
    /// How long the launch of a list of N answers.
    Launch {
        #[arg(long, default_value_t = 1_000_000)]
        contacts: usize,
    },
    /// Previews of typical segments, and the filters of the contact list, over N contacts who were sent one mail each.
    Segment {
        #[arg(long, default_value_t = 1_000_000)]
        contacts: usize,
    },
    /// Open-loop latency from request to acceptance at the sink.
    Transactional {
        #[arg(long, default_value_t = 20)]
        per_second: u32,
        #[arg(long, default_value_t = 30)]
        seconds: u32,
        /// Runs a campaign of this size meanwhile.
        #[arg(long, default_value_t = 0)]
        beside_campaign: usize,
    },
    /// Latency of `POST /v1/messages`, from request to answer: the mail is at the sink by then.
    Messages {
        #[arg(long, default_value_t = 200)]
        count: usize,
        /// Bytes of one attachment, decoded; 0 for none.
        #[arg(long, default_value_t = 0)]
        attachment: usize,
        /// By HTTP, or by request and reply on the bus.
        #[arg(long, value_enum, default_value = "http")]
        via: messages::Via,
    },
    /// N transactional requests published to the bus in arrays, from the first publication to the last acceptance at the sink.
    Direct {
        #[arg(long, default_value_t = 50_000)]
        mails: usize,
        /// Requests in one array.
        #[arg(long, default_value_t = 500)]
        array: usize,
        #[command(flatten)]
        setup: common::Setup,
    },
    /// Signed small reads a second, with the ingress on one core; then the latency at half that rate.
    Http {
        #[arg(long, default_value_t = 10)]
        seconds: u64,
        #[arg(long, default_value_t = 32)]
        connections: usize,
        /// The ingress's log filter.
        #[arg(long, default_value = "info")]
        log: String,
    },
    /// Small campaigns of many tenants while one tenant sends a large one: how long they take, and how long alone.
    Fairness {
        #[arg(long, default_value_t = 1_000)]
        tenants: usize,
        /// Of each small campaign.
        #[arg(long, default_value_t = 100)]
        recipients: usize,
        /// Recipients of the large campaign.
        #[arg(long, default_value_t = 200_000)]
        large: usize,
    },
    /// A campaign to fifty domains, some of which defer everything: the rate of the others with and without.
    Deferring {
        #[arg(long, default_value_t = 50_000)]
        recipients: usize,
        /// Domains that defer, of fifty.
        #[arg(long, default_value_t = 5)]
        domains: usize,
    },
    /// Deliveries a second to 100 endpoints and to one, latency when idle, and beside receivers that never answer.
    Webhooks {
        #[arg(long, default_value_t = 30_000)]
        deliveries: usize,
        /// How long 200 healthy receivers are told 50 events a second, without and with silent ones beside them.
        #[arg(long, default_value_t = 40)]
        seconds: u64,
    },
}

#[tokio::main]
async fn main() {
    let cli = Cli::parse();
    if let Some(folder) = cli.against {
        let own = |word: &OsString| Command::has_subcommand(&word.to_string_lossy());
        let arguments: Vec<OsString> = std::env::args_os().skip(1).skip_while(|word| !own(word)).collect();
        return against::run(&folder, cli.rounds, &arguments);
    }
    match cli.command {
        Command::Campaign { recipients, setup } => campaign::run(recipients, setup).await,
        Command::Import { rows } => import::import(rows).await,
        Command::Launch { contacts } => import::launch(contacts).await,
        Command::Segment { contacts } => segment::run(contacts).await,
        Command::Transactional { per_second, seconds, beside_campaign } => {
            transactional::run(per_second, seconds, beside_campaign).await;
        }
        Command::Messages { count, attachment, via } => messages::run(count, attachment, via).await,
        Command::Direct { mails, array, setup } => {
            direct::run(mails, array, setup).await;
        }
        Command::Fairness { tenants, recipients, large } => {
            fairness::run(fairness::Options { tenants, recipients, large }).await;
        }
        Command::Deferring { recipients, domains } => deferring::run(recipients, domains).await,
        Command::Webhooks { deliveries, seconds } => webhooks::run(deliveries, seconds).await,
        Command::Http { seconds, connections, log } => http::run(Duration::from_secs(seconds), connections, &log).await,
    }
}
