//! The runtime against real servers, and its page of metrics against its list.
#![allow(clippy::unwrap_used, missing_docs)]

mod heartbeat;
mod kept_plans;
mod metrics_page;
mod outbound;
mod panics;
mod pool;
mod publishing;
mod receivers;
mod streams;
mod vanished;
