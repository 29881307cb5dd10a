//! The Prometheus recorder of a process.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use super::{Gauge, Histogram};
use crate::pause_switches::StageName;

/// Samples of histograms are sorted into their buckets so often; until then each takes room.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Starts to keep metrics, with everything this process will count at zero. Call inside a runtime, once per process.
///
/// `processes` is what the process was started as: `all`, `ingress`, or stages joined by `+`. With `kept` false nothing is kept
/// and `/metrics` is empty: for measuring what metrics cost.
///
/// # Errors
/// When a recorder is installed already.
pub fn start(processes: &str, kept: bool) -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for histogram in Histogram::ALL {
        builder =
            builder.set_buckets_for_metric(Matcher::Full(histogram.name().to_owned()), histogram.metric().buckets)?;
    }
    if !kept {
        return Ok(builder.build_recorder().handle());
    }
    let handle = builder.install_recorder()?;
    super::describe();
    super::open(&parts(processes));
    Gauge::BuildInfo
        .set_owned(1.0, [("version", env!("CARGO_PKG_VERSION").to_owned()), ("processes", processes.to_owned())]);
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_EVERY).await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// What a process runs, by what it was started as.
fn parts(processes: &str) -> Vec<&'static str> {
    let known = StageName::NAMES.iter().copied().chain(["ingress"]);
    known.filter(|part| processes == "all" || processes.split('+').any(|named| named == *part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_what_it_was_started_as() {
        assert_eq!(parts("all").len(), StageName::NAMES.len() + 1);
        assert_eq!(parts("delivery+audience"), ["audience", "delivery"]);
        assert_eq!(parts("ingress"), ["ingress"]);
    }
}
