//! HTTP in: the API, tracking links, the unsubscribe page. Validated requests out. Sends no mail.
//!
//! **Invariant:** a 2xx means committed. What a handler announces on the bus is a notification only; NATS may be away.

pub mod api;
mod bus;
pub mod documents;
pub mod pipeline;
pub mod public;
mod reply_inbox;
mod routes;
mod server;
pub mod settings;
mod state;

use runtime::Job;

pub use pipeline::error::{ApiError, FieldFault};
pub use reply_inbox::ReplyInbox;
pub use routes::{contracts, operations, router};
pub use server::{Serving, serve};
pub use settings::Settings;
pub use state::{Ingress, IngressDeps, StartError};

/// The jobs that the ingress gives to the [`Reader`](runtime::Reader).
pub const READER_JOBS: &[Job] = &[api::messages::READER_JOB];
