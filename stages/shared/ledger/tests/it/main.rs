//! Plans of the ledger's statements on tables without statistics.
#![allow(clippy::unwrap_used, missing_docs)]

mod young_partition;
mod young_tables;
