//! An array in the request log: one entry for what is accepted of each tenant, and one for each item that is refused.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::StatusCode;
use uuid::Uuid;

use super::item::{ArrayItems, ItemState};
use crate::{
    api::transactional::ACCEPTED,
    pipeline::{
        Operation,
        auth::keys::Caller,
        request_log::{LoggedCall, LoggedTenant, RefusalReason, RequestLog},
    },
};

/// Puts the items of an array into the request log, each as a call of `operation`. Items without a tenant are in nobody's.
pub(super) fn note_items(
    log: &RequestLog,
    operation: &'static Operation,
    caller: &Arc<Caller>,
    items: &ArrayItems,
    duration: Duration,
) {
    let note = |tenant: Uuid, status: StatusCode, refusal: Option<RefusalReason>, replayed: bool| {
        if let Some(call) = LoggedCall::new(Arc::clone(caller), LoggedTenant::Id(tenant), operation, status) {
            log.note(LoggedCall { refusal, replayed, duration, ..call });
        }
    };
    // Whether all that is accepted of a tenant was accepted before.
    let mut accepted: BTreeMap<Uuid, bool> = BTreeMap::new();
    for (item, outcome) in items.iter().zip(items.outcomes()) {
        let Some(tenant) = item.tenant else { continue };
        match outcome {
            Ok(_) if matches!(item.state, ItemState::Accepted(_)) => drop(accepted.insert(tenant, false)),
            Ok(_) => drop(accepted.entry(tenant).or_insert(true)),
            Err(refusal) => {
                let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
                note(tenant, status, Some(RefusalReason::of_item(&refusal)), false);
            }
        }
    }
    for (tenant, replayed) in accepted {
        note(tenant, ACCEPTED, None, replayed);
    }
}
