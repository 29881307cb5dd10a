//! Steps between their end and the collector. Not the SDK's batch processor: that one does not say how many spans it drops.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{Span, SpanData, SpanExporter, SpanProcessor},
};
use runtime::Counter;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Steps that wait; what comes on top is dropped. Some 10 MB.
const WAITING_MAX: usize = 8_192;
/// Steps of one post.
const POST_MAX: usize = 512;
/// How long steps are gathered for one.
const GATHER: Duration = Duration::from_secs(1);

/// Where steps are put when they end. Never waits.
#[derive(Debug)]
pub(crate) struct Queue(mpsc::Sender<SpanData>);

impl Queue {
    pub fn new() -> (Self, mpsc::Receiver<SpanData>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.0.try_send(span).is_err() {
            count(1, "dropped");
        }
    }

    /// The task that carries posts by itself, and to the end when it is stopped.
    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Carries steps to the collector until stopped, and then what is left.
pub(crate) async fn carry(mut waiting: mpsc::Receiver<SpanData>, exporter: impl SpanExporter, stop: CancellationToken) {
    let mut collector = Collector { exporter, is_away: false };
    let mut gathered = Vec::with_capacity(POST_MAX);
    loop {
        let is_stopped = stop.run_until_cancelled(gather(&mut waiting, &mut gathered)).await.is_none();
        if is_stopped {
            waiting.close();
            collector.take(&mut gathered).await;
            while waiting.recv_many(&mut gathered, POST_MAX).await > 0 {
                collector.take(&mut gathered).await;
            }
            return;
        }
        if gathered.is_empty() {
            // Nobody can put anything in any more.
            return;
        }
        collector.take(&mut gathered).await;
    }
}

/// Gathers until there is enough for a post, or the first of it has waited long enough. What was gathered stays when this is cut off.
async fn gather(waiting: &mut mpsc::Receiver<SpanData>, gathered: &mut Vec<SpanData>) {
    if waiting.recv_many(gathered, POST_MAX).await == 0 {
        return;
    }
    let more = async {
        loop {
            let room = POST_MAX.saturating_sub(gathered.len());
            if room == 0 || waiting.recv_many(gathered, room).await == 0 {
                break;
            }
        }
    };
    // Either way it is posted.
    let _ = tokio::time::timeout(GATHER, more).await;
}

struct Collector<E> {
    exporter: E,
    is_away: bool,
}

impl<E: SpanExporter> Collector<E> {
    /// Posts once. What the collector does not take is lost and counted: traces are not worth waiting for.
    async fn take(&mut self, gathered: &mut Vec<SpanData>) {
        if gathered.is_empty() {
            return;
        }
        let spans = std::mem::replace(gathered, Vec::with_capacity(POST_MAX));
        let posted = spans.len() as u64;
        match self.exporter.export(spans).await {
            Ok(()) => {
                count(posted, "exported");
                if std::mem::take(&mut self.is_away) {
                    tracing::info!("the collector takes traces again");
                }
            }
            Err(error) => {
                count(posted, "refused");
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(%error, "the collector does not take traces; they are dropped until it does");
                }
            }
        }
    }
}

fn count(spans: u64, outcome: &'static str) {
    Counter::TraceSpansTotal.add(spans, [("outcome", outcome)]);
}
