//! HTTP in: the API, tracking links, the unsubscribe page. Validated requests out. Sends no mail.
//!
//! **Invariant:** a 2xx means committed. What an act announces on the bus is a doorbell only; NATS may be away.

pub mod api;
mod bus;
pub mod documents;
mod inbox;
pub mod pipeline;
pub mod public;
mod routes;
mod server;
pub mod settings;
mod state;

use runtime::Job;

pub use inbox::Inbox;
pub use pipeline::error::{ApiError, FieldFault};
pub use routes::{contracts, operations, router};
pub use server::{Serving, serve};
pub use settings::Settings;
pub use state::{Deps, Ingress, StartError};

/// What the ingress has read by [`Reader`].
pub const READER_JOBS: &[Job] = &[api::messages::READER_JOB];
