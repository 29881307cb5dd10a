//! What may be subscribed to, and where to: checked as they are given.

use runtime::outbound::TargetRules;
use schemas::EventType;

use super::supported_events;
use crate::pipeline::Faults;

impl Faults {
    /// An address that deliveries may go to, in its canonical form. The addresses of a host name are checked at each connection.
    pub(in crate::api) fn target(&mut self, path: &str, text: &str, rules: &TargetRules) -> Option<String> {
        // A parser of URLs passes over white space and line breaks, which a caller does not mean.
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            self.add(path, "invalid", "must not contain white space or control characters");
            return None;
        }
        match rules.parse(text) {
            Ok(url) => Some(url.into()),
            Err(fault) => {
                self.add(path, fault.code(), fault.to_string());
                None
            }
        }
    }

    /// Events that may be subscribed to, each once.
    pub(super) fn events(&mut self, path: &str, events: Vec<String>) -> Vec<String> {
        self.require(!events.is_empty(), path, "empty", "must name at least one event");
        let mut kept: Vec<String> = Vec::new();
        for (place, event) in events.into_iter().enumerate() {
            if !EventType::parse(&event).is_some_and(EventType::is_subscribable) {
                let known = supported_events().join(", ");
                self.add(format!("{path}[{place}]"), "not_allowed", format!("must be one of {known}"));
            } else if kept.contains(&event) {
                self.add(format!("{path}[{place}]"), "duplicate", "is named twice");
            } else {
                kept.push(event);
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&[], Some(("events", "empty")))]
    #[case(&["email.sent", "campaign.paused"], None)]
    #[case::twice(&["email.sent", "email.sent"], Some(("events[1]", "duplicate")))]
    #[case(&["email.sent", "email.exploded"], Some(("events[1]", "not_allowed")))]
    #[case::not_to_be_had(&["webhook.test"], Some(("events[0]", "not_allowed")))]
    #[case::of_the_bus(&["request.rejected"], Some(("events[0]", "not_allowed")))]
    #[case::no_wildcards(&["*"], Some(("events[0]", "not_allowed")))]
    fn events_are_of_the_closed_set(#[case] events: &[&str], #[case] fault: Option<(&str, &str)>) {
        let mut faults = Faults::default();
        let kept = faults.events("events", events.iter().map(|event| (*event).to_owned()).collect());
        match (faults.finish(), fault) {
            (Ok(()), None) => assert_eq!(kept, ["email.sent", "campaign.paused"]),
            (Err(error), Some(fault)) => {
                assert_eq!((error.fields[0].path.as_str(), error.fields[0].code.as_ref()), fault);
            }
            (found, fault) => panic!("{found:?} instead of {fault:?}"),
        }
    }

    #[test]
    fn an_address_is_kept_in_its_canonical_form() {
        let mut faults = Faults::default();
        let kept = faults.target("url", "HTTPS://Bücher.Example:443/Hook?a=b", &TargetRules::default());
        assert_eq!(kept.as_deref(), Some("https://xn--bcher-kva.example/Hook?a=b"));
        assert_eq!(faults.target("url", "https://127.0.0.1/", &TargetRules::default()), None);
        assert_eq!(faults.finish().unwrap_err().fields[0].code, "address_not_allowed");
    }

    #[rstest]
    #[case(" https://example.com/")]
    #[case("https://example.com/\n")]
    #[case("https://exam\tple.com/")]
    #[case("https://example.com/\r\nX: y")]
    fn an_address_with_white_space_is_refused(#[case] text: &str) {
        let mut faults = Faults::default();
        assert_eq!(faults.target("url", text, &TargetRules::default()), None);
        assert_eq!(faults.finish().unwrap_err().fields[0].code, "invalid");
    }
}
