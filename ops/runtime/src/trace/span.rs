//! Steps of a trace, and what is carried out in them.

use std::{
    borrow::Cow,
    pin::Pin,
    sync::OnceLock,
    task::{Context as TaskContext, Poll},
};

use opentelemetry::{
    Context, KeyValue, Value,
    global::BoxedTracer,
    trace::{Link, SpanBuilder, SpanKind, Status, TraceContextExt},
};
use pin_project_lite::pin_project;
use uuid::Uuid;

use super::TraceContext;

/// The tracer, and the share that it records of requests which bring no decision of their own.
struct Recorder {
    tracer: BoxedTracer,
    ratio: f64,
}

static RECORDER: OnceLock<Recorder> = OnceLock::new();

/// Has steps recorded from now on. Once per process; a second call has no effect.
pub fn install(tracer: BoxedTracer, ratio: f64) {
    let _ = RECORDER.set(Recorder { tracer, ratio });
}

/// A step that is under way; it ends when dropped.
#[derive(Debug)]
#[must_use = "a step that is dropped has ended"]
pub struct Span(Context);

impl Span {
    /// At a front door: part of the caller's trace if he sent one, recorded if he asks for it; without one, by the ratio. The name
    /// is made only if somebody will read it.
    pub fn enter(
        kind: SpanKind,
        name: impl FnOnce() -> Cow<'static, str>,
        parent: Option<&TraceContext>,
    ) -> Option<Self> {
        if let Some(parent) = parent {
            return Some(Self::under(kind, name, parent));
        }
        let recorder = RECORDER.get().filter(|recorder| recorder.ratio > 0.0)?;
        (rand::random::<f64>() < recorder.ratio)
            .then(|| Self::record(recorder, kind, name(), &Context::new(), Vec::new()))
    }

    /// A step of a trace that comes along with the work. Passed on as it is where no exporter records.
    pub fn of(kind: SpanKind, name: &'static str, parent: &TraceContext) -> Self {
        Self::under(kind, || name.into(), parent)
    }

    fn under(kind: SpanKind, name: impl FnOnce() -> Cow<'static, str>, parent: &TraceContext) -> Self {
        match RECORDER.get().filter(|_| parent.is_sampled()) {
            Some(recorder) => Self::record(recorder, kind, name(), &parent.ambient(), Vec::new()),
            None => Self(parent.ambient()),
        }
    }

    /// The first step of a trace of its own that says because of what it is taken: a batch of a launch's thousands is easier read by
    /// itself.
    pub fn because_of(kind: SpanKind, name: &'static str, cause: &TraceContext) -> Self {
        match RECORDER.get().filter(|_| cause.is_sampled()) {
            Some(recorder) => {
                let links = vec![Link::with_context(cause.inner().clone())];
                Self::record(recorder, kind, name.into(), &Context::new(), links)
            }
            None => Self(cause.ambient()),
        }
    }

    /// A step of what is in hand, if a trace is taken.
    pub fn here(kind: SpanKind, name: &'static str) -> Option<Self> {
        TraceContext::current().map(|parent| Self::of(kind, name, &parent))
    }

    fn record(
        recorder: &Recorder,
        kind: SpanKind,
        name: Cow<'static, str>,
        parent: &Context,
        links: Vec<Link>,
    ) -> Self {
        let builder = SpanBuilder::from_name(name).with_kind(kind).with_links(links);
        Self(parent.with_span(builder.start_with_context(&recorder.tracer, parent)))
    }

    /// Says something of it: codes, counts and ids, never addresses or words of others.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        let span = self.0.span();
        if span.is_recording() {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// Says an id of what it is about.
    pub fn set_id(&self, key: &'static str, id: Uuid) {
        if self.0.span().is_recording() {
            self.set(key, id.to_string());
        }
    }

    /// Says that it failed, with a code.
    pub fn fail(&self, code: &'static str) {
        self.set("error.type", code);
        self.0.span().set_status(Status::error(code));
    }

    /// The trace with this as the step above; `None` where it is not to be recorded.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        TraceContext::of(&self.0)
    }

    /// What to carry work out in.
    #[must_use]
    pub fn ambient(&self) -> Context {
        self.0.clone()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // Others may still hold what it is in.
        self.0.span().end();
    }
}

pin_project! {
    /// A future that is carried out in a step of a trace, or in none.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Within<F> {
        ambient: Option<Context>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _in_hand = this.ambient.clone().map(Context::attach);
        this.future.poll(task)
    }
}

/// Carries a future out in this.
pub fn within<F: Future>(ambient: Option<Context>, future: F) -> Within<F> {
    Within { ambient, future }
}

/// For a task of its own: in the trace that is in hand where it is spawned.
pub fn inherit<F: Future>(future: F) -> Within<F> {
    let current = Context::current();
    let is_traced = current.span().span_context().is_valid();
    Within { ambient: is_traced.then_some(current), future }
}

/// Does something at once in this.
pub fn scope<T>(ambient: Option<Context>, act: impl FnOnce() -> T) -> T {
    let _in_hand = ambient.map(Context::attach);
    act()
}
