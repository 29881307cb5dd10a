//! Commands of an operator to running processes, and the ledger epoch on the bus.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::messages::Message;

/// `mail.v1.control`: core NATS, in no stream. Only the command line publishes here; every process hears. What must hold stands in
/// the ledger: losing one of these costs a second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Control {
    /// PauseSwitches in the ledger were moved: look now.
    PauseSwitches,
    /// Another log filter, from now on or for a while. Answered, under the message's reply subject, by those who follow.
    Log {
        /// The filter, as the setting `log` has it. Without one: the setting itself again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filter: Option<String>,
        /// For so long; then the setting itself again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_seconds: Option<u64>,
        /// Only processes of this name (`all`, `ingress`, `delivery`), or that run the stage of this name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<String>,
    },
}

impl Message for Control {
    const SCHEMA: &'static str = "mail.v1.control";
}

/// What a process answers to a [`Control`] that asks for something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlAnswer {
    /// How the process calls itself.
    pub process: String,
    /// The machine it runs on, as it knows it.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// What is in force now.
    pub filter: String,
    /// Why it could not follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Message for ControlAnswer {
    const SCHEMA: &'static str = "mail.v1.control_answer";
}

/// `mail.v1.mark`: how far the ledger has come. Told after it is committed, so the bus is never ahead of the ledger; where it is, the
/// ledger went back: it was restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerMark {
    /// Which ledger.
    pub ledger_id: Uuid,
    /// How far.
    pub mark: i64,
    /// When it came there.
    pub at: DateTime<Utc>,
}

impl Message for LedgerMark {
    const SCHEMA: &'static str = "mail.v1.mark";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_signal_is_short() {
        assert_eq!(serde_json::to_string(&Control::PauseSwitches).unwrap(), r#"{"kind":"pause_switches"}"#);
    }

    #[test]
    fn a_filter_without_more_is_for_every_process_and_for_good() {
        let control: Control = serde_json::from_str(r#"{"kind":"log","filter":"debug"}"#).unwrap();
        assert_eq!(control, Control::Log { filter: Some("debug".to_owned()), for_seconds: None, process: None });
    }
}
