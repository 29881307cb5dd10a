//! Messages that are handled together: a step for each trace among them.

use std::collections::HashMap;

use opentelemetry::{
    Context,
    trace::{SpanKind, TraceContextExt},
};
use schemas::{About, Work};
use uuid::Uuid;

use super::{Span, TraceContext};

/// Which trace a piece of work in hand is of.
struct Works(HashMap<Uuid, Context>);

/// A message of a group, as far as it matters here.
#[derive(Debug, Default)]
pub struct TracedMessage<'a> {
    /// The trace it is part of.
    pub parent: Option<TraceContext>,
    /// What it is about.
    pub about: Option<About>,
    /// Further works it is about.
    pub also_about: &'a [Uuid],
}

/// The steps of one group.
#[derive(Debug)]
pub struct Group {
    spans: Vec<Span>,
    ambient: Context,
}

impl Group {
    /// Begins the steps of messages that a stage handles together: one for each step above, however many messages it sent. `None`
    /// when none of them is traced.
    pub fn begin<'a>(name: &'static str, messages: impl Iterator<Item = TracedMessage<'a>>) -> Option<Self> {
        let mut steps: Vec<Step> = Vec::new();
        let mut works = HashMap::new();
        for TracedMessage { parent, about, also_about } in messages {
            let Some(parent) = parent else { continue };
            let found = steps.iter().position(|step| step.parent == parent);
            let number = found.unwrap_or_else(|| {
                steps.push(Step { span: Span::of(SpanKind::Consumer, name, &parent), parent, messages: 0 });
                steps.len() - 1
            });
            let step = &mut steps[number];
            step.messages += 1;
            works.extend(also_about.iter().map(|work| (*work, step.span.ambient())));
            if let Some(about) = about {
                works.insert(about.work.id(), step.span.ambient());
                if step.messages == 1 {
                    say(&step.span, about);
                }
            }
        }
        for step in &steps {
            if step.messages > 1 {
                step.span.set("messaging.batch.message_count", step.messages);
            }
        }
        // Several traces: none of them is the one in hand, and each work knows its own.
        let ambient = match steps.as_slice() {
            [] => return None,
            [step] => step.span.ambient(),
            _ => Context::new(),
        };
        let ambient = ambient.with_value(Works(works));
        Some(Self { spans: steps.into_iter().map(|step| step.span).collect(), ambient })
    }

    /// What to carry the group out in.
    #[must_use]
    pub fn ambient(&self) -> Context {
        self.ambient.clone()
    }

    /// Says something of all.
    pub fn set(&self, key: &'static str, value: impl Into<opentelemetry::Value>) {
        let value = value.into();
        for span in &self.spans {
            span.set(key, value.clone());
        }
    }

    /// Says that it failed, with a code.
    pub fn fail(&self, code: &'static str) {
        for span in &self.spans {
            span.fail(code);
        }
    }
}

struct Step {
    parent: TraceContext,
    span: Span,
    messages: i64,
}

/// What a step is about. Of several messages of one step, the first: the others are found by the trace.
fn say(span: &Span, about: About) {
    span.set_id("mail.tenant_id", about.tenant_id);
    let key = match about.work {
        Work::Request(_) => "mail.request_id",
        Work::Batch(_) => "mail.batch_id",
        Work::Signal(_) => "mail.signal_id",
    };
    span.set_id(key, about.work.id());
    if let Some(campaign) = about.campaign_id {
        span.set_id("mail.campaign_id", campaign);
    }
}

/// What to carry out a part of a group's work in: the trace that this work is of. `None` when it is the one in hand anyway.
#[must_use]
pub fn of_work(id: Uuid) -> Option<Context> {
    Context::map_current(|ambient| {
        let of_it = ambient.get::<Works>()?.0.get(&id)?;
        let in_hand = ambient.span().span_context() == of_it.span().span_context();
        (!in_hand).then(|| of_it.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{scope, within};

    fn parent(trace: u128) -> TraceContext {
        TraceContext::parse(&format!("00-{trace:032x}-00000000000000ab-01"), None).unwrap()
    }

    fn about(id: u128) -> Option<About> {
        Some(About::new(Uuid::from_u128(9), Work::Batch(Uuid::from_u128(id))))
    }

    fn message(trace: Option<u128>, id: u128) -> TracedMessage<'static> {
        TracedMessage { parent: trace.map(parent), about: about(id), also_about: &[] }
    }

    fn trace_of(id: u128) -> Option<String> {
        TraceContext::for_message(about(id)).map(|context| context.trace_id())
    }

    #[test]
    fn nothing_begins_where_nobody_asks() {
        assert!(Group::begin("test", [message(None, 1), TracedMessage::default()].into_iter()).is_none());
        assert_eq!(trace_of(1), None);
    }

    #[tokio::test]
    async fn a_message_about_a_work_belongs_to_the_trace_of_that_work() {
        let several = TracedMessage { also_about: &[Uuid::from_u128(5)], ..message(Some(1), 4) };
        let messages = [message(Some(1), 1), message(Some(2), 2), message(None, 3), several];
        let group = Group::begin("test", messages.into_iter()).unwrap();
        assert_eq!(group.spans.len(), 2);
        within(Some(group.ambient()), async {
            tokio::task::yield_now().await;
            let traces: Vec<_> = (1..=5).map(trace_of).collect();
            let one = Some(format!("{:032x}", 1));
            assert_eq!(traces, [one.clone(), Some(format!("{:032x}", 2)), None, one.clone(), one]);
            assert_eq!(TraceContext::current(), None, "of several traces none is in hand");
            let inside = scope(crate::trace::of_work(Uuid::from_u128(2)), TraceContext::current);
            assert_eq!(inside.map(|context| context.trace_id()), Some(format!("{:032x}", 2)));
        })
        .await;
        assert_eq!(trace_of(1), None, "what is in hand ends with the work");
    }

    #[test]
    fn one_trace_is_in_hand_for_everything() {
        let group = Group::begin("test", [message(Some(1), 1)].into_iter()).unwrap();
        scope(Some(group.ambient()), || {
            assert_eq!(trace_of(1), Some(format!("{:032x}", 1)));
            assert_eq!(trace_of(7), Some(format!("{:032x}", 1)));
            assert!(crate::trace::of_work(Uuid::from_u128(1)).is_none());
        });
    }

    #[test]
    fn an_unsampled_trace_goes_no_further() {
        let parent = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", None).unwrap();
        let span = Span::of(SpanKind::Server, "test", &parent);
        assert!(scope(Some(span.ambient()), || TraceContext::current().is_none() && crate::trace::ids().is_some()));
    }
}
