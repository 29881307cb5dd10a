//! Classifies opens and clicks as a person's or a machine's. Every event is kept, marked with the result and the version of the rules;
//! a stored event can be classified again.
//!
//! A HEAD request is never an event: the ingress answers it and records nothing.

mod burst;
mod rules;

use std::net::IpAddr;

use chrono::{DateTime, Utc};

pub(crate) use self::burst::{Click, bursts};
pub(crate) use self::rules::BURST;
use self::rules::{MachineRule, MachineTest, On, RULES};

/// The version of the rules, stored with each marked event.
pub const VERSION: u16 = 1;

/// An open or a click, as the rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Touch<'a> {
    /// A click; else an open.
    pub click: bool,
    /// When it happened.
    pub at: DateTime<Utc>,
    /// When the receiving server accepted the message, or was about to; unknown for a message that has not left.
    pub accepted_at: Option<DateTime<Utc>>,
    /// The client's address. `None` for an event of a provider or the sandbox, which has no client.
    pub ip: Option<&'a str>,
    /// The client's User-Agent.
    pub user_agent: Option<&'a str>,
}

/// Why it was a machine, by the event alone; `None` for a person.
#[must_use]
pub fn classify(touch: &Touch<'_>) -> Option<&'static str> {
    let ip: IpAddr = touch.ip?.parse().ok()?;
    let agent = touch.user_agent.unwrap_or_default().trim().to_ascii_lowercase();
    RULES.iter().find(|rule| concerns(rule, touch) && fits(rule.test, touch, ip, &agent)).map(|rule| rule.reason)
}

/// The reason of a stored mark, if a rule about the event alone gave it.
pub(crate) fn known_reason(stored: &str) -> Option<&'static str> {
    RULES.iter().map(|rule| rule.reason).find(|reason| *reason == stored)
}

fn concerns(rule: &MachineRule, touch: &Touch<'_>) -> bool {
    match rule.on {
        On::Opens => !touch.click,
        On::Clicks => touch.click,
        On::Both => true,
    }
}

fn fits(test: MachineTest, touch: &Touch<'_>, ip: IpAddr, agent: &str) -> bool {
    match test {
        MachineTest::AgentContains(words) => words.iter().any(|name| agent.contains(name)),
        MachineTest::AgentStarts(words) => words.iter().any(|name| agent.starts_with(name)),
        MachineTest::AgentIs(words) => words.contains(&agent),
        MachineTest::AgentMissing => agent.is_empty(),
        MachineTest::Network(networks) => networks.iter().any(|network| network.contains(&ip)),
        MachineTest::SoonerThan(time) => touch.accepted_at.is_some_and(|accepted| touch.at - accepted < time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;
    use rstest::rstest;

    const IPHONE: &str =
        "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148";
    const OUTLOOK: &str = "Mozilla/4.0 (compatible; ms-office; MSOffice 16)";
    const HOME: &str = "203.0.113.9";

    #[rstest]
    #[case::a_phone(false, HOME, Some(IPHONE), None)]
    #[case::a_desktop(true, HOME, Some(OUTLOOK), None)]
    #[case::an_android_app(false, HOME, Some("okhttp/4.12.0"), None)]
    #[case::gmail(
        false,
        HOME,
        Some("Mozilla/5.0 (Windows NT 5.1; rv:11.0) Gecko Firefox/11.0 (via ggpht.com GoogleImageProxy)"),
        Some("image_proxy")
    )]
    #[case::yahoo(false, HOME, Some("YahooMailProxy; https://help.yahoo.com/"), Some("image_proxy"))]
    #[case::apple_says_little(false, HOME, Some("Mozilla/5.0"), Some("apple_privacy"))]
    #[case::apple_network(false, "17.58.1.2", Some(IPHONE), Some("apple_privacy"))]
    #[case::apple_network_click(true, "17.58.1.2", Some(IPHONE), None)]
    #[case::a_gateway(true, HOME, Some("Mozilla/5.0 (compatible; Mimecast)"), Some("security_scanner"))]
    #[case::office(true, HOME, Some("Microsoft Office Existence Discovery"), Some("security_scanner"))]
    #[case::a_chat(true, HOME, Some("Slackbot-LinkExpanding 1.0"), Some("link_preview"))]
    #[case::a_crawler(
        true,
        HOME,
        Some("Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)"),
        Some("crawler")
    )]
    #[case::headless(true, HOME, Some("Mozilla/5.0 (X11; Linux x86_64) HeadlessChrome/120.0"), Some("automation"))]
    #[case::a_script(true, HOME, Some("curl/8.5.0"), Some("http_library"))]
    #[case::silent(true, HOME, None, Some("no_user_agent"))]
    #[case::blank(false, HOME, Some("  "), Some("no_user_agent"))]
    fn a_client_is_classified_by_its_user_agent(
        #[case] click: bool,
        #[case] ip: &str,
        #[case] user_agent: Option<&str>,
        #[case] expected: Option<&str>,
    ) {
        let touch = Touch { click, at: Utc::now(), accepted_at: None, ip: Some(ip), user_agent };
        assert_eq!(classify(&touch), expected);
    }

    #[rstest]
    #[case::scanned_before_acceptance(true, -20_000, Some("instant_click"))]
    #[case::at_once(true, 2_999, Some("instant_click"))]
    #[case::a_quick_person(true, 3_000, None)]
    #[case::a_picture_may_be_quick(false, 10, None)]
    fn nobody_clicks_before_he_can_have_read(
        #[case] click: bool,
        #[case] after_ms: i64,
        #[case] expected: Option<&str>,
    ) {
        let accepted = Utc::now();
        let at = accepted + TimeDelta::milliseconds(after_ms);
        let touch = Touch { click, at, accepted_at: Some(accepted), ip: Some(HOME), user_agent: Some(IPHONE) };
        assert_eq!(classify(&touch), expected);
    }

    #[test]
    fn a_providers_event_has_no_client() {
        let now = Utc::now();
        let touch = Touch { click: true, at: now, accepted_at: Some(now), ip: None, user_agent: None };
        assert_eq!(classify(&touch), None);
    }

    #[test]
    fn every_rule_can_be_read() {
        for rule in RULES {
            let lower =
                |words: &[&str]| words.iter().all(|name| !name.is_empty() && *name == name.to_ascii_lowercase());
            match rule.test {
                MachineTest::AgentContains(words) | MachineTest::AgentStarts(words) | MachineTest::AgentIs(words) => {
                    assert!(lower(words))
                }
                MachineTest::Network(_) | MachineTest::AgentMissing | MachineTest::SoonerThan(_) => {}
            }
        }
    }
}
