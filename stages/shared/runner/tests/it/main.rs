//! The loop of all stages against real servers.
#![allow(clippy::unwrap_used, missing_docs)]

mod crashes;
mod pause_switches;
mod schedule;
mod the_loop;
