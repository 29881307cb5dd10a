//! Plans of the ledger's statements on tables without statistics; erasures.
#![allow(clippy::unwrap_used, missing_docs)]

mod erasures;
mod young_partition;
mod young_tables;
