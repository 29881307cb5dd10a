//! The webhooks stage on its own database and streams, with receivers that answer as real ones do.
#![allow(clippy::unwrap_used, missing_docs)]

mod answers;
mod crashes;
mod fairness;
mod replays;
mod telling;
mod world;
