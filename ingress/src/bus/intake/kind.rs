//! What may be asked for, and by which consumer it comes.

use schemas::{DirectKind, Lane};

/// Kinds that wait for each other: one durable consumer, shared by all ingress processes.
pub(super) struct Sort {
    /// Of the durable: `ingress-<name>`.
    pub name: &'static str,
    pub lane: Lane,
    pub kinds: &'static [DirectKind],
}

/// Three queues: a launch, which counts an audience, stands before nobody else, and arrays stand before no single message. A consumer may
/// have more messages handed out than one product may have waiting, so that one whose requests are all tried again later does not keep
/// those of others from being handed out.
pub(super) const SORTS: [Sort; 3] = [
    Sort {
        name: "prompt",
        lane: Lane::Priority,
        kinds: &[
            DirectKind::Message,
            DirectKind::Enrollment,
            DirectKind::Outcome,
            DirectKind::Contact,
            DirectKind::Suppression,
        ],
    },
    Sort { name: "transactional", lane: Lane::Priority, kinds: &[DirectKind::Transactional] },
    Sort { name: "launches", lane: Lane::Bulk, kinds: &[DirectKind::CampaignLaunch] },
];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use runner::MAX_ACK_PENDING;
    use runtime::streams::REQUESTS_WAITING_MAX;
    use schemas::Environment;

    use super::*;
    use crate::{bus::calls::operation_of, routes::operation};

    #[test]
    fn a_consumer_hands_out_more_than_one_product_may_have_waiting() {
        for sort in &SORTS {
            let subjects = i64::try_from(sort.kinds.len() * Environment::ALL.len()).unwrap();
            assert!(subjects * REQUESTS_WAITING_MAX < MAX_ACK_PENDING, "{}", sort.name);
        }
    }

    #[test]
    fn every_kind_stands_for_a_write_and_comes_by_one_consumer() {
        for kind in DirectKind::ALL {
            assert!(operation(operation_of(*kind)).unwrap().verb.is_write(), "{kind}");
            assert_eq!(SORTS.iter().filter(|sort| sort.kinds.contains(kind)).count(), 1, "{kind}");
        }
    }
}
