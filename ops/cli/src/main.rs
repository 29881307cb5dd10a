//! `postrider`: the one binary. Every process of an installation is one of its subcommands.
#![allow(clippy::print_stdout, reason = "a command line talks on standard output")]

mod api;
mod audit;
mod contracts;
mod dead;
mod domain;
mod explain;
mod feed;
mod find_tenant;
mod health;
mod hook;
mod invocation;
mod key;
mod log_level;
mod mcp;
mod nats_user;
mod operator;
mod pause;
mod process;
mod provider;
mod quota;
mod reader;
mod recount;
mod requeue;
mod rescore;
mod restore;
#[cfg(feature = "dev")]
mod seed;
#[cfg(all(test, feature = "dev"))]
#[path = "tests/settings_page.rs"]
mod settings_page;
#[cfg(feature = "dev")]
mod sink;
mod streams;
mod table;
mod tenant;
mod traces;
mod warmup;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::operator::LedgerCommand;

/// Postrider, the multi-tenant email engine.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(flatten, next_help_heading = "Of every command")]
    invocation: invocation::InvocationArgs,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Everything on this machine for development: servers, demo tenant, all stages, a mail sink with an inbox page.
    #[cfg(feature = "dev")]
    Dev(Box<devtools::dev::Options>),
    /// Makes the demo tenant of `dev` in any database, and prints its ids and keys as JSON. For trying out and for tests.
    #[cfg(feature = "dev")]
    Seed(seed::SeedArgs),
    /// The ingress and every stage in one process.
    All(Box<process::AllSettings>),
    /// The HTTP ingress.
    Ingress(Box<process::IngressProcess>),
    /// One stage or several, each with its own workers.
    Stage(Box<process::StageProcess>),
    /// Brings the database schema up to date.
    Migrate(operator::DatabaseArgs),
    /// The JetStream streams.
    Streams(streams::StreamsArgs),
    /// API keys.
    Key(LedgerCommand<key::KeyCommand>),
    /// Tenants and their links.
    Tenant(LedgerCommand<tenant::TenantCommand>),
    /// Sending domains: stopping one, and letting it go on.
    Domain(LedgerCommand<domain::DomainCommand>),
    /// How many mails a tenant may send.
    Quota(quota::QuotaArgs),
    /// How many mails a day a new sending domain may send.
    Warmup(LedgerCommand<warmup::WarmupCommand>),
    /// Tenants' own accounts with mail providers.
    Provider(provider::ProviderArgs),
    /// Events of providers about mail that was sent through tenants' own accounts.
    Hook(Box<hook::HookArgs>),
    /// Which products' events go to the bus.
    Feed(LedgerCommand<feed::FeedCommand>),
    /// AI assistants: who may ask, and what they proposed.
    Mcp(LedgerCommand<mcp::McpCommand>),
    /// Calls the HTTP API as a product does.
    Api(Box<api::ApiArgs>),
    /// The HTTP contract as an OpenAPI 3.1 document.
    Openapi(contracts::DocumentArgs),
    /// The contract of the bus as an AsyncAPI 3.0 document.
    Asyncapi(contracts::AsyncapiArgs),
    /// Users of the NATS servers: keys and rights of products and processes.
    #[command(subcommand)]
    NatsUser(nats_user::NatsUserCommand),
    /// Whether mail goes out, and if not, why and what to do.
    Health(operator::ServerArgs),
    /// Proves that every counter equals a recount of what it counts.
    Recount(recount::RecountArgs),
    /// Classifies opens and clicks again by the rules of this version.
    Rescore(rescore::RescoreArgs),
    /// Pauses a stage, a tenant or a campaign.
    Pause(pause::PauseArgs),
    /// Resumes what was paused.
    Resume(pause::ResumeArgs),
    /// Pauses a stage and waits until its processes have finished their work.
    Drain(pause::DrainArgs),
    /// Announces stuck work of the ledger again; resolves unknown outcomes.
    Requeue(requeue::RequeueArgs),
    /// Explains why a contact was mailed, was not mailed, or would not be mailed.
    Explain(explain::ExplainArgs),
    /// Messages that were set aside.
    Dead(dead::DeadArgs),
    /// Pauses everything that leaves after a database was restored, closes the gap, resumes.
    Restore(restore::RestoreArgs),
    /// The log filter of running processes.
    LogLevel(log_level::LogLevelArgs),
    /// What operators did.
    Audit(LedgerCommand<audit::AuditCommand>),
    /// A mail sink: an SMTP server that keeps what it gets, with an inbox page.
    #[cfg(feature = "dev")]
    Sink(sink::SinkArgs),
    /// Reads strangers' bytes for the process that starts it.
    #[command(hide = true)]
    Reader(reader::ReaderArgs),
}

