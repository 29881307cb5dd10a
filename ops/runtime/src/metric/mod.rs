//! Every metric, in one list: name, meaning, labels with the values they may have, buckets. `ops/metrics.md` is made from it.
//!
//! Labels are bounded sets: never a tenant, an address, an id. Whatever can be counted from the start is there from the start, as
//! zero: an alert on an increase sees the first failure, and a dashboard shows "none" and not "no data".
#![allow(clippy::disallowed_macros, reason = "this is the list they are to be emitted through")]

mod labels;
mod list;

use std::time::Duration;

use metrics::{SharedString, Unit};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

pub use self::{
    labels::{Emitter, Label, Values},
    list::{Counter, Gauge, Histogram},
};
use crate::stage_name;

/// Samples of histograms are sorted into their buckets so often; until then each takes room.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// What the three kinds of metric have in common.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name as exported.
    pub name: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Its labels: names with their values.
    pub labels: &'static [Label],
    /// Which processes emit it.
    pub emitter: Emitter,
    /// Upper bounds of a histogram's buckets, in seconds; of others none.
    pub buckets: &'static [f64],
}

/// Every metric, in the order of the list.
#[must_use]
pub fn all() -> Vec<Metric> {
    let counters = Counter::ALL.iter().map(|counter| counter.metric());
    let gauges = Gauge::ALL.iter().map(|gauge| gauge.metric());
    let histograms = Histogram::ALL.iter().map(|histogram| histogram.metric());
    counters.chain(gauges).chain(histograms).collect()
}

