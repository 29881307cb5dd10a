//! `postrider asyncapi`: the contract of the bus.

use std::path::PathBuf;

use anyhow::Context;

/// The AsyncAPI document of this build.
#[derive(Debug, clap::Args)]
pub struct AsyncapiArgs {
    /// Writes it to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The JSON Schema of one message instead, such as `mail.v1.event.email.sent`.
    #[arg(long, value_name = "MESSAGE")]
    schema: Option<String>,
}

/// Prints or writes it.
pub fn run(args: &AsyncapiArgs) -> anyhow::Result<()> {
    let text = match &args.schema {
        None => ingress::contracts().asyncapi.text(),
        Some(name) => {
            let messages = ingress::contracts().asyncapi.messages;
            let message = messages.iter().find(|message| message.name == *name);
            let message =
                message.with_context(|| format!("there is no message {name}; `postrider asyncapi` lists them"))?;
            schemas::catalog::printed(&ingress::documents::asyncapi::schema_file(message))
        }
    };
    match &args.output {
        Some(path) => std::fs::write(path, text).with_context(|| format!("{}", path.display())),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}
