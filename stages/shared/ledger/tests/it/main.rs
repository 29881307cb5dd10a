//! Plans of the ledger's statements; erasures.
#![allow(clippy::unwrap_used, missing_docs)]

mod erasures;
mod large_partition;
mod waiting_batches;
mod young_partition;
mod young_tables;
