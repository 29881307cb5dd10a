//! `postrider`: the one binary. Every process of an installation is one of its subcommands.
#![allow(clippy::print_stdout, reason = "a command line talks on standard output")]

mod dead;
mod dev;
mod feed;
mod health;
mod hook;
mod key;
mod mcp;
mod openapi;
mod operator;
mod process;
mod provider;
mod quota;
mod recount;
mod rescore;
mod sink;
mod streams;
mod tenant;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Postrider, the multi-tenant email engine.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything on this machine for development: servers, demo tenant, all stages, a mail sink with an inbox page.
    Dev(Box<dev::Options>),
    /// Makes the demo tenant of `dev` in any database, and prints its ids and keys as JSON. For trying out and for tests.
    Seed(dev::SeedArgs),
    /// The ingress and every stage in one process.
    All(Box<process::AllSettings>),
    /// The HTTP ingress.
    Ingress(Box<process::IngressProcess>),
    /// One stage or several, each with its own workers.
    Stage(Box<process::StageProcess>),
    /// Brings the database schema up to date.
    Migrate(operator::DatabaseArgs),
    /// The JetStream streams.
    Streams(streams::Args),
    /// API keys.
    Key(key::Args),
    /// Tenants and their links.
    Tenant(tenant::Args),
    /// How many mails a tenant may send.
    Quota(quota::Args),
    /// Tenants' own accounts with mail providers.
    Provider(provider::Args),
    /// What providers tell of mail that went through tenants' own accounts.
    Hook(Box<hook::Args>),
    /// Which products' events go to the bus.
    Feed(feed::Args),
    /// AI assistants: who may ask, and what they proposed.
    Mcp(mcp::Args),
    /// The HTTP contract as an OpenAPI 3.1 document.
    Openapi(openapi::Args),
    /// Whether mail goes out, and if not, why and what to do.
    Health(health::Args),
    /// Proves that every counter equals a recount of what it counts.
    Recount(recount::Args),
    /// Judges opens and clicks anew by the rules of this version.
    Rescore(rescore::Args),
    /// Messages that were set aside.
    Dead(dead::Args),
    /// A mail sink: an SMTP server that keeps what it gets, with an inbox page.
    Sink(sink::Args),
}

fn main() -> ExitCode {
    // One TLS and crypto provider for everything; the error is "already installed".
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if let Err(error) = runtime::settings::refuse_unknown_environment(&Cli::command()) {
        eprintln!("postrider: {error}");
        return ExitCode::from(2);
    }
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("postrider: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli.command)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("postrider: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Health(args) => return health::run(args).await,
        Command::Recount(args) => return recount::run(args).await,
        Command::Dev(options) => dev::run(*options).await,
        Command::Seed(args) => dev::print_seed(&args).await,
        Command::All(settings) => process::run_all(*settings).await,
        Command::Ingress(settings) => process::run_ingress(*settings).await,
        Command::Stage(settings) => process::run_stages(*settings).await,
        Command::Migrate(args) => operator::migrate(&args).await,
        Command::Streams(args) => streams::run(args).await,
        Command::Key(args) => key::run(args).await,
        Command::Tenant(args) => tenant::run(args).await,
        Command::Quota(args) => quota::run(args).await,
        Command::Provider(args) => provider::run(args).await,
        Command::Hook(args) => hook::run(*args).await,
        Command::Feed(args) => feed::run(args).await,
        Command::Mcp(args) => mcp::run(args).await,
        Command::Openapi(args) => openapi::run(&args),
        Command::Rescore(args) => rescore::run(args).await,
        Command::Dead(args) => dead::run(args).await,
        Command::Sink(args) => sink::run(args).await,
    }
    .map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_name_of_its_own() {
        Cli::command().debug_assert();
    }
}
