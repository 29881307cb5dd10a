//! The sequencing stage on its own database and streams.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
mod calls;
mod exits;
mod lanes;
mod looks;
mod processes;
mod starts;
mod statuses;
mod steps;
mod world;
