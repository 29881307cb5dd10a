//! A process's metrics, as Prometheus reads them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// One series at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Its name: of a histogram that of one of its parts.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    /// The metric it belongs to: a histogram's parts belong together.
    pub fn metric(&self) -> &str {
        let part = ["_bucket", "_sum", "_count"].iter().find_map(|part| self.name.strip_suffix(part));
        match part {
            Some(name) if runtime::Histogram::ALL.iter().any(|histogram| histogram.name() == name) => name,
            _ => &self.name,
        }
    }
}

/// Asks an admin port; answers what it tells, and how long that took.
pub async fn scrape(http: &reqwest::Client, admin_addr: &str) -> (Vec<Sample>, Duration) {
    let asked = Instant::now();
    let text = http.get(format!("http://{admin_addr}/metrics")).send().await.unwrap().text().await.unwrap();
    let took = asked.elapsed();
    (text.lines().filter_map(sample).collect(), took)
}

/// The sum over all series of a metric whose labels include these.
pub fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    let fits = |sample: &&Sample| {
        sample.name == name
            && labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|found| found == value))
    };
    samples.iter().filter(fits).map(|sample| sample.value).sum()
}

/// A line of the text format. Our label values have neither quotes nor backslashes.
fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') || line.is_empty() {
        return None;
    }
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("half a series: {line}"))),
        None => (series, ""),
    };
    let pair = |pair: &str| {
        let (label, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("no label: {line}"));
        (label.to_owned(), value.trim_end_matches('"').to_owned())
    };
    let labels = labels.split("\",").filter(|text| !text.is_empty()).map(pair).collect();
    Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_its_labels() {
        let read =
            sample(r#"mail_http_request_seconds_bucket{route="/v1/sends/{id}",method="GET",le="+Inf"} 3"#).unwrap();
        assert_eq!((read.metric(), read.value), ("mail_http_request_seconds", 3.0));
        assert_eq!(read.labels["route"], "/v1/sends/{id}");
        assert_eq!(read.labels.len(), 3);
        assert_eq!(sample("process_threads 9").unwrap().labels.len(), 0);
        assert_eq!(sample("# HELP x y"), None);
    }
}