type Labels = Vec<(&'static str, SharedString)>;

fn fixed<const N: usize>(pairs: [(&'static str, &'static str); N]) -> Labels {
    pairs.map(|(key, value)| (key, SharedString::const_str(value))).into()
}

fn owned<const N: usize>(pairs: [(&'static str, String); N]) -> Labels {
    pairs.map(|(key, value)| (key, SharedString::from_owned(value))).into()
}

impl Counter {
    /// Adds.
    pub fn add<const N: usize>(self, count: u64, pairs: [(&'static str, &'static str); N]) {
        metrics::counter!(self.name(), &fixed(pairs)).increment(count);
    }

    /// Adds, with a label made at run time from a bounded set (an HTTP status, a route).
    pub fn add_owned<const N: usize>(self, count: u64, pairs: [(&'static str, String); N]) {
        metrics::counter!(self.name(), &owned(pairs)).increment(count);
    }
}

impl Gauge {
    /// Sets the level.
    pub fn set<const N: usize>(self, level: f64, pairs: [(&'static str, &'static str); N]) {
        metrics::gauge!(self.name(), &fixed(pairs)).set(level);
    }

    /// Sets the level, with a label made at run time from a bounded set.
    pub fn set_owned<const N: usize>(self, level: f64, pairs: [(&'static str, String); N]) {
        metrics::gauge!(self.name(), &owned(pairs)).set(level);
    }

    /// Raises the level by one until the answer is dropped, however that comes about.
    #[must_use]
    pub fn count_in_flight(self) -> GaugeGuard {
        self.add(1.0, []);
        GaugeGuard(self)
    }

    /// Moves the level.
    pub fn add<const N: usize>(self, by: f64, pairs: [(&'static str, &'static str); N]) {
        metrics::gauge!(self.name(), &fixed(pairs)).increment(by);
    }
}

/// One more of what a gauge counts.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.add(-1.0, []);
    }
}

impl Histogram {
    /// Records one value, in seconds.
    pub fn record<const N: usize>(self, seconds: f64, pairs: [(&'static str, &'static str); N]) {
        metrics::histogram!(self.name(), &fixed(pairs)).record(seconds);
    }

    /// Begins without a value.
    pub fn begin<const N: usize>(self, pairs: [(&'static str, &'static str); N]) {
        let _ = metrics::histogram!(self.name(), &fixed(pairs));
    }

    /// Records one value, in seconds, with a label made at run time from a bounded set.
    pub fn record_owned<const N: usize>(self, seconds: f64, pairs: [(&'static str, String); N]) {
        metrics::histogram!(self.name(), &owned(pairs)).record(seconds);
    }
}

/// Starts to keep metrics, with everything this process will count at zero. Call inside a runtime, once per process.
///
/// `processes` is what the process was started as: `all`, `ingress`, or stages joined by `+`. With `kept` false nothing is kept
/// and `/metrics` is empty: for measuring what metrics cost.
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
    describe();
    open(&parts(processes));
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
    stage_name::process_parts().filter(|part| stage_name::runs(processes, part)).collect()
}

/// Gives the recorder every metric's unit and meaning.
fn describe() {
    for counter in Counter::ALL {
        metrics::describe_counter!(counter.name(), Unit::Count, counter.metric().help);
    }
    for gauge in Gauge::ALL {
        metrics::describe_gauge!(gauge.name(), gauge.metric().help);
    }
    for histogram in Histogram::ALL {
        metrics::describe_histogram!(histogram.name(), Unit::Seconds, histogram.metric().help);
    }
}

/// Makes every series a process that runs these parts (`ingress`, stages) will count in, at zero. The runner opens its own series of each
/// stage and lane.
fn open(parts: &[&'static str]) {
    for counter in Counter::ALL {
        for pairs in series(&counter.metric(), parts) {
            metrics::counter!(counter.name(), &pairs).increment(0);
        }
    }
    for histogram in Histogram::ALL {
        for pairs in series(&histogram.metric(), parts) {
            let _ = metrics::histogram!(histogram.name(), &pairs);
        }
    }
    // Gauges that move by one start at zero. The others are set when they are measured.
    for gauge in [Gauge::WebhooksInFlight, Gauge::HttpRequestsInFlight] {
        for pairs in series(&gauge.metric(), parts) {
            metrics::gauge!(gauge.name(), &pairs).set(0.0);
        }
    }
}

/// The series of a metric that are known before anything happens.
fn series(metric: &Metric, parts: &[&'static str]) -> Vec<Labels> {
    let exported = match metric.emitter {
        Emitter::Every => true,
        Emitter::Parts(emitters) => emitters.iter().any(|emitter| parts.contains(emitter)),
        Emitter::Runner => false,
    };
    if !exported {
        return Vec::new();
    }
    let mut all: Vec<Labels> = vec![Vec::new()];
    for label in metric.labels {
        // A process exports only its own stages.
        let is_ours = |value: &&'static str| label.name != "stage" || parts.contains(value);
        let values: Vec<&'static str> = label.values.known().into_iter().filter(is_ours).collect();
        let with = |pairs: &Labels, value: &'static str| {
            let mut longer = pairs.clone();
            longer.push((label.name, SharedString::const_str(value)));
            longer
        };
        all = all.iter().flat_map(|pairs| values.iter().map(move |value| with(pairs, value))).collect();
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::StageName;

    #[test]
    fn names_are_ours_each_once_and_end_in_their_base_unit() {
        let mut names = BTreeSet::new();
        for metric in all() {
            assert!(names.insert(metric.name), "{} twice", metric.name);
            assert!(metric.name.starts_with("mail_") && !metric.help.is_empty(), "{}", metric.name);
            for scaled in ["_ms", "_millis", "_minutes", "_kb", "_mb", "_percent"] {
                assert!(!metric.name.ends_with(scaled), "{}: base units only", metric.name);
            }
        }
        for counter in Counter::ALL {
            assert!(counter.name().ends_with("_total"), "{}", counter.name());
        }
        for histogram in Histogram::ALL {
            assert!(histogram.name().ends_with("_seconds"), "{}", histogram.name());
        }
    }

    #[test]
    fn buckets_grow_and_are_few() {
        for histogram in Histogram::ALL {
            let bounds = histogram.metric().buckets;
            assert!(bounds.is_sorted_by(|a, b| a < b), "{}", histogram.name());
            assert!((5..=20).contains(&bounds.len()), "{}", histogram.name());
        }
    }

    #[test]
    fn label_values_are_short_and_name_no_tenant() {
        for metric in all() {
            for label in metric.labels {
                let about_somebody = ["tenant", "email", "address", "contact", "campaign", "send_id", "key", "url"];
                assert!(!about_somebody.contains(&label.name), "{} {}", metric.name, label.name);
                for word in label.values.known() {
                    assert!(label.values.allow(word), "{} {} = {word}", metric.name, label.name);
                }
            }
        }
    }

    #[test]
    fn every_kind_of_direct_request_is_in_its_label() {
        let kinds = Counter::DirectRequestsTotal.metric().labels[0].values;
        assert!(schemas::DirectKind::ALL.iter().all(|kind| kinds.allow(kind.as_str())));
    }

    #[test]
    fn a_process_begins_with_its_own_series_only() {
        let metric = Counter::SendsWithheldTotal.metric();
        let stages = |parts: &[&'static str]| -> BTreeSet<String> {
            series(&metric, parts).iter().map(|pairs| pairs[0].1.to_string()).collect()
        };
        assert_eq!(stages(&["compliance", "engagement"]), BTreeSet::from(["compliance".to_owned()]));
        assert!(stages(&["engagement"]).is_empty());
        let answers = series(&Counter::SmtpAnswersTotal.metric(), &["delivery"]);
        assert!(answers.len() > 20, "two lanes, every class");
        assert!(series(&Counter::SmtpAnswersTotal.metric(), &["ingress"]).is_empty());
    }

    #[test]
    fn there_are_not_too_many_series_to_begin_with() {
        let everything = labels::PART.known();
        let count: usize =
            all().iter().map(|metric| series(metric, &everything).len() * (metric.buckets.len() + 1)).sum();
        assert!(count < 1_500, "{count} lines of every scrape would be zeros");
    }

    #[test]
    fn a_process_is_known_by_what_it_was_started_as() {
        assert_eq!(parts("all").len(), StageName::NAMES.len() + 1);
        assert_eq!(parts("delivery+audience"), ["audience", "delivery"]);
        assert_eq!(parts("ingress"), ["ingress"]);
    }
}
