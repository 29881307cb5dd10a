//! The whole pipeline, from HTTP to the mail sink, on real servers and with real processes.
#![allow(clippy::unwrap_used)]

mod crashes;
mod dev_command;
mod first_campaign;
mod health;
mod lost_bus;
mod operator;
mod outages;
mod transactional;
mod unsubscribe_race;
