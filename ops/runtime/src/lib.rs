//! The parts that every process needs: settings, telemetry, Postgres, the bus, the vault for secrets at rest.

pub mod admin;
pub mod backoff;
pub mod budget;
pub mod bus;
pub mod causes;
pub mod control;
pub mod db;
pub mod group;
pub mod heartbeat;
pub mod metric;
pub mod notify;
pub mod outbound;
pub mod panics;
pub mod pause_switches;
pub mod plans;
pub mod pools;
pub mod reader;
pub mod restore_detector;
pub mod settings;
pub mod streams;
pub mod telemetry;
pub mod trace;
pub mod vault;

pub use backoff::Backoff;
pub use budget::{Budget, Limits, Spent, Used};
pub use bus::{Bus, BusError, Publication};
pub use db::{Database, Role, column};
pub use group::{Commit, Gathering, GroupCommitter, NotCommitted, commit_each};
pub use heartbeat::{Beat, Heartbeat};
pub use metric::{Counter, Gauge, Histogram};
pub use notify::{CommitNotifier, Notifier};
pub use outbound::{Outbound, OutboundError, OutboundSettings};
pub use pause_switches::PauseSwitches;
pub use reader::{Job, ReadFault, Reader, ReaderError, ReaderSettings};
pub use settings::CoreSettings;
pub use vault::{MasterKeys, Vault, VaultError};
