//! How full the streams are: a full work queue refuses what comes.

use schemas::subjects::stream;

use super::{Check, Status};
use crate::api::platform::facts::StreamFacts;

/// As the alert StreamNearlyFull.
const WARN_PERCENT: u64 = 70;

pub(super) fn check(streams: Option<&[StreamFacts]>) -> Check {
    let check = Check::new("queue.full", "queues", "Room in the streams", "");
    let Some(streams) = streams else { return check.unseen() };
    // Dead letters leave by age: theirs forgets the oldest.
    let bounded = streams.iter().filter(|facts| facts.name != stream::DEAD && facts.bytes_max > 0);
    let Some((percent, name)) = bounded.map(|facts| (percent(facts), facts.name)).max() else { return check };
    let check = Check { observation: format!("the fullest, {name}, holds {percent} % of what it may"), ..check };
    if percent < WARN_PERCENT {
        return check;
    }
    check.because(
        Status::Warn,
        format!("{name} is nearly full; then it refuses, and signals or direct requests are lost or turned away"),
        &["start the stage that reads it, or more of it", "`postrider streams report` says who reads what"],
        "nats",
    )
}

fn percent(facts: &StreamFacts) -> u64 {
    facts.bytes.saturating_mul(100) / facts.bytes_max.unsigned_abs().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, bytes: u64) -> StreamFacts {
        StreamFacts { name, messages: 1, oldest_seconds: 0, newest_seconds: 0, bytes, bytes_max: 1_000 }
    }

    #[test]
    fn a_stream_that_will_refuse_is_told_and_one_that_forgets_is_not() {
        assert_eq!(check(Some(&[of(stream::SIGNALS, 690), of(stream::DEAD, 990)])).status, Status::Ok);
        let nearly = check(Some(&[of(stream::SIGNALS, 700), of(stream::REQUESTS, 1)]));
        assert_eq!(nearly.status, Status::Warn);
        assert!(nearly.cause.is_some_and(|cause| cause.contains(stream::SIGNALS)));
    }
}
