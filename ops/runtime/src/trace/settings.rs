//! What an operator can set about traces.

use std::path::PathBuf;

use clap::Args;
use url::Url;

/// The standard's own names, for an endpoint that is set for all programs of a machine.
const STANDARD: [(&str, &str); 2] = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", PATH)];
const PATH: &str = "/v1/traces";

/// Traces: where they go, and how many are taken.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traces")]
#[group(skip)]
pub struct TraceSettings {
    /// The OTLP collector that traces go to, as `http://host:4318`, by http with protobuf. Without it and without the standard's
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` none are recorded; what callers send is passed on. `OTEL_EXPORTER_OTLP_HEADERS`,
    /// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` are read, too.
    #[arg(long, env = "POSTRIDER_OTLP_ENDPOINT", default_value = "", hide_default_value = true, value_parser = endpoint)]
    pub otlp_endpoint: Endpoint,
    /// Certificates in PEM that the collector's may be signed by, beside the public authorities.
    #[arg(long, env = "POSTRIDER_OTLP_CA_FILE")]
    pub otlp_ca_file: Option<PathBuf>,
    /// Of the requests that come without a trace of their caller's, the share that is traced: 0 none, 1 all.
    #[arg(long, env = "POSTRIDER_TRACE_RATIO", default_value_t = 0.01, value_parser = ratio)]
    pub trace_ratio: f64,
}

/// An address, or none: an empty variable in a compose file is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoint(Option<Url>);

impl TraceSettings {
    /// Where spans are posted to; `None`: nowhere.
    #[must_use]
    pub fn traces_url(&self) -> Option<Url> {
        match &self.otlp_endpoint.0 {
            Some(base) => joined(base.as_str(), PATH),
            None => STANDARD.iter().find_map(|(name, path)| {
                std::env::var(name).ok().filter(|value| !value.trim().is_empty()).and_then(|base| joined(&base, path))
            }),
        }
    }
}

/// A base as people write it, with or without a slash or the path itself.
fn joined(base: &str, path: &str) -> Option<Url> {
    let base = base.trim().trim_end_matches('/');
    Url::parse(&format!("{}{path}", base.strip_suffix(PATH).filter(|_| !path.is_empty()).unwrap_or(base))).ok()
}

fn endpoint(text: &str) -> Result<Endpoint, String> {
    if text.trim().is_empty() {
        return Ok(Endpoint(None));
    }
    let url = Url::parse(text.trim()).map_err(|error| error.to_string())?;
    if matches!(url.scheme(), "http" | "https") && url.host().is_some() && url.username().is_empty() {
        Ok(Endpoint(Some(url)))
    } else {
        Err("must be an http or https address without a user".to_owned())
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if (0.0..=1.0).contains(&ratio) { Ok(ratio) } else { Err("must be from 0 to 1".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("http://collector:4318", Some("http://collector:4318/v1/traces"))]
    #[case("http://collector:4318/", Some("http://collector:4318/v1/traces"))]
    #[case("https://otlp.example.com/prefix/v1/traces", Some("https://otlp.example.com/prefix/v1/traces"))]
    #[case(" ", None)]
    fn an_endpoint_is_a_base_or_the_address_itself(#[case] text: &str, #[case] expected: Option<&str>) {
        let settings = TraceSettings { otlp_endpoint: endpoint(text).unwrap(), otlp_ca_file: None, trace_ratio: 0.0 };
        let found = settings.traces_url().filter(|_| settings.otlp_endpoint.0.is_some());
        assert_eq!(found.as_ref().map(Url::as_str), expected);
    }

    #[rstest]
    #[case("collector:4318")]
    #[case("grpc://collector:4317")]
    #[case("http://user:secret@collector:4318")]
    fn an_endpoint_that_cannot_be_posted_to_is_refused(#[case] text: &str) {
        assert!(endpoint(text).is_err());
    }

    #[rstest]
    #[case("0", true)]
    #[case("0.5", true)]
    #[case("1", true)]
    #[case("1.1", false)]
    #[case("-0.1", false)]
    #[case("NaN", false)]
    fn a_ratio_is_a_share(#[case] text: &str, #[case] good: bool) {
        assert_eq!(ratio(text).is_ok(), good);
    }
}
