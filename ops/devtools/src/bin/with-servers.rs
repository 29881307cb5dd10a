//! `with-servers <command> [argument…]`: runs the command beside a NATS server and a Postgres of its own.
//!
//! The command finds them in `POSTRIDER_TEST_NATS_URL` and `POSTRIDER_TEST_DATABASE_URL`. Afterwards both are
//! stopped, their data is deleted, and the command's exit status is passed on. If one of them ended meanwhile, the end of its log is
//! printed, and the status is a failure.

use std::process::ExitCode;

use anyhow::Context;
use devtools::servers::{ServerOptions, Servers, TEST_DATABASE_URL_VARIABLE, TEST_NATS_URL_VARIABLE};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    let program = words.next().context("usage: with-servers <command> [argument…]")?;

    // A terminal's Ctrl-C reaches the command too. It ends first, then we clean up after it.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;

    let servers = Servers::start(&ServerOptions::unsynced()).await?;
    let mut command = Command::new(&program)
        .args(words)
        .env(TEST_NATS_URL_VARIABLE, servers.nats_url())
        .env(TEST_DATABASE_URL_VARIABLE, servers.database_url("postgres"))
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", program.to_string_lossy()))?;

    let status = loop {
        tokio::select! {
            status = command.wait() => break status?,
            _ = interrupt.recv() => {}
            // Sent to us alone: we pass it on to the command.
            _ = terminate.recv() => command.start_kill()?,
        }
    };
    // A server that ended explains failures of the command: its log is printed.
    servers.check_running()?;
    servers.stop_all().await?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
