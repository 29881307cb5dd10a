//! `postrider openapi`: the contract, as `GET /openapi.json` serves it.

use std::path::PathBuf;

use anyhow::Context;

/// The OpenAPI document of this build.
#[derive(Debug, clap::Args)]
pub struct OpenapiArgs {
    /// Writes it to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Prints or writes it.
pub fn run(args: &OpenapiArgs) -> anyhow::Result<()> {
    let text = ingress::contracts().openapi;
    match &args.output {
        Some(path) => std::fs::write(path, text).with_context(|| format!("{}", path.display())),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}
