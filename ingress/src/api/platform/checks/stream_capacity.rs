//! How full the streams are: a full work queue refuses new messages.

use runtime::streams::STREAMS;

use super::{HealthCheck, HealthStatus};
use crate::api::platform::facts::StreamFacts;

/// As the alert StreamNearlyFull.
const WARN_PERCENT: u64 = 70;

pub(super) fn check(streams: Option<&[StreamFacts]>) -> HealthCheck {
    let check = HealthCheck::new("queue.full", "queues", "Capacity of the streams", "");
    let Some(streams) = streams else { return check.unavailable() };
    // The others drop their oldest when they are full.
    let refuses = |name: &str| STREAMS.iter().any(|spec| spec.name == name && spec.work_queue);
    let bounded = streams.iter().filter(|facts| refuses(facts.name) && facts.bytes_max > 0);
    let Some((percent, name)) = bounded.map(|facts| (percent(facts), facts.name)).max() else { return check };
    let check = check.observed(format!("the fullest, {name}, is {percent} % full"));
    if percent < WARN_PERCENT {
        return check;
    }
    check.because(
        HealthStatus::Warn,
        format!("{name} is nearly full; a full stream refuses signals and direct requests"),
        &["start the stage that reads it, or more of it", "`postrider streams report` lists the consumers"],
        "nats",
    )
}

fn percent(facts: &StreamFacts) -> u64 {
    facts.bytes.saturating_mul(100) / facts.bytes_max.unsigned_abs().max(1)
}

#[cfg(test)]
mod tests {
    use schemas::subjects::stream;

    use super::*;

    fn of(name: &'static str, bytes: u64) -> StreamFacts {
        StreamFacts { name, messages: 1, oldest_seconds: 0, newest_seconds: 0, bytes, bytes_max: 1_000 }
    }

    #[test]
    fn a_nearly_full_work_queue_is_a_warning() {
        let others = [stream::DEAD, stream::EVENTS, stream::MARKS].map(|name| of(name, 990));
        let streams = [&[of(stream::SIGNALS, 690)][..], &others[..]].concat();
        assert_eq!(check(Some(&streams)).status, HealthStatus::Ok);
        let nearly = check(Some(&[of(stream::SIGNALS, 700), of(stream::REQUESTS, 1)]));
        assert_eq!(nearly.status, HealthStatus::Warn);
        assert!(nearly.cause.is_some_and(|cause| cause.contains(stream::SIGNALS)));
    }
}
