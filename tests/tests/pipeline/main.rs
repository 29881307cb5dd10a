//! The whole pipeline, from HTTP to the mail sink, on real servers and with real processes.
#![allow(clippy::unwrap_used)]

mod aftermath;
mod campaign_life;
mod clients;
mod cluster;
mod crashes;
mod dev_command;
mod direct;
mod drill;
mod edge;
mod first_campaign;
mod front_door;
mod health;
mod hooks;
mod hostile;
mod lost_bus;
mod messages;
mod metrics;
mod operator;
mod opt_outs;
mod outages;
mod outcomes;
mod pause_switches;
mod poison;
mod recount;
mod restored;
mod sandbox;
mod sequence;
mod tracing;
mod tracking;
mod transactional;
mod unsubscribe_race;
mod webhooks;
