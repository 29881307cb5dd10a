//! The kinds of direct requests, and the consumer that reads each.

use schemas::{DirectKind, Lane};

/// Kinds that share a durable consumer, which all ingress processes share.
pub(super) struct IntakeQueue {
    /// The durable consumer is `ingress-<name>`.
    pub name: &'static str,
    pub lane: Lane,
    pub kinds: &'static [DirectKind],
}

/// Three queues: no request waits behind a launch, which counts an audience, and no single message behind an array. A consumer may have
/// more messages pending than one product may have waiting, so that a product whose requests are all deferred does not block others.
pub(super) const INTAKE_QUEUES: [IntakeQueue; 3] = [
    IntakeQueue {
        name: "prompt",
        lane: Lane::Priority,
        kinds: &[
            DirectKind::Message,
            DirectKind::Enrollment,
            DirectKind::Outcome,
            DirectKind::Contact,
            DirectKind::Event,
            DirectKind::Suppression,
        ],
    },
    IntakeQueue { name: "transactional", lane: Lane::Priority, kinds: &[DirectKind::Transactional] },
    IntakeQueue { name: "launches", lane: Lane::Bulk, kinds: &[DirectKind::CampaignLaunch] },
];

#[cfg(test)]
mod tests {
    use runner::MAX_ACK_PENDING;
    use runtime::streams::REQUESTS_WAITING_MAX;
    use schemas::Environment;

    use super::*;
    use crate::{bus::calls::operation_of_kind, routes::operation};

    #[test]
    fn a_consumer_delivers_more_than_one_product_may_have_waiting() {
        for queue in &INTAKE_QUEUES {
            let subjects = i64::try_from(queue.kinds.len() * Environment::ALL.len()).unwrap();
            assert!(subjects * REQUESTS_WAITING_MAX < MAX_ACK_PENDING, "{}", queue.name);
        }
    }

    #[test]
    fn every_kind_stands_for_a_write_and_comes_by_one_consumer() {
        for kind in DirectKind::ALL {
            assert!(operation(operation_of_kind(*kind)).unwrap().is_write(), "{kind}");
            assert_eq!(INTAKE_QUEUES.iter().filter(|queue| queue.kinds.contains(kind)).count(), 1, "{kind}");
        }
    }
}
