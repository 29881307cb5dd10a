//! The whole pipeline, from HTTP to the mail sink, on real servers and with real processes.
#![allow(clippy::unwrap_used)]

mod campaign_life;
mod crashes;
mod dev_command;
mod edge;
mod first_campaign;
mod health;
mod hooks;
mod lost_bus;
mod messages;
mod operator;
mod outages;
mod outcomes;
mod recount;
mod sandbox;
mod sequence;
mod tracking;
mod transactional;
mod unsubscribe_race;
mod webhooks;
