//! The rules, each with its reason. Change one, and raise [`super::VERSION`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use chrono::TimeDelta;
use ipnet::IpNet;

/// The events a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    Opens,
    Clicks,
    Both,
}

/// The test that identifies a machine.
#[derive(Debug, Clone, Copy)]
pub(super) enum MachineTest {
    /// The User-Agent, in lower case, contains one of these.
    AgentContains(&'static [&'static str]),
    /// The User-Agent, in lower case, begins with one of these.
    AgentStarts(&'static [&'static str]),
    /// The User-Agent, in lower case, is one of these and nothing else.
    AgentIs(&'static [&'static str]),
    /// A client that does not say what it is.
    AgentMissing,
    /// The client's address lies in one of these networks.
    Network(&'static [IpNet]),
    /// It happened before the receiving server had accepted the message for this long.
    SoonerThan(TimeDelta),
}

/// One rule. The first that fits gives the reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct MachineRule {
    /// Kept with the event: a code from a bounded set.
    pub(super) reason: &'static str,
    pub(super) on: On,
    pub(super) test: MachineTest,
}

/// 17.0.0.0/8, 2620:149::/32 and 2a01:b740::/32.
const APPLE: &[IpNet] = &[
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(17, 0, 0, 0)), 8),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(0x2620, 0x149, 0, 0, 0, 0, 0, 0)), 32),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(0x2a01, 0xb740, 0, 0, 0, 0, 0, 0)), 32),
];

pub(super) const RULES: &[MachineRule] = &[
    // Gmail and Yahoo fetch pictures through proxies and keep them: whether a person opened the mail, and when, is unknown.
    MachineRule {
        reason: "image_proxy",
        on: On::Both,
        test: MachineTest::AgentContains(&["googleimageproxy", "ggpht.com", "yahoomailproxy"]),
    },
    // Apple's Mail Privacy Protection fetches every picture when the mail arrives. Its proxies say this much and no more.
    MachineRule { reason: "apple_privacy", on: On::Both, test: MachineTest::AgentIs(&["mozilla/5.0"]) },
    // Apple's own network; people at home are never in it.
    MachineRule { reason: "apple_privacy", on: On::Opens, test: MachineTest::Network(APPLE) },
    // Gateways that follow every link before they let a mail pass.
    MachineRule {
        reason: "security_scanner",
        on: On::Both,
        test: MachineTest::AgentContains(&[
            "barracuda",
            "mimecast",
            "proofpoint",
            "urldefense",
            "symantec",
            "messagelabs",
            "fortiguard",
            "sophos",
            "trendmicro",
            "trend micro",
            "ironport",
            "zscaler",
            "cloudmark",
            "fireeye",
            "safelinks",
            "microsoft office existence discovery",
            "microsoft-webdav-miniredir",
            "bitdefender",
            "virustotal",
            "netcraft",
            "avanan",
            "forcepoint",
            "mailscanner",
            "urlscan",
        ]),
    },
    // Chats and social sites that fetch a page to show what a link leads to.
    MachineRule {
        reason: "link_preview",
        on: On::Both,
        test: MachineTest::AgentContains(&[
            "slack-imgproxy",
            "slackbot",
            "facebookexternalhit",
            "twitterbot",
            "telegrambot",
            "whatsapp/",
            "skypeuripreview",
            "linkedinbot",
            "discordbot",
            "bingpreview",
            "embedly",
            "iframely",
        ]),
    },
    // Search engines and feed readers, by name or by the words they use of themselves.
    MachineRule {
        reason: "crawler",
        on: On::Both,
        test: MachineTest::AgentContains(&[
            "googlebot",
            "bingbot",
            "bot/",
            "bot;",
            "+http",
            "crawler",
            "spider",
            "feedfetcher",
            "google-read-aloud",
        ]),
    },
    // Headless browsers.
    MachineRule {
        reason: "automation",
        on: On::Both,
        test: MachineTest::AgentContains(&[
            "headlesschrome",
            "phantomjs",
            "selenium",
            "puppeteer",
            "playwright",
            "electronjs",
        ]),
    },
    // Programs that fetch addresses. Libraries that mail programs are made with (okhttp, CFNetwork) are not among them.
    MachineRule {
        reason: "http_library",
        on: On::Both,
        test: MachineTest::AgentStarts(&[
            "curl/",
            "wget/",
            "python-requests",
            "python-urllib",
            "python/",
            "python-httpx",
            "aiohttp",
            "go-http-client",
            "java/",
            "apache-httpclient",
            "libwww-perl",
            "lwp::",
            "node-fetch",
            "node",
            "axios/",
            "undici",
            "ruby",
            "guzzlehttp",
            "php/",
            "winhttp",
        ]),
    },
    // Every mail program and browser says what it is.
    MachineRule { reason: "no_user_agent", on: On::Both, test: MachineTest::AgentMissing },
    // A person does not open and follow a mail in so short a time; a scanner in front of the mailbox does, and often before the
    // server has even accepted the message.
    MachineRule { reason: "instant_click", on: On::Clicks, test: MachineTest::SoonerThan(TimeDelta::seconds(3)) },
];

/// The reason of clicks on different links of one mail that come together: a scanner goes through all of them, a person
/// follows one and reads.
pub(crate) const BURST: &str = "link_burst";
/// How close together.
pub(super) const BURST_WITHIN: TimeDelta = TimeDelta::seconds(2);