fn main() -> ExitCode {
    // One TLS and crypto provider for everything; the error is "already installed".
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    if let Err(error) = runtime::settings::refuse_unknown_environment(&Cli::command()) {
        eprintln!("postrider: {error}");
        return ExitCode::from(2);
    }
    start(Cli::parse()).unwrap_or_else(failed)
}

fn failed(error: anyhow::Error) -> ExitCode {
    eprintln!("postrider: {}", error_text(&error));
    ExitCode::FAILURE
}

/// An error and its causes, without those whose text the text before has already.
fn error_text(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn start(cli: Cli) -> anyhow::Result<ExitCode> {
    // Before anything else: it limits what the process may take, and needs nothing.
    if let CliCommand::Reader(args) = &cli.command {
        match reader::run(args)? {}
    }
    invocation::set_invocation(cli.invocation);
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    // Printed before the runtime ends, which waits for what still blocks.
    Ok(runtime.block_on(run(cli.command)).unwrap_or_else(failed))
}

async fn run(command: CliCommand) -> anyhow::Result<ExitCode> {
    match command {
        // Everything is looked at side by side, which makes it a large one.
        CliCommand::Health(args) => return Box::pin(health::run(args)).await,
        CliCommand::Recount(args) => return recount::run(args).await,
        CliCommand::Api(args) => return api::run(*args).await,
        CliCommand::Drain(args) => return pause::drain(args).await,
        #[cfg(feature = "dev")]
        CliCommand::Dev(options) => devtools::dev::run(*options, process::stop_signal_on_terminal()).await,
        #[cfg(feature = "dev")]
        CliCommand::Seed(args) => seed::run(args).await,
        CliCommand::All(settings) => process::run_all(*settings).await,
        CliCommand::Ingress(settings) => process::run_ingress(*settings).await,
        CliCommand::Stage(settings) => process::run_stages(*settings).await,
        CliCommand::Migrate(args) => operator::migrate(&args).await,
        CliCommand::Streams(args) => streams::run(args).await,
        CliCommand::Key(args) => args.run(key::run).await,
        CliCommand::Tenant(args) => args.run(tenant::run).await,
        CliCommand::Domain(args) => args.run(domain::run).await,
        CliCommand::Quota(args) => quota::run(args).await,
        CliCommand::Warmup(args) => args.run(warmup::run).await,
        CliCommand::Provider(args) => provider::run(args).await,
        CliCommand::Hook(args) => hook::run(*args).await,
        CliCommand::Feed(args) => args.run(feed::run).await,
        CliCommand::Mcp(args) => args.run(mcp::run).await,
        CliCommand::Openapi(args) => contracts::openapi(&args),
        CliCommand::Asyncapi(args) => contracts::asyncapi(&args),
        CliCommand::NatsUser(command) => nats_user::run(command),
        CliCommand::Rescore(args) => rescore::run(args).await,
        CliCommand::Pause(args) => pause::pause(args).await,
        CliCommand::Resume(args) => pause::resume(args).await,
        CliCommand::Requeue(args) => requeue::run(args).await,
        CliCommand::Explain(args) => explain::run(args).await,
        CliCommand::Dead(args) => dead::run(args).await,
        CliCommand::Restore(args) => restore::run(args).await,
        CliCommand::LogLevel(args) => log_level::run(args).await,
        CliCommand::Audit(args) => args.run(audit::run).await,
        #[cfg(feature = "dev")]
        CliCommand::Sink(args) => sink::run(args).await,
        CliCommand::Reader(args) => match reader::run(&args)? {},
    }
    .map(|()| ExitCode::SUCCESS)
}

/// glibc's allocator takes 4 to 12 % more of the engine's time: strings are made in one thread and freed in another.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How the allocator is set up: few arenas, which give back what has been free for two seconds as they are used. It reads the symbol when
/// it starts.
#[allow(unsafe_code, reason = "the name of a symbol that nothing else defines; the allocator only reads it")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATOR_SETTINGS: &[u8; 30] = b"narenas:4,dirty_decay_ms:2000\0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_name_of_its_own() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_repeated_cause_is_shown_once() {
        let error = anyhow::anyhow!("timed out").context("JetStream refused: timed out").context("nats-url");
        assert_eq!(error_text(&error), "nats-url: JetStream refused: timed out");
    }

    #[test]
    fn the_help_of_a_suspension_says_that_mail_is_skipped() {
        for what in ["tenant", "domain"] {
            let help = Cli::try_parse_from(["postrider", what, "suspend", "--help"]).map_err(|help| help.to_string());
            assert!(help.is_err_and(|help| help.contains("skipped")), "{what}");
        }
    }

    #[test]
    fn what_could_never_work_is_refused_with_the_form_it_must_have() {
        const TENANT: &str = "0198c0de-0000-7000-8000-000000000001";
        const LATER: &str = "2999-01-01T00:00:00Z";
        let link = |product: &str, id: &str| {
            format!("tenant\tlink\t--product\t{product}\t--product-tenant-id\t{id}\t--email\towner@acme.example")
        };
        let issue = |expires: &str| format!("key\tissue\t--product\tacme\t--expires\t{expires}");
        let approve = |issuer: &str, expires: &str| {
            let name = "--subject\tann\t--client\tassistant";
            format!("mcp\tapprove\t--tenant\t{TENANT}\t--issuer\t{issuer}\t{name}\t--expires\t{expires}")
        };
        for (command, form) in [
            (link("acme", "t 1"), None),
            (link("D", "t1"), Some("2 to 32 of a-z")),
            (link("Has Space", "t1"), Some("2 to 32 of a-z")),
            (link("acme", ""), Some("1 to 255 characters")),
            (link("acme", "t\u{7}"), Some("1 to 255 characters")),
            (link("acme", &"t".repeat(300)), Some("1 to 255 characters")),
            (issue(LATER), None),
            (issue("2999-01-01"), Some("RFC 3339")),
            (issue("2020-01-01T00:00:00Z"), Some("still to come")),
            ("audit\tlist\t--since\t2027-01-01".to_owned(), Some("RFC 3339")),
            ("rescore\t--since\t2027-01-01".to_owned(), Some("RFC 3339")),
            (approve("https://id.example.com", LATER), None),
            (approve("https://id.example.com", "2020-01-01T00:00:00Z"), Some("still to come")),
            (approve("notaurl", LATER), Some("a URL")),
            (approve("http://id.example.com", LATER), Some("a URL")),
            (approve("https://id.example.com?a=b", LATER), Some("a URL")),
            (approve("https://id.example.com\n", LATER), Some("a URL")),
            ("log-level\twarn\t--process\twebhooks".to_owned(), None),
            ("log-level\twarn\t--process\tnobody".to_owned(), Some("possible values: all, ingress")),
        ] {
            let words = std::iter::once("postrider").chain(command.split('\t'));
            let refused = Cli::try_parse_from(words).map_err(|error| error.to_string()).err();
            match form {
                Some(form) => assert!(refused.is_some_and(|refused| refused.contains(form)), "{command}"),
                None => assert_eq!(refused, None, "{command}"),
            }
        }
    }

    #[test]
    fn a_reason_is_given_before_or_after_the_command() {
        let command = ["requeue", "send", "0198c0de-0000-7000-8000-000000000001", "--unknown-as", "sent"];
        let reason = ["--reason", "the relay's log has it"];
        for words in [[&reason[..], &command].concat(), [&command[..], &reason].concat()] {
            let parsed = Cli::try_parse_from([&["postrider"][..], &words].concat()).map_err(|error| error.to_string());
            assert_eq!(parsed.map(|cli| cli.invocation.reason).as_ref(), Ok(&Some(reason[1].to_owned())), "{words:?}");
        }
    }

    #[test]
    fn server_options_work_before_and_after_the_subcommand() {
        let (database, bus) = (["--database-url", "postgres://here/db"], ["--nats-url", "nats://here"]);
        let words = |words: &[&[&str]]| -> Vec<String> {
            std::iter::once("postrider").chain(words.concat()).map(str::to_owned).collect()
        };
        for arguments in [
            words(&[&["key"], &database, &["list"]]),
            words(&[&["key", "list"], &database]),
            words(&[&["streams"], &bus, &["report"]]),
            words(&[&["streams", "report"], &bus]),
            words(&[&["dead", "list"], &database, &bus]),
        ] {
            let parsed = Cli::try_parse_from(&arguments);
            let debug = format!("{:?}", parsed.map_err(|error| error.to_string()));
            assert!(debug.starts_with("Ok"), "{arguments:?}: {debug}");
            let wanted =
                if arguments.iter().any(|word| word == "--nats-url") { "nats_url: Some" } else { "database_url: Some" };
            assert!(debug.contains(wanted), "{arguments:?}: {debug}");
        }
    }
}
