//! `postrider sink`: the mail sink as a process of its own.

use std::{net::SocketAddr, path::PathBuf};

use devtools::sink::{KeptMails, Sink, SinkOptions};
use serde_json::json;

use crate::{
    operator,
    process::{AddressesFile, stop_signal},
};

/// A mail sink: takes every mail, delivers none.
#[derive(Debug, clap::Args)]
pub struct SinkArgs {
    /// Where it takes mail. Port 0 takes a free one.
    #[arg(long, env = "POSTRIDER_SINK_SMTP_ADDR", default_value = "127.0.0.1:0")]
    sink_smtp_addr: SocketAddr,
    /// Where its inbox page and its counts are. Port 0 takes a free one.
    #[arg(long, env = "POSTRIDER_SINK_HTTP_ADDR", default_value = "127.0.0.1:0")]
    sink_http_addr: SocketAddr,
    /// A file with scripted answers.
    #[arg(long, env = "POSTRIDER_SINK_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Mails it keeps whole; older ones are only counted.
    #[arg(long, env = "POSTRIDER_SINK_KEEP", default_value_t = 2_000)]
    keep: usize,
    #[command(flatten)]
    addresses: AddressesFile,
}

pub async fn run(args: SinkArgs) -> anyhow::Result<()> {
    let sink = Sink::start(SinkOptions {
        smtp_addr: args.sink_smtp_addr,
        http_addr: args.sink_http_addr,
        rules: args.rules,
        keep: KeptMails { messages: args.keep, ..KeptMails::default() },
        ..SinkOptions::default()
    })
    .await?;
    let (smtp, inbox) = (sink.smtp_url(), sink.http_url());
    operator::print_result(&json!({"smtp": smtp, "inbox": inbox}), &format!("smtp {smtp}\ninbox {inbox}"));
    args.addresses.write(&json!({
        "smtp_addr": sink.smtp_addr(), "http_addr": sink.http_addr(), "pid": std::process::id(),
    }))?;
    stop_signal().await;
    sink.stop().await;
    Ok(())
}
