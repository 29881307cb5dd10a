//! Traces to an OTLP collector: the cargo feature `otlp`, on by default.

#[cfg(feature = "otlp")]
pub use otlp::{Exporting, start};

#[cfg(not(feature = "otlp"))]
pub use left_out::{Exporting, start};

#[cfg(not(feature = "otlp"))]
mod left_out {
    use std::time::Duration;

    use runtime::trace::TraceSettings;

    /// There is none.
    pub enum Exporting {}

    impl Exporting {
        pub async fn flush(self, _within: Duration) {
            match self {}
        }
    }

    /// Refuses a collector: its traces would be missing.
    pub fn start(settings: &TraceSettings, _processes: &str) -> anyhow::Result<Option<Exporting>> {
        anyhow::ensure!(
            settings.traces_url().is_none(),
            "otlp-endpoint: this program is built without the feature `otlp`"
        );
        Ok(None)
    }
}
