//! `traceparent` and `tracestate`, read and written.

use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use schemas::{About, subjects::header};

use super::group;

/// Longest `tracestate` that is passed on: what the specification asks for. A longer one is dropped, the trace goes on.
const STATE_MAX_BYTES: usize = 512;
/// `00-<32 hex digits>-<16>-<2>`
const PARENT_BYTES: usize = 55;

/// A trace, and the step in it that what follows is part of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext(SpanContext);

impl TraceContext {
    /// Reads the two headers. `None` for anything that is not a trace: it is then as if nothing had been sent (W3C Trace Context
    /// §3.2.2.5). A bad `tracestate` alone costs only itself.
    #[must_use]
    pub fn parse(parent: &str, state: Option<&str>) -> Option<Self> {
        let version = hex(parent.get(..2)?)?;
        let is_whole = match version {
            "ff" => false,
            "00" => parent.len() == PARENT_BYTES,
            // Later versions may add to the end.
            _ => parent.len() == PARENT_BYTES || parent.as_bytes().get(PARENT_BYTES) == Some(&b'-'),
        };
        let mut fields = parent.get(3..PARENT_BYTES).filter(|_| is_whole)?.split('-');
        let (trace, step, flags) = (fields.next()?, fields.next()?, fields.next()?);
        if parent.as_bytes().get(2) != Some(&b'-') || (trace.len(), step.len(), flags.len()) != (32, 16, 2) {
            return None;
        }
        let flags = u8::from_str_radix(hex(flags)?, 16).ok()?;
        let state = state.filter(|state| state.len() <= STATE_MAX_BYTES).and_then(|state| state.parse().ok());
        let read = SpanContext::new(
            TraceId::from_hex(hex(trace)?).ok()?,
            SpanId::from_hex(hex(step)?).ok()?,
            TraceFlags::new(flags) & TraceFlags::SAMPLED,
            true,
            state.unwrap_or_default(),
        );
        read.is_valid().then_some(Self(read))
    }

    /// From the headers of a request. Two different parents are none.
    #[must_use]
    pub fn of_request(headers: &http::HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(header::TRACEPARENT).iter();
        let (parent, None) = (parents.next()?, parents.next()) else { return None };
        let states: Vec<&str> =
            headers.get_all(header::TRACESTATE).iter().filter_map(|state| state.to_str().ok()).collect();
        Self::parse(parent.to_str().ok()?, Some(&states.join(",")))
    }

    /// From the headers of a message.
    #[must_use]
    pub fn of_message(headers: Option<&async_nats::HeaderMap>) -> Option<Self> {
        let headers = headers?;
        let state = headers.get(header::TRACESTATE).map(async_nats::HeaderValue::as_str);
        Self::parse(headers.get(header::TRACEPARENT)?.as_str(), state)
    }

    /// The trace in hand, where one is taken: what the caller did not ask to be recorded goes no further.
    #[must_use]
    pub fn current() -> Option<Self> {
        Context::map_current(Self::of)
    }

    /// The trace that a message about this is part of.
    #[must_use]
    pub(crate) fn for_message(about: Option<About>) -> Option<Self> {
        match about.and_then(|about| group::of_work(about.work.id())) {
            Some(ambient) => Self::of(&ambient),
            None => Self::current(),
        }
    }

    pub(super) fn of(ambient: &Context) -> Option<Self> {
        let found = ambient.span().span_context().clone();
        (found.is_valid() && found.is_sampled()).then_some(Self(found))
    }

    /// Whether it is to be recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.0.is_sampled()
    }

    /// The trace's id, 32 hex digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        self.0.trace_id().to_string()
    }

    /// To do something in this trace without a step of its own: its log lines carry the ids.
    #[must_use]
    pub fn ambient(&self) -> Context {
        Context::new().with_remote_span_context(self.0.clone())
    }

    /// `traceparent`
    #[must_use]
    pub fn parent(&self) -> String {
        format!("00-{}-{}-{:02x}", self.0.trace_id(), self.0.span_id(), self.0.trace_flags().to_u8())
    }

    /// `tracestate`, if there is any.
    #[must_use]
    pub fn state(&self) -> Option<String> {
        Some(self.0.trace_state()).filter(|state| **state != TraceState::NONE).map(TraceState::header)
    }

    /// The headers that pass it on.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let state = self.state().map(|state| (header::TRACESTATE, state));
        std::iter::once((header::TRACEPARENT, self.parent())).chain(state)
    }

    pub(super) fn inner(&self) -> &SpanContext {
        &self.0
    }
}

/// Digits as the specification has them: lower case only.
fn hex(text: &str) -> Option<&str> {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[rstest]
    #[case::plain(GOOD, Some(true))]
    #[case::not_sampled("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", Some(false))]
    #[case::unknown_flags("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-fe", Some(false))]
    #[case::a_later_version("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", Some(true))]
    #[case::a_later_version_run_on("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more", None)]
    #[case::version_ff("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None)]
    #[case::too_long("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", None)]
    #[case::upper_case("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None)]
    #[case::no_trace("00-00000000000000000000000000000000-b7ad6b7169203331-01", None)]
    #[case::no_step("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None)]
    #[case::short("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None)]
    #[case::misplaced("00-0af7651916cd43dd8448eb211c80319cb-7ad6b7169203331-01", None)]
    #[case::not_ascii("00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333é-01", None)]
    #[case::words("yes please", None)]
    #[case::empty("", None)]
    fn a_traceparent_is_read_as_the_specification_has_it(#[case] text: &str, #[case] sampled: Option<bool>) {
        assert_eq!(TraceContext::parse(text, None).map(|read| read.is_sampled()), sampled);
    }

    #[test]
    fn what_is_read_is_passed_on_as_it_was() {
        let read = TraceContext::parse(GOOD, Some("congo=t61,rojo=00f067aa0ba902b7")).unwrap();
        let headers: Vec<_> = read.headers().collect();
        assert_eq!(
            headers,
            [("traceparent", GOOD.to_owned()), ("tracestate", "congo=t61,rojo=00f067aa0ba902b7".to_owned())]
        );
        let plain = TraceContext::parse(GOOD, None).unwrap();
        assert_eq!(plain.headers().count(), 1);
    }

    #[rstest]
    #[case::nonsense("=,=,\u{7f}")]
    #[case::too_long(&format!("a={}", "x".repeat(600)))]
    fn a_bad_tracestate_costs_only_itself(#[case] state: &str) {
        assert_eq!(TraceContext::parse(GOOD, Some(state)), TraceContext::parse(GOOD, None));
        assert!(TraceContext::parse(GOOD, Some(state)).is_some());
    }

    #[test]
    fn two_parents_in_one_request_are_none() {
        let mut headers = http::HeaderMap::new();
        headers.append("traceparent", GOOD.parse().unwrap());
        assert!(TraceContext::of_request(&headers).is_some());
        headers.append("tracestate", "a=1".parse().unwrap());
        headers.append("tracestate", "b=2".parse().unwrap());
        assert_eq!(TraceContext::of_request(&headers).unwrap().state().as_deref(), Some("a=1,b=2"));
        headers.append("traceparent", GOOD.parse().unwrap());
        assert_eq!(TraceContext::of_request(&headers), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_reader(parent in "\\PC{0,80}", state in "\\PC{0,40}") {
            let _ = TraceContext::parse(&parent, Some(&state));
        }
    }
}
