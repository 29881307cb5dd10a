//! `postrider openapi` and `postrider asyncapi`: the contracts of HTTP and of the bus.

use std::path::PathBuf;

use anyhow::Context;

/// Where a document is written.
#[derive(Debug, clap::Args)]
pub struct DocumentArgs {
    /// Writes it to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The contract of the bus as an AsyncAPI 3.0 document.
#[derive(Debug, clap::Args)]
pub struct AsyncapiArgs {
    #[command(flatten)]
    document: DocumentArgs,
    /// The JSON Schema of one message instead, such as `mail.v1.event.email.sent`.
    #[arg(long, value_name = "MESSAGE")]
    schema: Option<String>,
}

/// Prints or writes the OpenAPI document, as `GET /openapi.json` serves it.
pub fn openapi(args: &DocumentArgs) -> anyhow::Result<()> {
    args.write(&ingress::contracts().openapi)
}

/// Prints or writes the AsyncAPI document, or the schema of one message.
pub fn asyncapi(args: &AsyncapiArgs) -> anyhow::Result<()> {
    let contract = ingress::contracts().asyncapi;
    let Some(name) = &args.schema else { return args.document.write(&contract.text()) };
    let message = contract.messages.iter().find(|message| message.name == *name);
    let message = message.with_context(|| format!("there is no message {name}; `postrider asyncapi` lists them"))?;
    args.document.write(&schemas::catalog::printed(&ingress::documents::asyncapi::schema_file(message)))
}

impl DocumentArgs {
    fn write(&self, text: &str) -> anyhow::Result<()> {
        match &self.output {
            Some(path) => std::fs::write(path, text).with_context(|| format!("{}", path.display())),
            None => {
                print!("{text}");
                Ok(())
            }
        }
    }
}
